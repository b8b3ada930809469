"""Agon: draft and challenge.

`agon.py` has the rules, `recap.py` what a challenger sees of a draft (in a cold start, too), and `cascade.py`
evaluates seats in the order in which they play. No tensors.
"""

from lite_selfplay.games.agon.agon import DraftChallenge, agon_reward, challenge_prompt
from lite_selfplay.games.agon.recap import summarise

__all__ = ["DraftChallenge", "agon_reward", "challenge_prompt", "summarise"]
