"""The loop of a run: its steps, and when it evaluates and saves."""

import contextlib
import shutil
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from functools import partial
from pathlib import Path
from typing import Any

from lite_selfplay.data import Episode, EvalSpec, Problem, Sampling
from lite_selfplay.errors import (
    GameError,
    Interrupted,
    LossError,
    ProcessLost,
    RewardError,
    RolloutsLost,
    RunFolderError,
    WorkerStartError,
)
from lite_selfplay.evaluation.examiner import Answers, Exam, measure
from lite_selfplay.evaluation.result import Evaluation, headline
from lite_selfplay.games.modes import find_mode
from lite_selfplay.models.adapters import BASE
from lite_selfplay.runs.budget import Budget
from lite_selfplay.runs.checkpoints import STATE, Checkpoint, load_checkpoint, read_state
from lite_selfplay.runs.defaults import is_demo, shorter, wanted
from lite_selfplay.runs.folder import BUDGET, COLD_START, COLLECTIONS, EXAMPLES, RunFolder, as_written, ignored
from lite_selfplay.runs.planning import evaluation_steps, mode_of_the_base, problems_of
from lite_selfplay.runs.preflight import preflight
from lite_selfplay.runs.report.closing import changes, closing_report
from lite_selfplay.runs.resources import Resources, leaving_as_an_error
from lite_selfplay.runs.saving import Saver, save_in_turn
from lite_selfplay.runs.step_log import StepLog
from lite_selfplay.tasks.split import training_side
from lite_selfplay.tasks.task import derived_seed
from lite_selfplay.training.cold_start import cold_start, playing_config, within_limits
from lite_selfplay.training.examples import gather
from lite_selfplay.training.losses import make_loss
from lite_selfplay.training.optimizer import load_optimizer_state
from lite_selfplay.training.rollout import LiveTable
from lite_selfplay.training.trainer import SelfPlayTrainer, reference_name
from lite_selfplay.training.updates import StepReport

# The prompt for measuring the rounding differences between sampler and trainer.
PROBE = "Name three things you can see from a window, and say what each of them is for."
# Errors that stop a run between two updates: a signal, a user's own code, the checker, another process.
STOPS = (Interrupted, RewardError, GameError, LossError, WorkerStartError, ProcessLost, RolloutsLost)


