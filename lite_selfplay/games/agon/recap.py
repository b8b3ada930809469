"""What a challenger sees of a draft: its recap, with the final value withheld.

The value that a draft arrives at must not reach the challenger, however the draft writes it, or challenges become
copies. So wherever the final value, or a part of it, appears as a value, a mark replaces it. If the problem names that
value itself, the draft may calculate with it, and only its results are withheld. Exponents, indices, bounds and the
numbers of steps are never replaced: there the mark would reveal what it hides.
"""

import re
from collections.abc import Sequence

from lite_selfplay.games.agon.sightings import Secret, Sighting, number_places
from lite_selfplay.verify.extract import extract_answer
from lite_selfplay.verify.format import answer_spans, boxed_spans, split_reasoning
from lite_selfplay.verify.number_words import NUMBER_WORDS

WITHHELD = "?"

_ANSWER_TAG = re.compile(r"</?answer>")
_TAG = re.compile(r"</?[^<>\s]*>")
_SENTENCE = re.compile(r"(?:\\!|[^.!?\n])*(?:[.!?](?=\d)(?:\\!|[^.!?\n])*)*(?:[.!?]+|\n|$)")
_ANNOUNCES = re.compile(
    r"\b(?:final|correct)?\s*(?:answer|result|solution)\b\s*(?:\w+\s+){0,4}?(?:is|are|equals|:|=|→)|^\s*answer\b|####",
    re.IGNORECASE,
)
_EQUALS_BEFORE = re.compile(
    r"(?:=|≈|→|⇒|\\approx|\\implies|\\Rightarrow|\\to|\bequals?|\bmakes?|\bgives?|\byields?|\bends? up with|\bgets?"
    r"|\bleft with|\bleaves?|\bresults? in|\bcomes? to|\badds? up to)"
    r"\s*(?:\\?[\$€£]|\\\(|\\\[|\*\*|exactly|about|only)?\s*$",
    re.IGNORECASE,
)
_STATED_BEFORE = re.compile(
    r"(?:\bis|\bare|\bwas|\bwere|\bof|\bhas|\bhave|\bbe|\bneeds?|\bcosts?|\bearns?|\bpays?|:)"
    r"\s*(?:\\?[\$€£]|\\\(|\\\[|\*\*|exactly|about|only)?\s*$",
    re.IGNORECASE,
)
_CONCLUDES = re.compile(
    r"\b(?:so|therefore|thus|hence|finally|in total|in all|altogether|result|conclude|option|choice)\b", re.IGNORECASE
)
_REMAINS = re.compile(r"\b(?:now|then|total|remaining|remains?|left|must|ends?)\b", re.IGNORECASE)
_OPERATOR_AFTER = re.compile(r"(?:\s*(?:\$|%|[A-Za-z/-]+\$?)){0,6}\s*(?:[-+*/×÷^–−]|\\times|\\cdot|x\b)")
_OPERATOR_BEFORE = re.compile(r"(?:[-+*/×÷–−(]|\\times|\\cdot|\bx)\s*\$?\s*$")
_NEXT_WORD = re.compile(r"[\s-]*([A-Za-z]{3,})")
_DEFINES_BEFORE = re.compile(
    r"\b(?:let|suppose|assume|given)\s+(?:that\s+)?\$?\\?\w+\s*(?:=|be|is)\s*\$?\s*$", re.IGNORECASE
)
_SUPPOSES = re.compile(r"\b(?:whether|if|suppose|assume|or|let)\b", re.IGNORECASE)


def summarise(text: str, problem: str, *, thinks: bool = True, prefill: str = "") -> str:
    """The visible part of a draft without its final value; empty if there is nothing to show.

    The visible part is the text after the closed reasoning block: nothing if the reasoning is never closed, or if the
    model's template has a reasoning mode (`thinks`) and there is no such block; else, without any reasoning, the whole
    text. Withheld are the `<answer>` block and what follows it, any `\\boxed{}`, sentences that announce an answer,
    and the final value itself: the draft's answer, or the last number of its text if it gives none.
    """
    whole = prefill + text
    split = split_reasoning(whole)
    if split.state == "open" or (thinks and split.state != "closed"):
        return ""
    recap = _without_boxes(_before_answer(split.rest))
    final = extract_answer(whole) or _last_number(recap)
    if final is not None:
        recap = _Recap(final.strip(), problem).of(recap)
    recap = re.sub(r"\n{3,}", "\n\n", recap).strip()
    return recap if re.search(r"[^\W_]", recap) else ""


