"""Attention over packed rows on a GPU: by flash kernels if they run, otherwise with a microbatch's rows in one
rectangle, for torch's other fused kernels.

`attention.attend` works block by block, in many small products, whose launches would limit a GPU. Here one index each
gathers queries, keys and values into rectangles, a mask says what each query sees, and one index gathers the result
back. Rows of very different lengths make several rectangles if that saves more than the launches cost. Sums have a
fixed order, so that a resumed run is the same to the bit.

Shapes: `N` tokens, `H` query heads over `K` key heads, head size `D`; in a rectangle `R` rows of `T` own tokens that
see `S` keys, those of a shared prefix first. Keys and values are repeated for their query heads: backwards, the
memory-efficient kernel uses one processor for each row and head if sums must be in order.
"""

import functools
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any, NamedTuple

import torch
from torch import Tensor
from torch.autograd.function import once_differentiable
from torch.nn.functional import scaled_dot_product_attention

from lite_selfplay.models import packed_flash
from lite_selfplay.models.linear import joined
from lite_selfplay.models.transfers import placed

FEW_SCORES = 2**22
"""Up to this many scores of a head, rows share a rectangle whatever their lengths: computing them is faster than a
launch."""
# The largest relative difference between two kernels that round to a half precision.
_TOLERANCE = 2.0**-5
# What transformers does to a result of attention, by autograd's names.
_MOVES = ("CloneBackward0", "TransposeBackward0")
ALIGNED = 16
"""The number of keys is padded to a multiple of this, as fused kernels require of a mask."""


class TokenSpan(NamedTuple):
    """Neighbouring tokens of a row: start, length, and the earlier tokens that they see as well."""

    start: int
    length: int
    before: range

    @property
    def keys(self) -> int:
        return len(self.before) + self.length


@dataclass(frozen=True)
class Indices:
    """How to gather tokens into the rectangles, which lie one after another, and back.

    `queries` (R * T) and `keys` (R * S) are indices of tokens, `places` (N) those of results. `shapes` are R, T, S of
    each rectangle; `masks` (R, 1, T, S) are added to its scores, or None if no row has a prefix.
    """

    queries: Tensor
    keys: Tensor
    places: Tensor
    shapes: Sequence[tuple[int, int, int]]
    masks: Sequence[Tensor | None]


@dataclass(eq=False)
class PackedLayout:
    """The rows of a packed batch in their order, with indices that are made once for all layers."""

    spans: Sequence[TokenSpan]
    device: torch.device | None = None
    _made: dict[Any, Indices] = field(default_factory=dict)

    def indices(self, like: Tensor) -> Indices:
        if like.dtype not in self._made:
            self._made[like.dtype] = _indices(rectangles(self.spans), like)
        return self._made[like.dtype]

    @functools.cached_property
    def passes(self) -> list[packed_flash.Pass]:
        return packed_flash.passes(self.spans, self.device or torch.device("cpu"))


def rectangles(spans: Sequence[TokenSpan]) -> list[list[TokenSpan]]:
    """Spans by length, cut where sharing a rectangle would more than double the scores."""
    found: list[list[TokenSpan]] = []
    needed = 0
    for span in sorted(spans, key=lambda span: (span.length, span.keys)):
        own = span.length * span.keys
        if found and _scores([*found[-1], span]) <= max(FEW_SCORES, 2 * (needed + own)):
            found[-1].append(span)
            needed += own
        else:
            found.append([span])
            needed = own
    return found


def _scores(spans: Sequence[TokenSpan]) -> int:
    return len(spans) * max(span.length for span in spans) * max(span.keys for span in spans)


