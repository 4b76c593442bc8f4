"""A seeded sample of the attack on files; `make attack` runs the long version."""

import os
import subprocess
import sys
from pathlib import Path

import pytest
from file_cases import cases
from file_fuzzer import attack
from large_files import KINDS
from large_files import attack as read_large
from memory import CLEAR, Peak

from onebasin.data import DataFileError, read_dataset

needs_linux = pytest.mark.skipif(not CLEAR.exists(), reason="needs Linux")
PIPES = """
import sys
from pathlib import Path
from file_cases import cases
from file_fuzzer import judge

folder = Path(sys.argv[1])
for number, case in enumerate(cases(folder)):
    path = folder / str(number) / case.name
    print(number, case.kind, judge(case, path, None)[0], flush=True)
"""


def test_damaged_files_are_refused_or_mean_the_same(tmp_path):
    found = attack(tmp_path, 2000, seed=1)
    assert found["defects"] == []
    assert found["counts"]["refused"] > 1000


def test_pipes_are_refused_instead_of_waited_for(tmp_path):
    """In a process of its own, since an open that waits for a writer cannot be interrupted here."""
    known = cases(tmp_path)
    for number, case in enumerate(known):
        own = tmp_path / "pipes" / str(number)
        for name, data in case.needs:
            (own / name).parent.mkdir(parents=True, exist_ok=True)
            (own / name).write_bytes(data)
        (own / case.name).parent.mkdir(parents=True, exist_ok=True)
        os.mkfifo(own / case.name)
    words = [sys.executable, "-c", PIPES, str(tmp_path / "pipes")]
    here = Path(__file__).parent  # where Python looks for file_cases
    done = subprocess.run(words, capture_output=True, text=True, check=False, timeout=120, cwd=here)
    assert done.returncode == 0, done.stdout + done.stderr
    told = done.stdout.splitlines()
    assert len(told) == len(known)
    assert [line for line in told if not line.endswith(" refused")] == []


@needs_linux
def test_large_files_are_read_in_four_times_their_size(tmp_path):
    found = read_large(tmp_path, len(KINDS), seed=0, size=20_000_000)
    assert found["defects"] == []
    assert set(found["times"]) == set(KINDS)


@needs_linux
def test_one_long_cell_does_not_widen_all_others(tmp_path):
    path = tmp_path / "t.csv"
    rows = [f"{i},note,{i % 2}" for i in range(3000)]
    rows[7] = f"7,{'x' * 100_000},1"
    path.write_text("a,note,y\n" + "\n".join(rows) + "\n")
    with Peak() as peak:
        data = read_dataset(path, target="y", drop=("note",), likelihood="bernoulli")
    assert len(data.train) == 2400
    assert peak.bytes < 30_000_000  # 3,000 cells of 400 kB would be 1.2 GB
    with pytest.raises(DataFileError, match="up to 100000 characters, which are no labels"):
        read_dataset(path, target="note", drop=("y",))


@needs_linux
def test_the_peak_of_memory_is_seen():
    with Peak() as peak:
        block = bytes(bytearray(50_000_000))
        del block
    assert 90_000_000 < peak.bytes < 120_000_000  # the array and its copy
    with Peak() as peak:
        pass
    assert peak.bytes < 5_000_000
