"""Every architecture of the catalogue, in its smallest form, against transformers' `eager` attention in float32."""

from pathlib import Path
from typing import Any

import pytest
import torch

from lite_selfplay.config import ModelSection, SeatConfig
from lite_selfplay.errors import ModelNotFoundError, RequestError
from lite_selfplay.models.backends.transformers import TransformersBackend
from lite_selfplay.models.logprobs.batch import Batch
from lite_selfplay.models.sources import _HUB
from tests.models.small import change, small
from tests.models.spoken import asked

CATALOGUE: dict[str, tuple[str, dict[str, Any]]] = {
    "Qwen3": ("qwen3", {}),
    "Qwen2.5": ("qwen2", {}),
    "Llama-3.2": ("llama", {}),
    "SmolLM2": ("llama", {}),
    "gemma-2": ("gemma2", {"sliding_window": 8, "attn_logit_softcapping": 2.0}),
    "gemma-3": ("gemma3_text", {"sliding_window": 8}),
}
ROWS = [([5, 6, 7, 8, 9], [10, 11, 12, 13, 14, 15, 16]), ([5, 6, 7], [20, 21, 22, 23]), ([40], [41, 42])]


def folder(place: Path, kind: str, **keys: Any) -> Path:
    """A model of an architecture; its weights are so large that attention is not flat."""
    sizes = {"hidden_size": 64, "intermediate_size": 128, "head_dim": 16, "initializer_range": 0.3}
    small(kind, **{**sizes, **keys}).save_pretrained(place)
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


@pytest.mark.parametrize("name", CATALOGUE)
def test_samples_log_probabilities_and_gradients_are_those_of_eager_attention(tmp_path, name):
    kind, keys = CATALOGUE[name]
    backend = backend_over(folder(tmp_path, kind, **keys))
    prompts = [[5, 6, 7, 8, 9, 10, 11, 12, 13, 14], [5, 6, 7]]
    for prompt, several in zip(prompts, backend.generate(asked("A", prompts, max_tokens=12)), strict=True):
        for one in several:
            with backend.adapters.speaking("A"), torch.no_grad():
                expected = by_eager_attention(backend, prompt, one.token_ids)
            torch.testing.assert_close(torch.tensor(one.logprobs), expected, atol=1e-4, rtol=1e-5)

    backend = backend_over(tmp_path)
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


def test_a_key_about_attention_that_nobody_reads_and_a_mixture_of_experts_are_refused(tmp_path):
    config = folder(tmp_path, "llama") / "config.json"
    for key in ("attn_logit_softcapping", "sliding_window_size", "use_qk_norm", "alibi"):
        change(config, **{key: 4}, use_flash_attn=True)
        with pytest.raises(ModelNotFoundError, match=f"config.json says {key}: 4, which changes attention"):
            backend_over(tmp_path)
        change(config, **{key: None})
        backend_over(tmp_path)  # which says nothing
    change(config, model_type="qwen3_moe", architectures=["Qwen3MoeForCausalLM"], num_experts=8)
    with pytest.raises(ModelNotFoundError, match=r"is a mixture of experts \(num_experts 8\)"):
        backend_over(tmp_path)


@pytest.mark.parametrize("size", [48, 96, 160])
def test_rows_that_four_bits_hold_wrongly_are_refused(tmp_path, size):
    path = folder(tmp_path, "llama", hidden_size=size, head_dim=size // 4)
    with pytest.raises(RequestError, match=f"rows of {size} numbers, which 4 bits hold wrongly on a CPU"):
        backend_over(path, "4bit")
    backend_over(path, "bf16")
