"""Bases whose tensors do not match their configuration are refused in every precision."""

import re
import shutil
from collections.abc import Callable
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
import torch
from transformers import AutoModelForCausalLM, BitsAndBytesConfig
from transformers.quantizers.quantizer_finegrained_fp8 import FineGrainedFP8HfQuantizer

from lite_selfplay.config import ModelSection, SeatConfig
from lite_selfplay.errors import ModelNotFoundError
from lite_selfplay.models.backends import unsloth
from lite_selfplay.models.backends.transformers import TransformersBackend, expand_quantised, load_base, nf4
from tests.models.small import change, change_tensors

UP, BIAS = "model.layers.1.mlp.up_proj.weight", "model.layers.0.self_attn.q_proj.bias"
Tensors = dict[str, torch.Tensor]

FIRST = ("lm_head.weight", "model.embed_tokens.weight", "model.layers.0.input_layernorm.weight")
MISFITS: dict[str, tuple[Callable[[Tensors], Any], str]] = {
    "missing": (lambda tensors: tensors.pop(UP), f"{UP} (missing)"),
    "without a place": (lambda tensors: tensors.update({BIAS: torch.zeros(64)}), f"{BIAS} (without a place)"),
    "of another shape": (lambda tensors: tensors.update({UP: torch.zeros(32, 64)}), f"{UP} (of another shape)"),
    "all of them": (
        lambda tensors: [tensors.update({f"x.{name}": tensors.pop(name)}) for name in list(tensors)],
        ", ".join(f"{name} (missing)" for name in FIRST) + " and 47 more",
    ),
}


@pytest.fixture
def copy(tiny_path, tmp_path):
    """A copy of the random model with other tensors."""

    def copy(how):
        folder = shutil.copytree(tiny_path, tmp_path / "base")
        change_tensors(folder, how)
        return folder

    return copy


def loaded(folder: Path, precision: str) -> Any:
    dtype = {"bf16": torch.bfloat16, "fp16": torch.float16}.get(precision, torch.float32)
    return load_base(folder, precision, dtype, torch.device("cpu"))


@pytest.mark.parametrize(
    ("misfit", "precision"), [*((misfit, "4bit") for misfit in MISFITS), ("missing", "bf16"), ("missing", "fp32")]
)
def test_weights_of_another_model_are_refused_by_name(copy, misfit, precision):
    how, words = MISFITS[misfit]
    with pytest.raises(ModelNotFoundError, match=re.escape(words)):
        loaded(copy(how), precision)


def test_the_unsloth_backend_refuses_them_before_it_loads_anything(copy, monkeypatch):
    folder = copy(MISFITS["missing"][0])
    monkeypatch.setattr(unsloth, "import_unsloth", object)
    section = ModelSection(name=str(folder), backend="unsloth")
    with pytest.raises(ModelNotFoundError, match=re.escape(f"{UP} (missing)")):
        unsloth.UnslothBackend(folder, section, {"A": SeatConfig()}, seed=0, eos_ids=[2])


def test_weights_that_were_quantised_before_are_held_to_the_same(tiny_path, tmp_path):
    made = AutoModelForCausalLM.from_pretrained(tiny_path, quantization_config=nf4(torch.float32), device_map="cpu")
    made.save_pretrained(tmp_path)
    assert loaded(tmp_path, "4bit") is not None
    change_tensors(tmp_path, lambda tensors: tensors.pop("model.norm.weight"))
    with pytest.raises(ModelNotFoundError, match=r"model\.norm\.weight \(missing\)"):
        loaded(tmp_path, "4bit")


