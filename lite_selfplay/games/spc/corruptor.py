"""Worked solutions gone wrong by rule: in one step, one calculation is changed.

A calculation is one of GSM8K's calculator notes (`<<48/2=24>>24`), or is written out (`48/2 = 24`); only exact ones are
used, which are recomputed here in fractions. Two changes:

- `NUMBER`: another result, so that the equation is false: an arithmetic slip;
- `OPERATOR`: another operator, and the result it gives: a wrong formula.

Whatever the change, the step's result is not what its calculation, as it was, comes to: the step is wrong beyond doubt
where the solution was right. All of it is ours.
"""

import random
import re
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from fractions import Fraction
from functools import lru_cache

from lite_selfplay.data import Problem
from lite_selfplay.games.spc.cases import KINDS
from lite_selfplay.games.spc.steps import StepPair, split_steps, without_notes
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
_GOES_ON = re.compile(r"[-+*x×/÷−–^(]\s*\Z")  # the expression began before
_FINAL_LINE = re.compile(r"\n?####.*\Z", re.DOTALL)
_DECIMALS = 2
_SLIPS = (-10, -2, -1, 1, 2, 10)
_ARITHMETIC = re.compile(r"[\d.+\-*/() ]+")
_TOGETHER = re.compile(r"\*\s*\*|/\s*/|[\d.]\s*\(|\)\s*[\d.(]|\d\s+\d")  # powers, and products without a sign


@dataclass(frozen=True)
class Calculation:
    """A calculation of a step: its expression, what it comes to, where its result stands in the step, and where the
    expression does, if it is written out."""

    expression: str
    value: Fraction
    result: tuple[int, int]
    written: tuple[int, int] | None

    def __str__(self) -> str:
        return f"{_spaced(self.expression)} = {spelled(self.value)}"


@dataclass(frozen=True)
class Corruption:
    """A wrong step without notes, the kind of its error, what it says `now`, and the calculation as it was."""

    step: str
    kind: str
    now: str
    was: Calculation


Option = tuple[Calculation, str, Fraction]
"""A calculation, the expression to put in its place (empty for its own), and the result to say."""


@lru_cache(10_000)  # the same expression is looked at several times
def value_of(expression: str) -> Fraction | None:
    """What an expression of decimal numbers, + - * / and brackets comes to; None for any other, or a division by 0."""
    return calculate(expression) if _ARITHMETIC.fullmatch(expression) and not _TOGETHER.search(expression) else None


def calculations(step: str) -> list[Calculation]:
    """The exact calculations of a step, by the place of their results."""
    noted = _NOTED.finditer(step)
    said: list[tuple[str, tuple[int, int], tuple[int, int] | None]] = [
        (m["note"], m.span("result"), None) for m in noted
    ]
    for match, equals in _equations(step):
        expression = match[0].translate(_SIGNS)
        if equals["note"] is None:
            said.append((expression, equals.span("plain"), match.span()))
        elif expression == equals["note"].translate(_SIGNS):
            said.append((expression, equals.span("result"), match.span()))
    found: dict[tuple[int, int], Calculation] = {}
    for expression, result, written in said:
        value = value_of(expression)
        if value is not None and value == _number(step[slice(*result)]) and re.search(r"\d\D*[-+*/]", expression):
            found[result] = Calculation(expression, value, result, written)
    return [found[place] for place in sorted(found)]


def holds(step: str) -> bool | None:
    """Whether all calculations that are written out in a step without notes are exact; None where none is."""
    sides = [(value_of(match[0].translate(_SIGNS)), equals["plain"]) for match, equals in _equations(step)]
    return all(result and value == _number(result) for value, result in sides) if sides else None


def _equations(step: str) -> Iterator[tuple[re.Match[str], re.Match[str]]]:
    """What is written out, `48/2`, and what is said of it, ` = 24`."""
    notes = [note.span() for note in _ANY_NOTE.finditer(step)]
    for match in _WRITTEN.finditer(step):
        equals = _EQUALS.match(step, match.end())
        inside = any(a < match.start() < b for a, b in notes) or _GOES_ON.search(step, 0, match.start())
        if equals is not None and not inside:
            yield match, equals


def is_exact(step: str) -> bool:
    """Whether all calculator notes of a step come to what they say, and to what the step says behind them."""
    for note in _ANY_NOTE.finditer(step):
        value = value_of(note["note"])
        if value is None or value != value_of(note["noted"]) or (note["result"] and value != _number(note["result"])):
            return False
    return True


