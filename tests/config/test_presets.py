"""Every preset of a paper or a release says behind each key where it stands there, or after `ours:` why it has it.

What a source says and a run has without being told stands there as well, as a comment: `# reward: adv  # section 4.4`.
"""

import re
from collections.abc import Iterator, Mapping
from typing import Any

import pytest
import yaml

from lite_selfplay.config import FLAT_KEYS, RunConfig, merge, nested, preset_layer, preset_names
from lite_selfplay.config.layers import PRESETS
from lite_selfplay.errors import ConfigError, UnknownNameError
from lite_selfplay.runs.defaults import filled_in

OF_A_MACHINE = {"cpu", "demo", "t4", "consumer-24gb", "datacenter-80gb"}
"""Presets that are cut to a machine and follow no paper."""
OF_A_PAPER = sorted(set(preset_names()) - OF_A_MACHINE)
UNTOLD = re.compile(r'^( *)# ( *["*\w]+:(?: .*  # .*)?)$', re.MULTILINE)


def text_of(name: str) -> str:
    return (PRESETS / f"{name}.yaml").read_text(encoding="utf-8")


def cited(text: str) -> dict[str, tuple[Any, str]]:
    """The keys of a preset's text by their paths, those in comments too: each one's value, and its place or reason."""
    whole = UNTOLD.sub(r"\1\2", text)
    comments = dict(behind_keys(yaml.compose(whole), whole.splitlines()))
    values = {key: value for key, value in yaml.safe_load(whole).items() if key != "about"}
    return {key: (value, comments[key]) for key, value in settings(nested(values))}


def behind_keys(node: yaml.MappingNode, lines: list[str], prefix: str = "") -> Iterator[tuple[str, str]]:
    for key, value in node.value:
        path = prefix + key.value if prefix else FLAT_KEYS.get(key.value, key.value)
        yield path, lines[key.start_mark.line].partition("  # ")[2]
        if isinstance(value, yaml.MappingNode):
            yield from behind_keys(value, lines, f"{path}.")


def settings(layer: Mapping[str, Any], prefix: str = "") -> Iterator[tuple[str, Any]]:
    """The keys of a layer, dotted, with their values."""
    for key, value in layer.items():
        if isinstance(value, Mapping):
            yield from settings(value, f"{prefix}{key}.")
        elif f"{prefix}{key}" != "game.name":
            yield f"{prefix}{key}", value


def resolved(layer: Mapping[str, Any]) -> dict[str, Any]:
    """What a run makes of a layer, as `settings` tells it, with the game's switches."""
    config, played = filled_in(RunConfig(**layer))
    whole = config.model_dump(mode="json") | {"game": played.options.model_dump(mode="json")}
    return dict(settings(whole))


def complaints(text: str) -> list[str]:
    """Keys of a preset's text without a place or a reason, and where a run is not what the text says."""
    layer = nested({key: value for key, value in yaml.safe_load(text).items() if key != "about"})
    run, found = resolved(layer), []
    for key, (value, where) in cited(text).items():
        if not where.removeprefix("ours:").strip():
            found.append(f"{key} has neither a place nor a reason")
        section, _, rest = key.partition(".*.")
        places = [k for k in run if k == key or (rest and k.startswith(f"{section}.") and k.endswith(f".{rest}"))]
        if not places:
            found.append(f"{key} is no key of a run")
        found += [f"{place} is {run[place]!r} in a run, not {value!r}" for place in places if run[place] != value]
    return found


@pytest.mark.parametrize("name", OF_A_PAPER)
def test_each_key_of_a_papers_preset_says_where_it_stands_or_why_it_is_ours(name: str):
    assert complaints(text_of(name)) == []
    # At the least what every paper's own table of hyperparameters holds.
    assert {"run.steps", "run.group_size", "run.max_completion_tokens", "model.name", "seats.*.lr"} <= cited(
        text_of(name)
    ).keys()


@pytest.mark.parametrize(
    ("written", "instead", "complaint"),
    [
        ("steps: 750  # ours: one epoch", "steps: 750 # ours: one epoch", "run.steps has neither a place nor a reason"),
        ("save_every: 50  # ours: the paper is silent", "save_every: 50  # ours:", "run.save_every has neither"),
        ("init: zero", "init: gaussian", "seats.A.init is 'zero' in a run, not 'gaussian'"),  # a recipe's
        ("# rotate: true", "# nothing: true", "game.nothing is no key of a run"),
        ("  # A:\n  #   init: zero", "  A:\n    lr: 1.0e-4", "seats.A.lr is 0.0001 in a run, not 5e-05"),
    ],
)
def test_the_check_sees_what_has_no_place_and_what_a_run_has_otherwise(written: str, instead: str, complaint: str):
    text = text_of("agon-paper")
    assert text.count(written) == 1
    (found,) = complaints(text.replace(written, instead))
    assert complaint in found


def test_a_preset_of_one_game_is_refused_over_another():
    assert {name for name in preset_names() if "game" not in preset_layer(name)} == OF_A_MACHINE
    for values, sentence in (
        ({"preset": "agon-paper", "game": "sqlm"}, "agon-paper is for agon, not for sqlm"),
        (merge(preset_layer("spc-paper"), {"game": {"name": "grpo"}}), "spc-paper is for spc, not for grpo"),
    ):
        with pytest.raises(ConfigError, match=sentence):
            RunConfig(**values)
    for name in OF_A_MACHINE:
        assert RunConfig(preset=name, game="rent", tasks="letters").run.preset == name
    with pytest.raises(UnknownNameError) as caught:
        RunConfig(preset="paper", game="agon")
    assert all(name in str(caught.value) for name in preset_names())
