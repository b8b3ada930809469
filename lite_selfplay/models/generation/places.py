"""Keys and values where every row has its place: nothing moves while tokens are drawn, however long a row gets.

Token t of a row is in column t of its place, so a row that ends makes room for another one, and what is in use of a
place is known by its row's length alone. All places lie in one arena, which is kept from call to call. Where attention
is told where each row's keys begin, places may be of several lengths: many that hold most completions, and few that
hold the longest. A layer that carries a state has one for each row, and no columns. Shapes: `R` rows, `C` columns of a
place, `N` of all places, `K` key heads, `D` head size, `r` rows that come in with `T` columns.
"""

from collections.abc import Sequence
from typing import Any

import numpy as np
import torch
from torch import Tensor, nn
from transformers.cache_utils import Cache, DynamicLayer

from lite_selfplay.models.attention import Places
from lite_selfplay.models.generation.kv_cache import RowLayer, StateLayer, row_cache
from lite_selfplay.models.generation.layout import Layout, Place
from lite_selfplay.models.generation.replay import Graphs
from lite_selfplay.models.transfers import placed


class PlaceLayer(DynamicLayer):
    """One layer's keys and values (N * K, D), to which each token adds a column a row."""

    def __init__(self, like: RowLayer, columns: int):
        super().__init__()
        self.lazy_initialization(*like.held)
        self.heads = like.held[0].shape[1]
        # Zeros: what a row may not see yet is multiplied by zero, and must be a number.
        self.stores = tuple(held.new_zeros(columns * self.heads, held.shape[3]) for held in like.held)

    def aim(self, at: Tensor, rows: int, columns: int, width: int | None) -> None:
        """The next token's keys go to `at` (R, K). Attention is given the first `rows` places of `columns` as far as
        `width`, or with None the store as it is."""
        self._at = at
        if width is None:
            self._given = tuple(store[:, None] for store in self.stores)
        else:
            whole = (rows, self.heads, columns, -1)
            self._given = tuple(s[: rows * self.heads * columns].view(whole)[:, :, :width] for s in self.stores)
        self.keys, self.values = self._given

    def update(self, key_states: Tensor, value_states: Tensor, *_: Any, **__: Any) -> tuple[Tensor, Tensor]:
        """One token of every row in use."""
        for store, new in zip(self.stores, (key_states, value_states), strict=True):
            store.index_put_((self._at,), new[:, :, 0].to(store.dtype))
        keys, values = self._given
        return keys, values

    def put(self, other: RowLayer, sources: Tensor, columns: Tensor, to: Tensor) -> None:
        """Rows come: token t of row i, in the other's row `sources[i]` and column `columns[i, t]`, goes to `to` (r, K,
        T)."""
        for store, held in zip(self.stores, other.held, strict=True):
            index = columns[:, None, :, None].expand(-1, held.shape[1], -1, held.shape[3])
            store.index_put_((to,), held[sources].gather(2, index))

    def copy(self, of: Tensor, to: Tensor) -> None:
        for store in self.stores:
            store.index_put_((to,), store[of])


class PlaceState(StateLayer):
    """One layer's states, in which row i always has index i; each token overwrites them."""

    def __init__(self, like: StateLayer, rows: int):
        super().__init__(like.number_of_states)
        vars(self).update(vars(like))
        self.conv_states, self.recurrent_states = dict(like.conv_states), dict(like.recurrent_states)
        for kind, key in self.states:
            kind[key] = kind[key].new_zeros(rows, *kind[key].shape[1:])
        self.stores = [kind[key] for kind, key in self.states]

    def aim(self, at: Tensor, rows: int, columns: int, width: int | None) -> None:
        """The next token is one of the first `rows` rows."""
        for (kind, key), store in zip(self.states, self.stores, strict=True):
            kind[key] = store[:rows]

    def put(self, other: StateLayer, sources: Tensor, rows: Tensor) -> None:
        """The other's row `sources[i]` comes in as row `rows[i]`."""
        for (kind, key), store in zip(other.states, self.stores, strict=True):
            store[rows] = kind[key][sources]

    def move(self, of: Tensor, to: Tensor) -> None:
        for store in self.stores:
            store[to] = store[of]


