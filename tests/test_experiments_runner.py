"""The stage runner: content keys, caching, resuming, sharing; and verdicts from numbers."""

import json
import pickle
import threading
import time
from dataclasses import dataclass, replace
from types import SimpleNamespace

import jax
import jax.numpy as jnp
import pytest

from onebasin.atomic import LOCK, TEMPORARY, lock
from onebasin.cli import main as cli
from onebasin.cli.main import DEVICES
from onebasin.experiments import EXPERIMENTS, get_experiment
from onebasin.experiments import speed as speed_module
from onebasin.experiments import stage as stage_module
from onebasin.experiments.claims import Requirement, judge, plus_minus
from onebasin.experiments.common_stages import Fit, fit_replicas, fits
from onebasin.experiments.curves import Curve
from onebasin.experiments.facts import add_facts, read_facts
from onebasin.experiments.runner import Run, clock, write_json
from onebasin.experiments.setting import SHAPES, TRAIN_EXAMPLES, Setting, gradient_flops
from onebasin.experiments.speed import speed
from onebasin.experiments.stage import USUAL_DEVICES, Stage, encode, fewest_devices, step
from onebasin.inference.methods import HMC, VI
from onebasin.networks import MLP
from onebasin.tensor_files import finite


@dataclass(frozen=True)
class Number:
    value: int
    log: str = ""
    """A file to which every run of the stage adds a line."""


def note(config):
    if config.log:
        with open(config.log, "a") as file:
            file.write("ran\n")


def times_run(log) -> int:
    return len(log.read_text().splitlines()) if log.exists() else 0


@step(version=1, seconds=lambda _: 1.0)
def make(config, inputs, work):
    note(config)
    (work.folder / "number.txt").write_text(str(config.value))
    return {"value": config.value}


@step(version=1, seconds=lambda _: 1.0)
def double(config, inputs, work):
    note(config)
    return {"value": 2 * int(inputs["number"].read_text()) + config.value}


@step(version=2, seconds=lambda _: 1.0)
def make_anew(config, inputs, work):
    return make(config, inputs, work)


make_anew.__name__ = "make"


@step(version=1, seconds=lambda _: 1.0, resumes=True)
def count_up(config, inputs, work):
    """Interrupted once; continues from the file it left."""
    file = work.folder / "count.txt"
    count = int(file.read_text()) if file.exists() else 0
    while count < config.value:
        count += 1
        file.write_text(str(count))
        if count == 2:
            raise KeyboardInterrupt
    return {"value": count}


@step(version=1, seconds=lambda _: 1.0)
def slow(config, inputs, work):
    note(config)
    time.sleep(0.2)
    return {}


@pytest.fixture
def run(tmp_path):
    found = Run(tmp_path / "run", "toy", quiet=True)
    found.open()
    return found


@pytest.mark.fast
def test_keys_follow_content():
    base = Stage(make, Number(1))
    assert base.key == Stage(make, Number(1)).key
    assert base.key.startswith("make-")
    other = [
        Stage(make, Number(2)),
        Stage(make_anew, Number(1)),
        Stage(double, Number(1)),
        Stage(double, Number(1), {"number": base["number.txt"]}),
        Stage(double, Number(1), {"number": Stage(make, Number(2))["number.txt"]}),
        Stage(double, Number(1), {"other": base["number.txt"]}),
        Stage(make, Setting("digits")),
        Stage(make, Setting("digits", limit=5)),
    ]
    keys = [stage.key for stage in [base, *other]]
    assert len(set(keys)) == len(keys)
    assert set(other[-1].description()["data"]) == {"digits"}
    with pytest.raises(ValueError, match="plain values"):
        encode(object())


@step(version=1, seconds=lambda _: 1.0, spreads=lambda config: config.value)
def spread(config, inputs, work):
    return {"interval": work.checkpoint_interval}


@pytest.mark.fast
def test_the_key_names_devices_that_change_the_result(monkeypatch):
    def key(value, devices):
        monkeypatch.setattr(jax, "devices", lambda: [None] * devices)
        return Stage(spread, Number(value)).key

    assert USUAL_DEVICES == DEVICES
    assert len({key(4, devices) for devices in (1, 2, 4)}) == 3
    assert key(4, 4) == key(4, 9)  # one to a device in both
    assert key(1, 1) == key(1, 4)
    assert key(5, 3) == key(5, 4)  # at most two to a device in both
    monkeypatch.setattr(jax, "devices", lambda: [None])
    assert Stage(spread, Number(4)).description()["devices"] == 1
    assert "devices" not in Stage(make, Number(4)).description()
    assert [fit_replicas(Fit(Setting("digits"), m, runs=2)) for m in (VI(), HMC(chains=3))] == [
        2,
        6,
    ]


