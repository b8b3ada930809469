"""Rounds of an SPC run: options, pairings with win rates, rows that seats learn from, a round's record and its cost.

Source: the paper's sections 3.5 (balance of the sneaky generator's set, the critic's pairs, R - mean(R); the trainer
adds the KL term) and 4.3; the published code adds as many supervised examples as rows, at a weight of 0.15. Draws come
from the given generator, so that the same rows and seed return the same set. Every round ends with a snapshot of both
seats, such as `sneaky@round-1`; round 0 is the result of the cold start.
"""

import random
from collections import Counter, defaultdict
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import replace
from itertools import islice
from math import inf
from pathlib import Path
from typing import Annotated, Any, Literal

from pydantic import AfterValidator, Field, StringConstraints

from lite_selfplay.credit import advantages
from lite_selfplay.data import Completion, Example, Group, Problem, Sample, Stream, Verdict
from lite_selfplay.errors import RunFolderError
from lite_selfplay.games.base import GameOptions
from lite_selfplay.games.collections import EXAMPLE, CollectedRow, kinds_of
from lite_selfplay.games.presentation import Figure, with_interval
from lite_selfplay.games.spc.cases import (
    CRITIC,
    SNEAKY,
    STABLE,
    Case,
    Fate,
    critic_reward,
    read_critique,
    sneaky_reward,
)
from lite_selfplay.games.table import Table
from lite_selfplay.stats import clopper_pearson
from lite_selfplay.tasks.files import read_object_lines

_TRIES = 20  # problems drawn for each example to write

WON, CAUGHT, INVALID = "won", "caught", "invalid"
RIGHT, WRONG = "right", "wrong"

# The kind of a sneaky generator's row by its step's fate; other fates make no row.
SNEAKY_KINDS: dict[Fate, str] = {"fooled": WON, "caught": CAUGHT, "harmless": INVALID, "refused": INVALID}


def sneaky_rows(cases: Iterable[Case], round_: int, stable: float) -> list[CollectedRow]:
    """A row to train on for each rewrite that won (fooled the critic) or lost."""
    return [
        CollectedRow(case.id, SNEAKY, SNEAKY_KINDS[fate], case.attack, sneaky_reward(fate), round=round_)
        for case in cases
        for fate in [case.fate(stable)]
        if fate in SNEAKY_KINDS and case.attack is not None and case.attack.token_ids
    ]


def critic_rows(cases: Iterable[Case], round_: int) -> list[CollectedRow]:
    """A row to train on for each critique, of a rewritten or an original step; rows of one step share its id."""
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
    """Rows with their log-probabilities under the weights that sampled them, as the trainer computes them.

    The sampler rounds differently, and the clip would act on the difference.
    """
    result = list(rows)
    for seat in dict.fromkeys(row.completion.seat for row in rows):
        places = [i for i, row in enumerate(rows) if row.completion.seat == seat]
        scores = table.score(rows[places[0]].role, [rows[i].completion for i in places], seat=seat)
        for i, score in zip(places, scores, strict=True):
            result[i] = replace(rows[i], completion=replace(rows[i].completion, logprobs=tuple(score.logprobs)))
    return result


def example_rows(
    table: Table, role: str, write: Callable[[str, Problem, random.Random], Example | None], count: int
) -> list[CollectedRow]:
    """At most `count` examples of a role: from its cold start or, without any, written by rule for random problems."""
    file = table.folder.parent / "cold_start.jsonl"
    lines = read_object_lines(file, RunFolderError) if count and file.is_file() else ()
    taught = [Example(row["prompt"], row["completion"]) for _, row in lines if row.get("role") == role]
    most = min(count, len(taught)) if taught else count
    again = iter(table.rng.sample(taught, most) if taught else ())
    problems = table.everything("problems")
    drawn = (problems[table.rng.randrange(len(problems))] for _ in range(_TRIES * count))
    examples = (next(again) if taught else write(role, problem, table.rng) for problem in drawn)
    chosen = enumerate(islice(filter(None, examples), most), 1)
    return [CollectedRow(f"example-{n}", role, EXAMPLE, table.completed(example), None) for n, example in chosen]


# The rows to learn from


def sneaky_set(rows: Sequence[CollectedRow], rng: random.Random, *, solver_reward: bool = True) -> list[CollectedRow]:
    """Equally many rows that won, were caught and were no errors, drawn at random, with their advantages.

    Without `solver_reward` the last kind is dropped (the ablation of figure 3), and so is a kind of loss without rows
    (ours). Empty if no row won or none lost, because then there is nothing to distinguish.
    """
    losses = (CAUGHT, INVALID) if solver_reward else (CAUGHT,)
    bins = [found for kind in (WON, *losses) if (found := kinds_of(rows, kind))]
    if len(bins) < 2 or not kinds_of(rows, WON):
        return []
    return _with_advantages([row for found in bins for row in _drawn(found, min(map(len, bins)), rng)])


