"""Before the first step: a little of the game is really played, and what is doubtful is said before hours are spent.

Small steps are played until it is decided, by the bounds of what was counted, whether answers end, whether they have
the format and whether rewards differ, or until a minute is over. Nothing of the run is changed by it: the game, its
problems and its seeds are others. A run that cannot learn is refused; what is doubtful is said, in the words of `why`.
"""

import contextlib
import json
import tempfile
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from copy import copy
from dataclasses import asdict, dataclass, replace
from math import inf
from pathlib import Path
from typing import Any

from lite_selfplay.config import RunConfig, RunSection
from lite_selfplay.config.user_files import unnoticed
from lite_selfplay.data import Completion, Episode, Problem, Sampling, TokenScores, Turn, Verdict
from lite_selfplay.errors import GameError, Interrupted, LiteSelfPlayError, PreflightError, SaveFailed
from lite_selfplay.games import Game
from lite_selfplay.games.presentation import percent
from lite_selfplay.models.adapters import BASE
from lite_selfplay.runs.defaults import LONGEST, Streams, after_a_look, left_open, sized
from lite_selfplay.runs.folder import COLLECTIONS, PREFLIGHT, RunFolder
from lite_selfplay.runs.report.diagnosis import FEWEST_WELL_FORMED, MOST_SILENT, Cause, foreseen
from lite_selfplay.runs.report.figures import MEANINGS
from lite_selfplay.runs.report.step_rows import figures, only_finite
from lite_selfplay.runs.resources import Resources, leaving_as_an_error
from lite_selfplay.stats import clopper_pearson, is_above
from lite_selfplay.tasks.files import write_errors, write_whole
from lite_selfplay.training.progress import OutOfTime, printable
from lite_selfplay.training.rollout import LiveTable, load_chat

SECONDS, SHARE, SAMPLED = 60.0, 1 / 20, 3 / 4
"""The most seconds that it takes, the most of `run.minutes`, and how much of that until no answer is waited for."""
FIRST, MOST = 8, 32
"""Completions of the first small step and of a later one: each has twice those of the one before it, up to the most."""
ENDLESS = {"truncation": "at the token limit", "loops": "as they repeated themselves"}
"""Causes for which answers do not end."""
NOBODYS_STEP = -1
"""The first step that its seeds follow from, and the next ones below: none of the run's."""


@dataclass(frozen=True)
class Played:
    """What small steps showed: the seconds they took, `streams` as in `metrics.jsonl`, what could not be done, and how
    many completions nobody waited for, which are in no figure."""

    seconds: float
    streams: Streams
    notes: Sequence[str] = ()
    left_off: int = 0

    @property
    def samples(self) -> int:
        return sum(stream["completions"] for stream in self.streams.values())

    @property
    def varied(self) -> bool:
        """Whether the rewards of any group differ."""
        return any(s["groups"] > s["zero_variance_groups"] for s in self.streams.values())

    def lines(self, game: type[Game], name: str = "pre-flight") -> list[str]:
        """What is told of it, a sentence a line."""
        others = f", and {self.left_off} whose end was not waited for" if self.left_off else ""
        lines = [f"{name}: {self.samples} completions in {self.seconds:.0f} s{others}"]
        return [*lines, *(_stream_line(game, role, stream) for role, stream in self.streams.items()), *self.notes]


@contextlib.contextmanager
def _saving_nothing() -> Iterator[None]:
    """A context in which a signal leaves no folder of a run behind, and says so."""
    try:
        with leaving_as_an_error():
            yield
    except Interrupted as error:
        raise Interrupted(f"{error}: nothing was saved") from None


@_saving_nothing()
def look_at_the_base(resources: Resources) -> None:
    """Let what the untouched base does decide whether it thinks, how long its answers may be, and whether it is taught
    the format: one after the other, each time with another look. Raises Interrupted where that is stopped."""
    limit, latest = (
        LONGEST * resources.plan.max_completion_tokens,
        time.monotonic() + 2 * most_seconds(resources.config),
    )
    # Whoever brings a reward of their own knows what an answer is to look like.
    asked = [what for what in resources.plan.open if resources.reward is None or what != "a cold start"]
    choice = None
    while (resources.loaded.chat.thinks or asked != ["thinking"]) and (
        choice is None or (choice.what != "cold start" and time.monotonic() < latest)
    ):
        resources.progress.phase("a look at the base")
        found = play(
            resources, lambda game: dict.fromkeys(game.seats(0), BASE), left_open, most_seconds(resources.config)
        )
        for line in found.lines(type(resources.game), "a look at the base"):
            resources.progress.say(line)
        choice = after_a_look(
            asked, resources.plan.max_completion_tokens, limit, resources.loaded.chat.thinks, found.streams
        )
        if choice is None:
            return
        resources.plan = resources.plan.after(choice)
        resources.progress.say(resources.plan.chosen(choice.what)[-1])
        resources.loaded.chat = load_chat(resources.config, resources.model)


