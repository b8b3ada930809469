"""Experiments: compare several training methods (arms) on the same problems, in a table, a figure and a JSON file.
Reading order: `experiment` (the YAML file), `conduct` (trains and evaluates the arms, and resumes), `findings` (the
results). Shipped files are in `experiments/`. `lite_selfplay.runs` does the training and evaluating."""
