"""How long answers are by whether the draft they read was right, and drafts by whether they are.

Source: Beliaev, "Agon", section 5.5: on the final checkpoint, challenges of a right draft take 2.3k tokens, where all
take 3.5k on average.
"""

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from statistics import stdev
from typing import Any

from lite_selfplay.games.presentation import Row, percent, value_in_words
from lite_selfplay.games.studies import Study, Window, mean, window_names, within


@dataclass(frozen=True)
class Answer:
    """A judged completion: a draft, where `draft_right` is None, or an answer that was given beside a draft."""

    step: int
    tokens: int
    right: bool
    truncated: bool
    draft_right: bool | None = None


def answers_of(rows: Iterable[Row]) -> list[Answer]:
    """The judged completions of a run, in their order. Those beside a draft say so (`Sample.info["draft_correct"]`)."""
    return [
        Answer(row["step"], row["tokens"], row["correct"], row["stop"] == "length", row.get("draft_correct"))
        for row in rows
        if row["correct"] is not None
    ]


_ANY, _RIGHT, _WRONG, _DRAFTS = (True, False), (True,), (False,), (None,)
_GROUPS: dict[str, tuple[tuple[bool | None, ...], tuple[bool, ...]]] = {
    "after any draft": (_ANY, _ANY),
    "after a right draft": (_RIGHT, _ANY),
    "after a right draft, right": (_RIGHT, _RIGHT),
    "after a right draft, wrong": (_RIGHT, _WRONG),
    "after a wrong draft": (_WRONG, _ANY),
    "after a wrong draft, right": (_WRONG, _RIGHT),
    "after a wrong draft, wrong": (_WRONG, _WRONG),
    "right drafts": (_DRAFTS, _RIGHT),
    "wrong drafts": (_DRAFTS, _WRONG),
}
"""By name: whether the draft was right (None for drafts themselves), and whether the completion was."""


def length_by_draft(answers: Sequence[Answer], windows: Sequence[Window]) -> Study:
    """The mean length in tokens by correctness of the draft and of the answer itself, over the steps."""
    rows: list[list[str]] = []
    groups: list[dict[str, Any]] = []
    for name, (drafts, own) in _GROUPS.items():
        found = [answer for answer in answers if answer.draft_right in drafts and answer.right in own]
        lengths = [float(answer.tokens) for answer in found]
        means = [mean([float(each.tokens) for each in within(found, window, _step)]) for window in windows]
        std = stdev(lengths) if len(lengths) > 1 else None
        shown = [value_in_words(value, "number") for value in (*means, mean(lengths), std)]
        rows.append([name, *shown, str(len(found))])
        groups.append({"group": name, "tokens": means, "mean": mean(lengths), "std": std, "completions": len(found)})
    cut = sum(answer.truncated for answer in answers)
    notes = [f"mean tokens; {cut} of {len(answers)} completions were cut off at their limit, and count with it"]
    every, right = groups[0]["mean"], groups[1]["mean"]
    if every and right is not None:
        notes.append(f"after a right draft the mean length is {percent(right / every)} of that after any")
    columns = ["", *window_names(windows), "all", "std", "completions"]
    return Study("lengths", "length by correctness of the draft", columns, rows, {"groups": groups}, notes)


def _step(answer: Answer) -> int:
    return answer.step
