"""Makes an update atomic: every seat (a named LoRA adapter) is updated, or none, in all processes.

A number that is not finite ends a step, and earlier updates of the step are undone. If memory runs out, microbatches
are halved. In float16 losses are multiplied by a factor, so that small gradients are not rounded to 0. With several
processes, each computes the gradients of its rows. All decide together whether a number was not finite, whether
completions came from other weights, and how many tokens fit into a microbatch, and compare weights and advantages.

Before a run's first update, a backend's gradients are compared with those of plain torch: a backend can compute the
right loss and still return wrong gradients (a broken backward kernel, for example), and nothing else would notice.
Shapes: `N` tokens of all completions of a microbatch, `B` rows of `T` tokens.
"""

import contextlib
import math
import zlib
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from typing import Any, TypeVar

import torch
from torch import Tensor
from torch.nn.functional import cosine_similarity
from torch.nn.utils import get_total_norm
from torch.optim import Optimizer

from lite_selfplay.errors import TrainingError
from lite_selfplay.models.adapters import Adapters
from lite_selfplay.models.backends.backend import Backend, is_out_of_memory
from lite_selfplay.models.backends.transformers import TransformersBackend
from lite_selfplay.models.logprobs.token_logprobs import scores_of
from lite_selfplay.models.transfers import placed, to_lists
from lite_selfplay.training.losses import Given, MicroBatch, TrlLoss, loss_of, own_terms, tensor_of
from lite_selfplay.training.on_policy import NotFinite
from lite_selfplay.training.optimizer import SeatSchedule, load_optimizer_state, optimizer_state
from lite_selfplay.training.ranks import Ranks
from lite_selfplay.training.sampler_check import OffPolicyError
from lite_selfplay.training.updates import Done, Learning, StepReport, StreamUpdate

COSINE = 0.99  # required between the two gradients of a seat; rounding in bfloat16 leaves 0.999
NOISE = {torch.float32: 1e-6}  # the largest norm of a gradient of mere rounding; 1e-3 in half precision


def plain_gradients(
    backend: Backend, loss: TrlLoss, micro: MicroBatch, reference: Tensor | None, factor: float
) -> dict[str, Tensor]:
    """The gradients of `factor` times a microbatch's loss for the active seat, in plain torch.

    Each row passes through the whole model alone, without recomputed activations. `reference` (N,) are the
    log-probabilities of a KL term.
    """
    model: Any = backend.adapters.model
    parameters = backend.adapters.parameters(micro.seat)
    model.train(False)
    try:
        with backend.adapters.cast_together(backend.compute_dtype), backend.autocast():
            logprobs, entropies = _plain_logprobs(model, micro)
            given = Given.of(micro, logprobs, reference)
            own = loss.own.get(micro.role.loss)
            terms = plain_terms(micro, given) if own is None else own_terms(own, micro, given)
            value = loss_of(micro, given, terms, entropies)
        found = torch.autograd.grad(factor * value, list(parameters.values()), allow_unused=True)
    finally:
        model.train(True)
    return {
        name: torch.zeros_like(p) if g is None else g for (name, p), g in zip(parameters.items(), found, strict=True)
    }


def _plain_logprobs(model: Any, micro: MicroBatch) -> tuple[Tensor, Tensor]:
    base = getattr(model, "get_base_model", lambda: model)()
    cap, found = getattr(base.config.get_text_config(), "final_logit_softcapping", None), []
    for row in micro.rows:
        prompt, rest = row.completion.prompt_ids, row.completion.token_ids
        ids = placed([[*prompt, *rest]], base.device)
        hidden = base.base_model(input_ids=ids, use_cache=False).last_hidden_state[0, len(prompt) - 1 : -1]
        logits = base.get_output_embeddings()(hidden).float()
        capped = logits if cap is None else cap * (logits / cap).tanh()
        found.append(scores_of(capped, ids[0, len(prompt) :], micro.temperature, entropy_gradient=True))
    logprobs, entropies = zip(*found, strict=True)
    return torch.cat(logprobs), torch.cat(entropies)


