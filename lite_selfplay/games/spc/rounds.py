"""The rounds of a run: its switches, who plays whom and how often who won, what a round shows and what it costs.

Source: section 3.5 and 4.3. Every round leaves a snapshot of both seats, `sneaky@round-1` say; round 0 is what cold
start made of them.
"""

from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from math import inf
from pathlib import Path
from typing import Annotated, Any, Literal

from pydantic import AfterValidator, Field, StringConstraints

from lite_selfplay.games.base import GameOptions
from lite_selfplay.games.collections import CollectedRow, kinds_of
from lite_selfplay.games.presentation import Figure, percent
from lite_selfplay.games.spc.cases import CRITIC, SNEAKY, STABLE, Case, Fate
from lite_selfplay.games.spc.collecting import RIGHT
from lite_selfplay.games.spc.replies import read_critique
from lite_selfplay.stats import clopper_pearson

Schedule = Literal["asymmetric", "symmetric"]
Solver = Annotated[str, StringConstraints(pattern=r"^(base|solver|sneaky|critic|(sneaky|critic|solver)@round-0)$")]


class SpcOptions(GameOptions):
    """SPC's switches.

    - `rounds`: of play, collection and training; with 0 the seats are only played against each other as they are.
    - `solvers`: who writes solutions and goes on from their steps: `base`, `solver` (a seat of its own, which a cold
      start or `--init` makes; it is not trained), `sneaky` or `critic`, or one of them as it entered training, such as
      `critic@round-0`. With several each writes solutions of every problem. Solutions of a file (`--solutions`) are
      gone on with by the first.
    - `samples`: solutions of a problem by each solver; `rollouts`: completions that validate a step; `stable`: the
      share of them that an original step needs; `critiques` of a step, of which the first decides.
    - `schedule`: whom the sneaky generator of later rounds meets and where the critic is trained from; see
      `players`.
    - `pairing`: the critic learns from a right and a wrong critique of the same step. `solver_reward`: rewrites that
      mislead nobody count as lost.
    - `epochs`, `batch`: of offline training; `sft_weight`: weight of the mean loss of as many examples, 0 for none.
    - `tournament`: after the last round its sneaky generator attacks once more, and every snapshot meets every other.
    - `pairs`: a file in PRM800K's layout, whose pairs of a correct and a wrong step teach both seats in the
      place of corrupted solutions.
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
    """What a seat is kept as after a round."""
    return f"{seat}@round-{number}"


def players(number: int, kind: Schedule) -> tuple[str, str]:
    """The snapshots of both seats that play a round, from 1; after it each goes on from there.

    `asymmetric` (section 3.5): the newest sneaky generator plays the first critic, which is then trained anew on all
    rounds' rows, all of which are its own. `symmetric` (the ablation of section 4.3): the newest of both play, and the
    newest critic goes on, on all rounds' rows. The sneaky generator goes on from its newest snapshot, on the rows of
    the round it has just played. How each seat begins in round 2, and rounds after it, are ours.
    """
    return snapshot_name(SNEAKY, number - 1), snapshot_name(CRITIC, 0 if kind == "asymmetric" else number - 1)


def win_rates(games: Iterable[tuple[str, str, Fate]]) -> list[dict[str, Any]]:
    """How often each sneaky generator fooled each critic it met, in the order of their names: `sneaky`, `critic`,
    `games` (caught or fooled), `undecided`, `sneaky_wins`, `win_rate` (None without a game) and its 95% interval.

    Of each of the `games` come the snapshots of both that met, and the fate of the step.
    """
    counts: dict[tuple[str, str], Counter[Fate]] = {}
    for sneaky, critic, fate in games:
        counts.setdefault((sneaky, critic), Counter())[fate] += 1
    rows = []
    for (sneaky, critic), found in sorted(counts.items()):
        won, played = found["fooled"], found["fooled"] + found["caught"]
        row = {"sneaky": sneaky, "critic": critic, "games": played, "undecided": found["undecided"], "sneaky_wins": won}
        rows.append({**row, "win_rate": won / played if played else None, "ci95": list(clopper_pearson(won, played))})
    return rows


def attack_success(fates: Sequence[Fate]) -> dict[str, Any]:
    """How many of the steps that a sneaky generator was asked to rewrite became valid errors: `attacks`, `valid`,
    `success` (None without an attack), its 95% interval, and `unstable`, the steps that it never saw."""
    found = Counter(fates)
    valid = found["caught"] + found["fooled"] + found["undecided"]
    attacks = valid + found["harmless"] + found["refused"]
    return {
        "attacks": attacks,
        "valid": valid,
        "success": valid / attacks if attacks else None,
        "ci95": list(clopper_pearson(valid, attacks)),
        "refused": found["refused"],
        "unstable": found["unstable"],
    }


# What a run shows of itself

VALID_SHARE = 0.99
"""Of the critiques that hold a judgement: what falls below it is worth a warning."""
_ANY = 1e-9
"""A share that is not 0."""

FIGURES: Sequence[Figure] = (
    Figure("steps", "steps of right solutions", how="last", word="steps", healthy=(1, inf),
           warning="no solution was right, so there is no step to attack: another solver, easier tasks, or --solutions",
           about="Steps drawn from right solutions, one a solution: what can be attacked."),
    Figure("stable", "stable original steps", "share", of="steps", part=True, word="stable", healthy=(_ANY, inf),
           warning="the solver ends well from no step often enough, so none can be attacked: easier tasks would help",
           about="Steps from which the solver mostly ends well; the others are discarded."),
    Figure("attack_success", "attack success", "share", how="last", word="attacks succeed", healthy=(_ANY, inf),
           warning="no rewritten step misled the solver, so the critic has nothing to judge in this round",
           about="Attempted rewrites after which the solver never ends well: they are real errors."),
    Figure("win_rate", "sneaky generator's win rate", "share", how="last", word="critic fooled",
           about="Real errors that the critic's first critique accepted."),
    Figure("judged_share", "critiques with a judgement", "share", word="critiques judge", healthy=(VALID_SHARE, inf),
           warning="only {value:.0%} of the critiques hold a judgement: a longer cold start or more tokens may help",
           about="Critiques that say whether the step is correct."),
    Figure("right_critiques", "right critiques", "share", about="Critiques that judge the step as it is."),
    Figure("sneaky_rows", "rows the sneaky generator learns from", how="last", word="sneaky rows",
           about="Rewrites that won, were caught and were no error, in equal numbers."),
    Figure("critic_rows", "rows the critic learns from", how="last", word="critic rows",
           about="Critiques in pairs, a right and a wrong one of the same step."),
    Figure("fates", "fates of the steps", how="last", about="What became of each step, counted."),
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
    """A round's log: fates, attack success and win rate with their intervals, and what is learned from."""
    fates = [case.fate(stable) for case in cases]
    met = [(*pairing, fate) for fate in fates if fate in ("caught", "fooled", "undecided")]
    critiques = [read_critique(completion) for case in cases for completion in (*case.critiques, *case.untouched)]
    found: dict[str, Any] = {
        "fates": {fate: fates.count(fate) for fate in sorted(set(fates))},
        "attack": attack_success(fates),
        "pairing": next(iter(win_rates(met)), None),
        "sneaky_rows": len(kept[SNEAKY]),
        "critic_rows": len(kept[CRITIC]),
    }
    if found["attack"]["success"] is not None:
        found["attack_success"] = found["attack"]["success"]
    if found["pairing"] and found["pairing"]["win_rate"] is not None:
        found["win_rate"] = found["pairing"]["win_rate"]
    if critiques:
        found["judged_share"] = sum(critique.judgement is not None for critique in critiques) / len(critiques)
        found["right_critiques"] = len(kinds_of(rows[CRITIC], RIGHT)) / len(critiques)
    return found


