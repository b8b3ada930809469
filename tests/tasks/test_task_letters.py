"""The toy task: the same problems everywhere, and validated options."""

import string

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from lite_selfplay.errors import TaskError, UnknownNameError
from lite_selfplay.tasks import held_out_side, load_task, task_names
from lite_selfplay.tasks.benchmarks import BENCHMARKS

SIZE = 10_000


def test_a_problem_names_ten_of_the_first_twelve_letters():
    for problem in load_task("letters").problems[:50]:
        assert len(set(problem.answer)) == len(problem.answer) == 10
        assert set(problem.answer) <= set("abcdefghijkl")
        assert problem.text == f"Write one of these letters: {problem.answer}"
        assert problem.kind == "letters"


@settings(deadline=None)
@given(st.integers(1, 26).flatmap(lambda of: st.tuples(st.integers(1, of), st.just(of))), st.integers(0, SIZE - 1))
def test_options_choose_how_many_letters_out_of_how_many(sizes, index):
    named, of = sizes
    whole = string.ascii_lowercase[:of]
    held_out = named == of and held_out_side(whole)  # the only problem there is
    answer = load_task(f"letters:named={named},of={of}", held_out=held_out).problems[index].answer
    assert len(set(answer)) == len(answer) == named
    assert set(answer) <= set(whole)
    assert list(answer) == sorted(answer)


def test_a_side_without_problems_is_refused_when_the_task_is_loaded():
    side, other = (True, False) if held_out_side("abc") else (False, True)
    assert load_task("letters:named=3,of=3", held_out=side).problems[9].answer == "abc"
    with pytest.raises(TaskError, match="letters has too few different problems: none of 1000 draws was "):
        load_task("letters:named=3,of=3", held_out=other)


def test_it_is_a_sequence():
    problems = load_task("letters").problems
    assert len(problems) == SIZE
    assert problems[-1] == problems[SIZE - 1]
    assert problems[2:4] == [problems[2], problems[3]]
    assert problems[0] in problems
    for index in (SIZE, -SIZE - 1):
        with pytest.raises(IndexError):
            problems[index]


@pytest.mark.parametrize("spec", ["letters", "letters:", "letters:named=10", "letters: named = 10 , of=12"])
def test_spellings_of_the_default_which_asks_for_short_completions(spec):
    assert load_task(spec).problems[5] == load_task("letters").problems[5]
    assert load_task(spec).max_completion_tokens == 16


@pytest.mark.parametrize(("name", "message"), [("lettres", "did you mean letters"), ("", "known: .*letters")])
def test_an_unknown_task(name, message):
    with pytest.raises(UnknownNameError, match=rf"unknown task {name!r}: {message}.*\.jsonl"):
        load_task(name)


def test_names_of_tasks_that_need_no_file():
    own = "arithmetic code-arithmetic equations hub letters multiplication reasoning-gym stories".split()
    assert task_names() == sorted([*own, *BENCHMARKS])
