"""Golden playthroughs: what each game does against a fixed script, kept as JSON beside this test.

`LITE_SELFPLAY_WRITE_GOLDEN=1 pytest tests/games/test_golden.py` writes them anew: read the difference first.
"""

import json
import os
from pathlib import Path
from typing import Any

import pytest

from lite_selfplay.credit import stream_advantages
from lite_selfplay.data import Episode
from lite_selfplay.games import Game, game_names, make_game
from lite_selfplay.testing import ScriptedTable, noisy_script

GOLDEN = Path(__file__).parents[1] / "golden"

CASES: dict[str, tuple[str, dict[str, Any]]] = {
    "agon": ("agon", {}),
    "agon-coop": ("agon", {"reward": "coop"}),
    "agon-margin-fixed": ("agon", {"reward": "margin", "rotate": False}),
    "agon-hidden-tiebreak": ("agon", {"opponent": "hidden", "tiebreak": 0.5}),
    "agon-shared-hidden": ("agon", {"opponent": "shared_hidden"}),
    "grpo": ("grpo", {}),
}


def test_every_game_has_a_golden_playthrough():
    assert set(game_names()) <= {game for game, _ in CASES.values()}


@pytest.mark.parametrize("case", CASES)
def test_playthrough(case: str):
    name, options = CASES[case]
    game = make_game(name, options, group_size=3, problems_per_step=2)
    played = playthrough(game)
    path = GOLDEN / f"{case}.json"
    if os.environ.get("LITE_SELFPLAY_WRITE_GOLDEN"):
        path.write_text(json.dumps(played, indent=1, ensure_ascii=False) + "\n", encoding="utf-8")
    assert played == json.loads(path.read_text(encoding="utf-8"))


def playthrough(game: Game) -> list[dict[str, Any]]:
    table = ScriptedTable(noisy_script)
    steps = []
    for step in range(3):
        table.open(step, game.seats(step))
        steps.append(shown(game.play(step, table)))
    table.close()
    return json.loads(json.dumps(steps))


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
