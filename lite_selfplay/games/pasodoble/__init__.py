"""PasoDoble: a proposer writes problems from passages, a solver solves them.

`pasodoble.py` has the rules and the text format of proposals, `rewards.py` the options and formulas, `offline.py` the
alternating phases and their buffer.
"""