def critic_set(rows: Sequence[CollectedRow], rng: random.Random, *, pairing: bool = True) -> list[CollectedRow]:
    """Equally many right and wrong critiques, with their advantages.

    With `pairing` they are pairs of a right and a wrong critique of the same step (the same `id`), one pair per step;
    steps without both are skipped. Without it they are drawn from all (the ablation of figure 3).
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
    """Rows and equally many examples (trained on by likelihood, at this weight) in random order. Too few examples are
    repeated."""
    count = len(rows) if examples and weight else 0
    chosen = list(rows)
    while (left := len(rows) + count - len(chosen)) > 0:
        chosen += [
            replace(row, kind=EXAMPLE, completion=replace(row.completion, logprobs=()), reward=None, advantage=weight)
            for row in rng.sample(list(examples), min(len(examples), left))
        ]
    return rng.sample(chosen, len(chosen))


def _drawn(rows: Sequence[CollectedRow], size: int, rng: random.Random) -> list[CollectedRow]:
    return [rows[i] for i in sorted(rng.sample(range(len(rows)), size))]


def _with_advantages(rows: Sequence[CollectedRow]) -> list[CollectedRow]:
    values = advantages([row.reward for row in rows if row.reward is not None], "batch")
    return [replace(row, advantage=value) for row, value in zip(rows, values, strict=True)]


# The record


def record(cases: Sequence[Case], stable: float) -> list[Stream]:
    """A round's rewrites and critiques, for the records only. A rewrite and its critiques share a group number."""
    attacked = sorted((case for case in cases if case.attack is not None), key=lambda case: not case.critiques)
    sneaky = [Group([_rewrite_sample(case, stable)], case.problem) for case in attacked]
    critiques = [(case, False, case.critiques) for case in attacked] + [(case, True, case.untouched) for case in cases]
    critics = [
        Group([_critique_sample(case, completion, correct) for completion in completions], case.problem)
        for case, correct, completions in critiques
        if completions
    ]
    return [Stream(role, groups, replay=True) for role, groups in ((SNEAKY, sneaky), (CRITIC, critics)) if groups]


def _rewrite_sample(case: Case, stable: float) -> Sample:
    assert case.attack is not None
    rewrite, fate, valid = case.rewrite, case.fate(stable), case.is_valid
    reason = "" if valid else rewrite.reason or "misleads nobody"
    verdict = Verdict(valid, float(valid), rewrite.step or None, not rewrite.reason, reason)
    info = {"fate": fate, "original": case.step, "kind": rewrite.kind}
    return Sample(case.attack, sneaky_reward(fate), verdict, masked=True, info=info)


def _critique_sample(case: Case, completion: Completion, correct: bool) -> Sample:
    critique = read_critique(completion)
    verdict = critique.verdict(correct, "rejected" if correct else "accepted")
    info = {"step_is": "correct" if correct else "wrong", **({} if correct else {"rewrite": 0})}
    return Sample(completion, critic_reward(critique, correct=correct), verdict, masked=True, info=info)


Schedule = Literal["asymmetric", "symmetric"]
Solver = Annotated[str, StringConstraints(pattern=r"^(base|solver|sneaky|critic|(sneaky|critic|solver)@round-0)$")]


class SpcOptions(GameOptions):
    """SPC's options.

    - `rounds`: of play, collection and training; with 0 the seats only play against each other.
    - `solvers`: who writes solutions and continues from their steps: `base`, `solver` (a seat of its own, from a cold
      start or `--init`, which is not trained), `sneaky` or `critic`, or one of them as it entered training, such as
      `critic@round-0`. Each of several writes solutions of every problem. The first continues solutions of a file
      (`--solutions`).
    - `samples`: solutions of a problem by each solver; `rollouts`: completions that validate a step; `stable`: the
      share of right ones that an original step needs; `critiques` of a step, of which the first decides.
    - `schedule`: the sneaky generator's opponent in later rounds, and where the critic's training starts; see
      `players`.
    - `pairing`: the critic learns from a right and a wrong critique of the same step. `solver_reward`: rewrites that
      mislead no solver count as lost.
    - `epochs`, `batch`: of offline training; `sft_weight`: weight of the mean loss of as many examples, 0 for none.
    - `tournament`: after the last round its sneaky generator attacks once more, and every snapshot meets every other.
    - `pairs`: a file in PRM800K's layout, whose pairs of a correct and a wrong step teach both seats instead of
      solutions with errors made by rule.
    """

    rounds: int = Field(2, ge=0, le=20)
    solvers: tuple[Solver, ...] = Field(("base",), min_length=1)
    samples: int = Field(1, ge=1)
    rollouts: int = Field(4, ge=1)
    stable: float = Field(STABLE, gt=0, le=1)
    critiques: int = Field(4, ge=1)
    schedule: Schedule = "asymmetric"
    pairing: bool = True
    solver_reward: bool = True
    epochs: int = Field(3, ge=1)
    batch: int = Field(64, ge=1)
    sft_weight: float = Field(0.0, ge=0)
    tournament: bool = True
    pairs: Annotated[str | None, AfterValidator(lambda path: path and str(Path(path).resolve()))] = None


