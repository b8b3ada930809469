"""What a loss is multiplied by in float16, so that small gradients are not rounded to 0.

torch's gradient scaler finds its factor by throwing steps away, each of which was minutes of sampling. Here an update
that overflows is computed again from the same completions with a smaller factor, and none is lost. The factor is a
power of two on the host: to multiply by it and to divide again rounds nothing, and no card is waited for.
"""

import math
from collections.abc import Sequence
from typing import Any

import torch
from torch import Tensor

from lite_selfplay.models.backends.base import Backend

LARGEST = 16
"""Exponent of the largest factor, that of torch's scaler at its start."""
BACK = 3
"""What an overflow takes off the exponent: an update is computed again seldom, and a few bits of small gradients are
less than it."""
GROWS_AFTER = 200
"""Updates without an overflow after which the factor is doubled."""


class LossScale:
    """The factor of a run's losses: 1 where `needed` is false.

    It starts where the gradient in the logits is about 1, which leaves a float16 as many bits above as below.
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
    """One that is needed where weights are multiplied in float16 on a card."""
    return LossScale(backend.device.type == "cuda" and backend.compute_dtype == torch.float16)
