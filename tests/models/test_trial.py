"""An architecture outside the catalogue: right, or refused before anything is trained."""

from pathlib import Path
from typing import Any

import pytest
import torch
from transformers.models.llama import modeling_llama

from lite_selfplay.errors import ModelNotFoundError
from lite_selfplay.models.adapters import Adapters
from lite_selfplay.models.backends import transformers
from lite_selfplay.models.sources import resolve, tiny
from tests.models.test_architectures import DENSE, backend_over, folder

NOT_IN_THE_CATALOGUE = {
    "bloom": "",
    "persimmon": "",
    "gpt2": "(adding adapters to it|its forward pass) ended in",
    "modernbert-decoder": "an update reads other log-probabilities than the forward pass",
    "recurrent_gemma": "sampling ended in ValueError",
}


@pytest.mark.parametrize("kind", NOT_IN_THE_CATALOGUE)
def test_an_architecture_that_nobody_looked_at_is_right_or_refused(tmp_path: Path, kind: str):
    folder(tmp_path, kind)
    if why := NOT_IN_THE_CATALOGUE[kind]:
        with pytest.raises(
            ModelNotFoundError, match=f"is a {kind} model, .* cannot be trained here: .*{why}"
        ) as refused:
            backend_over(tmp_path)
        assert refused.value.exit_code == 2
    else:
        backend_over(tmp_path)


def sees_the_future(patch: pytest.MonkeyPatch) -> None:
    patch.setattr(modeling_llama, "create_causal_mask", lambda **_: None)
    made = modeling_llama.LlamaAttention.__init__

    def init(self: Any, *args: Any, **options: Any) -> None:
        made(self, *args, **options)
        self.is_causal = False

    patch.setattr(modeling_llama.LlamaAttention, "__init__", init)


def changed(patch: pytest.MonkeyPatch, change: Any) -> None:
    """Layer outputs that change if several rows are read at once."""
    forward = modeling_llama.LlamaDecoderLayer.forward

    def other(self: Any, *args: Any, **options: Any) -> torch.Tensor:
        out = forward(self, *args, **options)
        return out if out.shape[0] == 1 else change(out)

    patch.setattr(modeling_llama.LlamaDecoderLayer, "forward", other)


def leaks_between_rows(patch: pytest.MonkeyPatch) -> None:
    changed(patch, lambda out: 0.8 * out + 0.2 * out.mean(0, keepdim=True))


def takes_no_positions(patch: pytest.MonkeyPatch) -> None:
    forward = modeling_llama.LlamaRotaryEmbedding.forward

    def counted(self: Any, x: torch.Tensor, position_ids: torch.Tensor) -> Any:
        return forward(self, x, torch.arange(x.shape[1])[None].expand(x.shape[0], -1))

    patch.setattr(modeling_llama.LlamaRotaryEmbedding, "forward", counted)


def has_half_a_gradient(patch: pytest.MonkeyPatch) -> None:
    changed(patch, lambda out: 0.5 * out + 0.5 * out.detach())


def ends_in_an_error(patch: pytest.MonkeyPatch) -> None:
    changed(patch, lambda out: {}["rows"])


WRONG = {
    sees_the_future: "a token's logits depend on later tokens",
    leaks_between_rows: "sampled tokens have other log-probabilities than the forward pass",
    takes_no_positions: "sampled tokens have other log-probabilities than the forward pass",
    has_half_a_gradient: "an update has another gradient than the forward pass",
    ends_in_an_error: "sampling ended in KeyError: 'rows'",
}


@pytest.mark.parametrize("precision", ["fp32", "bf16"])
@pytest.mark.parametrize("plant", WRONG)
def test_a_model_that_would_be_trained_wrongly_is_refused(tmp_path, monkeypatch, plant, precision):
    folder(tmp_path, "llama")
    monkeypatch.setattr(transformers, "ARCHITECTURES", frozenset())
    # Rows that are read side by side: packed ones are a single row to the model.
    monkeypatch.setattr(transformers, "packs", lambda base: False)
    backend_over(tmp_path, precision)
    plant(monkeypatch)
    with pytest.raises(ModelNotFoundError, match=f"cannot be trained here: .*{WRONG[plant]}"):
        backend_over(tmp_path, precision)


