"""A seeded sample of the attack on files; `make attack` runs the long version."""

from file_fuzzer import attack


def test_damaged_files_are_refused_or_mean_the_same(tmp_path):
    found = attack(tmp_path, 2000, seed=1)
    assert found["defects"] == []
    assert found["counts"]["refused"] > 1000
