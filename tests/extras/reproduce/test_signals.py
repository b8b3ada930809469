"""An arm is named after what it is paid for: in every experiment and plan, at every size."""

import re
from pathlib import Path

import pytest
import yaml

from lite_selfplay.extras.reproduce.experiment import EXPERIMENTS, Experiment, load_experiment
from lite_selfplay.games import make_game

ROOT = Path(__file__).parents[3]
SIGNALS = {
    "coin": r"\bcoins?\b|\btoss|\brandom (?:rewards|with)\b",
    "vote": r"\bvotes?\b|\bmajorit",
    "form": r"\bform\b|\bformat\b|\banswer block\b",
    "labels": r"\blabels?\b|\bright answer",
    "entropy": r"\bentrop|\bcertain",
}
FILES = [
    Path(str(EXPERIMENTS)),
    *(ROOT / "experiments", ROOT / "experiments" / "attempts", ROOT / "experiments" / "papers", ROOT / "benchmarks"),
]
SHIPPED = sorted(
    file for folder in FILES for file in folder.glob("*.yaml") if "arms" in yaml.safe_load(file.read_text())
)


def signals_in(words: str) -> set[str]:
    """The signals that words name: of an arm what it claims, of a role's reward what is on."""
    return {signal for signal, pattern in SIGNALS.items() if re.search(pattern, words, re.IGNORECASE)}


def misnamed(experiment: Experiment) -> dict[str, str]:
    """The trained arms that name a signal they are not paid by, or not all signals of a role that is paid by it."""
    found = {}
    for name, arm in experiment.trained().items():
        config = experiment.config(name, experiment.seeds[0], Path("run"), None)
        rewards = make_game(config.game.name, config.game.options).rewards()
        assert rewards, f"{config.game.name} does not say what it pays"
        on, claimed = {role: signals_in(words) for role, words in rewards.items()}, signals_in(f"{name}: {arm.about}")
        if missing := claimed - set().union(*on.values()):
            found[name] = f"not paid by {missing}"
        elif unsaid := set().union(*(signals for signals in on.values() if signals & claimed)) - claimed:
            found[name] = f"also paid by {unsaid}"
    return found


def sizes(file: Path) -> list[str]:
    return ["full", *(yaml.safe_load(file.read_text()).get("scales") or {})]


@pytest.mark.parametrize("file", SHIPPED, ids=lambda file: file.stem)
def test_every_arm_is_named_after_what_it_is_paid_for(file: Path, monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setattr("lite_selfplay.extras.reproduce.experiment.require_accepted", lambda *_: None)  # our own code
    name = file.stem if file.parent == FILES[0] else str(file)
    for scale in sizes(file):
        assert misnamed(load_experiment(name, scale)) == {}


@pytest.mark.parametrize(
    ("name", "about", "keys", "why"),
    [
        ("coin", "", {"game.reward": "random", "game.format_weight": 0.5}, "also paid by {'form'}"),
        ("coin", "", {"game.reward": "random"}, None),
        ("form and a coin", "", {"game.reward": "random"}, "not paid by {'form'}"),
        ("grpo", "the labels", {}, None),
        ("grpo", "the labels", {"game.format_weight": 0.5}, "also paid by {'form'}"),
        ("grpo", "the ceiling", {}, None),
        ("TTRL", "the majority vote", {"game.reward": "majority", "game.format_weight": 0.5}, "also paid by {'form'}"),
    ],
)
def test_an_arm_that_is_paid_otherwise_than_it_says_is_found(name, about, keys, why, tmp_path: Path):
    file = tmp_path / "one.yaml"
    arms = {"about": "one", "source": "none", "paper": "none", "base": {"model": {"name": "tiny"}, "steps": 1}}
    arms |= {"arms": {name: {"about": about, "game": "grpo", "set": keys}}, "evaluations": [{"tasks": "letters"}]}
    file.write_text(yaml.safe_dump(arms))
    assert misnamed(load_experiment(str(file))) == ({} if why is None else {name: why})
