"""The rows of a batch while they are sampled: reading prompts, sampling tokens, rows that join and leave.

Shapes: `R` rows in the batch, `T` positions read so far, `V` vocabulary.
"""

import functools
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor, nn

from lite_selfplay.data import Sampling
from lite_selfplay.models.generation.kv_cache import RowLayer, StateLayer, join_masks, keep_rows, row_cache
from lite_selfplay.models.generation.sampling import Decoding, SampledRow, Sampler
from lite_selfplay.models.logprobs.batch import Batch, pad
from lite_selfplay.models.logprobs.reading import shares_prefixes

PREFILL_TOKENS = 8192
"""Prompt tokens that are read at once; a longer prompt is read alone."""


@dataclass(frozen=True)
class SamplingCall:
    """One call of `generate`: the model, the request's settings and the backend's."""

    model: nn.Module
    sampling: Sampling
    decoding: Decoding

    @functools.cached_property
    def sampler(self) -> Sampler:
        return Sampler(self.sampling, self.decoding)

    @functools.cached_property
    def rows_may_join(self) -> bool:
        """Whether rows of other lengths can join: a sliding window over positions cannot be shifted."""
        return all(isinstance(layer, RowLayer | StateLayer) for layer in row_cache(self.model).layers)


def pieces(call: SamplingCall, rows: Sequence[SampledRow]) -> list[list[SampledRow]]:
    """Rows divided into groups whose prompts are prefilled at once; one group if rows cannot join a cache later."""
    found: list[list[SampledRow]] = []
    tokens, group = 0, -1
    for row in rows:
        new = 0 if row.group == group else len(row.prompt)
        if not found or (new and tokens + new > PREFILL_TOKENS and call.rows_may_join):
            found.append([])
            tokens = 0
        found[-1].append(row)
        tokens, group = tokens + new, row.group
    return found


def prefill(call: SamplingCall, rows: Sequence[SampledRow]) -> "RowBatch":
    """A batch of rows with their prompts in the cache, a piece at a time."""
    first, *others = pieces(call, rows)
    batch = RowBatch(call, first)
    for piece in others:
        call.decoding.poll()
        batch.join(RowBatch(call, piece))
    call.decoding.give_back()
    return batch


class RowBatch:
    """Rows that are sampled together: their cache, and the logits of their next tokens. Without `expand` the cache
    holds each distinct prompt once, and `sources` (R,) is each row's index in it."""

    def __init__(self, call: SamplingCall, rows: list[SampledRow], *, expand: bool = True):
        self.call, self.rows = call, rows
        self.decoding = call.decoding
        self.cache = row_cache(call.model)
        self.mask = self.position = torch.empty(0, dtype=torch.long)
        self.logits = self._prefill(expand)
        self.seen = call.sampler.seen(rows, self.logits.shape[-1])

    # Prefill

    def _prefill(self, expand: bool) -> Tensor:
        """Process each distinct prompt, shared prefixes only once; then repeat the cache for each row."""
        groups = dict(sorted({row.group: row.prompt for row in self.rows}.items(), key=lambda item: tuple(item[1])))
        batch, device = Batch.of((prompt, ()) for prompt in groups.values()), self.decoding.device
        own: Sequence[Sequence[int]] = list(groups.values())
        if batch.shares and shares_prefixes(self.call.model):
            self._extend([prefix.ids for prefix in batch.prefixes])
            self._repeat(torch.tensor(batch.owners, device=device))
            own = batch.own
        logits = self._extend(own)
        index = {group: i for i, group in enumerate(groups)}
        rows = torch.tensor([index[row.group] for row in self.rows], device=device)
        if expand:
            self._repeat(rows)
        else:
            self.sources = rows
        return logits[rows]

    def _extend(self, rows: Sequence[Sequence[int]]) -> Tensor:
        """Process ids after the cached ones; returns the logits (R, V) of each row's last token."""
        ids, mask = (t.to(self.decoding.device) for t in pad(rows, left=True))
        self.mask = torch.cat([self.mask, mask], dim=1) if len(self.mask) else mask
        positions = (self.mask.cumsum(-1) - 1).clamp(min=0)[:, -ids.shape[1] :]
        self.position = positions[:, -1:]
        return self._forward(ids, positions)

    def _forward(self, ids: Tensor, positions: Tensor) -> Tensor:
        out = self.call.model(
            input_ids=ids,
            attention_mask=self.mask,
            position_ids=positions,
            past_key_values=self.cache,
            use_cache=True,
            # An index, not a count: a slice of many positions would copy the head's weight for every row.
            logits_to_keep=torch.tensor([ids.shape[1] - 1], device=ids.device),
        )
        return out.logits[:, -1]

    def _repeat(self, rows: Any) -> None:
        """Make row i a copy of row `rows[i]`."""
        self.cache.reorder_cache(rows)
        self.mask, self.position = self.mask[rows], self.position[rows]

    # A token of every row

    def sample(self) -> Tensor:
        """Sample the next token (R,) of every row and append it."""
        return self.call.sampler.draw(self.rows, self.logits, self.seen)

    def advance(self, token: Tensor) -> None:
        """Process the token (R,) that was just sampled for every row."""
        self.position = self.position + 1
        self.mask = torch.cat([self.mask, self.mask.new_ones(len(self.rows), 1)], dim=1)
        self.logits = self._forward(token[:, None], self.position)

    # Rows that come and go

    def leave(self) -> Tensor:
        """Drop finished rows and close the gaps: row i is now former row `order[i]`."""
        gone = [row.over for row in self.rows]
        rows = gone.count(False)
        holes = [i for i in range(rows) if gone[i]]
        movers = [i for i in range(rows, len(gone)) if not gone[i]]
        kept = list(range(rows))
        for hole, mover in zip(holes, movers, strict=True):
            kept[hole] = mover
        order = torch.tensor(kept, dtype=torch.long, device=self.decoding.device)
        keep_rows(self.cache, holes, movers, order)
        self.rows = [self.rows[i] for i in kept]
        for name, tensor in self._tensors().items():
            setattr(self, name, tensor[order])
        return order

    def join(self, other: "RowBatch") -> None:
        """Add the rows of another batch, and drop positions that no own row uses any more."""
        first = int(self.mask.any(0).int().argmax())
        for layer, new in zip(list[Any](self.cache.layers), other.cache.layers, strict=True):
            layer.join(new, first)
        mask = join_masks(self.mask, other.mask, first)
        for name, tensor in other._tensors().items():
            if name != "mask":
                setattr(self, name, torch.cat([getattr(self, name), tensor]))
        self.mask, self.rows = mask, self.rows + other.rows

    def _tensors(self) -> dict[str, Tensor]:
        """All tensors with one entry per row."""
        return {name: value for name, value in vars(self).items() if isinstance(value, Tensor)}
