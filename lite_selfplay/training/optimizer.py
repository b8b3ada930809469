"""The optimizer for seats (LoRA adapters): one parameter group and schedule for each, and the state as tensors."""

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

Rate = Callable[[SeatConfig, int, int], float]  # see `learning_rate`


def learning_rate(config: SeatConfig, update: int, total: int) -> float:
    """The learning rate of a seat's update number `update` (from 0) of `total`.

    Warm-up rises linearly over ceil(warmup * total) updates, from above 0 to the full rate. Then `constant` stays, and
    `linear` and `cosine` fall to just above 0 at the last update.
    """
    warm = math.ceil(config.warmup * total)
    if update < warm:
        return config.lr * (update + 1) / warm
    if config.schedule == "constant":
        return config.lr
    left = max(0.0, (total - update) / max(1, total - warm))
    return config.lr * (left if config.schedule == "linear" else 0.5 * (1 - math.cos(math.pi * left)))


class SeatSchedule:
    """Sets learning rates by each seat's own number of updates, instead of a torch scheduler.

    `totals` holds the updates expected of each seat in the whole run. Call `step` right after the optimizer's: it
    counts an update for the seats that have a gradient.
    """

    def __init__(
        self,
        optimizer: Optimizer,
        adapters: Adapters,
        seats: Mapping[str, SeatConfig],
        totals: Mapping[str, int],
        rate: Rate = learning_rate,
    ):
        self.optimizer, self._adapters, self._seats = optimizer, adapters, seats
        self._totals, self._rate = dict(totals), rate
        self.apply()

    def expect(self, totals: Mapping[str, int]) -> None:
        """Change the expected updates of these seats, from the next update on."""
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
    """A parameter group for each seat, with its name, the bound of its gradient's norm and its weight decay."""
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
    """AdamW over all seats. It does not update a seat without a gradient (`grad` None)."""
    on_gpu = next(iter(adapters.parameters(adapters.seats[0]).values())).is_cuda
    return adamw(seat_groups(adapters, seats), fused=on_gpu)


def adamw(parameters: Any, *, fused: bool, **options: Any) -> Optimizer:
    """torch's AdamW, `fused` into a few GPU kernels or not.

    The fused kernels do not count their writes in `Tensor._version`, by which servers of a seat's weights notice
    updates: a hook counts them.
    """
    optimizer = torch.optim.AdamW(parameters, fused=fused or None, **options)
    if fused:
        optimizer.register_step_post_hook(
            lambda own, *_: increment_version([p for g in own.param_groups for p in g["params"] if p.grad is not None])
        )
    return optimizer


def optimizer_state(optimizer: Optimizer, adapters: Adapters) -> dict[str, Tensor]:
    """The optimizer's state as named tensors on the CPU: `seat/parameter/exp_avg` and so on."""
    found = {
        f"{seat}/{name}/{key}": value
        for seat in adapters.seats
        for name, parameter in adapters.parameters(seat).items()
        for key, value in optimizer.state.get(parameter, {}).items()
    }
    return on_host(found)


def load_optimizer_state(optimizer: Optimizer, adapters: Adapters, state: Mapping[str, Tensor]) -> None:
    """Restore the result of `optimizer_state`. Raises LiteSelfPlayError for a tensor that belongs to no parameter."""
    known = {f"{seat}/{name}": p for seat in adapters.seats for name, p in adapters.parameters(seat).items()}
    optimizer.state.clear()
    for path, tensor in state.items():
        owner, _, key = path.rpartition("/")
        if owner not in known:
            raise LiteSelfPlayError(f"the saved optimizer holds {owner!r}, which no seat of this run has")
        parameter = known[owner]
        # The count of steps must be where the optimizer reads it: on the GPU only if AdamW is fused.
        device = "cpu" if key == "step" and not optimizer.defaults.get("fused") else parameter.device
        optimizer.state.setdefault(parameter, {})[key] = tensor.to(device, copy=True)


def reset_optimizer(optimizer: Optimizer, adapters: Adapters, seat: str) -> None:
    """Forget the momentum of one seat."""
    for parameter in adapters.parameters(seat).values():
        optimizer.state.pop(parameter, None)