def plain_terms(micro: MicroBatch, given: Given) -> Tensor:
    """The terms of a microbatch's loss, for each row or each token: TRL's arithmetic as formulas."""
    role, logprobs, lengths = micro.role, given.logprobs, given.mask.sum(-1)
    ratio = (logprobs - (logprobs.detach() if given.old is None else given.old)).exp()
    advantages = tensor_of(given.advantages, given.mask).reshape(len(given.mask), -1)
    if role.loss == "sequence":  # each token has its share of the completion's term
        advantages = advantages / lengths[:, None]
    clipped = ratio.clamp(1 - role.clip_ratio, 1 + role.clip_ratio)
    terms = -torch.minimum(ratio * advantages, clipped * advantages)
    if (kl := given.kl()) is not None:
        terms = terms + role.beta * kl
    if role.loss == "dapo":
        return terms
    sums = (terms * given.mask).sum(-1)
    return {"grpo": sums / lengths, "sequence": sums, "dr_grpo": sums / micro.max_tokens}[role.loss]


def require_alike(found: Mapping[str, Tensor], right: Mapping[str, Tensor], who: str) -> None:
    """Raises TrainingError, naming the tensors, if two gradients of an adapter have different directions."""
    one, other = (torch.cat([x.flatten().double() for x in side.values()]) for side in (found, right))
    if (cosine := cosine_similarity(one, other, dim=0)) >= COSINE:
        return
    pairs = {name: (found[name].flatten().double(), right[name].flatten().double()) for name in right}
    off = [name for name, (a, b) in pairs.items() if not a.equal(b) and cosine_similarity(a, b, dim=0) < COSINE]
    raise TrainingError(
        f"the gradient of {who} is not that of plain torch: their cosine is {cosine:.2f}, and {len(off)} tensors are "
        f"off, such as {', '.join(off[:3])}. Nothing was updated: use --backend transformers"
    )


LARGEST = 16  # exponent of the largest factor, which is the first one of torch's scaler
BACK = 3  # an overflow lowers the exponent by this: losing a few bits is cheaper than computing an update often again
GROWS_AFTER = 200  # updates without an overflow after which the factor is doubled
T = TypeVar("T")


class TokenBudget:
    """How many tokens a microbatch may hold: `tokens`, halved with a warning whenever memory runs out."""

    def __init__(self, tokens: int, warn: Callable[[str], None]):
        self.tokens, self._warn = tokens, warn
        self.in_flight = 0, ""  # the rows of the current microbatch, and the role and seat that learn from it

    def lower(self, tokens: int) -> None:
        """Adopt the smaller budget of another process."""
        if tokens < self.tokens:
            self.tokens = tokens
            self._warn(f"out of memory in the update of another process: from now on at most {tokens:,} tokens at once")

    def halve(self) -> None:
        """Raises TrainingError, naming role and seat, if the microbatch that was too large had one row."""
        rows, who = self.in_flight
        if rows == 1:
            raise TrainingError(
                f"out of memory in the update of one completion of {who}: lower max_completion_tokens or "
                "run.max_prompt_tokens, set model.gradient_checkpointing=true, or use a smaller model"
            )
        self.tokens //= 2
        self._warn(
            f"out of memory in the update: from now on at most {self.tokens:,} tokens at once. "
            f"--set run.microbatch_tokens={self.tokens} starts with that"
        )


