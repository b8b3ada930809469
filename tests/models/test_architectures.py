"""Architectures, in their smallest form, against transformers' `eager` attention in float32."""

from pathlib import Path
from typing import Any

import pytest
import torch
from transformers import AutoConfig, AutoModelForImageTextToText

from lite_selfplay.config import ModelSection, SeatConfig
from lite_selfplay.data import BASE
from lite_selfplay.errors import ModelNotFoundError, RequestError
from lite_selfplay.models.backends.transformers import TransformersBackend
from lite_selfplay.models.logprobs.batch import Batch
from lite_selfplay.models.shapes import shape_in
from lite_selfplay.models.sources import _HUB, ARCHITECTURES
from tests.models.sampled import asked
from tests.models.small import SIZES, change, small
from tests.test_docs import ROOT

LINEAR = {
    "linear_num_key_heads": 2,
    "linear_num_value_heads": 4,
    "linear_key_head_dim": 16,
    "linear_value_head_dim": 16,
}
MAMBA = {
    "num_local_experts": 0,
    "layer_types": ["mamba", "attention"],
    "mamba_n_heads": 4,
    "mamba_d_head": 32,
    "mamba_d_state": 16,
    "shared_intermediate_size": 128,
}
WINDOW = {"sliding_window": 8}
GEMMA_4 = {
    "sliding_window": 8,
    "hidden_size_per_layer_input": 8,
    "vocab_size_per_layer_input": 90,
    "num_hidden_layers": 6,
}
# What transformers calls each base of the catalogue, by what its name begins with.
CATALOGUE = {
    "Qwen3.5": "qwen3_5",
    "Qwen3": "qwen3",
    "Qwen2.5": "qwen2",
    "OpenMath-Nemotron": "qwen2",
    "Llama-3.2": "llama",
    "SmolLM2": "llama",
    "SmolLM3": "smollm3",
    "gemma-2": "gemma2",
    "gemma-3-1b": "gemma3_text",
    "gemma-3-4b": "gemma3",
    "gemma-4": "gemma4",
    "Ministral-3": "mistral3",
    "LFM2": "lfm2",
    "granite-4.0-h": "granitemoehybrid",
    "granite-4.0": "granite",
    "Olmo-3": "olmo3",
    "Phi-4-mini": "phi3",
}
DENSE: dict[str, dict[str, Any]] = {
    "gemma2": {**WINDOW, "attn_logit_softcapping": 2.0},
    "gemma3_text": WINDOW,
    "gemma4_text": GEMMA_4,
    "granitemoehybrid": MAMBA,
    "lfm2": {"layer_types": ["conv", "full_attention"]},
    "olmo3": WINDOW,
    "qwen3_5_text": {**LINEAR, "layer_types": ["linear_attention", "full_attention"]},
    **{kind: {} for kind in ("granite", "llama", "ministral3", "phi3", "qwen2", "qwen3", "smollm3")},
}
"""The architectures of `ARCHITECTURES`; wrappers by their text part."""
_PLAIN = (
    "apertus arcee bitnet exaone4 gemma glm glm4 gpt_neox helium hunyuan_v1_dense ministral mistral nanochat nemotron "
    "olmo2 opt phi seed_oss stablelm starcoder2 vaultgemma"
).split()
OTHERS: dict[str, dict[str, Any]] = {
    "cohere2": WINDOW,
    "olmo_hybrid": {**LINEAR, "layer_types": ["linear_attention", "full_attention"]},
    **{kind: {} for kind in _PLAIN},
}
WRAPPERS: dict[str, dict[str, Any]] = {
    "gemma3": WINDOW,
    "gemma4": {**GEMMA_4, "num_global_key_value_heads": 2, "global_head_dim": 16},
    "mistral3": {},
    "qwen3_5": DENSE["qwen3_5_text"],
}
ROWS = [([5, 6, 7, 8, 9], [10, 11, 12, 13, 14, 15, 16]), ([5, 6, 7], [20, 21, 22, 23]), ([40], [41, 42])]


def folder(place: Path, kind: str, **keys: Any) -> Path:
    """A model of an architecture, with weights large enough that attention is not flat."""
    sizes = {"hidden_size": 64, "intermediate_size": 128, "head_dim": 16, "initializer_range": 0.3}
    small(kind, **{**sizes, "pad_token_id": 0, **keys}).float().save_pretrained(place)
    return place


