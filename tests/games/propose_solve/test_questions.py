"""Questions: the majority of their answers, whatever their order and spelling, and drawing until enough fit."""

import re
from dataclasses import replace

import pytest
from hypothesis import given
from hypothesis import strategies as st

from lite_selfplay.data import Completion, Problem
from lite_selfplay.games.propose_solve.questions import (
    Bounds,
    Candidate,
    Proposal,
    Vote,
    answered,
    by_answer,
    count,
    draw_until,
    shown,
    verdicts_by_vote,
    vote,
)
from lite_selfplay.testing import ScriptedTable
from lite_selfplay.verify.math import check
from tests.games.scripted import NONE, THREE, TWO
from tests.made import Unread, completion


def answers(*values: str | None) -> list[Completion]:
    return [completion("no idea" if value is None else f"<answer>{value}</answer>") for value in values]


@pytest.mark.parametrize(
    ("group", "label", "votes", "agrees"),
    [
        (("4", "4", "5"), "4", 2, (True, True, False)),
        (("5", "4", "4"), "4", 2, (False, True, True)),
        (("1/2", "0.5", "2"), "0.5", 2, (True, True, False)),
        (("0.5", "3", r"\frac{1}{2}", "1/2"), "0.5", 3, (True, False, True, True)),
        (("x = 5", "5", "y = 4"), "5", 2, (True, True, False)),
        (("twelve", "12.0", "13"), "12.0", 2, (True, True, False)),
        (("2 hours", "120 minutes", "2 minutes"), "2 hours", 2, (True, True, False)),
        (("4", "5"), None, 1, (False, False)),  # a tie
        (("4", "5", "4", "5", None), None, 2, (False,) * 5),
        (("4", "4", "5", "5", "6"), None, 2, (False,) * 5),
        ((None, "4", "4"), "4", 2, (False, True, True)),  # no answer is a vote for nothing
        ((None, None, None, "7"), None, 0, (False,) * 4),  # of which there may be most
        ((None, "4"), None, 0, (False, False)),
        ((None, "4", "4", None, "5"), None, 0, (False,) * 5),
        ((None, None), None, 0, (False, False)),
        (("I do not know",) * 4, None, 0, (False,) * 4),
        (("unknown", "7", "7.0", None), None, 0, (False,) * 4),
        (("7", "unknown", "7.0", "N/A", "7"), "7", 3, (True, False, True, False, True)),
        (("4",), "4", 1, (True,)),
        ((), None, 0, ()),
    ],
)
def test_votes(group: tuple[str | None, ...], label: str | None, votes: int, agrees: tuple[bool, ...]):
    (found,) = vote(ScriptedTable({}), [answers(*group)])
    assert found == Vote(label, votes, len(group), agrees, group)


def test_each_group_votes_for_itself_and_reasoning_that_never_ends_is_no_vote():
    groups = [answers("7", "7.0", "7"), answers("1", "2", "3", "1", "2", "1"), [], answers(None, None)]
    assert [found.label for found in vote(ScriptedTable({}), groups)] == ["7", "1", None, None]
    assert [Vote("4", 2, 3, ()).share, Vote(None, 0, 2, ()).share, Vote(None, 0, 0, ()).share] == [2 / 3, 0, 0]
    group = [completion("<think>so <answer>4</answer>"), *[completion("<think>x</think><answer>4</answer>")] * 2]
    assert vote(ScriptedTable({}), [group]) == [Vote("4", 2, 3, (False, True, True), (None, "4", "4"))]


# Some restate a question: arithmetic left undone, an operation named, an equation to solve.
ODD = r"""####;48 + 24;\frac{;{};,;2x + 3 = 11;5 = 6;5!;what?;12\times 7;3-4 \div 5*6;211^{3};(12)(7);\max(3, 4)
\gcd(4, 6);\sum_{i=2}^{5} i;\int_{2}^{3} x dx;\log_{2} 8 + 1 - 1;\lfloor 7 / 2 \rfloor;7! - 3;12x + 7 = 99"""


@pytest.mark.parametrize("odd", [*re.split(r"[;\n]", ODD), "9" * 3000, "x" * 2001, "\x00"])
def test_what_states_no_value_votes_for_nothing(odd: str):
    groups = [odd, "5", "5", "4", odd, "5"], [odd, "5", "5", "4", odd, odd], [odd] * 3
    counted = [(found.label, found.votes, found.of) for found in map(count, groups)]
    assert counted == [("5", 3, 6), (None, 0, 6), (None, 0, 3)]


