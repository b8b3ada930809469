"""Problems from a JSONL or CSV file, for users' own data and for downloaded benchmarks."""

import os
import re
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import replace
from itertools import chain
from pathlib import Path
from typing import Any

from lite_selfplay.data import Problem
from lite_selfplay.errors import TaskError
from lite_selfplay.tasks.choices import Choice, asked, proof, reading_of
from lite_selfplay.tasks.columns import (
    PROBLEM_KEYS,
    THOUSANDS,
    known,
    options_in,
    require_answers,
    text_of,
    tidy_number,
)
from lite_selfplay.tasks.files import read_rows
from lite_selfplay.tasks.task import Task
from lite_selfplay.verify import programs
from lite_selfplay.verify.choice import KIND as CHOICE
from lite_selfplay.verify.format import boxed_spans
from lite_selfplay.verify.keys import is_value
from lite_selfplay.verify.math import check_all, references

_TESTS = re.compile(r"(?:\w+_)?tests?(?:_?cases?|_list|s)?|input_output", re.IGNORECASE)
_PART = re.compile(r"body|context|passage|premise", re.IGNORECASE)  # columns that problems may need
_PROGRAM = {"tests", "test_list", "entry_point"}  # columns of a program's problem
_PLAIN = re.compile(r"-?\d{1,15}")
# References that no right answer equals; the first ones also if they could be read as formulas.
_NEVER = (
    ("is a mark of a missing value", re.compile(r"(?i:n/a|n\.a\.?|#n/a|<na>|nan|null|tb[ad]|todo)|NA")),
    ("has the label of an option", re.compile(r"\([A-H]\)\s+[\w\\$].*|(?:option|choice)\s+\(?[A-H]\)?", re.S | re.I)),
)
_NO_VALUE = (
    ("is no value", re.compile(r"\W+")),
    ("is in quotes, or code", re.compile(r"[\[{(\s]*[\"'].*", re.S)),
    ("has the label of an option", re.compile(r"[A-H][).:]\s*\S.*", re.S)),
    ("is a sentence with a value in it", re.compile(r"(?=.*\d)(?:.*?(?<![\\\w])[^\W\d_]{2,}){3}.*", re.S)),
)


def read_jsonl(path: Path) -> Task:
    """The task of a file of any kind (`read_rows`), with a problem for each row; blank lines are skipped.

    - `problem`, `question` or `prompt`: the text, or a conversation of which the user's only message is the problem.
      `id`: optional.
    - `answer`: usually given. Of a worked solution, the part after `####`; the whole is kept as `extra["solution"]`. Of
      a list, all values are required; of {"any_of": [...]}, one. Without it, the last box of `solution`.
    - `options` or `choices`, or columns such as `option_a`: the answer names one of them
      (`lite_selfplay.tasks.choices`).
    - `tests`: the answer is a program that passes them (`lite_selfplay.verify.programs.read_tests`). Rows with the
      columns of HumanEval and MBPP are read as well.
    - Other columns are kept in `Problem.extra`, `content` as `content_`, since that would identify the problem.

    Raises TaskError, with file and line, for other rows, tests that no program fails, and references that the checker
    cannot match, or that are no values.
    """
    if not os.path.exists(path):
        raise TaskError(f"no task file at {path}")
    task = task_of(read_rows(path, TaskError), path.name, path.stem)
    if not task.problems:
        raise TaskError(f"{path} has no problem")
    return task


def task_of(
    rows: Iterable[tuple[str, dict[str, Any]]],
    origin: str,
    stem: str,
    options: Sequence[str] | None = None,
    kind: str = "",
) -> Task:
    """`problems_of` rows as a task with the name `stem`, and `notes` for the user about how they were read. Raises
    TaskError also for references that the checker cannot match, or that are no values."""
    problems, reading = problems_of(rows, stem, options, kind)
    programs.require_failing(problems.items())
    return Task(stem, [*problems.values()], origin=origin, notes=tuple(checked(problems, reading)))