class Arena:
    """The memory in which rows have their places, what a token of each is computed from and gives, and the graphs that
    were recorded over it. `adapters`, prompts and calls come and go; graphs hold its tensors by their addresses.

    `logits` (R, V) are of the rows' next tokens once `step` has read the `token` (R,) at each `position` (R,).
    """

    def __init__(self, model: nn.Module, like: Cache, logits: Tensor, rows: int, columns: int):
        self.rows, self.columns = rows, columns
        self.cache = row_cache(model)
        layers: list[Any] = like.layers
        self.cache.layers = [
            PlaceState(layer, rows) if isinstance(layer, StateLayer) else PlaceLayer(layer, columns) for layer in layers
        ]
        self.layers = [layer for layer in self.cache.layers if isinstance(layer, PlaceLayer)]
        self.states = [layer for layer in self.cache.layers if isinstance(layer, PlaceState)]
        self.heads, device = self.layers[0].heads, logits.device
        self.token, self.position = (torch.zeros(rows, dtype=torch.long, device=device) for _ in range(2))
        self.logits = logits.new_zeros(rows, logits.shape[1])
        self.starts = torch.zeros(rows * self.heads + 1, dtype=torch.int32, device=device)
        self._numbers = torch.arange(max(columns, rows * self.heads) + 1, dtype=torch.int32, device=device)
        self._hidden = self.layers[0].stores[0].new_tensor([0.0, -torch.inf])
        self.graphs = Graphs()

    def fits(self, layout: Layout, vocabulary: int) -> bool:
        return layout.rows <= self.rows and layout.total <= self.columns and vocabulary == self.logits.shape[1]

    def forget(self) -> None:
        """Let go of the graphs, whose memory is wanted at once."""
        self.graphs.forget()

    def stage(self, places: Sequence[Place], token: np.ndarray, position: np.ndarray) -> None:
        """Say where each row is, which token of it is read next, and in which column."""
        starts = [start for place in places for start in place.starts(self.heads)]
        for to, numbers in ((self.token, token), (self.position, position), (self.starts, starts)):
            new = torch.as_tensor(numbers, dtype=to.dtype)
            to[: len(new)].copy_(placed(new, to.device))

    def step(self, model: Any, rows: int, longest: int, width: int | None) -> None:
        """Read the token of every row: the same operations for as many rows and columns. Without a `width` attention is
        told where each row's keys are, elsewhere all have `longest` columns, of which so many are looked at."""
        position = self.position[:rows]
        at = self.starts[: rows * self.heads].view(rows, self.heads) + position[:, None]
        layers: list[Any] = self.cache.layers
        for layer in layers:
            layer.aim(at, rows, longest, width)
        more: dict[str, Any] = {}
        if width is None:
            sequences = rows * self.heads
            lengths = (position + 1).to(torch.int32).repeat_interleave(self.heads, output_size=sequences)
            starts, ends = self.starts[: sequences + 1], self._numbers[: sequences + 1]
            more["places"] = Places(starts, lengths, ends, longest)
            mask = self._hidden[None, None, None]  # handed on for having four dimensions, and not looked at
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

    def put(self, cache: Cache, sources: Tensor, columns: Tensor, places: Sequence[Place], rows: Sequence[int]) -> None:
        """Rows come into places: see `PlaceLayer.put` and `PlaceState.put`."""
        to, index = self._columns(places, columns.shape[1]), placed(rows, self.position.device)
        layers: list[Any] = self.cache.layers
        for layer, other in zip(layers, list[Any](cache.layers), strict=True):
            if isinstance(layer, PlaceState):
                layer.put(other, sources, index)
            else:
                layer.put(other, sources, columns, to)

    def move(self, of: Sequence[int], to: Sequence[int]) -> None:
        """The states of some rows go to others."""
        source, target = (placed(rows, self.position.device) for rows in (of, to))
        for layer in self.states:
            layer.move(source, target)

    def copy(self, of: Sequence[Place], to: Sequence[Place], columns: int) -> None:
        """The first `columns` of some places go into others."""
        source, target = (self._columns(places, columns) for places in (of, to))
        for layer in self.layers:
            layer.copy(source, target)

    def _columns(self, places: Sequence[Place], columns: int) -> Tensor:
        """Where the first columns of places are in a store: (r, K, T)."""
        starts = placed([place.starts(self.heads) for place in places], self.position.device)
        return starts[:, :, None] + self._numbers[:columns]
