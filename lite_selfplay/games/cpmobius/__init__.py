"""CPMobius: a coach rewarded for a player's progress. `cpmobius.py` has the rules and the formulas."""
