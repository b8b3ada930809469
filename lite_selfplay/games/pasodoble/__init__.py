"""PasoDoble: a proposer writes problems from passages, a solver solves them.

`game.py` has the rules and the options, `rewards.py` the arithmetic, `judged.py` what becomes of a step's proposals,
`offline.py` the alternating phases and their buffer, `proposals.py` the text format of prompts and proposals.
"""
