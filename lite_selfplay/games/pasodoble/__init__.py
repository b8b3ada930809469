"""PasoDoble: a proposer writes problems from passages, a solver solves them.

`pasodoble.py` has the rules, options and formulas, `offline.py` the alternating phases and their buffer.
"""
