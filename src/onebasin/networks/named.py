"""Our networks by name, for flags and experiments."""

from onebasin.choices import NetworkName, check_choice
from onebasin.networks.gpt import GPT
from onebasin.networks.lenet import LeNet
from onebasin.networks.mlp import MLP
from onebasin.networks.resnet import ResNet20
from onebasin.networks.vit import ViT

WIDTHS = {"mlp": 512, "lenet": 16, "resnet20": 16, "vit": 192, "gpt": 128}  # by default
DEPTHS = {"mlp": 3, "vit": 6, "gpt": 4}  # by default; the others have one depth


def network_named(
    name: NetworkName,
    *,
    width: int | None = None,
    depth: int | None = None,
    num_classes: int | None = None,
    input_shape: tuple[int, ...] | None = None,
) -> MLP | LeNet | ResNet20 | ViT | GPT:
    """A network by name, with the defaults of its kind where nothing is given.

    `depth` counts hidden layers of the MLP and blocks of a transformer. The `input_shape` of one
    example sets the context of a GPT.

    >>> network_named("mlp", width=8, depth=2).widths
    (8, 8)
    """
    check_choice(name, NetworkName, "network")
    width = WIDTHS[name] if width is None else width
    depth = DEPTHS.get(name, 1) if depth is None else depth
    if name == "gpt":
        context = GPT.context if input_shape is None else input_shape[0]
        characters = GPT.num_classes if num_classes is None else num_classes
        return GPT(context=context, width=width, depth=depth, num_classes=characters)
    classes = 10 if num_classes is None else num_classes
    if name == "mlp":
        return MLP(widths=(width,) * depth, num_classes=classes)
    if name == "vit":
        return ViT(width=width, depth=depth, num_classes=classes)
    return (LeNet if name == "lenet" else ResNet20)(width=width, num_classes=classes)
