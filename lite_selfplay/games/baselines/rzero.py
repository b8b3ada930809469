"""R-Zero: challenger and solver (Huang et al. 2025, "R-Zero: Self-Evolving Reasoning LLM from Zero Data").

Two seats that start from one base move in turn. An iteration is `challenger_steps` steps, then `solver_steps`:

    challenger step (solver frozen):    x_1 .. x_B ~ challenger;  y_1 .. y_10 ~ solver(. | x);  s = the majority's share
                                        r = min(s, 1 - s) - size of x's BLEU cluster / B;   -1 where malformed
    first solver step:                  a pool of questions of the trained challenger, labelled by the majority of the
                                        solver as it is, kept where 0.3 <= s <= 0.8
    solver step (challenger frozen):    the pool's next questions, N fresh answers each;  r = [y = label];  GRPO

Kept: rewards, ten votes, the filter, BLEU clusters by average linkage cut at a distance of 0.5, KL 1e-2, GRPO on both
sides. The label is the solver's majority, never the challenger's own answer, which must be there all the same.
The lengths of the phases are those of the checkpoints that R-Zero's scripts keep. Ours: questions and answers a step,
at most `max_draws` times as many questions drawn as the solver's phase can use, a smaller pool walked in a circle, BLEU
in both directions, constant learning rates, adapters over one base in the place of whole models. Iterations follow one
another for as long as the run lasts: the paper's three are 3 * (challenger_steps + solver_steps) steps.
"""

import math
import re
from collections import Counter
from collections.abc import Mapping, Sequence
from itertools import combinations
from typing import Any, ClassVar

from pydantic import Field

from lite_selfplay.data import Episode, Example, Group, Problem, Sample, Stream
from lite_selfplay.games.presentation import FOR_VOTE, Figure
from lite_selfplay.games.prompts import asked, fill
from lite_selfplay.games.propose_solve.propose_solve import (
    BREAKDOWNS,
    WATCHED,
    YIELD,
    FilterOptions,
    ProposeSolve,
)
from lite_selfplay.games.propose_solve.questions import (
    FATES,
    HOPELESS,
    Bounds,
    Candidate,
    answered,
    boxed_example,
    boxed_question,
    count_fates,
    draw_until,
    right_or_wrong,
    shown,
    verified,
    watched,
)
from lite_selfplay.games.table import Table

_WORD = re.compile(r"\w+|[^\w\s]")


def bleu_distance(a: Sequence[str], b: Sequence[str]) -> float:
    """1 - BLEU of two lists of words, in [0, 1]; 0 for equal ones.

    BLEU with up to four words in a row (fewer where a text is shorter), smoothed by Chen and Cherry's method 1. BLEU
    asks for a reference, and neither question is one: the mean of both directions (ours).
    """
    from nltk.translate.bleu_score import SmoothingFunction, sentence_bleu

    if list(a) == list(b):
        return 0.0
    if not a or not b:
        return 1.0
    smoothing = SmoothingFunction().method1
    both = [
        float(sentence_bleu([x], y, smoothing_function=smoothing, auto_reweigh=True))
        for x, y in ((list(a), list(b)), (list(b), list(a)))
    ]
    return min(1.0, max(0.0, 1.0 - sum(both) / 2))


def clusters(questions: Sequence[str], threshold: float = 0.5) -> list[int]:
    """The cluster of each question: average linkage over 1 - BLEU, cut at a distance of `threshold` (included)."""
    from scipy.cluster.hierarchy import fcluster, linkage

    if len(questions) < 2:
        return [1] * len(questions)
    words = [_WORD.findall(question.casefold()) for question in questions]
    distances = [bleu_distance(a, b) for a, b in combinations(words, 2)]
    return [int(number) for number in fcluster(linkage(distances, "average"), threshold, "distance")]


def cluster_shares(questions: Sequence[str], of: int, threshold: float = 0.5) -> list[float]:
    """For each question, its cluster's size over `of`, the number of proposals they were among; in (0, 1]."""
    numbers = clusters(questions, threshold)
    sizes = Counter(numbers)
    return [sizes[number] / of for number in numbers]


MALFORMED = -1.0