class RunLoop:
    """Plays a run whose resources are in memory. `began`: when the run began, by the clock, if not now."""

    def __init__(
        self, resources: Resources, *, clock: Callable[[], float] = time.monotonic, began: float | None = None
    ):
        self.resources, self.game, self.folder = resources, resources.game, resources.folder
        ranks, config = resources.ranks, resources.config
        clock = partial(ranks.from_main, "the clock", clock)  # all processes decide alike
        self.table = resources.table(LiveTable)
        # The checker judges held-out answers, so that runs with different rewards can be compared.
        answered = all(problem.answer is not None for problem in resources.plan.held_out)
        self._measuring = resources.table(LiveTable, sources={}, reward=None if answered else resources.reward)
        self._saver = Saver(resources, clock)
        started = clock() if began is None else ranks.from_main("when the run began", lambda: began or 0.0)
        self._budget = Budget(config.run.minutes, self.folder.path / BUDGET, clock, started, ranks)
        self._step_log = StepLog(resources, self.table, self._saver.what_is_whole)
        self._answers_at_first = Answers()
        self.trainer = SelfPlayTrainer(
            backend=resources.loaded.backend,
            loss=make_loss(resources.loaded.backend, config, resources.loaded.chat.tokenizer, resources.scratch.name),
            config=config,
            monitor=resources.loaded.monitor,
            updates=self._updates(config.run.steps),
        )
        self.done = 0  # complete steps
        self._resumed_from: int | None = None
        self._cold_started = False
        self._start_state: dict[str, Any] = {}

    def run(self) -> None:
        """Play to the last step, from the beginning or from a loaded checkpoint.

        Raises ConfigError if the tracker cannot be started; PreflightError, before the first step, if the run cannot
        learn; Interrupted after saving the state before the unfinished step; TrainingError after too many steps with
        numbers that are not finite or samples of other weights; SaveFailed if the lines or the last checkpoint cannot
        be written.
        """
        begins = self._resumed_from is None
        if self.resources.tracker is not None:
            self.resources.tracker.open(self.done)
        with self._saved_when_stopped():
            if begins:
                self._prepare()
                with self._budget.timing("save"), self._saver.going_on():
                    self._saver.save(0, self.state(), self.trainer.optimizer)
            if self.done == 0:
                keep_references(self.resources)
            if begins and self.resources.ranks.alone and wanted(self.resources.config):
                preflight(self.resources, max(0.0, self._budget.before_s()))
            with self._saver.going_on():
                self._evaluate_what_is_missing()
            self._answers_at_first = Answers()  # no later evaluation shares them
            self._choose_problems_per_step()
            if begins and (rewards := self.resources.plan.rewards):
                self.resources.progress.say(f"rewards: {rewards}")
            self._show_training()
            self.resources.progress.activity("comparing sampler and trainer")
            self.trainer.check.calibrate(self.resources.loaded.chat.encode(PROBE).ids)
            while self.done < self.resources.config.run.steps and not self.game.over():
                report, metrics = self._step()
                self._show(report, metrics)
                self._keep_to_the_budget()
                self._save_and_measure_if_due(report.episode)
            self.save()
            self._evaluate()
            self._saver.write_card(self.done)
        self._show_closing_report()

    def cold_start_only(self) -> None:
        """Teach the seats and stop. Another run can start from the folder by `init`."""
        with self._saved_when_stopped():
            self._prepare()
            self.save()
            self._evaluate_what_is_missing()
            self._saver.write_card(0)
        if self.folder.ours:
            self.folder.note({**self.resources.facts(), "only": COLD_START})
        train = f"lite-selfplay train {self.resources.config.game.name} --init {self.folder.path} ..."
        self.resources.progress.finished([f"run folder: {self.folder.path}", f"train from it: {train}"])

    # A step

    def _step(self) -> tuple[StepReport, dict[str, Any]]:
        """Play a step and train on it. Returns its report and its line of `metrics.jsonl`."""
        step, self._start_state = self.done, self.state()
        with self._budget.timing("step"):
            started, seats = time.perf_counter(), self.game.seats(step)
            self.table.open(step, seats)
            with self.resources.guarded():
                episode = self.game.play(step, self.table)
                if not isinstance(episode, Episode):
                    game = self.resources.config.game.label
                    raise GameError(f"{game} played a step and returned {episode!r:.200}, not an Episode")
            report = self.trainer.update(step, episode, seats)
            # Before the shared clock is read: that may fail, and the weights have changed by now.
            return report, self._write_down(report, started)

    def _write_down(self, report: StepReport, started: float) -> dict[str, Any]:
        self.done, self._start_state = self.done + 1, {}
        metrics = self._step_log.write_step(report, started)
        self._saver.count(metrics)
        return metrics

    def _show(self, report: StepReport, metrics: Mapping[str, Any]) -> None:
        config = self.resources.config
        left = "" if self.game.open_ended else self._budget.left(config.run.steps - self.done)
        self._step_log.show(report.step, metrics, left)
        self._step_log.judge(report)
        length = max((stream["tokens_mean"] or 0.0 for stream in metrics["streams"].values()), default=0.0)
        if few := self._budget.few(self.done, config.run.steps, partial(shorter, config, length)):
            self.resources.progress.say(few)

    def _save_and_measure_if_due(self, asked: Episode) -> None:
        """Save and evaluate after a step, if its number, the time or the game's `asked` episode requires it."""
        done, config = self.done, self.resources.config
        if done >= config.run.steps or self.game.over():
            return
        measured = (asked.measure or done in evaluation_steps(config)) and bool(self._held_out)
        # While steps are skipped, the last good state stays the newest checkpoint.
        if not self._step_log.bad_steps and (measured or asked.save or self._saver.is_due(done)):
            with self._saver.going_on():
                self._saver.save(done, self.state(), self.trainer.optimizer)
        if measured:
            self._start_state = self.state()  # if the evaluation is stopped, this complete step is saved
            with self._saver.going_on():
                self._evaluate()
            self._show_training()

    def _show_training(self) -> None:
        """Show the training phase, with the number of steps unless the game ends by itself."""
        self.resources.progress.phase("training", None if self.game.open_ended else self.resources.config.run.steps)
        self.resources.progress.advance(self.done)

    def _keep_to_the_budget(self) -> None:
        """Change the number of steps to those that fit into the run's minutes, and with it config and schedules."""
        progress, config = self.resources.progress, self.resources.config
        asked = config.run.steps
        steps = self._budget.steps(self.done, asked, config.eval.every)
        if steps is None:
            return
        self._saver.change_config(config.having({"run": {"steps": steps}}))
        self.trainer.expect(self._updates(steps))
        progress.say(self._budget.choose_steps(steps, asked))
        self._show_training()

    def _choose_problems_per_step(self) -> None:
        """Reduce the problems per step so that `run.least_steps` fit."""
        run = self.resources.config.run
        rows = (self.game.rollouts_per_step() or run.group_size * run.problems_per_step) // run.problems_per_step
        if said := self._budget.choose_problems_per_step(run.problems_per_step, run.least_steps, rows):
            problems = self._budget.chosen["problems_per_step"]
            self._saver.change_config(self.resources.config.having({"run": {"problems_per_step": problems}}))
            self.game.problems_per_step = problems
            self.resources.progress.say(said)

    def _updates(self, steps: int) -> dict[str, int]:
        """How many of `steps` steps update each seat."""
        return {**dict.fromkeys(self.resources.config.seats, steps), **self.game.updates(steps)}

    # The beginning and the end

    def _prepare(self) -> None:
        """Initialise the seats: from another run, by a cold start, or not at all."""
        if self.resources.config.run.init is not None:
            before = RunFolder.open(Path(self.resources.config.run.init), or_adapter=True)
            for seat, weights in self.resources.seats_of(before).items():
                self.resources.loaded.adapters.load_state(seat, weights)
            if (examples := before.path / EXAMPLES).is_file():  # the game may use them
                self._saver.write_file(EXAMPLES, partial(shutil.copyfile, examples))
        if self.resources.config.cold_start.enabled:
            teach(self.resources, self.trainer, self._saver, self._budget)
        self._cold_started = True

    def _show_closing_report(self) -> None:
        if self.resources.ranks.main:
            config, evaluations = self.resources.config, self.folder.evaluations(self.resources.progress.warn)
            closing = closing_report(type(self.game), config, self.folder.steps(), evaluations, self.folder.path)
            doubtful = not any(each.sure for each in changes(evaluations))
            closing += self._budget.outcome(self.done, doubtful=doubtful, demo=is_demo(config))
            self.resources.progress.finished(closing)

    @contextlib.contextmanager
    def _saved_when_stopped(self) -> Iterator[None]:
        """A context that saves the run if one of `STOPS` ends it."""
        try:
            self.resources.loaded.monitor.poll()
            with leaving_as_an_error():
                yield
            self.resources.ranks.gather("the last save")  # by one process, or by another one if that is lost
        except STOPS as stop:
            self.resources.ranks.leave(stop)
            if save_in_turn(self.resources.ranks, self.folder, self.done, self._save_what_changed):
                raise type(stop)(f"{stop}; saved before step {self.done + 1}. {self._saver.how_to_resume()}") from stop
            raise type(stop)(f"{stop}. {self._saver.what_is_whole()}") from stop

    # Held-out problems

    @property
    def _held_out(self) -> Sequence[Problem]:
        """The problems to evaluate: as many held-out ones as the run's minutes allow."""
        held_out = self.resources.plan.held_out
        return held_out[: self._budget.problems(len(held_out))]

    def _evaluate(self) -> None:
        if not self._held_out:
            return
        first = "after cold start" if self.resources.config.cold_start.enabled else "before training"
        moment = f"after {self.done} steps" if self.done else first
        with self._budget.timing("evaluation"):
            self._measure(_evaluation_name(self.done), self.game.evaluation(), self.done, moment)
        self._saver.write_card(self.done)

    def _measure(self, name: str, spec: EvalSpec, step: int, moment: str) -> None:
        about = {"moment": moment, "step": step, "model": self.resources.config.model.name}
        result = self._answers(spec, self._held_out, f"evaluation: {moment}", about).to_json()
        self._saver.write_evaluation(name, result)
        self.resources.progress.evaluated(moment, result, headline(result))

    def _answers(
        self, spec: EvalSpec, problems: Sequence[Problem], name: str, about: Mapping[str, Any] | None = None
    ) -> Evaluation:
        section, tokens = self.resources.config.eval, self.resources.plan.max_completion_tokens
        sampling = Sampling(temperature=section.temperature, top_p=section.top_p, max_tokens=tokens)
        return measure(
            self._measuring,
            spec,
            Exam(problems, sampling, section.samples, tasks=section.tasks or "", about=about or {}),
            name=name,
            rows_at_once=self._measuring.rows_at_once(tokens),
            progress=self.resources.progress,
            answers=None if self.done else self._answers_at_first,
        )

    def _evaluate_what_is_missing(self) -> None:
        """Evaluate the untouched base and the current seats if that is due and has not been done."""
        if self.done == 0 and self.resources.plan.held_out:
            untouched = filter(self.resources.loaded.adapters.is_the_base, self.resources.loaded.adapters.seats)
            self._answers_at_first.alike = dict.fromkeys(untouched, BASE)
            self._choose_problems()
            due = not self.resources.config.run.init and not self._was_evaluated("base")
            if due and self._budget.before_s() <= 0:
                self.resources.progress.say("the untouched base is not evaluated: a third of the minutes is over")
            elif due:
                with self._budget.timing("part" if self._answers_at_first.alike else "untouched"):
                    self._measure("base", EvalSpec(mode_of_the_base(self.game), (BASE,)), -1, "untouched")
        if self.done in evaluation_steps(self.resources.config) and not self._was_evaluated(
            _evaluation_name(self.done)
        ):
            self._evaluate()

    def _choose_problems(self) -> None:
        """Choose how many problems are evaluated by timing one seat on the first ones, if the run has minutes."""
        spec, held_out = self.game.evaluation(), self.resources.plan.held_out
        alone = EvalSpec(mode_of_the_base(self.game), spec.seats[:1])

        def evaluate(number: int) -> tuple[float, float]:
            self._answers(alone, held_out[:number], "timing the evaluation")
            each, alike = find_mode(spec.mode).stages(spec.seats), self._answers_at_first.alike
            others = 1 - sum(seat in alike for seat in spec.seats)  # those of the base, and of seats that equal it
            return len(evaluation_steps(self.resources.config)) * each + others, each + others

        self._budget.choose_problems(len(held_out), evaluate)

    def _was_evaluated(self, name: str) -> bool:
        return self.resources.ranks.from_main(
            "former evaluations", lambda: any(name == each for each, _ in self.folder.evaluation_files(ignored))
        )

    # Checkpoints

    def state(self) -> dict[str, Any]:
        """The part of a checkpoint without tensors, as JSON."""
        return {
            "game": self.game.state(),
            "sources": {name: source.state() for name, source in self.resources.sources.items()},
            "skipped_steps": self._step_log.skipped_steps,
            "nonfinite": self._step_log.nonfinite_steps,
            "cold_started": self._cold_started,
            **self.trainer.state(),
        }

    def save(self, state: Mapping[str, Any] | None = None) -> None:
        """Save the run with its current `state`, or that before an unfinished step."""
        self._saver.save(self.done, state or self.state(), self.trainer.optimizer)

    def _save_what_changed(self) -> None:
        if self.done != self._resumed_from:  # otherwise nothing has changed
            self._step_log.write_what_is_missing()
            self.save(self._start_state)

    def load(self, checkpoint: Checkpoint) -> None:
        """Restore a checkpoint. Raises RunFolderError, with nothing written, if it does not belong to this run."""
        resources, adapters, path = self.resources, self.resources.loaded.adapters, checkpoint.path / STATE
        state = read_state(checkpoint)
        if not resources.ranks.main and (theirs := self.folder.path / COLLECTIONS).is_dir():
            shutil.copytree(theirs, resources.collections)
        if state["cold_started"]:  # otherwise it was stopped during the cold start, which starts again
            load_optimizer_state(self.trainer.optimizer, adapters, load_checkpoint(checkpoint, adapters))
            self.trainer.schedule.apply()
            try:
                for name, source in resources.sources.items():
                    source.restore(state["sources"][name])
                self.game.restore(state["game"])
                self.trainer.restore(state)
            except (ArithmeticError, AttributeError, LookupError, TypeError, ValueError) as error:
                raise RunFolderError(
                    f"{path} does not belong to this run: {type(error).__name__}: {error} in game or sources"
                ) from None
            self._step_log.skipped_steps, self._step_log.nonfinite_steps = state["skipped_steps"], state["nonfinite"]
            with as_written(self.folder.path):
                for row in self.folder.steps(last=checkpoint.step):
                    self._saver.count(row)
            self._cold_started, self.done, self._resumed_from = True, checkpoint.step, checkpoint.step
        resources.ranks.gather("the checkpoint", checkpoint.step)  # nobody writes until all have read it