class Guard:
    """Makes updates atomic. `budget` limits the tokens of a microbatch, `scale` is the factor of losses."""

    def __init__(self, backend: Backend, loss: TrlLoss, schedule: SeatSchedule, budget: TokenBudget, ranks: Ranks):
        self._backend, self._adapters, self._loss, self._ranks = backend, backend.adapters, loss, ranks
        self._schedule, self._optimizer, self._budget = schedule, schedule.optimizer, budget
        self.scale = LossScale(backend.compute_dtype == torch.float16)
        self.proved = backend.name == TransformersBackend.name or not ranks.alone
        self._before: tuple[Any, ...] | None = None
        self._suspects: dict[str, Tensor] = {}

    @contextlib.contextmanager
    def step(self, report: StepReport) -> Iterator[None]:
        """A context for a step's updates: any error undoes them. NotFinite and OffPolicyError are noted in the report
        instead of raised."""
        self._suspects, updated = largest_weights(self._adapters), False
        try:
            yield
            updated = True
        except (NotFinite, OffPolicyError) as found:
            setattr(report, "foreign" if isinstance(found, OffPolicyError) else "nonfinite", str(found))
            # Keep the comparisons, not the results of updates.
            report.streams = [
                StreamUpdate(was.role, was.seat, sampler_gap=was.sampler_gap, base_gap=was.base_gap)
                for was in report.streams
            ]
            report.seats.clear()
        finally:
            if not updated:
                self._undo()
            self._before = None
        if report.trained and (what := find_nonfinite(self._adapters)) is not None:
            raise TrainingError(
                f"the update of step {report.step + 1} left {what} that is not finite: lower its learning rate"
            )

    def remember(self) -> None:
        """Copy everything that updates change to the CPU, before the first of several updates."""
        weights = {seat: self._adapters.state(seat) for seat in self._adapters.seats}
        moments = optimizer_state(self._optimizer, self._adapters)
        self._before = weights, moments, dict(self._adapters.updates), dict(self._adapters.versions)

    def _undo(self) -> None:
        """Drop all gradients, and undo earlier updates of the step exactly."""
        self.drop_gradients()
        if self._before is not None:
            weights, moments, updates, versions = self._before
            for seat, state in weights.items():
                self._adapters.load_state(seat, state)
            load_optimizer_state(self._optimizer, self._adapters, moments)
            self._adapters.updates, self._adapters.versions = updates, versions
            self._schedule.apply()

    def drop_gradients(self) -> None:
        """Drop all gradients, and the tensors of an unfinished loss."""
        self._loss.forget()
        self._optimizer.zero_grad(set_to_none=True)

    def read(self, done: Sequence[Done] = (), others: Sequence[Tensor] = ()) -> list[float]:
        """Read the numbers of microbatches and, as the result, other scalars. Waits for the GPU once.

        Raises NotFinite for a number of a microbatch and, at a step's first call, for a weight.
        """
        values = iter(to_lists([*self._suspects.values(), *(x for one in done for x in one.numbers.values()), *others]))
        for name in self._suspects:
            if not all(map(math.isfinite, next(values))):
                raise NotFinite(f"{name} is not finite")
        self._suspects = {}
        for one in done:
            one.read = {name: next(values) for name in one.numbers}
            for name in ("reference", "logprobs", "loss"):
                if not all(map(math.isfinite, one.read.get(name, ()))):
                    loss = f"the loss of {one.learner} is {one.read[name][0]}"
                    raise NotFinite(loss if name == "loss" else f"a log-probability of {one.learner} is not finite")
        return [value for (value,) in values]

    def prove(
        self,
        micro: MicroBatch,
        backward: Callable[[MicroBatch], Any],
        reference_logprobs: Callable[[MicroBatch], Tensor | None],
    ) -> None:
        """Compare the gradients of a microbatch with those of plain torch. Raises TrainingError if they differ.

        If the rows' terms cancel out to mere rounding, the backend is not yet `proved`. If a number is not finite, the
        update will report it.
        """
        backend, self.proved = self._backend, True
        scale, self.scale = self.scale, LossScale(self.scale.needed)
        try:
            backward(micro)
            reference = reference_logprobs(micro)
            self._adapters.activate(micro.seat)
            parameters = self._adapters.parameters(micro.seat)
            found = {name: torch.zeros_like(p) if p.grad is None else p.grad for name, p in parameters.items()}
            right = plain_gradients(backend, self._loss, micro, reference, self.scale.factor)
            least = NOISE.get(backend.compute_dtype, 1e-3) * self.scale.factor
            if all(x.isfinite().all() for x in (*found.values(), *right.values())):
                self.proved = float(get_total_norm(list(right.values()))) > least
                if self.proved:
                    require_alike(found, right, f"seat {micro.seat}")
        finally:
            self.scale = scale
            self.drop_gradients()

    def fitting(self, work: Callable[[], T]) -> T:
        """The result of `work`; whenever memory runs out, it starts again with half the tokens for each microbatch."""
        while True:
            try:
                return work()
            except (MemoryError, RuntimeError) as error:
                if not is_out_of_memory(error):
                    raise
            # Outside the handler, which keeps tensors of the failed work alive.
            self.drop_gradients()
            self._backend.release_memory()
            self._budget.halve()

    @contextlib.contextmanager
    def nonfinite_in_any(self, report: StepReport) -> Iterator[list[list[dict[str, float]]]]:
        """A context for computing gradients: NotFinite in one process is raised in all.

        Yields a list for this process's figures of each stream, which afterwards holds those of all processes. Raises
        TrainingError if weights or advantages differ between processes.
        """
        step, figures = report.step + 1, list[list[dict[str, float]]]()

        def facts() -> dict[str, Any]:
            weights = {f"weights in seat {seat}": _checksum(self._adapters, seat) for seat in self._adapters.seats}
            return {
                "same": {**weights, "rewards": zlib.crc32(repr(report.advantages).encode())},
                "budget": self._budget.tokens,
                "scale": self.scale.exponent,
                "figures": figures,
            }

        with failing_together(self._ranks, f"the update of step {step}", NotFinite, facts) as gathered:
            yield figures
        for rank, theirs in enumerate(gathered):
            for name in (name for name, value in gathered[0]["same"].items() if theirs["same"][name] != value):
                raise TrainingError(
                    f"at step {step} process {rank} of this run has other {name} than process 0: all need the same "
                    "kind of GPU and the same packages, and a game may depend only on its table and its own state "
                    "(lite_selfplay.testing.check_game)"
                )
        if gathered:
            self._budget.lower(min(int(theirs["budget"]) for theirs in gathered))
            exponents = [theirs["scale"] for theirs in gathered if theirs["scale"] is not None]
            self.scale.exponent = min(exponents, default=None)
            figures[:] = [own for theirs in gathered for own in theirs["figures"]]


