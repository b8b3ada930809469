"""Finding the answer of a completion. Nothing is guessed: the last number of a text is not its answer."""

import re
from dataclasses import dataclass

from lite_selfplay.data import Completion
from lite_selfplay.verify.format import Span, answer_spans, boxed_spans, split_reasoning, unboxed
from lite_selfplay.verify.keys import answer_key

MAX_NESTED_BOXES = 8
MAX_STATEMENT = 3000  # characters; a longer text is refused later

_COPULA = r"(?:\bis\b|\bare\b|\bequals\b|\bshould be\b|\bmust be\b|[:=])"
_LEAD = re.compile(
    rf"""
    (?: \banswers? [ \t*_]* (?:(?:to|for|of)\s[^.:\n]{{0,80}}?)? {_COPULA}   # the answer to this is 5; Answer: 5
      | \bfinal\ answer [*_]* [ \t]* (?=\n)                                        # a heading, the value below it
      | \#{{4}} [ \t*_]* (?=[-+$€£\\\d(.]) (?!\d+[.)][ \t]+\S) )                   # GSM8K's mark, no numbered heading
    [\s*_:]* (?: (?:,\ )? (?:therefore|thus|hence|then)\b [\s*_:,]* )?
    """,
    re.VERBOSE | re.IGNORECASE,
)
_DISPLAY = re.compile(r"\$\$(?P<dollars>.{1,2000}?)\$\$|\\\[(?P<brackets>.{1,2000}?)\\\]", re.DOTALL)
# "5! = 120" is a factorial, "It is 5! Great." and "It is 5!" are not.
_SENTENCE_END = re.compile(r"[.?](?=[\s*]|$)|!(?=\s*$|\s+[A-Z])")
_AFTERTHOUGHT = re.compile(r"(?:,?\s+(?:because|since|as|so that|which)|,\s+so)\s.*", re.IGNORECASE | re.DOTALL)
_CONNECTIVES = re.compile(r"(?:\\text|\\quad|\b(?:or|and|either|both)\b|[\W_])*", re.IGNORECASE)
_SUBJECT = re.compile(r"the\s[^.,:=]{0,200}?\s(?:is|are|equals)\s+", re.IGNORECASE)  # the largest n is 34
_FINAL = re.compile(r"\bfinal answer\b", re.IGNORECASE)
_OR_AFTER = re.compile(r"[\s$),]*\bor\b(?P<other>[^.\n]*)", re.IGNORECASE)
_OR_BEFORE = re.compile(r"(?P<other>[^.\n]{0,60})\bor[\s$(]*$", re.IGNORECASE)


@dataclass(frozen=True)
class AnswerFormat:
    """The required format of completions.

    `thinks`: the format requires a reasoning block. `block_only`: answers count in `<answer>` blocks only.
    """

    thinks: bool = False
    block_only: bool = False


def completion_text(completion: str | Completion) -> str:
    """The assistant's whole turn: the prefill, then the sampled text."""
    return completion if isinstance(completion, str) else completion.prefill + completion.text


def extract_answer(text: str, *, block_only: bool = False) -> str | None:
    r"""The answer that follows the reasoning, or None. With `block_only` only a closed `<answer>` block counts.

    In this order: the last non-empty `<answer>` block (a boxed value inside it before the block's own text), a value
    after "the final answer is" that follows the last box, the last `\boxed{}`, the last statement such as "the final
    answer is X", "Answer: X" or "#### X". A text whose reasoning is never closed has no answer. Boxed values given
    together, as in `\boxed{1}` or `\boxed{2}`, are returned together ("1, 2"), so that a hedged answer is recognised.
    """
    rest = split_reasoning(text).rest
    blocks = [span.content for span in answer_spans(rest) if span.content.strip() and (span.closed or not block_only)]
    if blocks:
        block = blocks[-1]
        return _boxed_answer(block, whole=True) or _stated_answer(block) or block.strip()
    return None if block_only else _final_answer(rest) or _boxed_answer(rest, whole=False) or _stated_answer(rest)


def _final_answer(text: str) -> str | None:
    """The value of "the final answer is ..." after the last box, which it overrides; None if there is none."""
    start = max((span.end for span in boxed_spans(text)), default=len(text))
    last = next(reversed(list(_FINAL.finditer(text, start))), None)
    stated = _stated_answer(text[last.start() :]) if last else None
    return stated if stated and _has_value(stated) and answer_key(stated) is not None else None


def _boxed_answer(text: str, whole: bool) -> str | None:
    """The last boxed value and those that belong to it; with `whole`, every boxed value of the text."""
    spans = [span for span in boxed_spans(text) if span.content.strip()]
    if not spans:
        return None
    first = 0 if whole else len(spans) - 1
    while first > 0 and _together(text[spans[first - 1].end : spans[first].start]):
        first -= 1
    chosen = spans[first:]
    answer = ", ".join(_innermost(span) for span in chosen)
    before = _OR_BEFORE.search(text[max(0, chosen[0].start - 80) : chosen[0].start])
    after = _OR_AFTER.match(text[chosen[-1].end : chosen[-1].end + 80])
    if before and _has_value(before["other"]):
        answer = f"{before['other'].strip()} or {answer}"
    if after and _has_value(after["other"]):
        answer = f"{answer} or {after['other'].strip()}"
    return answer


def _innermost(span: Span) -> str:
    r"""The content of a box, or of the innermost one if boxes are nested around the same content."""
    content = span.content.strip()
    for _ in range(MAX_NESTED_BOXES):
        content = unboxed(content).strip()
    return content


def _together(between: str) -> bool:
    """Whether two boxed values are one answer: the text between them is connectives, or within one sentence."""
    return not ("\n" in between or _SENTENCE_END.search(between)) or _CONNECTIVES.fullmatch(between) is not None


def _has_value(text: str) -> bool:
    return any(character.isdigit() for character in text) or "\\" in text


def _stated_answer(text: str) -> str | None:
    """The text after the last "the answer is", up to the end of its sentence or formula."""
    for lead in reversed(list(_LEAD.finditer(text))):
        display = _DISPLAY.match(text, lead.end())
        shown = display["dollars"] or display["brackets"] if display else ""
        line = text[lead.end() :].partition("\n")[0][:MAX_STATEMENT]
        end = _SENTENCE_END.search(line)
        value = (shown or _AFTERTHOUGHT.sub("", line[: end.start()] if end else line)).strip().strip("*_").strip()
        if (subject := _SUBJECT.match(value)) and _has_value(value[subject.end() :]):
            value = value[subject.end() :]
        if value:
            return value
    return None
