"""Evaluations as text, from objects like those in `eval/*.json`."""

from typing import Any

from lite_selfplay.evaluation import as_markdown, as_text, change, comparison, headline
from lite_selfplay.games.presentation import percent


def score(share: float, low: float, high: float, tokens: float = 40.0) -> dict[str, Any]:
    return {"pass_at_1": share, "ci95": [low, high], "tokens_final_mean": tokens, "tokens_total_mean": 2 * tokens}


def result(seats: dict[str, Any], directions: dict[str, Any] | None = None, **values: Any) -> dict[str, Any]:
    scores = directions or seats
    best = max(scores, key=lambda name: scores[name]["pass_at_1"])
    found: dict[str, Any] = {"tasks": "sums", "n": 100, "samples": 1, "best": best, **scores[best], "seats": seats}
    if directions:
        mean = sum(found["pass_at_1"] for found in directions.values()) / len(directions)
        found |= {"directions": directions, "mean_of_directions": mean}
    return {**found, "per_problem": {}, **values}


BASE = result({"base": score(0.2, 0.1267, 0.2918, 90)})
COLD = result(
    {"A": score(0.3, 0.21, 0.4), "B": score(0.32, 0.23, 0.42)},
    {"A->B": score(0.36, 0.27, 0.46, 50), "B->A": score(0.33, 0.24, 0.43)},
)
TRAINED = result(
    {"A": score(0.34, 0.25, 0.44), "B": score(0.38, 0.28, 0.48)},
    {"A->B": score(0.41, 0.31, 0.51), "B->A": score(0.44, 0.34, 0.54, 30)},
)
MOMENTS = {"untouched": BASE, "after cold start": COLD, "after 24 steps": TRAINED}


def test_headlines():
    assert [percent(share) for share in (0, 0.34, 0.425, 1 / 3, 1)] == ["0%", "34%", "42.5%", "33.3%", "100%"]
    one = result({"s": score(0.5, 0.1, 0.9)}, {"s->s": score(1, 0.4, 1)}, n=1, samples=4)
    assert [headline(found) for found in (TRAINED, BASE, one)] == [
        "A 34%, B 38%, A->B 41%, B->A 44% [34, 54], mean of both 42.5%; 100 problems",
        "base 20% [13, 29]; 100 problems",
        "s 50%, s->s 100% [40, 100]; 1 problem, 4 samples each",
    ]


def test_a_line_says_what_share_of_answers_was_cut_off_if_it_is_more_than_a_tenth():
    cut = {"A": {**score(0.3, 0.2, 0.4), "truncated": 0.1}, "B": {**score(0.3, 0.2, 0.4), "truncated": 0.62}}
    said = headline(result(cut, max_completion_tokens=160))
    assert said == "A 30% [20, 40], B 30%; 100 problems; 62% of B's answers were cut off at 160 tokens"
    short = result({"A": cut["A"]}, max_completion_tokens=160)
    assert "cut off" not in headline(short)
    assert comparison({"before": short, "after": result(cut)})[1][-1] == ["cut off", "10%", "62%"]
    assert comparison({"before": short})[1][-1][0] == "tokens"


def test_moments_side_by_side():
    columns, rows = comparison(MOMENTS)
    assert columns == ["", "untouched", "after cold start", "after 24 steps"]
    assert comparison({"later": TRAINED, "untouched": BASE})[1][0][0] == "base model"  # wherever it was measured
    assert rows == [
        ["base model", "20% [13, 29]", "-", "-"],
        ["A", "-", "30% [21, 40]", "34% [25, 44]"],
        ["B", "-", "32% [23, 42]", "38% [28, 48]"],
        ["A->B", "-", "36% [27, 46]", "41% [31, 51]"],
        ["B->A", "-", "33% [24, 43]", "44% [34, 54]"],
        ["mean of both", "-", "34.5%", "42.5%"],
        ["tokens, final stage", "90", "50", "30"],
        ["tokens, both stages", "180", "100", "60"],
    ]


def test_seats_alone_have_one_length():
    columns, rows = comparison({"untouched": BASE, "after 2 steps": result({"solver": score(0.5, 0.4, 0.6)})})
    assert as_text(columns, rows) == (
        "               untouched  after 2 steps\n"
        "base model  20% [13, 29]              -\n"
        "solver                 -   50% [40, 60]\n"
        "tokens                90             40"
    )
    assert as_markdown(columns, rows).splitlines()[:3] == [
        "|  | untouched | after 2 steps |",
        "| --- | ---: | ---: |",
        "| base model | 20% [13, 29] | - |",
    ]


def pairwise(names: dict[str, str]) -> dict[str, dict[str, bool]]:
    """Problem i of each name is right where character i is 1."""
    n = len(next(iter(names.values())))
    return {f"p{i}": {name: digits[i] == "1" for name, digits in names.items()} for i in range(n)}


def test_the_change_of_the_directions_with_its_paired_test():
    before = {**COLD, "n": 10, "per_problem": pairwise({"A": "0" * 10, "A->B": "1100000000", "B->A": "1111100000"})}
    after = {**TRAINED, "n": 10, "per_problem": pairwise({"A": "1" * 10, "A->B": "0111110000", "B->A": "1111100000"})}
    # A->B: five gained... p2 to p5 are new, p0 is lost: 4 against 1, 2 * 6/32.
    assert change({"x": BASE, "before": before, "after": after}) == (
        "before -> after: A->B +30 points (4 gained, 1 lost, p = 0.38), B->A no change (0 gained, 0 lost, p = 1)"
    )


def test_the_change_of_what_the_moments_share():
    base = {**BASE, "n": 4, "per_problem": pairwise({"base": "1000"})}
    first = {**result({"A": score(0.5, 0, 1)}), "n": 4, "per_problem": pairwise({"A": "1100"})}
    second = {**TRAINED, "n": 3, "per_problem": pairwise({"A": "111", "A->B": "000", "B->A": "111"})}
    # Seats where only one moment has directions, the best where they share none, and only the common problems.
    assert change({"first": first, "second": second}) == (
        "first -> second, on the 3 problems in both: A +33.3 points (1 gained, 0 lost, p = 1)"
    )
    assert change({"base": base, "first": first}) == (
        "base -> first: A against base model +25 points (1 gained, 0 lost, p = 1)"
    )


def test_shares_have_no_paired_test_and_other_problems_no_change():
    one, two = ({**result({"A": score(rate, 0, 1)}), "n": 1, "per_problem": {"p": {"A": rate}}} for rate in (0.5, 0.25))
    assert change({"one": one, "two": two}) == "one -> two: A -25 points"
    assert change({"one": one}) is None
    assert change({"one": COLD, "two": TRAINED}) is None
    assert change({"one": one, "two": {**two, "tasks": "other"}}) is None
