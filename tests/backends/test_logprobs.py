from collections.abc import Callable
from typing import Any

import pytest
import torch
from transformers import (
    Gemma2Config,
    Gemma2ForCausalLM,
    GraniteConfig,
    GraniteForCausalLM,
    Qwen3Config,
    Qwen3ForCausalLM,
)

from lite_selfplay.backends import logprobs
from lite_selfplay.backends.logprobs import token_logprobs

SMALL = {
    "vocab_size": 90,
    "hidden_size": 32,
    "intermediate_size": 48,
    "num_hidden_layers": 2,
    "num_attention_heads": 4,
    "num_key_value_heads": 2,
    "max_position_embeddings": 64,
    "head_dim": 8,
}


def qwen3() -> Any:
    return Qwen3ForCausalLM(Qwen3Config(**SMALL))


def gemma2_with_softcap() -> Any:
    return Gemma2ForCausalLM(Gemma2Config(**SMALL, final_logit_softcapping=0.5, sliding_window=8))


def granite_with_scaled_logits() -> Any:
    small = {key: value for key, value in SMALL.items() if key != "head_dim"}
    return GraniteForCausalLM(GraniteConfig(**small, logits_scaling=4.0))


@pytest.mark.parametrize("make", [qwen3, gemma2_with_softcap, granite_with_scaled_logits])
@pytest.mark.parametrize("temperature", [1.0, 0.6])
def test_equal_to_the_plain_forward_of_each_row(
    make: Callable[[], Any], temperature: float, monkeypatch: pytest.MonkeyPatch
):
    monkeypatch.setattr(logprobs, "HEAD_ELEMENTS", 90 * 3)  # pieces of three positions
    torch.manual_seed(0)
    model = make().eval()
    prompts, completions = [[3, 4, 5, 6], [7], [8, 9]], [[10, 11], [12, 13, 14, 15], [16]]
    ids, mask = torch.zeros(3, 8, dtype=torch.long), torch.zeros(3, 8, dtype=torch.long)
    for i, (prompt, completion) in enumerate(zip(prompts, completions, strict=True)):
        row = torch.tensor(prompt + completion)
        ids[i, 4 - len(prompt) : 4 + len(completion)] = row
        mask[i, 4 - len(prompt) : 4 + len(completion)] = 1
    got, entropies = token_logprobs(model, ids, mask, 4, temperature)
    assert got.shape == entropies.shape == (3, 4)
    for i, (prompt, completion) in enumerate(zip(prompts, completions, strict=True)):
        logits = model(torch.tensor([prompt + completion])).logits[0, len(prompt) - 1 : -1] / temperature
        expected = logits.log_softmax(-1)
        length = len(completion)
        chosen = expected[torch.arange(length), torch.tensor(completion)]
        assert torch.allclose(got[i, :length], chosen, atol=1e-5)
        assert torch.allclose(entropies[i, :length], -(expected.exp() * expected).sum(-1), atol=1e-5)
        assert not got[i, length:].any()
        assert not entropies[i, length:].any()


def test_gradients_do_not_depend_on_the_size_of_the_pieces(monkeypatch: pytest.MonkeyPatch):
    torch.manual_seed(0)
    model = qwen3()
    ids = torch.randint(0, 90, (3, 12))
    gradients = []
    for elements in (90, 90 * 1000):
        monkeypatch.setattr(logprobs, "HEAD_ELEMENTS", elements)
        model.zero_grad()
        lp, entropy = token_logprobs(model, ids, torch.ones_like(ids), 6, entropy_gradient=True)
        (lp.sum() + 0.3 * entropy.sum()).backward()
        gradients.append({name: p.grad.clone() for name, p in model.named_parameters()})
    assert all(torch.allclose(gradients[0][n], gradients[1][n], atol=1e-5) for n in gradients[0])
    assert gradients[0]["model.layers.0.mlp.up_proj.weight"].abs().sum() > 0


def test_entropies_carry_a_gradient_only_on_request():
    ids = torch.randint(0, 90, (1, 6))
    model = qwen3()
    assert not token_logprobs(model, ids, torch.ones_like(ids), 3)[1].requires_grad
    assert token_logprobs(model, ids, torch.ones_like(ids), 3, entropy_gradient=True)[1].requires_grad
