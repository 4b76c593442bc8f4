"""Records as files: whatever is wrong with one, a single sentence names it and says what."""

import copy
import json
import os
import re
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from onebasin.cli import main as cli
from onebasin.digests import digest_of, sealed
from onebasin.experiments import record as records
from onebasin.experiments.record import read_record

pytestmark = pytest.mark.fast
COMMITTED = Path(__file__).parent.parent / "results" / "reproduction"


@pytest.fixture
def good() -> dict[str, Any]:
    return read_record(COMMITTED / "width.json")


def put(value: Any, *place: Any) -> Callable[[dict[str, Any]], None]:
    """A change of one place of a record."""

    def change(record: dict[str, Any]) -> None:
        inside: Any = record
        for step in place[:-1]:
            inside = inside[step]
        inside[place[-1]] = value

    return change


def without(*place: Any) -> Callable[[dict[str, Any]], None]:
    def change(record: dict[str, Any]) -> None:
        inside: Any = record
        for step in place[:-1]:
            inside = inside[step]
        del inside[place[-1]]

    return change


DEEP = json.loads("[" * 60 + "]" * 60)
WRONG = {
    "no claims": (without("claims"), "has no claims"),
    "claims are text": (put("x", "claims"), "claims is not a list"),
    "claim is a list": (put([], "claims", 0), "claims[0] is not an object"),
    "no text of a claim": (without("claims", 0, "text"), "has no claims[0].text"),
    "text is a number": (put(3, "claims", 0, "text"), "claims[0].text is not text"),
    "unknown verdict": (put("wins", "claims", 0, "verdict"), "claims[0].verdict is not one of"),
    "verdict is a list": (put([], "claims", 0, "verdict"), "claims[0].verdict is not one of"),
    "value is text": (put("1", "claims", 0, "value"), "claims[0].value is not a number"),
    "value is true": (put(True, "claims", 0, "value"), "claims[0].value is not a number"),
    "figure is a number": (put(1, "claims", 0, "figure"), "claims[0].figure is not text"),
    "title is null": (put(None, "title"), "title is not text"),
    "title is long": (put("x" * 200_000, "title"), "a text of more than 100,000 characters"),
    "half a character": (put("\ud800", "title"), "half of a surrogate pair"),
    "deep config": (put(DEEP, "config"), "is nested more than 40 deep"),
    "ragged table": (put(["x"], "tables", 0, "rows", 0), "one cell per column in every row"),
    "cell is a list": (put([], "tables", 0, "rows", 0, 0), "a table with a title, columns, rows"),
    "table without note": (without("tables", 0, "note"), "a table with a title, columns, rows"),
    "figure elsewhere": (put("../x.svg", "figures", 0, "file"), "without a folder"),
    "figure in root": (put("/etc/passwd", "figures", 0, "file"), "without a folder"),
    "figure with NUL": (put("a\0b", "figures", 0, "file"), "without a folder"),
    "figure of no name": (put("", "figures", 0, "file"), "without a folder"),
    "no alternative": (without("figures", 0, "alt"), "has no figures[0].alt"),
    "stages are a list": (put([], "stages"), "stages is not an object"),
    "versions are numbers": (put({"jax": 1}, "versions"), "is not text"),
    "negative data": (put(-1, "data", "mnist", "train"), "data['mnist'].train is not a count"),
    "huge data": (put(10**30, "data", "mnist", "test"), "data['mnist'].test is not a count"),
}


@pytest.mark.parametrize("name", list(WRONG))
def test_a_wrong_value_is_named(good, tmp_path, name, capsys):
    """The digest is right: the content itself is looked at."""
    change, message = WRONG[name]
    record = copy.deepcopy(good)
    change(record)
    path = tmp_path / "bad.json"
    path.write_text(json.dumps(sealed(record)))
    with pytest.raises(ValueError, match=re.escape(message)) as error:
        read_record(path)
    assert str(error.value).startswith(f"{path} ")
    assert "\n" not in str(error.value)
    with pytest.raises(SystemExit) as stop:
        cli.main(["report", str(path), "--out", str(tmp_path / "page.html")])
    assert stop.value.code == 2
    assert capsys.readouterr().err.count("\n") == 1
    assert not (tmp_path / "page.html").exists()


