"""Errors in worked solutions, made by rule: one calculation of one step is changed.

A calculation is one of GSM8K's calculator notes (`<<48/2=24>>24`), or is written out (`48/2 = 24`). Only exact ones,
which are recomputed here in fractions, are used. Two changes:

- `NUMBER`: another result, so that the equation is false: an arithmetic slip;
- `OPERATOR`: another operator, and its result: a wrong formula.

With either change the step's result is not that of its original calculation: in a right solution, the step is wrong
beyond doubt. All of this is ours.
"""

import random
import re
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from fractions import Fraction
from functools import lru_cache

from lite_selfplay.data import Problem
from lite_selfplay.games.spc.cases import KINDS
from lite_selfplay.games.spc.steps import StepPair, split_steps
from lite_selfplay.games.worked_examples import FINAL_LINE, without_notes
from lite_selfplay.verify.formulas import calculate

NUMBER, OPERATOR = KINDS[:2]

_NUMBER = r"(?:(?:\d{1,3}(?:,\d{3})+|\d+)(?:\.\d+)?|\.\d+)(?!,?\d|\.\d)"
_SIGN = r"\s*[-+*x×/÷−–]\s*"
_SIGNS = str.maketrans("x×÷−–", "**/--", "$, ")
_STANDING = re.compile(rf"(?<![\w.,]){_NUMBER}(?![\w%])")
_WRITTEN = re.compile(rf"(?<![\w.,)%$])\$?{_NUMBER}(?:{_SIGN}\$?{_NUMBER})+(?=\s*=)")
_NOTE = rf"<<(?P<note>[^<>=]+)=(?P<noted>[^<>=]+)>>\$?(?P<result>{_NUMBER})"
_NOTED = re.compile(_NOTE)
_ANY_NOTE = re.compile(rf"<<(?P<note>[^<>=]*)=?(?P<noted>[^<>]*)>>\$?(?P<result>{_NUMBER})?")
_EQUALS = re.compile(rf"\s*=\s*\$?\s*(?:{_NOTE}|(?P<plain>{_NUMBER}))(?!{_SIGN}\$?[\d.(]|\s*=)")
_GOES_ON = re.compile(r"[-+*x×/÷−–^(]\s*\Z")  # the expression began earlier
_DECIMALS = 2
_SLIPS = (-10, -2, -1, 1, 2, 10)
_ARITHMETIC = re.compile(r"[\d.+\-*/() ]+")
_TOGETHER = re.compile(r"\*\s*\*|/\s*/|[\d.]\s*\(|\)\s*[\d.(]|\d\s+\d")  # powers, and products without a sign


@dataclass(frozen=True)
class Calculation:
    """A step's calculation: its expression and value, the span of its result in the step, and the span of the
    expression if it is written out."""

    expression: str
    value: Fraction
    result: tuple[int, int]
    written: tuple[int, int] | None

    def __str__(self) -> str:
        return f"{_spaced(self.expression)} = {spelled(self.value)}"


# A calculation, the expression to replace its own (empty to keep it), and the result to write.
Option = tuple[Calculation, str, Fraction]


@lru_cache(10_000)  # each expression is evaluated several times
def value_of(expression: str) -> Fraction | None:
    """The value of an expression of decimal numbers, + - * / and brackets; None for any other, or a division by 0."""
    return calculate(expression) if _ARITHMETIC.fullmatch(expression) and not _TOGETHER.search(expression) else None


def calculations(step: str) -> list[Calculation]:
    """The exact calculations of a step, in the order of their results."""
    said: list[tuple[str, tuple[int, int], tuple[int, int] | None]] = [
        (note["note"], note.span("result"), None) for note in _NOTED.finditer(step)
    ]
    said += [
        (expression, equals.span("plain" if noted is None else "result"), match.span())
        for match, equals in _equations(step)
        for expression, noted in [(match[0].translate(_SIGNS), equals["note"])]
        if noted is None or expression == noted.translate(_SIGNS)
    ]
    found = {
        result: Calculation(expression, value, result, written)
        for expression, result, written in said
        for value in [value_of(expression)]
        if value is not None and value == _number(step[slice(*result)]) and re.search(r"\d\D*[-+*/]", expression)
    }
    return [found[span] for span in sorted(found)]


def holds(step: str) -> bool | None:
    """Whether all written-out calculations of a step are exact; None if there are none."""
    sides = [(value_of(match[0].translate(_SIGNS)), equals["plain"]) for match, equals in _equations(step)]
    return all(result and value == _number(result) for value, result in sides) if sides else None


def _equations(step: str) -> Iterator[tuple[re.Match[str], re.Match[str]]]:
    """Each written calculation, `48/2`, with its result, ` = 24`."""
    notes = [note.span() for note in _ANY_NOTE.finditer(step)]
    for match in _WRITTEN.finditer(step):
        equals = _EQUALS.match(step, match.end())
        inside = any(a < match.start() < b for a, b in notes) or _GOES_ON.search(step, 0, match.start())
        if equals is not None and not inside:
            yield match, equals


def is_exact(step: str) -> bool:
    """Whether all calculator notes of a step are exact, and match the numbers behind them."""
    return all(
        value is not None
        and value == value_of(note["noted"])
        and (not note["result"] or value == _number(note["result"]))
        for note in _ANY_NOTE.finditer(step)
        for value in [value_of(note["note"])]
    )


