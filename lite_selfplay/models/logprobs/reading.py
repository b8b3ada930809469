"""Reading a batch: the hidden states that predict the completions' tokens, for either way of reading.

Packed rows lie one behind the other as a single one; a token's position is its place in its own row. Only attention
looks beyond a token, so only attention must know the rows. Shapes: `N` tokens of all completions, row after row, `H`
hidden size, `B` rows of `L` tokens with padding.
"""

from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any

import torch
from torch import Tensor, nn

from lite_selfplay.models.attention import OURS, Block
from lite_selfplay.models.logprobs.batch import Batch, Row, Way, pad
from lite_selfplay.models.packed_on_gpu import PackedLayout
from lite_selfplay.models.transfers import placed

# Sequences at most this many times as long as the shortest share one attention block, which is a rectangle.
_ALIKE = 2
# The largest median error of hidden states, relative to those of the plain way; in half precisions a tenth: SmolLM2 has
# 0.015, and would have 0.2 to 0.4 if rows saw each other.
_TOLERANCE = {torch.float32: 1e-3}


def hidden_states(base: Any, batch: Batch) -> Tensor:
    """Hidden states (N, H) that predict the N completion tokens of a batch."""
    if batch.way is Way.PACKED:
        return _packed(base, batch)
    ids, _ = pad([[*prompt, *completion] for prompt, completion in batch.rows])
    # Tokens see nothing behind them, so padding on the right needs no mask.
    out = base.base_model(input_ids=placed(ids, base.device), use_cache=False)
    return pick(out.last_hidden_state, [(len(prompt) - 1, len(completion)) for prompt, completion in batch.rows])


def shares_prefixes(model: nn.Module) -> bool:
    """Whether shared prefixes can be read once: the cache must hold every position, and be allowed."""
    base: Any = getattr(model, "get_base_model", lambda: model)()
    config = base.config.get_text_config()
    kinds = getattr(config, "layer_types", None)
    whole = all(kind == "full_attention" for kind in kinds) if kinds else not getattr(config, "sliding_window", None)
    return whole and not (base.training and any(getattr(m, "gradient_checkpointing", False) for m in base.modules()))


def pick(x: Tensor, spans: Sequence[tuple[int, int]]) -> Tensor:
    """A span of each row of `x` (B, L, ...), one after another (N, ...); `spans` are (first position, length)."""
    width = x.shape[1]
    places = [i * width + first + k for i, (first, count) in enumerate(spans) for k in range(count)]
    return x.flatten(0, 1)[placed(places, x.device)]


# Packed


@dataclass(eq=False)
class _Span:
    """Neighbouring tokens of one row, or of a prefix that several rows continue."""

    ids: Sequence[int]
    after: "_Span | None" = None
    start: int = -1

    @property
    def position(self) -> int:
        return len(self.after.ids) if self.after else 0


@dataclass
class Packed:
    """Packed rows: ids and positions (all tokens), attention's blocks, and the N indices of tokens that predict
    a completion's token."""

    ids: list[int] = field(default_factory=list)
    positions: list[int] = field(default_factory=list)
    blocks: list[Block] = field(default_factory=list)
    predicting: list[int] = field(default_factory=list)

    @classmethod
    def of(cls, batch: Batch, *, by_group: bool = False) -> "Packed":
        """Pack a batch: beginnings sorted by length, or with `by_group` shared ones first, in the order of their
        groups."""
        beginnings, ends = [], []
        own: list[_Span] = []
        for prefix in batch.prefixes:
            members = [[*prompt, *rest] for prompt, rest in batch.rows[len(own) : len(own) + prefix.rows]]
            shared = _Span(prefix.ids) if prefix.rows > 1 and prefix.length else None
            spans = [_Span(ids[len(shared.ids) :] if shared else ids, shared) for ids in members]
            beginnings.extend([shared] if shared else spans)
            ends.extend(sorted(spans, key=_length) if shared else [])
            own.extend(spans)
        packed = cls()
        before = {id(span.after) for span in ends}
        order: Any = (lambda span: id(span) not in before) if by_group else _length
        packed._lay([*sorted(beginnings, key=order), *ends])
        for span, (prompt, rest) in zip(own, batch.rows, strict=True):
            first = span.start + len(prompt) - span.position - 1
            packed.predicting.extend(range(first, first + len(rest)))
        return packed

    def _lay(self, spans: Sequence[_Span]) -> None:
        """Append spans; neighbours of similar length after the same prefix form a block."""
        block: list[_Span] = []
        for span in spans:
            if block and (span.after is not block[0].after or len(span.ids) > _ALIKE * len(block[0].ids)):
                self.blocks.append(_block(block))
                block = []
            span.start = len(self.ids)
            block.append(span)
            self.ids.extend(span.ids)
            self.positions.extend(range(span.position, span.position + len(span.ids)))
        if block:
            self.blocks.append(_block(block))


def _block(spans: Sequence[_Span]) -> Block:
    before = spans[0].after
    shared = range(before.start, before.start + len(before.ids)) if before else range(0)
    return Block(spans[0].start, tuple(len(span.ids) for span in spans), shared)


def _length(span: _Span) -> int:
    return len(span.ids)


def _packed(base: Any, batch: Batch) -> Tensor:
    device = base.device
    packed = Packed.of(batch, by_group=device.type == "cuda")
    blocks: Any = packed.blocks
    if device.type == "cuda":
        blocks = PackedLayout([span for block in packed.blocks for span in block.spans], device)
    out = base.base_model(
        input_ids=placed([packed.ids], device),
        position_ids=placed([packed.positions], device),
        # Four dimensions, so that it is passed on; nothing reads it, since the blocks say what a token sees.
        attention_mask=torch.zeros((1, 1, 1, 1), dtype=torch.bool, device=device),
        use_cache=False,
        packed_blocks=blocks,  # transformers passes unknown arguments on to attention
    )
    return out.last_hidden_state[0][placed(packed.predicting, device)]


@torch.no_grad()
def packs(model: nn.Module, *, together: bool = True) -> bool:
    """Whether a model's rows can be packed, which is tried on three short ones: `together`, or each by itself, which
    shows only that attention is told which tokens it sees.

    Anything besides causal attention (other attention, a state passed from token to token, positions that are not
    passed in) changes the results far beyond rounding. The model must use this library's attention (see
    `attention.install`).
    """
    base: Any = getattr(model, "get_base_model", lambda: model)()
    if (together and not shares_prefixes(base)) or base.config._attn_implementation != OURS:
        return False
    rows = _rows_to_try(base.get_input_embeddings().weight.shape[0])
    was_training = base.training
    base.eval()
    try:
        found = torch.cat(
            [hidden_states(base, Batch.of(some, Way.PACKED)) for some in ([rows] if together else zip(rows))]
        ).float()
        right = torch.cat([hidden_states(base, Batch.of([row])) for row in rows]).float()
    except (AttributeError, LookupError, RuntimeError, TypeError, ValueError):  # the model rejects such a mask
        return False
    finally:
        base.train(was_training)
    error = (found - right).norm(dim=1) / right.norm(dim=1)
    return bool(error.median() < _TOLERANCE.get(base.dtype, 0.1))


def _rows_to_try(vocabulary: int) -> list[Row]:
    """Three rows of six and six tokens, two with the same prompt. The first ids are skipped: they are seldom words."""
    drawn = torch.randint(vocabulary // 100, vocabulary, (30,), generator=torch.Generator().manual_seed(0))
    shared, *own = (part.tolist() for part in drawn.split(6))
    return [(shared, own[0]), (shared, own[1]), (own[2], own[3])]
