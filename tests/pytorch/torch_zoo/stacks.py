"""Dense, convolutional and residual stacks."""

import torch
from torch import nn
from torch.nn import functional as F
from torch.nn.utils import parametrizations

from torch_zoo.entries import entry, image, numbers, tokens


@entry((7, "0 >2"), (6, "2 >4"))
def mlp():
    return nn.Sequential(
        nn.Linear(5, 7), nn.ReLU(), nn.Linear(7, 6), nn.GELU(), nn.Linear(6, 3)
    ), numbers(4, 5)


@entry((7, "0 1 >3"), (6, "3 4 >6"))
def mlp_with_norms():
    return nn.Sequential(
        nn.Linear(5, 7), nn.BatchNorm1d(7), nn.SELU(), nn.Linear(7, 6), nn.LayerNorm(6), nn.Tanh(),
        nn.Linear(6, 3),
    ), numbers(4, 5)  # fmt: skip


@entry((4, "c1 >c2"), (6, "c2 >f1"), (9, "f1 >f2"), (8, "f2 >f3"))
def lenet():
    class LeNet(nn.Module):
        def __init__(self):
            super().__init__()
            self.c1, self.c2 = nn.Conv2d(1, 4, 5), nn.Conv2d(4, 6, 3)
            self.f1, self.f2, self.f3 = nn.Linear(6 * 4, 9), nn.Linear(9, 8), nn.Linear(8, 3)
            self.drop = nn.Dropout(0.5)

        def forward(self, x):
            x = F.max_pool2d(torch.tanh(self.c1(x)), 2)
            x = F.avg_pool2d(F.silu(self.c2(x)), 2)
            x = self.drop(torch.flatten(x, 1))
            return self.f3(F.mish(self.f2(F.relu6(self.f1(x)))))

    return LeNet(), image(1, 16)


class Block(nn.Module):
    """The basic block of ResNet18, with the names of torchvision."""

    def __init__(self, inputs, outputs, stride=1):
        super().__init__()
        self.conv1 = nn.Conv2d(inputs, outputs, 3, stride, 1, bias=False)
        self.bn1 = nn.BatchNorm2d(outputs)
        self.relu = nn.ReLU(inplace=True)
        self.conv2 = nn.Conv2d(outputs, outputs, 3, 1, 1, bias=False)
        self.bn2 = nn.BatchNorm2d(outputs)
        self.downsample = None
        if stride != 1 or inputs != outputs:
            convolution = nn.Conv2d(inputs, outputs, 1, stride, bias=False)
            self.downsample = nn.Sequential(convolution, nn.BatchNorm2d(outputs))

    def forward(self, x):
        out = self.relu(self.bn1(self.conv1(x)))
        out = self.bn2(self.conv2(out))
        out += x if self.downsample is None else self.downsample(x)
        return self.relu(out)


class Bottleneck(nn.Module):
    """The block of ResNet50."""

    def __init__(self, inputs, width, stride=1):
        super().__init__()
        outputs = 4 * width
        self.conv1, self.bn1 = nn.Conv2d(inputs, width, 1, bias=False), nn.BatchNorm2d(width)
        self.conv2 = nn.Conv2d(width, width, 3, stride, 1, bias=False)
        self.bn2 = nn.BatchNorm2d(width)
        self.conv3, self.bn3 = nn.Conv2d(width, outputs, 1, bias=False), nn.BatchNorm2d(outputs)
        self.relu = nn.ReLU(inplace=True)
        self.downsample = None
        if stride != 1 or inputs != outputs:
            convolution = nn.Conv2d(inputs, outputs, 1, stride, bias=False)
            self.downsample = nn.Sequential(convolution, nn.BatchNorm2d(outputs))

    def forward(self, x):
        out = self.relu(self.bn1(self.conv1(x)))
        out = self.relu(self.bn2(self.conv2(out)))
        out = self.bn3(self.conv3(out))
        out += x if self.downsample is None else self.downsample(x)
        return self.relu(out)


