"""CPMobius: coach and player ("CPMöbius: Iterative Coach-Player Reasoning for Data-Free Reinforcement Learning").

Two seats cooperate. A round is two steps, that is two optimizer updates (Algorithm 1):

    even step:  until m tasks are kept:  x ~ coach;  y_1 .. y_n ~ player(. | x);  y* = majority;  acc = share of y*
                    kept if 0.2 <= acc <= 0.8 (a tie has no majority and is skipped)
                y_i1 .. y_in ~ player(. | x_i) and their majority afresh;  r_ij = [y_ij = y_i*]
                a GRPO update of the player on its m groups
    odd step:   Delta = accuracy of the player on the validation set, new minus old, in percentage points
                    (`validation_samples` answers to each problem, the same seeds every round)
                R_i = mean_j r_ij * Delta
                a REINFORCE update of the coach on x_1 .. x_m with R_i; no update if Delta = 0

Kept from the paper: rewards, filter, m = n = 16, KL 1e-3, the entropy coefficients (+0.01 coach, -0.01 player: the loss
is `pg - coefficient * H`, so the player's entropy is reduced), temperatures 0.7 and 0.6.
Changed: coach and player are adapters over one base; the paper's coach is another, larger model. The learning rate is
for adapters; the paper trained all weights at 1e-6.
Ours, where the sources are silent: at most `max_draws` m tasks per round, after which it continues with the kept ones,
and a quarter of that if none was kept; tasks that are cut off, empty or contain an answer are refused; a kept task
whose fresh answers have no majority is skipped; the coach's loss is a mean over the tokens of its tasks, which is
equation 6 up to a factor; constant learning rates; `rollback` restores the best player of all, including the initial
one (whose weights the published code does not keep), and the next Delta is relative to it.
Options marked "release" follow the published code, which differs from the paper.
"""

import math
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass, replace
from statistics import fmean
from typing import Any, ClassVar, Literal

from pydantic import Field

from lite_selfplay.credit import advantages, rewards_of
from lite_selfplay.data import (
    NOT_JUDGED,
    Completion,
    Episode,
    Example,
    Group,
    Problem,
    Restore,
    Sample,
    Snapshot,
    Stream,
)
from lite_selfplay.games.collections import completion_from_json
from lite_selfplay.games.presentation import FOR_VOTE, Figure
from lite_selfplay.games.prompts import asked, fill
from lite_selfplay.games.propose_solve.propose_solve import FilteredGame, FilterOptions, family_figures
from lite_selfplay.games.propose_solve.questions import (
    FATES,
    Bounds,
    Candidate,
    Proposal,
    answered,
    draw_until,
    shown,
    to_proposal,
)
from lite_selfplay.games.table import Table
from lite_selfplay.games.worked_examples import after_reasoning, solution_of
from lite_selfplay.verify.format import answer_spans, boxed_spans

PlayerReward = Literal["zero_one", "signed"]
CoachReward = Literal["mean", "delta", "advantage"]


@dataclass(frozen=True)
class Taught:
    """A task that trained the player and has no reward yet. `share`: the mean of the player's 0/1 rewards; `advantage`:
    the token-weighted mean of its nonzero advantages."""

    name: str
    completion: Completion
    share: float
    advantage: float


def player_reward(agrees: bool, kind: PlayerReward = "zero_one") -> float:
    """Equation 7: 1 for an answer of the majority, else 0; `signed` (release): +1 and -1."""
    return float(agrees) if kind == "zero_one" else 2.0 * agrees - 1.0


def coach_reward(kind: CoachReward, delta: float, share: float, advantage: float) -> float:
    """The coach's reward for a task. `delta` is in percentage points.

    `mean` (equation 5): Delta times the mean of the player's rewards, which is the `share` of answers that agree with
    the majority; `delta` and `advantage` (release): Delta alone, or times the player's weighted `advantage`.
    """
    return delta * {"mean": share, "delta": 1.0, "advantage": advantage}[kind]


def token_weighted(values: Sequence[float], lengths: Sequence[int]) -> float:
    """The mean of the nonzero values, each weighted with its completion's tokens; 0 if all are 0."""
    tokens = sum(length for value, length in zip(values, lengths, strict=True) if value)
    return math.fsum(v * length for v, length in zip(values, lengths, strict=True)) / tokens if tokens else 0.0


