"""The extras, found by name: what training, resuming, measuring and reporting do without.

Nothing below `lite_selfplay/extras` imports one; each is imported when it is asked for.
"""

from importlib import import_module
from typing import Any


def extra(name: str) -> Any:
    """A module of `lite_selfplay.extras`."""
    return import_module(f"lite_selfplay.extras.{name}")