@pytest.mark.fast
@pytest.mark.parametrize(
    ("counts", "here", "needed"),
    [((), 4, 1), ((1, 1), 4, 1), ((1, 5), 4, 3), ((4,), 4, 4), ((8,), 4, 4), ((5, 8), 3, 3)],
)
def test_the_fewest_devices_give_the_same_keys(monkeypatch, counts, here, needed):
    stages = [Stage(make, Number(1)), *(Stage(spread, Number(count)) for count in counts)]

    def keys(devices):
        monkeypatch.setattr(jax, "devices", lambda: [None] * devices)
        return [pickle.loads(pickle.dumps(stage)).key for stage in stages]

    expected = keys(here)
    assert fewest_devices(stages) == needed
    assert keys(needed) == expected
    assert needed == 1 or keys(needed - 1) != expected


@pytest.mark.fast
def test_the_key_does_not_travel_with_a_stage(monkeypatch):
    stage = Stage(spread, Number(4), {"number": Stage(make, Number(1))["number.txt"]})
    here = stage.key
    sent = pickle.dumps(stage)
    assert pickle.loads(sent) == stage
    assert pickle.loads(sent).key == here
    monkeypatch.setattr(jax, "devices", lambda: [None] * 3)
    assert pickle.loads(sent).key != here
    assert stage.key == here


@pytest.mark.fast
def test_the_checkpoint_interval_is_that_of_the_run(run):
    assert run.perform(Stage(spread, Number(1)))["interval"] == 60
    other = Run(run.out, "toy", quiet=True, checkpoint_interval=5)
    assert other.perform(Stage(spread, Number(2)))["interval"] == 5


@pytest.mark.fast
def test_done_stages_are_skipped_and_shared(run, tmp_path):
    logs = [tmp_path / "first", tmp_path / "second"]
    number = Stage(make, Number(3, str(logs[0])))
    whole = Stage(double, Number(1, str(logs[1])), {"number": number["number.txt"]})
    assert [stage.name for stage in whole.lineage()] == ["make", "double"]
    assert not run.is_done(whole)
    assert run.perform(whole)["value"] == 7
    assert run.perform(whole)["value"] == 7
    again = Run(run.out, "toy", quiet=True)
    again.open()
    other = Stage(double, Number(5, str(logs[1])), {"number": number["number.txt"]})
    assert again.perform(other)["value"] == 11
    assert [times_run(log) for log in logs] == [1, 2]
    about = json.loads((run.folder(whole) / "stage.json").read_text())
    assert about["inputs"] == {"number": [number.key, "number.txt"]}
    facts = read_facts(run.out)["stages"]
    assert set(facts) == {number.key, whole.key, other.key}
    assert facts[whole.key]["machine"]["cores"] >= 1
    assert facts[whole.key]["seconds"] >= 0
    assert not list(run.out.glob("stages/*.part"))
    assert not list(run.out.glob("stages/.*.lock"))


@pytest.mark.fast
def test_an_interrupted_stage_is_not_done_and_resumes(run):
    stage = Stage(count_up, Number(4))
    with pytest.raises(KeyboardInterrupt):
        run.perform(stage)
    assert not run.is_done(stage)
    left = run.out / "stages" / f"{stage.key}.part" / "count.txt"
    assert left.read_text() == "2"
    assert run.perform(stage)["value"] == 4


@pytest.mark.fast
def test_files_of_an_interrupted_stage_are_deleted_unless_it_resumes(run):
    stage = Stage(make, Number(4))
    part = run.out / "stages" / f"{stage.key}.part"
    part.mkdir(parents=True)
    (part / "half-written").write_text("x")
    run.perform(stage)
    assert sorted(p.name for p in run.folder(stage).iterdir()) == [
        "number.txt",
        "result.json",
        "stage.json",
    ]


@pytest.mark.fast
def test_what_killed_processes_left_is_removed_but_not_what_is_in_use(run):
    stage = Stage(count_up, Number(4))
    with pytest.raises(KeyboardInterrupt):
        run.perform(stage)
    before = sorted(run.out.rglob("*"))
    for folder in (run.out, run.out / "stages"):
        (folder / LOCK.format(target=stage.key)).write_text("")
        left = folder / TEMPORARY.format(target="run.json", random="abc")
        left.mkdir()
        (left / "run.json").write_text("half")
    Run(run.out, "toy", quiet=True).open()
    assert sorted(run.out.rglob("*")) == before  # with the stage that was not finished
    with lock(run.out / "stages" / stage.key, busy=lambda: None):
        Run(run.out, "toy", quiet=True).open()
        assert len(list(run.out.rglob("*.lock"))) == 1


@pytest.mark.fast
def test_presets_and_versions_do_not_mix(run):
    with pytest.raises(ValueError, match="was made with preset toy, but this is preset cpu"):
        Run(run.out, "cpu").open()
    path = run.out / "run.json"
    write_json(path, {**json.loads(path.read_text()), "onebasin": "0.0.0"})
    with pytest.raises(ValueError, match=r"onebasin 0\.0\.0, .*another folder"):
        Run(run.out, "toy").open()


