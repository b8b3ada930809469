"""A game played aside: in small, at a table of its own that notes what was said, with nothing of the run changed."""

import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from math import inf
from typing import Any

from lite_selfplay.config import RunConfig
from lite_selfplay.data import Completion, Episode, Problem, Sampling, TokenScores, Turn, Verdict
from lite_selfplay.errors import LiteSelfPlayError
from lite_selfplay.games import Game, make_game
from lite_selfplay.runs.report.steps import figures
from lite_selfplay.training.progress import OutOfTime
from lite_selfplay.training.rollout import LiveTable

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


class AsideTable(LiveTable):
    """A table that notes what each role `said`, and the `verdicts` on it by the completion's identity.

    Of what is asked for beyond `most` completions a first part is sampled, and the game ends there, by Enough. The last
    few of a call are not waited for, nor any after the time `until`; no figure holds these. With `words` nothing is
    sampled: completions are made up, and no backend is needed.
    """

    def __init__(
        self, *arguments: Any, most: int = 10**9, until: float = inf, words: Words | None = None, **options: Any
    ):
        self.most, self.until, self._words = most, until, words
        self.said: dict[str, list[Completion]] = {}
        self.verdicts: dict[int, Verdict] = {}
        self.episodes: list[Episode] = []
        self._drawn: list[Problem] = []
        super().__init__(*arguments, **options)

    def draw(self, source: str, n: int) -> list[Problem]:
        found = super().draw(source, n)
        self._drawn += found
        return found

    def speak(
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
            found = super().speak(seat, prompts[:count], each, sampling, first, starts, self._patience(first, hear))
        else:
            pairs = zip(prompts[:count], starts or [""] * count, strict=True)
            found = [
                [self._made_up(seat, str(prompt), start, sampling) for _ in range(each)] for prompt, start in pairs
            ]
        self.said.setdefault(self.role, []).extend(completion for row in found for completion in row)
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
        return sum(map(len, self.said.values()))

    def streams(self, seats: Mapping[str, str]) -> dict[str, dict[str, Any]]:
        """What each role did, under the keys of `metrics.jsonl`; groups and rewards are of whole steps."""
        found = {}
        for role, all_said in self.said.items():
            if said := [completion for completion in all_said if not self.left_off(completion)]:
                judged = [self.verdicts[id(c)] for c in said if id(c) in self.verdicts]
                groups = [group for e in self.episodes for s in e.streams if s.role == role for group in s.groups]
                ended = [[s for s in group.samples if not self.left_off(s.completion)] for group in groups]
                whole = zip(groups, ended, strict=True)  # or two of it at least: one has no variance to lose
                known = [replace(g, samples=own) for g, own in whole if len(own) >= min(2, len(g.samples))]
                seat = seats.get(role, said[0].seat)
                found[role] = {**figures(seat, said, judged, known), "judged": len(judged)}
        return found


def small_game(config: RunConfig, most: int) -> Game:
    """A run's game anew, at a step of at most so many completions where their number is fixed, else of few."""
    run = config.run
    fitting = [(g, p) for g, p in SIZES if g <= run.group_size and p <= run.problems_per_step]
    for group_size, problems in fitting:
        sizes = {"group_size": group_size, "problems_per_step": problems}
        game = make_game(config.game.name, config.game.options, **sizes)
        each = game.rollouts_per_step()
        if each is not None and each <= most:
            break
    return game
