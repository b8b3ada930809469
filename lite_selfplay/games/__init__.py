"""The games: rules only, each readable beside its paper.

`base.py` says what a game is, `table.py` what it may ask for, `presentation.py` how it declares what is shown of it,
`modes.py` how it is evaluated; each paper has a folder. Nothing here knows a tensor, a model or a file of a run.
"""

from lite_selfplay.games.base import Game, GameOptions, find_game, game_names, make_game, register_game
from lite_selfplay.games.modes import Mode, register_mode
from lite_selfplay.games.presentation import Accuracy, Figure, Pairing

__all__ = [
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
