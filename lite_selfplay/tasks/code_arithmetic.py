"""`code-arithmetic`: short programs over a line of whole numbers, within reach of a small model.

    Read a line of whole numbers. Keep those that are greater than 5, multiply each by 3, and print their sum.

The filter, the change and the output are drawn independently. Each problem has generated tests, a program that passes
them, and its explanation.
"""

import random
from collections.abc import Callable, Mapping, Sequence
from typing import Any, NamedTuple

from lite_selfplay.tasks.procedural import attempt_rng, by_rule, whole_number
from lite_selfplay.tasks.task import Task
from lite_selfplay.verify.programs import KIND, program_problem

_MOST_NUMBERS = 8
_TRIES = 100

Numbers = list[int]


class _Step(NamedTuple):
    """A step, or the output: in words, as Python code over the list `numbers`, and as a function. `changes`: it changes
    each number."""

    words: str
    code: str
    do: Callable[[Numbers], Any]
    changes: bool = False


_ENDS = (
    _Step("their sum", "print(sum(numbers))", sum),
    _Step("how many there are", "print(len(numbers))", len),
    _Step("the largest of them, 0 without any", "print(max(numbers, default=0))", lambda found: max(found, default=0)),
    _Step("the smallest of them, 0 without any", "print(min(numbers, default=0))", lambda found: min(found, default=0)),
    _Step("them in one line", "print(*numbers)", lambda found: " ".join(map(str, found))),
    _Step(
        "them in one line, the smallest first",
        "print(*sorted(numbers))",
        lambda found: " ".join(map(str, sorted(found))),
    ),
    _Step(
        "them in one line, the last first", "print(*numbers[::-1])", lambda found: " ".join(map(str, reversed(found)))
    ),
)


def code_arithmetic(seed: int = 0, held_out: bool = False, /, steps: str = "2", tests: str = "5") -> Task:
    """Short programs over a line of whole numbers, with generated tests and solutions.

    `steps`: the most steps before the output, 0 to 2 (a filter, then a change). `tests`: 1 to 20 per problem. Raises
    TaskError for other options.
    """
    most = whole_number("code-arithmetic", "steps", steps, 0, 2)
    count = whole_number("code-arithmetic", "tests", tests, 1, 20)

    def draw(rng: random.Random) -> tuple[str, Any, Mapping[str, Any]]:
        # A filter and a change, or one of them; none only if `most` is 0.
        both = [_kept(rng), _changed(rng)]
        drawn = [both[i] for i in sorted(rng.sample(range(2), rng.randint(min(1, most), most)))]
        # A count does not depend on a change of each number.
        ends = [end for end in _ENDS if end.do is not len or not any(step.changes for step in drawn)]
        return _problem(drawn, rng.choice(ends), count)

    return by_rule("code-arithmetic", seed, held_out, draw, size=10_000, max_completion_tokens=160, kind=KIND)


def _kept(rng: random.Random) -> _Step:
    k = rng.randint(2, 20)
    words, condition, holds = rng.choice(
        [
            ("that are even", "n % 2 == 0", lambda n: n % 2 == 0),
            ("that are odd", "n % 2 == 1", lambda n: n % 2 == 1),
            (f"that are greater than {k}", f"n > {k}", lambda n: n > k),
            (f"that are less than {k}", f"n < {k}", lambda n: n < k),
            (f"that {k % 8 + 2} divides", f"n % {k % 8 + 2} == 0", lambda n: n % (k % 8 + 2) == 0),
        ]
    )
    code = f"numbers = [n for n in numbers if {condition}]"
    return _Step(f"Keep those {words}", code, lambda found: [n for n in found if holds(n)])


def _changed(rng: random.Random) -> _Step:
    k = rng.randint(2, 12)
    words, term, value = rng.choice(
        [
            (f"Multiply each by {k}", f"n * {k}", lambda n: n * k),
            (f"Add {k} to each", f"n + {k}", lambda n: n + k),
            (f"Subtract {k} from each", f"n - {k}", lambda n: n - k),
            ("Square each", "n * n", lambda n: n * n),
            (f"Take each modulo {k}", f"n % {k}", lambda n: n % k),
        ]
    )
    return _Step(words, f"numbers = [{term} for n in numbers]", lambda found: [value(n) for n in found], True)


def _problem(steps: Sequence[_Step], end: _Step, count: int) -> tuple[str, Any, Mapping[str, Any]]:
    """The (text, answer, extra) of a problem. Its tests are drawn with a seed from its words alone, so equal problems
    have equal tests."""
    done = [step.words[0].lower() + step.words[1:] for step in steps]
    asked = f"{', '.join(done)}, and print {end.words}" if steps else f"print {end.words}"
    doing = asked[0].upper() + asked[1:]
    explained = f"First read the numbers, {', '.join(f'then {each}' for each in [*done, f'print {end.words}'])}."
    program = "\n".join(["numbers = [int(word) for word in input().split()]", *(step.code for step in steps), end.code])
    tests = _tests(attempt_rng(0, f"code-arithmetic {doing}", 0, 0), steps, end, count)
    extra = {"content": doing, "solution": program, "explanation": explained}
    problem = program_problem("", f"Read a line of whole numbers. {doing}.", tests, doing, extra)
    return problem.text, problem.answer, problem.extra


def _tests(rng: random.Random, steps: Sequence[_Step], end: _Step, count: int) -> list[list[str]]:
    """Lines of numbers and their expected output, if possible such that omitting any step changes an output."""
    for _ in range(_TRIES):
        lines = [[rng.randint(0, 30) for _ in range(rng.randint(1, _MOST_NUMBERS))] for _ in range(count)]
        printed = [_printed(line, steps, end) for line in lines]
        fewer = [[*steps[:i], *steps[i + 1 :]] for i in range(len(steps))]
        tells = all([_printed(line, each, end) for line in lines] != printed for each in fewer)
        if tells and (len(set(printed)) > 1 or count == 1):
            break
    return [[" ".join(map(str, line)) + "\n", f"{text}\n"] for line, text in zip(lines, printed, strict=True)]


def _printed(numbers: Numbers, steps: Sequence[_Step], end: _Step) -> str:
    for step in steps:
        numbers = step.do(numbers)
    return str(end.do(numbers))
