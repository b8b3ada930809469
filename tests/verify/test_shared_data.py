"""Every reference answer of the benchmark files is accepted as its own answer, in each form of a completion."""

from collections.abc import Iterable
from functools import cache
from itertools import product
from pathlib import Path
from typing import Any

import pytest

from lite_selfplay.tasks.jsonl import read_jsonl
from lite_selfplay.verify.math import check_all
from tests.made import jsonl
from tests.made import shared_problems as read_shared

ROWS = {
    "aime24": 30, "aime25": 30, "amc": 83, "gsm8k_test": 1319, "gsm8k_train": 7473, "math500": 500,
    "mawps_singleop": 562, "minerva": 272, "olympiadbench": 675, "svamp": 1000,
}  # fmt: skip
FORMS = {
    "boxed": r"so \boxed{%s}.",
    "block": "<answer>%s</answer>",
    "sentence": "Therefore, the answer is %s.",
    "formula": "Therefore, the answer is $%s$.",
    "aside": "The answer is therefore %s, so we are done.",
}

pytestmark = pytest.mark.data
shared_problems = cache(read_shared)


def written(answer: Any) -> str:
    return ", ".join(answer) if isinstance(answer, list) else answer


def distinct(pairs: Iterable[tuple[str, Any]]) -> list[tuple[str, Any]]:
    """Each pair once: whole numbers come again and again, and a verdict depends on nothing but the pair."""
    return list({repr(pair): pair for pair in pairs}.values())


QUICK = {*product(["aime25"], FORMS), *product(set(ROWS) - {"gsm8k_train"}, ["boxed"])}
CASES = [pytest.param(*case, marks=() if case in QUICK else pytest.mark.long) for case in product(ROWS, FORMS)]
"""Every file in one form, and one in every form; all of them in the long suite."""


@pytest.mark.parametrize(("name", "form"), CASES)
def test_a_reference_is_accepted_as_its_own_answer_and_not_beside_another(name: str, form: str) -> None:
    problems = shared_problems(name)
    assert len(problems) == ROWS[name]
    pairs = distinct((f"Some work. {FORMS[form] % written(p.answer)}", p.answer) for p in problems)
    verdicts = check_all(pairs)
    assert [(pair, v.reason) for pair, v in zip(pairs, verdicts, strict=True) if not v.correct] == []
    hedged = distinct((FORMS[form] % f"{written(p.answer)} or 987654321", p.answer) for p in problems[::10])
    assert not any(verdict.correct for verdict in check_all(hedged))


def test_another_integer_is_wrong() -> None:
    answers = [int(problem.answer) for problem in shared_problems("gsm8k_test")]
    verdicts = check_all(distinct((FORMS["sentence"] % (answer + 1), answer) for answer in answers))
    assert {verdict.reason for verdict in verdicts} == {"wrong"}


# Minerva's lists hold alternatives, and nothing in a row says so: a file that means them writes {"any_of": [...]}.


@pytest.mark.parametrize(
    "form", ["boxed", *(pytest.param(form, marks=pytest.mark.long) for form in ("block", "sentence"))]
)
def test_each_of_minervas_alternatives_is_right_alone(form: str, tmp_path: Path) -> None:
    lists = [problem for problem in shared_problems("minerva") if isinstance(problem.answer, list)]
    rows = [{"problem": problem.text, "answer": {"any_of": problem.answer}} for problem in lists]
    assert len(rows) == 75
    path = jsonl(tmp_path / "alternatives.jsonl", *rows)
    pairs = [(FORMS[form] % value, p.answer) for p in read_jsonl(path).problems for value in p.answer["any_of"]]
    verdicts = check_all(pairs)
    assert [pair for pair, verdict in zip(pairs, verdicts, strict=True) if not verdict.correct] == []


def test_four_of_the_lists_need_two_values() -> None:
    lists = [problem for problem in shared_problems("minerva") if isinstance(problem.answer, list)]
    verdicts = check_all([(FORMS["boxed"] % p.answer[0], p.answer) for p in lists])
    refused = [problem.id for problem, verdict in zip(lists, verdicts, strict=True) if not verdict.correct]
    assert refused == ["minerva-0010", "minerva-0017", "minerva-0088", "minerva-0193"]
