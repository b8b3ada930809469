"""How often each seat is updated: as often as the game expects if no step is in vain, and then its schedule ends.

The games are played by scripts.
"""

import itertools
import re
from collections import Counter
from typing import Any

import pytest
import torch

from lite_selfplay.config import RunConfig, SeatConfig
from lite_selfplay.credit import stream_advantages
from lite_selfplay.data import Verdict
from lite_selfplay.games import game_names, make_game
from lite_selfplay.runs.defaults import filled_in
from lite_selfplay.testing import ScriptedTable
from lite_selfplay.training.losses import with_gradient
from lite_selfplay.training.optimizer import SeatSchedule, seat_groups
from lite_selfplay.training.updates import rows_of
from tests.made import plays
from tests.training.test_optimizer import Seats

PLAIN = {"knowledge": "none", "diversity": False}
WRITTEN = {"questions": "pregenerated", "calls": 4}
OPTIONS: dict[str, list[dict[str, Any]]] = {
    "absolute-zero": [{"kinds": ["deduction"]}, {"kinds": ["deduction"], "seats": "two"}],
    "agon": [{}, {"rotate": False}],
    "kuhn": [{}, {"opponent": "random"}],
    **{name: [{}] for name in ("distill", "grpo", "self-refine", "rent")},
    "sqlm": [
        {"proposer_every": 5},
        {"proposer_every": 3, "seats": "two"},
        {"proposer_every": 0, "seats": "two"},
        WRITTEN,
        {**WRITTEN, "seats": "two"},
    ],
    "cpmobius": [{}, {"freeze_coach": True}],
    "pasodoble": [
        PLAIN,
        {**PLAIN, "seats": "shared"},
        {**PLAIN, "freeze_proposer": True},
        {**PLAIN, "mode": "offline", "proposer_steps": 3, "solver_steps": 2, "eviction": False},
    ],
    "spice": [{}, {"seats": "two"}],
    "rzero": [{"challenger_steps": 2, "solver_steps": 3}],
}
CASES = [(name, options) for name, several in OPTIONS.items() for options in several]


def script(role: str, prompt: str, index: int) -> str:
    """Questions that differ, and answers of which two or three in five are right."""
    a, b = 11 + index % 80, 100 + 2 * index
    if role in ("first", "second"):
        return "pb"[index % 3 % 2]
    if "<program>" in prompt:
        return f"<program>def f(a): return a + {b}</program>" + f"<input>{a}</input>" * (index % 2)
    if "does f(" in prompt:
        return f"<answer>{sum(map(int, re.findall('[0-9]+', prompt)[:2])) if index % 5 < 2 else 0}</answer>"
    if "only you can read" in prompt and index % 5 == 4:
        return "no question"  # all others earn the same: two right of five, or three
    if role in ("proposer", "coach", "challenger") and "<problem>" in prompt:
        return f"<problem>What is {a} + {b}?</problem><answer>{a} + {b} is \\boxed{{{a + b}}}.</answer>"
    if role == "challenger" and "<question>" in prompt:
        return f"<question>What is {a} + {b}?</question> \\boxed{{{a + b}}}"
    if "begins with its number" in prompt:
        return "\n".join(f"{i}. What is {a} + {i}?" for i in range(1, 17))
    if role in ("proposer", "coach"):
        return f"What is {a} + {b}?"
    words = [int(word.strip("?")) for word in prompt.split() if word.strip("?").isdigit()]
    right = sum(words[:2]) if len(words) >= 2 else 0
    return f"<answer>{right if index % 5 < 2 + right % 2 else right + 1 + index % 5}</answer>" + " so" * (index % 3)


def moves(game: Any, config: RunConfig, steps: int) -> tuple[Counter[str], list[set[str]]]:
    """How often each seat is updated in a run, and which seats at each step."""
    table, measured = ScriptedTable(script), itertools.count()

    def evaluate(role: str, prompts: Any, problems: Any, n: int = 1) -> Any:
        # Right more and more often, so that the coach of CPMobius is rewarded in every round.
        right = next(measured)
        return [Verdict(i < right, float(i < right)) for i in range(len(prompts) * n)]

    table.evaluate = evaluate  # type: ignore[method-assign]
    table._problems *= 8
    each = [
        {
            game.seats(step)[stream.role]
            for stream in episode.streams
            for rows in rows_of(stream, stream_advantages(stream), config.roles[stream.role])[1]
            if with_gradient(rows, config.roles[stream.role])
        }
        for step, episode in enumerate(plays(game, table, steps))
    ]
    return Counter(seat for moved in each for seat in moved), each


def test_every_game_of_the_library_is_here():
    """Except SPC: the updates of its seats depend on its rounds' collections, so it declares no number."""
    assert set(OPTIONS) == set(game_names()) - {"spc"}


@pytest.mark.parametrize("steps", [1, 17])
@pytest.mark.parametrize(("name", "options"), CASES, ids=[f"{name} {options}" for name, options in CASES])
def test_a_seats_schedule_ends_with_its_last_update(name: str, options: dict[str, Any], steps: int):
    config, _ = filled_in(RunConfig(game={"name": name, **options}, model="tiny"))
    game = make_game(name, options, group_size=5, problems_per_step=2)
    seen, each = moves(game, config, steps)
    expected = dict(game.updates(steps))
    assert expected.keys() == set(game.trained_seats())
    assert +seen == +Counter(expected)  # a frozen seat is never updated

    linear = dict.fromkeys(game.trained_seats(), SeatConfig(lr=1.0, schedule="linear", warmup=0.0))
    adapters: Any = Seats(*game.trained_seats())
    optimizer = torch.optim.SGD(seat_groups(adapters, linear), lr=1.0)
    schedule = SeatSchedule(optimizer, adapters, linear, {seat: max(1, n) for seat, n in expected.items()})
    last: dict[str, float] = {}
    for moved in each:
        for group in optimizer.param_groups:
            for weight in group["params"]:
                weight.grad = torch.ones_like(weight) if group["seat"] in moved else None
            if group["seat"] in moved:
                last[group["seat"]] = group["lr"]
        schedule.step()
    # A linear schedule over n updates ends with the n-th, at 1/n of the rate.
    assert last == pytest.approx({seat: 1 / n for seat, n in expected.items() if n})
