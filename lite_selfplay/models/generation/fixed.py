"""Sampling by the same operations for every token, on tensors that stay where they are.

On a card the host only hands over work, and the card waits for it: a token must not make the host wait for the card, or
ask for other kernels than the last one did. So the rows of a batch keep their places, a row that has ended goes on
unseen, and only every few tokens the host looks which rows those are, hands them over and gives their places to others.
What runs between two looks depends on the number of places and on the columns in view alone, and can be recorded as a
CUDA graph. Shapes: `R` places, `C` columns, `V` vocabulary.
"""

from collections.abc import Sequence
from typing import Any

import torch
from torch import Tensor

from lite_selfplay.data import Sampling
from lite_selfplay.models.generation.places import FINEST, place_cache, rounded_up
from lite_selfplay.models.generation.replay import Steps
from lite_selfplay.models.generation.rows import Row, RowBatch, Speaker, pieces
from lite_selfplay.models.generation.sampling import Sampler

LOOK_EVERY = 16
"""Tokens between two looks at which rows have ended: what a row draws beyond its end is dropped."""
JOIN_AT = 1 / 4
"""Waiting rows take the places that are free once these are such a share of all."""
_TOLD = ("uniform", "tokens", "logprobs", "length", "ended", "stopped", "full", "logits", "seen")
"""What a row that comes brings along, by attribute."""


def can_be_fixed(speaker: Speaker) -> bool:
    """Whether a model can be sampled so: its cache holds every token, and its attention takes a mask of ours."""
    base: Any = getattr(speaker.model, "get_base_model", lambda: speaker.model)()
    kind = base.config._attn_implementation
    return speaker.rows_may_join and ("sdpa" in kind or kind == "eager")


def sample_fixed(speaker: Speaker, waiting: list[Row]) -> None:
    """Finish the rows at the head of `waiting` that have places at once, and those that find one while they run.

    Places, with the graphs that were recorded in them, are those of an earlier call where everything has the same size.
    """
    first, room = _first(speaker, waiting)
    decoding, columns, whole = speaker.decoding, _columns(room, speaker.sampling), False
    kept = decoding.kept
    key = (decoding.weights, decoding.loop, tuple(decoding.eos_ids), speaker.sampling, len(first), columns)
    again: _Places | None = kept.take(key)  # and kept again when all has gone well
    batch = again or _Places(speaker, first, columns)
    try:
        if again is not None:
            batch.begin(speaker, first)
        while batch.occupied:
            batch.run()
            batch.look()
            free = [place for place, row in enumerate(batch.rows) if row is None]
            if len(free) < JOIN_AT * len(batch.rows):
                continue
            if rows := _fitting(waiting, room, len(free)):
                batch.seat(rows, free[: len(rows)])
            elif batch.occupied:
                batch.shrink()
        whole = batch.steps.graphs and decoding.weights is not None
    finally:
        if whole:
            kept.keep(key, batch)
        else:
            batch.steps.forget()


