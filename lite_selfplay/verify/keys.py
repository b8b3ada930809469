"""Canonical keys of answers, each derived from that answer alone.

Answers with equal keys are equal, so votes are counted by key. An answer without a value in normal form has no key: a
restated question ("48 + 24", "5!", "2x + 3 = 11"), a chain of equations that contradicts itself, a sentence. The work
is bounded by the answer's length.
"""

import re
from collections.abc import Iterable, Sequence

from lite_selfplay.verify.expression import Unreadable
from lite_selfplay.verify.latex import CLOCK, canonical, plain, split_top, trim, tuple_entries, values
from lite_selfplay.verify.operations import PLAIN_FUNCTIONS
from lite_selfplay.verify.quantity import quantity, times
from lite_selfplay.verify.statement import statement, unnamed
from lite_selfplay.verify.words import NUMBER_WORDS

MAX_CHARACTERS, MAX_VALUES = 2000, 100  # of an answer; a longer text would only keep the parser busy
MAX_WORDS = 4  # of an answer with a key; longer ones are sentences or questions

_WORDS = re.compile(r"[A-Za-z][A-Za-z' -]*")
LONG_WORD = 4  # from this many letters on a text is a word, never a product of variables
# Variables in a product have neighbouring names, as in ab or xyz; o is omitted because it looks like a zero.
_UNKNOWNS = "abcdefghijklmnpqrstuvwxyz"
_ASKS = frozenset(
    "plus minus times divided by over add subtract multiply sum difference product quotient squared cubed square cube "
    "root factorial half twice double of what which how who find solve".split()
)
_SPELLED = re.compile(rf"(?<![\\A-Za-z])(?!(?:{'|'.join(PLAIN_FUNCTIONS)})\b)[A-Za-z]{{{LONG_WORD},}}")
UNION, MATRIX = "\\cup", "matrix"
_NUMERAL = re.compile(r"(-?[0-9A-Za-z]+)_\{?(\d+)\}?")
_MATRIX = re.compile(r"[(\[]?\\begin\{([pbBv]?matrix|array)\}(?:\{[^{}]*\})?(.*)\\end\{\1\}[)\]]?", re.DOTALL)

# Phrases that say that there is no answer: `states_nothing`.
_MARKUP = re.compile(r"\\(?:text|textbf|textit|mathrm|mathbf|operatorname)\b|[\\$*`~{}()\[\]\"]")
_BETWEEN = re.compile(r"\s*(?:[,;]|\b(?:and|or)\b)\s*")
_NOTHING = re.compile(
    r"""
    (?: [a-z][a-z' ]{0,30} (?: = | : | \bis\b ) \s* )?                      # x = unknown; the answer is unknown
    (?: (?:answer\ )?unknown | undetermined | unanswerable | idk | dunno | tbd | n/a | n\.a | (?-i:NA)
      | (?:(?:i\ am|i'm|it's)\ )? (?:unsure | uncertain | unclear | not\ (?:sure|certain|clear|known))
      | not\ (?:given|stated|specified|provided|available|applicable|determined)
      | (?:i\ have\ )? no\ (?:answer|idea|clue|information) (?:\ (?:given|provided))?
      | (?:(?:(?:i|we)\ )? (?:do\ not|don't|can\ ?not|can't) | unable\ to | not\ possible\ to | impossible\ to)
        \ (?:know|tell|say|determine|decide|answer|solve|compute|calculate) (?:\ (?:it|this|that|exactly|uniquely))?
      | (?:(?:it|this|that)\ )? (?:can\ ?not|can't)\ be
        \ (?:known|told|said|determined|decided|answered|solved|computed|calculated|found) (?:\ (?:exactly|uniquely))?
      | (?:not\ enough|insufficient|too\ little|missing|need\ more)\ (?:information|info|data|details) (?:\ given)?
    )""",
    re.VERBOSE | re.IGNORECASE,
)


def answer_key(answer: str) -> str | None:
    """The key of a written answer; None if it has no value in normal form.

    "72", "72.0" and "seventy-two" have one key, "48 + 24" has none. The key of several values is that of their set.
    Known units are part of a key, converted to the base unit of their kind; other units, money and degrees are not.
    """
    return None if len(answer) > MAX_CHARACTERS else key_of(pieces(values(answer)))


def vote_key(answer: str, choices: Iterable[str] = ()) -> str | None:
    """Like `answer_key`, without the name of the value: "x = 5" votes with "5". Also None, an abstention, if the answer
    says that there is none and is not one of the problem's `choices`."""
    if len(answer) > MAX_CHARACTERS or states_nothing(answer, choices):
        return None
    return key_of(unnamed(pieces(values(answer))))


