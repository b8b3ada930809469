"""Intervals and tests against published values and their definitions; samples and majority votes by hand."""

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from lite_selfplay.stats import (
    Spread,
    clopper_pearson,
    crossed,
    holm,
    maj_at_k,
    majority_vote,
    over_seeds,
    paired,
    paired_bootstrap,
    paired_test,
    pass_at_k,
    sign_flips,
)


@pytest.mark.parametrize(
    ("k", "n", "low", "high"),
    [
        (0, 0, 0.0, 1.0),
        (0, 10, 0.0, 0.3085),
        (1, 10, 0.0025, 0.4450),
        (5, 10, 0.1871, 0.8129),
        (8, 10, 0.4439, 0.9748),
        (10, 10, 0.6915, 1.0),
        (682, 925, 0.70767, 0.76541),  # the example of R's binom.test (Conover, Mendel's peas)
    ],
)
def test_published_intervals(k, n, low, high):
    assert clopper_pearson(k, n) == (pytest.approx(low, abs=5e-5), pytest.approx(high, abs=5e-5))
    wider_low, wider_high = clopper_pearson(k, n, confidence=0.99)
    assert (wider_low < low or k == 0, wider_high > high or k == n) == (True, True)


@pytest.mark.parametrize(
    ("function", "given", "message"),
    [
        *((clopper_pearson, (k, n), "k|n") for k, n in ((-1, 10), (11, 10), (1, 0), (0, -1))),
        (paired_test, ([True, False], [True]), "argument 2 is shorter"),
    ],
)
def test_what_is_impossible_is_refused(function, given, message):
    with pytest.raises(ValueError, match=message):
        function(*given)


def pairs(gained: int, lost: int, right: int = 0, wrong: int = 0) -> tuple[list[bool], list[bool]]:
    before = [False] * gained + [True] * lost + [True] * right + [False] * wrong
    after = [True] * gained + [False] * lost + [True] * right + [False] * wrong
    return before, after


@pytest.mark.parametrize(
    ("gained", "lost", "p_value"),
    [
        (0, 0, 1.0),
        (1, 0, 1.0),  # 2 * 1/2
        (3, 0, 0.25),  # 2 * 1/8
        (0, 5, 0.0625),  # 2 * 1/32
        (4, 1, 0.375),  # 2 * (1 + 5)/32
        (5, 5, 1.0),
        (10, 2, 0.03857421875),  # 2 * (1 + 12 + 66)/4096
        (86, 150, 3.71600e-05),  # Agresti, Categorical Data Analysis: approval ratings (R, exact2x2)
    ],
)
def test_paired_tests_by_hand(gained, lost, p_value):
    p_value = pytest.approx(p_value, rel=1e-4)
    for same in ({}, {"right": 7, "wrong": 11}):
        assert paired_test(*pairs(gained, lost, **same)) == (gained, lost, p_value)
    assert paired_test(*reversed(pairs(gained, lost))) == (lost, gained, p_value)


@pytest.mark.parametrize(
    ("answers", "winner", "size"),
    [
        (["4", "5", "4"], "4", 2),
        (["4"], "4", 1),
        (["4", "5"], None, 1),
        (["4", "5", "5", "4", "6"], None, 2),
        ([], None, 0),
        ([None, None], None, 0),
        ([None, None, None, "4"], None, 0),  # most votes are for nothing
        ([None, "4", None, "4"], None, 0),
        ([None, "4", None, "4", "4"], "4", 3),
        (["4", None, "5"], None, 0),
        (["4", "4", None, "5", "5"], None, 2),
    ],
)
def test_the_largest_class_wins_and_a_tie_does_not(answers, winner, size):
    assert majority_vote(answers) == (winner, size)


# Several samples a problem