def _evaluation_name(step: int) -> str:
    return f"step-{step:06}"


def teach(resources: Resources, trainer: SelfPlayTrainer, saver: Saver, budget: Budget) -> None:
    """Run the cold start: collect examples, write them into the run folder, and train every seat on its own."""
    config, plan = resources.config, resources.plan
    section, seed = config.cold_start, config.run.seed
    # A generated task makes other problems for the cold start than for training.
    own_seed = derived_seed(seed, "cold start")
    task = training_side(problems_of(config, resources.game, own_seed, section.tasks), plan.never_taught)
    # The base plays for examples with separate problems and randomness.
    sources = resources.sources_of({**plan.sources, "problems": task.problems})
    pool = gather(
        resources.game,
        config,
        task,
        resources.table(LiveTable, config=playing_config(config), sources=sources),
        resources.loaded.monitor,
        held_out=plan.never_taught,
        fits=within_limits(resources.loaded.chat, config, plan.max_completion_tokens),
        plain=resources.loaded.chat.plain,
    )
    for sentence in pool.lines():
        resources.progress.say(sentence)
    saver.write_file(EXAMPLES, pool.save)
    with budget.timing("cold start"):
        cold_start(trainer, resources.loaded.chat, resources.game, pool, section, seed=seed)
    budget.examples(section.steps * section.examples_per_step * len(resources.game.trained_seats()))


def keep_references(resources: Resources) -> None:
    """Keep copies of seats before training: all if a role has a KL term, and those that the game asks for."""
    adapters = resources.loaded.adapters
    if any(role.beta and role.reference == "seat" for role in resources.config.roles.values()):
        for seat in adapters.seats:
            adapters.snapshot(seat, reference_name(seat))
    for kept in resources.game.kept_at_start():
        adapters.snapshot(kept.seat, kept.name)
