"""The probe of the base and the pre-flight: small steps of the game before the first step.

Small steps are played for up to a minute, until confidence bounds settle three questions: do answers end, do they have
the format, do rewards differ? This does not affect the run: it uses its own game, problems and seeds. A run that cannot
learn is refused, and other findings are warnings, worded as by `why`.
"""

import contextlib
import json
import tempfile
import time
from collections.abc import Callable, Mapping, Sequence
from copy import copy
from dataclasses import asdict, dataclass, replace
from math import inf
from pathlib import Path
from typing import Any

from lite_selfplay.config import RunConfig, RunSection
from lite_selfplay.config.user_files import unnoticed
from lite_selfplay.data import Completion, Episode, Group, Problem, Sampling, Verdict
from lite_selfplay.errors import GameError, LiteSelfPlayError, PreflightError, SaveFailed
from lite_selfplay.games import Game
from lite_selfplay.games.presentation import percent
from lite_selfplay.models.adapters import BASE
from lite_selfplay.models.chat_template import Turn
from lite_selfplay.runs.defaults import LONGEST, Streams, after_probe, left_open, sized
from lite_selfplay.runs.folder import COLLECTIONS, PREFLIGHT, RunFolder
from lite_selfplay.runs.report.diagnosis import FEWEST_WELL_FORMED, FORMLESS, MOST_SILENT, Cause, foreseen
from lite_selfplay.runs.report.figures import MEANINGS
from lite_selfplay.runs.report.step_rows import figures, only_finite
from lite_selfplay.runs.resources import Resources
from lite_selfplay.stats import clopper_pearson, is_above
from lite_selfplay.tasks.files import JSON_LIMIT, write_errors, write_whole
from lite_selfplay.training.progress import OutOfTime, printable
from lite_selfplay.training.rollout import LiveTable, load_chat

# The most seconds, the largest share of `run.minutes`, and the share of that time during which answers are awaited.
SECONDS, SHARE, SAMPLED = 60.0, 1 / 20, 3 / 4
# Completions of the first small step, doubled at each step up to the second number.
FIRST, MOST = 8, 32
# Causes for which answers do not end.
ENDLESS = {"truncation": "at the token limit", "loops": "for repeating themselves"}


@dataclass(frozen=True)
class Played:
    """The result of small steps: the seconds they took, `streams` as in `metrics.jsonl`, `notes` about problems, and
    `left_off`: the number of completions that were not awaited, which count in no metric."""

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
        others = f"; {self.left_off} more were stopped early" if self.left_off else ""
        return [
            f"{name}: {self.samples} completions in {self.seconds:.0f} s{others}",
            *(_stream_line(game, role, stream) for role, stream in self.streams.items()),
            *self.notes,
        ]


def probe_base(resources: Resources) -> None:
    """Probe the untouched base to choose whether it thinks, its token limit, and whether it gets a cold start.

    Each choice is followed by another probe. Raises Interrupted if a signal stops it.
    """
    seconds, limit = most_seconds(resources.config), LONGEST * resources.plan.max_completion_tokens
    latest, progress = time.monotonic() + 2 * seconds, resources.progress
    # A user with a reward function has an answer format of their own.
    asked = [what for what in resources.plan.open if resources.reward is None or what != "a cold start"]
    while resources.loaded.chat.thinks or asked != ["thinking"]:
        progress.phase("probe of the base")
        found = play(resources, lambda game: dict.fromkeys(game.seats(0), BASE), left_open, seconds)
        for line in found.lines(type(resources.game), "probe of the base"):
            progress.say(line)
        tokens, thinks = resources.plan.max_completion_tokens, resources.loaded.chat.thinks
        choice = after_probe(asked, tokens, limit, thinks, found.streams)
        if choice is None:
            return
        resources.plan = resources.plan.after(choice)
        progress.say(resources.plan.chosen(choice.what)[-1])
        resources.loaded.chat = load_chat(resources.config, resources.model)
        if choice.what == "cold start" or time.monotonic() >= latest:
            return


def most_seconds(config: RunConfig) -> float:
    """The most seconds that small steps may take."""
    return min(SECONDS, SHARE * 60 * config.run.minutes or SECONDS)


