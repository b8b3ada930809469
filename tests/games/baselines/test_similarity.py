"""Clusters of questions by BLEU."""

import math

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from lite_selfplay.games.baselines.rzero import bleu_distance, cluster_shares, clusters

HENS = "A farmer has 3 hens and buys 4 more. How many hens are there now?"
MORE_HENS = "A farmer has 3 hens and buys 9 more. How many hens are there now?"
TRAIN = "The train leaves at noon, runs for two hours and stops. When does it stop?"


def test_distances_by_hand():
    assert bleu_distance(["a", "b"], ["a", "b"]) == 0
    assert bleu_distance([], ["a"]) == bleu_distance(["a"], []) == 1
    # One word in two: precision 1 with a brevity penalty of exp(1 - 2 / 1) one way. The other way 1 of 2 words and none
    # of 1 pair, smoothed to 0.1: the root of 0.05, over two orders since the text is two words long.
    there, back = math.exp(-1), math.sqrt(0.5 * 0.1)
    assert bleu_distance(["a"], ["a", "b"]) == pytest.approx(1 - (there + back) / 2)


def test_alike_questions_lie_in_one_cluster():
    numbers = clusters([HENS, TRAIN, MORE_HENS, HENS.upper()])
    assert numbers[0] == numbers[2] == numbers[3] != numbers[1]
    assert cluster_shares([HENS, TRAIN, MORE_HENS, HENS], 4) == [0.75, 0.25, 0.75, 0.75]
    assert cluster_shares([HENS, TRAIN], 8) == [0.125, 0.125]  # of all proposals, malformed ones included


def test_the_threshold_decides():
    assert len(set(clusters([HENS, MORE_HENS], 0.01))) == 2
    assert len(set(clusters([HENS, TRAIN], 0.999))) == 1


@pytest.mark.parametrize(("questions", "shares"), [([], []), ([HENS], [0.5]), (["", ""], [1.0, 1.0])])
def test_few_questions(questions: list[str], shares: list[float]):
    assert cluster_shares(questions, 2) == shares


@settings(deadline=None, max_examples=30)
@given(st.lists(st.sampled_from([HENS, MORE_HENS, TRAIN, "2 + 2?", ""]), min_size=1, max_size=6))
def test_shares_are_in_range_and_equal_questions_share_a_cluster(questions: list[str]):
    shares = cluster_shares(questions, len(questions))
    assert all(questions.count(q) / len(questions) <= share <= 1 for q, share in zip(questions, shares, strict=True))
