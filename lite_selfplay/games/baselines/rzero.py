"""R-Zero: challenger and solver (Huang et al. 2025, "R-Zero: Self-Evolving Reasoning LLM from Zero Data").

Two seats that start from one base are trained in turn. An iteration is `challenger_steps` steps, then `solver_steps`:

    challenger step (solver frozen):    x_1 .. x_B ~ challenger;  y_1 .. y_10 ~ solver(. | x);  s = the majority's share
                                        r = min(s, 1 - s) - size of x's BLEU cluster / B;   -1 if malformed
    first solver step:                  a pool of questions of the trained challenger, labelled by the majority of the
                                        current solver, kept if 0.3 <= s <= 0.8
    solver step (challenger frozen):    the pool's next questions, N fresh answers each;  r = [y = label];  GRPO

Kept: rewards, ten votes, the filter, BLEU clusters by average linkage cut at a distance of 0.5, KL 1e-2, GRPO on both
sides. The label is the solver's majority, never the challenger's own answer, although that is required.
The lengths of the phases follow the checkpoints that R-Zero's scripts keep. Ours: questions and answers per step, at
most `max_draws` times as many questions drawn as the solver's phase can use, cycling if the pool is smaller, BLEU in
both directions, constant learning rates, adapters over one base instead of whole models. Iterations continue for the
whole run: the paper's three are 3 * (challenger_steps + solver_steps) steps.

R-Few (Yu et al. 2025, "Guided Self-Evolving LLMs with Minimal Human Supervision", arXiv 2512.02472) adds a few labelled
problems, the anchors:

    challenger's prompt:    examples from the anchors, drawn anew for each group
    first solver step:      the anchors are answered too, and join the pool if low <= share of right ones <= high

Kept: both uses of the anchors, and that the solver learns from problems of middle difficulty under its current weights.
Ours, since we had the paper's abstract but not its text: up to `shots` examples, R-Zero's bounds for the middle, and
that a phase walks through questions and anchors in one random order.
"""

import math
import re
from collections.abc import Mapping, Sequence
from dataclasses import replace
from itertools import combinations, repeat
from typing import Any, ClassVar

from pydantic import Field

from lite_selfplay.data import Episode, Example, Group, Problem, Stream
from lite_selfplay.games.presentation import FOR_VOTE, Figure
from lite_selfplay.games.prompts import asked, fill
from lite_selfplay.games.propose_solve.propose_solve import (
    OR_ANCHOR,
    AnchoredGame,
    AnchorOptions,
    FilteredGame,
    FilterOptions,
    family_figures,
    turn_shares,
)
from lite_selfplay.games.propose_solve.questions import (
    FATES,
    HOPELESS,
    NOBODYS,
    Bounds,
    Candidate,
    Proposal,
    answer_sample,
    answered,
    boxed_example,
    boxed_question,
    boxed_reply,
    draw_until,
    shown,
    verified,
)
from lite_selfplay.games.table import Table

_WORD = re.compile(r"\w+|[^\w\s]")


def bleu_distance(a: Sequence[str], b: Sequence[str]) -> float:
    """1 - BLEU of two lists of words, in [0, 1]; 0 for equal ones.

    BLEU with up to four words in a row (fewer if a text is shorter), smoothed by Chen and Cherry's method 1. BLEU needs
    a reference, and neither question is one: this is the mean of both directions (ours).
    """
    from nltk.translate.bleu_score import SmoothingFunction, sentence_bleu

    if list(a) == list(b):
        return 0.0
    if not a or not b:
        return 1.0
    both = [
        float(sentence_bleu([x], y, smoothing_function=SmoothingFunction().method1, auto_reweigh=True))
        for x, y in ((list(a), list(b)), (list(b), list(a)))
    ]
    return min(1.0, max(0.0, 1.0 - sum(both) / 2))


def cluster_shares(questions: Sequence[str], of: int, threshold: float = 0.5) -> list[float]:
    """Each question's cluster size divided by `of`, the number of proposals; in (0, 1].

    Clusters are by average linkage over 1 - BLEU, cut at a distance of `threshold` (included).
    """
    from scipy.cluster.hierarchy import fcluster, linkage

    if len(questions) < 2:
        return [1 / of] * len(questions)
    words = [_WORD.findall(question.casefold()) for question in questions]
    distances = [bleu_distance(a, b) for a, b in combinations(words, 2)]
    numbers = fcluster(linkage(distances, "average"), threshold, "distance").tolist()
    return [numbers.count(number) / of for number in numbers]


