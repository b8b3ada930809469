"""SQLM's topics: the proposer's prompt, and the position of the question in its reply.

Three ship, worded by us; any text file is a topic as well. Its text is the whole prompt, and the whole reply is the
question, unless the text asks for the mark "Selected Question:", as the algebra topic does.
"""

import os
import re
from dataclasses import dataclass
from pathlib import Path

from pydantic_core import PydanticCustomError

from lite_selfplay.config.user_files import read_utf8
from lite_selfplay.data import Problem
from lite_selfplay.errors import ConfigError
from lite_selfplay.games.prompts import PROGRAM, fill
from lite_selfplay.verify import programs

CODE = "code"
SHIPPED = ("arithmetic", "algebra", CODE)
MOST_TESTS = 5

_MARK = re.compile(r"selected\s+question[\s:*_]*", re.IGNORECASE)
_DESCRIPTION = re.compile(r"problem\s+description[\s:*_#]*", re.IGNORECASE)
_TEST_CASES = re.compile(r"^[\s*_#]*test\s+cases?[\s:*_]*$", re.IGNORECASE | re.MULTILINE)
_TEST = re.compile(r"^[ \t]*(?P<stdin>[^|\n]*[^|\s])[ \t]*\|\|\|[ \t]*(?P<stdout>[^|\n]*[^|\s])[ \t]*$", re.MULTILINE)
_LINE = re.compile(r"^[ \t]*(?:\*\*)?\d+[.):](?!\d)[ \t]*(.*\S)", re.MULTILINE)


@dataclass(frozen=True)
class Topic:
    """A topic's prompt, its prompt for many questions at once, and whether a mark precedes the question.

    `figures`: answers are numbers, not words. `programs`: answers are programs, and a question has tests. `tasks`:
    problems of the same kind, for a cold start without other tasks.
    """

    prompt: str
    many: str
    marked: bool
    figures: bool
    tasks: str
    programs: bool = False

    def find(self, text: str) -> str | None:
        """The question in a reply: the text after the last mark, or all of it; None if the mark is missing.

        For programming problems the description, if one to five tests follow it.
        """
        if self.programs:
            return problem_with_tests(text)[0] if problem_with_tests(text)[1] else None
        ends = [mark.end() for mark in _MARK.finditer(text)] if self.marked else [0]
        return text[ends[-1] :] if ends else None

    def written(self, problem: Problem) -> str | None:
        """A reply that proposes a problem; None if the topic needs tests of stdin and the problem has none."""
        if not self.programs:
            return f"Selected Question: {problem.text}" if self.marked else problem.text
        if problem.kind != PROGRAM:
            return None
        cases = [case for case in programs.read_tests(problem.answer).cases if isinstance(case, programs.StdinTest)]
        lines = [f"{case.stdin.strip()} ||| {case.stdout.strip()}" for case in cases[:MOST_TESTS]]
        description = problem.text.rpartition("\n\n")[0] or problem.text  # without the form of an answer
        reply = f"Problem Description:\n{description}\nTest Cases:\n" + "\n".join(lines)
        return reply if len(problem_with_tests(reply)[1]) == len(lines) > 0 else None


def load_topic(name: str, count: int) -> Topic:
    """A shipped topic, or the text of a file. `count`: how many questions its prompt for many asks for.

    Raises a ValueError of pydantic's, with the reason, if there is no such topic.
    """
    prompt = fill(f"sqlm_{name}") if name in SHIPPED else _read(name)
    return Topic(
        prompt,
        fill("sqlm_many_algebra" if name == "algebra" else "sqlm_many", topic=prompt, count=str(count)),
        marked=_MARK.search(prompt) is not None,
        figures=name in ("arithmetic", "algebra"),
        tasks={"arithmetic": "arithmetic:digits=3,terms=2,ops=+-*", CODE: "code-arithmetic"}.get(name, "stories"),
        programs=name == CODE,
    )


def _read(name: str) -> str:
    if not os.path.isfile(name):
        raise PydanticCustomError("topic", f"should be {', '.join(SHIPPED)} or a text file that exists")
    try:
        text = read_utf8(Path(name), ConfigError).strip()
    except ConfigError:
        raise PydanticCustomError("topic", "should be a file of UTF-8 text that can be read") from None
    if not text:
        raise PydanticCustomError("topic", "should be a file with a topic in it: this one is empty")
    return text


def problem_with_tests(text: str) -> tuple[str, list[list[str]]]:
    """The description and the tests, `[stdin, stdout]`, in a reply that proposes a programming problem.

    The tests are the first five lines `INPUT ||| OUTPUT` after the last "Test Cases:"; other lines are ignored (the
    release's format, which accepts one to five tests). A written `\\n` at the end of an output is dropped: outputs are
    compared without surrounding space.
    """
    marks = list(_TEST_CASES.finditer(text))
    if not marks:
        return text.strip(), []
    lines = [(match["stdin"], match["stdout"]) for match in _TEST.finditer(text, marks[-1].end())]
    tests = [[_plain(stdin), _plain(stdout)] for stdin, stdout in lines[:MOST_TESTS]]
    before = text[: marks[-1].start()]
    begins = list(_DESCRIPTION.finditer(before))
    return before[begins[-1].end() if begins else 0 :].strip(), [test for test in tests if all(test)]


def _plain(text: str) -> str:
    return text.strip().removesuffix("\\n").strip()


def numbered_lines(text: str, *, cut: bool) -> list[str]:
    """The questions of a numbered list; without the last one if the reply was cut off in it."""
    found = [line.strip("* ") for line in _LINE.findall(text)]
    return found[:-1] if cut else found
