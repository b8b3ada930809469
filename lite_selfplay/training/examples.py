"""The examples of a cold start: solutions written by rule, the base's own right answers, or a file.

- worked: `Game.cold_start` writes a problem's solution in the prompts and format of a role;
- self: the base plays the game against itself; right, well-formed completions that ended by themselves are kept, a few
  of each problem, so that easy problems do not dominate;
- file: lines of `prompt` and `completion`.

There is no teacher model. The examples of all roles form one pool, small enough for the seats to learn all of it; a run
folder keeps it as `cold_start.jsonl`. Nothing here uses tensors.
"""

import itertools
import json
import os
import random
from collections import Counter
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from types import MappingProxyType
from typing import Any, Literal, Protocol

from lite_selfplay.config import ColdStartSection, RunConfig
from lite_selfplay.data import BASE, Example, Problem, Stream
from lite_selfplay.errors import ConfigError, UnknownNameError
from lite_selfplay.games.base import Game
from lite_selfplay.games.table import Table
from lite_selfplay.tasks import Source, Task, load_task
from lite_selfplay.tasks.files import read_object_lines, write_whole
from lite_selfplay.tasks.split import training_side
from lite_selfplay.tasks.task import derived_rng, derived_seed
from lite_selfplay.training.progress import Monitor

Origin = Literal["worked", "self", "file"]
Fits = Callable[[str, Example], bool]  # whether an example of a role is within the run's limits

Plain = Callable[[str, str], tuple[str, str]]

PER_PROBLEM = 2  # the most examples of one problem
READINGS = 3  # how often a seat may read one of the base's own samples before worked examples are added
_PROBED = 50  # the first so many problems decide whether a task has worked solutions
_PATIENCE = 1000  # give up after so many problems without a new example


class PlayTable(Table, Protocol):
    """What a game may ask for: the live or the scripted table, opened for each step."""

    def open(self, step: int, seats: Mapping[str, str]) -> None: ...


@dataclass(frozen=True)
class PooledExample:
    """An example of a role's completion, and its origin: a line of `cold_start.jsonl`."""

    role: str
    prompt: str
    completion: str
    origin: Origin


@dataclass
class RoleCounts:
    """Counts for a role. Of `sampled` completions of the base, `right` were right, well-formed and ended.

    `own`, `worked` and `file` count the pool's examples by origin, `too_long` the skipped ones beyond the run's limits.
    """

    sampled: int = 0
    right: int = 0
    own: int = 0
    worked: int = 0
    file: int = 0
    too_long: int = 0

    def sentence(self) -> str:
        kept = f", {self.own} of them kept" if self.own < self.right else ""
        parts = [
            f"{self.right} of {self.sampled} samples of the base were right and well-formed{kept}"
            if self.sampled
            else "",
            f"{self.worked} examples written by rule" if self.worked else "",
            f"{self.file} from the file" if self.file else "",
            f"{self.too_long} skipped, longer than the run allows" if self.too_long else "",
        ]
        return "; ".join(filter(None, parts)) or "no examples"


class ExamplePool:
    """Examples by role, in an order that depends on the seed; `counts[role]` has their origins."""

    def __init__(self, examples: Sequence[PooledExample], counts: Mapping[str, RoleCounts] = MappingProxyType({})):
        roles = dict.fromkeys(example.role for example in examples)
        self._by_role = {role: [example for example in examples if example.role == role] for role in roles}
        origins = Counter((example.role, example.origin) for example in examples)
        self.counts = {
            role: replace(found, own=origins[role, "self"], worked=origins[role, "worked"], file=origins[role, "file"])
            for role, found in counts.items()
        }

    @property
    def roles(self) -> tuple[str, ...]:
        return tuple(self._by_role)

    def of(self, role: str) -> Sequence[PooledExample]:
        return self._by_role.get(role, [])

    def walk(self, game: Game, seat: str, total: int, *, seed: int) -> Iterator[PooledExample]:
        """`total` examples for a seat, alternating between its roles; none if none of them has examples.

        Each seat reads its own share of a role's examples, which overlaps the other seats' as little as possible, in a
        new order every time round. Together the seats read all examples.
        """
        orders = [
            _reshuffled(self._share(role, seat, seats), derived_rng(seed, "cold start", seat, role))
            for role, seats in _readings(game, self.roles, total).items()
            if seat in seats
        ]
        return itertools.islice((next(order) for order in itertools.cycle(orders)), total)

    def _share(self, role: str, seat: str, readings: Mapping[str, int]) -> list[PooledExample]:
        examples, seats = self.of(role), list(readings)
        before = sum(readings[other] for other in seats[: seats.index(seat)])
        first = len(examples) * before // max(1, sum(readings.values()))
        return [examples[(first + i) % len(examples)] for i in range(min(readings[seat], len(examples)))]

    def lines(self) -> list[str]:
        """A line for each role, such as `drafter: 41 of 256 samples of the base were right and well-formed`."""
        return [f"{role}: {found.sentence()}" for role, found in self.counts.items()]

    def save(self, path: Path) -> None:
        """Write the pool as JSONL, replacing an older file."""
        lines = [json.dumps(asdict(e), ensure_ascii=False) + "\n" for role in self.roles for e in self.of(role)]
        write_whole(path, "".join(lines))


