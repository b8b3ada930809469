"""A step's update, shared out over the processes of a run: each has the gradients of its rows, and all take one step.

What is decided for all: whether a number was not finite, whether completions came from other weights, how many tokens
fit into a microbatch. What must be the same in all and is compared at every update: weights, advantages and examples.
"""

import contextlib
import hashlib
from collections.abc import Iterable, Iterator, Mapping, Sequence
from typing import Any

import torch

from lite_selfplay.errors import TrainingError
from lite_selfplay.models.adapters import Adapters
from lite_selfplay.training.admission import NotFinite
from lite_selfplay.training.microbatches import TokenBudget
from lite_selfplay.training.ranks import Ranks, Told
from lite_selfplay.training.sampler_check import Foreign
from lite_selfplay.training.scale import LossScale
from lite_selfplay.training.updates import Learning, StepReport, StreamUpdate

_SUMS = ("loss", "kl", "clipped", "rows", "tokens")


def checksums(adapters: Adapters, seats: Iterable[str]) -> dict[str, int]:
    """A number for each seat that is another one for other weights: the sum of their bits, whatever the order."""
    return {
        seat: sum(int(p.detach().view(torch.int32).sum(dtype=torch.int64)) for p in adapters.parameters(seat).values())
        for seat in seats
    }


@contextlib.contextmanager
def finite_in_all(ranks: Ranks, what: str) -> Iterator[None]:
    """A context in which NotFinite in one process is NotFinite in all; `what` is done in it."""
    odd = None
    try:
        yield
    except NotFinite as error:
        if ranks.alone:
            raise
        odd = str(error)
    told = [theirs for theirs, _ in ranks.gather(what, odd)] if not ranks.alone else []
    if (first := next((theirs for theirs in told if theirs is not None), None)) is not None:
        raise NotFinite(first)


class SharedUpdate:
    """One update of a step. `found` is what it did with each stream: of this process's rows, then of all."""

    def __init__(self, ranks: Ranks, adapters: Adapters, report: StepReport, budget: TokenBudget, scale: LossScale):
        self._ranks, self._adapters, self._report = ranks, adapters, report
        self._budget, self._scale = budget, scale
        self.found: Sequence[StreamUpdate] = ()

    @contextlib.contextmanager
    def nonfinite_in_any(self) -> Iterator[None]:
        """A context in which gradients are computed, and NotFinite in one process is NotFinite in all.

        Afterwards `found` is of all rows. Raises TrainingError where processes are no longer the same.
        """
        try:
            yield
            odd = None
        except NotFinite as error:
            if self._ranks.alone:
                raise
            odd = str(error)
        if self._ranks.alone:
            return
        told = self._ranks.gather(f"the update of step {self._report.step + 1}", self._facts(odd))
        self._require_same(told)
        self._budget.lower(min(int(theirs["budget"]) for theirs, _ in told))
        self._scale.agree([theirs["scale"] for theirs, _ in told])
        if (first := next((theirs["odd"] for theirs, _ in told if theirs["odd"] is not None), None)) is not None:
            raise NotFinite(first)
        streams = zip(*(theirs["found"] for theirs, _ in told), strict=True)
        self.found = [_added(own, parts) for own, parts in zip(self.found, streams, strict=True)]

    def add_up(self, seats: Iterable[str]) -> None:
        """Make each seat's gradient that of all rows; one that has none here, because its rows are elsewhere, too."""
        if self._ranks.alone:
            return
        for seat in sorted(seats):
            parameters = list(self._adapters.parameters(seat).values())
            for parameter in parameters:
                if parameter.grad is None:
                    parameter.grad = torch.zeros_like(parameter)
            self._ranks.add_up([p.grad for p in parameters if p.grad is not None])

    def _facts(self, odd: str | None) -> dict[str, Any]:
        advantages = hashlib.blake2b(repr(self._report.advantages).encode(), digest_size=8).hexdigest()
        return {
            "weights": checksums(self._adapters, self._adapters.seats),
            "rewards": advantages,
            "budget": self._budget.tokens,
            "scale": self._scale.exponent,
            "odd": odd,
            "found": [{key: getattr(update, key) for key in _SUMS} for update in self.found],
        }

    def _require_same(self, told: Told) -> None:
        first, step = told[0][0], self._report.step + 1
        for rank, (theirs, _) in enumerate(told):
            for seat, found in theirs["weights"].items():
                if found != first["weights"].get(seat):
                    raise TrainingError(
                        f"at step {step} process {rank} of this run has other weights in seat {seat} than process 0: "
                        "cards must be of one kind, with one set of packages"
                    )
            if theirs["rewards"] != first["rewards"]:
                raise TrainingError(
                    f"at step {step} process {rank} of this run came to other rewards than process 0: a game may "
                    "depend on its table and its own state alone (lite_selfplay.testing.check_game)"
                )


@contextlib.contextmanager
def foreign_in_any(ranks: Ranks, learning: Sequence[Learning]) -> Iterator[None]:
    """A context in which what was sampled is judged, and Foreign in one process is Foreign in all.

    Each judges its own rows; the mean differences in the streams' reports are those of all rows.
    """
    try:
        yield
        foreign = None
    except Foreign as error:
        if ranks.alone:
            raise
        foreign = str(error)
    if ranks.alone:
        return
    gaps = [[[x.agreement.gap, x.agreement.tokens], [x.agreement.base_gap, x.agreement.base_tokens]] for x in learning]
    told = [theirs for theirs, _ in ranks.gather("whose completions these are", {"gaps": gaps, "foreign": foreign})]
    for place, x in enumerate(learning):
        sampler, base = (_mean([theirs["gaps"][place][kind] for theirs in told]) for kind in (0, 1))
        if any(theirs["gaps"][place][0][1] or theirs["gaps"][place][1][1] for theirs in told):
            x.update.sampler_gap, x.update.base_gap = sampler, base
    if (first := next((theirs["foreign"] for theirs in told if theirs["foreign"] is not None), None)) is not None:
        raise Foreign(first)


def _added(own: StreamUpdate, parts: Sequence[Mapping[str, Any]]) -> StreamUpdate:
    """A stream's figures from those of all processes' parts, each of which is by its share of the whole stream."""
    found = StreamUpdate(own.role, own.seat)
    for key in _SUMS:
        values = [part[key] for part in parts if part[key] is not None]
        setattr(found, key, sum(values) if values else None)
    return found


def _mean(parts: Sequence[tuple[float | None, int]]) -> float | None:
    """The mean over all tokens, from means and numbers of tokens."""
    seen = [(gap, tokens) for gap, tokens in parts if gap is not None]
    total = sum(tokens for _, tokens in seen)
    return sum(gap * tokens for gap, tokens in seen) / total if total else None
