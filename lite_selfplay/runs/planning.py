"""Plans a run: fills in its configuration and checks it, without downloading or writing anything."""

import importlib.util
import os
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

from lite_selfplay.config import RunConfig, load_loss
from lite_selfplay.config.user_files import short_name, shown_task, whole_paths
from lite_selfplay.data import Problem
from lite_selfplay.errors import ConfigError
from lite_selfplay.games import Game, make_game
from lite_selfplay.games.modes import find_mode
from lite_selfplay.games.presentation import FOR_RIGHT
from lite_selfplay.models.backends import require_available
from lite_selfplay.models.packages import install
from lite_selfplay.models.sources import ResolvedModel, locate
from lite_selfplay.models.sources.folders import positions
from lite_selfplay.runs.defaults import Default, choices_of, filled_in, layer_of, open_questions
from lite_selfplay.runs.folder import EXAMPLES, RunFolder
from lite_selfplay.tasks import Task, is_data, load_task, numbered
from lite_selfplay.tasks.columns import answer_in
from lite_selfplay.tasks.files import require_no_link
from lite_selfplay.tasks.hub_data import DATA_VARIABLE
from lite_selfplay.tasks.passages import passages_of, read_passages
from lite_selfplay.tasks.split import content_key, data_facts, different, evaluation_set, fingerprint, training_side
from lite_selfplay.training.examples import require_examples, source_of
from lite_selfplay.training.ranks import ALONE, Ranks
from lite_selfplay.verify import programs

# Sources that may be empty.
OPTIONAL = ("solutions",)
# How many problems of a generated task are checked: each is generated on access, and all are alike.
_CHECKED = 50


