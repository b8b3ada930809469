"""Layers with their adapters, and layers that are recomputed in the backward pass without their products."""

from collections.abc import Callable
from functools import partial
from typing import Any
from unittest.mock import Mock

import pytest
import torch
from torch import Tensor
from torch.nn.functional import cosine_similarity, silu
from torch.utils.checkpoint import checkpoint

from lite_selfplay.models import linear as module
from lite_selfplay.models import memory
from lite_selfplay.models.attention import Block, attend
from lite_selfplay.models.backends import transformers
from lite_selfplay.models.linear import LowRank, blended, keeping_products
from lite_selfplay.models.logprobs.batch import Batch
from lite_selfplay.models.shapes import shape_of
from tests.models.watch import noted
from tests.near import near


def linear(x: Tensor, weight: Callable[[], Tensor], bias: Tensor | None, adapter: LowRank | None) -> Tensor:
    """The output of a layer that shares its input with no other."""
    (out,) = module.linear(x, [weight], [bias], [adapter])
    return out


def test_a_blend_by_hand():
    """Parents 2 x 3 e1 e1^T and 4 e2 e2^T have the mean diag(3, 2), of which rank 1 keeps diag(3, 0)."""
    eye, child = torch.eye(2), LowRank(torch.zeros(1, 2), torch.zeros(2, 1), 0.5)
    parents = [LowRank(3 * eye[:1], eye[:, :1], 2.0), LowRank(eye[1:], 4 * eye[:, 1:], 1.0)]
    down, up = blended(child, *parents)
    assert torch.allclose(0.5 * up @ down, torch.diag(torch.tensor([3.0, 0.0])).double())
    assert float(down.norm()) == pytest.approx(2)  # the parents' rows of down are 3 and 1 long
    again = blended(child, LowRank(down, up, 0.5), LowRank(down, up, 0.5))
    assert torch.allclose(again[1] @ again[0], up @ down)


@pytest.mark.parametrize("rank", [1, 3, 8])
def test_a_blend_is_the_nearest_matrix_of_its_rank(rank: int):
    torch.manual_seed(0)
    parents = [LowRank(torch.randn(r, 6), torch.randn(5, r), scale) for r, scale in ((3, 0.5), (2, 2.0))]
    child = LowRank(torch.randn(rank, 6), torch.randn(5, rank), 0.7)
    down, up = blended(child, *parents)
    mean = sum(one.scale * one.up @ one.down for one in parents) / 2
    u, values, vt = torch.linalg.svd(mean, full_matrices=False)
    values[rank:] = 0
    assert (down.shape, up.shape) == (child.down.shape, child.up.shape)
    assert torch.allclose(0.7 * up @ down, ((u * values) @ vt).double(), atol=1e-5)


def test_by_hand():
    # W = [[1, 2], [3, 4]], x = [1, 1]: [3, 7]. The adapter: down x = 1 - 2 = -1, times up [1, 10] times 0.5.
    numbers = [[1.0, 1.0]], [[1.0, -2.0]], [[1.0], [10.0]]
    x, down, up = (torch.tensor(each, requires_grad=True) for each in numbers)
    weight = torch.tensor([[1.0, 2.0], [3.0, 4.0]])
    out = linear(x, lambda: weight, torch.tensor([0.0, 1.0]), LowRank(down, up, 0.5))
    assert out.tolist() == [[2.5, 3.0]]
    out.backward(torch.tensor([[1.0, 1.0]]))
    assert x.grad.tolist() == [[9.5, -5.0]]  # columns of W add up to 4, 6; 0.5 * (1 + 10) * down is 5.5, -11
    assert down.grad.tolist() == [[5.5, 5.5]]
    assert up.grad.tolist() == [[-0.5], [-0.5]]


@pytest.mark.parametrize("bias", [True, False])
@pytest.mark.parametrize("shape", [(7,), (2, 5), (3, 1, 2)])
def test_values_and_gradients_are_those_of_the_plain_formula(bias, shape):
    torch.manual_seed(0)
    weight, b = torch.randn(6, 4), torch.randn(6) if bias else None
    down, up = torch.randn(3, 4, requires_grad=True), torch.randn(6, 3, requires_grad=True)
    x = torch.randn(*shape, 4, requires_grad=True)
    towards = torch.randn(*shape, 6)
    plain = torch.nn.functional.linear(x, weight, b) + 0.7 * (x @ down.T) @ up.T
    expected = torch.autograd.grad((plain * towards).sum(), (x, down, up))
    ours = linear(x, lambda: weight, b, LowRank(down, up, 0.7))
    found = torch.autograd.grad((ours * towards).sum(), (x, down, up))
    assert near(ours, plain)
    assert all(near(a, e) for a, e in zip(found, expected, strict=True))
    frozen = linear(x, lambda: weight, b, None)
    assert near(frozen, torch.nn.functional.linear(x, weight, b), 1e-6)
    assert near(torch.autograd.grad((frozen * towards).sum(), x)[0], towards @ weight)


