"""A run from its configuration to its folder: planning, the loop, checkpoints, records and reports.

All code that knows the files of a run folder is here; tensor arithmetic is not.
"""
