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


@pytest.mark.parametrize(
    ("seed", "first"),
    [
        (74, ["scaled", "orthogonal"]),  # the codes turn with the vectors
        (1_000_091, ["scaled"]),  # the router follows the scales of ReLU
        (2_000_089, ["permutation"]),
        (7_000_034, ["permutation"]),
    ],
)
def test_no_kind_of_units_behind_a_choice_is_false(seed, first, x64):
    """Nearest codes and the largest of several: outputs jump, which the trials may miss."""
    network = random_network(seed)
    found = find_symmetry(network.apply, network.params, network.x, kinds="all")
    assert [group.kind for group in found.groups][: len(first)] == first
    for at in range(20):
        assert not random_kinds.false_kinds(network, found, at)


def test_parts_that_hardly_matter_are_not_taken_for_such_as_do_not(x64):
    """Attention that is almost uniform: any map of queries and keys seems to change nothing."""
    network = random_network(28_000_022)
    found = find_symmetry(network.apply, network.params, network.x, kinds="all")
    assert found["p7"].kind == "permutation"
    assert found["p3"].kind == "orthogonal"  # the queries and keys of the other attention matter
    assert not random_kinds.false_kinds(network, found, 22)
