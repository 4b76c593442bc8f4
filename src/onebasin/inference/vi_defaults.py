"""What variational inference chooses where nothing is given: epochs, rates, and the start of σ.

With prior std √v, N ρ/T examples in effect, and t steps:

- `epochs`: 100, or as many as make 5,000 steps, since small data have few steps per epoch.
- `learning_rate` of the means: 4 √v/√t, at most 0.3 √v. Weights are of the order of √v, and with
  Adam a weight travels at most the sum of the rates. Fewer steps need larger ones.
- `initial_std` of a weight: (11/v + N ρ/(100 T))^−½. That is 0.3 √v for few data, at which the
  noise does not yet hide the signal of the means, and less where many data hold every weight.
- `std_learning_rate`, on log σ: 20/t, at most 0.03. A weight without influence moves log σ by the
  rate at every step, so the way to the prior, log(1/0.3) = 1.2, takes a sixteenth of the steps. The
  rate decays with that of the means, so that no noise of the gradient is left in σ. Whoever gives
  `initial_std` has taken the course of σ in hand: then the rate is constant, a quarter of that of
  the means (Adam), or the same (SGD).

The rates are those of Adam; for SGD the rate of the means is 3e-3.
"""

import math
from dataclasses import replace

import jax
import numpy as np

from onebasin.inference.methods import VI
from onebasin.inference.minibatches import Minibatches
from onebasin.problem import Problem
from onebasin.trees import PyTree

EPOCHS, STEPS = 100, 5000
SGD_RATE = 3e-3
CURVATURE = 0.01  # of the loss per example, supposed of every weight
TIGHTER = 11  # precision of the start relative to the prior's


def settled(problem: Problem, method: VI) -> VI:
    """The method with its epochs and learning rates, as far as they were left open."""
    per_epoch = Minibatches.of(problem, method.batch_size).per_epoch
    epochs = method.epochs or max(EPOCHS, -(-STEPS // per_epoch))
    steps = epochs * per_epoch
    method = replace(method, epochs=epochs)
    adam = method.optimiser == "adam"
    if method.learning_rate is None:
        prior = typical_prior_std(problem)
        unit = problem.num_examples if method.learning_rate_on == "sum" else 1
        rate = prior * min(0.3, 4 / math.sqrt(steps)) if adam else SGD_RATE
        method = replace(method, learning_rate=rate / unit)
    if method.std_learning_rate is None and method.initial_std is None and adam:
        unit = problem.num_examples if method.learning_rate_on == "sum" else 1
        course = method.std_schedule or "cosine"
        rate = min(0.03, 20 / steps) / unit
        method = replace(method, std_learning_rate=rate, std_schedule=course)
    return replace(method, std_schedule=method.std_schedule or "constant")


def initial_stds(problem: Problem, method: VI) -> PyTree:
    """The standard deviation with which every array starts, one number per leaf."""
    if method.initial_std is not None:
        return jax.tree.map(lambda v: method.initial_std, problem.prior_variances)  # noqa: ARG005
    known = CURVATURE * problem.num_examples * problem.likelihood_scale
    return jax.tree.map(lambda v: (TIGHTER / v + known) ** -0.5, problem.prior_variances)


def typical_prior_std(problem: Problem) -> float:
    """The prior std of a weight, averaged geometrically over all of them."""
    sizes = [np.prod(leaf.shape) for leaf in jax.tree.leaves(problem.shapes)]
    logs = [0.5 * math.log(v) for v in jax.tree.leaves(problem.prior_variances)]
    return math.exp(float(np.average(logs, weights=sizes)))
