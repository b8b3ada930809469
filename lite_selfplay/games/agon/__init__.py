"""Agon: draft and challenge.

`agon.py` has the rules, `recap.py` the part of a draft that a challenger sees (also in a cold start), and `cascade.py`
evaluates seats in the order in which they play. No tensors.
"""
