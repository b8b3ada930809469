"""The pages agree with the code: links, the API reference and the keys that they name (commands: test_snippets.py)."""

import ast
import inspect
import json
import os
import re
import subprocess
import sys
from importlib import import_module
from pathlib import Path
from statistics import fmean
from typing import Any

import pytest

import lite_selfplay
from lite_selfplay.config import keys_of
from lite_selfplay.extras.view.page import page_file
from lite_selfplay.games import game_names
from tests.test_layers import PUBLIC_CLASSES, ROWS

ROOT = Path(lite_selfplay.__file__).parents[1]
PAGES = sorted([*ROOT.glob("*.md"), *ROOT.glob("docs/**/*.md"), *ROOT.glob("benchmarks/*.md")])
TEXTS = {page.relative_to(ROOT).as_posix(): page.read_text(encoding="utf-8") for page in PAGES}
SECTIONS = ("model", "tasks", "cold_start", "eval", "run", "roles", "seats")
SEAT_METRICS = ("grad_norm", "updates")


def without_code(text: str) -> str:
    return re.sub(r"^(`{3,}).*?^\1`*$", "", text, flags=re.MULTILINE | re.DOTALL)


def anchors(text: str) -> set[str]:
    """The fragments of a page's headings, as GitHub makes them."""
    headings = re.findall(r"^#+ (.+)$", without_code(text), re.MULTILINE)
    return {re.sub(r"[^\w\- ]", "", heading.lower()).replace(" ", "-") for heading in headings}


def links(page: str) -> list[str]:
    return re.findall(r"\]\((?![a-z]+:)([^)\s]+)\)", without_code(TEXTS[page]))


@pytest.mark.parametrize("page", TEXTS)
def test_every_relative_link_leads_somewhere(page: str):
    for target in links(page):
        path, _, fragment = target.partition("#")
        place = (ROOT / page).parent / path if path else ROOT / page
        assert place.exists(), f"{page}: {target}"
        if fragment:
            assert fragment in anchors(place.read_text(encoding="utf-8")), f"{page}: {target}"


def test_every_page_is_linked_from_another():
    linked = set()
    for page in TEXTS:
        places = [(ROOT / page).parent / target.partition("#")[0] for target in links(page)]
        files = {file.resolve() for place in places for file in (place.glob("*.md") if place.is_dir() else [place])}
        linked |= files - {(ROOT / page).resolve()}
    assert [page for page in TEXTS if page.startswith("docs/") and (ROOT / page).resolve() not in linked] == []


# Files that a page tells its readers to write themselves.
THEIRS = {"my_game.py", "my_task.py", "FILE.py"}
FOLDERS = ("lite_selfplay", "cli", "tests", "benchmarks", "examples", "docs")
FILES = [path.relative_to(ROOT).as_posix() for folder in FOLDERS for path in (ROOT / folder).rglob("*.py")]


@pytest.mark.parametrize("page", TEXTS)
def test_a_source_file_in_a_page_exists(page: str):
    for name in set(re.findall(r"`([\w/]+\.py)\b", without_code(TEXTS[page]))) - THEIRS:
        assert any(f"/{file}".endswith(f"/{name}") for file in FILES), f"{page}: {name}"


def test_the_agents_page_names_the_rooms_in_the_order_of_the_architecture():
    order = TEXTS["AGENTS.md"].partition("## Rooms and their order\n\n")[2].partition(".")[0]
    assert [re.findall(r"\w+", part) for part in order.split("<")] == ROWS


def test_a_glossary_of_fifteen_words_of_the_code_suffices_to_read_runs_and_training():
    section = TEXTS["docs/architecture.md"].partition("## Words of runs and training\n")[2].partition("\n## ")[0]
    words = re.findall(r"^\| (?!word)([a-z ]+) \| \S", section, re.MULTILINE)
    files = [file for room in ("runs", "training") for file in (ROOT / "lite_selfplay" / room).rglob("*.py")]
    code = "".join(file.read_text(encoding="utf-8") for file in files)
    assert 0 < len(words) <= 15
    assert [word for word in words if not re.search(word.replace(" ", "[ _-]"), code)] == []


def test_a_prompt_goes_from_file_to_update_through_at_most_eighteen_types():
    picture = TEXTS["docs/architecture.md"].partition("Its types, each made from the one before:\n\n```text\n")[2]
    types = picture.partition("```")[0].replace("→", " ").split()
    code = "".join(file.read_text(encoding="utf-8") for file in (ROOT / "lite_selfplay").rglob("*.py"))
    assert 0 < len(types) <= 18
    assert [name for name in types if len(re.findall(rf"^class {name}\b", code, re.MULTILINE)) != 1] == []


# Figures of recorded runs

RESULTS = ROOT / "experiments" / "results"
CURVES = {"agon": "adv", "kuhn": "entropy"} | {
    game: game for game in ("grpo", "self-refine", "sqlm", "rzero", "rent", "cpmobius")
}


def curves_in(folder: Path, arm: str) -> list[dict[int, float]]:
    """The curve of an arm by step, one for each seed."""
    files = sorted(folder.glob(f"seed-*/{arm}.json"))
    return [dict(json.loads(file.read_text())["training"]["curve"]) for file in files]


