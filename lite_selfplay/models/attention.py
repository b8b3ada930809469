"""The attention of a base here: transformers' `sdpa`, except for one new token per row, and for packed rows.

Packed rows lie one behind the other without padding, some after a shared prefix. torch's own attention needs a
rectangle, in which every row has a copy of the prefix, and its backward pass on a CPU takes several times as long as
the products in it. Here a block of rows is a few batched products, with short-lived scores in float32. Shapes: `N`
tokens, `H` query heads over `K` key heads, `G` = H / K, head size `D`; in a block `R` rows of `T` tokens after a prefix
of `P`, `S` = P + T.
"""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from functools import cached_property
from itertools import accumulate
from typing import Any

import torch
from torch import Tensor, nn
from torch.autograd.function import once_differentiable
from transformers import AttentionInterface, AttentionMaskInterface
from transformers.integrations.sdpa_attention import sdpa_attention_forward
from transformers.masking_utils import sdpa_mask

from lite_selfplay.models import packed_on_gpu
from lite_selfplay.models.linear import keep, kept

OURS = "lite_selfplay_sdpa"
"""This attention's name in transformers; names with `sdpa` are checked and masked like `sdpa`."""
# Arguments that transformers passes to attention that is more than causal.
_BEYOND = ("position_bias", "s_aux", "softcap", "sliding_window", "head_mask")

# Slices of the K * R, and of their tokens.
_At = tuple[slice, slice]

SCORES = 2**20
"""Scores held at once (4 MiB in float32), except those of a single token."""
QUERIES = 64
"""Tokens of a row whose scores are computed at once; keys after the last of them are skipped."""


def install(model: Any) -> None:
    """Give a transformers model with `sdpa` attention this one; leave any other model alone."""
    AttentionInterface.register(OURS, attention)
    AttentionMaskInterface.register(OURS, sdpa_mask)
    if model.config._attn_implementation == "sdpa":
        model.set_attn_implementation(OURS)


