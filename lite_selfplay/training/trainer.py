"""The trainer: updates the seats (named LoRA adapters) from a step's episode.

    for part in parts(episode):                   # `run.minibatches` of them
        for stream in part:                       # the samples of one role, played by one seat
            for micro in microbatches(stream):    # one seat in the forward and backward pass
                backward(loss(micro))
        optimizer.step()                          # updates only the seats that have a gradient

The loss is TRL's or a user's own (`losses.py`). A step with a number that is not finite, or with completions sampled
from other weights than it trains, updates nothing, and its report says why (`atomic_update.py`).
"""

import math
import time
from collections.abc import Iterator, Mapping, Sequence
from functools import partial
from itertools import chain
from typing import Any

import torch
from torch import Tensor
from torch.nn.utils import get_total_norm

from lite_selfplay.config import RunConfig
from lite_selfplay.data import START, Blend, Episode, Snapshot
from lite_selfplay.errors import TrainingError
from lite_selfplay.models.adapters import BASE
from lite_selfplay.models.backends.backend import Backend, samples_elsewhere
from lite_selfplay.training.atomic_update import Guard, TokenBudget, add_up, failing_together, foreign_in_any
from lite_selfplay.training.losses import MicroBatch, TrlLoss
from lite_selfplay.training.on_policy import Advantages, NotFinite
from lite_selfplay.training.optimizer import Rate, SeatSchedule, learning_rate, make_optimizer, reset_optimizer
from lite_selfplay.training.progress import Monitor
from lite_selfplay.training.sampler_check import Read, SamplerCheck, gap_turn
from lite_selfplay.training.updates import Done, Learning, StepReport, StreamUpdate, admit, microbatches


def reference_name(seat: str) -> str:
    """The name of the snapshot that is the reference of a seat's KL term."""
    return f"{seat}{START}"


