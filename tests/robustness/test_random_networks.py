"""A seeded sample of the attack on the tracer; `make attack` runs the long version."""

import pytest
import random_kinds
from random_networks import attack, random_network

from onebasin.symmetry import find_symmetry


def test_no_group_of_a_random_network_is_false(tmp_path):
    found = attack(tmp_path, 60, seed=0)
    assert found["defects"] == []
    assert found["groups"] > 100
    assert found["in_blocks"] > 0


def test_no_kind_of_a_random_network_is_false(tmp_path):
    """Signs, scales and matrices, by plain products at other parameters and inputs."""
    found = random_kinds.attack(tmp_path, 6, seed=0)
    assert found["defects"] == []
    assert {"signed", "invertible"} <= set(found["kinds"])


@pytest.mark.parametrize("seed", [74, 1_000_091, 2_000_089])
def test_units_behind_a_choice_have_no_kinds(seed, x64):
    """Nearest codes and the largest of several: outputs jump, which the trials may miss."""
    network = random_network(seed)
    found = find_symmetry(network.apply, network.params, network.x, kinds="all")
    first = found.groups[0]
    assert first.kind == "permutation"
    assert not random_kinds.false_kinds(network, found, seed % 1_000_000)
