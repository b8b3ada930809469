"""A run folder written by hand, with texts that would do harm anywhere but in a text node."""

import json
from pathlib import Path
from typing import Any

import pytest

from lite_selfplay.config import RunConfig
from lite_selfplay.runs.folder import RunFolder

SCRIPT = "</script><script>window.harmed = 1</script><img src=x onerror='window.harmed = 2'>"
ANSI, BIDI, LONE = "\x1b[2J\x1b]0;gone\x07", "safe\u202etxt.exe\u2066", "half \ud800 of a pair"


def episode(step: int, role: str, correct: bool | None, text: str, **values: Any) -> dict[str, Any]:
    seat, prompt = ("A", "1 + 1?") if role == "drafter" else ("B", "1 + 1?\n\nan attempt")
    about = {"step": step + 1, "role": role, "seat": seat, "problem_id": f"p{step}", "group": 0, "sample": 0}
    said = {"prompt": prompt, "text": text, "tokens": 3, "stop": "eos"}
    judged = {"reward": 2.0 * bool(correct), "advantage": 0.5, "correct": correct, "well_formed": True, "answer": "2"}
    return {**about, **said, **judged, "reason": "" if correct else "wrong", **values}


def step_metrics(step: int) -> dict[str, Any]:
    stream = {"completions": 2, "groups": 1, "accuracy": 0.5, "well_formed": 1.0, "reward_mean": 1.25 + step}
    streams = {role: {"seat": seat, **stream} for role, seat in (("drafter", "A"), ("challenger", "B"))}
    game = {"pairs": 2, "conversions": 1, "regressions": step, "empty_summaries": 0.5}
    return {"step": step + 1, "streams": streams, "seats": {"A": {"grad_norm": 1.0}}, "game": game, "warnings": []}


def pair(step: int, draft: bool, challenge: bool, **values: Any) -> list[dict[str, Any]]:
    reply = episode(step, "challenger", challenge, f"a reply at step {step}", draft=0, **values)
    return [episode(step, "drafter", draft, f"a draft at step {step}"), reply]


def append(folder: Path, step: int, rows: list[dict[str, Any]]) -> None:
    """Lines as a run writes them, or as somebody else might: in ASCII, so that halves of pairs can stand there."""
    for name, lines in (("metrics.jsonl", [step_metrics(step)]), ("episodes.jsonl", rows)):
        with (folder / name).open("a", encoding="utf-8") as file:
            file.writelines(json.dumps(line) + "\n" for line in lines)


@pytest.fixture
def run(tmp_path: Path) -> Path:
    """Four steps of a pair each: the challenge wins, loses, both right, both wrong; p0 comes again at the last."""
    folder = RunFolder(tmp_path / "run")
    folder.create(RunConfig(game="agon", model="tiny", tasks="letters", steps=4, seats={"A": {}, "B": {}}))
    for step, (draft, challenge) in enumerate([(False, True), (True, False), (True, True), (False, False)]):
        append(folder.path, step, pair(step, draft, challenge, **({"problem_id": "p0"} if step == 3 else {})))
    return folder.path


@pytest.fixture
def hostile(run: Path) -> Path:
    """A fifth step, whose texts, names and problems attack whoever shows them."""
    texts = [SCRIPT, ANSI, BIDI, LONE, "x" * 1_000_000]
    rows = []
    for sample, text in enumerate(texts):
        odd = {"sample": sample, "problem_id": text[:50], "stop": "length"}
        rows.append(episode(4, "drafter", False, text, prompt=text, answer=text[:40], **odd))
        rows.append(episode(4, "challenger", None, text, prompt=text, reason=text[:40], draft=sample, note=text, **odd))
    append(run, 4, rows)
    return run