def largest(tensors: Iterable[Tensor]) -> Tensor:
    """The largest absolute value in the tensors, on their device: not finite if one of their numbers is not."""
    found = [tensor.detach() for tensor in tensors if tensor.numel()]
    foreach = None if found and found[0].is_cuda else False
    return get_total_norm(found, math.inf, foreach=foreach) if found else torch.zeros(())


def largest_weights(adapters: Adapters) -> dict[str, Tensor]:
    """The largest absolute weight of every seat, under a name such as `a weight of seat A`."""
    return {f"a weight of seat {seat}": largest(adapters.parameters(seat).values()) for seat in adapters.seats}


def find_nonfinite(adapters: Adapters, optimizer: Optimizer | None = None) -> str | None:
    """The first number that is not finite, such as `a weight of seat A`, also in an optimizer's state; else None."""
    found = largest_weights(adapters)
    kept = {} if optimizer is None else optimizer.state
    for seat in adapters.seats:
        if values := [x for p in adapters.parameters(seat).values() for x in kept.get(p, {}).values()]:
            found[f"the optimizer's state of seat {seat}"] = largest(values)
    numbers = zip(found, to_lists(list(found.values())), strict=True)
    return next((name for name, each in numbers if not all(map(math.isfinite, each))), None)


class LossScale:
    """The factor of a run's losses in float16; always 1 if not `needed`.

    At first it makes the steepest gradient by log-probabilities about 1, in the middle of float16's range. torch's
    scaler finds its factor by skipping steps, each of which took minutes of sampling; here an update that overflows is
    computed again with a smaller factor. Factors are powers of two, which do not round, and stay on the host.
    """

    def __init__(self, needed: bool):
        self.needed = needed
        self.exponent: int | None = None
        self._good = 0

    @property
    def factor(self) -> float:
        return 2.0 ** (self.exponent or 0)

    def of(self, loss: Tensor, logprobs: Tensor) -> Tensor:
        """The loss times the factor. A run's first loss sets the factor."""
        if not self.needed:
            return loss
        if self.exponent is None:
            (slope,) = torch.autograd.grad(loss, logprobs, retain_graph=True)
            steepest = float(slope.abs().max())
            known = steepest > 0 and math.isfinite(steepest)
            self.exponent = min(LARGEST, max(0, math.floor(-math.log2(steepest)))) if known else None
        return loss * self.factor

    def unscale(self, gradients: list[Tensor]) -> None:
        if self.factor != 1 and gradients:
            torch._foreach_mul_(gradients, 1 / self.factor)

    def lower(self) -> bool:
        """Lower the factor after an overflow. Returns False if it is already 1."""
        if not self.exponent:
            return False
        self.exponent, self._good = max(0, self.exponent - BACK), 0
        return True

    def note_success(self) -> None:
        """Count an update without an overflow, and double the factor after many."""
        if self.exponent is not None:
            self._good += 1
            if self._good >= GROWS_AFTER and self.exponent < LARGEST:
                self.exponent, self._good = self.exponent + 1, 0

    def state(self) -> dict[str, Any]:
        return {"exponent": self.exponent, "updates": self._good}

    def restore(self, state: Any) -> None:
        """Continue from a result of `state`. Raises ValueError if it is malformed."""
        match state:
            case {"exponent": int() | None as exponent, "updates": int(good)}:
                if good >= 0 and 0 <= (exponent or 0) <= LARGEST:
                    self.exponent, self._good = exponent, good
                    return
        raise ValueError(f"the loss scale is {state!r}")


