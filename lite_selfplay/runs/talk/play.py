"""A person in a role: a step of the run's own game, in which one completion is theirs, scored by its own rules.

The step is `Game.play`. The person's answer stands first in the first group of the role; the seat whose place it takes
gives the others, so that the advantage says how it did beside them.
"""

import tempfile
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

from lite_selfplay.config import RunConfig
from lite_selfplay.config.guard import guarded
from lite_selfplay.config.user_code import load
from lite_selfplay.credit import stream_advantages
from lite_selfplay.data import Completion, Episode, Example, Problem, Sample, Sampling, Verdict
from lite_selfplay.errors import ConfigError, GameError, RewardError, UnknownNameError
from lite_selfplay.games import Game, make_game
from lite_selfplay.runs.plan import OPTIONAL, plan
from lite_selfplay.runs.talk.speakers import Speakers
from lite_selfplay.tasks import Source
from lite_selfplay.tasks.base import derived_rng, derived_seed
from lite_selfplay.verify.reward_functions import RewardFunction, call_reward, name_of

if TYPE_CHECKING:
    from lite_selfplay.training.rollout import LiveTable

GROUP = 4
"""Completions of a group: the person's, and the others by the seat."""
MOST_STEPS = 8
"""Steps after which a role that was not asked is given up."""
MOST_MEASURED = 4
"""Validation problems on which a seat is measured while it plays with a person."""


@dataclass(frozen=True)
class Called:
    """What a person is asked: in which role, in whose place, the whole prompt, and the problem where it is known."""

    role: str
    seat: str
    prompt: str
    problem: Problem | None


@dataclass(frozen=True)
class Played:
    """What a person's completion earned: `sample` with reward and verdict, its advantage in its group (None where the
    group teaches nothing), and the samples of the others in that group."""

    called: Called
    sample: Sample
    advantage: float | None
    others: Sequence[Sample]
    game: type[Game]


def roles_of(speakers: Speakers) -> dict[str, str]:
    """Who plays which role at the first step, of a run's game."""
    if speakers.target.folder is None:
        raise ConfigError(f"{speakers.target.name} is a base model: there is no game to play")
    section = speakers.target.config.game
    return dict(make_game(section.name, section.options).seats(0))


def find_role(speakers: Speakers, name: str | None) -> str:
    """A role by its name or by the seat that plays it at the first step; without a name the last of the game's.

    Raises UnknownNameError with those there are.
    """
    roles = roles_of(speakers)
    if name is None:
        return list(roles)[-1]
    if name in roles:
        return name
    found = [role for role, seat in roles.items() if seat == name]
    if not found:
        raise UnknownNameError("role or seat", name, [*roles, *roles.values()])
    return found[-1]


def play(
    speakers: Speakers,
    role: str,
    answer: Callable[[Called], str],
    *,
    number: int = 0,
    temperature: float | None = None,
    say: Callable[[str], None] = lambda sentence: None,
) -> Played:
    """Play a step in which `answer` gives the first completion of a role, and say what it earned.

    `number` tells one game from the next: it decides problems and completions. Problems are held-out ones where the run
    held any out. `temperature` None takes each role's own. `say` is told who is at work.
    Raises GameError where the role is not asked or not paid, RequestError where the run's tasks are not here.
    """
    folder, config = speakers.target.folder, speakers.target.config
    assert folder is not None
    config = RunConfig.of(config.model_dump(mode="json"), {"run": {"report_to": "none"}})
    reward = None
    if config.run.reward is not None:
        folder.require_elsewhere(config.run.reward, "a reward function")
        reward = load(config.run.reward, "--reward", "function")
    ready = plan(config, own_checker=reward is not None)
    game = make_game(config.game.name, config.game.options, group_size=GROUP, problems_per_step=1)
    seed = derived_seed(config.run.seed, "play", number)
    problems = {"problems": ready.held_out} if ready.held_out and "problems" in ready.sources else {}
    sources = {
        name: Source(found, seed=seed, name=name, may_be_empty=name in OPTIONAL)
        for name, found in {**ready.sources, **problems}.items()
    }
    with tempfile.TemporaryDirectory() as place:
        table = _Table(speakers.table, config, sources, seed, Path(place), reward, role, answer, temperature, say)
        for step in range(MOST_STEPS):
            table.open(step, game.seats(step))
            episode = game.play(step, table)
            if table.mine is not None:
                return _earned(table, episode, type(game))
            if game.over():
                break
    raise GameError(f"nobody was asked as {role} within {MOST_STEPS} steps of the game: play another role")


