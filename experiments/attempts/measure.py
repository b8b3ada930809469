"""What a second look is worth: `python experiments/attempts/measure.py RUN|BASE ... [--mode MODE] [--json]`.

For each seat alone, and for each direction in which one reads the recap of another (or its own), a line:

- `alone`: accuracy of the draft. `second`: of the answer after reading its recap.
- `wrong: second, fresh`: after a wrong draft, of the second look, and of another sample of the same reader that reads
  nothing. `right: ...`: the same after a right draft.
- `either: second, fresh`: the better of two, where a judge knows the answer. `claimed: ...`: the better by what they
  say: the draft where it alone says that a number fits, otherwise the second.
- `attempts`, `tokens`, `cut off`, of drafts and of second looks; `checks right`: of the attempts; `first fits`:
  how often the first attempt is the right one (chance: one in seventeen).

The default mode is `cascade`, in which a single seat reads its own recap in the words for a rival's.
"""

import argparse
import json
import re
import sys
from collections.abc import Iterable, Sequence
from pathlib import Path

sys.path.insert(0, str(Path(__file__).parent))
from task import CAP, Search

from lite_selfplay import evaluate
from lite_selfplay.data import Problem
from lite_selfplay.games.modes import Judged

TASK = f"{Path(__file__).parent / 'task.py'}:find"
Pair = tuple[Judged, Judged]
_ATTEMPT = re.compile(r"^(\d+):(\d+)!?$", re.MULTILINE)


def claims(answer: Judged) -> bool:
    """Whether an answer says that a number fits."""
    return ", so " in answer.completion.text


def claimed(pair: Pair) -> bool:
    """Whether the one of two that is chosen by what they say is right."""
    draft, second = pair
    return draft.correct if claims(draft) and not claims(second) else second.correct


def mean(values: Iterable[float]) -> float:
    every = list(values)
    return sum(every) / len(every) if every else float("nan")


def attempts(answer: Judged) -> list[tuple[str, str]]:
    """The lines of a trace that try a number."""
    return _ATTEMPT.findall(answer.completion.text.partition("</think>")[0])


def looks(name: str, pairs: Sequence[Pair]) -> dict[str, float]:
    """How second answers stand to their drafts."""
    return {
        f"wrong: {name}": mean(second.correct for draft, second in pairs if not draft.correct),
        f"right: {name}": mean(second.correct for draft, second in pairs if draft.correct),
        f"either: {name}": mean(draft.correct or second.correct for draft, second in pairs),
        f"claimed: {name}": mean(map(claimed, pairs)),
    }


def traces(name: str, rows: Sequence[Sequence[Judged]], problems: Sequence[Problem]) -> dict[str, float]:
    """What traces are like."""
    every = [answer for row in rows for answer in row]
    lines = [
        f"{x}:{product}" == Search.of(problem).check(int(x)).rstrip("!\n")
        for problem, row in zip(problems, rows, strict=True)
        for answer in row
        for x, product in attempts(answer)
    ]
    firsts = [
        [x for x, _ in attempts(answer)][:1] == [str(Search.of(problem).x)]
        for problem, row in zip(problems, rows, strict=True)
        for answer in row
    ]
    return {
        f"attempts: {name}": mean(len(attempts(answer)) for answer in every),
        f"tokens: {name}": mean(answer.tokens for answer in every),
        f"cut off: {name}": mean(answer.completion.stop == "length" for answer in every),
        f"well-formed: {name}": mean(answer.well_formed for answer in every),
        f"checks right: {name}": mean(lines),
        f"first fits: {name}": mean(firsts),
    }


def measured(target: str, mode: str, limit: int, samples: int, seed: int) -> dict[str, dict[str, float]]:
    """The figures of every direction, or of every seat where the mode has none."""
    found = evaluate(
        target, TASK, mode=mode, limit=limit, samples=samples, seed=seed, max_completion_tokens=CAP, precision="fp32",
        write=False,
    )  # fmt: skip
    problems = list(found.problems.values())
    result = {}
    for direction in found.directions:
        first, _, reader = direction.partition("->")
        drafts, seconds, others = found.rows[first], found.rows[direction], found.rows[reader]
        read = [pair for row, after in zip(drafts, seconds, strict=True) for pair in zip(row, after, strict=True)]
        # Two samples of the same number share their randomness.
        unread = [
            (draft, other)
            for row, again in zip(drafts, others, strict=True)
            for i, draft in enumerate(row)
            for j, other in enumerate(again)
            if i != j
        ]
        score = found.directions[direction]
        result[direction] = {
            "alone": found.seats[first].pass_at_1,
            "second": score.pass_at_1,
            **looks("second", read),
            **looks("fresh", unread),
            "empty recaps": getattr(score, "empty_summaries", float("nan")),
            **traces("draft", drafts, problems),
            **traces("second", seconds, problems),
        }
    return result


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("targets", nargs="+", metavar="RUN|BASE")
    parser.add_argument("--mode", default="cascade", choices=["cascade", "self-refine", "self-cascade", "swap-seats"])
    parser.add_argument("--limit", type=int, default=300)
    parser.add_argument("--samples", type=int, default=4)
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--json", action="store_true")
    given = parser.parse_args()
    for target in given.targets:
        for direction, row in measured(target, given.mode, given.limit, given.samples, given.seed).items():
            if given.json:
                print(json.dumps({"target": target, "mode": given.mode, "direction": direction, **row}))
            else:
                print(f"{target}, {given.mode}, {direction}")
                print(*(f"  {name:20} {value:.3f}" for name, value in row.items()), sep="\n")


if __name__ == "__main__":
    main()
