"""Makes problems from rows of any data set: which columns to read, and the form of the answer."""

import re
import string
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Literal

from lite_selfplay.data import Problem
from lite_selfplay.errors import TaskError
from lite_selfplay.tasks.jsonl import to_problem
from lite_selfplay.tasks.task import derived_rng
from lite_selfplay.verify import programs
from lite_selfplay.verify.choice import KIND as CHOICE
from lite_selfplay.verify.expression import GROUPED
from lite_selfplay.verify.latex import plain, trim

Kind = Literal["number", "expression", "choice", "program"]
KINDS: tuple[Kind, ...] = ("number", "expression", "choice", "program")
LETTERS = string.ascii_uppercase

# References to the order of options, in an option or a question. False positives are harmless: options then keep the
# order of their row. (?-i:...) is for capitals, since `a` and `i` are words.
_CHOICE = r"(?: options? | choices? | alternatives? | answers? | statements? )"
_NTH = r"(?: first | second | third | fourth | fifth | last | [1-9](?:st|nd|rd|th) )"
_NAMED = rf"""
    \b {_CHOICE} \s (?: \(?(?-i:[A-Z])\b | \([a-z]\) | \(?\d\b | (?:above|below)\b ) |
    \b (?: {_NTH} | other | remaining | previous | preceding | above ) \s {_CHOICE} \b
"""
_REFERS = rf"""
    {_NAMED} |
    \b (?: above | below | preceding | previous | foregoing | the\ others? | any\ other ) \b |
    \b (?: all | none | both | any | each | n?either | some | one | two | three )\ of\ (?: the | th[eo]se | them ) \b |
    ^\W* (?: all | none | both | any | n?either ) \W*$ |
    \b {_NTH} \s (?: one | two | three | pair | {_CHOICE} ) \b |
    \b {_NTH} ,?\s (?: and | or | but ) \s (?: not\s )? (?: the\s )? {_NTH} \b |
    (?<!\w) [a-z]\b [\s,;&]* (?: [,;&] | \b(?:and|n?or|but|not)\b ) [\s,]* (?: and\s | not\s )* [a-z] (?![\w']) |
    (?<!\w) \([a-z]\) |
    (?<!\w) (?: [a-z] | [ivx]+ | \d ) \)? \s (?: only | alone ) \b |
    \b (?: only | both | n?either | just | except ) \s \(? (?-i: [A-Z] | [IVX]+ ) \b |
    ^ (?-i: \W*[A-Z] )+ \W*$
"""
_NAMED_IN, _REFERS_IN = (re.compile(pattern, re.VERBOSE | re.IGNORECASE) for pattern in (_NAMED, _REFERS))
_LETTER = re.compile(r"(?<!\d\s)(?<![\w'])[B-HJ-Z](?![\w'])")
_MISSING = object()
_NUMBER = re.compile(r"([-+]?)(\d[\d,_]*)(?:\.(\d*))?")


@dataclass(frozen=True)
class Columns:
    """The columns of a row. A name with dots leads to a nested value: `messages.0.content`.

    - `problem`: one or several, joined by a space.
    - `answer`: the reference answer; for multiple choice the letter, the position (from 0) or the text of the right
      option, or the right option itself if `options` names the columns of the wrong ones; for a program its tests.
    - `options`: none, one column with a list of all options, or several columns with a wrong option each.
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
        return (*self.problem, self.answer, *self.options, *self.keep)

    @property
    def names(self) -> set[str]:
        """All columns that may be read, those with dots also by their top-level names."""
        used = (*self.required, self.id, self.solution, *self.optional)
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
) -> Problem:
    """A problem from a row. For a `choice`, the text lists the options in an order derived from the question, or in the
    row's order if the question or an option refers to it (`A and C only`, `all of the above`).

    `alternatives`: if the answer is a list, one of its values is enough; otherwise all are required. Raises TaskError,
    beginning with `where`, for a missing column or a value of a wrong type.
    """
    require_columns(row, columns, where)
    texts = [_value(row, name) for name in columns.problem]
    if not all(isinstance(text, str) for text in texts):
        raise TaskError(f"{where}: {' and '.join(columns.problem)} must be text")
    question, answer = " ".join(text.strip() for text in texts), _value(row, columns.answer)
    extra = {name: _value(row, name) for name in columns.keep}
    for key, name in (("id", columns.id), ("solution", columns.solution)):
        if (value := _value(row, name)) is not None and value is not _MISSING:
            extra[key] = value
    if kind == "program":
        name = default_id if extra.get("id") is None else str(extra.pop("id"))
        return programs.program_problem(name, question, answer, where, extra)
    if kind == "choice":
        options, right = _options(row, columns, answer, where)
        order, letters = list(range(len(options))), {*LETTERS[: len(options)]}
        refers = [bool(_REFERS_IN.search(each) or letters.intersection(_LETTER.findall(each))) for each in options]
        if len(columns.options) > 1 or not (any(refers) or _NAMED_IN.search(question)):
            derived_rng("options", question, *options).shuffle(order)
            order.sort(key=refers.__getitem__)  # columns have no order: `all of the above` comes last
        extra["options"] = shown = [options[i] for i in order]
        answer = LETTERS[order.index(right)]
        listed = "\n".join(f"({letter}) {option}" for letter, option in zip(LETTERS, shown, strict=False))
        question = f"{question}\n\n{listed}\n\nAnswer with the letter of the right choice."
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


def _options(row: Mapping[str, Any], columns: Columns, answer: Any, where: str) -> tuple[list[str], int]:
    """All options and the position of the right one."""
    values = [_value(row, name) for name in columns.options]
    if len(values) > 1:
        return [str(value).strip() for value in (answer, *values)], 0
    listed = values[0] if values else None
    if not isinstance(listed, Sequence) or isinstance(listed, str) or not 2 <= len(listed) <= len(LETTERS):
        raise TaskError(f"{where}: {''.join(columns.options) or 'options'!r} must be a list of 2 to 26 options")
    options = [str(option).strip() for option in listed]
    if isinstance(answer, int) and not isinstance(answer, bool):
        right = answer
    elif str(answer).strip() in options:
        right = options.index(str(answer).strip())
    else:
        letter = str(answer).strip().strip("().").upper()
        right = LETTERS.index(letter) if len(letter) == 1 and letter in LETTERS else -1
    if not 0 <= right < len(options):
        raise TaskError(f"{where}: the answer {answer!r} names none of the {len(options)} options")
    return options, right


def _value(row: Mapping[str, Any], name: str) -> Any:
    """The value of a column, or of a path with dots; `_MISSING` if there is none."""
    if name in row:
        return row[name]
    value: Any = row
    for part in name.split("."):
        if isinstance(value, list):
            value = value[int(part)] if part.isdecimal() and int(part) < len(value) else _MISSING
        else:
            value = value.get(part, _MISSING) if isinstance(value, Mapping) else _MISSING
    return value
