"""The games: rules only, each readable beside its paper, and the registry of their names.

`base.py` defines a game, `table.py` what it may ask for, `presentation.py` how its runs are shown, `modes.py` how it is
evaluated; each paper has a file or a folder. Nothing here uses tensors, models or the files of a run.
"""

from collections.abc import Mapping
from typing import Any

from pydantic import ValidationError

from lite_selfplay.config import explain
from lite_selfplay.config.user_files import file_of, load, short_name
from lite_selfplay.errors import ConfigError, GameError, UnknownNameError
from lite_selfplay.games.base import Game, GameOptions
from lite_selfplay.games.modes import Mode, register_mode
from lite_selfplay.games.presentation import Accuracy, Figure, Pairing
from lite_selfplay.scan import Registry

__all__ = [
    "GAMES",
    "Accuracy",
    "Figure",
    "Game",
    "GameOptions",
    "Mode",
    "Pairing",
    "find_game",
    "game_names",
    "make_game",
    "register_game",
    "register_mode",
]

GAMES = Registry[type[Game]](
    "game",
    {
        "absolute-zero": "games.absolute_zero:AbsoluteZero",
        "agon": "games.agon.agon:DraftChallenge",
        "cpmobius": "games.cpmobius.cpmobius:CpMobius",
        "distill": "games.baselines.distill:Distill",
        "grpo": "games.baselines.grpo:Solo",
        "kuhn": "games.matches.kuhn:Kuhn",
        "pasodoble": "games.pasodoble.pasodoble:PasoDoble",
        "rent": "games.baselines.rent:Rent",
        "rzero": "games.baselines.rzero:RZero",
        "self-refine": "games.agon.agon:SelfRefine",
        "spc": "games.spc.spc:Spc",
        "spice": "games.spice:Spice",
        "sqlm": "games.sqlm.sqlm:Sqlm",
    },
    group="lite_selfplay.games",
    error=GameError,
)


def register_game(name: str, game: type[Game]) -> None:
    """Register a game under a name. Raises GameError if another game has that name.

    A class that is defined again, by rerunning its cell or file, replaces its older version.
    """
    GAMES.add(name, game)


def game_names() -> list[str]:
    """The names of all games: the library's, those registered in this process, those of installed plugins."""
    return sorted(GAMES.names())


def find_game(name: str) -> type[Game]:
    """The class of a game by its name, or by its location `FILE.py:CLASS`.

    Raises UnknownNameError, with similar names; ConfigError if the file or the class in it does not exist.
    """
    if file_of(name) is None:
        return GAMES.find(name, "`lite-selfplay list games` lists them; FILE.py:CLASS is your own.")
    return load(
        name,
        "GAME",
        "class",
        lambda value: isinstance(value, type) and issubclass(value, Game) and value is not Game,
        of=" derived from Game",
    )


def make_game(name: str, options: Mapping[str, Any], *, group_size: int = 8, problems_per_step: int = 4) -> Game:
    """A game with these options. Raises UnknownNameError or ConfigError."""
    kind = find_game(name)
    for key in options:
        if key not in kind.Options.model_fields:
            known = ["game.name", *(f"game.{field}" for field in kind.Options.model_fields)]
            raise UnknownNameError("key", f"game.{key}", known, f"These are the switches of {short_name(name)}.")
    try:
        chosen = kind.Options(**options)
    except ValidationError as error:
        raise ConfigError(f"game.{explain(error)}".replace("game.: ", "game: ")) from None
    return kind(chosen, group_size=group_size, problems_per_step=problems_per_step)
