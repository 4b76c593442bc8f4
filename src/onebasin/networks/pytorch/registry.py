"""The table of ATen operators that have a counterpart in JAX, by name.

An entry is named as the operator without `aten.`: `"add.Tensor"` is one overload, `"add"` all of
them. The functions take JAX arrays where the operator takes tensors; data types are NumPy's, and
arguments that only concern memory (device, layout, pinning, memory format) are left out.
"""

from collections.abc import Callable, Iterable
from typing import Any, TypeVar

F = TypeVar("F", bound=Callable[..., Any])

OPERATORS: dict[str, Callable[..., Any]] = {}
KEPT: set[str] = set()
"""Composite operators that are translated whole, although PyTorch could take them apart."""

POINTWISE: set[Callable[..., Any]] = set()
"""Counterparts that act on each position alone, so that the order of axes does not matter."""
TO_CHANNELS_LAST: set[Callable[..., Any]] = set()
"""Counterparts whose first argument is an image with its channels last (`layouts`)."""
ANY_LAYOUT: set[Callable[..., Any]] = set()
"""Counterparts whose first argument is an image in either layout."""


def operator(
    *names: str, keep: bool = False, of: set[Callable[..., Any]] | None = None
) -> Callable[[F], F]:
    """Register the counterpart of some operators, as one `of` these sets."""

    def register(function: F) -> F:
        register_all(dict.fromkeys(names, function), of=of)
        if keep:
            KEPT.update(names)
        return function

    return register


def register_all(
    functions: dict[str, Callable[..., Any]], *, of: set[Callable[..., Any]] | None = None
) -> None:
    """Register counterparts by name; a name is registered once."""
    for name, function in functions.items():
        assert name not in OPERATORS, name
        OPERATORS[name] = function
        if of is not None:
            of.add(function)


def counterpart(overload: str) -> Callable[..., Any] | None:
    """The counterpart of `aten.add.Tensor`, or None."""
    name = overload.removeprefix("aten.")
    return OPERATORS.get(name) or OPERATORS.get(name.rpartition(".")[0])


def axes_of(dim: int | Iterable[int] | None, ndim: int) -> tuple[int, ...]:
    """Axes as non-negative numbers; none, or an empty list, stands for all of them."""
    dims = (dim,) if isinstance(dim, int) else tuple(dim or ())
    if not dims or ndim == 0:
        return tuple(range(ndim))
    return tuple(d % ndim for d in dims)
