"""Several seats, and seats after each other, on the same few problems, side by side: what the notebooks end with."""

from collections.abc import Sequence

from lite_selfplay.data import BASE
from lite_selfplay.errors import UnknownNameError
from lite_selfplay.evaluation.result import Evaluation
from lite_selfplay.evaluation.tables import as_markdown, with_interval
from lite_selfplay.runs.report.card import code, plain
from lite_selfplay.runs.report.transcripts import fenced

LONGEST = 1500
"""Characters of a text: of a longer completion the end is shown, where its answer stands."""


def side_by_side(found: Evaluation, names: Sequence[str] | None = None) -> str:
    """What each of `names` said to each problem of an evaluation, as Markdown, then how often each was right.

    `names` are those of seats and directions (`base`, `A`, `A->B`); None: all. The first sample of each is shown. Below
    stands pass@1 with its 95% interval, and whether the difference may be chance. Raises UnknownNameError.
    """
    scores = {**found.seats, **found.directions}
    chosen = list(scores if names is None else names)
    for name in chosen:
        if name not in scores:
            raise UnknownNameError("seat or direction", name, scores)
    parts = []
    for number, (key, problem) in enumerate(found.problems.items()):
        parts += [f"### {number + 1}. {plain(key[:200])}", fenced(problem.text[:LONGEST])]
        for name in chosen:
            answer = found.rows[name][number][0]
            verdict = "right" if answer.correct else "wrong"
            given = "no answer" if answer.answer is None else code(answer.answer[:200])
            text = answer.completion.text
            shown = text if len(text) <= LONGEST else f"[...] {text[-LONGEST:]}"
            parts += [f"**{plain(_called(name))}: {verdict}**, {given}", fenced(shown)]
    rows = [[plain(_called(name)), with_interval(scores[name].to_json())] for name in chosen]
    parts += [as_markdown(["", "right, with its 95% interval"], rows), _chance([scores[name].ci95 for name in chosen])]
    return "\n\n".join(parts) + "\n"


def _called(name: str) -> str:
    return "base model" if name == BASE else name


def _chance(intervals: Sequence[tuple[float, float]]) -> str:
    """Whether any two differ by more than their intervals allow."""
    apart = any(first[1] < second[0] for first in intervals for second in intervals)
    if apart:
        return "Some of the intervals do not overlap: of these two, one is better on such problems."
    return "All intervals overlap: on so few problems the difference may be chance."