def play(
    resources: Resources,
    seats: Callable[[Game], Mapping[str, str]],
    assumed: Callable[[Streams], Sequence[str]],
    seconds: float,
) -> Played:
    """Play the first step of a run's game, at small sizes, until `assumed` returns nothing, or time is over.

    `seats` maps roles to seats. The verdicts do not count for the run.
    """
    started, notes, most, played = time.monotonic(), list[str](), FIRST, dict[str, str]()
    config, counted = resources.config, resources.loaded.verifier.reasons.copy()
    with tempfile.TemporaryDirectory(prefix="lite-selfplay-") as scratch, unnoticed():
        table = resources.table(
            RecordingTable,
            sources={name: copy(untouched) for name, untouched in resources.sources.items()},
            folder=Path(scratch) / COLLECTIONS,
            until=started + SAMPLED * seconds,
        )
        try:
            with resources.loaded.monitor.within(seconds):
                while not table.samples or assumed(table.streams(played)):
                    game, before = small_game(resources.game, config.run, most), table.samples
                    played = dict(seats(game))
                    table.most = 10**9 if game.without_tasks else before + most  # matches are played to their end
                    table.open(-1 - before, played)  # the step seeds the table, and no step of a run is negative
                    with contextlib.suppress(Enough), resources.guarded():
                        table.note(game.play(0, table))
                    resources.loaded.monitor.poll()
                    if table.samples == before:
                        break
                    most = min(2 * most, MOST)
        except OutOfTime:
            if still := assumed(table.streams(played)):
                notes.append(f"time ran out before this was certain; assumed: {', '.join(still)}")
        except GameError as error:
            # On one line: the message of a user's own game may be anything.
            words = " ".join(printable(str(error)[:2000]).split())[:500]
            notes.append(f"a step this small could not be played: {words}")
    resources.loaded.verifier.reasons = counted
    streams = only_finite(table.streams(played))
    ended = sum(stream["completions"] for stream in streams.values())
    return Played(round(time.monotonic() - started, 2), streams, notes, table.samples - ended)


def unsettled(streams: Streams) -> list[str]:
    """The assumptions of a pre-flight that are not certain: those of `left_open`, and that rewards differ."""
    silent = [(s["zero_variance_groups"], s["groups"]) for s in streams.values() if s["groups"]]
    known = all(is_above(equal / groups, groups, MOST_SILENT) is not None for equal, groups in silent)
    varied = known or any(equal < groups for equal, groups in silent)
    return left_open(streams, MEANINGS["truncated"].most) + ([] if varied else ["that rewards differ"])


def preflight(resources: Resources, seconds: float) -> None:
    """Let the seats play small steps for up to `seconds`; print the findings and write them to `preflight.json`.

    Raises PreflightError if the run cannot learn, SaveFailed if the file cannot be written.
    """
    config, game, path, progress = resources.config, type(resources.game), resources.folder.path, resources.progress
    progress.phase("pre-flight")
    found = play(resources, lambda game: game.seats(0), unsettled, min(seconds, most_seconds(config)))
    causes = doubts(found, config, game, path)
    refused = refusal(found, causes)
    about = {
        "samples": found.samples,
        **asdict(found),
        "lines": found.lines(game),
        "refused": refused,
        "findings": [asdict(cause) for cause in causes],
    }
    with write_errors(path / PREFLIGHT, SaveFailed):
        write_whole(path / PREFLIGHT, json.dumps(only_finite(about), indent=1, allow_nan=False) + "\n", JSON_LIMIT)
    for line in found.lines(game):
        progress.say(line)
    if refused:
        raise PreflightError(
            f"pre-flight: {refused}. To train anyway: {RunFolder(path).resume_command(config.rollouts.again)}, or "
            "--no-preflight on a new run"
        )
    for cause in causes:
        progress.warn(f"pre-flight: {cause.sentence} {f'Try: {cause.next}' if cause.next else ''}".rstrip())


