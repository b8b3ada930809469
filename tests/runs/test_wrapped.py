"""Runs over the text part of a wrapper whose layers carry a state, and what they are exported as."""

import shutil
from pathlib import Path
from typing import Any

import pytest
import torch
from peft import PeftModel
from safetensors.torch import load_file
from transformers import AutoModelForCausalLM, AutoModelForImageTextToText

from lite_selfplay import Run, RunConfig, evaluate, load_run, train
from lite_selfplay.extras.export.exporting import export
from lite_selfplay.models.sources import tiny
from tests.made import same_weights
from tests.made_runs import seat_weights
from tests.models.test_architectures import wrapper

IDS = torch.tensor([[5, 6, 7, 80, 90, 100, 110]])
SMALL = {
    "tasks": "letters",
    "group_size": 8,
    "problems_per_step": 4,
    "steps": 2,
    "save_every": 1,
    "max_completion_tokens": 12,
}


@pytest.fixture(scope="module")
def base(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return small_base(tmp_path_factory.mktemp("qwen3_5"))


def small_base(folder: Path) -> Path:
    """Write a random Qwen3.5 with its wrapper, which reads bytes, into a folder."""
    wrapper(folder, "qwen3_5", vocab_size=259, max_position_embeddings=2048)
    tiny.byte_tokenizer().save_pretrained(folder)
    return folder


def played(base: Path, folder: Path, game: str, precision: str) -> Run:
    return train(RunConfig(game=game, model=str(base), precision=precision, run_dir=folder, **SMALL))


LONG = [("agon", "bf16"), ("agon", "fp32"), ("grpo", "4bit"), ("grpo", "fp32")]


@pytest.mark.parametrize(
    ("game", "precision"),
    [("agon", "4bit"), ("grpo", "bf16"), *(pytest.param(*pair, marks=pytest.mark.long) for pair in LONG)],
)
def test_a_resumed_run_ends_bit_equal_to_the_uninterrupted_one(base: Path, tmp_path: Path, game: str, precision: str):
    whole = played(base, tmp_path / "whole", game, precision)
    shutil.copytree(whole.path, tmp_path / "broken")
    shutil.rmtree(tmp_path / "broken/checkpoints/step-2")
    shutil.rmtree(tmp_path / "broken/adapters")
    again = load_run(tmp_path / "broken").resume()
    seats = sorted(path.name for path in (whole.path / "adapters").iterdir())
    for seat in seats:
        assert same_weights(seat_weights(again.path, seat), seat_weights(whole.path, seat))
    moved = [seat_weights(whole.path / "checkpoints/step-1", s) for s in seats]
    assert not all(same_weights(a, seat_weights(whole.path, s)) for a, s in zip(moved, seats, strict=True))
    assert again.episodes() == whole.episodes()
    streams = [stream for row in whole.metrics_rows() for stream in row["streams"].values()]
    gaps = [stream["sampler_gap"] for stream in streams if stream["sampler_gap"] is not None]
    assert gaps
    assert max(gaps) < 0.05


def test_exports_load_over_the_published_model_and_by_themselves(base: Path, tmp_path: Path):
    run = played(base, tmp_path / "run", "grpo", "fp32")

    def logits(model: Any) -> torch.Tensor:
        with torch.no_grad():
            return model.eval()(IDS).logits.float()

    whole = AutoModelForImageTextToText.from_pretrained(base, dtype=torch.float32)
    plain = logits(whole)
    peft = export(run.path, to="peft", out=tmp_path / "peft", verify=False)
    adapted = PeftModel.from_pretrained(whole, peft.path)
    assert [name for name, _ in adapted.named_parameters() if "lora_" in name and "visual" in name] == []
    own = {name.replace(".default.", "."): p for name, p in adapted.named_parameters() if "lora_" in name}
    assert same_weights(own, load_file(peft.path / "adapter_model.safetensors"))
    found = logits(adapted)
    assert not torch.equal(found, plain)
    merged = export(run.path, to="merged", out=tmp_path / "merged", verify=False)
    alone = AutoModelForCausalLM.from_pretrained(merged.path, dtype=torch.float32)
    assert (logits(alone) - found).norm() < 0.02 * found.norm()  # it was saved in bf16
    asked = {"tasks": "letters", "limit": 30, "max_completion_tokens": 12}
    seat, folder = (evaluate(where, **asked).to_json() for where in (run.path, merged.path))
    right = [[of[name] for of in found["per_problem"].values()] for found, name in ((seat, "solver"), (folder, "base"))]
    assert len(right[0]) == 15
    assert 0 < sum(right[0]) < 15
    assert sum(a != b for a, b in zip(*right, strict=True)) <= 2  # in bf16 a token may be another
    with (run.path / "README.md").open() as card:
        assert "AutoModelForImageTextToText.from_pretrained" in card.read()
