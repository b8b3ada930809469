import re

import pytest
from hypothesis import given
from hypothesis import strategies as st

from lite_selfplay.errors import TaskError
from lite_selfplay.tasks import load_task

TASK = load_task("stories")


@given(st.integers(0, len(TASK.problems) - 1))
def test_the_worked_solution_is_right_and_uses_the_storys_numbers(index: int):
    problem = TASK.problems[index]
    first, second = re.findall(r"(\d+) ([+-]) (\d+) = (\d+)\.", problem.extra["solution"])
    a, sign, b, middle = first
    assert int(middle) == (int(a) + int(b) if sign == "+" else int(a) - int(b)) >= 0
    again, sign, c, final = second
    assert again == middle
    assert int(final) == (int(again) + int(c) if sign == "+" else int(again) - int(c)) >= 0
    assert problem.answer == final
    assert {int(n) for n in re.findall(r"\d+", problem.text)} == {int(a), int(b), int(c)}
    assert max(int(a), int(b), int(c)) <= 20


def test_a_problem_follows_from_seed_and_index():
    assert load_task("stories").problems[7] == TASK.problems[7]
    assert load_task("stories", seed=1).problems[7] != TASK.problems[7]
    assert len({problem.text for problem in TASK.problems[:500]}) > 450


@pytest.mark.parametrize("spec", ["stories:max=2", "stories:max=x", "stories:digits=2", "stories:max"])
def test_bad_options_are_refused(spec: str):
    with pytest.raises(TaskError):
        load_task(spec)
