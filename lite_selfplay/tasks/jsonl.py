"""Problems from a JSONL or CSV file, for users' own data and for downloaded benchmarks."""

import os
import re
from collections.abc import Callable, Iterable, Mapping
from pathlib import Path
from typing import Any

from lite_selfplay.data import Problem
from lite_selfplay.errors import TaskError
from lite_selfplay.tasks.files import read_rows
from lite_selfplay.verify import programs
from lite_selfplay.verify.expression import GROUPED
from lite_selfplay.verify.math import check_all, references

_PROBLEM_KEYS = ("problem", "question")
_THOUSANDS = re.compile(rf"[-+$]*{GROUPED}(\.\d*)?%?")


def read_jsonl(path: Path) -> list[Problem]:
    """The problems of a JSONL or CSV file, one for each line or row; blank lines are skipped.

    - `problem` or `question`: the text. `id`: optional.
    - `answer`: usually given. Of a worked solution, the part after `####`; the whole is kept as `extra["solution"]`. Of
      a list, all values are required; of {"any_of": [...]}, one.
    - `tests`: the answer is a program that passes them (`lite_selfplay.verify.programs.read_tests`). Rows with the
      columns of HumanEval and MBPP are read as well.
    - Other columns are kept in `Problem.extra`; `content` among them identifies the problem if its text does not.

    Raises TaskError, with file and line, for other rows, tests that no program fails, and answers that the checker
    cannot match.
    """
    if not os.path.exists(path):
        raise TaskError(f"no task file at {path}")
    return to_problems(read_rows(path, TaskError), path)


def to_problems(rows: Iterable[tuple[int, dict[str, Any]]], path: Path) -> list[Problem]:
    """Problems from (line number, row) pairs, as `read_jsonl` describes them; errors begin with `path`."""
    problems = {
        (where := f"{path}, line {number}"): to_problem(row, where, f"{path.stem}-{number}") for number, row in rows
    }
    programs.require_failing(problems.items())
    if not problems:
        raise TaskError(f"{path} has no problem")
    return [*problems.values()]


def to_problem(row: dict[str, Any], where: str, default_id: str) -> Problem:
    """A problem from a row, as `read_jsonl` describes it. Raises TaskError, beginning with `where`, for other rows."""
    if (seen := next((name for name in ("image", "images") if row.get(name)), None)) is not None:
        raise TaskError(f"{where}: it has an image ({seen!r}), but models read only text here: remove such problems")
    key = next((key for key in _PROBLEM_KEYS if key in row), None)
    if key is None and ("test_list" in row or {"prompt", "entry_point", "test"} <= row.keys()):
        read = humaneval if {"prompt", "entry_point", "test"} <= row.keys() else mbpp
        program = program_of_row(read, row, where, default_id)
        if program is not None:
            return program
    if key is None:
        raise TaskError(
            f"{where}: neither 'problem' nor 'question' among its columns ({', '.join(row) or 'none'}): map its "
            "columns after the file's name, as in FILE:problem=prompt,answer=solution"
        )
    text = row[key]
    if not isinstance(text, str) or not text.strip():
        raise TaskError(f"{where}: {key!r} must be a non-empty text")
    name = default_id if row.get("id") is None else str(row["id"])
    if any(row.get(tests) is not None for tests in ("tests", "test_list")) or {"test", "entry_point"} <= row.keys():
        return programs.problem_of_object(row, text, where, name)
    answer, extra = row.get("answer"), {k: v for k, v in row.items() if k not in (key, "answer", "id")}
    values = [] if answer is None else _values(answer)
    if not all(isinstance(value, str | int | float) and not isinstance(value, bool) for value in values):
        raise TaskError(f"{where}: 'answer' must be a text, a number, a list of them or {{\"any_of\": [...]}}")
    if isinstance(answer, str):
        _, mark, final = answer.rpartition("####")
        if mark and "\n" not in final.strip():
            extra.setdefault("solution", answer)
            answer = final.strip()
            answer = answer.replace(",", "") if _THOUSANDS.fullmatch(answer) else answer
        answer = answer if answer.strip() else None
    # If a reference is not right as the answer to its own problem, no answer is.
    if answer is not None and not any(
        verdict.correct
        for verdict in check_all([(f"<answer>{'; '.join(each)}</answer>", answer) for each in references(answer)])
    ):
        raise TaskError(f"{where}: no answer matches this reference: {str(answer)[:80]!r}")
    return Problem(name, text.strip(), answer, extra=extra)


