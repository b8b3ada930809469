"""The columns of a row of any data set: which of them to read, by name or by a map, and the form of a number."""

import re
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from itertools import chain
from typing import Any, Literal

from lite_selfplay.errors import TaskError
from lite_selfplay.verify.expression import GROUPED
from lite_selfplay.verify.latex import plain, trim

Kind = Literal["number", "expression", "choice", "program"]
KINDS: tuple[Kind, ...] = ("number", "expression", "choice", "program")

PROBLEM_KEYS = ("problem", "question", "prompt")
# Columns that are found in any case.
_KNOWN = (*PROBLEM_KEYS, "answer", "solution", "id", "tests", "options", "choices")
_OPTION = re.compile(
    r"(?:op(?:t(?:ion)?)?|choice)s?[ _-]?(?:[a-h]|\d)|(?:incorrect|wrong)[ _-]?answer[ _-]?\d", re.IGNORECASE
)
_ANSWERS = re.compile(
    r"a|cop|.*(?:answer|truth|target|label|output|response|result|gold|solution|completion).*", re.IGNORECASE
)
_MISSING = object()
_NUMBER = re.compile(r"([-+]?)(\d[\d,_]*)(?:\.(\d*))?")
THOUSANDS = re.compile(rf"[-+$]*{GROUPED}(\.\d*)?%?")


@dataclass(frozen=True)
class Columns:
    """The columns of a row. A name with dots leads to a nested value: `messages.0.content`.

    - `problem`: one or several, joined by a space; none: the first of `PROBLEM_KEYS` that a row has.
    - `answer`: the reference answer; for multiple choice the label, the position or the text of the right option, or
      the right option itself if `options` names the columns of the wrong ones; for a program its tests.
    - `options`: none, one column with a list of all options, or several columns with an option each, or none.
    - `id`, `solution` and `optional`: used if a row has them. `keep`: further columns that go into `Problem.extra`.
    - `alternatives`: if the answer is a list, one of its values is enough; otherwise all are required.
    """

    problem: tuple[str, ...] = ("problem",)
    answer: str = "answer"
    options: tuple[str, ...] = ()
    id: str = "id"
    solution: str = "solution"
    keep: tuple[str, ...] = ()
    optional: tuple[str, ...] = ()
    alternatives: bool = False

    @property
    def required(self) -> tuple[str, ...]:
        return (*self.problem, self.answer, *self.options[: len(self.options) == 1], *self.keep)

    @property
    def names(self) -> set[str]:
        """All columns that may be read, those with dots also by their top-level names."""
        used = (*(self.problem or PROBLEM_KEYS), *self.required, *self.options, self.id, self.solution, *self.optional)
        return {part for name in used for part in (name, name.partition(".")[0])}

    def missing(self, row: Mapping[str, Any]) -> list[str]:
        """The required columns that a row lacks."""
        return [name for name in self.required if _value(row, name) is _MISSING]

    def require(self, row: dict[str, Any], where: str) -> dict[str, Any]:
        """The row. Raises TaskError, beginning with `where`, unless it has all required columns."""
        if missing := self.missing(row):
            raise TaskError(f"{where}: no column {missing[0]!r} among {', '.join(row) or 'none'}")
        return row

    def rows_of(self, rows: Sequence[tuple[str, dict[str, Any]]], kind: str) -> Iterator[tuple[str, dict[str, Any]]]:
        """(name in errors, row) pairs with the names that columns have in a file of problems. Raises TaskError,
        beginning with a row's name, for a missing column or a problem that is no text."""
        for name in self.options if rows else ():
            if all(_value(row, name) is _MISSING for _, row in rows):
                raise TaskError(f"{rows[0][0]}: no column {name!r} among {', '.join(rows[0][1])}")
        for where, row in rows:
            names = self.problem or [text_of(known(row), where)[0]]
            texts = [said_in(_value(self.require(row, where), name)) for name in names]
            if not all(isinstance(text, str) for text in texts):
                raise TaskError(f"{where}: {' and '.join(names)} must be text")
            found = {"content_" if name == "content" else name: _value(row, name) for name in self.keep + self.options}
            beside = {"id": _value(row, self.id), "solution": _value(row, self.solution)}
            found |= {key: value for key, value in beside.items() if value is not None}
            answer = _value(row, self.answer)
            if kind == "program":
                found["tests"] = answer or []
            elif isinstance(answer, Sequence) and not isinstance(answer, str):
                answer = answer[0] if len(answer) == 1 else {"any_of": [*answer]} if self.alternatives else [*answer]
            found |= {"problem": " ".join(map(str.strip, texts)), "answer": answer}
            yield where, {key: value for key, value in found.items() if value is not _MISSING}


