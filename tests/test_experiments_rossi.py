"""The experiments of Rossi et al. and ours at toy size: each asserts its claim, not that it ran."""

import json
import math

import pytest

from onebasin.cli import main as cli
from onebasin.experiments.runner import Run
from onebasin.experiments.setting import dataset
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
        (text,) = (t for t in found if "Correlations" in t and f"{split} data" in t)
        gain = repaired["plain"]["barrier"] - matched["plain"]["barrier"]
        errors = (repaired["plain"]["barrier_stderr"], matched["plain"]["barrier_stderr"])
        expected = SMALLER if gain > 2 * math.hypot(*errors) else "does not hold"
        assert found.pop(text)["verdict"] == expected
    assert {claim["verdict"] for claim in found.values()} == {SMALLER}
    assert all("MLP 2×" in claim["conditions"] for claim in found.values())


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
    # The exact KL sees the deviations: its trace term depends on the permutation.
    assert verdicts["KL matching loses the covariance information"] == "does not hold"
    kl = numbers(folder, "kl-vs-w2", "plane")["match"]["kl"]
    assert kl["swaps"]
    # Mirror images: KL is zero at the swap, and Σ (s₁/s₀)²/2 − 1 at the identity (s: ¼ and ¾).
    assert kl["at_swap"] == pytest.approx(0, abs=1e-6)
    assert kl["at_identity"] == pytest.approx((9 + 1 / 9) / 2 - 1, rel=1e-5)
    reduced = numbers(folder, "kl-vs-w2", "plane")["match"]["kl-reduced"]
    assert reduced["at_identity"] == reduced["at_swap"] == 0


def test_timings(folder):
    found = claims(folder, "timings")
    assert found["Alignment takes under a minute"]["verdict"] == SMALLER
    seconds = numbers(folder, "timings", "all")["width-128"]
    assert len(seconds["l2"]) == len(seconds["w2"]) == 5


def test_cifar100_stands_for_a_network_too_narrow_to_align(folder):
    found = claims(folder, "cifar100")
    first = next(text for text in found if text.startswith("W2 alignment fails"))
    assert found[first]["verdict"] == SMALLER
    curves = numbers(folder, "cifar100", "narrow-mlp")
    # More starts and a further search never end below what the plain start reaches.
    scores = {
        name: max(s["score"] for s in curves[f"align: {name}"]["starts"])
        for name in ("w2", "w2, random starts", "w2, Frank–Wolfe")
    }
    assert min(scores.values()) == pytest.approx(scores["w2"])
    for name in ("w2", "activations", "correlations"):
        assert curves[name]["barrier"] <= curves[name]["plain"]["barrier"]
    for figure in json.loads((folder / "cifar100.json").read_text())["figures"]:
        assert ("correlations and repaired" in figure["alt"]) == ("narrow" in figure["file"])
    # Beside a third posterior the two are matched too, if for all three at once.
    together = curves["w2, jointly with others"]
    assert together["accuracy"][0] == curves["before"]["accuracy"][0]
    assert together["barrier"] <= 0.5 * curves["before"]["barrier"]
    wider = next(text for text in found if text.startswith("A wider network leaves less"))
    assert found[wider]["verdict"] == SMALLER


def test_landscape(folder):
    (claim,) = claims(folder, "landscape").values()
    assert claim["verdict"] == SMALLER
    assert claim["value"] <= 0.1


def test_many(folder):
    found = claims(folder, "many")
    as_good = found["One merged posterior classifies as well as the members it was made of"]
    assert as_good["verdict"] == SMALLER
    assert found["Without alignment the average is no posterior at all"]["verdict"] == SMALLER
    surer = "Restoring the units' statistics makes the merged posterior surer where it is right"
    assert found[surer]["verdict"] == SMALLER


def test_everything_is_kept_and_shown(folder, capsys, tmp_path):
    records = [json.loads((folder / f"{name}.json").read_text()) for name in ROSSI]
    digits = dataset("digits")
    for record in records:
        assert record["preset"] == "toy"
        assert all(record["parts"].values())
        assert record["machines"]
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
    # All is done: the same command runs nothing.
    cli.main(["reproduce", *ROSSI, "--preset", "toy", "--out", str(folder), "--dry-run"])
    told = capsys.readouterr().out
    assert "about 0.0 s left" in told
    with pytest.raises(ValueError, match="was made with preset toy"):
        Run(folder, "cpu").open()
