"""Answers that say that there is none, such as "I do not know": in a vote they are votes for nothing.

A solver that always says so would otherwise be its own majority.
"""

import re
from collections.abc import Iterable

from lite_selfplay.verify.latex import plain

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


def states_nothing(answer: str, choices: Iterable[str] = ()) -> bool:
    """Whether an answer, or one of several that are given together, says that there is none.

    The words are those of docs/answers.md; one of the problem's `choices` is an answer whatever it says. "None",
    "undefined", "no solution" and "does not exist" are answers.
    """
    if (text := _plain(answer)).casefold() in (_plain(choice).casefold() for choice in choices):
        return False
    return any(map(_NOTHING.fullmatch, _BETWEEN.split(text)))


def _plain(text: str) -> str:
    """Words without markup, and without a stop at their end."""
    return " ".join(_MARKUP.sub(" ", plain(text)).split()).strip(" .!?")