class RZeroOptions(FilterOptions):
    """R-Zero's switches.

    `challenger_steps` and `solver_steps`: the two phases of an iteration. `votes`: answers a label is voted by.
    `low` and `high`: the shares of the majority between which a question trains the solver. `max_draws`: how many
    questions may be drawn for a solver's phase, as a multiple of those it can use. `similarity` takes a question's
    share of its BLEU cluster off the challenger's reward; clusters are cut at `cluster_distance`.
    """

    challenger_steps: int = Field(5, ge=1)
    solver_steps: int = Field(15, ge=1)
    votes: int = Field(10, ge=2)
    low: float = Field(0.3, ge=0, le=1)
    high: float = Field(0.8, ge=0, le=1)
    max_draws: int = Field(4, ge=1)
    similarity: bool = True
    cluster_distance: float = Field(0.5, gt=0, lt=1)


class RZero(ProposeSolve):
    """The challenger is paid for questions that split the solver's votes; the solver learns from those that did."""

    roles = ("challenger", "solver")
    about = "R-Zero: a challenger is paid for questions that split the solver's votes; the two learn in turn"
    Options = RZeroOptions
    figures = (
        *YIELD,
        *WATCHED,
        Figure(
            "cluster_share",
            "share of the cluster",
            "share",
            of="questions",
            about="The mean share of a step's questions that are alike: their challenger is paid less.",
        ),
        *FATES,
        Figure("pool", "questions in the pool", how="last", about="Questions that the solver can learn from."),
        *BREAKDOWNS,
    )
    recipe: ClassVar[dict[str, Any]] = {
        "roles": {"*": {"beta": 1e-2}},
        "seats": {"*": {"lr": 3e-5, "schedule": "constant", "warmup": 0.0, "full_finetune_lr": 1e-6}},
    }

    def __init__(self, options: Any = None, *, group_size: int = 8, problems_per_step: int = 4):
        super().__init__(options, group_size=group_size, problems_per_step=problems_per_step)
        self.bounds = Bounds(self.options.low, self.options.high)
        self._pool: list[Problem] = []  # what the solver learns from in its phase
        self._cursor = 0

    def updates(self, steps: int) -> Mapping[str, int]:
        """The two phases of an iteration, in turn."""
        first = self.options.challenger_steps
        whole, rest = divmod(steps, first + self.options.solver_steps)
        challenger = whole * first + min(rest, first)
        return {"challenger": challenger, "solver": steps - challenger}

    def rewards(self) -> Mapping[str, str]:
        less = ", less the share of questions like it" * self.options.similarity
        return {
            "challenger": f"up to 0.5 for a question that splits the solver's vote{less}, -1 for none",
            "solver": f"1 {FOR_VOTE}",
        }

    def describe(self, steps: int) -> list[str]:
        first, then, asked = self.options.challenger_steps, self.options.solver_steps, self._questions
        wanted = then * self.problems_per_step
        return [
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
        """Every solver's phase draws all it may at its last step, after a vain try at each step before."""
        first, then, batch = self.options.challenger_steps, self.options.solver_steps, self._questions
        rounds, rest = divmod(steps, first + then)
        challenging, phases = rounds * first + min(rest, first), rounds + (rest > first)
        solving = steps - challenging
        most = then * self.problems_per_step * self.options.max_draws
        each = 1 + self.options.votes
        draws = phases * _whole(most, batch) + (solving - phases) * _whole(most / HOPELESS, batch)
        return (challenging * batch + draws) * each + solving * batch

    @property
    def _questions(self) -> int:
        return self.problems_per_step * self.group_size

    def worked_proposal(self, problem: Problem, *, thinks: bool) -> Example | None:
        return boxed_example(problem, fill("rzero_challenger"), thinks=thinks)

    def play(self, step: int, table: Table) -> Episode:
        within = step % (self.options.challenger_steps + self.options.solver_steps)
        return self._challenge(step, table) if within < self.options.challenger_steps else self._solve(step, table)

    # The challenger's phase

    def _challenge(self, step: int, table: Table) -> Episode:
        self._pool, self._cursor = [], 0
        rows = table.ask("challenger", [fill("rzero_challenger")] * self.problems_per_step, n=self.group_size)
        proposals = [boxed_question(reply) for row in rows for reply in row]
        found = answered(table, "solver", proposals, self.options.votes, f"q-{step}")
        shares = self._cluster_shares(found)
        samples = [self._rewarded(c, share) for c, share in zip(found, shares, strict=True)]
        size = self.group_size
        groups = [Group(samples[i : i + size]) for i in range(0, len(samples), size)]
        asked = [share for share in shares if share is not None]
        log = {
            **self._yield_log(
                step, "challenger", table, found, [c.group.problem for c in found if c.group and c.group.problem]
            ),
            "cluster_share": sum(asked) / len(asked) if asked else None,
        }
        return Episode([Stream("challenger", groups)], log=log)

    def _cluster_shares(self, found: Sequence[Candidate]) -> list[float | None]:
        """The share of all proposals that lie in each question's cluster; None for what is no question."""
        if not self.options.similarity:
            return [0.0 if candidate.proposal.usable else None for candidate in found]
        questions = [candidate.proposal.question for candidate in found if candidate.proposal.usable]
        shares = iter(cluster_shares(questions, len(found), self.options.cluster_distance))
        return [next(shares) if candidate.proposal.usable else None for candidate in found]

    def _rewarded(self, candidate: Candidate, share: float | None) -> Sample:
        completion = candidate.proposal.completion
        info = {
            "question": candidate.name,
            "fate": candidate.proposal.reason or self.bounds.fate(candidate),
            "label": candidate.label,
            "share": candidate.share,
            "cluster_share": share,
        }
        reward = MALFORMED if share is None else challenger_reward(candidate.share, share)
        return Sample(completion, reward, masked=completion.stop == "prompt_too_long", info=info)

    # The solver's phase

    def _solve(self, step: int, table: Table) -> Episode:
        drawn = [] if self._pool else self._fill_pool(step, table)
        log = self._yield_log(step, "solver", table, drawn, self._pool) if drawn else self._where(step, "solver")
        count = min(self.problems_per_step, len(self._pool))
        chosen = [self._pool[(self._cursor + i) % len(self._pool)] for i in range(count)]
        self._cursor += count
        answers = table.ask("solver", list(map(asked, chosen)), n=self.group_size) if chosen else []
        groups = verified(table, chosen, answers, right_or_wrong)
        streams = {"challenger": [shown(candidate, self.bounds) for candidate in drawn], "solver": groups}
        log = {**log, "draws": len(drawn), "pool": len(self._pool)}
        return Episode([Stream(role, found) for role, found in streams.items() if found], log=log)

    def _fill_pool(self, step: int, table: Table) -> list[Candidate]:
        """Draw questions of the trained challenger for the whole phase; all that were drawn."""
        wanted, prompt = self.options.solver_steps * self.problems_per_step, fill("rzero_challenger")
        drawn = draw_until(
            table,
            lambda: [boxed_question(reply) for reply in table.ask("challenger", [prompt], n=self._questions)[0]],
            "solver",
            self.options.votes,
            self.bounds,
            wanted=wanted,
            most=wanted * self.options.max_draws,
            prefix=f"q-{step}",
        )
        kept = [candidate.group for candidate in drawn if self.bounds.fate(candidate) == "kept"]
        self._pool, self._cursor = [group.problem for group in kept[:wanted] if group and group.problem], 0
        return drawn

    def _yield_log(
        self, step: int, phase: str, table: Table, drawn: Sequence[Candidate], used: Sequence[Problem]
    ) -> dict[str, Any]:
        """What was proposed: `used` are the questions that train a seat."""
        return {
            **self._where(step, phase),
            **self.question_yield([candidate.proposal for candidate in drawn], len(used)),
            **self.watch.look(tokens=table.tokenize, labels=[(x.text, x.answer) for x in used], **watched(drawn)),
            **count_fates(drawn, self.bounds),
        }

    def _where(self, step: int, phase: str) -> dict[str, Any]:
        return {"phase": phase, "iteration": step // (self.options.challenger_steps + self.options.solver_steps)}

    def state(self) -> dict[str, Any]:
        pool = [{"id": x.id, "text": x.text, "answer": x.answer} for x in self._pool]
        return {**super().state(), "pool": pool, "cursor": self._cursor}

    def restore(self, state: Mapping[str, Any]) -> None:
        super().restore(state)
        self._pool, self._cursor = [Problem(**values) for values in state["pool"]], state["cursor"]


def _whole(draws: float, batch: int) -> int:
    """So many draws in whole batches."""
    return math.ceil(draws / batch) * batch


def challenger_reward(share: float, cluster_share: float) -> float:
    """What a well-formed question earns, in [-1, 0.5].

    `min(s, 1 - s)` with `s` the share of the solver's majority, less the share of the proposals that are like it.
    """
    return min(share, 1.0 - share) - cluster_share
