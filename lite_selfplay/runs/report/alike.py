"""Whether one answer is right for problems whose true answers differ: then what judges it has a hole."""

from collections import Counter
from collections.abc import Iterator, Sequence
from textwrap import shorten

from lite_selfplay.data import Stream
from lite_selfplay.verify.choice import KIND as CHOICE
from lite_selfplay.verify.keys import vote_key

FEWEST_REFERENCES = 3
"""Of how many references that differ one answer has to be right: two may be one answer with another unit."""
KINDS = frozenset({"math", CHOICE, "reasoning-gym"})
"""Kinds of problems that have one answer."""


def right_for_all(streams: Sequence[Stream]) -> list[str]:
    """A warning about the answer of a step that is right for the most different references; none if they are few.

    Answers and references are told apart by their class of votes, or by their text where they have none.
    """
    paid: dict[tuple[str, str], Counter[str]] = {}
    texts: dict[tuple[str, str], str] = {}
    for role, reference, answers in _right(streams):
        for answer in answers:
            key = role, _class(answer)
            texts.setdefault(key, answer)
            paid.setdefault(key, Counter())[reference] += 1
    worst = max(paid, key=lambda key: len(paid[key]), default=None)
    if worst is None or len(paid[worst]) < FEWEST_REFERENCES:
        return []
    text, found = shorten(texts[worst], 80, placeholder=" ..."), paid[worst]
    return [
        f"the {worst[0]}'s answer {text!r} is right on {found.total()} problems with {len(found)} different "
        "references: it is paid without solving them, and training on it teaches nothing else (docs/answers.md)"
    ]


def _right(streams: Sequence[Stream]) -> Iterator[tuple[str, str, set[str]]]:
    """(role, reference, right answers) of each problem that has a reference."""
    for stream in streams:
        for group in stream.groups:
            if group.problem is not None and group.problem.answer is not None and group.problem.kind in KINDS:
                verdicts = [sample.verdict for sample in group.samples if sample.verdict is not None]
                right = {verdict.answer for verdict in verdicts if verdict.correct and verdict.answer}
                yield stream.role, _class(str(group.problem.answer)), right


def _class(text: str) -> str:
    return vote_key(text) or text.strip()
