"""Multiple choice: which option a row's answer names, decided by the whole column, and the problem that is asked."""

import ast
import contextlib
import re
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from lite_selfplay.data import Problem
from lite_selfplay.errors import TaskError
from lite_selfplay.tasks.task import derived_rng
from lite_selfplay.verify.choice import KIND, LETTERS, NUMBERS, label_in, labels_for, unproven

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
_POSITION = re.compile(r"\d{1,3}(?:\.0)?")
_OWN_LABEL = re.compile(r"\(?([A-Za-z])[).:]\s*(.*\S)", re.DOTALL)

# What the answers of a column may be, and how that is said.
LABELS, FROM_0, FROM_1, TEXT, ADDED = READINGS = (
    "the labels of the options",
    "positions, counted from 0",
    "positions, counted from 1",
    "the texts of the options",
    "the right options, the other columns being wrong ones",
)


@dataclass(frozen=True)
class Choice:
    """The options of a row, in its order; an empty text is no option. `names` are the labels that the row gives them
    (the names of their columns, if each has its own), `apart` whether each option has a column of its own."""

    where: str
    answer: Any
    options: Sequence[str]
    names: Sequence[str] = ()
    apart: bool = False

    @classmethod
    def of(cls, values: Mapping[str, Any], answer: Any, where: str) -> "Choice":
        """The options in several columns, an option each, or in one: a list, a mapping of labels to texts, {"text":
        [...], "label": [...]}, or a text that is one of these in Python's or JSON's notation. Raises TaskError."""
        if len(values) > 1:
            return cls(where, answer, [cell_text(each) for each in values.values()], [*values], apart=True)
        ((column, value),) = values.items() or [("options", None)]
        names: Iterable[Any] = ()
        if isinstance(value, str):
            with contextlib.suppress(ValueError, SyntaxError, MemoryError, RecursionError):
                value = ast.literal_eval(value.strip())
        if isinstance(value, Mapping) and isinstance(value.get("label"), list) and "text" in value:
            names, value = value["label"], value["text"]
        elif isinstance(value, Mapping):
            names, value = value, [*value.values()]
        if not isinstance(value, Sequence) or isinstance(value, str) or any(isinstance(x, dict | list) for x in value):
            raise TaskError(f"{where}: {column!r} must be a list of 2 to 26 options")
        return cls(where, answer, [*map(cell_text, value)], [*map(str, names)])

    def __post_init__(self) -> None:
        if not 2 <= sum(map(bool, self.options)) + self.apart <= len(LETTERS):
            raise TaskError(f"{self.where}: there must be 2 to 26 options, got {list(filter(None, self.options))}")
        own = [_OWN_LABEL.fullmatch(option) for option in self.options]
        if [each and each[1].upper() for each in own] == [*LETTERS[: len(own)]]:  # `A. London`, `B. Paris`
            object.__setattr__(self, "options", [each[2] for each in own if each])

    def position(self, reading: str) -> int | None:
        """The position of the option that the answer names in one of `READINGS`; None if it names none."""
        text, label = cell_text(self.answer), label_in(cell_text(self.answer), LETTERS)
        number = int(text.removesuffix(".0")) if _POSITION.fullmatch(text) else -1
        lettered = LETTERS.index(label) if label else -1
        found = {
            LABELS: self.names.index(text) if text in self.names else lettered,
            TEXT: self.options.index(text) if text in self.options else -1,
            FROM_0: number,
            FROM_1: number - 1,
        }.get(reading, -1)
        return found if 0 <= found < len(self.options) and self.options[found] else None


def cell_text(value: Any) -> str:
    """A cell's text; empty for None and for a number that is missing."""
    return "" if value is None or value != value else str(value).strip()


