"""Tables of experiments by hand numbers."""

import json
from typing import Any

import pytest

from lite_selfplay.evaluation.suites import find_suite
from lite_selfplay.extras.reproduce.experiment import ArmSection, EvaluationSection, Experiment
from lite_selfplay.extras.reproduce.findings import draw, findings, table, to_json
from lite_selfplay.stats import clopper_pearson, over_seeds, paired_test

EXPERIMENT = Experiment(
    name="toy",
    about="A toy.",
    source="nowhere, table 1",
    paper="a large model on a large card",
    base={"model": "tiny"},
    seeds=(0, 1),
    evaluations=(EvaluationSection(tasks="sums"),),
    arms={"solo": ArmSection(game="grpo"), "pair": ArmSection(game="agon", paper={"sums": "61, 3.5k tokens"})},
)


def scores(rows: dict[str, list[Any]], final: float, total: float) -> dict[str, Any]:
    common = {"ci95": [0, 1], "samples": 1, "tokens_final_mean": final, "tokens_total_mean": total}
    return {name: {**common, "pass_at_1": sum(row) / len(row)} for name, row in rows.items()}


def evaluation(seats: dict[str, list[Any]], directions: dict[str, list[Any]]) -> dict[str, Any]:
    both, shown = {**seats, **directions}, directions or seats
    keys = [f"p{i}" for i in range(len(next(iter(both.values()))))]
    about = {"mode": "cascade" if directions else "single", "tasks": "sums", "n": len(keys), "seconds": 2.0}
    sampling = {"temperature": 0.6, "top_p": 0.95, "max_completion_tokens": 40, "samples": 1}
    best = max(shown, key=lambda name: sum(shown[name]))
    found = {"best": best, "pass_at_1": sum(shown[best]) / len(keys), "seats": scores(seats, 30, 30)}
    found |= {"directions": scores(directions, 20, 50)} if directions else {}
    per_problem = {key: {name: row[i] for name, row in both.items()} for i, key in enumerate(keys)}
    return {**about, **sampling, **found, "per_problem": per_problem}


def record(arm: str, seed: int, made: dict[str, Any]) -> dict[str, Any]:
    training = {"steps": 2, "seconds": 60.0, "tokens": 500}
    return {"arm": arm, "seed": seed, "training": training, "evaluations": [made]}


T, F = True, False
ONE = EXPERIMENT.model_copy(update={"seeds": (0,)})
# solo solves 1 of 4, then 2 of 4. pair: A->B solves 3 and B->A 2 of 4 in seed 0, 4 and 3 in seed 1.
RECORDS = [
    record("solo", 0, evaluation({"solver": [T, F, F, F]}, {})),
    record("pair", 0, evaluation({"A": [F] * 4, "B": [F] * 4}, {"A->B": [T, T, T, F], "B->A": [T, T, F, F]})),
    record("solo", 1, evaluation({"solver": [T, T, F, F]}, {})),
    record("pair", 1, evaluation({"A": [F] * 4, "B": [F] * 4}, {"A->B": [T, T, T, T], "B->A": [T, T, T, F]})),
]


def test_several_seeds():
    solo, pair = findings(EXPERIMENT, RECORDS)
    assert (solo.arm, solo.task, solo.n, solo.seeds) == ("solo", "sums", 4, (0, 1))
    assert (solo.values, solo.pass_at_1, solo.difference) == ((0.25, 0.5), 0.375, None)
    # Student's t of two seeds reaches beyond both ends.
    assert (solo.std, solo.interval) == (over_seeds([0.25, 0.5]).std, (0.0, 1.0))
    # The mean over directions, not the better one: (3 + 2) / 8 and (4 + 3) / 8.
    assert (pair.values, pair.pass_at_1) == ((0.625, 0.875), 0.75)
    # Of two directions each has a confidence of 97.5%, so that whichever was chosen has 95%.
    assert (pair.better, solo.better) == (((0.75 + 1.0) / 2, (0.0, 1.0)), None)
    (_, one), (_, low, high) = (findings(EXPERIMENT, RECORDS[:2]), (0, *clopper_pearson(3, 4, 0.975)))
    assert one.better == (0.75, (low, high))
    # By problem: 1, 1, 0.75, 0.25 against 1, 0.5, 0, 0.
    assert pair.difference is not None
    assert pair.difference.mean == pytest.approx(0.375)
    # 0.625 - 0.25 and 0.875 - 0.5: equal seeds do not show how far the next one may lie.
    assert (pair.difference[1:], pair.gain) == ((None, None, None), None)
    assert one.difference is not None
    assert one.difference.interval is not None
    assert one.difference.mean == 0.375  # by problem 0, 1, 0.5 and 0: two of four sign assignments lie as far from 0
    assert (one.difference.p_value, one.difference.holm) == (0.5, 0.5)
    assert (pair.final, pair.total, solo.final, solo.total, pair.seconds) == (20, 50, 30, 30, 4.0)


