"""Bases whose tensors do not match their configuration are refused in every precision."""

import re
import shutil
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
from transformers import AutoModelForCausalLM

from lite_selfplay.config import ModelSection, SeatConfig
from lite_selfplay.errors import ModelNotFoundError
from lite_selfplay.models.backends import unsloth
from lite_selfplay.models.backends.transformers import load_base, nf4
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


@pytest.mark.filterwarnings("ignore:You passed `quantization_config`")
def test_weights_that_were_quantised_before_are_held_to_the_same(tiny_path, tmp_path):
    made = AutoModelForCausalLM.from_pretrained(tiny_path, quantization_config=nf4(torch.float32), device_map="cpu")
    made.save_pretrained(tmp_path)
    assert loaded(tmp_path, "4bit") is not None
    change_tensors(tmp_path, lambda tensors: tensors.pop("model.norm.weight"))
    with pytest.raises(ModelNotFoundError, match=r"model\.norm\.weight \(missing\)"):
        loaded(tmp_path, "4bit")


def test_what_is_tied_or_computed_is_not_missed(copy):
    """A tied head, and rotary frequencies stored in older files."""

    def untied(tensors):
        del tensors["lm_head.weight"]
        tensors["model.layers.0.self_attn.rotary_emb.inv_freq"] = torch.ones(8)

    folder = copy(untied)
    change(folder / "config.json", tie_word_embeddings=True)
    base = loaded(folder, "fp32")
    assert base.lm_head.weight is base.model.embed_tokens.weight
