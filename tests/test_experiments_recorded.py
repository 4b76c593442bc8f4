"""Parts of a record are kept without the folders of their stages if the stages are the same."""

import json
import shutil

import pytest

from onebasin.experiments import get_experiment
from onebasin.experiments.common_stages import Fit, fit_posterior
from onebasin.experiments.experiment import (
    Findings,
    Picture,
    reproduce,
    write_findings,
    write_record,
)
from onebasin.experiments.record import RecordedParts
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
    path.write_text(json.dumps(record))
    anew = json.loads(write_record(experiment, run).read_text())
    assert not anew["parts"][PART]
    assert PART not in anew["numbers"]
    assert all(claim["verdict"] == "not tested" for claim in anew["claims"])


def test_parts_of_two_machines_stay(finished):
    """A part made on another machine stays in the record, however often it is written."""
    experiment, run, path = finished
    shutil.rmtree(run.out / "stages")
    record = json.loads(path.read_text())
    for row in record["stages"][PART]:
        row["machine"] = {**row["machine"], "cores": 999}
    record["machines"] = [record["stages"][PART][0]["machine"], *record["machines"]]
    path.write_text(json.dumps(record))
    for _ in range(2):
        anew = json.loads(write_record(experiment, run).read_text())
        assert anew["parts"][PART]
        assert anew["machines"][0]["cores"] == 999
        assert anew["stages"] == record["stages"]


def test_renamed_entries_of_a_plan_are_another_part(finished):
    experiment, run, path = finished
    shutil.rmtree(run.out / "stages")
    record = json.loads(path.read_text())
    record["numbers"][PART] = {f"{k} of old": v for k, v in record["numbers"][PART].items()}
    path.write_text(json.dumps(record))
    assert not json.loads(write_record(experiment, run).read_text())["parts"][PART]


def test_a_record_of_another_version_is_refused(finished):
    experiment, run, path = finished
    record = json.loads(path.read_text())
    record["versions"]["jax"] = "0.0.1"
    path.write_text(json.dumps(record))
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