def attention(
    module: nn.Module,
    query: Tensor,
    key: Tensor,
    value: Tensor,
    attention_mask: Tensor | None,
    dropout: float = 0.0,
    scaling: float | None = None,
    packed_blocks: "Sequence[Block] | packed_on_gpu.PackedLayout | None" = None,
    slots: "Slots | None" = None,
    **options: Any,
) -> tuple[Tensor, None]:
    """The result (R, T, H, D) of transformers' `sdpa`, for queries (R, H, T, D) over keys and values (R, K, S, D).

    `packed_blocks` divides the single row of a packed batch: see `attend`. `slots` says where the keys of rows of one
    token are: see `attend_slots`. Raises ValueError for either in an attention that is more than causal.
    """
    causal = getattr(module, "is_causal", True) and options.get("is_causal") is not False
    if packed_blocks is not None or slots is not None:
        if dropout or not causal or any(options.get(name) is not None for name in _BEYOND):
            raise ValueError("this attention is more than causal")
        scale = query.shape[-1] ** -0.5 if scaling is None else scaling
        if slots is not None:
            return attend_slots(query, key, value, slots, scale), None
        q, k, v = (x[0].transpose(0, 1) for x in (query, key, value))
        if isinstance(packed_blocks, packed_on_gpu.PackedLayout):
            return packed_on_gpu.attend(q, k, v, packed_blocks, scale)[None], None
        return attend(q, k, v, packed_blocks or (), scale)[None], None
    rows, heads, length, size = query.shape
    groups = heads // key.shape[1]
    plain = length == 1 and groups > 1 and dropout == 0.0 and options.get("position_bias") is None
    if not plain or (attention_mask is not None and attention_mask.shape[1] != 1):
        beyond = packed_on_gpu.beyond_flash(size, query.dtype, query.device)
        if attention_mask is None and groups > 1 and causal and query.is_cuda and beyond is not None:
            # Without a mask transformers lets torch share key heads, which only flash has a fused kernel for.
            attention_mask = query.new_ones(1, 1, length, key.shape[2], dtype=torch.bool).tril(key.shape[2] - length)
        return packed_on_gpu.summed_in_order(
            sdpa_attention_forward(module, query, key, value, attention_mask, dropout, scaling, **options)[0]
        ), None
    # Heads that share a key head become its queries; transformers would repeat keys and values for each of them.
    mask = None if attention_mask is None else attention_mask.expand(rows, 1, groups, key.shape[2])
    out = torch.nn.functional.scaled_dot_product_attention(
        query.reshape(rows, heads // groups, groups, size), key, value, attn_mask=mask, scale=scaling
    )
    return out.reshape(rows, 1, heads, value.shape[3]), None


@dataclass(frozen=True)
class Slots:
    """Where the keys and values of R rows are in a pool; each of a row's K key heads is a sequence of its own.

    Sequence i begins at `firsts[i]` and has `lengths[i]` keys, at most `longest`. `ends` is 0..R * K, because each has
    one query. Shapes: `lengths` (R * K,), the others one more; all int32.
    """

    firsts: Tensor
    lengths: Tensor
    ends: Tensor
    longest: int


def attend_slots(query: Tensor, keys: Tensor, values: Tensor, slots: Slots, scale: float) -> Tensor:
    """Attention (R, 1, H, D) of one token per row, (R, H, 1, D), over stores (N * K, 1, D), by torch's flash kernel.

    The keys are not copied, and few long rows are split between processors. The last of `slots.firsts` is not used.
    """
    rows, heads, _, size = query.shape
    queries = query.to(keys.dtype).reshape(len(slots.lengths), -1, size)
    sizes = slots.ends, slots.firsts, 1, slots.longest
    out, *_ = torch.ops.aten._flash_attention_forward(
        queries, keys, values, *sizes, 0.0, False, False, scale=scale, seqused_k=slots.lengths
    )
    return out.reshape(rows, 1, heads, size)


@torch.no_grad()
def why_no_flash(heads: int, keys: int, size: int, dtype: torch.dtype, device: torch.device) -> str | None:
    """Why `attend_slots` does not run here for these numbers of query and key heads and head size, by a try on rows of
    1 to 300 keys; None if it does."""
    if (beyond := packed_on_gpu.beyond_flash(size, dtype, device)) is not None:
        return beyond
    lengths = [1, 300, 17, 128]
    drawn = torch.randn(heads + 2 * keys, len(lengths), 384, size, generator=torch.Generator().manual_seed(0))
    query, stores = drawn[:heads, :, :1].transpose(0, 1), drawn[heads:].unflatten(0, (2, keys)).transpose(1, 2)
    firsts, used = torch.arange(len(lengths) * keys + 1) * 384, torch.tensor(lengths).repeat_interleave(keys)
    try:
        q, k, v = (x.to(device, dtype) for x in (query, *stores))
        starts, counts, ends = (x.to(device, torch.int32) for x in (firsts, used, torch.arange(len(firsts))))
        k, v = (x.reshape(-1, 1, size) for x in (k, v))
        found = attend_slots(q, k, v, Slots(starts, counts, ends, 384), size**-0.5)
    except (AttributeError, RuntimeError, TypeError) as error:  # of another torch or GPU
        return f"torch {torch.__version__} refused it: {error}"
    seen = torch.arange(384)[None, None, None] < torch.tensor(lengths)[:, None, None, None]
    k, v = stores
    right = nn.functional.scaled_dot_product_attention(query, k, v, seen, enable_gqa=True).transpose(1, 2)
    far = float((found.cpu().float() - right).norm() / right.norm())
    return None if far < 2.0**-6 else f"its results differ by {far:.2g} of their size from the formula's"


@dataclass(frozen=True)
class Block:
    """Neighbouring rows: where the first begins, their lengths, and a prefix that all of them see."""

    start: int
    lengths: Sequence[int]
    before: range = range(0)

    @property
    def width(self) -> int:
        return max(self.lengths)

    @property
    def span(self) -> slice:
        return slice(self.start, self.start + sum(self.lengths))

    @property
    def spans(self) -> list[packed_on_gpu.TokenSpan]:
        """One span for each row."""
        pairs = zip(accumulate(self.lengths, initial=self.start), self.lengths, strict=False)
        return [packed_on_gpu.TokenSpan(start, length, self.before) for start, length in pairs]

    @cached_property
    def _filled(self) -> Tensor | None:
        """Each token's index in a rectangle of R * T; None if the rows fill it."""
        if min(self.lengths) == self.width:
            return None
        within = torch.arange(self.width)[None] < torch.tensor(self.lengths)[:, None]
        return within.flatten().nonzero()[:, 0]

    def rectangle(self, x: Tensor) -> Tensor:
        """The rows (R, T, ...) of x (N, ...), padded with zeros."""
        own, rows = x[self.span], len(self.lengths)
        if self._filled is not None:
            own = own.new_zeros(rows * self.width, *own.shape[1:]).index_copy_(0, self._filled, own)
        return own.unflatten(0, (rows, self.width))

    def tokens(self, x: Tensor) -> Tensor:
        """The tokens of a rectangle (R, T, ...), without its padding."""
        flat = x.flatten(0, 1)
        return flat if self._filled is None else flat[self._filled]


def attend(q: Tensor, k: Tensor, v: Tensor, blocks: Sequence[Block], scale: float) -> Tensor:
    """Causal attention (N, H, D) of q (N, H, D) over k and v (N, K, D); each token is in exactly one block."""
    return _Attention.apply(q, k, v, blocks, scale)


class _Attention(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, q: Tensor, k: Tensor, v: Tensor, blocks: Sequence[Block], scale: float) -> Tensor:
        ctx.save_for_backward(q, k, v)
        ctx.blocks, ctx.scale = blocks, scale
        if (again := kept()) is not None:
            return again[0]
        out = q.new_empty(*q.shape[:2], v.shape[2])
        for block in blocks:
            rows = _Rows.of(block, q, k, v, scale)
            attended = rows.queries.new_empty(*rows.queries.shape[:2], v.shape[2])
            for queries, keys in rows.pieces():
                attended[queries] = rows.weights(queries, keys) @ rows.values[keys]
            out[block.span] = block.tokens(_from_heads(attended, rows.shape))
        keep(out)
        return out

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, grad: Tensor) -> Any:
        q, k, v = ctx.saved_tensors
        grad_q, grad_k, grad_v = torch.empty_like(q), torch.zeros_like(k), torch.zeros_like(v)
        for block in ctx.blocks:
            rows = _Rows.of(block, q, k, v, ctx.scale)
            grad_out = _by_heads(block.rectangle(grad), k.shape[1])
            to_q = torch.empty_like(rows.queries)
            to_k, to_v = torch.zeros_like(rows.keys), torch.zeros_like(rows.values)
            for queries, keys in rows.pieces():
                weights, g = rows.weights(queries, keys), grad_out[queries]
                to_v[keys] += weights.mT @ g
                # weights * (grad - sum(weights * grad)), summed in float32
                scores = torch._softmax_backward_data(g @ rows.values[keys].mT, weights, -1, weights.dtype)
                to_q[queries] = scores @ rows.keys[keys]
                to_k[keys] += scores.mT @ rows.queries[queries]
            grad_q[block.span] = block.tokens(_from_heads(to_q.mul_(ctx.scale), rows.shape))
            for whole, part in ((grad_k, to_k.mul_(ctx.scale)), (grad_v, to_v)):
                by_row = part.unflatten(0, (k.shape[1], -1))  # (K, R, S, D)
                whole[block.span] += block.tokens(by_row[:, :, rows.before :].permute(1, 2, 0, 3))
                if rows.before:
                    shared = by_row[:, :, : rows.before].sum(1).transpose(0, 1)
                    whole[block.before.start : block.before.stop] += shared
        return grad_q, grad_k, grad_v, None, None