def with_program(text: str, *, thinks: bool = True, prefill: str = "") -> str:
    """The visible part of a draft whose answer is a program: all of it, without its tags; empty as in `summarise`."""
    split = split_reasoning(prefill + text)
    if split.state == "open" or (thinks and split.state != "closed"):
        return ""
    return re.sub(r"\n{3,}", "\n\n", _ANSWER_TAG.sub("", split.rest)).strip()


def _before_answer(text: str) -> str:
    """A text up to its first answer block, closed or not."""
    spans = answer_spans(text)
    return text[: spans[0].start] if spans else text


def _without_boxes(text: str) -> str:
    """A text with every boxed value replaced by the mark."""
    for span in reversed(boxed_spans(text)):
        text = text[: span.start] + WITHHELD + text[span.end :]
    return text


def _last_number(text: str) -> str | None:
    """The last plain number of a text, without its sign; None if it has none."""
    bare = _TAG.sub(" ", text)
    places = list(number_places(bare))
    return bare[slice(*places[-1])] if places else None


class _Recap:
    """Makes the recap of a draft with a given final value, for a problem that may name this value itself."""

    def __init__(self, final: str, problem: str):
        self._secret = Secret(final)
        seen = self._secret.seen_in(problem)
        self._given = {place.form for place in seen}
        self._counted = {word for place in seen if (word := _word_after(problem, place)) is not None}

    def of(self, text: str) -> str:
        """The text without the sentences that announce the answer, and without the final value."""
        sentences = [match for match in _SENTENCE.finditer(text) if match.group()]
        last = max((i for i, match in enumerate(sentences) if match.group().strip()), default=-1)
        places = self._secret.seen_in(text)
        shown = []
        for i, match in enumerate(sentences):
            sentence = match.group()
            if _ANNOUNCES.search(sentence):
                shown.append("\n" if sentence.endswith("\n") else "")
                continue
            here = [place for place in places if match.start() <= place.start < match.end()]
            shown.append(self._sentence(sentence, [_moved(place, -match.start()) for place in here], last=i == last))
        return "".join(shown)

    def _sentence(self, sentence: str, places: Sequence[Sighting], *, last: bool) -> str:
        """A sentence with the value withheld: everywhere or, if the problem names the value, where it is a result."""
        given = [place for place in places if place.form in self._given]
        results = [place for place in given if self._is_result(sentence, place, last)]
        if last and given and not results and not _SUPPOSES.search(sentence):
            results = [place for place in given if not _is_operand(sentence, place)]
        for place in reversed(places):
            if place not in given or place in results:
                sentence = sentence[: place.start] + WITHHELD + sentence[place.end :]
        return sentence

    def _is_result(self, sentence: str, place: Sighting, last: bool) -> bool:
        """Whether a value that the problem names is a result here."""
        before, seen = sentence[: place.start], sentence[place.start : place.end]
        if _is_operand(sentence, place) or _DEFINES_BEFORE.search(before):
            return False
        if _EQUALS_BEFORE.search(before):
            return True
        if _SUPPOSES.search(before):
            return False
        if seen.isalpha() and seen.islower() and len(seen) > 2 and not NUMBER_WORDS.fullmatch(seen):
            return True  # a word such as "converges" is always the result
        stated = _STATED_BEFORE.search(before) is not None
        if last or _CONCLUDES.search(sentence):
            return stated
        return stated and _REMAINS.search(sentence) is not None and _word_after(sentence, place) not in self._counted


def _moved(place: Sighting, by: int) -> Sighting:
    return Sighting(place.start + by, place.end + by, place.form)


def _is_operand(sentence: str, place: Sighting) -> bool:
    """Whether a value is calculated with here: it is left of an equals sign, next to an operator."""
    after = sentence[place.end :]
    if "=" not in after and "≈" not in after:
        return False
    return bool(_OPERATOR_AFTER.match(after) or _OPERATOR_BEFORE.search(sentence[: place.start]))


def _word_after(text: str, place: Sighting) -> str | None:
    """What a value counts: the word after it, in lower case and singular."""
    match = _NEXT_WORD.match(text, place.end)
    return match[1].casefold().removesuffix("s") if match else None
