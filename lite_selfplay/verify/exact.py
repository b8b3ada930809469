r"""Comparing answers without a computer algebra system, in three values: True, False, or None for "cannot tell".

Plain numbers are compared as exact fractions, lists as sets of values, tuples and intervals place by place, words as
words. A comparison takes a `leaf` function that decides what is left; without one it stays undecided.
"""

import re
from collections.abc import Callable, Iterable, Sequence

from lite_selfplay.verify.latex import canonical, inside, split_top, trim, values
from lite_selfplay.verify.quantity import quantity, same_quantity

Leaf = Callable[[str, str], bool | None]

MAX_COMPARISONS = 10_000
MAX_BRACKETS = 64  # deeper nesting is no tuple anyone meant, and would exhaust the stack

_NAME = re.compile(r"\\?[A-Za-z]+(?:_(?:\w|\{[^{}]*\}))?'*(?:\([A-Za-z, ]*\))?")
_BASED = re.compile(r"(-?[0-9A-Za-z]+)_\{?(\d+)\}?")
_WORDS = re.compile(r"[A-Za-z][A-Za-z' -]*")
_FIGURES_ONLY = re.compile(r"(?:[\d\s.,+\-*/^(){}]|\\(?:frac|sqrt|cdot|times|div)(?![A-Za-z]))+")
_OPERATION = re.compile(r"(?<=[\d)}])\s*(?:[-+*/(]|\\(?:cdot|times|div)(?![A-Za-z]))")


def unfinished(text: str) -> bool:
    """Whether a tidy text is arithmetic on figures that was left undone, such as "48 + 24".

    Where the reference is a number, such an answer repeats the question instead of answering it. A single fraction
    or power is a number, not an operation.
    """
    return bool(_FIGURES_ONLY.fullmatch(text) and _OPERATION.search(text)) and quantity(text) is None


def same(gold: str, answer: str, leaf: Leaf | None = None) -> bool | None:
    """Whether `answer` is the value `gold`, both tidy and single; None where neither this nor `leaf` can tell."""
    if canonical(gold) == canonical(answer):
        return True
    gold, answer = _without_names(gold, answer)
    if canonical(gold) == canonical(answer):
        return True
    wanted = quantity(gold)
    given = quantity(answer, letter_units=wanted is not None)
    if wanted is not None and given is not None:
        return same_quantity(wanted, given)
    if wanted is not None and (unfinished(answer) or _is_words(answer)):
        return False
    verdict = _same_words(gold, answer)
    if verdict is None:
        verdict = _same_based(gold, answer)
    if verdict is None:
        verdict = _same_tuple(gold, answer, leaf)
    if verdict is None and leaf is not None:
        verdict = leaf(gold, answer)
    return verdict


def _without_names(gold: str, answer: str) -> tuple[str, str]:
    """Both sides as bare values where "x = 5" meets "5" or another value of x; untouched where the names differ."""
    gold_name, gold_value = _named(gold)
    answer_name, answer_value = _named(answer)
    if gold_name and answer_name and gold_name != answer_name:
        return gold, answer
    return gold_value, answer_value


def _named(text: str) -> tuple[str, str]:
    r"""(name, value) of "x = 5", "f(x) = x = ..." or `x \in S`; an empty name where there is none.

    "3 + 4 = 7" has the value 7 and no name. An equation in its unknowns is a value by itself.
    """
    member = re.match(rf"({_NAME.pattern})\s*\\in(?![A-Za-z])", text)
    if member:
        return canonical(member[1]), trim(text[member.end() :])
    sides = re.split(r"(?<![<>!=:])=", text)
    head = sides[0].strip()
    if len(sides) == 1 or not sides[-1].strip():
        return "", text
    if _NAME.fullmatch(head):
        return canonical(head), trim(sides[-1])
    return "", trim(sides[-1]) if _FIGURES_ONLY.fullmatch(head) else text


def _is_words(text: str) -> bool:
    return bool(_WORDS.fullmatch(text)) and len(canonical(text)) > 3