def gather(
    game: Game,
    config: RunConfig,
    task: Task,
    table: PlayTable,
    monitor: Monitor,
    *,
    held_out: Sequence[Problem] = (),
    fits: Fits = lambda role, example: True,
    plain: Plain = lambda prompt, completion: (prompt, completion),
) -> ExamplePool:
    """The examples for a game's cold start, from the source in `config.cold_start`.

    `task` has the problems for worked examples, `table` draws those that the base plays with; neither has problems of
    `held_out`, which are also excluded from `cold_start.top_up`. Examples that do not fit are skipped and counted.
    `plain` removes a chat template's marks from a file's prompts and completions. Warns if a source has fewer examples
    than requested (for a game without tasks this is only noted). Raises ConfigError if none remain, or if with the
    source `self` the base had nothing right in a role.
    """
    gathering = _Gathering(game, config, table.thinks, fits, monitor)
    source = source_of(config.cold_start, task, game)
    if source == "file":
        gathering.read(Path(config.cold_start.source), plain)
    elif source == "worked":
        gathering.write(task.problems)
    else:
        gathering.play(table)
        if (spec := config.cold_start.top_up) is not None:
            top_up = load_task(spec, seed=derived_seed(config.run.seed, "cold start"), data_dir=config.tasks.data_dir)
            gathering.write(training_side(top_up, held_out).problems)
    pool = gathering.pool()
    if source != "file":
        for sentence in gathering.shortages(pool):
            (monitor.progress.say if game.without_tasks else monitor.progress.warn)(sentence)
    return pool


