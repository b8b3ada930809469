"""Versions in packages' metadata, and undocumented names of other libraries: one list has them all, and a missing one
ends a run with a message."""

import ast
import json
import re
import tomllib
from collections.abc import Iterator
from importlib import metadata
from pathlib import Path
from types import SimpleNamespace
from unittest.mock import Mock

import pytest
import trl
from packaging.requirements import Requirement

import lite_selfplay
from lite_selfplay.config import ModelSection, RunConfig
from lite_selfplay.errors import RequestError
from lite_selfplay.models import packages, sources
from lite_selfplay.models.chat_template import Chat
from lite_selfplay.models.packages import PRIVATE, TRANSFORMERS, TRL, Private, require, untried, version_of, versions
from lite_selfplay.training.losses import make_loss
from tests.made_runs import Ear


def test_an_installed_package_one_that_is_not_and_one_of_damaged_metadata(monkeypatch):
    assert version_of("torch") == metadata.version("torch")
    assert version_of("no-such-package") is None
    assert versions(["torch", "no-such-package"]) == {"torch": metadata.version("torch")}
    monkeypatch.setattr(metadata, "version", Mock(side_effect=KeyError("Version")))
    assert version_of("torch") == "unknown"


@pytest.mark.parametrize(
    ("origin", "named"),
    [
        (None, ""),
        ({"url": "file:///l-0.1.0-py3-none-any.whl", "archive_info": {}}, " @ file:///l-0.1.0-py3-none-any.whl"),
        ({"url": "https://a.org/l.git", "vcs_info": {"vcs": "git", "commit_id": "0"}}, " @ git+https://a.org/l.git"),
        ({"url": "file:///home/me/l", "dir_info": {}}, " @ file:///home/me/l"),
    ],
    ids=["PyPI", "wheel", "git", "folder"],
)
def test_how_to_install_is_true_wherever_it_came_from(monkeypatch, tmp_path, origin, named):
    text = None if origin is None else json.dumps(origin)
    monkeypatch.setattr(metadata, "distribution", lambda name: SimpleNamespace(read_text=lambda file: text))
    monkeypatch.setattr(packages, "__file__", str(tmp_path / "site-packages" / "lite_selfplay" / "models" / "x.py"))
    assert packages.install("unsloth,plots") == f'pip install "lite-selfplay[unsloth,plots]{named}"'


def test_in_a_checkout_the_checkout_is_installed(monkeypatch):
    root = Path(packages.__file__).parents[2]
    editable = json.dumps({"url": root.as_uri(), "dir_info": {"editable": True}})
    monkeypatch.setattr(metadata, "distribution", lambda name: SimpleNamespace(read_text=lambda file: editable))
    assert packages.install("plots") == f'pip install -e "{root}[plots]"'
    monkeypatch.setattr(metadata, "distribution", Mock(side_effect=metadata.PackageNotFoundError))  # on the path alone
    assert packages.install("plots") == f'pip install "lite-selfplay[plots] @ {root.as_uri()}"'


# Names that other libraries do not document


PACKAGE = Path(lite_selfplay.__file__).parent
KNOW_NO_OTHER_LIBRARY = {"verify", "programs"}
SOURCES = sorted(path for path in PACKAGE.rglob("*.py") if not KNOW_NO_OTHER_LIBRARY & set(path.parts))
TREES = {path: ast.parse(path.read_text(encoding="utf-8")) for path in SOURCES}
DOCUMENTED = {"_exit"}
"""Documented names of `os`."""
LISTED = {name for private in PRIVATE for name in private.names}


def is_private(name: str) -> bool:
    return name.startswith("_") and not name.startswith("__")


def defined() -> Iterator[str]:
    """This library's own private names: functions, classes, methods and assigned names."""
    for tree in TREES.values():
        for node in ast.walk(tree):
            if isinstance(node, ast.FunctionDef | ast.ClassDef):
                yield node.name
            elif isinstance(node, ast.Name | ast.Attribute) and isinstance(node.ctx, ast.Store):
                yield node.id if isinstance(node, ast.Name) else node.attr


