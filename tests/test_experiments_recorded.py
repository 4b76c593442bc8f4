"""Parts of a record are kept without the folders of their stages if the stages are the same."""

import json
import os
import re
import shutil
import subprocess
import sys

import pytest

from onebasin.digests import sealed
from onebasin.experiments import get_experiment
from onebasin.experiments.common_stages import Fit, fit_posterior
from onebasin.experiments.experiment import (
    Findings,
    Picture,
    reproduce,
    write_findings,
    write_record,
)
from onebasin.experiments.facts import add_facts, read_facts, with_facts
from onebasin.experiments.record import RecordedParts, read_record
from onebasin.experiments.runner import Run
from onebasin.experiments.setting import Setting
from onebasin.experiments.stage import Stage
from onebasin.inference.methods import VI

PART = "plane"


@pytest.fixture
def finished(tmp_path):
    experiment = get_experiment("kl-vs-w2")
    run = Run(tmp_path / "run", "toy", quiet=True)
    run.open()
    return experiment, run, reproduce(experiment, run, [PART])


def test_a_part_stays_in_the_record_when_its_folders_are_gone(finished):
    experiment, run, path = finished
    whole = json.loads(path.read_text())
    assert whole["parts"][PART]
    shutil.rmtree(run.out / "stages")
    assert json.loads(write_record(experiment, run).read_text()) == whole


def test_two_runs_of_one_command_give_equal_folders(tmp_path):
    """Every byte of every file, except for the facts; in processes with other hashes."""
    command = ["reproduce", "kl-vs-w2", "--preset", "toy", "--quiet"]
    for hashes, name in enumerate(("first", "second")):
        code = "import sys; from onebasin.cli.main import main; main(sys.argv[1:])"
        subprocess.run(
            [sys.executable, "-c", code, *command, "--out", str(tmp_path / name)],
            check=True,
            capture_output=True,
            env={**os.environ, "PYTHONHASHSEED": str(hashes)},
        )
    first, second = (files_of(tmp_path / name) for name in ("first", "second"))
    assert first.keys() == second.keys()
    assert [name for name in first if first[name] != second[name]] == ["facts.json"]
    assert sum(name.endswith(".safetensors") for name in first) >= 2
    assert {"run.json", "plan.json", "kl-vs-w2.json"} < first.keys()
    text = b"".join(content for name, content in first.items() if name != "facts.json")
    # The number of devices is part of the key of a fit; nothing else may tell of the machine.
    assert not re.search(rb"seconds|memory_gib|chunk_steps|resumed", text)


def files_of(folder):
    files = [path for path in folder.rglob("*") if path.is_file()]
    return {str(path.relative_to(folder)): path.read_bytes() for path in files}


def test_a_record_of_another_machine_is_completed(finished, tmp_path):
    experiment, _, path = finished
    other = Run(tmp_path / "other", "toy", quiet=True)
    other.open()
    shutil.copy(path, other.out)
    assert json.loads(write_record(experiment, other).read_text()) == json.loads(path.read_text())
    assert not (other.out / "stages").exists()


def test_a_part_of_other_stages_is_not_kept(finished):
    experiment, run, path = finished
    shutil.rmtree(run.out / "stages")
    record = json.loads(path.read_text())
    record["stages"][PART][0]["key"] = "another"
    path.write_text(json.dumps(sealed(record)))
    anew = json.loads(write_record(experiment, run).read_text())
    assert not anew["parts"][PART]
    assert PART not in anew["numbers"]
    assert all(claim["verdict"] == "not tested" for claim in anew["claims"])


def test_parts_of_two_machines_stay(finished):
    """A part made on another machine stays in the record, however often it is written."""
    experiment, run, path = finished
    shutil.rmtree(run.out / "stages")
    record = json.loads(path.read_text())
    (mine,) = read_facts(run.out)["records"][experiment.name]
    other = {**mine, "cores": 999}
    first, *_ = read_facts(run.out)["stages"]
    add_facts(run.out, "stages", {first: {"seconds": 1.0, "machine": other}})
    for _ in range(2):
        anew = json.loads(write_record(experiment, run).read_text())
        assert anew == record
        facts = read_facts(run.out)
        assert facts["stages"][first]["machine"] == other
        assert facts["records"][experiment.name] == [other]


def test_times_of_an_older_record_become_facts(finished, tmp_path):
    """Older records hold the times and machines of their stages themselves."""
    experiment, run, path = finished
    record, facts = json.loads(path.read_text()), read_facts(run.out)
    rows = record["stages"][PART]
    record["stages"][PART] = [{**row, **facts["stages"][row["key"]]} for row in rows]
    record["machines"] = facts["records"][experiment.name]
    del record["digest"]
    record["record"] = 1
    older = Run(tmp_path / "older", "toy", quiet=True)
    older.open()
    (older.out / path.name).write_text(json.dumps(record))
    assert with_facts(read_record(older.out / path.name), older.out) == record
    assert write_record(experiment, older).read_bytes() == path.read_bytes()
    assert read_facts(older.out)["stages"] == facts["stages"]
    assert read_facts(older.out)["records"] == facts["records"]


def test_renamed_entries_of_a_plan_are_another_part(finished):
    experiment, run, path = finished
    shutil.rmtree(run.out / "stages")
    record = json.loads(path.read_text())
    record["numbers"][PART] = {f"{k} of old": v for k, v in record["numbers"][PART].items()}
    path.write_text(json.dumps(sealed(record)))
    assert not json.loads(write_record(experiment, run).read_text())["parts"][PART]


def test_a_record_of_another_version_is_refused(finished):
    experiment, run, path = finished
    record = json.loads(path.read_text())
    record["versions"]["jax"] = "0.0.1"
    path.write_text(json.dumps(sealed(record)))
    with pytest.raises(ValueError, match=r"was made with jax 0\.0\.1, but this is jax"):
        write_record(experiment, run)


def test_parts_are_not_lost_while_their_data_are_missing(finished, monkeypatch):
    _, _, path = finished
    stage = Stage(fit_posterior, Fit(Setting("cifar10"), VI()))
    monkeypatch.setattr(Stage, "data_is_here", False)
    with pytest.raises(ValueError, match=r"holds part 'plane', whose data \(cifar10\) are not on"):
        RecordedParts(path).has(PART, {"fit": stage})
    assert not RecordedParts(path).has("another", {"fit": stage})


def test_a_figure_that_a_stage_drew_stays(tmp_path):
    gone = tmp_path / "gone.svg"
    findings = Findings((), (), [Picture("sigma", "σ", "alt", gone)])
    assert write_findings(findings, tmp_path, "x")["figures"] == []
    gone.write_text("drawn")
    kept = write_findings(findings, tmp_path, "x")["figures"]
    assert [figure["file"] for figure in kept] == ["x-sigma.svg"]
    gone.unlink()
    assert write_findings(findings, tmp_path, "x")["figures"] == kept
    assert (tmp_path / "x-sigma.svg").read_text() == "drawn"


def test_a_file_that_is_not_a_record_is_refused(finished):
    experiment, run, path = finished
    path.write_text("{}")
    with pytest.raises(ValueError, match="is not a record of an experiment"):
        write_record(experiment, run)