class SelfPlayTrainer:
    """Trains the seats of a run, a step at a time.

    `updates` is the number of steps that are expected to update each seat, for its schedule; by default all steps.
    `rate` replaces the configured schedule. `monitor` is polled between microbatches and may raise to stop: then the
    step updates nothing.
    """

    def __init__(
        self,
        *,
        backend: Backend,
        loss: TrlLoss,
        config: RunConfig,
        monitor: Monitor | None = None,
        updates: Mapping[str, int] | None = None,
        rate: Rate = learning_rate,
    ):
        self.backend, self.adapters, self.config = backend, backend.adapters, config
        self.loss, self.monitor = loss, monitor or Monitor()
        self._ranks = self.monitor.ranks
        self.adapters.activate(self.adapters.seats[0])
        self.optimizer = make_optimizer(self.adapters, config.seats)
        totals = self._totals(updates or dict.fromkeys(config.seats, config.run.steps))
        self.schedule = SeatSchedule(self.optimizer, self.adapters, config.seats, totals, rate)
        self.check = SamplerCheck(backend)
        self._compares = True
        self.budget = TokenBudget(backend.tokens_at_once(config.run), self.monitor.progress.warn)
        self.guard = Guard(backend, loss, self.schedule, self.budget, self._ranks)

    def beside(self, config: RunConfig, rate: Rate) -> "SelfPlayTrainer":
        """Another trainer of the same seats, for examples only, with its own optimizer and learning rates."""
        other = SelfPlayTrainer(backend=self.backend, loss=self.loss, config=config, monitor=self.monitor, rate=rate)
        other._compares = False  # no sampler has noted log-probabilities of examples
        return other

    def expect(self, updates: Mapping[str, int]) -> None:
        """Change the number of steps over which the seats' schedules run."""
        self.schedule.expect(self._totals(updates))

    def state(self) -> dict[str, Any]:
        """The trainer's part of a checkpoint, except the optimizer's state, as JSON."""
        scale = {"loss_scale": self.guard.scale.state()} if self.guard.scale.needed else {}
        lowered = self.budget.tokens < self.backend.tokens_at_once(self.config.run)
        return {**scale, **({"microbatch_tokens": self.budget.tokens} if lowered else {})}

    def restore(self, state: Mapping[str, Any]) -> None:
        """Continue from a result of `state`, or from a state without one. Raises ValueError if it is malformed."""
        if self.guard.scale.needed and "loss_scale" in state:
            self.guard.scale.restore(state["loss_scale"])
        self.budget.tokens = max(1, min(self.budget.tokens, int(state.get("microbatch_tokens", self.budget.tokens))))

    def _totals(self, steps: Mapping[str, int]) -> dict[str, int]:
        return {seat: max(1, count * self.config.run.minibatches) for seat, count in steps.items()}

    # A step

    def update(self, step: int, episode: Episode, seats: Mapping[str, str]) -> StepReport:
        """Train on a step's episode, in which `seats` played the roles; then carry out its actions. Steps
        count from 0.

        Raises GameError for samples that would train a seat wrongly, LossError if a user's own loss fails,
        TrainingError if memory does not suffice for a single row or a seat's weights are no longer finite.
        """
        started = time.perf_counter()
        advantages: list[Advantages] = [[[None] * len(g.samples) for g in x.groups] for x in episode.streams]
        untouched = [StreamUpdate(stream.role, seats[stream.role]) for stream in episode.streams]
        report = StepReport(step, episode, advantages, untouched)
        with self.backend.updating(), self.guard.step(report):
            self._learn(report)
        self._note_seats(report, {})
        report.update_s = time.perf_counter() - started
        for action in episode.actions:
            if isinstance(action, Snapshot):
                self.adapters.snapshot(action.seat, action.name)
            else:
                self.check.before[action.seat] = self.adapters.state(action.seat)
                if isinstance(action, Blend):
                    self.adapters.blend(action.seat, action.parents, action.noise, action.seed)
                else:
                    self.adapters.restore(action.seat, action.name)
                if isinstance(action, Blend) or action.reset_optimizer:
                    reset_optimizer(self.optimizer, self.adapters, action.seat)
        return report

    def _learn(self, report: StepReport) -> None:
        """Do all updates of a step, each on its part of every stream."""
        try:
            learning = admit(report, self.config, self.adapters, elsewhere=samples_elsewhere(self.backend))
        except NotFinite:
            self.guard.read()  # if weights are not finite, they are the cause: name them instead
            raise
        parts = [k for k in range(self.config.run.minibatches) if any(x.has_gradient(k) for x in learning)]
        if not parts:
            self.guard.read()
            return
        if len(parts) > 1:
            self.guard.remember()
            with failing_together(self._ranks, f"reading before the updates of step {report.step + 1}", NotFinite):
                self.guard.fitting(partial(self._read_before, learning, parts[1:]))
        seats = {x.update.seat for x in learning if any(map(x.has_gradient, parts))}
        before = {seat: self.adapters.state(seat, wait=False) for seat in seats}
        if not self.guard.proved:
            smallest = min((m for x in learning for m in self._microbatches(x, parts[0])), key=lambda one: one.tokens)
            with self.check.where_memory_allows():
                self.guard.prove(smallest, self._backward, self._reference_logprobs)
        turn = gap_turn(report.step)
        for part in parts:
            norms, sizes, done = self._gradients(report, learning, part)
            if part == parts[0] and self._compares:
                self._compare(learning, [[row for one in stream for row in one.rows] for stream in done], turn)
            self._step_optimizer(report, norms, sizes)
        self.check.before |= before
        updated = [x for x in learning if x.update.seat in seats and x.agreement.few]
        if updated and turn is not None:
            one = updated[turn % len(updated)]
            with self.monitor.unstopped():  # the seats are updated: a stop now would repeat the step on top
                one.update.step_gap = self.check.step_gap(one.agreement)

    # Gradients, seat by seat

    def _gradients(
        self, report: StepReport, learning: Sequence[Learning], part: int
    ) -> tuple[dict[str, Tensor], dict[str, float], list[list[Done]]]:
        """Compute the gradients of a part of every stream, again with a smaller scale if float16 overflows.

        Returns the norm of each seat's gradient, on the device and on the host, and the microbatches of each stream
        (with several processes, those of this one). The host waits for the GPU once, after all kernels are queued; with
        several processes once more, before gradients are summed.
        """
        guard = self.guard
        while True:
            with guard.nonfinite_in_any(report) as figures:
                done = guard.fitting(
                    lambda: [[self._backward(m) for m in self._microbatches(x, part)] for x in learning]
                )
                unread = [one for stream in done for one in stream]
                for gradients in self._seat_gradients().values():
                    guard.scale.unscale(gradients)
                if not self._ranks.alone:
                    guard.read(unread)
                    unread = []
                    figures.append([x.figures(part, own) for x, own in zip(learning, done, strict=True)])
            add_up(self._ranks, self.adapters, {x.update.seat for x in learning if x.has_gradient(part)})
            norms = {seat: get_total_norm(gradients) for seat, gradients in self._seat_gradients().items()}
            sizes = dict(zip(norms, guard.read(unread, list(norms.values())), strict=True))
            if all(map(math.isfinite, sizes.values())) or not guard.scale.lower():
                break
            guard.drop_gradients()
        for of_process in figures or [[x.figures(part, own) for x, own in zip(learning, done, strict=True)]]:
            for x, found in zip(learning, of_process, strict=True):
                x.update.add(found)
        return norms, sizes, done

    def _seat_gradients(self) -> dict[str, list[Tensor]]:
        found = {g["seat"]: [p.grad for p in g["params"] if p.grad is not None] for g in self.optimizer.param_groups}
        return {seat: gradients for seat, gradients in found.items() if gradients}

    def _backward(self, micro: MicroBatch) -> Done:
        role, reference = micro.role, self._reference_logprobs(micro)
        self.adapters.activate(micro.seat)  # until its backward pass is done
        with self.adapters.cast_together(self.backend.compute_dtype):
            with self.backend.autocast():
                logprobs, entropies = self.backend.token_logprobs(
                    micro.batch, micro.temperature, entropy_gradient=role.entropy != 0.0
                )
                loss = self.loss.of(micro, logprobs, entropies, reference)
            if not loss.value.requires_grad:
                raise TrainingError(
                    f"the log-probabilities of the backend {self.backend.name} carry no gradient: nothing would be "
                    "learned. Use --backend transformers"
                )
            self.guard.scale.of(loss.value, logprobs).backward()
        found = {
            "logprobs": logprobs,
            "reference": reference,
            "loss": loss.value,
            "kl": loss.kl,
            "clipped": loss.clipped,
        }
        return Done(micro, self.budget.in_flight[1], {name: x.detach() for name, x in found.items() if x is not None})

    def _microbatches(self, learning: Learning, part: int) -> Iterator[MicroBatch]:
        """Yield a part of a stream in microbatches, polling before each."""
        role, seat, rows = learning.update.role, learning.update.seat, learning.parts[part]
        self.monitor.progress.activity(f"{seat} learns as {role}")
        for micro in microbatches(rows, seat, learning.role, self.budget.tokens, self.backend.way(), ranks=self._ranks):
            self.monitor.poll()
            self.budget.in_flight = len(micro.rows), f"{role} (seat {seat})"
            yield micro

    def _reference_logprobs(self, micro: MicroBatch) -> Tensor | None:
        """The log-probabilities (N,) under the reference of the KL term; None without such a term."""
        if not micro.role.beta:
            return None
        name = BASE if micro.role.reference == "base" else reference_name(micro.seat)
        with self.adapters.inference(name), torch.no_grad(), self.backend.autocast():
            return self.backend.token_logprobs(micro.batch, micro.temperature)[0]

    def _read_before(self, learning: Sequence[Learning], numbers: Sequence[int]) -> None:
        """Compute the log-probabilities of later parts before the first update, for their ratios.

        The sampler's own log-probabilities round differently, so the clip would act on rounding. A replay's ratio is to
        the stored ones.
        """
        for x in learning:
            for k in () if x.replay else numbers:
                done: list[Done] = []
                for micro in self._microbatches(x, k):
                    self.adapters.activate(micro.seat)
                    with self.backend.autocast(), torch.no_grad():
                        logprobs, _ = self.backend.token_logprobs(micro.batch, micro.temperature)
                    done.append(Done(micro, self.budget.in_flight[1], {"logprobs": logprobs}))
                self.guard.read(done)
                x.remember(k, [row for one in done for row in one.rows])

    def _compare(self, learning: Sequence[Learning], read: Sequence[list[Read]], turn: int | None) -> None:
        """Compare log-probabilities from before the update with the sampler's and, if it is a `turn`, the base's."""
        for x, rows in zip(learning, read, strict=True):
            x.agreement.rows = [*rows, *chain.from_iterable(x.before.values())]
        seen = [x for x in learning if x.agreement.rows]
        if turn is not None:
            self.check.measure_base([x.agreement for x in seen])
        with foreign_in_any(self._ranks, learning):
            self.check.judge([x.agreement for x in seen])

    def _step_optimizer(self, report: StepReport, norms: Mapping[str, Tensor], sizes: Mapping[str, float]) -> None:
        """Clip each seat's gradient and update the seats that have one. Raises NotFinite if a norm is not."""
        if (odd := next((seat for seat, size in sizes.items() if not math.isfinite(size)), None)) is not None:
            roles = " and ".join(update.role for update in report.streams if update.seat == odd)
            raise NotFinite(f"the gradient of {roles} (seat {odd}) has the norm {sizes[odd]}")
        for group in self.optimizer.param_groups:
            if group["seat"] in norms:
                torch.nn.utils.clip_grads_with_norm_(group["params"], group["clip"], norms[group["seat"]])
        self._note_seats(report, sizes)
        self.optimizer.step()
        self.guard.scale.note_success()
        self.schedule.step()
        self.guard.drop_gradients()

    def _note_seats(self, report: StepReport, norms: Mapping[str, float]) -> None:
        """Report each seat's learning rate, gradient norm and number of updates."""
        for group in self.optimizer.param_groups:
            seat = group["seat"]
            if seat in norms or seat not in report.seats:
                report.seats[seat] = {"lr": group["lr"], "grad_norm": norms.get(seat)}
            report.seats[seat]["updates"] = self.adapters.updates[seat]
