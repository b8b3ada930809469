"""Agon: draft and challenge (Beliaev, "Agon: Competitive Cross-Model RL with Implicit Rival Grading of Reasoning").

Two seats, A and B. At an even step A drafts and B challenges, at an odd step the other way round (Algorithm 1):

    for each problem x:
        a_1 .. a_N ~ drafter(. | x)                      plain prompt
        b_i ~ challenger(. | x, recap of a_i)            one per draft
        R(a_i) = 2 c(a_i) + lambda phi(a_i)
        R(b_i) = 2 c(b_i) + c(b_i) (1 - c(a_i)) + lambda phi(b_i)
    a GRPO update of the drafter on its groups, and of the challenger on its own

c is 1 for a right answer, phi for a well-formed one. The N challenges of a problem form one group although their
prompts differ. Groups without variance are dropped.

Kept from the paper: rewards, rotation, N = 8, rank 16, learning rate 5e-5 with linear decay and 10% warm-up, the
recap without the final answer, both adapters updated at every step, adapter B started apart from A.
Changed: no KL term, because section 3 has "the usual KL regularization toward a reference (the base)" without a weight;
lambda is 0, where the paper's is 0.5 (docs/decisions/0014-paying-for-form.md; the preset `agon-paper` has 0.5).
Ours, where the paper is silent: alpha 32 on all linear layers, N(0, 1e-3) as B's start, temperature 1, four problems
per step, a mean over each completion's tokens in the loss, and the last 512 tokens of a longer recap.
"""

import random
from collections.abc import Mapping, Sequence
from typing import Any, ClassVar, Literal

from lite_selfplay.data import (
    NOT_JUDGED,
    Completion,
    Episode,
    EvalSpec,
    Example,
    Group,
    Problem,
    Sample,
    Stream,
    Verdict,
)
from lite_selfplay.games.agon.recap import summarise, with_program, worked_attempt
from lite_selfplay.games.base import Game, GameOptions
from lite_selfplay.games.judging import earned, judged, solo_reward, verified
from lite_selfplay.games.presentation import FOR_FORM, FOR_RIGHT, Figure, Pairing, priced
from lite_selfplay.games.prompts import PROGRAM, asked, asked_after, fenced, fill, is_brief
from lite_selfplay.games.table import Reader, Table
from lite_selfplay.games.worked_examples import worked_example

Reward = Literal["adv", "coop", "margin"]

RECAP_TOKENS = 512
MOST_EMPTY_RECAPS = 0.2
_RIVAL = (
    "Here is a rival's attempt, which may or may not be correct. Do not trust it and do not repeat it: check it, and "
    "solve the problem yourself. You win by being right where the rival is wrong."
)


class DraftChallengeOptions(GameOptions):
    """Agon's options.

    `reward`: the competitive stack (`adv`), the cooperative one or the margin ablation. `rotate` swaps the seats' roles
    at every step. `format_weight` is lambda (the paper's is 0.5). `tiebreak` is gamma of the length tiebreak: 0 is off,
    the paper's is 0.5. `opponent`: each challenger reads one draft (`per_rollout`); or it reads none, and the reward
    compares it with its own draft (`hidden`) or with one draft for the whole group (`shared_hidden`).
    """

    reward: Reward = "adv"
    rotate: bool = True
    format_weight: float = 0.0
    tiebreak: float = 0.0
    opponent: Literal["per_rollout", "hidden", "shared_hidden"] = "per_rollout"


def figures_of_drafts(use: str) -> tuple[Figure, ...]:
    """The figures of `challenge_log`; `use` says what a draft's recap is for."""
    return (
        Figure("conversions", "conversions a step", word="conversions",
               about="Wrong drafts after which the answer was right."),
        Figure("regressions", "regressions a step", word="regressions",
               about="Right drafts after which the answer was wrong."),
        Figure("empty_summaries", "empty summaries", "share", healthy=(0.0, MOST_EMPTY_RECAPS),
               warning=f"{{value:.0%}} of the drafts have no recap {use} between the reasoning and the answer, or were "
               "cut off before it. A larger max_completion_tokens or a cold start helps.",
               about="Drafts with an empty recap, so that there is nothing to read."),
    )  # fmt: skip


def pairing_with_drafts(answer: str) -> Pairing:
    """How a draft is shown beside the `answer` of the seat that read it."""
    kinds = {
        (False, True): f"the {answer} was right, the draft wrong",
        (True, False): f"the draft was right, the {answer} wrong",
        (True, True): "both right",
        (False, False): "both wrong",
    }
    return Pairing("drafter", "draft", kinds)


