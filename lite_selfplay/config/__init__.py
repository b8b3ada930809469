"""The configuration of a run, built alike from the command line, a YAML file or Python.

`sections.py` and `learning.py` declare every key. `layers.py` lists them by path and flag, and reads and merges layers.
`presets/` has named layers, and `run_config.py` the whole configuration. Games, models and tasks check their own
values.
"""

from lite_selfplay.config.layers import (
    FLAGS,
    FLAT_KEYS,
    KEYS,
    NAMED_SECTIONS,
    SECTIONS,
    Key,
    keys_in,
    load_layer,
    merge,
    nested,
    parse_assignment,
    preset_about,
    preset_layer,
    preset_names,
    set_key,
    spread,
)
from lite_selfplay.config.learning import LOSSES, ColdStartSection, RoleConfig, SeatConfig, load_loss
from lite_selfplay.config.run_config import RunConfig, explain, keys_of
from lite_selfplay.config.sections import (
    EvalSection,
    GameSection,
    ModelSection,
    RolloutsSection,
    RunSection,
    Section,
    TasksSection,
)

__all__ = [
    "FLAGS",
    "FLAT_KEYS",
    "KEYS",
    "LOSSES",
    "NAMED_SECTIONS",
    "SECTIONS",
    "ColdStartSection",
    "EvalSection",
    "GameSection",
    "Key",
    "ModelSection",
    "RoleConfig",
    "RolloutsSection",
    "RunConfig",
    "RunSection",
    "SeatConfig",
    "Section",
    "TasksSection",
    "explain",
    "keys_in",
    "keys_of",
    "load_layer",
    "load_loss",
    "merge",
    "nested",
    "parse_assignment",
    "preset_about",
    "preset_layer",
    "preset_names",
    "set_key",
    "spread",
]
