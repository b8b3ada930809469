r"""What passes between PasoDoble's seats as text: prompts, the proposer's reply, worked examples of one.

A reply is a `<problem>` block and, after it, an `<answer>` block whose last `\boxed{}` is the label. The wording is
ours.
"""

from lite_selfplay.data import Example, Problem
from lite_selfplay.games.pasodoble.rewards import LeakGuard, leaks
from lite_selfplay.games.prompts import fill
from lite_selfplay.games.propose_solve.proposals import last_boxed, last_tagged
from lite_selfplay.games.worked_examples import solution_of

_PROBLEM_CLOSE = "</problem>"
_PASSAGE = "Here is a text to draw on:\n```\n"


def proposer_prompt(passage: str = "") -> str:
    """What the proposer is asked: the request after a fenced passage, or after a line that leaves the topic open."""
    if not passage:
        return fill("pasodoble_proposer", knowledge="Choose any topic of mathematics.")
    fenced = passage.strip().replace("```", "'''")
    return fill("pasodoble_proposer", knowledge=f"{_PASSAGE}{fenced}\n```")


def solver_prompt(question: str) -> str:
    """What the solver is asked: the question as any other problem."""
    return fill("solver", problem=question)


def parse_proposal(text: str) -> tuple[str, str | None] | None:
    """The question and the boxed answer of a reply without its reasoning; None where there is no problem block.

    The answer is None where no closed `<answer>` block with a boxed value follows the last problem block.
    """
    before, closing, after = text.rpartition(_PROBLEM_CLOSE)
    question = last_tagged(before + closing, "problem")
    if question is None:
        return None
    block = last_tagged(after, "answer")
    return question, last_boxed(block) if block else None


def worked_proposal(problem: Problem, *, knowledge: bool, thinks: bool, guard: LeakGuard = "token3") -> Example | None:
    """A problem that brings a worked solution as the proposal that a proposer should have made of it.

    The passage it read is the solution alone, so that what is learned is to compose a problem and not to copy one. None
    where the problem brings no solution, or the proposal would be refused in play, by this `guard` among others.
    """
    solution = solution_of(problem)
    if solution is None:
        return None
    question, answer = problem.text.strip(), str(problem.answer).strip()
    check = f"Check: {answer} is what the last step gives, and what was asked for."
    reply = f"<problem>\n{question}\n</problem>\n<answer>\n{solution}\n{check}\n\\boxed{{{answer}}}\n</answer>"
    if parse_proposal(reply) != (question, answer) or leaks(question, answer, guard):
        return None
    prompt = proposer_prompt(solution if knowledge else "")
    return Example(prompt, f"<think>\n{solution}\n</think>\n\n{reply}" if thinks else reply)
