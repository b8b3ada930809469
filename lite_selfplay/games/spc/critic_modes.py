"""SPC's evaluation modes: `critic` measures judgements of labelled steps, `search` solutions checked by a critic.

`critic` (the paper's 4.1 and 4.2): one critique of each step. The steps are from a file in the layout of ProcessBench,
PRM800K or DeltaBench, or from the worked solutions of a task or a file: 500 unchanged and 500 with an error made by
rule (the built-in set is from GSM8K's test set). The paper's critics judge greedily, in at most 2,048 tokens:
`--temperature 0`. Replies without a judgement are counted separately and not in the recalls, as in the published code,
which requires at least 99% with one.

`search` (section 3.6): a solver writes a step, up to a blank line, and the critic judges it. A step judged incorrect is
written again, up to five times ("up to 5 retries", section 4.2), and the last one stays. All searches of all problems
advance together, a step at a time. The solver's plain samples and their majority vote are shown for comparison, each
with its tokens, which include rejected steps and all critiques. A reply without a judgement accepts the step (ours),
because otherwise unreadable critiques would cost retries.
"""

import os
from collections.abc import Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from statistics import fmean, harmonic_mean
from typing import Any

from lite_selfplay.data import BASE, Completion, Problem, Verdict
from lite_selfplay.errors import GameError, TaskError
from lite_selfplay.games.modes import Examiner, Found, Judged, Measured, Mode, Rows, Score, elected, score_of
from lite_selfplay.games.spc.cases import CRITIC, Judgement, critic_prompt, read_critique, solver_prompt
from lite_selfplay.games.spc.steps import KIND
from lite_selfplay.games.spc.stepsets import is_step_set, read_step_set, steps_of_solutions
from lite_selfplay.stats import clopper_pearson
from lite_selfplay.tasks import Task, load_task
from lite_selfplay.verify import register_checker
from lite_selfplay.verify.checking import Checking
from lite_selfplay.verify.extract import AnswerFormat

SEARCHES = 5  # searches, and plain samples, of a problem: the size of the self-consistency vote (section 4.2)
RETRIES = 5
MOST_STEPS = 64  # steps of a solution (ours); a longer one is cut off
_STEP_END = "\n\n"


def step_task(spec: str) -> Task:
    """Labelled steps as problems.

    Raises TaskError, with file and line, if there are none, and the errors of `load_task`.
    """
    path, is_file = Path(spec), os.path.isfile(spec)
    if is_file and is_step_set(path):
        steps, name = read_step_set(path), path.stem
    else:
        task = load_task(spec, held_out=True)
        steps, name = steps_of_solutions(task.problems), f"steps of {path.stem if is_file else spec}"
    if not steps:
        raise TaskError(
            f"{spec} holds no labelled steps (of ProcessBench, PRM800K or DeltaBench), and no worked solutions with "
            "calculations that steps could be made of"
        )
    return Task(name, steps)


def check(pairs: Sequence[tuple[Completion, Problem]], expected: AnswerFormat, checking: Checking) -> list[Verdict]:
    """Whether critiques judge their steps rightly."""
    return [read_critique(critique).verdict(problem.answer == "Correct", "wrong") for critique, problem in pairs]


def measure_critics(examiner: Examiner, seats: Sequence[str]) -> Found:
    """Each seat's critiques of every step. Raises GameError for a problem of another kind."""
    steps = examiner.problems
    if others := [problem.id for problem in steps if problem.kind != KIND]:
        raise GameError(f"the mode critic measures on labelled steps, and {others[0]} is a problem to solve")
    prompts = [[critic_prompt(step.text, step.extra["before"], step.extra["step"])] for step in steps]
    answers = {seat: examiner.ask(seat, prompts, "critique", f"{seat} judges") for seat in seats}
    return Found({seat: Measured(rows, _score(steps, rows)) for seat, rows in answers.items()})


def _score(steps: Sequence[Problem], rows: Rows) -> Score:
    """A seat's judgements of steps: `pass_at_1` is the share of right ones; a reply without a judgement is wrong.

    The other figures are those of `critic_figures`, for all steps and, if there are several, for each subset.
    `mean_of_subsets` is then the plain mean of the subsets' means, as ProcessBench is reported.
    """
    results = [
        (step.extra["subset"], (step.answer == "Correct", read_critique(one.completion).judgement))
        for step, row in zip(steps, rows, strict=True)
        for one in row
    ]
    whole = critic_figures([result for _, result in results])
    del whole["steps"]
    names = list(dict.fromkeys(subset for subset, _ in results))
    subsets = {
        name: critic_figures([result for subset, result in results if subset == name])
        for name in (names if len(names) > 1 else ())
    }
    means = [figures["mean"] for figures in subsets.values()]
    mean_of_subsets = fmean(means) if means and None not in means else None
    return score_of(rows, more={**whole, "mean_of_subsets": mean_of_subsets, "subsets": subsets})


