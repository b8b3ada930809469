"""Two steps of the real SmolLM2-135M in 4 bits: what a random model cannot show."""

from pathlib import Path

import pytest

from lite_selfplay import RunConfig, train


@pytest.mark.slow
def test_two_steps_of_agon_on_the_real_model(tmp_path: Path):
    said: list[str] = []
    run = train(
        RunConfig(
            game="agon",
            model="smollm2-135m",
            tasks="stories",
            steps=2,
            group_size=4,
            problems_per_step=2,
            max_completion_tokens=32,
            cold_start={"enabled": True, "steps": 6, "examples_per_step": 6},
            seats={"*": {"lr": 1e-4}},
            run_dir=tmp_path / "run",
        ),
        say=said.append,
    )
    for line in said:
        if line.startswith("cold start"):
            first, last = (float(text) for text in line.rpartition("loss ")[2].split(" -> "))
            assert last < 0.8 * first
    rows = run.metrics_rows()
    assert [row["step"] for row in rows] == [0, 1]
    assert all(row["seats"][seat]["updates"] == 2 for seat in "AB" for row in rows[1:])
    completions = run.episodes()
    assert any(row["well_formed"] for row in completions)
    assert any(row["stop"] == "eos" for row in completions)
    assert not any("<|im_" in row["text"] for row in completions)