class ResNet(nn.Module):
    def __init__(self, *blocks, width, outputs):
        super().__init__()
        self.conv1 = nn.Conv2d(3, width, 7, 2, 3, bias=False)
        self.bn1, self.relu = nn.BatchNorm2d(width), nn.ReLU(inplace=True)
        self.maxpool = nn.MaxPool2d(3, 2, 1)
        self.layers = nn.Sequential(*blocks)
        self.avgpool, self.fc = nn.AdaptiveAvgPool2d((1, 1)), nn.Linear(outputs, 3)

    def forward(self, x):
        x = self.maxpool(self.relu(self.bn1(self.conv1(x))))
        return self.fc(torch.flatten(self.avgpool(self.layers(x)), 1))


@entry(
    (4, "conv1 bn1 layers.0.conv2 layers.0.bn2 >layers.0.conv1 >layers.1.conv1 "
        ">layers.1.downsample.0"),
    (4, "layers.0.conv1 layers.0.bn1 >layers.0.conv2"),
    (6, "layers.1.conv1 layers.1.bn1 >layers.1.conv2"),
    (6, "layers.1.conv2 layers.1.bn2 layers.1.downsample.0 layers.1.downsample.1 >fc"),
)  # fmt: skip
def resnet_of_basic_blocks():
    return ResNet(Block(4, 4), Block(4, 6, 2), width=4, outputs=6), image(3, 16)


@entry(
    (4, "conv1 bn1 >layers.0.conv1 >layers.0.downsample.0"),
    (3, "layers.0.conv1 layers.0.bn1 >layers.0.conv2"),
    (3, "layers.0.conv2 layers.0.bn2 >layers.0.conv3"),
    (12, "layers.0.conv3 layers.0.bn3 layers.0.downsample.0 layers.0.downsample.1 "
         "layers.1.conv3 layers.1.bn3 >layers.1.conv1 >fc"),
    (3, "layers.1.conv1 layers.1.bn1 >layers.1.conv2"),
    (3, "layers.1.conv2 layers.1.bn2 >layers.1.conv3"),
)  # fmt: skip
def resnet_of_bottlenecks():
    return ResNet(Bottleneck(4, 3), Bottleneck(12, 3), width=4, outputs=12), image(3, 16)


@entry(
    (2, "0 1 >3"), (3, "0 1 >3"),  # the groups of the norm, and the channels inside a group
    (4, "3 >6"),
)  # fmt: skip
def group_norm():
    return nn.Sequential(
        nn.Conv2d(3, 6, 3, padding=1), nn.GroupNorm(2, 6), nn.ReLU(), nn.Conv2d(6, 4, 3),
        nn.AdaptiveAvgPool2d(1), nn.Flatten(), nn.Linear(4, 3),
    ), image(3, 6)  # fmt: skip


@entry(
    (4, "stem >expand project n3 >head"),
    (8, "expand n1 depth n2 >s1 s2 >project"),
    (3, "s1 >s2"),
)
def inverted_residual_with_squeeze_and_excitation():
    class Net(nn.Module):
        def __init__(self):
            super().__init__()
            self.stem = nn.Conv2d(3, 4, 3, 2, 1)
            self.expand, self.n1 = nn.Conv2d(4, 8, 1, bias=False), nn.BatchNorm2d(8)
            self.depth = nn.Conv2d(8, 8, 3, 1, 1, groups=8, bias=False)
            self.n2, self.s1, self.s2 = nn.BatchNorm2d(8), nn.Conv2d(8, 3, 1), nn.Conv2d(3, 8, 1)
            self.project, self.n3 = nn.Conv2d(8, 4, 1, bias=False), nn.BatchNorm2d(4)
            self.act, self.head = nn.Hardswish(), nn.Linear(4, 3)

        def forward(self, x):
            x = self.act(self.stem(x))
            h = self.act(self.n2(self.depth(self.act(self.n1(self.expand(x))))))
            s = F.adaptive_avg_pool2d(h, 1)
            h = h * F.hardsigmoid(self.s2(F.relu(self.s1(s))))
            return self.head((x + self.n3(self.project(h))).mean((2, 3)))

    return Net(), image(3, 8)


