"""The experiments of Rossi et al. and ours at toy size: each asserts its claim, not that it ran."""

import json
import math
import subprocess
import sys
from pathlib import Path
from types import SimpleNamespace

import numpy as np
import pytest

from onebasin.cli import main as cli
from onebasin.experiments import timings
from onebasin.experiments.facts import with_facts
from onebasin.experiments.record import Outcome
from onebasin.experiments.runner import Run
from onebasin.experiments.setting import Setting, dataset
from onebasin.experiments.stage import Work
from toy_runs import ROSSI, claims, numbers, toy_folder

SMALLER = "holds at smaller scale"


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    return toy_folder(ROSSI, tmp_path_factory)


def test_barriers(folder):
    found = claims(folder, "barriers")
    for split in ("test", "train"):
        curves = numbers(folder, "barriers", "digits-mlp")
        unaligned = curves[f"unaligned-{split}"]["barrier"]
        repaired = curves[f"repaired-{split}"]
        assert repaired["plain"]["barrier"] <= 0.1 * unaligned
        assert repaired["barrier"] <= repaired["plain"]["barrier"]
        assert curves[f"l2-{split}"]["barrier"] <= 0.1 * unaligned
        assert curves[f"mixture-{split}"]["barrier"] == pytest.approx(0, abs=1e-6)
        assert min(curves[f"unaligned-{split}"]["accuracy"][i] for i in (0, -1)) >= 0.95
        matched = curves[f"correlations-{split}"]
        assert matched["plain"]["barrier"] <= 0.2 * unaligned
        # Which of the two leaves less, the claim must take from the numbers.
        (text,) = (t for t in found if "correlations of activations" in t and f"{split} data" in t)
        gain = repaired["plain"]["barrier"] - matched["plain"]["barrier"]
        errors = (repaired["plain"]["barrier_stderr"], matched["plain"]["barrier_stderr"])
        expected = SMALLER if gain > 2 * math.hypot(*errors) else "does not hold"
        assert found.pop(text)["verdict"] == expected
    # Whether learning gains on a network that W2 aligns well is not claimed to hold.
    found = {t: c for t, c in found.items() if not t.startswith("Permutations learned on the path")}
    assert {claim["verdict"] for claim in found.values()} == {SMALLER}
    assert all("MLP 2×" in claim["conditions"] for claim in found.values())
    # At toy size some of the barrier remains, and no claim says otherwise.
    assert not [text for text in found if "no barrier remains" in text]


def test_learned_barriers(folder):
    """What is learned is measured on both paths; claims follow from the numbers."""
    found = claims(folder, "barriers")
    by_width = []
    for part in ("digits-mlp-learned", "digits-narrow-mlp-learned"):
        done = numbers(folder, "barriers", part)
        assert done["align: learned"]["trace"][-1] <= min(
            start["loss"] for start in done["align: learned"]["starts"]
        )
        for way in ("w2", "correlations", "learned"):
            assert done[way]["barrier"] <= done[way]["plain"]["barrier"]
            assert done[way]["plain"]["barrier"] < 0.5 * done["before"]["barrier"]
        by_width.append(done["learned"]["plain"]["barrier"])
    assert by_width[0] < by_width[1]
    (wider,) = (t for t in found if t.startswith("Permutations learned between wider networks"))
    assert found[wider]["verdict"] == SMALLER
    assert found[wider]["value"] == by_width[0]


def test_width(folder):
    (claim,) = claims(folder, "width").values()
    assert claim["verdict"] == SMALLER
    narrow, wide = (numbers(folder, "width", f"width-{w}")["after"] for w in (8, 128))
    assert wide["barrier"] < narrow["barrier"]


def test_prior_temperature(folder):
    found = claims(folder, "prior-temperature")
    assert len(found) == 3
    assert {claim["verdict"] for claim in found.values()} == {SMALLER}


def test_kl_against_w2(folder):
    found = claims(folder, "kl-vs-w2")
    verdicts = {text: claim["verdict"] for text, claim in found.items()}
    assert verdicts["In two dimensions W2 matching recovers the symmetry"] == "holds"
    assert verdicts["KL matching in the reduced form returns the identity"] == "holds"
    # The exact KL depends on the standard deviations: its trace term changes with the permutation.
    assert verdicts["KL matching loses the covariance information"] == "does not hold"
    kl = numbers(folder, "kl-vs-w2", "plane")["match"]["kl"]
    assert kl["swaps"]
    # Mirror images: KL is zero at the swap, and Σ (s₁/s₀)²/2 − 1 at the identity (s: ¼ and ¾).
    assert kl["at_swap"] == pytest.approx(0, abs=1e-6)
    assert kl["at_identity"] == pytest.approx((9 + 1 / 9) / 2 - 1, rel=1e-5)
    reduced = numbers(folder, "kl-vs-w2", "plane")["match"]["kl-reduced"]
    assert reduced["at_identity"] == reduced["at_swap"] == 0


def test_timings(folder):
    """Claims follow from the times in the record, whatever they were on this machine."""
    found = claims(folder, "timings")
    seconds = numbers(folder, "timings", "all")
    assert set(seconds) == {"width-8", "width-128"}
    for times in seconds.values():
        assert [len(times[name]) for name in ("l2", "w2")] == [5, 5]
        assert min(times["l2"] + times["w2"]) > 0
    largest = max(np.median(own) for times in seconds.values() for own in times.values())
    quick = found["Alignment takes under a minute"]
    assert quick["value"] == largest
    assert quick["verdict"] == (SMALLER if largest < 60 else "does not hold")
    widest = seconds["width-128"]
    ratio = np.median(np.array(widest["w2"]) / np.array(widest["l2"]))
    dearer = found["W2 alignment costs more than weight matching as width grows"]
    assert dearer["value"] == ratio
    assert dearer["verdict"] == (SMALLER if ratio > 1 else "does not hold")


