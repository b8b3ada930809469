"""Experiments: they compare training methods (arms) on the same problems, and report a table, a figure and a JSON file.
Reading order: `experiment` reads the YAML file, `conduct` trains and evaluates the arms, `findings` computes and writes
the results. The YAML files of this library are in `experiments/`."""
