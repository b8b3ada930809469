"""A run in progress: the base in memory, the game at its table, the trainer, and when what is measured and saved."""

import contextlib
import dataclasses
import shutil
import tempfile
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

import torch

from lite_selfplay.config import RunConfig
from lite_selfplay.config.guard import guarded
from lite_selfplay.config.user_files import file_of, sources_of
from lite_selfplay.data import Episode, EvalSpec, Example, Problem, Sampling
from lite_selfplay.errors import (
    GameError,
    Interrupted,
    LossError,
    ProcessLost,
    RewardError,
    RolloutsLost,
    RunFolderError,
)
from lite_selfplay.evaluation.examiner import measure
from lite_selfplay.evaluation.result import Evaluation
from lite_selfplay.evaluation.tables import headline
from lite_selfplay.games import Game
from lite_selfplay.games.modes import find_mode
from lite_selfplay.models.adapters import BASE, State, check_folder
from lite_selfplay.models.backends.rollouts import REMEDY, Rollouts
from lite_selfplay.models.backends.vllm import require_temperature
from lite_selfplay.models.chat import Chat
from lite_selfplay.runs.aside import AsideTable
from lite_selfplay.runs.budget import Budget
from lite_selfplay.runs.checkpoints import Checkpoint, load_checkpoint, read_state
from lite_selfplay.runs.choices import LONGEST, Streams, after_a_look, seen_enough, wanted, without_its_card
from lite_selfplay.runs.folder import BUDGET, COLD_START, COLLECTIONS, ROLLOUTS, RunFolder
from lite_selfplay.runs.plan import OPTIONAL, evaluation_steps, mode_of_the_base, problems_of
from lite_selfplay.runs.preflight import Played, play, preflight, seconds_for, settled
from lite_selfplay.runs.processes import save_in_turn
from lite_selfplay.runs.report.closing import closing_report, is_sure
from lite_selfplay.runs.saving import Saver
from lite_selfplay.runs.step_log import Bookkeeper
from lite_selfplay.runs.trackers import TRACKERS, Tracker
from lite_selfplay.tasks import Source, Task, data_facts, fingerprint
from lite_selfplay.tasks.base import derived_seed
from lite_selfplay.tasks.passages import short_enough
from lite_selfplay.tasks.split import training_side
from lite_selfplay.training.cold_start import cold_start, playing_config, within_limits
from lite_selfplay.training.examples import Fits, gather
from lite_selfplay.training.loaded import Loaded, load_chat
from lite_selfplay.training.optimizer import load_optimizer_state
from lite_selfplay.training.progress import Poll, Progress, Several
from lite_selfplay.training.ranks import ALONE, Ranks
from lite_selfplay.training.rollout import LiveTable
from lite_selfplay.training.trainer import SelfPlayTrainer, reference_name
from lite_selfplay.training.trl import make_loss
from lite_selfplay.training.updates import StepReport
from lite_selfplay.verify.reward_functions import RewardFunction
from lite_selfplay.verify.workers import WorkerStartError

if TYPE_CHECKING:
    from lite_selfplay.models.sources import ResolvedModel
    from lite_selfplay.runs.plan import Plan

PROBE = "Name three things you can see from a window, and say what each of them is for."
"""What the base is asked where only its rounding matters."""


