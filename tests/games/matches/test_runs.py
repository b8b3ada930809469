"""Matches trained for real on the random model: killed at a turn, checked at every turn, and their example."""

import json
from collections.abc import Callable
from pathlib import Path
from random import Random
from typing import Any

import pytest
from safetensors.torch import load_file

from lite_selfplay import Run, RunConfig, resume, train
from lite_selfplay.games import find_game
from lite_selfplay.games.matches import MatchOptions
from lite_selfplay.runs.folder import RunFolder
from lite_selfplay.runs.report.figures import charts_of
from lite_selfplay.testing import ScriptedTable, check_game
from lite_selfplay.training.rollout import LiveTable
from lite_selfplay.training.trainer import reference_name
from tests.made import play, same_weights, seat_weights

ROOT = Path(__file__).parents[3]
TICTACTOE = f"{ROOT / 'examples' / 'tictactoe.py'}:TicTacToe"


def kuhn(folder: Path, steps: int) -> RunConfig:
    return RunConfig(
        game={"name": "kuhn", "renew": 1, "exact_every": 1},
        model="tiny",
        precision="fp32",
        steps=steps,
        group_size=4,
        problems_per_step=4,
        cold_start={"steps": 8},
        roles={"*": {"beta": 0.1}},
        seats={"*": {"schedule": "constant", "warmup": 0.0}},
        run={"save_every": 1, "keep_checkpoints": 9, "dir": folder, "preflight": steps == 3},
    )


@pytest.fixture(scope="module")
def whole(tmp_path_factory: pytest.TempPathFactory) -> Run:
    return train(kuhn(tmp_path_factory.mktemp("runs") / "whole", 3))


def test_a_reference_that_is_renewed_leaves_that_of_the_kl_term_alone(whole: Run):
    """A KL term pulls to the initial seats, regularisation to those of the last renewal."""
    last = whole.path / "checkpoints" / "step-3"
    names = [each["name"] for each in json.loads((last / "state.json").read_text())["snapshots"]]
    kept = {name: load_file(last / f"snapshot-{number}.safetensors") for number, name in enumerate(names)}
    assert len(kept) == 4
    for seat in "AB":
        assert not same_weights(*(seat_weights(whole.path, step, seat) for step in (0, 3)))
        assert same_weights(kept[reference_name(seat)], seat_weights(whole.path, 0, seat))
        assert same_weights(kept[f"{seat}@reference"], seat_weights(whole.path, 3, seat))


def test_a_run_killed_at_a_turn_goes_on_to_the_bit(whole: Run, tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    killed, ask = tmp_path / "killed", LiveTable.ask
    train(kuhn(killed, 1))
    turns = iter(range(1, 9))

    def dying(self: LiveTable, *args: Any, **rest: Any) -> Any:
        if next(turns) == 2:  # within the second step, of two or three turns
            raise RuntimeError("killed")
        return ask(self, *args, **rest)

    monkeypatch.setattr(LiveTable, "ask", dying)
    with pytest.raises(RuntimeError, match="killed"):
        resume(killed, steps=3)
    monkeypatch.setattr(LiveTable, "ask", ask)
    again = resume(killed, steps=3)
    for seat in "AB":
        assert same_weights(*(seat_weights(run.path, 3, seat) for run in (whole, again)))
        assert not same_weights(*(seat_weights(whole.path, step, seat) for step in (1, 3)))
    assert [row["game"] for row in again.metrics_rows()] == [row["game"] for row in whole.metrics_rows()]


def test_what_a_run_of_matches_writes_down_and_measures(whole: Run, call: Callable[..., Any]):
    looked = json.loads((whole.path / "preflight.json").read_text())  # at whole matches, without changing the run
    assert (looked["refused"], looked["findings"]) == ("", [])
    assert {stream["seat"] for stream in looked["streams"].values()} == {"A", "B"}
    for row in whole.metrics_rows():
        assert [stream["seat"] for stream in row["streams"].values()] == (["A", "B"] if row["step"] % 2 else ["B", "A"])
        assert all(stream["sampler_gap"] < 1e-5 for stream in row["streams"].values())
    assert {row["turn"] for row in whole.episodes()} >= {1, 2}
    assert whole.config.seats["A"].lr == 3e-4  # its own, not the base's suggestion for problems
    found = json.loads(call("eval", whole.path, "--limit", 6, "--seats", "A,B@1", "--json").out)
    assert (found["mode"], found["n"], found["temperature"], found["top_p"]) == ("versus", 6, 0.5, 1.0)
    assert list(found["seats"])[-1] == "A against B@1"
    assert all(s["right"] + s["draws"] + s["losses"] == 6 for s in found["seats"].values())
    drawn = charts_of(find_game("kuhn"), RunFolder(whole.path), whole.metrics_rows())
    charts = {chart["name"]: chart["lines"] for chart in drawn}
    assert charts["NashConv"][0]["steps"] == (1, 2, 3)
    bands = {line["name"]: line["within"] for line in charts["probability of a bet, first player"]}
    assert (len(bands), bands["Qpb"]) == (6, pytest.approx((1 / 3, 2 / 3)))


def test_tictactoe_by_hand_and_against_a_perfect_opponent():
    game = find_game(TICTACTOE)
    check_game(game(), script={"crosses": ["5", "1", "9", "x"], "noughts": ["1", "2", "3", "7"]})
    board = game().make(Random(0))
    for player, move in ((0, "1"), (1, "4"), (0, "2"), (1, "5"), (0, "3")):
        assert board.turn()[0] == player  # type: ignore[index]
        board.act(player, move)
    assert (board.turn(), list(board.returns())) == (None, [1, -1])
    best = {}
    for rule in ("perfect", "random"):
        matches = game(MatchOptions(opponent=rule), group_size=8, problems_per_step=4)
        episode = play(matches, ScriptedTable({role: list("579132468") for role in matches.roles}))
        best[rule] = max(s.reward or 0 for st in episode.streams for g in st.groups for s in g.samples)
    assert best["perfect"] <= 0 < best["random"] == 1
    assert len((ROOT / "examples" / "tictactoe.py").read_text().splitlines()) < 100
