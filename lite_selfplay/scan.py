"""The extras that are there: the folders of `lite_selfplay/extras`, found by looking into it.

An extra is what training, resuming, measuring and reporting on one machine do without. Nothing outside
`lite_selfplay/extras` imports one. Importing an extra registers what it adds where the library takes such things
(`register_task`, `register_checker`, `register_backend`), so `register_extras` stands before names are looked up there;
what is asked for by the extra's own name is found by `extra`. A folder that was deleted is refused in a sentence.
"""

import functools
import pkgutil
from importlib import import_module
from pathlib import Path
from typing import Any

from lite_selfplay.errors import RequestError

FOLDER = "lite_selfplay/extras"
SHIPPED: dict[str, tuple[str, ...]] = {
    "doctor": (),
    "export": (),
    "figures": (),
    "gym": ("reasoning-gym",),
    "programs": ("program", "code-arithmetic", "humaneval", "humanevalplus", "mbpp", "mbppplus", "codecontests"),
    "rehearsal": (),
    "reproduce": (),
    "servers": (),
    "talk": (),
    "trackers": (),
    "view": (),
}
"""The extras that a whole installation has, and the names of tasks and kinds of problems that each registers."""


def extras() -> list[str]:
    """The names of the extras that are there."""
    folder = Path(__file__).parent / "extras"
    return sorted(found.name for found in pkgutil.iter_modules([str(folder)]) if found.ispkg)


@functools.cache
def register_extras() -> None:
    """Import every extra that is there, once."""
    for name in extras():
        import_module(f"lite_selfplay.extras.{name}")


def extra(name: str, what: str, module: str = "") -> Any:
    """An extra, or a `module` of it. Raises RequestError where its folder is not there; `what` needs it."""
    if name not in extras():
        raise RequestError(f"{what} needs {FOLDER}/{name}, which this installation is without")
    return import_module(f"lite_selfplay.extras.{name}{module and '.'}{module}")


def require_registered(name: str, what: str) -> None:
    """Raises RequestError where a task or a kind of problems is one that an extra registers which is not there."""
    for each in (each for each, names in SHIPPED.items() if name in names):
        extra(each, f"{what} {name!r}")
