"""`onebasin verify` says what a file is and finds every kind of damage."""

import gzip
import io
import json
import re
import subprocess
import sys
import tarfile
from pathlib import Path

import jax.numpy as jnp
import numpy as np
import pytest

import onebasin as ob
from onebasin.cli import main as cli
from onebasin.data.published import PACKED, PLAIN
from onebasin.data.sources import SOURCES
from onebasin.experiments.facts import add_facts
from onebasin.experiments.integrity import UNCHECKED
from onebasin.experiments.runner import Run, write_json, write_result
from onebasin.inference.history import write_rows
from onebasin.posterior import MeanField, save

ARCHIVE = "cifar-10-binary.tar.gz"
RECORD = Path(__file__).parent.parent / "results" / "reproduction" / "width.json"


@pytest.fixture
def posterior(tmp_path):
    q = MeanField({"w": jnp.arange(1.0, 9.0)}, {"w": jnp.ones(8)})
    return save(tmp_path / "q.safetensors", q)


def verify(*arguments):
    with pytest.raises(SystemExit) as stop:
        cli.main(["verify", *map(str, arguments)])
    return stop.value.code


def test_whole_files(posterior, capsys):
    cli.main(["verify", str(posterior), str(RECORD)])
    first, second = capsys.readouterr().out.splitlines()
    assert first == f"{posterior}: posterior, whole (MeanField with 1 leaves)"
    assert second.startswith(f"{RECORD}: record, whole")


def test_a_symmetry_is_known_and_a_wrong_one_refused(tmp_path, capsys):
    leaves = {"w1": np.ones((2, 3)), "w2": np.ones((3, 1))}
    symmetry = ob.Symmetry.by_hand(leaves, {"hidden": [("w1", 1), ("w2", 0)]})
    path = symmetry.save(tmp_path / "net.json")
    cli.main(["verify", str(path)])
    assert capsys.readouterr().out == f"{path}: symmetry, whole (1 groups, 2 leaves)\n"
    path.write_text(path.read_text().replace('["hidden", 1]', '["other", 1]'))
    assert verify(path) == 2
    assert "symmetry, DAMAGED" in capsys.readouterr().out


def test_json_files_of_runs_and_histories(tmp_path, capsys):
    """A changed digit is found in all of them; those of earlier versions have no checksum."""
    Run(tmp_path, "toy", quiet=True).open()
    add_facts(tmp_path, "plan", {"a": {"seconds": 1.25}})
    write_json(tmp_path / "plan.json", {"preset": "toy", "stages": [{"key": "fit-12"}]})
    write_json(tmp_path / "sweep.json", {"repeats": 12})
    write_result(tmp_path, {"barrier": 0.125}, {"stage": "barrier 12"})
    leaves = {"w1": np.ones((2, 12)), "w2": np.ones((12, 1))}
    hidden = {"hidden": [("w1", 1), ("w2", 0)]}
    ob.Symmetry.by_hand(leaves, hidden).save(tmp_path / "net.json")
    write_rows(tmp_path / "h.jsonl", [{"step": 12, "loss": 0.5}, {"step": 24, "loss": 0.4}])
    kinds = {
        "facts.json": "facts of a run",
        "h.jsonl": "history of a fit",
        "net.json": "symmetry",
        "plan.json": "plan of a run",
        "result.json": "result of a stage",
        "run.json": "run folder",
        "stage.json": "stage",
        "sweep.json": "grid of a sweep",
    }
    paths = [tmp_path / name for name in kinds]
    cli.main(["verify", *map(str, paths)])
    out = capsys.readouterr().out
    for path, line in zip(paths, out.splitlines(), strict=True):
        assert line.startswith(f"{path}: {kinds[path.name]}, whole")
    assert "2 rows, of a fit that had not ended, or cut short" in out
    assert UNCHECKED not in out
    for path in paths:
        good = path.read_text()
        path.write_text(re.sub(r"toy|12", "13", good, count=1))
        assert path.read_text() != good
        assert verify(path) == 2
        assert f"{path}: {kinds[path.name]}, DAMAGED" in capsys.readouterr().out
        path.write_text(good)
    for path in paths:
        path.write_text(re.sub(r',\s*"(digest|result)": "\w{64}"', "", path.read_text()))
        if path.name == "result.json":
            path.with_name("stage.json").write_text('{"stage": "barrier"}')
        cli.main(["verify", str(path)])
        assert UNCHECKED in capsys.readouterr().out


