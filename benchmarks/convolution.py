"""Times of a ResNet20 gradient step for several forms of the convolution, and for PyTorch.

    python benchmarks/convolution.py [--batch 128] [--rounds 5] [--out results/convolution.json]

All forms are measured in turn, in one run on one machine, so that the ratios are meaningful. The
network is ours (filter response normalisation, thresholded units); the network in PyTorch has the
same weights, which is checked by the loss. "step" is one jitted gradient step, "scan" the same step
inside `lax.scan`, as in training. Both use all cores, or `--cores` of them. On a busy machine wall
times are unreliable, since the threads of PyTorch wait by spinning; there, compare processor time
with `--cores 1`. Needs the `bench` extra.
"""

import argparse
import json
import os
import platform
import resource
import time
from pathlib import Path
from statistics import median

import jax
import jax.numpy as jnp
import numpy as np
from jax import lax

from onebasin.networks import ResNet20, convolution

RATE = 0.01


# --- the candidates --------------------------------------------------------------------------


def xla_nhwc(x, kernel, *, stride=1, padding=0):
    return lax.conv_general_dilated(
        x,
        kernel,
        (stride, stride),
        [(padding, padding)] * 2,
        dimension_numbers=("NHWC", "HWIO", "NHWC"),
    )


def xla_nchw(x, kernel, *, stride=1, padding=0):
    y = lax.conv_general_dilated(
        x.transpose(0, 3, 1, 2),
        kernel.transpose(3, 2, 0, 1),
        (stride, stride),
        [(padding, padding)] * 2,
        dimension_numbers=("NCHW", "OIHW", "NCHW"),
    )
    return y.transpose(0, 2, 3, 1)


def shifted(x, side, stride, padding):
    x = jnp.pad(x, ((0, 0), (padding, padding), (padding, padding), (0, 0)))
    height = (x.shape[1] - side) // stride + 1
    width = (x.shape[2] - side) // stride + 1
    return [
        x[:, i : i + (height - 1) * stride + 1 : stride, j : j + (width - 1) * stride + 1 : stride]
        for i in range(side)
        for j in range(side)
    ]


def patches(x, kernel, *, stride=1, padding=0):
    side, _, channels, features = kernel.shape
    columns = jnp.concatenate(shifted(x, side, stride, padding), axis=-1)
    return columns @ kernel.reshape(side * side * channels, features)


