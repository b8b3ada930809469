"""A registry: the library's own by their places, those of installed packages, and those added in this process."""

from types import SimpleNamespace
from typing import Any

import pytest

from lite_selfplay import scan
from lite_selfplay.errors import GameError, UnknownNameError
from lite_selfplay.scan import Registry


def test_a_registry_finds_what_is_its_own_installed_or_added(monkeypatch: pytest.MonkeyPatch):
    points = [SimpleNamespace(name=name, load=lambda: "installed") for name in ("there", "own")]
    plugins = {"of.games": points}
    monkeypatch.setattr(scan, "entry_points", lambda group: plugins[group])
    things = Registry[Any]("thing", {"own": "errors:GameError"}, group="of.games", error=GameError)

    def mine() -> None: ...

    for _ in range(2):  # defined anew, it takes the place of the old one
        things.add("mine", mine)
    assert [things.find(name) for name in things.names()] == [GameError, "installed", mine]
    for taken in ("own", "there", "mine"):
        with pytest.raises(GameError, match=f"the thing '{taken}' exists already"):
            things.add(taken, len)
    with pytest.raises(UnknownNameError, match=r"unknown thing 'ther': did you mean there\? Look\."):
        things.find("ther", "Look.")
