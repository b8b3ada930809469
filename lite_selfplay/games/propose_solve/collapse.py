"""Signs of collapse in games that write their own problems: repeated questions and wrong labels.

A proposer paid for questions of a certain difficulty may find one and repeat it; a vote may agree on a wrong answer.
Each step's `log` has figures on both, and `collapse_warnings` has bounds on the figures.
"""

import re
from collections import Counter, deque
from collections.abc import Callable, Mapping, Sequence
from fractions import Fraction
from typing import Any

from lite_selfplay.verify.exact import judge
from lite_selfplay.verify.formulas import calculate
from lite_selfplay.verify.latex import values

HISTORY = 200  # the number of earlier questions that a new one is compared with

BINS = 5  # of the histogram of pass rates: [0, 0.2), [0.2, 0.4), ... [0.8, 1].

MOST_REPEATED, MOST_AT_AN_END, FEWEST_RIGHT = 0.5, 0.95, 0.5
# Distinct tokens of all questions together, as a multiple of a question's mean length. Their share has no fixed bound,
# because it falls with the number of questions. Sums, at a token a digit, reach 1.2 to 1.7 for any number of questions;
# identical questions reach at most 1.
FEWEST_DISTINCT = 1.0
FEWEST_JUDGED = 4  # shares over fewer questions or labels than this mean nothing

_NUMBER = r"(?<![\w.])(?:0|[1-9]\d{0,11}(?:,\d{3})*)(?:\.\d{1,12})?(?![\w.,]\d)"
_EXPRESSION = re.compile(rf"(?<![\w.)])[-−(\s]*{_NUMBER}[\s)]*(?:[-+*/×÷x·−][-−(\s]*{_NUMBER}[\s)]*)+")
_LONGEST = 1000  # characters; a longer question is no bare calculation, and would slow the pattern down

# Words that may stand beside a calculation because they do not change its value; "sqrt", "%" or "remainder" would.
_WORDS = frozenset(
    "a addition and answer arithmetic calculate calculation can compute determine difference division equal equals "
    "evaluate exact exactly expression final find following give how is it me much multiplication of out please "
    "problem product question quotient result s selected simplify solve solution subtraction sum tell the this to "
    "total value what whats work you".split()
)
_BESIDE = re.compile(r"[\sA-Za-z?.:,;='\"’`*_$-]*")


class CollapseWatch:
    """Remembers questions and measures signs of collapse at each step."""

    def __init__(self, seen: Sequence[str] = ()):
        self.seen = deque(seen, maxlen=HISTORY)

    def observe(
        self,
        questions: Sequence[str],
        *,
        tokens: Callable[[str], Sequence[int]],
        pass_rates: Sequence[float] = (),
        vote_shares: Sequence[float] = (),
        labels: Sequence[tuple[str, str | None]] = (),
    ) -> dict[str, Any]:
        """One step's figures; the questions enter the history.

        Questions that differ only in case and spacing are repetitions. `pass_rates` and `vote_shares`, in [0, 1], have
        an entry for each answered question. `labels` are questions with the labels trained on, which are compared with
        the true value if it can be computed. A share of nothing is None.
        """
        plain = [" ".join(each.casefold().split()) for each in questions]
        repeated = sum(each in self.seen or each in plain[:i] for i, each in enumerate(plain))
        self.seen.extend(plain)
        ids = [token for question in questions for token in tokens(question)]
        bins = Counter(min(BINS - 1, int(rate * BINS + 1e-9)) for rate in pass_rates)
        judged = [right for question, label in labels if (right := label_is_right(question, label)) is not None]
        return {
            "questions": len(questions),
            "repeated": _share(repeated, len(questions)),
            "distinct_tokens": _share(len(set(ids)), len(ids)),
            "pass_rates": [bins[i] for i in range(BINS)],
            "pass_rate": _share(sum(pass_rates), len(pass_rates)),
            "vote_share": _share(sum(vote_shares), len(vote_shares)),
            "labels_checked": len(judged),
            "label_accuracy": _share(sum(judged), len(judged)),
        }


def collapse_warnings(log: Mapping[str, Any]) -> list[str]:
    """A sentence for each figure of `CollapseWatch.observe` beyond its bound."""
    found = []
    questions, rates = log.get("questions", 0), log.get("pass_rates") or [0]
    if questions >= FEWEST_JUDGED and (log["repeated"] or 0) > MOST_REPEATED:
        found.append(
            f"{log['repeated']:.0%} of the questions repeat earlier ones: the proposer is collapsing. A higher "
            "temperature, a smaller learning rate or, if the game has one, its diversity term helps"
        )
    if questions >= FEWEST_JUDGED and 0 < (log["distinct_tokens"] or 0) * questions < FEWEST_DISTINCT + 1e-9:
        found.append(
            f"the {questions} questions are nearly the same: only {log['distinct_tokens']:.1%} of their tokens are "
            "distinct"
        )
    if (answered := sum(rates)) >= FEWEST_JUDGED:
        found += [
            f"the solver's answers agree with the label {word}, so there is little to learn from"
            for end, word in ((0, "hardly ever"), (-1, "nearly always"))
            if rates[end] / answered > MOST_AT_AN_END
        ]
    if log.get("labels_checked", 0) >= FEWEST_JUDGED and log["label_accuracy"] < FEWEST_RIGHT:
        found.append(
            f"{1 - log['label_accuracy']:.0%} of the labels whose truth can be computed are wrong: the solver is "
            "being trained towards them"
        )
    return found


def label_is_right(question: str, label: str | None) -> bool | None:
    """Whether a label is the question's true value; None without a label, or if this cannot be computed.

    The comparison is the checker's ("$72$" and "72.0" are 72).
    """
    truth = true_value(question)
    return None if truth is None or label is None else judge([values(str(truth))], label)


def true_value(question: str) -> Fraction | None:
    """The value of the only calculation in a question, such as `(12 + 5) * 3`; None if there is none or several.

    Also None if other numbers, words or signs, except those known not to matter, might change what is asked.
    """
    question = " ".join(question.split())
    if len(question) > _LONGEST or len(found := list(_EXPRESSION.finditer(question))) != 1:
        return None
    rest = f"{question[: found[0].start()]} {question[found[0].end() :]}"
    if not _BESIDE.fullmatch(rest) or not _WORDS.issuperset(re.findall("[a-z]+", rest.casefold())):
        return None
    return calculate(found[0][0])


def _share(part: float, whole: int) -> float | None:
    return part / whole if whole else None