# Several processes


@contextlib.contextmanager
def failing_together(
    ranks: Ranks, what: str, kind: type[Exception], facts: Callable[[], Any] = lambda: None
) -> Iterator[list[Any]]:
    """A context for doing `what`: an error of this kind in one process is raised in all.

    Yields a list that afterwards holds the `facts` of all processes, if there are several.
    """
    message, gathered = None, list[Any]()
    try:
        yield gathered
    except kind as error:
        if ranks.alone:
            raise
        message = str(error)
    if not ranks.alone:
        answers = ranks.gather(what, [message, facts()])
        gathered += [theirs for _, theirs in answers]
        for first in (theirs for theirs, _ in answers if theirs is not None):
            raise kind(first)


def _checksum(adapters: Adapters, seat: str) -> int:
    """The sum of the bits of a seat's weights, independent of their order."""
    return sum(int(p.detach().view(torch.int32).sum(dtype=torch.int64)) for p in adapters.parameters(seat).values())


def add_up(ranks: Ranks, adapters: Adapters, seats: Iterable[str]) -> None:
    """Sum each seat's gradients over all processes, including those without rows of the seat."""
    for seat in () if ranks.alone else sorted(seats):
        parameters = list(adapters.parameters(seat).values())
        for parameter in parameters:
            if parameter.grad is None:
                parameter.grad = torch.zeros_like(parameter)
        ranks.add_up([p.grad for p in parameters if p.grad is not None])


@contextlib.contextmanager
def foreign_in_any(ranks: Ranks, learning: Sequence[Learning]) -> Iterator[None]:
    """A context for `SamplerCheck.judge`, on the rows of each process: OffPolicyError in one is raised in all.

    Afterwards each stream's report has the mean differences of all rows.
    """

    def gaps() -> list[Any]:
        """Each stream's mean differences from the sampler and the base, with their numbers of tokens."""
        seen = [x.agreement for x in learning]
        return [((of.gap, sum(len(own) for _, own in of.noted)), (of.base_gap, of.base_tokens)) for of in seen]

    gathered: list[Any] = []
    try:
        with failing_together(ranks, "the sampler's check", OffPolicyError, gaps) as gathered:
            yield
    finally:
        for x, parts in zip(learning, zip(*(gathered or [gaps()]), strict=True), strict=True):
            sampler, base = (_mean(kind) for kind in zip(*parts, strict=True))
            if sampler is not None or base is not None:
                x.update.sampler_gap, x.update.base_gap = sampler, base


def _mean(parts: Sequence[tuple[float | None, int]]) -> float | None:
    """The mean over all tokens, from means and numbers of tokens; a single mean stays exact."""
    seen = [(gap, tokens) for gap, tokens in parts if gap is not None]
    if len(seen) == 1:
        return seen[0][0]
    return sum(gap * tokens for gap, tokens in seen) / sum(tokens for _, tokens in seen) if seen else None
