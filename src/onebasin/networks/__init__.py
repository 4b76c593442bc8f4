"""Our networks, as Flax Linen modules, and adapters for networks of other libraries."""

from onebasin.networks.adapters import from_equinox as from_equinox
from onebasin.networks.adapters import from_linen as from_linen
from onebasin.networks.adapters import from_nnx as from_nnx
from onebasin.networks.config import KINDS as KINDS
from onebasin.networks.config import from_config as from_config
from onebasin.networks.config import get_input_shape as get_input_shape
from onebasin.networks.config import to_config as to_config
from onebasin.networks.gpt import GPT as GPT
from onebasin.networks.lenet import LeNet as LeNet
from onebasin.networks.mlp import MLP as MLP
from onebasin.networks.named import network_named as network_named
from onebasin.networks.network import Apply as Apply
from onebasin.networks.network import Network as Network
from onebasin.networks.network import NetworkLike as NetworkLike
from onebasin.networks.network import apply_of as apply_of
from onebasin.networks.network import forward as forward
from onebasin.networks.pytorch import from_torch as from_torch
from onebasin.networks.resnet import ResNet20 as ResNet20
from onebasin.networks.running import RunningStatistics as RunningStatistics
from onebasin.networks.running import inference_arguments as inference_arguments
from onebasin.networks.vit import ViT as ViT