class _Table:
    """The live table, at which a person gives the first completion of a role, and problems are drawn anew."""

    def __init__(
        self,
        live: "LiveTable",
        config: RunConfig,
        sources: Mapping[str, Source],
        seed: int,
        folder: Path,
        reward: RewardFunction | None,
        role: str,
        answer: Callable[[Called], str],
        temperature: float | None,
        say: Callable[[str], None],
    ):
        self._live, self._config, self._sources, self._seed = live, config, sources, seed
        self.folder, self._reward, self._role, self._answer = folder, reward, role, answer
        self._temperature, self._say = temperature, say
        self.thinks = live.thinks
        self.mine: Completion | None = None
        self.called: Called | None = None
        self._drawn: list[Problem] = []

    def open(self, step: int, seats: Mapping[str, str]) -> None:
        self._live.open(step, seats)
        self._step, self._seats, self._asked = step, dict(seats), 0
        self.rng = derived_rng(self._seed, step, "game")

    def ask(
        self,
        role: str,
        prompts: Sequence[str],
        n: int = 1,
        sampling: Sampling | None = None,
        *,
        beginnings: Sequence[str] | None = None,
        seat: str | None = None,
    ) -> list[list[Completion]]:
        speaker = seat or self._seats[role]
        sampling = sampling or self._config.roles[role].sampling(self._live.default_tokens)
        if self._temperature is not None:
            sampling = replace(sampling, temperature=self._temperature)
        starts = list(beginnings or [""] * len(prompts))
        is_mine = role == self._role and self.mine is None and bool(prompts)
        mine = [self._from_person(role, speaker, prompts[0], starts[0], sampling)] if is_mine else []
        self._say(f"{speaker} speaks as {role}")
        first = self._speak(speaker, role, prompts[:1], n - len(mine), sampling, starts[:1])
        rest = self._speak(speaker, role, prompts[1:], n, sampling, starts[1:])
        return [[*mine, *row] for row in first] + rest

    def _speak(
        self, seat: str, role: str, prompts: Sequence[str], n: int, sampling: Sampling, starts: Sequence[str]
    ) -> list[list[Completion]]:
        if not prompts or not n:
            return [[] for _ in prompts]
        places = range(self._asked, self._asked + len(prompts))
        self._asked += len(prompts)
        seeds = [[derived_seed(self._seed, self._step, role, i, k) for k in range(n)] for i in places]
        return self._live.speak(seat, prompts, n, sampling, seeds, starts)

    def _from_person(self, role: str, seat: str, prompt: str, start: str, sampling: Sampling) -> Completion:
        problem = next((each for each in self._drawn if each.text in prompt), None)
        self.called = Called(role, seat, prompt, problem)
        text = self._answer(self.called)
        prefill = self._live.completed(Example(prompt, text)).prefill
        if "<think>" in prefill and "</think>" not in prefill:
            text = "\n</think>\n\n" + text
        elif self.thinks and "</think>" not in prefill + text:
            text = "<think>\n\n</think>\n\n" + text  # a person thinks unheard
        written = self._live.completed(Example(prompt, text))
        self.mine = replace(written, seat=seat, sampling=sampling, prefill=prefill + start)
        return self.mine

    def draw(self, source: str, n: int) -> list[Problem]:
        found = self._source(source).draw(n)
        self._drawn += found
        return found

    def everything(self, source: str) -> Sequence[Problem]:
        found = self._source(source).problems
        return found[:MOST_MEASURED] if source == "validation" else found

    def _source(self, name: str) -> Source:
        if name not in self._sources:
            raise UnknownNameError("source", name, self._sources)
        return self._sources[name]

    def verify(self, pairs: Sequence[tuple[Completion, Problem]]) -> list[Verdict]:
        if self._reward is None:
            return self._live.verify(pairs)
        with guarded(name_of(self._reward), RewardError, self._say, judges=True):
            return call_reward(self._reward, pairs, thinks=self.thinks)

    def __getattr__(self, name: str) -> Any:
        """What the live table does as it is: reading, scoring, measuring."""
        return getattr(self._live, name)


def _earned(table: _Table, episode: Episode, game: type[Game]) -> Played:
    """What the person's completion came to. Raises GameError where the step pays for none of the role's."""
    mine, called = table.mine, table.called
    assert mine is not None
    assert called is not None
    for stream in episode.streams:
        for group, advantages in zip(stream.groups, stream_advantages(stream), strict=True):
            for i, sample in enumerate(group.samples):
                if sample.completion is mine:
                    others = [*group.samples[:i], *group.samples[i + 1 :]]
                    return Played(called, sample, advantages[i], others, game)
    why = game.why_skipped(episode.log)
    raise GameError(f"this step pays for no completion of the {called.role}{f': {why}' if why else ''}")
