"""A network of one's own, named by the place of a function that makes it.

    ./net.py:make_network        a function in a file
    package.module:make_network  a function in a module that Python can import

The function is called with those of the keyword arguments `key` (a JAX key for the initial weights)
and `example` (one input, with a batch axis) that it declares. It returns a Flax Linen, Flax NNX,
Equinox or PyTorch module, a pair of an Equinox module and its state or of a PyTorch module and
inputs for it, or a `Network`. What is recorded of it is its place and a digest of the source file,
never code.
"""

import hashlib
import importlib
import importlib.util
import inspect
import os
import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, replace
from functools import wraps
from pathlib import Path
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

from onebasin.networks.adapters import from_equinox, from_linen, from_nnx
from onebasin.networks.network import Apply, Network
from onebasin.networks.pytorch import from_torch
from onebasin.networks.pytorch.seeding import outside_jax, params_of, seeded
from onebasin.networks.running import inference_arguments
from onebasin.pytorch_tensors import import_torch
from onebasin.trees import PyTree

GIVEN = ("key", "example")
FORMS = "./file.py:function or package.module:function"


class OwnNetworkError(ValueError):
    """A network of one's own that cannot be found or made; the message names its place."""


@dataclass(frozen=True)
class Place:
    """Where the function that makes a network is.

    >>> Place.of("./net.py:make_network")
    Place(home='net.py', function='make_network')
    """

    home: str
    """A file, relative to the working directory, or a module."""
    function: str

    @classmethod
    def of(cls, text: str) -> "Place":
        home, colon, function = text.rpartition(":")
        if not colon or not home or not function.isidentifier():
            raise OwnNetworkError(f"'{text}' names no network; give {FORMS}")
        is_file = home.endswith(".py") or os.sep in home
        if not is_file and not all(part.isidentifier() for part in home.split(".")):
            raise OwnNetworkError(f"'{home}' is neither a .py file nor a module; give {FORMS}")
        return cls(os.path.normpath(home) if is_file else home, function)

    def __str__(self) -> str:
        return f"{self.home}:{self.function}"

    @property
    def is_file(self) -> bool:
        return self.home.endswith(".py") or os.sep in self.home

    def source(self) -> Path:
        """The source file, found without running it (though not without importing its parents)."""
        if self.is_file:
            if not Path(self.home).is_file():
                raise OwnNetworkError(
                    f"{self.home} is not a file in {Path.cwd()}; say where the network is with "
                    f"network='{FORMS.split()[0]}'"
                )
            return Path(self.home)
        with _from_here(), self._naming_errors():
            found = importlib.util.find_spec(self.home)
        if found is None or not found.origin or not Path(found.origin).is_file():
            raise OwnNetworkError(f"there is no module {self.home} with a source; give {FORMS}")
        return Path(found.origin)

    def digest(self) -> str:
        """The digest of the source file, by which a change is noticed."""
        return f"sha256:{hashlib.sha256(self.source().read_bytes()).hexdigest()}"

    def load(self) -> Callable[..., Any]:
        """The function, from the file or module, which is run."""
        source = self.source()
        with _from_here(), self._naming_errors():
            if self.is_file:
                name = f"onebasin_own_{hashlib.sha256(str(source.resolve()).encode()).hexdigest()}"
                spec = importlib.util.spec_from_file_location(name, source)
                assert spec is not None
                assert spec.loader is not None
                module = importlib.util.module_from_spec(spec)
                sys.modules[name] = module  # dataclasses and modules look their own module up
                spec.loader.exec_module(module)
            else:
                module = importlib.import_module(self.home)
        function = getattr(module, self.function, None)
        if not callable(function):
            raise OwnNetworkError(f"{self.home} has no function {self.function}; define it there")
        return function

    @contextmanager
    def _naming_errors(self, fails: str = "fails") -> Iterator[None]:
        """Whatever one's own code raises, as one sentence that names its place."""
        try:
            yield
        except OwnNetworkError:
            raise
        except (Exception, SystemExit) as error:  # code that exits is no answer either
            raise self._failure(error, fails) from error

    def _failure(self, error: BaseException, fails: str) -> OwnNetworkError:
        told = " ".join(str(error).split()) or "no message"
        return OwnNetworkError(f"{self} {fails} with {type(error).__name__}: {told}")

    def _named(self, apply: Apply) -> Apply:
        """The same function, whose errors name its place and the inputs on which it failed."""

        @wraps(apply)
        def named(params: PyTree, x: Any, *rest: Any) -> Any:
            with self._naming_errors(f"fails on inputs of shape {tuple(jnp.shape(x))}"):
                return apply(params, x, *rest)

        return named

    def make(self, input_shape: tuple[int, ...] | None) -> "OwnNetwork":
        """The network for inputs of a shape; none, if the function gives inputs itself."""
        function = self.load()
        with self._naming_errors():
            known = inspect.signature(function).parameters.values()
        needed = [
            p.name
            for p in known
            if p.default is p.empty
            and p.kind not in (p.VAR_POSITIONAL, p.VAR_KEYWORD)
            and p.name not in GIVEN
        ]
        if needed:
            raise OwnNetworkError(
                f"{self} needs an argument {needed[0]}; it is called with key= and example= only"
            )
        taken = {p.name for p in known} & set(GIVEN)
        example = None if input_shape is None else np.zeros((1, *input_shape), np.float32)
        if example is None and "example" in taken:
            raise OwnNetworkError(f"{self} needs the shape of one input; give input_shape")

        def made(key: jax.Array) -> Any:
            values = {"key": key, "example": example}
            with self._naming_errors(), seeded(jax.random.key_data(key)):
                return function(**{name: values[name] for name in taken})

        def as_network(own: Any, key: jax.Array) -> Network:
            try:
                return adapted(own, example, self, key=key)
            except (ValueError, ImportError):  # of ours, with a remedy
                raise
            except Exception as error:
                where = "" if example is None else f" on inputs of shape {example.shape}"
                raise self._failure(error, f"fails{where}") from error

        def init(key: jax.Array) -> PyTree:
            return as_network(made(key), key).params

        first = made(jax.random.key(0))
        network = as_network(first, jax.random.key(0))
        network = replace(network, apply=self._named(network.apply))
        if module_in(first) is not None:  # PyTorch draws weights itself
            params = lambda key: params_of(module_in(made(key)), network.params)
            return OwnNetwork(network, outside_jax(params, network.params), fixed=False)
        fixed = "key" not in taken and not _is_linen(first)
        return OwnNetwork(network, (lambda key: network.params) if fixed else init, fixed)  # noqa: ARG005


