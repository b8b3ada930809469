"""Configuration keys by path and flag, and layers: nested dictionaries, of which later ones override earlier ones.

A flag of the command line is also a flat key of configuration files and of `RunConfig`: `steps` instead of the path
`run.steps`. `model`, `tasks` and `cold_start` are flags as well, but as keys they are sections. Presets, files and
flags all become layers here, and are validated only when a `RunConfig` is built from them.
"""

import copy
import os
import shlex
import types
from collections.abc import Mapping
from dataclasses import dataclass
from importlib.resources import files
from pathlib import Path
from typing import Any, Literal, Union, get_args, get_origin

import yaml
from pydantic import BaseModel
from pydantic.fields import FieldInfo

from lite_selfplay.config.learning import ColdStartSection, RoleConfig, SeatConfig
from lite_selfplay.config.sections import (
    EvalSection,
    GameSection,
    ModelSection,
    RolloutsSection,
    RunSection,
    TasksSection,
)
from lite_selfplay.config.user_files import absolute, file_of, leaves, read_utf8, task_of, was_run
from lite_selfplay.errors import ConfigError, UnknownNameError

# The sections by name; `roles` and `seats` have one section for each role and each seat.
SECTIONS: Mapping[str, type[BaseModel]] = {
    "game": GameSection,
    "model": ModelSection,
    "tasks": TasksSection,
    "roles": RoleConfig,
    "seats": SeatConfig,
    "cold_start": ColdStartSection,
    "eval": EvalSection,
    "run": RunSection,
    "rollouts": RolloutsSection,
}
_EACH = {"roles": "roles.ROLE", "seats": "seats.SEAT"}
_BOUNDS = {"ge": ">=", "gt": ">", "le": "<=", "lt": "<", "min_length": "length >="}


@dataclass(frozen=True)
class Key:
    """A key: its path, its type and its meaning.

    `kind` is the type of its value (`str` if it takes only `choices`), `bounds` its range, such as `>= 0, < 1`. If it
    has no default, `default` is None and `unset` says what is used instead. `flag` is its flat name, empty if it has
    none; `short` and `metavar` belong to its option. `lifts` says which guard it lifts, empty if none.
    """

    path: str
    kind: type
    choices: tuple[str, ...]
    bounds: str
    required: bool
    default: Any
    unset: str
    about: str
    flag: str
    short: str
    metavar: str
    lifts: str

    @property
    def type_text(self) -> str:
        """Its type as text: `int`, `grpo|dapo`, `auto|bool`."""
        return "|".join([*self.choices, *([] if self.choices and self.kind is str else [_NAMES[self.kind]])])

    @property
    def default_text(self) -> str:
        """Its default as text, or what is used instead of None; empty if it is required."""
        if self.default is None:
            return self.unset
        if isinstance(self.default, bool):
            return "yes" if self.default else "no"
        if isinstance(self.default, tuple):
            return ", ".join(self.default)
        return f"{self.default:g}" if isinstance(self.default, float) else str(self.default)


_NAMES: Mapping[type, str] = {
    bool: "bool", int: "int", float: "float", str: "text", Path: "path", tuple: "list of texts"
}  # fmt: skip


def keys_in(section: str) -> list[Key]:
    """The keys of a section, in order. Raises UnknownNameError for an unknown section."""
    if section not in SECTIONS:
        raise UnknownNameError("section", section, SECTIONS)
    return declared_by(SECTIONS[section], f"{_EACH.get(section, section)}.")


def declared_by(section: type[BaseModel], before: str = "") -> list[Key]:
    """The keys that a section declares, in order, with `before` as the prefix of their paths."""
    return [_key(f"{before}{name}", field) for name, field in section.model_fields.items()]


def _key(path: str, field: FieldInfo) -> Key:
    declared = field.json_schema_extra if isinstance(field.json_schema_extra, dict) else {}
    kind, choices = _kind(field.annotation)
    found = {name: getattr(bound, name) for bound in field.metadata for name in _BOUNDS if hasattr(bound, name)}
    texts = {name: str(declared.get(name, "")) for name in ("flag", "short", "metavar", "unset", "lifts")}
    return Key(
        path,
        kind,
        choices,
        bounds=", ".join(f"{_BOUNDS[name]} {value}" for name, value in found.items()),
        required=field.is_required(),
        default=None if field.is_required() else field.default,
        about=field.description or "",
        **texts,
    )


def _kind(annotation: Any) -> tuple[type, tuple[str, ...]]:
    """(the type of its values, the allowed names) of a field's annotation."""
    if get_origin(annotation) is Literal:
        return str, tuple(get_args(annotation))
    if get_origin(annotation) in (Union, types.UnionType):
        found = [_kind(part) for part in get_args(annotation) if part is not types.NoneType]
        return found[-1][0], tuple(choice for _, choices in found for choice in choices)
    return get_origin(annotation) or annotation, ()


# Every key by its path.
KEYS: Mapping[str, Key] = {key.path: key for section in SECTIONS for key in keys_in(section)}

# The keys that have a flag in `train`, by the flag's name with underscores.
FLAGS: Mapping[str, Key] = {key.flag: key for key in KEYS.values() if key.flag}

