"""The phases of play in which seats speak: solutions, validations, rewrites, critiques. Each takes and gives cases."""

import random
from collections.abc import Callable, Sequence
from dataclasses import replace

from lite_selfplay.data import Completion, Group, Problem, Sample, Sampling
from lite_selfplay.games.spc.cases import Case, Trial
from lite_selfplay.games.spc.replies import critic_prompt, sneaky_prompt, solver_prompt
from lite_selfplay.games.spc.steps import split_steps, without_notes
from lite_selfplay.games.table import Table
from lite_selfplay.verify.extract import completion_text
from lite_selfplay.verify.format import split_reasoning

Ask = Callable[[Sequence[str]], list[list[Completion]]]
"""Asks a seat: `n` completions of each prompt."""


def sampled_solutions(
    table: Table, problems: Sequence[Problem], solvers: Sequence[str], samples: int, name: str
) -> tuple[list[Case], list[Group]]:
    """A random step of every right solution that the solvers write, and all solutions, for the record.

    `name` begins the cases' ids.
    """
    cases: list[Case] = []
    groups: list[Group] = []
    prompts = [solver_prompt(problem.text) for problem in problems]
    for solver in solvers:
        rows = table.ask("solver", prompts, n=samples, seat=solver)
        pairs = [(completion, problem) for problem, row in zip(problems, rows, strict=True) for completion in row]
        verdicts = table.verify(pairs)
        for (completion, problem), verdict in zip(pairs, verdicts, strict=True):
            if verdict.correct and completion.stop != "prompt_too_long":
                text = split_reasoning(completion_text(completion)).rest
                cases += _case(f"{name}-{len(cases) + 1}-{problem.id}", problem, text, solver, table.rng)
        samples_of = [Sample(c, float(v.correct), v, masked=True) for (c, _), v in zip(pairs, verdicts, strict=True)]
        groups += [Group(samples_of[i * samples : (i + 1) * samples], problem) for i, problem in enumerate(problems)]
    return cases, groups


def written_solutions(table: Table, problems: Sequence[Problem], solver: str, name: str) -> list[Case]:
    """A random step of every solution that a file brings along; none of one that states another answer than its row."""
    cases: list[Case] = []
    texts = [without_notes(str(problem.extra.get("solution") or "")) for problem in problems]
    read = [Completion("", text, (), (), (), "eos", "", -1, Sampling()) for text in texts]
    verdicts = table.verify(list(zip(read, problems, strict=True)))
    for problem, text, completion, verdict in zip(problems, texts, read, verdicts, strict=True):
        if verdict.correct or table.read_answer(completion) is None:
            cases += _case(f"{name}-{len(cases) + 1}-{problem.id}", problem, text, solver, table.rng)
    return cases


def _case(name: str, problem: Problem, solution: str, solver: str, rng: random.Random) -> list[Case]:
    steps = split_steps(solution)
    return [Case(name, problem, tuple(steps[: rng.randrange(len(steps)) + 1]), solver)] if steps else []


def tried_originals(table: Table, cases: Sequence[Case], rollouts: int) -> list[Case]:
    """The cases, with how often their solvers end well from the step as it was."""
    found = _trials(table, [(case, case.start) for case in cases], rollouts)
    return [replace(case, original=trial) for case, (trial, _) in zip(cases, found, strict=True)]


def tried_rewrites(table: Table, cases: Sequence[Case], rollouts: int) -> list[Case]:
    """The cases, with how often their solvers end well from the rewritten step, where that can be tried."""
    tried = [i for i, case in enumerate(cases) if (rewrite := case.rewrite) is not None and not rewrite.reason]
    found = dict(zip(tried, _trials(table, [(cases[i], cases[i].sneaky_start) for i in tried], rollouts), strict=True))
    return [
        case if i not in found else replace(case, unread=True) if found[i][1] else replace(case, sneaky=found[i][0])
        for i, case in enumerate(cases)
    ]


def _trials(table: Table, starts: Sequence[tuple[Case, str]], rollouts: int) -> list[tuple[Trial, bool]]:
    """How often each case's solver ends well from a beginning; and whether it was too long to be read."""
    result: list[tuple[Trial, bool]] = [(Trial(0, rollouts), False)] * len(starts)
    for solver in dict.fromkeys(case.solver for case, _ in starts):
        places = [i for i, (case, _) in enumerate(starts) if case.solver == solver]
        prompts = [solver_prompt(starts[i][0].problem.text) for i in places]
        beginnings = [starts[i][1] for i in places]
        rows = table.ask("solver", prompts, n=rollouts, beginnings=beginnings, seat=solver)
        pairs = [(completion, starts[i][0].problem) for i, row in zip(places, rows, strict=True) for completion in row]
        right = iter([verdict.correct for verdict in table.verify(pairs)])
        for i, row in zip(places, rows, strict=True):
            unread = any(completion.stop == "prompt_too_long" for completion in row)
            ended_well = sum([next(right) for _ in row])
            result[i] = Trial(0 if unread else ended_well, rollouts), unread
    return result


def rewritten(ask: Ask, cases: Sequence[Case]) -> list[Case]:
    """The cases, each with a sneaky generator's rewrite of its step."""
    rows = ask([sneaky_prompt(case.problem.text, case.before, case.step) for case in cases]) if cases else []
    return [replace(case, attack=row[0]) for case, row in zip(cases, rows, strict=True)]


def judged(ask: Ask, cases: Sequence[Case]) -> list[Case]:
    """The cases, with a critic's judgements of the rewrites that mislead."""
    valid = [i for i, case in enumerate(cases) if case.is_valid]
    attacked = [(cases[i], rewrite) for i in valid if (rewrite := cases[i].rewrite) is not None]
    asked = [critic_prompt(case.problem.text, case.before, rewrite.step) for case, rewrite in attacked]
    found = dict(zip(valid, ask(asked) if asked else [], strict=True))
    return [replace(case, critiques=tuple(found.get(i, ()))) for i, case in enumerate(cases)]


def judged_untouched(ask: Ask, cases: Sequence[Case], rng: random.Random) -> list[Case]:
    """The cases, with judgements of as many steps as they were, drawn at random, as there are rewrites that mislead."""
    chosen = sorted(rng.sample(range(len(cases)), sum(case.is_valid for case in cases)))
    rows = ask([critic_prompt(cases[i].problem.text, cases[i].before, cases[i].step) for i in chosen]) if chosen else []
    found = dict(zip(chosen, rows, strict=True))
    return [replace(case, untouched=tuple(found.get(i, ()))) for i, case in enumerate(cases)]
