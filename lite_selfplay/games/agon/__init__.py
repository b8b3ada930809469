"""Agon: draft and challenge.

`game.py` has the rules, `recap.py` what a challenger sees of a draft (in a cold start, too), and `measuring.py`
evaluates seats in the order in which they play. No tensors.
"""

from lite_selfplay.games.agon.game import DraftChallenge, agon_reward, challenge_prompt
from lite_selfplay.games.agon.recap import summarise

__all__ = ["DraftChallenge", "agon_reward", "challenge_prompt", "summarise"]