def states_nothing(answer: str, choices: Iterable[str] = ()) -> bool:
    """Whether an answer, or one of several that are given together, says that there is none, such as "I do not know".

    Such answers cannot win a vote, or a solver that never answers would agree with itself. docs/answers.md lists the
    phrases. "None", "undefined", "no solution", "does not exist" and the problem's `choices` are always answers.
    """
    if (text := _bare_words(answer)).casefold() in (_bare_words(choice).casefold() for choice in choices):
        return False
    return any(map(_NOTHING.fullmatch, _BETWEEN.split(text)))


def _bare_words(text: str) -> str:
    """A text without markup and final punctuation."""
    return " ".join(_MARKUP.sub(" ", plain(text)).split()).strip(" .!?")


def spoken_value(answer: str) -> str:
    """A written answer as the label of a vote: the text, or only its value if the value is named ("x = 5")."""
    found = values(answer)
    bare = unnamed(found)
    return answer.strip() if bare == found else ", ".join(bare).replace("¤", "$")


def pieces(found: Sequence[str]) -> list[str]:
    """The values, with unions of intervals split, since they may also be written as several inequalities."""
    parts: list[str] = []
    for value in found:
        stated = statement(value)
        mark, rows = entries_of(stated.value)
        if mark == UNION and all(map(tuple_entries, rows[0])):
            parts += [f"{stated.name} \\in {member}" if stated.name else member for member in rows[0]]
        else:
            parts.append(value)
    return parts


def key_of(found: Sequence[str]) -> str | None:
    """The key of values that are given together; None if one of them has none."""
    if not 0 < len(found) <= MAX_VALUES:
        return None
    try:
        known = sorted({_key(value) for value in found})
    except Unreadable:
        return None
    return known[0] if len(known) == 1 else "{" + ", ".join(known) + "}"


def _key(text: str) -> str:
    """The key of a single value. Raises Unreadable if it has none, like the next two functions."""
    stated = statement(text)
    key = _value_key(stated.value)
    return f"{stated.name} = {key}" if stated.name else key


def _value_key(text: str) -> str:
    if is_words(text):
        return _words_key(text)
    if (based := numeral(text)) is not None:
        return f"{based[0]} base {based[1]}"
    mark, rows = entries_of(text)
    if mark == UNION:
        return " or ".join(sorted({_value_key(member) for member in rows[0]}))
    lines = [", ".join(map(_key, row)) for row in rows]
    if mark:
        return f"matrix {'; '.join(lines)}" if mark == MATRIX else f"{mark[0]}{lines[0]}{mark[1]}"
    if text.endswith(CLOCK) and times(text):
        return canonical(text)
    found = quantity(text)
    if found is None or (key := found.key()) is None:
        raise Unreadable("no value in normal form")
    return key


def _words_key(text: str) -> str:
    """The key of a few words; words that restate a question have none."""
    words = text.casefold().split()
    if len(words) > MAX_WORDS or _ASKS.intersection(words) or NUMBER_WORDS.search(text):
        raise Unreadable("a sentence or a question")
    return f"'{canonical(text).casefold()}'"


# Values that are not formulas


def is_value(text: str) -> bool:
    """Whether a text, as `latex.values` returns it, is read as a value or an equation, not only as words."""
    value = statement(text).value
    if not value or is_words(value):
        return statement(text).equation is not None
    mark, rows = entries_of(value)
    if mark not in ("", MATRIX):
        return all(map(is_value, rows[0]))
    found = quantity(value)
    if found is not None and found.formula.variables and _SPELLED.search(value):
        return False  # a sentence of letters that could all be variables
    return found is not None or bool(rows or numeral(value) or times(value))


def is_words(text: str) -> bool:
    """Whether a value is words and not a product of variables: at least four letters, only capitals, or two or three
    letters such as `no` that are not neighbours in the alphabet, as in `xy` or `abc`."""
    if not _WORDS.fullmatch(text) or len(text) < 2:
        return False
    short = text.isalpha() and text[1:].islower() and text.casefold() not in _UNKNOWNS
    return short or len(canonical(text)) >= LONG_WORD or text.isupper()


def numeral(text: str) -> tuple[str, str] | None:
    """(digits, base) of a numeral with a base, such as "52_8"; None for anything else."""
    match = _NUMERAL.fullmatch(canonical(text))
    return (match[1], match[2]) if match is not None and match[1][-1:].isdigit() else None


def entries_of(text: str) -> tuple[str, list[list[str]]]:
    """The mark and the rows of entries of a value that has parts: the brackets and the one row of a tuple or an
    interval, `UNION` and the one row of a union, `MATRIX` and the rows of a matrix. ("", []) for anything else,
    determinants included."""
    if (listed := tuple_entries(text)) is not None:
        return listed[0], [listed[1]]
    match = _MATRIX.fullmatch(text.strip())
    if match is not None and match[1] != "vmatrix" and "\\begin" not in match[2]:
        return MATRIX, [[trim(entry) for entry in row.split("&")] for row in match[2].split("\\\\") if row.strip()]
    members = split_top(text, {UNION})
    return (UNION, [members]) if len(members) > 1 else ("", [])
