"""Reading a batch: the hidden states that predict the completions' tokens, for either way of reading.

Packed rows lie one behind the other as a single one; a token's position is its place in its own row. Only attention
looks beyond a token, so only attention must know the rows. Shapes: `N` tokens of all completions, row after row, `H`
hidden size, `B` rows of `L` tokens with padding.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from itertools import accumulate
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
    def before(self) -> range:
        """Where the prefix is."""
        return range(self.after.start, self.after.start + len(self.after.ids)) if self.after else range(0)


@dataclass(frozen=True)
class Packed:
    """Packed rows: ids and positions (all tokens), attention's blocks, and the N indices of tokens that predict
    a completion's token."""

    ids: list[int]
    positions: list[int]
    blocks: list[Block]
    predicting: list[int]

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
        before = {id(span.after) for span in ends}
        order: Any = (lambda span: id(span) not in before) if by_group else _length
        laid: list[_Span] = [*sorted(beginnings, key=order), *ends]
        for span, start in zip(laid, accumulate(map(_length, laid), initial=0), strict=False):
            span.start = start
        predicting = list[int]()
        for span, (prompt, rest) in zip(own, batch.rows, strict=True):
            first = span.start + len(prompt) - len(span.before) - 1
            predicting.extend(range(first, first + len(rest)))
        positions = [len(span.before) + i for span in laid for i in range(len(span.ids))]
        return cls([token for span in laid for token in span.ids], positions, _blocks(laid), predicting)


def _blocks(spans: Sequence[_Span]) -> list[Block]:
    """Blocks of neighbours of similar length after the same prefix."""
    found: list[list[_Span]] = []
    for span in spans:
        if not found or span.after is not found[-1][0].after or len(span.ids) > _ALIKE * len(found[-1][0].ids):
            found.append([])
        found[-1].append(span)
    return [Block(block[0].start, tuple(map(_length, block)), block[0].before) for block in found]


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
    vocabulary = base.get_input_embeddings().weight.shape[0]
    # The first ids are skipped: they are seldom words.
    drawn = torch.randint(vocabulary // 100, vocabulary, (30,), generator=torch.Generator().manual_seed(0))
    shared, *own = (part.tolist() for part in drawn.split(6))
    rows: list[Row] = [(shared, own[0]), (shared, own[1]), (own[2], own[3])]
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
