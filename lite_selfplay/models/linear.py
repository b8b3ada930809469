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


def blended(child: LowRank, *parents: LowRank) -> tuple[Tensor, Tensor]:
    """The `down` (r, in) and `up` (out, r) that give `child` the mean of its `parents`, adapters over the same layer.

    That is the matrix of rank r nearest to the mean of `scale * up @ down`. The rows of `down` are orthogonal, and as
    long as the parents' on average, so that learning goes on at a similar pace. Computed on the CPU in float64.
    """
    downs = torch.cat([one.down.detach().double().cpu() for one in parents])
    ups = torch.cat([one.scale / len(parents) * one.up.detach().double().cpu() for one in parents], 1)
    (left, upper), (right, lower) = torch.linalg.qr(ups), torch.linalg.qr(downs.T)
    u, values, vt = torch.linalg.svd(upper @ lower.T, full_matrices=False)
    rank, length = min(len(child.down), len(values)), float(downs.norm(dim=1).mean()) or 1.0
    down, up = child.down.detach().double().cpu(), torch.zeros(child.up.shape, dtype=torch.float64)
    down[:rank] = length * vt[:rank] @ right.T
    up[:, :rank] = left @ (u[:, :rank] * values[:rank]) / (length * child.scale)
    return down, up


def linear(
    x: Tensor,
    weights: Sequence[Callable[[], Tensor]],
    biases: Sequence[Tensor | None],
    adapters: Sequence[LowRank | None],
) -> Sequence[Tensor]:
    """`x W^T + bias + scale (x down^T) up^T` for x (..., in) and each of several layers, in the type of W.

    Each of `weights` returns a layer's W (out, in); it is called again in the backward pass, so that expanded 4-bit
    weights need not be kept. W and `biases` are frozen; x and the adapters may receive gradients. Layers that all have
    an adapter are computed in one product.
    """
    adapted = [adapter for adapter in adapters if adapter is not None]
    if not adapted:
        return [_Frozen.apply(x, *layer) for layer in zip(weights, biases, strict=True)]
    scales = [adapter.scale for adapter in adapted]
    return _Adapted.apply(x, weights, biases, scales, *(matrix for one in adapted for matrix in (one.down, one.up)))


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
        ctx: Any,
        x: Tensor,
        weights: Sequence[Callable[[], Tensor]],
        biases: Sequence[Tensor | None],
        scales: Sequence[float],
        *matrices: Tensor,
    ) -> tuple[Tensor, ...]:
        downs, ups = matrices[::2], matrices[1::2]
        outputs, ranks = [len(up) for up in ups], [len(down) for down in downs]
        rows = x.reshape(-1, x.shape[-1])
        if (again := kept()) is not None:
            out, inner = again
            rows, down = rows.to(out.dtype), joined(downs).to(out.dtype)
        else:
            dense = [weight() for weight in weights]
            rows, down = rows.to(dense[0].dtype), joined(downs).to(dense[0].dtype)
            inner = rows @ down.T  # (N, ranks of all)
            out = functional.linear(rows, joined(dense), joined_biases(biases, dense))
            parts = zip(out.split(outputs, 1), inner.split(ranks, 1), ups, scales, strict=True)
            for part, own, up, scale in parts:
                part.addmm_(own, up.to(rows.dtype).T, alpha=scale)
            keep(out, inner)
        ctx.weights, ctx.scales, ctx.ranks, ctx.shape, ctx.dtype = weights, scales, ranks, x.shape, x.dtype
        ctx.save_for_backward(rows, inner, down, *ups)
        return out.view(*x.shape[:-1], out.shape[-1]).split(outputs, -1)

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, *given: Tensor) -> Any:
        rows, inner, down, *ups = ctx.saved_tensors
        grads = [grad.reshape(-1, grad.shape[-1]) for grad in given]
        inners = [_times(grad @ up.to(grad.dtype), s) for grad, up, s in zip(grads, ups, ctx.scales, strict=True)]
        grad_inner, grad_x = joined(inners, 1), None
        if ctx.needs_input_grad[0]:
            grad_x = grads[0] @ ctx.weights[0]()
            for grad, weight in zip(grads[1:], ctx.weights[1:], strict=True):
                grad_x.addmm_(grad, weight())
            grad_x = grad_x.addmm_(grad_inner, down).view(ctx.shape).to(ctx.dtype)
        to_downs = (grad_inner.T @ rows).split(ctx.ranks)
        # (r, N) by (N, out) takes a CPU half to a quarter of the time of (out, N) by (N, r).
        to_ups = [(own.T @ grad).T for own, grad in zip(inner.split(ctx.ranks, 1), grads, strict=True)]
        found = [
            one
            for to_down, to_up, up, scale in zip(to_downs, to_ups, ups, ctx.scales, strict=True)
            for one in (to_down.to(up.dtype), _times(to_up.to(up.dtype), scale))
        ]
        return grad_x, None, None, None, *found


def joined(parts: Sequence[Tensor], dim: int = 0) -> Tensor:
    return parts[0] if len(parts) == 1 else torch.cat(list(parts), dim)


def joined_biases(biases: Sequence[Tensor | None], weights: Sequence[Tensor]) -> Tensor | None:
    """One bias for layers of these weights (out, in); None if none has one."""
    if all(bias is None for bias in biases):
        return None
    return joined([w.new_zeros(len(w)) if bias is None else bias for bias, w in zip(biases, weights, strict=True)])


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


class _Pass(AbstractContextManager[None]):
    """A context for a layer's first pass, or for one that recomputes it `again` with the same `results`, in their
    order. The first to recompute uses up the kept results; others compute everything."""

    def __init__(self, results: list[list[tuple[Tensor, int]]], *, again: bool):
        self.results, self.again = results, again
        self._before: _Pass | None = None

    def __enter__(self) -> None:
        global _pass
        self._before, _pass = _pass, self

    def __exit__(self, *error: object) -> None:
        global _pass
        _pass = self._before
        if self.again:
            self.results.clear()


# The pass over the layer being computed, if it keeps results.
_pass: _Pass | None = None


def keeping_products() -> tuple[AbstractContextManager[None], AbstractContextManager[None]]:
    """Contexts for a layer's forward pass and its recomputation: the `context_fn` of
    `torch.utils.checkpoint.checkpoint`."""
    results: list[list[tuple[Tensor, int]]] = []
    return _Pass(results, again=False), _Pass(results, again=True)


def keep(*results: Tensor) -> None:
    """Keep a product's results if its layer will be recomputed."""
    if _pass is not None and not _pass.again:
        _pass.results.append([(one.detach(), one._version) for one in results])


def kept() -> list[Tensor] | None:
    """A product's results as kept by the first pass, one product per call; None if they must be computed."""
    if _pass is None or not _pass.again or not _pass.results:
        return None
    results = _pass.results.pop(0)
    # A result that was changed in place cannot be used again.
    return [one for one, _ in results] if all(one._version == version for one, version in results) else None