def reading_of(choices: Sequence[Choice]) -> str:
    """How a column's answers name the right options: one of `READINGS`, in which every row's answer names one.

    Labels that the rows give themselves come first. Positions of which none is 0 and none the last count from 0 in a
    list, as in most data sets, and from 1 in columns of their own, as in a table. Raises TaskError if no reading fits,
    naming the first row, or if two fit and mean different options.
    """
    found = {reading: [choice.position(reading) for choice in choices] for reading in READINGS[:-1]}
    fitting = [reading for reading in found if None not in found[reading]]
    apart = all(choice.apart for choice in choices)
    if not choices:
        return ""
    if not fitting:
        best = max(found, key=lambda reading: len(choices) - found[reading].count(None))
        if apart and 2 * found[best].count(None) > len(choices):
            return ADDED
        odd = choices[found[best].index(None)]
        raise TaskError(f"{odd.where}: the answer {odd.answer!r} names none of the {len(odd.options)} options")
    if LABELS in fitting and all(cell_text(choice.answer) in choice.names for choice in choices):
        return LABELS
    if FROM_0 in fitting and FROM_1 in fitting:
        fitting.remove(FROM_0 if apart else FROM_1)
    numbers = all(option.isdecimal() for choice in choices for option in choice.options if option)
    if apart and numbers and fitting[0] in (FROM_0, FROM_1) and len(set(found[fitting[0]])) < len(choices[0].options):
        raise TaskError(
            f"{choices[0].where}: the answer {choices[0].answer!r} may be a position or {ADDED}: write the label"
        )
    for other in fitting[1:]:
        for choice, first, second in zip(choices, found[fitting[0]], found[other], strict=True):
            if first is not None and second is not None and first != second:
                raise TaskError(
                    f"{choice.where}: the answers may be {fitting[0]} ({choice.answer!r} is {choice.options[first]!r}) "
                    f"or {other} ({choice.options[second]!r}): write positions if options are letters, else letters"
                )
    return fitting[0]


def asked(question: str, choice: Choice, reading: str) -> dict[str, Any]:
    """The columns of a problem: its text, as answer the right label, and the options in the order of their labels.

    The order is derived from the question, or that of the row if options have labels or columns of their own, or if the
    question or an option refers to it (`A and C only`, `all of the above`); columns of wrong options have no order, so
    such an option comes last.
    """
    position = choice.position(reading)
    added = [cell_text(choice.answer)] if position is None else []
    options = added + [each for each in choice.options if each]
    right = sum(map(bool, choice.options[: position or 0]))
    order, letters = list(range(len(options))), {*LETTERS[: len(options)]}
    refers = [bool(_REFERS_IN.search(each) or letters.intersection(_LETTER.findall(each))) for each in options]
    if position is None or not (choice.names or any(refers) or _NAMED_IN.search(question)):
        derived_rng("options", question, *options).shuffle(order)
        order.sort(key=refers.__getitem__)
    shown = [options[i] for i in order]
    labels = labels_for(shown)
    listed = "\n".join(f"({label}) {option}" for label, option in zip(labels, shown, strict=False))
    asks = f"Answer with the {'letter' if labels == LETTERS else 'number'} of the right choice."
    return {"problem": f"{question}\n\n{listed}\n\n{asks}", "answer": labels[order.index(right)], "options": shown}


def proof(problems: Sequence[Problem], reading: str) -> str:
    """A sentence that says how the right options were found, with an example, and what was shown of each problem: the
    checker reads every label as its own option, and only the right one is right. Raises TaskError otherwise."""
    choices = [problem for problem in problems if problem.kind == KIND]
    if (odd := next(filter(unproven, choices), None)) is not None:
        raise TaskError(f"{odd.id}: the answer {unproven(odd)!r} would be judged as another option: {odd.text[:200]!r}")
    first = choices[0]
    right = first.extra["options"][(LETTERS if first.answer in LETTERS else NUMBERS).index(first.answer)][:40]
    asks = first.text.splitlines()[0][:60]
    return (
        f"the answers of {len(choices)} choices are read as {reading} (`{asks}` has the answer `{right}`); each label "
        "was read as its own option, and only the right one was right"
    )