def test_a_gain_is_over_the_cold_start_that_the_seats_began_with():
    arms = {
        "begun": ArmSection(start="cold-start"),
        "begun as two": ArmSection(start="cold-start", cold_start="agon"),
        **EXPERIMENT.arms,
        "pair alone": ArmSection(of="pair", mode="single"),
    }
    experiment = EXPERIMENT.model_copy(update={"arms": arms, "cold_start": {"game": "self-refine"}, "baseline": "pair"})
    assert [experiment.starts_of(arm) for arm in arms] == [[], [], ["begun"], ["begun as two"], ["begun as two"]]
    begun = [record("begun", seed, evaluation({"solver": [T, F, F, F]}, {})) for seed in (0, 1)]
    begun[0]["evaluations"][0]["seats"]["solver"]["pass_at_k"] = {"1": 0.25, "16": 0.5}
    begun[0]["training"]["game"] = {"label_accuracy": 0.5}
    first, solo, pair = findings(experiment, [*begun, *RECORDS])
    # 0.25 and 0.5 after 0.25 and 0.25: a mean of 0.125 with a standard error of 0.125 over seeds, t(1) = 12.7062; one
    # of four problems gained 0.5, which has a standard error of 0.125 as well, t(3) = 3.18245.
    half = 0.125 * (12.7062**2 + 3.18245**2) ** 0.5
    assert solo.gain is not None
    assert solo.gain.mean == 0.125
    assert solo.gain.interval == pytest.approx((0.125 - half, 0.125 + half), rel=1e-5)
    assert (first.gain, pair.gain) == (None, None)
    assert first.own == {"pass@16": 0.5}
    text = table(experiment, [*begun, *RECORDS])
    assert "| +12.5 [-151.2, +176.2] |" in text
    assert "- begun, means over steps and seeds: label accuracy 0.5" in text


def test_one_seed_of_single_answers_has_exact_statistics():
    first, second = [T, F, F, F, T], [T, T, T, F, F]
    rows = [record("solo", 0, evaluation({"solver": first}, {})), record("pair", 0, evaluation({"A": second}, {}))]
    solo, pair = findings(ONE, rows)
    assert (solo.interval, solo.std) == (clopper_pearson(2, 5), None)
    assert pair.difference is not None
    assert pair.difference.p_value == paired_test(first, second)[2]
    assert pair.difference.mean == pytest.approx(0.2)


def test_the_table_names_whose_numbers_stand_beside_and_below_what_each_arm_learned_from():
    text = table(EXPERIMENT, RECORDS)
    header, _, solo, pair = [line for line in text.splitlines() if line.startswith("|")]
    assert "against solo" in header
    assert solo.startswith("| solo | 37.5 [0.0, 100.0] | ± 17.7 | - | - | - | - | 30 | 30 | 2:00 | 1,000 | - |")
    assert pair.startswith("| pair | 75.0 [")
    assert "| 87.5 [0.0, 100.0] | - | +37.5 | - | 20 |" in pair
    assert pair.endswith("| +37.5 | - | 20 | 50 | 2:00 | 1,000 | 61, 3.5k tokens |")
    assert "The last column is the paper's: a large model on a large card (nowhere, table 1)" in text
    assert "4 held-out problems, 2 seeds of training, size `full`" in text
    assert "temperature 0.6, top-p 0.95, at most 40 tokens, 1 completion per problem and stage" in text
    spent = {"rows": {"critic": 224}, "updates": {"critic": 12, "sneaky": 0}}
    rows = [{**each, "training": {**each["training"], **spent}} for each in (RECORDS[0], RECORDS[2])]
    rows[1]["training"]["rows"] = {"critic": 226}
    assert "- solo, used in training per seed: rows critic 225; updates critic 12, sneaky 0" in table(EXPERIMENT, rows)


