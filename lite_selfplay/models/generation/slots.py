"""A KV-cache pool in which every sequence has a slot: nothing moves while tokens are sampled.

Token t of a sequence is at position t of its slot, so its length alone says which part is in use. The pool is kept from
call to call. Attention that is told where each row's keys begin allows slots of several lengths: many for most
completions, a few for the longest. Layers with a state have one for each row, and no positions. Shapes: `R` rows, `C`
positions of a slot, `N` of all slots, `K` key heads, `D` head size, `r` rows that start with `T` positions.
"""

from collections.abc import Sequence
from typing import Any

import numpy as np
import torch
from torch import Tensor, nn
from transformers.cache_utils import Cache, DynamicLayer

from lite_selfplay.models.attention import Slots
from lite_selfplay.models.generation.kv_cache import RowLayer, StateLayer, row_cache
from lite_selfplay.models.generation.layout import Layout, Slot
from lite_selfplay.models.generation.replay import Graphs
from lite_selfplay.models.transfers import placed


class SlotLayer(DynamicLayer):
    """One layer's keys and values (N * K, D); each token fills one position per row."""

    def __init__(self, like: RowLayer, positions: int):
        super().__init__()
        self.lazy_initialization(*like.held)
        self.heads = like.held[0].shape[1]
        # Zeros, because hidden positions are multiplied by zero and must be numbers.
        self.stores = tuple(held.new_zeros(positions * self.heads, held.shape[3]) for held in like.held)

    def aim(self, at: Tensor, rows: int, positions: int, width: int | None) -> None:
        """Prepare the next token: its keys go to the indices `at` (R, K). Attention gets the first `width` of
        `positions` in the first `rows` slots, or the whole store if `width` is None."""
        self._at = at
        if width is None:
            self._given = tuple(store[:, None] for store in self.stores)
        else:
            whole = (rows, self.heads, positions, -1)
            self._given = tuple(s[: rows * self.heads * positions].view(whole)[:, :, :width] for s in self.stores)
        self.keys, self.values = self._given

    def update(self, key_states: Tensor, value_states: Tensor, *_: Any, **__: Any) -> tuple[Tensor, Tensor]:
        for store, new in zip(self.stores, (key_states, value_states), strict=True):
            store.index_put_((self._at,), new[:, :, 0].to(store.dtype))
        keys, values = self._given
        return keys, values

    def put(self, other: RowLayer, sources: Tensor, positions: Tensor, to: Tensor, rows: Tensor) -> None:
        """Copy r rows from `other`: token t of row i is in its row `sources[i]` at `positions[i, t]`, and goes to the
        indices `to[i, :, t]`."""
        for store, held in zip(self.stores, other.held, strict=True):
            index = positions[:, None, :, None].expand(-1, held.shape[1], -1, held.shape[3])
            store.index_put_((to,), held[sources].gather(2, index))

    def copy(self, of: Tensor, to: Tensor) -> None:
        for store in self.stores:
            store.index_put_((to,), store[of])


class SlotState(StateLayer):
    """One layer's states, row i's at index i; each token overwrites them."""

    def __init__(self, like: StateLayer, rows: int):
        super().__init__(like.number_of_states)
        vars(self).update(vars(like))
        self.conv_states, self.recurrent_states = dict(like.conv_states), dict(like.recurrent_states)
        for kind, key in self.states:
            kind[key] = kind[key].new_zeros(rows, *kind[key].shape[1:])
        self.stores = [kind[key] for kind, key in self.states]

    def aim(self, at: Tensor, rows: int, positions: int, width: int | None) -> None:
        """Use the states of the first `rows` rows."""
        for (kind, key), store in zip(self.states, self.stores, strict=True):
            kind[key] = store[:rows]

    def put(self, other: StateLayer, sources: Tensor, positions: Tensor, to: Tensor, rows: Tensor) -> None:
        """Copy the other's row `sources[i]` to row `rows[i]`."""
        for (kind, key), store in zip(other.states, self.stores, strict=True):
            store[rows] = kind[key][sources]

    def move(self, of: Tensor, to: Tensor) -> None:
        for store in self.stores:
            store[to] = store[of]


