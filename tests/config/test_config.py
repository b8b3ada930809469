"""Configurations: short and long spellings, layers, bad keys and values, and the file that repeats a run."""

import copy
import re
from functools import reduce
from operator import getitem
from pathlib import Path
from typing import Any

import pytest
import yaml
from hypothesis import given, settings
from hypothesis import strategies as st
from pydantic import ValidationError

from lite_selfplay.config import (
    FLAT_KEYS,
    NAMED_SECTIONS,
    SECTIONS,
    RunConfig,
    load_layer,
    merge,
    nested,
    parse_assignment,
    set_key,
    spread,
)
from lite_selfplay.data import Sampling
from lite_selfplay.errors import ConfigError, UnknownNameError
from lite_selfplay.runs.planning import plan
from lite_selfplay.tasks import load_task

CASES = yaml.safe_load((Path(__file__).parent / "cases.yaml").read_text(encoding="utf-8"))
TINY = {"game": "agon", "model": "tiny", "tasks": "letters"}

LEAVES = st.none() | st.booleans() | st.integers() | st.text(max_size=3)
TREES = st.recursive(
    st.dictionaries(st.sampled_from("abc"), LEAVES, max_size=3),
    lambda below: st.dictionaries(st.sampled_from("abc"), LEAVES | below, max_size=3),
    max_leaves=8,
)
# Without control characters and separators of lines: PyYAML reads U+0085 back as a space.
NAMES = st.text(st.characters(exclude_categories=["Cc", "Cs", "Zl", "Zp"]), min_size=1, max_size=5)


def tiny(**changes: Any) -> RunConfig:
    return RunConfig(**{**TINY, **changes})


def set_by(*assignments: str) -> RunConfig:
    return RunConfig.of(TINY, *map(parse_assignment, assignments))


# Spellings


def layer_of(given: Any) -> Any:
    return parse_assignment(given) if isinstance(given, str) else given


@pytest.mark.parametrize(("short", "long"), CASES["same"])
def test_short_and_long_spellings_are_the_same_configuration(short: Any, long: Any):
    assert tiny(**layer_of(short)) == tiny(**long)


def test_values_have_the_types_that_they_are_used_as():
    config = tiny(tasks=Path("data/a.jsonl"), run_dir="runs/x", game={"name": "agon", "reward": "coop"})
    assert (config.tasks.train, config.run.dir) == ("data/a.jsonl", Path("runs/x"))
    assert config.game.options == {"reward": "coop"}
    assert RunConfig(**TINY | {"tasks": None}) == RunConfig(game="agon", model="tiny")


def test_flat_keys_and_short_sections_are_keys():
    assert not set(FLAT_KEYS) & set(RunConfig.model_fields)
    assert all(key in SECTIONS[section].model_fields for section, key in NAMED_SECTIONS.items())


def test_two_spellings_that_disagree():
    for values in ({"steps": 3, "run": {"steps": 4}}, {"precision": "fp32", "model": {"precision": "4bit"}}):
        flat, _ = values
        with pytest.raises(ConfigError, match=rf"{flat} is .* and {FLAT_KEYS[flat]} is .*: give one"):
            nested(values)


def test_a_callers_values_are_left_alone():
    values = {**TINY, "run": {"seed": 1}, "steps": 2}
    before = copy.deepcopy(values)
    RunConfig(**values)
    assert values == before


@pytest.mark.parametrize("off", [{"eval_tasks": "none"}, {"eval": {"tasks": "none"}}, {"eval": {"tasks": None}}])
def test_the_evaluation_of_a_preset_is_switched_off(off):
    assert RunConfig(preset="demo", game="agon").eval.tasks is not None
    config = RunConfig(preset="demo", game="agon", **off)
    assert config.eval.tasks is None
    assert RunConfig.of(config.chosen()) == config
    assert plan(config).held_out == []


def test_a_configuration_is_frozen():
    for section, key in ((tiny().run, "steps"), (tiny(), "game"), (tiny().game, "name")):
        with pytest.raises(ValidationError, match="frozen"):
            setattr(section, key, 4)


# Layers


@pytest.mark.parametrize(("layers", "expected"), CASES["layers"])
def test_what_comes_of_layers(layers: list[Any], expected: dict[str, Any]):
    values = RunConfig.of(TINY, *map(layer_of, layers)).model_dump()
    assert {key: reduce(getitem, key.split("."), values) for key in expected} == expected


@settings(deadline=None, max_examples=50)
@given(TREES, TREES)
def test_merging_keeps_what_the_upper_layer_says(base, over):
    before = copy.deepcopy((base, over))
    merged = merge(base, over)
    assert (base, over) == before
    assert merged.keys() == base.keys() | over.keys()
    for key, value in over.items():
        both = isinstance(value, dict) and isinstance(base.get(key), dict)
        assert merged[key] == (merge(base[key], value) if both else value)
    assert all(merged[key] == base[key] for key in base.keys() - over.keys())
    assert merge(base, {}) == base == merge({}, base)


