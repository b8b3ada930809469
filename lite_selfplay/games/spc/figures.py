"""What a run of SPC shows of itself: its figures, what a round came to, and what it costs to validate steps."""

from collections.abc import Mapping, Sequence
from math import inf
from typing import Any

from lite_selfplay.games.collections import CollectedRow, kinds_of
from lite_selfplay.games.presentation import Figure, percent
from lite_selfplay.games.spc.cases import Case
from lite_selfplay.games.spc.collecting import RIGHT
from lite_selfplay.games.spc.options import SpcOptions
from lite_selfplay.games.spc.replies import read_critique
from lite_selfplay.games.spc.rounds import CRITIC, SNEAKY, attack_success, win_rates

VALID_SHARE = 0.99
"""Of the critiques that hold a judgement: what falls below it is worth a warning."""

FIGURES: Sequence[Figure] = (
    Figure("steps", "steps of right solutions", how="last", word="steps",
           about="Steps drawn from right solutions, one a solution: what can be attacked."),
    Figure("stable", "stable original steps", "share", of="steps", part=True, word="stable",
           about="Steps from which the solver mostly ends well; the others are discarded."),
    Figure("attack_success", "attack success", "share", how="last", word="attacks succeed",
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


def missing(log: Mapping[str, Any]) -> list[str]:
    """Sentences about a phase that left nothing for the next ones."""
    phase = log.get("phase")
    if phase == "solutions" and not log["steps"]:
        return ["no solution was right, so there is no step to attack: another solver, easier tasks, or --solutions"]
    if phase == "validation" and log["steps"] and not log["stable"]:
        return ["the solver ends well from no step often enough, so there is none to attack: easier tasks would help"]
    if phase == "sneaky validation" and log["attacks"] and not log["valid"]:
        return ["no rewritten step misled the solver, so the critic has nothing to judge in this round"]
    if phase == "collection":
        seats = [seat for seat in (SNEAKY, CRITIC) if not log[f"{seat}_rows"]]
        return [f"there is nothing for {' and '.join(seats)} to learn from in this round"] if seats else []
    return []


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
