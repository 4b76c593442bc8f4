"""A seeded sample of the attack on the tracer; `make attack` runs the long version."""

from random_networks import attack


def test_no_group_of_a_random_network_is_false(tmp_path):
    found = attack(tmp_path, 60, seed=0)
    assert found["defects"] == []
    assert found["groups"] > 100
    assert found["in_blocks"] > 0
