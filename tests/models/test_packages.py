"""Versions and requirements as packages' own metadata states them, whole, missing and damaged."""

import json
from importlib import metadata
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from lite_selfplay.models import packages
from lite_selfplay.models.packages import version_of, versions


def test_an_installed_package_and_one_that_is_not():
    assert version_of("torch") == metadata.version("torch")
    assert version_of("no-such-package") is None
    assert versions(["torch", "no-such-package"]) == {"torch": metadata.version("torch")}


def test_damaged_metadata_is_an_unknown_version(monkeypatch: pytest.MonkeyPatch):
    def broken(name: str) -> str:
        raise KeyError("Version")

    monkeypatch.setattr(metadata, "version", broken)
    assert version_of("torch") == "unknown"


@pytest.mark.parametrize(
    ("origin", "command"),
    [
        (None, 'pip install "lite-selfplay[unsloth,plots]"'),
        (
            {"url": "file:///tmp/lite_selfplay-0.1.0-py3-none-any.whl", "archive_info": {}},
            'pip install "lite-selfplay[unsloth,plots] @ file:///tmp/lite_selfplay-0.1.0-py3-none-any.whl"',
        ),
        (
            {"url": "https://example.org/l.git", "vcs_info": {"vcs": "git", "commit_id": "0"}},
            'pip install "lite-selfplay[unsloth,plots] @ git+https://example.org/l.git"',
        ),
        (
            {"url": "file:///home/me/l", "dir_info": {}},
            'pip install "lite-selfplay[unsloth,plots] @ file:///home/me/l"',
        ),
    ],
    ids=["PyPI", "wheel", "git", "folder"],
)
def test_how_to_install_is_true_wherever_it_came_from(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path, origin: dict[str, Any] | None, command: str
):
    text = None if origin is None else json.dumps(origin)
    monkeypatch.setattr(metadata, "distribution", lambda name: SimpleNamespace(read_text=lambda file: text))
    monkeypatch.setattr(packages, "__file__", str(tmp_path / "site-packages" / "lite_selfplay" / "models" / "x.py"))
    assert packages.install("unsloth,plots") == command


def test_in_a_checkout_the_checkout_is_installed(monkeypatch: pytest.MonkeyPatch):
    root = Path(packages.__file__).parents[2]
    editable = json.dumps({"url": root.as_uri(), "dir_info": {"editable": True}})
    monkeypatch.setattr(metadata, "distribution", lambda name: SimpleNamespace(read_text=lambda file: editable))
    assert packages.install("plots") == f'pip install -e "{root}[plots]"'

    def nothing(name: str) -> None:
        raise metadata.PackageNotFoundError(name)

    monkeypatch.setattr(metadata, "distribution", nothing)  # on the path alone
    assert packages.install("plots") == f'pip install "lite-selfplay[plots] @ {root.as_uri()}"'
