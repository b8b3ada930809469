"""Matches trained for real on the random model: killed at a turn, checked at every turn, and their example."""

import json
from collections.abc import Callable
from pathlib import Path
from random import Random
from typing import Any

import pytest
from safetensors.torch import load_file

from lite_selfplay import RunConfig, resume, train
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


def config(folder: Path, steps: int) -> RunConfig:
    return RunConfig(
        game={"name": "kuhn", "renew": 1, "exact_every": 1},
        model="tiny",
        precision="fp32",
        steps=steps,
        group_size=4,
        problems_per_step=4,
        cold_start={"steps": 8},
        seats={"*": {"schedule": "constant", "warmup": 0.0}},
        run={"save_every": 1, "keep_checkpoints": 9, "dir": folder, "preflight": steps == 3},
    )


def test_a_reference_that_is_renewed_leaves_that_of_the_kl_term_alone(tmp_path: Path):
    """A KL term pulls to the seats as they entered training, regularisation to what they were at the last renewal."""
    short = config(tmp_path / "run", 2)
    settings = {"roles": {"*": {"beta": 0.1}}, "run": {"preflight": False}, "cold_start": {"enabled": False}}
    run = train(RunConfig.of(short.chosen(), settings)).path
    last = run / "checkpoints" / "step-2"
    names = [each["name"] for each in json.loads((last / "state.json").read_text())["snapshots"]]
    kept = {name: load_file(last / f"snapshot-{number}.safetensors") for number, name in enumerate(names)}
    assert len(kept) == 4
    for seat in "AB":
        assert not same_weights(*(seat_weights(run, step, seat) for step in (0, 2)))
        assert same_weights(kept[reference_name(seat)], seat_weights(run, 0, seat))
        assert same_weights(kept[f"{seat}@reference"], seat_weights(run, 2, seat))


def test_a_run_killed_at_a_turn_goes_on_to_the_bit_and_follows_its_sampler_at_every_turn(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, call: Callable[..., Any]
):
    whole, killed = train(config(tmp_path / "whole", 3)), tmp_path / "killed"
    looked = json.loads((whole.path / "preflight.json").read_text())  # at whole matches, and nothing of the run changed
    assert (looked["refused"], looked["findings"]) == ("", [])
    assert {stream["seat"] for stream in looked["streams"].values()} == {"A", "B"}
    train(config(killed, 1))
    ask = LiveTable.ask
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
    for seat in ("A", "B"):
        assert same_weights(*(seat_weights(run.path, 3, seat) for run in (whole, again)))
        assert not same_weights(*(seat_weights(whole.path, step, seat) for step in (1, 3)))
    assert [row["game"] for row in again.metrics_rows()] == [row["game"] for row in whole.metrics_rows()]
    for row in whole.metrics_rows():
        assert [stream["seat"] for stream in row["streams"].values()] == (["A", "B"] if row["step"] % 2 else ["B", "A"])
        assert all(stream["sampler_gap"] < 1e-5 for stream in row["streams"].values())
    assert {row["turn"] for row in whole.episodes()} >= {1, 2}
    assert whole.config.seats["A"].lr == 3e-4  # of its own, not the one that the base suggests for problems
    found = json.loads(call("eval", whole.path, "--limit", 6, "--seats", "A,B@1", "--json").out)
    assert (found["mode"], found["n"], found["temperature"], found["top_p"]) == ("versus", 6, 0.5, 1.0)
    assert list(found["seats"])[-1] == "A against B@1"
    assert all(s["right"] + s["draws"] + s["losses"] == 6 for s in found["seats"].values())
    charts = {
        chart["name"]: chart for chart in charts_of(find_game("kuhn"), RunFolder(whole.path), whole.metrics_rows())
    }
    assert charts["NashConv"]["lines"][0]["steps"] == (1, 2, 3)
    bands = {line["name"]: line["within"] for line in charts["probability of a bet, first player"]["lines"]}
    assert (len(bands), bands["Qpb"]) == (6, pytest.approx((1 / 3, 2 / 3)))


def test_tictactoe_by_hand_and_against_a_perfect_opponent():
    game = find_game(TICTACTOE)
    check_game(game(), script={"crosses": ["5", "1", "9", "x"], "noughts": ["1", "2", "3", "7"]})
    board = game().make(Random(0))
    for player, move in ((0, "1"), (1, "4"), (0, "2"), (1, "5"), (0, "3")):
        assert board.turn()[0] == player  # type: ignore[index]
        board.act(player, move)
    assert (board.turn(), list(board.returns())) == (None, [1, -1])
    perfect = game(MatchOptions(opponent="perfect"), group_size=8, problems_per_step=4)
    lines = {role: list("579132468") for role in game.roles}
    episode = play(perfect, ScriptedTable(lines))
    assert {s.reward for st in episode.streams for g in st.groups for s in g.samples} <= {-1.0, 0.0, -1.5}
    played = play(game(MatchOptions(opponent="random"), group_size=8, problems_per_step=4), ScriptedTable(lines))
    assert max(s.reward or 0 for st in played.streams for g in st.groups for s in g.samples) == 1.0


def test_the_example_is_short():
    assert len((ROOT / "examples" / "tictactoe.py").read_text().splitlines()) < 100
