import pytest
import torch
from bitsandbytes.nn import Linear4bit

from lite_selfplay.config import ModelSection
from lite_selfplay.models.adapters import BASE, Adapters
from lite_selfplay.models.backends.transformers import compute_dtype
from tests.models.sampled import asked, assert_alike, completions
from tests.near import near

PROMPTS = [[10, 11, 12], [20]]


def test_all_layers_but_the_head_are_held_in_nf4_and_expanded_where_memory_is_free(make_backend, monkeypatch):
    model = make_backend("4bit").adapters.model.get_base_model()
    layers = [module for module in model.modules() if isinstance(module, Linear4bit)]
    assert len(layers) == 2 * 7
    assert {layer.weight.quant_type for layer in layers} == {"nf4"}
    assert not any(layer.support_avx512bf16_for_cpu for layer in layers)
    assert not isinstance(model.lm_head, Linear4bit)
    monkeypatch.setattr(Adapters, "dense_bytes", lambda *_: [2**60])  # more than any machine has
    assert not make_backend("4bit")._samples_dense


@pytest.mark.parametrize("temperature", [1.0, 0.8])
@pytest.mark.parametrize("seat", ["A", "B", BASE])
@pytest.mark.parametrize("types", ["4bit fp32", "4bit bf16", "bf16 auto", "fp16 auto", "fp32 auto"])
def test_what_is_noted_while_sampling_is_what_a_full_forward_gives(make_backend, types, seat, temperature):
    precision, compute = types.split()
    backend = make_backend(precision, compute_dtype=compute)
    request = asked(seat, PROMPTS, 4, temperature=temperature, max_tokens=12)
    said = completions(backend, request)
    scores = backend.score(seat, [(PROMPTS[i // 4], out.token_ids) for i, out in enumerate(said)], temperature)
    exact = backend.compute_dtype == torch.float32
    for one, score in zip(said, scores, strict=True):
        assert near(one.logprobs, score.logprobs, 2e-5 if exact else 0.02)
    if precision == "4bit":
        assert backend._samples_dense
        backend._samples_dense = False
        if exact:
            assert_alike(said, completions(backend, request))


@pytest.mark.parametrize(
    ("instructions", "capability", "expected"),
    [
        *((True, capability, torch.bfloat16) for capability in ("AVX512", "AVX10_2")),
        *((True, capability, torch.float32) for capability in ("AVX2", "DEFAULT")),
        (False, "AVX512", torch.float32),
    ],
)
def test_a_cpu_multiplies_in_bf16_where_it_has_such_instructions(monkeypatch, instructions, capability, expected):
    monkeypatch.setattr(torch.cpu, "_is_avx512_bf16_supported", lambda: instructions)
    monkeypatch.setattr(torch.backends.cpu, "get_cpu_capability", lambda: capability)
    cpu = torch.device("cpu")
    assert compute_dtype(ModelSection(name="x"), cpu) == expected
    # Where a type was asked for, 4-bit weights are multiplied in that, others in their own.
    for precision, asked_for in (("4bit", torch.float16), ("bf16", torch.bfloat16)):
        assert compute_dtype(ModelSection(name="x", precision=precision, compute_dtype="fp16"), cpu) == asked_for
