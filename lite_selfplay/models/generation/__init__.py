"""Sampling completions: all prompts of a step at once, each row with its own seed; without gradients."""
