"""The long attack goes on where it was interrupted, and a process that dies is a defect."""

import json
import sys
from pathlib import Path

from attack import PARTS, code_digest, merged, portion_apart, read, run

sys.path.insert(0, str(Path(__file__).parents[2] / "benchmarks"))

from results_tables import ATTACKS


def test_every_part_of_the_attack_has_a_row_in_the_table_of_results():
    assert set(ATTACKS) == set(PARTS)


def test_an_interrupted_attack_goes_on_where_it_ended(tmp_path):
    record = tmp_path / "robustness.json"
    asked = {"code": code_digest(), "seed": 0, "share": 0.002}
    counts = {"tried": 9, "clean": 9, "defects": 0, "seconds": 4}
    known = {**asked, "portions": 10, "portions done": [8, 7, 6, 5, 3, 2, 1, 0, 9], **counts}
    record.write_text(json.dumps({"odd numbers": known, "kills": {"defects": 0}}))
    run(["odd numbers"], 0, 0.002, record, workers=2)
    found = read(record)
    assert found["kills"] == {"defects": 0}
    assert found["odd numbers"]["portions done"] == [*known["portions done"], 4]
    assert found["odd numbers"]["tried"] == found["odd numbers"]["clean"] == 10
    before = record.read_text()
    run(["odd numbers"], 0, 0.002, record, workers=2)  # nothing is left
    assert record.read_text() == before


def test_a_process_that_dies_is_a_defect(tmp_path):
    found = portion_apart("no such part", 0, 0, 1.0, str(tmp_path))
    assert found["defects"] == 1
    assert "ended with 2" in found["first defects"][0]


def test_portions_add_up():
    one = {"tried": 2, "counts": {"same": 1}, "first defects": ["a"], "portions done": [3]}
    other = {"tried": 3, "counts": {"same": 2, "refused": 5}, "portions done": [1]}
    assert merged(one, other) == {
        "tried": 5,
        "counts": {"same": 3, "refused": 5},
        "first defects": ["a"],
        "portions done": [3, 1],
    }
