"""A step as text, the words a run closes with, and its model card."""

import json
import re

import pytest
import yaml
from hypothesis import example, given
from hypothesis import strategies as st

from lite_selfplay.config import RunConfig
from lite_selfplay.credit import stream_advantages
from lite_selfplay.data import Episode, Group, Problem, Sample, Stream, Verdict
from lite_selfplay.games import find_game
from lite_selfplay.runs.report.closing import changes, closing_report
from lite_selfplay.runs.report.pages import code, model_card, plain
from lite_selfplay.runs.report.step_rows import episode_rows, progress_line, right_for_all, stream_metrics, stream_words
from lite_selfplay.training.trainer import StepReport, StreamUpdate
from tests.made import completion

from .conftest import score

AGON, SQLM, CPMOBIUS = map(find_game, ("agon", "sqlm", "cpmobius"))


def metrics(step=1, accuracy=(0.5, 0.5), trained=4, **game):
    usual = {"completions": 8, "well_formed": 1.0, "reward_mean": 1.0, "tokens_mean": 20.0, "rows_trained": trained}
    roles = zip(("drafter", "challenger"), "AB", accuracy, strict=True)
    streams = {role: {"seat": seat, "accuracy": right, **usual} for role, seat, right in roles}
    took, tokens = {"total": 4.0, "generate": 2.0, "verify": 0.1, "update": 1.5}, {"generated": 100, "trained": 60}
    return {"step": step, "wall_s": took, "tokens": tokens, "streams": streams, "game": game}


def test_a_step_in_one_line():
    assert progress_line(AGON, metrics(2, (0.5, None), conversions=2, pairs=8), 20, "1:15 left") == (
        "step 2/20 | drafter A: 50% right, reward 1.00 | challenger B: reward 1.00 | conversions 2 | 1:15 left"
    )
    assert "no signal, nothing updated" in progress_line(AGON, metrics(trained=0), 20, "1:15 left")
    step = metrics(1, (None, 0.5))
    step["streams"]["drafter"]["reward_mean"] = step["streams"]["challenger"]["reward_mean"] = None
    assert "| drafter A: recorded only | challenger B: 50% right |" in progress_line(AGON, step, 20, "1:15 left")
    step["streams"]["drafter"]["seat"] = "drafter"
    assert "| drafter: recorded only | challenger B: 50% right |" in progress_line(AGON, step, 20, "1:15 left")


def played(*rewards, stop="eos"):
    """A stream of groups of one with these rewards, and its line of metrics."""
    said = completion("ab", stop, seat="coach")
    found = Stream("coach", [Group([Sample(said, reward, masked=reward is None)]) for reward in rewards])
    advantages = stream_advantages(found)
    return found, advantages, stream_metrics(found, StreamUpdate("coach", "coach"))


@pytest.mark.parametrize(
    ("rewards", "stop", "figures"),
    [
        ((None, None), "eos", (2, None, None, 0.0, 0.0)),  # what is there for the record alone is in no mean
        ((None, 1.0, None, 4.0), "eos", (4, 2.5, 4.5**0.5, 0.0, 0.0)),  # (1.5^2 + 1.5^2) over 1
        ((3.0,), "string", (1, 3.0, 0.0, 0.0, 0.0)),
        ((3.0,), "length", (1, 3.0, 0.0, 1.0, 0.0)),
        ((3.0,), "loop", (1, 3.0, 0.0, 1.0, 1.0)),  # cut off, and counted by itself
    ],
)
def test_the_figures_of_a_stream(rewards, stop, figures):
    _, _, line = played(*rewards, stop=stop)
    found = [line[key] for key in ("completions", "reward_mean", "reward_std", "truncated", "loops")]
    assert found == pytest.approx(list(figures))


def test_a_group_of_one_varies_where_it_is_not_its_baseline():
    said = [completion("ab", "eos", seat="coach")]
    groups = [Group([Sample(each, 0.5) for each in said], baseline=by) for by in (0.5, 0.25, 1.0)]
    found = Stream("coach", groups, credit="baseline")
    line = stream_metrics(found, StreamUpdate("coach", "coach"))
    assert (line["groups"], line["zero_variance_groups"], line["reward_mean"]) == (3, 1, 0.5)
    report = StepReport(4, Episode([found]), [stream_advantages(found)], [StreamUpdate("coach", "coach")])
    assert [row["advantage"] for row in episode_rows(report)] == [0.0, 0.25, -0.5]


