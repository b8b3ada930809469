r"""The part of a draft that a challenger sees: the text after the reasoning, without the final answer.

Source: Beliaev, "Agon", section 4.3: the summary after the private reasoning is shown, "the final answer is withheld
as a precaution against copying (Figure 5), though a worked summary often implies its answer anyway". Withheld are the
answer block and everything after it, boxes, and sentences that announce the answer; the steps of a solution stay, and
with them the value that they lead to.
"""

import random
import re

from lite_selfplay.data import Problem
from lite_selfplay.games.prompts import PROGRAM
from lite_selfplay.games.worked_examples import program_draft, program_with_a_slip, solution_of
from lite_selfplay.tasks.slips import with_a_slip
from lite_selfplay.verify.format import answer_spans, boxed_spans, split_reasoning

WITHHELD = "?"
WRONG_SHARE, MISSING_SHARE = 0.5, 0.1  # of the drafts in a challenger's examples for cold start

_ANSWER_TAG = re.compile(r"</?answer>")
_DISPLAY = (
    r"\$\$.{,1000}?\$\$|\\\[.{,1000}?\\\]|\\begin\{(?P<environment>[A-Za-z]+\*?)\}.{,1000}?\\end\{(?P=environment)\}"
)
_LINE = re.compile(rf"(?:{_DISPLAY}|[^\n])*\n?", re.DOTALL)  # a displayed formula is never split
_SENTENCE = re.compile(r".+?(?:[.!?](?=\s)\s*|\Z)", re.DOTALL)
_IS = r"(?:is|are|was|were|be|becomes?|equals?)\b|[=≈→⇒]|\\(?:approx|to|implies|Rightarrow)\b"
_WITHIN = r"(?:[^.!?\n]|\.(?=\d))"  # a sentence
_ANNOUNCES = re.compile(
    rf"""
    (?<!\bto\ )(?<!\bto\ (?:find|give)\ the\ )\bans(?:wers?)?\b   # always, except in "to answer this"
    | \b(?:final\s+\w+|correct\s+\w+|results?)\b {_WITHIN}{{,40}}? (?:{_IS}|:)
    | \b(?:solution|option|choice)s?\b {_WITHIN}{{,40}}? (?:{_IS})   # "Solution:" is a heading
    | (?<!\#)\#{{4}}[ \t]*(?!\d+[.)]\s)(?=[-−+$€£\\\d(.]|[^\s:]+\s*\Z)   # GSM8K's mark, no heading
    """,
    re.VERBOSE | re.IGNORECASE,
)
_VALUE_FOLLOWS = re.compile(
    r"(?:.*(?:[:=]|\b(?:is|are|be|equals?|to|as|approximately|about|simply|therefore|thus)\b))?[^\w?.!]*",
    re.DOTALL | re.IGNORECASE,
)
_SAYS_SOMETHING = re.compile(r"[^\W_]|\?")


def summarise(text: str, problem: str, *, thinks: bool = True, prefill: str = "") -> str:
    r"""The visible part of a draft without its final answer; empty if there is nothing to show.

    The visible part is the text after the closed reasoning block: nothing if the reasoning is never closed, or if the
    template has a reasoning mode (`thinks`) and there is no such block; the whole text if there is no reasoning.
    Withheld are the `<answer>` block and everything after it, the content of any `\boxed{}`, and every announcement of
    the answer, from its sentence to the end of its line. A sentence of the problem itself stays.
    """
    recap = _visible(text, thinks, prefill)
    if answers := answer_spans(recap):  # the first, closed or not, ends it
        recap = recap[: answers[0].start]
    for span in reversed(boxed_spans(recap)):
        recap = recap[: span.start] + WITHHELD + recap[span.end :]
    recap = _without_announcements(recap, problem)
    recap = re.sub(r"\n{3,}", "\n\n", recap).strip()
    return recap if re.search(r"[^\W_]", recap) else ""


def with_program(text: str, *, thinks: bool = True, prefill: str = "") -> str:
    """The visible part of a draft whose answer is a program: all of it, without its tags; empty as in `summarise`."""
    return re.sub(r"\n{3,}", "\n\n", _ANSWER_TAG.sub("", _visible(text, thinks, prefill))).strip()


def _visible(text: str, thinks: bool, prefill: str) -> str:
    """The text after the reasoning; empty if that is not closed, or missing although the template asks for it."""
    split = split_reasoning(prefill + text)
    return "" if split.state == "open" or (thinks and split.state != "closed") else split.rest


def _without_announcements(text: str, problem: str) -> str:
    """A text without announcements of the answer; "Final answer:" alone also removes the next line that has words."""
    shown, value_follows = "", False
    for line in (match[0] for match in _LINE.finditer(text)):
        if value_follows:
            if _SAYS_SOMETHING.search(line):  # the value; it may announce another one
                ends = [found.end() for found in _ANNOUNCES.finditer(line)]
                value_follows = any(_VALUE_FOLLOWS.fullmatch(line[end:]) for end in ends)
            continue
        for sentence in _SENTENCE.finditer(line):
            found = _ANNOUNCES.search(sentence[0])
            if found and sentence[0].strip() not in problem:
                value_follows = _VALUE_FOLLOWS.fullmatch(line[sentence.start() + found.end() :]) is not None
                shown += "\n" if line.endswith("\n") else ""
                break
            shown += sentence[0]
    return shown


def worked_attempt(problem: Problem, rng: random.Random) -> str:
    """A draft's recap for a challenger's example, written by rule: right, wrong from one slip on, or sometimes empty.

    In the example the challenger solves the problem itself and never repeats the attempt that it sees.
    """
    solution = solution_of(problem)
    draw = rng.random()
    if solution is None or draw < MISSING_SHARE:
        return ""
    slip = program_with_a_slip if problem.kind == PROGRAM else with_a_slip
    shown = slip(solution, rng) if draw < MISSING_SHARE + WRONG_SHARE else solution
    if problem.kind == PROGRAM:
        return with_program(program_draft(problem, shown), thinks=False)
    return summarise(shown, problem.text, thinks=False)
