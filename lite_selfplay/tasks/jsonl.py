"""Problems from a JSONL file: the loader of a user's own data and of downloaded benchmarks alike."""

import json
import re
from pathlib import Path
from typing import Any

from lite_selfplay.data import Problem
from lite_selfplay.errors import TaskError

_PROBLEM_KEYS = ("problem", "question")
_FINAL = re.compile(r"####\s*(.+?)\s*$")
MAX_LINE_BYTES = 10_000_000


def read_jsonl(path: Path) -> list[Problem]:
    """Every line of a file as a problem; blank lines are passed over.

    A line is an object with `problem` or `question`, usually `answer` (of a worked solution, what follows `####`),
    and possibly `id`; other columns are kept in `Problem.extra`. A worked solution is kept there as `solution`.
    Raises TaskError naming file and line for anything else.
    """
    if not path.is_file():
        raise TaskError(f"no task file at {path}")
    problems = []
    with path.open("rb") as lines:
        for number, raw in enumerate(iter(lambda: lines.readline(MAX_LINE_BYTES + 1), b""), 1):
            where = f"{path}, line {number}"
            if len(raw) > MAX_LINE_BYTES:
                raise TaskError(f"{where}: longer than {MAX_LINE_BYTES:,} bytes")
            if raw.strip():
                problems.append(_problem(_row(raw, where), where, f"{path.stem}-{number}"))
    if not problems:
        raise TaskError(f"{path} holds no problem")
    return problems


def _row(raw: bytes, where: str) -> dict[str, Any]:
    try:
        row = json.loads(raw.decode("utf-8"))
    except UnicodeDecodeError:
        raise TaskError(f"{where}: not UTF-8") from None
    except json.JSONDecodeError as error:
        raise TaskError(f"{where}: not JSON ({error.msg} at column {error.colno})") from None
    except RecursionError:
        raise TaskError(f"{where}: nested too deeply") from None
    if not isinstance(row, dict):
        raise TaskError(f"{where}: must be an object, not {type(row).__name__}")
    return row


def _problem(row: dict[str, Any], where: str, default_id: str) -> Problem:
    key = next((key for key in _PROBLEM_KEYS if key in row), None)
    if key is None:
        raise TaskError(f"{where}: neither 'problem' nor 'question' among its columns ({', '.join(row) or 'none'})")
    text = row[key]
    if not isinstance(text, str) or not text.strip():
        raise TaskError(f"{where}: {key!r} must be a text that is not empty")
    answer, extra = row.get("answer"), {k: v for k, v in row.items() if k not in (key, "answer", "id")}
    if isinstance(answer, bool) or not isinstance(answer, str | int | float | list | None):
        raise TaskError(f"{where}: 'answer' must be a text, a number or a list of them")
    if isinstance(answer, str) and (final := _FINAL.search(answer)):
        extra.setdefault("solution", answer)
        answer = final[1].replace(",", "")
    return Problem(str(row.get("id", default_id)), text.strip(), answer, extra=extra)