def test_a_row_of_what_is_there_for_the_record_has_no_reward():
    found, advantages, _ = played(None)
    report = StepReport(4, Episode([found]), [advantages], [StreamUpdate("coach", "coach")])
    (row,) = json.loads(json.dumps(episode_rows(report)))
    assert (row["step"], row["reward"], row["advantage"], row["tokens"]) == (5, None, None, 2)


def health(verbose=False, right=0.5, **values):
    stream = {**metrics()["streams"]["drafter"], "accuracy": right, **values}
    return stream_words(AGON, "drafter", stream, verbose)[2:]


def test_figures_of_health_are_there_where_they_are_wrong():
    fine = {"truncated": 0.4, "loops": 0.1, "kl": 0.9, "clipped": 0.3, "sampler_gap": 0.0042, "base_gap": 3.0}
    assert health(**fine) == []
    assert health(truncated=0.4, loops=0.4) == ["loops 40%"]
    assert health(truncated=0.6, kl=1.2, sampler_gap=0.2) == ["truncated 60%", "KL 1.2", "sampler gap 0.2"]
    assert health(verbose=True, loss=-1e-8, **fine) == [
        *("well-formed 100%", "truncated 40%", "loops 10%", "length in tokens 20", "loss -1e-08", "KL 0.9"),
        *("ratios cut off 30%", "sampler gap 0.0042", "base gap 3"),
    ]
    # What is cut off and right all the same is not wrong.
    assert health(truncated=1.0, right=0.25) == []  # a quarter at least is right in spite of it
    assert health(truncated=0.75, right=0.3) == ["truncated 75%"]  # 0.05 at least, which is too few to tell


def test_a_verbose_step_says_its_speed_and_a_skipped_one_why():
    line = progress_line(AGON, metrics(2), 20, "1:15 left", verbose=True)
    assert line.endswith(" | 100 tokens at 50/s, 4.0 s | 1:15 left")
    foreign = {**metrics(2), "sampler_what": "the completions of drafter come from elsewhere"}
    assert "skipped, the completions of drafter come from elsewhere" in progress_line(AGON, foreign, 20)


def test_words_for_a_roles_accuracy():
    roles = [(SQLM, "proposer"), (CPMOBIUS, "coach"), (SQLM, "solver"), *((AGON, role) for role in AGON.roles)]
    assert [game.accuracy_of(role).word for game, role in roles] == ["accepted", "accepted", "agree", "right", "right"]


def test_what_a_steps_proposals_came_to():
    usable, most = "2 of 8 questions usable", ", most refused: off format 3"
    for refused, words in (({}, usable), ({"off_format": 3}, usable + most)):
        assert SQLM.step_words({"proposals": 8, "usable": 2, "refused": refused}) == [words]
    assert SQLM.step_words({"proposals": 0, "usable": 0, "refused": {}}) == SQLM.step_words({}) == []


# The alarm for an answer that is right whatever was asked


def answered(*rows, kind="math"):
    """A stream with a group for each (reference, [(answer, whether it is right), ...])."""

    def sample(answer, right):
        return Sample(completion(str(answer)), float(right), Verdict(right, float(right), answer))

    groups = [Group([sample(*each) for each in said], Problem("p", "?", of, kind)) for of, said in rows]
    return Stream("solver", groups)


ANYTHING = r"N\approx0\approx1\approx2"


def test_an_answer_that_is_right_for_different_references_is_named():
    found = answered(*((n, [(ANYTHING, True), ("7", n == 7)]) for n in range(4)), (3, [(ANYTHING, True)]))
    (sentence,) = right_for_all([found])
    assert f"the solver's answer {ANYTHING!r} is right on 5 problems with 4 different references" in sentence
    of_one_class = answered(*((n, [(f"{'0' * n}12", True)]) for n in range(3)))
    assert "on 3 problems with 3 different references" in right_for_all([of_one_class])[0]


