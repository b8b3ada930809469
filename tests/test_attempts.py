"""The experiment on traces of several attempts: its task, its base and what is measured of it."""

import json
import random
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest


@pytest.fixture
def task(script: Callable[[str], Any]) -> Any:
    return script("experiments/attempts/task")


def test_a_trace_tries_numbers_until_one_fits(task: Any):
    search = task.Search(7, 35, 11)  # 7 * 11 = 77 = 4 * 17 + 9
    assert str(search) == "7x mod 17=9, x from 10 to 26. Give 100x+35."
    assert search.check(12) == "12:16\n"  # 84 = 4 * 17 + 16
    traces = [task.worked(search, random.Random(i), first=9 + 1) for i in range(100)]
    found = [trace for trace in traces if trace.found]
    assert {trace.completion for trace in found} == {"10:2\n11:9!\n</think>\nx=11, so 1135. <answer>1135</answer>"}
    assert {trace.completion for trace in traces if not trace.found} == {
        "10:2\n</think>\nx not 10-10. <answer>none</answer>"
    }
    assert task.following(26) == 10


def test_held_out_problems_are_others_and_every_answer_is_the_only_one(task: Any):
    asked, held_out = task.find(0).problems, task.find(0, True).problems
    texts = [{problems[i].text for i in range(300)} for problems in (asked, held_out)]
    assert not texts[0] & texts[1]
    for i in range(50):
        search = task.Search.of(held_out[i])
        fits = [x for x in task.CANDIDATES if search.a * x % 17 == search.a * search.x % 17]
        assert [search.answer(x) for x in fits] == [held_out[i].answer]


def test_who_reads_a_recap_goes_on_after_it(task: Any, script: Callable[[str], Any]):
    base, rng = script("experiments/attempts/base"), random.Random(0)
    search = task.Search(7, 35, 11)
    read = [base.attempt(search, rng) for _ in range(200)]
    assert ("", None) in read  # none is available
    assert ("x=11, so 1135.", 11) in read
    assert ("x not 12-14.", 15) in read
    assert any(recap.startswith("x=") and first != 11 for recap, first in read)  # one that is false


@pytest.mark.slow
def test_a_base_is_made_and_measured(script: Callable[[str], Any], tmp_path: Path):
    base = script("experiments/attempts/base")
    base.pretrain(tmp_path / "base", count=1)
    assert json.loads((tmp_path / "base" / "provenance.json").read_text())["parameters"] < 2**20
    measure = script("experiments/attempts/measure")
    (row,) = measure.measured(str(tmp_path / "base"), "cascade", limit=2, samples=2, seed=0).values()
    assert row["alone"] == row["second"] == 0  # it has learned nothing
    assert row["attempts: draft"] <= 6
