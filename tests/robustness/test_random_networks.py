"""A seeded sample of the attack on the tracer; `make attack` runs the long version."""

import random_kinds
from random_networks import attack


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
