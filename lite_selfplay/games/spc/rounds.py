"""Who plays whom in which round, and how often who won.

Source: section 3.5 and 4.3. Every round leaves a snapshot of both seats, `sneaky@round-1` say; round 0 is what cold
start made of them.
"""

from collections import Counter
from collections.abc import Iterable, Sequence
from typing import Any, Literal

from lite_selfplay.games.spc.cases import Fate
from lite_selfplay.stats import clopper_pearson

Schedule = Literal["asymmetric", "symmetric"]
SNEAKY, CRITIC = "sneaky", "critic"


Game = tuple[str, str, Fate]
"""The snapshots of the sneaky generator and of the critic that met, and the fate of the step."""


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


def win_rates(games: Iterable[Game]) -> list[dict[str, Any]]:
    """How often each sneaky generator fooled each critic it met, in the order of their names: `sneaky`, `critic`,
    `games` (caught or fooled), `undecided`, `sneaky_wins`, `win_rate` (None without a game) and its 95% interval."""
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
