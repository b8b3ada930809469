"""`reasoning-gym:NAME`: the procedural data sets of the reasoning-gym package, scored by their own rules.

Source: https://github.com/open-thought/reasoning-gym
"""

import functools
import json
import os
from typing import Any

from lite_selfplay.data import Problem
from lite_selfplay.errors import TaskError
from lite_selfplay.extras.gym.checker import KIND, open_dataset
from lite_selfplay.tasks.base import Task, derived_seed
from lite_selfplay.tasks.procedural import Procedural

SIZE = 10_000

# As of reasoning-gym 0.1.25. Data sets whose rows depend on the order of a set, which differs between processes:
_OF_SETS = frozenset(
    "intermediate_integration isomorphic_strings knight_swap polynomial_multiplication ransom_note word_ladder".split()
)
# Data sets whose rows come from a generator without a seed:
_UNSEEDED = frozenset({"codeio", "list_functions"})
# Data sets whose scorer pays one answer whatever the problem: that answer, and the mean of its scores over 200 rows.
_PAYS_ALWAYS = {
    "coin_flip": ("the answer 0", 0.94),
    "game_of_life": ("an empty board", 0.96),
    "game_of_life_halting": ("any answer", 1.0),
    "puzzle24": ("the answer 6*4*1/1", 1.0),
}


def reasoning_gym(seed: int = 0, held_out: bool = False, /, dataset: str = "", **options: str) -> Task:
    """Problems of one data set, with the options of its configuration, except `seed` and `size`.

    Values are parsed as JSON if possible (`max_terms=3`, `allow_negation=true`) and are text otherwise. A problem keeps
    its entry in `extra`, since the data set's scorer needs it; its answer is None if the data set gives none. Raises
    TaskError if the package is missing, for an invalid option, and if the rows would differ in another process;
    UnknownNameError for a name that the package does not know.
    """
    if not dataset:
        raise TaskError(f"{KIND} needs the name of a data set, as in {KIND}:chain_sum,max_terms=3")
    name, values = f"{KIND}:{dataset}", {key: _value(text) for key, text in options.items()}

    @functools.cache
    def rows(attempt: int) -> Any:
        parts = (seed, KIND, dataset, attempt) if attempt else (seed, KIND, dataset)
        # Some data sets seed numpy with the sum of seed and index, which must fit into 32 bits.
        return open_dataset(dataset, values, seed=derived_seed(*parts) % 2**31, size=SIZE)

    def make(index: int, attempt: int) -> Problem:
        try:
            entry = rows(attempt)[index]
        except Exception as error:  # options that pass a data set's own checks may still make its generator fail
            raise TaskError(f"{name} cannot make its problem {index}: {error or type(error).__name__}") from error
        answer = entry["answer"]
        return Problem(
            f"{dataset}-{index}",
            entry["question"].strip(),
            None if answer is None else str(answer),
            kind=KIND,
            extra={"dataset": dataset, "options": values, "entry": entry},
        )

    rows(0)
    _require_repeatable(dataset)
    caution = ""
    if dataset in _PAYS_ALWAYS:
        answer, paid = _PAYS_ALWAYS[dataset]
        caution = (
            f"the scorer of {name} gives {answer} {paid:.0%} of all marks, whatever the problem: see docs/tasks.md"
        )
    return Task(name, Procedural(name, SIZE, held_out, make), procedural=True, caution=caution)


def _require_repeatable(dataset: str) -> None:
    if dataset in _UNSEEDED:
        raise TaskError(
            f"{KIND}:{dataset} ignores the seed and gives other problems each time: choose another data set"
        )
    if dataset in _OF_SETS and os.environ.get("PYTHONHASHSEED", "random") == "random":
        raise TaskError(
            f"{KIND}:{dataset} gives other problems in each process: set the environment variable PYTHONHASHSEED=0"
        )


def _value(text: str) -> Any:
    try:
        return json.loads({"True": "true", "False": "false"}.get(text, text))
    except ValueError:
        return text
