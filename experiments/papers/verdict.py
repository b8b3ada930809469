"""What each plan of this folder found, by the thresholds of README.md: confirmed, contradicted or not decided.

    python experiments/papers/verdict.py checks/agon-tiebreak checks/sqlm-majority ...

It reads the results.json that `lite-selfplay reproduce` writes, and prints a line of JSON a plan: its verdict and the
numbers it rests on. Shares are in percentage points, lengths in tokens.
"""

import json
import sys
from collections.abc import Callable, Mapping, Sequence
from math import sqrt
from pathlib import Path
from statistics import NormalDist
from typing import Any

import numpy as np

CONFIRMS, CONTRADICTS, NOTHING = "confirmed", "contradicted", "not decided"
Interval = Sequence[float]
Found = tuple[str, dict[str, Any]]


def arms(results: Mapping[str, Any]) -> dict[str, Mapping[str, Any]]:
    """The findings of each arm, on the one task of a plan."""
    return {found["arm"]: found for found in results["arms"]}


def points(shares: float | Interval) -> Any:
    return [points(each) for each in shares] if isinstance(shares, Sequence) else round(100 * shares, 1) + 0.0


def without_interval(*found: Mapping[str, Any]) -> bool:
    """Whether a difference has no interval, since all problems or seeds differ alike: nothing is decided by it."""
    return any(each.get(key, ()) is None for each in found for key in ("difference_interval", "longer_interval"))


def tiebreak(results: Mapping[str, Any]) -> Found:
    """Agon, table 8: the tiebreak makes final answers at least 10% shorter, and accuracy stays."""
    plain, with_it = arms(results)["adv"], arms(results)["adv with tiebreak"]
    if without_interval(with_it):
        return NOTHING, {}
    share, (low, high) = with_it["longer"] / plain["final"], with_it["longer_interval"]
    worst, best = with_it["difference_interval"]
    numbers = {
        "final tokens": [round(plain["final"]), round(with_it["final"])],
        "difference of tokens": [round(with_it["longer"], 1), [round(low, 1), round(high, 1)]],
        "difference of accuracy": [points(with_it["difference"]), points([worst, best])],
    }
    if share <= -0.1 and high < 0 and worst > -0.05:
        return CONFIRMS, numbers
    return (CONTRADICTS if abs(share) <= 0.03 or best < -0.05 else NOTHING), numbers


def majority(results: Mapping[str, Any]) -> Found:
    """SQLM, table 1: the majority's vote ends above the format's reward and above the base."""
    found = arms(results)
    others = {name: found[name] for name in ("format", "base")}
    if without_interval(*others.values()):
        return NOTHING, {}
    gains = {
        name: [-each["difference"], sorted(-end for end in each["difference_interval"])]
        for name, each in others.items()
    }
    numbers = {f"majority less {name}": points(gain) for name, gain in gains.items()}
    numbers |= {f"p beside {name}": each["p_value"] for name, each in others.items()}
    if all(gains[name][0] > 0 and each["p_value"] < 0.05 for name, each in others.items()):
        return CONFIRMS, numbers
    return (CONTRADICTS if gains["format"][1][1] < 0.03 else NOTHING), numbers


def random_rewards(results: Mapping[str, Any]) -> Found:
    """PasoDoble, table 3: random rewards end below the start and below online training."""
    found = arms(results)
    if without_interval(found["online"], found["start"]):
        return NOTHING, {}
    above = {name: found[name]["difference_interval"] for name in ("online", "start")}
    numbers = {f"{name} less random": [points(found[name]["difference"]), points(above[name])] for name in above}
    if all(low > 0 for low, _ in above.values()):
        return CONFIRMS, numbers
    return (CONTRADICTS if above["online"][1] < 0 else NOTHING), numbers


