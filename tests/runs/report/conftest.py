"""Run folders written by hand, with known figures."""

import json
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

import pytest

from lite_selfplay.config import RunConfig
from lite_selfplay.games import Game, find_game, game_names, make_game
from lite_selfplay.games.propose_solve.propose_solve import ProposeSolve
from lite_selfplay.runs.folder import RunFolder

FAMILY = [name for name in game_names() if issubclass(find_game(name), ProposeSolve)]


def family_game(name: str, problems: int) -> Game:
    """A game of propose and solve, in small."""
    short = {"challenger_steps": 1, "solver_steps": 1} if name == "rzero" else {}
    return make_game(name, short, group_size=3, problems_per_step=problems)


def stream(**values: Any) -> dict[str, Any]:
    counts = {"completions": 4, "groups": 2, "zero_variance_groups": 1}
    means = {"reward_mean": 1.0, "accuracy": 0.5, "well_formed": 1.0, "tokens_mean": 20.0, "truncated": 0.0}
    return {"seat": "A", **counts, **means, "loss": 0.0, "kl": None, **values}


def metrics(step: int, streams: Mapping[str, Any] | None = None, **values: Any) -> dict[str, Any]:
    seats = {"A": {"lr": 1e-4, "grad_norm": 0.5, "updates": 1}}
    return {"step": step, "streams": dict(streams or {}), "seats": seats, "game": {}, **values}


def score(rate: float) -> dict[str, Any]:
    return {"pass_at_1": rate, "ci95": [rate - 0.1, rate + 0.1]}


def evaluation(moment: str, step: int, **rates: float) -> dict[str, Any]:
    seats = {name: score(rate) for name, rate in rates.items()}
    best = next(iter(seats))
    about = {"mode": "single", "tasks": "letters", "n": 10, "samples": 1, "best": best, **seats[best]}
    lengths = {"tokens_final_mean": 5.0, "tokens_total_mean": 5.0}
    return {"moment": moment, "step": step, **about, **lengths, "seats": seats, "per_problem": {}}


@pytest.fixture
def write_run(tmp_path: Path) -> Callable[..., Path]:
    """A run folder of given lines: `write_run("name", metrics_rows, episodes, evaluations)`."""

    def write(name: str, rows: Any, episodes: Any = (), evaluations: Any = (), **config: Any) -> Path:
        folder = RunFolder(tmp_path / name)
        folder.create(
            RunConfig(**{"game": "agon", "model": "tiny", "tasks": "letters", "steps": max(1, len(rows)), **config})
        )
        for file, lines in (("metrics.jsonl", rows), ("episodes.jsonl", episodes)):
            (folder.path / file).write_text("".join(json.dumps(line) + "\n" for line in lines))
        for number, result in enumerate(evaluations):
            folder.write_evaluation(f"e{number}", result)
        return folder.path

    return write


# Ten steps of a family game: the figures of each step are known.
def family_log(step: int) -> dict[str, Any]:
    if step == 9:  # a phase that proposes nothing
        return {"phase": "solver", "usable": 2, "pass_rates": [0, 0, 2, 0, 0], "pass_rate": 0.5, "buffer": 3}
    refused = {"off_format": 3, "truncated": 1} if step < 5 else {"off_format": 1}
    proposed = {"proposals": 8, "usable": 2 if step else 0, "refused": refused, "empty_steps": int(step == 0)}
    asked = {"questions": 4, "repeated": 0.25, "distinct_tokens": 0.5, "pass_rates": [1, 0, 0, 0, 3], "pass_rate": 0.75}
    labels = {"vote_share": 0.5, "labels_checked": step % 3, "label_accuracy": [None, 1.0, 0.5][step % 3]}
    own = {"buffer": step, "delta": float(step), "restored": step == 4, "invalid": {"too_easy": 2}}
    return {"phase": "proposer", **proposed, **asked, **labels, **own}


@pytest.fixture
def family(write_run: Callable[..., Path]) -> Path:
    """Ten steps of propose and solve with the figures of `family_log`."""
    rows = [
        metrics(
            step + 1,
            {"solver": stream(reward_mean=step / 10, kl=0.01), "proposer": stream(accuracy=None)},
            game=family_log(step),
            warnings=[f"{step}0% of the questions repeat"] if step > 6 else [],
        )
        for step in range(10)
    ]
    return write_run("family", rows, [], [evaluation("untouched", -1, base=0.2)], game="sqlm")
