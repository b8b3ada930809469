"""Attention over packed rows by torch's flash kernels: without rectangles, masks or copies of keys and values.

One causal pass covers every span by itself, a second one the tokens after each shared prefix over that prefix; their
log-sum-exps merge the two. Backwards both run with the merged result, as in ring attention. Shapes: `N` tokens, `H`
query heads over `K` key heads, head size `D`.
"""

import contextlib
from collections.abc import Iterator, Sequence
from itertools import accumulate, pairwise
from typing import Any, NamedTuple

import torch
from torch import Tensor
from torch.autograd.function import once_differentiable

from lite_selfplay.models.linear import joined
from lite_selfplay.models.transfers import placed

# Tokens beyond which a span is a call of its own: backwards, in a fixed order, a call has as many blocks for each span
# as processors divided by heads and spans, and a long span among many would have one block a head.
_LONG = 2048


@contextlib.contextmanager
def in_order() -> Iterator[None]:
    """Let kernels add up in a fixed order, so that a resumed run is the same to the bit."""
    before = torch.are_deterministic_algorithms_enabled()
    torch.use_deterministic_algorithms(True)
    try:
        yield
    finally:
        torch.use_deterministic_algorithms(before)


class Pass(NamedTuple):
    """The lengths that one varlen attention call takes: cumulative ends of the sequences of queries and of keys (from
    0, int32), and the longest sequence of each."""

    queries: slice
    keys: slice
    ends: tuple[Tensor, ...]
    longest: tuple[int, int]
    causal: bool

    @classmethod
    def of(
        cls, first: int, queries: Sequence[int], keys: Sequence[int], device: torch.device, *, causal: bool
    ) -> "Pass":
        """Sequences of these lengths, with queries from token `first` on, and their keys, or others from token 0 on."""
        ends = (placed([*accumulate(lengths, initial=0)], device, torch.int32) for lengths in (queries, keys))
        # torch computes a single query in another way, with another shape of the log-sum-exp.
        longest, start = (max(2, *queries), max(keys)), first if causal else 0
        return cls(slice(first, first + sum(queries)), slice(start, start + sum(keys)), tuple(ends), longest, causal)


def passes(spans: Sequence[Any], device: torch.device) -> list[Pass]:
    """The passes over spans (see `packed_on_gpu.TokenSpan`) in their order: shared prefixes first, spans after them
    last, in the order of their prefixes."""
    lengths = [span.length for span in spans]
    cuts = [i for i, pair in enumerate(pairwise(lengths), 1) if max(pair) > _LONG]
    calls = [lengths[begin:end] for begin, end in pairwise([0, *cuts, len(lengths)])]
    starts = list(accumulate(map(sum, calls), initial=0))
    found = [Pass.of(start, own, own, device, causal=True) for start, own in zip(starts, calls, strict=False)]
    groups: dict[range, int] = {}
    for span in spans:
        if span.before:
            groups[span.before] = groups.get(span.before, 0) + span.length
    if groups:
        shared, after = [len(before) for before in groups], list(groups.values())
        assert [before.start for before in groups] == list(accumulate(shared, initial=0))[:-1]
        found.append(Pass.of(starts[-1] - sum(after), after, shared, device, causal=False))
    return found


class Flash(torch.autograd.Function):
    """Attention (N, H, D) of q (N, H, D) over k and v (N, K, D) in half precision."""

    @staticmethod
    def forward(ctx: Any, q: Tensor, k: Tensor, v: Tensor, over: Sequence[Pass], scale: float) -> Tensor:
        found = [
            torch.ops.aten._flash_attention_forward(
                q[one.queries], k[one.keys], v[one.keys], *one.ends, *one.longest, 0.0, one.causal, False, scale=scale
            )
            for one in over
        ]
        own = sum(one.causal for one in over)
        out, log_sums = (joined(tuple(each[i] for each in found[:own]), i) for i in range(2))
        for one, (more, more_log_sums, *_) in zip(over[own:], found[own:], strict=True):
            at, before = one.queries, log_sums[:, one.queries]
            share = (more_log_sums - before).sigmoid().T[..., None]
            out[at] = torch.lerp(out[at].to(share.dtype), more.to(share.dtype), share).to(out.dtype)
            log_sums[:, at] = torch.logaddexp(before, more_log_sums)
        ctx.save_for_backward(q, k, v, out, log_sums)
        # The states belong to dropout, which is 0.
        ctx.over, ctx.scale, ctx.states = over, scale, [each[2:4] for each in found]
        return out

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, grad: Tensor) -> Any:
        q, k, v, out, log_sums = ctx.saved_tensors
        with in_order():
            parts = [
                torch.ops.aten._flash_attention_backward(
                    *(grad[at], q[at], k[keys], v[keys], out[at], log_sums[:, at].contiguous()),
                    *(*ends, *longest, 0.0, causal, *state),
                    scale=ctx.scale,
                )
                for (at, keys, ends, longest, causal), state in zip(ctx.over, ctx.states, strict=True)
            ]
        own = sum(one.causal for one in ctx.over)
        total = [joined(each) for each in zip(*parts[:own], strict=True)]
        for one, found in zip(ctx.over[own:], parts[own:], strict=True):
            for whole, part, rows in zip(total, found, (one.queries, one.keys, one.keys), strict=True):
                whole[rows].add_(part)
        return *total, None, None
