"""From a round's cases to the collections that the seats learn from, and to what the record shows.

Source: section 3.5 (the balance of the sneaky generator's set, the critic's pairs, R - mean(R); its KL term is the
trainer's) and 4.3; examples as many as rows, at a weight of 0.15, are the published code's. Draws come from the
generator that is given, so that the same rows and seed give the same set.
"""

import random
from collections.abc import Callable, Iterable, Sequence
from dataclasses import replace
from typing import Any

from lite_selfplay.credit import advantages
from lite_selfplay.data import Completion, Example, Group, Problem, Sample, Stream, Verdict
from lite_selfplay.errors import RunFolderError
from lite_selfplay.games.collections import EXAMPLE, CollectedRow, kinds_of
from lite_selfplay.games.spc.cases import CRITIC, SNEAKY, Case, Fate, critic_reward, sneaky_reward
from lite_selfplay.games.spc.replies import read_critique
from lite_selfplay.games.table import Table
from lite_selfplay.tasks.files import read_object_lines

_TRIES = 20
"""Problems drawn for each example that is to be written."""

WON, CAUGHT, INVALID = "won", "caught", "invalid"
RIGHT, WRONG = "right", "wrong"

SNEAKY_KINDS: dict[Fate, str] = {"fooled": WON, "caught": CAUGHT, "harmless": INVALID, "refused": INVALID}
"""What a sneaky generator's row is called by the fate of its step; those of other fates are no rows."""


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
            RIGHT if critique.agrees(correct) else WRONG,
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
    table: Table, role: str, write: Callable[[str, Problem, random.Random], Example | None], count: int
) -> list[CollectedRow]:
    """At most `count` examples of a role: of those that taught it or, where none did, written by rule for problems
    drawn at random."""
    file = table.folder.parent / "cold_start.jsonl"
    lines = read_object_lines(file, RunFolderError) if count and file.is_file() else ()
    taught = [Example(row["prompt"], row["completion"]) for _, row in lines if row.get("role") == role]
    again = iter(table.rng.sample(taught, min(count, len(taught))))
    most, tries = (min(count, len(taught)), count) if taught else (count, _TRIES * count)
    rows: list[CollectedRow] = []
    problems = table.everything("problems")
    for _ in range(tries):
        if len(rows) == most:
            break
        problem = problems[table.rng.randrange(len(problems))]
        example = next(again, None) if taught else write(role, problem, table.rng)
        if example is not None:
            completion = table.completed(example)
            rows.append(CollectedRow(f"example-{len(rows) + 1}", role, EXAMPLE, completion, None))
    return rows


# Which of the rows are learned from


def sneaky_set(rows: Sequence[CollectedRow], rng: random.Random, *, solver_reward: bool = True) -> list[CollectedRow]:
    """As many rows that won, that were caught and that were no errors, drawn at random, with their advantages.

    Without `solver_reward` the last kind is left out (the ablation of figure 3). A kind of loss that there is none of
    is left out as well (ours). [] where none won, or nothing was lost: there is nothing to tell apart.
    """
    losses = (CAUGHT, INVALID) if solver_reward else (CAUGHT,)
    bins = [found for kind in (WON, *losses) if (found := kinds_of(rows, kind))]
    if len(bins) < 2 or not kinds_of(rows, WON):
        return []
    size = min(map(len, bins))
    return _with_advantages([row for found in bins for row in _drawn(found, size, rng)])


def critic_set(rows: Sequence[CollectedRow], rng: random.Random, *, pairing: bool = True) -> list[CollectedRow]:
    """As many right critiques as wrong ones, with their advantages.

    With `pairing` they come in pairs, a right and a wrong critique of the same step (the same `id`), one pair a step;
    steps without both are left out. Without it they are drawn from all (the ablation of figure 3).
    """
    if not pairing:
        right, wrong = kinds_of(rows, RIGHT), kinds_of(rows, WRONG)
        size = min(len(right), len(wrong))
        return _with_advantages([*_drawn(right, size, rng), *_drawn(wrong, size, rng)])
    by_step: dict[str, list[CollectedRow]] = {}
    for row in rows:
        by_step.setdefault(row.id, []).append(row)
    pairs = [(kinds_of(found, RIGHT), kinds_of(found, WRONG)) for found in by_step.values()]
    return _with_advantages([rng.choice(kind) for pair in pairs if all(pair) for kind in pair])


def mixed(
    rows: Sequence[CollectedRow], examples: Sequence[CollectedRow], rng: random.Random, weight: float
) -> list[CollectedRow]:
    """Rows with as many examples, learned by their likelihood at this weight, in random order. Examples that are too
    few come again."""
    count = len(rows) if examples and weight else 0
    chosen = list(rows)
    while (left := len(rows) + count - len(chosen)) > 0:
        for row in rng.sample(list(examples), min(len(examples), left)):
            said = replace(row.completion, logprobs=())
            chosen.append(replace(row, kind=EXAMPLE, completion=said, reward=None, advantage=weight))
    return rng.sample(chosen, len(chosen))


def _drawn(rows: Sequence[CollectedRow], size: int, rng: random.Random) -> list[CollectedRow]:
    """So many of the rows, in their order."""
    return [rows[i] for i in sorted(rng.sample(range(len(rows)), size))]


def _with_advantages(rows: Sequence[CollectedRow]) -> list[CollectedRow]:
    values = advantages([row.reward for row in rows if row.reward is not None], "batch")
    return [replace(row, advantage=value) for row, value in zip(rows, values, strict=True)]


# What the record shows


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
