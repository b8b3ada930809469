"""RENT: entropy minimisation (Prabhudesai et al. 2025, "Maximizing Confidence Alone Improves Reasoning"), a baseline.

One seat answers problems and is rewarded for certainty: a completion's reward is the negative mean entropy of the
distributions its tokens were sampled from. No answer is used, so problems need none; if they have one, it is checked
for the records only.

    R(y) = -1/T sum_t H(pi(. | x, y_<t))        in nats
    a GRPO update of the seat on groups of N completions per problem

CPMobius (section 4.1) trains it on the very benchmark that measures it. Ours, since the papers at hand have no numbers:
N = 8, KL 1e-3, temperature 1, the entropy of the tempered policy.
"""

import math
from collections.abc import Mapping, Sequence
from typing import Any, ClassVar

from lite_selfplay.credit import rewards_of
from lite_selfplay.data import Completion, Episode, Group, Sample, Stream, TokenScores, Verdict
from lite_selfplay.games.baselines import SingleSeat
from lite_selfplay.games.presentation import Figure
from lite_selfplay.games.prompts import asked
from lite_selfplay.games.table import Table

# Nats a token: below this, a seat writes nearly the same at every sample, and has nothing left to learn from.
SURE = 0.01


class Rent(SingleSeat):
    """One seat, rewarded for certainty."""

    roles = ("solver",)
    about = "RENT: one seat, rewarded for the certainty of its completions; a baseline without answers"
    needs_answers: bool = False
    own_labels: bool = True
    recipe: ClassVar[dict[str, Any]] = {
        "seats": {"solver": {"lr": 3e-5, "schedule": "constant", "warmup": 0.0}},
        "roles": {"solver": {"beta": 1e-3}},
    }
    figures = (
        Figure("entropy", "entropy, nats a token", healthy=(SURE, math.inf),
               warning="the mean entropy is {value:.4f} nats a token: "
               "the seat writes nearly the same text at every sample",
               about="The mean entropy of the seat's next-token distribution, which its reward lowers."),
    )  # fmt: skip

    def rewards(self) -> Mapping[str, str]:
        return {"solver": "its certainty: minus its mean entropy, in nats a token"}

    def play(self, step: int, table: Table) -> Episode:
        problems = table.draw("problems", self.problems_per_step)
        answers = table.ask("solver", [asked(problem) for problem in problems], n=self.group_size)
        every = [(c, p) for p, row in zip(problems, answers, strict=True) for c in row]
        scores = iter(table.score("solver", [c for c, _ in every if c.token_ids]))
        # Only for the records.
        verdicts = iter(table.verify([(c, p) for c, p in every if p.answer is not None]))
        samples = iter(
            _sample(c, next(scores) if c.token_ids else None, next(verdicts) if p.answer is not None else None)
            for c, p in every
        )
        groups = [Group([next(samples) for _ in row], p) for p, row in zip(problems, answers, strict=True)]
        rewards = rewards_of(sample for group in groups for sample in group.samples if not sample.masked)
        return Episode([Stream("solver", groups)], log={"entropy": -sum(rewards) / len(rewards) if rewards else None})


def rent_reward(entropies: Sequence[float]) -> float:
    """The negative mean of a completion's token entropies in nats, never positive; 0 without tokens."""
    return -sum(entropies) / len(entropies) if entropies else 0.0


def _sample(completion: Completion, scores: TokenScores | None, verdict: Verdict | None) -> Sample:
    """A completion rewarded by its scores; an empty one is masked and has no reward, because 0 would be the best."""
    return Sample(completion, rent_reward(scores.entropies) if scores else None, verdict, masked=scores is None)