def nine_products(x, kernel, *, stride=1, padding=0):
    side = kernel.shape[0]
    parts = shifted(x, side, stride, padding)
    return sum(part @ kernel[i // side, i % side] for i, part in enumerate(parts))


FORMS = {
    "ours": convolution.conv2d,
    "xla nhwc": xla_nhwc,
    "xla nchw": xla_nchw,
    "patches": patches,
    "nine products": nine_products,
}


# --- the gradient step -----------------------------------------------------------------------


def make_params(batch):
    """Random weights and a batch."""
    shapes = jax.eval_shape(ResNet20().init, jax.random.key(0), jnp.zeros((1, 32, 32, 3)))["params"]
    rng = np.random.default_rng(0)

    def draw(leaf):
        if len(leaf.shape) == 1:
            return jnp.asarray(rng.uniform(0, 1, leaf.shape).astype(np.float32))
        scale = np.sqrt(2 / np.prod(leaf.shape[:-1]))
        return jnp.asarray((scale * rng.normal(size=leaf.shape)).astype(np.float32))

    x = rng.uniform(size=(batch, 32, 32, 3)).astype(np.float32)
    y = rng.integers(0, 10, batch).astype(np.int32)
    return jax.tree.map(draw, shapes), jnp.asarray(x), jnp.asarray(y)


def compiled(form, params, x, y, *, steps):
    """A compiled gradient step (steps=0), or `steps` of them in a scan."""
    net = ResNet20()

    def loss(params, x, y):
        log_p = jax.nn.log_softmax(jnp.asarray(net.apply({"params": params}, x)))
        return -jnp.mean(jnp.take_along_axis(log_p, y[:, None], axis=1))

    def step(params, _):
        value, gradient = jax.value_and_grad(loss)(params, x, y)
        return jax.tree.map(lambda p, g: p - RATE * g, params, gradient), value

    def run(params):
        return lax.scan(step, params, None, length=steps) if steps else step(params, None)

    # The network looks up its convolution when it is traced.
    original, convolution.conv2d = convolution.conv2d, form
    try:
        start = time.perf_counter()
        program = jax.jit(run).lower(params).compile()
        compiling = time.perf_counter() - start
    finally:
        convolution.conv2d = original
    _, losses = jax.block_until_ready(program(params))
    memory = program.memory_analysis()
    assert memory is not None
    print(f"compiled {steps or 'one'} step(s) in {compiling:.1f} s", flush=True)
    return {
        "run": lambda: jax.block_until_ready(program(params)),
        "steps": max(steps, 1),
        "loss": float(np.ravel(losses)[0]),
        "compile_s": round(compiling, 2),
        "temp_mib": round(memory.temp_size_in_bytes / 2**20),
    }


def torch_step(params, x, y, *, channels_last, steps):
    """The same network, weights and step in PyTorch."""
    import torch  # pyright: ignore[reportMissingImports]
    from torch import nn  # pyright: ignore[reportMissingImports]
    from torch.nn import functional  # pyright: ignore[reportMissingImports]

    torch.set_num_threads(len(os.sched_getaffinity(0)))
    tensor = lambda a: torch.tensor(np.asarray(a))

    class Norm(nn.Module):
        def __init__(self, p):
            super().__init__()
            self.scale = nn.Parameter(tensor(p["scale"]).reshape(1, -1, 1, 1))
            self.bias = nn.Parameter(tensor(p["bias"]).reshape(1, -1, 1, 1))

        def forward(self, x):
            mean_square = x.square().mean((2, 3), keepdim=True)
            return x * (self.scale * torch.rsqrt(mean_square + 1e-6)) + self.bias

    class Threshold(nn.Module):
        def __init__(self, p):
            super().__init__()
            self.threshold = nn.Parameter(tensor(p["threshold"]).reshape(1, -1, 1, 1))

        def forward(self, x):
            return torch.maximum(x, self.threshold)

    def conv(p, stride=1):
        kernel = tensor(p["kernel"]).permute(3, 2, 0, 1).contiguous()
        out, into, side, _ = kernel.shape
        layer = nn.Conv2d(into, out, side, stride, side // 2, bias=False)
        layer.weight = nn.Parameter(kernel)
        return layer

    class Block(nn.Module):
        def __init__(self, p, stride):
            super().__init__()
            self.inner = nn.Sequential(
                conv(p["conv1"], stride), Norm(p["norm1"]), Threshold(p["threshold1"]),
                conv(p["conv2"]), Norm(p["norm2"]),
            )  # fmt: skip
            self.shortcut = nn.Identity()
            if "projection" in p:
                self.shortcut = nn.Sequential(
                    conv(p["projection"], stride), Norm(p["projection_norm"])
                )
            self.threshold = Threshold(p["threshold2"])

        def forward(self, x):
            return self.threshold(self.inner(x) + self.shortcut(x))

    names = [f"stage{s}_block{b}" for s in (1, 2, 3) for b in (1, 2, 3)]
    body = nn.Sequential(
        conv(params["stem"]), Norm(params["stem_norm"]), Threshold(params["stem_threshold"]),
        *(Block(params[n], 2 if "projection" in params[n] else 1) for n in names),
    )  # fmt: skip
    head = nn.Linear(*params["head"]["kernel"].shape)
    head.weight = nn.Parameter(tensor(params["head"]["kernel"]).T.contiguous())
    head.bias = nn.Parameter(tensor(params["head"]["bias"]))
    images, labels = tensor(x).permute(0, 3, 1, 2).contiguous(), tensor(y).long()
    if channels_last:
        body = body.to(memory_format=torch.channels_last)  # pyright: ignore[reportCallIssue]
        images = images.to(memory_format=torch.channels_last)
    weights = [*body.parameters(), *head.parameters()]

    def step():
        loss = functional.cross_entropy(head(body(images).mean((2, 3))), labels)
        gradient = torch.autograd.grad(loss, weights)
        with torch.no_grad():
            for w, g in zip(weights, gradient, strict=True):
                w.sub_(g, alpha=RATE)
        return loss.item()

    first = step()

    def run():
        for _ in range(steps):
            step()

    return {"run": run, "steps": steps, "loss": first}


# --- measuring -------------------------------------------------------------------------------


def measure(candidates, rounds):
    """Seconds of wall and processor time per step, in turn; pauses let idle threads sleep."""
    walls = {name: [] for name in candidates}
    busy = {name: [] for name in candidates}
    for _ in range(rounds):
        for name, candidate in candidates.items():
            time.sleep(0.3)
            before, start = resource.getrusage(resource.RUSAGE_SELF), time.perf_counter()
            candidate["run"]()
            wall = time.perf_counter() - start
            after = resource.getrusage(resource.RUSAGE_SELF)
            used = after.ru_utime + after.ru_stime - before.ru_utime - before.ru_stime
            walls[name].append(wall / candidate["steps"])
            busy[name].append(used / candidate["steps"])
    return {
        name: {
            "wall_s_min": round(min(walls[name]), 4),
            "wall_s_median": round(median(walls[name]), 4),
            "cpu_s_min": round(min(busy[name]), 4),
            **{k: v for k, v in candidate.items() if k not in ("run", "steps")},
        }
        for name, candidate in candidates.items()
    }


def main():
    parser = argparse.ArgumentParser()
    parser.add_argument("--batch", type=int, default=128)
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--steps", type=int, default=3, help="gradient steps in a scan")
    parser.add_argument("--cores", type=int, default=os.cpu_count())
    parser.add_argument("--all", action="store_true", help="the slow forms too")
    parser.add_argument("--out", default="results/convolution.json")
    args = parser.parse_args()

    # Before JAX starts its threads, one per available core.
    os.sched_setaffinity(0, sorted(os.sched_getaffinity(0))[: args.cores])
    data = make_params(args.batch)
    candidates = {
        "torch": torch_step(*data, channels_last=False, steps=args.steps),
        "torch channels_last": torch_step(*data, channels_last=True, steps=args.steps),
        "ours, scan": compiled(FORMS["ours"], *data, steps=args.steps),
        "ours, step": compiled(FORMS["ours"], *data, steps=0),
        "xla nhwc, step": compiled(FORMS["xla nhwc"], *data, steps=0),
    }
    if args.all:
        candidates["xla nchw, step"] = compiled(FORMS["xla nchw"], *data, steps=0)
        for name in ("patches", "nine products"):
            candidates[f"{name}, scan"] = compiled(FORMS[name], *data, steps=args.steps)
    losses = {name: candidate["loss"] for name, candidate in candidates.items()}
    assert max(losses.values()) - min(losses.values()) < 1e-3, f"not the same network: {losses}"
    measured = measure(candidates, args.rounds)

    # The gradient of XLA in a scan is too slow for a larger batch.
    small = make_params(8)
    in_loop = measure(
        {
            f"{name}, {'scan' if steps else 'step'}": compiled(FORMS[name], *small, steps=steps)
            for name in ("xla nhwc", "ours")
            for steps in (0, 1)
        },
        2,
    )
    for key in ("wall", "cpu"):
        layouts = ("torch", "torch channels_last")
        best = min(measured[name][f"{key}_s_min"] for name in layouts)
        for row in measured.values():
            row[f"{key}_against_best_torch"] = round(row[f"{key}_s_min"] / best, 2)
    loop = {
        name: round(
            in_loop[f"{name}, scan"]["wall_s_min"] / in_loop[f"{name}, step"]["wall_s_min"], 1
        )
        for name in ("xla nhwc", "ours")
    }
    import torch  # pyright: ignore[reportMissingImports]

    record = {
        "what": "ResNet20 gradient step, width 16, 32×32×3, float32",
        "batch": args.batch,
        "cores": args.cores,
        "load_at_end": [round(v, 1) for v in os.getloadavg()],
        "machine": platform.processor() or platform.machine(),
        "versions": {"jax": jax.__version__, "torch": torch.__version__},
        "measured": measured,
        "scan_against_step_batch_8": loop,
        "target": "ours in a scan at most 1.5 times the better PyTorch layout",
        "met": measured["ours, scan"][
            "cpu_against_best_torch" if args.cores == 1 else "wall_against_best_torch"
        ]
        <= 1.5,
    }
    for name, row in measured.items():
        low, mid, used = (1e3 * row[k] for k in ("wall_s_min", "wall_s_median", "cpu_s_min"))
        temp = f"  temp {row['temp_mib']} MiB" if "temp_mib" in row else ""
        ratios = (row["wall_against_best_torch"], row["cpu_against_best_torch"])
        print(f"{name:22s} {low:6.0f} ms (median {mid:.0f}, processor {used:.0f})", end="")
        print("  {:.2f} × torch ({:.2f} in processor time){}".format(*ratios, temp))
    print("scan against step, batch 8:", loop)
    out = Path(args.out)
    out.parent.mkdir(exist_ok=True, parents=True)
    out.write_text(json.dumps(record, indent=1, ensure_ascii=False) + "\n")


if __name__ == "__main__":
    main()
