"""A step of the real SmolLM2-135M in 4 bits, for properties that a random model does not have."""

from pathlib import Path

import pytest
import torch
from safetensors.torch import load_file

from lite_selfplay import RunConfig, train
from lite_selfplay.config import ModelSection, SeatConfig
from lite_selfplay.data import Sampling
from lite_selfplay.models.backends.transformers import TransformersBackend
from lite_selfplay.models.chat_template import Chat
from lite_selfplay.models.generation.sampling import GenerationRequest
from lite_selfplay.models.sources import resolve
from tests.near import near

pytestmark = [pytest.mark.slow, pytest.mark.timeout(900), pytest.mark.usefixtures("several_threads")]


@pytest.mark.long
def test_a_step_of_agon_on_the_real_model(tmp_path: Path):
    said: list[str] = []
    sizes = {"steps": 1, "group_size": 4, "problems_per_step": 2, "max_completion_tokens": 32}
    run = train(
        RunConfig(
            game="agon",
            model="smollm2-135m",
            tasks="stories:max=10",
            cold_start={"enabled": True, "steps": 6, "examples_per_step": 2, "lr": 1e-3},
            seats={"*": {"lr": 1e-4}},
            run={**sizes, "seed": 1, "dir": tmp_path / "run"},  # a seed with which rewards differ in a group
            preflight=False,
        ),
        progress=said.append,
    )
    losses = [line.rpartition("loss ")[2].split(" -> ") for line in said if "loss " in line and "->" in line]
    assert [float(last) < 0.8 * float(first) for first, last in losses] == [True, True]  # of both seats
    rows = run.metrics_rows()
    assert [row["step"] for row in rows] == [1]
    before = run.path / "checkpoints" / "step-0" / "adapters"
    for seat, folder in run.seats.items():
        start, end = (load_file(path / "adapter_model.safetensors") for path in (before / seat, folder))
        moved = any(not torch.equal(start[name], end[name]) for name in start)
        assert moved == (rows[-1]["seats"][seat]["updates"] > 0)  # a group with equal rewards updates nothing
    assert any(row["seats"][seat]["updates"] for row in rows for seat in run.seats)
    completions = run.episodes()
    assert any(row["well_formed"] for row in completions)
    assert any(row["stop"] == "eos" for row in completions)
    assert not any("<|im_" in row["text"] for row in completions)


@pytest.mark.parametrize("seat", ["A", pytest.param("base", marks=pytest.mark.long)])
def test_greedy_text_and_log_probabilities_of_the_real_model_are_those_of_transformers(seat: str):
    model = resolve("smollm2-135m")
    chat, section = Chat.load(model.path, "off"), ModelSection(name="smollm2-135m", precision="fp32")
    seats = {"A": SeatConfig(init="gaussian", init_std=0.02), "B": SeatConfig()}
    backend = TransformersBackend(model.path, section, seats, seed=0, eos_ids=chat.eos_ids)
    asked = ("What is 3 + 4?", "What is 3 + 40 - 8? Think step by step.")
    prompts = [list(chat.encode(text).ids) for text in asked]
    greedy = Sampling(temperature=0.0, max_tokens=8)
    said = backend.generate(GenerationRequest(seat, prompts, 2, greedy, [[0, 1]] * 2))
    for prompt, group in zip(prompts, said, strict=True):
        with torch.no_grad(), backend.adapters.inference(seat):
            theirs = backend.adapters.model.generate(
                input_ids=torch.tensor([prompt]),
                attention_mask=torch.ones(1, len(prompt), dtype=torch.long),
                max_new_tokens=8,
                do_sample=False,
                eos_token_id=list(chat.eos_ids),
                pad_token_id=chat.pad_id,
            )[0, len(prompt) :].tolist()
        assert [out.token_ids for out in group] == [theirs, theirs]
    drawn = backend.generate(GenerationRequest(seat, prompts, 2, Sampling(max_tokens=8), [[1, 2], [3, 4]]))
    rows = [(prompt, out.token_ids) for prompt, group in zip(prompts, drawn, strict=True) for out in group]
    scores = backend.score(seat, rows, 1.0)
    outs = [out for group in drawn for out in group]
    for out, score in zip(outs, scores, strict=True):
        assert near(out.logprobs, score.logprobs, 2e-5)
    assert len({tuple(out.token_ids) for out in outs}) > 2
