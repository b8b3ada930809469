"""The optimizer's side of seats: a parameter group each, a schedule over a seat's own updates, state as tensors.

And what a loss is multiplied by in float16, so that small gradients are not rounded to 0: see `LossScale`.
"""

import math
from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import Any

import torch
from torch import Tensor
from torch.autograd.graph import increment_version
from torch.nn.utils import get_total_norm
from torch.optim import Optimizer

from lite_selfplay.config import SeatConfig
from lite_selfplay.errors import LiteSelfPlayError
from lite_selfplay.models.adapters import Adapters
from lite_selfplay.models.backends.base import Backend
from lite_selfplay.models.transfers import on_host, read

LARGEST = 16
"""Exponent of the largest factor, that of torch's scaler at its start."""
BACK = 3
"""What an overflow takes off the exponent: an update is computed again seldom, and a few bits of small gradients are
less than it."""
GROWS_AFTER = 200
"""Updates without an overflow after which the factor is doubled."""


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
        self._optimizer, self._adapters, self._seats, self._totals = optimizer, adapters, seats, dict(totals)
        self.apply()

    def expect(self, totals: Mapping[str, int]) -> None:
        """Let schedules end elsewhere, from the next update on."""
        self._totals |= totals
        self.apply()

    def step(self) -> None:
        for group in self._optimizer.param_groups:
            if any(p.grad is not None for p in group["params"]):
                self._adapters.moved(group["seat"])
        self.apply()

    def apply(self) -> None:
        """Write the learning rate of each seat's next update into its parameter group."""
        for group in self._optimizer.param_groups:
            seat = group["seat"]
            group["lr"] = self._rate(self._seats[seat], self._adapters.updates[seat], self._totals[seat])

    def get_last_lr(self) -> list[float]:
        return [group["lr"] for group in self._optimizer.param_groups]

    def state_dict(self) -> dict[str, Any]:
        return {}


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
    return adamw(seat_groups(adapters, seats), fused=on_card(adapters))


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


def on_card(adapters: Adapters) -> bool:
    """Whether the seats' weights are on a card."""
    return next(iter(adapters.parameters(adapters.seats[0]).values())).is_cuda


def gradient_norm(gradients: Sequence[Tensor]) -> Tensor:
    """The norm of all of a seat's gradients together, where they are."""
    return get_total_norm(gradients)


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


class Undo:
    """Everything that updates change, as it was: kept on the CPU, for a step that must move nothing or all."""

    def __init__(self, optimizer: Optimizer, adapters: Adapters):
        self._optimizer, self._adapters = optimizer, adapters
        self.weights = {seat: adapters.state(seat) for seat in adapters.seats}
        self._moments = optimizer_state(optimizer, adapters)
        self._counts = dict(adapters.updates), dict(adapters.versions)

    def put_back(self) -> None:
        """Undo every update since then, to the bit. The learning rates are the schedule's to apply again."""
        for seat, state in self.weights.items():
            self._adapters.load_state(seat, state)
        load_optimizer_state(self._optimizer, self._adapters, self._moments)
        self._adapters.updates, self._adapters.versions = map(dict, self._counts)


def reset_optimizer(optimizer: Optimizer, adapters: Adapters, seat: str) -> None:
    """Forget the momentum of one seat."""
    for parameter in adapters.parameters(seat).values():
        optimizer.state.pop(parameter, None)


def largest(tensors: Iterable[Tensor]) -> Tensor:
    """The largest absolute value in the tensors, where they are: not finite where one of their numbers is not."""
    found = [tensor.detach() for tensor in tensors if tensor.numel()]
    if not found:
        return torch.zeros(())
    return get_total_norm(found, math.inf, foreach=None if found[0].is_cuda else False)


def largest_weights(adapters: Adapters) -> dict[str, Tensor]:
    """The largest absolute weight of every seat, under a name such as `a weight of seat A`."""
    return {f"a weight of seat {seat}": largest(adapters.parameters(seat).values()) for seat in adapters.seats}


