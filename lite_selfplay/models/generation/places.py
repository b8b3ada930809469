"""Keys and values where every row has its place: nothing moves while tokens are drawn, however long a row gets.

Token t of a row is in column t of its place, so a place is as long as the longest prompt and completion, and is taken
from the start. What is in use of it is a view: growing copies nothing, and a row that ends makes room for another one.
Shapes: `R` places, `C` columns, `K` key heads, `D` head size, `r` rows that come in with `T` columns.
"""

from typing import Any

from torch import Tensor, nn
from transformers.cache_utils import Cache, DynamicLayer

from lite_selfplay.models.generation.cache import RowLayer, row_cache

FINEST = 128
"""Columns by which a view grows at the least, and what those of a place are a multiple of: so other calls fit into the
same places, and attention on a card need not copy the mask, as it does where its rows are not aligned."""


def rounded_up(count: int, finest: int = 1) -> int:
    """`count` in steps of an eighth to a quarter of it, and of `finest` at the least: few sizes, and little unused."""
    step = max(finest, 1 << max(0, (count - 1).bit_length() - 3))
    return -(-count // step) * step


class PlaceLayer(DynamicLayer):
    """One layer's keys and values (R, K, C, D), to which each token adds a column a row."""

    def __init__(self, like: RowLayer, rows: int, columns: int):
        super().__init__()
        self.lazy_initialization(*like.held)
        # Zeros: what a row may not see yet is multiplied by zero, and must be a number.
        self.stores = tuple(held.new_zeros(rows, held.shape[1], columns, held.shape[3]) for held in like.held)

    def view(self, rows: int, columns: int, position: Tensor) -> None:
        """From now on the first `rows` places are in use, up to `columns`; the next token goes to `position` (R,)."""
        self._rows, self._at = rows, position[:, None, None, None]
        keys, values = (store[:rows, :, :columns] for store in self.stores)
        self._view = self.keys, self.values = keys, values

    def update(self, key_states: Tensor, value_states: Tensor, *_: Any, **__: Any) -> tuple[Tensor, Tensor]:
        """One token of every row in use."""
        for store, new in zip(self.stores, (key_states, value_states), strict=True):
            rows = store[: self._rows]
            rows.scatter_(2, self._at.expand_as(new), new.to(store.dtype))
        return self._view

    def put(self, other: RowLayer, sources: Tensor, columns: Tensor, places: Tensor) -> None:
        """Rows come into `places` (r,): token t of row i is in the other's row `sources[i]`, column `columns[i, t]`."""
        for store, held in zip(self.stores, other.held, strict=True):
            index = columns[:, None, :, None].expand(-1, held.shape[1], -1, held.shape[3])
            store[places, :, : columns.shape[1]] = held[sources].gather(2, index)

    def move(self, holes: Tensor, movers: Tensor, columns: int) -> None:
        """The rows at `movers` go to `holes`."""
        for store in self.stores:
            store[holes, :, :columns] = store[movers, :, :columns]


def place_cache(model: nn.Module, like: Cache, rows: int, columns: int) -> Cache:
    """A cache of `rows` places of `columns` for a model whose cache holds every token: see `cache.rows_may_join`."""
    cache = row_cache(model)
    layers: list[Any] = like.layers
    cache.layers = [PlaceLayer(layer, rows, columns) for layer in layers]
    return cache
