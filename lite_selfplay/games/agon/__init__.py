"""Agon: draft and challenge.

`agon.py` has the rules, also those of self-refinement, and `recap.py` the part of a draft that a challenger sees (also
in a cold start); `cascade.py` evaluates seats in the order in which they play. No tensors.
"""