class Session:
    """Everything a run holds in memory. `run` plays it to its end, or from a checkpoint; `close` when done with it.

    With `look` the untouched base is looked at first, to decide what nobody said. `began` is when the run began, by the
    clock, if that was before. Of several processes that play it (`ranks`), the
    one whose `folder` it is writes.
    """

    def __init__(
        self,
        ready: "Plan",
        model: "ResolvedModel",
        folder: RunFolder,
        *,
        reward: RewardFunction | None = None,
        progress: Progress | None = None,
        poll: Callable[[], None] = lambda: None,
        clock: Callable[[], float] = time.monotonic,
        began: float | None = None,
        ranks: Ranks = ALONE,
        look: bool = False,
    ):
        self._ranks = ranks
        self.config, self.game, self.folder = ready.config, ready.game, folder
        self.progress = shown = progress or Progress()
        self._ready, self._poll = ready, Poll(self.progress, poll)
        ranks.poll, clock = Poll(self.progress, poll), ranks.shared_clock(clock)
        run = ready.config.run
        self.identity = {"base": model.identity, "game": ready.config.game.label}
        self._model = model
        if doubt := without_its_card(ready.config):
            self.progress.warn(doubt)
        self.progress.say(f"loading {model.name} in {ready.config.model.precision}")
        self.loaded = Loaded.of(ready.config, model, self.progress, self._poll, ranks=ranks, rollouts=self._rollouts())
        self.backend, self.adapters, self.verifier = self.loaded.backend, self.loaded.adapters, self.loaded.verifier
        self.sources = self._make_sources(ready.sources)
        self._reward = reward
        if look and ready.open and ranks.alone:
            with self._closed_on_failure():
                self._look_at_the_base()
            ready, run = self._ready, self.config.run
        self._tracker: Tracker | None = None
        if ranks.main and (kind := TRACKERS.get(run.report_to)) is not None:
            self._tracker = kind(self.config, type(self.game), folder.path, shown.warn)
            self.progress = self.loaded.progress = Several(shown, self._tracker)
        self._trainer_files = tempfile.TemporaryDirectory(prefix="lite-selfplay-")
        self.table = self._make_table(self.config, self.sources, reward)
        # Held-out answers are judged by the checker, so that runs with different rewards can be compared.
        answered = all(problem.answer is not None for problem in ready.held_out)
        self._measuring = self._make_table(self.config, {}, None if answered else reward)
        self._saver = Saver(self.config, folder, self.adapters, self.identity, self.progress, clock)
        whole = self._saver.what_is_whole
        self._books = Bookkeeper(self.config, self.game, folder, self.table, self.verifier, self.progress, whole)
        started = clock() if began is None else ranks.from_main("when the run began", lambda: began or 0.0)
        self._budget = Budget(run.minutes, folder.path / BUDGET, clock, started, ranks)
        self._done = 0  # complete steps
        self._resumed_from: int | None = None
        self._cold_started = False
        self._start_state: dict[str, Any] = {}
        self.trainer = SelfPlayTrainer(
            backend=self.backend,
            loss=make_loss(self.backend, self.config, self.chat.tokenizer, self._trainer_files.name),
            config=self.config if ranks.main else without_tracker(self.config),
            progress=self.progress,
            poll=self._poll,
            updates=self._updates(run.steps),
            ranks=ranks,
        )

    @property
    def chat(self) -> Chat:
        return self.loaded.chat

    def facts(self) -> dict[str, Any]:
        """What `environment.json` says of this run beside the versions."""
        device = self.backend.device
        cuda = device.type == "cuda"
        return {
            "backend": self.backend.name,
            "device": torch.cuda.get_device_name(device) if cuda else f"{torch.get_num_threads()} CPU threads",
            **({"processes": self._ranks.world} if self._ranks.world > 1 else {}),
            **({"rollouts": list(servers)} if (servers := self.config.rollouts.servers) else {}),
            "seed": self.config.run.seed,
            "base": self.identity["base"],
            "data": self._data(),
            "code": sources_of(self.config.values(), None if self.config.run.reward else self._reward),
        }

    def _rollouts(self) -> Rollouts | None:
        """How the run samples on servers; None where it samples here."""
        config, tokens = self.config, self._ready.max_completion_tokens
        if not config.rollouts.servers:
            return None
        sampled = [role.sampling(tokens) for role in config.roles.values()]
        learned = [sampling.temperature for sampling in sampled]
        for temperature in (config.eval.temperature, config.cold_start.temperature, *learned):
            require_temperature(temperature, REMEDY)
        longest = max([tokens, *(sampling.max_tokens for sampling in sampled)])
        return Rollouts(config.rollouts, self.folder.path / ROLLOUTS, config.run.max_prompt_tokens + longest)

    def _data(self) -> dict[str, Any]:
        """The data that the run learns from and is measured on, as far as they are data and not made by rule."""
        ready, held_out = self._ready, self._ready.held_out
        measured = {"tasks": self.config.eval.tasks, "rows": len(held_out), "fingerprint": fingerprint(held_out)}
        return {
            "tasks": {"tasks": self.config.tasks.train, **data_facts(ready.task)},
            **({"eval": measured} if held_out else {}),
        }

    def run(self, checkpoint: Checkpoint | None = None) -> None:
        """Play to the last step.

        Raises ConfigError where the tracker cannot be started; PreflightError before the first step, where the run
        could not learn; Interrupted after saving the state before the step that was cut short; TrainingError after too
        many steps with numbers that are not finite, or sampled from other weights; SaveFailed where the folder's lines
        or its last checkpoint cannot be written.
        """
        if checkpoint is not None and not read_state(checkpoint)["cold_started"]:
            checkpoint = None  # stopped during the cold start, which is short: it begins again
        if checkpoint is not None:
            self._load(checkpoint)
        if self._tracker is not None:
            self._tracker.open(self._done)
        with self._saved_when_stopped():
            if checkpoint is None:
                self._prepare()
                with self._budget.timing("save"):
                    self._saver.try_save(0, self._state(), self.trainer.optimizer)
            done = self._done
            if done == 0:
                self._keep_references()
            if checkpoint is None and self._ranks.alone and wanted(self.config):
                self._look_ahead()
            self._evaluate_what_is_missing(done)
            self._begin_training(done)
            self.progress.activity("sampler and trainer are compared")
            self.trainer.check.calibrate(self.chat.encode(PROBE).ids)
            self._books.begin(done)
            while self._done < self.config.run.steps and not self.game.over():
                self._step(self._done)
            self._save(self._done, self._state())
            self._evaluate(self._done)
            self._saver.write_card(self._done)
        if not self._ranks.main:
            return
        metrics, evaluations = self.folder.metrics(), self.folder.evaluations()
        closing = closing_report(type(self.game), self.config, metrics, evaluations, self.folder.path)
        self.progress.finished([*closing, *self._budget.outcome(self._done, doubtful=not is_sure(closing))])

    def cold_start_only(self) -> None:
        """Teach the seats and stop: the folder is what another run's `init` takes."""
        with self._saved_when_stopped():
            self._prepare()
            self._save(0, self._state())
            self._evaluate_what_is_missing(0)
            self._saver.write_card(0)
        path = self.folder.path
        if self.folder.ours:
            self.folder.write_environment(**self.facts(), only=COLD_START)
        self.progress.finished(
            [f"the run: {path}", f"train from it: lite-selfplay train {self.config.game.name} --init {path} ..."]
        )

    @contextlib.contextmanager
    def _closed_on_failure(self) -> Iterator[None]:
        """What ends a session before it is one leaves nothing behind: no folder of the run is there yet."""
        try:
            with leaving_as_an_error():
                yield
        except BaseException as error:
            self.loaded.close()
            if isinstance(error, Interrupted):
                raise Interrupted(f"{error}: nothing was saved") from None
            raise

    def close(self) -> None:
        """End the checking processes, undo what the backend changed, and remove what the trainer wrote aside."""
        if self._tracker is not None:
            self._tracker.close()
        self.loaded.close()
        self._trainer_files.cleanup()

    @contextlib.contextmanager
    def _saved_when_stopped(self) -> Iterator[None]:
        """What stops a run between two updates, a signal, a reward function, a game or the answer checker, finds it
        saved."""
        try:
            self._poll()
            with leaving_as_an_error():
                yield
        except (Interrupted, RewardError, GameError, LossError, WorkerStartError, ProcessLost, RolloutsLost) as stop:
            self._ranks.leave(stop)
            if save_in_turn(self._ranks, self.folder, self._done, self._save_what_changed):
                raise type(stop)(f"{stop}; saved before step {self._done + 1}. {self._saver.go_on()}") from None
            raise type(stop)(f"{stop}. {self._saver.what_is_whole()}") from None

    def _save_what_changed(self) -> None:
        """Save the state before the step that was cut short."""
        if self._done != self._resumed_from:  # else nothing has changed since
            self._books.write_what_is_missing()
            self._save(self._done, self._start_state or self._state())

    # Before the first step

    def _prepare(self) -> None:
        """The seats as they enter training: another run's, taught by a cold start, or as they were made."""
        if self.config.run.init is not None:
            before = RunFolder.open(Path(self.config.run.init))
            for seat, weights in self.seats_of(before).items():
                self.adapters.load_state(seat, weights)
            self._saver.keep_examples(before)
        if self.config.cold_start.enabled:
            self._cold_start()
        self._cold_started = True

    def seats_of(self, other: RunFolder) -> dict[str, State]:
        """The weights another run has for this one's seats: of the seat of the same name, or of its only one.

        Raises RunFolderError where it is over another base, or a seat is missing, damaged or of another shape.
        """
        base = self.identity["base"]
        if (theirs := other.base()) != base:
            raise RunFolderError(f"{other.path} was made over {theirs!r}, this run is over {base!r}")
        folders, found = other.seats(), {}
        for seat in self.adapters.seats:
            folder = folders.get(seat) or (next(iter(folders.values())) if len(folders) == 1 else None)
            if folder is None:
                raise RunFolderError(f"{other.path} has no seat {seat!r}: it has {', '.join(folders) or 'none'}")
            found[seat] = check_folder(self.adapters, seat, folder)
        return found

    def _cold_start(self) -> None:
        config, held_out = self.config, self._ready.never_taught
        seed = derived_seed(config.run.seed, "cold start")
        # Problems of their own, where the task makes them: training starts on problems it has not seen.
        own = problems_of(config, self.game, seed, config.cold_start.tasks)
        task = training_side(own, held_out)
        pool = gather(
            self.game,
            config.cold_start,
            task,
            self._table_of_the_base(task),
            seed=config.run.seed,
            held_out=held_out,
            fits=self._polling(within_limits(self.chat, config, self._ready.max_completion_tokens)),
            progress=self.progress,
            data_dir=config.tasks.data_dir,
        )
        for sentence in pool.lines():
            self.progress.say(sentence)
        self._saver.write_examples(pool)
        cold_start(
            self.trainer,
            self.chat,
            self.game,
            pool,
            config.cold_start,
            seed=config.run.seed,
            steps_that_fit=self._budget.cold_start(config.cold_start.steps),
        )

    def _polling(self, fits: Fits) -> Fits:
        """The same, asking before each example whether to stop: files of examples may be long."""

        def asked(role: str, example: Example) -> bool:
            self._poll()
            return fits(role, example)

        return asked

    def _table_of_the_base(self, task: Task) -> LiveTable:
        """A table at which the base plays for examples, on problems and randomness of its own."""
        config = playing_config(self.config)
        sources = self._make_sources({**self._ready.sources, "problems": task.problems})
        return self._make_table(config, sources, self._reward)

    def _keep_references(self) -> None:
        """Keep seats as they enter training: all where a role has a KL term, and those that the game asks for."""
        if any(role.beta and role.reference == "seat" for role in self.config.roles.values()):
            for seat in self.adapters.seats:
                self.adapters.snapshot(seat, reference_name(seat))
        for kept in self.game.kept_at_start():
            self.adapters.snapshot(kept.seat, kept.name)

    def _look_at_the_base(self) -> None:
        """Let what the untouched base does decide whether it thinks, how long its answers may be, and whether it is
        taught the format: one after the other, each time with another look."""
        limit = LONGEST * self._ready.max_completion_tokens
        # Whoever brings a reward of their own knows what an answer is to look like.
        asked = [what for what in self._ready.open if self._reward is None or what != "a cold start"]
        choice = None
        while (self.chat.thinks or asked != ["thinking"]) and (choice is None or choice.what != "cold start"):
            self.progress.phase("a look at the base")
            found = self._played(lambda game: dict.fromkeys(game.seats(0), BASE), seen_enough)
            for line in found.lines(type(self.game), "a look at the base"):
                self.progress.say(line)
            tokens = self._ready.max_completion_tokens
            choice = after_a_look(asked, tokens, limit, self.chat.thinks, found.streams)
            if choice is None:
                return
            self._ready = self._ready.after(choice)
            self.config = self._ready.config
            self.progress.say(self._ready.chosen(choice.what)[-1])
            self.loaded.chat = load_chat(self.config, self._model)

    def _look_ahead(self) -> None:
        """Play a little before the first step. Raises PreflightError where the run could not learn."""
        self.progress.phase("pre-flight")
        found = self._played(lambda game: game.seats(0), settled)
        preflight(found, self.config, type(self.game), self.folder.path, self.progress)

    def _played(self, seats: Callable[[Game], Mapping[str, str]], enough: Callable[[Streams], bool]) -> Played:
        """What small steps of the game show, played aside by these seats."""
        seconds = seconds_for(self.config)
        with self._aside() as table:
            return play(table, self.config, seats, enough, seconds=seconds, poll=self._poll, guarded=self._guarded)

    @contextlib.contextmanager
    def _aside(self) -> Iterator[AsideTable]:
        """A table on the run's problems from the beginning, whose game writes elsewhere; what is checked there counts
        for nothing."""
        counted, seed = dataclasses.replace(self.verifier.counters), self.config.run.seed
        sources = {
            name: Source(own.problems, seed=seed, name=name, may_be_empty=True) for name, own in self.sources.items()
        }
        with tempfile.TemporaryDirectory(prefix="lite-selfplay-") as aside:
            place = Path(aside) / COLLECTIONS
            table = self._make_table(self.config, sources, self._reward, kind=AsideTable, folder=place)
            assert isinstance(table, AsideTable)
            yield table
        self.verifier.counters = counted

    def _make_sources(self, items: Mapping[str, Sequence[Problem]]) -> dict[str, Source]:
        """What the game draws from, each item short enough for this base."""
        found = {name: items[name] for name in self.game.sources}
        if "passages" in found:
            limit = self.config.tasks.passage_tokens
            found["passages"] = short_enough(found["passages"], lambda text: len(self.chat.tokens(text)), limit)
        seed = self.config.run.seed
        return {
            name: Source(problems, seed=seed, name=name, may_be_empty=name in OPTIONAL)
            for name, problems in found.items()
        }

    def _make_table(
        self,
        config: RunConfig,
        sources: Mapping[str, Source],
        reward: RewardFunction | None,
        *,
        kind: type[LiveTable] = LiveTable,
        folder: Path | None = None,
    ) -> LiveTable:
        tokens, place = self._ready.max_completion_tokens, folder or self._collections
        return kind(self.loaded, sources, config, max_completion_tokens=tokens, reward=reward, folder=place)

    @property
    def _collections(self) -> Path:
        """Where the game writes: in a process that does not write the run folder, into a copy of its own."""
        return (self.folder.path if self._ranks.main else Path(self._trainer_files.name)) / COLLECTIONS

    # Held-out problems

    def _evaluate(self, step: int) -> None:
        """Measure the seats as the game asks for, after `step` steps."""
        if not self._held_out:
            return
        taught = self.config.cold_start.enabled
        first = "after cold start" if taught else "before training"
        moment = f"after {step} steps" if step else first
        with self._budget.timing("evaluation"):
            self._measure(_evaluation_name(step), self.game.evaluation(), step, moment)
        self._saver.write_card(step)

    def _measure(self, name: str, spec: EvalSpec, step: int, moment: str) -> None:
        about = {"moment": moment, "step": step, "model": self.config.model.name}
        result = self._answers(spec, self._held_out, f"evaluation {moment}", about).to_json()
        self._saver.write_evaluation(name, result)
        self.progress.evaluated(moment, result, headline(result))

    def _answers(
        self, spec: EvalSpec, problems: Sequence[Problem], name: str, about: Mapping[str, Any] | None = None
    ) -> Evaluation:
        section, tokens = self.config.eval, self._ready.max_completion_tokens
        return measure(
            self._measuring,
            spec,
            problems,
            sampling=Sampling(temperature=section.temperature, top_p=section.top_p, max_tokens=tokens),
            samples=section.samples,
            tasks=section.tasks or "",
            name=name,
            about=about,
            cache_tokens=self.config.run.generation_tokens * self._ranks.world,
            rows_at_once=self._measuring.rows_at_once,
            progress=self.progress,
        )

    # A step

    def _step(self, step: int) -> None:
        """Play a step, train on it, write it down; what else is due after it."""
        self._start_state = self._state()
        with self._budget.timing("step"):
            self._books.begin_step()
            seats = self.game.seats(step)
            self.table.open(step, seats)
            with self._guarded():
                episode = self.game.play(step, self.table)
                if not isinstance(episode, Episode):
                    raise GameError(f"{self.config.game.label} played a step and returned {episode!r:.200}, no Episode")
            report = self.trainer.update(step, episode, seats)
        self._done, self._start_state = step + 1, {}
        self._finish(report)

    def _guarded(self) -> contextlib.AbstractContextManager[None]:
        """Where a game of a user's own plays: what it raises is that game's error, and finds the run saved."""
        if file_of(self.config.game.name) is None:
            return contextlib.nullcontext()
        return guarded(f"the game {self.config.game.label}", GameError, self.progress.warn)

    def _finish(self, report: StepReport) -> None:
        done = self._done
        self._books.finish_step(report)
        self._books.judge(report)
        self._keep_to_the_budget()
        if done >= self.config.run.steps or self.game.over():
            return
        asked = report.episode
        measured = (asked.measure or done in evaluation_steps(self.config)) and bool(self._held_out)
        # While steps are being skipped, the last good state stays the last one saved.
        if not self._books.bad_steps and (measured or asked.save or self._saver.is_due(done)):
            self._saver.try_save(done, self._state(), self.trainer.optimizer)
        if measured:
            self._start_state = self._state()  # an evaluation may be stopped: the step before it is complete
            self._evaluate(done)
            self._begin_training(done)

    def _begin_training(self, done: int) -> None:
        """Show that training goes on after `done` steps, and for how many, where the game does not end by itself."""
        self.progress.phase("training", None if self.game.open_ended else self.config.run.steps)
        self.progress.advance(done)

    # Minutes

    @property
    def _held_out(self) -> Sequence[Problem]:
        """The problems that are evaluated: as many of those held out as the run's minutes allow."""
        return self._ready.held_out[: self._budget.problems(len(self._ready.held_out))]

    def _updates(self, steps: int) -> dict[str, int]:
        """How many of so many steps move each seat."""
        return {**dict.fromkeys(self.config.seats, steps), **self.game.updates(steps)}

    def _evaluate_what_is_missing(self, done: int) -> None:
        """Measure the untouched base, and the seats after `done` steps, where that is due and was not done."""
        if done == 0 and self._ready.held_out:
            self._choose_problems()
            if not self.config.run.init and not self._was_evaluated("base"):
                spec = EvalSpec(mode_of_the_base(self.game), (BASE,))
                self._measure("base", spec, step=-1, moment="untouched")
        if done in evaluation_steps(self.config) and not self._was_evaluated(_evaluation_name(done)):
            self._evaluate(done)

    def _choose_problems(self) -> None:
        """Let the minutes of the run decide how many problems are evaluated: the untouched base answers the first."""
        spec, held_out = self.game.evaluation(), self._ready.held_out

        def evaluate(number: int) -> float:
            self._answers(EvalSpec(mode_of_the_base(self.game), (BASE,)), held_out[:number], "evaluation, timed")
            return len(evaluation_steps(self.config)) * find_mode(spec.mode).stages(spec.seats) + 1

        self._budget.choose_problems(len(held_out), evaluate)

    def _keep_to_the_budget(self) -> None:
        """Play as many steps as fit into the run's minutes: the configuration, its file and the schedules say so."""
        asked = self.config.run.steps
        if (expected := self._budget.expected(asked - self._done)) and not self.game.open_ended:
            self.progress.say(expected)
        steps = self._budget.steps(self._done, asked, self.config.eval.every)
        if steps is None:
            return
        self.config = RunConfig.of(self.config.model_dump(mode="json"), {"run": {"steps": steps}})
        self._books.config = self.config
        self._saver.change_config(self.config)
        self.trainer.expect(self._updates(steps))
        self.progress.say(self._budget.choose_steps(steps, asked))
        self.progress.phase("training", steps)
        self.progress.advance(self._done)

    # Checkpoints

    def _state(self) -> dict[str, Any]:
        return {
            "game": self.game.state(),
            "sources": {name: source.state() for name, source in self.sources.items()},
            **self._books.counts(),
            "cold_started": self._cold_started,
            **self.trainer.state(),
        }

    def _save(self, step: int, state: Mapping[str, Any]) -> None:
        self._saver.save(step, state, self.trainer.optimizer)

    def _was_evaluated(self, name: str) -> bool:
        return self._ranks.from_main("former evaluations", lambda: self.folder.has_evaluation(name))

    def _load(self, checkpoint: Checkpoint) -> None:
        if not self._ranks.main and (theirs := self.folder.path / COLLECTIONS).is_dir():
            shutil.copytree(theirs, self._collections)
        optimizer, state = load_checkpoint(checkpoint, self.adapters)
        load_optimizer_state(self.trainer.optimizer, self.adapters, optimizer)
        self.trainer.schedule.apply()
        self.trainer.restore(state)
        self.game.restore(state["game"])
        for name, source in self.sources.items():
            source.restore(state["sources"][name])
        self._books.restore(state)
        self._cold_started = state["cold_started"]
        self._done = self._resumed_from = checkpoint.step
        self._ranks.gather("the checkpoint", checkpoint.step)  # until all have read it, nobody writes


def without_tracker(config: RunConfig) -> RunConfig:
    """The same for a process that reports to nobody."""
    return config.model_copy(update={"run": config.run.model_copy(update={"report_to": "none"})})


def _evaluation_name(step: int) -> str:
    return f"step-{step:06}"


@contextlib.contextmanager
def leaving_as_an_error() -> Iterator[None]:
    """A context in which a call of `sys.exit`, by a game's or a task's own code, raises GameError."""
    try:
        yield
    except SystemExit as left:
        raise GameError(f"code of the game, or of its tasks, called sys.exit({left})") from left