def test_a_curve_is_a_table_by_step():
    def with_curve(row: dict[str, Any], curve: list[list[float]]) -> dict[str, Any]:
        return {**row, "training": {**row["training"], "curve": curve}}

    solo = [with_curve(RECORDS[0], [[0, 0.2], [20, 0.4]]), with_curve(RECORDS[2], [[0, 0.2], [20, 0.6]])]
    drawn = EXPERIMENT.model_copy(update={"curve": "evaluation"})
    shown = table(drawn, [*solo, with_curve(RECORDS[1], [[0, 0.1], [10, 0.3]])])
    assert "## pass@1 by step on" in shown
    assert [line for line in shown.splitlines() if line.startswith(("| arm | 0 ", "| solo | 20", "| pair | 10"))] == [
        "| arm | 0 | 10 | 20 |",
        "| solo | 20.0 ± 0.0 | - | 50.0 ± 14.1 |",
        "| pair | 10.0 | 30.0 | - |",
    ]
    # Of 25 steps every third from the last on.
    long = with_curve(RECORDS[0], [[step, 0.5] for step in range(25)])
    assert "| arm | 0 | 3 | 6 | 9 | 12 | 15 | 18 | 21 | 24 |" in table(drawn, [long])
    assert "by step" not in table(EXPERIMENT, RECORDS)


def test_what_is_counted_is_shown_as_a_share_of_all_answers():
    made = evaluation({"A": [F] * 4, "B": [F] * 4}, {"A->B": [T, T, F, F], "B->A": [T, F, F, F]})
    for name, converted in (("A->B", 2), ("B->A", 1)):
        made["directions"][name] |= {"conversions": converted, "regressions": 0, "n": 4}
    (pair,) = findings(EXPERIMENT, [record("pair", 0, made)])
    assert pair.own == {"conversions": 3 / 8, "regressions": 0.0}
    # What was won against several opponents has no columns.
    made = evaluation({"A against random": [T, F], "A against B": [F, F]}, {})
    for score in made["seats"].values():
        score |= {"draws": 1, "payoff": 1.5}
    (played,) = findings(ONE, [record("solo", 0, {**made, "mode": "versus"})])
    assert (played.pass_at_1, played.own) == (0.25, {})


def test_the_json_has_everything():
    found = json.loads(json.dumps(to_json(EXPERIMENT, RECORDS), allow_nan=False))
    solo, pair = found["arms"]
    assert (solo["arm"], pair["arm"]) == ("solo", "pair")
    keys = ("better", "better_interval", "difference", "difference_interval", "p_value", "holm")
    assert [solo[key] for key in keys] == [None] * 6
    assert [pair[key] for key in keys] == [0.875, [0.0, 1.0], 0.375, None, None, None]
    more = ("gain", "gain_interval", "gain_p_value", "gain_holm", "longer", "longer_interval")
    assert [pair[key] for key in more] == [None] * 6
    assert found["training"]["pair"] == {"seconds": 120.0, "tokens": 1000}
    assert found["records"] == json.loads(json.dumps(RECORDS))
    assert found["experiment"]["source"] == "nowhere, table 1"


def test_a_mean_of_benchmarks_stands_in_a_table_of_its_own():
    """PasoDoble's: 4 of its 6 sets at 1/2, two at 0 and 1 for the first arm; the second has all right."""
    sets = ("aime24", "aime25", "amc", "gsm8k", "math500", "olympiadbench")
    paper = {"solo": ArmSection(game="grpo", paper={"AVG": "38.27"}), "pair": ArmSection(start="base", shots=0)}
    suite = (EvaluationSection(suite="pasodoble"),)
    experiment = EXPERIMENT.model_copy(update={"seeds": (0,), "evaluations": suite, "arms": paper})
    rows = {"aime24": [F, F], "aime25": [T, T], **{name: [T, F] for name in sets[2:]}}
    solo = record("solo", 0, {})
    solo["evaluations"] = [{**evaluation({"solver": row}, {}), "tasks": name} for name, row in rows.items()]
    pair = {**solo, "arm": "pair", "training": {}}
    right = {**evaluation({"base": [T, T]}, {}), "otherwise": {"base": 0.5}}
    pair["evaluations"] = [{**right, "tasks": name} for name in sets]
    first, second = [each for each in findings(experiment, [solo, pair]) if each.task == "AVG"]
    assert (first.n, first.values, second.pass_at_1, second.otherwise) == (12, (0.5,), 1.0, 0.5)
    # Four variances of 1/2 over two problems each: an error of sqrt(4 / 4) / 6 of the mean of six.
    assert first.interval == pytest.approx((0.5 - 1.959964 / 6, 0.5 + 1.959964 / 6))
    # Student's t with a degree of freedom for each of the six.
    assert second.difference is not None
    assert second.difference.interval == pytest.approx((0.5 - 2.446912 / 6, 0.5 + 2.446912 / 6))
    assert second.difference.mean == pytest.approx(0.5)
    text = table(experiment, [solo, pair])
    assert text.count("38.27") == 1  # beside the mean that it is of, and beside no other
    assert "38.27" in text.partition("## AVG: 12 held-out problems")[2].splitlines()[6]
    assert "38.27" not in table(experiment.model_copy(update={"scale": "small"}), [solo, pair])


