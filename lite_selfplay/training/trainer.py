"""The trainer: one step's update of the seats, from the episode that a game has played.

    for part in parts(episode):                   # one, or `run.minibatches` of them
        for stream in part:                       # what one role did, played by one seat
            for micro in microbatches(stream):    # one seat in the forward pass and in the backward pass
                backward(loss(micro))
        optimizer.step()                          # moves the seats that have a gradient, and no other

The loss is TRL's (`trl.py`); the loop over steps is the session's. A step in which a number is not finite, or whose
completions were sampled from other weights than it trains, moves nothing: its gradients are dropped, no schedule ticks,
and its report says what was seen.
"""

import math
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from functools import partial
from typing import Any, TypeVar

import torch
from torch import Tensor

from lite_selfplay.config import RunConfig
from lite_selfplay.data import Episode, Restore, Snapshot
from lite_selfplay.errors import TrainingError
from lite_selfplay.models.adapters import BASE
from lite_selfplay.models.backends.base import Backend, is_out_of_memory
from lite_selfplay.training.admission import NotFinite
from lite_selfplay.training.microbatches import MicroBatch, TokenBudget, microbatches
from lite_selfplay.training.optimizer import (
    SeatSchedule,
    Undo,
    find_nonfinite,
    gradient_scaler,
    make_optimizer,
    reset_optimizer,
)
from lite_selfplay.training.progress import Progress
from lite_selfplay.training.sampler_check import Foreign, Read, SamplerCheck
from lite_selfplay.training.trl import Loss, make_loss
from lite_selfplay.training.updates import Learning, StepReport, StreamUpdate, admit

T = TypeVar("T")


def reference_name(seat: str) -> str:
    """The snapshot that a KL term pulls a seat towards."""
    return f"{seat}@reference"


