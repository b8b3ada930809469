"""Problems about calls of a program's function `f`, of kind `call`: which output, which input, and does it run at all.

Inputs and outputs are Python literals, as text. They enter and leave the sandbox in a packed form (`inside.values`) and
are read back as data: no text of a program or a completion is evaluated.
"""

import ast
import json
from collections.abc import Mapping, Sequence
from typing import Any

from lite_selfplay.data import NOT_JUDGED, Completion, Problem, Verdict
from lite_selfplay.verify.checking import Checking, verdict
from lite_selfplay.verify.extract import AnswerFormat, completion_text
from lite_selfplay.verify.format import answer_spans, split_reasoning
from lite_selfplay.verify.programs.checker import LEAST_SECONDS, same_value
from lite_selfplay.verify.programs.inside.values import Unwritable, canonical, pack, unpack
from lite_selfplay.verify.programs.nouns import Job, Limits, ProgramRun
from lite_selfplay.verify.programs.sandbox import shared_sandbox

CALL = "call"
LONGEST = 2000  # characters of a literal

_NO_DATA = (Unwritable, ValueError, TypeError, LookupError, ArithmeticError, SyntaxError, MemoryError, RecursionError)


def literal(text: str) -> Any:
    """The value of a Python literal. Raises ValueError for any other text, and for one that is too long."""
    try:
        value = ast.literal_eval(text.strip() if len(text) <= LONGEST else "")
        canonical(value)
    except _NO_DATA:
        raise ValueError("no literal of a plain value") from None
    return value


def arguments(text: str) -> tuple[Any, ...]:
    """The values of arguments as in a call, `1, [2, 3]`. Raises ValueError if they are not literals."""
    return tuple(literal(f"({text.strip().rstrip(',')},)"))


def check_batch(
    pairs: Sequence[tuple[Completion, Problem]], expected: AnswerFormat, checking: Checking
) -> list[Verdict]:
    """Judge completions of problems of kind `call`, whose answer is a mapping.

    - `output`: a literal of that value is right.
    - `program` and `output`: arguments with which `f` returns that value are right.
    - `program` and `inputs`: any completion is right if `f` returns the same plain value for each of the inputs in one
      process, and twice in another one, whose objects lie elsewhere. The verdict's answer is the JSON list of those
      values as literals.

    A program that runs on after its last value, until a limit ends it, has none.

    Raises SandboxError if programs cannot be run safely.
    """
    texts = [_answer_text(completion) for completion, _ in pairs]
    jobs = [_jobs(pair[1].answer, text, number) for number, (pair, text) in enumerate(zip(pairs, texts, strict=True))]
    sandbox = checking.kept(CALL, lambda: shared_sandbox(unsafe_code=checking.unsafe_code))
    limits = Limits(seconds=max(LEAST_SECONDS, checking.deadline))
    runs = iter(sandbox.run([job for each in jobs for job in each], limits, checking.poll))
    return [
        _judge(*pair, expected, text, [next(runs) for _ in each])
        for pair, text, each in zip(pairs, texts, jobs, strict=True)
    ]


def _answer_text(completion: Completion) -> str:
    """The content of the last closed answer block."""
    spans = answer_spans(split_reasoning(completion_text(completion)).rest)
    return next((span.content.strip().strip("`").strip() for span in reversed(spans) if span.closed), "")


def _jobs(wanted: Mapping[str, Any], text: str, number: int) -> list[Job]:
    """The calls of a program, for given inputs also once more elsewhere; none if an argument is not a literal."""
    if "program" not in wanted:
        return []
    try:
        calls = [[*map(pack, arguments(each))] for each in wanted.get("inputs", [text])]
    except ValueError:
        return []
    body = {"function": "f", "packed": True, "program": wanted["program"], "calls": calls}
    again = {**body, "calls": [call for call in calls for _ in range(2)], "elsewhere": True}
    return [Job("call", (each,), program=number) for each in ((body, again) if "inputs" in wanted else (body,))]


def _values(run: ProgramRun) -> list[Any]:
    """The values that the calls returned, in order; empty if one of them is not plain, or the program did not end."""
    lines = [] if run.reason else run.reply.decode("utf-8", "replace").split("\n")[:-1]
    try:
        return [literal(repr(unpack(json.loads(line.removeprefix("= "))))) for line in lines]
    except _NO_DATA:
        return []


def _judge(
    completion: Completion, problem: Problem, expected: AnswerFormat, text: str, runs: Sequence[ProgramRun]
) -> Verdict:
    wanted = problem.answer
    if any(run.reason == NOT_JUDGED for run in runs):
        return verdict(completion, expected, text or None, NOT_JUDGED)
    values = _values(runs[0]) if runs else []
    if "inputs" in wanted:
        first, again = ([canonical(value) for value in row] for row in (values, _values(runs[-1]) if runs else []))
        right = 0 < len(first) == len(wanted["inputs"]) and first == again[::2] == again[1::2]
        answer = json.dumps([repr(value) for value in values])
        return verdict(completion, expected, answer if right else None, "" if right else "invalid")
    try:
        (given,) = values if "program" in wanted else [literal(text)]
        right = same_value(canonical(given), canonical(literal(wanted["output"])))
    except ValueError:
        right = False
    return verdict(completion, expected, text or None, "" if right else "wrong" if text else "no_answer")
