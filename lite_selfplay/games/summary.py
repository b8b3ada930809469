"""What a rival may see of a draft: its recap, with the final value withheld.

This is where answers leak. The value a draft commits to must not reach the challenger, in whatever shape the draft
states it, or the exchange turns into copying. The rule: the final value stands nowhere in the summary, except where the
problem itself names that number and the draft only uses it.
"""

import re
from collections.abc import Iterator
from fractions import Fraction

from lite_selfplay.text import answer_spans, boxed_spans, split_reasoning
from lite_selfplay.verify.extract import extract_answer

WITHHELD = "?"

_NUMBER = re.compile(
    r"""
    \\d?frac\{\s*(?P<top>-?\d+)\s*\}\{\s*(?P<bottom>\d+)\s*\}        # \frac{1}{2}
    | (?<![\w.])(?P<plain>-?(?:\d{1,3}(?:,\d{3})+|\d+)(?:\.\d+)?)    # 1,234.5
      (?:\s*/\s*(?P<over>\d+)(?!\d|\.\d))?                          # 1/2
      (?![\w]|\.\d)
    """,
    re.VERBOSE,
)
_TAG = re.compile(r"</?[^<>\s]*>")
_SENTENCE = re.compile(r"[^.!?\n]*(?:[.!?](?=\d)[^.!?\n]*)*(?:[.!?]+|\n|$)")
_ANNOUNCES = re.compile(
    r"\b(?:final|correct)?\s*(?:answer|result|solution)\b\s*(?:\w+\s+){0,4}?(?:is|are|equals|:|=|→)|^\s*answer\b|####",
    re.IGNORECASE,
)
_RESULT_BEFORE = re.compile(
    r"(?:=|≈|→|\\approx|\\implies|\\to|\bequals?|\bmakes?|\bgives?|\bgets?|\bis|\bare|\bof|\byields?|\bleaves?"
    r"|\bhas|\bhave|\bbe|:)\s*(?:\\?[\$€£]|\\\(|\\\[|\*\*|exactly|about)?\s*$",
    re.IGNORECASE,
)
_CONCLUDES = re.compile(
    r"\b(?:so|therefore|thus|hence|finally|in total|in all|altogether|total|remaining|remain|left|result|conclude)\b",
    re.IGNORECASE,
)


def summarise(text: str, problem: str, *, thinks: bool, prefill: str = "") -> str:
    """The visible part of a draft without its final value; empty where there is nothing to show.

    Shown is what follows the closed reasoning block. Where reasoning was opened and never closed, or the model's
    template thinks and no block was closed, nothing is shown; a model that does not think shows its whole text.
    Withheld are the `<answer>` block and what follows it, any `\\boxed{}`, any sentence that announces the answer, and
    the final value itself. The final value is what the draft answers, or the last number of its text if it never does.
    """
    whole = prefill + text
    split = split_reasoning(whole)
    if split.state == "open" or (thinks and split.state != "closed"):
        return ""
    final = extract_answer(whole)
    recap = _without_boxes(_before_answer(split.rest))
    if final is None:
        numbers = [match.group() for match in _NUMBER.finditer(_TAG.sub(" ", recap))]
        final = numbers[-1] if numbers else None
    if final is not None:
        recap = _withhold(recap, final.strip(), problem)
    recap = re.sub(r"\n{3,}", "\n\n", recap).strip()
    return recap if re.search(r"[^\W_]", recap) else ""


def _before_answer(text: str) -> str:
    """A text up to its first answer block; an unclosed block hides all that follows it."""
    spans = answer_spans(text)
    return text[: spans[0].start] if spans else text


def _without_boxes(text: str) -> str:
    """Every boxed value replaced by the mark of what is withheld."""
    for span in reversed(boxed_spans(text)):
        text = text[: span.start] + WITHHELD + text[span.end :]
    return text


