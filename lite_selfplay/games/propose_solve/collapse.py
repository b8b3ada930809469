"""The collapse watch of games that write their own problems: signs that the questions, or their labels, go bad.

A proposer that is paid for questions of a certain difficulty may find one such question and repeat it; a vote may agree
on what is wrong. Each step's `log` says how far that has gone, and `warnings` puts a bound to it.
"""

import re
from collections import deque
from collections.abc import Callable, Mapping, Sequence
from fractions import Fraction
from typing import Any

from lite_selfplay.verify.exact import judge
from lite_selfplay.verify.formulas import calculate
from lite_selfplay.verify.latex import values

HISTORY = 200
"""Earlier questions that a new one is compared with."""

BINS = 5
"""Of the histogram of pass rates: [0, 0.2), [0.2, 0.4), ... [0.8, 1]."""

MOST_REPEATED, MOST_AT_AN_END, FEWEST_RIGHT = 0.5, 0.95, 0.5
FEWEST_DISTINCT = 1.0
"""Different tokens of all questions together, as a multiple of the mean length of a question.

The share of distinct tokens has no bound by itself, since it falls with the number of questions. Sums, a digit a token,
come to 1.2 to 1.7 here for any number of questions; equal questions to 1 at most.
"""
FEWEST_JUDGED = 4
"""Shares over fewer questions or labels than this are no sign of anything."""

_NUMBER = r"(?<![\w.])(?:0|[1-9]\d{0,11}(?:,\d{3})*)(?:\.\d{1,12})?(?![\w.,]\d)"
_EXPRESSION = re.compile(rf"(?<![\w.)])[-−(\s]*{_NUMBER}[\s)]*(?:[-+*/×÷x·−][-−(\s]*{_NUMBER}[\s)]*)+")
_LONGEST = 1000  # characters; a longer question is no bare calculation, and would keep the pattern busy

# What may stand beside a calculation without changing what is asked; "sqrt", "%" or "remainder" would.
_WORDS = frozenset(
    "a addition and answer arithmetic calculate calculation can compute determine difference division equal equals "
    "evaluate exact exactly expression final find following give how is it me much multiplication of out please "
    "problem product question quotient result s selected simplify solve solution subtraction sum tell the this to "
    "total value what whats work you".split()
)
_BESIDE = re.compile(r"[\sA-Za-z?.:,;='\"’`*_$-]*")


class CollapseWatch:
    """Remembers questions and says of each step how far the family's known ways to fail have gone."""

    def __init__(self) -> None:
        self._seen: deque[str] = deque(maxlen=HISTORY)

    def look(
        self,
        questions: Sequence[str],
        *,
        tokens: Callable[[str], Sequence[int]],
        pass_rates: Sequence[float] = (),
        vote_shares: Sequence[float] = (),
        labels: Sequence[tuple[str, str | None]] = (),
    ) -> dict[str, Any]:
        """One step's figures; the questions enter the history.

        `pass_rates` and `vote_shares` in [0, 1], one a question that was answered. `labels` are questions with the
        label that was trained on; those whose true value can be computed are compared. Shares are None where there is
        nothing to take a share of.
        """
        seen, repeated = set(self._seen), 0
        for question in map(plain, questions):
            repeated += question in seen
            seen.add(question)
            self._seen.append(question)
        ids = [token for question in questions for token in tokens(question)]
        histogram = [0] * BINS
        for rate in pass_rates:
            histogram[min(BINS - 1, int(rate * BINS + 1e-9))] += 1
        judged = [right for question, label in labels if (right := label_is_right(question, label)) is not None]
        return {
            "questions": len(questions),
            "repeated": _share(repeated, len(questions)),
            "distinct_tokens": _share(len(set(ids)), len(ids)),
            "pass_rates": histogram,
            "pass_rate": _mean(pass_rates),
            "vote_share": _mean(vote_shares),
            "labels_checked": len(judged),
            "label_accuracy": _share(sum(judged), len(judged)),
        }

    def state(self) -> list[str]:
        """The history, as JSON."""
        return list(self._seen)

    def restore(self, seen: Sequence[str]) -> None:
        """Take back what `state` gave."""
        self._seen = deque(seen, maxlen=HISTORY)


def collapse_warnings(log: Mapping[str, Any]) -> list[str]:
    """A sentence for each figure of `CollapseWatch.look` that has passed its bound."""
    found = []
    questions, rates = log.get("questions", 0), log.get("pass_rates") or [0]
    if questions >= FEWEST_JUDGED and (log["repeated"] or 0) > MOST_REPEATED:
        found.append(
            f"{log['repeated']:.0%} of the questions repeat earlier ones: the proposer is collapsing. A higher "
            "temperature, a smaller learning rate or, where the game has one, its diversity term helps"
        )
    if questions >= FEWEST_JUDGED and 0 < (log["distinct_tokens"] or 0) * questions < FEWEST_DISTINCT + 1e-9:
        found.append(
            f"only {log['distinct_tokens']:.1%} of the tokens of {questions} questions are distinct, no more than one "
            "question has: they are all alike"
        )
    if (answered := sum(rates)) >= FEWEST_JUDGED:
        for place, word in ((0, "hardly ever"), (-1, "nearly always")):
            if rates[place] / answered > MOST_AT_AN_END:
                found.append(f"the solver's answers agree with the label {word}, so there is little to learn from")
    if log.get("labels_checked", 0) >= FEWEST_JUDGED and log["label_accuracy"] < FEWEST_RIGHT:
        found.append(
            f"{1 - log['label_accuracy']:.0%} of the labels whose truth can be computed are wrong: the solver is "
            "being trained towards them"
        )
    return found


def plain(question: str) -> str:
    """A question in one case with single blanks: two with equal forms are the same one."""
    return " ".join(question.casefold().split())


def label_is_right(question: str, label: str | None) -> bool | None:
    """Whether a label is the question's true value; None where there is no label or the truth cannot be computed.

    Compared as the checker compares answers ("$72$" and "72.0" are 72); None as well where that cannot tell.
    """
    truth = true_value(question)
    return None if truth is None or label is None else judge([values(str(truth))], label)


def true_value(question: str) -> Fraction | None:
    """The value of the one calculation a question holds, such as `(12 + 5) * 3`; None where it holds none or several.

    A question with numbers beside its calculation, or with words or signs that are not known to leave its value alone,
    may ask for something else, and has no value here.
    """
    question = " ".join(question.split())
    if len(question) > _LONGEST or len(found := list(_EXPRESSION.finditer(question))) != 1:
        return None
    rest = f"{question[: found[0].start()]} {question[found[0].end() :]}"
    if not _BESIDE.fullmatch(rest) or not _WORDS.issuperset(re.findall("[a-z]+", rest.casefold())):
        return None
    return calculate(found[0][0])


def _share(part: int, whole: int) -> float | None:
    return part / whole if whole else None


def _mean(values: Sequence[float]) -> float | None:
    return sum(values) / len(values) if values else None
