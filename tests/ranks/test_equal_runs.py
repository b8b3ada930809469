"""Two and three processes play the run that one plays: the same completions, the same rewards, the same weights."""

import json
import os
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

import pytest

from tests.made import jsonl
from tests.made_runs import read_lines, seat_weights
from tests.runs.test_wrapped import small_base

STEPS = int(os.environ.get("LITE_SELFPLAY_RANKS_STEPS") or 2)
"""20 in the long form, which takes minutes."""
CLOSE = 1e-3
"""Far above what rounding makes of gradients and weights (at most 2e-4), and far below what one row does."""
SETTINGS = (
    *("--model", "tiny", "--precision", "fp32", "--tasks", "letters", "--steps", STEPS),
    *("--set", "seats.*.lr=0.0001", "--set", "seats.*.schedule=constant", "--set", "seats.*.warmup=0"),
    *("--max-completion-tokens", 10, "--problems-per-step", 2, "--group-size", 4),
)
OWN_LOSS = Path(__file__).parents[2] / "examples" / "own_loss.py"
FASTER, RANDOM = "seats.*.lr=0.0005", "game.reward=random, game.tau_sim=1.0"
OFFLINE = "game.mode=offline, game.proposer_steps=1, game.solver_steps=1, game.solver_questions=2"
GAMES = {
    "agon": FASTER,
    "agon, own loss": f"{FASTER}, roles.*.loss={OWN_LOSS}:cispo",
    "grpo": "",
    "sqlm": "game.seats=two, game.proposer_every=1",
    "pasodoble": RANDOM,
    "pasodoble, offline": f"{RANDOM}, {OFFLINE}",
    "absolute-zero": f"{FASTER}, game.seats=two",
    "spice": f"{FASTER}, game.seats=two, game.leak_guard=off",
    "cpmobius": f"{FASTER}, game.low=0, game.high=1, tasks.validation=letters:named=6, tasks.validation_limit=20",
    "kuhn": "game.renew=1, game.exact_every=1, cold_start.steps=4",
}
OTHERS = {
    "distill": FASTER,
    "self-refine": "",
    "rent": "",
    "rzero": "game.low=0, game.high=1, game.votes=3, game.challenger_steps=1, game.solver_steps=1",
    "spc": "cold_start.enabled=false, game.rounds=1, game.epochs=1",
}
"""Games in which two steps may move nothing."""


def numbers(row: Mapping[str, Any]) -> dict[tuple[str, int], float]:
    """The real numbers in a row of `episodes.jsonl`, by key and place."""
    listed = {key: value if isinstance(value, list) else [value] for key, value in row.items()}
    return {(key, i): x for key, values in listed.items() for i, x in enumerate(values) if isinstance(x, float)}


def require_same(one: Path, other: Path) -> None:
    """Hold two runs to each other: the same texts, and numbers and weights but for the rounding of another order.

    Where a draw is so near the bound between two tokens that rounding decides it, one completion of a prompt is
    another, and nothing that comes after it is the same: up to that step the runs are held to each other.
    """
    ours, theirs = (by_place(path) for path in (one, other))
    both = ours.keys() & theirs.keys()
    parted = [key for key in sorted(both) if ours[key]["text"] != theirs[key]["text"]]
    until = parted[0][0] if parted else max(ours)[0] + 1
    before = [key for key in ours if key[0] < until]
    assert before == [key for key in theirs if key[0] < until] != []
    for a, b in ((ours[key], theirs[key]) for key in before):
        near = numbers(a)  # rewards, and advantages by them, one or one a token
        assert near == pytest.approx(numbers(b), rel=1e-4, abs=1e-3)
        exact = a.keys() - {key for key, _ in near}
        assert {key: a[key] for key in exact} == {key: b[key] for key in exact}
    norms = [
        [
            seat["grad_norm"] or 0.0
            for row in read_lines(path / "metrics.jsonl")[: until - 1]
            for seat in row["seats"].values()
        ]
        for path in (one, other)
    ]
    assert norms[0] == pytest.approx(norms[1], rel=CLOSE, abs=1e-6)
    if parted:
        first = [key for key in parted if key[0] == until and ours[key]["prompt"] == theirs[key]["prompt"]]
        assert len(first) == 1, "more than one draw of a step was at a bound"
    else:
        assert apart(one, other) < CLOSE


