"""Symmetries in JSON files: saved and read again, written by hand, and refused where wrong."""

import json

import jax
import jax.numpy as jnp
import numpy as np
import pytest

import zoo
from onebasin.symmetry import NotASymmetry, Symmetry, SymmetryFileError, find_symmetry

HAND = {
    "format": "onebasin-symmetry",
    "version": 1,
    "groups": {"hidden": 3},
    "params": {"w1": [2, "hidden"], "w2": [{"product": [4, "hidden"]}, 1]},
}
# Attention, gates, running statistics and concatenations: every form of a layout.
NAMES = ("transformer_encoder", "equinox_gru_with_fused_gates", "densely_connected")


@pytest.mark.parametrize("name", NAMES)
def test_a_saved_symmetry_is_the_same(name, tmp_path):
    (entry,) = (entry for entry in zoo.ZOO if entry.name == name)
    network, x = entry.build()
    found = find_symmetry(network.apply, network.params, x, state=network.state, check=False)
    path = found.save(tmp_path / "symmetry.json")
    read = Symmetry.load(path)
    assert read == found
    assert read.groups == found.groups
    assert json.loads(path.read_text())["format"] == "onebasin-symmetry"
    with pytest.raises(FileExistsError, match="overwrite=True"):
        found.save(path)


def test_a_symmetry_written_by_hand(tmp_path):
    path = tmp_path / "hand.json"
    path.write_text(json.dumps(HAND))
    symmetry = Symmetry.load(path)
    params = {"w1": np.ones((2, 3)), "w2": np.ones((12, 1))}
    groups = {"hidden": [("w1", 1), ("w2", 0, (4, 1))]}
    assert symmetry == Symmetry.by_hand(params, groups)
    key = jax.random.key(0)

    def apply(params, x):
        hidden = jnp.tanh(x @ params["w1"])
        return jnp.tile(hidden, (1, 4)) @ params["w2"]

    symmetry.check(apply, params, jnp.ones((4, 2)), key=key)
    wrong = Symmetry.by_hand(params, {"hidden": [("w1", 1), ("w2", 0, (1, 4))]})
    with pytest.raises(NotASymmetry):
        wrong.check(apply, params, jnp.ones((4, 2)), key=key)


@pytest.mark.parametrize(
    ("change", "said"),
    [
        ({"format": "other"}, "not a symmetry"),
        ({"version": 2}, "has version 2"),
        ({"extra": 1}, "no entry 'extra'"),
        ({"groups": {"hidden": -3}}, "number of units"),
        ({"groups": {"hidden": True}}, "number of units"),
        ({"groups": {"other": 3}}, "axis 1 of \"w1\" names 'hidden', which is not in"),
        ({"groups": {"hidden": 10**12}}, "number of units"),
        ({"params": {}}, "axes of every leaf"),
        ({"params": {"w1": 3}}, "axes of every leaf"),
        ({"params": {"w1": [2.5]}}, 'axis 0 of "w1" is 2.5; write a length'),
        ({"params": {"w1": [{"product": []}]}}, "write a length"),
        ({"params": {"w1": [{"product": [10**6, 10**6]}]}}, "positions, more than"),
        ({"groups": {"hidden": 2 * 10**7}}, r"its groups have .* positions, more than 3e\+07"),
        ({"unused": ["w3"]}, "leaves of"),
        ({"roles": {"w1": ["incoming"]}}, "one for each of its axes"),
        ({"roles": {"w1": ["incoming", "king"]}}, "one for each of its axes"),
    ],
)
def test_wrong_files_are_refused(change, said, tmp_path):
    path = tmp_path / "wrong.json"
    path.write_text(json.dumps({**HAND, **change}))
    with pytest.raises(SymmetryFileError, match=said) as error:
        Symmetry.load(path)
    assert str(error.value).startswith(str(path))
    assert "\n" not in str(error.value)


def test_other_files_are_refused(tmp_path):
    path = tmp_path / "text.json"
    path.write_text("{")
    with pytest.raises(SymmetryFileError, match="is not JSON"):
        Symmetry.load(path)
    nested = "[" * 100_000
    path.write_text(nested)
    with pytest.raises(SymmetryFileError, match="is not JSON"):
        Symmetry.load(path)
    deep = 2
    for _ in range(60):
        deep = {"product": [deep]}
    path.write_text(json.dumps({**HAND, "params": {"w1": [deep]}}))
    with pytest.raises(SymmetryFileError, match="without end"):
        Symmetry.load(path)
    with pytest.raises(FileNotFoundError, match="there is no file"):
        Symmetry.load(tmp_path / "none.json")


def test_axes_of_one_layout_share_their_positions():
    """A network of many layers holds the positions of each layout once."""
    params = {f"w{i}": np.broadcast_to(np.float32(0), (3, 100_000)) for i in range(50)}
    symmetry = Symmetry.by_hand(params, {"stream": [(name, 1) for name in params]})
    held = {id(place.positions): place.positions.nbytes for place in symmetry.groups[0].places}
    assert sum(held.values()) == 800_000