def critic_figures(results: Sequence[tuple[bool, Judgement | None]]) -> dict[str, Any]:
    """A critic's figures on correct and wrong steps; `results` has, for each step, whether it is correct and the
    judgement.

    `correct` and `error` are the recalls among replies with a judgement, with exact 95% intervals (Clopper and
    Pearson); `mean` and `harmonic_mean` combine the two. All are shares in [0, 1], None without a judged step of that
    kind. `invalid` is the share of the `steps` without a judgement.
    """
    judged = {side: [j for correct, j in results if correct is side and j is not None] for side in (True, False)}
    right = {True: judged[True].count("correct"), False: judged[False].count("incorrect")}
    correct, error = (right[side] / len(judged[side]) if judged[side] else None for side in (True, False))
    both = None if correct is None or error is None else (correct, error)
    return {
        "steps": len(results),
        "correct": correct,
        "correct_ci95": clopper_pearson(right[True], len(judged[True])),
        "error": error,
        "error_ci95": clopper_pearson(right[False], len(judged[False])),
        "mean": sum(both) / 2 if both else None,
        "harmonic_mean": harmonic_mean(both) if both else None,
        "invalid": sum(j is None for _, j in results) / len(results) if results else 0.0,
    }


register_checker(KIND, check)
CRITIC_MODE = Mode(
    measure_critics,
    columns=("correct", "error", "mean", "harmonic_mean", "mean_of_subsets", "invalid"),
    tasks=step_task,
)


# Search


@dataclass
class _Search:
    """A solution in progress. `problem` is an index; `spent` holds rejected steps and all critiques."""

    problem: int
    number: int
    kept: list[Completion] = field(default_factory=list)
    spent: list[Completion] = field(default_factory=list)
    attempts: int = 0
    over: bool = False

    @property
    def text(self) -> str:
        return "".join(completion.text for completion in self.kept)

    def about(self, what: str) -> tuple[int, object]:
        """The key of a request, which determines its seed."""
        return self.problem, f"{what}/{self.number}/{len(self.kept)}/{self.attempts}"

    def take(self, completion: Completion, most_tokens: int) -> None:
        """Keep a step, and note whether it was the last one."""
        self.kept.append(completion)
        self.attempts = 0
        tokens = sum(len(one.token_ids) for one in self.kept)
        self.over = completion.stop != "string" or len(self.kept) >= MOST_STEPS or tokens >= most_tokens


def measure_search(examiner: Examiner, seats: Sequence[str]) -> Found:
    """The solver (the first of two seats) alone, its vote, and its search under the critic (the last seat)."""
    critic = CRITIC if CRITIC in seats else seats[-1]
    solver = next((seat for seat in seats if seat != critic), BASE)
    searches = [_Search(i, k) for i in range(len(examiner.problems)) for k in range(SEARCHES)]
    examiner.progress(0, f"{solver} answers by itself")
    prompts = [solver_prompt(problem.text) for problem in examiner.problems]
    samples = examiner.say(
        solver,
        [prompts[search.problem] for search in searches],
        examiner.sampling,
        [(search.problem, f"plain/{search.number}") for search in searches],
    )
    plain = _rows(examiner.judge([(one, search.problem) for one, search in zip(samples, searches, strict=True)]))
    _run(examiner, searches, solver, critic, prompts)
    found = _rows(examiner.judge([(_whole(search, prompts, solver), search.problem) for search in searches]))
    spent = [Judged(one, False, False) for search in searches for one in search.spent]
    return Found(
        {solver: Measured(plain, score_of(plain))},
        {
            f"vote of {SEARCHES}": elected(plain),
            "search": Measured(found, score_of(found, before=spent)),
            f"search + vote of {SEARCHES}": elected(found, also_read=spent),
        },
    )


def _run(examiner: Examiner, searches: Sequence[_Search], solver: str, critic: str, prompts: Sequence[str]) -> None:
    """Write all solutions to their ends."""
    writing = replace(examiner.sampling, stop=(_STEP_END,))
    judging = replace(examiner.sampling, temperature=0.0, top_p=1.0)
    while active := [search for search in searches if not search.over]:
        left = len({search.problem for search in active})
        examiner.progress(
            2 * len(prompts) - left, f"{solver} writes, {critic} checks: {len(active)} solutions in progress"
        )
        steps = examiner.say(
            solver,
            [prompts[search.problem] for search in active],
            writing,
            [search.about("step") for search in active],
            [search.text for search in active],
        )
        asked = [i for i, completion in enumerate(steps) if completion.text.strip()]
        questions = [
            critic_prompt(examiner.problems[active[i].problem].text, active[i].text, steps[i].text) for i in asked
        ]
        about = [active[i].about("critique") for i in asked]
        critiques = dict(zip(asked, examiner.say(critic, questions, judging, about) if asked else [], strict=True))
        for i, (search, completion) in enumerate(zip(active, steps, strict=True)):
            if critique := critiques.get(i):
                search.spent.append(critique)
            rejected = critique is not None and read_critique(critique).judgement == "incorrect"
            if rejected and search.attempts < RETRIES:
                search.attempts += 1
                search.spent.append(completion)
            else:
                search.take(completion, examiner.sampling.max_tokens)


def _whole(search: _Search, prompts: Sequence[str], solver: str) -> Completion:
    """A search's solution as one completion."""
    last = search.kept[-1]
    ids = tuple(token for completion in search.kept for token in completion.token_ids)
    text, stop = search.text, "length" if last.stop == "string" else last.stop
    return Completion(prompts[search.problem], text, (), ids, (), stop, solver, -1, last.sampling)


def _rows(judged: Sequence[Judged]) -> list[list[Judged]]:
    return [list(judged[i : i + SEARCHES]) for i in range(0, len(judged), SEARCHES)]


SEARCH_MODE = Mode(measure_search, stages=lambda seats: 2)
