r"""Comparing answers: nothing is solved, and answers are different unless a rule here finds them equal.

Values are compared numerically, lists as sets of values, tuples and intervals entry by entry, words as words. An answer
must be in its reference's form: it may leave an operation unevaluated only if the reference does so with one of the
same kind.
"""

import re
import unicodedata
from collections.abc import Sequence
from itertools import chain

from lite_selfplay.verify.form import Formula, to_formula
from lite_selfplay.verify.keys import LONG_WORD, UNION, entries_of, is_words, key_of, numeral, pieces
from lite_selfplay.verify.latex import canonical, tuple_entries, values
from lite_selfplay.verify.operations import operations_named
from lite_selfplay.verify.quantity import quantity, same_quantity, times
from lite_selfplay.verify.statement import Statement, has_unknowns, point, statement
from lite_selfplay.verify.words import unit_of

MAX_COMPARISONS = 10_000
_UNNAMED = {"unit", "degr"}
_IN_LETTERS = re.compile(r"-?[\d,]*\.?\d+ [A-Za-z]")  # a number with a unit of one letter
_CONSTANT = re.compile(r"(.*\S\s*)\+\s*([CcKk])")  # of integration
_PAIR = re.compile(r"0*(\d+(?:\.\d+)?)\s*[-:]\s*0*(\d+(?:\.\d+)?)")


def judge(references: Sequence[Sequence[str]], answer: str) -> bool:
    """Whether a written answer equals one of the alternative references, each a list of values that are all required.
    An answer with more values than the reference is hedged, and wrong."""
    return any(_judge_one(pieces(reference), answer) for reference in references)


def _judge_one(gold: list[str], answer: str) -> bool:
    given = pieces(values(answer))
    if not given or not gold or len(given) * len(gold) > MAX_COMPARISONS:
        return False
    if (key := key_of(gold)) is not None and key == key_of(given):
        return True
    wanted_point, given_point = point(gold, by_name=len(given) == 1), point(given, by_name=True)
    if wanted_point and not given_point:  # for x = 3, y = -1, values without names must have this order
        gold = [wanted_point]
    elif given_point and not wanted_point and len(gold) == 1:
        given = [given_point]
    if same_values(gold, given):
        return True
    # If one side has several values, read "100,200", "[3, 5]" or "3, 5" on the other side as several values, too.
    if len(gold) > len(given):
        listed = tuple_entries(given[0]) if len(given) == 1 else None
        again = listed[1] if listed else values(answer, thousands=False)
        return len(again) > len(given) and same_values(gold, again)
    if len(given) > len(gold) == 1:
        entries = tuple_entries(gold[0])
        if entries is not None and entries[0] == "()" and len(entries[1]) == len(given):
            return all(map(same, entries[1], given))
        listed_gold = values(gold[0], thousands=False)
        return len(listed_gold) == len(given) and same_values(listed_gold, given)
    return False


def same_values(gold: Sequence[str], answer: Sequence[str]) -> bool:
    """Whether two collections contain the same values, regardless of order and repetitions."""
    return all(any(same(g, a) for a in answer) for g in gold) and all(any(same(g, a) for g in gold) for a in answer)


def same(gold: str, answer: str) -> bool:
    """Whether `answer` equals `gold`, each a single value as `latex.values` returns it."""
    if canonical(gold) == canonical(answer):
        return True
    wanted, given = statement(gold), statement(answer)
    if wanted.equation or given.equation or (wanted.name and given.name and wanted.name != given.name):
        return _same_equation(wanted, given)
    value = given.value if wanted.name else _by_name(given)
    return any(_same_value(wanted.value or gold, each) for each in (value, given.rounded) if each)


def _by_name(stated: Statement) -> str:
    """A value, or a tuple of x, y and z in this order: "(y, x) = (1, 2)" is (2, 1)."""
    names, entries = stated.name.strip("()").split(","), tuple_entries(stated.value)
    if entries is None or len(names) != len(entries[1]) or "".join(sorted(names)) not in "xyz":
        return stated.value
    return f"({', '.join(entry for _, entry in sorted(zip(names, entries[1], strict=True)))})"


def _same_equation(wanted: Statement, given: Statement) -> bool:
    """Whether one equation is a multiple of the other. A value never equals an equation."""
    first, second = _difference(wanted), _difference(given)
    if first is None or second is None or not (wanted.equation or has_unknowns(wanted.value)):
        return False
    sides, allowed = (stated.equation or (stated.value,) for stated in (given, wanted))
    return first.proportional(second) and _operations(*sides) <= _operations(*allowed)


def restates(gold: Sequence[str], answer: str) -> bool:
    """Whether an answer only restates the question: it has an operation that its reference lacks."""
    allowed = _operations(*gold)
    return any(not _operations(value) <= allowed for value in values(answer))


