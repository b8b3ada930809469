"""Fused gated products and norms on a CPU: the model's numbers, and the gradients of the formulas."""

from collections import Counter
from collections.abc import Callable

import pytest
import torch
from torch import Tensor, nn
from transformers.models.gemma.modeling_gemma import GemmaRMSNorm
from transformers.models.llama.configuration_llama import LlamaConfig
from transformers.models.llama.modeling_llama import LlamaMLP, LlamaRMSNorm

from lite_selfplay.models import fused
from tests.near import near

DTYPES = [torch.float32, torch.bfloat16]


def drawn(*shape: int, dtype: torch.dtype = torch.float32, seed: int = 0) -> Tensor:
    return torch.randn(*shape, generator=torch.Generator().manual_seed(seed)).to(dtype)


def gradients(of: Callable[..., Tensor], *inputs: Tensor) -> list[Tensor]:
    """The result for some inputs, and their gradients."""
    leaves = [one.clone().requires_grad_() for one in inputs]
    out = of(*leaves)
    return [out.detach(), *torch.autograd.grad(out, leaves, drawn(*out.shape, dtype=out.dtype, seed=9))]


# Gates


def test_a_gated_product_by_hand():
    """silu(0) = 0 with slope 1/2; silu(x) = x - silu(-x) and silu'(x) + silu'(-x) = 1."""
    gate, up = torch.tensor([0.0, 2.0], requires_grad=True), torch.tensor([3.0, 5.0], requires_grad=True)
    out = fused._Gated.apply(gate, up)
    sigmoid = 1 / (1 + torch.tensor(-2.0).exp())
    assert out.tolist() == pytest.approx([0.0, 2 * sigmoid.item() * 5])
    to_gate, to_up = torch.autograd.grad(out, (gate, up), torch.tensor([10.0, 1.0]))
    slope = sigmoid * (1 + 2 * (1 - sigmoid))
    assert to_gate.tolist() == pytest.approx([10 * 0.5 * 3, slope.item() * 5])
    assert to_up.tolist() == pytest.approx([0.0, 2 * sigmoid.item()])


@pytest.mark.parametrize("dtype", DTYPES)
def test_a_gated_product_is_that_of_autograd_bit_by_bit_and_changes_no_input(dtype):
    gate, up = (drawn(2, 5, 12, dtype=dtype, seed=seed) for seed in (0, 1))
    expected = gradients(lambda g, u: nn.functional.silu(g) * u, gate, up)
    assert all(map(torch.equal, gradients(fused._Gated.apply, gate, up), expected))
    given = [gate.clone().requires_grad_(), up.clone().requires_grad_(), torch.ones_like(gate)]
    torch.autograd.grad(fused._Gated.apply(*given[:2]), given[:2], given[2])
    assert all(map(torch.equal, given, [gate, up, torch.ones_like(gate)]))


class Doubled(LlamaMLP):
    def forward(self, x: Tensor) -> Tensor:
        return super().forward(x) * 2


class WithAnotherPart(LlamaMLP):
    def __init__(self, config: LlamaConfig):
        super().__init__(config)
        self.norm = nn.LayerNorm(config.intermediate_size)

    def forward(self, x: Tensor) -> Tensor:
        return self.down_proj(self.norm(self.act_fn(self.gate_proj(x)) * self.up_proj(x)))


@pytest.mark.parametrize(
    ("kind", "activation", "is_fused"),
    [(LlamaMLP, "silu", 1), (LlamaMLP, "gelu", 0), (Doubled, "silu", 0), (WithAnotherPart, "silu", 0)],
)
def test_an_mlp_stays_the_same_bit_by_bit_and_another_one_is_left_alone(kind, activation, is_fused):
    torch.manual_seed(0)
    config = LlamaConfig(hidden_size=8, intermediate_size=12, num_attention_heads=2, hidden_act=activation)
    mlp, x = kind(config).requires_grad_(False), drawn(2, 3, 8)
    before = gradients(mlp, x)
    assert fused.fuse_gates(mlp) == is_fused
    assert ("forward" in vars(mlp)) == is_fused
    assert all(map(torch.equal, gradients(mlp, x), before))


# Norms


def test_a_norm_by_hand():
    """(3, 4) has the mean square 12.5; what is added along x changes nothing, so x times the gradient is 0."""
    norm = LlamaRMSNorm(2, eps=0.0).requires_grad_(False)
    norm.weight.copy_(torch.tensor([1.0, 2.0]))
    assert fused.fuse_norms(norm) == 1
    x = torch.tensor([3.0, 4.0], requires_grad=True)
    out = norm(x)
    root = 12.5**0.5
    assert out.tolist() == pytest.approx([3 / root, 8 / root])
    (grad,) = torch.autograd.grad(out, x, torch.tensor([1.0, 0.0]))
    assert grad.tolist() == pytest.approx([(1 - 9 / 25) / root, -12 / 25 / root])


@pytest.mark.parametrize("dtype", DTYPES)
def test_a_norm_stays_the_same_and_its_gradient_that_of_its_formula(dtype):
    norm, x = LlamaRMSNorm(6, eps=1e-5).requires_grad_(False).to(dtype), drawn(2, 5, 6, dtype=dtype)
    norm.weight.copy_(drawn(6, dtype=dtype, seed=3))
    expected_out, expected = gradients(norm, x)
    assert fused.fuse_norms(norm) == 1
    out, grad = gradients(norm, x)
    assert torch.equal(out, expected_out)
    assert grad.dtype == dtype
    assert near(grad, expected, 1e-5 if dtype == torch.float32 else 2**-6)
    with torch.no_grad():
        assert torch.equal(norm(x), out)

    class GemmaLike(GemmaRMSNorm):
        variance_epsilon = 1e-5

    assert fused.fuse_norms(GemmaLike(6, eps=1e-5)) == 0  # it adds 1 to its weight


# A base


def test_a_base_on_a_cpu_is_fused_whole(make_backend):
    base = make_backend("fp32").adapters.model.get_base_model()
    fused_ones = Counter(type(m).__name__ for m in base.modules() if "forward" in vars(m))
    # Each of two layers has a norm at its two ends, and of queries and keys; the last one stands before the head.
    assert (fused_ones["Qwen3MLP"], fused_ones["Qwen3RMSNorm"]) == (2, 2 * 4 + 1)
