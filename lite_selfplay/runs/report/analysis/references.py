"""True answers to questions that a run wrote itself, from a file: a person's, or those of a stronger model."""

from pathlib import Path

from lite_selfplay.errors import TaskError
from lite_selfplay.tasks.jsonl import read_jsonl
from lite_selfplay.tasks.split import content_key


def read_references(path: Path) -> dict[str, str]:
    """Answers by the content of their questions, from a JSONL file of problems. Raises TaskError for another file."""
    found = {}
    for problem in read_jsonl(path):
        if isinstance(problem.answer, str):
            found[content_key(problem)] = problem.answer
    if not found:
        raise TaskError(f"{path} holds no question with one answer in writing")
    return found