class DraftChallenge(Game):
    """Two seats take turns: one drafts, the other reads the draft's recap and is rewarded for outdoing it."""

    roles = ("drafter", "challenger")
    about = "Agon: one seat drafts, a rival reads the draft and must out-solve it; roles rotate"
    Options: ClassVar[type[GameOptions]] = DraftChallengeOptions
    recipe: ClassVar[dict[str, Any]] = {
        "seats": {
            "*": {"lr": 5e-5, "schedule": "linear", "warmup": 0.1, "rank": 16, "alpha": 32},
            "B": {"init": "gaussian", "init_std": 1e-3},
        }
    }
    figures = figures_of_drafts("for the challenger to read")
    pairing = pairing_with_drafts("challenge")

    def seats(self, step: int) -> Mapping[str, str]:
        swap = self.options.rotate and step % 2 == 1
        return {"drafter": "B", "challenger": "A"} if swap else {"drafter": "A", "challenger": "B"}

    def rollouts_per_step(self) -> int:
        return 2 * self.problems_per_step * self.group_size

    def rewards(self) -> Mapping[str, str]:
        rival = {"adv": "more if the draft is wrong", "margin": "more if the draft is wrong, -1 if it alone is right"}
        own = ((2, FOR_RIGHT), (self.options.format_weight, FOR_FORM))
        more = (
            (self.options.reward in rival, rival.get(self.options.reward, "")),
            (self.options.tiebreak, "if shorter"),
        )
        return {self.roles[0]: priced(*own), self.roles[1]: priced(*own, *more)}

    def evaluation(self) -> EvalSpec:
        """Both directions if challengers read drafts in training; otherwise each seat alone, as in the paper."""
        return EvalSpec("cascade" if self.options.opponent == "per_rollout" else "single", self.trained_seats())

    def cold_start(self, role: str, problem: Problem, rng: random.Random, *, thinks: bool) -> Example | None:
        drafts = role == self.roles[0]
        prompt = asked(problem) if drafts else self.asked_with(problem, worked_attempt(problem, rng))
        return worked_example(problem, prompt, thinks=thinks)

    def asked_with(self, problem: Problem, recap: str) -> str:
        """The prompt that contains a draft's recap."""
        return challenge_prompt(problem, recap)

    def play(self, step: int, table: Table) -> Episode:
        problems = table.draw("problems", self.problems_per_step)
        drafts = table.ask("drafter", [asked(x) for x in problems], n=self.group_size)
        drafted = judged(table, problems, drafts, self.options.format_weight)
        recaps = [
            [recap_of(table, sample.completion, x) for sample in group.samples]
            for x, group in zip(problems, drafted, strict=True)
        ]
        size = self.group_size
        shown = self.options.opponent == "per_rollout"
        pairs = [(x, text) for x, row in zip(problems, recaps, strict=True) for text in row]
        prompts = [self.asked_with(x, text) if shown else asked(x) for x, text in pairs]
        replies = [completion for (completion,) in table.ask(self.roles[1], prompts)]
        rows = [replies[i : i + size] for i in range(0, len(replies), size)]
        # The draft of its group that each challenge is compared with.
        opponents = [0 if self.options.opponent == "shared_hidden" else i for i in range(size)]
        drafts_read = iter([(i, group.samples[i]) for group in drafted for i in opponents])
        challenged = verified(table, problems, rows, lambda c, v, x: self._challenge(c, v, x, *next(drafts_read)))
        played = zip(self.roles, (drafted, challenged), strict=True)
        streams = [Stream(role, groups, drop_zero_variance=True) for role, groups in played]
        return Episode(streams, log=challenge_log(challenged, recaps))

    def _challenge(
        self, completion: Completion, verdict: Verdict, problem: Problem, opponent: int, draft: Sample
    ) -> Sample:
        assert draft.verdict is not None
        shorter = len(completion.token_ids) < len(draft.completion.token_ids)
        reward = agon_reward(
            earned(verdict, problem),
            earned(draft.verdict, problem),
            verdict.well_formed,
            kind=self.options.reward,
            format_weight=self.options.format_weight,
            tiebreak=self.options.tiebreak if shorter else 0.0,
        )
        pairing = {"draft": opponent, "draft_correct": draft.verdict.correct if draft.judged else None}
        return Sample(completion, reward, verdict, masked=not draft.judged, info=pairing)


class SelfRefineOptions(GameOptions):
    """`format_weight` is lambda, the reward of a well-formed completion. Agon's other options are fixed: a seat reads
    its own draft, and nothing rewards it for being better than the draft."""

    format_weight: float = 0.0
    reward: ClassVar[str] = "coop"
    tiebreak: ClassVar[float] = 0.0
    opponent: ClassVar[str] = "per_rollout"