def most_seconds(config: RunConfig) -> float:
    """The most seconds that it takes to play small steps."""
    return min(SECONDS, SHARE * 60 * config.run.minutes or SECONDS)


def play(
    resources: Resources,
    seats: Callable[[Game], Mapping[str, str]],
    assumed: Callable[[Streams], Sequence[str]],
    seconds: float,
) -> Played:
    """Play small steps of a run's game aside, always its first, until nothing of what they show has to be `assumed`, or
    so many seconds are over.

    `seats` says who plays. What is checked meanwhile counts for nothing.
    """
    started, notes, most, played = time.monotonic(), list[str](), FIRST, dict[str, str]()
    config, counted = resources.config, resources.loaded.verifier.reasons.copy()
    with tempfile.TemporaryDirectory(prefix="lite-selfplay-") as scratch, unnoticed():
        sources = {name: copy(untouched) for name, untouched in resources.sources.items()}
        until = started + SAMPLED * seconds
        table = resources.table(RecordingTable, sources=sources, folder=Path(scratch) / COLLECTIONS, until=until)
        try:
            with resources.loaded.poll.within(seconds):
                while not table.samples or assumed(table.streams(played)):
                    game, before = small_game(resources.game, config.run, most), table.samples
                    played = dict(seats(game))
                    table.most = 10**9 if game.without_tasks else before + most  # of matches none is cut short
                    table.open(NOBODYS_STEP - before, played)
                    with contextlib.suppress(Enough), resources.guarded():
                        table.note(game.play(0, table))
                    resources.loaded.poll()
                    if table.samples == before:
                        break
                    most = min(2 * most, MOST)
        except OutOfTime:
            if still := assumed(table.streams(played)):
                notes.append(f"not known for sure when the time for this was over, and assumed: {', '.join(still)}")
        except GameError as error:  # what it says on one line: that of a user's own game may be anything
            words = " ".join(printable(str(error)[:2000]).split())[:500]
            notes.append(f"so small a step could not be played: {words}")
    resources.loaded.verifier.reasons = counted
    streams = only_finite(table.streams(played))
    ended = sum(stream["completions"] for stream in streams.values())
    return Played(round(time.monotonic() - started, 2), streams, notes, table.samples - ended)


def unsettled(streams: Streams) -> list[str]:
    """What is to be assumed of roles: that their answers end and have the format, and that rewards differ."""
    silent = [(s["zero_variance_groups"], s["groups"]) for s in streams.values() if s["groups"]]
    known = all(is_above(equal / groups, groups, MOST_SILENT) is not None for equal, groups in silent)
    varied = known or any(equal < groups for equal, groups in silent)
    return left_open(streams, MEANINGS["truncated"].most) + ([] if varied else ["that rewards differ"])


def preflight(resources: Resources, seconds: float) -> None:
    """Play a little before the first step, so many seconds at most, and judge what the seats showed: write
    `preflight.json`, and say it.

    Raises PreflightError where the run cannot learn, SaveFailed where the file cannot be written.
    """
    config, game, path, progress = resources.config, type(resources.game), resources.folder.path, resources.progress
    progress.phase("pre-flight")
    found = play(resources, lambda game: game.seats(0), unsettled, min(seconds, most_seconds(config)))
    causes = doubts(found, config, game, path)
    refused = refusal(found, causes)
    about = {"samples": found.samples, **asdict(found), "lines": found.lines(game), "refused": refused}
    about |= {"findings": [asdict(cause) for cause in causes]}
    with write_errors(path / PREFLIGHT, SaveFailed):
        write_whole(path / PREFLIGHT, json.dumps(only_finite(about), indent=1, allow_nan=False) + "\n")
    for line in found.lines(game):
        progress.say(line)
    if refused:
        raise PreflightError(
            f"pre-flight: {refused}. To train all the same: {RunFolder(path).go_on(config.rollouts.again)}, or "
            "--no-preflight on a new run"
        )
    for cause in causes:
        progress.warn(f"pre-flight: {cause.sentence} {f'Try: {cause.next}' if cause.next else ''}".rstrip())


