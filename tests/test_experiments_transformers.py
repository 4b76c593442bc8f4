"""The experiment on transformers at toy size, and what it says beside the published numbers."""

import json

import pytest

from onebasin.experiments import get_experiment
from onebasin.experiments.transformers import AVERAGED, LEARNED, MIXED, PERMUTED
from toy_runs import claims, numbers, toy_folder


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    return toy_folder(("transformers",), tmp_path_factory)


def test_claims_hold_at_toy_size(folder):
    found = claims(folder, "transformers")
    assert len(found) == 10
    # So small and short, the largest group may leave a barrier; all else is as it should be.
    judged = {text: claim["verdict"] for text, claim in found.items()}
    assert {v for text, v in judged.items() if "nats remain" not in text} == {
        "holds at smaller scale"
    }
    assert not any(verdict == "not tested" for verdict in judged.values())


@pytest.mark.parametrize("part", ["vit", "gpt"])
def test_every_way_of_aligning_keeps_both_networks(folder, part):
    """The ends of every path are the same two networks; a permutation keeps the function."""
    found = numbers(folder, "transformers", part)
    for row in (*PERMUTED, *MIXED):
        for end in (0, -1):
            # float32 sums in another order
            assert found[row]["nll"][end] == pytest.approx(found[AVERAGED]["nll"][end], rel=1e-3)
    # Matching weights lowers the distance that it is about, and over the larger group further.
    fixed = found["align: weights"]
    assert fixed["distance_after"] < fixed["distance_before"]
    own = found["align: weights, own orders in heads"]
    assert own["units"] > fixed["units"]
    assert own["distance_after"] < own["distance_before"]
    whole = found["align: weights, all of the symmetry"]
    assert "orthogonal" in whole["kinds"].values()
    assert found[LEARNED]["barrier"] < found[AVERAGED]["barrier"]


def test_the_table_has_published_numbers_only_where_there_are_any(folder):
    record = json.loads((folder / "transformers.json").read_text())
    for table in record["tables"]:
        column = table["columns"].index("published, nats")
        assert {row[column] for row in table["rows"]} == {"–"}  # none at toy size
    (vit, _) = get_experiment("transformers").config("cpu")
    # Theus et al. (2025), table 2
    assert vit.published[AVERAGED] == 1.69
    assert vit.published[LEARNED] == 0.45
