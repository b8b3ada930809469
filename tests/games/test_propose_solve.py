"""What the propose-and-solve games share: reading proposals, voting, and steps that bring no question."""

import json
from collections.abc import Sequence
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from lite_selfplay.data import Completion, Problem, Sampling, Verdict
from lite_selfplay.errors import ConfigError, GameError
from lite_selfplay.games.propose_solve import (
    REASONS,
    SHOWN_CHARACTERS,
    Proposal,
    ProposeSolve,
    ProposeSolveOptions,
    Vote,
    after_reasoning,
    answer_classes,
    count_reasons,
    last_boxed,
    last_tagged,
    read,
    vote,
)
from lite_selfplay.testing import ScriptedTable


def said(text: str, stop: str = "eos", prefill: str = "") -> Completion:
    return Completion(
        "", text, (), tuple(text.encode()), (-1.0,) * len(text.encode()), stop, "s", 0, Sampling(), prefill
    )


def tagged(text: str) -> tuple[str, str | None] | None:
    question = last_tagged(text, "problem")
    return None if question is None else (question, last_boxed(text))


# Reading


@pytest.mark.parametrize(
    ("completion", "reason", "question", "answer"),
    [
        (said("<problem> 2 + 2? </problem> \\boxed{4}"), "", "2 + 2?", "4"),
        (said("<problem>2 + 2?</problem>"), "", "2 + 2?", None),
        (said("<problem> </problem> \\boxed{4}"), "empty", "", "4"),
        (said(""), "empty", "", None),
        (said(" \n"), "empty", "", None),
        (said("", "length"), "truncated", "", None),
        (said("2 + 2?"), "off_format", "", None),
        (said("<problem>2 + 2?", "length"), "truncated", "", None),
        (said("<problem>2 + 2?</problem> and on and on", "length"), "", "2 + 2?", None),
        (said("<think>never closed <problem>2?</problem>"), "off_format", "", None),
        (said("<think>never closed", "length"), "truncated", "", None),
        (said("<think>a <problem>no</problem></think><problem>yes</problem>"), "", "yes", None),
        (said("<problem>in the reasoning</problem></think>", prefill="<think>\n"), "empty", "", None),
        (said("inside</think><problem>2?</problem>", prefill="<think>\n"), "", "2?", None),
        (said("<problem>2?</problem>", prefill="<think>\n"), "off_format", "", None),
        (said("<problem>2?</problem>", "prompt_too_long"), "prompt_too_long", "", None),
    ],
)
def test_reading_a_proposal(completion: Completion, reason: str, question: str, answer: str | None):
    found = read(completion, tagged)
    assert (found.reason, found.question, found.answer) == (reason, question, answer)
    assert found.completion is completion
    assert found.usable == (reason == "")


PIECES = ["<problem>", "</problem>", "<think>", "</think>", "\\boxed{", "}", "4", " "]


@settings(deadline=None)
@given(st.lists(st.sampled_from(PIECES), max_size=10).map("".join))
def test_a_proposal_has_a_question_or_a_reason(text):
    for stop in ("eos", "length", "string", "prompt_too_long"):
        found = read(said(text, stop), tagged)
        assert found.reason in REASONS
        assert found.usable == bool(found.question) == (found.reason == "")


def test_after_reasoning():
    assert after_reasoning(said("<think>x</think> y ")) == "y"
    assert after_reasoning(said("y")) == "y"
    assert after_reasoning(said("<think>x")) is None


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
    proposal = read(said("<problem>2 + 2?</problem> \\boxed{4}"), tagged)
    assert proposal.problem("q-1") == Problem("q-1", "2 + 2?", "4")
    assert proposal.problem("q-1", "5") == Problem("q-1", "2 + 2?", "5")
    refused = proposal.refused("leaks")
    assert (refused.usable, refused.reason, refused.question) == (False, "leaks", "2 + 2?")
    assert proposal.usable


def test_reasons_are_counted_by_name():
    some = [Proposal(said(""), reason=reason) for reason in ("leaks", "", "empty", "leaks", "")]
    assert count_reasons(some) == {"empty": 1, "leaks": 2}
    assert count_reasons([]) == {}


# Votes