def _same_words(gold: str, answer: str) -> bool | None:
    """Words match whatever their case. Short ones may be products of symbols, which is left open."""
    if _WORDS.fullmatch(gold) and _WORDS.fullmatch(answer):
        if len(canonical(gold)) > 1 and canonical(gold).casefold() == canonical(answer).casefold():
            return True
        return False if _is_words(gold) or _is_words(answer) else None
    return None


def _same_based(gold: str, answer: str) -> bool | None:
    """Numerals with a base: the base may be left out of an answer, it cannot be another one."""
    wanted, given = _BASED.fullmatch(canonical(gold)), _BASED.fullmatch(canonical(answer))
    if wanted is None or not wanted[1].lstrip("-").isdigit():
        return None
    if given is not None:
        return wanted.groups() == given.groups()
    return wanted[1] == canonical(answer) if canonical(answer).lstrip("-").isdigit() else None


def _tuple(text: str) -> tuple[str, list[str]] | None:
    """(brackets, entries) of a tuple or an interval; None for anything else."""
    if text[:1] not in ("(", "[") or text[-1:] not in (")", "]") or len(re.findall(r"[(\[]", text)) > MAX_BRACKETS:
        return None
    content = inside(text, text[0], text[-1])
    entries = [] if content is None else [trim(entry) for entry in split_top(content, {",", ";"})]
    return (text[0] + text[-1], entries) if len(entries) > 1 else None


def _same_tuple(gold: str, answer: str, leaf: Leaf | None) -> bool | None:
    wanted, given = _tuple(gold), _tuple(answer)
    if wanted is None or given is None or wanted[0] != given[0]:
        return None
    if len(wanted[1]) != len(given[1]):
        return False
    return _all(same(g, a, leaf) for g, a in zip(wanted[1], given[1], strict=True))


def same_values(gold: Sequence[str], answer: Sequence[str], leaf: Leaf | None = None) -> bool | None:
    """Whether two collections name the same values, in any order and however often."""
    complete = _all(_any(same(g, a, leaf) for a in answer) for g in gold)
    if complete is False:
        return False
    return _all([complete, _all(_any(same(g, a, leaf) for g in gold) for a in answer)])


def judge(references: Sequence[Sequence[str]], answer: str, leaf: Leaf | None = None) -> bool | None:
    """Whether a written answer is one of the alternative references, each a collection of values wanted together.

    An answer that names more values than the reference is wrong: a hedge is no answer.
    """
    return _any(_judge_one(list(reference), answer, leaf) for reference in references)


def _judge_one(gold: list[str], answer: str, leaf: Leaf | None) -> bool | None:
    given = values(answer)
    if not given or not gold or len(given) * len(gold) > MAX_COMPARISONS:
        return False
    verdicts = [same_values(gold, given, leaf)]
    # Several values on one side settle how "100,200", "[3, 5]" or "3, 5" was meant on the other.
    if len(gold) > len(given):
        listed = _tuple(given[0]) if len(given) == 1 else None
        again = listed[1] if listed else values(answer, thousands=False)
        if len(again) > len(given):
            verdicts.append(same_values(gold, again, leaf))
    elif len(given) > len(gold) == 1:
        point = _tuple(gold[0])
        if point is not None and point[0] == "()" and len(point[1]) == len(given):
            verdicts.append(_all(same(g, a, leaf) for g, a in zip(point[1], given, strict=True)))
        listed_gold = values(gold[0], thousands=False)
        if len(listed_gold) == len(given):
            verdicts.append(same_values(listed_gold, given, leaf))
    return _any(verdicts)


def _all(verdicts: Iterable[bool | None]) -> bool | None:
    """Three-valued "all": False as soon as one is, None where that is open."""
    result: bool | None = True
    for verdict in verdicts:
        if verdict is False:
            return False
        if verdict is None:
            result = None
    return result


def _any(verdicts: Iterable[bool | None]) -> bool | None:
    """Three-valued "any": True as soon as one is, None where that is open."""
    result: bool | None = False
    for verdict in verdicts:
        if verdict:
            return True
        if verdict is None:
            result = None
    return result
