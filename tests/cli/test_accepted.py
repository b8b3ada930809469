"""What only the user decides is asked for wherever a file decides it: by every key of a configuration or experiment."""

import re
from collections.abc import Iterator
from pathlib import Path
from typing import Any, get_args

import pytest
import yaml
from pydantic import BaseModel

from lite_selfplay import RunConfig, resume
from lite_selfplay.config.layers import GUARDS, KEYS, Key, set_key
from lite_selfplay.config.user_files import load
from lite_selfplay.errors import ConfigError
from lite_selfplay.extras.reproduce.experiment import Experiment, load_experiment
from lite_selfplay_cli.flags import layers

TEXTS = [key for key in KEYS.values() if key.kind in (str, tuple)]
WHOLE: dict[str, Any] = {
    "about": "One.",
    "source": "nowhere",
    "paper": "another",
    "evaluations": [{"tasks": "letters"}],
    "base": {"model": "tiny", "tasks": "letters"},
    "arms": {"one": {"game": "grpo"}},
}


@pytest.fixture
def code(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> str:
    """A stranger's function."""
    monkeypatch.setenv("XDG_STATE_HOME", str(tmp_path / "state"))
    monkeypatch.chdir(tmp_path)
    (tmp_path / "theirs.py").write_text("from pathlib import Path\nPath('ran').touch()\ndef f(*_): pass\n")
    return f"{tmp_path}/theirs.py:f"


def written(values: Any, name: str = "theirs.yaml") -> Path:
    path = Path(name)
    path.parent.mkdir(exist_ok=True)
    path.write_text(yaml.safe_dump(values))
    return path


def having(key: Key, value: Any) -> dict[str, Any]:
    """A whole configuration in which a key has this value."""
    values = RunConfig(game="agon", model="tiny", tasks="letters").values()
    set_key(values, key.path.replace("ROLE", "drafter").replace("SEAT", "A"), value)
    return values


@pytest.mark.parametrize("key", TEXTS, ids=lambda key: key.path)
def test_code_that_any_key_of_a_configuration_names(code: str, key: Key):
    values = having(key, [code] if key.kind is tuple else code)
    named = f"so it was not run: {key.path.replace('ROLE', 'drafter').replace('SEAT', 'A')}: {code}"
    with pytest.raises(ConfigError, match=re.escape(named)):
        layers({}, None, written(values), None)
    if not key.choices and key.path not in ("cold_start.source", "rollouts.servers"):  # those refuse any such text
        with pytest.raises(ConfigError, match=re.escape(named)):
            resume(written(values, "run/config.yaml").parent)
    assert not Path("ran").exists()
    load(code, "--tasks", "function")
    layers({}, None, written(values), None)  # it was run by the user


def test_every_key_that_lets_code_run_is_declared_as_one():
    """A new switch that mentions code, programs or trust says what it lifts."""
    switches = [key for key in KEYS.values() if key.kind is bool and re.search("code|program|trust|safe", key.about)]
    assert [key.path for key in switches] == [key.path for key in GUARDS.values()] != []


@pytest.mark.parametrize("name", GUARDS)
def test_a_guard_that_a_file_lifts(code: str, name: str):
    key, flag = GUARDS[name], f"--{name.replace('_', '-')}"
    file = written(having(key, True))
    said = f"sets {re.escape(key.path)}, which runs .* No file may decide that: if you want it, give {flag}"
    for given, assignments in (({}, None), ({name: False}, [f"{key.path}=false"])):
        config = RunConfig.of(*layers(given, None, file, assignments)) if given else None
        assert config is None or not config.values()[key.path.partition(".")[0]][name]
        if not given:
            with pytest.raises(ConfigError, match=said):
                layers(given, None, file, assignments)
    with pytest.raises(ConfigError, match=said):
        layers({}, None, written({"game": "agon", "model": {"name": "tiny"}, name: True}), None)
    layers({name: True}, None, file, None)
    layers({}, None, file, [f"{key.path}=true"])
    with pytest.raises(ConfigError, match=said):
        resume(written(having(key, True), "run/config.yaml").parent)


def fields(section: type[BaseModel]) -> Iterator[tuple[str | int, ...]]:
    """The path of every text in an experiment's file: an arm's name is `one`, a list's item the first."""
    for name, field in section.model_fields.items():
        kinds = [field.annotation, *get_args(field.annotation)]
        kinds += [inner for kind in kinds for inner in get_args(kind)]
        below = next((kind for kind in kinds if isinstance(kind, type) and issubclass(kind, BaseModel)), None)
        inside: tuple[str | int, ...] = (
            ("one",) if dict in (getattr(kind, "__origin__", kind) for kind in kinds) else ()
        )
        inside = (0,) if any(getattr(kind, "__origin__", kind) is tuple for kind in kinds) else inside
        if below is not None:
            yield from ((name, *inside, *path) for path in fields(below))
        elif str in kinds or Any in kinds:
            yield name, *inside


def changed(values: Any, path: tuple[str | int, ...], value: Any) -> Any:
    """Nested mappings and lists with another value at a path."""
    if not path:
        return value
    if path[0] == 0:
        return [changed(values[0] if values else {}, path[1:], value)]
    return {**(values or {}), path[0]: changed((values or {}).get(path[0]), path[1:], value)}


FIELDS = [path for path in fields(Experiment) if path[0] not in ("name", "scale")]  # those are not in the file


def test_the_fields_of_an_experiment_are_found():
    needed = {("arms", "one", "cold_start"), ("arms", "one", "set", "one"), ("evaluations", 0, "tasks")}
    assert needed | {("search", "evaluations", 0, "tasks"), ("base", "one"), ("cold_start", "one")} <= {*FIELDS}


@pytest.mark.parametrize("path", FIELDS, ids=lambda path: ".".join(map(str, path)))
def test_code_that_any_field_of_an_experiment_names(code: str, path: tuple[str | int, ...]):
    for text in (code, f"letters, {code}:of=1"):
        with pytest.raises(ConfigError, match=r"names code that you have not run .*theirs\.py:f"):
            load_experiment(str(written(changed(WHOLE, path, text))))
    assert not Path("ran").exists()


@pytest.mark.parametrize("name", GUARDS)
def test_a_guard_that_an_experiment_lifts(code: str, name: str):
    key = GUARDS[name].path
    section = key.partition(".")[0]
    lifted = {section: {"name": "tiny", name: True} if section == "model" else {"train": "letters", name: True}}
    for path, value in (
        (("base",), {**WHOLE["base"], name: True}),
        (("base",), {**WHOLE["base"], **lifted}),
        (("arms", "one", "set"), {key: True}),
        (("arms", "one", "set"), {name: True}),
        (("cold_start",), {name: True}),
    ):
        file = str(written(changed(WHOLE, path, value)))
        with pytest.raises(ConfigError, match=f"{name}, which runs .* --set {key}=true"):
            load_experiment(file)
        if path[0] != "cold_start":
            load_experiment(file, chosen={section: {name: True}})
    file = str(written({**WHOLE, "scales": {"small": {"base": {name: True}}}}))
    load_experiment(file)
    with pytest.raises(ConfigError, match=f"{name}, which runs"):
        load_experiment(file, "small")
