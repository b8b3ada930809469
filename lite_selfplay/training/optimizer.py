"""The optimizer's side of seats: a parameter group each, a schedule over a seat's own updates, state as tensors."""

import math
from collections.abc import Callable, Mapping
from typing import Any

import torch
from torch import Tensor
from torch.autograd.graph import increment_version
from torch.optim import Optimizer

from lite_selfplay.config import SeatConfig
from lite_selfplay.errors import LiteSelfPlayError
from lite_selfplay.models.adapters import Adapters
from lite_selfplay.models.transfers import on_host

Rate = Callable[[SeatConfig, int, int], float]
"""The learning rate of a seat's update (from 0) of so many."""


def learning_rate(config: SeatConfig, update: int, total: int) -> float:
    """The learning rate of a seat's update number `update` (from 0) of `total`.

    Warm-up rises linearly over ceil(warmup * total) updates and reaches the full rate with the last of them; the first
    update already moves. `linear` then falls to its last non-zero step, `cosine` likewise, `constant` stays.
    """
    warm = math.ceil(config.warmup * total)
    if update < warm:
        return config.lr * (update + 1) / warm
    if config.schedule == "constant":
        return config.lr
    left = max(0.0, (total - update) / max(1, total - warm))
    return config.lr * (left if config.schedule == "linear" else 0.5 * (1 - math.cos(math.pi * left)))


class SeatSchedule:
    """Learning rates by each seat's own updates, in the place of a torch scheduler.

    `totals` holds the updates that are expected of each seat in the whole run: where its schedule ends. `step` is
    called right after the optimizer's: a seat that holds a gradient has just moved, and only it ticks.
    """

    def __init__(
        self,
        optimizer: Optimizer,
        adapters: Adapters,
        seats: Mapping[str, SeatConfig],
        totals: Mapping[str, int],
        rate: Rate | None = None,
    ):
        self._rate = rate or learning_rate
        self.optimizer, self._adapters, self._seats, self._totals = optimizer, adapters, seats, dict(totals)
        self.apply()

    def expect(self, totals: Mapping[str, int]) -> None:
        """Let schedules end elsewhere, from the next update on."""
        self._totals |= totals
        self.apply()

    def step(self) -> None:
        for group in self.optimizer.param_groups:
            if any(p.grad is not None for p in group["params"]):
                self._adapters.moved(group["seat"])
        self.apply()

    def apply(self) -> None:
        """Write the learning rate of each seat's next update into its parameter group."""
        for group in self.optimizer.param_groups:
            seat = group["seat"]
            group["lr"] = self._rate(self._seats[seat], self._adapters.updates[seat], self._totals[seat])


def seat_groups(adapters: Adapters, seats: Mapping[str, SeatConfig]) -> list[dict[str, Any]]:
    """A parameter group a seat, holding its name, the bound of its gradient's norm and its weight decay."""
    return [
        {
            "params": list(adapters.parameters(seat).values()),
            "seat": seat,
            "lr": config.lr,
            "clip": config.clip,
            "weight_decay": config.weight_decay,
        }
        for seat, config in seats.items()
    ]


def make_optimizer(adapters: Adapters, seats: Mapping[str, SeatConfig]) -> Optimizer:
    """AdamW over all seats. A seat without a gradient keeps `grad = None`, and AdamW leaves it alone.

    On a card a seat moves in a few kernels.
    """
    on_card = next(iter(adapters.parameters(adapters.seats[0]).values())).is_cuda
    return adamw(seat_groups(adapters, seats), fused=on_card)


def adamw(parameters: Any, *, fused: bool, **options: Any) -> Optimizer:
    """torch's AdamW, `fused` into a few kernels or not; either way torch counts what it writes (`Tensor._version`).

    The fused kernels write weights without counting that, and whoever serves a seat's weights goes by the count.
    """
    optimizer = torch.optim.AdamW(parameters, fused=fused or None, **options)
    if fused:
        optimizer.register_step_post_hook(_count_as_written)
    return optimizer


def _count_as_written(optimizer: Optimizer, *_: Any) -> None:
    increment_version([p for group in optimizer.param_groups for p in group["params"] if p.grad is not None])


def optimizer_state(optimizer: Optimizer, adapters: Adapters) -> dict[str, Tensor]:
    """The optimizer's state as named tensors on the CPU: `seat/parameter/exp_avg` and so on."""
    found: dict[str, Tensor] = {}
    for seat in adapters.seats:
        for name, parameter in adapters.parameters(seat).items():
            for key, value in optimizer.state.get(parameter, {}).items():
                found[f"{seat}/{name}/{key}"] = value if isinstance(value, Tensor) else torch.tensor(float(value))
    return on_host(found)


def load_optimizer_state(optimizer: Optimizer, adapters: Adapters, state: Mapping[str, Tensor]) -> None:
    """Put back what `optimizer_state` took. Raises LiteSelfPlayError for a tensor that belongs to no parameter."""
    known = {f"{seat}/{name}": p for seat in adapters.seats for name, p in adapters.parameters(seat).items()}
    optimizer.state.clear()
    for path, tensor in state.items():
        owner, _, key = path.rpartition("/")
        if owner not in known:
            raise LiteSelfPlayError(f"the saved optimizer holds {owner!r}, which no seat of this run has")
        parameter = known[owner]
        # A count of steps is where the optimizer reads it: on the card only where it moves the weights in one kernel.
        place = "cpu" if key == "step" and not optimizer.defaults.get("fused") else parameter.device
        optimizer.state.setdefault(parameter, {})[key] = tensor.to(place, copy=True)


def reset_optimizer(optimizer: Optimizer, adapters: Adapters, seat: str) -> None:
    """Forget the momentum of one seat."""
    for parameter in adapters.parameters(seat).values():
        optimizer.state.pop(parameter, None)
