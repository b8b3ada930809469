"""Sampling for a GPU: the same operations for every token, on tensors that stay where they are.

Finished sequences keep decoding, unused; every 16 tokens the host checks for them, reuses their slots, and hands out
tokens while the GPU computes the next ones. The forward pass depends only on the number of rows, so it is replayed as a
CUDA graph: for it a row is a token, a position and a slot. Shapes: `R` rows, `V` vocabulary.
"""

from collections.abc import Sequence
from typing import Any

import numpy as np
import torch
from torch import Tensor

from lite_selfplay.models.generation.layout import CHECK_EVERY, FINEST, Layout, rounded_up, row_size
from lite_selfplay.models.generation.lookup import Text
from lite_selfplay.models.generation.replay import records
from lite_selfplay.models.generation.rows import RowBatch, SamplingCall, pieces
from lite_selfplay.models.generation.sampling import SampledRow, sample_tokens, uniforms
from lite_selfplay.models.generation.slots import CachePool
from lite_selfplay.models.transfers import placed

JOIN_AT = 1 / 4
"""Waiting sequences start once this share of the slots is free, because reading their prompts is a pass of its own."""
AHEAD = 16
"""Rows of a forward pass with proposed tokens; one row takes hardly less time."""


def can_be_fixed(call: SamplingCall) -> bool:
    """Whether this loop supports the model: its cache must keep every token, its attention must accept our mask, and
    all layers must have equally many key heads."""
    base: Any = getattr(call.model, "get_base_model", lambda: call.model)()
    kind, heads = base.config._attn_implementation, getattr(base.config.get_text_config(), "num_key_value_heads", 1)
    return call.rows_may_join and ("sdpa" in kind or kind == "eager") and not isinstance(heads, list)


def sample_fixed(call: SamplingCall, waiting: list[SampledRow]) -> None:
    """Sample every sequence in `waiting`, which is sorted by prompt length. Sequences beyond the free slots start as
    slots free up. The KV-cache pool stays for the next call if graphs were recorded in it and nothing failed."""
    decoding, reusable = call.decoding, False
    sizes = len(waiting), len(waiting[-1].prompt), call.sampling.max_tokens
    try:
        batch = _Batch(call, Layout.of(*sizes, decoding.cache_tokens, mixed=decoding.flash))
        while waiting or batch.occupied:
            free = batch.free
            if waiting and len(free) >= JOIN_AT * len(batch.rows):
                batch.add(taken(waiting, len(free)), free)
            elif not waiting:
                batch.shrink()
            if not waiting and batch.can_propose:
                batch.run_ahead()
            else:
                batch.run()
                batch.check()
        batch.hand_out()
        reusable = records(decoding) and decoding.weights is not None
    finally:
        if not reusable:
            decoding.kept.release()


def taken(waiting: list[SampledRow], most: int) -> list[SampledRow]:
    """Remove and return up to `most` rows from the head of `waiting`."""
    found = waiting[:most]
    del waiting[:most]
    return found


