"""Golden playthroughs: each game against a fixed script, kept as JSON in tests/golden.

`LITE_SELFPLAY_WRITE_GOLDEN=1 pytest tests/games/test_golden.py` writes them anew: read the difference first.
"""

import json
import os
import sys
from pathlib import Path
from typing import Any

import pytest
import yaml

from lite_selfplay.credit import each, stream_advantages
from lite_selfplay.data import Advantage, Episode, Group, Sample, Stream
from lite_selfplay.games import Game, game_names, make_game
from lite_selfplay.testing import ScriptedTable, noisy_script
from tests.made import play

MOST_STEPS = 40
GOLDEN = Path(__file__).parents[1] / "golden"

PLAYED = yaml.safe_load((GOLDEN / "cases.yaml").read_text(encoding="utf-8"))
CASES: dict[str, tuple[str, dict[str, Any]]] = {
    case: (game, options) for game, cases in PLAYED["golden"].items() for case, options in cases.items()
}


def test_every_game_has_a_golden_playthrough():
    assert set(game_names()) <= {game for game, _ in CASES.values()}


@pytest.mark.parametrize("case", CASES)
def test_playthrough(case: str):
    name, options = CASES[case]
    game = make_game(name, options, group_size=4 if name == "cpmobius" else 3, problems_per_step=2)
    check_golden(case, playthrough(game))


def check_golden(case: str, steps: list[dict[str, Any]]) -> None:
    """Compare with the golden file, or write it."""
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
    def sample_of(sample: Sample, advantage: Advantage | None) -> dict[str, Any]:
        said = {key: getattr(sample.completion, key) for key in ("seat", "prompt", "text")}
        rounded = None if advantage is None else each(advantage, lambda number: round(number, 6))
        return {**said, "reward": sample.reward, "advantage": rounded, **sample.info}

    def group_of(group: Group, row: list[Advantage | None]) -> dict[str, Any]:
        samples = [sample_of(*pair) for pair in zip(group.samples, row, strict=True)]
        return {"problem": group.problem.id if group.problem else None, "samples": samples}

    def stream_of(stream: Stream) -> dict[str, Any]:
        groups = [group_of(*pair) for pair in zip(stream.groups, stream_advantages(stream), strict=True)]
        return {key: getattr(stream, key) for key in ("role", "credit", "drop_zero_variance")} | {"groups": groups}

    return {"streams": [stream_of(stream) for stream in episode.streams], "log": dict(episode.log)}
