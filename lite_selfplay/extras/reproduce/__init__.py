"""Experiments: several arms under one budget, measured on the same problems, as a table, a figure and a JSON file.

Reading order: `experiment` (what a YAML file says), `conduct` (arm by arm, going on where it stopped), `findings` (what
came of it). The files that are shipped lie in `experiments/`. Nothing here trains or measures by itself: that is
`lite_selfplay.runs.api` and `lite_selfplay.runs.evaluating`.
"""
