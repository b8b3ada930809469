"""Imports go one way: read from every module of the tree, lazy ones inside functions included."""

import ast
import re
import subprocess
import sys
from collections import Counter
from collections.abc import Iterator
from graphlib import TopologicalSorter
from pathlib import Path

import lite_selfplay

ROOT = Path(lite_selfplay.__file__).parents[1]


def rooms_of(page: str) -> list[list[str]]:
    """The rooms of the table in docs/architecture.md, a row of names each, from the bottom to the top."""
    table = page.partition("| room |")[2].partition("\n\n")[0].splitlines()[2:]
    return [re.findall(r"`(\w+)`", row.split("|")[1]) for row in table]


ROWS = rooms_of((ROOT / "docs" / "architecture.md").read_text(encoding="utf-8"))
LEVEL = {room: level for level, row in enumerate(ROWS) for room in row}

MODULES = {
    ".".join(path.relative_to(ROOT).with_suffix("").parts).removesuffix(".__init__"): path
    for folder in ("lite_selfplay", "cli")
    for path in sorted((ROOT / folder).rglob("*.py"))
}


def imports(node: ast.AST, *, checked: bool = False) -> Iterator[str]:
    """The dotted names a module imports; those that only a type checker sees if they are `checked` too."""
    if isinstance(node, ast.Import):
        yield from (alias.name for alias in node.names)
    elif isinstance(node, ast.ImportFrom):
        assert node.level == 0, f"line {node.lineno}: relative imports are not used here"
        assert node.module is not None
        # `from lite_selfplay.models.sources import hub` may name a module: both are reported.
        yield node.module
        yield from (f"{node.module}.{alias.name}" for alias in node.names)
    elif not checked and isinstance(node, ast.If) and ast.unparse(node.test).endswith("TYPE_CHECKING"):
        for other in node.orelse:
            yield from imports(other)
    else:
        for child in ast.iter_child_nodes(node):
            yield from imports(child, checked=checked)


def unit(module: str) -> str | None:
    """The unit a dotted name belongs to; None for other libraries and for the package's own `__init__`."""
    first, *rest = module.split(".")
    if first in ("cli", "lite_selfplay_cli"):
        return "cli"
    return rest[0] if first == "lite_selfplay" and rest else None


TREES = {name: ast.parse(path.read_text(encoding="utf-8")) for name, path in MODULES.items()}
IMPORTS = {name: sorted(set(imports(tree))) for name, tree in TREES.items()}


def used_units(module: str) -> set[str]:
    # `from lite_selfplay import x` gives `lite_selfplay.x`, a name of the public API unless it is a unit.
    own = {name for name in map(unit, IMPORTS[module]) if name is not None}
    return own & LEVEL.keys() | {name for name in own if f"lite_selfplay.{name}" in MODULES}


def test_every_module_has_a_place():
    units = {unit(name) for name in MODULES} - {None}
    assert units - LEVEL.keys() == set(), "say in docs/architecture.md where these stand"
    assert LEVEL.keys() - units == set(), "these are no longer there"


def test_a_module_imports_only_what_lies_below():
    arrows = set()
    for module in MODULES:
        own = unit(module)
        if own is None:
            # The public API: names are imported when they are asked for. Before that threads are told how to wait.
            first = ("lite_selfplay.models.threads", "lite_selfplay.scan")
            assert [name for name in IMPORTS[module] if unit(name) in LEVEL and not name.startswith(first)] == []
            continue
        above = {used for used in used_units(module) - {own} if LEVEL[used] >= LEVEL[own]}
        assert not above, f"{module} ({own}, layer {LEVEL[own]}) imports {sorted(above)}"
        arrows |= {(own, used) for used in used_units(module) - {own} if own != "extras"}  # which may use all below
    assert len(ROWS) <= 9
    assert len(arrows) <= 68, "arrows between rooms"


def test_no_modules_make_a_circle_for_the_type_checker_either():
    TopologicalSorter({module: needed(module) for module in MODULES}).prepare()  # raises CycleError naming the circle


def needed(module: str) -> set[str]:
    """The modules that one imports, lazily too. Of a package, of which it takes modules alone, it needs only those."""
    names = {name.replace("lite_selfplay_cli", "cli") for name in imports(TREES[module], checked=True)}
    taken = {name: {other for other in names if other.rpartition(".")[0] == name} for name in names & MODULES.keys()}
    return {name for name, others in taken.items() if not others or others - MODULES.keys()} - {module}


def uses(module: str, *names: str) -> list[str]:
    return [found for found in IMPORTS[module] if any(found == name or found.startswith(f"{name}.") for name in names)]


READER, TRACKERS = "lite_selfplay.extras.export.reader", "lite_selfplay.extras.trackers"
RULES = ("games", "data", "credit", "stats", "config", "verify")


def users(*names: str) -> list[str]:
    return [module for module in MODULES if uses(module, *names)]


