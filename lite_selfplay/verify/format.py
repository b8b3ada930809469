"""The parts of a completion's text: reasoning, answer blocks, boxed values.

Shared by checkers and games. None of these functions raises on any text, and none judges whether an answer is right.
Tags are matched exactly as written in the prompts: `<think>`, `</think>`, `<answer>`, `</answer>`.
"""

import re
from dataclasses import dataclass
from typing import Literal

THINK_OPEN, THINK_CLOSE = "<think>", "</think>"
ANSWER_OPEN, ANSWER_CLOSE = "<answer>", "</answer>"

_NO_TAG = "(?: (?! </?(?:think|answer)> ) . )*+"
_WELL_FORMED = re.compile(
    rf"(?: \s*+ (?P<reasoning> <think> (?: (?! </?think> ) . )*+ </think> ) )?"
    rf"{_NO_TAG} <answer> (?! \s* </answer> ) {_NO_TAG} </answer> \s*",
    re.VERBOSE | re.DOTALL,
)
_ANSWER = re.compile(rf"{ANSWER_OPEN}(.*?)({ANSWER_CLOSE}|(?={ANSWER_OPEN})|\Z)", re.DOTALL)
_BOX = re.compile(r"\\(?:boxed|fbox)(?![A-Za-z])[ \t]*")
# `\boxed 12`: TeX would take one token, models mean the whole word; it ends where the surrounding formula does.
_UNBRACED = re.compile(r"(?:\\(?![)\]])|[^\s$\\])+")
_BRACE = re.compile(r"\\.|[{}]", re.DOTALL)


@dataclass(frozen=True)
class Reasoning:
    """Whether a text has reasoning, and the `rest` that follows it.

    `state`: "none" without reasoning tags (`rest` is the whole text), "closed", or "open" if the reasoning never ends
    (`rest` is empty).
    """

    state: Literal["none", "closed", "open"]
    rest: str


@dataclass(frozen=True)
class Span:
    """A marked piece of a text: `text[start:end]` includes the marks and the content between them. `closed`: the
    closing mark is there; otherwise the content ends at the next mark or at the end of the text."""

    start: int
    end: int
    content: str
    closed: bool = True


def split_reasoning(text: str) -> Reasoning:
    """Split a text at its last `</think>`.

    A text that begins inside its reasoning, because the chat template wrote the opening tag, needs no opening tag of
    its own. A `<think>` after the last `</think>` leaves the text open. Text before a closed block is in neither part.
    """
    close = text.rfind(THINK_CLOSE)
    rest = text[close + len(THINK_CLOSE) :] if close >= 0 else text
    if THINK_OPEN in rest:
        return Reasoning("open", "")
    return Reasoning("none" if close < 0 else "closed", rest)


def answer_spans(text: str) -> list[Span]:
    """The `<answer>...</answer>` blocks in order; an unclosed one runs to the next opening tag or the text's end."""
    return [Span(*match.span(), match[1], closed=bool(match[2])) for match in _ANSWER.finditer(text)]


def boxed_spans(text: str) -> list[Span]:
    r"""The outermost `\boxed{...}` and `\fbox{...}` in order. Braces nest and `\{`, `\}` do not count; an unclosed box
    runs to the end of the text. A box without braces, as in `\boxed 5`, has the next word."""
    spans: list[Span] = []
    position = 0
    while match := _BOX.search(text, position):
        span = _box_at(text, match.start(), match.end())
        if span is not None:
            spans.append(span)
        position = span.end if span is not None else match.end()
    return spans


def unboxed(text: str) -> str:
    """The content of a box that is the whole text; the text itself without such a box."""
    spans = boxed_spans(text)
    return spans[0].content if [(span.start, span.end) for span in spans] == [(0, len(text))] else text


def _box_at(text: str, start: int, inside: int) -> Span | None:
    """The box whose command begins at `start` and whose argument begins at `inside`; None if no argument follows."""
    if text.startswith("{", inside):
        depth = 0
        for match in _BRACE.finditer(text, inside):
            depth += {"{": 1, "}": -1}.get(match.group(), 0)
            if depth == 0:
                return Span(start, match.end(), text[inside + 1 : match.start()])
        return Span(start, len(text), text[inside + 1 :], closed=False)
    word = _UNBRACED.match(text, inside)
    content = word.group().rstrip(".,;:!?") if word else ""
    return Span(start, inside + len(content), content) if content else None


def well_formed(text: str, thinks: bool, prefill: str = "") -> bool:
    """Whether a completion follows the output format, judged on `prefill + text`.

    The format: at most one closed `<think>...</think>` with only whitespace before it, required if `thinks`; then text
    without tags; then exactly one `<answer>...</answer>` that is not empty, with only whitespace after it. Reasoning
    may mention the answer tags, since prompts ask for them by name, but must not contain reasoning tags.
    """
    match = _WELL_FORMED.fullmatch(prefill + text)
    return match is not None and (match["reasoning"] is not None or not thinks)
