"""The differences and gains of docs/results.md, each with its value: percentage points, then the bounds of an interval.

A test computes them again from experiments/results. From the root of a checkout: python -i experiments/differences.py
"""

import json
from pathlib import Path
from statistics import fmean

from lite_selfplay.stats import over_seeds, paired_bootstrap

RESULTS = {"1x": Path("experiments/results/all-games"), "3x": Path("experiments/results/all-games-longer")}
RESULTS |= {"SmolLM2": Path("experiments/results/smollm2"), "SmolLM2, half": Path("experiments/results/smollm2-half")}


def records(arm, size):
    return [json.loads(file.read_text()) for file in RESULTS[size].glob(f"seed-*/{arm}.json")]


def scores(record, task=0):
    evaluation = record["evaluations"][task]
    return (evaluation.get("directions") or evaluation["seats"]).values()


def difference(one, two):
    found = over_seeds([one[seed] - two[seed] for seed in one if seed in two])
    return tuple(round(100 * value, 1) for value in (found.mean, *found.interval))


def less(one, two, size="1x", of=lambda record: fmean(s["pass_at_1"] for s in scores(record))):
    return difference(*({r["seed"]: of(r) for r in records(arm, size)} for arm in (one, two)))


def of_16(record):
    return fmean(s["pass_at_k"]["16"] for s in scores(record, 2))


def in_form(record):
    return fmean(s["pass_at_1"] / s["well_formed"] for s in scores(record))


less("adv", "grpo")  # (-9.1, -11.5, -6.8)
less("adv", "self-refine")  # (-6.8, -10.3, -3.3)
less("adv", "adv alone")  # (0.5, -1.4, 2.4)
less("self-refine", "self-refine alone")  # (1.4, 0.2, 2.6)
less("grpo self-cascade", "grpo")  # (-1.4, -2.7, -0.2)
less("grpo", "cold start", "1x", of_16)  # (2.8, 0.1, 5.5)
less("majority", "cold start", "1x", of_16)  # (-7.2, -10.7, -3.7)
less("rzero", "cold start of rzero", "1x", of_16)  # (-4.5, -9.2, 0.1)
less("sqlm, cooler, often", "sqlm")  # (2.1, 1.1, 3.2)
less("sqlm, two seats", "sqlm")  # (-1.9, -6.0, 2.2)
less("cpmobius, larger rounds", "cpmobius")  # (6.6, -3.8, 17.0)
less("cpmobius, larger rounds", "format")  # (1.7, -9.9, 13.4)
less("coin alone", "cold start")  # (-0.6, -2.4, 1.2)
less("coin alone", "form and a coin")  # (-3.5, -4.8, -2.1)
less("coin alone", "format")  # (-10.3, -14.3, -6.4)
less("form and a coin", "format")  # (-6.9, -12.0, -1.7)
less("vote alone", "cold start")  # (7.4, 2.0, 12.8)
less("vote alone", "majority")  # (-12.3, -18.7, -6.0)
less("vote alone", "format")  # (-2.3, -10.0, 5.4)
less("vote alone", "coin alone")  # (8.0, 1.6, 14.4)
less("majority", "format")  # (10.0, 7.4, 12.6)
less("labels alone", "grpo")  # (0.7, -2.5, 4.0)
less("sqlm", "coin alone")  # (2.9, 1.6, 4.1)
less("rzero", "coin alone")  # (16.1, 7.7, 24.4)
less("cpmobius", "coin alone")  # (5.5, -0.3, 11.2)
less("rent", "coin alone")  # (6.9, 2.1, 11.6)
less("rzero, surer votes", "rzero")  # (-3.3, -10.1, 3.5)
less("grpo", "cold start", "1x", in_form)  # (9.2, 6.7, 11.7)
less("majority", "cold start", "1x", in_form)  # (-7.0, -10.5, -3.5)
less("sqlm", "cold start of sqlm", "3x", in_form)  # (2.9, -4.2, 10.0)
less("adv", "grpo", "3x")  # (-5.5, -10.8, -0.3)
less("adv", "self-refine", "3x")  # (-4.8, -8.9, -0.7)
less("adv", "adv alone", "3x")  # (2.0, 0.7, 3.3)
less("self-refine", "self-refine alone", "3x")  # (1.3, 0.2, 2.3)
less("grpo self-cascade", "grpo", "3x")  # (-5.3, -8.0, -2.6)
less("grpo", "cold start", "3x", of_16)  # (5.6, 2.4, 8.9)
less("adv", "cold start of adv", "3x", of_16)  # (5.8, 1.7, 9.8)
less("majority", "cold start", "3x", of_16)  # (-21.9, -24.3, -19.5)
less("rzero", "cold start of rzero", "3x", of_16)  # (-12.5, -22.5, -2.5)
less("sqlm", "cold start of sqlm", "3x", of_16)  # (-4.1, -9.3, 1.2)
less("sqlm", "majority", "3x")  # (3.3, -3.7, 10.2)
less("coin alone", "cold start", "3x")  # (-1.1, -2.7, 0.6)
less("coin alone", "form and a coin", "3x")  # (-16.9, -17.4, -16.3)
less("coin alone", "format", "3x")  # (-17.2, -19.9, -14.5)
less("coin alone, faster", "cold start", "3x")  # (-5.2, -8.1, -2.3)
less("coin alone, faster", "form and a coin", "3x")  # (-21.0, -24.3, -17.7)
less("form and a coin", "format", "3x")  # (-0.3, -3.2, 2.5)
less("vote alone", "cold start", "3x")  # (20.0, 15.3, 24.7)
less("vote alone", "majority", "3x")  # (-1.1, -4.2, 1.9)
less("vote alone", "format", "3x")  # (3.9, -1.5, 9.3)
less("vote alone", "coin alone", "3x")  # (21.1, 15.5, 26.6)
less("vote alone", "cold start", "3x", of_16)  # (-17.2, -26.2, -8.2)
less("labels alone", "grpo", "3x")  # (-0.7, -4.2, 2.7)
less("sqlm", "coin alone", "3x")  # (25.5, 21.0, 29.9)
less("rzero", "coin alone", "3x")  # (15.3, 3.5, 27.1)
less("cpmobius", "coin alone", "3x")  # (22.1, 16.0, 28.1)
less("rent", "coin alone", "3x")  # (3.9, -9.7, 17.5)
less("sqlm", "format", "3x")  # (8.3, 5.1, 11.4)
less("majority", "format", "3x")  # (5.0, -1.0, 11.0)
less("cpmobius", "format", "3x")  # (4.9, -2.0, 11.7)
less("rzero", "format", "3x")  # (-1.9, -13.6, 9.9)
less("rent", "format", "3x")  # (-13.3, -27.2, 0.6)
less("rent", "cold start", "3x", of_16)  # (-19.1, -34.7, -3.4)
less("coin alone", "cold start", "3x", of_16)  # (-1.6, -4.3, 1.2)
less("sqlm, two seats", "sqlm", "3x")  # (-8.2, -16.4, 0.0)
less("sqlm, cooler, often", "sqlm", "3x")  # (-7.0, -12.2, -1.8)