def test_only_what_was_given_is_chosen():
    given = {"game": {"name": "agon"}, "model": {"name": "tiny"}, "tasks": {"train": "letters"}}
    assert tiny(steps=3).chosen() == {**given, "run": {"steps": 3}}


def test_a_dotted_key_opens_sections():
    values: dict[str, Any] = {"model": "tiny"}
    set_key(values, "model.precision", "fp32")
    set_key(values, "seats.A.lr", 1)
    assert values == {"model": {"name": "tiny", "precision": "fp32"}, "seats": {"A": {"lr": 1}}}
    with pytest.raises(ConfigError, match=r"'run\.steps\.x'.*'steps' is a value"):
        set_key({"run": {"steps": 3}}, "run.steps.x", 1)
    with pytest.raises(ConfigError, match=r"cannot set 'seats\.A\.w\.w.*': nested too deeply"):
        set_key({}, "seats.A" + ".w" * 1000, 1)


@pytest.mark.parametrize(("text", "layer"), CASES["assignments"].items())
def test_an_assignment_is_a_layer(text, layer):
    assert parse_assignment(text) == layer


@pytest.mark.parametrize(("seats", "expected"), CASES["spread"])
def test_a_star_reaches_every_seat_and_a_name_goes_over_it(seats, expected):
    layer = {"run": {"steps": 1}, "seats": seats}
    before = copy.deepcopy(layer)
    assert spread(layer, "seats", ("A", "B")) == {"run": {"steps": 1}, **expected}
    assert layer == before


def test_a_name_that_is_not_there():
    with pytest.raises(UnknownNameError, match="unknown seat 'C': known: A, B"):
        spread({"seats": {"C": {}}}, "seats", ("A", "B"))
    with pytest.raises(UnknownNameError, match="unknown role 'draftr': did you mean drafter"):
        spread({"roles": {"draftr": {}}}, "roles", ("drafter", "challenger"))


# What is refused


@pytest.mark.parametrize(("values", "said"), CASES["unknown"])
def test_an_unknown_key_names_the_near_ones(values, said):
    with pytest.raises(ConfigError, match=f"^unknown key {said}"):
        RunConfig.of(TINY, values)


def test_the_loss_of_whole_completions_has_a_ratio_of_its_own():
    role = tiny(roles={"drafter": {"loss": "sequence"}}).roles["drafter"]
    assert (role.loss, role.ratio) == ("sequence", "token")
    assert tiny(roles={"drafter": {"loss": "dapo", "ratio": "sequence"}}).roles["drafter"].ratio == "sequence"
    with pytest.raises(ConfigError, match=r"roles\.drafter\.ratio: cannot be chosen with loss=sequence"):
        tiny(roles={"drafter": {"ratio": "sequence", "loss": "sequence"}})


def test_all_findings_are_told_at_once_and_show_no_pydantic():
    with pytest.raises(ConfigError, match=r"run\.steps: .*got -1; run\.group_size: .*got 1") as caught:
        tiny(steps=-1, group_size=1)
    assert caught.value.exit_code == 2
    assert "pydantic" not in str(caught.value)


@pytest.mark.parametrize("missing", ["game", "model"])
def test_a_section_that_must_be_there(missing):
    values = {key: value for key, value in TINY.items() if key != missing}
    with pytest.raises(ConfigError, match=f"^{missing} is missing$"):
        RunConfig(**values)
    with pytest.raises(ConfigError, match=rf"^{missing}\.name is missing$"):
        RunConfig(**values, **{missing: None})


def test_a_role_samples_as_configured_from_its_seats_own_probabilities():
    for role, sampling in (
        ("{temperature: 0.7, stop: [x]}", Sampling(temperature=0.7, stop=("x",), max_tokens=64)),
        ("{max_completion_tokens: 9}", Sampling(max_tokens=9)),  # its own cap goes over the run's
        # Filters that change nothing may be named.
        ("{top_p: 1.0, top_k: 0, min_p: 0, repetition_penalty: 1.0}", Sampling(max_tokens=64)),
    ):
        assert set_by(f"roles.r={role}").roles["r"].sampling(64) == sampling
    refused = r"^roles\.r: completions sampled with .*: only the temperature can be set, got"
    for filter in ("top_p: 0.9", "top_k: 5", "min_p: 0.1", "repetition_penalty: 1.2", "top_p: often"):
        with pytest.raises(ConfigError, match=refused):
            set_by(f"roles.r={{{filter}}}")