class _Gathering:
    """A pool under construction: the examples found and wanted for each role that a seat learns."""

    def __init__(self, game: Game, config: RunConfig, thinks: bool, fits: Fits, monitor: Monitor):
        self._game, self._thinks, self._fits, self._monitor = game, thinks, fits, monitor
        self._section, self._seed = config.cold_start, config.run.seed
        readings = _readings(
            game, taught_roles(game, self._section), self._section.steps * self._section.examples_per_step
        )
        self._wanted = {role: sum(seats.values()) for role, seats in readings.items() if seats}
        self._found: dict[str, dict[Example, Origin]] = {role: {} for role in self._wanted}
        self._too_long: dict[str, set[Example]] = {role: set() for role in self._wanted}
        self._counts = {role: RoleCounts() for role in self._wanted}
        self._of_problem: Counter[tuple[str, str]] = Counter()

    def read(self, path: Path, plain: Plain) -> None:
        lines = [line for line in read_examples(path, self._game.roles) if line.role in self._wanted]
        found = [Example(*plain(line.prompt, line.completion)) for line in lines]
        for line, example in zip(lines, found, strict=True):
            self._add(line.role, example, "file")
        if rendered := sum(
            Example(each.prompt, each.completion) != one for each, one in zip(lines, found, strict=True)
        ):
            self._monitor.progress.say(
                f"{path}: {rendered} of {len(lines)} examples have marks of the chat template: prompts in its form are "
                "read as messages, and end tokens as ends, not as text"
            )

    def play(self, table: PlayTable) -> None:
        """Let the base play until it has enough examples, or for all rounds."""
        self._wanted = {role: -(-wanted // READINGS) for role, wanted in self._wanted.items()}
        state = self._game.state()
        self._monitor.progress.phase("the base plays for examples", total=self._section.rounds)
        try:
            for step in range(self._section.rounds):
                table.open(step, dict.fromkeys(self._game.roles, BASE))
                for stream in self._game.play(step, table).streams:
                    if stream.role in self._wanted:
                        self._keep(stream)
                self._monitor.progress.advance(step + 1, note=f"{sum(map(len, self._found.values()))} kept")
                if not self.lacking:
                    break
        finally:
            self._game.restore(state)

    def write(self, problems: Sequence[Problem]) -> None:
        """Add worked examples until each role has enough, or the problems yield no new ones."""
        for role in self.lacking:
            source = Source(problems, seed=self._seed, name=f"cold start of {role}")
            rng = derived_rng(self._seed, "cold start", role)
            failures = 0
            while len(self._found[role]) < self._wanted[role] and failures < min(len(problems), _PATIENCE):
                example = self._game.cold_start(role, source.draw(1)[0], rng, thinks=self._thinks)
                failures = 0 if example is not None and self._add(role, example, "worked") else failures + 1

    def shortages(self, pool: ExamplePool) -> list[str]:
        """A line for each role whose source has fewer examples than requested."""
        lines = []
        for role, wanted in self._wanted.items():
            counts, requested = pool.counts[role], f"of the {wanted} requested examples"
            if counts.sampled and counts.own < wanted:
                rest = f"{counts.worked} are written by rule instead" if counts.worked else "there are no more"
                lines.append(f"cold start of {role}: {counts.own} {requested} are the base's own, {rest}")
            elif len(pool.of(role)) < wanted:
                lines.append(f"cold start of {role}: there are {len(pool.of(role))} {requested}; they are repeated")
        return lines

    @property
    def lacking(self) -> list[str]:
        return [role for role, wanted in self._wanted.items() if len(self._found[role]) < wanted]

    def pool(self) -> ExamplePool:
        """The examples found, shuffled by the seed, as many as wanted. Raises ConfigError if there are none."""
        examples = []
        for role, found in self._found.items():
            self._counts[role].too_long = len(self._too_long[role])
            chosen = [PooledExample(role, e.prompt, e.completion, origin) for e, origin in found.items()]
            derived_rng(self._seed, "cold start", "pool", role).shuffle(chosen)
            examples += chosen[: self._wanted[role]]
        pool = ExamplePool(examples, self._counts)
        # Worked examples may replace some of the base's own, and all of them unless the source is `self`.
        empty = [role for role, found in pool.counts.items() if self._section.source == "self" and not found.own]
        if examples and not empty:
            return pool
        if any(self._too_long.values()) and not examples:
            raise ConfigError(
                "every example of the cold start is longer than the run allows: raise run.max_completion_tokens or "
                "run.max_prompt_tokens, or choose other examples with cold_start.source or cold_start.tasks"
            )
        as_whom = f" as {empty[0]}" if empty else ""
        raise ConfigError(
            f"the cold start found nothing to learn from{as_whom} ({'; '.join(pool.lines())}): use --no-cold-start, or "
            "choose another cold_start.source or other cold_start.tasks"
        )

    def _keep(self, stream: Stream) -> None:
        role, counts = stream.role, self._counts[stream.role]
        for group in stream.groups:
            for sample in group.samples:
                completion, verdict = sample.completion, sample.verdict
                counts.sampled += 1
                if verdict is not None and verdict.correct and verdict.well_formed and completion.stop == "eos":
                    counts.right += 1
                    problem = (role, group.problem.id if group.problem else completion.prompt)
                    if role in self.lacking and self._of_problem[problem] < PER_PROBLEM:
                        example = Example(completion.prompt, completion.text)
                        self._of_problem[problem] += self._add(role, example, "self")

    def _add(self, role: str, example: Example, origin: Origin) -> bool:
        """Add an example unless it is a duplicate or too long."""
        if example in self._found[role]:
            return False
        self._monitor.poll()  # there may be many examples
        if not self._fits(role, example):
            self._too_long[role].add(example)
            return False
        self._found[role][example] = origin
        return True


# Before a model is loaded


def source_of(section: ColdStartSection, task: Task, game: Game) -> Literal["worked", "self", "file"]:
    """The source of a cold start's examples; `auto` is `worked` if the task's problems have solutions, else `self`."""
    if section.source.endswith(".jsonl"):
        return "file"
    solved = section.source == "auto" and _has_solutions(task, game, section)
    return "worked" if solved or section.source == "worked" else "self"


def require_examples(
    section: ColdStartSection,
    task: Task,
    game: Game,
    *,
    held_out: Sequence[Problem] = (),
    own_checker: bool = False,
    data_dir: str | None = None,
) -> None:
    """Check that a cold start will find examples, as far as possible without a model.

    `task` is the run's own, which `section.tasks` may replace; problems of `held_out` are excluded. `own_checker`: a
    reward function replaces the checker, so problems need no answers. Raises ConfigError, and the errors of
    `load_task`.
    """
    if not section.enabled:
        return
    for role in section.roles or ():
        if role not in game.roles:
            raise UnknownNameError("role", role, game.roles, "cold_start.roles are roles of the game.")
    task = training_side(load_task(section.tasks, data_dir=data_dir) if section.tasks else task, held_out)
    source = source_of(section, task, game)
    if source == "file":
        read_examples(Path(section.source), game.roles)
    elif source == "worked" and not _has_solutions(task, game, section):
        raise ConfigError(
            f"cold start needs worked solutions, but {task.name} has none for the roles it teaches: use "
            "--no-cold-start, --set cold_start.source=self to learn from what the base gets right, or "
            "--set cold_start.tasks=stories"
        )
    elif source == "self":
        if section.top_up is not None:
            training_side(load_task(section.top_up, data_dir=data_dir), held_out)
        if section.tasks and game.needs_answers and not own_checker:
            missing = next((problem.id for problem in task.problems if problem.answer is None), None)
            if missing is not None:
                raise ConfigError(f"cold_start.tasks: {missing} has no answer to tell what the base got right")


def _has_solutions(task: Task, game: Game, section: ColdStartSection) -> bool:
    """Whether its first problems have an example for every taught role that a seat plays."""
    rng = derived_rng("looking")
    first = [task.problems[i] for i in range(min(_PROBED, len(task.problems)))]
    return all(
        any(game.cold_start(role, problem, rng, thinks=False) is not None for problem in first)
        for role in taught_roles(game, section)
        if any(role in roles_of(game, seat) for seat in game.trained_seats())
    )


def read_examples(path: Path, roles: Sequence[str]) -> list[PooledExample]:
    """The examples of a JSONL file. A line without `role` is an example for every role; other columns are ignored.
    `prompt` and `completion` may be lists of one message, or `messages` a list of both.

    Raises ConfigError if the file cannot be read or, with its number, for a line that is not a JSON object with the
    texts `prompt` and `completion`, or has a role that is not among `roles`.
    """
    if not os.path.exists(path):
        raise ConfigError(f"no file of examples at {path}")
    examples: list[PooledExample] = []
    for number, row in read_object_lines(path, ConfigError):
        row |= _conversation_of(row)
        for key in ("prompt", "completion"):
            if not isinstance(row.get(key), str) or not row[key].strip():
                raise ConfigError(f"{path}, line {number}: {key!r} must be a text that is not empty, or one message")
        role = row.get("role")
        if role is not None and role not in roles:
            raise ConfigError(f"{path}, line {number}: {UnknownNameError('role', str(role), roles)}")
        own = [role] if role else roles
        examples += [PooledExample(each, row["prompt"], row["completion"], "file") for each in own]
    if not examples:
        raise ConfigError(f"{path} holds no example")
    return examples


def _conversation_of(row: Mapping[str, Any]) -> dict[str, Any]:
    """The texts of a line's messages, if each has one: `{"role": "user", "content": ...}`."""
    messages = row.get("messages")
    given = {"prompt": messages[:-1], "completion": messages[-1:]} if isinstance(messages, list) else row
    found = {}
    for key, speaker in (("prompt", "user"), ("completion", "assistant")):
        match given.get(key):
            case [{"role": role, "content": str(text)}] if role == speaker:
                found[key] = text
    return found


# Who reads what


def taught_roles(game: Game, section: ColdStartSection) -> tuple[str, ...]:
    """The roles that a cold start teaches, in the game's order."""
    return tuple(role for role in game.roles if section.roles is None or role in section.roles)


def roles_of(game: Game, seat: str) -> tuple[str, ...]:
    """The roles that a seat may play."""
    return tuple(role for role in game.roles if seat in game.seats_of(role))


def _readings(game: Game, roles: Sequence[str], total: int) -> dict[str, dict[str, int]]:
    """How many of its `total` examples each seat reads in each of these roles, by role and seat."""
    readings: dict[str, dict[str, int]] = {role: {} for role in roles}
    for seat in game.trained_seats():
        own = [role for role in roles_of(game, seat) if role in readings]
        for first, role in enumerate(own):
            readings[role][seat] = len(range(first, total, len(own)))
    return readings


def _reshuffled(examples: Sequence[PooledExample], rng: random.Random) -> Iterator[PooledExample]:
    """All examples forever, in a new order every time round."""
    while examples:
        yield from rng.sample(examples, len(examples))
