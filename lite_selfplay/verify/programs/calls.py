"""Problems about calls of a program's function `f`, of kind `call`: which output, which input, and does it run at all.

Inputs and outputs are Python literals, as text. They cross the sandbox's border in a packed form (`inside.values`) and
are read back as data: nothing that a program or a completion wrote is evaluated.
"""

import ast
import json
from collections.abc import Mapping, Sequence
from typing import Any

from lite_selfplay.data import Completion, Problem, Verdict
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
    """The values of arguments as in a call, `1, [2, 3]`. Raises ValueError where they are no literals."""
    return tuple(literal(f"({text.strip().rstrip(',')},)"))


def check_batch(
    pairs: Sequence[tuple[Completion, Problem]], expected: AnswerFormat, checking: Checking
) -> list[Verdict]:
    """Judge completions of problems of kind `call`, whose answer is a mapping.

    `output`: right is a literal of that value. `program` and `output`: right are arguments with which `f` returns that
    value. `program` and `inputs`: the completion is not looked at; correct where `f` returns the same plain value twice
    for each of the inputs, and the verdict's answer is the JSON list of those values as literals. Raises SandboxError
    where programs cannot be run safely.
    """
    told = [problem.answer for _, problem in pairs]
    said = [_said(completion, expected) for completion, _ in pairs]
    calls = [_calls(*each) for each in zip(told, said, strict=True)]
    sandbox = shared_sandbox(unsafe_code=checking.unsafe_code)
    checking.kept(CALL, lambda: sandbox)
    packed = {"function": "f", "packed": True}
    bodies = {i: {**packed, "program": told[i]["program"], "calls": rows} for i, rows in enumerate(calls) if rows}
    jobs = [Job("call", (body,), program=i) for i, body in bodies.items()]
    limits = Limits(seconds=max(LEAST_SECONDS, checking.deadline))
    values = dict(zip(bodies, map(_values, sandbox.run(jobs, limits, checking.poll) if jobs else []), strict=True))
    return [
        _judge(completion, expected, told[i], said[i], values.get(i, [])) for i, (completion, _) in enumerate(pairs)
    ]


def _said(completion: Completion, expected: AnswerFormat) -> str:
    """What stands in the last answer block."""
    spans = answer_spans(split_reasoning(completion_text(completion)).rest)
    return next((span.content.strip().strip("`").strip() for span in reversed(spans) if span.closed), "")


def _calls(told: Mapping[str, Any], said: str) -> list[list[Any]] | None:
    """The packed arguments of the calls that tell; None where there is nothing to call, or something is no literal."""
    texts = [text for text in told.get("inputs", [said]) for _ in range(1 + ("inputs" in told))]
    try:
        return [[*map(pack, arguments(text))] for text in texts] if "program" in told else None
    except ValueError:
        return None


def _values(run: ProgramRun) -> list[Any]:
    """What calls returned, in order; nothing where one returned no plain value."""
    lines = run.reply.decode("utf-8", "replace").split("\n")[:-1]
    try:
        return [literal(repr(unpack(json.loads(line.removeprefix("= "))))) for line in lines]
    except _NO_DATA:
        return []


def _judge(
    completion: Completion, expected: AnswerFormat, told: Mapping[str, Any], said: str, values: Sequence[Any]
) -> Verdict:
    if "inputs" in told:
        twice = [canonical(value) for value in values]
        right = 0 < len(twice) == 2 * len(told["inputs"]) and twice[::2] == twice[1::2]
        answer = json.dumps([repr(value) for value in values[::2]])
        return verdict(completion, expected, answer if right else None, "" if right else "invalid")
    try:
        (given,) = values if "program" in told else [literal(said)]
        right = same_value(canonical(given), canonical(literal(told["output"])))
    except ValueError:
        right = False
    return verdict(completion, expected, said or None, "" if right else "wrong" if said else "no_answer")
