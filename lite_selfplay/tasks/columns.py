"""Makes problems from rows of any data set: which columns to read, and the form of the answer."""

import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Literal

from lite_selfplay.data import Problem
from lite_selfplay.errors import TaskError
from lite_selfplay.tasks.choices import Choice, asked, reading_of
from lite_selfplay.tasks.jsonl import said_in, to_problem
from lite_selfplay.verify import programs
from lite_selfplay.verify.choice import KIND as CHOICE
from lite_selfplay.verify.expression import GROUPED
from lite_selfplay.verify.latex import plain, trim

Kind = Literal["number", "expression", "choice", "program"]
KINDS: tuple[Kind, ...] = ("number", "expression", "choice", "program")

_MISSING = object()
_NUMBER = re.compile(r"([-+]?)(\d[\d,_]*)(?:\.(\d*))?")


@dataclass(frozen=True)
class Columns:
    """The columns of a row. A name with dots leads to a nested value: `messages.0.content`.

    - `problem`: one or several, joined by a space.
    - `answer`: the reference answer; for multiple choice the label, the position or the text of the right option, or
      the right option itself if `options` names the columns of the wrong ones; for a program its tests.
    - `options`: none, one column with a list of all options, or several columns with an option each, or none.
    - `id`, `solution` and `optional`: used if a row has them. `keep`: further columns that go into `Problem.extra`.
    """

    problem: tuple[str, ...] = ("problem",)
    answer: str = "answer"
    options: tuple[str, ...] = ()
    id: str = "id"
    solution: str = "solution"
    keep: tuple[str, ...] = ()
    optional: tuple[str, ...] = ()

    @property
    def required(self) -> tuple[str, ...]:
        return (*self.problem, self.answer, *self.options[: len(self.options) == 1], *self.keep)

    @property
    def names(self) -> set[str]:
        """All columns that may be read, those with dots also by their top-level names."""
        used = (*self.required, *self.options, self.id, self.solution, *self.optional)
        return {part for name in used for part in (name, name.partition(".")[0])}

    def missing(self, row: Mapping[str, Any]) -> list[str]:
        """The required columns that a row lacks."""
        return [name for name in self.required if _value(row, name) is _MISSING]


def require_columns(row: Mapping[str, Any], columns: Columns, where: str) -> None:
    """Raises TaskError, beginning with `where`, unless a row has all required columns."""
    if missing := columns.missing(row):
        raise TaskError(f"{where}: no column {missing[0]!r} among {', '.join(row) or 'none'}")


def problem_of_row(
    row: Mapping[str, Any],
    columns: Columns,
    where: str,
    default_id: str,
    *,
    kind: Kind = "expression",
    alternatives: bool = False,
    reading: str = "",
) -> Problem:
    """A problem from a row. For a `choice`, `reading` says how the whole column names the right options (`read_keys`).

    `alternatives`: if the answer is a list, one of its values is enough; otherwise all are required. Raises TaskError,
    beginning with `where`, for a missing column or a value of a wrong type.
    """
    require_columns(row, columns, where)
    texts = [said_in(_value(row, name)) for name in columns.problem]
    if not all(isinstance(text, str) for text in texts):
        raise TaskError(f"{where}: {' and '.join(columns.problem)} must be text")
    question, answer = " ".join(text.strip() for text in texts), _value(row, columns.answer)
    extra = {"content_" if name == "content" else name: _value(row, name) for name in columns.keep}
    for key, name in (("id", columns.id), ("solution", columns.solution)):
        if (value := _value(row, name)) is not None and value is not _MISSING:
            extra[key] = value
    if kind == "program":
        name = default_id if extra.get("id") is None else str(extra.pop("id"))
        return programs.program_problem(name, question, answer, where, extra)
    if kind == "choice":
        question, answer, extra["options"] = asked(question, choice_of(row, columns, where), reading)
    elif isinstance(answer, Sequence) and not isinstance(answer, str):
        values = list(answer)
        answer = values[0] if len(values) == 1 else {"any_of": values} if alternatives else values
    problem = to_problem({**extra, "problem": question, "answer": answer}, where, default_id)
    checked = CHOICE if kind == "choice" else "math"
    answer = tidy_number(problem.answer, where) if kind == "number" else problem.answer
    return Problem(problem.id, problem.text, answer, checked, problem.extra)


def tidy_number(value: Any, where: str) -> Any:
    """A plain number as the shortest text of its value: `142.0`, `1_080`, `025` are "142", "1080", "25".

    Anything else is returned unchanged. Raises TaskError, beginning with `where`, if digits are grouped other than by
    threes, since the checker reads several numbers: "1,5" may mean 1.5, or 1 and 5.
    """
    match = _NUMBER.fullmatch(trim(plain(str(value)))) if isinstance(value, str | int | float) else None
    if match is None:
        return value
    grouped = match[2].replace("_", ",")
    if "," in grouped and not re.fullmatch(GROUPED, grouped):
        raise TaskError(
            f"{where}: the digits of {value!r} are in groups that are not of three; write decimals with a point (1.5), "
            "thousands as 1500 or 1,500"
        )
    whole, decimals = grouped.replace(",", "").lstrip("0"), (match[3] or "").rstrip("0")
    number = f"{whole or '0'}{'.' if decimals else ''}{decimals}"
    return number if number == "0" else match[1].replace("+", "") + number


def read_keys(rows: Sequence[tuple[str, Mapping[str, Any]]], columns: Columns) -> str:
    """How a column's answers name the right options (`lite_selfplay.tasks.choices.reading_of`), by its (name in errors,
    row) pairs. Raises TaskError if an option's column is in no row."""
    found = [(where, row) for where, row in rows if not columns.missing(row)]
    for name in columns.options if found else ():
        if all(_value(row, name) is _MISSING for _, row in found):
            raise TaskError(f"{found[0][0]}: no column {name!r} among {', '.join(found[0][1])}")
    return reading_of([choice_of(row, columns, where) for where, row in found])


def choice_of(row: Mapping[str, Any], columns: Columns, where: str) -> Choice:
    """The options of a row. Raises TaskError, beginning with `where`."""
    values = {name: _value(row, name) for name in columns.options}
    given = {name: None if value is _MISSING else value for name, value in values.items()}
    return Choice.of(given, _value(row, columns.answer), where)


def _value(row: Mapping[str, Any], name: str) -> Any:
    """The value of a column, in any case, or of a path with dots; `_MISSING` if there is none."""
    if name in row:
        return row[name]
    value: Any = {each.casefold(): row[each] for each in row} if "." not in name else row
    for part in (name if value is row else name.casefold()).split("."):
        if isinstance(value, list):
            value = value[int(part)] if part.isdecimal() and int(part) < len(value) else _MISSING
        else:
            value = value.get(part, _MISSING) if isinstance(value, Mapping) else _MISSING
    return value
