"""One criterion for "no barrier", and committed records that say what their numbers say."""

import json
import sys
from pathlib import Path
from typing import Any

import pytest

ROOT = Path(__file__).parent.parent
sys.path.insert(0, str(ROOT / "benchmarks"))

import reconclude  # noqa: E402
from onebasin.digests import sealed  # noqa: E402
from onebasin.experiments import (  # noqa: E402
    barriers,
    cifar100,
    dynamics,
    landscape,
    learned_barriers,
    prior_temperature,
)
from onebasin.experiments.claims import (  # noqa: E402
    NO_BARRIER,
    Claim,
    no_barrier,
    removal,
    share_left,
    words_left,
)
from onebasin.experiments.learned_barriers import LearnedPart  # noqa: E402
from onebasin.experiments.record import Outcome, read_record  # noqa: E402

pytestmark = pytest.mark.fast
RECORDS = sorted((ROOT / "results" / "reproduction").glob("*.json"))


@pytest.mark.parametrize(
    ("barrier", "stderr", "unaligned", "none"),
    [
        (0.0, 0.0, 1.0, True),
        (0.02, 0.0, 1.0, True),
        (0.0201, 0.0, 1.0, False),  # above 0.02 nats and 2 %
        (0.021, 0.001, 2.0, False),  # 1.05 %, but above 0.02 nats
        (0.019, 0.001, 0.5, False),  # below 0.02 nats, but 3.8 %
        (0.03, 0.0149, 1.0, False),
        (0.03, 0.015, 1.0, True),  # two standard errors
        (0.0, 0.0, 0.0, True),
        (float("nan"), 0.1, 1.0, False),
        (0.01, float("nan"), 0.1, False),
    ],
)
def test_what_no_barrier_means(barrier, stderr, unaligned, none):
    assert no_barrier(barrier, stderr, unaligned) == none
    assert removal(barrier, stderr, unaligned).holds == none


def test_what_is_left_of_no_barrier_is_no_number():
    """It printed nan%."""
    assert share_left(0.005, 0.25) == "2.0%"
    assert share_left(0.005, 0.25, digits=0) == "2%"
    assert share_left(0.005, 0.0) == "–"
    assert words_left(0.005, 0.25) == "2.0% remains"
    assert words_left(0.0, 0.0) == "there was no barrier to remove"


def test_a_smaller_claim_is_worded_as_one():
    found = removal(0.09, 0.0, 1.0, 0.1)
    assert found.holds
    assert found.words == "most of the barrier is removed"
    assert found.criterion == "at most 10% of the unaligned barrier remains"
    assert found.beside("zero") == "zero (claimed here: most of the barrier is removed)"
    assert removal(0.0, 0.0, 1.0).beside("zero") == "zero"
    assert not removal(0.11, 0.1, 1.0, 0.1).holds


def curve(barrier: float, stderr: float = 0.0, accuracy: float = 0.99) -> dict[str, Any]:
    return {
        "t": [0.0, 0.5, 1.0],
        "nll": [0.1, 0.1 + barrier, 0.1],
        "nll_stderr": [0.0] * 3,
        "excess": [0.0, barrier, 0.0],
        "excess_stderr": [0.0, stderr, 0.0],
        "accuracy": [accuracy] * 3,
        "accuracy_stderr": [0.0] * 3,
        "barrier": barrier,
        "barrier_stderr": stderr,
        "barrier_t": 0.5,
        "largest_excess": barrier,
        "num_samples": 8,
        "samples": 8,
        "num_examples": 100,
        "examples": 100,
    }


def judged(part: barriers.Part, left: float, before: float = 1.0) -> list[Claim]:
    """The claims on a part whose methods all leave the same of a barrier, of one nat."""
    numbers = {}
    for split in barriers.SPLITS:
        numbers |= {
            f"unaligned-{split}": curve(before),
            f"l2-{split}": curve(left),
            f"repaired-{split}": {**curve(left), "plain": curve(left)},
            f"mixture-{split}": curve(0.0),
            f"mode-{split}": curve(before),
            f"mode-aligned-{split}": curve(left),
        }
        if part.correlations:
            numbers[f"correlations-{split}"] = {**curve(left), "plain": curve(left)}
    done = {name: Outcome(result, Path()) for name, result in numbers.items()}
    return list(barriers.conclude((part,), {part.name: done}).claims)


def parts_of(kind: type, *modules: Any) -> list[Any]:
    """The parts of one kind at the presets `cpu` and `paper`."""
    found = [p for m in modules for p in (*m.CPU, *m.PAPER) if isinstance(p, kind)]
    assert found
    return found


@pytest.mark.parametrize("part", parts_of(barriers.Part, barriers), ids=lambda part: part.name)
def test_all_methods_are_judged_alike(part):
    """W2, weight matching of modes and ours: the same number, the same verdict."""
    for left, none in ((0.0199, True), (0.0201, False)):
        found = [c for c in judged(part, left) if "no barrier remains" in c.text]
        assert len(found) == 2 * 3
        assert {c.criterion for c in found} == {NO_BARRIER}
        assert {c.verdict != "does not hold" for c in found} == {none}
        assert all(f"{left:.4f}" in c.ours for c in found), "the number stands beside the verdict"