@entry(
    (4, "d1 >d2 >f"),
    (5, "d2 >mid"),
    (6, "mid up.weight[0]"),
    (3, "up.weight[1] up.bias[0] >f"),
    (7, "f norm >out"),
)
def unet():
    class UNet(nn.Module):
        def __init__(self):
            super().__init__()
            self.d1 = nn.Conv2d(1, 4, 3, padding=1)
            self.d2 = nn.Conv2d(4, 5, 3, stride=2, padding=1)
            self.mid, self.up = nn.Conv2d(5, 6, 3, padding=1), nn.ConvTranspose2d(6, 3, 2, 2)
            self.f, self.norm = nn.Conv2d(7, 7, 3, padding=1), nn.InstanceNorm2d(7, affine=True)
            self.out, self.upsample = (
                nn.Conv2d(7, 2, 1),
                nn.Upsample(scale_factor=2, mode="bilinear"),
            )

        def forward(self, x):
            a = F.leaky_relu(self.d1(x), 0.1)
            b = F.elu(self.mid(F.softplus(self.d2(a))))
            y = F.leaky_relu(self.norm(self.f(torch.cat([a, self.up(b)], 1))), 0.2)
            return self.upsample(self.out(y))

    return UNet(), image(1, 8)


@entry(
    (7, "a.bias[0] a.parametrizations.weight.original0[0] a.parametrizations.weight.original1[0] "
        "b.parametrizations.weight.original[1] state:b.parametrizations.weight.0._v[0]"),
    (6, "b.bias[0] b.parametrizations.weight.original[0] state:b.parametrizations.weight.0._u[0] "
        ">c"),
)  # fmt: skip
def weight_and_spectral_normalisation():
    class Net(nn.Module):
        def __init__(self):
            super().__init__()
            self.a = parametrizations.weight_norm(nn.Linear(5, 7))
            self.b = parametrizations.spectral_norm(nn.Linear(7, 6))
            self.c = nn.Linear(6, 3)

        def forward(self, x):
            return self.c(torch.tanh(self.b(torch.relu(self.a(x)))))

    return Net(), numbers(4, 5)


@entry((9, "hidden >out"))
def fixed_positions():
    """Positions in a persistent buffer keep the stream in order."""

    class Net(nn.Module):
        def __init__(self):
            super().__init__()
            self.embed, self.hidden = nn.Linear(5, 8), nn.Linear(8, 9)
            self.out = nn.Linear(9, 3)
            t = torch.arange(6)[:, None] / 10 ** (torch.arange(0, 8, 2) / 8)
            self.register_buffer("positions", torch.cat([t.sin(), t.cos()], 1))

        def forward(self, x):
            h = self.embed(x) + self.positions
            return self.out(F.gelu(self.hidden(h), approximate="tanh")).mean(1)

    return Net(), numbers(3, 6, 5)


@entry((3, "w1[0] w2[0] gate"), (6, "w1[2] w2[1]"))
def dense_mixture_of_experts():
    class Net(nn.Module):
        def __init__(self):
            super().__init__()
            self.w1 = nn.Parameter(torch.randn(3, 5, 6) * 0.3)
            self.w2 = nn.Parameter(torch.randn(3, 6, 4) * 0.3)
            self.gate = nn.Linear(5, 3)

        def forward(self, x):
            h = torch.einsum("bi,eih->beh", x, self.w1).relu()
            return torch.einsum("beh,eho,be->bo", h, self.w2, self.gate(x).softmax(-1))

    return Net(), numbers(4, 5)


@entry(
    (6, "embed.weight[1] >convs.0 >convs.1"),
    (4, "convs.0 norm >out"),
    (5, "convs.1 norm >out"),
)
def text_convolution():
    class Net(nn.Module):
        def __init__(self):
            super().__init__()
            self.embed = nn.Embedding(20, 6, padding_idx=0)
            self.convs = nn.ModuleList([nn.Conv1d(6, 4, 2), nn.Conv1d(6, 5, 3)])
            self.norm, self.out = nn.BatchNorm1d(9), nn.Linear(9, 3)

        def forward(self, x):
            h = self.embed(x).transpose(1, 2)
            h = torch.cat([F.relu(conv(h)).max(-1).values for conv in self.convs], 1)
            return F.log_softmax(self.out(self.norm(h)), -1)

    return Net(), tokens(20, 3, 6)