@pytest.mark.parametrize("game", CURVES)
def test_what_to_expect_of_a_game_is_what_its_recorded_runs_had(game: str):
    section = TEXTS[f"docs/games/{game}.md"].partition("## What to expect\n")[2].partition("\n\n| ")[2]
    steps, _, cells = ([cell.strip() for cell in line.strip("| ").split("|")[1:]] for line in section.splitlines()[:3])
    folder = RESULTS / ("kuhn" if game == "kuhn" else "all-games-longer")
    scale, places = (1, 2) if game == "kuhn" else (100, 0)
    curves = curves_in(folder, CURVES[game])
    assert len(curves) == (10 if game == "kuhn" else 5)
    if game != "kuhn":
        begun = curves_in(RESULTS / "first-steps", CURVES[game])
        assert [one[0] for one in begun] == [curve[0] for curve in curves]  # the same starts
        curves = [one | curve for one, curve in zip(begun, curves, strict=True)]
        assert "5" in steps
    for step, cell in zip(steps, cells, strict=True):
        if step.isdigit():
            values = [scale * curve[int(step)] for curve in curves]
            said = (sum(values) / len(values), min(values), max(values))
            assert cell == "{:.{n}f} ({:.{n}f}-{:.{n}f})".format(*said, n=places), step


def test_the_readme_is_short_and_repeats_the_demos_result():
    readme = TEXTS["README.md"]
    assert len(game_names()) == 13
    assert "Thirteen games and baselines" in readme
    assert "| thirteen shipped, " in TEXTS["docs/compare.md"]
    assert len(readme.splitlines()) <= 100
    assert len(readme.split()) <= 1000
    first = readme.split("```")[1]  # two commands do everything on a fresh machine
    targets = re.findall(r"^(\w[\w-]*):", (ROOT / "Makefile").read_text(), re.MULTILINE)
    assert {"demo", "test"} <= set(re.findall(r"^make (\w+)", first, re.MULTILINE)) <= set(targets)
    demo = re.findall(r"\| [\d.]+ to [\d.]+ \| \+", TEXTS["docs/demo.md"])
    assert len(demo) == 10
    ends = [[float(n) for n in re.findall(r"[\d.]+", row)] for row in demo]
    first, last = (round(fmean(end[i] for end in ends)) for i in (0, 1))
    assert f"Agon, ten seeds, second answers | {first}% | {last}% |" in readme  # other rows: test_claims.py


# The API reference and the site

NAMED = re.findall(r"^::: ([\w.]+)\.(\w+)$", TEXTS["docs/api.md"], re.MULTILINE)


def returned_by(thing: Any) -> set[str]:
    """The names in what a function returns; of a class in what its methods return and its public fields hold."""
    if not inspect.isclass(thing):
        return set(re.findall(r"\w+", inspect.formatannotation(inspect.signature(thing).return_annotation)))
    members = {name: member for name, member in vars(thing).items() if not name.startswith("_")}
    fields = [hint for name, hint in vars(thing).get("__annotations__", {}).items() if not name.startswith("_")]
    calls = [getattr(member, "fget", None) or getattr(member, "__func__", member) for member in members.values()]
    found = {name for call in calls if inspect.isfunction(call) for name in returned_by(call)}
    return found | set(re.findall(r"\w+", " ".join(map(inspect.formatannotation, fields))))


def test_the_api_reference_has_every_public_name_with_its_docstring_and_the_classes_that_these_return():
    assert {name for place, name in NAMED if place == "lite_selfplay"} == set(lite_selfplay.__all__)
    things = {name: getattr(import_module(place), name) for place, name in NAMED}
    assert [name for name, thing in things.items() if not inspect.getdoc(thing)] == []
    returned = {name for thing in things.values() for name in returned_by(thing)}
    assert returned & PUBLIC_CLASSES.keys() - things.keys() == set()


def test_the_site_is_built_without_a_warning(tmp_path: Path):
    pytest.importorskip("mkdocs")
    built = subprocess.run(
        [sys.executable, "-m", "mkdocs", "build", "--strict", "--site-dir", tmp_path / "site"],
        cwd=ROOT,
        env={**os.environ, "NO_MKDOCS_2_WARNING": "1"},
        capture_output=True,
        text=True,
        check=False,
    )
    assert built.returncode == 0, built.stderr


def test_the_run_that_the_site_shows_is_todays_page_and_small():
    text = (ROOT / "docs" / "run.html").read_text(encoding="utf-8")
    assert len(text) < 300_000
    for name in ("style.css", "charts.js", "page.js"):
        assert page_file(name) in text, f"{name} has changed since: make page RUN=docs/run.html"
    (run,) = json.loads(re.findall(r'<script type="application/json" id="held">(.*?)</script>', text, re.DOTALL)[0])
    assert run["overview"]["played"] == run["overview"]["asked_for"] == 26
    assert len(run["cases"]) == 4
    assert not re.search(r"/(?:tmp|root|home|work)/", text)


# Keys


@pytest.mark.parametrize("page", TEXTS)
def test_a_key_in_a_page_exists(page: str):
    for section, rest in re.findall(rf"`(?:--set )?'?({'|'.join(SECTIONS)})((?:\.[\w*<>]+)+)[=`]", TEXTS[page]):
        key = rest.split(".")[-1]
        if key not in ("py", "jsonl") and not (section == "seats" and key in SEAT_METRICS):
            assert key in keys_of([section]), f"{page}: {section}{rest}"


def test_the_files_that_a_package_says_it_has_are_there():
    for package in (path for room in ("lite_selfplay", "cli") for path in (ROOT / room).rglob("__init__.py")):
        said = ast.get_docstring(ast.parse(package.read_text(encoding="utf-8"))) or ""
        names = re.findall(r"`([\w/]+\.(?:py|txt|yaml))`", said)
        assert [name for name in names if not (package.parent / name).exists()] == [], package
