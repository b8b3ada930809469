"""The drafts in a challenger's cold-start examples, written by rule.

In an example the challenger solves the problem itself and never repeats the attempt that it is shown. Attempts are
recaps of drafts as in the game: right ones, wrong ones that continue consistently from one wrong result, and sometimes
none.
"""

import random

from lite_selfplay.data import Problem
from lite_selfplay.games.agon.recap import summarise, with_program
from lite_selfplay.games.prompts import PROGRAM
from lite_selfplay.games.worked_examples import program_draft, program_with_a_slip, solution_of
from lite_selfplay.tasks.slips import with_a_slip

WRONG_SHARE, MISSING_SHARE = 0.5, 0.1


def worked_attempt(problem: Problem, rng: random.Random) -> str:
    """The recap of a draft for an example: a right draft, one with a wrong result, or sometimes an empty recap."""
    solution = solution_of(problem)
    draw = rng.random()
    if solution is None or draw < MISSING_SHARE:
        return ""
    slip = program_with_a_slip if problem.kind == PROGRAM else with_a_slip
    shown = slip(solution, rng) if draw < MISSING_SHARE + WRONG_SHARE else solution
    if problem.kind == PROGRAM:
        return with_program(program_draft(problem, shown), thinks=False)
    return summarise(shown, problem.text, thinks=False)