@dataclass(frozen=True)
class Plan:
    """The complete configuration, the game, its problems and the held-out ones, checked against each other.

    `sources` has the problems that the game draws from, by name; `passages` may still be too long for the base.
    `choices` are the settings that were not given, and `open` those left to a probe of the untouched base. `judge`
    names the reward function if one replaces the checker.
    """

    config: RunConfig
    game: Game
    task: Task
    max_completion_tokens: int
    held_out: Sequence[Problem] = ()
    sources: Mapping[str, Sequence[Problem]] = field(default_factory=dict)
    choices: Sequence[Default] = ()
    open: Sequence[str] = ()
    judge: str = ""

    @property
    def rewards(self) -> str:
        """What each role's completions earn, in words; empty if the game does not say."""
        roles: dict[str, list[str]] = {}
        for role, what in self.game.rewards().items():
            roles.setdefault(what.replace(FOR_RIGHT, f"by {self.judge}") if self.judge else what, []).append(role)
        return "; ".join(f"{' and '.join(names)} {what}" for what, names in roles.items())

    @property
    def never_taught(self) -> list[Problem]:
        """Problems that no cold start may use: those that the run, or its game, measures on."""
        return [*self.held_out, *self.sources.get("validation", ())]

    def after(self, choice: Default) -> "Plan":
        """This plan with one more choice. Raises ConfigError if a cold start would find no examples."""
        config = self.config.having(layer_of(choice.values))
        tokens = config.run.max_completion_tokens or self.max_completion_tokens
        found = replace(self, config=config, choices=[*self.choices, choice], max_completion_tokens=tokens)
        _check_examples(found)
        return found

    def identity(self, model: ResolvedModel) -> dict[str, str]:
        """What a run keeps: its base and its game."""
        return {"base": model.identity, "game": self.config.game.label}

    def data(self) -> dict[str, dict[str, Any]]:
        """Facts about a run's problems, by their use; a resume compares their fingerprints."""
        tasks = self.config.tasks
        named = {"eval": self.config.eval.tasks, "passages": tasks.knowledge, "validation": tasks.validation}
        return {"tasks": {"tasks": tasks.train, **data_facts(self.task)}} | {
            name: {"tasks": named.get(name), "rows": len(items), "fingerprint": fingerprint(items)}
            for name, items in {"eval": self.held_out, **self.sources}.items()
            if items and name != "problems"
        }

    def chosen(self, *what: str) -> list[str]:
        """The plan's lines that show choices, how problems were read, and what to beware of, or only the lines named in
        `what`."""
        rows = self._lines_by_subject()
        names = dict.fromkeys(("problems", "caution", *(each.what for each in self.choices)))
        return [f"{name}: {rows[name]}" for name in names if name in rows and (not what or name in what)]

    def lines(self) -> list[str]:
        """The whole plan in lines; each choice has its reason and the flag that changes it."""
        return [
            *(f"{what}: {value}" for what, value in self._lines_by_subject().items()),
            *self.game.describe(self.config.run.steps),
        ]

    def _lines_by_subject(self) -> dict[str, str]:
        """The lines without the game's own, by their subject."""
        config, game, run = self.config, self.game, self.config.run
        length = "until the game ends" if game.open_ended else f"{run.steps} steps"
        seats = [f"{name} (lr {seat.lr:g}, rank {seat.rank})" for name, seat in config.seats.items()]
        base = f"{config.model.name} in {config.model.precision}"
        why = {choice.what: f" ({choice.why}; {choice.flag} changes that)" for choice in self.choices}
        rows = {
            "run": f"{config.game.label} with {base}, {length}, seed {run.seed}",
            **self._source_lines(),
            "problems": "; ".join(self.task.notes),
            "caution": self.task.caution,
            "rewards": self.rewards,
            "seats": ", ".join(seats) + (f", from {run.init}" if run.init else ""),
            "samplers": ", ".join(config.rollouts.servers),
            "thinking": config.model.thinking if "thinking" in why else "",
            "before the first step": f"a probe of the base decides on {', '.join(self.open)}" if self.open else "",
            "minutes": f"{run.minutes:g}: as many of the steps as fit" if run.minutes else "",
            "cold start": self._cold_start_line(),
            "a step": self._step_line(),
            "evaluation": self._evaluation_line(),
        }
        return {what: f"{value}{why.get(what, '')}" for what, value in rows.items() if value}

    def _source_lines(self) -> dict[str, str]:
        tasks, each = self.config.tasks, self.config.run.problems_per_step
        given = {"passages": tasks.knowledge, "solutions": tasks.solutions, "validation": tasks.validation}
        rows = {
            name: f"{shown_task(given.get(name)) or self.task.name}, {len(p):,}"
            for name, p in self.sources.items()
            if p
        }
        if "problems" not in self.sources:
            taught = draws_problems(self.config, self.game) or "a cold start" in self.open
            written = (
                f"{self.task.name}, {'for a cold start' if taught else 'not used'}: problems are written by a seat"
            )
            return {"tasks": "none are needed" if self.game.without_tasks else written, **rows}
        return {
            "tasks": f"{rows.pop('problems')} problems, {each} a {'round' if self.game.open_ended else 'step'}",
            **rows,
        }

    def _cold_start_line(self) -> str:
        section = self.config.cold_start
        if not section.enabled:
            return ""
        taught = section.tasks and load_task(section.tasks, data_dir=self.config.tasks.data_dir)
        source = source_of(section, training_side(taught or self.task, self.never_taught), self.game)
        words = {
            "worked": "moves by rule" if self.game.without_tasks else "worked solutions",
            "self": "what the base gets right",
            "file": section.source,
        }
        roles = f", as {' and '.join(section.roles)} alone" if section.roles else ""
        return f"{section.steps} steps of {section.examples_per_step} examples a seat, from {words[source]}{roles}"

    def _step_line(self) -> str:
        each, tokens = self.game.rollouts_per_step(), self.max_completion_tokens
        most = self.game.most_rollouts(self.config.run.steps)
        step = "a varying number of completions" if each is None else f"{each} completions"
        return f"{step} of up to {tokens:,} tokens" + (
            f"; at most {most:,} in all, or {most * tokens:,} tokens" if most is not None else ""
        )

    def _evaluation_line(self) -> str:
        section, spec = self.config.eval, self.game.evaluation()
        if not self.held_out:
            idle = "" if section.limit is None else f", so that eval.limit={section.limit} does nothing"
            return f"none{idle}; --eval-tasks T evaluates the run on the problems of T"
        times = "before and after" if self.game.open_ended else f"{len(evaluation_steps(self.config))} times"
        each = find_mode(spec.mode).stages(spec.seats) * len(self.held_out) * section.samples
        seats, tasks = " and ".join(spec.seats), shown_task(section.tasks)
        return (
            f"{seats} (mode {spec.mode}) on {len(self.held_out)} held-out problems of {tasks}, {times} "
            f"{each} completions, and the untouched base once"
        )


def evaluation_steps(config: RunConfig) -> list[int]:
    """The numbers of steps after which a run is evaluated: 0, every `eval.every`, and the last."""
    steps, every = config.run.steps, config.eval.every or config.run.steps
    return sorted({0, steps, *range(every, steps, every)})


