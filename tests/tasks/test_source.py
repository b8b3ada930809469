"""A source draws without end, in an order derived from seed and epoch, and continues from a saved position."""

import json
import random

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from lite_selfplay.data import Problem
from lite_selfplay.errors import TaskError
from lite_selfplay.tasks import Source, load_task
from lite_selfplay.tasks.task import derived_rng, derived_seed


def source(size: int = 7, seed: int = 0, name: str = "problems") -> Source:
    return Source([Problem(str(i), f"{i}?") for i in range(size)], seed=seed, name=name)


def ids(problems: list[Problem]) -> list[str]:
    return [problem.id for problem in problems]


@settings(deadline=None)
@given(st.integers(1, 20), st.integers(0, 5), st.lists(st.integers(0, 25), max_size=6))
def test_every_problem_comes_once_an_epoch(size, seed, draws):
    walk = source(size, seed)
    drawn = [name for n in draws for name in ids(walk.draw(n))]
    assert len(drawn) == sum(draws) == walk.position
    for start in range(0, len(drawn), size):
        epoch = drawn[start : start + size]
        assert len(set(epoch)) == len(epoch)


def test_the_order_follows_from_seed_name_and_epoch_and_does_not_change():
    walk = source(20)
    first, second = ids(walk.draw(20)), ids(walk.draw(20))
    assert first + second == ids(source(20).draw(40))
    assert sorted(first) == sorted(second)
    assert first not in (second, sorted(first, key=int))
    assert ids(source(20, seed=1).draw(20)) != ids(source(20, seed=2).draw(20))
    assert first != ids(source(20, name="validation").draw(20))
    # A run must go on under a later version as it would have under this one.
    assert ids(source(7, seed=0).draw(14)) == [*"1420653", *"5460312"]


@settings(deadline=None)
@given(st.integers(1, 15), st.integers(0, 40), st.integers(0, 40), st.integers(0, 20))
def test_a_restored_source_continues_exactly(size, before, after, astray):
    whole = ids(source(size).draw(before + after))
    first = source(size)
    assert ids(first.draw(before)) == whole[:before]
    state = json.loads(json.dumps(first.state()))
    assert ids(first.draw(after)) == whole[before:]

    second = source(size)
    second.draw(astray)
    second.restore(state)
    assert second.state() == state
    assert ids(second.draw(after)) == whole[before:]


def test_a_position_in_a_task_of_another_size_and_no_problem_are_refused():
    with pytest.raises(TaskError, match="'problems' held 7 problems when the run was saved and holds 8 now"):
        source(8).restore(source(7).state())
    with pytest.raises(TaskError, match="'validation' has no problem"):
        Source([], seed=0, name="validation")


def test_the_global_generator_is_left_alone():
    random.seed(3)
    before = random.getstate()
    Source(load_task("letters").problems, seed=1).draw(5)
    assert random.getstate() == before


def test_derived_seeds_are_the_same_everywhere():
    # BLAKE2b of the parts joined by a slash, its first eight bytes read as a big-endian number.
    assert derived_seed(0, "a", 1) == 0x6E551960183E18B3
    assert derived_rng(0, "a").random() == derived_rng(0, "a").random()
    assert len({derived_seed(*parts) for parts in [(0,), (1,), (0, 1), (1, 0), ("a",), ("a", 0)]}) == 6