def coach(results: Mapping[str, Any], resamples: int = 9999) -> Found:
    """CPMobius, figure 4: the player's answers agree ever less on a trained coach's tasks, beside a frozen one's."""
    curves = {r["arm"]: np.array(r["training"]["curve"], dtype=float) for r in results["records"]}
    trained, frozen = (curves[f"coach {name}"] for name in ("trained", "frozen"))
    rng = np.random.default_rng(0)
    slopes = [
        slope(trained[rng.integers(len(trained), size=len(trained))])
        - slope(frozen[rng.integers(len(frozen), size=len(frozen))])
        for _ in range(resamples)
    ]
    low, high = np.percentile(slopes, (2.5, 97.5))
    # A slope of a step, of which a round has two.
    each = {
        f"points a round, coach {name}": round(200 * slope(curves[f"coach {name}"]), 3)
        for name in ("trained", "frozen")
    }
    numbers = {
        **each,
        "difference": [round(200 * float(end), 3) for end in (slope(trained) - slope(frozen), low, high)],
    }
    return (CONFIRMS if high < 0 else CONTRADICTS if low > 0 else NOTHING), numbers


def slope(curve: np.ndarray) -> float:
    """The least-squares slope of a curve of rows (step, value); 0 where all rows are of one step."""
    steps, values = curve[:, 0] - curve[:, 0].mean(), curve[:, 1]
    return float(steps @ values / (steps @ steps)) if steps.any() else 0.0


def solver_reward(results: Mapping[str, Any]) -> Found:
    """SPC, figure 3: with the solver's reward the sneaky generator misleads it more often."""
    last = {r["arm"]: r["training"]["last_step"] for r in results["records"]}
    wins = {
        name: sum(
            row["sneaky_wins"]
            for row in each.get("pairings", ())
            if (row["sneaky"], row["critic"]) == ("sneaky@round-0", "critic@round-0")
        )
        for name, each in last.items()
    }
    attacks = {name: each["attacks_in_full"]["sneaky@round-1"] for name, each in last.items()}
    counts = [(attacks[name]["valid"], attacks[name]["attacks"]) for name in ("with", "without")]
    numbers: dict[str, Any] = {
        "wins of round 1": wins,
        "misled of attacks": dict(zip(("with", "without"), counts, strict=True)),
    }
    if min(wins.values()) < 15 or not all(tried for _, tried in counts):
        return NOTHING, numbers
    difference, low, high = newcombe(*counts)
    numbers["with less without"] = [points(difference), points([low, high])]
    return (CONFIRMS if difference >= 0.05 and low > 0 else CONTRADICTS if high < 0 else NOTHING), numbers


def newcombe(one: tuple[int, int], other: tuple[int, int]) -> tuple[float, float, float]:
    """The difference of two shares, each as (successes, trials), with its 95% interval (Newcombe 1998, method 10)."""
    z = NormalDist().inv_cdf(0.975)

    def wilson(right: int, n: int) -> tuple[float, float, float]:
        share, wide = right / n, z * sqrt(z * z / (4 * n * n) + right * (n - right) / n**3)
        middle, scale = share + z * z / (2 * n), 1 + z * z / n
        return share, (middle - wide) / scale, (middle + wide) / scale

    (p, low, high), (q, under, over) = wilson(*one), wilson(*other)
    return p - q, p - q - sqrt((p - low) ** 2 + (over - q) ** 2), p - q + sqrt((high - p) ** 2 + (q - under) ** 2)


PLANS: dict[str, Callable[[Mapping[str, Any]], Found]] = {
    "agon-tiebreak": tiebreak,
    "sqlm-majority": majority,
    "pasodoble-random": random_rewards,
    "cpmobius-coach": coach,
    "spc-solver-reward": solver_reward,
}


def verdict(results: Mapping[str, Any]) -> dict[str, Any]:
    """A plan's verdict and its numbers."""
    experiment = results["experiment"]
    found, numbers = PLANS[experiment["name"]](results)
    return {"plan": experiment["name"], "scale": experiment["scale"], "verdict": found, **numbers}


if __name__ == "__main__":
    for folder in sys.argv[1:]:
        print(json.dumps(verdict(json.loads((Path(folder) / "results.json").read_text(encoding="utf-8")))))
