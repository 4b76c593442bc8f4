"""The numbers in the README are those of the committed records."""

import json
import re
from pathlib import Path

import pytest

ROOT = Path(__file__).parent.parent
README = (ROOT / "README.md").read_text()


def record(name):
    return json.loads((ROOT / "results" / "reproduction" / f"{name}.json").read_text())


def cells(label):
    """The numbers in the README's table row that starts with this label, column by column."""
    (row,) = re.findall(rf"^\| {re.escape(label)}[^|]*\|(.*)\|$", README, re.MULTILINE)
    return [cell.split("±")[0].split("(")[0].strip(" %") for cell in row.split("|")]


@pytest.mark.parametrize(
    ("label", "row"),
    [
        ("the fitted chains themselves", "HMC samples"),
        ("q_d, diagonal", "HMC q_d"),
        ("q_r, diagonal", "HMC q_r"),
        ("ours: diagonal", "HMC q_r, ours"),
        ("ours: rank 60 ", "HMC rank 60, ours"),
        ("ours: rank 60, noise calibrated", "HMC rank 60, ours, calibrated"),
        ("ours: rank 60, along which", "HMC rank 60, ours, of the outputs"),
    ],
)
def test_table_1(label, row):
    (table,) = record("table1")["tables"]
    (found,) = [r for r in table["rows"] if r[0] == row]
    for told, measured in zip(cells(label), (found[1], found[3]), strict=True):
        assert told == f"{float(measured.split('±')[0]):.3f}"


def test_the_swapped_chains():
    claims = {claim["text"]: claim["ours"] for claim in record("table1")["claims"]}
    ours = claims["One Gaussian stands in for HMC (HMC rank 60, ours, of the outputs)"]
    found = re.findall(r"agreement ([\d.]+) .*?TV ([\d.]+)", ours)[1]
    assert cells("… the same with the two pairs") == [f"{float(v):.3f}" for v in found]


def barrier_row(name, title, row):
    (table,) = [t for t in record(name)["tables"] if t["title"] == title]
    (found,) = [r for r in table["rows"] if r[0] == row]
    return found


@pytest.mark.parametrize(
    ("label", "row"),
    [
        ("geodesic, as fitted", "as fitted"),
        ("geodesic, aligned (l2", "aligned, l2"),
        ("geodesic, aligned (w2", "aligned, w2"),
        ("geodesic, aligned and repaired", "aligned and repaired"),
    ],
)
def test_barriers(label, row):
    found = barrier_row("barriers", "MLP 3×512 on MNIST, test data", row)
    barrier, accuracy = cells(label)
    digits = len(barrier.partition(".")[2])
    assert barrier == f"{float(found[1].split('±')[0]):.{digits}f}"
    assert accuracy == f"{float(found[-1].rstrip('%')):.1f}"


ALIGNED = ("as fitted", "aligned, w2", "aligned and repaired")


@pytest.mark.parametrize(
    ("label", "name", "title", "rows"),
    [
        ("MNIST, cold too ", "barriers", "MLP 3×512 on MNIST, temperature 0.1", ALIGNED),
        ("Fashion-MNIST ", "barriers", "MLP 3×512 on Fashion-MNIST", ALIGNED),
        ("CIFAR-10 ", "barriers", "MLP 3×512 on CIFAR-10, temperature 0.1", ALIGNED),
        (
            "CIFAR-100 ",
            "cifar100",
            "MLP 3×512 on CIFAR-100, temperature 0.1",
            ("as fitted", "w2", "w2 and repaired"),
        ),
        (
            "CIFAR-100, width 1024",
            "cifar100",
            "MLP 3×1024 on CIFAR-100, temperature 0.1",
            ("as fitted", "w2", "w2 and repaired"),
        ),
        (
            "CIFAR-10, ResNet20",
            "barriers",
            "ResNet20 (width 16) on CIFAR-10, temperature 0.1",
            ALIGNED,
        ),
        (
            "CIFAR-100, ResNet20",
            "cifar100",
            "ResNet20 (width 16) on CIFAR-100, temperature 0.04",
            ("as fitted", "w2", "w2 and repaired"),
        ),
    ],
)
def test_barriers_on_other_data(label, name, title, rows):
    *barriers, accuracy = cells(label)
    found = [barrier_row(name, f"{title}, test data", row) for row in rows]
    for told, row in zip(barriers, found, strict=True):
        digits = len(told.partition(".")[2])
        assert told == f"{float(row[1].split('±')[0]):.{digits}f}"
    ends = found[-1][4]
    assert accuracy == " / ".join(f"{float(end.strip(' %')):.1f}" for end in ends.split("/"))


def prose(name, row, column, title=""):
    (table,) = [t for t in record(name)["tables"] if t["title"].startswith(title)]
    (found,) = [r for r in table["rows"] if r[0] == row]
    return found[table["columns"].index(column)].split("±")[0].strip(" %")


