"""Our own networks by name: what a flag, a config or an experiment asks for."""

from onebasin.choices import NetworkName, check_choice
from onebasin.networks.lenet import LeNet
from onebasin.networks.mlp import MLP
from onebasin.networks.resnet import ResNet20

WIDTHS = {"mlp": 512, "lenet": 16, "resnet20": 16}  # unless another is asked for


def network_named(
    name: NetworkName, *, width: int | None = None, depth: int = 3, num_classes: int = 10
) -> MLP | LeNet | ResNet20:
    """A network by name; `depth` counts the hidden layers of the MLP.

    >>> network_named("mlp", width=8, depth=2).widths
    (8, 8)
    """
    check_choice(name, NetworkName, "network")
    width = WIDTHS[name] if width is None else width
    if name == "mlp":
        return MLP(widths=(width,) * depth, num_classes=num_classes)
    return (LeNet if name == "lenet" else ResNet20)(width=width, num_classes=num_classes)
