"""Arms compared, and evaluations side by side, by hand numbers."""

import json
import re
from typing import Any

import pytest

from lite_selfplay.data import Sampling
from lite_selfplay.evaluation.comparisons import Arm, compare, disagreements, met
from lite_selfplay.evaluation.result import Evaluation, means, overview, settings_line
from lite_selfplay.evaluation.suites import SUITES, find_suite, is_base_model
from lite_selfplay.games.modes import Judged, Score, score_of
from lite_selfplay.stats import paired_bootstrap, paired_test
from lite_selfplay.tasks.benchmarks import BENCHMARKS
from tests.made import completion


def result(tasks: str, mode: str = "single", data: str = "f", **outcomes: list[Any]) -> dict[str, Any]:
    """An evaluation whose seats had these outcomes."""

    def score(row: list[Any]) -> dict[str, Any]:
        rate = sum(row) / len(row)
        lengths = {"tokens_final_mean": 20.0, "tokens_total_mean": 20.0}
        at_k = {"pass_at_k": {"1": rate, "4": 1.0}, "mean_at_k": {"1": rate, "4": rate}, "maj_at_k": {"4": 0.5}}
        shares = {"well_formed": 1.0, "truncated": 0.0}
        return {"pass_at_1": rate, "ci95": [0.0, 1.0], "samples": 4, **lengths, **shares, **at_k}

    size = len(next(iter(outcomes.values())))
    asked = {"temperature": 0.6, "top_p": 0.95, "seed": 0, "max_completion_tokens": 50, "shots": 0, "samples": 4}
    what = {"mode": mode, "tasks": tasks, "n": size, "best": next(iter(outcomes))}
    return {
        **what,
        **asked,
        "seats": {name: score(row) for name, row in outcomes.items()},
        "per_problem": {f"p{i}": {name: row[i] for name, row in outcomes.items()} for i in range(size)},
        "answers": {f"p{i}": {name: [str(i)] for name in outcomes} for i in range(size)},
        "data": {"origin": "x.jsonl", "rows": 7, "fingerprint": data * 64},
    }


def test_single_answers_are_compared_exactly():
    before, after = [True, False, False, False, True], [True, True, True, False, False]
    first, second = Arm("m", result("sums", A=before), "A"), Arm("m", result("sums", B=after), "B")
    found = compare(first, second)
    assert found is not None
    what = {"tasks": "sums", "first": "A", "second": "B", "n": 5, "differ": ["p1", "p2", "p4"]}
    decided = dict(zip(("gained", "lost", "p_value"), paired_test(before, after), strict=True))
    difference = {"difference": pytest.approx(0.2), "interval": list(paired_bootstrap(before, after)[1:])}
    assert json.loads(json.dumps(found.to_json())) == what | difference | decided
    assert found.sentence().startswith("sums: B against A +20.0 points [")
    assert found.sentence().endswith("(2 gained, 1 lost: 66.7% [9, 99], p = 1); 5 problems")
    shown = disagreements(first, second, found, 2)
    assert [case["id"] for case in shown] == ["p1", "p2"]
    assert shown[0]["first"] == {"right": False, "answers": ["1"], "texts": []}


def test_shares_are_compared_by_the_bootstrap_and_the_largest_differences_come_first():
    first, second = Arm("a", result("sums", A=[0.5, 0.5, 0.0]), "A"), Arm("b", result("sums", A=[0.75, 0.5, 1.0]), "A")
    found = compare(first, second)
    assert found is not None
    assert found.to_json()["p_value"] is None
    assert found.differ == ("p2", "p0")
    assert (found.first, found.second) == ("a A", "b A")
    assert "p =" not in found.sentence()


def test_what_was_asked_stands_beside_and_other_problems_are_not_compared():
    assert settings_line(result("sums", A=[True, False])) == (
        "2 problems of sums, 4 answers each; temperature 0.6, top-p 0.95, seed 0, at most 50 tokens; "
        "7 rows of x.jsonl, fingerprint ffffffffffff"
    )
    arm = Arm("m", result("sums", A=[True]), "A")
    for other in (result("other", A=[True]), result("sums", data="0", A=[True])):
        assert compare(arm, Arm("m", other, "A")) is None


def test_benchmarks_and_modes_side_by_side_with_their_means():
    results = [
        result("sums", A=[True, False]),
        result("sums", "vote", A=[True, True]),
        result("words", A=[True, True, True, False]),
        result("words", "vote", A=[False, True, False, False]),
    ]
    columns, rows, _ = overview(results)
    assert columns[:7] == ["benchmark", "mode", "", "pass@1 [95%]", "pass@4", "maj@4", "well-formed"]
    assert [row[:4] for row in rows] == [
        ["sums", "single", "A", "50% [0, 100]"],
        ["sums", "vote", "A", "100% [0, 100]"],
        ["words", "single", "A", "75% [0, 100]"],
        ["words", "vote", "A", "25% [0, 100]"],
        ["mean of 2", "single", "A", "62.5%"],
        ["mean of 2", "vote", "A", "62.5%"],
    ]
    assert {len(row) for row in rows} == {len(columns)}
    (single, vote) = means(results)
    assert (single["pass_at_1"], vote["pass_at_1"]) == (0.625, 0.625)
    assert single["maj_at_k"] == {"4": 0.5}
    assert means(results[:2]) == []