def _withhold(text: str, final: str, problem: str) -> str:
    """A recap without the sentences that announce the answer, and without the final value."""
    sentences = [match.group() for match in _SENTENCE.finditer(text) if match.group()]
    last = max((i for i, s in enumerate(sentences) if s.strip()), default=-1)
    given = _names(problem, final)
    shown = []
    for i, sentence in enumerate(sentences):
        if _ANNOUNCES.search(sentence):
            shown.append("\n" if sentence.endswith("\n") else "")
            continue
        concludes = i == last or _CONCLUDES.search(sentence) is not None
        shown.append(_redact(sentence, final, given=given, concludes=concludes))
    return "".join(shown)


def _redact(sentence: str, final: str, *, given: bool, concludes: bool) -> str:
    """A sentence without the final value.

    Where the problem itself names that number (`given`), the draft may go on using it: withheld are the places where it
    is a result, and where there is none, every place of a sentence that concludes.
    """
    places = list(_occurrences(sentence, final))
    if given:
        results = [place for place in places if _RESULT_BEFORE.search(sentence[: place[0]])]
        places = results or (places if concludes else [])
    for start, end in sorted(places, reverse=True):
        sentence = sentence[:start] + WITHHELD + sentence[end:]
    return sentence


def _names(problem: str, final: str) -> bool:
    return next(_occurrences(problem, final), None) is not None


def _occurrences(text: str, final: str) -> Iterator[tuple[int, int]]:
    """Where a value stands in a text: any spelling of the same number, its English name, or the same characters."""
    value = _value_of(final)
    if value is None:
        if final:
            edge = r"\w" if re.fullmatch(r"[\w\s]+", final) else r"\0"
            pattern = r"\s*".join(re.escape(character) for character in final if not character.isspace())
            yield from (m.span() for m in re.finditer(rf"(?<!{edge}){pattern}(?!{edge})", text))
        return
    for match in _NUMBER.finditer(text):
        if _number(match) == value:
            yield match.span()
        elif match["over"] and _fraction(match["plain"]) == value:
            yield match.start("plain"), match.end("plain")
    if value.denominator == 1 and 0 <= value < 1000:
        words = re.escape(_in_words(int(value))).replace(r"\ ", r"[\s-]+(?:and\s+)?").replace(r"\-", r"[\s-]+")
        yield from (m.span() for m in re.finditer(rf"(?<![\w-]){words}(?![\w-])", text, re.IGNORECASE))


def _value_of(final: str) -> Fraction | None:
    """The number an answer names ("$42", "42 apples", "x = 1/2"), None where it names none or several."""
    values = {_number(match) for match in _NUMBER.finditer(final)}
    around = re.sub(r"\\(?:text|mathrm)\{[^{}]*\}|\\[$%!, ]", "", _NUMBER.sub("", final))
    if len(values) != 1 or re.search(r"[\d\\^_]|[a-z]\s*[-+*/]", around):
        return None
    return values.pop()


def _number(match: re.Match[str]) -> Fraction | None:
    if match["top"] is not None:
        return _fraction(match["top"], match["bottom"])
    return _fraction(match["plain"], match["over"] or "1")


def _fraction(top: str, bottom: str = "1") -> Fraction | None:
    return Fraction(top.replace(",", "")) / Fraction(bottom) if Fraction(bottom) else None


_SMALL = (
    "zero one two three four five six seven eight nine ten eleven twelve thirteen fourteen fifteen sixteen seventeen "
    "eighteen nineteen"
).split()
_TENS = "twenty thirty forty fifty sixty seventy eighty ninety".split()


def _in_words(n: int) -> str:
    """The English name of 0 <= n < 1000, with a hyphen in twenty-one and without "and"."""
    if n < 20:
        return _SMALL[n]
    if n < 100:
        tens, ones = divmod(n, 10)
        return _TENS[tens - 2] + (f"-{_SMALL[ones]}" if ones else "")
    hundreds, rest = divmod(n, 100)
    return f"{_SMALL[hundreds]} hundred" + (f" {_in_words(rest)}" if rest else "")