def draws_problems(config: RunConfig, game: Game) -> bool:
    """Whether the run learns from `tasks.train`: its game draws from it, or its cold start has examples from it.

    Passages and validation problems come from it unless they are given.
    """
    section, taught = config.tasks, config.cold_start
    named = {"problems": None, "passages": section.knowledge, "validation": section.validation}
    drawn = any(name in game.sources and spec is None for name, spec in named.items())
    return drawn or (bool(taught.enabled) and taught.tasks is None and not taught.source.endswith(".jsonl"))


def plan(config: RunConfig, *, own_checker: bool = False, ranks: Ranks = ALONE) -> Plan:
    """Fill in all open settings of a configuration, and check it.

    `own_checker`: a reward function replaces the checker, so problems need no answers. Of several processes the first
    one chooses. Raises ConfigError, UnknownNameError or TaskError.
    """
    game = make_game(config.game.name, config.game.options)
    choices = [Default(*each) for each in ranks.from_main("the choices", lambda: choices_of(config, game))]
    resolved, game = filled_in(config, choices, game)
    asked = tuple(open_questions(config, game))
    task = problems_of(resolved, game, resolved.run.seed)
    measured = evaluated(resolved, game)
    kept_apart = held_out(resolved, measured, task.problems)
    notes = tuple(dict.fromkeys([*task.notes, *(measured.notes if measured else ())]))
    cautions = dict.fromkeys(filter(None, (task.caution, measured.caution if measured else "")))
    task = replace(training_side(task, kept_apart), notes=notes, caution="; ".join(cautions))
    tokens = resolved.run.max_completion_tokens or task.max_completion_tokens
    named = whole_paths(resolved.values())
    folder, init = resolved.rollouts.folder, resolved.run.init
    data = resolved.tasks.data_dir or (os.environ.get(DATA_VARIABLE) if any(map(is_data, named.values())) else None)
    filled = {  # with absolute paths, so that a resume finds them from anywhere
        **named,
        "cold_start.enabled": bool(resolved.cold_start.enabled) and init is None,  # the run given by `init` was taught
        "model.backend": _backend(resolved),
        "rollouts.folder": folder and os.path.abspath(folder),
        "run.init": init and os.path.realpath(init),
        "run.max_completion_tokens": tokens,
        "tasks.data_dir": data and os.path.realpath(data),
    }
    whole = resolved.having(layer_of(filled), {"game": game.options.model_dump(mode="json")})
    sources = {name: _source(name, whole, task, kept_apart) for name in game.sources}
    judge = short_name(resolved.run.reward or "your reward function") if own_checker else ""
    ready = Plan(whole, game, task, tokens, kept_apart, sources, choices, asked, judge)
    _check_model(whole, tokens)
    for role in whole.roles.values():
        if role.own_loss:
            load_loss(role.loss)
    if game.open_ended and whole.run.minutes:
        raise ConfigError(f"{whole.game.label} ends by itself, so run.minutes cannot choose its steps: omit it")
    if whole.tasks.solutions is not None and "solutions" not in game.sources:
        raise ConfigError(f"{whole.game.label} takes no solutions: --solutions is for games about solution steps")
    if whole.run.init is not None:
        require_no_link(RunFolder.open(Path(whole.run.init), or_adapter=True).path / EXAMPLES)  # which are copied
    _check_problems(ready, own_checker)
    return ready


def fitted(config: RunConfig, folder: Path, tokens: int, warn: Callable[[str], None]) -> RunConfig:
    """A configuration whose prompts, with completions of up to `tokens`, fit the positions of the base in `folder`.

    Warns if prompts are capped for that. Raises ConfigError if completions alone do not fit.
    """
    most = positions(folder)
    longest = max([tokens, *(role.sampling(tokens).max_tokens for role in config.roles.values())])
    if most is None or longest + config.run.max_prompt_tokens <= most:
        return config
    room = f"the base has {most:,} positions, and completions take up to {longest:,} of them"
    if longest >= most:
        raise ConfigError(f"{room}, which leaves none for a prompt: lower max_completion_tokens, or take another base")
    warn(
        f"{room}: prompts of more than {most - longest:,} tokens are not asked, unless you lower max_completion_tokens"
    )
    return config.having({"run": {"max_prompt_tokens": most - longest}})


def problems_of(config: RunConfig, game: Game, seed: int, tasks: str | None = None) -> Task:
    """The problems of `tasks`, by default the run's; plain numbers for a game without problems."""
    tasks, name = tasks or config.tasks.train or "", config.game.name
    if game.without_tasks and not tasks:
        return numbered(name)
    return load_task(tasks, seed=seed, data_dir=config.tasks.data_dir)


