"""A step of a game in small, played aside: at a table of its own that notes what was said, with a game of its own."""

from collections.abc import Callable, Mapping, Sequence
from typing import Any

from lite_selfplay.config import RunConfig
from lite_selfplay.data import Completion, Episode, Problem, Sampling, Turn, Verdict
from lite_selfplay.errors import LiteSelfPlayError
from lite_selfplay.games import Game, make_game
from lite_selfplay.runs.report.steps import stream_metrics
from lite_selfplay.training.rollout import LiveTable
from lite_selfplay.training.updates import StreamUpdate

SIZES = ((4, 4), (4, 2), (4, 1), (2, 4), (2, 2), (2, 1))
"""Group sizes and problems of such a step: the first that samples few enough completions is taken."""
NOBODYS_STEP = -1
"""The step that its seeds follow from: none of the run's."""

Said = Mapping[str, Sequence[Completion]]
"""What each role said."""


class Enough(LiteSelfPlayError):
    """Ends the game once as many completions were sampled as were to be."""


class SmallTable(LiveTable):
    """A table of few completions, which are noted: `said` by role, and the `verdicts` on them by their identity.

    Of what is asked for beyond `most` completions a first part is sampled, and the game ends there, by Enough.
    """

    most: int = 16

    def open(self, step: int, seats: Mapping[str, str]) -> None:
        super().open(step, seats)
        self.said: dict[str, list[Completion]] = {}
        self.verdicts: dict[int, Verdict] = {}
        self._role, self._measured = "", list[Problem]()

    def ask(self, role: str, *args: Any, **options: Any) -> list[list[Completion]]:
        self._role, self._measured = role, []
        return super().ask(role, *args, **options)

    def evaluate(self, role: str, prompts: Sequence[str], problems: Sequence[Problem], n: int = 1) -> list[Verdict]:
        self._role, self._measured = role, list(problems)
        return super().evaluate(role, prompts, problems, n)

    def speak(
        self,
        seat: str,
        prompts: Sequence[str | Sequence[Turn]],
        n: int,
        sampling: Sampling,
        seeds: Sequence[Sequence[int]],
        beginnings: Sequence[str] | None = None,
        hear: Callable[[int, int, int, int], bool] | None = None,
    ) -> list[list[Completion]]:
        left = self.most - sum(map(len, self.said.values()))
        each = min(n, left)
        count = min(len(prompts), left // each) if each else 0
        starts = None if beginnings is None else beginnings[:count]
        first = [row[:each] for row in seeds[:count]]
        found = super().speak(seat, prompts[:count], each, sampling, first, starts, hear)
        self.said.setdefault(self._role, []).extend(completion for row in found for completion in row)
        if each == n and count == len(prompts):
            return found
        if pairs := [(c, problem) for row, problem in zip(found, self._measured, strict=False) for c in row]:
            self.verify(pairs)
        raise Enough

    def verify(self, pairs: Sequence[tuple[Completion, Problem]]) -> list[Verdict]:
        found = super().verify(pairs)
        self.verdicts |= {id(completion): verdict for (completion, _), verdict in zip(pairs, found, strict=True)}
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


def streams_of(table: SmallTable, seats: Mapping[str, str], episode: Episode | None) -> dict[str, Mapping[str, Any]]:
    """What each role did: as in `metrics.jsonl` where the step was played to its end, else as far as it is known."""
    found: dict[str, Mapping[str, Any]] = {}
    for role, said in table.said.items():
        judged = [table.verdicts[id(c)] for c in said if id(c) in table.verdicts]
        found[role] = {
            "seat": seats.get(role, said[0].seat if said else ""),
            "completions": len(said),
            "accuracy": _mean([verdict.correct for verdict in judged]),
            "well_formed": _mean([verdict.well_formed for verdict in judged]),
            "tokens_mean": _mean([len(c.token_ids) for c in said]),
            "truncated": _mean([c.stop == "length" for c in said]),
        }
    for stream in episode.streams if episode else ():
        metrics = stream_metrics(stream, [], StreamUpdate(stream.role, seats[stream.role]))
        kept = (*found.get(stream.role, ()), "groups", "zero_variance_groups", "reward_mean")
        if stream.role in found and metrics["completions"]:
            found[stream.role] = {key: metrics[key] for key in kept}
    return {role: stream for role, stream in found.items() if stream["completions"]}


def _mean(values: Sequence[float]) -> float | None:
    return sum(values) / len(values) if values else None
