"""`lite-selfplay why` and `list runs`, on a run folder written by hand."""

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from lite_selfplay.config import RunConfig
from lite_selfplay.runs.folder import RunFolder

from .conftest import episode, step_metrics

SMALL: dict[str, Any] = {"model": "tiny", "tasks": "letters", "seats": {"A": {}}}
STREAM = {"seat": "A", "completions": 4, "groups": 1, "accuracy": 0.1, "well_formed": 1.0, "truncated": 0.9}


@pytest.fixture
def run(tmp_path: Path) -> Path:
    folder = RunFolder(tmp_path / "runs" / "first")
    folder.create(RunConfig(game="grpo", steps=4, max_completion_tokens=10, **SMALL))
    for step in (1, 2):
        odd = {"seat": "A", "prompt": "?", "problem_id": "p\x1b[2J", "reward": 1.0, "advantage": 1.5}
        row = episode(step, "solver", True, "one\x1b[2J\u202etwo " * 40, **odd)
        folder.append(step_metrics(step, solver={**STREAM, "tokens_mean": 9.0}), [row], 1.0)
    return folder.path


def test_why(run: Path, call: Callable[..., Any]):
    ended = call("why", run)
    assert (ended.code, ended.err) == (0, "")
    lines = ended.out.splitlines()
    assert lines[0] == "grpo on tiny, steps 1 to 2:"
    assert lines[2] == "! 90% of the solver's completions hit the limit of 10 tokens before they answer."
    assert lines[3] == "    evidence: truncated 0.90, mean length 9 of 10 tokens"
    assert lines[4] == f"    next: lite-selfplay train --config {run}/config.yaml --max-completion-tokens 20"
    assert "  step 1, solver (seat A), p: right, advantage +1.50" in lines
    assert max(map(len, lines)) < 200
    assert not {"\x1b", "\u202e"} & set(ended.out)
    assert "grpo on tiny, step 2:" in call("why", run, "--step", 2).out


def test_calm_steps_have_no_mark(tmp_path: Path, call: Callable[..., Any]):
    folder = RunFolder(tmp_path / "run")
    folder.create(RunConfig(game="grpo", steps=4, max_completion_tokens=10, **SMALL))
    folder.append(step_metrics(1, solver={**STREAM, "accuracy": 0.5, "truncated": 0.0}), [], 1.0)
    assert call("why", folder.path).out.splitlines()[2] == "These steps look normal."


def test_explain(run: Path, call: Callable[..., Any]):
    ended = call("why", "truncated", run)
    assert ended.out.splitlines() == [
        "truncated: The share of completions that reached their token limit, or were stopped because they "
        "repeated themselves.",
        "healthy: Below 20%.",
        "to change: A larger --max-completion-tokens, or a cold start with short solutions; for repetition see "
        "`loops`.",
        "this run, solver: first 90%, last quarter 90%, last 90%; 2 steps",
    ]
    assert call("why", "kl", run).out.splitlines()[-1] == "this run: no value"
    assert call("why", "vote share").code == 0
    for asked, sentence in (
        ((run, "--step", 3), "its steps are 1 to 2"),
        (("truncatd",), "did you mean truncated"),
        (("runs/nowhere",), "is not a run folder"),
        (("kl", "--step", 1), "--step works only with a run folder"),
    ):
        ended = call("why", *asked)
        assert (ended.code, sentence in ended.err) == (2, True)


def test_runs(run: Path, tmp_path: Path, call: Callable[..., Any]):
    (run / "checkpoints" / "step-2").mkdir(parents=True)
    (run / "checkpoints" / "step-2" / "manifest.json").write_text("{}")
    RunFolder(tmp_path / "runs" / "second").create(RunConfig(game="agon", **SMALL))
    (tmp_path / "runs" / "third").mkdir()
    (tmp_path / "runs" / "third" / "config.yaml").write_text("game: [")
    ended = call("list", "runs")
    assert (ended.code, ended.err) == (0, "")
    lines = [line.split() for line in ended.out.splitlines()]
    assert lines[0] == ["run", "game", "model", "step", "state", "best", "size"]
    assert lines[1][:5] == ["first", "grpo", "tiny", "2/4", "stopped"]
    assert lines[2][:6] == ["second", "agon", "tiny", "0/200", "not", "begun"]
    assert "damaged" in lines[3]
    assert "first: lite-selfplay train --resume runs/first" in ended.out
    assert "third: " in ended.out
    assert "no run folders in ." in call("list", "runs", ".").out
    ended = call("list", "runs", "nowhere")
    assert (ended.code, "cannot read the folder nowhere" in ended.err) == (2, True)
