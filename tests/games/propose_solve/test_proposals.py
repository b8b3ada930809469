"""Shared code of the propose-and-solve games: reading proposals, voting, and steps without a question."""

from typing import Any

import pytest

from lite_selfplay.data import Problem
from lite_selfplay.errors import GameError
from lite_selfplay.games.propose_solve.propose_solve import SHOWN_CHARACTERS, ProposeSolve, ProposeSolveOptions
from lite_selfplay.games.propose_solve.questions import Proposal, last_boxed, last_tagged, to_proposal
from tests.made import completion


def tagged(text: str) -> tuple[str, str | None] | None:
    question = last_tagged(text, "problem")
    return None if question is None else (question, last_boxed(text))


@pytest.mark.parametrize(
    ("text", "more", "reason", "question", "answer"),
    [
        ("<problem> 2 + 2? </problem> \\boxed{4}", (), "", "2 + 2?", "4"),
        ("<problem>2 + 2?</problem>", (), "", "2 + 2?", None),
        ("<problem> </problem> \\boxed{4}", (), "empty", "", "4"),
        ("", (), "empty", "", None),
        (" \n", (), "empty", "", None),
        ("", ("length",), "truncated", "", None),
        ("2 + 2?", (), "off_format", "", None),
        ("<problem>2 + 2?", ("length",), "truncated", "", None),
        ("<problem>2 + 2?</problem> and on and on", ("length",), "", "2 + 2?", None),
        ("<think>never closed <problem>2?</problem>", (), "off_format", "", None),
        ("<think>never closed", ("length",), "truncated", "", None),
        ("<think>a <problem>no</problem></think><problem>yes</problem>", (), "", "yes", None),
        ("<problem>in the reasoning</problem></think>", ("eos", "<think>\n"), "empty", "", None),
        ("inside</think><problem>2?</problem>", ("eos", "<think>\n"), "", "2?", None),
        ("<problem>2?</problem>", ("eos", "<think>\n"), "off_format", "", None),
        ("<problem>2?</problem>", ("prompt_too_long",), "prompt_too_long", "", None),
    ],
)
def test_reading_a_proposal(text: str, more: tuple[Any, ...], reason: str, question: str, answer: str | None):
    said = completion(text, *more)
    found = to_proposal(said, tagged)
    assert (found.reason, found.question, found.answer) == (reason, question, answer)
    assert found.completion is said
    assert found.usable == (reason == "")


def test_the_last_tag_and_the_last_box():
    contents = {
        "<a>1</a>": "1",
        "<a>1</a><a> 2\n3 </a> after": "2\n3",
        "<a>1</a><a>2": "1",  # an open one is none
        "<a><a>1</a>": "1",
        "<a>1</a>2</a>": "1",
        "<a></a>": "",
        "<a>1</a><a></a>": "",
        **dict.fromkeys(("<A>1</A>", "<ab>1</ab>", "1</a>", "")),
    }
    assert {text: last_tagged(text, "a") for text in contents} == contents
    boxed = {
        r"\boxed{4}": "4",
        r"\boxed{4} or \boxed{ \frac{1}{2} }": r"\frac{1}{2}",
        r"\boxed{4} and \boxed{}": "4",
        r"\boxed{4} and \boxed{12": "4",  # cut off: it may have been 123
        r"\boxed 5": "5",
        **dict.fromkeys((r"\boxed{12", "5", "")),
    }
    assert {text: last_boxed(text) for text in boxed} == boxed


def test_a_proposal_becomes_a_problem_or_is_refused():
    proposal = to_proposal(completion("<problem>2 + 2?</problem> \\boxed{4}"), tagged)
    assert proposal.problem("q-1") == Problem("q-1", "2 + 2?", "4")
    refused = proposal.refused("leaks")
    assert (refused.usable, refused.reason, refused.question) == (False, "leaks", "2 + 2?")
    assert proposal.usable


class Family(ProposeSolve):
    roles = ("proposer", "solver")


GOOD = Proposal(completion("fine"), "2 + 2?", "4")


def bad(text: str, reason: str = "off_format") -> Proposal:
    return Proposal(completion(text), reason=reason)


def test_what_a_question_yield_says():
    game = Family(ProposeSolveOptions())
    said = {"proposals": 4, "usable": 1, "refused": {"empty": 1, "off_format": 2}, "empty_steps": 0}
    assert game.question_yield([GOOD, bad("x"), bad("", "empty"), bad("y")], 1) == said
    # A question, but none to train on; no question; one to train on.
    yields = [game.question_yield(*each)["empty_steps"] for each in (([GOOD], 0), ([], 0), ([GOOD], 1))]
    assert yields == [1, 2, 0]


def test_empty_steps_in_a_row_stop_the_run_and_show_what_was_proposed():
    game = Family(ProposeSolveOptions(max_empty_steps=3))
    assert [game.question_yield([bad("x")], 0)["empty_steps"] for _ in range(2)] == [1, 2]
    last = [bad("the first"), bad("\x1b[31mred"), bad("a\nb", "empty"), bad("z" * 400)]
    with pytest.raises(GameError) as stopped:
        game.question_yield(last, 0)
    text = str(stopped.value)
    assert "3 steps in a row brought no question to train on (refused: 1 empty, 3 off_format)" in text
    assert "'\\x1b[31mred' | 'a\\nb' | 'zzz" in text
    assert "the first" not in text
    assert "z" * SHOWN_CHARACTERS in text
    assert "z" * (SHOWN_CHARACTERS + 1) not in text
    assert "--cold-start" in text
