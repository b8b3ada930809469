"""The seats as they enter training: what a cold start teaches them, and what is kept of them to refer to."""

from lite_selfplay.data import Example
from lite_selfplay.runs.budget import Budget
from lite_selfplay.runs.held import Held
from lite_selfplay.runs.plan import problems_of
from lite_selfplay.runs.saving import Saver
from lite_selfplay.tasks.base import derived_seed
from lite_selfplay.tasks.split import training_side
from lite_selfplay.training.cold_start import cold_start, playing_config, within_limits
from lite_selfplay.training.examples import gather
from lite_selfplay.training.rollout import LiveTable
from lite_selfplay.training.trainer import SelfPlayTrainer, reference_name


def teach(held: Held, trainer: SelfPlayTrainer, saver: Saver, budget: Budget) -> None:
    """The cold start: gather examples, write them into the run folder, and let every seat learn its own."""
    config, ready, section, seed = held.config, held.ready, held.config.cold_start, held.config.run.seed
    # Problems of their own, where the task makes them: training starts on problems it has not seen.
    own_seed = derived_seed(seed, "cold start")
    task = training_side(problems_of(config, held.game, own_seed, section.tasks), ready.never_taught)
    keeps_to_limits = within_limits(held.loaded.chat, config, ready.max_completion_tokens)

    def fits(role: str, example: Example) -> bool:
        held.loaded.poll()  # files of examples may be long
        return keeps_to_limits(role, example)

    # A table at which the base plays for examples, on problems and randomness of its own.
    sources = held.sources_of({**ready.sources, "problems": task.problems})
    pool = gather(
        held.game,
        section,
        task,
        held.table(LiveTable, config=playing_config(config), sources=sources),
        seed=seed,
        held_out=ready.never_taught,
        fits=fits,
        progress=held.progress,
        data_dir=config.tasks.data_dir,
    )
    for sentence in pool.lines():
        held.progress.say(sentence)
    saver.write_examples(pool)
    steps_that_fit = budget.cold_start(section.steps)
    cold_start(trainer, held.loaded.chat, held.game, pool, section, seed=seed, steps_that_fit=steps_that_fit)


def keep_references(held: Held) -> None:
    """Keep seats as they enter training: all where a role has a KL term, and those that the game asks for."""
    adapters = held.loaded.adapters
    if any(role.beta and role.reference == "seat" for role in held.config.roles.values()):
        for seat in adapters.seats:
            adapters.snapshot(seat, reference_name(seat))
    for kept in held.game.kept_at_start():
        adapters.snapshot(kept.seat, kept.name)