def test_who_may_know_a_library():
    machinery = [f"lite_selfplay.{room}" for room in ("models", "training", "evaluation", "runs")]
    heavy = ("torch", "transformers", "trl", "peft", "accelerate", "datasets")
    assert [module for module in users(*heavy, *machinery) if unit(module) in RULES] == []  # rules know no tensor
    assert users("peft") == [READER, "lite_selfplay.models.adapters"]
    assert not uses(READER, "lite_selfplay")  # a process of its own, which knows nothing of this library
    base = users("bitsandbytes", "unsloth", "accelerate")  # only backends know what a base is held in
    assert {unit(module) for module in base if module != TRACKERS} == {"models"}  # accelerate's trackers hold none
    assert {unit(module) for module in users("typer", "click")} == {"cli"}
    assert users("tests", "examples", "conftest", "cli") == []


def test_an_extra_imports_no_other_one_and_what_is_none_names_none():
    for module in MODULES:
        own = module.split(".")[2] if unit(module) == "extras" and module.count(".") > 1 else ""
        others = {name.split(".")[2] for name in IMPORTS[module] if own and name.startswith("lite_selfplay.extras.")}
        assert others <= {own}, module
    # Not in an import by name either: `scan.extra` finds them, and the package lends the name of one.
    outside = [module for module in MODULES if unit(module) not in ("extras", "cli")]
    named = [module for module in outside if "lite_selfplay.extras." in MODULES[module].read_text(encoding="utf-8")]
    assert named == ["lite_selfplay", "lite_selfplay.scan"]


HEAVY = "{'torch', 'transformers', 'trl', 'peft', 'accelerate', 'datasets', 'scipy', 'pandas'}"
DRY = "['lite-selfplay', 'train', 'agon', '--model', 'tiny', '--tasks', 'letters', '--dry-run']"


LIGHT = [
    "import lite_selfplay",
    "from lite_selfplay import Game, RunConfig, load_run, register_game, resume, train",
    "import lite_selfplay.credit, lite_selfplay.stats, lite_selfplay.runs.folder, lite_selfplay.runs.report.step_rows",
    "from lite_selfplay.games import find_game, game_names; [find_game(name) for name in game_names()]",
    "import lite_selfplay.testing as t, lite_selfplay.games as g; t.check_game(g.make_game('agon', {}), steps=2)",
    "import lite_selfplay_cli.app",
    f"sys.argv = {DRY}\nfrom lite_selfplay_cli.app import main\n"
    "try: main()\nexcept SystemExit as end: assert not end.code",
]


def test_what_is_light_loads_no_torch():
    """One after the other in one process, and looked at after each."""
    look = f"found = {HEAVY} & set(sys.modules); assert not found, (code, found)"
    code = f"import sys\nfor code in {LIGHT!r}:\n    exec(code)\n    {look}"
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, timeout=120, check=False)
    assert done.returncode == 0, done.stderr


def test_the_package_has_few_entries_and_each_folder_says_what_it_is() -> None:
    entries = {path.name.removesuffix(".py") for path in (ROOT / "lite_selfplay").iterdir()}
    entries -= {"__init__", "__pycache__", "py.typed"}
    assert entries == LEVEL.keys() - {"cli"}
    for folder in (path.parent for path in MODULES.values() if path.name == "__init__.py"):
        assert ast.get_docstring(ast.parse((folder / "__init__.py").read_text(encoding="utf-8"))), folder


PUBLIC_CLASSES = Counter(
    node.name
    for path in MODULES.values()
    for node in ast.parse(path.read_text(encoding="utf-8")).body
    if isinstance(node, ast.ClassDef) and not node.name.startswith("_")
)


def test_no_two_modules_and_no_two_public_classes_have_one_name() -> None:
    modules = Counter(path.stem for path in MODULES.values() if not path.stem.startswith("__"))
    twice = [name for names in (modules, PUBLIC_CLASSES) for name, count in names.items() if count > 1]
    assert twice == []


# The reader itself


def test_the_reader_sees_lazy_imports_and_not_those_of_the_type_checker():
    tree = ast.parse(
        "import a.b\nfrom typing import TYPE_CHECKING\nif TYPE_CHECKING:\n    import hidden\nelse:\n    import shown\n"
        "def f():\n    from c import d\n    if True:\n        import e\n"
    )
    assert set(imports(tree)) - {"typing", "typing.TYPE_CHECKING"} == {"a.b", "shown", "c", "c.d", "e"}


def test_what_the_page_on_architecture_asks_to_read_stays_short():
    """Ten files at most 2,500 lines together, and the walks for a game, a loss and a sampler 500, 450 and 450."""
    page = ROOT / "docs" / "architecture.md"
    section = page.read_text(encoding="utf-8").partition("## What to read\n")[2].partition("\n## ")[0]
    table, *walks = section.partition("\n| ")[2].split("\n- **")
    bounds = (2500, 500, 450, 450)
    for part, most in zip((table, *walks), bounds, strict=True):
        files = {(page.parent / link).resolve() for link in re.findall(r"\]\(([^)#]+)\)", part)}
        lines = {file.name: len(file.read_text(encoding="utf-8").splitlines()) for file in files}
        assert sum(lines.values()) <= most, lines
    assert len(re.findall(r"\]\(", table)) == 10
