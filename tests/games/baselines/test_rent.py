import pytest

from lite_selfplay.data import Problem
from lite_selfplay.games.baselines.rent import rent_reward
from tests.games.scripted import played, small
from tests.made import Unread


def test_reward():
    entropies = [[], [0.0, 0.0], [1.0], [0.5, 1.5], [0.0, 0.0, 3.0]]
    assert [rent_reward(each) for each in entropies] == pytest.approx([0, 0, -1, -1, -1])


def test_it_is_paid_for_being_sure_whatever_it_says():
    problems = [Problem("six", "What is 2 + 4?", "6"), Problem("open", "Name a number.")]
    ((episode,), _) = played(small("rent", 2, 2), {"solver": ["<answer>6</answer>", "@@@@"]}, problems)
    (stream,) = episode.streams
    answered, unanswered = stream.groups
    # "@" is byte 64, and the end 256: both of entropy 0 at a scripted table.
    assert [sample.reward for sample in answered.samples][1] == 0
    assert answered.samples[0].reward < 0
    assert [sample.verdict and sample.verdict.correct for sample in answered.samples] == [True, False]
    assert [sample.verdict for sample in unanswered.samples] == [None, None]
    assert episode.log["entropy"] == pytest.approx(-(answered.samples[0].reward + unanswered.samples[0].reward) / 4)


def test_a_prompt_that_is_too_long_is_masked_and_earns_nothing():
    problems = [Problem("a", "A long one?"), Problem("b", "Short?")]
    ((episode,), _) = played(small("rent", 3, 2), {"solver": ["a", "b", "c"]}, problems, kind=Unread)
    unread, read = ([(sample.masked, sample.reward) for sample in group.samples] for group in episode.streams[0].groups)
    assert unread == [(True, None)] * 3  # 0 would be the best reward of all
    assert all(not masked and reward < 0 for masked, reward in read)
