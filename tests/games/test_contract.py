"""What every game keeps under every switch: the contract, and playing on as before wherever it is restored."""

import json
from typing import Any

import pytest

from lite_selfplay.errors import ConfigError, UnknownNameError
from lite_selfplay.games import Game, game_names, make_game
from lite_selfplay.testing import ScriptedTable, check_game, noisy_script
from tests.made import play

ONCE = {"gate": "valid", "mode": "offline", "proposer_steps": 1, "solver_steps": 1}
SWITCHES: dict[str, list[dict[str, Any]]] = {
    "agon": [
        {},
        {"opponent": "hidden", "reward": "margin", "tiebreak": 0.5},
        {"opponent": "shared_hidden", "reward": "margin", "tiebreak": 0.5},
    ],
    "cpmobius": [
        {},
        {"resample": False, "reward": "signed", "coach_reward": "advantage", "rollback": 1},
        {"coach_reward": "delta", "freeze_coach": True},
        {"filter": False, "rollback": 2, "validation_samples": 3},
        {"rollback": 1, "rollback_from": 3},
    ],
    "grpo": [{}],
    "kuhn": [
        {},
        {"renew": 2, "exact_every": 2, "fade": 4},
        {"opponent": "equilibrium"},
        {"weight": 0, "shuffled": True},
    ],
    "pasodoble": [
        {},
        {"knowledge": "none"},
        {"freeze_proposer": True},
        {"reward": "random"},
        {"reward": "random_with_format"},
        {"diversity": False},
        {"seats": "shared"},
        {"tau_sim": 0.8, "leak_guard": "substring", "gate": "pass_rate"},
        {"gate": "valid"},
        {"gate": "valid", "freeze_proposer": True},
        ONCE,
        {**ONCE, "gate": "pass_rate"},
        {"leak_guard": False, "credit": "group_mean"},
        {"mode": "offline", "proposer_steps": 2, "solver_steps": 2, "eviction": True},
        {"mode": "offline", "proposer_steps": 2, "solver_steps": 2},
        {"mode": "offline", "proposer_steps": 1, "solver_steps": 3, "eviction": True, "freeze_proposer": True},
    ],
    "rent": [{}],
    "rzero": [{}, {"challenger_steps": 2, "solver_steps": 3, "votes": 3}, {"similarity": False}, {"max_draws": 1}],
    "self-refine": [{}],
    "spc": [{}, {"rounds": 1, "epochs": 1, "batch": 4}],
    "sqlm": [
        {},
        {"seats": "two"},
        {"reward": "format"},
        {"proposer_every": 1},
        {"proposer_every": 2},
        {"proposer_every": 0},
        {"topic": "algebra", "proposer_every": 1},
        {"topic": "code", "proposer_every": 1},
        {"questions": "pregenerated", "calls": 3, "questions_per_call": 2},
    ],
}
SMALL: dict[str, dict[str, Any]] = {
    # The script repeats its few questions, which the default of `tau_sim` would soon all refuse.
    "pasodoble": {"proposals": 3, "tau_sim": 0.99},
    "rzero": {"challenger_steps": 1, "solver_steps": 2, "votes": 4},
}
CASES = [(name, options) for name, several in SWITCHES.items() for options in several]
under_every_switch = pytest.mark.parametrize(("name", "options"), CASES, ids=[f"{n} {o}" for n, o in CASES])


def made(name: str, options: dict[str, Any]) -> Game:
    return make_game(name, {**SMALL.get(name, {}), **options}, group_size=3, problems_per_step=2)


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


def test_every_game_is_here():
    assert set(SWITCHES) == set(game_names())


@under_every_switch
def test_the_contract(name: str, options: dict[str, Any]):
    check_game(made(name, options), steps=12)


@under_every_switch
def test_a_game_that_is_restored_at_every_step_plays_as_one_that_never_was(name: str, options: dict[str, Any]):
    game, restored = made(name, options), made(name, options)
    table, other = (ScriptedTable(noisy_script(game)) for _ in range(2))
    phases = set()
    for step in range(12):
        if game.over():
            break
        state = json.loads(json.dumps(restored.state()))
        restored = made(name, options)  # which knows nothing but what was saved
        restored.restore(state)
        episode = play(game, table, step)
        assert play(restored, other, step) == episode
        phases.add(episode.log.get("phase"))
        assert restored.state() == game.state()
    assert options.get("mode") != "offline" or phases == {"proposer", "solver"}
    table.close()
    other.close()
