"""The history of a fit as a file: what was changed, lost or cut off is noticed."""

import json

import pytest

from onebasin.inference.history import read_history, read_rows, write_rows

pytestmark = pytest.mark.fast
ROWS = [{"step": 10 * i, "loss": [0.5, i / 3], "seconds": 0.1} for i in range(1, 5)]


@pytest.fixture
def history(tmp_path):
    path = tmp_path / "h.jsonl"
    write_rows(path, ROWS, ended=True)
    return path


def test_appended_rows_give_the_same_file(history, tmp_path):
    other = tmp_path / "appended.jsonl"
    for count in range(len(ROWS) + 1):
        write_rows(other, ROWS[:count], first=max(0, count - 1), ended=count == len(ROWS))
    assert other.read_bytes() == history.read_bytes()
    assert read_rows(history, 2)[1][3] == {"step": 40, "loss": 4 / 3}


@pytest.mark.parametrize(
    "change",
    [
        lambda lines: [lines[0].replace("10", "11"), *lines[1:]],
        lambda lines: [*lines[:-1], lines[-1].replace("40", "41")],
        lambda lines: [lines[0], *lines[2:]],
        lambda lines: [lines[0], *lines],
        lambda lines: [lines[1], lines[0], *lines[2:]],
        lambda lines: [*lines[:2], json.dumps({"step": 30, "loss": [0.5, 1.0]}), lines[3]],
        lambda lines: [*lines, lines[-1]],
        lambda lines: lines[:-1],
        lambda lines: [*lines[:-1], lines[-1].replace("digest", "digesu")],
        lambda lines: [],
    ],
)
def test_damage_is_noticed(history, change):
    history.write_text("".join(f"{line}\n" for line in change(history.read_text().splitlines())))
    with pytest.raises(ValueError, match=r"h\.jsonl .*delete it, or name another"):
        read_rows(history, 2)


def test_rows_of_earlier_versions_are_read(history):
    """They have no digests, so an end that is missing does not show."""
    old = [{name: row[name] for name in ("step", "loss")} for row in ROWS[:2]]
    history.write_text("".join(f"{json.dumps(row)}\n" for row in old))
    found = read_history(history)
    assert (found.rows, found.checked, found.ended) == (old, False, True)
    history.write_text('{"step": 1, "digesu": "ab"}\n')
    with pytest.raises(ValueError, match="is not the history of a fit"):
        read_history(history)
