"""Sampling by the same operations for every token, on tensors that stay where they are.

On a card the host only hands over work, and the card waits for it. So the rows of a batch keep their places, a row
that has ended goes on unseen, and only every few tokens the host looks which rows those are and gives their places to
others; what was drawn it hands over while the card is at work on the next tokens. The model's part of a token depends
on the number of rows alone, and is replayed as a CUDA graph. All but keys and values is the host's: to the card a row
is a token, a position and a place. Shapes: `R` rows, `V` vocabulary.
"""

from collections.abc import Sequence
from typing import Any

import numpy as np
import torch
from torch import Tensor

from lite_selfplay.models.generation.layout import FINEST, LOOK_EVERY, Layout, rounded_up, row_size
from lite_selfplay.models.generation.lookup import Text
from lite_selfplay.models.generation.places import Arena
from lite_selfplay.models.generation.replay import records
from lite_selfplay.models.generation.rows import RowBatch, Speaker, pieces
from lite_selfplay.models.generation.sampling import SampledRow, choose, uniforms
from lite_selfplay.models.transfers import placed

# Rows that are read at once when few are left, with the tokens that are proposed: one takes hardly less time.
PASS = 16
JOIN_AT = 1 / 4
"""Waiting rows take the places that are free once these are such a share of all."""


def can_be_fixed(speaker: Speaker) -> bool:
    """Whether a model can be sampled so: its cache holds every token, and its attention takes a mask of ours; a list of
    key heads is one that says how many each layer has."""
    base: Any = getattr(speaker.model, "get_base_model", lambda: speaker.model)()
    kind, heads = base.config._attn_implementation, getattr(base.config.get_text_config(), "num_key_value_heads", 1)
    return speaker.rows_may_join and ("sdpa" in kind or kind == "eager") and not isinstance(heads, list)


def sample_fixed(speaker: Speaker, waiting: list[SampledRow]) -> None:
    """Finish all rows of `waiting`, ordered by the lengths of their prompts: those that have places at once, and the
    others as they find one. The arena stays for the next call where graphs were recorded in it and all went well."""
    decoding, whole = speaker.decoding, False
    sizes = len(waiting), len(waiting[-1].prompt), speaker.sampling.max_tokens
    try:
        batch = _Batch(speaker, Layout.of(*sizes, decoding.cache_tokens, mixed=decoding.flash))
        while waiting or batch.occupied:
            free = batch.free
            if waiting and len(free) >= JOIN_AT * len(batch.rows):
                batch.seat(taken(waiting, len(free)), free)
            elif not waiting:
                batch.shrink()
            if not waiting and batch.can_look_ahead:
                batch.look_ahead()
                continue
            batch.run()
            batch.look()
        batch.hand_over()
        whole = records(decoding) and decoding.weights is not None
    finally:
        if not whole:
            decoding.kept.let_go()


def taken(waiting: list[SampledRow], most: int) -> list[SampledRow]:
    """At most so many rows from the head of `waiting`."""
    found = waiting[:most]
    del waiting[:most]
    return found


