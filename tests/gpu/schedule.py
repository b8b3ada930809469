"""The order of the tests on a card, their time, and their results, which are written one by one.

A card is lent for a while, and may be taken away at any moment: what tells most comes first, every result is on the
disk as soon as it is known, and what the time does not suffice for is left out and says so.
"""

import json
import os
import time
from collections.abc import Mapping
from pathlib import Path
from typing import Any

RESULTS, UNTIL = "LITE_SELFPLAY_GPU_RESULTS", "LITE_SELFPLAY_GPU_UNTIL"
"""Variables of the environment: the file of results, and when no test begins any more, in seconds since 1970."""

ORDER = (
    "test_the_base_is_held_in_four_bits",
    "test_log_probabilities_of_samples",
    "test_both_seats_move",
    "test_every_seat_speaks",
    "test_what_is_said_follows",
    "test_a_gradient_is_that_of_float32",
    "test_checkpointing_changes_no_gradient",
    "test_both_seats_learn",
    "test_every_game_is_played_for_three_steps[agon",
    "test_sampling_goes_on_with_half",
    "test_an_update_goes_on",
    "test_the_plan_tells",
    "test_a_second_seat_costs",
    "test_backends_agree",
    "test_seats_have_gradients",
)
"""Beginnings of names, most valuable first: a base that does not load or speaks otherwise than it learns makes all else
worthless. Whatever is not named comes last."""


def rank(name: str) -> int:
    """The place of a test in the order."""
    return next((i for i, start in enumerate(ORDER) if name.startswith(start)), len(ORDER))


def left_out(environment: Mapping[str, str] = os.environ, now: float | None = None) -> str | None:
    """Why a test does not begin any more; None while there is time."""
    until = environment.get(UNTIL)
    if until is None or (time.time() if now is None else now) < float(until):
        return None
    return "left out: the time for the tests on the card is used up"


def write(result: Mapping[str, Any], environment: Mapping[str, str] = os.environ) -> None:
    """Add a line to the file of results, if there is to be one, and bring it to the disk."""
    if not (path := environment.get(RESULTS)):
        return
    with Path(path).open("a", encoding="utf-8") as file:
        file.write(json.dumps(result) + "\n")
        file.flush()
        os.fsync(file.fileno())