def doubts(found: Played, config: RunConfig, game: type[Game], path: Path) -> list[Cause]:
    """What is doubtful, as far as the counts bear it out. An answer that was cut off says nothing of the format."""
    causes = []
    for role, stream in found.streams.items():
        count, most, loops = stream["completions"], MEANINGS["truncated"].most, stream["loops"]
        cut, full = (is_above(share, count, most) for share in (stream["truncated"], stream["truncated"] - loops))
        looped = is_above(loops, count, MEANINGS["loops"].most)
        shaped = is_above(stream["well_formed"] or 0.0, stream["judged"], FEWEST_WELL_FORMED)
        groups = 0 if found.varied else stream["groups"]
        silent = is_above(stream["zero_variance_groups"] / max(groups, 1), groups, MOST_SILENT)
        certain = {"truncation": full, "loops": looped, "format": not cut and shaped is False, "no variance": silent}
        row = {"step": 0, "streams": {role: stream}, "seats": {}, "game": {}}
        causes += [cause for cause in foreseen(path, config, game, row) if certain[cause.name]]
    return causes


def refusal(found: Played, causes: Sequence[Cause]) -> str:
    """Why nothing can be learned, and what mends it: no group has variance, and answers do not end, or none is right
    or well-formed. Empty where that is not certain."""
    streams = found.streams.values()
    judged = sum(s["judged"] for s in streams)
    good = any(s["accuracy"] or s["well_formed"] for s in streams)
    cut = round(sum(s["truncated"] * s["completions"] for s in streams))
    cut_off = bool(found.samples) and is_above(cut / found.samples, found.samples, MEANINGS["truncated"].most)
    endless = [cause for cause in causes if cut_off and cause.name in ENDLESS]  # which is none where it does no harm
    if found.varied or not (endless or (not good and is_above(0.0, judged, FEWEST_WELL_FORMED) is False)):
        return ""
    named = endless or [cause for cause in causes if cause.name == "format"]
    mended = f". What mends it: {named[0].next}" if named else ""
    if endless:
        how = ENDLESS[endless[0].name]
        return f"{cut} of {found.samples} completions were cut off {how}, and no group has variance{mended}"
    high = percent(round(clopper_pearson(0, judged)[1], 2))
    return (
        f"none of {judged} completions was right or well-formed (with 95% confidence at most {high} are), and no group "
        f"has variance: there is nothing to learn from{mended}"
    )


def _stream_line(game: type[Game], role: str, stream: Mapping[str, Any]) -> str:
    words = {"accuracy": game.accuracy_of(role).word, "well_formed": "well-formed", "truncated": "truncated"}
    words |= {"loops": "in loops"} if stream["loops"] else {}
    parts = [f"{percent(stream[key])} {word}" for key, word in words.items() if stream[key] is not None]
    if groups := stream["groups"]:
        parts.append(f"{groups - stream['zero_variance_groups']} of {groups} groups with variance")
    return f"{role} {stream['seat']}: {', '.join(parts)}, {stream['tokens_mean']:.0f} tokens"


SIZES = ((4, 4), (4, 2), (4, 1), (2, 4), (2, 2), (2, 1))
"""Group sizes and problems of a small step: the first that samples few enough completions is taken."""

STRAGGLERS, SILENT = 1 / 8, 64
"""The share of the completions of a call that nobody waits for: were all cut off, they would decide nothing. And after
how many tokens of others one that is not heard of has ended, whatever ended it: backends tell of 16 at a time."""

Hear = Callable[[int, int, int, int], bool]
Words = Callable[[str, str, Sequence[Problem]], str]
"""What a role says to a prompt, made up; the problems are those drawn so far."""


class Enough(LiteSelfPlayError):
    """Ends the game once as many completions were sampled as were to be."""


