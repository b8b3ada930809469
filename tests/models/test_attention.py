"""Attention over packed rows against torch's own, row by row, values and gradients."""

from typing import Any

import pytest
import torch
from torch import Tensor
from torch.nn.functional import scaled_dot_product_attention

from lite_selfplay.models import attention as module
from lite_selfplay.models.attention import Block, attend
from tests.near import near

# Two beginnings of 5 and 4 tokens, three rows of several lengths after the first, two after the second, a row alone.
BLOCKS = (Block(0, (5, 4)), Block(9, (3, 6, 5), range(5)), Block(23, (2, 2), range(5, 9)), Block(27, (7,)))
TOKENS = 34
SCALE = 0.3


def draw(heads: int, key_heads: int, size: int = 8, value_size: int = 8) -> list[Tensor]:
    """Queries, keys, values and a gradient of the output."""
    torch.manual_seed(0)
    shapes = (heads, size), (key_heads, size), (key_heads, value_size), (heads, value_size)
    return [torch.randn(TOKENS, *shape) for shape in shapes]


def row_by_row(q: Tensor, k: Tensor, v: Tensor) -> Tensor:
    out = []
    for block in BLOCKS:
        before = list(block.before)
        for own in torch.arange(block.start, block.start + sum(block.lengths)).split(block.lengths):
            seen = [*before, *own.tolist()]
            queries, keys, values = (x.transpose(0, 1)[None] for x in (q[own], k[seen], v[seen]))
            mask = torch.ones(len(own), len(seen), dtype=torch.bool).tril(len(before))
            said = scaled_dot_product_attention(queries, keys, values, mask, scale=SCALE, enable_gqa=True)
            out.append(said[0].transpose(0, 1))
    return torch.cat(out)


def values_and_gradients(attention: Any, q: Tensor, k: Tensor, v: Tensor, grad: Tensor) -> list[Tensor]:
    inputs = [x.clone().requires_grad_() for x in (q, k, v)]
    out = attention(*inputs)
    out.backward(grad.to(out.dtype))
    return [out.detach(), *(x.grad for x in inputs if x.grad is not None)]


def packed(q: Tensor, k: Tensor, v: Tensor) -> Tensor:
    return attend(q, k, v, BLOCKS, SCALE)


@pytest.mark.parametrize("scores", [1, 40, 2**20], ids=["a token at a time", "in pieces", "at once"])
@pytest.mark.parametrize(("heads", "key_heads", "value_size"), [(6, 2, 8), (4, 1, 8), (3, 3, 8), (6, 2, 5)])
def test_equal_to_attention_row_by_row(heads, key_heads, value_size, scores, monkeypatch):
    monkeypatch.setattr(module, "SCORES", scores)
    drawn = draw(heads, key_heads, value_size=value_size)
    found, right = (values_and_gradients(attention, *drawn) for attention in (packed, row_by_row))
    for mine, theirs in zip(found, right, strict=True):
        assert theirs.abs().max() > 0.1
        assert near(mine, theirs, 2e-6)


def test_in_bfloat16_it_is_as_near_to_the_truth_as_torchs_own():
    drawn = [x.bfloat16() for x in draw(6, 2, 64, 64)]
    truth = values_and_gradients(row_by_row, *(x.double() for x in drawn))

    found, right = (values_and_gradients(attention, *drawn) for attention in (packed, row_by_row))
    for true, *both in zip(truth, found, right, strict=True):
        mine, theirs = (float((x.double() - true).norm() / true.norm()) for x in both)
        assert mine < 1.5 * theirs + 1e-3
        assert mine < 0.01


def test_a_row_sees_its_beginning_and_nothing_of_what_comes_later_or_belongs_to_others():
    q, k, v, _ = draw(6, 2)
    before = packed(q, k, v)
    for token, sees in {
        4: [4, *range(9, 23)],  # the last of the first beginning: itself, and the rows after it
        12: range(12, 18),  # the first of the second row there
        33: [33],  # the last of the row that is alone
    }.items():
        other_k, other_v = k.clone(), v.clone()
        other_k[token] += 1.0
        other_v[token] += 1.0
        changed = (packed(q, other_k, other_v) != before).flatten(1).any(1).nonzero()[:, 0].tolist()
        assert changed == list(sees)


@pytest.mark.usefixtures("several_threads")
def test_gradients_are_the_same_every_time():
    torch.manual_seed(0)
    blocks = [Block(0, (255,)), Block(255, (40,) * 16, range(255))]
    q, k, v = (torch.randn(895, heads, 16) for heads in (4, 2, 2))
    grad = torch.randn(895, 4, 16)
    runs = [values_and_gradients(lambda *x: attend(*x, blocks, 0.25), q, k, v, grad) for _ in range(4)]
    assert all(all(map(torch.equal, run, runs[0])) for run in runs)