def problems_of(
    rows: Iterable[tuple[str, dict[str, Any]]],
    stem: str,
    options: Sequence[str] | None = None,
    kind: str = "",
    reading: str = "",
) -> tuple[dict[str, Problem], str]:
    """(problems by their names in errors, how their answers name options) of (name in errors, row) pairs.

    `read_jsonl` describes the rows; a name ends in the row's number. `options` are the columns of the options (None:
    they and all other columns are found by their names), `kind` is one of `columns.KINDS`, `reading` says how answers
    name options (by default the whole column decides)."""
    found = {where: known(row) if options is None else row for where, row in rows}
    names = options_in([*found.values()]) if options is None else options
    require_answers([*found.items()], names if options is None else ())
    choices = {
        where: Choice.of({name: row.get(name) for name in names}, row.get("answer"), where)
        for where, row in found.items()
        if kind == CHOICE or (any(row.get(name) for name in names) and "tests" not in row)
    }
    reading, problems = reading or reading_of([*choices.values()]), {}
    for where, row in found.items():
        texts = (name for name, value in row.items() if value and isinstance(value, str | list | dict))
        tests = None if kind or _PROGRAM & row.keys() else next(filter(_TESTS.fullmatch, texts), None)
        if tests is not None:
            raise TaskError(
                f"{where}: {tests!r} looks like tests of a program: name that column 'tests' or something else, or map "
                f"it after the file's name, as in FILE:kind=program,answer={tests}"
            )
        part = next(
            (name for name, value in row.items() if value and _PART.fullmatch(name) and isinstance(value, str)), None
        )
        if part is not None and options is None:
            key = text_of(row, where)[0]
            raise TaskError(
                f"{where}: {part!r} looks like a part of the problem: map it after the file's name, as in "
                f"FILE:problem={part}+{key}, or keep it beside the text, as in FILE:problem={key},keep={part}"
            )
        if (choice := choices.get(where)) is not None:
            shown = asked(text_of(row, where)[1], choice, reading)
            row = {name: value for name, value in row.items() if options is None or name not in names} | shown
        problem = to_problem(row, where, f"{stem}-{where.rpartition(' ')[2]}")
        answer = tidy_number(problem.answer, where) if kind == "number" else problem.answer
        problems[where] = replace(problem, answer=answer, kind=problem.kind if choice is None else CHOICE)
    return problems, reading


def checked(problems: Mapping[str, Problem], reading: str = "") -> list[str]:
    """Sentences about problems, by their names in errors: what was shown of choices, and which references are words,
    which only the same words equal. Raises TaskError for a reference that no right answer equals."""
    words: list[str] = []
    for where, problem in problems.items():
        texts = chain(*references(problem.answer)) if problem.kind == "math" and problem.answer is not None else ()
        for text in texts:
            if _PLAIN.fullmatch(text):
                continue
            shapes = _NEVER if (readable := is_value(text)) else (*_NEVER, *_NO_VALUE)
            if fault := next((fault for fault, shape in shapes if shape.fullmatch(text)), ""):
                raise TaskError(
                    f"{where}: the reference {str(problem.answer)[:80]!r} {fault}, so that no right answer equals it: "
                    "write the value alone"
                )
            if not readable:
                words.append(text)
                break
    count = sum(problem.answer is not None for problem in problems.values())
    shown = ", ".join(f"`{text[:40]}`" for text in [*dict.fromkeys(words)][:3])
    said = f"{len(words)} of {count} references are read as words, which only the same words equal: {shown}"
    return [*([proof([*problems.values()], reading)] if reading else []), *([said] if words else [])]


