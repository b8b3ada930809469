"""The games: rules only, each readable beside its paper; and what they are known by.

`base.py` says what a game is, `table.py` what it may ask for, `presentation.py` how it declares what is shown of it,
`modes.py` how it is evaluated; each paper has a file or a folder. Nothing here knows a tensor, a model or a file of a
run.
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
        "grpo": "games.baselines.grpo:Solo",
        "kuhn": "games.matches.kuhn:Kuhn",
        "pasodoble": "games.pasodoble.pasodoble:PasoDoble",
        "rent": "games.baselines.rent:Rent",
        "rzero": "games.baselines.rzero:RZero",
        "self-refine": "games.agon.cascade:SelfRefine",
        "spc": "games.spc.spc:Spc",
        "spice": "games.spice:Spice",
        "sqlm": "games.sqlm.sqlm:Sqlm",
    },
    group="lite_selfplay.games",
    error=GameError,
)


def register_game(name: str, game: type[Game]) -> None:
    """Make a game known under a name. Raises GameError where another game has that name.

    A class that was defined anew, by running its cell or its file again, takes the place of the old one.
    """
    GAMES.add(name, game)


def game_names() -> list[str]:
    """The names of all games: the library's, those registered in this process, those of installed plugins."""
    return sorted(GAMES.names())


def find_game(name: str) -> type[Game]:
    """The class of a game by its name, or by its place `FILE.py:CLASS`.

    Raises UnknownNameError with the near names; ConfigError where there is no such file or no such class in it.
    """
    if file_of(name) is None:
        return GAMES.find(name, "`lite-selfplay list games` lists them; FILE.py:CLASS is your own.")
    game: type[Game] = load(
        name,
        "GAME",
        "class",
        lambda value: isinstance(value, type) and issubclass(value, Game) and value is not Game,
        of=" derived from Game",
    )
    return game


def make_game(name: str, options: Mapping[str, Any], *, group_size: int = 8, problems_per_step: int = 4) -> Game:
    """A game with its switches. Raises UnknownNameError or ConfigError."""
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
