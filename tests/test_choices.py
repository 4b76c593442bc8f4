"""The names in `choices` agree with the registries they mirror."""

from typing import get_args

import jax.numpy as jnp
import pytest

from onebasin import choices
from onebasin.alignment.activations import BY_DATA
from onebasin.alignment.objective import OBJECTIVES
from onebasin.data import NAMES, SOURCES, Dataset
from onebasin.experiments import PRESETS
from onebasin.likelihoods import NAMED
from onebasin.networks import KINDS
from onebasin.networks.named import WIDTHS
from onebasin.pruning import prune

pytestmark = pytest.mark.fast


def test_data():
    assert get_args(choices.DataName) == NAMES == ("digits", "pydoc", *SOURCES)
    assert all(name == source.name for name, source in SOURCES.items())
    assert set(get_args(choices.SplitName)) <= set(Dataset.__dataclass_fields__)


def test_networks():
    names = get_args(choices.NetworkName)
    assert tuple(WIDTHS) == names == tuple(kind.lower() for kind in KINDS)
    assert all(KINDS[kind].__name__ == kind for kind in KINDS)


def test_likelihoods():
    assert get_args(choices.LikelihoodName) == tuple(NAMED)
    assert all(kind.name == name for name, kind in NAMED.items())


def test_objectives():
    weights, data = get_args(choices.WeightObjective), get_args(choices.DataObjective)
    assert weights == tuple(OBJECTIVES)
    assert data == BY_DATA
    assert get_args(choices.ObjectiveName) == weights + data


def test_presets():
    assert get_args(choices.PresetName) == PRESETS


def test_pruning_accepts_every_rule_and_scope():
    params, std = {"w": jnp.arange(1.0, 5.0)}, {"w": jnp.array([4.0, 3.0, 2.0, 1.0])}
    for by in get_args(choices.PruningRule):
        for scope in get_args(choices.PruningScope):
            assert prune(params, std, keep=0.5, by=by, scope=scope).by == by


def test_a_wrong_choice_names_the_right_ones():
    with pytest.raises(ValueError, match=r"^there is no split 'valid'; choose train or test$"):
        choices.check_choice("valid", choices.SplitName, "split")
    choices.check_choice("test", choices.SplitName, "split")
