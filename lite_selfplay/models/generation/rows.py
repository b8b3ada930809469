"""The rows of a batch while they are sampled: their prompts read, their tokens drawn, rows that come and go.

Shapes: `R` rows in the batch, `T` columns read so far, `V` vocabulary.
"""

import functools
from collections.abc import Sequence
from dataclasses import dataclass

import torch
from torch import Tensor, nn

from lite_selfplay.data import Sampling
from lite_selfplay.models.generation.kv_cache import (
    RowLayer,
    StateLayer,
    join_masks,
    join_rows,
    keep_rows,
    row_cache,
    select_rows,
)
from lite_selfplay.models.generation.sampling import Decoding, SampledRow, Sampler
from lite_selfplay.models.logprobs.batch import Batch, pad
from lite_selfplay.models.logprobs.reading import shares_prefixes

READ_TOKENS = 8192
"""Prompt tokens that are read at once, a single prompt aside."""


@dataclass(frozen=True)
class Speaker:
    model: nn.Module
    sampling: Sampling
    decoding: Decoding

    @functools.cached_property
    def sampler(self) -> Sampler:
        return Sampler(self.sampling, self.decoding)

    @functools.cached_property
    def rows_may_join(self) -> bool:
        """Whether rows of other lengths can be taken in: a window that slides over columns cannot be shifted."""
        return all(isinstance(layer, RowLayer | StateLayer) for layer in row_cache(self.model).layers)

    @functools.cached_property
    def shares_prefixes(self) -> bool:
        return shares_prefixes(self.model)


def pieces(speaker: Speaker, rows: Sequence[SampledRow]) -> list[list[SampledRow]]:
    """Rows divided into those whose prompts are read at once, where the cache of one piece can take in another."""
    found: list[list[SampledRow]] = []
    tokens, group = 0, -1
    for row in rows:
        new = 0 if row.group == group else len(row.prompt)
        if not found or (new and tokens + new > READ_TOKENS and speaker.rows_may_join):
            found.append([])
            tokens = 0
        found[-1].append(row)
        tokens, group = tokens + new, row.group
    return found


def read(speaker: Speaker, rows: Sequence[SampledRow]) -> "RowBatch":
    """The rows with their prompts read, a piece at a time."""
    first, *others = pieces(speaker, rows)
    batch = RowBatch(speaker, first)
    for piece in others:
        speaker.decoding.poll()
        batch.join(RowBatch(speaker, piece))
    speaker.decoding.give_back()
    return batch


class RowBatch:
    """The rows that are sampled together: their cache, and the logits of their next tokens.

    Without `expand` the cache holds each distinct prompt once, and `sources` (R,) says which of them is each row's: for
    whoever takes the rows out of it.
    """

    def __init__(self, speaker: Speaker, rows: list[SampledRow], *, expand: bool = True):
        self.speaker, self.rows = speaker, rows
        self.decoding = speaker.decoding
        self.cache = row_cache(speaker.model)
        self.mask = self.position = torch.empty(0, dtype=torch.long)
        self.logits = self._read_prompts(expand)
        self.seen = speaker.sampler.seen(rows, self.logits.shape[-1])

    # Reading prompts

    def _read_prompts(self, expand: bool) -> Tensor:
        """Read the distinct prompts, what several of them begin with only once; then repeat the cache row by row."""
        groups = dict(sorted({row.group: row.prompt for row in self.rows}.items(), key=lambda item: tuple(item[1])))
        batch, device = Batch.of((prompt, ()) for prompt in groups.values()), self.decoding.device
        own: Sequence[Sequence[int]] = list(groups.values())
        if self.speaker.shares_prefixes and batch.shares:
            self._read([prefix.ids for prefix in batch.prefixes])
            self._repeat(torch.tensor(batch.owners, device=device))
            own = batch.own
        logits = self._read(own)
        index = {group: i for i, group in enumerate(groups)}
        rows = torch.tensor([index[row.group] for row in self.rows], device=device)
        if expand:
            self._repeat(rows)
        else:
            self.sources = rows
        return logits[rows]

    def _read(self, rows: Sequence[Sequence[int]]) -> Tensor:
        """Read ids after what the cache holds already; the logits (R, V) of each row's last token."""
        ids, mask = (t.to(self.decoding.device) for t in pad(rows, left=True))
        self.mask = torch.cat([self.mask, mask], dim=1) if len(self.mask) else mask
        positions = (self.mask.cumsum(-1) - 1).clamp(min=0)[:, -ids.shape[1] :]
        self.position = positions[:, -1:]
        return self._forward(ids, positions)

    def _forward(self, ids: Tensor, positions: Tensor) -> Tensor:
        out = self.speaker.model(
            input_ids=ids,
            attention_mask=self.mask,
            position_ids=positions,
            past_key_values=self.cache,
            use_cache=True,
            # An index, not a count: a slice of many columns would have the head's weight copied for every row.
            logits_to_keep=torch.tensor([ids.shape[1] - 1], device=ids.device),
        )
        return out.logits[:, -1]

    def _repeat(self, rows: Tensor) -> None:
        """Rearrange what has been read so far: row i becomes a copy of row `rows[i]`."""
        select_rows(self.cache, rows)
        self.mask, self.position = self.mask[rows], self.position[rows]

    # A token of every row

    def choose(self) -> Tensor:
        """Draw the next token (R,) of every row and keep it."""
        return self.speaker.sampler.draw(self.rows, self.logits, self.seen)

    def advance(self, token: Tensor) -> None:
        """Read the token (R,) that was just drawn for every row."""
        self.position = self.position + 1
        self.mask = torch.cat([self.mask, self.mask.new_ones(len(self.rows), 1)], dim=1)
        self.logits = self._forward(token[:, None], self.position)

    # Rows that come and go

    def leave(self) -> Tensor:
        """Leave out the rows that are over and close the gaps: row i is now what row `order[i]` was."""
        gone = [row.over for row in self.rows]
        rows = gone.count(False)
        holes = [i for i in range(rows) if gone[i]]
        movers = [i for i in range(rows, len(gone)) if not gone[i]]
        places = list(range(rows))
        for hole, mover in zip(holes, movers, strict=True):
            places[hole] = mover
        order = torch.tensor(places, dtype=torch.long, device=self.decoding.device)
        keep_rows(self.cache, holes, movers, order)
        self.rows = [self.rows[i] for i in places]
        for name, tensor in self._tensors().items():
            setattr(self, name, tensor[order])
        return order

    def join(self, other: "RowBatch") -> None:
        """Take in the rows of another batch. Columns that none of its own rows uses any more are dropped."""
        first = int(self.mask.any(0).int().argmax())
        join_rows(self.cache, other.cache, first)
        mask = join_masks(self.mask, other.mask, first)
        for name, tensor in other._tensors().items():
            if name != "mask":
                setattr(self, name, torch.cat([getattr(self, name), tensor]))
        self.mask, self.rows = mask, self.rows + other.rows

    def _tensors(self) -> dict[str, Tensor]:
        """Everything that has a row for each row."""
        return {name: value for name, value in vars(self).items() if isinstance(value, Tensor)}