def test_a_configuration_is_repeated_by_its_file_which_holds_every_key_but_its_own_place(tmp_path):
    sections = {
        "game": {"name": "agon", "reward": "coop", "tiebreak": 0.5},
        "run": {"steps": 3, "seed": 2, "reward": "é.py:f", "max_completion_tokens": None},
        "model": {"name": "tiny", "thinking": "off", "gradient_checkpointing": True},
        "roles": {"drafter": {"temperature": 0.7, "beta": 1e-4}},
        "seats": {"A": {"lr": 5e-5}, "off": {"init": "gaussian"}, "1": {}},
    }
    config, file = tiny(**sections), tmp_path / "config.yaml"
    file.write_text(tiny(**sections, run_dir="runs/here").to_yaml(), encoding="utf-8")
    assert RunConfig.of(load_layer(file)) == config
    assert "runs/here" not in file.read_text(encoding="utf-8")
    values = yaml.safe_load(file.read_text(encoding="utf-8"))
    for found, section in (
        (values, config),
        ({**values["run"], "dir": None}, config.run),
        (values["seats"]["A"], config.seats["A"]),
        (values["roles"]["drafter"], config.roles["drafter"]),
    ):
        assert set(found) == set(type(section).model_fields)


@settings(deadline=None, max_examples=25)
@given(st.floats(0, 1, exclude_min=True), st.integers(1, 10**6), NAMES)
def test_values_survive_the_file(rate, steps, name):
    config = tiny(seats={"A": {"lr": rate}}, steps=steps, tasks=name)
    assert RunConfig.of(yaml.safe_load(config.to_yaml())) == config


def test_the_tokens_of_a_microbatch_follow_the_machine_unless_they_are_given():
    free, chosen = (RunConfig(**TINY, run=run).run for run in ({}, {"microbatch_tokens": 5}))
    assert [free.tokens_at_once(on_cpu=on_cpu) for on_cpu in (True, False)] == [1280, 8192]
    assert free.tokens_at_once(on_cpu=True, lean=True) == 896
    assert [chosen.tokens_at_once(on_cpu=on_cpu) for on_cpu in (True, False)] == [5, 5]
    with pytest.raises(ConfigError, match="microbatch_tokens"):
        RunConfig(**TINY, run={"microbatch_tokens": "many"})


class Rows:
    """What iterates over rows, as a `datasets.Dataset` does."""

    def __iter__(self):
        yield {"problem": "1 + 1?", "answer": 2}


@pytest.mark.parametrize(
    "tasks", [[{"problem": "1 + 1?", "answer": 2}], ({"problem": "1 + 1?", "answer": 2},), [("1 + 1?", 2)], Rows()]
)
def test_problems_may_be_given_as_objects(tasks):
    text = tiny(tasks=tasks).tasks.train
    assert text == '{"problem": "1 + 1?", "answer": 2}'
    (problem,) = load_task(text).problems
    assert (problem.id, problem.text, problem.answer) == ("tasks-1", "1 + 1?", 2)


class Splits(dict):
    """What has rows by split, as a `datasets.DatasetDict` does."""

    column_names = ("problem", "answer")


def test_problems_may_be_given_as_objects_wherever_a_task_stands():
    text = '{"problem": "1 + 1?", "answer": 2}'
    given: dict[str, Any] = {"train": Rows(), "validation": Rows(), "solutions": Rows()}
    config = tiny(tasks=given, eval={"tasks": [("1 + 1?", 2)]}, cold_start={"tasks": Rows()})
    tasks = config.tasks
    everywhere = [tasks.train, tasks.validation, tasks.solutions, config.eval.tasks, config.cold_start.tasks]
    assert everywhere == [text] * 5
    assert tiny(eval_tasks=Rows()).eval.tasks == text
    assert tiny(tasks={"train": Path("a.jsonl")}, eval={"tasks": Path("b.csv")}).eval.tasks == "b.csv"
    for values in ({"tasks": Splits(train=Rows(), test=Rows())}, {"eval": {"tasks": Splits(train=Rows(), test=3)}}):
        with pytest.raises(ConfigError, match=r"this has train, test: give one, as in data\['train'\]"):
            tiny(**values)
    with pytest.raises(ConfigError, match=r"train\(config, reward=f\); the key takes FILE.py:NAME"):
        tiny(reward=len)


@pytest.mark.parametrize(
    ("tasks", "said"),
    [
        ([], "no row"), (["ab"], "a text is not a row"), ([("a", "b", "c")], "longer"), (3, "not iterable"),
        ([{"problem": object()}], "JSON serializable"), ([{"problem": float("nan")}], "JSON compliant"),
    ],
)  # fmt: skip
def test_what_is_no_list_of_problems(tasks, said):
    with pytest.raises(ConfigError, match=rf"tasks takes the name of a task, a file, or rows .*{said}"):
        tiny(tasks=tasks)
    with pytest.raises(ConfigError, match=f"tasks takes .*{said}"):
        tiny(eval={"tasks": tasks})


YES = {"run.steps=yes": "yes", "seats.*.lr=no": "no", "eval.samples=on": "yes", "game.format_weight=true": "yes"}


@pytest.mark.parametrize("assignment", YES)
def test_a_yes_is_no_number(assignment: str):
    key = re.escape(assignment.partition("=")[0].rpartition(".")[2])
    with pytest.raises(ConfigError, match=rf"{key}.*should be a number, not {YES[assignment]}"):
        plan(set_by(assignment))