# The keys that lift a guard, by name.
GUARDS: Mapping[str, Key] = {key.path.rpartition(".")[2]: key for key in KEYS.values() if key.lifts}

# The path of each flat key; a seat's key stands for that of every seat (`seats.*.lr`).
FLAT_KEYS: Mapping[str, str] = {
    flag: key.path.replace(".SEAT.", ".*.") for flag, key in FLAGS.items() if flag not in SECTIONS
}


PRESETS = files("lite_selfplay.config") / "presets"
# The most bytes of a configuration file.
FILE_LIMIT = 2**20
_MOST_VALUES, _DEEPEST = 100_000, 20
# ValueError: a date that does not exist. TypeError: a key that is a list. AttributeError, LookupError: `!!int ""`.
_NO_YAML = (yaml.YAMLError, ValueError, TypeError, AttributeError, LookupError)


class _Loader(yaml.SafeLoader):
    """YAML's safe loader, which refuses a key that is there twice instead of forgetting the first."""

    def compose_mapping_node(self, anchor: Any) -> Any:
        node = super().compose_mapping_node(anchor)
        seen = set()
        for key, _ in node.value:
            if (named := (key.tag, str(key.value))) in seen:
                raise yaml.MarkedYAMLError(problem=f"the key {key.value} is there twice", problem_mark=key.start_mark)
            seen.add(named)
        return node


NAMED_SECTIONS = {"game": "name", "model": "name", "tasks": "train", "rollouts": "servers"}


def nested(values: Mapping[str, Any]) -> dict[str, Any]:
    """Sections from values that may hold flat keys (`steps=3`) and short sections (`game="agon"`).

    Raises ConfigError if a flat key and its section's key are both given and differ.
    """
    if odd := [key for key in values if not isinstance(key, str)]:
        raise ConfigError(f"the keys of a configuration are names, got {odd[0]!r}")
    texts = {key: str(value) if isinstance(value, Path) else value for key, value in values.items()}
    result = {key: copy.deepcopy(_section(key, value)) for key, value in texts.items() if key not in FLAT_KEYS}
    for key in [key for key in texts if key in FLAT_KEYS]:
        value = texts[key]
        section, _, inner = FLAT_KEYS[key].partition(".")
        below = result.get(section)
        if isinstance(below, dict) and below.get(inner, value) != value:
            raise ConfigError(f"{key} is {value!r} and {FLAT_KEYS[key]} is {below[inner]!r}: give one of them")
        set_key(result, FLAT_KEYS[key], value)
    return result


def _section(name: str, value: Any) -> Any:
    """A section from its short form: a name, None, a switch for the cold start, or rows of problems."""
    if value is None and name in SECTIONS:
        return {}
    if isinstance(value, bool) and name == "cold_start":
        return {"enabled": value}
    if name == "tasks" and (not isinstance(value, str | Mapping) or hasattr(value, "column_names")):
        value = task_of(value)
    return {NAMED_SECTIONS[name]: value} if name in NAMED_SECTIONS and isinstance(value, str) else value


def merge(base: Mapping[str, Any], over: Mapping[str, Any]) -> dict[str, Any]:
    """A new layer: `base`, overridden key by key by `over`. A `*` in `over` applies to every entry of `base`."""
    every = over.get("*")
    result = {
        key: merge(value, every) if isinstance(every, Mapping) and isinstance(value, Mapping) else value
        for key, value in base.items()
    }
    for key, value in over.items():
        below = result.get(key)
        result[key] = merge(below, value) if isinstance(value, Mapping) and isinstance(below, Mapping) else value
    return result


def set_key(values: dict[str, Any], dotted: str, value: Any) -> None:
    """Set `a.b.c` in nested dictionaries, creating missing ones. Raises ConfigError if the path is too deep or runs
    through a value."""
    *path, last = dotted.split(".")
    if len(path) >= _DEEPEST:
        raise ConfigError(f"cannot set '{dotted[:60]}...': nested too deeply")
    for part in path:
        below = values.setdefault(part, {})
        if isinstance(below, str) and part in NAMED_SECTIONS:
            below = values[part] = {NAMED_SECTIONS[part]: below}
        if not isinstance(below, dict):
            raise ConfigError(f"cannot set {dotted!r}: {part!r} is a value, not a section")
        values = below
    values[last] = value


def parse_assignment(text: str) -> dict[str, Any]:
    """`a.b=c` as a layer; the value is read as YAML. Raises ConfigError without a `=` or a key."""
    key, equals, value = text.partition("=")
    if not equals or not key.strip():
        raise ConfigError(f"--set takes KEY=VALUE, such as run.steps=20, got {text!r}")
    layer: dict[str, Any] = {}
    key = key.strip()
    try:
        set_key(layer, FLAT_KEYS.get(key, key), _parse(value, f"--set {key}"))
    except _NO_YAML:
        raise ConfigError(f"--set {key}: {value!r} is not a YAML value") from None
    return layer