def _source(name: str, config: RunConfig, task: Task, kept_apart: Sequence[Problem]) -> Sequence[Problem]:
    """A source of the game, by name: the run's own task unless another is given for it."""
    section = config.tasks
    if name == "passages":
        return read_passages(section.knowledge) if section.knowledge else passages_of(task)
    if name == "validation":
        if section.validation is not None:
            theirs = load_task(section.validation, seed=config.run.seed, data_dir=section.data_dir)
            task = training_side(theirs, kept_apart)
        return evaluation_set(task, section.validation_limit)
    if name == "solutions":
        if section.solutions is None:
            return []
        brought = training_side(load_task(section.solutions), kept_apart)
        if not any(isinstance(problem.extra.get("solution"), str) for problem in brought.problems):
            raise ConfigError(f"no line of {section.solutions} has a 'solution'")
        return brought.problems
    return task.problems


def _backend(config: RunConfig) -> str:
    """The backend; if servers sample, transformers, whose loss corrects for their log-probabilities.

    Raises ConfigError for another one.
    """
    model = config.model
    if not config.rollouts.servers:
        return model.backend
    if model.backend not in ("auto", "transformers"):
        raise ConfigError(f"--rollouts works with the transformers backend, and model.backend is {model.backend}")
    return "transformers"


def _check_model(config: RunConfig, tokens: int) -> None:
    found, folder = locate(config.model.name)  # raises for an unknown name
    if found == "folder":
        fitted(config, folder, tokens, lambda sentence: None)
    require_available(config.model.backend)
    tracker = config.run.report_to
    if tracker != "none" and importlib.util.find_spec(tracker) is None:
        raise ConfigError(f"run.report_to is {tracker}, which is not installed: {install('trackers')}")


def _check_problems(ready: Plan, own_checker: bool) -> None:
    name, game = ready.config.game.label, ready.game
    if game.own_labels and own_checker:
        raise ConfigError(f"{name} makes its own labels, so it takes no reward function")
    for source in ("problems", "validation") if game.needs_answers and not own_checker else ():
        problems = ready.sources.get(source, ())
        _require_answers(name, problems[:_CHECKED] if ready.task.procedural else problems)
    judged = [ready.held_out, *([] if own_checker else ready.sources.values())]
    checked = (p for each in judged for p in (each if isinstance(each, list) else each[:_CHECKED]))
    if game.runs_programs or any(problem.kind == programs.KIND for problem in checked):
        programs.shared_sandbox(unsafe_code=ready.config.tasks.unsafe_code)  # raises before anything is loaded
    _check_examples(ready, own_checker)
    if not own_checker:
        _require_answers("evaluation", ready.held_out)


def _require_answers(what: str, problems: Sequence[Problem]) -> None:
    if (missing := next((problem for problem in problems if problem.answer is None), None)) is not None:
        maps = f"FILE:answer={answer_in(missing.extra)} maps one"
        others = f" (its other columns: {', '.join(missing.extra)}; {maps})" if missing.extra else ""
        raise ConfigError(f"{what} needs an answer to every problem; {missing.id} has none{others}")


def _check_examples(ready: Plan, own_checker: bool = False) -> None:
    require_examples(
        ready.config.cold_start,
        ready.task,
        ready.game,
        held_out=ready.never_taught,
        own_checker=own_checker,
        data_dir=ready.config.tasks.data_dir,
    )


def evaluated(config: RunConfig, game: Game | None = None) -> Task | None:
    """The task that a run is evaluated on, if any. `game`: its game, if it was made before."""
    section, data_dir = config.eval, config.tasks.data_dir
    if section.tasks is None:
        return None
    game = game or make_game(config.game.name, config.game.options)
    own = find_mode(game.evaluation().mode).tasks
    return load_task(section.tasks, held_out=True, data_dir=data_dir) if own is None else own(section.tasks)


def held_out(config: RunConfig, task: Task | None, trained: Sequence[Problem] = ()) -> list[Problem]:
    """The held-out problems of a run, from the task that it is evaluated on: the same for every seed, so that runs can
    be compared, and at most a third of the problems if these are also the `trained` ones."""
    if task is None:
        return []
    limit = config.eval.limit
    if not task.procedural and {*map(content_key, task.problems)} == {*map(content_key, trained)}:
        third = max(1, len(different(task.problems)) // 3)
        limit = min(limit or third, third)
    return evaluation_set(task, limit)


def mode_of_the_base(game: Game) -> str:
    """The mode that evaluates the untouched base: `single`, unless the game's mode has tasks of its own kind."""
    mode = game.evaluation().mode
    return "single" if find_mode(mode).tasks is None else mode
