"""Experiments as files say them: those that are shipped, and what is refused."""

from pathlib import Path
from typing import Any

import pytest
import yaml

from lite_selfplay.config import RunConfig
from lite_selfplay.errors import ConfigError, UnknownNameError
from lite_selfplay.evaluation.suites import find_suite
from lite_selfplay.extras.reproduce.conduct import require_fair
from lite_selfplay.extras.reproduce.experiment import EXPERIMENTS, RATE, ArmSection, experiment_names, load_experiment
from lite_selfplay.games import make_game

BASE = {"model": "tiny", "tasks": {"train": "letters", "validation": "letters"}, "steps": 2}
COACH = {"game": "cpmobius"}
TINY: dict[str, Any] = {
    "about": "Two ways.",
    "source": "nowhere, table 1",
    "paper": "another model",
    "base": {"model": "tiny", "tasks": "letters", "steps": 2, "group_size": 2, "problems_per_step": 1},
    "evaluations": [{"tasks": "letters", "limit": 5}],
    "arms": {"one": {"game": "grpo"}, "two": {"game": "agon", "set": {"game.reward": "coop"}}},
}


@pytest.mark.parametrize("name", experiment_names())
def test_a_shipped_experiment_is_whole_and_its_arms_cost_the_same(name: str):
    whole = load_experiment(name)
    names = {task for evaluation in whole.evaluations for task in evaluation.specs}
    names |= {mean for e in whole.evaluations if e.suite for mean in find_suite(e.suite).averages}
    for scale in ("full", *yaml.safe_load(EXPERIMENTS.joinpath(f"{name}.yaml").read_text())["scales"]):
        found = load_experiment(name, scale)
        assert (found.scale, bool(found.source), bool(found.paper)) == (scale, True, True)
        require_fair(found)  # makes every arm's configuration
        figures = {task for arm in found.arms.values() for task in arm.paper}
        assert figures <= names  # no figure of a set that is not asked
        if found.cold_start is not None:
            assert found.cold_start_config(found.teaching(), 0, Path("run")).cold_start.enabled


def test_the_arms_of_agons_table_share_all_but_the_method():
    found = load_experiment("agon-table3", "small")
    configs = [found.config(name, 1, Path("run"), Path("taught")) for name in found.trained()]
    assert {config.run.seed for config in configs} == {1}
    assert {config.run.init for config in configs} == {"taught"}
    assert {config.cold_start.enabled for config in configs} == {False}
    assert {config.run.minutes for config in (*configs, found.cold_start_config("agon", 1, Path("run")))} == {0}
    assert len({(c.model, c.tasks, c.run.steps, c.run.group_size, c.run.problems_per_step) for c in configs}) == 1
    assert [config.game.name for config in configs] == ["grpo", "self-refine", "agon", "agon", "agon"]
    assert [config.game.options.get("reward") for config in configs] == [None, None, None, "coop", None]
    # Self-refinement's one seat would make A and B of Agon equal.
    taught = ["self-refine", "self-refine", "agon", "agon", "agon"]
    assert [found.teaching(name) for name in found.trained()] == taught
    assert load_experiment("pasodoble-ablations").teaching("self-play") == "pasodoble"


def written(tmp_path: Path, **changes: Any) -> str:
    path = tmp_path / "mine.yaml"
    path.write_text(yaml.safe_dump({**TINY, **changes}))
    return str(path)


def test_a_size_is_laid_over_the_whole(tmp_path: Path):
    arms = {"one": None, "two": {"set": {"game.rotate": False}}, "base": {"start": "base"}}
    small = {"base": {"steps": 1}, "seeds": [3, 4], "arms": arms}
    found = load_experiment(written(tmp_path, scales={"small": small}), "small")
    assert (found.seeds, list(found.arms), found.against) == ((3, 4), ["two", "base"], "two")
    config = found.config("two", 3, Path("run"), None)
    assert (config.run.steps, config.run.group_size) == (1, 2)
    assert config.game.options == {"reward": "coop", "rotate": False}
    other = found.having({"model": "smollm2-135m"}, {"steps": 9}).config("two", 3, Path("run"), None)
    assert (other.model.name, other.run.steps) == ("smollm2-135m", 9)


def test_every_rate_of_a_search_is_tried_on_all_its_seeds(tmp_path: Path):
    search = {"rates": [1e-4, 1e-3], "seeds": [7, 8], "evaluations": [{"tasks": "letters:named=6"}]}
    arms = {"one": {"game": "grpo", "seeds": [0]}, "base": {"start": "base"}}
    found = load_experiment(written(tmp_path, search=search, arms=arms)).at_every_rate()
    assert (found.seeds, list(found.arms)) == ((7, 8), ["one at 0.0001", "one at 0.001"])
    assert [(arm.seeds, arm.set) for arm in found.arms.values()] == [(None, {RATE: 1e-4}), (None, {RATE: 1e-3})]