@pytest.mark.filterwarnings("ignore:MatMul8bitLt")
@pytest.mark.parametrize("saved", ["8bit", "fp4", "nf4"])
def test_weights_that_were_quantised_before_are_expanded_by_their_own_method(tiny_path, tmp_path, saved):
    way = {"load_in_8bit": True} if saved == "8bit" else {"load_in_4bit": True, "bnb_4bit_quant_type": saved}
    asked = BitsAndBytesConfig(**way, bnb_4bit_compute_dtype=torch.float32)
    made: Any = AutoModelForCausalLM.from_pretrained(tiny_path, quantization_config=asked, device_map="cpu")
    made.save_pretrained(tmp_path)
    ids = list(range(30, 60))
    with torch.no_grad():
        right = made(torch.tensor([ids])).logits[0, 9:-1].float().log_softmax(-1)[torch.arange(20), ids[10:]]
    for precision in ("fp32", "bf16", "4bit")[: 2 if saved == "8bit" else 3]:
        section = ModelSection(name=str(tmp_path), precision=precision)
        backend = TransformersBackend(tmp_path, section, {"A": SeatConfig()}, seed=0, eos_ids=[2])
        found = torch.tensor(backend.score("base", [(ids[:10], ids[10:])], 1.0)[0].logprobs)
        assert (found - right).abs().mean() < 0.03
        kinds = {type(layer.get_base_layer()).__name__ for layer in backend.adapters._layers.values()}
        assert kinds == {"Linear4bit" if precision == "4bit" else "Linear"}
        trained = [name for name, p in backend.adapters.model.named_parameters() if p.requires_grad]
        assert all(".lora_" in name for name in trained)


def in_fp8(tensors: Tensors, *, expanded: bool) -> None:
    """Layers as 8-bit floats with a scale for each block of 16 x 16, or the numbers that these stand for."""
    for name in [name for name in tensors if "_proj." in name]:
        weight = tensors[name] * torch.linspace(0.5, 8, len(tensors[name]))[:, None]
        blocks = weight.unflatten(1, (-1, 16)).unflatten(0, (-1, 16))
        scales = blocks.abs().amax((1, 3)) / torch.finfo(torch.float8_e4m3fn).max
        codes = (blocks / scales[:, None, :, None]).to(torch.float8_e4m3fn)
        numbers = codes.float() * scales[:, None, :, None] if expanded else codes
        tensors[name] = numbers.reshape(weight.shape)
        tensors.update({} if expanded else {f"{name}_scale_inv": scales})


FP8 = {"quant_method": "fp8", "weight_block_size": [16, 16], "modules_to_not_convert": ["lm_head"]}


@pytest.mark.parametrize("precision", ["fp32", "bf16"])
def test_weights_in_fp8_are_expanded_by_their_scales(copy, tmp_path, precision):
    ids = list(range(30, 60))
    whole: Any = AutoModelForCausalLM.from_pretrained(copy(lambda tensors: in_fp8(tensors, expanded=True)))
    with torch.no_grad():
        right = whole(torch.tensor([ids])).logits[0, 9:-1].log_softmax(-1)[torch.arange(20), ids[10:]]
    shutil.rmtree(tmp_path / "base")
    folder = copy(lambda tensors: in_fp8(tensors, expanded=False))
    change(folder / "config.json", quantization_config=FP8)
    section = ModelSection(name=str(folder), precision=precision)
    backend = TransformersBackend(folder, section, {"A": SeatConfig()}, seed=0, eos_ids=[2])
    found = torch.tensor(backend.score("base", [(ids[:10], ids[10:])], 1.0)[0].logprobs)
    assert (found - right).abs().mean() < {"fp32": 1e-5, "bf16": 0.03}[precision]


def test_weights_in_another_format_are_refused_with_a_way(copy):
    folder = copy(lambda tensors: in_fp8(tensors, expanded=False))
    change(folder / "config.json", quantization_config=FP8)
    with pytest.raises(
        ModelNotFoundError, match=r"quantised already \(fp8\), and .*use --precision bf16, or the repos"
    ):
        loaded(folder, "4bit")
    on_gpu = SimpleNamespace(is_quantized=True, hf_quantizer=object.__new__(FineGrainedFP8HfQuantizer))
    with pytest.raises(ModelNotFoundError, match=r"\(fp8\), and cannot be expanded into bf16: use the repository"):
        expand_quantised(folder, on_gpu, "bf16", torch.bfloat16)
    change(folder / "config.json", quantization_config={"quant_method": "compressed-tensors"})
    with pytest.raises(ModelNotFoundError, match=r"cannot read the model in .*compressed.tensors") as refused:
        loaded(folder, "bf16")
    assert refused.value.exit_code == 2


def test_what_is_tied_or_computed_is_not_missed(copy):
    """A tied head, and rotary frequencies stored in older files."""

    def untied(tensors):
        del tensors["lm_head.weight"]
        tensors["model.layers.0.self_attn.rotary_emb.inv_freq"] = torch.ones(8)

    folder = copy(untied)
    change(folder / "config.json", tie_word_embeddings=True)
    base = loaded(folder, "fp32")
    assert base.lm_head.weight is base.model.embed_tokens.weight
