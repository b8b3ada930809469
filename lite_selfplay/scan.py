"""Lookup by name: registries, and the optional modules in `lite_selfplay/extras`, imported on first use.

Training, resuming, measuring and reporting work without them, and reach them only through `extra`.
"""

from collections.abc import Callable, Mapping
from functools import partial
from importlib import import_module
from importlib.metadata import entry_points
from pkgutil import resolve_name
from typing import Any, Generic, TypeVar

from lite_selfplay.errors import LiteSelfPlayError, RequestError, UnknownNameError

T = TypeVar("T")


def extra(name: str) -> Any:
    """Import a module of `lite_selfplay.extras`."""
    return import_module(f"lite_selfplay.extras.{name}")


class Registry(Generic[T]):
    """Objects of a `kind` by name: the library's own (`places`: name to `MODULE:NAME`, imported on first use), those
    of installed packages (entry points of a `group`), and those added in this process."""

    def __init__(
        self, kind: str, places: Mapping[str, str], *, group: str = "", error: type[LiteSelfPlayError] = RequestError
    ):
        self.kind, self.group, self.error = kind, group, error
        self.own = frozenset(places)
        self.known: dict[str, Callable[[], T]] = {
            name: partial(resolve_name, f"lite_selfplay.{place}") for name, place in places.items()
        }

    def add(self, name: str, thing: T) -> None:
        """Register one under a name. A redefinition, from running its cell or file again, replaces the old one.
        Raises `error` if the name belongs to the library or to another object."""
        if name in self.own or (name in self.names() and _home(self.known[name]()) != _home(thing)):
            raise self.error(f"the {self.kind} {name!r} exists already: choose another name")
        self.known[name] = lambda: thing

    def names(self) -> list[str]:
        """All names, the library's first."""
        for point in entry_points(group=self.group) if self.group else ():
            self.known.setdefault(point.name, point.load)
        return list(self.known)

    def require(self, name: str, hint: str = "") -> None:
        """Raises UnknownNameError, with similar names and the `hint`, if the name is unknown."""
        if name not in self.known and name not in self.names():
            raise UnknownNameError(self.kind, name, self.known, hint)

    def find(self, name: str, hint: str = "") -> T:
        """The object of this name. Raises like `require`."""
        self.require(name, hint)
        return self.known[name]()


def _home(thing: object) -> tuple[str, str]:
    return getattr(thing, "__module__", ""), getattr(thing, "__qualname__", type(thing).__qualname__)
