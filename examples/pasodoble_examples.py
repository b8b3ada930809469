"""Writes cold-start examples for a small proposer and solver: sums and differences from GSM8K's worked solutions.

python examples/pasodoble_examples.py gsm8k_train.jsonl examples.jsonl
lite-selfplay cold-start pasodoble --model smollm2-135m --source examples.jsonl --knowledge gsm8k_train.jsonl

The proposer's prompt has a problem with its solution, and its completion asks for the first sum or difference of two
numbers in it, which a model of 135M parameters can learn to answer. The completion's check is the inverse calculation.
"""

import json
import re
import sys
from pathlib import Path

from lite_selfplay.games.pasodoble.pasodoble import proposer_prompt
from lite_selfplay.games.prompts import fill

LONGEST = 421
"""The most characters of a passage, so that it fits into the run's prompts."""


def examples_of(row):
    """The examples of a problem with its solution: one for each role, or none."""
    passage = f"{row['question']}\n{row['answer']}"
    found = re.search(r"<<(\d{1,2})([+-])(\d{1,2})=(\d{1,2})>>", row["answer"])
    if found is None or len(passage) > LONGEST:
        return []
    a, sign, b, c = found.groups()
    question, solution, back = f"What is {a} {sign} {b}?", f"{a} {sign} {b} = {c}.", "-" if sign == "+" else "+"
    proposal = (
        f"<problem>\n{question}\n</problem>\n"
        f"<answer>\n{solution}\nCheck: {c} {back} {b} = {a}.\n\\boxed{{{c}}}\n</answer>"
    )
    return [
        {"role": "proposer", "prompt": proposer_prompt(passage), "completion": proposal},
        {
            "role": "solver",
            "prompt": fill("solver", problem=question),
            "completion": f"{solution} <answer>{c}</answer>",
        },
    ]


if __name__ == "__main__":
    rows = map(json.loads, Path(sys.argv[1]).read_text(encoding="utf-8").splitlines())
    lines = [json.dumps(example) for row in rows for example in examples_of(row)]
    Path(sys.argv[2]).write_text("\n".join(lines) + "\n", encoding="utf-8")
    print(f"{len(lines)} examples in {sys.argv[2]}")
