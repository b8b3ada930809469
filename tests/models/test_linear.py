from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch import Tensor

from lite_selfplay.models.linear import LowRank, linear
from tests.near import near


def test_by_hand():
    # W = [[1, 2], [3, 4]], x = [1, 1]: [3, 7]. The adapter: down x = 1 - 2 = -1, times up [1, 10] times 0.5.
    x = torch.tensor([[1.0, 1.0]], requires_grad=True)
    down = torch.tensor([[1.0, -2.0]], requires_grad=True)
    up = torch.tensor([[1.0], [10.0]], requires_grad=True)
    weight = torch.tensor([[1.0, 2.0], [3.0, 4.0]])
    out = linear(x, lambda: weight, torch.tensor([0.0, 1.0]), LowRank(down, up, 0.5))
    assert out.tolist() == [[2.5, 3.0]]
    out.backward(torch.tensor([[1.0, 1.0]]))
    assert x.grad.tolist() == [[9.5, -5.0]]  # columns of W add up to 4, 6; 0.5 * (1 + 10) * down is 5.5, -11
    assert down.grad.tolist() == [[5.5, 5.5]]
    assert up.grad.tolist() == [[-0.5], [-0.5]]


@pytest.mark.parametrize("bias", [True, False])
@pytest.mark.parametrize("shape", [(7,), (2, 5), (3, 1, 2)])
def test_values_and_gradients_are_those_of_the_plain_formula(bias: bool, shape: tuple[int, ...]):
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


def test_only_what_asks_for_a_gradient_gets_one_and_the_weight_is_not_kept():
    asked: list[None] = []

    def weight() -> Tensor:
        asked.append(None)
        return torch.ones(2, 2)

    down, up = torch.ones(1, 2, requires_grad=True), torch.ones(2, 1)
    linear(torch.ones(3, 2), weight, None, LowRank(down, up, 1.0)).sum().backward()
    assert down.grad is not None
    assert up.grad is None
    assert len(asked) == 1  # the input is frozen, as in a first layer: nothing is multiplied by W again
    linear(torch.ones(3, 2, requires_grad=True), weight, None, LowRank(down, up, 1.0)).sum().backward()
    assert len(asked) == 3


@pytest.mark.parametrize("precision", ["4bit-fp32", "4bit-bf16", "fp32", "bf16"])
def test_a_model_has_the_gradients_that_peft_gives(make_backend: Callable[..., Any], precision: str):
    held, _, multiplied = precision.partition("-")
    backend = make_backend(held, **({"compute_dtype": multiplied} if multiplied else {}))
    ids = torch.randint(10, 200, (3, 12), generator=torch.Generator().manual_seed(0)).to(backend.device)
    adapters = backend.adapters

    def gradients() -> tuple[Tensor, dict[str, Tensor]]:
        adapters.activate("B")
        adapters.model.zero_grad()
        logits = adapters.model(input_ids=ids).logits.float()
        logits.log_softmax(-1)[..., 5].mean().backward()
        return logits.detach(), {name: p.grad.clone() for name, p in adapters.parameters("B").items()}

    logits, ours = gradients()
    assert all(p.grad is None for p in adapters.parameters("A").values())
    for layer in adapters._layers():
        del layer.forward
    expected_logits, theirs = gradients()
    exact = precision.endswith("fp32")
    difference = (logits - expected_logits).abs()
    assert difference.max() < 1e-5 if exact else difference.mean() < 0.05
    assert any(grad.abs().max() > 0 for grad in ours.values())
    for name, grad in ours.items():
        same = torch.nn.functional.cosine_similarity(grad.flatten(), theirs[name].flatten(), dim=0)
        assert same > (0.99999 if exact else 0.995) or theirs[name].abs().max() == 0, name
    both = [torch.cat([g.flatten() for g in grads.values()]) for grads in (ours, theirs)]
    assert torch.nn.functional.cosine_similarity(*both, dim=0) > (0.999999 if exact else 0.9995)
