"""Agon: draft and challenge.

`agon.py` has the rules, `recap.py` what a challenger sees of a draft (in a cold start, too), and `cascade.py`
evaluates seats in the order in which they play. No tensors.
"""
