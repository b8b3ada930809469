"""Sampling completions from a causal language model, a whole step's prompts at once.

A prompt that a group shares is read once and its cache expanded to the group's rows; rows leave the batch when they
finish, and rows that did not fit at first take their places. Shapes: `P` prompts, `n` completions of each, `R` rows in
the batch, `T` columns read so far, `V` vocabulary.
"""

import functools
from collections.abc import Sequence
from dataclasses import dataclass

import torch
from torch import Tensor, nn

from lite_selfplay.data import Sampling
from lite_selfplay.models.generation.cache import join_masks, join_rows, keep_rows, row_cache, rows_may_join
from lite_selfplay.models.generation.sampling import Decoding, Generation, GenerationRequest, Sampler
from lite_selfplay.models.logprobs.batch import Batch, pad
from lite_selfplay.models.logprobs.reading import shares_prefixes

LEAVE_AT = 1 / 16
"""Finished rows leave the batch once they are this share of it."""
JOIN_AT = 1 / 4
"""Waiting rows join the batch once this share of its places is free: their prompts are read by themselves."""
READ_TOKENS = 8192
"""Prompt tokens that are read at once, a single prompt aside."""


@torch.inference_mode()
def generate(model: nn.Module, request: GenerationRequest, decoding: Decoding) -> list[list[Generation]]:
    """The completions that a request asks for, in the order of its prompts, by the seat that is active.

    Raises ValueError for an empty prompt, and for stop strings without `decoding.decode`.
    """
    decoding.check(request)
    prompts, n = request.prompts, request.n
    results = request.empty()
    waiting = [_Row(p, prompts[p], results[p][k], request.seeds[p][k]) for p in range(len(prompts)) for k in range(n)]
    waiting.sort(key=lambda row: (len(row.prompt), row.group))
    speaker = _Speaker(model, request.sampling, decoding)
    while waiting:
        _sample(speaker, waiting)
    return results


@dataclass
class _Row:
    group: int
    prompt: Sequence[int]
    out: Generation
    seed: int


@dataclass(frozen=True)
class _Speaker:
    model: nn.Module
    sampling: Sampling
    decoding: Decoding

    @functools.cached_property
    def rows_may_join(self) -> bool:
        return rows_may_join(row_cache(self.model))

    @functools.cached_property
    def shares_prefixes(self) -> bool:
        return shares_prefixes(self.model)


def _sample(speaker: _Speaker, waiting: list[_Row]) -> None:
    """Finish the rows at the head of `waiting` that fit at once, and those that find a place while they run."""
    batch = _read(speaker, _take(speaker, waiting, 0))
    places = len(batch.rows)
    while True:
        speaker.decoding.poll()
        token = batch.choose()
        batch.tell([row.out for row in batch.rows])
        if batch.share_finished >= LEAVE_AT:
            token = token[batch.leave()]
            if not batch.rows:
                return
        batch.advance(token)
        if waiting and speaker.rows_may_join and len(batch.rows) <= (1 - JOIN_AT) * places:
            if rows := _take(speaker, waiting, len(batch.rows)):
                batch.join(_read(speaker, rows))
            places = len(batch.rows)


def _take(speaker: _Speaker, waiting: list[_Row], beside: int) -> list[_Row]:
    """Rows from the head of `waiting`, in order of their prompts' lengths, as many as the cache holds beside others."""
    count, max_tokens, cache_tokens = 0, speaker.sampling.max_tokens, speaker.decoding.cache_tokens
    while count < len(waiting):
        if beside + count and (beside + count + 1) * (len(waiting[count].prompt) + max_tokens) > cache_tokens:
            break
        count += 1
    taken = waiting[:count]
    del waiting[:count]
    return taken


def _read(speaker: _Speaker, rows: list[_Row]) -> "_Batch":
    """The rows with their prompts read: a piece at a time, where the cache of one piece can take in another."""
    pieces: list[list[_Row]] = []
    tokens, group = 0, -1
    for row in rows:
        new = 0 if row.group == group else len(row.prompt)
        if not pieces or (new and tokens + new > READ_TOKENS and speaker.rows_may_join):
            pieces.append([])
            tokens = 0
        pieces[-1].append(row)
        tokens, group = tokens + new, row.group
    batch = _Batch(speaker, pieces[0])
    for piece in pieces[1:]:
        speaker.decoding.poll()
        batch.join(_Batch(speaker, piece))
    return batch


class _Batch(Sampler):
    """The rows that are sampled together: their cache, the logits of their next tokens, and what was drawn."""

    def __init__(self, speaker: _Speaker, rows: list[_Row]):
        super().__init__(speaker.sampling, speaker.decoding, [row.seed for row in rows])
        self.speaker, self.rows = speaker, rows
        self.cache = row_cache(speaker.model)
        self.mask = self.position = torch.empty(0, dtype=torch.long)
        self.logits = self._read_prompts()
        self.seen = self._seen() if self.sampling.repetition_penalty != 1.0 else None

    # Reading prompts

    def _read_prompts(self) -> Tensor:
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
        self._repeat(rows)
        return logits[rows]

    def _read(self, rows: Sequence[Sequence[int]]) -> Tensor:
        """Read ids after what the cache holds already; the logits (R, V) of each row's last token."""
        ids, mask = (t.to(self.decoding.device) for t in pad(rows, self.decoding.pad_id, left=True))
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
        logits: Tensor = out.logits[:, -1]
        return logits

    def _repeat(self, rows: Tensor) -> None:
        """Rearrange what has been read so far: row i becomes a copy of row `rows[i]`."""
        self.cache.batch_select_indices(rows)
        self.mask, self.position = self.mask[rows], self.position[rows]

    def _seen(self) -> Tensor:
        seen = torch.zeros((len(self.rows), self.logits.shape[-1]), dtype=torch.bool)
        for i, row in enumerate(self.rows):
            seen[i, list(row.prompt)] = True
        return seen.to(self.decoding.device)

    # A token of every row

    @property
    def share_finished(self) -> float:
        return float(self.finished.float().mean())

    def choose(self) -> Tensor:
        """Draw the next token (R,) of every row and keep it."""
        return self.draw(self.logits, self.seen)

    def advance(self, token: Tensor) -> None:
        """Read the token (R,) that was just drawn for every row."""
        self.position = self.position + 1
        self.mask = torch.cat([self.mask, self.mask.new_ones(len(self.rows), 1)], dim=1)
        if self.seen is not None:
            self.seen.scatter_(1, token[:, None], True)
        self.logits = self._forward(token[:, None], self.position)

    # Rows that come and go

    def leave(self) -> Tensor:
        """Hand over the completions of the finished rows and close the gaps: row i is now what row `order[i]` was."""
        finished = self.finished
        gone = finished.tolist()
        self.hand_over(finished, [row.out for row, done in zip(self.rows, gone, strict=True) if done])
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

    def join(self, other: "_Batch") -> None:
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