def test_what_is_right_for_one_reference_is_no_alarm():
    usual = [*((5, [("5", True), ("six", False)]) for _ in range(9)), (6, [("6", True)]), ("5 km", [("5", True)])]
    wrong = [(n, [(ANYTHING, False)]) for n in range(9)]
    for rows in (usual, wrong, [(None, [(ANYTHING, True)])] * 9, []):
        assert right_for_all([answered(*rows)]) == []
    letters = answered(("ab", [("a", True)]), ("ac", [("a", True)]), ("ad", [("a", True)]), kind="letters")
    assert right_for_all([letters]) == right_for_all([]) == []


# The closing words


def config(steps=24, **values):
    return RunConfig(game="agon", model="tiny", **{"tasks": "letters", "steps": steps, **values})


def evaluation(seats, directions=None, **values):
    scored, mode = directions or seats, "cascade" if directions else "single"
    best = max(scored, key=lambda name: scored[name]["pass_at_1"])
    about = {"mode": mode, "tasks": "letters", "n": 100, "samples": 1, "best": best, "seats": seats, **scored[best]}
    if directions:
        mean = sum(found["pass_at_1"] for found in directions.values()) / len(directions)
        about |= {"directions": directions, "mean_of_directions": mean}
    return {**about, "tokens_final_mean": 20.0, "tokens_total_mean": 40.0, **values}


def dated(moments):
    """Evaluations by their moments, each with the step that its moment names."""
    return {m: {"step": int(m.split()[1]) if m.endswith("steps") else 0, **found} for m, found in moments.items()}


def closing(metrics_rows, evaluations=None, path="runs/x", **values):
    moments = dated(evaluations or {})
    return "\n".join(closing_report(AGON, config(len(metrics_rows), **values), metrics_rows, moments, path))


def curve(*shares):
    return [metrics(i, (share, None)) for i, share in enumerate(shares)]


def test_steps_that_moved_nothing_are_counted_by_why_and_looked_into():
    rows = [metrics(i, trained=4 * (i % 2)) for i in range(8)]
    assert "4 of 8 steps gave no signal" in closing(rows)
    assert "to see why most steps gave no signal: lite-selfplay report runs/x --duels 3" in closing(rows)
    foreign = [{**metrics(i, trained=0), "sampler_what": "the base"} for i in range(2)]
    said = closing([*foreign, *curve(*[0.5] * 6)])
    assert "2 of 8 steps had completions sampled with other weights and updated nothing" in said
    assert "gave no signal" not in said


def test_what_was_not_measured_can_be_and_what_was_cut_short_can_be_finished():
    rows = curve(0.1, 0.2, 0.2, 0.3, 0.4, 0.5, 0.7, 0.8)
    assert not [words for words in ("up", "more steps may help") if words in closing(rows)]
    assert "lite-selfplay eval runs/x --tasks letters" in closing(rows)
    assert "lite-selfplay eval runs/x --tasks HELD_OUT.jsonl" in closing(rows, tasks="/data/train.jsonl")
    assert "lite-selfplay eval 'my runs/x' --tasks" in closing(rows, path="my runs/x")
    assert " eval " not in closing(rows, {"untouched": evaluation({"base": score(0.5)})})
    said = closing_report(AGON, config(20), rows, {}, "runs/x")
    assert "to finish it: lite-selfplay train --resume runs/x" in said


def cascade(a, b, ab, ba, **values):
    return evaluation({"A": score(a), "B": score(b)}, {"A->B": score(ab), "B->A": score(ba)}, **values)


def test_the_moments_that_tell_what_happened():
    moments = {
        "untouched": evaluation({"base": score(0.05)}),
        "after cold start": cascade(0.30, 0.30, 0.32, 0.34),
        "after 12 steps": cascade(0.9, 0.9, 0.9, 0.9),
        "after 24 steps": cascade(0.60, 0.30, 0.35, 0.31),
    }
    said = closing(curve(*[0.5] * 24), moments)
    assert "pass@1 on letters (100 problems), untouched -> after cold start -> after 24 steps:" in said
    assert "  A: 5% -> 30% -> 60%, up 30 points\n" in said
    assert "  B: 5% -> 30% -> 30%, no change\n" in said
    assert "  A->B: n/a -> 32% -> 35%, up 3 points, which may be chance (the 95% intervals overlap)" in said
    assert "  B->A: n/a -> 34% -> 31%, down 3 points, which may be chance" in said
    assert "trained on" not in said
    assert "more steps" not in said  # 12 steps were better