@pytest.mark.fast
def test_a_stage_runs_once_for_several_processes(run, tmp_path):
    log = tmp_path / "log"
    stage = Stage(slow, Number(0, str(log)))
    workers = [threading.Thread(target=run.perform, args=(stage,)) for _ in range(3)]
    for worker in workers:
        worker.start()
    for worker in workers:
        worker.join()
    assert times_run(log) == 1
    assert run.is_done(stage)


@pytest.mark.fast
def test_facts_of_several_processes_are_all_kept(tmp_path):
    def add(name):
        add_facts(tmp_path, "plan", {name: {"seconds": 1.0}})

    workers = [threading.Thread(target=add, args=(f"stage-{i}",)) for i in range(8)]
    for worker in workers:
        worker.start()
    for worker in workers:
        worker.join()
    assert set(read_facts(tmp_path)["plan"]) == {f"stage-{i}" for i in range(8)}
    assert [p.name for p in tmp_path.iterdir()] == ["facts.json"]


@pytest.mark.fast
@pytest.mark.parametrize(
    "text",
    [
        *("", "[]", '{"stages": {"a": {"seconds": NaN}}}', '{"stages": {"a": 1}}', "\x00"),
        *("{}", '{"stages": {}, "unknown": {}}', '{"stages": {}, "digest": "0"}'),
    ],
)
def test_damaged_facts_are_refused_by_name(tmp_path, text):
    (tmp_path / "facts.json").write_text(text)
    with pytest.raises(ValueError, match=r"facts\.json .*delete it"):
        read_facts(tmp_path)


def test_files_with_fewer_examples_than_published_are_not_of_published_size(monkeypatch):
    digits = Setting("digits")
    assert digits.same_size(replace(digits, prior_variance=1.0))
    assert not digits.same_size(replace(digits, width=7))
    monkeypatch.setitem(TRAIN_EXAMPLES, "digits", 5000)
    assert not digits.same_size(digits)


@pytest.mark.fast
def test_fits_of_one_seed_are_one_stage():
    setting = Setting("digits", width=4)
    two, five = fits(setting, VI(), 2), fits(setting, VI(), 5)
    assert two == five[:2]
    assert len({file.stage for file in five}) == 5
    together = fits(setting, VI(), 2, together=3)
    assert together[0].stage == together[1].stage == fits(setting, VI(), 3, together=3)[2].stage
    assert Fit(setting, VI()) != Fit(replace(setting, prior_variance=0.5), VI())
    with pytest.raises(ValueError, match="3 posteriors are needed but only 2 are fitted together"):
        fits(setting, VI(), 3, together=2)


REQUIRED = Requirement("accuracy is", 0.99, 0.98)
MISSED = Requirement("accuracy is", 0.97, 0.98)


@pytest.mark.fast
@pytest.mark.parametrize(
    ("holds", "fits_met", "published_scale", "verdict"),
    [
        (True, [REQUIRED], True, "holds"),
        (True, [REQUIRED], False, "holds at smaller scale"),
        (False, [REQUIRED], True, "does not hold"),
        (None, [REQUIRED], True, "not tested"),
        (True, [REQUIRED, MISSED], True, "not tested"),
        (False, [MISSED], True, "not tested"),
        (True, [Requirement("accuracy is", float("nan"), 0.98)], True, "not tested"),
    ],
)
def test_verdicts(holds, fits_met, published_scale, verdict):
    claim = judge(
        "it works",
        holds,
        published="it does",
        source="them",
        ours="so it does",
        criterion="",
        conditions="",
        published_scale=published_scale,
        fits=fits_met,
    )
    assert claim.verdict == verdict
    if MISSED in fits_met:
        assert claim.reason == "accuracy is 97.00%, below the required 98.00%"


@pytest.mark.fast
def test_numbers_are_written_to_the_digits_their_errors_allow():
    assert plus_minus(1.9237, 0.0061) == "1.9237 ± 0.0061"
    assert plus_minus(12.3, 4.0) == "12.3 ± 4.0"
    assert plus_minus(0.0, 1.5e-5) == "0 ± 2e-05"
    assert plus_minus(0.5, None) == plus_minus(0.5, 0.0) == "0.5"
    assert [clock(s) for s in (2, 65, 600, 9000)] == ["2.0 s", "65 s", "10 min", "2.5 h"]


@pytest.mark.fast
def test_numbers_that_json_lacks_become_null():
    found = {"rhat": [1.5, float("inf"), float("nan")], "name": "x"}
    assert finite(found) == {"rhat": [1.5, None, None], "name": "x"}


