"""Problems from a JSONL file: the loader of a user's own data and of downloaded benchmarks alike."""

import codecs
import json
import math
import re
from pathlib import Path
from typing import Any, NoReturn

from lite_selfplay.data import Problem
from lite_selfplay.errors import TaskError

_PROBLEM_KEYS = ("problem", "question")
_THOUSANDS = re.compile(r"[-+$]*\d{1,3}(,\d{3})+(\.\d*)?%?")
MAX_LINE_BYTES = 10_000_000


def read_jsonl(path: Path) -> list[Problem]:
    """Every line of a file as a problem; blank lines are passed over.

    A line is an object with `problem` or `question`, usually `answer` (of a worked solution, what follows `####`),
    and possibly `id`; other columns are kept in `Problem.extra`. A worked solution is kept there as `solution`, and a
    text in the column `content` says which problem it is where its wording does not. An answer that is a list names
    values that are right only together; alternatives are written {"any_of": [...]}.
    Raises TaskError naming file and line for anything else.
    """
    if not path.is_file():
        raise TaskError(f"no task file at {path}")
    problems = []
    try:
        file = path.open("rb")
    except OSError as error:
        raise TaskError(f"cannot read {path}: {error.strerror or error}") from None
    with file as lines:
        for number, raw in enumerate(iter(lambda: lines.readline(MAX_LINE_BYTES + 1), b""), 1):
            where = f"{path}, line {number}"
            if len(raw) > MAX_LINE_BYTES:
                raise TaskError(f"{where}: longer than {MAX_LINE_BYTES:,} bytes")
            if number == 1:
                raw = raw.removeprefix(codecs.BOM_UTF8)
            if raw.strip():
                problems.append(_problem(_row(raw, where), where, f"{path.stem}-{number}"))
    if not problems:
        raise TaskError(f"{path} holds no problem")
    return problems


def _row(raw: bytes, where: str) -> dict[str, Any]:
    try:
        row = json.loads(raw.rstrip().decode("utf-8"), parse_constant=_no_constant)
        json.dumps(row, ensure_ascii=False).encode("utf-8")
    except UnicodeEncodeError:
        raise TaskError(f"{where}: holds half a surrogate pair, which is no text") from None
    except UnicodeDecodeError:
        raise TaskError(f"{where}: not UTF-8") from None
    except json.JSONDecodeError as error:
        raise TaskError(f"{where}: not JSON ({error.msg} at column {error.colno})") from None
    except ValueError as error:  # NaN, or a number of thousands of digits
        raise TaskError(f"{where}: not JSON ({str(error).partition(':')[0]})") from None
    except RecursionError:
        raise TaskError(f"{where}: nested too deeply") from None
    if not isinstance(row, dict):
        raise TaskError(f"{where}: must be an object, not {type(row).__name__}")
    return row


def _no_constant(name: str) -> NoReturn:
    raise ValueError(f"{name} is no JSON number")


def _problem(row: dict[str, Any], where: str, default_id: str) -> Problem:
    key = next((key for key in _PROBLEM_KEYS if key in row), None)
    if key is None:
        raise TaskError(f"{where}: neither 'problem' nor 'question' among its columns ({', '.join(row) or 'none'})")
    text = row[key]
    if not isinstance(text, str) or not text.strip():
        raise TaskError(f"{where}: {key!r} must be a text that is not empty")
    answer, extra = row.get("answer"), {k: v for k, v in row.items() if k not in (key, "answer", "id")}
    if answer is not None and not all(map(_is_answer, _values(answer))):
        raise TaskError(f"{where}: 'answer' must be a text, a finite number, a list of them or {{\"any_of\": [...]}}")
    if isinstance(answer, str):
        _, mark, final = answer.rpartition("####")
        if mark and "\n" not in final.strip():
            extra.setdefault("solution", answer)
            answer = final.strip()
            answer = answer.replace(",", "") if _THOUSANDS.fullmatch(answer) else answer
        answer = answer if answer.strip() else None
    own_id = row.get("id")
    return Problem(default_id if own_id is None else str(own_id), text.strip(), answer, extra=extra)


def _values(answer: Any) -> list[Any]:
    """What an answer names, taken out of its alternatives and lists; an empty one of those stays itself."""
    if isinstance(answer, dict) and list(answer) == ["any_of"] and isinstance(answer["any_of"], list):
        return [value for item in answer["any_of"] for value in _values(item)] or [answer]
    return answer if isinstance(answer, list) and answer else [answer]


def _is_answer(value: Any) -> bool:
    if isinstance(value, float):
        return math.isfinite(value)
    return isinstance(value, str | int) and not isinstance(value, bool)
