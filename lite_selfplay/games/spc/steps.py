r"""Solutions in steps: splitting, labelled steps, and pairs of a right and a wrong step.

A step ends at a blank line, as in the paper. A solution without blank lines is split at its lines or the items of its
list, and a single line at its enumerated items or its sentences (ours). An introduction of the next piece (a heading, a
line that ends with a colon) and a mere repetition of the answer (`#### 18`, an `<answer>` block, a box) are no steps of
their own (ours). Code, displayed and inline mathematics and GSM8K's calculator notes (`<<48/2=24>>`) are never split.
"""

import re
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from itertools import pairwise

from lite_selfplay.data import Problem

_WHOLE = re.compile(
    r"""
    ```.*?(?:```|\Z)                                                   # code; an unclosed fence hides the rest
    | \$\$.{1,3000}?\$\$ | \\\[.{1,3000}?\\\] | \\\(.{1,3000}?\\\)
    | \\begin\{(?P<environment>[A-Za-z]+\*?)\}.{,3000}?\\end\{(?P=environment)\}
    | (?<![\\$])\$(?=[^\s$])[^$\n]*?(?<=[^\s\\$])\$(?![\d$])           # $x$, but not the prices in "$5 and $6"
    | <<[^<>\n]*>>
    | <answer>.{,3000}?</answer>
    """,
    re.VERBOSE | re.DOTALL,
)
_BLANK_LINE = re.compile(r"\n[^\S\n]*\n\s*")
_LINE_END = re.compile(r"\n\s*")
_ITEM = re.compile(
    r"(?m)^(?P<indent>[^\S\n]*)(?:[*_#][*_# ]*)?"
    r"(?:(?P<step>step\s+\d+\b)|(?P<number>\(?\d{1,2}[.)]\s)|(?P<bullet>[-*•]\s))",
    re.IGNORECASE,
)
_FINAL = r"\#{4}[ \t]*(?=[-+$€£\\\d(.])(?!\d+[.)]\s).*"  # GSM8K's mark before its answer, no numbered heading
_CONCLUSION = re.compile(
    rf"(?m)^(?=(?:so|thus|hence|therefore|finally|in total|altogether|the (?:final )?answer)\b|{_FINAL})", re.IGNORECASE
)
_INLINE_STEP = re.compile(r"(?<=\s)(?=\**step\s+\d+\b)", re.IGNORECASE)
_NUMBERED = re.compile(r"(?:^|(?<=\s))(\d{1,2})[.)]\s+(?=\S)")
_SENTENCE_END = re.compile(r"[.!?][\"')\]*]*\s+(?=[\"'(\[*$\\]*[A-Z0-9$\\])")
_ABBREVIATED = re.compile(
    r"(?:\b(?:mr|mrs|ms|dr|st|vs|eq|fig|e\.g|i\.e|etc|approx|resp|cf|jr|sr)|(?:^|[\s(])(?-i:[A-Z])|(?:^|\n)\s*\d{1,2})\.\Z",
    re.IGNORECASE,
)
_HEADING = re.compile(r"#{1,6}\s.*|\*\*[^*\n]+\*\*:?|step\s+\d+[.:]?", re.IGNORECASE)
_ONLY_ANSWER = re.compile(
    rf"(?:{_FINAL}|[*\s]*<answer>(?s:.*)|[\\\[$\s]*\\boxed\{{[^\n]*\}}[\\\]$.\s]*|[*#\s]*(?:final\s+)?answer\W+\S[^\n]{{0,80}})",
    re.IGNORECASE,
)


# The kind of a problem that asks whether a step is correct, with the answer `Correct` or `Incorrect`.
KIND = "step"


def labelled_step(name: str, problem: str, before: str, step: str, correct: bool, subset: str = "") -> Problem:
    """A step of a solution that is known to be correct or not, as a problem that asks which.

    `before` holds the steps before it, joined as they were, empty for the first; `subset` names the part of a benchmark
    that it is from.
    """
    content = f"{problem}\n{before}\n{step}"
    extra = {"content": content, "about": problem, "before": before, "step": step, "subset": subset}
    return Problem(name, problem, "Correct" if correct else "Incorrect", KIND, extra)