def used() -> Iterator[tuple[str, str]]:
    """Private attributes that are read or set, by name or by a string, with file and line."""
    for path, tree in TREES.items():
        for node in ast.walk(tree):
            found = [node.attr] if isinstance(node, ast.Attribute) else []
            if isinstance(node, ast.Call):
                found = [keyword.arg for keyword in node.keywords if keyword.arg]
                if getattr(node.func, "id", "") in ("getattr", "setattr", "hasattr"):
                    found += [a.value for a in node.args if isinstance(a, ast.Constant) and isinstance(a.value, str)]
            for name in filter(is_private, found):
                yield name, f"{path.name}:{node.lineno}"


def test_every_private_name_of_another_library_is_in_the_list():
    own = set(defined()) - LISTED | DOCUMENTED
    assert [(name, place) for name, place in used() if name not in own and name not in LISTED] == []


def test_every_setting_of_trls_trainer_is_in_the_list():
    (path,) = (path for path in SOURCES if path.name == "losses.py")
    calls = [node for node in ast.walk(TREES[path]) if isinstance(node, ast.Call)]
    (told,) = (call for call in calls if isinstance(call.func, ast.Attribute) and call.func.attr == "update")
    of_a_trainer = {name for private in PRIVATE if private.owner == "trl:GRPOTrainer" for name in private.names}
    documented = {"current_gradient_accumulation_steps"}  # transformers' Trainer sets it in its own loop alone
    assert {keyword.arg for keyword in told.keywords} - documented <= of_a_trainer


def test_the_list_names_nothing_that_is_not_used():
    text = "\n".join(path.read_text(encoding="utf-8") for path in SOURCES if path.name != "packages.py")
    assert [name for name in sorted(LISTED) if not re.search(rf"\b{name}\b", text)] == []


@pytest.mark.parametrize(
    ("owner", "name", "called"),
    [
        ("trl:GRPOTrainer", "_compute_losses", r"trl\.GRPOTrainer\._compute_losses"),
        ("trl:Nobody", "_name", r"trl\.Nobody"),
        ("trl.no_module", "_name", r"trl\.no_module"),
    ],
)
def test_one_that_is_missing_is_said_with_the_version_and_what_to_install(monkeypatch, owner, name, called):
    require("torch", "transformers", "trl")  # what is installed has them all
    monkeypatch.setattr(packages, "PRIVATE", (*PRIVATE, Private(TRL, owner, (name,))))
    said = rf'^trl {trl.__version__} has no {called}, which this library uses: pip install "trl[<>=~!.,\d]+"$'
    with pytest.raises(RequestError, match=said):
        require("trl")
    require("transformers")


def test_one_that_a_trainer_lacks_is_said_before_the_first_step(make_backend, tiny_path, tmp_path, monkeypatch):
    gone = Private(TRL, "trl:GRPOTrainer", ("_metrics_of_tomorrow",), of_instance=True)
    monkeypatch.setattr(packages, "PRIVATE", (*PRIVATE, gone))
    with pytest.raises(RequestError, match=r"has no trl\.GRPOTrainer\._metrics_of_tomorrow"):
        make_loss(make_backend(), RunConfig(game="grpo", model="tiny"), Chat.load(tiny_path).tokenizer, str(tmp_path))


def test_a_newer_release_than_was_tried_is_named_once_and_an_older_one_is_not_let_in(monkeypatch):
    assert untried() is None
    versions = {"torch": "2.13.0+cpu", "transformers": "5.24.3", "trl": "1.16.0", "peft": "0.21.9"}
    monkeypatch.setattr(packages.metadata, "version", versions.__getitem__)
    assert untried() is None
    versions |= {"transformers": "5.25.0", "trl": "1.17.0rc1"}
    assert untried() == (
        "not tried yet with transformers 5.25.0 and trl 1.17.0rc1: if anything fails, pip install "
        f'"{TRANSFORMERS}" "{TRL}"'
    )
    project = tomllib.loads((PACKAGE.parent / "pyproject.toml").read_text(encoding="utf-8"))["project"]
    bounds = {each.name: each.specifier for each in map(Requirement, project["dependencies"])}
    for tried in (packages.TORCH, TRANSFORMERS, TRL, packages.PEFT):
        # What was tried begins where pip begins, and pip refuses nothing newer.
        assert {str(each) for each in bounds[tried.name]} == {str(e) for e in tried.specifier if e.operator == ">="}


def test_a_run_and_an_evaluation_report_it(monkeypatch):
    ear = Ear()
    for said in ([], ["not tried yet"]):
        sources.base_of(ModelSection(name="tiny"), ear)
        assert ear.said == said
        monkeypatch.setattr(sources, "untried", lambda: "not tried yet")
