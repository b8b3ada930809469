"""Which packages are installed, and where this one came from, as their own metadata says. Nothing is imported."""

import json
from collections.abc import Iterable
from importlib import metadata
from pathlib import Path

OWN = "lite-selfplay"


def version_of(name: str) -> str | None:
    """An installed package's version, None where it is not installed; `unknown` where its metadata is damaged."""
    try:
        return metadata.version(name) or "unknown"
    except metadata.PackageNotFoundError:
        return None
    except Exception:  # metadata without a version, or that is no text
        return "unknown"


def versions(names: Iterable[str]) -> dict[str, str]:
    """The versions of those packages that are installed, by name."""
    return {name: found for name in names if (found := version_of(name)) is not None}


def install(extras: str) -> str:
    """The command that installs this library with some extras (`unsloth`, or `unsloth,plots`) from where it came: a
    checkout, a wheel's file or another address, which its metadata remembers (PEP 610), or else PyPI."""
    try:
        found = json.loads(metadata.distribution(OWN).read_text("direct_url.json") or "{}")
    except (metadata.PackageNotFoundError, ValueError):
        found = {}
    checkout = Path(__file__).parents[2]
    if found.get("dir_info", {}).get("editable"):
        return f'pip install -e "{checkout}[{extras}]"'
    url = found.get("url") or (checkout.as_uri() if (checkout / "pyproject.toml").is_file() else "")
    if "vcs_info" in found:
        url = f"{found['vcs_info']['vcs']}+{url}"
    return f'pip install "{OWN}[{extras}]{url and f" @ {url}"}"'