@pytest.mark.parametrize(
    "part", parts_of(LearnedPart, barriers, cifar100), ids=lambda part: part.name
)
def test_what_is_learned_is_judged_by_the_same_criterion(part):
    """Plain and repaired; and whether it is better than what is given, by its error."""
    for left, none in ((0.0199, True), (0.0201, False)):
        found = learned_claims(part, given=0.03, left=left)
        gone = [c for c in found if "no barrier remains" in c.text]
        assert len(gone) == 2
        assert {c.criterion for c in gone} == {NO_BARRIER}
        assert {c.verdict != "does not hold" for c in gone} == {none}
    for given, left, better in ((0.3, 0.2, True), (0.3, 0.29, False), (0.2, 0.3, False)):
        first, *_ = learned_claims(part, given, left, stderr=0.01)
        assert (first.verdict == "holds at smaller scale") == better
    missed = learned_claims(part, 0.3, 0.2, accuracy=part.pair.accuracy - 0.01)
    assert {c.verdict for c in missed} == {"not tested"}


def learned_claims(part, given, left, stderr=0.0, accuracy=0.99, before=1.0):
    numbers = {"before": curve(before, stderr, accuracy)}
    for way, barrier in (("w2", given), ("correlations", given + 0.1), ("learned", left)):
        one = curve(barrier, stderr, accuracy)
        numbers[way] = {**one, "plain": one}
    done = {name: Outcome(result, Path()) for name, result in numbers.items()}
    return learned_barriers.conclude([part], {part.name: done}).claims


def test_claims_about_a_barrier_that_was_not_there_say_so():
    found = judged(barriers.CPU[0], 0.0, before=0.0)
    found += learned_claims(barriers.WARM[0], 0.0, 0.0, before=0.0)
    said = [c for c in found if "there was no barrier to remove" in c.ours]
    assert len(said) == 2 * 3 + 2
    plane = {  # the posterior is a hill: no line between two points has a drop
        **{axis: [-1.0, 0.0, 1.0] for axis in "ab"},
        "log_posterior": [[-float(a * a + b * b) for a in (-1, 0, 1)] for b in (-1, 0, 1)],
        "nll": [[0.1] * 3] * 3,
        "accuracy": [[0.99] * 3] * 3,
        "points": [[0.0, 0.0], [1.0, 0.0], [0.0, 1.0]],
        "names": ["q0", "q1", "aligned q1"],
        "unit": "parameter distance",
    }
    done = {"plane": {"plane": Outcome(plane, Path())}}
    (flat,) = landscape.conclude(landscape.TOY, done).claims
    assert flat.value is None
    assert "(– remains)" in flat.ours
    for claim in (*found, flat):
        assert "nan" not in f"{claim.ours} {claim.headline}"


def test_widths_are_compared_by_what_is_learned():
    """Each wider network against each narrower one of the same setting, and no others."""
    sweep = [p for p in barriers.WARM if p.pair.setting.network == "resnet20"]
    assert [p.pair.setting.width for p in sweep] == [16, 32, 64]
    outcomes = {}
    for part, left in zip(barriers.WARM, (0.5, 0.4, 0.2, 0.3), strict=True):
        one = {**curve(left), "plain": curve(left)}
        plan = {"before": curve(1.0), **dict.fromkeys(("w2", "correlations", "learned"), one)}
        outcomes[part.name] = {name: Outcome(result, Path()) for name, result in plan.items()}
    claims = learned_barriers.conclude(barriers.WARM, outcomes).claims
    found = [c for c in claims if "between wider networks" in c.text]
    assert [c.verdict == "holds at smaller scale" for c in found] == [True, True, False]


@pytest.mark.parametrize("preset", ["cpu", "paper"])
def test_only_toy_presets_claim_less(preset):
    assert {part.largest_share for part in barriers.PRESETS[preset]} == {None}
    assert {part.largest_share for part in cifar100.PRESETS[preset]} == {None}
    assert prior_temperature.EXPERIMENT.config(preset).largest_share is None
    assert dynamics.EXPERIMENT.config(preset).largest_share is None
    assert landscape.EXPERIMENT.config(preset).largest_share == 0.02
    assert barriers.PRESETS["toy"][0].largest_share == 0.1


def test_every_claim_of_the_records_names_its_figure_and_criterion():
    for path in RECORDS:
        for claim in read_record(path)["claims"]:
            assert claim["figure"]
            if claim["reason"].endswith("has not been run"):
                assert claim["verdict"] == "not tested"
                continue
            assert claim["criterion"]
            assert claim["ours"]
            if "no barrier remains" in claim["text"]:
                assert claim["criterion"].endswith(NO_BARRIER)


@pytest.mark.parametrize("path", RECORDS, ids=lambda path: path.stem)
def test_committed_records_say_what_their_numbers_say(path):
    assert reconclude.is_current(path), "run `make records`"


def test_only_conclusions_change(tmp_path):
    path = tmp_path / "width.json"
    before = read_record(ROOT / "results" / "reproduction" / "width.json")
    old = json.loads(json.dumps(before))
    old["claims"][0]["verdict"] = "does not hold"
    path.write_text(json.dumps(sealed(old)))
    assert not reconclude.is_current(path)
    after = reconclude.reconcluded(path)
    assert after == before
    assert (tmp_path / "width-barriers.svg").exists()
    old["numbers"]["width-512"]["after"]["barrier"] = 0.5
    path.write_text(json.dumps(sealed(old)))
    assert reconclude.reconcluded(path)["claims"][0]["verdict"] == "does not hold"
    del old["numbers"]["width-512"]["align"]
    path.write_text(json.dumps(sealed(old)))
    with pytest.raises(ValueError, match="part 'width-512' has other stages now"):
        reconclude.reconcluded(path)