def test_objectives_are_timed_in_turn_after_a_first_turn_that_does_not_count(monkeypatch, tmp_path):
    """A planted clock: an alignment by l2 takes 1 s and by w2 3 s, the very first 100 s more."""
    calls, now = [], [0.0]

    def align(q1, *, to, symmetry, objective):
        assert (q1, to) == ("second", "first")
        now[0] += {"l2": 1.0, "w2": 3.0}[objective] + 100 * (len(calls) < 2)
        calls.append(objective)

    posteriors = {"q0": "first", "q1": "second"}
    monkeypatch.setattr(timings, "align", align)
    monkeypatch.setattr(timings, "load_inputs", lambda setting, inputs: posteriors)
    monkeypatch.setattr(timings, "symmetry", lambda setting: None)
    monkeypatch.setattr(timings, "time", SimpleNamespace(perf_counter=lambda: now[0]))
    found = timings.time_alignment(timings.Time(Setting("digits"), rounds=3), {}, Work(tmp_path))
    assert calls == ["l2", "w2"] * 4
    assert found == {"l2": [1.0] * 3, "w2": [3.0] * 3}


@pytest.mark.parametrize(("slowest", "verdict"), [(59.0, SMALLER), (61.0, "does not hold")])
def test_a_minute_is_the_limit(slowest, verdict):
    outcomes = {
        f"width-{width}": Outcome({"l2": [1.0], "w2": [longest]}, Path())
        for width, longest in ((8, 2.0), (128, slowest))
    }
    quick, dearer = timings.conclude(timings.TOY, {"all": outcomes}).claims
    assert quick.verdict == verdict
    assert quick.value == slowest
    assert dearer.verdict == SMALLER


def test_cifar100_stands_for_a_network_too_narrow_to_align(folder):
    found = claims(folder, "cifar100")
    first = next(text for text in found if text.startswith("W2 alignment leaves a barrier"))
    assert found[first]["verdict"] == SMALLER
    curves = numbers(folder, "cifar100", "narrow-mlp")
    # More starts and a further search never score below the plain start.
    scores = {
        name: max(s["score"] for s in curves[f"align: {name}"]["starts"])
        for name in ("w2", "w2, random starts", "w2, Frank–Wolfe")
    }
    assert min(scores.values()) == pytest.approx(scores["w2"])
    for name in ("w2", "activations", "correlations"):
        assert curves[name]["barrier"] <= curves[name]["plain"]["barrier"]
    for figure in json.loads((folder / "cifar100.json").read_text())["figures"]:
        assert ("correlations and repaired" in figure["alt"]) == ("narrow" in figure["file"])
    # Joint alignment with a third posterior also aligns the two.
    together = curves["w2, jointly with others"]
    assert together["accuracy"][0] == curves["before"]["accuracy"][0]
    assert together["barrier"] <= 0.5 * curves["before"]["barrier"]
    wider = next(text for text in found if text.startswith("A wider network leaves a smaller"))
    assert found[wider]["verdict"] == SMALLER


def test_landscape(folder):
    (claim,) = claims(folder, "landscape").values()
    assert claim["verdict"] == SMALLER
    assert claim["value"] <= 0.1


def test_many(folder):
    found = claims(folder, "many")
    as_good = found["One merged posterior classifies as well as its members"]
    assert as_good["verdict"] == SMALLER
    plain = "Without alignment, the average predicts worse than the merged posterior"
    assert found[plain]["verdict"] == SMALLER
    better = "Restoring the statistics of the units lowers the NLL of the merged posterior"
    assert found[better]["verdict"] == SMALLER


def test_everything_is_kept_and_shown(folder, capsys, tmp_path):
    records = [json.loads((folder / f"{name}.json").read_text()) for name in ROSSI]
    digits = dataset("digits")
    for record in records:
        assert record["preset"] == "toy"
        assert all(record["parts"].values())
        assert with_facts(record, folder)["machines"]
        for found in record["data"].values():
            assert (found["train"], found["test"]) == (len(digits.train.y), len(digits.test.y))
        assert all((folder / figure["file"]).exists() for figure in record["figures"])
        assert all(figure["alt"] for figure in record["figures"])
    # One fit serves many experiments.
    keys = [
        {s["key"] for part in r["stages"].values() for s in part if "fit" in s["key"]}
        for r in records
    ]
    assert len(set.union(*keys)) < sum(len(k) for k in keys) / 2
    cli.main(["report", str(folder), "--out", str(tmp_path / "page.html")])
    page = (tmp_path / "page.html").read_text()
    assert all(record["title"] in page for record in records)
    # Everything is done: the same command, with as many devices, would run nothing.
    command = ["reproduce", *ROSSI, "--preset", "toy", "--out", str(folder), "--dry-run"]
    again = [sys.executable, "-m", "onebasin", *command]
    told = subprocess.run(again, capture_output=True, text=True, check=True).stdout
    assert "about 0.0 s left" in told
    with pytest.raises(ValueError, match="was made with preset toy"):
        Run(folder, "cpu").open()