def progress(before: Sequence[int], after: Sequence[int], samples: int = 1) -> tuple[float, float | None]:
    """Delta, the difference of two accuracies on the same problems in percentage points, and its standard error.

    `before` and `after` count the right answers among `samples` to each problem. The error is that of the mean over
    problems of the paired differences (sample variance), since answers to one problem are not independent. None for a
    single problem.
    """
    changes = [int(a) - int(b) for b, a in zip(before, after, strict=True)]
    mean = sum(changes) / len(changes)
    if len(changes) < 2:
        return 100 * mean / samples, None
    variance = math.fsum((change - mean) ** 2 for change in changes) / (len(changes) - 1)
    return 100 * mean / samples, 100 * math.sqrt(variance / len(changes)) / samples


BEST = "player-best"


class CpMobiusOptions(FilterOptions):
    """CPMobius's options.

    `filter` keeps tasks whose majority's share lies in [`low`, `high`]; without it every task with a majority is kept.
    `max_draws`: the most tasks drawn per round, a multiple of m. `resample` samples the player's answers to kept tasks
    and votes again (paper) or reuses those of the filter (release). `reward`: the player's, 0 and 1 (paper) or -1 and
    +1 (release). `coach_reward`: Delta times the mean of the player's 0/1 rewards (paper), Delta alone, or Delta times
    the token-weighted mean of the player's nonzero advantages (both release). `freeze_coach`: only the player is
    trained. `validation_samples`: the player's answers to each validation problem, 10 in the release. `rollback`:
    restore the player with the best validation score after this many rounds without a new best, if the current score is
    lower; 0 is never (paper), 15 in the release. Rounds before `rollback_from` (from 1) do not count towards it.
    """

    filter: bool = True
    low: float = Field(0.2, ge=0, le=1)
    high: float = Field(0.8, ge=0, le=1)
    max_draws: int = Field(20, ge=1)
    resample: bool = True
    reward: PlayerReward = "zero_one"
    coach_reward: CoachReward = "mean"
    freeze_coach: bool = False
    validation_samples: int = Field(1, ge=1)
    rollback: int = Field(0, ge=0)
    rollback_from: int = Field(1, ge=1)


