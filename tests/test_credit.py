"""Rewards to advantages, against numbers worked by hand."""

import math
from collections.abc import Sequence

import pytest
from hypothesis import given
from hypothesis import strategies as st

from lite_selfplay.credit import (
    RunningBaseline,
    advantages,
    each,
    has_variance,
    numbers_of,
    rewards_of,
    stream_advantages,
)
from lite_selfplay.data import Completion, Group, Sample, Sampling, Stream
from lite_selfplay.errors import GameError

COMPLETION = Completion("?", "!", (1,), (2,), (-1.0,), "eos", "A", 0, Sampling())
REWARDS = st.lists(st.floats(-10, 10), min_size=1, max_size=12)
EIGHTHS = st.lists(st.integers(-80, 80).map(lambda n: n / 8), min_size=2, max_size=12)


def group(*rewards: float, masked: Sequence[int] = ()) -> Group:
    return Group([Sample(COMPLETION, reward, masked=i in masked) for i, reward in enumerate(rewards)])


@pytest.mark.parametrize(
    ("kind", "rewards", "expected"),
    [
        # Mean 1/4; squared deviations 9/16 + 3 * 1/16 = 3/4; over n - 1 = 3 that is 1/4, so the deviation is 1/2.
        ("group", [1, 0, 0, 0], [0.75 / 0.5001, *[-0.25 / 0.5001] * 3]),
        ("group_mean", [1, 0, 0, 0], [0.75, -0.25, -0.25, -0.25]),
        ("reinforce", [2, -1, 0.5], [2.0, -1.0, 0.5]),
        ("batch", [3, 1, 2, 6], [0.0, -2.0, -1.0, 3.0]),
    ],
)
def test_advantages_by_hand(kind, rewards, expected):
    assert advantages(rewards, kind) == pytest.approx(expected, rel=1e-12)
    assert advantages(rewards) == advantages(rewards, "group")


@pytest.mark.parametrize("kind", ["group", "group_mean", "batch"])
@pytest.mark.parametrize("rewards", [[0.1, 0.1, 0.1], [7.0], []])
def test_equal_rewards_have_exactly_no_advantage(kind, rewards):
    # The mean of three times 0.1 is not 0.1 in floating point: without care this would be a tiny gradient.
    assert advantages(rewards, kind) == [0.0] * len(rewards)


@pytest.mark.parametrize("kind", ["group", "group_mean", "reinforce", "batch"])
def test_rewards_must_be_finite_and_an_unknown_kind_is_named(kind):
    for bad in (math.nan, math.inf, -math.inf):
        with pytest.raises(ValueError, match="finite"):
            advantages([1.0, bad], kind)
    with pytest.raises(ValueError, match=r"'gae'.*group_mean"):
        advantages([1.0, 0.0], "gae")


@given(REWARDS, EIGHTHS, st.integers(-20, 20), st.sampled_from(["group", "group_mean", "batch"]))
def test_advantages_have_mean_zero_whatever_is_added_to_all_rewards(rewards, eighths, shift, kind):
    assert math.fsum(advantages(rewards, kind)) == pytest.approx(0.0, abs=1e-8)
    assert advantages([r + shift for r in eighths], kind) == pytest.approx(advantages(eighths, kind), abs=1e-9)


VALUE = 0.5 / (math.sqrt(0.5) + 1e-4)
SOME_VARY = [group(1, 1), group(2, 0), group(1, 1, 0, masked=[2])]
DROPPED = {"drop_zero_variance": True}


def given(*samples: tuple[float, float | None, bool]) -> Group:
    """A group of rewards, advantages that the game gives itself, and whether each is masked."""
    return Group([Sample(COMPLETION, reward, advantage=own, masked=masked) for reward, own, masked in samples])