def corrupt(
    step: str, rng: random.Random, *, kinds: Sequence[str] = (NUMBER, OPERATOR)
) -> tuple[str, str, str, Calculation] | None:
    """A step with one calculation changed: (the wrong step without notes, the kind of its error, the calculation in it,
    the calculation as it was). None if the step allows no error of these kinds."""
    found = calculations(step)
    for kind in rng.sample(kinds, len(kinds)):
        if options := (_other_results if kind == NUMBER else _other_operators)(step, found):
            was, text, value = rng.choice(options)
            result = spelled(value, like=step[slice(*was.result)])
            a, b = was.written if text and was.written else (was.result[0], was.result[0])
            changed = step[:a] + text + step[b : was.result[0]] + result + step[was.result[1] :]
            expression = text.translate(_SIGNS) if text else was.expression
            return without_notes(changed), kind, f"{_spaced(expression)} = {result}", was
    return None


def _other_operators(step: str, found: Sequence[Calculation]) -> list[Option]:
    """The last calculation with another operator, if the value differs, is above 0 and has few decimals.

    Only if it is written out and its result occurs nowhere else: the rest of the step would use the right one.
    """
    was = found[-1] if found else None
    if was is None or was.written is None or not _stands_once(step, was):
        return []
    parts = re.split(rf"({_SIGN})", step[slice(*was.written)])  # operand, sign, operand, ...
    texts = [
        "".join([*parts[:i], parts[i].replace(sign, new), *parts[i + 1 :]])
        for i in range(1, len(parts), 2)
        for sign in [parts[i].strip()]
        for new in "+-*/".replace(sign.translate(_SIGNS), "")
    ]
    values = [(text, value_of(text.translate(_SIGNS))) for text in texts]
    return [(was, text, v) for text, v in values if v is not None and v > 0 and v != was.value and spelled(v)]


def _other_results(step: str, found: Sequence[Calculation]) -> list[Option]:
    """Each calculation with wrong results above 0: off by a little at the last decimal, or with two adjacent digits
    swapped."""
    options: list[Option] = []
    for was in found:
        digits = step[slice(*was.result)].replace(",", "")
        pairs = [i for i in range(len(digits) - 1) if "." not in digits[i : i + 2]]
        values = {was.value + Fraction(by, 10 ** len(digits.partition(".")[2])) for by in _SLIPS}
        values |= {Fraction(digits[:i] + digits[i + 1] + digits[i] + digits[i + 2 :]) for i in pairs}
        options += [(was, "", value) for value in sorted(values) if value > 0 and value != was.value]
    return options


def _stands_once(step: str, was: Calculation) -> bool:
    """Whether a calculation's result occurs nowhere else in a step, except in its notes."""
    hidden = re.sub(r"<<[^<>]*>>", lambda note: " " * len(note[0]), step)
    spans = [m.span() for m in _STANDING.finditer(hidden) if _number(m[0]) == was.value]
    written = was.written or was.result
    return all(span == was.result or written[0] <= span[0] < written[1] for span in spans)


def _number(text: str) -> Fraction:
    return Fraction(text.replace(",", ""))


def spelled(value: Fraction, like: str = "") -> str:
    """A value above 0 as a decimal number, with the thousands separators and at least the decimals of `like`; empty if
    it has more than two decimals and more than `like`."""
    places = len(like.partition(".")[2])
    while (value * 10**places).denominator != 1:
        places += 1
        if places > max(_DECIMALS, len(like.partition(".")[2])):
            return ""
    whole, rest = divmod(int(value * 10**places), 10**places)
    written = f"{whole:,}" if "," in like else str(whole)
    return f"{written}.{rest:0{places}d}" if places else written


def _spaced(expression: str) -> str:
    return re.sub(r"\s*([+*/]|(?<=[\d)])\s*-)\s*", lambda sign: f" {sign[1].strip()} ", expression).strip()


def corruptions(problem: Problem, rng: random.Random, kinds: Sequence[str] = (NUMBER, OPERATOR)) -> Iterator[StepPair]:
    """A right and a wrong version of each step of a worked solution that allows an error of these `kinds`.

    Stops at the solution's own first slip: a calculation, noted or written out, that is not exact.
    """
    solution = problem.extra.get("solution")
    steps = split_steps(FINAL_LINE.sub("", solution)) if isinstance(solution, str) else []
    for index, step in enumerate(steps):
        right = without_notes(step).strip()
        if not is_exact(step) or holds(right) is False:
            return
        if (made := corrupt(step, rng, kinds=kinds)) is not None:
            wrong, kind, now, was = made
            found = calculations(step)
            needed = list(map(str, found))
            yield StepPair(
                id=f"{problem.id}-{index + 1}",
                problem=problem.text,
                before=without_notes("".join(steps[:index])),
                right=right,
                wrong=wrong.strip(),
                kind=kind,
                change=f"The step calculates {was}. I make it {now}.",
                check=_compared(needed, needed),
                flaw=_compared(needed, [now if each == was else str(each) for each in found]),
            )


def _compared(needed: Sequence[str], said: Sequence[str]) -> str:
    """A critique's text: the needed calculations, those of the step, and whether they differ.

    It begins with the same words for right and wrong steps, which teaches a critic to calculate before it judges.
    """
    verdict = "the same" if needed == said else "something else"
    return f"What is needed is {' and '.join(needed)}. The step says {' and '.join(said)}: {verdict}."