class RZeroOptions(FilterOptions, AnchorOptions):
    """R-Zero's options.

    `challenger_steps` and `solver_steps`: the two phases of an iteration. `votes`: answers that vote on a label. `low`
    and `high`: the range of the majority's share in which a question trains the solver. `max_draws`: how many questions
    may be drawn for a solver's phase, as a multiple of those it can use. `similarity` subtracts the share of a
    question's BLEU cluster from the challenger's reward; clusters are cut at `cluster_distance`. `anchors`: how many
    labelled problems the challenger sees examples of, 0 to `shots` at a time, and the solver learns from (R-Few).
    """

    challenger_steps: int = Field(5, ge=1)
    solver_steps: int = Field(15, ge=1)
    votes: int = Field(10, ge=2)
    low: float = Field(0.3, ge=0, le=1)
    high: float = Field(0.8, ge=0, le=1)
    max_draws: int = Field(4, ge=1)
    similarity: bool = True
    cluster_distance: float = Field(0.5, gt=0, lt=1)


class RZero(FilteredGame, AnchoredGame):
    """The challenger is rewarded for questions that split the solver's votes; the solver learns from these."""

    roles = ("challenger", "solver")
    about = "R-Zero: a challenger is rewarded for questions that split the solver's votes; the two learn in turn"
    Options = RZeroOptions
    figures = family_figures(
        Figure("cluster_share", "share of the cluster", "share", of="questions",
               about="The mean share of similar questions in a step: they earn their challenger less."),
        *FATES,
        Figure("pool", "questions in the pool", how="last", about="Questions that the solver can learn from."),
    )  # fmt: skip
    recipe: ClassVar[dict[str, Any]] = {
        "roles": {"*": {"beta": 1e-2}},
        "seats": {"*": {"lr": 3e-5, "schedule": "constant", "warmup": 0.0, "full_finetune_lr": 1e-6}},
    }

    def __init__(self, options: Any = None, *, group_size: int = 8, problems_per_step: int = 4):
        super().__init__(options, group_size=group_size, problems_per_step=problems_per_step)
        self.bounds = Bounds(self.options.low, self.options.high)
        self.written = boxed_reply
        self._questions = problems_per_step * group_size  # of a challenger's step
        self._pool: list[Problem] = []  # the questions of a solver's phase
        self._cursor = 0

    def updates(self, steps: int) -> Mapping[str, int]:
        shares = turn_shares(steps, self.options.challenger_steps, self.options.solver_steps)
        return dict(zip(self.roles, shares, strict=True))

    def rewards(self) -> Mapping[str, str]:
        less = ", less the share of questions like it" * self.options.similarity
        return {
            "challenger": f"up to 0.5 for a question that splits the solver's vote{less}, -1 for none",
            "solver": f"1 {FOR_VOTE}" + OR_ANCHOR * bool(self.options.anchors),
        }

    def describe(self, steps: int) -> list[str]:
        first, then, asked = self.options.challenger_steps, self.options.solver_steps, self._questions
        wanted = then * self.problems_per_step
        few = f"anchors: {self.options.anchors} labelled problems, {self.options.votes} answers each before a phase"
        return [
            *[few] * bool(self.options.anchors),
            f"phases: {first} steps of the challenger, {then} of the solver, in turn: "
            f"{steps / (first + then):g} iterations",
            f"a challenger's step: {asked} questions, {self.options.votes} answers each, at most "
            f"{asked * (1 + self.options.votes):,} completions",
            f"draws: before a solver's phase {asked} questions at a time until {wanted} are kept (majority's share "
            f"{self.bounds.low:g} to {self.bounds.high:g}), at most {wanted * self.options.max_draws:,}, "
            f"{self.options.votes} answers each",
            f"a solver's step: {self.problems_per_step} questions, {self.group_size} answers each, "
            f"{self.problems_per_step * self.group_size:,} completions",
        ]

    def most_rollouts(self, steps: int) -> int:
        """Assumes that each solver's phase draws in vain until its last step, and the maximum there."""
        then, batch = self.options.solver_steps, self._questions
        challenging, solving = turn_shares(steps, self.options.challenger_steps, then)
        phases = math.ceil(solving / then)
        most = then * self.problems_per_step * self.options.max_draws
        batches = phases * math.ceil(most / batch) + (solving - phases) * math.ceil(most / HOPELESS / batch)
        anchored = solving * self.options.anchors * self.options.votes
        return (challenging + batches) * batch * (1 + self.options.votes) + anchored + solving * batch

    def worked_proposal(self, problem: Problem, *, thinks: bool) -> Example | None:
        return boxed_example(problem, fill("rzero_challenger"), thinks=thinks)

    def play(self, step: int, table: Table) -> Episode:
        iteration, within = divmod(step, self.options.challenger_steps + self.options.solver_steps)
        challenges = within < self.options.challenger_steps
        found = self._challenge(step, table) if challenges else self._solve(step, table)
        phase = "challenger" if challenges else "solver"
        return replace(found, log={"phase": phase, "iteration": iteration, **found.log})

    # The challenger's phase

    def _challenge(self, step: int, table: Table) -> Episode:
        self._pool, self._cursor = [], 0
        found = answered(table, "solver", self._propose(table, self.problems_per_step), self.options.votes, f"q-{step}")
        shares = self._cluster_shares(found)
        rewards = [
            -1.0 if share is None else challenger_reward(c.share, share) for c, share in zip(found, shares, strict=True)
        ]
        samples = [
            shown(c, self.bounds, reward, cluster_share=share)
            for c, share, reward in zip(found, shares, rewards, strict=True)
        ]
        size = self.group_size
        groups = [Group(samples[i : i + size]) for i in range(0, len(samples), size)]
        known = [share for share in shares if share is not None]
        log = self.drawn_log(table, found, [c.group.problem for c in found if c.group and c.group.problem])
        log["cluster_share"] = sum(known) / len(known) if known else None
        return Episode([Stream("challenger", groups)], log=log)

    def _cluster_shares(self, found: Sequence[Candidate]) -> list[float | None]:
        """The share of proposals in each one's cluster; None for a proposal without a question."""
        questions = [candidate.proposal.question for candidate in found if candidate.proposal.usable]
        alike = self.options.similarity
        shares = iter(cluster_shares(questions, len(found), self.options.cluster_distance) if alike else repeat(0.0))
        return [next(shares) if candidate.proposal.usable else None for candidate in found]

    # The solver's phase

    def _solve(self, step: int, table: Table) -> Episode:
        drawn, log = ([], {}) if self._pool else self._fill_pool(step, table)
        count = min(self.problems_per_step, len(self._pool))
        chosen = [self._pool[(self._cursor + i) % len(self._pool)] for i in range(count)]
        self._cursor += count
        answers = table.ask("solver", list(map(asked, chosen)), n=self.group_size) if chosen else []
        groups = verified(table, chosen, answers, answer_sample)
        streams = {"challenger": [Group([shown(candidate, self.bounds)]) for candidate in drawn], "solver": groups}
        log = {**log, "draws": len(drawn), "pool": len(self._pool)}
        return Episode([Stream(role, found) for role, found in streams.items() if found], log=log)

    def _fill_pool(self, step: int, table: Table) -> tuple[list[Candidate], dict[str, Any]]:
        """Fill the phase's pool with questions of the trained challenger and with anchors, and return all questions
        drawn with their figures."""
        wanted = self.options.solver_steps * self.problems_per_step
        drawn = draw_until(
            table,
            lambda: self._propose(table, 1),
            "solver",
            self.options.votes,
            self.bounds,
            wanted=wanted,
            most=wanted * self.options.max_draws,
            prefix=f"q-{step}",
        )
        kept = [candidate.group for candidate in drawn if self.bounds.fate(candidate) == "kept"]
        self._pool, self._cursor = [group.problem for group in kept[:wanted] if group and group.problem], 0
        log = self.drawn_log(table, drawn, self._pool)
        if within_reach := self._within_reach(table):
            self._pool += within_reach
            table.rng.shuffle(self._pool)
        return drawn, log

    def _propose(self, table: Table, groups: int) -> list[Proposal]:
        """A batch of the challenger's questions, in groups that share a prompt."""
        prompts = self.prompts(table, fill("rzero_challenger"), groups)
        rows = table.ask("challenger", prompts, n=self._questions // groups)
        return [boxed_question(reply) for row in rows for reply in row]

    def _within_reach(self, table: Table) -> list[Problem]:
        """The anchors whose share of right answers lies within the bounds."""
        if not (anchors := self.anchors(table)):
            return []
        answers = table.ask("solver", list(map(asked, anchors)), n=self.options.votes)
        groups = zip(anchors, verified(table, anchors, answers, answer_sample), strict=True)
        shares = [(anchor, Candidate(anchor.id, Proposal(NOBODYS), group).share) for anchor, group in groups]
        return [anchor for anchor, share in shares if self.bounds.low <= share <= self.bounds.high]

    def state(self) -> dict[str, Any]:
        return {**super().state(), "pool": list(map(dict, map(vars, self._pool))), "cursor": self._cursor}

    def restore(self, state: Mapping[str, Any]) -> None:
        super().restore(state)
        self._pool, self._cursor = [Problem(**values) for values in state["pool"]], state["cursor"]


def challenger_reward(share: float, cluster_share: float) -> float:
    """The reward of a well-formed question, in [-1, 0.5].

    `min(s, 1 - s)`, with `s` the share of the solver's majority, minus the share of similar proposals.
    """
    return min(share, 1.0 - share) - cluster_share