def corrupt(step: str, rng: random.Random, *, kinds: Sequence[str] = (NUMBER, OPERATOR)) -> Corruption | None:
    """A step with one calculation changed; None where it allows no error of these kinds."""
    found = calculations(step)
    for kind in rng.sample(kinds, len(kinds)):
        if options := (_other_results if kind == NUMBER else _other_operators)(step, found):
            was, text, value = rng.choice(options)
            result = spelled(value, like=step[slice(*was.result)])
            a, b = was.written if text and was.written else (was.result[0], was.result[0])
            changed = step[:a] + text + step[b : was.result[0]] + result + step[was.result[1] :]
            expression = text.translate(_SIGNS) if text else was.expression
            return Corruption(without_notes(changed), kind, f"{_spaced(expression)} = {result}", was)
    return None


def _other_operators(step: str, found: Sequence[Calculation]) -> list[Option]:
    """The last calculation with another operator, where that comes to something else, above 0, with few decimals.

    Only where it is written out and its result stands nowhere else: the rest of the step would go on from the right
    one.
    """
    was = found[-1] if found else None
    if was is None or was.written is None or not _stands_once(step, was):
        return []
    parts = re.split(rf"({_SIGN})", step[slice(*was.written)])  # operand, sign, operand, ...
    options = []
    for i in range(1, len(parts), 2):
        sign = parts[i].strip()
        for new in "+-*/".replace(sign.translate(_SIGNS), ""):
            text = "".join([*parts[:i], parts[i].replace(sign, new), *parts[i + 1 :]])
            value = value_of(text.translate(_SIGNS))
            if value is not None and value > 0 and value != was.value and spelled(value):
                options.append((was, text, value))
    return options


def _other_results(step: str, found: Sequence[Calculation]) -> list[Option]:
    """Each calculation with wrong results above 0: a little off at the last decimal, or with two neighbouring digits
    exchanged."""
    options: list[Option] = []
    for was in found:
        digits = step[slice(*was.result)].replace(",", "")
        unit = Fraction(1, 10 ** len(digits.partition(".")[2]))
        values = {was.value + by * unit for by in _SLIPS}
        for i in range(len(digits) - 1):
            if "." not in digits[i : i + 2]:
                values.add(Fraction(digits[:i] + digits[i + 1] + digits[i] + digits[i + 2 :]))
        options += [(was, "", value) for value in sorted(values) if value > 0 and value != was.value]
    return options


def _stands_once(step: str, was: Calculation) -> bool:
    """Whether the result of a calculation is mentioned in no other place of a step, its notes apart."""
    hidden = re.sub(r"<<[^<>]*>>", lambda note: " " * len(note[0]), step)
    places = [m.span() for m in _STANDING.finditer(hidden) if _number(m[0]) == was.value]
    written = was.written or was.result
    return all(place == was.result or written[0] <= place[0] < written[1] for place in places)


def _number(text: str) -> Fraction:
    return Fraction(text.replace(",", ""))


def spelled(value: Fraction, like: str = "") -> str:
    """A value above 0 as a decimal number, with the thousands separators and at least the decimals of `like`, if it
    has any; empty where it has more than two decimals and `like` has fewer."""
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
    """A pair for every step of a problem's worked solution that allows such an error; none without a solution.

    A solution is used up to its own first slip: a calculation, noted or written out, that is not exact.
    """
    solution = problem.extra.get("solution")
    steps = split_steps(_FINAL_LINE.sub("", solution)) if isinstance(solution, str) else []
    for place, step in enumerate(steps):
        right = without_notes(step).strip()
        if not is_exact(step) or holds(right) is False:
            return
        before = without_notes("".join(steps[:place]))
        made = corrupt(step, rng, kinds=kinds)
        if made is None:
            continue
        found = calculations(step)
        needed = list(map(str, found))
        yield StepPair(
            id=f"{problem.id}-{place + 1}",
            problem=problem.text,
            before=before,
            right=right,
            wrong=made.step.strip(),
            kind=made.kind,
            change=f"The step calculates {made.was}. I make it {made.now}.",
            check=_compared(needed, needed),
            flaw=_compared(needed, [made.now if each == made.was else str(each) for each in found]),
        )


def _compared(needed: Sequence[str], said: Sequence[str]) -> str:
    """What a critic says of a step: first what is needed, then what stands there, and only then whether they differ.

    Begun in the same words for right and for wrong steps, so that a critic taught with it calculates before it judges.
    """
    verdict = "the same" if needed == said else "something else"
    return f"What is needed is {' and '.join(needed)}. The step says {' and '.join(said)}: {verdict}."