class _Batch:
    """The sequences in slots: `sampled` (R,) counts the tokens of each, `token` (R,) is the last one."""

    def __init__(self, call: SamplingCall, layout: Layout):
        self.call, self.sampler, self.decoding, self.layout = call, call.sampler, call.decoding, layout
        self.rows: list[SampledRow | None] = [None] * layout.rows
        self.own_slots, self.spare = layout.slots
        # Each row's slot now: its own, or a longer one that was spare.
        self.slots = list(self.own_slots)
        self.sampled, self.token, self.prompt = (np.zeros(layout.rows, np.int64) for _ in range(3))
        self.seen: Tensor | None = None
        self._running: list[tuple[int, SampledRow]] = []
        self._new: tuple[Sequence[Tensor], Sequence[Tensor]] = (), ()
        self._due: tuple[list[tuple[int, SampledRow]], Any, Any] | None = None
        self._texts: dict[int, Text] = {}

    @property
    def pool(self) -> CachePool:
        return self.decoding.kept.pool

    @property
    def free(self) -> list[int]:
        return [i for i, row in enumerate(self.rows) if row is None]

    @property
    def occupied(self) -> list[int]:
        return [i for i, row in enumerate(self.rows) if row is not None]

    # Sequences that start

    def add(self, rows: Sequence[SampledRow], free: Sequence[int]) -> None:
        """Read the prompts, a piece at a time, sample their first tokens, and put the sequences into free slots."""
        begin = 0
        for piece in pieces(self.call, rows):
            self.decoding.poll()
            batch = RowBatch(self.call, piece, expand=False)
            self._put(batch, batch.sample().tolist(), free[begin : begin + len(piece)])
            begin += len(piece)

    def _put(self, batch: RowBatch, tokens: Sequence[int], to: Sequence[int]) -> None:
        kept, vocabulary = self.decoding.kept, batch.logits.shape[1]
        if kept.pool is None or not kept.pool.fits(self.layout, vocabulary):
            most, total = self.layout.rows, self.layout.held(self.decoding.cache_tokens)
            if kept.pool is not None:
                most, total = max(most, kept.pool.rows), max(total, kept.pool.positions)
            kept.release()
            kept.pool = CachePool(
                self.call.model, batch.cache, batch.logits, max(most, AHEAD * self.decoding.lookup), total
            )
        longest = max(len(row.prompt) for row in batch.rows)
        # The positions of real tokens first, in their order; padding after them.
        positions = torch.sort(batch.mask == 0, dim=1, stable=True).indices[:, :longest]
        self.pool.put(batch.cache, batch.sources, positions[batch.sources], [self.slots[i] for i in to], to)
        for i, row, token in zip(to, batch.rows, tokens, strict=True):
            self.rows[i] = None if row.over else row
            self.sampled[i], self.token[i], self.prompt[i] = 1, token, len(row.prompt)
        if batch.seen is not None:
            if self.seen is None:
                self.seen = batch.seen.new_zeros(len(self.rows), vocabulary)
            self.seen[placed(to, self.seen.device)] = batch.seen

    # A token of every row

    def run(self) -> None:
        """Sample the tokens up to the next check, then hand out those of the check before."""
        self._running = [(i, row) for i, row in enumerate(self.rows) if row is not None and self._has_room(i, row)]
        if not self._running:
            return
        running, rows = [i for i, _ in self._running], len(self.rows)
        count = min(CHECK_EVERY, self.call.sampling.max_tokens - int(self.sampled[running].min()))
        position = np.maximum(self.prompt + self.sampled - 1, 0)
        occupied = np.array([row is not None for row in self.rows])
        self.pool.stage(self.slots, self.token, np.where(occupied, position, 0))
        width = None
        if not self.decoding.flash:
            width = min(rounded_up(int(position[occupied].max()) + count, FINEST), self.layout.longest)
        seeds = [0 if row is None else row.seed for row in self.rows]
        uniform = placed(torch.from_numpy(uniforms(seeds, count, self.sampled)), self.decoding.device)
        self._new = [], []
        for i in range(count):
            self.decoding.poll()
            self._step(rows, width)
            token, logprob = sample_tokens(self.pool.logits[:rows], uniform[:, i], self.call.sampling, self.seen)
            self.pool.token[:rows].copy_(token)
            for tokens, new in zip(self._new, (token, logprob), strict=True):
                tokens.append(new)
        self.hand_out()

    def _step(self, rows: int, width: int | None) -> None:
        """The forward pass of a token of each row."""
        longest = self.layout.longest
        if width is None:  # only a bound for attention, so that calls with other lengths share a graph
            longest = 1 << (longest - 1).bit_length()
        key = (self.decoding.weights, rows, longest, width)
        self.pool.graphs.run(self.decoding, key, lambda: self.pool.step(self.call.model, rows, longest, width))

    def _has_room(self, i: int, row: SampledRow) -> bool:
        """Whether a sequence has room until the next check. One that outgrows its slot moves to a longer one, or waits
        for it; tokens sampled while it waits are discarded."""
        slot, position = self.slots[i], int(self.prompt[i] + self.sampled[i] - 1)
        if slot.positions == self.layout.longest or position + 2 * CHECK_EVERY <= slot.positions:
            return True
        if not self.spare:
            return False
        self.slots[i] = self.spare.pop()
        self.pool.copy([slot], [self.slots[i]], position)
        if self.seen is not None:
            self.hand_out()
            seen = self.sampler.seen([row], self.seen.shape[1])
            assert seen is not None
            self.seen[i] = seen[0]
        return True

    # Several tokens of each of the last rows

    @property
    def can_propose(self) -> bool:
        """Whether prompt lookup is on, and so few rows are left that a pass has room for proposed tokens."""
        few = 2 * len(self.rows) <= AHEAD
        return self.decoding.lookup and self.decoding.flash and few and self.seen is None and not self.pool.states

    def run_ahead(self) -> None:
        """Sample one or more tokens of each sequence in one forward pass.

        Proposed tokens (see `generation/lookup.py`) are further rows that share the sequence's slot. After each row the
        next token is sampled with the random number of its position, and the tokens are kept up to the first that is
        not the one proposed: the text is the same as without proposals, up to rounding.
        """
        self.hand_out()
        for i, row in enumerate(self.rows):
            if row is not None and row.over:
                self._leave(i)
        running = [(i, row) for i, row in enumerate(self.rows) if row is not None and self._has_room(i, row)]
        if not running:
            return
        self.decoding.poll()
        ends = [(k + 1) * AHEAD // len(running) for k in range(len(running))]
        owners, read = list[int](), list[int]()
        for (i, row), end in zip(running, ends, strict=True):
            text = self._texts.setdefault(id(row), Text([*row.prompt, *row.out.token_ids]))
            read += [int(self.token[i]), *text.following(end - len(read) - 1)]
            owners += [i] * (end - len(owners))
        sampled = self.sampled[owners] + [k - owners.index(i) for k, i in enumerate(owners)]
        self.pool.stage([self.slots[i] for i in owners], np.array(read), self.prompt[owners] + sampled - 1)
        self._step(AHEAD, None)
        seeds = {i: row.seed for i, row in running}
        uniform = placed(torch.from_numpy(uniforms([seeds[i] for i in owners], 1, sampled)), self.decoding.device)
        new = sample_tokens(self.pool.logits[:AHEAD], uniform[:, 0], self.call.sampling)
        ids, logprobs = torch.stack([x.double() for x in new]).tolist()
        for (i, row), last in zip(running, ends, strict=True):
            first = owners.index(i)
            end = next((k for k in range(first + 1, last) if read[k] != ids[k - 1]), last)
            kept = [int(token) for token in ids[first:end]]
            self._texts[id(row)].ids += kept
            self.sampled[i], self.token[i] = self.sampled[i] + len(kept), kept[-1]
            self.sampler.take(row, kept, logprobs[first:end])

    # Sequences that end

    def check(self) -> None:
        """Free the slots of the sequences that have ended."""
        if not self._running:
            return
        ids, logprobs = (torch.stack(list(new)).cpu().numpy() for new in self._new)  # (tokens, R)
        at = [i for i, _ in self._running]
        self.sampled[at] += len(ids)
        self.token[at] = ids[-1, at]
        running, ended = set(at), self.sampler.ended(ids, self.sampled)
        for i, row in enumerate(self.rows):
            if row is not None and (row.over or (i in running and ended[i])):
                self._leave(i)
        self._due = self._running, ids, logprobs

    def _leave(self, i: int) -> None:
        self.rows[i] = None
        if self.slots[i] is not self.own_slots[i]:
            self.spare.append(self.slots[i])
            self.slots[i] = self.own_slots[i]

    def hand_out(self) -> None:
        """Give the sequences the tokens that were sampled before the last check."""
        if self._due is not None:
            rows, ids, logprobs = self._due
            self._due = None
            for i, row in rows:
                if not row.over:
                    self.sampler.take(row, ids[:, i].tolist(), logprobs[:, i].tolist())

    def shrink(self) -> None:
        """Move the remaining sequences together into fewer rows, once none waits."""
        rows = row_size(len(self.occupied))
        if not self.occupied or rows >= len(self.rows):
            return
        movers = [i for i in self.occupied if i >= rows]
        holes = [i for i in self.free if i < rows][: len(movers)]
        order = list(range(rows))
        for hole, mover in zip(holes, movers, strict=True):
            order[hole] = mover
        if movers:
            self.pool.move(movers, holes)
        if movers and not self.decoding.flash:
            positions = int((self.prompt + self.sampled - 1)[movers].max())
            self.pool.copy([self.own_slots[i] for i in movers], [self.own_slots[i] for i in holes], positions)
        # Attention without slots reads the first ones, in their order.
        stay = order if self.decoding.flash else range(rows)
        self.own_slots, self.slots = ([slots[i] for i in stay] for slots in (self.own_slots, self.slots))
        self.rows = [self.rows[i] for i in order]
        self.sampled, self.token, self.prompt = (of[order] for of in (self.sampled, self.token, self.prompt))
        if self.seen is not None:
            self.seen = self.seen[placed(order, self.seen.device)]
