"""Keys, values and states of a batch whose rows join and leave while it is sampled.

Shapes: `R` rows, `T` positions read so far, `K` key heads, `D` head size. A row's tokens end at the last position; the
attention mask hides the padding before them.
"""

from collections.abc import Sequence
from typing import Any

import torch
from torch import Tensor, nn
from transformers.cache_utils import Cache, DynamicCache, DynamicLayer, LinearAttentionLayer

ROOM = 64
"""The fewest spare positions to allocate, because growing copies everything."""


class RowLayer(DynamicLayer):
    """One layer's keys and values (R, K, T, D), written in place into a larger allocation. A token, or a row that joins
    or leaves, copies only itself, not the batch. Only for layers that keep every position, and without gradients."""

    def __init__(self) -> None:
        super().__init__()
        self._stores: tuple[Tensor, ...] = ()
        self.held: tuple[Tensor, ...] = ()  # the used part of keys and values

    def update(self, key_states: Tensor, value_states: Tensor, *_: Any, **__: Any) -> tuple[Tensor, Tensor]:
        if not self._stores:
            self.lazy_initialization(key_states, value_states)
            self.held = tuple(new[:, :, :0] for new in (key_states, value_states))
        rows, begin = key_states.shape[0], self.held[0].shape[2]
        end = begin + key_states.shape[2]
        if not self._stores or end > self._stores[0].shape[2]:
            self._move(rows, 0, 0, end + max(ROOM, end // 4))
        for store, new in zip(self._stores, (key_states, value_states), strict=True):
            store[:rows, :, begin:end] = new
        return self._hold(rows, end)

    def keep(self, holes: Tensor, movers: Tensor, rows: int) -> None:
        """Keep `rows` rows: move those at `movers` to `holes`, and cut off the end."""
        positions = self.held[0].shape[2]
        for store in self._stores:
            store[holes, :, :positions] = store[movers, :, :positions]
        self._hold(rows, positions)

    def join(self, other: "RowLayer", first: int) -> None:
        """Append the rows of another layer, and drop own positions before `first`, which nothing uses any more."""
        own, positions = self.held[0].shape[0], self.held[0].shape[2] - first
        rows, theirs = own + other.held[0].shape[0], other.held[0].shape[2]
        width = max(positions, theirs)
        self._move(rows, first, width - positions, width + ROOM)
        for store, new in zip(self._stores, other.held, strict=True):
            store[own:rows, :, : width - theirs] = 0
            store[own:rows, :, width - theirs : width] = new
        self._hold(rows, width)

    def reorder_cache(self, beam_idx: Tensor) -> None:
        """Make row i a copy of row `beam_idx[i]`."""
        self.held = tuple(held[beam_idx] for held in self.held)
        self._move(len(beam_idx), 0, 0, self.held[0].shape[2] + ROOM)
        self._hold(len(beam_idx), self.held[0].shape[2])

    def _move(self, rows: int, first: int, shift: int, capacity: int) -> None:
        """Copy the positions from `first` on into a new allocation, after `shift` positions of zeros."""
        self._stores = tuple(held.new_empty(rows, held.shape[1], capacity, held.shape[3]) for held in self.held)
        for store, held in zip(self._stores, self.held, strict=True):
            store[: len(held), :, :shift] = 0
            store[: len(held), :, shift : shift + held.shape[2] - first] = held[:, :, first:]

    def _hold(self, rows: int, positions: int) -> tuple[Tensor, Tensor]:
        self.keys, self.values = (store[:rows, :, :positions] for store in self._stores)
        self.held = self.keys, self.values
        return self.keys, self.values


class StateLayer(LinearAttentionLayer):
    """One layer's states, each a tensor (R, ...); tokens change a row's state and add no position."""

    @property
    def states(self) -> list[tuple[dict[int, Any], int]]:
        """Each of the layer's states, as a dictionary and its key there."""
        kinds = (self.conv_states, self.recurrent_states)
        return [(kind, key) for kind in kinds for key, state in kind.items() if state is not None]

    def join(self, other: "StateLayer", first: int) -> None:
        """Append the rows of another layer; there are no positions to drop."""
        for (own, key), (new, _) in zip(self.states, other.states, strict=True):
            own[key] = torch.cat([own[key], new[key]])


def row_cache(model: nn.Module) -> Cache:
    """A cache for a causal language model: `RowLayer`s for layers that keep every position, `StateLayer`s for those
    with a state. With layers of other kinds no rows can join."""
    base: Any = getattr(model, "get_base_model", lambda: model)()
    cache = DynamicCache(config=base.config)
    cache.layers = [_joining(layer) for layer in cache.layers]
    return cache


def _joining(layer: Any) -> Any:
    if type(layer) is LinearAttentionLayer:
        return StateLayer(layer.number_of_states)
    return RowLayer() if type(layer) is DynamicLayer else layer


def keep_rows(cache: Cache, holes: Sequence[int], movers: Sequence[int], order: Tensor) -> None:
    """Keep some rows, by `RowLayer.keep` or, in other layers, as the selection `order` (rows,)."""
    to, taken = (torch.tensor(indices, dtype=torch.long, device=order.device) for indices in (holes, movers))
    for layer in list[Any](cache.layers):
        if isinstance(layer, RowLayer):
            layer.keep(to, taken, len(order))
        else:
            layer.reorder_cache(order)


def join_masks(mask: Tensor, other: Tensor, first: int) -> Tensor:
    """The attention mask (R, T) after `RowLayer.join`."""
    mask = mask[:, first:]
    width = max(mask.shape[1], other.shape[1])
    return torch.cat([nn.functional.pad(m, (width - m.shape[1], 0)) for m in (mask, other)])