def test_how_much_longer_final_answers_are_than_the_baselines():
    """Final answers of 10, 20, 30 tokens beside 8, 16, 27 for the same problems: 2, 4 and 3 tokens fewer."""
    solo, pair = evaluation({"solver": [T, F, F]}, {}), evaluation({"A": [T, T, F]}, {})
    solo["lengths"], pair["lengths"] = {"p0": 10, "p1": 20, "p2": 30}, {"p0": 8, "p1": 16, "p2": 27}
    rows = [record("solo", 0, solo), record("pair", 0, pair)]
    first, second = findings(ONE, rows)
    assert first.longer is None
    assert second.longer is not None
    assert second.longer.mean == -3
    assert second.longer.interval is not None
    low, high = second.longer.interval
    assert -4 <= low < -3 < high <= -2
    assert f"| 30 (-3 [{low:+.0f}, " in table(ONE, rows)


def test_an_arm_that_was_trained_on_a_benchmark_is_marked_and_has_no_mean_out_of_distribution():
    sets = list(find_suite("cpmobius").samples)
    suite = (EvaluationSection(suite="cpmobius"),)
    experiment = EXPERIMENT.model_copy(update={"seeds": (0,), "evaluations": suite, "baseline": "pair"})

    def measured(arm: str, on: str | None) -> dict[str, Any]:
        each = [{**evaluation({"solver": [T, F]}, {}), "tasks": name} for name in sets]
        marks = ({"overlap": {"trained_on": ["p0", "p1"]}} if name == on else {} for name in sets)
        return {**record(arm, 0, {}), "evaluations": [{**one, **mark} for one, mark in zip(each, marks, strict=True)]}

    def marked(on: str | None) -> tuple[list[str], bool]:
        found = findings(experiment, [measured("solo", on), measured("pair", None)])
        ood = any(each.arm == "solo" and each.task == "OOD average" for each in found)
        return [each.task for each in found if each.trained_on], ood

    assert marked(None) == ([], True)
    assert marked("amc") == (["amc", "average"], True)  # the paper's RENT: its OOD average leaves AMC out
    assert marked("minerva") == (["minerva", "average"], False)
    text = table(experiment, [measured("solo", "amc"), measured("pair", None)])
    assert text.count("| solo (training data among these) |") == 2


def test_a_seat_that_was_taught_in_its_own_run_gains_over_itself_at_step_0():
    arms = {
        "own": ArmSection(game="pasodoble", set={"run.init": None}),
        "own, taught": ArmSection(of="own", seats=("shared@0",)),
        "own, later": ArmSection(of="own", seats=("shared@2",)),
        "taught": ArmSection(start="cold-start"),
        "other": ArmSection(game="pasodoble"),
    }
    experiment = EXPERIMENT.model_copy(update={"arms": arms, "cold_start": {"game": "pasodoble"}, "baseline": ""})
    assert [experiment.starts_of(arm) for arm in arms] == [["own, taught"], [], ["own, taught"], [], ["taught"]]


def test_a_second_answer_is_no_gain():
    """The pair answers twice at the end; alone, its seats were right as often as before."""
    arms = {
        "begun": ArmSection(start="cold-start", cold_start="agon", mode="single"),
        **EXPERIMENT.arms,
        "pair alone": ArmSection(of="pair", mode="single"),
    }
    experiment = EXPERIMENT.model_copy(update={"arms": arms, "cold_start": {"game": "self-refine"}, "baseline": ""})
    begun = record("begun", 0, evaluation({"A": [T, F, F, F], "B": [T, F, F, F]}, {}))
    alone = record("pair alone", 0, evaluation({"A": [T, T, F, F], "B": [T, T, F, F]}, {}))
    found = {each.arm: each for each in findings(experiment, [begun, RECORDS[1], alone])}
    assert (found["pair"].gain, found["pair alone"].gain[0]) == (None, 0.25)
    again = {**begun, "arm": "begun twice", "evaluations": [RECORDS[1]["evaluations"][0]]}
    arms["begun twice"] = ArmSection(start="cold-start", cold_start="agon")
    found = {each.arm: each for each in findings(experiment, [begun, again, RECORDS[1], alone])}
    assert (found["pair"].gain[0], found["pair alone"].gain[0]) == (0, 0.25)