def _values(answer: Any) -> list[Any]:
    """The single values of an answer's alternatives and lists; an empty list counts as a value."""
    if isinstance(answer, dict) and list(answer) == ["any_of"] and isinstance(answer["any_of"], list):
        return [value for item in answer["any_of"] for value in _values(item)] or [answer]
    return answer if isinstance(answer, list) and answer else [answer]


# Rows of programming benchmarks: their code is run only in the sandbox, to test a program

Row = Mapping[str, Any]
# (row, its name in errors) -> (the statement, the tests, other columns to keep, such as `solution`)
Reader = Callable[[Row, str], tuple[str, Any, Mapping[str, Any]]]

# The part of numpy that EvalPlus' tests use: packages are not available in a sandbox.
_ARRAYS = """
import sys, types
numpy = types.ModuleType("numpy")
class ndarray: pass
def flat(x):
    return [z for y in x for z in flat(y)] if isinstance(x, (list, tuple)) else [x]
def allclose(a, b, rtol=1e-05, atol=1e-08):
    a, b = flat(a), flat(b)
    return len(a) == len(b) and all(x == y or abs(x - y) <= atol + rtol * abs(y) for x, y in zip(a, b))
numpy.ndarray, numpy.allclose, numpy.float64, numpy.float32, numpy.inf = ndarray, allclose, float, float, float("inf")
sys.modules["numpy"] = numpy
"""


def program_of_row(read: Reader, row: Row, where: str, default_id: str, id_column: str = "task_id") -> Problem | None:
    """A programming problem from a row; None if it has no tests. Raises TaskError, beginning with `where`, for a
    malformed row."""
    try:
        statement, tests, extra = read(row, where)
    except (ArithmeticError, AttributeError, LookupError, MemoryError, TypeError, ValueError) as error:
        raise TaskError(f"{where}: not a row of this benchmark ({type(error).__name__}: {error})") from None
    if not tests:
        return None
    name = next((str(row[key]) for key in ("id", id_column) if row.get(key) is not None), default_id)
    return programs.program_problem(name, statement, tests, where, extra)


def humaneval(row: Row, where: str) -> tuple[str, Any, Mapping[str, Any]]:
    """Read a row of HumanEval: complete a function, tested by `check(candidate)`."""
    name, stub, test = _texts(row, ("entry_point", "prompt", "test"), where)
    statement = f"Complete this Python function:\n\n```python\n{stub.strip()}\n```"
    setup = stub if "import numpy" not in test else f"{_ARRAYS}\n{stub}"
    tests = {"test": test, "function": name, "stub": stub, "setup": setup}
    solution = row.get("canonical_solution")
    return statement, tests, {"solution": f"{stub}{solution}"} if isinstance(solution, str) else {}


def mbpp(row: Row, where: str) -> tuple[str, Any, Mapping[str, Any]]:
    """Read a row of MBPP: its assertions are also part of the statement, since they define the function's name and
    arguments."""
    text = row.get("text") or row.get("prompt")
    asserted = row.get("test_list")
    if not isinstance(text, str) or not isinstance(asserted, list) or not all(isinstance(x, str) for x in asserted):
        raise TaskError(f"{where}: needs 'text' or 'prompt', and 'test_list' of texts")
    setup = "\n".join([*(row.get("test_imports") or []), row.get("test_setup_code") or ""])
    statement = f"{text.strip()}\n\nThe program must pass these tests:\n\n" + "\n".join(asserted)
    tests: dict[str, Any] = {"tests": [*asserted, *(row.get("challenge_test_list") or [])], "setup": setup}
    if isinstance(row.get("test"), str):  # EvalPlus: one text with many more
        tests = {"tests": [row["test"]], "setup": f"{_ARRAYS}\n{setup}"}
    code = row.get("code")
    return statement, tests, {"solution": code} if isinstance(code, str) else {}


def codecontests(row: Row, where: str) -> tuple[str, Any, Mapping[str, Any]]:
    """Read a row of CodeContests, with public and private tests of stdin and stdout."""
    (statement,) = _texts(row, ("description",), where)
    tests = []
    for column in ("public_tests", "private_tests"):
        found = row.get(column) or {}
        tests += [list(pair) for pair in zip(found.get("input") or [], found.get("output") or [], strict=True)]
    return statement, tests, {}


def _texts(row: Row, columns: tuple[str, ...], where: str) -> list[str]:
    found = [row[column] for column in columns]
    if not all(isinstance(text, str) and text.strip() for text in found):
        raise TaskError(f"{where}: {' and '.join(columns)} must be non-empty texts")
    return found
