"""What the propose-and-solve games share: reading proposals, voting, and steps that bring no question."""

from typing import Any

import pytest

from lite_selfplay.data import Completion, Problem
from lite_selfplay.errors import GameError
from lite_selfplay.games.propose_solve.propose_solve import SHOWN_CHARACTERS, ProposeSolve, ProposeSolveOptions
from lite_selfplay.games.propose_solve.questions import (
    Proposal,
    last_boxed,
    last_tagged,
    read,
)
from tests.made import completion


def tagged(text: str) -> tuple[str, str | None] | None:
    question = last_tagged(text, "problem")
    return None if question is None else (question, last_boxed(text))


# Reading


@pytest.mark.parametrize(
    ("said", "reason", "question", "answer"),
    [
        (completion("<problem> 2 + 2? </problem> \\boxed{4}"), "", "2 + 2?", "4"),
        (completion("<problem>2 + 2?</problem>"), "", "2 + 2?", None),
        (completion("<problem> </problem> \\boxed{4}"), "empty", "", "4"),
        (completion(""), "empty", "", None),
        (completion(" \n"), "empty", "", None),
        (completion("", "length"), "truncated", "", None),
        (completion("2 + 2?"), "off_format", "", None),
        (completion("<problem>2 + 2?", "length"), "truncated", "", None),
        (completion("<problem>2 + 2?</problem> and on and on", "length"), "", "2 + 2?", None),
        (completion("<think>never closed <problem>2?</problem>"), "off_format", "", None),
        (completion("<think>never closed", "length"), "truncated", "", None),
        (completion("<think>a <problem>no</problem></think><problem>yes</problem>"), "", "yes", None),
        (completion("<problem>in the reasoning</problem></think>", prefill="<think>\n"), "empty", "", None),
        (completion("inside</think><problem>2?</problem>", prefill="<think>\n"), "", "2?", None),
        (completion("<problem>2?</problem>", prefill="<think>\n"), "off_format", "", None),
        (completion("<problem>2?</problem>", "prompt_too_long"), "prompt_too_long", "", None),
    ],
)
def test_reading_a_proposal(said: Completion, reason: str, question: str, answer: str | None):
    found = read(said, tagged)
    assert (found.reason, found.question, found.answer) == (reason, question, answer)
    assert found.completion is said
    assert found.usable == (reason == "")


@pytest.mark.parametrize(
    ("text", "content"),
    [
        ("<a>1</a>", "1"),
        ("<a>1</a><a> 2\n3 </a> after", "2\n3"),
        ("<a>1</a><a>2", "1"),  # an open one is none
        ("<a><a>1</a>", "1"),
        ("<a>1</a>2</a>", "1"),
        ("<a></a>", ""),
        ("<a>1</a><a></a>", ""),
        ("<A>1</A>", None),
        ("<ab>1</ab>", None),
        ("1</a>", None),
        ("", None),
    ],
)
def test_the_last_tag(text: str, content: str | None):
    assert last_tagged(text, "a") == content


@pytest.mark.parametrize(
    ("text", "content"),
    [
        (r"\boxed{4}", "4"),
        (r"\boxed{4} or \boxed{ \frac{1}{2} }", r"\frac{1}{2}"),
        (r"\boxed{4} and \boxed{}", "4"),
        (r"\boxed{4} and \boxed{12", "4"),  # cut off: it may have been 123
        (r"\boxed{12", None),
        (r"\boxed 5", "5"),
        ("5", None),
        ("", None),
    ],
)
def test_the_last_box(text: str, content: str | None):
    assert last_boxed(text) == content


def test_a_proposal_becomes_a_problem_or_is_refused():
    proposal = read(completion("<problem>2 + 2?</problem> \\boxed{4}"), tagged)
    assert proposal.problem("q-1") == Problem("q-1", "2 + 2?", "4")
    assert proposal.problem("q-1", "5") == Problem("q-1", "2 + 2?", "5")
    refused = proposal.refused("leaks")
    assert (refused.usable, refused.reason, refused.question) == (False, "leaks", "2 + 2?")
    assert proposal.usable


# The family


class Family(ProposeSolve):
    roles = ("proposer", "solver")


def family(**options: Any) -> Family:
    return Family(ProposeSolveOptions(**options))


GOOD = Proposal(completion("fine"), "2 + 2?", "4")


def bad(text: str, reason: str = "off_format") -> Proposal:
    return Proposal(completion(text), reason=reason)


def test_what_a_question_yield_says():
    game = family()
    assert game.question_yield([GOOD, bad("x"), bad("", "empty"), bad("y")], 1) == {
        "proposals": 4,
        "usable": 1,
        "refused": {"empty": 1, "off_format": 2},
        "empty_steps": 0,
    }
    assert game.question_yield([GOOD], 0)["empty_steps"] == 1  # a question, but none to train on
    assert game.question_yield([], 0)["empty_steps"] == 2
    assert game.question_yield([GOOD], 1)["empty_steps"] == 0


def test_empty_steps_in_a_row_stop_the_run_and_show_what_was_proposed():
    game = family(max_empty_steps=3)
    for step in (1, 2):
        assert game.question_yield([bad("x")], 0)["empty_steps"] == step
    last = [bad("the first"), bad("\x1b[31mred"), bad("a\nb", "empty"), bad("z" * 400)]
    with pytest.raises(GameError) as stopped:
        game.question_yield(last, 0)
    text = str(stopped.value)
    assert "3 steps in a row brought no question to train on (refused: 1 empty, 3 off_format)" in text
    assert "the first" not in text
    assert "'\\x1b[31mred' | 'a\\nb' | 'zzz" in text
    assert "z" * SHOWN_CHARACTERS in text
    assert "z" * (SHOWN_CHARACTERS + 1) not in text
    assert "--cold-start" in text