@dataclass(frozen=True)
class StepPair:
    """A correct step and a wrong one in its place. If known, `kind` is one of `cases.KINDS` and `change` says what was
    changed; `check` is a sentence that shows that the step is right, `flaw` one that shows that the other is wrong."""

    id: str
    problem: str
    before: str
    right: str
    wrong: str
    kind: str = ""
    change: str = ""
    check: str = ""
    flaw: str = ""

    def labelled(self) -> tuple[Problem, Problem]:
        """The correct step and the wrong one."""
        return (
            labelled_step(f"{self.id}-correct", self.problem, self.before, self.right, True),
            labelled_step(f"{self.id}-wrong", self.problem, self.before, self.wrong, False),
        )


def split_steps(text: str) -> list[str]:
    """The steps of a solution, each with the space behind it, so that they join to the text; [] for a blank text."""
    if not text.strip():
        return []
    whole = [match.span() for match in _WHOLE.finditer(text)]
    pieces = [text]
    for offsets in (_blank_lines, _lines, _sentences):
        cuts = [cut for cut in offsets(text) if not any(start < cut < end for start, end in whole)]
        pieces = _joined(text[a:b] for a, b in pairwise(sorted({0, *cuts, len(text)})))
        if len(pieces) > 1:
            break
    return pieces


def replaced(steps: Sequence[str], index: int, new: str) -> list[str]:
    """The steps up to `index`, with that one replaced and the space around it kept."""
    old = steps[index]
    start, end = len(old) - len(old.lstrip()), len(old.rstrip())
    return [*steps[:index], old[:start] + new.strip() + old[end:]]


def beginning(steps: Sequence[str]) -> str:
    """Steps as the beginning of a solution to continue: they end with a blank line."""
    return f"{''.join(steps).rstrip()}\n\n" if steps else ""


# Where a text may be split: each function returns the offsets at which pieces begin


def _blank_lines(text: str) -> list[int]:
    return [match.end() for match in _BLANK_LINE.finditer(text)]


def _lines(text: str) -> list[int]:
    """Offsets of a list's items and of the conclusion after it; without a list, of every line."""
    found = [(match.start(), match["indent"], match.lastgroup) for match in _ITEM.finditer(text)]
    items = [start for start, *kind in found if kind == list(found[0][1:])]  # not those of nested lists
    if len(items) < 2:
        return [match.end() for match in _LINE_END.finditer(text)]
    after = _CONCLUSION.search(text, items[-1] + 1)
    return [*items, after.start()] if after else items


def _sentences(text: str) -> list[int]:
    """Offsets of "Step 1: ... Step 2: ...", of the items of "1. ... 2. ...", or of sentences."""
    named = [match.start() for match in _INLINE_STEP.finditer(text)]
    if named:
        return named
    items: list[int] = []
    for match in _NUMBERED.finditer(text):
        if int(match[1]) == len(items) + 1:
            items.append(match.start())
    if len(items) > 1:
        return items
    ends = _SENTENCE_END.finditer(text)
    return [end.end() for end in ends if not _ABBREVIATED.search(text, max(0, end.start() - 12), end.start() + 1)]


def _joined(pieces: Iterable[str]) -> list[str]:
    """Pieces, with introductions joined to the next piece and repeated answers to the previous one."""
    steps: list[str] = []
    for piece in pieces:
        if steps and (not piece.strip() or _ONLY_ANSWER.fullmatch(piece.strip()) or _introduces(steps[-1])):
            steps[-1] += piece
        else:
            steps.append(piece)
    return steps


def _introduces(step: str) -> bool:
    """Whether a piece only introduces the next: a heading, space, or a text that ends with a colon."""
    text = step.strip()
    last = text.rpartition("\n")[2].strip()
    return text.rstrip("*").endswith(":") or not text or _HEADING.fullmatch(last) is not None