def test_a_run_that_ends_below_its_start_says_so_first():
    """Of 100 problems 33 were right on average, then 30: the intervals overlap."""
    lower = {"after cold start": cascade(0.3, 0.3, 0.32, 0.34), "after 24 steps": cascade(0.3, 0.3, 0.31, 0.29)}
    lower["after 24 steps"]["tokens_final_mean"] = 9.0
    first, second, *_ = closing(curve(*[0.5] * 24), lower).split("\n")
    assert first == (
        "this run ended below its start, perhaps by chance: pass@1 33% with 20 tokens -> 30% with 9 tokens"
    )
    assert second.startswith("pass@1 on letters (100 problems)")
    far = {**lower, "after 24 steps": cascade(0.3, 0.3, 0.1, 0.1)}
    assert closing(curve(*[0.5] * 24), far).startswith("this run ended below its start: pass@1 33% with")
    alone = {"after 24 steps": lower["after 24 steps"]}
    for others in ({}, {"after cold start": lower["after 24 steps"]}):
        assert "below its start" not in closing(curve(*[0.5] * 24), {**others, **alone})


def test_the_best_of_several_moments_suggests_more_steps():
    moments = {"before training": cascade(0.3, 0.3, 0.3, 0.3), "after 8 steps": cascade(0.6, 0.6, 0.6, 0.2)}
    assert "--steps 18" in closing(curve(*[0.5] * 8), moments)
    assert "more steps" not in closing(curve(0.5), moments)  # a step is none to go on from
    chance = {name: cascade(*rates) for name, rates in (("before training", [0.3] * 4), ("after 8 steps", [0.35] * 4))}
    assert "more steps" not in closing(curve(*[0.5] * 8), chance)
    moments["after 8 steps"] = cascade(0.3, 0.3, 0.5, 0.05)  # the better direction alone would flatter
    assert "more steps" not in closing(curve(*[0.5] * 8), moments)


@pytest.mark.parametrize(("gained", "said"), [(8, "up 80 points (p = 0.0078)"), (3, "up 30 points, which may be chan")])
def test_the_same_problems_are_compared_in_pairs(gained, said):
    after = {str(i): {"A": i < gained} for i in range(10)}
    before = {key: {"base": False} for key in after}
    moments = {
        "untouched": evaluation({"base": score(0.0)}, n=10, per_problem=before),
        "after 8 steps": evaluation({"A": score(gained / 10)}, n=10, per_problem=after),
    }
    assert said in closing(curve(*[0.5] * 8), moments)
    assert [change.sure for change in changes(dated(moments))] == [gained == 8]


@pytest.mark.parametrize(
    # Ten problems, of which as many are right in the other direction too at the end: each gains a half. With equal
    # gains there is no spread; the signs of three may be chance.
    ("gained", "said"),
    [
        (10, "100%, up 50 points (p = 0.002)"),
        (3, "65%, up 15 points, which may be chance [0, 30]"),
        (1, "55%, up 5 points, which may be chance [0, 15]"),
        (0, "50%, no change"),
    ],
)
def test_the_mean_over_directions_has_an_interval_over_problems(gained, said):
    def measured(right):
        outcomes = {str(i): {"A": True, "B": True, "A->B": True, "B->A": i < right} for i in range(10)}
        return cascade(1.0, 1.0, 1.0, right / 10, n=10, per_problem=outcomes)

    moments = {"before training": measured(0), "after 8 steps": measured(gained)}
    assert f"  mean of both: 50% -> {said}" in closing(curve(*[0.5] * 8), moments).splitlines()
    assert changes(dated(moments))[-1].sure == (gained == 10)


