"""Our networks by name, for flags and experiments."""

from onebasin.choices import NetworkName, check_choice
from onebasin.networks.lenet import LeNet
from onebasin.networks.mlp import MLP
from onebasin.networks.resnet import ResNet20

WIDTHS = {"mlp": 512, "lenet": 16, "resnet20": 16}  # by default


def network_named(
    name: NetworkName, *, width: int | None = None, depth: int = 3, num_classes: int = 10
) -> MLP | LeNet | ResNet20:
    """A network by name; `depth` is the number of hidden layers of the MLP.

    >>> network_named("mlp", width=8, depth=2).widths
    (8, 8)
    """
    check_choice(name, NetworkName, "network")
    width = WIDTHS[name] if width is None else width
    if name == "mlp":
        return MLP(widths=(width,) * depth, num_classes=num_classes)
    return (LeNet if name == "lenet" else ResNet20)(width=width, num_classes=num_classes)