OUTPUTS, RANKS, SCALES = (6, 2, 3), (3, 1, 2), (0.7, 1.0, 2.0)


def several(x: Tensor, **drawn: Any) -> tuple[list[Tensor], list[Tensor], Callable[[Tensor], Any]]:
    """Three layers of x with a bias in two of them: the plain formula's outputs, the adapters, and the layers."""
    torch.manual_seed(1)
    weights = [torch.randn(out, x.shape[-1], **drawn) for out in OUTPUTS]
    biases = [torch.randn(6, **drawn), None, torch.randn(3, **drawn)]
    shapes = zip(OUTPUTS, RANKS, SCALES, strict=True)
    adapters = [LowRank(torch.randn(r, x.shape[-1], **drawn), torch.randn(out, r, **drawn), s) for out, r, s in shapes]
    matrices = [matrix.requires_grad_() for down, up, _ in adapters for matrix in (down, up)]
    plain = [
        torch.nn.functional.linear(x, w, b) + scale * (x @ down.T) @ up.T
        for w, b, (down, up, scale) in zip(weights, biases, adapters, strict=True)
    ]
    asked = [(lambda weight=weight: weight) for weight in weights]
    return plain, matrices, lambda given: module.linear(given, asked, biases, adapters)


@pytest.mark.parametrize("used", [(0, 1, 2), (0, 2), (1,)], ids=str)
def test_layers_with_the_same_input_are_those_computed_alone(used):
    """Exactly, with adapters of other ranks and scales, and also if an output gets no gradient."""
    x = torch.randn(2, 5, 4, dtype=torch.float64, generator=torch.Generator().manual_seed(0)).requires_grad_()
    plain, matrices, layers = several(x, dtype=torch.float64)
    outs = layers(x)
    assert all(map(torch.allclose, outs, plain))
    expected, found = (
        torch.autograd.grad(sum((of[i] * of[i].sin()).sum() for i in used), (x, *matrices), materialize_grads=True)
        for of in (plain, outs)
    )
    assert all(map(torch.allclose, found, expected))
    assert any(grad.abs().sum() > 0 for grad in found)


def test_layers_with_the_same_input_are_recomputed_without_their_products():
    x = torch.randn(7, 4, generator=torch.Generator().manual_seed(0)).requires_grad_()
    _, matrices, layers = several(x)

    def block(given: Tensor) -> Tensor:
        first, second, third = layers(given.sin())
        return torch.cat([silu(first), second * second, third.cos()], 1)

    expected, found = (
        torch.autograd.grad(run(x).square().sum(), (x, *matrices))
        for run in (block, partial(again_but_for_products, block))
    )
    assert all(map(torch.equal, found, expected))


def test_only_what_asks_for_a_gradient_gets_one_and_the_weight_is_not_kept():
    weight = Mock(return_value=torch.ones(2, 2))
    down, up = torch.ones(1, 2, requires_grad=True), torch.ones(2, 1)
    linear(torch.ones(3, 2), weight, None, LowRank(down, up, 1.0)).sum().backward()
    assert down.grad is not None
    assert up.grad is None
    assert weight.call_count == 1  # the input is frozen, as in a first layer: nothing is multiplied by W again
    linear(torch.ones(3, 2, requires_grad=True), weight, None, LowRank(down, up, 1.0)).sum().backward()
    assert weight.call_count == 3


@pytest.mark.parametrize("precision", ["4bit-fp32", "4bit-bf16", "fp32", "bf16"])
def test_a_model_has_the_gradients_that_peft_gives(make_backend, precision):
    held, _, multiplied = precision.partition("-")
    backend = make_backend(held, **({"compute_dtype": multiplied} if multiplied else {}))
    ids = torch.randint(10, 200, (3, 12), generator=torch.Generator().manual_seed(0)).to(backend.device)
    adapters = backend.adapters

    def gradients():
        adapters.activate("B")
        adapters.model.zero_grad()
        logits = adapters.model(input_ids=ids).logits.float()
        logits.log_softmax(-1)[..., 5].mean().backward()
        return logits.detach(), {name: p.grad.clone() for name, p in adapters.parameters("B").items()}

    logits, ours = gradients()
    assert all(p.grad is None for p in adapters.parameters("A").values())
    for layer in adapters._layers.values():
        del layer.forward
    expected_logits, theirs = gradients()
    exact = precision.endswith("fp32")
    difference = (logits - expected_logits).abs()
    assert difference.max() < 1e-5 if exact else difference.mean() < 0.05
    assert any(grad.abs().max() > 0 for grad in ours.values())
    for name, grad in ours.items():
        same = cosine_similarity(grad.flatten(), theirs[name].flatten(), dim=0)
        assert same > (0.99999 if exact else 0.995) or theirs[name].abs().max() == 0, name
    both = [torch.cat([g.flatten() for g in grads.values()]) for grads in (ours, theirs)]
    assert cosine_similarity(*both, dim=0) > (0.999999 if exact else 0.9995)