def doubts(found: Played, config: RunConfig, game: type[Game], path: Path) -> list[Cause]:
    """The findings that are certain by their counts. Answers that were cut off tell nothing about the format."""
    causes = []
    for role, stream in found.streams.items():
        count, most, loops = stream["completions"], MEANINGS["truncated"].most, stream["loops"]
        cut, full = (is_above(share, count, most) for share in (stream["truncated"], stream["truncated"] - loops))
        groups = 0 if found.varied else stream["groups"]
        certain = {
            "truncation": full,
            "loops": is_above(loops, count, MEANINGS["loops"].most),
            "format": not cut and is_above(stream["well_formed"] or 0.0, stream["judged"], FEWEST_WELL_FORMED) is False,
            "no variance": is_above(stream["zero_variance_groups"] / max(groups, 1), groups, MOST_SILENT),
        }
        causes += [cause for cause in foreseen(path, config, game, {"streams": {role: stream}}) if certain[cause.name]]
        varied = stream["groups"] - stream["zero_variance_groups"]
        if 2 * stream["by_form"] > varied:
            said = f"{stream['by_form']} of the {role}'s {varied} groups with variance are paid for the form alone."
            causes.append(Cause("form alone", "watch", said, next=f"{FORMLESS}, so that it is not learned first"))
    return causes


def refusal(found: Played, causes: Sequence[Cause]) -> str:
    """Why the run cannot learn, and what helps; empty if that is not certain. It cannot if no group has variance and
    either answers do not end, or none is right or well-formed."""
    streams = found.streams.values()
    judged = sum(s["judged"] for s in streams)
    good = any(s["accuracy"] or s["well_formed"] for s in streams)
    cut = round(sum(s["truncated"] * s["completions"] for s in streams))
    cut_off = bool(found.samples) and is_above(cut / found.samples, found.samples, MEANINGS["truncated"].most)
    endless = [cause for cause in causes if cut_off and cause.name in ENDLESS]  # none if it is harmless
    if found.varied or not (endless or (not good and is_above(0.0, judged, FEWEST_WELL_FORMED) is False)):
        return ""
    named = endless or [cause for cause in causes if cause.name == "format"]
    remedy = f". Try: {named[0].next}" if named else ""
    if endless:
        return (
            f"{cut} of {found.samples} completions were cut off {ENDLESS[endless[0].name]}, and no group has variance"
            f"{remedy}"
        )
    high = percent(round(clopper_pearson(0, judged)[1], 2))
    return (
        f"none of {judged} completions was right or well-formed (with 95% confidence at most {high} are), and no group "
        f"has variance: there is nothing to learn from{remedy}"
    )


def _stream_line(game: type[Game], role: str, stream: Mapping[str, Any]) -> str:
    words = {"accuracy": game.accuracy_of(role).word, "well_formed": "well-formed", "truncated": "truncated"}
    words |= {"loops": "repetitive"} if stream["loops"] else {}
    parts = [f"{percent(stream[key])} {word}" for key, word in words.items() if stream[key] is not None]
    if groups := stream["groups"]:
        alone = f", {stream['by_form']} by the form alone" if stream["by_form"] else ""
        parts.append(f"{groups - stream['zero_variance_groups']} of {groups} groups with variance{alone}")
    return (  # a seat that is called like its role is named once
        f"{' '.join(dict.fromkeys((role, stream['seat'])))}: {', '.join(parts)}, mean length "
        f"{stream['tokens_mean']:.0f} tokens"
    )


# (group size, problems) of a small step: the first with few enough completions is taken.
SIZES = ((4, 4), (4, 2), (4, 1), (2, 4), (2, 2), (2, 1))

# The share of a call's completions that are not awaited: even if all were cut off, they would settle nothing. A
# completion without news for `SILENT` tokens of the others has ended; backends report 16 tokens at a time.
STRAGGLERS, SILENT = 1 / 8, 64

Hear = Callable[[int, int, int, int], bool]


class Enough(LiteSelfPlayError):
    """Ends a small step once it has enough completions."""