@dataclass(frozen=True)
class OwnNetwork:
    """A network that was made, and how to make params of it anew."""

    network: Network
    init: Callable[[jax.Array], PyTree]
    fixed: bool
    """Whether every key gives the same params, because the function takes none."""


def adapted(made: Any, example: np.ndarray | None, source: object, *, key: jax.Array) -> Network:
    """A `Network` from what a function made."""
    if isinstance(made, Network):
        return made
    module = module_in(made)
    if example is None and (_is_linen(made) or (module is made and module is not None)):
        raise OwnNetworkError(f"{source} needs the shape of one input; give input_shape")
    if module is not None:
        inputs = import_torch().from_numpy(example) if module is made else made[1]
        return from_torch(module.eval(), inputs)
    if _is_linen(made):
        calm = inference_arguments(inspect.signature(type(made).__call__).parameters)
        return from_linen(made, made.init(key, example, **calm), **calm)
    if isinstance(made, tuple) and len(made) == 2 and _is_of(made[0], "equinox"):
        return from_equinox(made[0], state=made[1])
    if _is_of(made, "equinox"):
        return from_equinox(made)
    if _is_of(made, "flax"):
        return from_nnx(made)
    raise OwnNetworkError(
        f"{source} returns a {type(made).__name__}; return a Flax, Equinox or PyTorch module or "
        "an onebasin.Network"
    )


def module_in(made: Any) -> Any | None:
    """The PyTorch module that a function returns, alone or with inputs for it."""
    pair = isinstance(made, tuple) and len(made) == 2
    module = made[0] if pair else made
    return module if _is_of(module, "torch") else None


def _is_linen(made: Any) -> bool:
    from flax import linen as nn

    return isinstance(made, nn.Module)


def _is_of(made: Any, library: str) -> bool:
    kinds = inspect.getmro(type(made))
    return any(kind.__module__.partition(".")[0] == library for kind in kinds)


@contextmanager
def _from_here() -> Iterator[None]:
    """Let Python import from the working directory, as it does for a script there."""
    here = os.getcwd()
    sys.path.insert(0, here)
    try:
        yield
    finally:
        sys.path.remove(here)