# Computed again, but for their products


class Weights:
    """A layer's matrices, and how often each was requested."""

    def __init__(self) -> None:
        torch.manual_seed(0)
        self.into, self.out_of = torch.randn(6, 4), torch.randn(4, 6)
        self.down, self.up = torch.randn(2, 4, requires_grad=True), torch.randn(6, 2, requires_grad=True)
        self.asked: list[str] = []

    def ask(self, name: str) -> Callable[[], Tensor]:
        return lambda: (self.asked.append(name), getattr(self, name))[1]

    def layer(self, x: Tensor) -> Tensor:
        """Two products, the first with an adapter, and recomputed operations between them."""
        inside = linear(x, self.ask("into"), None, LowRank(self.down, self.up, 0.5))
        return x + linear(silu(inside), self.ask("out_of"), None, None)

    def changed(self, x: Tensor) -> Tensor:
        """Two products; the first one's result is changed in place."""
        inside = linear(x, self.ask("into"), None, None).mul_(2.0)
        return linear(silu(inside), self.ask("out_of"), None, LowRank(self.up.T, self.down.T, 1.0))


again = partial(checkpoint, use_reentrant=False)
again_but_for_products = partial(again, context_fn=keeping_products)


def gradients(weights: Weights, layer: Callable[[Tensor], Tensor], through: Any = None) -> tuple[Tensor, ...]:
    """Gradients of two layers: the second must not reuse the first one's products."""
    run = partial(through, layer) if through else layer
    x = torch.linspace(-1, 1, 12).view(3, 4).requires_grad_()
    return torch.autograd.grad(run(run(x)).square().sum(), (x, weights.down, weights.up))


def test_gradients_are_the_same_and_no_product_is_computed_twice():
    weights = Weights()
    expected = gradients(weights, weights.layer)
    once = len(weights.asked)
    assert once == 8  # two layers of two products, forwards and backwards
    assert all(map(torch.equal, gradients(weights, weights.layer, again_but_for_products), expected))
    assert len(weights.asked) == 2 * once
    assert all(map(torch.equal, gradients(weights, weights.layer, again), expected))
    assert len(weights.asked) > 3 * once
    assert module._pass is None


def test_what_was_changed_in_place_and_a_second_backward_pass_are_computed_again():
    weights = Weights()
    changed, right = (gradients(weights, weights.changed, through) for through in (again_but_for_products, None))
    assert all(map(torch.equal, changed, right))
    x = torch.ones(3, 4, requires_grad=True)
    out = again_but_for_products(weights.layer, x).sum()
    first = torch.autograd.grad(out, (x, weights.down), retain_graph=True)
    before = len(weights.asked)
    assert all(map(torch.equal, torch.autograd.grad(out, (x, weights.down)), first))
    assert weights.asked[before:].count("into") == 2  # forwards again, and backwards


def test_attention_is_kept_as_well(monkeypatch):
    torch.manual_seed(0)
    q, k, v = (torch.randn(7, heads, 4, requires_grad=True) for heads in (4, 2, 2))
    computed = noted(monkeypatch, Block, "rectangle", lambda *given: None)

    def layer(q):
        return attend(q.sin(), k, v, [Block(0, (3, 4))], 0.5).square()

    expected = torch.autograd.grad(layer(q).sum(), (q, k, v))
    once = len(computed)
    found = torch.autograd.grad(again_but_for_products(layer, q).sum(), (q, k, v))
    assert all(map(torch.equal, found, expected))
    assert len(computed) == 2 * once


def test_an_update_without_its_products_is_that_of_a_base_that_keeps_everything(make_backend, monkeypatch):
    rows = [([3, 4, 5], [6, 7, 8, 9]), ([3, 4, 5], [10, 11]), ([12, 13], [14, 15, 16])]
    asked = noted(monkeypatch, transformers, "dense_weight", lambda *layer, **options: None)

    def update(keeps, **options):
        backend = make_backend("4bit", compute_dtype="fp32", **options)
        assert (backend._checkpointing, backend._keeps_products) == keeps
        backend.adapters.activate("A")
        before = len(asked)
        with backend.updating():
            logprobs, _ = backend.token_logprobs(Batch.of(rows, backend.way()))
            logprobs.sum().backward()
        found = {name: one.grad for name, one in backend.adapters.parameters("A").items()}
        backend.close()
        return found, len(asked) - before

    everything, _ = update((False, False), gradient_checkpointing=False)
    inputs_alone, with_products = update((True, False), gradient_checkpointing=True)
    tiny = shape_of("tiny")
    monkeypatch.setattr(memory, "KEPT_ON_CPU", tiny.layers * memory.product_bytes(tiny, 4))
    products_too, without = update((True, True))
    assert with_products - without == len(tiny.linears)
    for found in (products_too, inputs_alone):
        assert all(torch.equal(found[name], everything[name]) for name in everything)
    assert any(one.abs().sum() > 0 for one in everything.values())