class RecordingTable(LiveTable):
    """A table that records the `completions` of each role, and their `verdicts` by `id` of the completion.

    After `most` completions it ends the game by raising Enough. The last few of a call are not awaited, nor any after
    the time `until`; these count in no metric.
    """

    def __init__(self, *arguments: Any, until: float, **options: Any):
        self.most, self.until = 10**9, until
        self.completions: dict[str, list[Completion]] = {}
        self.verdicts: dict[int, Verdict] = {}
        self.episodes: list[Episode] = []
        super().__init__(*arguments, **options)

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
        if time.monotonic() >= self.until:
            raise OutOfTime
        left = self.most - self.samples
        each = min(n, left)
        count = min(len(prompts), left // each) if each else 0
        first, starts = [row[:each] for row in seeds[:count]], None if beginnings is None else beginnings[:count]
        found = super().sample(seat, prompts[:count], each, sampling, first, starts, self._patience(first, hear))
        self.completions.setdefault(self.role, []).extend(completion for row in found for completion in row)
        if each == n and count == len(prompts):
            return found
        raise Enough

    def _patience(self, seeds: Sequence[Sequence[int]], hear: Hear | None) -> Hear:
        """A listener that stops the sampling once most completions have ended, or the time is over."""
        rows, ends = sum(map(len, seeds)), set(self._loaded.chat.eos_ids)
        now, reached = 0.0, dict[tuple[int, int], float]()

        def listen(p: int, k: int, number: int, token: int) -> bool:
            nonlocal now  # in tokens: running ones advance together, and one that waited starts where they are
            place = reached.get((p, k), now) + 1
            now, reached[p, k] = max(now, place), -inf if token in ends else place
            running = rows - len(reached) + sum(place > now - SILENT for place in reached.values())
            waits = running > STRAGGLERS * rows and time.monotonic() < self.until
            return waits and (hear is None or hear(p, k, number, token))

        return listen

    def left_off(self, completion: Completion) -> bool:
        """Whether it was stopped early, because it was not awaited. A thinking base's completion counts as cut off
        instead once it has half of the token limit."""
        most = completion.sampling.max_tokens * (1 / 2 if self.thinks else 1)
        return completion.stop == "length" and len(completion.token_ids) < most

    def verify(self, pairs: Sequence[tuple[Completion, Problem]]) -> list[Verdict]:
        found = super().verify(pairs)
        self.verdicts |= {id(completion): verdict for (completion, _), verdict in zip(pairs, found, strict=True)}
        return found

    def note(self, episode: object) -> None:
        """Record a step that was played to its end; the game's own verdicts override the checker's."""
        if not isinstance(episode, Episode):  # a user's own game may return anything
            return
        self.episodes.append(episode)
        groups = [group for stream in (*episode.streams, *episode.record) for group in stream.groups]
        samples = [sample for group in groups for sample in group.samples]
        self.verdicts |= {id(sample.completion): sample.verdict for sample in samples if sample.verdict}

    @property
    def samples(self) -> int:
        return sum(map(len, self.completions.values()))

    def streams(self, seats: Mapping[str, str]) -> dict[str, dict[str, Any]]:
        """Each role's metrics, under the keys of `metrics.jsonl`; groups and rewards are those of complete steps."""
        found = {}
        for role, all_completions in self.completions.items():
            if completions := [completion for completion in all_completions if not self.left_off(completion)]:
                judged = [self.verdicts[id(c)] for c in completions if id(c) in self.verdicts]
                groups = [group for e in self.episodes for s in e.streams if s.role == role for group in s.groups]
                ended = [[s for s in group.samples if not self.left_off(s.completion)] for group in groups]
                whole = zip(groups, ended, strict=True)  # or with at least two samples: one has no variance
                known = [replace(g, samples=own) for g, own in whole if len(own) >= min(2, len(g.samples))]
                own = figures(seats.get(role, completions[0].seat), completions, judged, known)
                found[role] = {**own, "judged": len(judged), "by_form": sum(map(_differs_by_form, known))}
        return found


def _differs_by_form(group: Group) -> bool:
    """Whether rewards differ between completions in the answer format and others, and for no other reason."""
    judged = [(sample.verdict, sample.reward) for sample in group.samples if sample.verdict is not None]
    paid = {(verdict.well_formed, reward) for verdict, reward in judged}
    return (
        len({verdict.correct for verdict, _ in judged}) == 1 and len({formed for formed, _ in paid}) == len(paid) == 2
    )


def small_game(game: Game, run: RunSection, most: int) -> Game:
    """A new game like the run's, whose step has at most `most` completions if their number is fixed, else few."""
    for group_size, problems in [(g, p) for g, p in SIZES if g <= run.group_size and p <= run.problems_per_step]:
        game = sized(game, group_size, problems)
        each = game.rollouts_per_step()
        if each is not None and each <= most:
            break
    return game