def _parse(text: str, name: str) -> Any:
    """The value of a YAML text called `name` in errors. Raises ConfigError if it contains itself or expands to too many
    values: by its aliases, a few lines of YAML can expand to billions."""
    left = _MOST_VALUES

    def count(value: Any, depth: int) -> None:
        nonlocal left
        left -= 1
        if depth > _DEEPEST or left < 0:
            raise ConfigError(f"{name}: {'nested too deeply' if left >= 0 else 'too many values'}")
        if isinstance(value, dict | list):
            for below in value.values() if isinstance(value, dict) else value:
                count(below, depth + 1)

    try:
        values = yaml.load(text, _Loader)
    except RecursionError:
        raise ConfigError(f"{name}: nested too deeply") from None
    count(values, 0)
    return values


def load_layer(path: Path) -> dict[str, Any]:
    """A configuration file as a layer. Raises ConfigError if it is missing or is not a YAML mapping."""
    if not os.path.exists(path):
        raise ConfigError(f"no configuration file at {path}")
    return nested(parse_mapping(read_utf8(path, ConfigError, FILE_LIMIT), str(path)))


def require_accepted(values: Mapping[str, Any], where: object, chosen: Mapping[str, Any] | None = None) -> None:
    """Raises ConfigError for what only the user may decide: to run code, or to lift a guard (`Key.lifts`).

    `values` are those of the file or run folder `where`, of any form: an experiment's too. Each text in it that names
    an existing Python file needs a user who has run that file on this machine (a missing file cannot be run). `chosen`
    are the keys that the user gave on the command line, which are accepted. The error says how to accept the others.
    """
    own = {(key.rpartition(".")[2], value) for key, value in leaves(chosen or {})}
    for key, value in leaves(values):
        name = key.rpartition(".")[2]
        if (name, value) in own:
            continue
        if name in GUARDS and value:
            raise ConfigError(
                f"{where} sets {key}, which {GUARDS[name].lifts}. No file may decide that: if you want it, give "
                f"--{name.replace('_', '-')} (to `reproduce`: --set {GUARDS[name].path}=true)"
            )
        for place in [value, *map(str.strip, value.split(","))] if isinstance(value, str) else ():
            if (file := file_of(place)) is not None and os.path.exists(file) and not was_run(place):
                quoted = shlex.quote(absolute(place))
                kind = {"name": "games", "game": "games", "cold_start": "games", "loss": "losses"}.get(name, "tasks")
                accepts = f"give --reward {quoted}" if name == "reward" else f"`lite-selfplay list {kind} {quoted}`"
                raise ConfigError(
                    f"{where} names code that you have not run on this machine, or that has changed since, so it was "
                    f"not run: {key}: {place}. Read it, and if you trust it: {accepts}"
                )


def parse_mapping(text: str, name: str) -> dict[str, Any]:
    """The mapping of a YAML text called `name` in errors. Raises ConfigError for anything else."""
    try:
        values = _parse(text, name)
    except _NO_YAML as error:
        mark = getattr(error, "problem_mark", None)
        where = f"{name}, line {mark.line + 1}" if mark else name
        why = getattr(error, "problem", None) or " ".join(str(error).split())
        raise ConfigError(f"{where}: not YAML ({why})") from None
    if not isinstance(values, dict):
        raise ConfigError(f"{name} must hold a mapping of keys, not a {type(values).__name__}")
    return values


def preset_names() -> list[str]:
    """The names of the presets."""
    return sorted(file.name.removesuffix(".yaml") for file in PRESETS.iterdir())


def preset_layer(name: str) -> dict[str, Any]:
    """A preset as a layer, with its name as `run.preset`. Raises UnknownNameError with all names."""
    if name not in (names := preset_names()):
        raise UnknownNameError("preset", str(name), names, f"There are {', '.join(names)}.")
    values = {key: value for key, value in _preset(name).items() if key != "about"}
    return merge(nested(values), {"run": {"preset": name}})


def require_own_preset(name: str | None, game: str) -> None:
    """Raises ConfigError if the preset belongs to another game."""
    own = preset_layer(name).get("game", {}).get("name", game) if name in preset_names() else game
    if own != game:
        raise ConfigError(f"the preset {name} is for {own}, not for {game}: `lite-selfplay list presets` lists them")


def preset_about(name: str) -> str:
    """One sentence about a preset's purpose."""
    return str(_preset(name)["about"])


def _preset(name: str) -> dict[str, Any]:
    return yaml.safe_load((PRESETS / f"{name}.yaml").read_text(encoding="utf-8"))


def spread(layer: Mapping[str, Any], section: str, names: tuple[str, ...]) -> dict[str, Any]:
    """Expand `section.*` into defaults of each of its `names`: `seats: {"*": {lr: 1e-4}}` applies to every seat.

    Raises UnknownNameError for an entry that is not in `names`.
    """
    entries = dict(layer.get(section) or {})
    common = entries.pop("*", {})
    if odd := [name for name in entries if name not in names]:
        raise UnknownNameError(section[:-1], odd[0], names)
    if common:
        entries = {name: merge(common, entries.get(name, {})) for name in names}
    return {**layer, section: entries} if entries else {k: v for k, v in layer.items() if k != section}
