"""Cold start: a few steps of supervised learning that teach seats their output format, without a teacher.

One seat after the other learns examples of every role it may play, from a pool that `examples.py` gathered. The
optimizer is thrown away afterwards: training starts with seats that have moved and no momentum.
"""

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass

import torch

from lite_selfplay.config import ColdStartSection, RunConfig
from lite_selfplay.data import Example
from lite_selfplay.errors import TrainingError
from lite_selfplay.games.base import Game
from lite_selfplay.models.backends.base import Backend
from lite_selfplay.models.chat import Chat, Conversation
from lite_selfplay.models.logprobs.batch import Batch, Way, cut
from lite_selfplay.models.transfers import read
from lite_selfplay.tasks.base import derived_seed
from lite_selfplay.training.examples import ExamplePool, Fits, PooledExample, roles_of
from lite_selfplay.training.optimizer import adamw, gradient_norm, loss_scale, on_card
from lite_selfplay.training.progress import Progress
from lite_selfplay.training.ranks import ALONE, Ranks

_CLIP = 1.0
_WARM_UP = 5
_LAST_SHARE = 0.1


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
    steps_that_fit: Callable[[int], int] | None = None,
) -> dict[str, SeatReport]:
    """Train every seat of a game on `section.steps` batches of examples, one seat after the other; a report on each.

    The loss is the mean negative log-likelihood per completion token of a batch, of which at most `microbatch_tokens`
    padded tokens (one example at the least) are read at a time. Several processes share each batch out (`ranks`).
    `poll` is called between microbatches and may raise to stop. `steps_that_fit` is asked once, after the first batch,
    with the number of seats that learn, and says how many batches each of them does.
    A seat without examples is left as it is, with a warning unless `section.roles` leaves out all it plays. Raises
    TrainingError naming seat and step where a loss or a gradient is not finite; then that step has moved nothing.
    """
    progress = progress or Progress()
    reports: dict[str, SeatReport] = {}
    learning = _learning(game, pool, section, seed, progress)
    steps = _Steps(section.steps, len(learning), steps_that_fit, progress)
    with backend.updating():
        for seat, examples in learning.items():
            progress.phase(f"cold start of {seat}", total=steps.number)
            fit = _Fit(backend, chat, seat, section, progress, poll, microbatch_tokens, ranks)
            roles = tuple(role for role in roles_of(game, seat) if role in pool.roles)
            reports[seat] = fit.run(roles, examples, steps)
            progress.say(reports[seat].sentence())
    return reports


def _learning(
    game: Game, pool: ExamplePool, section: ColdStartSection, seed: int, progress: Progress
) -> dict[str, list[PooledExample]]:
    """The examples of each seat that learns, in the order in which it reads them."""
    found = {}
    for seat in game.trained_seats():
        examples = list(pool.walk(game, seat, section.steps * section.examples_per_step, seed=seed))
        if section.roles is not None and not set(roles_of(game, seat)) & set(section.roles):
            continue
        if examples:
            found[seat] = examples
        else:
            progress.warn(f"there are no examples for {seat}: it starts without a cold start")
    return found