@pytest.mark.parametrize(
    ("correct", "n", "k", "expected"),
    [
        (2, 5, 1, 2 / 5),
        (2, 5, 2, 7 / 10),  # 1 - C(3, 2) / C(5, 2) = 1 - 3/10
        (1, 10, 5, 1 / 2),  # 1 - C(9, 5) / C(10, 5) = 1 - 126/252
        (3, 10, 4, 5 / 6),  # 1 - C(7, 4) / C(10, 4) = 1 - 35/210
        (3, 4, 2, 1.0),  # fewer wrong samples than are drawn
        (0, 7, 7, 0.0),
        (4, 4, 1, 1.0),
    ],
)
def test_pass_at_k_by_hand(correct, n, k, expected):
    assert pass_at_k(correct, n, k) == pytest.approx(expected, abs=1e-15)


@given(st.integers(1, 200).flatmap(lambda n: st.tuples(st.integers(0, n), st.just(n), st.integers(1, n))))
def test_pass_at_k_is_the_published_product(counts):
    # Chen et al. 2021, figure 3: the same estimate, as a product that does not overflow.
    correct, n, k = counts
    product = 1.0 if n - correct < k else 1 - np.prod(1 - k / np.arange(n - correct + 1, n + 1))
    assert pass_at_k(correct, n, k) == pytest.approx(product, abs=1e-12)


def test_the_first_k_samples_count():
    right = [True, False, False, True, True]
    assert [maj_at_k(["4", "5", "5", "4", "4"], right, k) for k in range(1, 6)] == [1, 0.5, 0, 0.5, 1]


@pytest.mark.parametrize(
    ("classes", "right", "expected"),
    [
        (["4", "5", "4"], [True, False, True], 1),
        (["4", "5", "5"], [True, False, False], 0),
        (["4", "5"], [True, False], 1 / 2),
        (["4", "5", "6"], [False, True, False], 1 / 3),
        (["4", "4", "5", "5", "6"], [True, True, False, False, False], 1 / 2),
        ([None, None, "4"], [False, False, True], 0),
        ([None, "4"], [False, True], 1 / 2),
        ([None, "4", "4"], [True, True, True], 1),
        ([None, None], [False, True], 0),  # what states no value is never elected, though it may be right
        (["4", "4", "4"], [True, True, False], 2 / 3),  # a class that the checker splits counts by its share
    ],
)
def test_majorities_by_hand(classes, right, expected):
    assert maj_at_k(classes, right, len(classes)) == pytest.approx(expected)


# Two runs on the same problems


def test_a_bootstrap_by_hand():
    # Differences 0 and 1: a quarter of the resamples has the mean 0, a quarter the mean 1.
    assert paired_bootstrap([0, 0], [0, 1]) == (0.5, 0.0, 1.0)
    assert paired_bootstrap([0.25, 0.5, 0.75], [0.5, 0.75, 1.0]) == (0.25, 0.25, 0.25)


def test_a_bootstrap_is_near_the_normal_interval_and_follows_from_its_seed():
    rng = np.random.default_rng(5)
    before, after = rng.random(400), rng.random(400) + 0.1
    difference, low, high = paired_bootstrap(before, after)
    half = 1.96 * np.std(after - before, ddof=1) / 20
    assert difference == pytest.approx(np.mean(after - before))
    assert (low, high) == (pytest.approx(difference - half, abs=3e-3), pytest.approx(difference + half, abs=3e-3))
    assert paired_bootstrap(before, after) == (difference, low, high)
    assert paired_bootstrap(before, after, seed=1)[1:] != (low, high)
    assert paired_bootstrap(after, before)[0] == pytest.approx(-difference)
    narrow = paired_bootstrap(before, after, confidence=0.5)
    assert low < narrow[1] < difference < narrow[2] < high


def test_a_bootstrap_keeps_the_pairs():
    # The problems differ much, the two runs on each little: unpaired, the interval would be some twenty times wider.
    before = np.linspace(0, 1, 50)
    _, low, high = paired_bootstrap(before, before + 0.01 * (1 + np.arange(50) % 2))
    assert 0.0135 < low < 0.015 < high < 0.0165


# Several seeds


