"""The split into training and held-out problems, by a problem's content, never by its id or a seed.

And contamination: evaluation problems that occur in training data, found by content and by 13-grams of words.
Source: the 13-gram overlap of GPT-3 (Brown et al. 2020, appendix C), here between problems and training texts. Problems
from one template may share 13-grams, too, so an overlap is a reason to look, not a proof.
"""

import hashlib
import json
import re
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, replace
from typing import Any

from lite_selfplay.data import Problem
from lite_selfplay.errors import ConfigError, TaskError
from lite_selfplay.tasks.task import Task, derived_rng, derived_seed

DEFAULT_LIMIT, MOST = 100, 1_000_000
PATIENCE = 1000  # consecutive repetitions, after which a procedural task is assumed to have no more problems
WORDS = 13  # of an n-gram
_HELD_OUT_ONE_IN = 5
_WORD = re.compile(r"\w+")


def content_key(problem: Problem) -> str:
    """A problem's content as a key: its `extra["content"]`, or its text in lower case with single spaces. A problem
    with the key of a held-out one is not trained on."""
    content = problem.extra.get("content")
    return content if isinstance(content, str) else _plain(problem.text)


def _contents(problem: Problem) -> set[str]:
    """A problem's content, and that of the problem whose text is in `extra["about"]`: an item may be about another
    problem, such as a step of its solution."""
    about = problem.extra.get("about")
    return {content_key(problem), *([_plain(about)] if isinstance(about, str) else [])}


def _plain(text: str) -> str:
    return " ".join(text.casefold().split())


def fingerprint(problems: Iterable[Problem]) -> str:
    """The SHA-256, in hexadecimal digits, of the problems' texts and answers in their order."""
    lines = (
        json.dumps([problem.text, problem.answer], ensure_ascii=True, sort_keys=True) + "\n" for problem in problems
    )
    return hashlib.sha256("".join(lines).encode()).hexdigest()


def data_facts(task: Task) -> dict[str, Any]:
    """Facts about a task's data: origin, number of rows, fingerprint and, if any, the number of duplicates. Empty for a
    procedural task."""
    if task.procedural:
        return {}
    repeated = len(task.problems) - len(different(task.problems))
    facts = {"origin": task.origin, "rows": len(task.problems), "fingerprint": fingerprint(task.problems)}
    return {**facts, "repeated": repeated} if repeated else facts


def held_out_side(key: str) -> bool:
    """Whether problems with this content key are held out. About one in five is, independently of any seed."""
    return derived_seed("held out", key) % _HELD_OUT_ONE_IN == 0


def without(problems: Iterable[Problem], held_out_problems: Iterable[Problem]) -> list[Problem]:
    """The problems whose content is not held out, in their order.

    An item about another problem (`extra["about"]`, for example a step of its solution) is held out with that problem,
    and that problem with the item. For files only: the two sides of a procedural task never overlap.
    """
    held_out = set().union(*map(_contents, held_out_problems))
    return [problem for problem in problems if held_out.isdisjoint(_contents(problem))]


def training_side(task: Task, held_out_problems: Sequence[Problem]) -> Task:
    """A task without the held-out problems; a procedural task unchanged, since its two sides never overlap. Raises
    ConfigError if a file has no other problems."""
    if not held_out_problems or task.procedural:
        return task
    problems = without(task.problems, held_out_problems)
    if not problems:
        raise ConfigError(
            f"every problem of {task.name} is held out for evaluation or validation: set a smaller --eval-limit or "
            "tasks.validation_limit, or other cold_start.tasks"
        )
    return replace(task, problems=problems)


def evaluation_set(task: Task, limit: int | None = None, seed: int = 0) -> list[Problem]:
    """The problems to evaluate on, each once (`different`), in the task's order.

    From a file, `limit` problems chosen by the seed (all if it is None or exceeds the file); from a procedural task,
    the first `limit` (100 if it is None) or as many as there are. Raises TaskError if the limit is below 1 or the task
    has no problem.
    """
    if limit is not None and not 1 <= limit <= MOST:
        bound = "at least 1" if limit < 1 else f"at most {MOST:,}"
        raise TaskError(f"the number of problems to evaluate on must be {bound}, got {limit}")
    chosen = different(task.problems, limit or DEFAULT_LIMIT) if task.procedural else different(task.problems)
    if not chosen:
        raise TaskError(f"{task.name} has no problem to evaluate on")
    if limit is None or limit >= len(chosen):
        return chosen
    rng = derived_rng(seed, "evaluation", task.name)
    return [chosen[index] for index in sorted(rng.sample(range(len(chosen)), limit))]


def different(problems: Iterable[Problem], most: int | None = None) -> list[Problem]:
    """The problems without repetitions, in their order.

    A repetition has the same answer and exactly the same text (or the same `extra["content"]`, if the task provides
    it); the split between training and evaluation is coarser (`content_key`). With `most`, stops after that many
    problems, or after `PATIENCE` repetitions in a row.
    """
    found: dict[str, Problem] = {}
    repeats = 0
    for problem in problems:
        known = len(found)
        text = content_key(problem) if isinstance(problem.extra.get("content"), str) else problem.text
        found.setdefault(json.dumps([text, problem.answer], default=repr), problem)
        repeats = repeats + 1 if len(found) == known else 0
        if most is not None and (len(found) == most or repeats == PATIENCE):
            break
    return list(found.values())


@dataclass(frozen=True)
class Overlap:
    """Which of `n` evaluation problems were found in training data.

    `same`: ids of those with the content of a training problem. `shared`: ids of those that share a 13-gram of words
    with a training text, including those of `same` that are long enough. Both in the evaluation's order.
    """

    n: int
    same: tuple[str, ...]
    shared: tuple[str, ...]

    @property
    def ids(self) -> tuple[str, ...]:
        """The ids in `same` or `shared`."""
        return tuple(dict.fromkeys([*self.same, *self.shared]))

    def warning(self, shown: int = 10) -> str | None:
        """A sentence with the counts and the first ids; None if nothing was found."""
        if not self.ids:
            return None
        listed = ", ".join(self.ids[:shown]) + (", ..." if len(self.ids) > shown else "")
        return (
            f"{len(self.ids)} of {self.n} evaluation problems occur in the training data ({len(self.same)} with the "
            f"same content, {len(self.shared)} with {WORDS} words in a row in common): {listed}"
        )


def overlap(evaluation: Sequence[Problem], training: Iterable[Problem | str]) -> Overlap:
    """Compare evaluation problems with training problems or texts; only the text of a problem is compared. The training
    data are iterated once and not kept. A problem of fewer than 13 words is found by its content only."""
    contents, ngrams = [_contents(problem) for problem in evaluation], [_ngrams(problem.text) for problem in evaluation]
    every_content, every_ngram = set().union(*contents), set().union(*ngrams)
    learned: set[str] = set()
    read: set[int] = set()
    for item in training:
        problem = Problem("", item) if isinstance(item, str) else item
        learned |= every_content & {content_key(problem)}
        read |= every_ngram & _ngrams(problem.text)
    return Overlap(
        len(evaluation),
        same=tuple(problem.id for problem, own in zip(evaluation, contents, strict=True) if own & learned),
        shared=tuple(problem.id for problem, own in zip(evaluation, ngrams, strict=True) if own & read),
    )


def _ngrams(text: str) -> set[int]:
    """Hashes of the 13-grams of words, in lower case and without punctuation."""
    words = _WORD.findall(text.casefold())
    return {hash(" ".join(words[i : i + WORDS])) for i in range(len(words) - WORDS + 1)}
