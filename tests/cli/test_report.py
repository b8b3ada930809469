"""`lite-selfplay report`, on run folders written by hand."""

import json
from pathlib import Path
from typing import Any

import pytest

from lite_selfplay.config import RunConfig
from lite_selfplay.runs.folder import RunFolder
from tests.made_runs import read_lines, write_lines

from .conftest import episode, step_metrics


def evaluation(share: float, seat: str, **about: Any) -> dict[str, Any]:
    score = {"pass_at_1": share, "ci95": [0.0, 1.0], "tokens_final_mean": 20.0, "tokens_total_mean": 20.0}
    common = {"mode": "single", "tasks": "stories", "n": 4, "samples": 1, "best": seat, "seats": {seat: score}}
    return {**common, **score, **about, "per_problem": {str(i): {seat: i < 4 * share} for i in range(4)}}


@pytest.fixture
def run(tmp_path: Path) -> Path:
    """Four steps: the challenge wins, loses, both are right, both are wrong."""
    folder = RunFolder(tmp_path / "run")
    folder.create(RunConfig(game="agon", model="tiny", tasks="letters", steps=4, seats={"A": {}, "B": {}}))
    for step, (draft, challenge) in enumerate([(False, True), (True, False), (True, True), (False, False)], 1):
        pair = [episode(step, "drafter", draft, "a draft"), episode(step, "challenger", challenge, "a reply", draft=0)]
        folder.append(step_metrics(step), pair, 1.0)
    return folder.path


def headings(text: str) -> list[str]:
    return [line for line in text.splitlines() if line.startswith("== ")]


def test_first_and_last_step_and_the_latest_conversion(run, call):
    held = "9 of the 40 steps fitted into 12 min"
    (run / "budget.json").write_text(json.dumps({"minutes": 12, "outcome": held}))
    code, out, err = call("report", run)
    assert (code, err, out.splitlines()[-1]) == (0, "", held)
    assert out.splitlines()[:5] == [
        f"agon on tiny: 4 steps in {run}",
        *(
            f"  step {step}: {role}: 50% right, reward 1.25, well-formed 100%, length in tokens 20"
            for step in (1, 4)
            for role in ("drafter (seat A)", "challenger (seat B)")
        ),
    ]
    assert headings(out) == ["== transcript 1, step 1, problem p1: the challenge was right, the draft wrong"]
    assert "-- its answer, wrong, reward 0:\n    a draft\n" in out
    assert "-- its answer, right, reward 2:\n    a reply\n" in out
    assert "pass@1" not in out


def test_a_page_of_transcripts(run, call, tmp_path):
    page = tmp_path / "duels.md"
    code, out, _ = call("report", run, "--duels", 3, "--choose", "spread", "--out", page)
    assert code == 0
    assert f"wrote 3 transcripts to {page}" in out
    assert headings(out) == []
    text = page.read_text(encoding="utf-8")
    assert text.startswith("# Transcripts of agon on tiny, 4 steps\n\nChosen by rule (`spread`): ")
    assert text.count("\n## ") == 3


def test_what_is_refused_overwrites_nothing(run, call, tmp_path):
    (tmp_path / "mine").write_text("mine")
    for arguments, sentence in (
        (("--choose", "nicest"), "spread"),
        (("--out", "mine"), "exists already: choose another --out"),
        (("--out", "no/folder.md"), "cannot write"),
        (("--figures", "--out", "mine"), "exists already"),
    ):
        code, _, err = call("report", run, *arguments)
        assert (code, sentence in err, (tmp_path / "mine").read_text()) == (2, True, "mine")


def test_figures(run, call, tmp_path):
    rows = read_lines(run / "metrics.jsonl")
    write_lines(run / "metrics.jsonl", [{**row, "game": {"conversions": 1}} for row in rows])
    code, out, err = call("report", run, "--duels", 0, "--figures")
    assert (code, err) == (0, "")
    names = ["learning.png", "the-game.png"]
    assert f"figures: {', '.join(str(run / 'figures' / name) for name in names)}" in out
    for _ in range(2):  # in the place of those of before
        code, out, _ = call("report", run, "--figures", "--out", tmp_path / "elsewhere", "--json")
        assert json.loads(out)["figures"] == [str(tmp_path / "elsewhere" / name) for name in names]


def test_evaluations_are_printed_side_by_side_and_a_broken_one_is_named(run, call):
    for name, result in {
        "base": evaluation(0.25, "base", moment="untouched", step=-1),
        "step-000004": evaluation(0.75, "A", moment="after 4 steps", step=4),
        "step-000000": evaluation(0.5, "A", moment="before training", step=0),
        "single-stories-4": evaluation(1.0, "A"),
    }.items():
        RunFolder(run).write_evaluation(name, result)
    code, out, err = call("report", run, "--duels", 0)
    assert (code, err) == (0, "")
    assert "held-out problems of stories, pass@1 with 95% intervals:" in out
    (head,) = [line for line in out.splitlines() if "untouched" in line]
    assert head.split() == "untouched before training after 4 steps".split()
    assert "before training -> after 4 steps: A +25 points (1 gained, 0 lost" in out
    assert "measured with `lite-selfplay eval`, pass@1:\n  single-stories-4: A 100% [0, 100]; 4 problems" in out
    for content in ("{", "[1]", "", "{}"):
        (run / "eval" / "x.json").write_text(content)
        code, _, err = call("report", run)
        assert (code, "x.json" in err, "Traceback" in err) == (0, True, False)


def test_what_a_model_said_cannot_drive_the_terminal(run, call):
    evil = "\x1b[2Jgone\x07"
    RunFolder(run).append(step_metrics(5), [episode(5, "solver", True, evil, prompt=evil, problem_id=evil)], 1.0)
    (run / "episodes.jsonl").write_text((run / "episodes.jsonl").read_text().splitlines()[-1] + "\n")
    _, out, _ = call("report", run)
    assert "== transcript 1, step 5, problem gone: right" in out
    assert not {"\x1b", "\x07"} & set(out)