def _indices(found: Sequence[Sequence[TokenSpan]], like: Tensor) -> Indices:
    tokens, before_places = sum(span.length for spans in found for span in spans), 0
    shapes: list[tuple[int, int, int]] = []
    masks: list[Tensor | None] = []
    queries, keys, places = [], [], torch.zeros(tokens, dtype=torch.long)
    for spans in found:
        rows, width = len(spans), max(span.length for span in spans)
        columns = -(-max(span.keys for span in spans) // ALIGNED) * ALIGNED
        token = torch.zeros(rows, width, dtype=torch.long)  # padding: any token, unused
        # Padding is spread over all tokens: gradients of many equal indices would be added up one by one.
        key = (torch.arange(rows * columns) % tokens).view(rows, columns)
        for row, span in enumerate(spans):
            own = torch.arange(span.start, span.start + span.length)
            token[row, : span.length] = own
            key[row, : span.keys] = torch.cat([torch.arange(span.before.start, span.before.stop), own])
            places[own] = before_places + row * width + torch.arange(span.length)
        queries.append(token.flatten())
        keys.append(key.flatten())
        shapes.append((rows, width, columns))
        before = [len(span.before) for span in spans]
        masks.append(_mask(before, width, columns, like) if any(before) else None)
        before_places += rows * width
    query, key, place = (placed(x, like.device) for x in (torch.cat(queries), torch.cat(keys), places))
    return Indices(query, key, place, shapes, masks)


def _mask(before: Sequence[int], width: int, columns: int, like: Tensor) -> Tensor:
    """The mask (R, 1, T, S): a query sees its row's prefix, and the row up to itself."""
    last = placed(list(before), like.device)[:, None] + torch.arange(width, device=like.device)
    hidden = torch.arange(columns, device=like.device) > last[..., None]
    return like.new_zeros(hidden.shape).masked_fill_(hidden, float("-inf"))[:, None]


def attend(q: Tensor, k: Tensor, v: Tensor, layout: PackedLayout, scale: float) -> Tensor:
    """Causal attention (N, H, D) of q (N, H, D) over k and v (N, K, D), by the layout's rows."""
    one_size = q.shape[2] == v.shape[2]
    flash = one_size and why_no_flash(q.shape[1], k.shape[1], q.shape[2], v.dtype, v.device) is None
    return (attend_flash if flash else attend_rectangles)(q, k, v, layout, scale)


def why_no_flash(heads: int, keys: int, size: int, dtype: torch.dtype, device: torch.device) -> str | None:
    """Why updates do not use torch's flash attention for these numbers of query and key heads and head size; None if
    they do, which is tried on a few rows, forwards and backwards."""
    return beyond_flash(size, dtype, device) or _tried(
        heads, keys, size, dtype, device, torch.cuda.get_device_name(device)
    )


def beyond_flash(size: int, dtype: torch.dtype, device: torch.device) -> str | None:
    """Why torch's flash attention cannot support such heads on a device, before trying it; None if it may."""
    if device.type != "cuda":
        return "there is no GPU"
    if (has := torch.cuda.get_device_capability(device)) < (8, 0):
        return f"it needs compute capability 8.0, and this GPU has {has[0]}.{has[1]}"
    if dtype not in (torch.float16, torch.bfloat16):
        return f"it needs fp16 or bf16, and weights are multiplied in {str(dtype).removeprefix('torch.')}"
    if size % 8 or size > 256:
        return f"it needs a head size that is a multiple of 8 up to 256, not {size}"
    return None


@functools.cache
def _tried(heads: int, keys: int, size: int, dtype: torch.dtype, device: torch.device, name: str) -> str | None:
    spans = [TokenSpan(0, 9, range(0)), TokenSpan(9, 150, range(0)), TokenSpan(159, 5, range(9))]
    layout = PackedLayout([*spans, TokenSpan(164, 36, range(9))], device)
    drawn = torch.randn(200, 2 * (heads + keys), size, generator=torch.Generator().manual_seed(0)).to(device, dtype)
    found: list[list[Tensor]] = []
    try:
        for way in (attend_rectangles, attend_flash):
            with torch.enable_grad():
                *inputs, grad = (x.detach().requires_grad_() for x in drawn.split([heads, keys, keys, heads], 1))
                out = way(inputs[0], inputs[1], inputs[2], layout, size**-0.5)
                found.append([out.detach(), *torch.autograd.grad(out, inputs, grad.detach())])
    except (AttributeError, RuntimeError, TypeError) as error:  # of another torch or GPU
        return f"torch {torch.__version__} refused it: {error}"
    far = max(float((x.float() - y.float()).norm() / x.float().norm()) for x, y in zip(*found, strict=True))
    return None if far < _TOLERANCE else f"its results differ by {far:.2g} of their size from those of other kernels"


def attend_flash(q: Tensor, k: Tensor, v: Tensor, layout: PackedLayout, scale: float) -> Tensor:
    """`attend` by torch's flash kernels."""
    return packed_flash.Flash.apply(q, k, v, layout.passes, scale)


def attend_rectangles(q: Tensor, k: Tensor, v: Tensor, layout: PackedLayout, scale: float) -> Tensor:
    """`attend` by torch's other fused kernels."""
    groups, found = q.shape[1] // k.shape[1], layout.indices(q)
    queries = _Permuted.apply(q, found.queries, found.places)
    keys, values = (_Repeated.apply(x, found.keys) for x in (k, v))
    parts = zip(
        queries.split([rows * width for rows, width, _ in found.shapes]),
        keys.split([rows * columns for rows, _, columns in found.shapes]),
        values.split([rows * columns for rows, _, columns in found.shapes]),
        found.shapes,
        found.masks,
        strict=True,
    )
    results = []
    for part, key, value, (rows, width, columns), mask in parts:
        query = part.unflatten(0, (rows, width)).transpose(1, 2)
        seen = width if mask is None else columns  # only a mask hides the padding
        key, value = (x.unflatten(0, (rows, columns))[:, :seen].transpose(1, 2) for x in (key, value))
        key, value = (x[:, :, None].expand(-1, -1, groups, -1, -1).flatten(1, 2) for x in (key, value))
        out = scaled_dot_product_attention(query, key, value, attn_mask=mask, is_causal=mask is None, scale=scale)
        results.append(summed_in_order(out).transpose(1, 2).flatten(0, 1))
    return _Taken.apply(joined(results), found.places)


def summed_in_order(out: Tensor) -> Tensor:
    """The same result of torch's fused attention, perhaps transposed and copied since. Backwards its kernel adds up in
    any order unless told; operations around it would refuse."""
    node: Any = out.grad_fn if out.is_cuda else None
    while node is not None and node.name() in _MOVES:
        node = node.next_functions[0][0]
    if node is not None and "ScaledDotProduct" in node.name():
        before = torch.are_deterministic_algorithms_enabled()
        node.register_prehook(lambda grads: torch.use_deterministic_algorithms(True))
        node.register_hook(lambda *_: torch.use_deterministic_algorithms(before))
    return out


class _Permuted(torch.autograd.Function):
    """`x[index]`; row i of x is at `places[i]` in the result, whose other rows are padding without a gradient."""

    @staticmethod
    def forward(ctx: Any, x: Tensor, index: Tensor, places: Tensor) -> Tensor:
        ctx.save_for_backward(places)
        return x.index_select(0, index)

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, grad: Tensor) -> Any:
        return grad.index_select(0, ctx.saved_tensors[0]), None, None


class _Rows(torch.autograd.Function):
    """The forward pass of `x[index]`."""

    @staticmethod
    def forward(ctx: Any, x: Tensor, index: Tensor) -> Tensor:
        ctx.save_for_backward(index)
        ctx.rows = len(x)
        return x.index_select(0, index)


class _Repeated(_Rows):
    """`x[index]`, where rows may repeat; the gradients of a repeated row are summed in float32."""

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, grad: Tensor) -> Any:
        total = torch.zeros(ctx.rows, *grad.shape[1:], device=grad.device)
        with packed_flash.in_order():  # sorts by token first
            total.index_add_(0, ctx.saved_tensors[0], grad.float())
        return total.to(grad.dtype), None


class _Taken(_Rows):
    """`x[index]` without repeated rows; rows that are not selected have gradient 0."""

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, grad: Tensor) -> Any:
        return grad.new_zeros(ctx.rows, *grad.shape[1:]).index_copy_(0, ctx.saved_tensors[0], grad), None