def snapshot_name(seat: str, number: int) -> str:
    """The name of a seat's snapshot after a round."""
    return f"{seat}@round-{number}"


def players(number: int, kind: Schedule) -> tuple[str, str]:
    """The snapshots of both seats that play a round, counted from 1, and whose training then continues.

    `asymmetric` (section 3.5): the newest sneaky generator plays the first critic, which is then trained again on all
    rounds' rows, all of them its own. `symmetric` (the ablation of section 4.3): the newest of both play, and training
    continues with the newest critic, on all rounds' rows. The sneaky generator's continues with its newest snapshot, on
    the rows of the round just played. How each seat begins in later rounds is ours.
    """
    return snapshot_name(SNEAKY, number - 1), snapshot_name(CRITIC, 0 if kind == "asymmetric" else number - 1)


def win_rates(games: Iterable[tuple[str, str, Fate]]) -> list[dict[str, Any]]:
    """How often each sneaky generator fooled each critic it met, in the order of their names: `sneaky`, `critic`,
    `games` (caught or fooled), `undecided`, `sneaky_wins`, `win_rate` (None without a game) and its 95% interval.

    Each of `games` has two snapshots and the outcome of a step.
    """
    counts = defaultdict[tuple[str, str], Counter[Fate]](Counter)
    for sneaky, critic, fate in games:
        counts[sneaky, critic][fate] += 1
    return [
        {
            "sneaky": sneaky,
            "critic": critic,
            "games": played,
            "undecided": fates["undecided"],
            "sneaky_wins": fates["fooled"],
            "win_rate": fates["fooled"] / played if played else None,
            "ci95": list(clopper_pearson(fates["fooled"], played)),
        }
        for (sneaky, critic), fates in sorted(counts.items())
        for played in [fates["fooled"] + fates["caught"]]
    ]


def attack_success(fates: Sequence[Fate]) -> dict[str, Any]:
    """How many of the steps that a sneaky generator rewrote became valid errors: `attacks`, `valid`, `success` (None
    without an attack), its 95% interval, and `unstable`, the steps that it never got."""
    counts = Counter(fates)
    valid = counts["caught"] + counts["fooled"] + counts["undecided"]
    attacks = valid + counts["harmless"] + counts["refused"]
    return {
        "attacks": attacks,
        "valid": valid,
        "success": valid / attacks if attacks else None,
        "ci95": list(clopper_pearson(valid, attacks)),
        "refused": counts["refused"],
        "unstable": counts["unstable"],
    }


# How a run is shown

_ANY = 1e-9  # a share that is not 0

FIGURES: Sequence[Figure] = (
    Figure("steps", "steps of right solutions", how="last", word="steps", healthy=(1, inf),
           warning="no solution was right, so there is no step to attack: another solver, easier tasks, or --solutions",
           about="Steps drawn from right solutions, one a solution, which can be attacked."),
    Figure("stable", "stable original steps", "share", of="steps", part=True, word="stable", healthy=(_ANY, inf),
           warning="the solver is rarely right from any step, so none can be attacked: easier tasks would help",
           about="Steps from which the solver is mostly right; the others are discarded."),
    Figure("attack_success", "attack success", "share", how="last", word="attacks succeed", healthy=(_ANY, inf),
           warning="no rewritten step misled the solver, so the critic has nothing to judge in this round",
           about="Rewrites after which the solver is never right: real errors."),
    Figure("win_rate", "sneaky generator's win rate", "share", how="last", word="critic fooled",
           about="Real errors that the critic's first critique accepted."),
    Figure("judged_share", "critiques with a judgement", "share", word="critiques judge", healthy=(0.99, inf),
           warning="only {value:.0%} of the critiques have a judgement: a longer cold start or more tokens may help",
           about="Critiques that say whether the step is correct."),
    Figure("right_critiques", "right critiques", "share", about="Critiques with a right judgement."),
    Figure("sneaky_rows", "rows the sneaky generator learns from", how="last", word="sneaky rows",
           about="Rewrites that won, were caught and were no error, in equal numbers."),
    Figure("critic_rows", "rows the critic learns from", how="last", word="critic rows",
           about="Critiques in pairs, a right and a wrong one of the same step."),
    Figure("fates", "fates of the steps", how="last", about="The number of steps with each outcome."),
    Figure("refused", "rewrites that cannot be tried", how="sum", about="Invalid rewrites, by their reason."),
    Figure("win_rates", "win rate by pairing", "share", how="last",
           about="Each snapshot of the sneaky generator against each of the critic, at the end of a run."),
    Figure("attack_successes", "attack success by sneaky generator", "share", how="last",
           about="Rewrites of each snapshot of the sneaky generator that mislead the solver, at the end of a run."),
)  # fmt: skip