class CachePool:
    """The memory of all slots, the inputs and outputs of a token step, and the graphs recorded over them.

    Adapters, prompts and calls come and go; graphs hold these tensors by address. `step` reads the `token` (R,) at each
    `position` (R,) and writes the rows' next `logits` (R, V).
    """

    def __init__(self, model: nn.Module, like: Cache, logits: Tensor, rows: int, positions: int):
        self.rows, self.positions = rows, positions
        self.cache = row_cache(model)
        self.cache.layers = [
            SlotState(layer, rows) if isinstance(layer, StateLayer) else SlotLayer(layer, positions)
            for layer in list[Any](like.layers)
        ]
        self.layers = [layer for layer in self.cache.layers if isinstance(layer, SlotLayer)]
        self.states = [layer for layer in self.cache.layers if isinstance(layer, SlotState)]
        self.heads, device = self.layers[0].heads, logits.device
        self.token, self.position = (torch.zeros(rows, dtype=torch.long, device=device) for _ in range(2))
        self.logits = logits.new_zeros(rows, logits.shape[1])
        self.starts = torch.zeros(rows * self.heads + 1, dtype=torch.int32, device=device)
        self._numbers = torch.arange(max(positions, rows * self.heads) + 1, dtype=torch.int32, device=device)
        self._hidden = self.layers[0].stores[0].new_tensor([0.0, -torch.inf])
        self.graphs = Graphs()

    def fits(self, layout: Layout, vocabulary: int) -> bool:
        return layout.rows <= self.rows and layout.total <= self.positions and vocabulary == self.logits.shape[1]

    def stage(self, slots: Sequence[Slot], token: np.ndarray, position: np.ndarray) -> None:
        """Set each row's slot, next token and position."""
        starts = [start for slot in slots for start in slot.starts(self.heads)]
        for to, numbers in ((self.token, token), (self.position, position), (self.starts, starts)):
            new = torch.as_tensor(numbers, dtype=to.dtype)
            to[: len(new)].copy_(placed(new, to.device))

    def step(self, model: Any, rows: int, longest: int, width: int | None) -> None:
        """Run the model on one token of each row: the same operations for the same arguments.

        Without a `width` attention is told where each row's keys are; otherwise all slots have `longest` positions, of
        which it reads `width`.
        """
        position = self.position[:rows]
        at = self.starts[: rows * self.heads].view(rows, self.heads) + position[:, None]
        for layer in list[Any](self.cache.layers):
            layer.aim(at, rows, longest, width)
        more: dict[str, Any] = {}
        if width is None:
            sequences = rows * self.heads
            lengths = (position + 1).to(torch.int32).repeat_interleave(self.heads, output_size=sequences)
            starts, ends = self.starts[: sequences + 1], self._numbers[: sequences + 1]
            more["slots"] = Slots(starts, lengths, ends, longest)
            mask = self._hidden[None, None, None]  # four dimensions, so that it is passed on; nothing reads it
        else:
            seen = self._numbers[:width] <= position[:, None]
            mask = torch.where(seen, self._hidden[0], self._hidden[1])[:, None, None]
        out = model(
            input_ids=self.token[:rows, None],
            attention_mask=mask,
            position_ids=position[:, None],
            past_key_values=self.cache,
            use_cache=True,
            **more,
        )
        self.logits[:rows].copy_(out.logits[:, -1])
        position += 1

    def put(self, cache: Cache, sources: Tensor, positions: Tensor, slots: Sequence[Slot], rows: Sequence[int]) -> None:
        """Copy rows of a cache into slots: see `SlotLayer.put` and `SlotState.put`."""
        to, index = self._positions(slots, positions.shape[1]), placed(rows, self.position.device)
        for layer, other in zip(list[Any](self.cache.layers), list[Any](cache.layers), strict=True):
            layer.put(other, sources, positions, to, index)

    def move(self, of: Sequence[int], to: Sequence[int]) -> None:
        """Copy the states of some rows to others."""
        source, target = (placed(rows, self.position.device) for rows in (of, to))
        for layer in self.states:
            layer.move(source, target)

    def copy(self, of: Sequence[Slot], to: Sequence[Slot], positions: int) -> None:
        """Copy the first `positions` of some slots into others."""
        source, target = (self._positions(slots, positions) for slots in (of, to))
        for layer in self.layers:
            layer.copy(source, target)

    def _positions(self, slots: Sequence[Slot], count: int) -> Tensor:
        """Where the first `count` positions of slots are in a store: (r, K, T)."""
        starts = placed([slot.starts(self.heads) for slot in slots], self.position.device)
        return starts[:, :, None] + self._numbers[:count]
