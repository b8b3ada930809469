"""Writes `docs/api.md` from the docstrings of the public names: `make docs`, or `python docs/make_api.py`.

Signatures and fields are copied from the source as they are written there, so that the page is the same on every Python
version.
"""

import ast
import inspect
import re
import textwrap
from importlib import import_module
from pathlib import Path
from typing import Any

import lite_selfplay

PAGE = Path(__file__).with_name("api.md")

INTRODUCTION = """\
# API reference

This page answers how each public name is called and what it returns. It is generated from the docstrings by
`make docs`; what is not listed here may change without notice. The ideas behind the names are in
[architecture.md](architecture.md).

## Conventions

- **Shapes** of tensors and the indices of nested lists: [architecture.md](architecture.md#shapes).
- **Units.** Log-probabilities, entropies and KL are in nats; lengths in tokens; times in seconds; shares and accuracies
  in [0, 1], unless a name says percent or percentage points. Standard deviations are sample ones (ddof 1).
- **Steps** are counted from 0 in Python, and from 1 in the files of a run and on the terminal.
- **Configuration keys** have dots on the command line (`--set run.steps=3`) and are nested in YAML; `RunConfig` also
  takes the short names of the command line's flags (`steps=3`). `*` stands for every role or seat.
- **Errors** raised on purpose are subclasses of `LiteSelfPlayError`.
"""

SECTIONS: dict[str, tuple[str, dict[str, str]]] = {
    "Runs": (
        "From `lite_selfplay`: train, resume, evaluate and look at runs.",
        {"lite_selfplay": "train resume load_run evaluate Run"},
    ),
    "Configuration": (
        "From `lite_selfplay.config`; `RunConfig` is also in `lite_selfplay`. The bounds of a key are in its `Field`.",
        {
            "lite_selfplay": "RunConfig",
            "lite_selfplay.config": "GameSection ModelSection TasksSection RoleConfig SeatConfig ColdStartSection "
            "EvalSection RunSection RolloutsSection",
        },
    ),
    "Games": (
        "From `lite_selfplay.games`; `Game` and `register_game` are also in `lite_selfplay`.",
        {
            "lite_selfplay": "Game register_game",
            "lite_selfplay.games": "GameOptions",
            "lite_selfplay.games.table": "Table Reader",
        },
    ),
    "Data": (
        "From `lite_selfplay.data`: what games, tables and trainers pass to each other.",
        {
            "lite_selfplay.data": "Problem Sampling Completion Verdict Sample Group Stream Episode Snapshot Restore "
            "Example EvalSpec TokenScores"
        },
    ),
    "Credit": (
        "From `lite_selfplay.credit`.",
        {"lite_selfplay.credit": "advantages stream_advantages has_variance rewards_of"},
    ),
    "Statistics": (
        "From `lite_selfplay.stats`.",
        {"lite_selfplay.stats": "clopper_pearson paired_test majority_vote"},
    ),
    "Checking answers": (
        "From `lite_selfplay.verify.math`. Which answers are equal: [answers.md](answers.md).",
        {"lite_selfplay.verify.math": "check check_all answer_key extract_answer"},
    ),
    "Running programs": (
        "From `lite_selfplay.verify.programs`. What confines them: [sandbox.md](sandbox.md).",
        {
            "lite_selfplay.verify.programs": "run_program run_tests read_tests extract_program open_sandbox Limits Run "
            "Report ProgramTests StdinTest CallTest AssertTest"
        },
    ),
    "Testing games": (
        "From `lite_selfplay.testing`.",
        {"lite_selfplay.testing": "check_game ScriptedTable noisy_script"},
    ),
}
REST = "The remaining names of `lite_selfplay`."


def page() -> str:
    """The whole page. Every name in `lite_selfplay.__all__` is on it."""
    parts, listed = [INTRODUCTION], set[str]()
    for title, (about, places) in SECTIONS.items():
        names = [(place, name) for place, names in places.items() for name in names.split()]
        parts += [f"## {title}\n\n{about}\n", *(entry(place, name) for place, name in names)]
        listed |= {name for place, name in names if place == "lite_selfplay"}
    rest = [name for name in lite_selfplay.__all__ if name not in listed]
    return "\n".join([*parts, f"## Other names\n\n{REST}\n", *(entry("lite_selfplay", name) for name in rest)])


def entry(place: str, name: str) -> str:
    """A heading, the signature or fields, the docstring, and the public methods of a class."""
    node, lines = definition(getattr(import_module(place), name))
    top = class_head(node, lines) if isinstance(node, ast.ClassDef) else head(node, lines)
    parts = [f"### `{name}`\n\n{code(top)}\n{prose(node)}"]
    for member in node.body if isinstance(node, ast.ClassDef) else ():
        if isinstance(member, ast.FunctionDef) and not member.name.startswith("_") and ast.get_docstring(member):
            parts.append(f"**`{name}.{member.name}`**\n\n{code(head(member, lines))}\n{prose(member)}")
    return "\n".join(parts)


def definition(found: Any) -> tuple[ast.FunctionDef | ast.ClassDef, list[str]]:
    """Where a function or class is defined, whatever module it was imported from, and the lines of that file."""
    source = Path(inspect.getfile(found)).read_text(encoding="utf-8")
    for node in reversed(ast.parse(source).body):  # the last: those before may be overloads
        if isinstance(node, ast.FunctionDef | ast.ClassDef) and node.name == found.__name__:
            return node, source.splitlines()
    raise LookupError(f"{found!r} is not defined at the top of its module")


def head(node: ast.FunctionDef | ast.ClassDef, lines: list[str]) -> str:
    """A definition from its decorators to the colon, as it is written."""
    first = min(part.lineno for part in (node, *node.decorator_list))
    text = textwrap.dedent("\n".join(lines[first - 1 : node.body[0].lineno - 1]))
    return text.rstrip().removesuffix(":")


def class_head(node: ast.ClassDef, lines: list[str]) -> str:
    """The class with its fields, and its constructor where it has one with arguments of its own."""
    parts = [f"{head(node, lines)}:"]
    for member in node.body:
        if isinstance(member, ast.AnnAssign) and not ast.unparse(member.target).startswith("_"):
            parts += lines[member.lineno - 1 : member.end_lineno]
        elif isinstance(member, ast.FunctionDef) and member.name == "__init__" and member.args.kwarg is None:
            parts.append(textwrap.indent(head(member, lines), "    "))
    return "\n".join(parts).removesuffix(":")


def code(text: str) -> str:
    return f"```python\n{text}\n```\n"


def prose(node: ast.FunctionDef | ast.ClassDef) -> str:
    """A docstring as Markdown: examples in fences, `Args:` as a list."""
    parts = []
    for paragraph in (ast.get_docstring(node) or "").split("\n\n"):
        if paragraph.startswith(">>>"):
            paragraph = f"```python\n{paragraph}\n```"
        elif paragraph.startswith("Args:\n"):
            given = textwrap.dedent(paragraph.removeprefix("Args:\n"))
            given = re.sub(r"\n +", " ", given)
            paragraph = re.sub(r"^(\w+): ", r"- `\1`: ", given, flags=re.MULTILINE)
        parts.append(paragraph)
    return "\n\n".join(parts) + "\n"


if __name__ == "__main__":
    PAGE.write_text(page(), encoding="utf-8")
    print(f"wrote {PAGE}")
