"""Opening posterior files with the network, the data and the likelihood that belong to them."""

from collections.abc import Mapping
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import TYPE_CHECKING, Any, cast, get_args

from onebasin.choices import DataObjective, KindsName, NetworkName, ObjectiveName
from onebasin.cli import shared

if TYPE_CHECKING:
    from onebasin.data import Dataset, Split
    from onebasin.likelihoods import Likelihood
    from onebasin.networks.described import DescribedNetwork
    from onebasin.posterior import Header, Posterior
    from onebasin.problem import Problem
    from onebasin.symmetry import Symmetry

MATCHED = 1000  # training examples of an objective on data
DEFAULT_DATA = "digits"


@dataclass(frozen=True, eq=False)
class Opened:
    """Posterior files of one network, and what their headers and the options say of it.

    The network and the data are read when they are first used: not every command needs them.
    """

    paths: tuple[Path, ...]
    headers: "tuple[Header, ...]"
    config: Any
    """The options of the command."""

    @property
    def path(self) -> Path:
        """The first file, which errors name."""
        return self.paths[0]

    @property
    def header(self) -> "Header":
        return self.headers[0]

    @cached_property
    def posteriors(self) -> "tuple[Posterior, ...]":
        return tuple(shared.load_checked(path) for path in self.paths)

    @property
    def knows_network(self) -> bool:
        """Whether the file or the options name a network."""
        return self.header.network is not None or self.config.network is not None

    @cached_property
    def network(self) -> "DescribedNetwork":
        from onebasin.networks.described import DescribedNetwork

        shape = tuple(self.config.input_shape)
        if not shape and self.config.network is not None and self.data_name is not None:
            recorded = (self.header.network or {}).get("input_shape")
            shape = () if recorded else tuple(self._examples.train.x.shape[1:])
        return DescribedNetwork.from_config(
            self.header.network,
            self.path,
            self.header.params_shapes(),
            name=self.config.network,
            input_shape=shape or None,
            likelihood=self._named_likelihood,
        )

    @cached_property
    def symmetry(self) -> "Symmetry":
        """That of the file given, else of the network, traced."""
        from onebasin.symmetry import Symmetry, find_symmetry

        if self.config.symmetry is None:
            network = self.network
            kinds: KindsName = getattr(self.config, "kinds", "permutation")
            return find_symmetry(
                network, network.shapes, network.x, state=network.state, kinds=kinds
            )
        symmetry = Symmetry.load(self.config.symmetry)
        if getattr(self.config, "kinds", "permutation") == "permutation":
            symmetry = symmetry.permutations
        try:
            symmetry.check_shapes(self._params())
        except ValueError as error:
            raise ValueError(
                f"{self.config.symmetry} is not a symmetry of {self.path}: {error}"
            ) from None
        if self.knows_network:
            import jax

            network = self.network
            symmetry.check(
                network, network.shapes, network.x, state=network.state, key=jax.random.key(0)
            )
        return symmetry

    def _params(self) -> Any:
        import jax

        shapes = self.header.params_shapes().items()
        return {name: jax.ShapeDtypeStruct(shape, "float32") for name, shape in shapes}

    @property
    def data_record(self) -> dict[str, Any]:
        """What the fit recorded of its data."""
        return self.header.provenance.get("data") or {}

    @property
    def data_name(self) -> str | None:
        """The data of the options, else of the fit."""
        return getattr(self.config, "data", None) or self.data_record.get("name")

    @cached_property
    def _examples(self) -> "Dataset":
        return self._read(self.data_name or DEFAULT_DATA)

    def _read(self, name: str) -> "Dataset":
        record = self.data_record if "scaling" in self.data_record else None
        return shared.read_data(self.config, name, self.config.root, record=record)

    @cached_property
    def data(self) -> "Dataset":
        """The data of the options, else of the fit, else the digits."""
        return self._fitting(self._examples, self.data_name or DEFAULT_DATA)

    def other_data(self, name: str) -> "Dataset":
        """Other data for the same network."""
        return self._fitting(self._read(name), name)

    def _fitting(self, data: "Dataset", name: str) -> "Dataset":
        shape = tuple(data.test.x.shape[1:])
        if shape != self.network.input_shape:
            raise ValueError(
                f"{self.path} takes inputs of shape {self.network.input_shape} and {name} has "
                f"{shape}; give the data it was fitted to with --data"
            )
        return data

    def examples(self, config: shared.EvaluationOptions) -> "Split | None":
        """The examples to evaluate on, if any."""
        shared.check_limit(config.limit)
        if config.data is None:
            return None
        return shared.first_examples(self.data, config.split, config.limit)

    @cached_property
    def _named_likelihood(self) -> "Likelihood | None":
        """The likelihood of the options, else of the fit, if either names one."""
        from onebasin.likelihoods import likelihood_from, likelihood_named

        if self.config.likelihood is not None:
            named = likelihood_named(self.config.likelihood, self.config.noise_std)
            self._check_has_params_of(named)
            return named
        fitted = (self.header.provenance.get("fit") or {}).get("problem") or {}
        recorded = fitted.get("likelihood")
        if not isinstance(recorded, Mapping):
            return None
        if self.config.noise_std is not None:
            recorded = {**recorded, "noise_std": self.config.noise_std}
        return likelihood_from(recorded)

    def _check_has_params_of(self, likelihood: "Likelihood") -> None:
        """Refuse a likelihood that reads or lacks `log_noise`, unlike that of the fit."""
        from onebasin.likelihoods import HasOwnParams, LearnedNoise

        own = likelihood.own_names if isinstance(likelihood, HasOwnParams) else ()
        differ = {*LearnedNoise.own_names, *own} & ({*self.header.params_shapes()} ^ {*own})
        if differ:
            (leaf, *_), here = sorted(differ), bool(differ & {*own})
            has, needs = ("no", "needs one") if here else ("a", "has none")
            raise ValueError(
                f"{self.path} has {has} parameter '{leaf}', and the {likelihood.name} likelihood "
                f"{needs}; drop --likelihood to take that of the fit"
            )

    @cached_property
    def likelihood(self) -> "Likelihood":
        """The likelihood of the options, else of the fit, else by the targets of the data."""
        return self._named_likelihood or likelihood_for(self.config, self.data)

    @cached_property
    def problem(self) -> "Problem":
        """The network with its data and likelihood, by which everything is measured."""
        return problem_of(self.network, self.data, likelihood=self.likelihood)

    def align_second(
        self, objective: ObjectiveName, seed: int
    ) -> "tuple[Posterior, dict[str, Any]]":
        """The second posterior aligned to the first, and a report of the distances."""
        import jax

        from onebasin.evaluation.comparison import align_and_measure

        on_data = objective in get_args(DataObjective)
        network: Any = self.network if on_data else None  # other objectives use none
        return align_and_measure(
            *self.posteriors,
            network=network,
            symmetry=self.symmetry,
            objective=objective,
            x=self.data.train.x[:MATCHED] if on_data else None,
            key=jax.random.key(seed),
        )


