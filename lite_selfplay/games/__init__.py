"""The games: one file a family, each readable beside its paper."""

from lite_selfplay.games.base import Game, GameOptions, find_game, game_names, make_game, register_game

__all__ = ["Game", "GameOptions", "find_game", "game_names", "make_game", "register_game"]