def dense(change: Any) -> Any:
    """A plant that changes every weight that layers compute with."""

    def plant(patch: pytest.MonkeyPatch) -> None:
        right = transformers.dense_weight
        patch.setattr(transformers, "dense_weight", lambda layer, dtype: change(right(layer, dtype)))

    return plant


def exchanged(patch: pytest.MonkeyPatch) -> None:
    """The first layer that has a twin of its shape and name in the next block is exchanged with it."""
    together = Adapters.compute_together

    def swapped(self: Adapters, dense: Any) -> None:
        layers = {name: layer.get_base_layer() for name, layer in self._layers.items()}
        pairs = ((a, layers.get(name.replace("layers.0.", "layers.1."))) for name, a in layers.items())
        one, other = next((a, b) for a, b in pairs if b not in (None, a) and a.weight.shape == b.weight.shape)
        one.weight, other.weight = other.weight, one.weight
        together(self, dense)

    patch.setattr(Adapters, "compute_together", swapped)


def test_a_hybrid_of_state_layers_alone_is_refused_at_load(tmp_path):
    folder(tmp_path, "granitemoehybrid", **{**DENSE["granitemoehybrid"], "layer_types": ["mamba", "mamba"]})
    with pytest.raises(ModelNotFoundError, match=r"not computed right here: .*get_seq_length"):
        backend_over(tmp_path)


PLANTS = {
    "codes": dense(lambda weight: (weight / weight.abs().amax(1, keepdim=True) * 127).round()),
    "transposed": dense(lambda weight: weight.T.contiguous() if weight.shape[0] == weight.shape[1] else weight),
    "lost scales": dense(lambda weight: weight * torch.linspace(0.25, 4, len(weight), dtype=weight.dtype)[:, None]),
    "exchanged": exchanged,
}


BASES = [
    *((kind, "bf16") for kind in [*DENSE, "tiny"]),
    ("qwen3", "4bit"),
    pytest.param("smollm2-135m", "bf16", marks=pytest.mark.slow),
]


@pytest.mark.parametrize("plant", PLANTS)
@pytest.mark.parametrize(("kind", "precision"), BASES)
def test_a_wrong_layer_of_a_base_in_the_catalogue_is_refused_at_load(tmp_path, monkeypatch, kind, plant, precision):
    path = folder(tmp_path, kind, **DENSE[kind]) if kind in DENSE else resolve(kind).path
    PLANTS[plant](monkeypatch)
    with pytest.raises(ModelNotFoundError, match=r"not computed right here: .* differs .* --precision") as refused:
        backend_over(path, precision)
    assert refused.value.exit_code == 2


def test_a_trial_leaves_nothing_behind(tmp_path, monkeypatch):
    folder(tmp_path, "llama")
    torch.manual_seed(3)
    plain, drawn = backend_over(tmp_path), torch.rand(1)
    monkeypatch.setattr(transformers, "ARCHITECTURES", frozenset())
    torch.manual_seed(3)
    tried = backend_over(tmp_path)
    assert torch.rand(1) == drawn
    assert tried._decoding.cache_tokens == plain._decoding.cache_tokens
    assert not tried.adapters.model.training
    for key, weight in tried.adapters.parameters("A").items():
        assert torch.equal(weight, plain.adapters.parameters("A")[key])
        assert weight.grad is None


def test_a_command_says_that_it_tries_and_ends_with_2_where_it_does_not_hold(tmp_path, call):
    folder(tmp_path, "gpt2", vocab_size=259, bos_token_id=1, eos_token_id=2)
    tiny.byte_tokenizer().save_pretrained(tmp_path)
    ended = call("train", "grpo", "--model", tmp_path, "--tasks", "letters", "--steps", "1", "--precision", "fp32")
    assert ended.code == 2, ended
    said = " ".join(f"{ended.out} {ended.err}".split())
    assert "is a gpt2 model, an architecture that no test of this library covers" in said
    assert "is a gpt2 model, an architecture that was tried just now and cannot be trained here" in said
