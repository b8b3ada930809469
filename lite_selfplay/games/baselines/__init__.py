"""Baselines for comparison with the games: GRPO, RENT and R-Zero. Rules only, as in every game."""