@pytest.mark.parametrize(
    ("groups", "options", "expected"),
    [
        # Without the masked 9 the mean is 1/2 and the variance (1/4 + 1/4) / 1 = 1/2.
        pytest.param([group(1, 9, 0, masked=[1])], {}, [[VALUE, None, -VALUE]], id="masked"),
        ([group(1, 0), group(10, 4)], {"credit": "group_mean"}, [[0.5, -0.5], [3.0, -3.0]]),
        # Unmasked: 3, 1, 2, 6, of mean 3.
        ([group(3, 1), group(2, 100, 6, masked=[1])], {"credit": "batch"}, [[0.0, -2.0], [-1.0, None, 3.0]]),
        # Neither group varies in itself, and yet they differ: mean 2.
        ([group(1, 1), group(3, 3)], {"credit": "batch", **DROPPED}, [[-1.0, -1.0], [1.0, 1.0]]),
        ([group(2, 2)], {"credit": "reinforce", **DROPPED}, [[2.0, 2.0]]),
        (SOME_VARY, {"credit": "group_mean"}, [[0.0, 0.0], [1.0, -1.0], [0.0, 0.0, None]]),
        (SOME_VARY, {"credit": "group_mean", **DROPPED}, [[None, None], [1.0, -1.0], [None, None, None]]),
        ([given((1, None, False), (0, 7.5, False))], {"credit": "group_mean"}, [[0.5, 7.5]]),
        pytest.param([given((1, 2.0, False), (1, 2.0, False))], DROPPED, [[2.0, 2.0]], id="given are not dropped"),
        pytest.param([given((1, 2.0, True), (1, None, False))], {}, [[None, 0.0]], id="masked, though given"),
        pytest.param(
            [group(1, math.nan, 0, masked=[1])], {"credit": "group_mean"}, [[0.5, None, -0.5]], id="masked, not finite"
        ),
    ],
)
def test_advantages_of_streams_by_hand(groups, options, expected):
    near = [[value if value is None else pytest.approx(value, rel=1e-12) for value in row] for row in expected]
    assert stream_advantages(Stream("r", groups, **options)) == near


@pytest.mark.parametrize(
    ("samples", "varies"),
    [
        (group(1, 0), True),
        (group(1, 1), False),
        (group(1, 0, masked=[1]), False),
        (group(1), False),
        (group(), False),
        (Group([Sample(COMPLETION, 1.0, advantage=0.0)]), True),
        (Group([Sample(COMPLETION, 1.0)] * 2, baseline=0.5), True),
        (Group([Sample(COMPLETION, 1.0)] * 2, baseline=1.0), False),
        (Group([Sample(COMPLETION, 1.0, masked=True)], baseline=0.5), False),
    ],
)
def test_variance_is_that_of_the_unmasked(samples, varies):
    assert has_variance(samples) is varies


def test_advantages_by_token_are_kept_beside_those_of_rewards():
    said = Completion("", "", (1,), (2, 3), (-1.0, -1.0), "eos", "A", 0, Sampling())
    own = Sample(said, 0.25, advantage=(0.5, -0.5))
    rows = stream_advantages(Stream("drafter", [Group([own, Sample(said, 1.0), Sample(said, 0.0)])], "group_mean"))
    assert rows == [[(0.5, -0.5), pytest.approx(1 - 1.25 / 3), pytest.approx(-1.25 / 3)]]
    assert [each(value, abs) for value in (-2.0, (0.5, -0.5))] == [2.0, (0.5, 0.5)]
    assert [*map(numbers_of, (None, 2.0, (0.5,)))] == [(), (2.0,), (0.5,)]
    for reward, advantage in ((1.0, (0.5,)), (1.0, ()), (None, (0.5, 0.5))):
        with pytest.raises(GameError, match="advantages by token need a reward, and a number for each"):
            Sample(said, reward, advantage=advantage)


@pytest.mark.parametrize("credit", ["group", "group_mean", "reinforce", "batch"])
def test_samples_without_a_reward_do_not_change_the_others(credit):
    record = Sample(COMPLETION, None, masked=True)
    paid = [Sample(COMPLETION, reward) for reward in (2.0, 0.0)]
    mixed, alone = Group([paid[0], record, paid[1]]), Group([record])
    (first, last), *_ = stream_advantages(Stream("s", [Group(paid)], credit))
    assert stream_advantages(Stream("s", [mixed, alone], credit)) == [[first, None, last], [None]]
    assert rewards_of(mixed.samples) == [2.0, 0.0]
    assert (has_variance(mixed), has_variance(alone)) == (True, False)


def test_a_running_baseline_by_hand():
    """Decay 0.5, returns +1, -2, +1: baselines 0, 0.5 and -0.75 before each; a player's moves share their match's."""
    baseline, groups = RunningBaseline(0.5), []
    for value in (1.0, -2.0, 1.0):
        groups.append(Group([Sample(COMPLETION, value)] * 2, baseline=baseline.of("first")))
        baseline.add("first", value)
    assert [g.baseline for g in groups] == [0.0, 0.5, -0.75]
    stream = Stream("first", groups, credit="baseline")
    assert stream_advantages(stream) == [[1.0, 1.0], [-2.5, -2.5], [1.75, 1.75]]
    again = RunningBaseline(0.5)
    again.restore(baseline.state())
    assert (again.of("first"), again.of("second")) == (0.125, 0.0)
    with pytest.raises(GameError, match="a group without a baseline"):
        Stream("first", [group(1.0)], credit="baseline")
