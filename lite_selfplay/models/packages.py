"""Which packages are installed, and what they require, as their own metadata says. Nothing is imported."""

import json
from collections.abc import Iterable
from importlib import metadata
from pathlib import Path

from packaging.requirements import InvalidRequirement, Requirement
from packaging.version import InvalidVersion, Version

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


def requirements(package: str, extra: str = "") -> list[Requirement]:
    """What a package requires on this platform, and its extra besides; nothing where its metadata cannot be read."""
    try:
        lines = metadata.requires(package) or []
    except Exception:  # metadata may be missing or damaged
        return []
    found = [requirement for line in lines if (requirement := _read(line)) is not None]
    return [one for one in found if one.marker is None or one.marker.evaluate({"extra": extra})]


def fits(version: str, requirement: Requirement) -> bool:
    """Whether a version lies within the bounds of a requirement; a pre-release does as well."""
    try:
        return requirement.specifier.contains(Version(version), prereleases=True)
    except InvalidVersion:
        return False


def _read(line: str) -> Requirement | None:
    try:
        return Requirement(line)
    except InvalidRequirement:
        return None
