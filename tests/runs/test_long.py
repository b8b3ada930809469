"""A run's memory, and the time of a step's bookkeeping, do not grow with its steps."""

import gc
import statistics
import time
import tracemalloc
from array import array
from collections.abc import Mapping
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from lite_selfplay import RunConfig
from lite_selfplay.runs import budget, step_log
from lite_selfplay.runs.folder import RunFolder
from tests.made_runs import loop_of

GROWTH = 200
"""Bytes a step: less than a tenth of a step's line."""


@pytest.mark.timeout(0)
@pytest.mark.parametrize(
    ("steps", "first", "looked_back"), [(450, 250, 50), pytest.param(100_000, 1000, 400, marks=pytest.mark.long)]
)
def test_memory_and_bookkeeping_do_not_grow_with_the_steps(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, steps: int, first: int, looked_back: int
):
    """The first step is played and learned from; it stands for all the others."""
    monkeypatch.setattr("os.fsync", lambda descriptor: None)
    monkeypatch.setattr(step_log, "SEEN", looked_back)
    monkeypatch.setattr(budget, "LONG", looked_back)
    run = {"save_every": 100, "save_minutes": 0, "episodes_limit_mb": 0.1}
    small = {"game": "agon", "model": "tiny", "tasks": "letters", "precision": "fp32", "group_size": 2}
    small |= {"problems_per_step": 1, "steps": steps, "max_completion_tokens": 4, "run": run}
    settings = RunConfig(**small, run_dir=tmp_path / "run")
    folder = RunFolder(tmp_path / "run")
    folder.create(settings)
    held, seconds = dict[int, int](), array("d", bytes(8 * steps))
    tracemalloc.start()
    with loop_of(settings, folder.path) as loop:
        play, update, done = loop.game.play, loop.trainer.update, loop._write_down
        made: dict[str, Any] = {}

        def once(name: str, work: Any, *given: Any) -> Any:
            return made[name] if name in made else made.setdefault(name, work(*given))

        def written(report: Any, started: float) -> Mapping[str, Any]:
            began, metrics = time.perf_counter(), done(report, started)
            loop._step_log.show(report.step, metrics, "")
            seconds[report.step] = time.perf_counter() - began
            if report.step + 1 in (first, steps - 1):
                gc.collect()
                held[report.step + 1] = tracemalloc.get_traced_memory()[0]
            return metrics

        def learned(step: int, *given: Any) -> Any:
            return replace(once("report", update, step, *given), step=step)

        monkeypatch.setattr(loop.game, "play", lambda step, table: once("episode", play, step, table))
        monkeypatch.setattr(loop.trainer, "update", learned)
        monkeypatch.setattr(loop, "_write_down", written)
        monkeypatch.setattr(loop, "_show", lambda report, metrics: None)
        loop.run()
    tracemalloc.stop()
    assert held[steps - 1] - held[first] < GROWTH * (steps - first)
    assert held[steps - 1] < 1.05 * held[first]
    quarter = (steps - first) // 4
    assert statistics.median(seconds[-quarter:]) < 2 * statistics.median(seconds[first : first + quarter])
