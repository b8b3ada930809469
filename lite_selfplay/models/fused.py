"""Fused operations of a base: norms, the gated product of an MLP, and rotary positions.

A module is recognised by its name and its numbers; if these differ, it is left alone. Shapes: (..., H), `H` hidden
size; in rotary positions `R` rows, `H` heads, `D` head size.
"""

import functools
import sys
from collections.abc import Callable, Sequence
from types import SimpleNamespace
from typing import Any

import torch
from torch import Tensor, nn
from torch.autograd.function import once_differentiable
from torch.nn import functional

# The largest relative difference of a fused operation on a GPU from the model's own: two roundings in bfloat16.
_TOLERANCE = 2.0**-6


def fuse_norms(base: nn.Module) -> int:
    """Fuse the RMS norms of a frozen base; returns how many.

    On a GPU one kernel replaces eight; on a CPU the backward pass needs only the input. If a norm's numbers differ from
    the model's own, on a GPU by more than rounding (as when 1 is added to the weight), all are left alone.
    """
    found = [module for module in base.modules() if _is_norm(module)]
    return _fuse(found, _norm_agrees, lambda module: functools.partial(_norm_forward, module, module.forward))


def _fuse(found: Sequence[Any], agrees: Callable[[Any], bool], forward: Callable[[Any], Callable[..., Tensor]]) -> int:
    """Give modules another forward pass if one of each class agrees with it; returns how many."""
    if not all(agrees(one) for one in {type(module): module for module in found}.values()):
        return 0
    for module in found:
        module.forward = forward(module)
    return len(found)


def _is_norm(module: Any) -> bool:
    own = type(module).__name__.endswith("RMSNorm") and isinstance(getattr(module, "variance_epsilon", None), float)
    weight = getattr(module, "weight", None)
    return own and isinstance(weight, Tensor) and weight.dim() == 1


def _norm_forward(module: Any, own: Callable[[Tensor], Tensor], x: Tensor) -> Tensor:
    if module.weight.is_cuda:
        return _on_gpu(module, x)
    return _Norm.apply(x, module.weight, module.variance_epsilon) if torch.is_grad_enabled() else own(x)


def _on_gpu(module: Any, x: Tensor) -> Tensor:
    with torch.autocast("cuda", enabled=False):  # autocast would use float32
        return functional.rms_norm(x, module.weight.shape, module.weight.to(x.dtype), module.variance_epsilon)


@torch.no_grad()
def _norm_agrees(module: Any) -> bool:
    if module.weight.is_meta:  # only sizes matter
        return True
    x = torch.randn(4, len(module.weight), generator=torch.Generator().manual_seed(0)).to(module.weight)
    right = module(x)
    if not module.weight.is_cuda:
        return torch.equal(_Norm.apply(x, module.weight, module.variance_epsilon), right)
    return _near(_on_gpu(module, x), right)


def _near(mine: Tensor, right: Tensor) -> bool:
    """Whether a GPU's result differs from the right one only by rounding."""
    return bool((mine.float() - right.float()).norm() < _TOLERANCE * right.float().norm())


class _Norm(torch.autograd.Function):
    """weight * (x / sqrt(mean(x^2) + epsilon)) for a frozen weight (H,), in float32 up to the weight."""

    @staticmethod
    def forward(ctx: Any, x: Tensor, weight: Tensor, epsilon: float) -> Tensor:
        exact = x.float()
        scale = torch.rsqrt(exact.square().mean(-1, keepdim=True) + epsilon)  # (..., 1)
        ctx.save_for_backward(x, scale, weight)
        normed = (exact * scale).to(x.dtype)
        return normed.mul_(weight) if weight.dtype == x.dtype else weight * normed

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, grad: Tensor) -> Any:
        x, scale, weight = ctx.saved_tensors
        exact, inner = x.float(), (grad * weight).to(x.dtype).float()
        along = (inner * exact).mean(-1, keepdim=True).mul_(scale.square())
        return inner.addcmul_(exact, along, value=-1).mul_(scale).to(x.dtype), None, None


# Gated products


def fuse_gates(base: nn.Module) -> int:
    """Fuse the gated products of a base's MLPs, `silu(gate) * up`, with the same bits; returns how many.

    On a CPU each tensor of that size costs a pass over memory and fresh pages: autograd keeps three and makes three in
    the backward pass; here two are kept and two made. If an MLP's numbers differ from the model's own, all are left
    alone.
    """
    found = [module for module in base.modules() if _is_gated(module)]
    return _fuse(found, _gate_agrees, lambda module: functools.partial(_gated_forward, module))


def _is_gated(module: Any) -> bool:
    parts = all(isinstance(getattr(module, name, None), nn.Module) for name in ("gate_proj", "up_proj", "down_proj"))
    return parts and type(getattr(module, "act_fn", None)).__name__ in ("SiLU", "SiLUActivation")


def _gated_forward(module: Any, x: Tensor) -> Tensor:
    return module.down_proj(_Gated.apply(module.gate_proj(x), module.up_proj(x)))


@torch.no_grad()
def _gate_agrees(module: Any) -> bool:
    """Whether an MLP's class computes the same with stand-ins for its parts."""
    x = torch.randn(4, 32, generator=torch.Generator().manual_seed(0))
    stand_in = SimpleNamespace(gate_proj=torch.sin, up_proj=torch.cos, down_proj=torch.square, act_fn=module.act_fn)
    try:
        return torch.equal(_gated_forward(stand_in, x), type(module).forward(stand_in, x))
    except (AttributeError, TypeError):  # it has other parts, or needs more
        return False