def by_place(run: Path) -> dict[tuple[int, str, int, int], dict[str, Any]]:
    """The episodes of a run by their step, role, group and number in it."""
    return {
        tuple(row[k] for k in ("step", "role", "group", "sample")): row for row in read_lines(run / "episodes.jsonl")
    }


def apart(one: Path, other: Path) -> float:
    """How far two runs' up-projections, which begin at zero, are apart: the norm of the difference over the norm, of
    the seat that differs most."""
    seats = sorted(path.name for path in (one / "adapters").iterdir())
    assert seats == sorted(path.name for path in (other / "adapters").iterdir())
    shares = []
    for seat in seats:
        a, b = (
            {key: value.double() for key, value in seat_weights(run, seat).items() if "lora_B" in key}
            for run in (one, other)
        )
        assert a.keys() == b.keys()
        difference, whole = (sum(float(x.square().sum()) for x in of) for of in ([a[k] - b[k] for k in a], a.values()))
        shares.append((difference / whole) ** 0.5 if whole else difference)
    return max(shares)


def moved(path: Path) -> set[str]:
    """The seats whose weights a run moved: their up-projections begin at zero."""
    seats = {folder.name: seat_weights(path, folder.name) for folder in (path / "adapters").iterdir()}
    return {seat for seat, found in seats.items() if any(bool(x.any()) for key, x in found.items() if "lora_B" in key)}


@pytest.mark.long
@pytest.mark.parametrize("game", [*GAMES, *OTHERS])
def test_two_processes_play_what_one_does(game: str, play: Callable[..., Any], tmp_path: Path):
    for world in (1, 2):
        own = [word for value in filter(None, {**GAMES, **OTHERS}[game].split(", ")) for word in ("--set", value)]
        command = ("train", game.partition(",")[0], *SETTINGS, *own, "--run-dir", tmp_path / str(world))
        play(world, *command, play=("anything_goes", None))
    require_same(tmp_path / "1", tmp_path / "2")
    if game in GAMES:
        assert len(moved(tmp_path / "1")) == (1 if game == "grpo" else 2), "the seats of this game have no gradient"


@pytest.mark.long
def test_two_processes_play_what_one_does_over_layers_with_a_state(play: Callable[..., Any], tmp_path: Path):
    base = small_base(tmp_path / "base")
    for world in (1, 2):
        command = ("train", "agon", *SETTINGS, "--model", base, "--run-dir", tmp_path / str(world))
        play(world, *command, play=("anything_goes", None))
    require_same(tmp_path / "1", tmp_path / "2")
    assert len(moved(tmp_path / "1")) == 2


def test_a_run_of_two_goes_on_as_two_and_then_as_one(play: Callable[..., Any], tmp_path: Path):
    taught = [{"prompt": f"Write {letter}", "completion": letter * (k % 5 + 1)} for k, letter in enumerate("abcdefgh")]
    source = jsonl(tmp_path / "taught.jsonl", *taught)
    cold = ("--cold-start", "--set", f"cold_start.source={source}", "--set", "cold_start.steps=3")
    command = ("train", "agon", *SETTINGS, *cold)
    measured = ("--eval-tasks", "letters:named=6", "--eval-limit", 6, "--eval-every", 2)
    whole = ("--steps", 3, "--set", "run.minibatches=2", "--set", "roles.*.beta=0.05", "--set", "roles.*.entropy=0.01")
    play(1, *command, *measured, *whole, "--run-dir", tmp_path / "one")
    run = tmp_path / "several"
    for world, steps, how in ((2, 1, None), (2, 2, run), (1, 3, run)):
        fresh = (*command, *measured, *whole, "--steps", steps, "--run-dir", run)
        ended = play(world, *(fresh if how is None else ("train", "--resume", run, "--steps", steps)))
        assert ended.texts[1:] == [""] * (world - 1), "one process speaks"
    require_same(run, tmp_path / "one")
    facts = json.loads((run / "environment.json").read_text())
    assert facts["processes"] == 2
    # An evaluation by two processes is that by one.
    evaluate = ("eval", run, "--tasks", "letters:named=6", "--limit", 6, "--samples", 2, "--json")
    found = []
    for world in (1, 2):
        said = play(world, *evaluate).said
        result = json.loads(said[said.index("{\n") : said.rindex("}") + 1])
        found.append({key: result[key] for key in ("pass_at_1", "n", "per_problem", "seats")})
    assert found[0]["per_problem"] == found[1]["per_problem"]
    assert len(list((run / "eval").glob("*letters*"))) == 2
