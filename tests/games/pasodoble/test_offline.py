import json
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from lite_selfplay.data import Problem
from lite_selfplay.games.pasodoble.offline import OfflineSchedule, QuestionBuffer


def buffer_of(*names: str) -> QuestionBuffer:
    buffer = QuestionBuffer()
    for name in names:
        buffer.add(Problem(name, f"{name}?", "1"), 0.5)
    return buffer


def names(problems: list[Problem]) -> str:
    return "".join(problem.id for problem in problems)


def phases(schedule: OfflineSchedule, steps: int, *, updated: bool = True, buffered: int = 1) -> str:
    """The first letter of each step's phase."""
    told = ""
    for _ in range(steps):
        told += schedule.phase[0]
        schedule.advance(updated=updated, buffered=buffered)
    return told


def test_phases_take_turns():
    schedule = OfflineSchedule(3, 2)
    assert phases(schedule, 12) == "pppss" * 2 + "pp"
    assert (schedule.iteration, schedule.updates, schedule.attempts) == (2, 2, 2)


def test_skipped_steps_are_attempts_that_end_a_phase_in_the_end():
    assert phases(OfflineSchedule(2, 1, attempts=2), 12, updated=False) == "ppppss" * 2
    schedule = OfflineSchedule(2, 1, attempts=2)
    assert phases(schedule, 1, updated=False) + phases(schedule, 2) == "ppp"
    assert (schedule.phase, schedule.iteration) == ("solver", 0)


def test_an_empty_buffer_skips_the_solvers_phase_and_ends_it():
    schedule = OfflineSchedule(2, 2, attempts=1)
    assert phases(schedule, 5, updated=False, buffered=0) == "ppppp"
    assert schedule.iteration == 2
    schedule = OfflineSchedule(1, 5)
    assert phases(schedule, 2) == "ps"
    schedule.advance(updated=True, buffered=0)
    assert (schedule.phase, schedule.iteration, schedule.updates, schedule.attempts) == ("proposer", 1, 0, 0)


@settings(deadline=None, max_examples=50)
@given(
    st.tuples(st.integers(1, 3), st.integers(1, 3), st.integers(1, 3)),
    st.lists(st.tuples(st.booleans(), st.integers(0, 1)), max_size=60),
    st.integers(0, 59),
)
def test_a_schedule_never_stalls_and_goes_on_from_what_was_saved(sizes, steps, save_at):
    schedule, twin = OfflineSchedule(*sizes), OfflineSchedule(*sizes)
    in_phase, before = 0, schedule.phase
    for i, (updated, buffered) in enumerate(steps):
        if i == save_at:
            twin.restore(json.loads(json.dumps(schedule.state())))
        schedule.advance(updated=updated, buffered=buffered)
        if i >= save_at:
            twin.advance(updated=updated, buffered=buffered)
            assert twin.state() == schedule.state()
        in_phase = in_phase + 1 if schedule.attempts else 0
        assert in_phase < sizes[2] * max(sizes[:2])
        assert schedule.phase == "proposer" or buffered
        assert before == schedule.phase or schedule.attempts == 0
        before = schedule.phase


def test_the_buffer_is_walked_in_a_circle_and_new_questions_come_before_the_first_ones_again():
    buffer = buffer_of(*"abcde")
    assert [names(buffer.take(2)) for _ in range(4)] == ["ab", "cd", "ea", "bc"]
    assert names(buffer_of("a", "b").take(5)) == "ababa"
    assert QuestionBuffer().take(3) == []
    buffer = buffer_of("a", "b")
    assert names(buffer.take(2)) == "ab"
    buffer.add(Problem("c", "c?", "1"), 0.5)
    assert names(buffer.take(2)) == "ca"


@pytest.mark.parametrize(
    ("rates", "evicted"),
    [
        ((1.0,), [1]),  # it is always solved
        ((0.5, 0.51, 0.4), [0, 0, 1]),  # it does not get easier in three attempts
        # A rise of more than the margin starts the count anew: 0.54 is above the peak of 0.52, the two before are not.
        ((0.5, 0.4, 0.52, 0.52, 0.53, 0.54, 0.5, 0.5, 0.5), [0] * 8 + [1]),
    ],
)
def test_a_question_that_is_solved_or_does_not_get_easier_is_dropped(rates: Any, evicted: list[int]):
    buffer = buffer_of(*"abc")
    assert [buffer.evict([("b", rate)]) for rate in rates] == evicted
    assert names(buffer.take(2)) == "ac"


def test_a_question_that_a_step_meets_several_times_is_tried_once():
    # Two questions for six draws: each occurs three times a step, which is one attempt, not three.
    buffer = buffer_of(*"ab")
    assert [buffer.evict([(problem.id, 0.5) for problem in buffer.take(6)]) for _ in range(3)] == [0, 0, 2]


def test_several_meetings_count_by_their_mean():
    buffer = buffer_of(*"ab")
    # a: mean 0.6, above its peak of 0.5; b: mean 0.5 though it was once solved every time.
    assert buffer.evict([("a", 0.9), ("b", 1.0), ("a", 0.3), ("b", 0.0)]) == 0
    a, b = buffer.questions
    assert (a.peak, a.stale, b.peak, b.stale) == (0.6, 0, 0.5, 1)
    assert buffer.evict([("a", 1.0), ("a", 1.0), ("a", 1.0), ("b", 0.4)]) == 1  # a: solved every time
    assert names(buffer.take(2)) == "bb"


@pytest.mark.parametrize(("dropped", "after"), [("a", "cdb"), ("b", "cda"), ("c", "dab"), ("ab", "cdc"), ("abcd", "")])
def test_the_walk_goes_on_where_it_was_when_questions_are_dropped(dropped: str, after: str):
    buffer = buffer_of(*"abcd")
    assert names(buffer.take(2)) == "ab"
    assert buffer.evict([(name, 1.0) for name in dropped]) == len(dropped)
    assert names(buffer.take(3)) == after