@pytest.mark.parametrize(
    ("changes", "sentence"), yaml.safe_load(Path(__file__).with_name("refused.yaml").read_text(encoding="utf-8"))
)
def test_what_is_no_experiment_is_said(tmp_path: Path, changes: dict[str, Any], sentence: str):
    with pytest.raises(ConfigError) as caught:
        require_fair(load_experiment(written(tmp_path, **changes)))
    assert sentence in str(caught.value)
    require_fair(load_experiment(written(tmp_path, base=BASE, arms={"one": COACH, "two": {"game": "agon"}})))


def test_unknown_names(tmp_path: Path):
    with pytest.raises(UnknownNameError, match="unknown experiment 'agon-table4': did you mean agon-table"):
        load_experiment("agon-table4")
    with pytest.raises(UnknownNameError, match="unknown scale 'huge'"):
        load_experiment("agon-table3", "huge")
    with pytest.raises(ConfigError, match=r"cannot read .*none\.yaml: No such file"):
        load_experiment(str(tmp_path / "none.yaml"))
    (tmp_path / "list.yaml").write_text("- 1\n")
    with pytest.raises(ConfigError, match="must hold a mapping of keys"):
        load_experiment(str(tmp_path / "list.yaml"))


def test_the_arms_of_another_game_have_its_own_options_roles_and_seats():
    found = load_experiment("cpmobius-ablations")
    rent, own, rzero = (found.config(name, 0, Path("run"), None) for name in ("rent", "cpmobius", "rzero"))
    assert (rent.game.options, set(rent.roles), set(rent.seats)) == ({}, {"*"}, {"*"})
    assert own.game.options["low"] == 0.2
    assert set(own.roles) == {"coach", "player"}
    assert rent.seats["*"] == own.seats["*"]
    # Table 1 of the paper: RENT was trained on AMC, R-Zero for three iterations of 20 steps.
    assert (own.run.preset, rent.run.preset, rzero.run.preset) == ("cpmobius-paper", None, "rzero-paper")
    assert (rent.tasks.train, rent.run.steps, own.run.steps) == ("amc", 1000, 2000)
    by_itself = RunConfig(preset="rzero-paper")
    assert (rzero.run.steps, rzero.game, rzero.roles) == (60, by_itself.game, by_itself.roles)
    assert rzero.tasks.validation == "amc"
    small = load_experiment("cpmobius-ablations", "small").config("rzero", 0, Path("run"), None)
    options = (small.run.steps, small.model.name, "validation_samples" in small.game.options)
    assert options == (20, "smollm2-135m", False)


def test_arms_of_sqlm_that_answer_what_was_written_beforehand():
    found = load_experiment("sqlm-table3")
    sizes = {}
    for name in ("every 5", "written beforehand", "written beforehand, equal answers"):
        config = found.config(name, 0, Path("run"), None)
        sized = {"group_size": config.run.group_size, "problems_per_step": config.run.problems_per_step}
        game = make_game("sqlm", config.game.options, **sized)
        answers = game.rollouts_per_step() - (0 if "beforehand" in name else 256)
        sizes[name] = (answers, answers // config.run.minibatches, config.run.steps)
    # 64 prompts of 4 questions with 4 answers each; 64 questions with 4 answers each; 256 of them.
    assert list(sizes.values()) == [(1024, 128, 100), (256, 128, 100), (1024, 128, 100)]


def test_one_grader_for_all_arms():
    found = load_experiment("agon-table3")
    (deepmath, transfer), arms = found.evaluations, (found.arms["zero-shot"], ArmSection(game="agon"))
    settings = [each.settings(found.shared, arm) for each in found.evaluations for arm in arms]
    assert {each.answer_from for each in settings} == {"block"}
    assert ([*deepmath.specs], [*transfer.specs]) == (["deepmath"], ["gsm8k", "math500"])
    found = load_experiment("pasodoble-ablations")
    shots = {"base": 4, "base, 0-shot": 0, "online": 0}
    assert {name: found.evaluations[0].settings(found.shared, found.arms[name]).shots for name in shots} == shots


def test_the_arms_of_pasodoble_start_from_what_is_measured_and_offline_has_the_papers_iterations():
    found = load_experiment("pasodoble-ablations")
    starts = [found.starts_of(arm)[:1] for arm in ("online", "offline", "self-play", "no knowledge")]
    # The last one has a cold start of its own, which is not measured.
    assert starts == [["cold start"], ["cold start"], ["self-play, cold start"], []]
    config = found.config("offline", 0, Path("run"), None)
    (*_, iterations) = make_game("pasodoble", config.game.options).describe(config.run.steps)
    assert iterations.endswith("are 60.0 to 60.0 iterations")
