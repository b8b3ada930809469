"""CPMobius: a coach rewarded for a player's progress. `game.py` has the rules and the arithmetic."""
