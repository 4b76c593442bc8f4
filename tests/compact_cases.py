"""Draws and helpers for the compaction tests."""

import jax
import numpy as np

from alignment_cases import random_like
from onebasin.posterior import LowRank, Samples
from onebasin.symmetry import stack
from onebasin.trees import leaves_by_path, stack_trees


def draws_of(count, shapes, seed=0):
    return Samples(stack_trees([random_like(shapes, seed + i) for i in range(count)]))


def permuted(symmetry, samples, seed=0):
    """Every draw under its own random permutation, and those permutations."""
    keys = jax.random.split(jax.random.key(seed), samples.num_draws)
    planted = stack([symmetry.random(key=key) for key in keys])
    return symmetry.act(planted, samples), planted


def flat(tree, lead=0):
    leaves = [np.asarray(leaf) for leaf in leaves_by_path(tree).values()]
    return np.concatenate([a.reshape(*a.shape[:lead], -1) for a in leaves], axis=-1)


def covariance(posterior):
    std = flat(posterior.std)
    if not isinstance(posterior, LowRank):
        return np.diag(std**2)
    factors = flat(posterior.factors, 1)
    return np.diag(std**2) + factors.T @ factors