def test_differences_are_corrected_for_their_number():
    arms = dict.fromkeys(("solo", "one", "two"), EXPERIMENT.arms["solo"])
    experiment = EXPERIMENT.model_copy(update={"arms": arms, "seeds": (0,), "baseline": "solo"})
    rows = {"solo": [F] * 8, "one": [T] * 6 + [F] * 2, "two": [T] * 7 + [F]}
    _, one, two = findings(experiment, [record(arm, 0, evaluation({"A": row}, {})) for arm, row in rows.items()])
    assert one.difference is not None
    assert two.difference is not None
    assert one.difference[2:] == (2 / 2**6, 2 / 2**6)
    assert two.difference[2:] == (2 / 2**7, 2 * 2 / 2**7)
    text = table(experiment, [record(arm, 0, evaluation({"A": row}, {})) for arm, row in rows.items()])
    assert [f"{each.arm} | " in line and "]* |" in line for each in (one, two) for line in text.splitlines()
            if line.startswith(f"| {each.arm} ")] == [True, True]  # fmt: skip


def test_the_base_is_compared_with_every_seed():
    arms = {"solo": EXPERIMENT.arms["solo"], "base": ArmSection(start="base")}
    experiment = EXPERIMENT.model_copy(update={"arms": arms, "baseline": "solo"})
    base = record("base", 0, evaluation({"base": [T, F, F, F]}, {}))
    found = findings(experiment, [RECORDS[0], base, RECORDS[2]])[1].difference
    assert found is not None
    assert found.mean == -0.125


def test_a_difference_is_over_the_seeds_that_both_arms_have():
    """Over all seeds 5 of 12 against 3 of 8; in both shared seeds one of four more."""
    arms = dict.fromkeys(("solo", "more"), EXPERIMENT.arms["solo"])
    experiment = EXPERIMENT.model_copy(update={"arms": arms, "seeds": (0, 1, 2), "baseline": "solo"})
    right = {"solo": ([T, F, F, F], [T, T, F, F]), "more": ([T, T, F, F], [T, T, T, F], [F] * 4)}
    records = [record(arm, seed, evaluation({"A": row}, {})) for arm in arms for seed, row in enumerate(right[arm])]
    row = next(line for line in table(experiment, records).splitlines() if line.startswith("| more"))
    cells = [cell.strip() for cell in row.strip("|").split("|")]
    assert "+25.0" in cells
    assert not any(cell.startswith("+4.2") for cell in cells)


def test_each_panel_of_the_figure_names_the_problems_of_its_own_task(monkeypatch, tmp_path):
    figure_of = pytest.importorskip("matplotlib.figure").Figure
    drawn: list[Any] = []
    monkeypatch.setattr(figure_of, "savefig", lambda figure, path, **how: drawn.append(figure))
    few, many = evaluation({"solver": [T, F]}, {}), {**evaluation({"solver": [T, F, F]}, {}), "tasks": "gsm8k"}
    experiment = EXPERIMENT.model_copy(
        update={
            "seeds": (0,),
            "arms": {"solo": EXPERIMENT.arms["solo"]},
            "evaluations": (EvaluationSection(tasks="sums"), EvaluationSection(tasks="gsm8k")),
        }
    )
    draw(experiment, [{**record("solo", 0, few), "evaluations": [few, many]}], tmp_path / "figure.png")
    assert [panel.get_title() for panel in drawn[0].axes] == [
        "sums: pass@1 of 2 problems",
        "gsm8k: pass@1 of 3 problems",
    ]


def test_the_median_of_a_curve_is_over_values_of_the_same_step(monkeypatch, tmp_path):
    figure_of = pytest.importorskip("matplotlib.figure").Figure
    drawn: list[Any] = []
    monkeypatch.setattr(figure_of, "savefig", lambda figure, path, **how: drawn.append(figure))
    experiment = EXPERIMENT.model_copy(update={"arms": {"solo": EXPERIMENT.arms["solo"]}, "curve": "evaluation"})
    curves = ([(1, 0.1), (2, 0.2)], [(2, 0.4), (3, 0.5)])
    records = [record("solo", seed, evaluation({"solver": [T]}, {})) for seed in (0, 1)]
    for each, curve in zip(records, curves, strict=True):
        each["training"]["curve"] = curve
    draw(experiment, records, tmp_path / "figure.png")
    lines = [line.get_xydata().tolist() for line in drawn[0].axes[0].lines]
    assert lines[:2] == [[list(point) for point in curve] for curve in curves]
    assert lines[2] == [[2, pytest.approx(0.3)]]
