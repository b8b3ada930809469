"""Cold start: a few steps of supervised learning that teach seats their output format, without a teacher.

One seat after the other learns examples of every role it may play, from a pool that `examples.py` gathered. The
optimizer is thrown away afterwards: training starts with seats that have moved and no momentum.
"""

import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass

import torch

from lite_selfplay.config import ColdStartSection, RunConfig
from lite_selfplay.data import Example
from lite_selfplay.errors import TrainingError
from lite_selfplay.games.base import Game
from lite_selfplay.models.backends.base import Backend
from lite_selfplay.models.chat import Chat, Conversation
from lite_selfplay.models.logprobs.batch import Batch, Way, cut
from lite_selfplay.tasks.base import derived_seed
from lite_selfplay.training.examples import ExamplePool, Fits, PooledExample, roles_of
from lite_selfplay.training.optimizer import gradient_scaler
from lite_selfplay.training.progress import Progress
from lite_selfplay.training.ranks import ALONE, Ranks

_CLIP = 1.0
_WARM_UP = 5
_LAST_SHARE = 0.1
_FIRST_SCALE = 1024.0  # what a gradient scaler starts from: the usual 65536 overflows, and skips, the first few steps


@dataclass(frozen=True)
class SeatReport:
    """What a seat learned: the loss of its first and last batch in nats a token, and how much it read.

    `examples` counts readings, `tokens` those of the completions.
    """

    seat: str
    roles: tuple[str, ...]
    first_loss: float
    last_loss: float
    examples: int
    tokens: int

    def sentence(self) -> str:
        roles = " and ".join(self.roles)
        return (
            f"cold start of {self.seat} as {roles}, {self.examples} examples of {self.tokens:,} tokens: "
            f"loss {self.first_loss:.2f} -> {self.last_loss:.2f}"
        )


@dataclass(frozen=True)
class ColdStartReport:
    """The seats that learned; one that found no example of its roles is not among them."""

    seats: Mapping[str, SeatReport]


def cold_start(
    backend: Backend,
    chat: Chat,
    game: Game,
    pool: ExamplePool,
    section: ColdStartSection,
    *,
    seed: int,
    progress: Progress | None = None,
    poll: Callable[[], None] = lambda: None,
    microbatch_tokens: int = 1024,
    ranks: Ranks = ALONE,
) -> ColdStartReport:
    """Train every seat of a game on `section.steps` batches of examples, one seat after the other.

    The loss is the mean negative log-likelihood per completion token of a batch, of which at most `microbatch_tokens`
    padded tokens (one example at the least) are read at a time. Several processes share each batch out (`ranks`).
    `poll` is called between microbatches and may raise to stop.
    A seat without examples is left as it is, with a warning unless `section.roles` leaves out all it plays. Raises
    TrainingError naming seat and step where a loss or a gradient is not finite; then that step has moved nothing.
    """
    progress = progress or Progress()
    reports = {}
    with backend.updating():
        for seat in game.trained_seats():
            examples = list(pool.walk(game, seat, section.steps * section.examples_per_step, seed=seed))
            if section.roles is not None and not set(roles_of(game, seat)) & set(section.roles):
                continue
            if not examples:
                progress.warn(f"there are no examples for {seat}: it starts without a cold start")
                continue
            progress.phase(f"cold start of {seat}", total=section.steps)
            fit = _Fit(backend, chat, seat, section, progress, poll, microbatch_tokens, ranks)
            reports[seat] = fit.run(tuple(role for role in roles_of(game, seat) if role in pool.roles), examples)
            progress.say(reports[seat].sentence())
    return ColdStartReport(reports)


def within_limits(chat: Chat, config: RunConfig, max_completion_tokens: int) -> Fits:
    """Whether an example keeps to the run's limits: the prompt, and the completion with its end-of-sequence token.

    A longer example would teach a seat to go on past the place where the run cuts it off.
    """

    def fits(role: str, example: Example) -> bool:
        row = chat.conversation(example.prompt, example.completion)
        most = config.roles[role].max_completion_tokens or max_completion_tokens
        return len(row.completion_ids) <= most and len(row.prompt_ids) <= config.run.max_prompt_tokens

    return fits


def playing_config(config: RunConfig) -> RunConfig:
    """The configuration under which the base plays for examples: cold start's temperature, randomness of its own."""
    temperature, seed = config.cold_start.temperature, derived_seed(config.run.seed, "cold start")
    roles = {name: role.model_copy(update={"temperature": temperature}) for name, role in config.roles.items()}
    return config.model_copy(update={"roles": roles, "run": config.run.model_copy(update={"seed": seed})})


