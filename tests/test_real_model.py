"""Two steps of the real SmolLM2-135M in 4 bits: what a random model cannot show."""

import os
from pathlib import Path

import pytest
import torch
from safetensors.torch import load_file

from lite_selfplay import RunConfig, train


@pytest.mark.slow
def test_two_steps_of_agon_on_the_real_model(tmp_path: Path):
    torch.set_num_threads(os.cpu_count() or 1)  # large enough to gain from it
    said: list[str] = []
    run = train(
        RunConfig(
            game="agon",
            model="smollm2-135m",
            tasks="stories:max=10",
            steps=2,
            group_size=6,
            problems_per_step=1,
            max_completion_tokens=36,
            cold_start={"enabled": True, "steps": 8, "examples_per_step": 4, "lr": 1e-3},
            seats={"*": {"lr": 1e-4}},
            run_dir=tmp_path / "run",
        ),
        listener=said.append,
    )
    for line in said:
        if "loss " in line and "->" in line:
            first, last = (float(text) for text in line.rpartition("loss ")[2].split(" -> "))
            assert last < 0.8 * first
    rows = run.metrics_rows()
    assert [row["step"] for row in rows] == [0, 1]
    before = run.path / "checkpoints" / "step-0" / "adapters"
    for seat, folder in run.seats.items():
        start, end = (load_file(path / "adapter_model.safetensors") for path in (before / seat, folder))
        assert rows[-1]["seats"][seat]["updates"] >= 1
        assert any(not torch.equal(start[name], end[name]) for name in start)
    completions = run.episodes()
    assert any(row["well_formed"] for row in completions)
    assert any(row["stop"] == "eos" for row in completions)
    assert not any("<|im_" in row["text"] for row in completions)