class _Gated(torch.autograd.Function):
    """`silu(gate) * up` of two tensors of one shape and type."""

    @staticmethod
    def forward(ctx: Any, gate: Tensor, up: Tensor) -> Tensor:
        ctx.save_for_backward(gate, up)
        # What an update compares must round alike. Sampling is recorded as CUDA graphs, which compile nothing.
        compiled = gate.is_cuda and not torch.is_inference_mode_enabled()
        ctx.kernels = _kernels(gate.device, gate.dtype) if compiled else _PLAIN
        return ctx.kernels[0](gate, up)

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, grad: Tensor) -> tuple[Tensor, ...]:
        return tuple(ctx.kernels[1](*ctx.saved_tensors, grad))


def _product(gate: Tensor, up: Tensor) -> Tensor:
    return functional.silu(gate).mul_(up)


def _gradients(gate: Tensor, up: Tensor, grad: Tensor) -> tuple[Tensor, Tensor]:
    to_up = functional.silu(gate).mul_(grad)
    to_gate = grad * up
    torch.ops.aten.silu_backward.grad_input(to_gate, gate, grad_input=to_gate)
    return to_gate, to_up


_PLAIN = (_product, _gradients)
# The same for one number each, computed in float32.
_PRODUCT = "template <typename T> T gated(T gate, T up) { return gate / (1 + exp(-gate)) * up; }"
_GRADIENTS = """template <typename T> void gated_backward(T gate, T up, T grad, T& to_gate, T& to_up) {
    T share = 1 / (1 + exp(-gate));
    to_gate = grad * up * share * (1 + gate * (1 - share));
    to_up = grad * gate * share;
}"""


@functools.cache
def _kernels(device: torch.device, dtype: torch.dtype) -> tuple[Callable[..., Any], Callable[..., Any]]:
    """The gated product and its gradients in one GPU kernel each instead of two and four; `_PLAIN` if torch cannot
    compile them or their results differ."""
    drawn = torch.randn(3, 4, 64, generator=torch.Generator().manual_seed(0)).to(device, dtype)
    try:
        jit: Any = torch.cuda.jiterator
        found = jit._create_jit_fn(_PRODUCT), jit._create_multi_output_jit_fn(_GRADIENTS, num_outputs=2)
        mine = [found[0](*drawn[:2]), *found[1](*drawn)]
    except RuntimeError:  # of this GPU's compiler
        return _PLAIN
    return found if all(map(_near, mine, [_product(*drawn[:2]), *_gradients(*drawn)])) else _PLAIN


def gated_kernel(device: torch.device, dtype: torch.dtype) -> str:
    """The kernels of a GPU's gated products in an update, as a clause."""
    return (
        "SwiGLU in several kernels, since torch compiles none here or a wrong one"
        if _kernels(device, dtype) is _PLAIN
        else "SwiGLU in one compiled kernel"
    )


# Rotary positions

ROTARY = "apply_rotary_pos_emb"
"""The function's name in the modules of transformers' models."""


def fuse_rotary(base: nn.Module, undo: Callable[..., object]) -> None:
    """On a GPU, apply rotary positions to a token's queries and keys by a matrix product each instead of five kernels;
    `undo` gets the call that restores the model's own function."""
    for name in {type(part).__module__ for part in base.modules()}:
        module = sys.modules[name]
        own = getattr(module, ROTARY, None)
        if own is not None and not isinstance(own, functools.partial) and _rotary_agrees(own):
            setattr(module, ROTARY, functools.partial(_turned, own))
            undo(setattr, module, ROTARY, own)


def _turned(own: Any, q: Tensor, k: Tensor, cos: Any, sin: Tensor, *given: Any, **more: Any) -> Any:
    """Queries and keys (R, H, 1, D) at the positions of cos and sin (R, 1, D); other calls use the model's own
    function."""
    alone = q.is_cuda and q.shape[2] == 1 and q.dtype == k.dtype == cos.dtype and cos.shape[-1] == q.shape[-1]
    if not alone or torch.is_grad_enabled() or given or more:
        return own(q, k, cos, sin, *given, **more)
    if not hasattr(cos, "rotation"):  # all layers get the same tensor
        cos.rotation = _rotation(cos[:, 0], sin[:, 0])
    return _turn(q, cos.rotation), _turn(k, cos.rotation)


def _rotation(cos: Tensor, sin: Tensor) -> Tensor:
    """The matrices (R, D, D) that rotate heads from the right, for cos and sin (R, D)."""
    size, half = cos.shape[-1], cos.shape[-1] // 2
    rotation = cos.new_zeros(len(cos), size, size)
    for offset, numbers in ((0, cos), (half, sin[:, half:]), (-half, -sin[:, :half])):
        rotation.diagonal(offset, 1, 2).copy_(numbers)
    return rotation


def _turn(x: Tensor, rotation: Tensor) -> Tensor:
    return torch.bmm(x[:, :, 0], rotation)[:, :, None]


def _rotary_agrees(own: Any) -> bool:
    drawn = torch.randn(4, 2, 3, 1, 8, generator=torch.Generator().manual_seed(0))
    q, k, cos, sin = drawn[0], drawn[1], drawn[2, :, 0], drawn[3, :, 0]
    try:
        right = own(q, k, cos, sin)
        mine = [_turn(x, _rotation(cos[:, 0], sin[:, 0])) for x in (q, k)]
        return all(torch.allclose(*pair, atol=1e-6) for pair in zip(mine, right, strict=True))
    except (TypeError, ValueError, RuntimeError):  # another function of that name
        return False