def results(log: Mapping[str, Any]) -> list[str]:
    """How the snapshots of a run did against the solver and each other, from the log of its last step."""
    attacks = [
        f"{name} {_share(row['success'], row['ci95'])} of {row['attacks']}"
        for name, row in log.get("attacks_in_full", {}).items()
        if row["attacks"]
    ]
    games = [
        f"  {row['sneaky']} against {row['critic']}: {_share(row['win_rate'], row['ci95'])} of {row['games']} met"
        for row in log.get("pairings", ())
        if row["games"]
    ]
    lines = [f"steps that mislead the solver: {', '.join(attacks)}"] if attacks else []
    return [*lines, "errors that fool the critic:", *games] if games else lines


def _share(value: float, interval: Sequence[float]) -> str:
    low, high = interval
    return f"{percent(value)} [{100 * low:.0f}, {100 * high:.0f}]"


def most_completions(options: SpcOptions, problems: int) -> dict[str, int]:
    """The most completions of a run with so many problems a round, by what they are for: every solution right, every
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
    """What a dry run says of a run with so many problems a round."""
    cost, n = most_completions(options, problems), options.rollouts
    most = sum(cost.values())
    lines = [
        f"rounds: {options.rounds}, {options.schedule}; solvers: {', '.join(options.solvers)}; at most "
        f"{cost['solutions']:,} solutions, {cost['rewrites']:,} rewrites, {cost['critiques']:,} critiques",
        f"validation: {n} completions from each step and {n} from its rewrite, at most {cost['validation']:,} of all "
        f"{most:,} completions ({round(100 * cost['validation'] / max(1, most))}%)",
        f"offline training: {options.epochs} epochs of batches of {options.batch} after each round, "
        + ("the critic on pairs" if options.pairing else "the critic unpaired")
        + (f"; as many examples at a weight of {options.sft_weight:g}" if options.sft_weight else ""),
    ]
    if options.tournament:
        lines.append(f"at the end every snapshot meets every other, by at most {cost['pairings']:,} critiques")
    return lines