class _Batch:
    """Rows in their places. `said` (R,) says how many tokens were drawn for each, `token` (R,) which was the last."""

    def __init__(self, speaker: Speaker, layout: Layout):
        self.speaker, self.sampler, self.decoding, self.layout = speaker, speaker.sampler, speaker.decoding, layout
        self.rows: list[SampledRow | None] = [None] * layout.rows
        self.homes, self.spare = layout.places
        # Where each row is: at home, or in one of the longer places that are not `spare`.
        self.places = list(self.homes)
        self.said, self.token, self.prompt = (np.zeros(layout.rows, np.int64) for _ in range(3))
        self.seen: Tensor | None = None
        self._running: list[tuple[int, SampledRow]] = []
        self._drawn: tuple[Sequence[Tensor], Sequence[Tensor]] = (), ()
        self._due: tuple[list[tuple[int, SampledRow]], Any, Any] | None = None
        self._texts: dict[int, Text] = {}

    @property
    def arena(self) -> Arena:
        return self.decoding.kept.arena

    @property
    def free(self) -> list[int]:
        return [i for i, row in enumerate(self.rows) if row is None]

    @property
    def occupied(self) -> bool:
        return any(row is not None for row in self.rows)

    # Rows that come

    def seat(self, rows: Sequence[SampledRow], free: Sequence[int]) -> None:
        """Read the rows' prompts, a piece at a time, draw their first tokens, and put them into free places."""
        begin = 0
        for piece in pieces(self.speaker, rows):
            self.decoding.poll()
            batch = RowBatch(self.speaker, piece, expand=False)
            self._put(batch, batch.choose().tolist(), free[begin : begin + len(piece)])
            begin += len(piece)

    def _put(self, batch: RowBatch, tokens: Sequence[int], to: Sequence[int]) -> None:
        kept, vocabulary = self.decoding.kept, batch.logits.shape[1]
        if kept.arena is None or not kept.arena.fits(self.layout, vocabulary):
            most, total = self.layout.rows, self.layout.held(self.decoding.cache_tokens)
            if kept.arena is not None:
                most, total = max(most, kept.arena.rows), max(total, kept.arena.columns)
            kept.let_go()
            kept.arena = Arena(self.speaker.model, batch.cache, batch.logits, most, total)
        longest = max(len(row.prompt) for row in batch.rows)
        # Columns that hold a token of the row come first, in their order: the others are padding.
        columns = torch.sort(batch.mask == 0, dim=1, stable=True).indices[:, :longest]
        self.arena.put(batch.cache, batch.sources, columns[batch.sources], [self.places[i] for i in to], to)
        for i, row, token in zip(to, batch.rows, tokens, strict=True):
            self.rows[i] = None if row.over else row
            self.said[i], self.token[i], self.prompt[i] = 1, token, len(row.prompt)
        if batch.seen is not None:
            if self.seen is None:
                self.seen = batch.seen.new_zeros(len(self.rows), vocabulary)
            self._see(to, batch.rows)

    def _see(self, places: Sequence[int], rows: Sequence[SampledRow]) -> None:
        if self.seen is not None and places:
            seen = self.sampler.seen(rows, self.seen.shape[1])
            assert seen is not None
            self.seen[placed(places, self.seen.device)] = seen

    # A token of every row

    def run(self) -> None:
        """Draw as many tokens as there are until the next look; meanwhile hand over what was drawn before."""
        self._running = [(i, row) for i, row in enumerate(self.rows) if row is not None and self._has_room(i)]
        if not self._running:
            return
        places, rows = [i for i, _ in self._running], len(self.rows)
        count = min(LOOK_EVERY, self.speaker.sampling.max_tokens - int(self.said[places].min()))
        position = np.maximum(self.prompt + self.said - 1, 0)
        occupied = np.array([row is not None for row in self.rows])
        self.arena.stage(self.places, self.token, np.where(occupied, position, 0))
        width = None
        if not self.decoding.flash:
            width = min(rounded_up(int(position[occupied].max()) + count, FINEST), self.layout.longest)
        seeds = [0 if row is None else row.seed for row in self.rows]
        uniform = placed(torch.from_numpy(uniforms(seeds, count, self.said)), self.decoding.device)
        self._drawn = [], []
        for i in range(count):
            self.decoding.poll()
            self._read_tokens(rows, width)
            token, logprob = choose(self.arena.logits[:rows], uniform[:, i], self.speaker.sampling, self.seen)
            self.arena.token[:rows].copy_(token)
            for drawn, new in zip(self._drawn, (token, logprob), strict=True):
                drawn.append(new)
        self.hand_over()

    def _read_tokens(self, rows: int, width: int | None) -> None:
        """The model's part of a token of so many rows."""
        longest = self.layout.longest
        if width is None:  # what attention is told is a bound: the same one for calls of other lengths
            longest = 1 << (longest - 1).bit_length()
        key = (self.decoding.weights, rows, longest, width)
        self.arena.graphs.run(self.decoding, key, lambda: self.arena.step(self.speaker.model, rows, longest, width))

    def _has_room(self, i: int) -> bool:
        """Whether a row may go on until the next look: one that outgrows its place takes a longer one, or waits for it,
        and what is drawn for it until then is as if it had not been."""
        place, columns = self.places[i], int(self.prompt[i] + self.said[i] - 1)
        if place.columns == self.layout.longest or columns + 2 * LOOK_EVERY <= place.columns:
            return True
        if not self.spare:
            return False
        self.places[i] = self.spare.pop()
        self.arena.copy([place], [self.places[i]], columns)
        if self.seen is not None and (row := self.rows[i]) is not None:
            self.hand_over()
            self._see([i], [row])
        return True

    # Several tokens of each of the last rows

    @property
    def can_look_ahead(self) -> bool:
        """Whether there are so few rows that a pass has room for tokens which may follow theirs."""
        decoding, few = self.decoding, 2 * len(self.rows) <= PASS <= self.arena.rows
        return decoding.lookup and decoding.flash and few and self.seen is None

    def look_ahead(self) -> None:
        """Read the last token of each row and those that may follow (see `lookup`), as rows that share a slot, and draw
        after each with the number that its place has: what is drawn is kept as long as it is what was read next."""
        self.hand_over()
        for i, row in enumerate(self.rows):
            if row is not None and row.over:
                self._leave(i)
        running = [(i, row) for i, row in enumerate(self.rows) if row is not None and self._has_room(i)]
        if not running:
            return
        self.decoding.poll()
        ends = [(k + 1) * PASS // len(running) for k in range(len(running))]
        owners, read = list[int](), list[int]()
        for (i, row), end in zip(running, ends, strict=True):
            text = self._texts.setdefault(id(row), Text([*row.prompt, *row.out.token_ids]))
            read += [int(self.token[i]), *text.following(end - len(read) - 1)]
            owners += [i] * (end - len(owners))
        said = self.said[owners] + [k - owners.index(i) for k, i in enumerate(owners)]
        self.arena.stage([self.places[i] for i in owners], np.array(read), self.prompt[owners] + said - 1)
        self._read_tokens(PASS, None)
        seeds = {i: row.seed for i, row in running}
        uniform = placed(torch.from_numpy(uniforms([seeds[i] for i in owners], 1, said)), self.decoding.device)
        logits, sampling = self.arena.logits[:PASS], self.speaker.sampling
        ids, logprobs = torch.stack([x.double() for x in choose(logits, uniform[:, 0], sampling)]).tolist()
        for (i, row), last in zip(running, ends, strict=True):
            first = owners.index(i)
            end = next((k for k in range(first + 1, last) if read[k] != ids[k - 1]), last)
            taken = [int(token) for token in ids[first:end]]
            self._texts[id(row)].ids += taken
            self.said[i], self.token[i] = self.said[i] + len(taken), taken[-1]
            self.sampler.take(row, taken, logprobs[first:end])

    # Rows that go

    def look(self) -> None:
        """See which rows have ended; their places are free."""
        if not self._running:
            return
        ids, logprobs = (torch.stack(list(drawn)).cpu().numpy() for drawn in self._drawn)  # (tokens, R)
        places = [i for i, _ in self._running]
        self.said[places] += len(ids)
        self.token[places] = ids[-1, places]
        running, ended = set(places), self.sampler.ended(ids, self.said)
        for i, row in enumerate(self.rows):
            if row is not None and (row.over or (i in running and ended[i])):
                self._leave(i)
        self._due = self._running, ids, logprobs

    def _leave(self, i: int) -> None:
        self.rows[i] = None
        if self.places[i] is not self.homes[i]:
            self.spare.append(self.places[i])
            self.places[i] = self.homes[i]

    def hand_over(self) -> None:
        """Give the rows what was drawn for them before the last look."""
        if self._due is not None:
            rows, ids, logprobs = self._due
            self._due = None
            for i, row in rows:
                if not row.over:
                    self.sampler.take(row, ids[:, i].tolist(), logprobs[:, i].tolist())

    def shrink(self) -> None:
        """Nobody waits: the rows that are left move together, into fewer places."""
        taken = [i for i, row in enumerate(self.rows) if row is not None]
        rows = row_size(len(taken))
        if not taken or rows >= len(self.rows):
            return
        movers = [i for i in taken if i >= rows]
        holes = [i for i in range(rows) if self.rows[i] is None][: len(movers)]
        order = list(range(rows))
        for hole, mover in zip(holes, movers, strict=True):
            order[hole] = mover
        if movers:
            self.arena.move(movers, holes)
        if movers and not self.decoding.flash:
            columns = int((self.prompt + self.said - 1)[movers].max())
            self.arena.copy([self.homes[i] for i in movers], [self.homes[i] for i in holes], columns)
        # Attention that is not told where a row is finds the first places, one after the other.
        stay = order if self.decoding.flash else range(rows)
        self.homes, self.places = ([places[i] for i in stay] for places in (self.homes, self.places))
        self.rows = [self.rows[i] for i in order]
        self.said, self.token, self.prompt = (of[order] for of in (self.said, self.token, self.prompt))
        if self.seen is not None:
            self.seen = self.seen[placed(order, self.seen.device)]