TEXTS = {
    "nothing": (b"", "is not JSON"),
    "cut off": (b'{"record": 2,', "is not JSON"),
    "no UTF-8": (b'{"record": "\xff"}', "is not UTF-8 text"),
    "a list": (b"[2]", "is not a record of an experiment"),
    "another version": (b'{"record": 3}', "is not a record of an experiment"),
    "version is true": (b'{"record": true}', "is not a record of an experiment"),
    "version is a list": (b'{"record": [1]}', "is not a record of an experiment"),
    "not a number": (b'{"record": 1, "x": NaN}', "NaN, which is not a finite number"),
    "infinity": (b'{"record": 1, "x": -Infinity}', "-Infinity, which is not a finite number"),
    "too large": (b'{"record": 1, "x": 1e999}', "1e999, which is too large for a number"),
    "long number": (b'{"record": 1, "x": ' + b"9" * 5000 + b"}", "a number of too many digits"),
    "deep": (b"[" * 100_000, "is nested more than 40 deep"),
    "a field twice": (b'{"record": 1, "record": 2}', "names a field twice"),
}


@pytest.mark.parametrize("name", list(TEXTS))
def test_a_text_that_is_no_record_is_named(tmp_path, name):
    data, message = TEXTS[name]
    path = tmp_path / "bad.json"
    path.write_bytes(data)
    with pytest.raises(ValueError, match=re.escape(message)) as error:
        read_record(path)
    assert str(error.value).startswith(f"{path} ")


def test_a_digest_notices_every_change(good, tmp_path):
    path = tmp_path / "record.json"
    assert good["record"] == 2
    assert good["digest"] == digest_of(good)
    for change in (
        put("1.5 ± 0.1 nats", "claims", 0, "ours"),
        put("holds", "claims", 0, "verdict"),
        put({}, "numbers"),
        put(1, "record"),
        put("0" * 64, "digest"),
        without("digest"),
        put("more", "unknown"),
    ):
        record = copy.deepcopy(good)
        change(record)
        assert record != good
        path.write_text(json.dumps(record))
        with pytest.raises(ValueError, match=r"record\.json does not have the content that its"):
            read_record(path)
    # The layout of the file does not matter.
    path.write_text(json.dumps(dict(reversed(good.items())), indent=7))
    assert read_record(path) == good


def test_a_record_of_version_1_needs_no_digest(good, tmp_path):
    old: dict[str, Any] = {n: value for n, value in good.items() if n != "digest"}
    old["record"] = 1
    for claim in old["claims"]:
        del claim["figure"], claim["headline"]
    path = tmp_path / "old.json"
    path.write_text(json.dumps(old))
    assert read_record(path) == old
    for figure in old["figures"]:
        (tmp_path / figure["file"]).write_bytes((COMMITTED / figure["file"]).read_bytes())
    cli.main(["report", str(path), "--out", str(tmp_path / "page.html")])
    assert "Rossi et al. 2023" in (tmp_path / "page.html").read_text()


def test_pipes_devices_and_folders_are_not_opened(good, tmp_path, monkeypatch):
    pipe, folder, large = tmp_path / "pipe.json", tmp_path / "a.json", tmp_path / "large.json"
    os.mkfifo(pipe)
    folder.mkdir()
    for path in (pipe, folder, Path("/dev/zero")):
        with pytest.raises(ValueError, match=f"{path} is not a regular file"):
            read_record(path)
    monkeypatch.setattr(records, "LARGEST_RECORD", 2**20)
    with open(large, "wb") as file:
        file.truncate(2**30)
    with pytest.raises(ValueError, match=r"large\.json is larger than 1 MiB"):
        read_record(large)
    with pytest.raises(FileNotFoundError):
        read_record(tmp_path / "nowhere.json")


def test_a_damaged_figure_is_named(good, tmp_path, capsys):
    path = tmp_path / "width.json"
    path.write_text(json.dumps(good))
    figure = tmp_path / good["figures"][0]["file"]
    for make, message in (
        (lambda: None, f"{figure} is missing"),
        (lambda: os.mkfifo(figure), f"{figure} is not a regular file"),
        (lambda: figure.write_text("<svg"), f"{figure} is not an SVG figure"),
        (lambda: figure.write_bytes(b"\xff\xfe"), f"{figure} is not UTF-8 text"),
        (figure.mkdir, f"{figure} is not a regular file"),
    ):
        if figure.exists():
            figure.unlink()
        make()
        with pytest.raises(SystemExit) as stop:
            cli.main(["report", str(path), "--out", str(tmp_path / "page.html")])
        assert stop.value.code == 2
        error = capsys.readouterr().err
        assert message in error
        assert error.count("\n") == 1
