"""From a round's cases to the collections that the seats learn from, and to what the record shows."""

import random
from collections.abc import Callable, Iterable, Sequence
from dataclasses import replace
from typing import Any

from lite_selfplay.data import Completion, Example, Group, Problem, Sample, Stream, Verdict
from lite_selfplay.games.collections import EXAMPLE, CollectedRow
from lite_selfplay.games.spc.balancing import SNEAKY_KINDS, critic_kind
from lite_selfplay.games.spc.cases import Case
from lite_selfplay.games.spc.replies import read_critique
from lite_selfplay.games.spc.rewards import critic_reward, sneaky_reward
from lite_selfplay.games.spc.rounds import CRITIC, SNEAKY
from lite_selfplay.games.table import Table


def sneaky_rows(cases: Iterable[Case], round_: int, stable: float) -> list[CollectedRow]:
    """A row for each rewrite that was won or lost."""
    rows = []
    for case in cases:
        fate = case.fate(stable)
        if fate in SNEAKY_KINDS and case.attack is not None and case.attack.token_ids:
            reward = sneaky_reward(fate)
            rows.append(CollectedRow(case.id, SNEAKY, SNEAKY_KINDS[fate], case.attack, reward, round=round_))
    return rows


def critic_rows(cases: Iterable[Case], round_: int) -> list[CollectedRow]:
    """A row for each critique of a rewritten step and of one as it was; those of one step share their id."""
    return [
        CollectedRow(
            f"{case.id}-{'correct' if correct else 'wrong'}",
            CRITIC,
            critic_kind(critique, correct=correct),
            completion,
            critic_reward(critique, correct=correct),
            round=round_,
        )
        for case in cases
        for correct, critiques in ((False, case.critiques), (True, case.untouched))
        for completion in critiques
        if completion.token_ids
        for critique in [read_critique(completion)]
    ]


def with_old_logprobs(table: Table, rows: Sequence[CollectedRow]) -> list[CollectedRow]:
    """Rows with the log-probabilities that the trainer finds for them under the weights that sampled them.

    The sampler rounds otherwise, and the clip would act on its rounding.
    """
    result = list(rows)
    for seat in dict.fromkeys(row.completion.seat for row in rows):
        places = [i for i, row in enumerate(rows) if row.completion.seat == seat]
        scores = table.score(rows[places[0]].role, [rows[i].completion for i in places], seat=seat)
        for i, score in zip(places, scores, strict=True):
            completion = replace(rows[i].completion, logprobs=tuple(score.logprobs))
            result[i] = replace(rows[i], completion=completion)
    return result


def example_rows(
    table: Table, role: str, write: Callable[[Problem, random.Random], Example | None], count: int, tries: int
) -> list[CollectedRow]:
    """At most `count` examples of a role, written for problems drawn at random; fewer where `tries` do not suffice."""
    rows: list[CollectedRow] = []
    problems = table.everything("problems")
    for _ in range(tries):
        if len(rows) == count:
            break
        example = write(problems[table.rng.randrange(len(problems))], table.rng)
        if example is not None:
            completion = table.completed(example)
            rows.append(CollectedRow(f"example-{len(rows) + 1}", role, EXAMPLE, completion, None))
    return rows


def record(cases: Sequence[Case], stable: float) -> list[Stream]:
    """A round's rewrites and critiques, for the record: the first rewrite and the critiques of it share a group's
    number. Nothing here is learned from."""
    attacked = sorted((case for case in cases if case.attack is not None), key=lambda case: not case.critiques)
    sneaky = [Group([_rewrite_sample(case, stable)], case.problem) for case in attacked]
    critics = [
        Group([_critique_sample(case, c, False) for c in case.critiques], case.problem)
        for case in attacked
        if case.critiques
    ]
    critics += [
        Group([_critique_sample(case, c, True) for c in case.untouched], case.problem)
        for case in cases
        if case.untouched
    ]
    streams = [Stream(SNEAKY, sneaky, replay=True)] if sneaky else []
    return [*streams, Stream(CRITIC, critics, replay=True)] if critics else streams


def _rewrite_sample(case: Case, stable: float) -> Sample:
    assert case.attack is not None
    assert case.rewrite is not None
    fate, reason = case.fate(stable), case.rewrite.reason
    verdict = Verdict(
        case.is_valid,
        float(case.is_valid),
        case.rewrite.step or None,
        not reason,
        "" if case.is_valid else reason or "misleads nobody",
    )
    info: dict[str, Any] = {"fate": fate, "original": case.step, "kind": case.rewrite.kind}
    return Sample(case.attack, sneaky_reward(fate), verdict, masked=True, info=info)


def _critique_sample(case: Case, completion: Completion, correct: bool) -> Sample:
    critique = read_critique(completion)
    right = critique.agrees(correct)
    reason = "" if right else critique.reason or ("rejected" if correct else "accepted")
    verdict = Verdict(right, float(right), critique.judgement, critique.judgement is not None, reason)
    info = {"step_is": "correct" if correct else "wrong", **({} if correct else {"rewrite": 0})}
    return Sample(completion, critic_reward(critique, correct=correct), verdict, masked=True, info=info)