@dataclass(frozen=True)
class _Rows:
    """A block's rows by key head: `queries` (K * R, T * G, D), `keys` and `values` (K * R, S, D)."""

    queries: Tensor
    keys: Tensor
    values: Tensor
    before: int
    scale: float
    shape: tuple[int, int, int, int]
    """K, R, T and G."""

    @classmethod
    def of(cls, block: Block, q: Tensor, k: Tensor, v: Tensor, scale: float) -> "_Rows":
        heads = k.shape[1]
        shape = heads, len(block.lengths), block.width, q.shape[1] // heads
        keys, values = (_after(block, x) for x in (k, v))
        return cls(_by_heads(block.rectangle(q), heads), keys, values, len(block.before), scale, shape)

    def pieces(self) -> Iterator[tuple[_At, _At]]:
        """Where the queries of one product are, and the keys (up to the last query's own)."""
        heads, rows, width, groups = self.shape
        tokens = max(1, min(width, QUERIES, SCORES // (groups * self.keys.shape[1])))
        size = max(1, SCORES // (tokens * groups * self.keys.shape[1]))
        for first in range(0, heads * rows, size):
            batch = slice(first, first + size)
            for token in range(0, width, tokens):
                last = min(width, token + tokens)
                yield (batch, slice(token * groups, last * groups)), (batch, slice(0, self.before + last))

    def weights(self, queries: _At, keys: _At) -> Tensor:
        """The attention weights of a piece, rounded to the values' type after the softmax."""
        of, device = queries[1], self.keys.device
        position = self.before + torch.arange(of.start, of.stop, device=device) // self.shape[3]
        later = torch.arange(keys[1].stop, device=device)[None] > position[:, None]
        hidden = torch.zeros(later.shape, device=device).masked_fill_(later, float("-inf"))
        scaled = self.queries[queries].float() * self.scale
        return torch.baddbmm(hidden, scaled, self.keys[keys].float().mT).softmax(-1).to(self.values.dtype)


def _by_heads(x: Tensor, heads: int) -> Tensor:
    """(R, T, H, D) as (K * R, T * G, D): heads that share a key head lie side by side."""
    rows, width, all_heads, size = x.shape
    return (
        x.reshape(rows, width, heads, all_heads // heads, size).permute(2, 0, 1, 3, 4).reshape(heads * rows, -1, size)
    )


def _from_heads(x: Tensor, shape: tuple[int, int, int, int]) -> Tensor:
    """The inverse of `_by_heads`."""
    return x.view(*shape, x.shape[-1]).permute(1, 2, 0, 3, 4).flatten(2, 3)


def _after(block: Block, x: Tensor) -> Tensor:
    """Keys or values (N, K, D) of a block's rows, after those of their prefix: (K * R, S, D)."""
    own = block.rectangle(x).permute(2, 0, 1, 3)
    if block.before:
        shared = x[block.before.start : block.before.stop].transpose(0, 1)[:, None]
        own = torch.cat([shared.expand(-1, own.shape[1], -1, -1), own], dim=2)
    return own.reshape(-1, *own.shape[2:])
