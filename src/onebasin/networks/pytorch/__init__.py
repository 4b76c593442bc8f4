"""PyTorch modules as networks, by `torch.export`."""

from onebasin.networks.pytorch.conversion import from_torch as from_torch
from onebasin.networks.pytorch.exporting import CannotConvert as CannotConvert