def known(row: dict[str, Any]) -> dict[str, Any]:
    """A row in which the known columns have their names in lower case."""
    lowered = {name.strip().casefold(): name for name in row}
    again = {lowered[known]: known for known in _KNOWN if known not in row and known in lowered}
    again |= {"content": "content_"} if "content" in row else {}
    return {again.get(name, name): value for name, value in row.items()} if again else row


def options_in(rows: Sequence[Mapping[str, Any]]) -> list[str]:
    """The columns of a data set that look like the options of a choice: one with all, or one for each."""
    for name in ("options", "choices"):
        if any(row.get(name) and isinstance(row[name], list | tuple | dict | str) for row in rows):
            return [name]
    columns = dict.fromkeys(name for row in rows for name in row)
    letters = [name for name in columns if len(name) == 1 and name.isalpha()]
    found = [name for name in columns if _OPTION.fullmatch(name)]
    if len(found) < 2 and 2 * sum(row.get("answer") in letters for row in rows) > len(rows):
        found = letters
    return found if len(found) > 1 else []


def require_answers(rows: Sequence[tuple[str, Mapping[str, Any]]], options: Sequence[str]) -> None:
    """Raises TaskError, with the words that map the column, if no row of a file of choices has an answer."""
    if options and rows and all(row.get("answer") is None and "tests" not in row for _, row in rows):
        rest = {name: value for name, value in rows[0][1].items() if name not in options}
        raise TaskError(
            f"{rows[0][0]}: a choice without 'answer': map its columns after the file's name, as in "
            f"FILE:options={'+'.join(options)},answer={answer_in(rest)}"
        )


def text_of(row: Mapping[str, Any], where: str) -> tuple[str, str]:
    """(column, text) of a row's problem. Raises TaskError, with the words that map other columns, without one."""
    key = next((key for key in PROBLEM_KEYS if key in row), None)
    if key is None:
        talks = (
            f"{name}.0.content"
            for name, value in row.items()
            if isinstance(value, list) and value and isinstance(value[0], Mapping)
        )
        others = (name for name in row if not _ANSWERS.fullmatch(name))
        raise TaskError(
            f"{where}: neither 'problem' nor 'question' among its columns ({', '.join(row) or 'none'}): map its "
            f"columns after the file's name, as in FILE:problem={next(chain(talks, others), 'COLUMN')},"
            f"answer={answer_in(row)}"
        )
    text = said_in(row[key])
    if not isinstance(text, str) or not text.strip():
        raise TaskError(f"{where}: {key!r} must be a non-empty text, or a conversation with one message of the user")
    return key, text.strip()


def answer_in(row: Mapping[str, Any]) -> str:
    """The column whose name looks most like that of an answer, also within another one: `reward_model.ground_truth`."""
    nested = [f"{name}.{key}" for name, value in row.items() if isinstance(value, Mapping) for key in value]
    named = sorted(filter(_ANSWERS.fullmatch, row), key=len)
    return next(iter([*named, *filter(_ANSWERS.fullmatch, nested)]), "COLUMN")


def said_in(value: Any) -> Any:
    """The user's message of a conversation that has no other turns but a system message; any other value unchanged."""
    turns = value if isinstance(value, list) and all(isinstance(turn, Mapping) for turn in value) else []
    said = [turn.get("content") for turn in turns if turn.get("role") != "system"]
    return said[0] if len(said) == 1 and turns[-1].get("role") == "user" else value


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
