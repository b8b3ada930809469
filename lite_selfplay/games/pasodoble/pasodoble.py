r"""PasoDoble: propose and solve, dual play ("Better LLM Reasoning via Dual-Play").

Two seats, `proposer` and `solver`. One step (algorithms 1 and 2, sections 3.3 to 3.6):

    for each passage of knowledge:
        q_1, a_1 .. q_J, a_J ~ proposer(. | passage)
        y_j1 .. y_jK ~ solver(. | q_j)                       if q_j is well-formed
        p_j = share of y_j1 .. y_jK that match a_j
        R(q_j) = (1.1 - p_j) + 0.2 diversity(q_j)            0 if p_j <= 0.2, diversity <= 0.3 or q_j is malformed
    valid = questions with 0.2 < p < 1 and diversity > 0.3
    online: if a question is valid both seats are updated, the proposer on its groups of J, the solver on valid
        questions (`gate` has the paper's and the release's own rules for this)
    offline: `proposer_steps` such updates of the proposer alone, valid questions entering a buffer; then
        `solver_steps` updates of the solver alone, on buffered questions, answered afresh and filtered by p again

Diversity is 1 minus the share of the last 100 questions whose token sets have a Jaccard index above tau_sim with the
question's; a step's questions are compared with the history before it, then all well-formed ones enter it.

Kept from the paper: rewards, filters, J = K = 6, one passage per step, temperature 0.6, no KL term, 10 and 5 offline
steps. From the release: advantages divided by the group's deviation, and the cosine schedule named in its code (its
DeepSpeed files use a constant rate instead, as the presets do).
Ours: learning rates for adapters, with a warm-up unless a preset is used; a question too long for the solver's prompt
is malformed; a guard against questions that contain their answer, which count as p = 0 and train no seat (the release
trains the solver on them); a bound on a phase's attempts; a buffered question that occurs several times in a step is
one attempt for eviction; completions of 512 tokens by default (the paper has 6,144). Where the sources are silent:
diversity is 1 if the history is empty, and a share of the existing questions if it is short.
"""

import random
from collections import Counter, deque
from collections.abc import Collection, Mapping, Sequence
from collections.abc import Set as AbstractSet
from dataclasses import asdict, dataclass, replace
from functools import partial
from statistics import fmean
from typing import Any, ClassVar, Literal

from pydantic import Field

from lite_selfplay.credit import has_variance, rewards_of
from lite_selfplay.data import Completion, Episode, Example, Group, Problem, Sample, Stream, Verdict
from lite_selfplay.errors import ConfigError
from lite_selfplay.games.pasodoble.offline import Buffered, OfflineSchedule, QuestionBuffer
from lite_selfplay.games.presentation import BY_COIN, Figure
from lite_selfplay.games.prompts import asked, fenced, fill
from lite_selfplay.games.propose_solve.propose_solve import (
    SHOWN_CHARACTERS,
    ProposeSolve,
    ProposeSolveOptions,
    family_figures,
    proposed,
    turn_shares,
    well_formed,
)
from lite_selfplay.games.propose_solve.questions import (
    Candidate,
    LeakGuard,
    answer_sample,
    answered,
    by_answer,
    fit_to_ask,
    last_boxed,
    last_tagged,
    leaks,
    to_proposal,
    verified,
)
from lite_selfplay.games.table import Table
from lite_selfplay.games.worked_examples import after_reasoning, solution_of

Gate = Literal["retained", "valid", "pass_rate"]