def test_the_interval_of_a_published_mean():
    # Student 1908, the sleep data; R: t.test(extra ~ group, paired = TRUE).
    hours = [1.2, 2.4, 1.3, 1.3, 0.0, 1.0, 1.8, 0.8, 4.6, 1.4]
    found = over_seeds(hours)
    assert (found.n, found.mean) == (10, pytest.approx(1.58))
    assert found.interval == (pytest.approx(0.7001142, abs=1e-7), pytest.approx(2.4598858, abs=1e-7))
    assert found.std == pytest.approx(1.58 / 4.062128 * 10**0.5, abs=1e-6)
    low, high = over_seeds(hours, confidence=0.5).interval
    assert found.interval[0] < low < high < found.interval[1]


def test_a_single_seed_has_no_spread_and_equal_ones_no_interval():
    assert over_seeds([0.4]) == Spread(1, 0.4)
    assert over_seeds([0.4, 0.4]) == Spread(2, 0.4, 0.0, None)
    assert paired({"a": 0.0, "b": 0.0}, {"a": 1.0, "b": 1.0}).interval is None


def test_seeds_and_problems_are_crossed():
    hours = [1.2, 2.4, 1.3, 1.3, 0.0, 1.0, 1.8, 0.8, 4.6, 1.4]
    # One seed: the published interval and p-value over the ten, as problems.
    alone = crossed([hours])
    assert alone.interval == (pytest.approx(0.7001142, abs=1e-7), pytest.approx(2.4598858, abs=1e-7))
    assert alone.p_value == pytest.approx(0.00283289, abs=1e-7)
    # A second seed, everywhere 0.2 less: an error of 0.1 over seeds, t(1) = 12.7062, beside the same one over problems.
    found = crossed([hours, [hour - 0.2 for hour in hours]])
    half = ((0.1 * 12.7062047) ** 2 + ((2.4598858 - 0.7001142) / 2) ** 2) ** 0.5
    assert found.mean == pytest.approx(1.48)
    assert found.interval == (pytest.approx(1.48 - half, abs=1e-6), pytest.approx(1.48 + half, abs=1e-6))
    # At a confidence of 1 - p the interval reaches 0.
    assert found.p_value is not None
    assert crossed([hours, [hour - 0.2 for hour in hours]], confidence=1 - found.p_value).interval[0] == pytest.approx(
        0
    )
    # Two tasks that are alike halve the variance over problems, and leave the seeds'.
    twice = crossed(*[[hours, [hour - 0.2 for hour in hours]]] * 2)
    assert twice.interval[0] > found.interval[0]
    assert twice.interval[1] - twice.interval[0] > 2 * 0.1 * 12.7
    for equal in ([[1.0, 0.0], [0.0, 1.0]], [[0.1 + 0.2, 0.3], [0.3, 0.3]], [[0.5], [0.7]]):
        assert crossed(equal)[1:] == (None, None)


def test_a_crossed_interval_covers_if_seeds_and_problems_are_random():
    rng = np.random.default_rng(3)
    covered = 0
    for _ in range(300):
        differences = rng.normal(0, 1, (5, 1)) + rng.normal(0, 5, 60) + rng.normal(0, 5, (5, 60))
        low, high = crossed(differences).interval
        covered += low < 0 < high
    assert 280 < covered < 300


def test_holms_correction_by_hand():
    assert holm([0.01, 0.04, 0.03, 0.005]) == [0.03, 0.06, 0.06, 0.02]
    assert holm([0.9, 0.8]) == [1.0, 1.0]
    assert holm([]) == []


def test_sign_flips_by_hand():
    assert sign_flips([1, 1, 1, 0]) == 0.25  # two of eight sign assignments
    assert sign_flips([1, 2, -0.5]) == 0.5  # 2.5; of eight sums -3.5, -2.5, 2.5 and 3.5 are as far
    assert (sign_flips([]), sign_flips([0, 0]), sign_flips([1])) == (1, 1, 1)
    assert sign_flips([1] * 8 + [-1]) == paired_test([False] * 8 + [True], [True] * 8 + [False])[2]
    many = [0.5] * 40
    assert sign_flips(many) == sign_flips(many) == 2e-4
