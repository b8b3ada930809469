"""Cold start: a few steps of supervised learning that teach seats (LoRA adapters) their output format, without a
teacher model.

One seat after the other learns examples of every role it may play, from the pool of `examples.py`. The optimizer is
then discarded, so training starts without momentum.
"""

from collections.abc import Sequence

from lite_selfplay.config import ColdStartSection, RoleConfig, RunConfig, SeatConfig
from lite_selfplay.data import Episode, Example, Group, Sample, Stream
from lite_selfplay.errors import TrainingError
from lite_selfplay.games.base import Game
from lite_selfplay.models.chat_template import Chat
from lite_selfplay.tasks.task import derived_seed
from lite_selfplay.training.examples import ExamplePool, Fits, PooledExample, roles_of, taught_roles
from lite_selfplay.training.rollout import written
from lite_selfplay.training.trainer import SelfPlayTrainer


def cold_start(
    trainer: SelfPlayTrainer, chat: Chat, game: Game, pool: ExamplePool, section: ColdStartSection, *, seed: int
) -> None:
    """Train every seat of a game on `section.steps` batches of examples, one seat after the other.

    The loss is the mean negative log-likelihood per completion token. A seat without examples is not trained, with a
    warning unless `section.roles` excludes all its roles. These steps do not count as updates of the seats. Raises
    TrainingError, naming seat and step, if a number is not finite; that step then updates nothing.
    """
    adapters, progress = trainer.adapters, trainer.monitor.progress
    counts = dict(adapters.updates), dict(adapters.versions)
    teacher = trainer.beside(_taught(trainer.config, section), teaching_rate)
    try:
        for seat in game.trained_seats():
            examples = list(pool.walk(game, seat, section.steps * section.examples_per_step, seed=seed))
            if examples:
                progress.phase(f"cold start of {seat}", total=section.steps)
                roles = tuple(role for role in roles_of(game, seat) if role in pool.roles)
                progress.say(_teach(teacher, chat, seat, roles, examples, section))
            elif set(roles_of(game, seat)) & set(taught_roles(game, section)):
                progress.warn(f"there are no examples for {seat}: it starts without a cold start")
    finally:
        adapters.updates, adapters.versions = counts


def _teach(
    teacher: SelfPlayTrainer,
    chat: Chat,
    seat: str,
    roles: tuple[str, ...],
    examples: Sequence[PooledExample],
    section: ColdStartSection,
) -> str:
    """Train a seat on examples in their order.

    Returns a line with the number of examples, and the loss of the first and last batch in nats per token.
    """
    losses: list[float] = []
    seen = tokens = 0
    teacher.expect({seat: section.steps})
    for step in range(section.steps):
        batch = examples[seen : seen + section.examples_per_step]
        drawn = [written(chat, Example(one.prompt, one.completion)) for one in batch]
        group = Group([Sample(completion, None, advantage=1.0) for completion in drawn])
        report = teacher.update(step, Episode([Stream(roles[0], [group])]), {roles[0]: seat})
        (found,) = report.streams
        if report.nonfinite is not None or found.logprob is None:
            raise TrainingError(
                f"{report.nonfinite} at step {step + 1} of the cold start of {seat}: a smaller cold_start.lr may help"
            )
        losses.append(-found.logprob)
        seen, tokens = seen + found.rows, tokens + found.tokens
        teacher.monitor.progress.advance(len(losses), note=f"loss {losses[-1]:.2f}")
    return (
        f"cold start of {seat} as {' and '.join(roles)}, {seen} examples, {tokens:,} tokens in all: "
        f"loss {losses[0]:.2f} -> {losses[-1]:.2f}"
    )


def _taught(config: RunConfig, section: ColdStartSection) -> RunConfig:
    """The configuration for learning examples: only their likelihood, a mean over tokens, one update per step."""
    own = {"lr": section.lr, "clip": 1.0, "weight_decay": 0.0}
    return config.model_copy(
        update={
            "roles": dict.fromkeys(config.roles, RoleConfig(loss="dapo")),
            "seats": {name: seat.model_copy(update=own) for name, seat in config.seats.items()},
            "run": config.run.model_copy(update={"minibatches": 1}),
        }
    )


def within_limits(chat: Chat, config: RunConfig, max_completion_tokens: int) -> Fits:
    """A test whether an example is within the run's limits: a longer one would teach a seat to continue past them."""

    def fits(role: str, example: Example) -> bool:
        prompt, completion_ids = chat.conversation(example.prompt, example.completion)
        most = config.roles[role].max_completion_tokens or max_completion_tokens
        return len(completion_ids) <= most and len(prompt.ids) <= config.run.max_prompt_tokens

    return fits


def playing_config(config: RunConfig) -> RunConfig:
    """The configuration for sampling examples from the base: the cold start's temperature, and another seed."""
    temperature, seed = config.cold_start.temperature, derived_seed(config.run.seed, "cold start")
    roles = {name: role.model_copy(update={"temperature": temperature}) for name, role in config.roles.items()}
    return config.model_copy(update={"roles": roles, "run": config.run.model_copy(update={"seed": seed})})


def teaching_rate(seat: SeatConfig, step: int, steps: int) -> float:
    """The learning rate at a step (from 0): warm-up to the full rate in a quarter of the steps, at most 5, then linear
    decay to a tenth of it at the last step."""
    warm = max(1, min(5, steps // 4))
    return seat.lr * ((step + 1) / warm if step < warm else 1.0 - 0.9 * (step - warm + 1) / max(1, steps - warm))