class PasoDobleOptions(ProposeSolveOptions):
    """PasoDoble's options.

    `mode`: `online`, where every step updates both seats, or `offline`, where they alternate. `seats`: an adapter each,
    or one `shared` adapter with both gradients (online). `proposals` is J; K is the group size, and a step's passages
    are its problems. `knowledge=none` shows the proposer no passage. `freeze_proposer` trains the solver alone.
    `reward=random` rewards answers by the toss of a coin, `random_with_format` only those in the right format.
    `diversity=off` drops bonus and clip. `tau_sim`, `history`, `min_diversity`, `diversity_weight` and `min_pass_rate`
    are the numbers of the reward. `leak_guard` says which questions give their answer away. `credit=group_mean` does
    not divide by the deviation. `question_tokens` is the solver's longest prompt.

    `gate` says which questions make a step an update. `retained`: those that train the solver, with a pass rate between
    the bounds and unlike earlier ones. `valid` (paper): also those that are always solved, which update the proposer
    alone. `pass_rate` (release): those with a pass rate between the bounds, however similar to earlier ones; the solver
    trains on them, and the step is skipped if all proposals of each passage have equal rewards.

    Offline: phases of `proposer_steps` and `solver_steps` updates alternate, each of at most `attempts` times as many
    steps; a solver's step has `solver_questions` questions. `eviction` drops buffered questions that were always
    solved, or whose pass rate did not rise by `eviction_margin` in their last `eviction_patience` attempts.
    """

    mode: Literal["online", "offline"] = "online"
    seats: Literal["two", "shared"] = "two"
    proposals: int = Field(6, ge=2)
    knowledge: Literal["passages", "none"] = "passages"
    freeze_proposer: bool = False
    reward: Literal["difficulty", "random", "random_with_format"] = "difficulty"
    diversity: bool = True
    diversity_weight: float = Field(0.2, ge=0)
    min_diversity: float = Field(0.3, ge=0, le=1)
    min_pass_rate: float = Field(0.2, ge=0, lt=1)
    tau_sim: float = Field(0.3, ge=0, le=1)
    history: int = Field(100, ge=1)
    leak_guard: LeakGuard = "token3"
    gate: Gate = "retained"
    credit: Literal["group", "group_mean"] = "group"
    question_tokens: int = Field(512, ge=1)
    proposer_steps: int = Field(10, ge=1)
    solver_steps: int = Field(5, ge=1)
    attempts: int = Field(3, ge=1)
    solver_questions: int = Field(6, ge=1)
    eviction: bool = False
    eviction_margin: float = Field(0.01, ge=0)
    eviction_patience: int = Field(3, ge=1)


def jaccard(a: AbstractSet[int], b: AbstractSet[int]) -> float:
    """The share of the tokens of either set that are in both, in [0, 1]; 1 for two empty sets (section 3.3)."""
    return len(a & b) / len(a | b) if a or b else 1.0


def question_diversity(tokens: AbstractSet[int], history: Collection[AbstractSet[int]], tau_sim: float = 0.3) -> float:
    """1 minus the share of the history whose Jaccard index with a question is above `tau_sim`, in [0, 1].

    Token sets are those of the base's tokenizer. An empty history returns 1 (ours; section 3.3 divides by its size).
    """
    unlike = sum(jaccard(tokens, earlier) <= tau_sim for earlier in history)
    return unlike / len(history) if history else 1.0  # one division, so that 70 of 100 alike is exactly 0.3


def pass_rate(group: Group) -> float:
    """p, the share of a question's judged answers that match the proposer's: the mean of their rewards of 0 or 1."""
    return fmean(rewards_of(sample for sample in group.samples if sample.judged))


def proposer_reward(
    rate: float, diversity: float | None, *, weight: float = 0.2, min_pass_rate: float = 0.2, min_diversity: float = 0.3
) -> float:
    """`(1.1 - p) + weight * diversity`, but 0 if `p <= min_pass_rate` or `diversity <= min_diversity` (section 3.3).

    `diversity` None drops both the bonus and the clip (the ablation of section 5.3.4). With the paper's numbers the
    result is 0, or between 0.1 and 1.1.
    """
    if rate <= min_pass_rate or (diversity is not None and diversity <= min_diversity):
        return 0.0
    return 1.1 - rate + (weight * diversity if diversity is not None else 0.0)


