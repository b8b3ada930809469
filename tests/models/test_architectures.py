"""Every architecture of the catalogue, in its smallest form, against transformers' `eager` attention in float32."""

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
from transformers import AutoModelForCausalLM, Gemma2Config, Gemma3TextConfig, LlamaConfig, Qwen2Config, Qwen3Config

from lite_selfplay.config import ModelSection, SeatConfig
from lite_selfplay.errors import ModelNotFoundError, RequestError
from lite_selfplay.models.backends.transformers import TransformersBackend
from lite_selfplay.models.logprobs.batch import Batch
from lite_selfplay.models.sources import _HUB
from tests.models.spoken import asked

SMALL: dict[str, Any] = {
    "vocab_size": 97,
    "hidden_size": 64,
    "intermediate_size": 128,
    "num_hidden_layers": 2,
    "num_attention_heads": 4,
    "num_key_value_heads": 2,
    "head_dim": 16,
    "initializer_range": 0.3,  # so that attention is not flat
}
CATALOGUE: dict[str, Callable[..., Any]] = {
    "Qwen3": Qwen3Config,
    "Qwen2.5": Qwen2Config,
    "Llama-3.2": LlamaConfig,
    "SmolLM2": LlamaConfig,
    "gemma-2": lambda **keys: Gemma2Config(**keys, sliding_window=8, attn_logit_softcapping=2.0),
    "gemma-3": lambda **keys: Gemma3TextConfig(**keys, sliding_window=8),
}
ROWS = [([5, 6, 7, 8, 9], [10, 11, 12, 13, 14, 15, 16]), ([5, 6, 7], [20, 21, 22, 23]), ([40], [41, 42])]


def folder(place: Path, make: Callable[..., Any], **keys: Any) -> Path:
    torch.manual_seed(0)
    AutoModelForCausalLM.from_config(make(**{**SMALL, **keys})).save_pretrained(place)
    return place


def backend_over(path: Path, precision: str = "fp32") -> TransformersBackend:
    seats = {"A": SeatConfig(rank=4, alpha=8, init="gaussian", init_std=0.1)}
    section = ModelSection(name=str(path), precision=precision)
    return TransformersBackend(path, section, seats, seed=0, eos_ids=[2])


def by_eager_attention(backend: TransformersBackend, prompt: list[int], rest: list[int]) -> torch.Tensor:
    """Log-probabilities of what follows a prompt, of the plain forward pass."""
    model: Any = backend.adapters.model
    model.get_base_model().set_attn_implementation("eager")
    logits = model(torch.tensor([[*prompt, *rest]])).logits[0, len(prompt) - 1 : -1].float()
    return logits.log_softmax(-1).gather(1, torch.tensor(rest)[:, None])[:, 0]


def test_the_catalogue_has_no_other_architecture():
    of_qwen2 = "OpenMath-Nemotron"  # Qwen2.5-Math, trained further
    names = [name for models in _HUB.values() for name in models]
    assert [name for name in names if not name.startswith((of_qwen2, *CATALOGUE))] == []


@pytest.mark.parametrize("name", list(CATALOGUE))
def test_log_probabilities_and_gradients_are_those_of_eager_attention(tmp_path, name):
    backend = backend_over(folder(tmp_path, CATALOGUE[name]))
    backend.adapters.activate("A")
    found, _ = backend.token_logprobs(Batch.of(ROWS, backend.way()))
    found.sum().backward()
    parameters = backend.adapters.parameters("A")
    gradients = {key: p.grad.clone() for key, p in parameters.items() if p.grad is not None}
    backend.adapters.model.zero_grad()

    expected = torch.cat([by_eager_attention(backend, *row) for row in ROWS])
    expected.sum().backward()
    torch.testing.assert_close(found, expected, atol=1e-4, rtol=1e-5)
    assert gradients.keys() == parameters.keys()
    for key, p in parameters.items():
        torch.testing.assert_close(gradients[key], p.grad, atol=1e-3 * float(p.grad.abs().max()), rtol=1e-3)


@pytest.mark.parametrize("name", list(CATALOGUE))
def test_a_sampler_notes_what_eager_attention_gives(tmp_path, name):
    backend = backend_over(folder(tmp_path, CATALOGUE[name]))
    prompts = [[5, 6, 7, 8, 9, 10, 11, 12, 13, 14], [5, 6, 7]]
    made = backend.generate(asked("A", prompts, max_tokens=12))
    for prompt, several in zip(prompts, made, strict=True):
        for one in several:
            with backend.adapters.speaking("A"), torch.no_grad():
                expected = by_eager_attention(backend, prompt, one.token_ids)
            torch.testing.assert_close(torch.tensor(one.logprobs), expected, atol=1e-4, rtol=1e-5)


@pytest.mark.parametrize("key", ["attn_logit_softcapping", "sliding_window_size", "use_qk_norm", "alibi"])
def test_a_key_about_attention_that_nobody_reads_is_refused(tmp_path, key):
    path = folder(tmp_path, LlamaConfig)
    config = json.loads((path / "config.json").read_text())
    (path / "config.json").write_text(json.dumps({**config, key: None, "use_flash_attn": True}))
    backend_over(path)  # which says nothing
    (path / "config.json").write_text(json.dumps({**config, key: 4}))
    with pytest.raises(ModelNotFoundError, match=f"config.json says {key}: 4, which changes attention"):
        backend_over(path)


def test_a_mixture_of_experts_is_refused(tmp_path):
    config = json.loads((folder(tmp_path, Qwen3Config) / "config.json").read_text())
    config |= {"model_type": "qwen3_moe", "architectures": ["Qwen3MoeForCausalLM"], "num_experts": 8}
    (tmp_path / "config.json").write_text(json.dumps(config))
    with pytest.raises(ModelNotFoundError, match=r"is a mixture of experts \(num_experts 8\)"):
        backend_over(tmp_path)


@pytest.mark.parametrize("size", [48, 96, 160])
def test_rows_that_four_bits_hold_wrongly_are_refused(tmp_path, size):
    path = folder(tmp_path, LlamaConfig, hidden_size=size, head_dim=size // 4)
    with pytest.raises(RequestError, match=f"rows of {size} numbers, which 4 bits hold wrongly on a CPU"):
        backend_over(path, "4bit")
    backend_over(path, "bf16")
