"""Frozen linear layers and their adapters in two products, for sampling.

Layers with the same input (queries, keys and values; gate and up) are one product here, with the adapter's
down-projections stacked under their weights; a second product adds the up-projections. On a GPU, where launches take
the time, another seat (a named LoRA adapter) is another few rows of these tensors, which stay where they are, so that a
recorded CUDA graph stays valid. On a CPU the weights are packed: a plain product of few rows rearranges its weight each
time, which takes longer than the product. Shapes: `N` tokens, `O` outputs of all layers of a stack, `r` ranks of all.
"""

from collections.abc import Callable, Iterable, Iterator, Sequence
from itertools import accumulate
from typing import Any

import torch
from torch import Tensor, nn

from lite_selfplay.models.linear import LowRank, joined_biases

SAME_INPUT = (("q_proj", "k_proj", "v_proj"), ("gate_proj", "up_proj"))
"""Names of a block's layers that transformers' models call on the same tensor."""

Forward = Callable[[Tensor], Tensor]


class SameInput:
    """Layers with the same input, which `compute` computes all at once: for x (..., in) their outputs (..., out)."""

    compute: Callable[[Tensor], Sequence[Tensor]]
    _input: Tensor | None = None
    _outs: dict[int, Tensor]

    def forward(self, i: int, x: Tensor) -> Tensor:
        """Layer i's output for x (..., in); the other layers' outputs are kept until they are asked for."""
        if self._input is not x or i not in self._outs:
            self._input, self._outs = x, dict(enumerate(self.compute(x)))
        out = self._outs.pop(i)
        if not self._outs:
            self._input = None
        return out


class Stack(SameInput):
    """Layers with the same input, and an adapter of up to `rank` for each. `weights` (out, in) and `biases` (out,) are
    the layers', in the type of the product."""

    def __init__(self, weights: Sequence[Tensor], biases: Sequence[Tensor | None], rank: int):
        ends = list(accumulate(map(len, weights)))
        self._spans = [slice(end - len(weight), end) for weight, end in zip(weights, ends, strict=True)]
        self._outputs, self._rank, total = ends[-1], rank, rank * len(weights)
        first, bias = weights[0], joined_biases(biases, weights)
        self.weight = torch.cat([*weights, first.new_empty(total, first.shape[1])])
        # Block-diagonal: each layer's adapter reads only its own part.
        self.up = first.new_zeros(self._outputs, total)
        self.bias = None if bias is None else nn.functional.pad(bias.to(first.dtype), (0, total))
        self._adapted = False
        self._packed: Forward | None = None

    def part(self, i: int) -> Tensor:
        """Layer i's weight (out, in) inside the stack."""
        return self.weight[self._spans[i]]

    def copies(self, adapters: Sequence[LowRank | None]) -> Iterator[tuple[Tensor, Tensor, float]]:
        """For each of the adapters' tensors: its target in the stack, the tensor, and a factor to multiply it by. If no
        layer has an adapter, `forward` computes the layers alone from now on."""
        self._adapted = any(adapter is not None for adapter in adapters)
        for i, adapter in enumerate(adapters) if self._adapted else ():
            down = self.weight[self._outputs + i * self._rank :][: self._rank]
            up = self.up[self._spans[i], i * self._rank : (i + 1) * self._rank]
            yield from _copies(adapter, down, up)

    def compute(self, x: Tensor) -> list[Tensor]:
        """All layers' outputs for x (..., in)."""
        rows = x.reshape(-1, x.shape[-1]).to(self.up.dtype)
        both = self._packed(rows) if self._packed else nn.functional.linear(rows, *self._used())
        out = both[:, : self._outputs]
        if self._adapted:
            out = out.addmm_(both[:, self._outputs :], self.up.T)
        whole = out.view(*x.shape[:-1], self._outputs)
        return [whole[..., span] for span in self._spans]

    def pack(self) -> None:
        """Compute these layers and adapters through a packed copy of the weights, if there is one, and free the
        weights."""
        self._packed = packed(*self._used())
        if self._packed:
            self.weight = self.weight.new_empty(0)

    def _used(self) -> tuple[Tensor, Tensor | None]:
        """The weight and the bias of the first product."""
        used = None if self._adapted else self._outputs
        return self.weight[:used], None if self.bias is None else self.bias[:used]


def packed(weight: Tensor, bias: Tensor | None) -> Forward | None:
    """A linear layer (out, in) whose weight is copied into the order in which oneDNN multiplies it; None if this CPU,
    or this build of torch, has no such products for its type."""
    onednn = torch.ops.mkldnn
    if weight.is_cuda or not torch.backends.mkldnn.is_available() or not hasattr(onednn, "_linear_pointwise"):
        return None
    if weight.dtype != torch.float32 and not (weight.dtype == torch.bfloat16 and onednn._is_mkldnn_bf16_supported()):
        return None
    copy = onednn._reorder_linear_weight(weight)
    return lambda x: onednn._linear_pointwise(x, copy, bias, "none", [], "")


class UnstackedLayer:
    """An unchanged layer with an adapter beside it, if 4-bit weights cannot be expanded."""

    def __init__(self, layer: nn.Module, like: LowRank, dtype: torch.dtype, rank: int):
        self._layer, self._adapted = layer, False
        self.down = torch.zeros(rank, like.down.shape[1], dtype=dtype, device=like.down.device)
        self.up = torch.zeros(len(like.up), rank, dtype=dtype, device=like.up.device)

    def copies(self, adapters: Sequence[LowRank | None]) -> Iterator[tuple[Tensor, Tensor, float]]:
        """`Stack.copies` for one layer."""
        (adapter,) = adapters
        self._adapted = adapter is not None
        yield from _copies(adapter, self.down, self.up)

    def forward(self, i: int, x: Tensor) -> Tensor:
        """The sum of the layer's and the adapter's outputs for x (..., in)."""
        out: Tensor = self._layer(x)
        if not self._adapted:
            return out
        rows = x.reshape(-1, x.shape[-1]).to(self.down.dtype)
        flat = out.to(self.down.dtype).reshape(-1, out.shape[-1])
        return torch.addmm(flat, rows @ self.down.T, self.up.T).view(out.shape)


def _copies(adapter: LowRank | None, down: Tensor, up: Tensor) -> Iterator[tuple[Tensor, Tensor, float]]:
    """An adapter's copies into `down` and `up` of a higher rank, whose other numbers become 0."""
    rank = 0 if adapter is None else len(adapter.down)
    if rank < len(down):
        down[rank:].zero_()
        up[:, rank:].zero_()
    if adapter is not None:
        yield down[:rank], adapter.down, 1.0
        yield up[:, :rank], adapter.up, adapter.scale


def together(names: Iterable[str]) -> list[list[str]]:
    """Groups of layer names (`layers.0.self_attn.q_proj` and so on) that have the same input."""
    found: dict[tuple[str, object], list[str]] = {}
    for name in names:
        parent, _, own = name.rpartition(".")
        kind: object = next((kind for kind in SAME_INPUT if own in kind), own)
        found.setdefault((parent, kind), []).append(name)
    return list(found.values())


@torch.no_grad()
def take(stacks: Iterable[tuple[Any, Sequence[LowRank | None]]]) -> None:
    """Copy adapters into stacks, all in one go."""
    copies = [each for stack, adapters in stacks for each in stack.copies(adapters)]
    if not copies:
        return
    to, of, scales = (list(column) for column in zip(*copies, strict=True))
    # Multiplied in float32 before rounding.
    torch._foreach_copy_(to, torch._foreach_mul(of, scales))
