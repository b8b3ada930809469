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


def grouped_rows() -> tuple[torch.Tensor, torch.Tensor]:
    """Three prompts of two rows each, two of them alike at the beginning, and completions of several lengths."""
    prompts = [[5, 6, 7, 8, 9, 10, 11]] * 2 + [[5, 6, 7, 8, 9, 20, 21, 22]] * 2 + [[30, 31, 32, 33, 34]] * 2
    completions = [[40, 41, 42], [43], [44, 45], [46, 47, 48, 49], [50], [51, 52]]
    ids, mask = torch.zeros(6, 12, dtype=torch.long), torch.zeros(6, 12, dtype=torch.long)
    for i, (prompt, completion) in enumerate(zip(prompts, completions, strict=True)):
        place = slice(8 - len(prompt), 8 + len(completion))
        ids[i, place], mask[i, place] = torch.tensor(prompt + completion), 1
    return ids, mask


def test_reading_shared_prompts_once_changes_no_value_and_no_gradient(monkeypatch: pytest.MonkeyPatch):
    torch.manual_seed(0)
    model, (ids, mask) = qwen3(), grouped_rows()
    passes = []
    model.model.register_forward_hook(
        lambda m, args, kwargs, out: passes.append(kwargs["input_ids"].numel()), with_kwargs=True
    )
    found = []
    for shared in (True, False):
        monkeypatch.setattr(logprobs, "shares_prefixes", lambda model, shared=shared: shared)
        model.zero_grad()
        lp, entropy = token_logprobs(model, ids, mask, 4, 0.7, entropy_gradient=True)
        (lp * torch.arange(1, 5)).sum().backward()
        found.append((lp.detach(), entropy.detach(), {n: p.grad.clone() for n, p in model.named_parameters()}))
    (lp, entropy, gradients), (plain_lp, plain_entropy, plain_gradients) = found
    # Prefixes of 5 and 4 tokens, then at most 7 tokens a row; without sharing, six rows of 12.
    assert passes == [2 * 5, 6 * 7, 6 * 12]
    assert torch.allclose(lp, plain_lp, atol=1e-6)
    assert torch.allclose(entropy, plain_entropy, atol=1e-6)
    for name, gradient in gradients.items():
        assert torch.allclose(gradient, plain_gradients[name], atol=1e-6), name
    assert gradients["model.layers.0.self_attn.k_proj.weight"].abs().sum() > 0


def test_a_cache_that_forgets_positions_is_not_shared():
    window = Gemma2ForCausalLM(Gemma2Config(**SMALL, sliding_window=8))
    assert not logprobs.shares_prefixes(window)
    model = qwen3()
    assert logprobs.shares_prefixes(model)
    model.gradient_checkpointing_enable()
    assert not logprobs.shares_prefixes(model.train())
    assert logprobs.shares_prefixes(model.eval())


def test_entropies_carry_a_gradient_only_on_request():
    ids = torch.randint(0, 90, (1, 6))
    model = qwen3()
    assert not token_logprobs(model, ids, torch.ones_like(ids), 3)[1].requires_grad
    assert token_logprobs(model, ids, torch.ones_like(ids), 3, entropy_gradient=True)[1].requires_grad
