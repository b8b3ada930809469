"""A user's own reward function instead of the checker.

It is called as in TRL: by keyword, with `prompts`, `completions` (texts), `completion_ids` and every column of the
problems (`problem`, `answer`, and the extra columns of a data file). Each is a list with one entry per completion, and
the function returns one number per completion. Arguments that it does not name are omitted, unless it takes `**kwargs`.
"""

import inspect
import math
import reprlib
from collections.abc import Callable, Iterable, Mapping, Sequence, Sized
from itertools import islice
from typing import Any

from lite_selfplay.data import Completion, Problem, Verdict
from lite_selfplay.errors import RewardError
from lite_selfplay.verify.format import well_formed

RewardFunction = Callable[..., Sequence[float]]
_TEXT = (str, bytes, bytearray)


def call_reward(
    reward: RewardFunction, pairs: Sequence[tuple[Completion, Problem]], *, thinks: bool = False
) -> list[Verdict]:
    """Verdicts with the function's numbers as scores.

    1 for right and 0 for wrong are usual; other finite numbers are allowed. A completion counts as correct from 0.5 on.
    Raises RewardError, with the function's name, if it does not return one finite number per completion in order: a
    mapping, a set, a text and a table are refused. Exceptions of the function pass through.
    """
    if not pairs:
        return []
    name = name_of(reward)
    returned = reward(**_arguments(reward, pairs))
    values = _numbers(returned, len(pairs) + 1)
    if values is None:
        raise RewardError(f"{name} must return one number for each completion, got {reprlib.repr(returned)}")
    if len(values) != len(pairs):
        more = f"more than {len(pairs)}" if len(values) > len(pairs) else len(values)
        count = len(returned) if isinstance(returned, Sized) else more
        raise RewardError(f"{name} returned {count} values for {len(pairs)} completions")
    bad = next((i for i, value in enumerate(values) if not math.isfinite(value)), None)
    if bad is not None:
        raise RewardError(f"{name} returned {values[bad]} for completion {bad}")
    return [
        Verdict(value >= 0.5, value, well_formed=well_formed(c.text, thinks, c.prefill), reason="")
        for value, (c, _) in zip(values, pairs, strict=True)
    ]


def name_of(reward: RewardFunction) -> str:
    """The name of a reward function in messages."""
    return f"the reward function {getattr(reward, '__qualname__', repr(reward))}"


def _numbers(returned: Any, most: int) -> list[float] | None:
    """The first `most` returned values as floats; None if one is not a number, and unless they are a one-dimensional
    sequence: no mapping, set, text or table."""
    unordered = isinstance(returned, (Mapping, set, frozenset, *_TEXT)) or getattr(returned, "ndim", 1) != 1
    if unordered or not (isinstance(returned, Iterable) or hasattr(type(returned), "__getitem__")):
        return None
    found = list(islice(returned, most))  # a generator may never end
    try:
        return None if any(isinstance(value, _TEXT) for value in found) else [float(value) for value in found]
    except (TypeError, ValueError, OverflowError):
        return None


def _arguments(reward: RewardFunction, pairs: Sequence[tuple[Completion, Problem]]) -> dict[str, Any]:
    problems = [problem for _, problem in pairs]
    columns = dict.fromkeys(key for problem in problems for key in problem.extra)
    arguments: dict[str, Any] = {
        **{key: [problem.extra.get(key) for problem in problems] for key in columns},
        "prompts": [completion.prompt for completion, _ in pairs],
        "completions": [completion.text for completion, _ in pairs],
        "completion_ids": [list(completion.token_ids) for completion, _ in pairs],
        "problem": [problem.text for problem in problems],
        "answer": [problem.answer for problem in problems],
    }
    parameters = inspect.signature(reward).parameters.values()
    if any(p.kind is p.VAR_KEYWORD for p in parameters):
        return arguments
    named = {p.name for p in parameters}
    return {key: value for key, value in arguments.items() if key in named}