class CpMobius(FilteredGame):
    """The coach writes tasks and is rewarded for the player's progress on a validation set."""

    roles = ("coach", "player")
    sources: tuple[str, ...] = ("validation",)
    solver = "player"
    about = "CPMobius: a coach writes tasks, and is rewarded for the player's progress on a validation set"
    Options = CpMobiusOptions
    figures = family_figures(
        Figure("acceptance", "accepted questions", "share", of="draws", about="Drawn tasks of the right difficulty."),
        *FATES,
        Figure("kept", "tasks kept", about="Drawn tasks that the player learns from."),
        Figure("restored", "players restored", "share",
               about="Rounds after which the best player was restored."),
        Figure("validation_accuracy", "accuracy on validation, %", how="last",
               about="The player on the validation problems."),
        Figure("best_validation_accuracy", "best accuracy on validation, %", how="last",
               about="The highest of them so far."),
        Figure("delta", "Delta, percentage points",
               about="The player's progress on the validation problems, which is the coach's reward."),
    )  # fmt: skip
    recipe: ClassVar[dict[str, Any]] = {
        "roles": {
            "coach": {"temperature": 0.7, "beta": 1e-3, "entropy": 0.01, "loss": "dapo"},
            "player": {"temperature": 0.6, "beta": 1e-3, "entropy": -0.01},
        },
        "seats": {"*": {"lr": 3e-5, "schedule": "constant", "warmup": 0.0, "full_finetune_lr": 1e-6}},
        "run": {"group_size": 16, "problems_per_step": 16},
    }

    def __init__(self, options: Any = None, *, group_size: int = 8, problems_per_step: int = 4):
        super().__init__(options, group_size=group_size, problems_per_step=problems_per_step)
        chosen = self.options
        self.bounds = Bounds(chosen.low, chosen.high) if chosen.filter else Bounds(0.0, 1.0)
        self._most_draws = chosen.max_draws * problems_per_step
        self._fresh_answers = problems_per_step * group_size if chosen.resample else 0
        self._taught: list[Taught] = []  # between the two steps of a round
        # How often the player solved each validation problem: before its update, and at its best.
        self._before: list[int] = []
        self._best: list[int] = []
        self._stale = 0  # rounds since the best player
        self._skipped = 0

    def updates(self, steps: int) -> Mapping[str, int]:
        """Each seat is updated at one of a round's two steps, the player at the first."""
        return {"coach": 0 if self.options.freeze_coach else steps // 2, "player": -(-steps // 2)}

    def rewards(self) -> Mapping[str, str]:
        times = {"mean": " times the share of the vote", "delta": "", "advantage": " times the player's advantage"}
        return {
            "coach": "the player's gain in right answers on validation problems" + times[self.options.coach_reward],
            "player": f"1 {FOR_VOTE}" + ", -1 for not" * (self.options.reward == "signed"),
        }

    def describe(self, steps: int) -> list[str]:
        m, n = self.problems_per_step, self.group_size
        most, again, samples = self._most_draws, self._fresh_answers, self.options.validation_samples
        share = f"majority's share {self.bounds.low:g} to {self.bounds.high:g}"
        kept_where = share if self.options.filter else "a majority"
        rollback = (
            f"rollback: to the best player after {self.options.rollback} rounds without a new best, counted from "
            f"round {self.options.rollback_from} on"
        )
        return [
            f"rounds: {-(-steps // 2)}, of two steps: the player learns; then it is measured and the coach "
            + ("is frozen" if self.options.freeze_coach else "learns"),
            f"draws: {m} tasks at a time until {m} are kept ({kept_where}), at most {most} a round",
            f"a round samples {m * (1 + n) + again:,} to {most * (1 + n) + again:,} completions "
            f"({n} answers a task{', and again for kept ones' if again else ''}) and {samples} of each validation "
            "problem",
            "validation: the same problems and seeds before the first round and after every round",
            *([rollback] if self.options.rollback else []),
        ]

    def kept_at_start(self) -> Sequence[Snapshot]:
        """The initial player is the first best one."""
        return [Snapshot("player", BEST)] if self.options.rollback else []

    def most_rollouts(self, steps: int) -> int:
        """Assumes that every round draws the maximum; a round's second step only measures."""
        return -(-steps // 2) * (self._most_draws * (1 + self.group_size) + self._fresh_answers)

    def worked_proposal(self, problem: Problem, *, thinks: bool) -> Example | None:
        """A problem's text; if the coach reasons, the solution is its reasoning."""
        return Example(fill("coach"), after_reasoning(problem.text, solution_of(problem) or "", thinks))

    def play(self, step: int, table: Table) -> Episode:
        return self._learn(step, table) if step % 2 == 0 else self._teach(step, table)

    # The even step: tasks, answers, the player's update

    def _learn(self, step: int, table: Table) -> Episode:
        if not self._before:
            self._before = self._best = self._measure(table)
        m = self.problems_per_step
        drawn = draw_until(
            table,
            lambda: [read_task(reply) for reply in table.ask("coach", [fill("coach")], n=m)[0]],
            "player",
            self.group_size,
            self.bounds,
            wanted=m,
            most=self._most_draws,
            prefix=f"q-{step}",
        )
        kept = [candidate for candidate in drawn if self.bounds.fate(candidate) == "kept"]
        trained = self._fresh(table, kept[:m])
        groups = [self._group(candidate.group) for candidate in trained if candidate.group]
        self._taught = [self._taught_by(c, group) for c, group in zip(trained, groups, strict=True)]
        log = {
            "phase": "player",
            "round": step // 2,
            "validation_accuracy": self._percent(self._before),
            **self.drawn_log(table, drawn, [group.problem for group in groups if group.problem]),
            "draws": len(drawn),
            "kept": len(kept),
            "acceptance": len(kept) / len(drawn),
            "short": m - min(m, len(kept)),
            "lost_majority": min(m, len(kept)) - len(trained),
        }
        # The coach's tasks are only recorded: their rewards, if any, come in the next step.
        streams = [Stream("coach", [Group([shown(candidate, self.bounds)]) for candidate in drawn])]
        return Episode([*streams, Stream("player", groups)] if groups else streams, log=log)

    def _fresh(self, table: Table, kept: Sequence[Candidate]) -> list[Candidate]:
        """The kept tasks with the answers to train on; tasks whose fresh answers have no majority are skipped."""
        if not self.options.resample or not kept:
            return list(kept)
        proposals, names = [c.proposal for c in kept], [c.name for c in kept]
        return [each for each in answered(table, "player", proposals, self.group_size, names) if each.label is not None]

    def _group(self, answers: Group) -> Group:
        samples = [replace(s, reward=player_reward(s.reward == 1, self.options.reward)) for s in answers.samples]
        return replace(answers, samples=samples)

    def _taught_by(self, task: Candidate, group: Group) -> Taught:
        lengths = [len(sample.completion.token_ids) for sample in group.samples]
        weighted = token_weighted(advantages(rewards_of(group.samples)), lengths)
        return Taught(task.name, task.proposal.completion, task.share, weighted)

    # The odd step: progress, the coach's update

    def _teach(self, step: int, table: Table) -> Episode:
        taught, self._taught = self._taught, []
        # Without a task the player was not updated, and measuring it again would change nothing.
        after = self._measure(table) if taught else self._before
        delta, error = progress(self._before, after, self.options.validation_samples)
        self._skipped += not delta
        actions = self._keep_the_best(after, step // 2 + 1)
        log = {
            "phase": "coach",
            "round": step // 2,
            "validation_accuracy": self._percent(after),
            "best_validation_accuracy": self._percent(self._best),
            "delta": delta,
            "delta_error": error,
            "rounds_without_progress": self._skipped,
            "stale_rounds": self._stale,
            "restored": any(isinstance(action, Restore) for action in actions),
        }
        paid = [
            Group([Sample(task.completion, reward, info={"question": task.name, "share": task.share})])
            for task in (taught if delta and not self.options.freeze_coach else ())
            for reward in [coach_reward(self.options.coach_reward, delta, task.share, task.advantage)]
        ]
        return Episode([Stream("coach", paid, credit="reinforce")] if paid else [], actions=actions, log=log)

    def _measure(self, table: Table) -> list[int]:
        problems = table.everything("validation")
        n = self.options.validation_samples
        verdicts = table.evaluate("player", [*map(asked, problems)], problems, n)
        rows = [[v.correct for v in verdicts[i : i + n] if v.reason != NOT_JUDGED] for i in range(0, len(verdicts), n)]
        before = self._before or [0] * len(rows)  # also where nothing was judged: no change
        return [round(n * fmean(row)) if row else was for row, was in zip(rows, before, strict=True)]

    def _percent(self, right: Sequence[int]) -> float:
        return 100 * sum(right) / (len(right) * self.options.validation_samples)

    def _keep_the_best(self, after: list[int], round_: int) -> list[Snapshot | Restore]:
        """Note the player's score; with `rollback`, keep the best player or restore it."""
        self._before, patience = after, self.options.rollback
        if sum(after) > sum(self._best):
            self._best, self._stale = after, 0
            return [Snapshot("player", BEST)] if patience else []
        self._stale += round_ >= self.options.rollback_from
        if not patience or self._stale < patience or sum(after) == sum(self._best):
            return []
        self._before, self._stale = self._best, 0
        return [Restore("player", BEST, reset_optimizer=True)]

    def warnings(self, log: Mapping[str, Any]) -> list[str]:
        if not log.get("short"):
            return super().warnings(log)
        return [
            *super().warnings(log),
            f"only {log['kept']} of the {log['kept'] + log['short']} tasks of this round were found in "
            f"{log['draws']} draws (too hard {log['too_hard']}, too easy {log['too_easy']}, without a majority "
            f"{log['no_majority']}, refused {sum(log['refused'].values())}): the round continues with these",
        ]

    def state(self) -> dict[str, Any]:
        return {
            **super().state(),
            "taught": [*map(asdict, self._taught)],
            "before": self._before,
            "best": self._best,
            "stale": self._stale,
            "skipped": self._skipped,
        }

    def restore(self, state: Mapping[str, Any]) -> None:
        super().restore(state)
        self._taught = [
            Taught(**{**values, "completion": completion_from_json(values["completion"])}) for values in state["taught"]
        ]
        self._before, self._best = state["before"] or [], state["best"] or []
        self._stale, self._skipped = state["stale"], state["skipped"]


def read_task(completion: Completion) -> Proposal:
    """A coach's completion as a task: all of its text after the reasoning (section 3.1).

    Refused (ours): a task that was cut off, or that contains an answer block or a boxed value, which the player would
    only copy.
    """
    proposal = to_proposal(completion, lambda text: (text, None))
    if proposal.usable and completion.cut_off:
        return proposal.refused("truncated")
    given = answer_spans(proposal.question) or boxed_spans(proposal.question)
    return proposal.refused("leaks") if proposal.usable and given else proposal
