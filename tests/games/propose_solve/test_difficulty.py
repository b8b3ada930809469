"""Questions judged by a solver's votes, and drawn until enough lie between two bounds."""

from dataclasses import replace

import pytest

from lite_selfplay.games.propose_solve.questions import (
    Bounds,
    Candidate,
    Proposal,
    Vote,
    answered,
    count_fates,
    draw_until,
    shown,
    watched,
)
from lite_selfplay.testing import ScriptedTable
from tests.games.scripted import NONE, THREE, TWO
from tests.made import Unread, completion

SAID = completion("What is 1 + 1?")
QUESTION = Proposal(SAID, "What is 1 + 1?")


def candidate(votes: int, of: int, label: str | None = "2") -> Candidate:
    return Candidate("q", QUESTION, (SAID,) * of, Vote(label, votes, of, (False,) * of))


@pytest.mark.parametrize(
    ("votes", "of", "label", "fate"),
    [
        (1, 5, "2", "kept"),  # 0.2 and 0.8 are inside
        (4, 5, "2", "kept"),
        (3, 15, "2", "kept"),
        (12, 15, "2", "kept"),
        (3, 16, "2", "too_hard"),
        (13, 16, "2", "too_easy"),
        (5, 5, "2", "too_easy"),
        (2, 4, None, "no_majority"),  # a tie of two classes
        (0, 4, None, "no_majority"),  # nothing could be read
    ],
)
def test_what_becomes_of_a_question(votes: int, of: int, label: str | None, fate: str):
    assert Bounds(0.2, 0.8).fate(candidate(votes, of, label)) == fate


def test_without_bounds_every_majority_is_kept_and_nothing_else():
    everything = Bounds(0.0, 1.0)
    assert everything.fate(candidate(1, 16)) == everything.fate(candidate(16, 16)) == "kept"
    assert everything.fate(candidate(8, 16, None)) == "no_majority"
    assert everything.fate(Candidate("q", QUESTION.refused("empty"))) == "refused"


def proposals(*reasons: str) -> list[Proposal]:
    return [replace(QUESTION, question=f"What is {i} + {i}?", reason=reason) for i, reason in enumerate(reasons)]


def test_questions_are_answered_in_one_call_and_refused_ones_never_reach_the_solver():
    table = ScriptedTable({"player": ["<answer>2</answer>", "<answer>2</answer>", "no"]})
    table.open(0, {"player": "player"})
    found = answered(table, "player", proposals("", "empty", ""), 3, prefix="q-7", first=4)
    assert [c.name for c in found] == ["q-7-4", "q-7-5", "q-7-6"]
    ((_, prompts, n),) = table.asked
    assert ["What is 0 + 0?" in prompts[0], "What is 2 + 2?" in prompts[1], len(prompts), n] == [True, True, 2, 3]
    assert [c.label for c in found] == ["2", None, "2"]
    assert [c.share for c in found] == pytest.approx([2 / 3, 0, 2 / 3])
    assert found[0].problem.answer == "2"
    assert found[1].vote is None
    assert watched(found)["questions"] == ["What is 0 + 0?", "What is 2 + 2?"]
    assert watched(found)["pass_rates"] == pytest.approx([2 / 3, 2 / 3])
    table.close()


def test_nobody_is_asked_where_there_is_no_question_and_one_too_long_for_a_prompt_is_refused():
    table = ScriptedTable({})
    (found,) = answered(table, "player", proposals("empty"), 3, prefix="q")
    assert (found.proposal.reason, found.share, table.asked) == ("empty", 0.0, [])
    longer = replace(QUESTION, question="a long one")
    (found,) = answered(Unread({"player": [""]}), "player", [longer], 2, prefix="q")
    assert (found.proposal.reason, found.vote) == ("too_long", None)


def drawing(answers: list[str], wanted: int, most: int, batch: int = 2) -> list[Candidate]:
    table, bounds = ScriptedTable({"player": answers}), Bounds(0.2, 0.8)
    return draw_until(
        table, lambda: proposals(*[""] * batch), "player", 4, bounds, wanted=wanted, most=most, prefix="q"
    )


def test_drawing_stops_with_the_batch_that_brings_enough():
    found = drawing([TWO, TWO, TWO, THREE], wanted=1, most=10)
    assert [c.name for c in found] == ["q-0", "q-1"]
    assert count_fates(found, Bounds(0.2, 0.8)) == {"no_majority": 0, "too_hard": 0, "too_easy": 0}
    # The first question is always too easy, the second always kept: two batches for two.
    assert [c.share for c in drawing([TWO] * 4 + [TWO, TWO, TWO, NONE], wanted=2, most=10)] == [1, 0.75, 1, 0.75]


@pytest.mark.parametrize(
    ("said", "most", "batch", "drawn"),
    [
        *(([TWO, TWO, TWO, THREE], most, batch, most) for most, batch in ((6, 2), (5, 2), (1, 4))),
        # A quarter of the draws keeps nothing.
        *(([TWO], most, 2, drawn) for most, drawn in ((16, 4), (18, 6), (4, 2), (2, 2))),
    ],
)
def test_drawing_ends_in_any_case_and_early_where_nothing_is_kept(said: list[str], most: int, batch: int, drawn: int):
    found = drawing(said, wanted=99, most=most, batch=batch)
    assert [c.name for c in found] == [f"q-{k}" for k in range(drawn)]
    assert count_fates(found, Bounds(0.2, 0.8))["too_easy"] == (drawn if said == [TWO] else 0)


def test_the_record_of_a_proposal_is_masked_has_no_reward_and_says_what_became_of_it():
    bounds = Bounds(0.2, 0.8)
    for found, fate in ((candidate(1, 2), "kept"), (Candidate("q", QUESTION.refused("leaks")), "leaks")):
        (sample,) = shown(found, bounds).samples
        assert (sample.masked, sample.reward, sample.info["fate"]) == (True, None, fate)