class SelfPlayTrainer:
    """Trains the seats of a run, a step at a time.

    `updates` are the steps that are expected to move each seat, over which its schedule goes; all steps where it is not
    given. `poll` is called between microbatches and may raise to stop: then the step has moved nothing.
    """

    def __init__(
        self,
        *,
        backend: Backend,
        config: RunConfig,
        tokenizer: Any,
        output_dir: str,
        progress: Progress | None = None,
        poll: Callable[[], None] = lambda: None,
        updates: Mapping[str, int] | None = None,
    ):
        self.backend, self.adapters, self.config = backend, backend.adapters, config
        self.progress, self._poll = progress or Progress(), poll
        self.loss = make_loss(backend, config, tokenizer, output_dir)
        self.adapters.activate(self.adapters.seats[0])
        self.optimizer = make_optimizer(self.adapters, config.seats)
        self.scaler = gradient_scaler(backend)
        totals = self._totals(updates or dict.fromkeys(config.seats, config.run.steps))
        self.schedule = SeatSchedule(self.optimizer, self.adapters, config.seats, totals)
        self.check = SamplerCheck(backend)
        self._undo: Undo | None = None
        self._learner = ""
        self._budget = TokenBudget(config.run.tokens_at_once(on_cpu=backend.device.type == "cpu"), self.progress.warn)

    def expect(self, updates: Mapping[str, int]) -> None:
        """Let the seats' schedules go over other numbers of steps than were expected."""
        self.schedule.expect(self._totals(updates))

    def _totals(self, steps: Mapping[str, int]) -> dict[str, int]:
        return {seat: max(1, count * self.config.run.minibatches) for seat, count in steps.items()}

    # A step

    def update(self, step: int, episode: Episode, seats: Mapping[str, str]) -> StepReport:
        """Train on what was played at a step (from 0), `seats` saying who played each role, and carry out its actions.

        Raises GameError for samples that would train a seat wrongly, TrainingError where memory does not suffice for a
        single row or a seat's weights are no longer finite.
        """
        started = time.perf_counter()
        untouched = [StreamUpdate(stream.role, seats[stream.role]) for stream in episode.streams]
        report = StepReport.of(step, episode, untouched)
        with self.backend.updating():
            try:
                self._learn(report)
            except (NotFinite, Foreign) as found:
                self._skip(report, found)
            except BaseException:
                self._put_back()
                raise
        self._undo = None
        self._note_seats(report, {})
        report.update_s = time.perf_counter() - started
        if report.trained and (what := find_nonfinite(self.adapters)) is not None:
            raise TrainingError(
                f"the update of step {step + 1} left {what} that is not finite: lower its learning rate"
            )
        for action in episode.actions:
            self._carry_out(action)
        return report

    def _learn(self, report: StepReport) -> None:
        """All updates of a step, each on its part of every stream."""
        if (found := find_nonfinite(self.adapters)) is not None:
            raise NotFinite(f"{found} is not finite")
        learning = admit(report, self.config, self.adapters)
        numbers = [k for k in range(self.config.run.minibatches) if any(x.moves(k) for x in learning)]
        if len(numbers) > 1:
            self._undo = Undo(self.optimizer, self.adapters)
            self._fitting(partial(self._read_before, learning, numbers[1:]))
        seats = {x.update.seat for x in learning if any(map(x.moves, numbers))}
        before = {seat: self.adapters.state(seat) for seat in seats}
        for k in numbers:
            read = self._fitting(partial(self._backward_all, learning, k))
            if k == numbers[0]:
                self._compare(learning, read)
            self._move(report)
        self.check.before |= before

    # Gradients, seat by seat

    def _backward_all(self, learning: Sequence[Learning], part: int) -> list[list[Read]]:
        """The gradients of a part of every stream, and the log-probabilities of its rows."""
        done = [self._backward(x, part) for x in learning]
        for x, (found, _) in zip(learning, done, strict=True):
            x.add(part, found)
        return [read for _, read in done]

    def _backward(self, learning: Learning, part: int) -> tuple[StreamUpdate, list[Read]]:
        found, read = StreamUpdate(learning.stream.role, learning.update.seat), list[Read]()
        for micro in self._microbatches(learning, part):
            loss, logprobs = self._learn_from(micro)
            read += _by_row(micro, logprobs)
            found.loss += loss.value.item()
            found.rows += len(micro.rows)
            found.tokens += micro.tokens
            if loss.kl is not None:
                found.kl = (found.kl or 0.0) + loss.kl * micro.token_share
            if loss.clipped is not None:
                found.clipped = (found.clipped or 0.0) + loss.clipped * micro.token_share
        return found, read

    def _learn_from(self, micro: MicroBatch) -> tuple[Loss, Tensor]:
        """Forwards and backwards through a microbatch: its loss, and its log-probabilities (N,)."""
        role = micro.role
        with self.backend.autocast():
            reference = self._reference_logprobs(micro) if role.beta else None
            self.adapters.activate(micro.seat)  # and active until its backward pass is done
            logprobs, entropies = self._logprobs(micro, entropy_gradient=role.entropy != 0.0)
            loss = self.loss.of(micro, logprobs, entropies, reference)
        if not torch.isfinite(loss.value):
            raise NotFinite(f"the loss of {self._learner} is {loss.value.item()}")
        self.scaler.scale(loss.value).backward()
        return loss, logprobs

    def rehearse(self, micro: MicroBatch) -> None:
        """Compute a microbatch as an update would, and throw its gradient away: nothing moves.

        Raises what runs out: TrainingError where a number is not finite, and torch's errors for memory.
        """
        self._learner = f"a microbatch of {micro.seat}"
        with self.backend.updating():
            try:
                self._learn_from(micro)
            except NotFinite as found:
                raise TrainingError(f"{found}, before anything was learned") from None
            finally:
                self.loss.forget()
                self._drop_gradients()

    def _microbatches(self, learning: Learning, part: int) -> Iterator[MicroBatch]:
        """A part of a stream in microbatches, polling before each."""
        stream, seat = learning.stream, learning.update.seat
        self._learner = f"{stream.role} (seat {seat})"
        self.progress.activity(f"{seat} learns as {stream.role}")
        tokens, way = self._budget.tokens, self.backend.way()
        for micro in microbatches(learning.parts[part], seat, learning.role, tokens, way, replay=stream.replay):
            self._poll()
            self._budget.rows_in_flight = len(micro.rows)
            yield micro

    def _reference_logprobs(self, micro: MicroBatch) -> Tensor:
        name = BASE if micro.role.reference == "base" else reference_name(micro.seat)
        with self.adapters.speaking(name), torch.no_grad():
            return self._logprobs(micro)[0]

    def _logprobs(self, micro: MicroBatch, *, entropy_gradient: bool = False) -> tuple[Tensor, Tensor]:
        """Log-probabilities and entropies (N,) of a microbatch under the seat that is active."""
        found = self.backend.token_logprobs(micro.batch, micro.temperature, entropy_gradient=entropy_gradient)
        if not torch.isfinite(found[0].detach()).all():
            raise NotFinite(f"a log-probability of {self._learner} is not finite")
        return found

    def _read_before(self, learning: Sequence[Learning], numbers: Sequence[int]) -> None:
        """Put beside the rows of later parts their log-probabilities from before the first update.

        By the trainer itself, in the microbatches it will learn from: against those of the sampler, which rounds
        otherwise, the clip would act on rounding. A replay's ratio is to what was stored.
        """
        for x in learning:
            for k in () if x.stream.replay else numbers:
                read: list[Read] = []
                for micro in self._microbatches(x, k):
                    self.adapters.activate(micro.seat)
                    with self.backend.autocast(), torch.no_grad():
                        read += _by_row(micro, self._logprobs(micro)[0])
                x.remember(k, read)

    def _compare(self, learning: Sequence[Learning], read: Sequence[list[Read]]) -> None:
        """Hold what was computed before anything moved to what the sampler noted, and to the base. Raises Foreign."""
        for x, rows in zip(learning, read, strict=True):
            later = [(row, row.old) for part in x.parts for row in part if row.old is not None]
            x.compare([*rows, *later])
        seen = [x for x in learning if x.agreement.rows]
        self.check.measure_base([x.agreement for x in seen])
        for x in seen:
            x.update.sampler_gap, x.update.base_gap = x.agreement.gap, x.agreement.base_gap
        self.check.judge([x.agreement for x in seen])

    # One step of the optimizer: a group, a bound and a schedule of its own for every seat

    def _move(self, report: StepReport) -> None:
        """Bound each seat's gradient by itself, move the seats that have one, and tick their schedules.

        Raises NotFinite for a gradient whose norm is not, unless a gradient scaler is still looking for its scale.
        """
        self.scaler.unscale_(self.optimizer)
        norms: dict[str, float] = {}
        for group in self.optimizer.param_groups:
            moving = [p for p in group["params"] if p.grad is not None]
            if moving:
                norms[group["seat"]] = torch.nn.utils.clip_grad_norm_(moving, group["clip"]).item()
        odd = next((seat for seat, norm in norms.items() if not math.isfinite(norm)), None)
        report.overflow = report.overflow or (odd is not None and self.scaler.get_scale() > 1.0)
        if odd is not None:
            self._drop_gradients()
        else:
            self._note_seats(report, norms)
        self.scaler.step(self.optimizer)  # also without a gradient, or a scaler would not lower its scale
        self.scaler.update()
        if odd is not None and not report.overflow:
            roles = " and ".join(update.role for update in report.streams if update.seat == odd)
            raise NotFinite(f"the gradient of {roles} (seat {odd}) has the norm {norms[odd]}")
        self.schedule.step()
        self._drop_gradients()

    def _note_seats(self, report: StepReport, norms: Mapping[str, float]) -> None:
        """Put into the report, for every seat, what its last update was done with, and how many it has seen."""
        for group in self.optimizer.param_groups:
            seat = group["seat"]
            if seat in norms or seat not in report.seats:
                report.seats[seat] = {"lr": group["lr"], "grad_norm": norms.get(seat)}
            report.seats[seat]["updates"] = self.adapters.updates[seat]

    def _carry_out(self, action: Snapshot | Restore) -> None:
        if isinstance(action, Snapshot):
            self.adapters.snapshot(action.seat, action.name)
            return
        self.check.before[action.seat] = self.adapters.state(action.seat)
        self.adapters.restore(action.seat, action.name)
        if action.reset_optimizer:
            reset_optimizer(self.optimizer, self.adapters, action.seat)

    # What goes wrong

    def _skip(self, report: StepReport, found: NotFinite | Foreign) -> None:
        """Leave a step without an update, because of a number that is not finite or of whose samples it holds."""
        if isinstance(found, Foreign):
            report.foreign = str(found)
        else:
            report.nonfinite = str(found)
        report.streams = [update.nothing_moved() for update in report.streams]
        report.seats.clear()
        self._put_back()

    def _put_back(self) -> None:
        """Without a gradient the optimizer moves no seat, and no schedule ticks; earlier updates of the step are
        undone."""
        self.loss.forget()
        self._drop_gradients()
        if self._undo is not None:
            self._undo.put_back()
            self.schedule.apply()
            self._undo = None

    def _drop_gradients(self) -> None:
        self.optimizer.zero_grad(set_to_none=True)

    def _fitting(self, work: Callable[[], T]) -> T:
        """What `work` comes to. Where memory runs out it begins again, in microbatches of half the size, which the rest
        of the run keeps to."""
        while True:
            try:
                return work()
            except (MemoryError, RuntimeError) as error:
                if not is_out_of_memory(error):
                    raise
            # Out of the handler: what it held is free now.
            self.loss.forget()
            self._drop_gradients()
            self.backend.release_memory()
            self._budget.halve(self._learner)


def _by_row(micro: MicroBatch, logprobs: Tensor) -> list[Read]:
    """Each row of a microbatch with its log-probabilities, from (N,)."""
    return list(zip(micro.rows, micro.batch.split(logprobs.tolist()), strict=True))
