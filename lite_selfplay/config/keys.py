"""The keys of a configuration by their paths, as its sections declare them, and their flags.

A flag of the command line is also a flat key of configuration files and of `RunConfig` (`steps`, `group_size`, ...), in
place of its path (`run.steps`). `model`, `tasks` and `cold_start` are flags as well, but as keys they are sections.
"""

import types
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal, Union, get_args, get_origin

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
from lite_selfplay.errors import UnknownNameError

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
"""The sections by name; `roles` and `seats` hold one such section for each role and each seat."""
_EACH = {"roles": "roles.ROLE", "seats": "seats.SEAT"}
_BOUNDS = {"ge": ">=", "gt": ">", "le": "<=", "lt": "<", "min_length": "length >="}


@dataclass(frozen=True)
class Key:
    """A key: where it stands, what it takes and what it means.

    `kind` is the type of its value (`str` where there are `choices` alone), `bounds` its range, such as `>= 0, < 1`.
    `default` is None where it has none, and `unset` then says what stands in for it. `flag` is its flat name, empty
    where it has none; `short` and `metavar` are those of its option.
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

    @property
    def type_text(self) -> str:
        """What it takes, in words: `int`, `grpo|dapo`, `auto|bool`."""
        return "|".join([*self.choices, *([] if self.choices and self.kind is str else [_NAMES[self.kind]])])

    @property
    def default_text(self) -> str:
        """Its default in words; empty where it has none, or must be given."""
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
    """The keys of a section, in order. Raises UnknownNameError for no section."""
    if section not in SECTIONS:
        raise UnknownNameError("section", section, SECTIONS)
    model: type[BaseModel] = SECTIONS[section]
    return [_key(f"{_EACH.get(section, section)}.{name}", field) for name, field in model.model_fields.items()]


def _key(path: str, field: FieldInfo) -> Key:
    declared = field.json_schema_extra if isinstance(field.json_schema_extra, dict) else {}
    kind, choices = _kind(field.annotation)
    found = {name: getattr(bound, name) for bound in field.metadata for name in _BOUNDS if hasattr(bound, name)}
    texts = {name: str(declared.get(name, "")) for name in ("flag", "short", "metavar", "unset")}
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
    """(the type of a value, the names it may be) of a field's annotation."""
    if get_origin(annotation) is Literal:
        return str, tuple(get_args(annotation))
    if get_origin(annotation) in (Union, types.UnionType):
        found = [_kind(part) for part in get_args(annotation) if part is not types.NoneType]
        return found[-1][0], tuple(choice for _, choices in found for choice in choices)
    return get_origin(annotation) or annotation, ()


KEYS: Mapping[str, Key] = {key.path: key for section in SECTIONS for key in keys_in(section)}
"""Every key by its path."""

FLAGS: Mapping[str, Key] = {key.flag: key for key in KEYS.values() if key.flag}
"""The keys that have a flag of `train`, by its name with underscores."""

FLAT_KEYS: Mapping[str, str] = {
    flag: key.path.replace(".SEAT.", ".*.") for flag, key in FLAGS.items() if flag not in SECTIONS
}
"""The path that each flat key stands for: of a seat's key, that of every seat."""