def why_invalid(rate: float, diversity: float | None, *, min_pass_rate: float = 0.2, min_diversity: float = 0.3) -> str:
    """Why a question does not train the solver: `too_hard`, `too_easy` or `alike`; empty if `min_pass_rate < p < 1` and
    `diversity > min_diversity` (section 3.5). `diversity` None is ignored."""
    alike = "alike" if diversity is not None and diversity <= min_diversity else ""
    return "too_hard" if rate <= min_pass_rate else "too_easy" if rate >= 1 else alike


def proposer_prompt(passage: str = "") -> str:
    """The proposer's prompt: the request after a fenced passage, or after a line that leaves the topic open."""
    shown = f"Here is a text to draw on:\n{fenced(passage.strip())}" if passage else "Choose any topic of mathematics."
    return fill("pasodoble_proposer", knowledge=shown)


def parse_proposal(text: str) -> tuple[str, str | None] | None:
    """The question and the boxed answer of a reply without its reasoning; None without a problem block.

    The answer is None if no closed `<answer>` block with a boxed value follows the last problem block.
    """
    before, closing, after = text.rpartition("</problem>")
    question = last_tagged(before + closing, "problem")
    if question is None:
        return None
    block = last_tagged(after, "answer")
    return question, last_boxed(block) if block else None


@dataclass(frozen=True)
class JudgedProposal(Candidate):
    """A proposal with its outcome. `diversity` is None if it was not computed; `invalid` says why a well-formed
    question does not train the solver."""

    reward: float = 0.0
    diversity: float | None = None
    invalid: str = ""

    @property
    def valid(self) -> bool:
        return self.proposal.usable and not self.invalid

    @property
    def rate(self) -> float | None:
        return pass_rate(self.group) if self.group else None


def openers(
    judged: Sequence[JudgedProposal], groups: Sequence[Group], gate: Gate, *, frozen: bool
) -> list[JudgedProposal]:
    """The questions that make a step update its seats; without any, the step is skipped.

    `groups` are the proposers' samples. `retained`: all questions that train the solver. `valid` (section 3.5): all
    questions that reward their proposer, including those that are always solved; with a `frozen` proposer, which these
    could not train, as `retained`. `pass_rate` (release): all questions that train the solver, if the rewards of some
    group's proposals differ.
    """
    if gate == "valid" and not frozen:
        return [each for each in judged if each.reward > 0]
    if gate == "pass_rate" and not any(map(has_variance, groups)):
        return []
    return [each for each in judged if each.valid]


def in_vain(tried: Sequence[Stream], learned: Sequence[Stream]) -> list[Stream]:
    """Sampled groups that no seat learns from, for the record; all of `tried` in a skipped step."""
    kept = {id(group) for stream in learned for group in stream.groups}
    left = [replace(stream, groups=[group for group in stream.groups if id(group) not in kept]) for stream in tried]
    return [stream for stream in left if stream.groups or not learned]


def refused_texts(judged: Sequence[JudgedProposal]) -> dict[str, str]:
    """The beginning of the first proposal with each reason for refusal."""
    reasons = [(each.proposal.reason or each.invalid, each.proposal.completion.text) for each in judged]
    return {reason: text[:SHOWN_CHARACTERS] for reason, text in reversed(reasons) if reason}