class Judging(ScriptedTable):
    """Counts how often the checker is asked, and about how many pairs."""

    def __init__(self) -> None:
        super().__init__({})
        self.batches: list[int] = []

    def verify(self, pairs: Sequence[tuple[Completion, Problem]]) -> list[Verdict]:
        self.batches.append(len(pairs))
        return super().verify(pairs)


@pytest.fixture
def table():
    table = Judging()
    yield table
    table.close()


def answers(*values: str | None) -> list[Completion]:
    return [said("no idea" if value is None else f"<answer>{value}</answer>") for value in values]


@pytest.mark.parametrize(
    ("group", "expected"),
    [
        (("4", "4", "5"), Vote("4", 2, 3, (True, True, False))),
        (("5", "4", "4"), Vote("4", 2, 3, (False, True, True))),
        (("1/2", "0.5", "2"), Vote("1/2", 2, 3, (True, True, False))),
        (("0.5", "3", r"\frac{1}{2}", "1/2"), Vote("0.5", 3, 4, (True, False, True, True))),
        (("4", "5"), Vote(None, 1, 2, (False, False))),  # a tie
        (("4", "5", "4", "5", None), Vote(None, 2, 5, (False,) * 5)),
        (("4", "4", "5", "5", "6"), Vote(None, 2, 5, (False,) * 5)),
        ((None, "4", None), Vote("4", 1, 3, (False, True, False))),  # unread answers never win, but count
        ((None, None), Vote(None, 0, 2, (False, False))),
        (("4",), Vote("4", 1, 1, (True,))),
        ((), Vote(None, 0, 0, ())),
    ],
)
def test_votes(table: Judging, group: tuple[str | None, ...], expected: Vote):
    assert vote(table, [answers(*group)]) == [expected]


def test_shares():
    assert Vote("4", 2, 3, (True, True, False)).share == 2 / 3
    assert Vote(None, 0, 2, (False, False)).share == 0.0
    assert Vote(None, 0, 0, ()).share == 0.0


def test_groups_that_need_different_numbers_of_classes(table: Judging):
    groups = [answers("7", "7.0", "7"), answers("1", "2", "3", "1", "2", "1"), [], answers(None, None)]
    found = answer_classes(table, groups)
    assert [classes for classes, _ in found] == [[0, 0, 0], [0, 1, 2, 0, 1, 0], [], [None, None]]
    assert [texts for _, texts in found] == [["7", "7.0", "7"], ["1", "2", "3", "1", "2", "1"], [], [None, None]]
    # Three rounds, as the most varied group has classes; what is written alike is not asked about.
    assert table.batches == [1 + 3, 1, 0]
    assert [v.label for v in vote(table, groups)] == ["7", "1", None, None]


def test_an_unread_answer_in_the_middle_has_no_class(table: Judging):
    assert answer_classes(table, [answers(None, "3", None, "4", "3.0")])[0][0] == [None, 0, None, 1, 0]


@pytest.mark.parametrize(
    "odd", ["####", "48 + 24", "1, 2", "3 or 4", r"\frac{", "9" * 3000, "{}", ",", "x" * 2001, "\x00"]
)
def test_odd_answers_are_data(table: Judging, odd: str):
    (found,) = vote(table, [answers(odd, "5", odd, "5", odd)])
    assert (found.votes, found.label) == (3, odd.strip())
    (other,) = vote(table, [answers("5", odd, "5")])
    assert (other.label, other.votes) == ("5", 2)


def test_reasoning_that_never_ends_is_no_vote(table: Judging):
    group = [said("<think>so <answer>4</answer>"), said("<think>x</think><answer>4</answer>")]
    assert vote(table, [group]) == [Vote("4", 1, 2, (False, True))]


SAME = {"2": "2", "2.0": "2", "4/2": "2", "3": "3", "6/2": "3", "5": "5"}