@entry(
    (5, "stem norms.0 >convs.0 norms.1 >convs.1 >out"),
    (3, "convs.0 norms.1 >convs.1 >out"),
    (4, "convs.1 >out"),
)
def densely_connected():
    class Net(nn.Module):
        def __init__(self):
            super().__init__()
            self.stem, self.out = nn.Conv2d(3, 5, 3, padding=1), nn.Linear(12, 2)
            self.norms = nn.ModuleList([nn.BatchNorm2d(5), nn.BatchNorm2d(8)])
            self.convs = nn.ModuleList(
                [nn.Conv2d(5, 3, 3, padding=1), nn.Conv2d(8, 4, 3, padding=1)]
            )

        def forward(self, x):
            features = [self.stem(x)]
            for norm, conv in zip(self.norms, self.convs, strict=True):
                features.append(conv(F.relu(norm(torch.cat(features, 1)))))
            return self.out(torch.cat(features, 1).mean((2, 3)))

    return Net(), image(3, 6)


@entry((4, "0 >2"), (5, "2 >4"), (3, "4 >7"))
def dilated_convolutions_in_one_dimension():
    return nn.Sequential(
        nn.Conv1d(2, 4, 3, padding=1), nn.ReLU(), nn.Conv1d(4, 5, 3, dilation=2), nn.Sigmoid(),
        nn.Conv1d(5, 3, 2, stride=2), nn.AdaptiveAvgPool1d(1), nn.Flatten(), nn.Linear(3, 2),
    ), numbers(3, 2, 12)  # fmt: skip


@entry((3, "0 1 >3"), (4, "3 >6"))
def convolutions_in_three_dimensions():
    return nn.Sequential(
        nn.Conv3d(1, 3, 2), nn.BatchNorm3d(3), nn.ReLU(), nn.Conv3d(3, 4, 2), nn.AvgPool3d(2),
        nn.Flatten(), nn.Linear(4, 2),
    ), numbers(2, 1, 4, 4, 4)  # fmt: skip


@entry((6, "enc >mid"), (4, "mid.weight[0] mid.bias[0] up1.weight[0]"),
       (5, "up1.weight[1] up1.bias[0] up2.weight[0]"))  # fmt: skip
def convolutional_autoencoder():
    class Net(nn.Module):
        def __init__(self):
            super().__init__()
            self.enc, self.mid = nn.Conv2d(1, 6, 3, 2, 1), nn.Conv2d(6, 4, 3, 2, 1)
            self.up1 = nn.ConvTranspose2d(4, 5, 3, 2, 1, output_padding=1)
            self.up2 = nn.ConvTranspose2d(5, 1, 3, 2, 1, output_padding=1)

        def forward(self, x):
            return self.up2(torch.relu(self.up1(torch.relu(self.mid(torch.relu(self.enc(x)))))))

    return Net(), image(1, 8)


@entry((6, "inp a b n1 n2 >gate >up down >out"), (7, "gate up >down"))
def gated_residual_block():
    """A gated linear unit behind RMS and layer normalisation."""

    class Net(nn.Module):
        def __init__(self):
            super().__init__()
            self.inp, self.out = nn.Linear(4, 6), nn.Linear(6, 2)
            self.n1, self.n2 = nn.RMSNorm(6), nn.LayerNorm(6)
            self.gate, self.up, self.down = nn.Linear(6, 7), nn.Linear(6, 7), nn.Linear(7, 6)
            self.a, self.b = nn.PReLU(6), nn.BatchNorm1d(6)

        def forward(self, x):
            x = self.b(self.a(self.inp(x)))
            h = self.n2(self.n1(x))
            return self.out(x + self.down(F.silu(self.gate(h)) * self.up(h)))

    return Net(), numbers(3, 4)


@entry(
    (6, "embed.weight[1] channel1.weight[1] channel2.weight[0] channel2.bias[0] norm >out"),
    (5, "token1 >token2"),
    (7, "channel1 >channel2"),
)
def mlp_mixer():
    class Net(nn.Module):
        def __init__(self):
            super().__init__()
            self.embed, self.norm, self.out = nn.Embedding(9, 6), nn.LayerNorm(6), nn.Linear(6, 2)
            self.token1, self.token2 = nn.Linear(4, 5), nn.Linear(5, 4)
            self.channel1, self.channel2 = nn.Linear(6, 7), nn.Linear(7, 6)

        def forward(self, x):
            x = self.embed(x)
            h = self.token2(F.gelu(self.token1(self.norm(x).transpose(1, 2)))).transpose(1, 2)
            x = x + h
            return self.out((x + self.channel2(F.gelu(self.channel1(x)))).mean(1))

    return Net(), tokens(9, 3, 4)
