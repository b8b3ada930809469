"""Golden playthroughs: what each game does against a fixed script, kept as JSON beside this test.

`LITE_SELFPLAY_WRITE_GOLDEN=1 pytest tests/games/test_golden.py` writes them anew: read the difference first.
"""

import json
import os
import sys
from pathlib import Path
from typing import Any

import pytest

from lite_selfplay.credit import stream_advantages
from lite_selfplay.data import Episode
from lite_selfplay.games import Game, game_names, make_game
from lite_selfplay.testing import ScriptedTable, noisy_script
from tests.made import play

MOST_STEPS = 40
GOLDEN = Path(__file__).parents[1] / "golden"

CASES: dict[str, tuple[str, dict[str, Any]]] = {
    "agon": ("agon", {}),
    "agon-coop": ("agon", {"reward": "coop"}),
    "agon-margin-fixed": ("agon", {"reward": "margin", "rotate": False}),
    "agon-hidden-tiebreak": ("agon", {"opponent": "hidden", "tiebreak": 0.5}),
    "agon-shared-hidden": ("agon", {"opponent": "shared_hidden"}),
    "cpmobius": ("cpmobius", {}),
    "cpmobius-reused-answers": ("cpmobius", {"resample": False}),
    "cpmobius-signed": ("cpmobius", {"reward": "signed", "coach_reward": "advantage"}),
    "cpmobius-delta": ("cpmobius", {"coach_reward": "delta"}),
    "cpmobius-no-filter": ("cpmobius", {"filter": False}),
    "cpmobius-narrow-filter": ("cpmobius", {"low": 0.5, "high": 0.7}),
    "cpmobius-frozen-coach": ("cpmobius", {"freeze_coach": True}),
    "cpmobius-rollback": ("cpmobius", {"rollback": 1}),
    "grpo": ("grpo", {}),
    "kuhn": ("kuhn", {"exact_every": 2}),
    "kuhn-against-random": ("kuhn", {"opponent": "random", "weight": 0.0, "shuffled": True}),
    "pasodoble": ("pasodoble", {"proposals": 4}),
    "pasodoble-release": (
        "pasodoble",
        {"proposals": 4, "tau_sim": 0.8, "leak_guard": "substring", "gate": "pass_rate"},
    ),
    "pasodoble-gate-valid": ("pasodoble", {"proposals": 4, "gate": "valid"}),
    "pasodoble-no-knowledge": ("pasodoble", {"proposals": 4, "knowledge": "none"}),
    "pasodoble-frozen-proposer": ("pasodoble", {"proposals": 4, "freeze_proposer": True}),
    "pasodoble-random": ("pasodoble", {"proposals": 4, "reward": "random"}),
    "pasodoble-random-with-format": ("pasodoble", {"proposals": 4, "reward": "random_with_format"}),
    "pasodoble-no-diversity": ("pasodoble", {"proposals": 4, "diversity": False}),
    "pasodoble-shared": ("pasodoble", {"proposals": 4, "seats": "shared", "credit": "group_mean"}),
    "pasodoble-offline": ("pasodoble", {"mode": "offline", "proposals": 4, "proposer_steps": 1, "solver_steps": 1}),
    "pasodoble-offline-eviction": (
        "pasodoble",
        {"mode": "offline", "proposals": 4, "proposer_steps": 1, "solver_steps": 2, "eviction": True},
    ),
    "rent": ("rent", {}),
    "rzero": ("rzero", {"challenger_steps": 1, "solver_steps": 2, "votes": 5, "max_draws": 8}),
    "rzero-no-similarity": ("rzero", {"challenger_steps": 2, "solver_steps": 1, "votes": 5, "similarity": False}),
    "self-refine": ("self-refine", {}),
    "spc": ("spc", {"rounds": 1, "epochs": 1, "batch": 4}),
    "sqlm": ("sqlm", {}),
    "sqlm-two-seats-every-2": ("sqlm", {"seats": "two", "proposer_every": 2}),
    "sqlm-algebra-every-step": ("sqlm", {"topic": "algebra", "proposer_every": 1}),
    "sqlm-never": ("sqlm", {"proposer_every": 0}),
    "sqlm-code": ("sqlm", {"topic": "code", "proposer_every": 1}),
    "sqlm-format": ("sqlm", {"reward": "format", "proposer_every": 1}),
    "sqlm-pregenerated": ("sqlm", {"questions": "pregenerated", "calls": 4, "questions_per_call": 3}),
}


def test_every_game_has_a_golden_playthrough():
    assert set(game_names()) <= {game for game, _ in CASES.values()}


@pytest.mark.parametrize("case", CASES)
def test_playthrough(case: str):
    name, options = CASES[case]
    game = make_game(name, options, group_size=4 if name == "cpmobius" else 3, problems_per_step=2)
    check_golden(case, playthrough(game))


def check_golden(case: str, steps: list[dict[str, Any]]) -> None:
    """Compare with what was kept, or keep it."""
    # Since Python 3.12, `sum` adds floats with a correction: a mean in a log may differ in its last digit.
    read = float if sys.version_info < (3, 12) else lambda digits: float(f"{float(digits):.12g}")
    played = json.loads(json.dumps(steps), parse_float=read)
    path = GOLDEN / f"{case}.json"
    if os.environ.get("LITE_SELFPLAY_WRITE_GOLDEN"):
        path.write_text(json.dumps(played, indent=1, ensure_ascii=False) + "\n", encoding="utf-8")
    assert played == json.loads(path.read_text(encoding="utf-8"), parse_float=read)


def playthrough(game: Game) -> list[dict[str, Any]]:
    table = ScriptedTable(noisy_script(game))
    steps = []
    for step in range(MOST_STEPS if game.open_ended else 3):
        if game.over():
            break
        steps.append(shown(play(game, table, step)))
    table.close()
    return steps


def shown(episode: Episode) -> dict[str, Any]:
    streams = [
        {
            "role": stream.role,
            "credit": stream.credit,
            "drop_zero_variance": stream.drop_zero_variance,
            "groups": [
                {
                    "problem": group.problem.id if group.problem else None,
                    "samples": [
                        {
                            "seat": sample.completion.seat,
                            "prompt": sample.completion.prompt,
                            "text": sample.completion.text,
                            "reward": sample.reward,
                            "advantage": None if advantage is None else round(advantage, 6),
                            **sample.info,
                        }
                        for sample, advantage in zip(group.samples, row, strict=True)
                    ],
                }
                for group, row in zip(stream.groups, stream_advantages(stream), strict=True)
            ],
        }
        for stream in episode.streams
    ]
    return {"streams": streams, "log": dict(episode.log)}
