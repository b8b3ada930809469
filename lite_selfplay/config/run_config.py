"""The whole configuration of a run.

It is built from layers, of which later ones override earlier ones: the library's defaults, the game's recipe, the base
model's suggestions, a preset, the file, the flags.
"""

import re
import reprlib
from collections.abc import Mapping
from functools import reduce
from typing import Any, Self

import yaml
from pydantic import Field, ValidationError

from lite_selfplay.config.layers import FLAT_KEYS, KEYS, SECTIONS, merge, nested, preset_layer, require_own_preset
from lite_selfplay.config.learning import ColdStartSection, RoleConfig, SeatConfig
from lite_selfplay.config.sections import (
    EvalSection,
    GameSection,
    ModelSection,
    RolloutsSection,
    RunSection,
    Section,
    TasksSection,
)
from lite_selfplay.errors import ConfigError, UnknownNameError


class RunConfig(Section):
    """Everything needed to repeat a run. `preset` names a layer that everything else given overrides.

    >>> RunConfig(game="agon", model="tiny", tasks="letters", steps=3).run.steps
    3
    """

    game: GameSection
    model: ModelSection
    tasks: TasksSection = TasksSection()
    roles: dict[str, RoleConfig] = Field(default_factory=dict)
    seats: dict[str, SeatConfig] = Field(default_factory=dict)
    cold_start: ColdStartSection = ColdStartSection()
    eval: EvalSection = EvalSection()
    run: RunSection = RunSection()
    rollouts: RolloutsSection = RolloutsSection()

    def __init__(self, *layers: Mapping[str, Any], **values: Any) -> None:
        layer = reduce(merge, map(nested, [*layers, values]), dict[str, Any]())
        if (preset := layer.pop("preset", None)) is not None:
            layer = merge(preset_layer(preset), layer)
        try:
            super().__init__(**layer)
        except ValidationError as error:
            raise explain(error) from None
        require_own_preset(self.run.preset, self.game.name)

    @classmethod
    def of(cls, *layers: Mapping[str, Any]) -> Self:
        """Merge layers, of which later ones override earlier ones, and validate. Raises ConfigError."""
        return cls(*layers)

    def having(self, *layers: Mapping[str, Any]) -> Self:
        """This configuration, overridden by layers. Raises ConfigError."""
        return self.of(self.model_dump(mode="json"), *layers)

    def chosen(self) -> dict[str, Any]:
        """Only the keys that were given, as a layer."""
        return self.model_dump(mode="json", exclude_unset=True)

    def values(self) -> dict[str, Any]:
        """The whole configuration as JSON, without the run folder."""
        return self.model_dump(mode="json", exclude={"run": {"dir"}})

    def to_yaml(self) -> str:
        """The whole configuration as YAML, without the run folder."""
        return yaml.safe_dump(self.values(), sort_keys=False, allow_unicode=True)


def explain(error: ValidationError) -> ConfigError:
    """A ConfigError with one sentence per pydantic error, and similar names for an unknown key."""
    return ConfigError("; ".join(_explain_one(item) for item in error.errors()))


_SHORT = reprlib.Repr()  # a few lines of YAML can expand to billions of values
_SHORT.maxstring = _SHORT.maxother = 200


def _explain_one(item: Any) -> str:
    # For a key that takes several types, drop pydantic's name of the alternative.
    loc = [part for part in map(str, item["loc"]) if part != "bool" and not part.startswith("literal[")]
    path = ".".join(loc)
    *section, last = loc or [""]
    like = "lr" if last == "learning_rate" else last
    elsewhere = [re.sub("SEAT|ROLE", "*", key) for key in KEYS if key.endswith(f".{like}")]
    if section in (["seats"], ["roles"]) and elsewhere:  # a key where a name belongs
        return str(UnknownNameError("key", path, elsewhere))
    if item["type"] == "extra_forbidden":
        hint = f"There is {' and '.join(elsewhere)}." if elsewhere else ""
        return str(UnknownNameError("key", path, [".".join([*section, known]) for known in keys_of(section)], hint))
    if item["type"] == "missing":
        return f"{path} is missing"
    return f"{path}: {item['msg'][0].lower()}{item['msg'][1:]}, got {_SHORT.repr(item['input'])}"


def keys_of(section: list[str]) -> list[str]:
    """The known keys of a section, given by its path (`["run"]`, `["seats", "A"]`)."""
    if not section:
        return [*SECTIONS, "preset", *FLAT_KEYS]
    return list(SECTIONS[section[0]].model_fields)