def open_posteriors(config: Any, *paths: Path, same_network: bool = False) -> Opened:
    """Open files; those with different params are refused before any array is read.

    `same_network` also refuses files whose networks differ in what shapes do not tell.
    """
    from onebasin.posterior import read_header
    from onebasin.posterior.headers import check_same_network, check_same_params

    headers = [read_header(path) for path in paths]
    check = check_same_network if same_network and config.network is None else check_same_params
    check(dict(zip(paths, headers, strict=True)))
    return Opened(paths, tuple(headers), config)


def network_for(
    name: str, data: "Dataset", likelihood: str, *, width: int | None, depth: int | None
) -> "DescribedNetwork":
    """A built-in network, or one's own, for the examples and targets of a data set."""
    from onebasin.networks import network_named
    from onebasin.networks.described import DescribedNetwork

    shape = tuple(data.train.x.shape[1:])
    if name not in get_args(NetworkName):
        return DescribedNetwork.own(name, shape)
    outputs = data.num_outputs * (2 if likelihood == "heteroscedastic" else 1)
    built_in = cast(NetworkName, name)
    module = network_named(
        built_in, width=width, depth=depth, num_classes=outputs, input_shape=shape
    )
    return DescribedNetwork.of_module(module, shape)


def problem_of(
    network: "DescribedNetwork", data: "Dataset", likelihood: "Likelihood", **options: Any
) -> "Problem":
    """The network with its data and likelihood."""
    from onebasin.problem import Problem

    own = network.alone or network  # a problem adds the parameters of its likelihood itself
    own_state = {"state": own.state, "running": own.running, "network": own.config}
    return Problem(own.apply, own.init, data, likelihood, **own_state, **options)


def likelihood_for(config: shared.FileOptions, data: "Dataset") -> "Likelihood":
    """The likelihood of the options, else by the targets of the data."""
    from onebasin.likelihoods import likelihood_named

    recorded = (data.record or {}).get("likelihood")
    by_targets = "categorical" if data.num_classes else "learned-noise"
    return likelihood_named(config.likelihood or recorded or by_targets, config.noise_std)