@pytest.mark.parametrize(
    ("group", "label", "votes", "accepted"),
    [
        # The checker takes 5 km and 5% for 5, and 5 for 5 m, though none is in the other's class.
        (("5", "5.0", "5 km", "5%", "0.05"), None, 2, None),
        (("5", "5.0", "5 km", "5%"), "5", 2, (True, True, True, True)),
        (("5 m", "500 cm", "5 m", "5"), "5 m", 2, (True, True, True, True)),
        (("(5, 6)", "6, 5", "5 and 6"), "6, 5", 2, (True, True, True)),
    ],
)
def test_a_share_counts_a_class_and_not_whatever_the_checker_accepts_for_the_label(group, label, votes, accepted):
    found = count(group)
    assert (found.label, found.votes) == (label, votes)
    if accepted:
        assert tuple(check(f"<answer>{answer}</answer>", label).correct for answer in group) == accepted
        assert sum(accepted) >= found.votes


@pytest.mark.parametrize(
    ("text", "votes"),
    [
        ("<answer>7</answer>", 3),
        ("<answer>7", 3),  # cut off before the end of its block
        ("7</answer>", 2),
        (r"So \boxed{7}", 3),
        (r"\boxed{7", 3),
        ("<answer></answer> 7", 2),
        ("<answer>8</answer> <answer>7</answer>", 3),
        ("The answer is 7.", 3),
        ("7", 2),
    ],
)
def test_an_answer_votes_wherever_the_checker_reads_it_in_form_or_not(text: str, votes: int):
    (found,) = vote(ScriptedTable({}), [[*answers("7", "7"), completion(text)]])
    assert (found.label, found.votes, found.of) == ("7", votes, 3)


def test_figures_are_asked_for_in_some_topics():
    assert count(["red", "red", "5"]).label == "red"
    assert count(["red", "5.0", "5"], figures=True).label == "5"
    assert count(["red", "blue", "5"], figures=True) == Vote(None, 0, 3, (False,) * 3, ("red", "blue", "5"))


def test_verdicts_say_who_agrees_and_why_not():
    group = [completion("<answer>4</answer>"), completion("\\boxed{4.0}"), *answers("5", None)]
    verdicts = verdicts_by_vote(group, count(["4", "4.0", "5", None]), thinks=False)
    assert [(v.correct, v.well_formed, v.score, v.reason, v.answer) for v in verdicts] == [
        (True, True, 1.0, "", "4"),
        (True, False, 1.0, "", "4.0"),
        (False, True, 0.0, "wrong", "5"),
        (False, False, 0.0, "no_answer", None),
    ]
    for said, reasons in (
        (("4", "5"), ["no_majority", "no_majority"]),
        (("unknown", None, "7"), ["no_majority", "no_answer", "no_majority"]),
    ):
        verdicts = verdicts_by_vote(answers(*said), count(said), thinks=False)
        assert [(verdict.correct, verdict.reason) for verdict in verdicts] == [(False, reason) for reason in reasons]


NOTHING = ["unknown", "N/A", "I don't know", r"\text{Cannot be determined}", "x = unknown", "5 or unknown"]
SAME = {"2": "2", "2.0": "2", "$2": "2", "3": "3", "three": "3", "5": "5", **dict.fromkeys(NOTHING)}


@given(st.lists(st.sampled_from([*SAME, None]), max_size=8))
def test_a_vote_is_what_counting_by_value_says(group: list[str | None]):
    found, said = count(group), [None if answer is None else SAME[answer] for answer in group]
    counted = {value: said.count(value) for value in ("2", "3", "5")}
    most = max(counted.values())
    winners = [value for value, votes in counted.items() if votes == most]
    nothing = most <= said.count(None)
    assert (found.votes, found.of) == (0 if nothing else most, len(group))
    if not nothing and len(winners) == 1:
        members = [answer for answer in group if answer is not None and SAME[answer] == winners[0]]
        assert found.label is not None
        assert SAME[found.label] == winners[0]
        assert len(found.label) == min(map(len, members))
    else:
        assert (found.label, any(found.agrees)) == (None, False)


SAID = completion("What is 1 + 1?")
QUESTION = Proposal(SAID, "What is 1 + 1?")


def candidate(votes: int, of: int, label: str | None = "2") -> Candidate:
    return Candidate("q", QUESTION, vote=Vote(label, votes, of, (False,) * of))