class PasoDoble(ProposeSolve):
    """A proposer reads a passage and writes problems at the limit of the solver's ability."""

    roles = ("proposer", "solver")
    about = "PasoDoble: a proposer turns passages into problems at the solver's edge, online or offline"
    Options = PasoDobleOptions
    figures = family_figures(
        Figure("invalid", "invalid questions", how="sum", about="Questions that train no seat, by reason."),
        Figure("buffer", "buffered questions", how="last", about="Questions kept for offline training."),
        Figure("evicted", "evicted questions", how="sum",
               about="Questions dropped from the buffer: always solved, or no longer solved more often."),
        Figure("leaks", "questions that give their answer away", how="sum",
               about="Proposals refused because their question states its own answer."),
        early=(
            Figure("valid_rate", "valid questions", "share", of="proposals",
                   about="Proposals of the right difficulty and diversity that do not give their answer away."),
            Figure("diversity", "diversity", "share", of="questions",
                   about="How much a question differs from earlier ones."),
        ),
    )  # fmt: skip
    recipe: ClassVar[dict[str, Any]] = {
        "group_size": 6,
        "problems_per_step": 1,
        "max_completion_tokens": 512,
        "roles": {"*": {"temperature": 0.6, "loss": "dr_grpo", "beta": 0.0}},
        "seats": {"*": {"lr": 3e-5, "schedule": "cosine", "full_finetune_lr": 1e-6}},
    }

    def __init__(self, options: Any = None, *, group_size: int = 6, problems_per_step: int = 1):
        super().__init__(options, group_size=group_size, problems_per_step=problems_per_step)
        chosen = self.options
        if chosen.seats == "shared" and (chosen.mode == "offline" or chosen.freeze_proposer):
            raise ConfigError(
                "game.seats=shared has one adapter for both roles, so one cannot be frozen while the other is trained: "
                "use it with game.mode=online and without game.freeze_proposer"
            )
        self.sources = ("passages",) if chosen.knowledge == "passages" else ()
        self.schedule = OfflineSchedule(chosen.proposer_steps, chosen.solver_steps, chosen.attempts)
        self.buffer = QuestionBuffer()
        self._history: deque[frozenset[int]] = deque(maxlen=chosen.history)
        self._skips = 0

    def rollouts_per_step(self) -> int:
        proposing = self.problems_per_step * self.options.proposals * (1 + self.group_size)
        replaying = self.options.solver_questions * self.group_size if self.options.mode == "offline" else 0
        return max(proposing, replaying)

    def updates(self, steps: int) -> Mapping[str, int]:
        """Online every step updates both seats; offline they alternate, assuming that no step is skipped."""
        chosen = self.options
        if chosen.seats == "shared":
            return {"shared": steps}
        phases = turn_shares(steps, chosen.proposer_steps, chosen.solver_steps)
        proposer, solver = phases if chosen.mode == "offline" else (steps, steps)
        return {"proposer": 0 if chosen.freeze_proposer else proposer, "solver": solver}

    def rewards(self) -> Mapping[str, str]:
        unlike = f", up to {self.options.diversity_weight:g} for being unlike earlier ones" * self.options.diversity
        paid = {"difficulty": "for the proposer's answer", "random": BY_COIN}
        return {
            "proposer": "0.1 to 1.1 for a question that is hard but solved" + unlike,
            "solver": f"1 {paid.get(self.options.reward, f'{BY_COIN}, only in the right form')}",
        }

    def describe(self, steps: int) -> list[str]:
        passages, each, answers = self.problems_per_step, self.options.proposals, self.group_size
        most = passages * each * (1 + answers)
        what = f"{passages} x {each} proposals, {answers} answers to each question, at most {most} completions"
        if self.options.mode == "online":
            return [f"online: a step is {what}; without a valid question it is skipped"]
        chosen = self.options
        most_iterations = steps / (chosen.proposer_steps + chosen.solver_steps)
        return [
            f"offline, proposer's phase: {chosen.proposer_steps} updates in at most "
            f"{chosen.proposer_steps * chosen.attempts} steps; a step is {what}; valid questions enter the buffer",
            f"offline, solver's phase: {chosen.solver_steps} updates in at most "
            f"{chosen.solver_steps * chosen.attempts} steps; a step is {chosen.solver_questions} buffered questions, "
            f"{answers} answers to each, {chosen.solver_questions * answers} completions",
            f"{steps} steps are {most_iterations / chosen.attempts:.1f} to {most_iterations:.1f} iterations",
        ]

    def worked_proposal(self, problem: Problem, *, thinks: bool) -> Example | None:
        """An example whose passage is only the solution, so that the seat learns to compose problems, not to copy them.
        None without a solution, or if play would refuse the proposal."""
        if (solution := solution_of(problem)) is None:
            return None
        question, answer = problem.text.strip(), str(problem.answer).strip()
        check = f"Check: {answer} is what the last step gives, and what was asked for."
        reply = f"<problem>\n{question}\n</problem>\n<answer>\n{solution}\n{check}\n\\boxed{{{answer}}}\n</answer>"
        if parse_proposal(reply) != (question, answer) or leaks(question, answer, self.options.leak_guard):
            return None
        passage = solution if self.options.knowledge == "passages" else ""
        return Example(proposer_prompt(passage), after_reasoning(reply, solution, thinks))

    def play(self, step: int, table: Table) -> Episode:
        solvers_turn = self.options.mode == "offline" and self.schedule.phase == "solver"
        return self._replay(step, table) if solvers_turn else self._propose(step, table)

    # Proposing: every step online, and the proposer's phase offline

    def _propose(self, step: int, table: Table) -> Episode:
        count, size, none = self.problems_per_step, self.options.proposals, self.options.knowledge == "none"
        passages: Sequence[Problem | None] = [None] * count if none else table.draw("passages", count)
        prompts = [proposer_prompt(passage.text if passage else "") for passage in passages]
        replies = table.ask("proposer", prompts, n=size)
        judged = self._judged(step, table, [completion for row in replies for completion in row])
        samples = [proposed(p, p.reward, p.rate, p.invalid, diversity=p.diversity) for p in judged]
        groups = [Group(samples[i * size : (i + 1) * size], passage) for i, passage in enumerate(passages)]
        opening = openers(judged, groups, self.options.gate, frozen=self.options.freeze_proposer)
        valid = [each.group for each in judged if each.valid and each.group and opening]
        log = self._proposing_log(table, judged, len(opening))  # before the schedule advances
        learned = {
            "proposer": groups if opening and not self.options.freeze_proposer else [],
            "solver": valid if self.options.mode == "online" else [],
        }
        streams = [Stream(role, of, self.options.credit) for role, of in learned.items() if of]
        if self.options.mode == "offline":
            for problem, rate in [(group.problem, pass_rate(group)) for group in valid if group.problem]:
                self.buffer.add(problem, rate)
            log = {**log, "iteration": self.schedule.iteration, "buffer": len(self.buffer)}
            self.schedule.advance(updated=bool(opening), buffered=len(self.buffer))
        tried = [Stream("proposer", groups), Stream("solver", [each.group for each in judged if each.group])]
        return Episode(streams, log=log, record=in_vain(tried, streams))

    def _judged(self, step: int, table: Table, completions: Sequence[Completion]) -> list[JudgedProposal]:
        """Each proposal with its answers and its reward; the well-formed ones enter the history afterwards."""
        most, guard = self.options.question_tokens, self.options.leak_guard
        proposals = [
            fit_to_ask(to_proposal(each, parse_proposal), table, most=most, guard=guard) for each in completions
        ]
        pay = partial(self._solvers_sample, table.rng)
        posed = answered(table, "solver", proposals, self.group_size, f"q-{step}", judge=by_answer, pay=pay)
        tokens = [frozenset(table.tokenize(each.proposal.question)) for each in posed]
        judged = [self._judge(each, own) for each, own in zip(posed, tokens, strict=True)]
        self._history.extend(own for each, own in zip(posed, tokens, strict=True) if well_formed(each.proposal))
        return judged

    def _judge(self, asked: Candidate, tokens: frozenset[int]) -> JudgedProposal:
        if not well_formed(asked.proposal):
            return JudgedProposal(**vars(asked))
        chosen = self.options
        diversity = question_diversity(tokens, self._history, chosen.tau_sim) if chosen.diversity else None
        rate = pass_rate(asked.group) if asked.group else 0.0  # a question that leaks its answer counts as never solved
        bounds = {"min_pass_rate": chosen.min_pass_rate, "min_diversity": chosen.min_diversity}
        reward = proposer_reward(rate, diversity, weight=chosen.diversity_weight, **bounds)
        why = why_invalid(rate, diversity if chosen.gate != "pass_rate" else None, **bounds)
        return JudgedProposal(**vars(asked), reward=reward, diversity=diversity, invalid=why)

    def _proposing_log(self, table: Table, judged: Sequence[JudgedProposal], opening: int) -> dict[str, Any]:
        proposals = [each.proposal for each in judged]
        formed = [each for each in judged if well_formed(each.proposal)]
        valid = [each for each in judged if each.valid]
        diversities = [each.diversity for each in formed if each.diversity is not None]
        self._skips += not opening
        looked = self.watch.observe(
            [each.proposal.question for each in formed],
            tokens=table.tokenize,
            pass_rates=[each.rate for each in formed if each.rate is not None],
            labels=[(each.proposal.question, each.proposal.answer) for each in valid],
        )
        return {
            "phase": "online" if self.options.mode == "online" else "proposer",
            "skipped": not opening,
            "skips": self._skips,
            **self.question_yield(proposals, opening),
            "usable": len(valid) if opening else 0,
            "valid_rate": len(valid) / len(judged),
            "invalid": dict(sorted(Counter(each.invalid for each in formed if each.group and each.invalid).items())),
            "leaks": sum(proposal.reason == "leaks" for proposal in proposals),
            "diversity": sum(diversities) / len(diversities) if diversities else None,
            **looked,
            # A skipped step has no stream that would show them.
            **({} if opening else {"refused_texts": refused_texts(judged)}),
        }

    # Solving

    def _solvers_sample(self, rng: random.Random, answer: Completion, verdict: Verdict, problem: Problem) -> Sample:
        right = verdict.correct if self.options.reward == "difficulty" else rng.random() < 0.5
        formless = self.options.reward == "random_with_format" and not verdict.well_formed
        return answer_sample(answer, verdict, problem, float(right and not formless))

    def _replay(self, step: int, table: Table) -> Episode:
        """A step of the solver's phase: the next buffered questions, answered afresh."""
        chosen = self.options
        problems = self.buffer.take(chosen.solver_questions)
        answers = table.ask("solver", list(map(asked, problems)), n=self.group_size) if problems else []
        groups = verified(table, problems, answers, partial(self._solvers_sample, table.rng))
        groups = [group for group in groups if any(sample.judged for sample in group.samples)]
        rates = [(group.problem.id, pass_rate(group)) for group in groups if group.problem]
        kept = [
            group for group in groups if not why_invalid(pass_rate(group), None, min_pass_rate=chosen.min_pass_rate)
        ]
        evicted = self.buffer.evict(rates, chosen.eviction_margin, chosen.eviction_patience) if chosen.eviction else 0
        self._skips += not kept
        log = {
            "phase": "solver",
            "skipped": not kept,
            "skips": self._skips,
            "replayed": len(groups),
            "usable": len(kept),
            "evicted": evicted,
            "iteration": self.schedule.iteration,
            "buffer": len(self.buffer),
            **self.watch.observe([], tokens=table.tokenize, pass_rates=[rate for _, rate in rates]),
        }
        self.schedule.advance(updated=bool(kept), buffered=len(self.buffer))
        streams = [Stream("solver", kept, chosen.credit)] if kept else []
        return Episode(streams, log=log, record=in_vain([Stream("solver", groups)], streams))

    def state(self) -> dict[str, Any]:
        return {
            **super().state(),
            "skips": self._skips,
            "history": [sorted(tokens) for tokens in self._history],
            "schedule": self.schedule.state(),
            "buffer": asdict(self.buffer),
        }

    def restore(self, state: Mapping[str, Any]) -> None:
        super().restore(state)
        self._skips = state["skips"]
        self._history = deque(map(frozenset, state["history"]), maxlen=self.options.history)
        self.schedule.restore(state["schedule"])
        questions = [Buffered(**held) for held in state["buffer"]["questions"]]
        self.buffer = QuestionBuffer(questions, state["buffer"]["cursor"])
