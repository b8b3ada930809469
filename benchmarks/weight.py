"""How heavy the library is: statements, lines and files by room, of its core without command line and extras, and of
the tests.

A statement is a node of Python's syntax tree, so that longer lines or two statements in one change nothing.

    python benchmarks/weight.py
"""

import ast
from collections.abc import Iterable
from pathlib import Path
from typing import NamedTuple

ROOT = Path(__file__).resolve().parent.parent


class Weight(NamedTuple):
    """What some files hold. `bare` counts statements without imports and docstrings."""

    statements: int = 0
    bare: int = 0
    lines: int = 0
    files: int = 0


def weigh(text: str) -> Weight:
    """The weight of one file's text."""
    tree = ast.parse(text)
    statements = [node for node in ast.walk(tree) if isinstance(node, ast.stmt)]
    imports = sum(isinstance(node, ast.Import | ast.ImportFrom) for node in statements)
    documented = (ast.Module, ast.ClassDef, ast.FunctionDef, ast.AsyncFunctionDef)
    docstrings = sum(
        isinstance(node, documented) and ast.get_docstring(node, clean=False) is not None for node in ast.walk(tree)
    )
    return Weight(len(statements), len(statements) - imports - docstrings, text.count("\n"), 1)


def together(paths: Iterable[Path]) -> Weight:
    """The weight of several files."""
    weights = [weigh(path.read_text(encoding="utf-8")) for path in paths]
    return Weight(*(sum(column) for column in zip(*weights, strict=True))) if weights else Weight()


def main() -> None:
    """Print a row a room."""
    package = ROOT / "lite_selfplay"
    rooms = {
        room.relative_to(ROOT).as_posix(): sorted(room.rglob("*.py"))
        for room in [*sorted(package.iterdir()), ROOT / "cli"]
        if room.is_dir() and room.name != "__pycache__"
    }
    rooms["lite_selfplay/*.py"] = sorted(package.glob("*.py"))
    whole = [path for paths in rooms.values() for path in paths]
    core = [path for name, paths in rooms.items() if name not in ("lite_selfplay/extras", "cli") for path in paths]
    totals = {"the package and its command": whole, "the core, without cli and extras": core}
    rows = {**rooms, **totals, "tests": sorted((ROOT / "tests").rglob("*.py"))}
    print(f"{'':<34}{'statements':>12}{'bare':>9}{'lines':>9}{'files':>7}")
    for name, paths in rows.items():
        weight = together(paths)
        print(f"{name:<34}{weight.statements:>12,}{weight.bare:>9,}{weight.lines:>9,}{weight.files:>7,}")
    print("\nbare: without imports and docstrings")


if __name__ == "__main__":
    main()
