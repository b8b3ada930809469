"""PasoDoble trained for real, on the random model: which seats move in which phase, and what a resumed run does.

What the random model says is no proposal. Here anything is one, and the answers to it are paid by the toss of a coin.
"""

from collections import Counter
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from lite_selfplay import Run, RunConfig, load_run, resume, train
from lite_selfplay.games.pasodoble import game as pasodoble
from tests.made import same_weights, seat_weights

SEATS = ("proposer", "solver")
OFFLINE = {"mode": "offline", "proposer_steps": 2, "solver_steps": 2, "attempts": 2, "solver_questions": 3}


def config(folder: Path, **game: Any) -> RunConfig:
    options = {"name": "pasodoble", "proposals": 3, "reward": "random", "tau_sim": 1.0, **game}
    return RunConfig(
        game=options,
        model="tiny",
        tasks="letters",
        precision="fp32",
        steps=5,
        group_size=5,
        max_completion_tokens=12,
        run_dir=folder,
        run={"save_every": 1, "keep_checkpoints": 9},
        seats={"*": {"lr": 1e-2, "schedule": "constant", "warmup": 0.0}},
    )


@pytest.fixture(scope="module", autouse=True)
def _anything_is_a_proposal() -> Iterator[None]:
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(pasodoble, "read", lambda said, parse: pasodoble.Proposal(said, said.text or "?", "1"))
        yield


@pytest.fixture(scope="module")
def offline(tmp_path_factory: pytest.TempPathFactory) -> Run:
    return train(config(tmp_path_factory.mktemp("runs") / "offline", **OFFLINE))


def moved(run: Run, step: int) -> set[str]:
    """The seats that a step moved, by its checkpoints before and after."""
    return {s for s in SEATS if not same_weights(*(seat_weights(run.path, n, s) for n in (step - 1, step)))}


def test_offline_phases_move_one_seat_and_leave_the_other_as_it_is(offline: Run):
    rows = offline.metrics_rows()
    assert [row["game"]["phase"] for row in rows] == ["proposer"] * 2 + ["solver"] * 2 + ["proposer"]
    for row in rows:
        assert set(row["streams"]) == {row["game"]["phase"]}
        assert moved(offline, row["step"]) == {row["game"]["phase"]}


def test_online_steps_move_both(tmp_path: Path):
    run = train(config(tmp_path / "online"))
    kept = [row for row in run.metrics_rows() if not row["game"]["skipped"]]
    assert kept
    for row in kept:
        assert moved(run, row["step"]) == set(SEATS)


def test_a_run_resumed_in_the_middle_of_a_phase_goes_on_as_it_would_have(offline: Run, tmp_path: Path):
    for stop in (1, 3):
        path = tmp_path / f"stopped-{stop}"
        short = config(path, **OFFLINE)
        train(short.model_copy(update={"run": short.run.model_copy(update={"steps": stop})}))
        run = resume(path, steps=5)
        for seat in SEATS:
            assert same_weights(*(seat_weights(each.path, 5, seat) for each in (run, offline)))
        assert [row["game"] for row in run.metrics_rows()] == [row["game"] for row in offline.metrics_rows()]


def test_every_completion_is_written_down(offline: Run, tmp_path: Path):
    for run in (offline, train(config(tmp_path / "online"))):
        tokens, places = Counter[int](), []
        for row in load_run(run.path).episodes():
            tokens[row["step"]] += row["tokens"]
            places.append((row["step"], row["role"], row["group"], row["sample"]))
        assert dict(tokens) == {row["step"]: row["tokens"]["generated"] for row in run.metrics_rows()}
        assert len(places) == len(set(places))
    assert any(not row["game"]["skipped"] for row in run.metrics_rows())


def test_episodes_pair_answers_with_their_question(offline: Run):
    rows = list(load_run(offline.path).episodes())
    asked = {row["question"]: row for row in rows if row["role"] == "proposer"}
    answered = [row for row in rows if row["role"] == "solver"]
    assert answered
    for row in answered:
        assert row["problem_id"] == row["question"]
        assert asked[row["question"]]["correct"] or row["advantage"] is None  # those to invalid ones are recorded alone
        assert (asked[row["question"]]["text"] or "?") in row["prompt"]
