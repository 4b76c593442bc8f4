"""Networks of many kinds, each with the groups it must have, written by hand."""

from zoo import choices as _choices  # noqa: F401  # registers its entries
from zoo.channels import densely_connected, transformer_encoder
from zoo.entries import ZOO, Entry, linen, normal
from zoo.loops import dead_parameters
from zoo.stacks import (
    batch_norm_running,
    build_lenet,
    build_resnet20,
    equinox_mlp,
    linen_dense_all_sizes_equal,
    plain_function_on_lists,
)

__all__ = [
    "ZOO",
    "Entry",
    "batch_norm_running",
    "build_lenet",
    "build_resnet20",
    "dead_parameters",
    "densely_connected",
    "equinox_mlp",
    "linen",
    "linen_dense_all_sizes_equal",
    "normal",
    "plain_function_on_lists",
    "transformer_encoder",
]
