"""Ratios by hand: what TRL computes with the old log-probabilities it is handed."""

import math

import pytest
import torch
from torch import Tensor

from lite_selfplay.config import RoleConfig
from lite_selfplay.data import Completion, Sampling
from lite_selfplay.models.logprobs.batch import Way
from lite_selfplay.training.losses import old_logprobs
from lite_selfplay.training.microbatches import LossRow, microbatches

# Two rows, the second of one token and one of padding. Log-ratios 0.1 and 0.2; -0.4.
MASK = torch.tensor([[1, 1], [1, 0]])
OLD = torch.tensor([[-1.1, -2.2], [-0.6, 0.0]])
TOKENS = [[0.1, 0.2], [-0.4, 0.0]]
MEANS = [[0.15, 0.15], [-0.4, -0.4]]
SUMS = [[0.3, 0.3], [-0.4, -0.4]]


def logprobs() -> Tensor:
    return torch.tensor([[-1.0, -2.0], [-1.0, 0.0]], requires_grad=True)


def close(tensor: Tensor, wanted: list[list[float]]) -> bool:
    return torch.allclose(tensor.detach(), torch.tensor(wanted), atol=1e-6)


@pytest.mark.parametrize(
    ("role", "wanted"),
    [
        (RoleConfig(), TOKENS),
        (RoleConfig(loss="dapo"), TOKENS),
        (RoleConfig(ratio="sequence"), MEANS),
        (RoleConfig(loss="dr_grpo", ratio="sequence"), MEANS),
        (RoleConfig(loss="sequence"), SUMS),
    ],
)
def test_the_log_ratio_at_every_token(role, wanted):
    lp = logprobs()
    old = old_logprobs(role, lp, OLD, MASK)
    assert close(lp - old, wanted)


def test_what_a_ratio_pulls_at():
    # d exp(W) / d lp_t is exp(W) for the sum over two tokens, and half of that for their mean.
    for role, share, log_ratio in ((RoleConfig(loss="sequence"), 1.0, 0.3), (RoleConfig(ratio="sequence"), 0.5, 0.15)):
        lp = logprobs()
        (lp - old_logprobs(role, lp, OLD, MASK)).exp()[0, 0].backward()
        slope = share * math.exp(log_ratio)
        assert close(lp.grad, [[slope, slope], [0.0, 0.0]])


def test_on_policy_every_ratio_is_one_and_still_pulls():
    lp = logprobs()
    assert old_logprobs(RoleConfig(), lp, None, MASK) is None  # TRL's own way
    ratio = (lp - old_logprobs(RoleConfig(loss="sequence"), lp, None, MASK)).exp()
    assert close(ratio, [[1.0, 1.0], [1.0, 1.0]])
    ratio[0, 1].backward()
    assert close(lp.grad, [[1.0, 1.0], [0.0, 0.0]])


def test_a_ratio_beyond_all_bounds_is_still_a_number():
    lp = logprobs()
    ratio = (lp - old_logprobs(RoleConfig(loss="sequence"), lp, OLD - 1000, MASK)).exp()
    torch.minimum(ratio, ratio.clamp(0.8, 1.2)).sum().backward()
    assert ratio.isfinite().all()
    assert lp.grad.eq(0).all()


@pytest.mark.parametrize(("loss", "wanted"), [("grpo", [1.5, -0.75]), ("sequence", [0.5, -0.375])])
def test_advantages_by_hand(loss, wanted):
    # Rows of 3 and 2 tokens with advantages 3 and -1.5, half of a stream of four rows.
    def row(tokens: int, advantage: float) -> LossRow:
        said = Completion("", "", (1,), (2,) * tokens, (-1.0,) * tokens, "eos", "A", 0, Sampling())
        return LossRow(said, advantage)

    rows = [row(3, 3.0), row(2, -1.5), row(1, 0.0), row(1, 0.0)]
    (micro,) = microbatches(rows, "A", RoleConfig(loss=loss), token_budget=1000, way=Way.WHOLE)
    found = dict(zip([r.tokens for r in micro.rows], micro.scaled([r.advantage for r in micro.rows]), strict=True))
    assert [found[3], found[2]] == wanted