def test_loops_stand_beside_truncated_where_there_are_any():
    answers = [[Judged(completion("x", stop), False, False)] for stop in ("loop", "length", "eos", "loop")]
    score = score_of(answers)
    assert (score.truncated, score.loops) == (0.75, 0.5)
    seat = {**result("sums", A=[True])["seats"]["A"], "truncated": 0.75}
    for loops, wanted in ((0.0, ["75%", None]), (0.5, ["75%", "50%"])):
        columns, (row,), _ = overview([{**result("sums", A=[True]), "seats": {"A": {**seat, "loops": loops}}}])
        found = dict(zip(columns, row, strict=True))
        assert [found.get("truncated"), found.get("loops")] == wanted


def test_suites_name_benchmarks_and_average_them():
    for suite in SUITES.values():
        assert set(suite.samples) <= BENCHMARKS.keys()
        assert all(set(tasks) <= set(suite.samples) for tasks in suite.averages.values())
        assert suite.source
    # SPC's table 3: without a verifier, self-consistency, SPC and both together.
    assert find_suite("spc").modes == ("single", "vote", "search")
    cpmobius = find_suite("cpmobius")
    assert cpmobius.samples == {"amc": 10, "aime24": 32, "aime25": 32, "minerva": 6, "math500": 5, "olympiadbench": 3}
    rates = {"amc": 4, "aime24": 0, "aime25": 1, "minerva": 2, "math500": 3, "olympiadbench": 2}
    results = [result(task, solver=[True] * right + [False] * (4 - right)) for task, right in rates.items()]
    assert [(mean["average"], mean["pass_at_1"]) for mean in cpmobius.means(results)] == [
        ("average", pytest.approx(12 / 24)),
        ("OOD average", pytest.approx(8 / 20)),
    ]
    assert cpmobius.means(results[:5]) == []
    assert any("average, single of solver: 50%" in line for line in cpmobius.lines(results))


def test_base_models_are_asked_with_worked_examples():
    for name in ("Qwen3-1.7B-Base", "Qwen2.5-1.5B"):
        assert (find_suite("pasodoble").settings(name)["shots"], is_base_model(name)) == (4, True)
    for name in ("Qwen2.5-1.5B-Instruct", "Qwen3-0.6B", "runs/agon"):
        assert (find_suite("pasodoble").settings(name)["shots"], is_base_model(name)) == (0, False)


def evaluation(mode: str, **outcomes: str) -> Evaluation:
    """An evaluation of ten problems whose outcomes are given as `+` and `-`; `A_B` is the direction A->B."""
    rows = {name.replace("_", "->"): [sign == "+" for sign in signs] for name, signs in outcomes.items()}
    seats: dict[str, Score] = {}
    directions: dict[str, Score] = {}
    for name, row in rows.items():
        found = Score(sum(row) / 10, (0.0, 1.0), 10, 1, sum(row), 1.0, 0.0, 0.0, 0, 20.0, 20.0)
        (directions if "->" in name else seats)[name] = found
    problems = {f"p{i}": {name: row[i] for name, row in rows.items()} for i in range(10)}
    return Evaluation(mode, "sums", Sampling(), 0, seats, directions, problems)


def sentences(found: Evaluation) -> list[str]:
    return [re.sub(r" \[[^]]*\] ", " ", comparison.sentence(), count=1) for *_, comparison in met("run", found)]


def test_an_evaluation_prints_as_a_table():
    found = evaluation("single", A="+++++-----", B="++++++++--")
    lines = [line.split(maxsplit=1) for line in str(found).splitlines()]
    assert lines == [["sums"], ["A", "50% [0, 100]"], ["B", "80% [0, 100]"], ["tokens", "20"]]
    assert found._repr_markdown_().splitlines()[2] == "| A | 50% [0, 100] |"


def test_every_two_seats_meet_alone():
    # Of A and B, B alone is right on p5 to p7: 3 of 3, at least 0.025^(1/3) = 29%; p = 2/8. C is as A, but for p0.
    found = evaluation("single", A="+++++-----", B="++++++++--", C="-++++-----")
    assert sentences(found) == [
        "sums: B against A +30.0 points (3 gained, 0 lost: 100% [29, 100], p = 0.25); 10 problems",
        "sums: C against A -10.0 points (0 gained, 1 lost: 0% [0, 98], p = 1); 10 problems",
        "sums: C against B -40.0 points (0 gained, 4 lost: 0% [0, 60], p = 0.12); 10 problems",
    ]
    (nothing_decided,) = sentences(evaluation("single", A="+-+-+-+-+-", B="+-+-+-+-+-"))
    assert nothing_decided == "sums: B against A +0.0 points (0 gained, 0 lost, p = 1); 10 problems"


def test_in_duels_a_seat_meets_the_draft_that_it_read_in_both_orders():
    # Of A's drafts B converts p5 to p7 and loses p0: 3 of 4, p = 2 (4 + 1) / 16. Of B's A converts none and loses two.
    found = evaluation("cascade", A="+++++-----", B="++++++++--", A_B="-+++++++--", B_A="--++++++--")
    assert sentences(found) == [
        "sums: A->B against A +20.0 points (3 gained, 1 lost: 75% [19, 99], p = 0.62); 10 problems",
        "sums: B->A against B -20.0 points (0 gained, 2 lost: 0% [0, 84], p = 0.5); 10 problems",
    ]
    assert met("run", found)[0][2].differ == ("p0", "p5", "p6", "p7")
