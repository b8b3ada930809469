"""The gated product of a block's MLP, `silu(gate) * up`, as one operation.

On a CPU each tensor of that size costs a pass over memory and fresh pages. Step by step, autograd keeps three of them
and makes three in the backward pass; here the two factors are kept, and two made. The results are the same, bit by bit.
"""

import functools
from types import SimpleNamespace
from typing import Any

import torch
from torch import Tensor, nn
from torch.autograd.function import once_differentiable
from torch.nn import functional


def fuse(base: nn.Module) -> int:
    """Compute the gated products of a base in this way; how many there were.

    An MLP is taken for one by its parts and its numbers: where these differ from the model's own, all are left as they
    are.
    """
    found: list[Any] = [module for module in base.modules() if _may_be_fused(module)]
    if not found or not all(_agrees(one) for one in {type(module): module for module in found}.values()):
        return 0
    for module in found:
        module.forward = functools.partial(_forward, module)
    return len(found)


def gated(gate: Tensor, up: Tensor) -> Tensor:
    """`silu(gate) * up` of two tensors of one shape and type."""
    out: Tensor = _Gated.apply(gate, up)
    return out


def _may_be_fused(module: Any) -> bool:
    parts = all(isinstance(getattr(module, name, None), nn.Module) for name in ("gate_proj", "up_proj", "down_proj"))
    return parts and type(getattr(module, "act_fn", None)).__name__ in ("SiLU", "SiLUActivation")


def _forward(module: Any, x: Tensor) -> Tensor:
    out: Tensor = module.down_proj(gated(module.gate_proj(x), module.up_proj(x)))
    return out


@torch.no_grad()
def _agrees(module: Any) -> bool:
    """Whether the class of an MLP computes the same with parts that stand in for its own."""
    x = torch.randn(4, 32, generator=torch.Generator().manual_seed(0))
    parts = {"gate_proj": torch.sin, "up_proj": torch.cos, "down_proj": torch.square, "act_fn": module.act_fn}
    stand_in = SimpleNamespace(**parts)
    try:
        return torch.equal(_forward(stand_in, x), type(module).forward(stand_in, x))
    except (AttributeError, TypeError):  # it has other parts besides, or asks for more
        return False


class _Gated(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, gate: Tensor, up: Tensor) -> Tensor:
        ctx.save_for_backward(gate, up)
        return functional.silu(gate).mul_(up)

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, grad: Tensor) -> tuple[Tensor, Tensor]:
        gate, up = ctx.saved_tensors
        to_up = functional.silu(gate).mul_(grad)
        to_gate = grad * up
        torch.ops.aten.silu_backward.grad_input(to_gate, gate, grad_input=to_gate)
        return to_gate, to_up
