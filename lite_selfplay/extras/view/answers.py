"""What the page asks while it is open: an overview, a step's cases, one case to read, cases by filter and words."""

import json
import time
from collections.abc import Callable, Mapping, Sequence
from typing import Any

from lite_selfplay.extras.view.cases import Numbered, cases_of, holds
from lite_selfplay.extras.view.index import read_row
from lite_selfplay.extras.view.overview import ViewedRun
from lite_selfplay.runs.folder import as_written

MOST_FOUND = 60
"""Cases after which a search stops at the end of a step; the page asks for more."""
PATIENCE_S = 0.5
"""Seconds after which a search says how far it is."""


class NotAsked(Exception):
    """A question that the page does not ask, in a sentence."""


def answer(runs: Sequence[ViewedRun], question: str, about: Mapping[str, str]) -> Any:
    """The answer to a question of the page, as JSON.

    Raises NotAsked for any other; RunFolderError or ConfigError where the run's files do not hold what a run writes.
    """
    run = runs[_number(about, "run", most=len(runs) - 1)]
    asked = json.dumps(about.get("id", ""), ensure_ascii=False)
    answers: dict[str, Callable[[], Any]] = {
        "stamp": lambda: {"stamps": [each.stamp() for each in runs]},
        "run": run.overview,
        "step": lambda: {"cases": _cases(run, _number(about, "step"))},
        "case": lambda: _case(run, _number(about, "step"), about.get("id", "")),
        "text": lambda: _text(run, _number(about, "line"), about.get("part", "")),
        "problem": lambda: {"steps": run.index.steps_holding(f'"problem_id": {asked}'.encode(errors="replace"))},
        "find": lambda: find(run, about),
    }
    if question not in answers:
        raise NotAsked(f"there is no {question!r}")
    return answers[question]()


def find(run: ViewedRun, about: Mapping[str, str], patience_s: float = PATIENCE_S) -> dict[str, Any]:
    """Cases of a run from the step `from` up to `to`: `filter` is a kind or a flag, `q` are words in them.

    `next` is the step to go on from, None at the end; `looked` how many of the `steps` were looked through.
    """
    steps = list(run.index.steps())
    first, last = _number(about, "from"), _number(about, "to") if "to" in about else None
    chosen, words = about.get("filter", ""), about.get("q", "").casefold()
    found: list[dict[str, Any]] = []
    stop = time.monotonic() + patience_s
    for place, step in enumerate(steps):
        if step < first or (last is not None and step > last):
            continue
        if len(found) >= MOST_FOUND or time.monotonic() > stop:
            return {"cases": found, "next": step, "looked": place, "steps": len(steps)}
        found += _cases(run, step, words, chosen)
    return {"cases": found, "next": None, "looked": len(steps), "steps": len(steps)}


def _cases(run: ViewedRun, step: int, words: str = "", chosen: str = "") -> list[dict[str, Any]]:
    lines = run.index.of_step(step)
    spelled = json.dumps(words)[1:-1].encode()
    if words.isascii() and not any(spelled in line.lower() for _, line in lines):
        return []
    with as_written(run.path):
        rows = read_rows(lines)
        by_line = dict(rows)
        cases = cases_of(run.game, rows, chosen=chosen)
        return [each for each in cases if not words or holds([by_line[part["line"]] for part in each["parts"]], words)]


def _case(run: ViewedRun, step: int, name: str) -> dict[str, Any]:
    with as_written(run.path):
        cases = cases_of(run.game, read_rows(run.index.of_step(step)), whole=True)
    found = next((case for case in cases if case["id"] == name), None)
    if found is None:
        raise NotAsked("this case is no longer in the run: it may have been resumed from an earlier step")
    return found


def _text(run: ViewedRun, line: int, part: str) -> dict[str, Any]:
    """All of a completion's text or prompt."""
    content = run.index.line(line)
    row = None if content is None else read_row(content)
    if row is None or part not in ("text", "prompt"):
        raise NotAsked(f"there is no {part!r} in line {line}")
    return {"text": row[part]}


def read_rows(lines: Sequence[tuple[int, bytes]]) -> list[Numbered]:
    read = ((number, read_row(line)) for number, line in lines)
    return [(number, row) for number, row in read if row is not None]


def _number(about: Mapping[str, str], key: str, most: int = 10**15) -> int:
    text = about.get(key, "0")
    if not (text.isascii() and text.isdigit() and len(text) < 17 and int(text) <= most):
        raise NotAsked(f"{key} must be a whole number of at most {most}, got {text!r}")
    return int(text)
