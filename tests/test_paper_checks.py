"""The plans of experiments/papers: each from nothing to its verdict at its smallest size, and verdicts by hand."""

import json
import runpy
from pathlib import Path
from typing import Any

import pytest

from lite_selfplay.extras.reproduce.conduct import conduct, require_fair
from lite_selfplay.extras.reproduce.experiment import load_experiment
from lite_selfplay.extras.reproduce.findings import write_findings
from lite_selfplay.training.progress import Progress

FOLDER = Path(__file__).parents[1] / "experiments" / "papers"
SCRIPT = runpy.run_path(str(FOLDER / "verdict.py"))
PLANS = sorted(path.stem for path in FOLDER.glob("*.yaml"))
Ends = tuple[float, float]


def judged(name: str, *arms: dict[str, Any], records: tuple[dict[str, Any], ...] = ()) -> dict[str, Any]:
    about = {"name": name, "scale": "full"}
    found: dict[str, Any] = SCRIPT["verdict"]({"experiment": about, "arms": arms, "records": records})
    return found


def arm(name: str, interval: Ends = (0.0, 0.0), **more: Any) -> dict[str, Any]:
    """An arm whose difference from the first one lies in the middle of its interval."""
    return {"arm": name, "difference": sum(interval) / 2, "difference_interval": interval, **more}


def test_every_plan_has_its_thresholds_and_a_command():
    page = (FOLDER / "README.md").read_text(encoding="utf-8")
    assert sorted(SCRIPT["PLANS"]) == PLANS
    for name in PLANS:
        assert f"| `{name}`: " in page
        assert f"reproduce experiments/papers/{name}.yaml --model " in page
        found = load_experiment(str(FOLDER / f"{name}.yaml"))
        require_fair(found)
        configs = [found.config(each, 0, Path("run"), None) for each in found.trained()]
        assert {seat.lr for config in configs for seat in config.seats.values()} == {1e-4}
        assert all(config.run.preset == f"{config.game.name}-paper" for config in configs)
        assert all(config.run.save_every <= 50 for config in configs)  # what was stopped goes on


