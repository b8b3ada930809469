"""What a proposer's completion proposes: a question, perhaps with its answer, or the reason why it is invalid.

A proposal without a question is data and no error: it keeps its reason, and is counted by it.
"""

import re
from collections import Counter
from collections.abc import Callable, Iterable
from dataclasses import dataclass, replace

from lite_selfplay.data import Completion, Problem
from lite_selfplay.verify.extract import completion_text
from lite_selfplay.verify.format import boxed_spans, split_reasoning

REASONS = ("", "prompt_too_long", "truncated", "off_format", "empty", "no_answer", "too_long", "repeated", "leaks")
"""Why a proposal is no question; the empty one is a question's."""


@dataclass(frozen=True)
class Proposal:
    """What a proposer's completion proposes. `reason` is one of `REASONS`, empty where there is a question."""

    completion: Completion
    question: str = ""
    answer: str | None = None
    reason: str = ""

    @property
    def usable(self) -> bool:
        return not self.reason

    def refused(self, reason: str) -> "Proposal":
        """The same proposal as no question."""
        return replace(self, reason=reason)

    def problem(self, name: str, answer: str | None = None) -> Problem:
        """The question as a problem to solve, with a label; by default the proposer's own answer."""
        return Problem(name, self.question, self.answer if answer is None else answer)


def after_reasoning(completion: Completion) -> str | None:
    """What a proposer wrote after its reasoning; None where that was never closed."""
    reasoning = split_reasoning(completion_text(completion))
    return None if reasoning.state == "open" else reasoning.rest.strip()


def read(completion: Completion, parse: Callable[[str], tuple[str, str | None] | None]) -> Proposal:
    """A completion as a proposal. `parse` gives question and answer of a text, None where it finds no marker."""
    if completion.stop == "prompt_too_long":
        return Proposal(completion, reason="prompt_too_long")
    text = after_reasoning(completion)
    found = parse(text) if text else None
    if found is None:
        cut = completion.cut_off
        return Proposal(completion, reason="truncated" if cut else "empty" if text == "" else "off_format")
    question, answer = found[0].strip(), found[1]
    return Proposal(completion, question, answer, "" if question else "empty")


def last_tagged(text: str, tag: str) -> str | None:
    """What stands in the last `<tag>...</tag>` of a text; None without one."""
    found = re.findall(rf"<{tag}>((?:(?!<{tag}>).)*?)</{tag}>", text, re.DOTALL)
    return found[-1].strip() if found else None


def last_boxed(text: str) -> str | None:
    r"""What stands in the last `\boxed{...}` of a text that is closed and has something in it; None without one."""
    spans = [span for span in boxed_spans(text) if span.closed and span.content.strip()]
    return spans[-1].content.strip() if spans else None


def count_reasons(proposals: Iterable[Proposal]) -> dict[str, int]:
    """How many proposals were no question, by reason."""
    return dict(sorted(Counter(p.reason for p in proposals if p.reason).items()))
