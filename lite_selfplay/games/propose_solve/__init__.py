"""Shared code of the games in which one role writes problems and another solves them.

It reads proposals, votes on answers, filters by difficulty, and warns when questions collapse. Rules of a single paper
do not belong here.
"""
