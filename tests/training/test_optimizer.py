"""Learning rates by hand, and an optimizer in which each seat has its own schedule."""

import math
from typing import Any

import pytest
import torch
from torch import nn

from lite_selfplay.config import SeatConfig
from lite_selfplay.errors import LiteSelfPlayError
from lite_selfplay.training.optimizer import (
    SeatSchedule,
    learning_rate,
    load_optimizer_state,
    optimizer_state,
    reset_optimizer,
    seat_groups,
)
from tests.made import same_weights


class Seats:
    """The optimizer's view of adapters: parameters by seat, and their numbers of updates."""

    def __init__(self, *names: str):
        self.seats = names
        self.updates = dict.fromkeys(names, 0)
        self._parameters = {name: {"w": nn.Parameter(torch.tensor([1.0, 2.0]))} for name in names}

    def parameters(self, seat: str) -> dict[str, nn.Parameter]:
        return self._parameters[seat]

    def moved(self, seat: str) -> None:
        self.updates[seat] += 1


ROOT = math.sqrt(0.5)


@pytest.mark.parametrize(
    ("seat", "expected"),
    [
        # Two updates of warm-up; then eight eighths, seven eighths, ..., one eighth.
        ({"lr": 8.0, "schedule": "linear", "warmup": 0.2}, [4.0, 8.0, 8.0, 7.0, 6.0, 5.0, 4.0, 3.0, 2.0, 1.0]),
        # (1 - cos(pi x)) / 2 at x = 1, 3/4, 1/2, 1/4.
        ({"lr": 2.0, "schedule": "cosine", "warmup": 0.0}, [2.0, 1 + ROOT, 1.0, 1 - ROOT]),
        ({"lr": 3.0, "schedule": "constant", "warmup": 0.5}, [1.0, 2.0, 3.0, 3.0, 3.0, 3.0]),
        # A started update of warm-up counts whole: 0.1 * 15 = 1.5 updates are two.
        ({"lr": 1.0, "schedule": "constant", "warmup": 0.1}, [0.5] + [1.0] * 14),
        ({"lr": 4.0, "warmup": 0.0}, [4.0, 3.0, 2.0, 1.0]),
        *(({"lr": 1.0, "schedule": schedule}, [1.0]) for schedule in ("linear", "cosine", "constant")),
    ],
)
def test_learning_rates_by_hand(seat: dict[str, Any], expected: list[float]):
    config, total = SeatConfig(**seat), len(expected)
    assert [learning_rate(config, update, total) for update in range(total)] == pytest.approx(expected)
    past = learning_rate(config, 2 * total, total)
    assert past == (seat["lr"] if config.schedule == "constant" else 0.0)


@pytest.fixture
def seats() -> Seats:
    return Seats("A", "B")


CONFIGS = {
    "A": SeatConfig(lr=4.0, schedule="linear", warmup=0.0, clip=0.5),
    "B": SeatConfig(lr=0.5, schedule="constant", warmup=0.0, weight_decay=0.01),
}


def update(optimizer: torch.optim.Optimizer, schedule: SeatSchedule | None, adapters: Any, *names: str) -> None:
    optimizer.zero_grad(set_to_none=True)
    for name in names:
        weight = adapters.parameters(name)["w"]
        weight.grad = torch.ones_like(weight)
    optimizer.step()
    if schedule is not None:
        schedule.step()


def test_a_group_a_seat_with_its_own_bound_and_decay(seats):
    a, b = seat_groups(seats, CONFIGS)
    assert (a["seat"], a["lr"], a["clip"], a["weight_decay"]) == ("A", 4.0, 0.5, 0.0)
    assert (b["seat"], b["lr"], b["clip"], b["weight_decay"]) == ("B", 0.5, 1.0, 0.01)
    assert a["params"] == [seats.parameters("A")["w"]]