def test_a_changed_number_is_found(posterior, capsys):
    content = bytearray(posterior.read_bytes())
    content[-1] ^= 1
    posterior.write_bytes(content)
    assert verify(posterior, "--json") == 2
    (found,) = json.loads(capsys.readouterr().out)["files"]
    assert found["kind"] == "posterior"
    assert not found["whole"]
    assert "the numbers of" in found["detail"]


def test_missing_and_foreign_files(tmp_path, capsys):
    other = tmp_path / "text.safetensors"
    other.write_text("not a tensor in sight")
    assert verify(tmp_path / "nowhere", other) == 2
    out = capsys.readouterr().out
    assert out.count("DAMAGED") == 2
    assert "there is no file" in out
    assert verify() == 2


def test_a_pipe_is_refused_instead_of_waited_for(tmp_path):
    pipe = tmp_path / "q.safetensors"
    subprocess.run(["mkfifo", str(pipe)], check=True)
    program = f"from onebasin import load; load({str(pipe)!r})"
    done = subprocess.run(
        [sys.executable, "-c", program], capture_output=True, text=True, timeout=60, check=False
    )
    assert "is not a regular file" in done.stderr


def test_files_of_published_data(tmp_path, capsys):
    """Where they are not those that were published, what no checksum protects is said."""
    labels = b"\0\0\x08\x01" + (3).to_bytes(4, "big") + bytes([1, 2, 3])
    plain, packed = tmp_path / "t10k-labels-idx1-ubyte", tmp_path / "t10k-labels-idx1-ubyte.gz"
    plain.write_bytes(labels)
    packed.write_bytes(gzip.compress(labels))
    records = tmp_path / "test_batch.bin"
    records.write_bytes(bytes(2 * 3073))
    cli.main(["verify", str(plain), str(packed), str(records)])
    first, second, third = capsys.readouterr().out.splitlines()
    other = "data file, whole (3, other numbers than those published in mnist or fashion-mnist"
    assert first == f"{plain}: {other}; {PLAIN})"
    assert second == f"{packed}: {other}; {PACKED})"
    assert third == f"{records}: data file, whole (2 records; {PLAIN}, unlike in {ARCHIVE})"
    plain.write_bytes(labels[:-1])
    packed.write_bytes(packed.read_bytes()[:-6] + bytes(6))
    records.write_bytes(bytes(3072))
    assert verify(plain, packed, records) == 2
    assert capsys.readouterr().out.count("DAMAGED") == 3


def test_published_files_are_known_by_their_content(real_data, tmp_path, capsys):
    packed = real_data / "MNIST" / "raw" / "t10k-labels-idx1-ubyte.gz"
    content = bytearray(gzip.decompress(packed.read_bytes()))
    plain = tmp_path / packed.stem
    for change, said in ((0, "as published in mnist"), (1, "other numbers than those published")):
        content[5000] ^= change
        plain.write_bytes(content)
        cli.main(["verify", str(plain)])
        assert said in capsys.readouterr().out


def test_an_archive_of_data(tmp_path, capsys):
    path = tmp_path / ARCHIVE
    with tarfile.open(path, "w:gz") as tar:
        for name in SOURCES["cifar10"].files:
            about = tarfile.TarInfo(f"cifar-10-batches-bin/{name}")
            about.size = 3073
            tar.addfile(about, io.BytesIO(bytes(3073)))
    cli.main(["verify", str(path)])
    assert f"an archive like that of cifar10, not the published one; {PACKED}" in (
        capsys.readouterr().out
    )
    path.write_bytes(path.read_bytes()[:-6])
    assert verify(path) == 2
