"""Judging completions whose answers are programs, by the tests of their problems."""

from collections.abc import Callable, Sequence

from lite_selfplay.data import Completion, Problem, Verdict
from lite_selfplay.verify.extract import AnswerFormat, completion_text
from lite_selfplay.verify.format import well_formed
from lite_selfplay.verify.programs.cases import ProgramTests, read_tests
from lite_selfplay.verify.programs.extract import extract_program
from lite_selfplay.verify.programs.judge import judge_all
from lite_selfplay.verify.programs.nouns import Limits, Report
from lite_selfplay.verify.programs.sandbox import shared_sandbox

KIND = "program"
_LEAST_SECONDS = 0.1


def check_batch(
    pairs: Sequence[tuple[Completion, Problem]],
    expected: AnswerFormat,
    *,
    seconds: float,
    unsafe_code: bool,
    poll: Callable[[], None],
) -> list[Verdict]:
    """Judge completions of problems of kind `program`, whose answer is what `read_tests` reads.

    `correct` where a program passes every test, `score` the share that it passes, `reason` one of
    `lite_selfplay.verify.programs.nouns.Reason`, `timeout` for that of time. Raises TaskError for a problem without
    tests, SandboxError where programs cannot be run safely.
    """
    tests: dict[int, ProgramTests] = {}
    for _, problem in pairs:
        if id(problem) not in tests:
            tests[id(problem)] = read_tests(problem.answer, f"the tests of {problem.id}")
    found = [extract_program(completion_text(each), block_only=expected.block_only) for each, _ in pairs]
    programs = [(program, tests[id(problem)]) for program, (_, problem) in zip(found, pairs, strict=True)]
    limits = Limits(seconds=max(_LEAST_SECONDS, seconds))
    reports = judge_all(shared_sandbox(unsafe_code=unsafe_code), programs, limits, poll)
    return [
        _verdict(completion, program, report, expected.thinks)
        for (completion, _), program, report in zip(pairs, found, reports, strict=True)
    ]


def _verdict(completion: Completion, program: str | None, report: Report, thinks: bool) -> Verdict:
    return Verdict(
        correct=report.score == 1,
        score=report.score,
        answer=program,
        well_formed=well_formed(completion.text, thinks, completion.prefill),
        reason="timeout" if report.reason == "time" else report.reason,
    )