@settings(deadline=None)
@given(st.lists(st.lists(st.sampled_from([*SAME, None]), max_size=8), max_size=4))
def test_a_vote_is_what_counting_by_value_says(groups):
    table = ScriptedTable({})
    for group, found in zip(groups, vote(table, [answers(*group) for group in groups]), strict=True):
        counted = {value: [SAME.get(a or "") for a in group].count(value) for value in set(SAME.values())}
        most = max(counted.values())
        winners = [value for value, count in counted.items() if count == most]
        assert (found.votes, found.of) == (most, len(group))
        if most and len(winners) == 1:
            assert found.label == next(a for a in group if a is not None and SAME[a] == winners[0])
            assert found.agrees == tuple(a is not None and SAME[a] == winners[0] for a in group)
        else:
            assert found.label is None
            assert not any(found.agrees)


# The family


class Family(ProposeSolve):
    roles = ("proposer", "solver")


def family(**options: Any) -> Family:
    return Family(ProposeSolveOptions(**options))


GOOD = Proposal(said("fine"), "2 + 2?", "4")


def bad(text: str, reason: str = "off_format") -> Proposal:
    return Proposal(said(text), reason=reason)


def test_what_a_harvest_says():
    game = family()
    assert game.judge_harvest([GOOD, bad("x"), bad("", "empty"), bad("y")], 1) == {
        "proposals": 4,
        "usable": 1,
        "refused": {"empty": 1, "off_format": 2},
        "barren_steps": 0,
    }
    assert game.judge_harvest([GOOD], 0)["barren_steps"] == 1  # a question, but none to train on
    assert game.judge_harvest([], 0)["barren_steps"] == 2
    assert game.judge_harvest([GOOD], 1)["barren_steps"] == 0


def test_barren_steps_in_a_row_stop_the_run_and_show_what_was_proposed():
    game = family(max_barren_steps=3)
    for step in (1, 2):
        assert game.judge_harvest([bad("x")], 0)["barren_steps"] == step
    last = [bad("the first"), bad("\x1b[31mred"), bad("a\nb", "empty"), bad("z" * 400)]
    with pytest.raises(GameError) as stopped:
        game.judge_harvest(last, 0)
    text = str(stopped.value)
    assert "3 steps in a row brought no question to train on (refused: 1 empty, 3 off_format)" in text
    assert "the first" not in text
    assert "'\\x1b[31mred' | 'a\\nb' | 'zzz" in text
    assert "z" * SHOWN_CHARACTERS in text
    assert "z" * (SHOWN_CHARACTERS + 1) not in text
    assert "--cold-start" in text


def test_a_question_in_between_begins_the_count_anew():
    game = family(max_barren_steps=2)
    for usable in (0, 1, 0, 1, 0):
        game.judge_harvest([GOOD], usable)
    with pytest.raises(GameError, match=r"refused: none\). The last proposals: none"):
        game.judge_harvest([], 0)


def test_how_many_is_a_bounded_option():
    assert family(max_barren_steps=1).options.max_barren_steps == 1
    with pytest.raises(GameError, match=r"^1 step in a row"):
        family(max_barren_steps=1).judge_harvest([], 0)
    for wrong in ({"max_barren_steps": 0}, {"max_barren": 3}):
        with pytest.raises(ValueError, match="max_barren"):
            family(**wrong)


def test_the_state_is_json_and_goes_on():
    game, twin = family(max_barren_steps=3), family(max_barren_steps=3)
    game.judge_harvest([], 0)
    game.watch.look(["2 + 2?"], tokens=str.encode)
    twin.restore(json.loads(json.dumps(game.state())))
    assert twin.state() == game.state() == {"barren": 1, "seen": ["2 + 2?"]}
    assert twin.judge_harvest([], 0)["barren_steps"] == 2
    assert twin.watch.look(["2 + 2?"], tokens=str.encode)["repeated"] == 1.0


def test_the_solvers_seat_is_measured_and_the_watch_warns():
    spec = family().evaluation()
    assert (spec.mode, spec.seats) == ("single", ("solver",))
    assert family().own_labels
    assert family().sources == ()
    assert family().warnings({"questions": 4, "repeated": 1.0, "distinct_tokens": 0.5}) != []
    assert family().warnings(family().judge_harvest([], 0)) == []


def test_a_bad_option_is_refused_in_the_librarys_way():
    from lite_selfplay.games import base

    base.register_game("a-family", Family)
    try:
        with pytest.raises(ConfigError, match=r"game\.max_barren_steps"):
            base.make_game("a-family", {"max_barren_steps": 0})
    finally:
        base._registry.pop("a-family")
