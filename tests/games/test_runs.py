"""Games trained on the random model: the seats that a step updates, to the bit, and resumed runs.

The random model writes neither questions nor answers, so here any text is one.
"""

import shutil
from collections import Counter
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from lite_selfplay import Run, RunConfig, resume, train
from lite_selfplay.games.cpmobius.cpmobius import CpMobius
from tests.made import same_weights, seat_weights
from tests.ranks.plays import anything_goes

STEPS = 5
STOP = 3
"""After this step a run is stopped: within a phase of every game, and between the player's step and the coach's."""
# Options, and the seats that each of five steps may update.
GAMES: dict[str, tuple[dict[str, Any], str]] = {
    "absolute-zero": ({"seats": "two"}, " ".join(["proposer,solver"] * 5)),
    "cpmobius": ({"max_draws": 4, "low": 0, "high": 1}, "player coach player coach player"),
    "pasodoble": (
        {"mode": "offline", "proposer_steps": 2, "solver_steps": 2, "attempts": 2, "solver_questions": 3}
        | {"proposals": 3, "reward": "random", "tau_sim": 1.0},
        "proposer proposer solver solver proposer",
    ),
    "rzero": (
        {"challenger_steps": 2, "solver_steps": 2, "votes": 4, "low": 0, "high": 1},
        "challenger challenger solver solver challenger",
    ),
    "spice": ({"seats": "two", "leak_guard": "off"}, " ".join(["challenger,reasoner"] * 5)),
    "sqlm": ({"seats": "two", "proposer_every": 2}, "solver solver,proposer solver solver,proposer solver"),
}


@pytest.fixture(scope="module", autouse=True)
def _anything_is_a_question_and_an_answer() -> Iterator[None]:
    with pytest.MonkeyPatch.context() as patch:
        anything_goes(0, patch.setattr)
        yield


def config(name: str, folder: Path, **game: Any) -> RunConfig:
    return RunConfig(
        game={"name": name, **GAMES[name][0], **game},
        model="tiny",
        precision="fp32",
        tasks={"train": "letters", "validation": "letters:named=6", "validation_limit": 20},
        cold_start=False,
        steps=STEPS,
        group_size=5,
        problems_per_step=2,
        max_completion_tokens=12,
        run={"save_every": 1, "keep_checkpoints": 9, "dir": folder},
        seats={"*": {"lr": 1e-2, "schedule": "constant", "warmup": 0.0}},
    )


@pytest.fixture(scope="module", params=GAMES)
def whole(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Run:
    return train(config(request.param, tmp_path_factory.mktemp("runs") / request.param))


def moved(run: Run, step: int) -> set[str]:
    """The seats that a step updated, by its checkpoints before and after."""
    return {s for s in run.seats if not same_weights(*(seat_weights(run.path, n, s) for n in (step - 1, step)))}


def test_each_step_moves_the_seats_whose_turn_it_is_and_leaves_the_others_to_the_bit(whole: Run):
    rows, turns = whole.metrics_rows(), [set(turn.split(",")) for turn in GAMES[whole.config.game.name][1].split()]
    assert len(rows) == len(turns) == STEPS
    for row, turn in zip(rows, turns, strict=True):
        trained = {stream["seat"] for stream in row["streams"].values() if stream["rows_trained"]}
        assert moved(whole, row["step"]) == trained <= turn
        assert row["game"].get("phase", "").removeprefix("coach") in ("", *turn)
    assert set.union(*(moved(whole, row["step"]) for row in rows)) == set(whole.seats)


def test_a_run_that_was_stopped_within_a_phase_goes_on_as_it_would_have(whole: Run, tmp_path: Path):
    goes_on(whole, tmp_path / "stopped")


def goes_on(whole: Run, path: Path) -> None:
    shutil.copytree(whole.path, path)
    for step in range(STOP + 1, STEPS + 1):
        shutil.rmtree(path / "checkpoints" / f"step-{step}")
    run = resume(path)
    for seat in run.seats:
        assert same_weights(*(seat_weights(each.path, STEPS, seat) for each in (run, whole)))
    assert [row["game"] for row in run.metrics_rows()] == [row["game"] for row in whole.metrics_rows()]


def test_answers_are_on_record_with_their_question_and_what_nobody_judged_has_no_reward(whole: Run):
    episodes, name = list(whole.episodes()), whole.config.game.name
    asked = {row["question"]: row for row in episodes if row["role"] in ("proposer", "challenger", "coach")}
    answered = [row for row in episodes if row["role"] in ("solver", "player", "reasoner")]
    assert answered
    for row in answered if name != "absolute-zero" else ():  # its solver is asked about the effect of a proposal
        assert row["problem_id"] == row["question"]
        assert (asked[row["question"]]["text"] or "?") in row["prompt"]
    if name == "cpmobius":
        coach = [row for row in whole.metrics_rows() if row["game"]["phase"] == "player"]
        assert {row["streams"]["coach"]["reward_mean"] for row in coach} == {None}
        assert all((row["reward"] is None) == (row["role"] == "coach" and row["step"] % 2 == 1) for row in episodes)


def test_every_completion_is_written_down_in_a_place_of_its_own(whole: Run):
    if whole.config.game.name not in ("absolute-zero", "pasodoble", "spice", "sqlm"):
        return  # votes and measurements earn nothing and are not recorded
    tokens, places = Counter[int](), []
    for row in whole.episodes():
        tokens[row["step"]] += row["tokens"]
        places.append((row["step"], row["role"], row["group"], row["sample"]))
    assert dict(tokens) == {row["step"]: row["tokens"]["generated"] for row in whole.metrics_rows()}
    assert len(places) == len(set(places))


@pytest.mark.parametrize("name", ["absolute-zero", "spice"])
def test_a_population_moves_a_pair_a_step_and_its_weakest_and_resumes_to_the_bit(name: str, tmp_path: Path):
    run = train(config(name, tmp_path / "run", population=2, replace_every=2, mutation=0.1))
    assert len(run.seats) == 4
    for row in run.metrics_rows():
        trained = {stream["seat"] for stream in row["streams"].values() if stream["rows_trained"]}
        replaced = 2 * (row["step"] % 2 == 0)
        assert row["game"]["replaced"] == replaced
        assert len(trained) == 2
        assert trained <= moved(run, row["step"])
        assert len(moved(run, row["step"]) - trained) <= replaced
    # A seat that is replaced by a blend with itself, after a step that trained it, has moved once.
    assert any(len(moved(run, step)) > 2 for step in (2, 4))
    goes_on(run, tmp_path / "stopped")


def test_a_player_that_only_gets_worse_is_put_back_to_where_training_began(tmp_path: Path, monkeypatch: Any):
    scores = iter([[right] * 20 for right in (1, 0, 0, 0)])
    monkeypatch.setattr(CpMobius, "_measure", lambda self, table: next(scores))
    run = train(config("cpmobius", tmp_path / "run", rollback=2))
    assert [row["game"].get("restored") for row in run.metrics_rows()] == [None, False, None, True, None]
    assert not same_weights(*(seat_weights(run.path, step, "player") for step in (0, 3)))
    assert same_weights(*(seat_weights(run.path, step, "player") for step in (0, 4)))
