"""A frozen linear layer with its adapter, computed together, and recomputed without its products.

PEFT's own layers copy the input in float32 for each adapter, and the result for the sum, and keep both for the backward
pass. Here a layer keeps its input and the adapter's inner product only.

Gradient checkpointing keeps a layer's input and recomputes the rest. Products take most of that time, while norms,
activations, and rotated or repeated heads take most of the memory. So the results of products and attention are kept,
and only the rest is recomputed, with the same gradients, bit by bit. Shapes: `N` tokens, rank `r`.
"""

from collections.abc import Callable, Sequence
from contextlib import AbstractContextManager
from typing import Any, NamedTuple

import torch
from torch import Tensor
from torch.autograd.function import once_differentiable
from torch.nn import functional


class LowRank(NamedTuple):
    """An adapter over one layer: `scale * up @ down`, with `down` (r, in) and `up` (out, r)."""

    down: Tensor
    up: Tensor
    scale: float


def linear(x: Tensor, weight: Callable[[], Tensor], bias: Tensor | None, adapter: LowRank | None) -> Tensor:
    """`x W^T + bias + scale (x down^T) up^T` for x (..., in), in the type of W.

    `weight` returns W (out, in); it is called again in the backward pass, so that expanded 4-bit weights need not be
    kept. W and `bias` are frozen; x and the adapter may receive gradients.
    """
    if adapter is None:
        return _Frozen.apply(x, weight, bias)
    return _Adapted.apply(x, weight, bias, *adapter)


class _Frozen(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, x: Tensor, weight: Callable[[], Tensor], bias: Tensor | None) -> Tensor:
        ctx.weight, ctx.dtype = weight, x.dtype
        if (again := kept()) is not None:
            return again[0]
        w = weight()
        out = functional.linear(x.to(w.dtype), w, bias)
        keep(out)
        return out

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, grad: Tensor) -> Any:
        return (grad @ ctx.weight()).to(ctx.dtype), None, None


class _Adapted(torch.autograd.Function):
    @staticmethod
    def forward(
        ctx: Any, x: Tensor, weight: Callable[[], Tensor], bias: Tensor | None, down: Tensor, up: Tensor, scale: float
    ) -> Tensor:
        rows = x.reshape(-1, x.shape[-1])
        if (again := kept()) is not None:
            out, inner = again
            rows = rows.to(out.dtype)
        else:
            w = weight()
            rows = rows.to(w.dtype)
            inner = rows @ down.to(w.dtype).T  # (N, r)
            out = functional.linear(rows, w, bias)
            out.addmm_(inner, up.to(w.dtype).T, alpha=scale)
            keep(out, inner)
        ctx.weight, ctx.scale, ctx.shape, ctx.dtype = weight, scale, x.shape, x.dtype
        ctx.save_for_backward(rows, inner, down, up)
        return out.view(*x.shape[:-1], out.shape[-1])

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, grad: Tensor) -> Any:
        rows, inner, down, up = ctx.saved_tensors
        grad = grad.reshape(-1, grad.shape[-1])
        grad_inner = _times(grad @ up.to(grad.dtype), ctx.scale)
        grad_x = None
        if ctx.needs_input_grad[0]:
            grad_x = (grad @ ctx.weight()).addmm_(grad_inner, down.to(grad.dtype)).view(ctx.shape).to(ctx.dtype)
        grad_down = (grad_inner.T @ rows).to(down.dtype) if ctx.needs_input_grad[3] else None
        # (r, N) by (N, out) takes a CPU half to a quarter of the time of (out, N) by (N, r).
        grad_up = _times((inner.T @ grad).T.to(up.dtype), ctx.scale) if ctx.needs_input_grad[4] else None
        return grad_x, None, None, grad_down, grad_up, None


def _times(x: Tensor, scale: float) -> Tensor:
    return x if scale == 1 else x.mul_(scale)


def cast(adapters: Sequence[LowRank], dtype: torch.dtype) -> list[LowRank]:
    """Adapters in another type, with their scale multiplied into `up`: a few kernels for all of them."""
    scales = [factor for one in adapters for factor in (1.0, one.scale)]
    found = iter(_Cast.apply(dtype, scales, *(matrix for one in adapters for matrix in (one.down, one.up))))
    return [LowRank(next(found), next(found), 1.0) for _ in adapters]


class _Cast(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, dtype: torch.dtype, scales: Sequence[float], *weights: Tensor) -> tuple[Tensor, ...]:
        ctx.scales, ctx.dtypes = scales, [weight.dtype for weight in weights]
        found = [torch.empty_like(weight, dtype=dtype) for weight in weights]
        torch._foreach_copy_(found, list(weights))
        torch._foreach_mul_(found, scales)
        ctx.set_materialize_grads(False)
        return tuple(found)

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, *grads: Tensor | None) -> Any:
        given = {i: grad for i, grad in enumerate(grads) if grad is not None}
        found = {i: torch.empty_like(grad, dtype=ctx.dtypes[i]) for i, grad in given.items()}
        if found:
            torch._foreach_copy_([*found.values()], [*given.values()])
            torch._foreach_mul_([*found.values()], [ctx.scales[i] for i in found])
        return None, None, *(found.get(i) for i in range(len(grads)))


# Recomputed, except for the products


class _Layer:
    """The results of one forward pass over a layer, in order, for the pass that recomputes it."""

    def __init__(self) -> None:
        self.again = False
        self.results: list[list[tuple[Tensor, int]]] = []


# The layer being computed, if it keeps results.
_layer: _Layer | None = None


class _Pass(AbstractContextManager[None]):
    """A context for a layer's first pass, or for one that recomputes it. The first to recompute uses up the kept
    results; others compute everything."""

    def __init__(self, layer: _Layer, *, again: bool):
        self._layer, self._again = layer, again
        self._before: _Layer | None = None

    def __enter__(self) -> None:
        global _layer
        self._before, _layer = _layer, self._layer
        self._layer.again = self._again

    def __exit__(self, *error: object) -> None:
        global _layer
        _layer = self._before
        if self._again:
            self._layer.results.clear()


def keeping_products() -> tuple[AbstractContextManager[None], AbstractContextManager[None]]:
    """Contexts for a layer's forward pass and its recomputation: the `context_fn` of
    `torch.utils.checkpoint.checkpoint`."""
    layer = _Layer()
    return _Pass(layer, again=False), _Pass(layer, again=True)


def keep(*results: Tensor) -> None:
    """Keep a product's results if its layer will be recomputed."""
    if _layer is not None and not _layer.again:
        _layer.results.append([(one.detach(), one._version) for one in results])


def kept() -> list[Tensor] | None:
    """A product's results as kept by the first pass, one product per call; None if they must be computed."""
    if _layer is None or not _layer.again or not _layer.results:
        return None
    results = _layer.results.pop(0)
    # A result that was changed in place cannot be used again.
    return [one for one, _ in results] if all(one._version == version for one, version in results) else None