def to_problem(row: dict[str, Any], where: str, default_id: str) -> Problem:
    """A problem from a row, as `read_jsonl` describes it. Raises TaskError, beginning with `where`, for other rows."""
    if (seen := next((name for name in ("image", "images") if row.get(name)), None)) is not None:
        raise TaskError(f"{where}: it has an image ({seen!r}), but models read only text here: remove such problems")
    read = humaneval if {"prompt", "entry_point", "test"} <= row.keys() else mbpp if "test_list" in row else None
    if read is not None and not any(key in row for key in PROBLEM_KEYS[:-1]):
        row = program_row(read, row, where) or row
    if "tests" not in row and isinstance(row.get("inputs"), list) and isinstance(row.get("outputs"), list):
        rest = {name: value for name, value in row.items() if name not in ("inputs", "outputs")}
        row = {**rest, "tests": {"inputs": row["inputs"], "outputs": row["outputs"]}}
    key, text = text_of(row, where)
    name = default_id if row.get("id") is None else str(row["id"])
    if any(row.get(tests) is not None for tests in ("tests", "test_list")) or {"test", "entry_point"} <= row.keys():
        return programs.problem_of_object(row, text, where, name)
    answer, extra = row.get("answer"), {k: v for k, v in row.items() if k not in (key, "answer", "id")}
    if answer is None and isinstance(solution := row.get("solution"), str) and (boxes := boxed_spans(solution)):
        answer = boxes[-1].content
    if answer is not None and not all(
        isinstance(value, str | int | float) and not isinstance(value, bool) for value in _values(answer)
    ):
        raise TaskError(f"{where}: 'answer' must be a text, a number, a list of them or {{\"any_of\": [...]}}")
    if isinstance(answer, str):
        _, mark, final = map(str.strip, answer.rpartition("####"))
        if mark and "\n" not in final:
            extra.setdefault("solution", answer)
            answer = final.replace(",", "") if THOUSANDS.fullmatch(final) else final
        answer = answer if answer.strip() else None
    # If a reference is not right as the answer to its own problem, no answer is.
    if (
        answer is not None
        and not _PLAIN.fullmatch(str(answer))
        and not any(
            verdict.correct
            for verdict in check_all([(f"<answer>{'; '.join(each)}</answer>", answer) for each in references(answer)])
        )
    ):
        raise TaskError(f"{where}: no answer matches this reference: {str(answer)[:80]!r}")
    return Problem(name, text, answer, extra=extra)


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


def program_row(read: Reader, row: Row, where: str, id_column: str = "task_id") -> dict[str, Any] | None:
    """A row of a programming benchmark as one of a file of problems; None if it has no tests. Raises TaskError,
    beginning with `where`, for a malformed row."""
    try:
        statement, tests, extra = read(row, where)
    except (ArithmeticError, AttributeError, LookupError, MemoryError, TypeError, ValueError) as error:
        raise TaskError(f"{where}: not a row of this benchmark ({type(error).__name__}: {error})") from None
    name = next((str(row[key]) for key in ("id", id_column) if row.get(key) is not None), None)
    return {**extra, "id": name, "problem": statement, "tests": tests} if tests else None


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
    tests = {"tests": [*asserted, *(row.get("challenge_test_list") or [])], "setup": setup}
    if isinstance(row.get("test"), str):  # EvalPlus: one text with many more
        tests = {"tests": [row["test"]], "setup": f"{_ARRAYS}\n{setup}"}
    return statement, tests, {"solution": row["code"]} if isinstance(row.get("code"), str) else {}


def codecontests(row: Row, where: str) -> tuple[str, Any, Mapping[str, Any]]:
    """Read a row of CodeContests, with public and private tests of stdin and stdout."""
    (statement,) = _texts(row, ("description",), where)
    both = [row.get(column) or {} for column in ("public_tests", "private_tests")]
    pairs = (zip(each.get("input") or [], each.get("output") or [], strict=True) for each in both)
    return statement, [list(pair) for pair in chain.from_iterable(pairs)], {}


def _texts(row: Row, columns: tuple[str, ...], where: str) -> list[str]:
    found = [row[column] for column in columns]
    if not all(isinstance(text, str) and text.strip() for text in found):
        raise TaskError(f"{where}: {' and '.join(columns)} must be non-empty texts")
    return found
