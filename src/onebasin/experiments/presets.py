"""Settings and methods that several experiments use: equal values share the same fits."""

from dataclasses import replace
from typing import TypedDict

from onebasin.experiments.pairs import Pair, Sizes
from onebasin.experiments.setting import Setting
from onebasin.inference.methods import MAP, VI, ScheduleName


class SigmaCourse(TypedDict):
    """Where σ of VI starts, and how its rate goes."""

    initial_std: float
    std_schedule: ScheduleName


# The course of σ that all records have: from 0.01, at a constant rate.
SIGMA: SigmaCourse = {"initial_std": 0.01, "std_schedule": "constant"}

# toy: the embedded digits; seconds.
TOY = Setting("digits", width=128, depth=2, prior_variance=0.1)
TOGETHER = 3  # posteriors in one program
TOY_VI = VI(epochs=60, batch_size=250, learning_rate=1e-2, **SIGMA)
TOY_MAP = MAP(epochs=60, batch_size=250, learning_rate=1e-2)
TOY_PAIR = Pair(TOY, TOY_VI, 0.9, Sizes(9, 32), TOGETHER)

# cpu: real data on two cores.
MNIST = Setting("mnist", prior_variance=0.01)
MNIST_COLD = replace(MNIST, temperature=0.1)  # less noise remains to raise the loss between fits
FASHION = Setting("fashion-mnist", prior_variance=0.01)
CIFAR10 = Setting("cifar10", prior_variance=0.0025)
# Colder, variational networks learn more of CIFAR in the time available (docs/experiments.md).
CIFAR10_COLD = replace(CIFAR10, temperature=0.1)
CIFAR100_COLD = replace(CIFAR10_COLD, data="cifar100")
CIFAR10_RESNET = Setting("cifar10", "resnet20", width=16, prior_variance=0.01)
CIFAR100_RESNET = Setting("cifar100", "resnet20", width=16, prior_variance=0.01)
CIFAR10_RESNET_COLD = replace(CIFAR10_RESNET, temperature=0.1)
# Our CIFAR-100 has two fifths of the published images: at temperature 0.04 they weigh as much
# against the prior as all of them would at 0.1.
CIFAR100_RESNET_COLD = replace(CIFAR100_RESNET, temperature=0.04)
CPU_VI = VI(epochs=30, learning_rate=3e-3, **SIGMA)
# stds have to shrink further when it is cold
COLD_VI = replace(CPU_VI, epochs=40, std_learning_rate=1e-2)
# At temperature 1 and with the published prior; σ as `VI` chooses it.
WARM_MLP_VI = VI(epochs=50)
WARM_RESNET_VI = VI(epochs=8, batch_size=100)
CPU_MAP = MAP(epochs=30)
# An epoch of ResNet20 takes minutes on CIFAR-10: few epochs, in small batches for more steps.
RESNET_VI = replace(CPU_VI, epochs=8, batch_size=64)
RESNET_MAP = MAP(epochs=3, batch_size=64)
CIFAR100_RESNET_VI = replace(RESNET_VI, epochs=50)
RESNET_REPAIR = 200  # images; each shows a channel of a convolution at 64 to 1,024 positions

# paper: appendix D and table 1 of Rossi et al. The optimiser is not stated; with plain gradient
# descent on the summed loss the learning rates are plausible.
PAPER_VI_MNIST = VI(
    epochs=1000,
    batch_size=500,
    antithetic=False,
    **SIGMA,
    learning_rate=1e-7,
    optimiser="sgd",
    momentum=0.0,
    schedule="constant",
    learning_rate_on="sum",
)
PAPER_VI_CIFAR = replace(PAPER_VI_MNIST, learning_rate=1e-6)
PAPER_MAP = MAP(epochs=250, batch_size=100, learning_rate=0.1, optimiser="sgd")
