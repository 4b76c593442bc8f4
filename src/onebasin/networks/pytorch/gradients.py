"""Where PyTorch's gradients are not those of the function that a module computes.

`detach`, `no_grad` and a `torch.autograd.Function` of one's own leave the exported graph without a
trace of what they do to gradients. Where a module uses one, both gradients are compared.
"""

import warnings
from collections.abc import Callable
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

from onebasin.networks.pytorch.exporting import Example
from onebasin.networks.pytorch.storage import storage_of
from onebasin.pytorch_tensors import import_torch, to_array
from onebasin.trees import PyTree

# Gradients that are other ones differ by far more than the rounding of a deep network.
TOLERANCE = 1e-2


def compare_gradients(
    module: Any,
    example: Example,
    take: Callable[[Any], Any],
    outputs: Callable[[PyTree], jax.Array],
    params: dict[str, jax.Array],
) -> None:
    """Warn if a module has gradients of its own.

    Args:
      module: the module.
      example: the inputs of one call.
      take: the output that is asked for, of all that the module returns.
      outputs: the outputs of the network on the same inputs, as a function of its params.
      params: the params of the network.
    """
    torch = import_torch()
    watch = _watching(torch)
    own = dict(module.named_parameters(remove_duplicate=False))
    learned = {name: own[name] for name in params if own[name].requires_grad}
    with torch.enable_grad(), watch:
        out = take(example.call(module))
    if not learned or not out.requires_grad or not (watch.seen or _has_function(torch, out)):
        return
    weights = np.random.default_rng(0).standard_normal(tuple(out.shape))
    total = (out * torch.tensor(weights, dtype=out.dtype)).sum()
    homes = {storage_of(tensor): name for name, tensor in learned.items()}
    theirs = {name: np.zeros(tensor.shape) for name, tensor in learned.items()}
    # Tied weights may be several parameters of one storage; their gradients add up.
    tensors = {id(t): t for t in own.values() if t.requires_grad and storage_of(t) in homes}
    given = torch.autograd.grad(total, list(tensors.values()), allow_unused=True)
    for tensor, gradient in zip(tensors.values(), given, strict=True):
        if gradient is not None:
            theirs[homes[storage_of(tensor)]] += to_array(gradient)
    found = jax.jit(jax.grad(lambda p: jnp.sum(outputs(p) * weights)))(params)
    largest = max(float(np.abs(g).max(initial=0)) for g in theirs.values())
    for name, expected in theirs.items():
        off = float(np.abs(np.asarray(found[name], np.float64) - expected).max(initial=0))
        if off > TOLERANCE * (largest or 1):
            warnings.warn(
                f"{type(module).__name__} computes the same here, but the gradient of '{name}' is "
                "another: detach, no_grad or a torch.autograd.Function changes it in PyTorch; "
                "align and average it here, and train it in PyTorch",
                stacklevel=3,
            )
            return


def _watching(torch: Any) -> Any:
    """A context that notices `detach` and `no_grad`."""

    class Watch(torch.overrides.TorchFunctionMode):
        seen = False

        def __torch_function__(
            self, function: Any, types: Any, args: Any = (), kwargs: Any = None
        ) -> Any:
            del types
            if function in (torch._C._set_grad_enabled, torch.Tensor.detach, torch.detach):
                self.seen = True
            return function(*args, **(kwargs or {}))

    return Watch()


def _has_function(torch: Any, out: Any) -> bool:
    """Whether a function with a backward pass of its own is among what led to an output."""
    waiting, known = [out.grad_fn], set()
    while waiting:
        node = waiting.pop()
        if node is None or node in known:
            continue
        if isinstance(node, torch.autograd.function.BackwardCFunction):
            return True
        known.add(node)
        waiting += [parent for parent, _ in node.next_functions]
    return False
