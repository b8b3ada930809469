"""Shared by the tests of several games: small games, and their first steps at a scripted table."""

from collections.abc import Sequence
from typing import Any

from lite_selfplay.data import Episode, Problem
from lite_selfplay.games import make_game
from lite_selfplay.testing import Script, ScriptedTable
from tests.made import plays

TWO, THREE, NONE = "<answer>2</answer>", "<answer>3</answer>", "no idea"


def small(name: str, group_size: int = 4, problems_per_step: int = 1, **options: Any) -> Any:
    """A game, by default of one problem and four completions."""
    return make_game(name, options, group_size=group_size, problems_per_step=problems_per_step)


def played(
    game: Any, script: Script, problems: Sequence[Problem] = (), *, steps: int = 1, kind: type = ScriptedTable
) -> tuple[list[Episode], ScriptedTable]:
    """The first steps of a game, and the table, whose `asked` has the prompts."""
    table = kind(script, problems)
    return plays(game, table, steps), table