def test_what_becomes_of_a_question():
    # 0.2 and 0.8 are inside.
    fates = dict.fromkeys([(1, 5), (4, 5), (3, 15), (12, 15)], "kept")
    fates |= {(3, 16): "too_hard", (13, 16): "too_easy", (5, 5): "too_easy"}
    assert {counts: Bounds(0.2, 0.8).fate(candidate(*counts)) for counts in fates} == fates
    # A tie of two classes, and nothing that could be read.
    assert {Bounds(0.2, 0.8).fate(candidate(votes, 4, None)) for votes in (2, 0)} == {"no_majority"}
    everything = Bounds(0.0, 1.0)
    assert everything.fate(candidate(1, 16)) == everything.fate(candidate(16, 16)) == "kept"
    assert everything.fate(candidate(8, 16, None)) == "no_majority"
    assert everything.fate(Candidate("q", QUESTION.refused("empty"))) == "refused"


def proposals(*reasons: str) -> list[Proposal]:
    return [replace(QUESTION, question=f"What is {i} + {i}?", reason=reason) for i, reason in enumerate(reasons)]


def test_questions_are_answered_in_one_call_and_refused_ones_never_reach_the_solver():
    table = ScriptedTable({"player": ["<answer>2</answer>", "<answer>2</answer>", "no"]})
    table.open(0, {"player": "player"})
    found = answered(table, "player", proposals("", "empty", ""), 3, ["a", "b", "c"])
    assert [c.name for c in found] == ["a", "b", "c"]
    ((_, prompts, n),) = table.asked
    assert ["What is 0 + 0?" in prompts[0], "What is 2 + 2?" in prompts[1], len(prompts), n] == [True, True, 2, 3]
    assert [c.label for c in found] == ["2", None, "2"]
    assert [c.share for c in found] == pytest.approx([2 / 3, 0, 2 / 3])
    assert found[0].group.problem == Problem("a", "What is 0 + 0?", "2")
    assert [sample.reward for sample in found[0].group.samples] == [1, 1, 0]
    assert found[1].vote is None
    table.close()


def test_nobody_is_asked_where_there_is_no_question_and_one_too_long_for_a_prompt_is_refused():
    table = ScriptedTable({})
    (found,) = answered(table, "player", proposals("empty"), 3, "q")
    assert (found.proposal.reason, found.share, table.asked) == ("empty", 0.0, [])
    longer = replace(QUESTION, question="a long one")
    (found,) = answered(Unread({"player": [""]}), "player", [longer], 2, "q")
    assert (found.name, found.proposal.reason, found.vote) == ("q-0", "too_long", None)


def test_answers_are_judged_by_the_proposers_own_where_nobody_votes():
    table = ScriptedTable({"player": ["<answer>4</answer>", "<answer>2</answer>", "<answer>2</answer>"]})
    (found,) = answered(table, "player", [replace(QUESTION, answer="4")], 3, "q", judge=by_answer)
    assert (found.vote, found.label, found.share) == (None, None, pytest.approx(1 / 3))
    assert [sample.reward for sample in found.group.samples] == [1, 0, 0]
    table.close()


def drawing(answers: list[str], wanted: int, most: int, batch: int = 2) -> list[Candidate]:
    table, sizes = ScriptedTable({"player": answers}), {"wanted": wanted, "most": most}
    return draw_until(table, lambda: proposals(*[""] * batch), "player", 4, Bounds(0.2, 0.8), prefix="q", **sizes)


def test_drawing_stops_with_the_batch_that_brings_enough():
    found = drawing([TWO, TWO, TWO, THREE], wanted=1, most=10)
    assert [c.name for c in found] == ["q-0", "q-1"]
    assert [Bounds(0.2, 0.8).fate(c) for c in found] == ["kept", "kept"]
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
    assert [Bounds(0.2, 0.8).fate(c) for c in found].count("too_easy") == (drawn if said == [TWO] else 0)


def test_the_record_of_a_proposal_is_masked_has_no_reward_and_says_what_became_of_it():
    bounds = Bounds(0.2, 0.8)
    for found, fate in ((candidate(1, 2), "kept"), (Candidate("q", QUESTION.refused("leaks")), "leaks")):
        sample = shown(found, bounds)
        assert (sample.masked, sample.reward, sample.info["fate"]) == (True, None, fate)
