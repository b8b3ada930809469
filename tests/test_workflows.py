"""The workflows and the issue forms: they can be read, and run what exists, on the Pythons that the package names."""

import re
import tomllib
from collections.abc import Iterator
from typing import Any

import pytest
import yaml

from tests.test_docs import ROOT

WORKFLOWS = {path.name: path for path in sorted((ROOT / ".github" / "workflows").iterdir())}
FORMS = sorted((ROOT / ".github" / "ISSUE_TEMPLATE").glob("*.yml"))
PROJECT = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]


def loaded(name: str) -> dict[str, Any]:
    found = yaml.safe_load(WORKFLOWS[name].read_text())
    assert isinstance(found, dict)
    return found


def steps(name: str) -> Iterator[dict[str, Any]]:
    for job in loaded(name)["jobs"].values():
        yield from job.get("steps", ())


def test_there_are_workflows_for_tests_and_for_a_release():
    assert set(WORKFLOWS) == {"test.yml", "release.yml"}


@pytest.mark.parametrize("name", WORKFLOWS)
def test_what_a_workflow_runs_is_a_target_of_the_makefile(name):
    targets = set(re.findall(r"^([\w-]+):(?!=)", (ROOT / "Makefile").read_text(), re.MULTILINE))
    commands = [step["run"] for step in steps(name) if "run" in step]
    assert {command.partition(" ")[0] for command in commands} <= {"make"}
    assert {command.partition(" ")[2] for command in commands} <= targets
    if name == "test.yml":
        assert {"make test", "make dist", "make docs"} == set(commands)


@pytest.mark.parametrize("name", WORKFLOWS)
def test_every_action_is_pinned_by_a_commit_and_says_its_version(name):
    used = re.findall(r"uses: *(.*)", WORKFLOWS[name].read_text())
    assert used
    pinned = re.compile(r"[\w-]+/[\w-]+@[0-9a-f]{40} # v\d+\.\d+\.\d+|\./\.github/workflows/test\.yml")
    assert [action for action in used if not pinned.fullmatch(action)] == []


def test_an_action_has_one_commit():
    used = {action for name in WORKFLOWS for action in re.findall(r"uses: *(.*@.*)", WORKFLOWS[name].read_text())}
    names = [action.partition("@")[0] for action in used]
    assert sorted(names) == sorted(set(names))


def test_the_pythons_are_those_of_the_package():
    named = [line.rpartition(":: ")[2] for line in PROJECT["classifiers"] if re.search(r"Python :: 3\.\d+$", line)]
    assert loaded("test.yml")["jobs"]["test"]["strategy"]["matrix"]["python"] == named
    fixed = {step["with"]["python-version"] for step in steps("test.yml") if "setup-python" in step.get("uses", "")}
    assert fixed - {"${{ matrix.python }}"} <= set(named)
    assert PROJECT["requires-python"] == f">={named[0]}"


def test_only_a_release_may_write_and_by_trusted_publishing_alone():
    for name in WORKFLOWS:
        assert loaded(name)["permissions"] == {"contents": "read"}
    writing = {
        f"{name}: {job}": set(found["permissions"].items())
        for name in WORKFLOWS
        for job, found in loaded(name)["jobs"].items()
        if "permissions" in found
    }
    token = ("id-token", "write")
    assert writing == {"release.yml: pypi": {token}, "release.yml: site": {token, ("pages", "write")}}
    jobs = loaded("release.yml")["jobs"]
    assert (jobs["pypi"]["needs"], jobs["pypi"]["environment"], jobs["site"]["needs"]) == ("test", "pypi", "pypi")
    assert loaded("release.yml")[True] == {"push": {"tags": ["v*"]}}  # YAML reads `on` so
    assert "secrets." not in "".join(path.read_text() for path in WORKFLOWS.values())


def test_what_is_published_is_what_was_built_for_the_tag():
    uploads, downloads = (
        [step["with"]["name"] for step in steps(name) if f"/{what}-artifact@" in step.get("uses", "")]
        for name, what in (("test.yml", "upload"), ("release.yml", "download"))
    )
    assert uploads == downloads == ["dist"]
    (dist,) = (step for step in steps("test.yml") if step.get("run") == "make dist")
    assert "github.ref_name" in dist["env"]["TAG"]


@pytest.mark.parametrize("path", [path for path in FORMS if path.name != "config.yml"], ids=lambda path: path.name)
def test_a_form_asks_for_what_doctor_says(path):
    form = yaml.safe_load(path.read_text())
    assert {"name", "description", "body"} <= set(form)
    assert {part["type"] for part in form["body"]} <= {"markdown", "textarea", "input", "dropdown", "checkboxes"}
    asked = [part for part in form["body"] if part["type"] != "markdown"]
    assert len({part["id"] for part in asked}) == len(asked)
    (doctor,) = (part for part in asked if part["attributes"]["label"] == "lite-selfplay doctor")
    assert doctor["validations"]["required"]


def test_there_are_forms():
    assert len(FORMS) == 3
