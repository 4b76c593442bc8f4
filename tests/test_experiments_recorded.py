"""Parts of a record outlive the folders of their stages, as long as they are the same stages."""

import json
import shutil

import pytest

from onebasin.experiments import get_experiment
from onebasin.experiments.experiment import reproduce, write_record
from onebasin.experiments.runner import Run

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


def test_a_record_made_elsewhere_is_completed(finished, tmp_path):
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


def test_what_is_no_record_is_refused(finished):
    experiment, run, path = finished
    path.write_text("{}")
    with pytest.raises(ValueError, match="is no record of an experiment"):
        write_record(experiment, run)