def find_nonfinite(adapters: Adapters, optimizer: Optimizer | None = None) -> str | None:
    """What of a seat is not finite, such as `a weight of seat A`; None where all is well.

    With an optimizer its state is looked at too.
    """
    found = largest_weights(adapters)
    for seat in adapters.seats:
        if optimizer is None:
            break
        states = [optimizer.state.get(p, {}) for p in adapters.parameters(seat).values()]
        values = [value for state in states for value in state.values() if isinstance(value, Tensor)]
        if values:
            found[f"the optimizer's state of seat {seat}"] = largest(values)
    return first_nonfinite(found)


def first_nonfinite(found: Mapping[str, Tensor]) -> str | None:
    """The name of the first of some numbers that is not finite; a card is waited for once."""
    values = zip(found, read(list(found.values())), strict=True)
    return next((name for name, value in values if not all(map(math.isfinite, value))), None)


class LossScale:
    """The factor of a run's losses: 1 where `needed` is false.

    It starts where the gradient in the logits is about 1, which leaves a float16 as many bits above as below. torch's
    gradient scaler finds its factor by throwing steps away, each of which was minutes of sampling. Here an update that
    overflows is computed again from the same completions with a smaller factor, and none is lost. The factor is a power
    of two on the host: to multiply by it and to divide again rounds nothing, and no card is waited for.
    """

    def __init__(self, needed: bool):
        self.needed = needed
        self.exponent: int | None = None
        self._good = 0

    @property
    def factor(self) -> float:
        """At least 1."""
        return 2.0 ** (self.exponent or 0)

    def of(self, loss: Tensor, logprobs: Tensor) -> Tensor:
        """A loss times the factor, which the run's first loss decides by its slope in log-probabilities."""
        if not self.needed:
            return loss
        if self.exponent is None:
            (slope,) = torch.autograd.grad(loss, logprobs, retain_graph=True)
            steepest = float(slope.abs().max())
            known = steepest > 0 and math.isfinite(steepest)
            self.exponent = min(LARGEST, max(0, math.floor(-math.log2(steepest)))) if known else None
        return loss * self.factor

    def take_off(self, gradients: list[Tensor]) -> None:
        """Divide gradients by the factor, in place."""
        if self.factor != 1 and gradients:
            torch._foreach_mul_(gradients, 1 / self.factor)

    def lower(self) -> bool:
        """After an overflow: whether there is a smaller factor to try."""
        if not self.exponent:
            return False
        self.exponent, self._good = max(0, self.exponent - BACK), 0
        return True

    def agree(self, exponents: Sequence[int | None]) -> None:
        """Go on with the smallest of the exponents that several processes found, none where nobody has found one."""
        known = [exponent for exponent in exponents if exponent is not None]
        self.exponent = min(known, default=None)

    def held(self) -> None:
        """After an update that did not overflow."""
        if self.exponent is None:
            return
        self._good += 1
        if self._good >= GROWS_AFTER and self.exponent < LARGEST:
            self.exponent, self._good = self.exponent + 1, 0

    def state(self) -> dict[str, Any]:
        """What `restore` takes, as JSON."""
        return {"exponent": self.exponent, "updates": self._good}

    def restore(self, state: Any) -> None:
        """Go on from a saved state. Raises ValueError for what is none."""
        if not isinstance(state, dict):
            raise ValueError(f"the loss scale is {state!r}")
        exponent, good = state.get("exponent"), state.get("updates")
        if not (exponent is None or (type(exponent) is int and 0 <= exponent <= LARGEST)):
            raise ValueError(f"the exponent of the loss scale is {exponent!r}")
        if not (type(good) is int and good >= 0):
            raise ValueError(f"the updates of the loss scale are {good!r}")
        self.exponent, self._good = exponent, good


def loss_scale(backend: Backend) -> LossScale:
    """One that is needed where weights are multiplied in float16."""
    return LossScale(backend.compute_dtype == torch.float16)