@pytest.mark.parametrize("setting", [Setting("mnist", width=128, depth=1), Setting("cifar10")])
def test_the_cost_of_a_gradient_is_what_xla_counts(setting):
    """Up to elementwise operations, which are less than a tenth of it."""
    net = MLP(widths=(setting.width,) * setting.depth)
    x = jnp.zeros((1, *SHAPES.get(setting.data, (32, 32, 3))))
    params = jax.eval_shape(net.init, jax.random.key(0), x)
    lowered = jax.jit(jax.grad(lambda p: jnp.sum(net.apply(p, x)))).lower(params)  # pyright: ignore[reportArgumentType]
    analysis = lowered.cost_analysis()
    assert analysis is not None
    assert gradient_flops(setting) == pytest.approx(analysis["flops"], rel=0.1)


@pytest.mark.fast
def test_list_and_errors(capsys):
    cli.main(["reproduce", "--list"])
    told = capsys.readouterr().out
    assert [line.split()[0] for line in told.splitlines()] == list(EXPERIMENTS)
    assert len(EXPERIMENTS) == 14
    for arguments, message in (
        ([], "name an experiment"),
        (["barrier"], "there is no experiment 'barrier'"),
        (["width", "many", "--parts", "all"], "belong to one experiment"),
        (["width", "--adopt", "nowhere.safetensors"], "nowhere.safetensors"),
    ):
        with pytest.raises(SystemExit) as stop:
            cli.main(["reproduce", *arguments])
        assert stop.value.code == 2
        error = capsys.readouterr().err
        assert message in error
        assert error.count("\n") == 1


@pytest.mark.parametrize("name", list(EXPERIMENTS))
def test_every_preset_has_a_plan(name):
    """Also at paper size and without data: the stages, their order and estimated times."""
    experiment = get_experiment(name)
    for preset in ("toy", "cpu", "paper"):
        parts = experiment.plan(experiment.config(preset))
        stages = {s for plan in parts.values() for stage in plan.values() for s in stage.lineage()}
        assert stages
        assert all(stage.seconds > 0 for stage in stages)
        assert set(experiment.optional.get(preset, ())) < set(parts)
        # Nothing is done: every part has a claim, and none is judged.
        claims = experiment.findings(experiment.config(preset), {}).claims
        assert len(claims) == len(parts)
        for claim, part in zip(claims, parts, strict=True):
            assert claim.verdict == "not tested"
            assert claim.reason == f"part '{part}' has not been run"
    with pytest.raises(ValueError, match="has no part 'x'"):
        experiment.parts("toy", ["x"])


def test_paper_preset_writes_its_plan_and_runs_nothing(tmp_path, monkeypatch, capsys):
    empty = tmp_path / "no data"
    empty.mkdir()
    monkeypatch.setenv("ONEBASIN_DATA", str(empty))
    out = tmp_path / "run"
    cli.main(
        ["reproduce", "dynamics", "table1", "--preset", "paper", "--dry-run", "--out", str(out)]
    )
    told = capsys.readouterr().out
    assert "HMC of MLP 1×512 on MNIST" in told
    assert "left on this machine" in told
    rows = json.loads((out / "plan.json").read_text())["stages"]
    assert {row["experiment"] for row in rows} == {"dynamics", "table1"}
    known = read_facts(out)["plan"]
    assert {row["stage"] for row in rows} == set(known)  # without data, stages have no keys
    assert not any(row["done"] for row in known.values())
    assert {p.name for p in out.iterdir()} == {"plan.json", "run.json", "facts.json"}


def test_a_barrier_is_clearly_below_another_by_two_errors_of_the_difference():
    def curve(barrier, error):
        return Curve({"barrier": barrier, "barrier_stderr": error})

    # Errors of 0.3 and 0.4 give 0.5 for the difference.
    assert curve(0.1, 0.4).clearly_below(curve(1.2, 0.3))
    assert not curve(0.3, 0.4).clearly_below(curve(1.2, 0.3))
    assert not curve(1.2, 0.3).clearly_below(curve(0.1, 0.4))


def test_estimates_scale_with_the_speed_of_the_machine(monkeypatch):
    """Twice the speed halves the estimate; the fastest of five products gives the speed."""
    stage = Stage(make, Number(3))
    for faster in (1.0, 2.0):
        monkeypatch.setattr(stage_module, "speed", lambda faster=faster: faster)
        assert stage.seconds == stage.function.seconds(stage.config) / faster
    ticks = iter([0, 9, 10, 12, 20, 23, 30, 36, 40, 44])  # 9, 2, 3, 6 and 4 seconds
    monkeypatch.setattr(speed_module, "time", SimpleNamespace(perf_counter=lambda: next(ticks)))
    product = 2 * speed_module.ROWS * speed_module.WIDTH**2
    assert speed.__wrapped__() == pytest.approx(product / 2 / speed_module.REFERENCE)
