"""What every game keeps under every switch: the contract, and playing on as before wherever it is restored."""

from typing import Any

import pytest

from lite_selfplay.errors import ConfigError, UnknownNameError
from lite_selfplay.games import make_game
from lite_selfplay.testing import check_game
from tests.games.test_golden import CASES

OFFLINE = {"mode": "offline", "proposer_steps": 2, "solver_steps": 2}
ONCE = {**OFFLINE, "proposer_steps": 1, "solver_steps": 1}
# Beside those of the golden playthroughs.
SWITCHES: list[tuple[str, dict[str, Any]]] = [
    ("agon", {"opponent": "hidden", "reward": "margin", "tiebreak": 0.5}),
    ("agon", {"opponent": "shared_hidden", "reward": "margin", "tiebreak": 0.5}),
    ("cpmobius", {"resample": False, "reward": "signed", "coach_reward": "advantage", "rollback": 1}),
    ("cpmobius", {"coach_reward": "delta", "freeze_coach": True}),
    ("cpmobius", {"filter": False, "rollback": 2, "validation_samples": 3}),
    ("cpmobius", {"rollback": 1, "rollback_from": 3}),
    ("kuhn", {"renew": 2, "exact_every": 2, "fade": 4}),
    ("kuhn", {"opponent": "equilibrium"}),
    ("kuhn", {"weight": 0, "shuffled": True}),
    ("pasodoble", {"gate": "valid", "freeze_proposer": True}),
    ("pasodoble", {**ONCE, "gate": "valid"}),
    ("pasodoble", {**ONCE, "gate": "pass_rate"}),
    ("pasodoble", {"leak_guard": False, "credit": "group_mean"}),
    ("pasodoble", {**OFFLINE, "eviction": True}),
    ("pasodoble", OFFLINE),
    ("pasodoble", {**OFFLINE, "proposer_steps": 1, "solver_steps": 3, "eviction": True, "freeze_proposer": True}),
    ("rzero", {"challenger_steps": 2, "solver_steps": 3, "votes": 3}),
    ("rzero", {"max_draws": 1}),
    ("spc", {}),
    ("sqlm", {"seats": "two"}),
    ("sqlm", {"proposer_every": 1}),
]
SMALL: dict[str, dict[str, Any]] = {
    # The script repeats its few questions, which the default of `tau_sim` would soon all refuse.
    "pasodoble": {"proposals": 3, "tau_sim": 0.99},
    "rzero": {"challenger_steps": 1, "solver_steps": 2, "votes": 4},
}


@pytest.mark.parametrize(
    ("name", "options", "said"),
    [
        ("cpmobius", {"low": 0.9}, "low must not be above high"),
        ("cpmobius", {"max_draws": 0}, r"game\.max_draws"),
        ("pasodoble", {"tau_sim": 1.5}, r"game\.tau_sim"),
        ("pasodoble", {"tau_simm": 0.3}, "tau_sim"),
        ("pasodoble", {"seats": "shared", "mode": "offline"}, "one adapter for both roles"),
        ("pasodoble", {"seats": "shared", "freeze_proposer": True}, "one adapter for both roles"),
        ("rzero", {"low": 0.9}, "low must not be above high"),
        ("rzero", {"max_empty_steps": 0}, r"game\.max_empty_steps"),
        ("rzero", {"solver_steps": 0}, "solver_steps"),
        *(("spc", {key: value}, key) for key, value in (("rounds", -1), ("stable", 0), ("batch", 0))),
        *(("spc", {"solvers": solvers}, "solvers") for solvers in ([], ["critic@round-1"])),
        ("sqlm", {"topic": "code", "questions": "pregenerated"}, "bring tests"),
    ],
)
def test_options_that_make_no_sense(name: str, options: dict[str, Any], said: str):
    with pytest.raises((ConfigError, UnknownNameError), match=said):
        make_game(name, options)


@pytest.mark.parametrize(("name", "options"), [*CASES.values(), *SWITCHES], ids=str)
def test_the_contract(name: str, options: dict[str, Any]):
    check_game(make_game(name, {**SMALL.get(name, {}), **options}, group_size=3, problems_per_step=2), steps=12)