def _first(speaker: Speaker, waiting: list[Row]) -> tuple[list[Row], int]:
    """The rows that have places at the start, and the longest prompt that has room in one."""
    cache_tokens = speaker.decoding.cache_tokens
    longest, room = len(waiting[-1].prompt), len(waiting[0].prompt)
    for count, row in enumerate(waiting, 1):
        if count > 1 and count * _columns(len(row.prompt), speaker.sampling) > cache_tokens:
            # Rows have to wait: room for prompts that are a little longer lets them in without another batch.
            room = min(rounded_up(room, FINEST), longest)
            break
        room = len(row.prompt)
    return _fitting(waiting, room, max(1, cache_tokens // _columns(room, speaker.sampling))), room


def _columns(prompt: int, sampling: Sampling) -> int:
    """Of a place for a prompt of so many tokens and its completion."""
    return -(-(prompt + sampling.max_tokens) // FINEST) * FINEST


def _fitting(waiting: list[Row], room: int, places: int) -> list[Row]:
    """At most `places` rows from the head of `waiting`, ordered by length, whose prompts have room."""
    count = 0
    while count < min(places, len(waiting)) and len(waiting[count].prompt) <= room:
        count += 1
    taken = waiting[:count]
    del waiting[:count]
    return taken


class _Places(Sampler):
    """Rows in their places: keys and values, the logits of their next tokens, and what was drawn."""

    waits = False

    def __init__(self, speaker: Speaker, rows: Sequence[Row], columns: int):
        super().__init__(speaker.sampling, speaker.decoding, [row.seed for row in rows])
        self.speaker = speaker
        self.rows: list[Row | None] = list(rows)
        self.steps = Steps(speaker.decoding)
        self._columns = columns
        self.position = torch.zeros_like(self.length)
        """The column of each row's next token, which is its number in the row."""
        self.seat(rows, range(len(rows)))
        self._whole = {name: getattr(self, name) for name in (*_TOLD, "bias", "position")}

    def begin(self, speaker: Speaker, rows: Sequence[Row]) -> None:
        """Take in other rows, as many as there were at first, as if nobody had been here."""
        self.speaker, self.decoding, self.steps.decoding = speaker, speaker.decoding, speaker.decoding
        vars(self).update(self._whole)
        layers: list[Any] = self.cache.layers
        for store in (store for layer in layers for store in layer.stores):
            store.zero_()
        self.rows, self._reached = list(rows), [0] * len(rows)
        self.seat(rows, range(len(rows)))

    @property
    def occupied(self) -> bool:
        return any(row is not None for row in self.rows)

    # Rows that come

    def seat(self, rows: Sequence[Row], places: Sequence[int]) -> None:
        """Read the rows' prompts, a piece at a time, and put them into free places."""
        begin = 0
        for piece in pieces(self.speaker, rows):
            self.decoding.poll()
            self._put(RowBatch(self.speaker, piece, expand=False), places[begin : begin + len(piece)])
            begin += len(piece)

    def _put(self, batch: RowBatch, places: Sequence[int]) -> None:
        if not hasattr(self, "cache"):
            self._make_room(batch)
        to = torch.tensor(places, device=self.decoding.device)
        lengths = [len(row.prompt) for row in batch.rows]
        # Columns that hold a token of the row come first, in their order: the others are padding.
        columns = torch.sort(batch.mask == 0, dim=1, stable=True).indices[:, : max(lengths)]
        columns = columns[batch.sources]
        layers: list[Any] = self.cache.layers
        for layer, other in zip(layers, batch.cache.layers, strict=True):
            layer.put(other, batch.sources, columns, to)
        length = torch.tensor(lengths, device=self.decoding.device)
        before = torch.arange(self._columns, device=self.decoding.device)[None] < length[:, None]
        self.bias[to] = torch.where(before, 0.0, -torch.inf).to(self.bias.dtype)
        self.position[to] = length
        for name in _TOLD:
            if (mine := getattr(self, name)) is not None:
                mine[to] = getattr(batch, name)
        for place, row in zip(places, batch.rows, strict=True):
            self.rows[place], self._reached[place] = row, 0

    def _make_room(self, batch: RowBatch) -> None:
        rows = len(self.rows)
        self.cache = place_cache(self.speaker.model, batch.cache, rows, self._columns)
        first: Any = self.cache.layers[0]
        self.bias = first.stores[0].new_full((rows, self._columns), -torch.inf)
        """What is added to attention's scores: 0 where a column holds a token of the row."""
        self.logits = batch.logits.new_zeros(rows, batch.logits.shape[1])
        self.seen = None if batch.seen is None else batch.seen.new_zeros(rows, batch.seen.shape[1])
        self._reached = [0] * rows
        """How many tokens of each row the host has looked at."""

    # A token of every row

    def run(self) -> None:
        """Draw as many tokens as there are until the next look."""
        left = [
            self.sampling.max_tokens - reached for row, reached in zip(self.rows, self._reached, strict=True) if row
        ]
        count = min(LOOK_EVERY, max(left))
        longest = max(
            len(row.prompt) + reached for row, reached in zip(self.rows, self._reached, strict=True) if row is not None
        )
        width = min(rounded_up(longest + count, FINEST), self._columns)
        layers: list[Any] = self.cache.layers
        for layer in layers:
            layer.view(len(self.rows), width, self.position)
        self._bias = self.bias[:, None, None, :width]
        step = self.steps.of((len(self.rows), width), self.step)
        for _ in range(count):
            self.decoding.poll()
            step()

    def step(self) -> None:
        """Draw the next token of every row and read it: the same operations for as many rows and columns."""
        token = self.draw(self.logits, self.seen)
        if self.seen is not None:
            self.seen.scatter_(1, token[:, None], True)
        self.bias.scatter_(1, self.position[:, None], 0.0)
        self.logits.copy_(self._forward(token))
        self.position += ~self.finished

    def _forward(self, token: Tensor) -> Tensor:
        out = self.steps.model(self.speaker.model)(
            input_ids=token[:, None],
            attention_mask=self._bias,
            position_ids=self.position[:, None],
            past_key_values=self.cache,
            use_cache=True,
        )
        logits: Tensor = out.logits[:, -1]
        return logits

    # Rows that go

    def look(self) -> None:
        """Hand over the rows that have ended; their places are free."""
        if self.sampling.stop:
            self._cut_at_stops()
        self._tell_new()
        finished, lengths = torch.stack([self.finished.long(), self.length]).tolist()
        self._reached = lengths
        gone = [bool(done) and row is not None for done, row in zip(finished, self.rows, strict=True)]
        if any(gone):
            outs = [row.out for row, left in zip(self.rows, gone, strict=True) if left and row is not None]
            self.hand_over(torch.tensor(gone, device=self.decoding.device), outs)
            self.rows = [None if left else row for row, left in zip(self.rows, gone, strict=True)]

    def _tell_new(self) -> None:
        """Tell who listens the tokens since the last look, and end rows at the one after which nobody wants more."""
        listening = [(i, row.out.hear) for i, row in enumerate(self.rows) if row is not None and row.out.hear]
        if not listening:
            return
        lengths, ids = self.length.tolist(), self.tokens.tolist()
        for place, hear in listening:
            for number in range(self._reached[place] + 1, lengths[place] + 1):
                if not hear(number, ids[place][number - 1]):
                    self.ended[place] &= number == lengths[place]
                    self.length[place], self.full[place] = number, True
                    break

    def _cut_at_stops(self) -> None:
        """End rows at the token that completed a stop string, and drop what was drawn after it."""
        longest = self.longest_stop
        begin = (self.length - longest - LOOK_EVERY).clamp(min=0)
        window = torch.arange(longest + LOOK_EVERY, device=begin.device)
        latest = self.tokens.gather(1, (begin[:, None] + window).clamp(max=self.sampling.max_tokens)).tolist()
        lengths, stopped, ended = self.length.tolist(), self.stopped.tolist(), self.ended.tolist()
        for place, (ids, first) in enumerate(zip(latest, begin.tolist(), strict=True)):
            last = lengths[place] - ended[place]  # a token that ends the row is not looked at
            for at in range(self._reached[place] + 1, last + 1) if not stopped[place] else ():
                if self.holds_stop(ids[max(0, at - longest - first) : at - first]):
                    lengths[place], stopped[place], ended[place] = at, True, False
                    break
        for mine, now in ((self.length, lengths), (self.stopped, stopped), (self.ended, ended)):
            mine.copy_(torch.tensor(now))

    def shrink(self) -> None:
        """Nobody waits: the rows that are left move together, into fewer places."""
        taken = [place for place, row in enumerate(self.rows) if row is not None]
        rows = rounded_up(len(taken))
        if rows >= len(self.rows):
            return
        holes = [place for place in range(rows) if self.rows[place] is None]
        movers = [place for place in taken if place >= rows]
        to, of = (
            torch.tensor(p, dtype=torch.long, device=self.decoding.device) for p in (holes[: len(movers)], movers)
        )
        layers: list[Any] = self.cache.layers
        for layer in layers:
            layer.move(to, of, layer.keys.shape[2])
        for hole, mover in zip(holes, movers, strict=False):
            self.rows[hole], self._reached[hole] = self.rows[mover], self._reached[mover]
        self.rows, self._reached = self.rows[:rows], self._reached[:rows]
        for name in self._whole:
            if (tensor := getattr(self, name)) is not None:
                tensor[to] = tensor[of]
                setattr(self, name, tensor[:rows])