def test_numbers_in_the_text():
    text = " ".join(README.split())
    for row, told in (
        ("merged", "NLL {} against"),
        ("merged and repaired", "units restored, {}."),
    ):
        assert told.format(f"{float(prose('many', row, 'NLL, nats')):.3f}") in text
    merged = f"{float(prose('many', 'merged', 'test accuracy')):.1f}"
    assert f"merged into one classify {merged} %" in text
    barriers = [
        f"{float(prose('prior-temperature', f'{v}, 1', 'aligned, nats')):.3f}"
        for v in ("0.0025", "0.01", "0.04")
    ]
    assert "it is {}, {} and {} (width 256)".format(*barriers) in text
    (claim,) = record("landscape")["claims"]
    assert f"takes away {100 - 100 * claim['value']:.0f} % of the fall" in text


def test_numbers_on_cifar100():
    text = " ".join(README.split())

    def barrier(row, title):
        return float(prose("cifar100", row, "barrier, nats", title))

    narrow, wide, resnet = "MLP 3×512", "MLP 3×1024", "ResNet20"
    left = [barrier("w2", title) / barrier("as fitted", title) for title in (narrow, wide)]
    assert "{:.0%} is left, and {:.0%} at twice".format(*left).replace("%", " %") in text
    assert f"stronger search little ({barrier('w2, Frank–Wolfe', narrow):.3f})" in text
    worse = [barrier(row, narrow) for row in ("activations", "w2, jointly with others")]
    told = "matching activations ({:.3f}) and a third posterior aligned along with the two ({:.3f})"
    assert told.format(*worse) + " make it worse" in text
    assert min(worse) > barrier("w2", narrow)
    assert f"matching activations leaves {barrier('activations', resnet):.2f}" in text
    fixed = barrier("correlations and repaired", resnet)
    assert f"correlations with the units' statistics restored {fixed:.3f}" in text
    assert barrier("w2", resnet) > barrier("as fitted", resnet)  # "makes the barrier larger"


def test_residual_networks_on_cifar10():
    title = "ResNet20 (width 16) on CIFAR-10, temperature 0.1, test data"

    def barrier(row):
        return float(barrier_row("barriers", title, row)[1].split("±")[0])

    before, w2, repaired = map(barrier, ("as fitted", "aligned, w2", "aligned and repaired"))
    plain, best = map(barrier, ("aligned, correlations", "correlations and repaired"))
    text = " ".join(README.split())
    told = f"plain path is worse, {plain:.2f}, and the repaired one the lowest, {best:.3f}"
    assert told in text
    assert plain > w2 > repaired > best
    assert f"restored statistics {1 - repaired / before:.0%} in all".replace("%", " %") in text
    assert 1 - w2 / before == pytest.approx(1 / 5, abs=0.03)
    docs = " ".join((ROOT / "docs" / "objectives.md").read_text().split())
    assert f"correlations leave {plain:.2f} nats on the plain path, more than the {w2:.2f}" in docs
    assert f"and {best:.2f} on the repaired one, less than its {repaired:.2f}" in docs


def test_objectives_on_residual_networks():
    text = (ROOT / "docs" / "objectives.md").read_text()
    found = json.loads((ROOT / "results" / "residual_objectives.json").read_text())
    labels = {
        "as fitted": "as fitted",
        "`w2` (": "w2",
        "`kl`": "kl",
        "`reverse-kl`": "reverse-kl",
        "`Activations(apply, x)`": "activations",
        "`Activations(apply, x, correlation=True)`": "correlations",
        "`w2`, from": "w2 from correlations",
    }
    for label, way in labels.items():
        (line,) = (each for each in text.splitlines() if each.startswith(f"| {label}"))
        told = [cell.strip() for cell in line.split("|")[2:-1]]
        rows = [found[pair]["rows"][way] for pair in ("resnet16", "resnet32")]
        numbers = [(r["w2_distance"], r["barrier"], r["repaired_barrier"]) for r in rows]
        assert told == [
            f"{d:.1f}" if i == 0 else f"{d:.2f}" for n in numbers for i, d in enumerate(n)
        ]
    errors = [
        r["barrier_stderr"]
        for pair in ("resnet16", "resnet32")
        for r in found[pair]["rows"].values()
    ]
    assert max(errors) < 0.045


def test_seconds_of_alignment():
    text = " ".join(README.split())
    rows = json.loads((ROOT / "results" / "alignment_speed.json").read_text())["speed"]
    assert not any(row["plain"]["stopped_early"] for row in rows)
    told = "takes {default:.1f} s at width 2048 and {wide:.0f} s at 4096, where the published"
    seconds = {
        (r["pair"], way): r[way]["seconds"]
        for r in rows
        if r["objective"] == "w2"
        for way in ("plain", "default")
    }
    ours = {"default": seconds["mlp2048", "default"], "wide": seconds["mlp4096", "default"]}
    assert told.format(**ours) in text
    plain = [f"{seconds[pair, 'plain']:,.0f} s" for pair in ("mlp2048", "mlp4096")]
    assert "takes {} and {}; 200 draws".format(*plain) in text
    draws = json.loads((ROOT / "results" / "alignment_many.json").read_text())
    few, many = (draws[f"{count} draws, w2"]["seconds"] for count in (200, 1000))
    assert f"aligned jointly in {few:.0f} s, 1,000 in {many:.0f} s" in text
