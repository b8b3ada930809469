r"""Answers: the share of each file's reference answers that the checker accepts when they are given as the answer.

    python benchmarks/answers.py --data FOLDER

A strict checker may refuse right answers. This measures how many: each reference is given in `\boxed{}`, in an
`<answer>` block and in a sentence. "with a key" is the share that a majority vote can count.
"""

from collections.abc import Sequence
from pathlib import Path
from typing import Annotated, Any

import typer
from rich.console import Console
from rich.table import Table

from lite_selfplay.data import Problem
from lite_selfplay.errors import TaskError
from lite_selfplay.tasks.jsonl import read_jsonl
from lite_selfplay.verify.math import answer_key, check_all

FORMS = {"boxed": r"so \boxed{%s}.", "block": "<answer>%s</answer>", "sentence": "Therefore, the answer is %s."}


def written(answer: Any) -> str:
    """A reference as a completion would give it: several values separated by commas; of a solution, its last line."""
    return ", ".join(map(str, answer)) if isinstance(answer, list) else str(answer).rpartition("####")[2].strip()


def share(right: Sequence[bool]) -> str:
    return f"{sum(right) / len(right):.1%}"


def main(
    data: Annotated[Path, typer.Option(help="A folder of JSONL files.", exists=True, file_okay=False)],
) -> None:
    """Print the shares, one row per file."""
    table = Table("file", "n", *FORMS, "with a key")
    for path in sorted(data.glob("*.jsonl")):
        problems = [problem for problem in problems_of(path) if problem.answer is not None and problem.kind == "math"]
        if not problems:
            continue
        shares = []
        for form in FORMS.values():
            pairs = [(f"Some work. {form % written(problem.answer)}", problem.answer) for problem in problems]
            shares.append(share([verdict.correct for verdict in check_all(pairs)]))
        keyed = share([answer_key(written(problem.answer)) is not None for problem in problems])
        table.add_row(path.stem, f"{len(problems):,}", *shares, keyed)
    Console().print(table)


def problems_of(path: Path) -> Sequence[Problem]:
    """The problems of a file; none if it is another kind of file."""
    try:
        return read_jsonl(path).problems
    except TaskError:
        return []


if __name__ == "__main__":
    typer.run(main)
