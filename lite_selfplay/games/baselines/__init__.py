"""Baselines that the games are compared with: GRPO, RENT and R-Zero. Rules only, as in every game."""
