"""Programs as answers: extracted from completions, run in a sandbox, and judged by tests.

`run_program` and `run_tests` are all that most callers need. `program_tests.py` has the tests, `nouns.py` the results
of runs, `checker.py` makes verdicts, and `sandbox.py`, `zygotes.py` and `inside/` are the sandbox. `problems.py` makes
problems from tests. docs/sandbox.md says what the sandbox protects, and what it does not.
"""

from collections.abc import Sequence
from typing import Any, overload

from lite_selfplay.verify.programs.checker import check_batch, judge_all
from lite_selfplay.verify.programs.nouns import KIND, Job, Limits, ProgramRun, Reason, Report, SandboxError
from lite_selfplay.verify.programs.problems import (
    failing_solutions,
    problem_of_object,
    program_problem,
    require_failing,
)
from lite_selfplay.verify.programs.program_tests import AssertTest, CallTest, ProgramTests, StdinTest, read_tests
from lite_selfplay.verify.programs.program_text import extract_program
from lite_selfplay.verify.programs.sandbox import Sandbox, close_sandbox, open_sandbox, shared_sandbox

__all__ = [
    "KIND",
    "AssertTest",
    "CallTest",
    "Limits",
    "ProgramRun",
    "ProgramTests",
    "Reason",
    "Report",
    "Sandbox",
    "SandboxError",
    "StdinTest",
    "check_batch",
    "close_sandbox",
    "extract_program",
    "failing_solutions",
    "open_sandbox",
    "problem_of_object",
    "program_problem",
    "read_tests",
    "require_failing",
    "run_program",
    "run_tests",
    "shared_sandbox",
]


def run_program(
    source: str, stdin: str | bytes = "", limits: Limits | None = None, *, sandbox: Sandbox | None = None
) -> ProgramRun:
    """Run a Python program in the sandbox (by default the process's shared one) and return how it ended.

    >>> run_program("print(sum(map(int, input().split())))", "1 2 3").text
    '6\\n'

    The program has the pure standard library, but no files, network, processes or threads. `limits`: by default 5 s of
    CPU time, 512 MiB of memory and 1 MiB of output. Raises SandboxError if programs cannot be run safely.
    """
    data = stdin.encode("utf-8", "surrogatepass") if isinstance(stdin, str) else stdin
    (run,) = (sandbox or shared_sandbox()).run([Job("stdio", ({"program": source},), data)], limits or Limits())
    return run


@overload
def run_tests(program: str, tests: Any, limits: Limits | None = None, *, sandbox: Sandbox | None = None) -> Report: ...
@overload
def run_tests(
    program: Sequence[str], tests: Any, limits: Limits | None = None, *, sandbox: Sandbox | None = None
) -> list[Report]: ...
def run_tests(
    program: str | Sequence[str], tests: Any, limits: Limits | None = None, *, sandbox: Sandbox | None = None
) -> Report | list[Report]:
    """Test a program, or several, and report `passed` of `total`, the `reason` of a failure, and the `score`.

    >>> run_tests("print(int(input()) ** 2)", [["3", "9"], ["4", "16"]]).passed
    2

    `tests` may have any form that `read_tests` supports: pairs of stdin and stdout, calls with expected values,
    assertions. Returns a `Report` for one program, a list of them for a sequence. Raises TaskError for tests that
    cannot be read and SandboxError if programs cannot be run safely.
    """
    read = read_tests(tests)
    programs = [program] if isinstance(program, str) else list(program)
    reports = judge_all(sandbox or shared_sandbox(), [(each, read) for each in programs], limits or Limits())
    return reports[0] if isinstance(program, str) else reports
