from types import SimpleNamespace

import pytest
import torch
from torch import Tensor
from transformers.cache_utils import DynamicLayer
from transformers.integrations.sdpa_attention import sdpa_attention_forward

from lite_selfplay.models.attention import attention
from lite_selfplay.models.generation.kv_cache import ROOM, RowLayer, join_masks
from tests.near import near


def states(rows: int, positions: int, seed: int) -> tuple[Tensor, Tensor]:
    generator = torch.Generator().manual_seed(seed)
    return tuple(torch.randn(rows, 2, positions, 4, generator=generator) for _ in range(2))


def held(layer: DynamicLayer) -> list[Tensor]:
    return [layer.keys, layer.values]


def both(rows: int, positions: int, seed: int = 0) -> tuple[RowLayer, DynamicLayer]:
    ours, theirs = RowLayer(), DynamicLayer()
    for layer in (ours, theirs):
        layer.update(*states(rows, positions, seed))
    return ours, theirs


def same(ours: DynamicLayer, theirs: DynamicLayer) -> bool:
    return all(torch.equal(a, b) for a, b in zip(held(ours), held(theirs), strict=True))


def test_tokens_written_in_place_are_those_that_transformers_appends():
    ours, theirs = both(3, 5)
    place = ours.keys.data_ptr()
    for step in range(3 * ROOM):  # more than once past the room that was allocated
        assert ours.update(*states(3, 1, step))[0] is ours.keys
        theirs.update(*states(3, 1, step))
        assert step >= ROOM or ours.keys.data_ptr() == place  # until then nothing is copied
    assert same(ours, theirs)
    assert ours.get_seq_length() == 5 + 3 * ROOM


def test_rows_that_leave_are_replaced_by_the_last_ones_and_selected_rows_are_copies():
    ours, theirs = both(6, 5)
    place = ours.keys.data_ptr()
    ours.keep(torch.tensor([1, 2]), torch.tensor([4, 5]), 4)  # rows 1, 2 leave; 4 and 5 move up
    theirs.reorder_cache(torch.tensor([0, 4, 5, 3]))
    assert same(ours, theirs)
    assert ours.keys.data_ptr() == place
    for layer in (ours, theirs):
        layer.update(*states(4, 1, 9))
        layer.reorder_cache(torch.tensor([1, 1, 0, 1, 3]))
        layer.update(*states(5, 2, 7))
    assert same(ours, theirs)


@pytest.mark.parametrize(("own", "new", "first"), [(6, 3, 0), (6, 3, 2), (4, 9, 1), (5, 5, 0)])
def test_rows_that_join_end_at_the_same_position(own, new, first):
    ours, _ = both(2, own)
    other, _ = both(3, new, seed=1)
    before, joining = [t[:, :, first:].clone() for t in held(ours)], [t.clone() for t in held(other)]
    ours.join(other, first)
    width = max(own - first, new)
    for tensor, old, added in zip(held(ours), before, joining, strict=True):
        assert tensor.shape == (5, 2, width, 4)
        assert torch.equal(tensor[:2, :, width - (own - first) :], old)
        assert torch.equal(tensor[2:, :, width - new :], added)
        assert not tensor[:2, :, : width - (own - first)].any()  # padding is zero: NaN would pass a mask
        assert not tensor[2:, :, : width - new].any()
    ours.update(*states(5, 1, 3))
    assert ours.get_seq_length() == width + 1


def test_the_masks_of_rows_that_join():
    mask = torch.tensor([[0, 1, 1, 1], [0, 0, 1, 1]])
    assert join_masks(mask, torch.tensor([[1, 1]]), 1).tolist() == [[1, 1, 1], [0, 1, 1], [0, 1, 1]]
    joined = join_masks(mask, torch.ones(1, 5, dtype=torch.long), 1).tolist()
    assert joined == [[0, 0, 1, 1, 1], [0, 0, 0, 1, 1], [1, 1, 1, 1, 1]]


@pytest.mark.parametrize("length", [1, 3])
@pytest.mark.parametrize("masked", [True, False])
@pytest.mark.parametrize("key_heads", [1, 2, 6])
def test_attention_of_one_token_is_that_of_transformers(length, masked, key_heads):
    torch.manual_seed(0)
    module = SimpleNamespace(num_key_value_groups=6 // key_heads, is_causal=True)
    query = torch.randn(4, 6, length, 8)
    key, value = torch.randn(4, key_heads, 10, 8), torch.randn(4, key_heads, 10, 5)
    mask = torch.rand(4, 1, length, 10) > 0.3 if masked else None
    ours, _ = attention(module, query, key, value, mask, scaling=0.2)
    theirs, _ = sdpa_attention_forward(module, query, key, value, mask, scaling=0.2)
    assert ours.shape == theirs.shape
    assert near(ours, theirs, 1e-6)