def counts_of_round(
    cases: Sequence[Case],
    rows: Mapping[str, Sequence[CollectedRow]],
    kept: Mapping[str, Sequence[CollectedRow]],
    pairing: tuple[str, str],
    stable: float,
) -> dict[str, Any]:
    """A round's log: how many steps had each outcome, attack success and win rate with intervals, numbers of rows."""
    fates = [case.fate(stable) for case in cases]
    met = [(*pairing, fate) for fate in fates if fate in ("caught", "fooled", "undecided")]
    critiques = [read_critique(completion) for case in cases for completion in (*case.critiques, *case.untouched)]
    attack, pair = attack_success(fates), next(iter(win_rates(met)), None)
    of = len(critiques) or None
    shares = {
        "attack_success": attack["success"],
        "win_rate": pair and pair["win_rate"],
        "judged_share": of and sum(critique.judgement is not None for critique in critiques) / of,
        "right_critiques": of and len(kinds_of(rows[CRITIC], RIGHT)) / of,
    }
    return {
        "fates": {fate: fates.count(fate) for fate in sorted(set(fates))},
        "attack": attack,
        "pairing": pair,
        "sneaky_rows": len(kept[SNEAKY]),
        "critic_rows": len(kept[CRITIC]),
        **{name: share for name, share in shares.items() if share is not None},
    }


def results(log: Mapping[str, Any]) -> list[str]:
    """Lines on how a run's snapshots did against the solver and each other, from the log of its last step."""
    attacks = [
        f"{name} {with_interval(row['success'], row['ci95'])} of {row['attacks']}"
        for name, row in log.get("attacks_in_full", {}).items()
        if row["attacks"]
    ]
    games = [
        f"  {row['sneaky']} against {row['critic']}: "
        f"{with_interval(row['win_rate'], row['ci95'])} of {row['games']} met"
        for row in log.get("pairings", ())
        if row["games"]
    ]
    lines = [f"steps that mislead the solver: {', '.join(attacks)}"] if attacks else []
    return [*lines, "errors that fool the critic:", *games] if games else lines


def most_completions(options: SpcOptions, problems: int) -> dict[str, int]:
    """The most completions of a run with this many problems per round, by purpose, if every solution is right and every
    step stable."""
    steps = problems * len(options.solvers) * options.samples
    attacks = options.rounds + options.tournament
    met = (options.rounds + 1) ** 2 - options.rounds if options.tournament else 0
    return {
        "solutions": attacks * steps,
        "validation": 2 * attacks * steps * options.rollouts,
        "rewrites": attacks * steps,
        "critiques": options.rounds * 2 * steps * options.critiques,
        "pairings": met * steps,
    }


def described(options: SpcOptions, problems: int) -> list[str]:
    """A dry run's lines, for this many problems per round."""
    cost, n = most_completions(options, problems), options.rollouts
    most = sum(cost.values())
    meetings = f"at the end every snapshot meets every other, by at most {cost['pairings']:,} critiques"
    return [
        f"rounds: {options.rounds}, {options.schedule}; solvers: {', '.join(options.solvers)}; at most "
        f"{cost['solutions']:,} solutions, {cost['rewrites']:,} rewrites, {cost['critiques']:,} critiques",
        f"validation: {n} completions from each step and {n} from its rewrite, at most {cost['validation']:,} of all "
        f"{most:,} completions ({round(100 * cost['validation'] / max(1, most))}%)",
        f"offline training: {options.epochs} epochs of batches of {options.batch} after each round, "
        + ("the critic on pairs" if options.pairing else "the critic unpaired")
        + (f"; as many examples at a weight of {options.sft_weight:g}" if options.sft_weight else ""),
        *([meetings] if options.tournament else []),
    ]