@pytest.mark.slow
@pytest.mark.parametrize("name", PLANS)
def test_a_plan_from_nothing_to_its_verdict(name: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    monkeypatch.chdir(tmp_path)
    experiment = load_experiment(str(FOLDER / f"{name}.yaml"), "tiny")
    write_findings(experiment, conduct(experiment, tmp_path / "out", progress=Progress()), tmp_path / "out")
    found = SCRIPT["verdict"](json.loads((tmp_path / "out" / "results.json").read_text()))
    assert (found["plan"], found["scale"]) == (name, "tiny")
    assert found["verdict"] in ("confirmed", "contradicted", "not decided")


@pytest.mark.parametrize(
    ("longer", "tokens", "accuracy", "expected"),
    [
        (-14, (-20, -8), (-0.04, 0.03), "confirmed"),  # 10% of 140
        (-13, (-20, -6), (-0.04, 0.03), "not decided"),
        (-14, (-29, 1), (-0.04, 0.03), "not decided"),
        (-14, (-20, -8), (-0.06, 0.01), "not decided"),
        (-14, (-20, -8), (-0.12, -0.06), "contradicted"),
        (4, (1, 7), (-0.04, 0.03), "contradicted"),  # within 3%
    ],
)
def test_the_tiebreak(longer: float, tokens: Ends, accuracy: Ends, expected: str):
    lengths = {"final": 140.0 + longer, "longer": longer, "longer_interval": tokens}
    made = {"arm": "adv", "final": 140.0}, arm("adv with tiebreak", accuracy, **lengths)
    assert judged("agon-tiebreak", *made)["verdict"] == expected


def test_nothing_is_decided_by_a_difference_without_spread():
    alike = arm("adv with tiebreak") | {
        "difference_interval": None,
        "final": 10.0,
        "longer": 0.0,
        "longer_interval": None,
    }
    found = judged("agon-tiebreak", {"arm": "adv", "final": 10.0}, alike)
    assert found == {"plan": "agon-tiebreak", "scale": "full", "verdict": "not decided"}


@pytest.mark.parametrize(
    ("below_base", "below_format", "p", "expected"),
    [
        ((-0.2, -0.1), (-0.15, -0.05), (0.001, 0.04), "confirmed"),  # these are less majority
        ((-0.2, -0.1), (-0.15, -0.05), (0.001, 0.06), "not decided"),
        ((0.1, 0.2), (-0.15, -0.05), (0.001, 0.001), "not decided"),
        ((-0.2, -0.1), (-0.02, 0.03), (0.001, 0.9), "contradicted"),  # at most 2 points
        ((-0.2, -0.1), (-0.04, 0.01), (0.001, 0.3), "not decided"),
    ],
)
def test_the_majority(below_base: Ends, below_format: Ends, p: Ends, expected: str):
    made = [arm("base", below_base, p_value=p[0]), arm("format", below_format, p_value=p[1])]
    found = judged("sqlm-majority", arm("majority"), *made)
    assert found["verdict"] == expected
    low, high = (round(-100 * end, 1) for end in reversed(below_format))
    assert found["majority less format"] == [pytest.approx((low + high) / 2, abs=0.06), [low, high]]


@pytest.mark.parametrize(
    ("online", "start", "expected"),
    [
        ((0.3, 0.5), (0.2, 0.4), "confirmed"),
        ((0.3, 0.5), (-0.1, 0.1), "not decided"),
        ((-0.1, 0.1), (0.2, 0.4), "not decided"),
        ((-0.3, -0.1), (0.2, 0.4), "contradicted"),
    ],
)
def test_random_rewards(online: Ends, start: Ends, expected: str):
    made = arm("random rewards"), arm("online", online), arm("start", start)
    assert judged("pasodoble-random", *made)["verdict"] == expected


def test_the_coach():
    def curve(name: str, points_a_round: float, noise: float = 0.01) -> dict[str, Any]:
        rows = [[step, 0.7 + points_a_round / 200 * step + noise * (-1) ** (step // 2)] for step in range(1, 101, 2)]
        return {"arm": f"coach {name}", "training": {"curve": rows}}

    def found(trained: float, frozen: float, noise: float = 0.01) -> dict[str, Any]:
        return judged("cpmobius-coach", records=(curve("trained", trained, noise), curve("frozen", frozen, noise)))

    falling = found(-0.4, 0.0)
    assert falling["verdict"] == "confirmed"
    assert falling["points a round, coach trained"] == pytest.approx(-0.4, abs=0.01)
    difference, low, high = falling["difference"]
    assert low < difference < high < 0
    assert found(0.0, -0.4)["verdict"] == "contradicted"
    assert found(-0.4, 0.0, noise=0.5)["verdict"] == "not decided"
    assert SCRIPT["slope"](SCRIPT["np"].array([[1.0, 2.0], [2.0, 4.0], [3.0, 6.0]])) == 2.0


def test_the_solvers_reward():
    # Newcombe 1998, table II, example (a): 56 of 70 less 48 of 80 is 0.2, 0.0524 to 0.3339.
    assert SCRIPT["newcombe"]((56, 70), (48, 80)) == pytest.approx((0.2, 0.0524, 0.3339), abs=5e-5)

    def record(name: str, valid: int, wins: int) -> dict[str, Any]:
        pairings = [
            {"sneaky": "sneaky@round-0", "critic": "critic@round-0", "sneaky_wins": wins},
            {"sneaky": "sneaky@round-1", "critic": "critic@round-0", "sneaky_wins": 99},
        ]
        attacks = {"sneaky@round-1": {"attacks": 450, "valid": valid}}
        return {"arm": name, "training": {"last_step": {"pairings": pairings, "attacks_in_full": attacks}}}

    def found(with_it: int, without: int, wins: int = 40) -> str:
        made = record("with", with_it, 40), record("without", without, wins)
        return str(judged("spc-solver-reward", records=made)["verdict"])

    assert found(150, 60) == "confirmed"
    assert found(150, 60, wins=14) == "not decided"
    assert found(80, 60) == "not decided"  # 4.4 points
    assert found(60, 150) == "contradicted"