def lr_share(step: int, steps: int) -> float:
    """The share of the full learning rate at a step (from 0): a warm-up of a quarter of the steps, at most 5, that
    reaches 1 with its last; then linearly down to 0.1 at the last step."""
    warm = max(1, min(_WARM_UP, steps // 4))
    if step < warm:
        return (step + 1) / warm
    return 1.0 - (1.0 - _LAST_SHARE) * (step - warm + 1) / (steps - warm)


class _Fit:
    """AdamW over one seat."""

    def __init__(
        self,
        backend: Backend,
        chat: Chat,
        seat: str,
        section: ColdStartSection,
        progress: Progress,
        poll: Callable[[], None],
        microbatch_tokens: int,
        ranks: Ranks,
    ):
        self.ranks = ranks
        self.backend, self.chat, self.seat, self.section = backend, chat, seat, section
        self.progress, self.poll, self.budget = progress, poll, microbatch_tokens
        self.parameters = list(backend.adapters.parameters(seat).values())
        self.optimizer = torch.optim.AdamW(self.parameters, lr=section.lr, weight_decay=0.0)
        self.scaler = gradient_scaler(backend, _FIRST_SCALE)

    def run(self, roles: tuple[str, ...], examples: Sequence[PooledExample]) -> SeatReport:
        """Learn the examples in their order, a batch a step."""
        size, steps = self.section.examples_per_step, self.section.steps
        losses, tokens = [], 0
        try:
            for step in range(steps):
                drawn = examples[step * size : (step + 1) * size]
                batch = [self.chat.conversation(example.prompt, example.completion) for example in drawn]
                losses.append(self._backward(batch, step))
                self._move(step)
                tokens += sum(len(row.completion_ids) for row in batch)
                self.progress.advance(step + 1, note=f"loss {losses[-1]:.2f}")
        finally:
            self.optimizer.zero_grad(set_to_none=True)
        return SeatReport(self.seat, roles, losses[0], losses[-1], len(examples), tokens)

    def _backward(self, batch: Sequence[Conversation], step: int) -> float:
        """Add up the gradient of a batch's loss, microbatch by microbatch; returns the loss."""
        tokens = sum(len(row.completion_ids) for row in batch)
        if self.ranks.alone:
            return self._backward_part(batch, tokens, step)
        part = self.ranks.part(batch, lambda row: len(row.prompt_ids) + len(row.completion_ids))
        loss = self._backward_part(part, tokens, step)
        told = self.ranks.gather(f"the loss of seat {self.seat}, {self._where(step)}", loss)
        for parameter in self.parameters:
            if parameter.grad is None:
                parameter.grad = torch.zeros_like(parameter)
        self.ranks.add_up([parameter.grad for parameter in self.parameters if parameter.grad is not None])
        return math.fsum(theirs for theirs, _ in told)

    def _backward_part(self, rows: Sequence[Conversation], tokens: int, step: int) -> float:
        """The same for rows of a batch of so many tokens."""
        total = 0.0
        self.backend.adapters.activate(self.seat)
        for micro in microbatches(rows, self.budget, self.backend.way()):
            self.poll()
            with self.backend.autocast():
                loss = negative_log_likelihood(self.backend, micro) / tokens
            if not torch.isfinite(loss):
                raise TrainingError(f"the loss of seat {self.seat} is {loss.item()} at {self._where(step)}")
            self.scaler.scale(loss).backward()
            total += loss.item()
        return total

    def _move(self, step: int) -> None:
        self.optimizer.param_groups[0]["lr"] = self.section.lr * lr_share(step, self.section.steps)
        self.scaler.unscale_(self.optimizer)
        norm = torch.nn.utils.clip_grad_norm_(self.parameters, _CLIP)
        if not torch.isfinite(norm) and not self.scaler.is_enabled():  # a scaler skips a step that overflowed
            raise TrainingError(f"the gradient of seat {self.seat} is {norm.item()} at {self._where(step)}")
        self.scaler.step(self.optimizer)
        self.scaler.update()
        self.optimizer.zero_grad(set_to_none=True)

    def _where(self, step: int) -> str:
        return f"step {step + 1} of its cold start: a smaller cold_start.lr may help"


def microbatches(rows: Sequence[Conversation], budget: int, way: Way) -> list[Batch]:
    """Rows by length, cut into batches of at most `budget` tokens (one row at the least)."""
    ordered = sorted(rows, key=lambda row: (len(row.completion_ids), len(row.prompt_ids)))
    return [batch for _, batch in cut(ordered, lambda row: (row.prompt_ids, row.completion_ids), budget, way)]


def negative_log_likelihood(backend: Backend, batch: Batch) -> torch.Tensor:
    """The sum over a batch's completion tokens in nats, under the seat that is active: a differentiable scalar."""
    logprobs, _ = backend.token_logprobs(batch)
    return -logprobs.sum()
