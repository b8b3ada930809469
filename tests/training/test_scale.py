"""The factor of losses in float16, by hand."""

import pytest
import torch

from lite_selfplay.training.atomic_update import BACK, GROWS_AFTER, LARGEST, LossScale


def started(slope: float) -> LossScale:
    scale = LossScale(True)
    logprobs = torch.zeros(3, requires_grad=True)
    loss = (logprobs * torch.tensor([0.0, -slope, slope / 2])).sum()
    assert torch.equal(scale.of(loss, logprobs), loss * scale.factor)
    return scale


@pytest.mark.parametrize(
    ("slope", "exponent"), [(1.0, 0), (0.4, 1), (1 / 160, 7), (2.0**-16, 16), (1e-9, LARGEST), (30.0, 0)]
)
def test_it_starts_where_the_steepest_slope_is_about_one(slope: float, exponent: int):
    assert started(slope).exponent == exponent
    assert started(slope).factor == 2.0**exponent


def test_a_loss_without_a_slope_decides_nothing():
    scale = started(0.0)
    assert (scale.exponent, scale.factor) == (None, 1.0)
    assert not scale.lower()
    scale.held()
    assert scale.state() == {"exponent": None, "updates": 0}
    unneeded, logprobs = LossScale(False), torch.zeros(2, requires_grad=True)
    loss = logprobs.sum()
    assert unneeded.of(loss, logprobs) is loss


def test_gradients_are_divided_by_it():
    scale, gradients = started(1 / 160), [torch.tensor([128.0, 3 * 128.0]), torch.tensor([[-1.0]])]
    scale.take_off(gradients)
    assert [x.flatten().tolist() for x in gradients] == [[1.0, 3.0], [-1 / 128]]


def test_it_falls_to_one_and_grows_after_many_good_updates_in_a_row():
    scale = started(1 / 160)
    assert [(scale.lower(), scale.exponent) for _ in range(4)] == [(True, 4), (True, 1), (True, 0), (False, 0)]
    assert BACK == 3
    scale = started(2.0**-15)
    for number, exponent in ((GROWS_AFTER - 1, 15), (1, LARGEST), (GROWS_AFTER, LARGEST)):
        for _ in range(number):
            scale.held()
        assert scale.exponent == exponent
    scale.lower()  # an overflow starts the count again
    scale.held()
    assert scale.state() == {"exponent": LARGEST - BACK, "updates": 1}


def test_its_state_comes_back():
    scale, other = started(1 / 160), LossScale(True)
    scale.held()
    other.restore(scale.state())
    assert (other.factor, other.state()) == (scale.factor, scale.state())


@pytest.mark.parametrize(
    "state", [None, {}, {"exponent": "7", "updates": 0}, {"exponent": 99, "updates": 0}, {"exponent": 3, "updates": -1}]
)
def test_a_state_that_is_none_is_refused(state: object):
    with pytest.raises(ValueError, match="loss scale"):
        LossScale(True).restore(state)
