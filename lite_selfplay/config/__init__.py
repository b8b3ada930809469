"""The configuration of a run: what the command line, a YAML file and Python all build.

`sections.py` and `learning.py` declare every key, `layers.py` lists them by their paths and flags, and merges and reads
layers, `presets/` has layers by name, and `run_config.py` is the whole configuration. Nothing here knows a game, a
model or a task: what only they can check, they check.
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