class SelfRefine(DraftChallenge):
    """Self-refinement with one seat, the control for exchange: it drafts, then reads its own recap and answers again,
    with as many completions as Agon, each rewarded for its own correctness c and format phi:

        for each problem x:
            a_1 .. a_N ~ seat(. | x)                         plain prompt
            b_i ~ seat(. | x, recap of a_i)                  one per draft, called its own
            R(y) = 2 c(y) + lambda phi(y)                    of drafts and refinements alike
        one update of the seat on both groups

    Source: table 1 and section 5 (the model sees its own prior attempt; the cooperative reward; two passes at
    evaluation). Ours, where the paper is silent: both passes are trained, the recap is the challenger's, and the prompt
    differs from the challenger's only in whose attempt it names.
    """

    roles = ("drafter", "refiner")
    about = "one seat drafts and refines its own drafts: Agon's control, at its budget"
    Options = SelfRefineOptions
    recipe: ClassVar[dict[str, Any]] = {"seats": {"solver": {"lr": 5e-5, "schedule": "linear", "warmup": 0.1}}}
    figures = figures_of_drafts("to refine")
    pairing = pairing_with_drafts("refinement")

    def seats(self, step: int) -> Mapping[str, str]:
        return dict.fromkeys(self.roles, "solver")

    def evaluation(self) -> EvalSpec:
        return EvalSpec("self-refine", self.trained_seats())

    def asked_with(self, problem: Problem, recap: str) -> str:
        return own_attempt_prompt("self_refine", problem, recap)


def agon_reward(
    challenger: float,
    drafter: float,
    well_formed: bool,
    *,
    kind: Reward = "adv",
    format_weight: float = 0.5,
    tiebreak: float = 0.0,
) -> float:
    """The challenger's reward, from its own correctness c(b) and the draft's c(a), each 0 or 1.

    `adv` (equation 3): 2 c(b) + c(b) (1 - c(a)) + lambda phi, a ladder of 0, 2 or 3 plus format; `coop` (equation 2):
    2 c(b) + lambda phi; `margin`: 2 c(b) + (c(b) - c(a)) + lambda phi. `tiebreak` (gamma, section 4.4) is added if both
    are right; the caller passes 0 unless the challenge is the shorter.
    """
    compared = {"adv": challenger * (1 - drafter), "coop": 0.0, "margin": challenger - drafter}[kind]
    return solo_reward(challenger, well_formed, format_weight) + compared + tiebreak * challenger * drafter


def recap_of(table: Reader, draft: Completion, problem: Problem) -> str:
    """The part of a draft that the challenger sees: its recap without the final answer, at most its last 512 tokens.

    A program is shown with its explanation, but without whether it passes (ours; section 5.3 is silent).
    """
    if problem.kind == PROGRAM:
        text = with_program(draft.text, thinks=table.thinks, prefill=draft.prefill)
    else:
        text = summarise(draft.text, problem.text, thinks=table.thinks, prefill=draft.prefill)
    ids = table.tokenize(text)
    return text if len(ids) <= RECAP_TOKENS else table.detokenize(ids[-RECAP_TOKENS:]).strip()


def challenge_prompt(problem: Problem, attempt: str) -> str:
    """The challenger's prompt: the problem, then a fenced attempt, or a line saying that there is no attempt.

    The attempt comes last, so that the challenges of a problem share a long beginning.
    """
    if is_brief(problem):
        return fill("challenger_brief", problem=problem.text, attempt=attempt or "none")
    shown = f"{_RIVAL}\n{fenced(attempt)}" if attempt else "No other attempt at this problem is available."
    return asked_after(problem, shown)


def own_attempt_prompt(name: str, problem: Problem, attempt: str) -> str:
    """The prompt of a seat that reads its own attempt. `name`: the template, `self_refine` or `self_cascade`."""
    own = fill(name, attempt=fenced(attempt)) if attempt else "No attempt of yours at this problem is available."
    return asked_after(problem, own)


def challenge_log(challenged: Sequence[Group], recaps: Sequence[Sequence[str]]) -> dict[str, Any]:
    """The challenges' effects: conversions (wrong draft, right challenge), regressions, share of empty recaps."""
    both = [(each.info["draft_correct"], each.verdict) for group in challenged for each in group.samples]
    pairs = [(draft, v.correct) for draft, v in both if v is not None and draft is not None and v.reason != NOT_JUDGED]
    texts = [text for row in recaps for text in row]
    return {
        "pairs": len(pairs),
        "conversions": sum(after and not before for before, after in pairs),
        "regressions": sum(before and not after for before, after in pairs),
        "empty_summaries": sum(not text for text in texts) / len(texts),
    }