def counts_another(gold: Sequence[str], answer: str, problem: str = "") -> bool:
    """Whether an answer counts something else, such as 3 oranges for 3 apples.

    Its noun must occur in its reference or in the problem. One common word is enough, compared by its first four
    letters (`_stems`). Currencies, known units and the word "unit" always pass, and so does every noun if neither text
    has a word.
    """
    wanted, given = ([quantity(statement(text).value or text) for text in side] for side in (gold, values(answer)))
    nouns = " ".join(value.noun for value in wanted if value)
    known = _stems(f"{problem} {nouns}")
    around = {*f"{problem} {nouns}"}  # the characters that may be words
    unknown = (
        value.noun for value in given if value and value.unit is None and not any(map(unit_of, value.noun.split()))
    )
    return bool(known or nouns) and any(
        (noun := _stems(text)) and not noun & (known | around | _UNNAMED) for text in unknown
    )


def _stems(text: str) -> set[str]:
    """The beginnings of a text's words; in scripts without capitals, which may not separate words, its pairs of
    characters."""
    kept = "".join(each for each in text.casefold() if each.isascii() or unicodedata.category(each)[0] != "M")
    words = re.findall(r"[^\W\d_]+", kept)
    unspaced = [word for word in words if unicodedata.category(word[0]) == "Lo"]
    pairs = {word[start : start + 2] for word in unspaced for start in range(max(1, len(word) - 1))}
    return pairs | {word[:4].removesuffix("s") for word in {*words} - {*unspaced} if len(word) > 1 + word.isascii()}


def _operations(*texts: str) -> frozenset[str]:
    """The operations that values leave unevaluated, and their functions."""
    found = [(text, quantity(statement(text).value or text)) for text in texts]
    return frozenset().union(*(value.formula.operations if value else operations_named(text) for text, value in found))


def _difference(stated: Statement) -> Formula | None:
    """The difference of both sides of an equation; None without two sides."""
    sides = stated.equation or (stated.name, stated.value)
    return to_formula(f"({sides[0]})-({sides[1]})") if all(sides) else None


def _same_value(gold: str, answer: str) -> bool:
    if canonical(gold) == canonical(answer):
        return True
    rules = (_same_words, _same_numeral, _same_entries, _same_time, _same_pair, _same_quantity)
    verdicts = (rule(gold, answer) for rule in rules)
    return next((verdict for verdict in verdicts if verdict is not None), False)


# The rules. None: a rule does not apply to these values


def _same_words(gold: str, answer: str) -> bool | None:
    """Whether two words are equal, ignoring case. A short word may be a product of variables: formulas are left to the
    next rules."""
    if not is_words(gold):
        return None
    if is_words(answer):
        return canonical(gold).casefold() == canonical(answer).casefold()
    given = quantity(answer)
    return None if given is None or (given.formula.variables and len(gold) < LONG_WORD) else False


def _same_numeral(gold: str, answer: str) -> bool | None:
    """Whether two numerals with a base are equal. An answer may omit the base, but not have a different one."""
    wanted, given = numeral(gold), numeral(answer)
    if wanted is None or given is not None:
        return None if given is None else wanted == given
    return wanted[0] == canonical(answer) and wanted[0].lstrip("-").isdigit()


def _same_entries(gold: str, answer: str) -> bool | None:
    """Whether tuples, intervals or matrices are equal entry by entry, or unions in any order."""
    (mark, rows), (other_mark, other_rows) = entries_of(gold), entries_of(answer)
    if not mark or mark != other_mark:
        return None
    if mark == UNION:
        return same_values(rows[0], other_rows[0])
    alike = [len(row) for row in rows] == [len(row) for row in other_rows]
    return alike and all(map(same, chain(*rows), chain(*other_rows)))


def _same_time(gold: str, answer: str) -> bool | None:
    """Whether two times of the day are equal; an answer may omit am or pm only if its reference does."""
    wanted, given = times(gold), times(answer)
    return given <= wanted if wanted and given else None


def _same_pair(gold: str, answer: str) -> bool | None:
    """Whether two ranges, ratios or scores, such as 3-2 and 3:2, have the same two numbers."""
    wanted, given = _PAIR.fullmatch(gold), _PAIR.fullmatch(answer)
    return wanted.groups() == given.groups() if wanted and given else None


def _same_quantity(gold: str, answer: str) -> bool | None:
    """Whether two values are equal, and the answer has no operation that its reference lacks."""
    constant, other = _CONSTANT.fullmatch(gold), _CONSTANT.fullmatch(answer)
    if constant and other and constant[2] == "C" and other[2] not in gold:
        answer = f"{other[1]}+ C"
    wanted = quantity(gold)
    given = quantity(answer, letter_units=wanted is not None and not wanted.formula.variables)
    if wanted is not None and given is not None:
        in_letters = given.unit is not None or (not given.formula.variables and _IN_LETTERS.fullmatch(gold))
        if wanted.formula.variables and in_letters:
            wanted = quantity(gold, letter_units=True) or wanted
        # For a date, a range or a size the form matters: 2016 does not equal 2024-03-05.
        if (alike := wanted.formula.same_chain(given.formula)) is not None:
            return alike and same_quantity(wanted, given)
        return given.formula.operations <= wanted.formula.operations and same_quantity(wanted, given)
    return None
