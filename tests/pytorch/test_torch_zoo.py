"""Modules of many kinds: outputs, gradients and symmetries, and permuted weights in PyTorch."""

import copy

import jax
import jax.numpy as jnp
import numpy as np
import pytest
import torch
import torch_zoo

import onebasin as ob
from onebasin.pytorch_tensors import to_array, to_jax
from onebasin.symmetry import Symmetry


def arrays_of(x):
    return {k: to_jax(v) for k, v in x.items()} if isinstance(x, dict) else to_jax(x)


def doubled(x):
    """Floating-point inputs in double precision."""
    if isinstance(x, dict):
        return {name: doubled(tensor) for name, tensor in x.items()}
    return x.double() if x.is_floating_point() else x


def output_of(module, x, output):
    returned = module(**x) if isinstance(x, dict) else module(x)
    return returned if output is None else returned[output]


def found_groups(symmetry: Symmetry) -> list[tuple[int, frozenset[str]]]:
    def name(place):
        state = "state:" if place.where == "state" else ""
        return f"{state}{place.leaf}[{place.axis}]"

    found = [(g.size, frozenset(map(name, g.places))) for g in symmetry.groups]
    return sorted(found, key=lambda group: (group[0], sorted(group[1])))


@pytest.mark.parametrize("entry", [pytest.param(e, id=e.name) for e in torch_zoo.ZOO])
def test_module(entry: torch_zoo.Entry) -> None:
    module, x = torch_zoo.made(entry)
    # Single precision: the conversion compares the outputs itself, at 1e-4; here at 1e-5.
    network = ob.networks.from_torch(module, x, output=entry.output)
    with torch.no_grad():
        expected = output_of(module, x, entry.output).numpy()
    rest = () if network.state is None else (network.state,)
    found = jax.jit(network.apply)(network.params, arrays_of(x), *rest)
    np.testing.assert_allclose(found, expected, rtol=0, atol=1e-5 * np.abs(expected).max())

    check_double_precision(entry, network, copy.deepcopy(module).double(), doubled(x))

    symmetry = ob.find_symmetry(network, x=arrays_of(x), check=False)
    wanted = [
        (size, torch_zoo.places(words, network.params, network.state or {}))
        for size, words in entry.groups
    ]
    wanted.sort(key=lambda group: (group[0], sorted(group[1])))
    assert found_groups(symmetry) == wanted, f"found\n{symmetry}"
    check_in_pytorch(entry, network, symmetry, module, x)


def check_double_precision(entry, network, module, x) -> None:
    """Outputs and gradients: the same function of the same numbers, in PyTorch and in JAX."""
    expected = output_of(module, x, entry.output)
    weights = torch.randn(expected.shape, generator=torch.Generator().manual_seed(5)).double()
    (expected * weights).sum().backward()
    with jax.enable_x64(True):
        wide = lambda leaf: jnp.asarray(np.asarray(leaf, np.float64))
        rest = () if network.state is None else (jax.tree.map(wide, network.state),)

        def loss(params):
            out = network.apply(params, arrays_of(x), *rest)
            return jnp.sum(out * to_array(weights)), out

        params = jax.tree.map(wide, network.params)
        (_, found), gradient = jax.jit(jax.value_and_grad(loss, has_aux=True))(params)
        found, gradient = np.asarray(found), jax.tree.map(np.asarray, gradient)
    # A module that rounds to single precision itself cannot be nearer to one that does not.
    near = 1e-5 if entry.single else 1e-10
    expected = expected.detach().numpy()
    assert found.dtype == np.float64
    np.testing.assert_allclose(found, expected, rtol=0, atol=near * np.abs(expected).max())
    own = dict(module.named_parameters())
    largest = max(np.abs(leaf).max() for leaf in gradient.values())
    for name, leaf in gradient.items():
        theirs = own[name].grad
        theirs = np.zeros_like(leaf) if theirs is None else theirs.numpy()
        np.testing.assert_allclose(leaf, theirs, rtol=0, atol=10 * near * largest, err_msg=name)


def check_in_pytorch(entry, network, symmetry, module, x) -> None:
    """Permuted weights, loaded into the module, leave PyTorch's own outputs as they were."""
    p = symmetry.random(key=jax.random.key(0))
    params = symmetry.act(p, network.params)
    state = None if network.state is None else symmetry.act_on_state(p, network.state)
    target = network.load_into(copy.deepcopy(module), params, state)
    if symmetry.groups:
        assert any(
            not torch.equal(a, b)
            for a, b in zip(target.parameters(), module.parameters(), strict=True)
        )
    with torch.no_grad():
        moved = output_of(target.double(), doubled(x), entry.output)
        expected = output_of(copy.deepcopy(module).double(), doubled(x), entry.output)
    near = 1e-5 if entry.single else 1e-10
    torch.testing.assert_close(moved, expected, rtol=0, atol=near * float(expected.abs().max()))


def test_the_zoo_is_large() -> None:
    assert len(torch_zoo.ZOO) >= 40


@pytest.mark.parametrize("name", ["resnet_of_bottlenecks", "vit", "gpt2"])
def test_planted_permutations_are_recovered(name: str) -> None:
    """Align a permuted copy, load it into the module: the very weights that it had before."""
    entry = next(e for e in torch_zoo.ZOO if e.name == name)
    module, x = torch_zoo.made(entry)
    network = ob.networks.from_torch(module, x, output=entry.output)
    symmetry = ob.find_symmetry(network, x=arrays_of(x), check=False)
    p = symmetry.random(key=jax.random.key(2))
    moved = symmetry.act(p, network.params)
    state = None if network.state is None else symmetry.act_on_state(p, network.state)
    # Narrow groups have local optima; the search beyond coordinate descent leaves them.
    found = ob.align(
        moved, to=network.params, symmetry=symmetry, objective="l2", search=ob.FrankWolfe()
    )
    assert found.distance_after == pytest.approx(0, abs=1e-5)
    back = None if state is None else symmetry.act_on_state(found.permutation, state)
    target = network.load_into(copy.deepcopy(module), found.posterior, back)
    for own, theirs in zip(target.parameters(), module.parameters(), strict=True):
        assert torch.equal(own, theirs)
    with torch.no_grad():
        assert torch.equal(output_of(target, x, entry.output), output_of(module, x, entry.output))