def test_one_evaluation_or_other_problems_leave_the_training_curve():
    one = {"after 8 steps": evaluation({"A": score(0.4)})}
    other = {"untouched": evaluation({"base": score(0.1)}, tasks="stories"), **one}
    for moments in (one, other):
        said = closing(curve(*[0.5] * 8), moments)
        assert "  A: 40%\n" in said
        assert "no other evaluation of these problems" in said


# The model card


def front_matter(card):
    _, block, rest = card.split("---\n", 2)
    return yaml.safe_load(block), rest


def test_a_card_holds_what_a_reader_needs():
    card = model_card(config(24, seed=7, cold_start=True, seats={"A": {}}), 12, metrics=curve(0.5, 0.5))
    facts, text = front_matter(card)
    assert (facts["library_name"], facts["tags"]) == ("peft", ["lite-selfplay", "agon", "lora"])
    assert "base_model" not in facts  # `tiny` is on no hub
    facts = ("seed: 7", "weights in 4bit", "200 generated, 120 trained on", "cold start, 20 batches of 16")
    said = ("the run has no evaluation on held-out problems", "lite-selfplay eval RUN", "licence")
    for words in ("after 12 of 24 steps", *facts, *said):
        assert words in text


def test_a_card_names_a_base_on_a_hub():
    run = RunConfig(game="grpo", model="qwen3-0.6b", seats={"solver": {"lr": 1e-4, "rank": 8, "alpha": 16}})
    facts, text = front_matter(model_card(run, 200))
    assert (facts["base_model"], facts["base_model_relation"]) == ("Qwen/Qwen3-0.6B", "adapter")
    assert '"Qwen/Qwen3-0.6B", dtype=dtype, quantization_config=nf4\n' in text
    assert 'PeftModel.from_pretrained(base, "adapters/solver")' in text
    assert "| `solver` | 0.0001 | linear | 8 | 16 |" in text


def test_a_card_with_figures_does_not_say_that_there_are_none():
    moments = {"untouched": evaluation({"base": score(0.05)}), "after 8 steps": cascade(0.6, 0.3, 0.35, 0.31)}
    card = model_card(config(8, seats={"A": {}, "B": {}}), 8, evaluations=moments)
    assert "no figure" not in card
    for text in (
        "|  | untouched | after 8 steps |",
        "| base model | 5% [-5, 15] | - |",
        "held out from training (100 of",
    ):
        assert text in card


ODD = st.text(st.one_of(st.characters(exclude_categories=["Cs"]), st.sampled_from("`|\n\"':#-*{}[]\\<>")), min_size=1)


@given(ODD, ODD)
@example("x" * 300, "x" * 4096)  # longer than the name of a file may be
def test_odd_names_break_no_card(model, tasks):
    run = RunConfig(game="agon", model=model, tasks=tasks, seats={"A": {}})
    facts, text = front_matter(model_card(run, 1))
    assert set(facts) >= {"library_name", "pipeline_tag", "tags"}
    assert text.startswith("\n# agon on ")
    (snippet,) = re.findall(r"^```python\n(.*?)\n```$", text, re.DOTALL | re.MULTILINE)
    compile(snippet, "snippet", "exec")


@given(ODD)
def test_names_stay_on_one_line(name):
    assert "\n" not in plain(name) + code(name)
    fence = re.match("`+", code(name)).group()
    assert not re.search(f"(?<!`){fence}(?!`)", code(name)[len(fence) : -len(fence)])


def test_what_is_hostile_stays_text_in_a_card():
    odd = "<script>alert(1)</script> ![x](http://example.org/x.png)\x1b[31m\u202e ``` \n# no heading | " + "a" * 3900
    run = RunConfig(game="agon", model="tiny", tasks=odd, seats={"A": {}})
    moments = {odd[:90]: {**evaluation({"base": score(0.05)}), "tasks": odd}}
    _, text = front_matter(model_card(run, 1, evaluations=moments))
    assert not set(text) & {"\x1b", "\u202e"}
    assert "\n# no heading" not in text
    literal = re.sub(r"(`+) .+? \1", "", text)  # inline code
    assert not re.search(r"(?<!\\)(<script|!\[)", literal)