def backend_over(path: Path, precision: str = "fp32") -> TransformersBackend:
    seats = {"A": SeatConfig(rank=4, alpha=8, init="gaussian", init_std=0.1)}
    section = ModelSection(name=str(path), precision=precision)
    return TransformersBackend(path, section, seats, seed=0, eos_ids=[2])


def by_eager_attention(backend: TransformersBackend, prompt: list[int], rest: list[int]) -> torch.Tensor:
    """Log-probabilities of a completion, by the plain forward pass."""
    model: Any = backend.adapters.model
    model.get_base_model().set_attn_implementation("eager")
    logits = model(torch.tensor([[*prompt, *rest]])).logits[0, len(prompt) - 1 : -1].float()
    return logits.log_softmax(-1).gather(1, torch.tensor(rest)[:, None])[:, 0]


def wrapper(place: Path, kind: str, **keys: Any) -> Any:
    """A model with an image part, and a `text_config` in its configuration."""
    vision = {"hidden_size": 32, "intermediate_size": 64, "num_hidden_layers": 1, "num_attention_heads": 2, "depth": 1}
    vision |= {"num_heads": 2, "out_hidden_size": 64, "image_size": 28, "patch_size": 14, "num_position_embeddings": 16}
    sizes = {"hidden_size": 64, "intermediate_size": 128, "head_dim": 16, "initializer_range": 0.3}
    text = {**SIZES, **sizes, "pad_token_id": 0, **WRAPPERS[kind], **keys}
    config = AutoConfig.for_model(kind, text_config=text, vision_config=vision, image_token_id=89)
    torch.manual_seed(0)
    model = AutoModelForImageTextToText.from_config(config).float().eval()
    model.save_pretrained(place)
    return model


def test_the_catalogue_has_no_other_architecture():
    names = [name for models in _HUB.values() for name in models]
    assert [name for name in names if not name.startswith(tuple(CATALOGUE))] == []
    inner = {"qwen3_5": "qwen3_5_text", "gemma3": "gemma3_text", "gemma4": "gemma4_text", "mistral3": "ministral3"}
    assert {inner.get(kind, kind) for kind in CATALOGUE.values()} == set(DENSE) == ARCHITECTURES
    assert inner.keys() == WRAPPERS.keys()


def test_the_page_names_these_architectures():
    page = (ROOT / "docs/models.md").read_text()
    for row, kinds in (
        ("of the list of short names", DENSE),
        ("others", OTHERS),
        ("wrappers with an image part", WRAPPERS),
    ):
        assert f"| {row} | {', '.join(sorted(kinds))} |" in page


@pytest.mark.parametrize("kind", [*DENSE, *OTHERS])
def test_samples_log_probabilities_and_gradients_are_those_of_eager_attention(tmp_path, kind):
    keys = {**DENSE, **OTHERS}[kind]
    backend = backend_over(folder(tmp_path, kind, **keys))
    prompts = [[5, 6, 7, 8, 9, 10, 11, 12, 13, 14], [5, 6, 7]]
    for prompt, several in zip(prompts, backend.generate(asked("A", prompts, max_tokens=12)), strict=True):
        for one in several:
            with backend.adapters.inference("A"), torch.no_grad():
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


@pytest.mark.parametrize("kind", WRAPPERS)
def test_of_a_wrapper_the_text_part_is_loaded_alone_and_its_memory_is_planned(tmp_path, kind):
    whole = wrapper(tmp_path, kind)
    backend = backend_over(tmp_path)
    base: Any = backend.adapters.model.get_base_model()
    assert not [name for name, _ in backend.adapters.model.named_parameters() if "vision" in name or "visual" in name]
    assert len(base.config.get_text_config().to_dict()) == len(base.config.to_dict())  # it wraps nothing
    with backend.adapters.inference(BASE), torch.no_grad():
        found = base(torch.tensor([ROWS[0][0]])).logits
        torch.testing.assert_close(found, whole(torch.tensor([ROWS[0][0]])).logits, atol=1e-4, rtol=1e-4)
    backend.adapters.activate("A")
    base(torch.tensor([[*ROWS[0][0]], [*ROWS[0][1][:5]]])).logits.sum().backward()
    assert [name for name, p in backend.adapters.parameters("A").items() if p.grad is None] == []
    held = sum(p.numel() for name, p in base.named_parameters() if "lora_" not in name)
    assert shape_in(tmp_path, kind).parameters == pytest.approx(held, rel=0.1)


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
    with pytest.raises(RequestError, match=f"rows of {size} numbers, and 4 bits on a CPU"):
        backend_over(path, "4bit")
    backend_over(path, "bf16")
