"""Games of several turns: `match.py` plays matches of any environment, `kuhn.py` is Kuhn poker, measured exactly."""

from lite_selfplay.games.matches.match import Environment, IllegalMove, MatchGame, MatchOptions, at_random, spelled

__all__ = ["Environment", "IllegalMove", "MatchGame", "MatchOptions", "at_random", "spelled"]