def at_step(arm, step):
    return {record["seed"]: dict(record["training"]["curve"])[step] for record in records(arm, "3x")}


difference(at_step("adv", 80), at_step("grpo", 40))  # (0.3, -4.4, 5.0)
difference(at_step("adv", 80), at_step("self-refine", 40))  # (3.1, -0.4, 6.6)


def last_less_peak(arm):
    curves = {record["seed"]: dict(record["training"]["curve"]) for record in records(arm, "3x")}
    last = max(curves[0])

    def peak(seed):
        others = [curve for other, curve in curves.items() if other != seed]
        return max(curves[0], key=lambda step: fmean(curve[step] for curve in others))

    return difference({s: c[last] for s, c in curves.items()}, {s: c[peak(s)] for s, c in curves.items()})


last_less_peak("self-refine")  # (1.8, -2.5, 6.1)
last_less_peak("adv")  # (1.1, -2.0, 4.2)
last_less_peak("rzero")  # (-3.2, -13.9, 7.5)


def by_problem(arm, size, seed):
    (record,) = (record for record in records(arm, size) if record["seed"] == seed)
    evaluation = record["evaluations"][0]
    names = evaluation.get("directions") or evaluation["seats"]
    return {problem: fmean(right[name] for name in names) for problem, right in evaluation["per_problem"].items()}


def gain(arm, start, seed, size="SmolLM2"):
    before, after = by_problem(start, "SmolLM2", seed), by_problem(arm, size, seed)
    found = paired_bootstrap([before[problem] for problem in after], [*after.values()])
    return tuple(round(100 * value, 1) for value in found)


gain("grpo", "cold start", 0)  # (-15.0, -21.5, -8.0)
gain("grpo", "cold start", 1)  # (4.0, -4.0, 12.0)
gain("grpo", "cold start", 0, "SmolLM2, half")  # (11.5, 4.5, 18.5)
gain("grpo", "cold start", 1, "SmolLM2, half")  # (16.5, 8.0, 25.0)
gain("adv", "cold start of adv", 0)  # (11.8, 4.8, 18.8)
gain("adv", "cold start of adv", 1)  # (-21.5, -27.3, -16.0)
gain("majority", "cold start", 0)  # (2.0, -2.5, 6.5)
gain("majority", "cold start", 1)  # (7.0, 2.0, 12.5)
gain("sqlm", "cold start of sqlm", 0)  # (0.5, -4.0, 5.0)
gain("sqlm", "cold start of sqlm", 1)  # (3.0, -1.5, 7.5)
gain("adv, labels alone", "cold start of adv", 0, "SmolLM2, half")  # (0.2, -4.8, 5.2)
gain("adv, labels alone", "cold start of adv", 1, "SmolLM2, half")  # (11.2, 5.8, 16.8)
