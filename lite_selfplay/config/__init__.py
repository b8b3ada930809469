"""The configuration of a run: what the command line, a YAML file and Python all build.

`sections.py` declares every key, `keys.py` lists them by their paths and flags, `layers.py` merges and reads layers,
`presets/` has layers by name, and `run_config.py` is the whole configuration. Nothing here knows a game, a model or a
task: what only they can check, they check.
"""

from lite_selfplay.config.keys import FLAGS, FLAT_KEYS, KEYS, Key, keys_in
from lite_selfplay.config.layers import (
    NAMED_SECTIONS,
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
from lite_selfplay.config.run_config import RunConfig, explain, keys_of
from lite_selfplay.config.sections import (
    SECTIONS,
    ColdStartSection,
    EvalSection,
    GameSection,
    ModelSection,
    RoleConfig,
    RolloutsSection,
    RunSection,
    SeatConfig,
    Section,
    TasksSection,
)

__all__ = [
    "FLAGS",
    "FLAT_KEYS",
    "KEYS",
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
    "merge",
    "nested",
    "parse_assignment",
    "preset_about",
    "preset_layer",
    "preset_names",
    "set_key",
    "spread",
]