def test_weight_decay_by_hand(seats):
    # AdamW, decoupled: a weight w loses lr * decay * w = 0.1 * 0.5 * w, and Adam's first step is the rate itself.
    configs = {name: SeatConfig(lr=0.1, warmup=0.0, weight_decay=decay) for name, decay in (("A", 0.5), ("B", 0.0))}
    optimizer = torch.optim.AdamW(seat_groups(seats, configs))
    update(optimizer, None, seats, "A", "B")
    assert seats.parameters("A")["w"].tolist() == pytest.approx([0.95 - 0.1, 1.9 - 0.1])
    assert seats.parameters("B")["w"].tolist() == pytest.approx([0.9, 1.9])
    # A seat without data does not decay either.
    update(optimizer, None, seats, "B")
    assert seats.parameters("A")["w"].tolist() == pytest.approx([0.85, 1.8])


def test_only_a_seat_with_a_gradient_is_updated_and_counted(seats):
    optimizer = torch.optim.SGD(seat_groups(seats, CONFIGS), lr=99.0)
    schedule = SeatSchedule(optimizer, seats, CONFIGS, totals={"A": 4, "B": 4})

    def found() -> list[list[float]]:
        rates = [group["lr"] for group in optimizer.param_groups]
        return [rates, list(seats.updates.values()), seats.parameters("A")["w"].tolist()]

    assert found() == [[4.0, 0.5], [0, 0], [1.0, 2.0]]
    update(optimizer, schedule, seats, "A")  # by SGD at rate 4 along a gradient of one
    assert found() == [[3.0, 0.5], [1, 0], [-3.0, -2.0]]
    assert seats.parameters("B")["w"].tolist() == [1.0, 2.0]
    update(optimizer, schedule, seats, "B")
    update(optimizer, schedule, seats)
    assert found() == [[3.0, 0.5], [1, 1], [-3.0, -2.0]]
    update(optimizer, schedule, seats, "A", "B")
    assert found() == [[2.0, 0.5], [2, 2], [-6.0, -5.0]]
    # Momentum updates the seat even with a gradient of zero: so it must count as an update.
    optimizer.zero_grad(set_to_none=True)
    seats.parameters("A")["w"].grad = torch.zeros(2)
    schedule.step()
    assert found()[:2] == [[1.0, 0.5], [3, 2]]
    # Schedules continue from restored counts.
    seats.updates["A"] = 1
    schedule.apply()
    assert found()[0] == [3.0, 0.5]


def test_the_optimizer_state_comes_back_bit_for_bit(seats):
    optimizer = torch.optim.AdamW(seat_groups(seats, CONFIGS))
    for _ in range(3):
        update(optimizer, None, seats, "A")
    saved = optimizer_state(optimizer, seats)
    assert set(saved) == {"A/w/step", "A/w/exp_avg", "A/w/exp_avg_sq"}

    other_seats = Seats("A", "B")
    other = torch.optim.AdamW(seat_groups(other_seats, CONFIGS))
    update(other, None, other_seats, "B")
    load_optimizer_state(other, other_seats, saved)
    again = optimizer_state(other, other_seats)

    # Both continue alike.
    with torch.no_grad():
        other_seats.parameters("A")["w"].copy_(seats.parameters("A")["w"])
    update(optimizer, None, seats, "A")
    update(other, None, other_seats, "A")
    assert torch.equal(seats.parameters("A")["w"], other_seats.parameters("A")["w"])
    # The saved state is a copy, which later updates do not change.
    assert same_weights(again, saved)
    assert not same_weights(optimizer_state(optimizer, seats), saved)


def test_one_seat_forgets_its_momentum_and_one_that_is_not_there_has_none(seats):
    optimizer = torch.optim.AdamW(seat_groups(seats, CONFIGS))
    update(optimizer, None, seats, "A", "B")
    reset_optimizer(optimizer, seats, "A")
    assert {name.partition("/")[0] for name in optimizer_state(optimizer, seats)} == {"B"}
    with pytest.raises(LiteSelfPlayError, match="'C/w'"):
        load_optimizer_state(optimizer, seats, {"C/w/exp_avg": torch.zeros(2)})