class _Steps:
    """How many batches each seat learns: as many as asked for, or as fit once the first one was seen."""

    def __init__(self, asked: int, seats: int, that_fit: Callable[[int], int] | None, progress: Progress):
        self.number, self._seats, self._that_fit, self._progress = asked, seats, that_fit, progress

    def first_is_over(self, seat: str) -> None:
        if self._that_fit is None:
            return
        asked, self.number, self._that_fit = self.number, self._that_fit(self._seats), None
        if self.number < asked:
            self._progress.say(f"{self.number} of {asked} batches of the cold start fit into the minutes of the run")
            self._progress.phase(f"cold start of {seat}", total=self.number)


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
        fused = on_card(backend.adapters)
        self.optimizer = adamw(self.parameters, fused=fused, lr=section.lr, weight_decay=0.0)
        self.scale = loss_scale(backend)

    def run(self, roles: tuple[str, ...], examples: Sequence[PooledExample], steps: _Steps) -> SeatReport:
        """Learn the examples in their order, a batch a step."""
        size = self.section.examples_per_step
        losses: list[float] = []
        seen = tokens = 0
        try:
            while len(losses) < steps.number:
                drawn = examples[seen : seen + size]
                batch = [self.chat.conversation(example.prompt, example.completion) for example in drawn]
                losses.append(self._learn(batch, len(losses), steps.number))
                seen, tokens = seen + len(drawn), tokens + sum(len(row.completion_ids) for row in batch)
                steps.first_is_over(self.seat)
                self.progress.advance(len(losses), note=f"loss {losses[-1]:.2f}")
        finally:
            self.optimizer.zero_grad(set_to_none=True)
        return SeatReport(self.seat, roles, losses[0], losses[-1], seen, tokens)

    def _learn(self, batch: Sequence[Conversation], step: int, steps: int) -> float:
        """One of so many updates, computed again at a smaller scale where it overflows in float16; returns the loss."""
        tokens = sum(len(row.completion_ids) for row in batch)
        rows = self.ranks.part(batch, lambda row: len(row.prompt_ids) + len(row.completion_ids))
        while True:
            losses = self._backward(rows, tokens)
            self.scale.take_off(self._gradients())
            if not self.ranks.alone:
                losses = self._shared(losses, step)
            gradients = self._gradients()
            norm = gradient_norm(gradients)
            *found, (size,) = read([*losses, norm])
            self._require_finite([value for (value,) in found], step)
            if math.isfinite(size):
                break
            if not self.scale.lower():
                raise TrainingError(f"the gradient of seat {self.seat} is {size} at {self._where(step)}")
            self.optimizer.zero_grad(set_to_none=True)
        self.optimizer.param_groups[0]["lr"] = self.section.lr * lr_share(step, steps)
        torch.nn.utils.clip_grads_with_norm_(self.parameters, _CLIP, norm)
        self.optimizer.step()
        self.scale.held()
        self.optimizer.zero_grad(set_to_none=True)
        return sum(value for (value,) in found)

    def _gradients(self) -> list[torch.Tensor]:
        return [p.grad for p in self.parameters if p.grad is not None]

    def _shared(self, losses: Sequence[torch.Tensor], step: int) -> list[torch.Tensor]:
        """The losses of all processes' rows; the seat's gradient becomes that of all of them.

        Raises TrainingError for a loss that is not finite.
        """
        own = [value for (value,) in read(losses)]
        self._require_finite(own, step)
        told = self.ranks.gather(f"the loss of seat {self.seat}, {self._where(step)}", [own, self.scale.exponent])
        self.scale.agree([exponent for _, exponent in told])
        for parameter in self.parameters:
            if parameter.grad is None:
                parameter.grad = torch.zeros_like(parameter)
        self.ranks.add_up(self._gradients())
        return [torch.tensor(x, device=self.parameters[0].device) for theirs, _ in told for x in theirs]

    def _require_finite(self, losses: Sequence[float], step: int) -> None:
        for value in losses:
            if not math.isfinite(value):
                raise TrainingError(f"the loss of seat {self.seat} is {value} at {self._where(step)}")

    def _backward(self, rows: Sequence[Conversation], tokens: int) -> list[torch.Tensor]:
        """Add up the gradient of the loss of rows of a batch of so many tokens; returns its parts by microbatch."""
        losses = []
        self.backend.adapters.activate(self.seat)
        for micro in microbatches(rows, self.budget, self.backend.way()):
            self.poll()
            with self.backend.adapters.cast_together(self.backend.compute_dtype):
                with self.backend.autocast():
                    logprobs, _ = self.backend.token_logprobs(micro)
                    loss = -logprobs.sum() / tokens
                self.scale.of(loss, logprobs).backward()
            losses.append(loss.detach())
        return losses

    def _where(self, step: int) -> str:
        return f"step {step + 1} of its cold start: a smaller cold_start.lr may help"


def microbatches(rows: Sequence[Conversation], budget: int, way: Way) -> list[Batch]:
    """Rows by length, cut into batches of at most `budget` tokens (one row at the least)."""
    ordered = sorted(rows, key=lambda row: (len(row.completion_ids), len(row.prompt_ids)))
    return [batch for _, batch in cut(ordered, lambda row: (row.prompt_ids, row.completion_ids), budget, way)]