class RecordingTable(LiveTable):
    """A table that notes the `completions` of each role, and the `verdicts` on it by the completion's identity.

    Of what is asked for beyond `most` completions a first part is sampled, and the game ends there, by Enough. The last
    few of a call are not waited for, nor any after the time `until`; no figure holds these. With `words` nothing is
    sampled: completions are made up, and no backend is needed.
    """

    def __init__(
        self, *arguments: Any, most: int = 10**9, until: float = inf, words: Words | None = None, **options: Any
    ):
        self.most, self.until, self._words = most, until, words
        self.completions: dict[str, list[Completion]] = {}
        self.verdicts: dict[int, Verdict] = {}
        self.episodes: list[Episode] = []
        self._drawn: list[Problem] = []
        super().__init__(*arguments, **options)

    def draw(self, source: str, n: int) -> list[Problem]:
        found = super().draw(source, n)
        self._drawn += found
        return found

    def sample(
        self,
        seat: str,
        prompts: Sequence[str | Sequence[Turn]],
        n: int,
        sampling: Sampling,
        seeds: Sequence[Sequence[int]],
        beginnings: Sequence[str] | None = None,
        hear: Hear | None = None,
    ) -> list[list[Completion]]:
        left = self.most - self.samples
        each = min(n, left)
        count = min(len(prompts), left // each) if each else 0
        starts = None if beginnings is None else beginnings[:count]
        if self._words is None:
            if time.monotonic() >= self.until:
                raise OutOfTime
            first = [row[:each] for row in seeds[:count]]
            found = super().sample(seat, prompts[:count], each, sampling, first, starts, self._patience(first, hear))
        else:
            pairs = zip(prompts[:count], starts or [""] * count, strict=True)
            found = [
                [self._made_up(seat, str(prompt), start, sampling) for _ in range(each)] for prompt, start in pairs
            ]
        self.completions.setdefault(self.role, []).extend(completion for row in found for completion in row)
        if each == n and count == len(prompts):
            return found
        raise Enough

    def _patience(self, seeds: Sequence[Sequence[int]], hear: Hear | None) -> Hear:
        """Who listens while completions are drawn, and wants no more once most have ended or the time is over."""
        rows, ends = sum(map(len, seeds)), set(self._loaded.chat.eos_ids)
        now, reached = 0.0, dict[tuple[int, int], float]()

        def listen(p: int, k: int, number: int, token: int) -> bool:
            nonlocal now  # in tokens: those that run get theirs side by side, and one that waited begins where they are
            place = reached.get((p, k), now) + 1
            now, reached[p, k] = max(now, place), -inf if token in ends else place
            running = rows - len(reached) + sum(place > now - SILENT for place in reached.values())
            waits = running > STRAGGLERS * rows and time.monotonic() < self.until
            return waits and (hear is None or hear(p, k, number, token))

        return listen

    def left_off(self, completion: Completion) -> bool:
        """Whether nobody waited for its end. What came half as far as it may, thinking aloud, counts as cut off."""
        most = completion.sampling.max_tokens * (1 / 2 if self.thinks else 1)
        return completion.stop == "length" and len(completion.token_ids) < most

    def _made_up(self, seat: str, prompt: str, start: str, sampling: Sampling) -> Completion:
        assert self._words is not None
        text, encoded = self._words(self.role, prompt, self._drawn), self._loaded.chat.encode(prompt, start)
        ids = tuple(self._loaded.chat.tokens(text))
        sampled = (-1.0,) * len(ids)
        return Completion(prompt, text, tuple(encoded.ids), ids, sampled, "eos", seat, 0, sampling, encoded.prefill)

    def score(self, role: str, completions: Sequence[Completion], *, seat: str | None = None) -> list[TokenScores]:
        if self._words is None:
            return super().score(role, completions, seat=seat)
        return [TokenScores(each.logprobs, each.logprobs) for each in completions]

    def verify(self, pairs: Sequence[tuple[Completion, Problem]]) -> list[Verdict]:
        found = super().verify(pairs)
        self.verdicts |= {id(completion): verdict for (completion, _), verdict in zip(pairs, found, strict=True)}
        return found

    def note(self, episode: object) -> None:
        """Keep a step that was played to its end: what the game itself judged comes before the checker's verdicts."""
        if not isinstance(episode, Episode):  # a user's own game may return anything
            return
        self.episodes.append(episode)
        streams = (*episode.streams, *episode.record)
        samples = [sample for stream in streams for group in stream.groups for sample in group.samples]
        self.verdicts |= {id(sample.completion): sample.verdict for sample in samples if sample.verdict}

    @property
    def samples(self) -> int:
        """Completions so far."""
        return sum(map(len, self.completions.values()))

    def streams(self, seats: Mapping[str, str]) -> dict[str, dict[str, Any]]:
        """What each role did, under the keys of `metrics.jsonl`; groups and rewards are of whole steps."""
        found = {}
        for role, all_completions in self.completions.items():
            if completions := [completion for completion in all_completions if not self.left_off(completion)]:
                judged = [self.verdicts[id(c)] for c in completions if id(c) in self.verdicts]
                groups = [group for e in self.episodes for s in e.streams if s.role == role for group in s.groups]
                ended = [[s for s in group.samples if not self.left_off(s.completion)] for group in groups]
                whole = zip(groups, ended, strict=True)  # or two of it at least: one has no variance to lose
                known = [replace(g, samples=own) for g, own in whole if len(own) >= min(2, len(g.samples))]
                seat = seats.get(role, completions[0].seat)
                found[role] = {**figures(seat, completions, judged, known), "judged": len(judged)}
        return found


def small_game(game: Game, run: RunSection, most: int) -> Game:
    """A run's game anew, at a step of at most so many completions where their number is fixed, else of few."""
    fitting = [(g, p) for g, p in SIZES if g <= run.group_size and p <= run.problems_per_step]
    for group_size, problems in fitting:
        game = sized(game, group_size, problems)
        each = game.rollouts_per_step()
        if each is not None and each <= most:
            break
    return game
