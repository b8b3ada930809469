"""A user's own reward function: found, called as TRL calls one, and named whenever it does something wrong."""

import collections
import functools
import itertools
import math
import types
from collections.abc import Callable
from dataclasses import replace
from typing import Any

import numpy
import pandas
import pytest

from lite_selfplay.config.user_files import guarded
from lite_selfplay.data import Problem
from lite_selfplay.errors import RewardError
from lite_selfplay.verify.reward_functions import call_reward, name_of
from tests.made import completion

PAIRS = [
    (
        replace(completion("<answer>2</answer>"), prompt="one", token_ids=(7, 8)),
        Problem("a", "1 + 1?", "2", extra={"level": 1}),
    ),
    (replace(completion("three"), prompt="two", token_ids=(9,)), Problem("b", "1 + 2?", "3", extra={"source": "book"})),
]


def scores(reward: Callable[..., Any]) -> list[float]:
    """The scores, with whatever the function raises as its error, as a run calls it."""
    with guarded(name_of(reward), RewardError, judges=True):
        return [verdict.score for verdict in call_reward(reward, PAIRS)]


def asking(signature: str) -> Callable[..., Any]:
    """A function with these arguments, which keeps what it is given as `heard`."""
    scope: dict[str, Any] = {}
    exec(f"def reward({signature}):\n    reward.heard = locals()\n    return [0, 0]", scope)
    return scope["reward"]


def heard(*names: str, pairs: Any = PAIRS) -> dict[str, Any]:
    """What a function that names these arguments is given."""
    reward = asking(", ".join(names))
    call_reward(reward, pairs)
    return reward.heard  # type: ignore[attr-defined]


# Calling


def test_arguments_come_by_name_one_entry_a_completion():
    every = {
        "prompts": ["one", "two"],
        "completions": ["<answer>2</answer>", "three"],
        "completion_ids": [[7, 8], [9]],
        "problem": ["1 + 1?", "1 + 2?"],
        "answer": ["2", "3"],
        # Columns of a data file come too, with None where a row lacks one.
        "level": [1, None],
        "source": [None, "book"],
    }
    assert heard(*every) == heard("**rest")["rest"] == every
    assert heard("*", "answer") == {"answer": ["2", "3"]}
    assert heard("answer", "weight=3") == {"answer": ["2", "3"], "weight": 3}
    # A column cannot hide what the library passes.
    pairs = [(completion("x"), Problem("a", "q", "2", extra={"completions": "theirs", "answer": "theirs"}))] * 2
    assert heard("completions", "answer", pairs=pairs) == {"completions": ["x"] * 2, "answer": ["2"] * 2}


class Judge:
    def lengths(self, completions: list[str]) -> list[int]:
        return [len(text) for text in completions]

    __call__ = lengths


def test_an_object_a_method_and_a_partial_are_functions():
    assert scores(Judge()) == scores(Judge().lengths) == [18, 5]
    assert scores(functools.partial(lambda completions, n: [n for _ in completions], n=4)) == [4, 4]


# What it returns


def test_scores_are_used_as_they_stand_count_as_correct_from_one_half_and_the_format_is_judged_as_ever():
    verdicts = call_reward(lambda answer: [-2.5, 7], PAIRS) + call_reward(lambda answer: [0.5, 0.49], PAIRS)
    assert [verdict.score for verdict in verdicts] == [-2.5, 7.0, 0.5, 0.49]
    assert [verdict.correct for verdict in verdicts] == [False, True, True, False]
    assert [verdict.well_formed for verdict in verdicts] == [True, False, True, False]
    assert not any(verdict.well_formed for verdict in call_reward(lambda answer: [0, 1], PAIRS, thinks=True))


def test_any_row_of_numbers_will_do():
    import torch

    rows = [[1, 0], (1, 0), iter([1, 0]), (value for value in (1, 0)), {1: None, 0: None}.keys(), [True, False]]
    rows += [torch.tensor([1.0, 0.0]), numpy.array([1, 0]), pandas.Series([1, 0], index=["a", "b"])]
    rows += [[torch.tensor(1), numpy.float32(0)]]
    assert [scores(returning(row)) for row in rows] == [[1.0, 0.0]] * len(rows)


def test_nothing_to_judge_calls_nothing():
    assert call_reward(raising(AssertionError("called")), []) == []


# What is refused, whatever it is


class Beyond(BaseException):
    """An exception outside `Exception`."""


def returning(value: Any) -> Callable[..., Any]:
    return lambda answer: value


def raising(error: BaseException) -> Callable[..., Any]:
    def reward(answer: list[str]) -> list[float]:
        raise error

    return reward


def half_way(error: Exception) -> Callable[..., Any]:
    def reward(answer: list[str]) -> Any:
        yield 1.0
        raise error

    return reward


class Raises:
    """What raises when it is shown, or read as a number."""

    def __float__(self) -> float:
        raise SystemExit(5)

    __repr__ = __float__  # type: ignore[assignment]


class Endless:
    """A list in the old way that never ends."""

    def __getitem__(self, place: int) -> float:
        return 1.0


NO_NUMBERS = (None, 1.0, [None, 1.0], ["good", "bad"], [[1.0], [0.0]], [1j, 0], "ok", [10**400, 0], object())
# Each would give two numbers where it is only walked through: keys, members in any order, digits.
NO_LISTS = (
    {0: 0.5, 1: 0.25}, collections.Counter({0: 1, 1: 2}), types.MappingProxyType({0: 0.5, 1: 0.25}), {0.5, 1.0},
    frozenset({0.5, 1.0}), "10", b"10", bytearray(b"10"), ["1", "0"], [b"1", b"0"], numpy.array(["1", "0"]),
    numpy.array([[1.0], [0.0]]), pandas.DataFrame({0: [0.5, 0.5], 1: [0.25, 0.25]}),
)  # fmt: skip
ENDLESS = (itertools.repeat(1.0), Endless(), (1.0 for _ in itertools.count()))
ERRORS = (SystemExit(7), SystemExit(), Beyond("x"), GeneratorExit(), StopIteration(1))


@pytest.mark.parametrize(
    ("reward", "said"),
    [
        *((returning([1.0, bad]), f"returned {bad} for completion 1") for bad in (math.nan, math.inf, -math.inf)),
        *((returning([1.0] * n), f"returned {n} values for 2 completions") for n in (0, 1, 3)),
        *((returning(each), "must return one number for each completion, got") for each in (*NO_NUMBERS, *NO_LISTS)),
        *((returning(each), "raised SystemExit") for each in ([Raises(), 1.0], Raises())),
        *((returning(each), "returned more than 2 values") for each in ENDLESS),
        (raising(KeyError("level")), "raised KeyError: 'level'"),
        *((raising(error), f"raised {type(error).__name__}") for error in ERRORS),
        *((half_way(kind("x")), f"raised {kind.__name__}") for kind in (ZeroDivisionError, ValueError, KeyError)),
        *((asking(names), "raised TypeError") for names in ("completions, level, weight", "completions, /", "texts")),
    ],
)
def test_whatever_it_does_wrong_is_its_error(reward: Callable[..., Any], said: str):
    reward.__qualname__ = "my_reward"
    with pytest.raises(RewardError, match=f"my_reward {said}") as caught:
        scores(reward)
    assert len(str(caught.value)) < 400
    assert caught.value.exit_code == 1
    kind = said.removeprefix("raised ").partition(":")[0]
    assert not said.startswith("raised") or type(caught.value.__cause__).__name__ == kind


def test_an_interrupt_passes():
    with pytest.raises(KeyboardInterrupt):
        scores(raising(KeyboardInterrupt()))
