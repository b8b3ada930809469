"""Which names of a test are the program's: those that it uses and defines nowhere, or imports from no known module."""

import ast
import builtins
import re
import sys
import types
from collections.abc import Callable, Collection, Iterator, Sequence
from typing import Any

SERVED = ("numpy", "pytest")  # packages that tests may import where they are installed

LOADED = (*SERVED, *(f"numpy.{part}" for part in ("testing", "random", "linalg", "fft", "ma", "polynomial")))


def imported_packages(source: str) -> set[str]:
    """The served packages that a source imports."""
    return set(re.findall(rf"^[ \t]*(?:import|from)[ \t]+({'|'.join(SERVED)})\b", source, re.MULTILINE))


def is_known(module: str) -> bool:
    """Whether a module is none of the program's: one of the standard library, or a served package."""
    return module.partition(".")[0] in {*sys.stdlib_module_names, *SERVED}


def names_of_program(sources: Sequence[str], function: str = "") -> tuple[set[str], set[str], set[str]]:
    """(names that tests use and bind nowhere, modules that they import and that are not known, functions that judge).

    A function judges if it decides about what another function of the program returns, such as `isclose(f(2), 4.0)`
    without an import: that is never the program's. Raises SyntaxError for a source that is not Python."""
    tested = {function, "candidate"} if function else set()
    free, modules, imported, bound = {*tested}, set[str](), dict[str, str](), set[str]()
    trees = [ast.parse(source) for source in sources]
    for tree in trees:
        nodes = [*ast.walk(tree)]
        names = [node for node in nodes if isinstance(node, ast.Name)]
        bound = bound | {node.id for node in names if not isinstance(node.ctx, ast.Load)}
        bound |= {node.name for node in nodes if isinstance(node, ast.FunctionDef | ast.ClassDef)}
        bound |= {(each.asname or each.name).partition(".")[0] for each in nodes if isinstance(each, ast.alias)}
        free |= {node.id for node in names} - bound - {*dir(builtins)}
        whole = [(a.name, a.asname or a.name, "") for n in nodes if isinstance(n, ast.Import) for a in n.names]
        parts = [
            (n.module, a.asname or a.name, a.name) for n in nodes if isinstance(n, ast.ImportFrom) for a in n.names
        ]
        for module, name, real in whole + parts:
            if module and not is_known(module):
                modules.add(module)
                imported[name] = real
    known = {name: name for name in free} | imported
    several = "" in known.values() or len({*known.values()} - {"candidate"}) > 1
    judges = {judge for tree in trees for judge in _judges(tree, known, tested)} if several else set[str]()
    judges -= {node.arg for tree in trees for node in ast.walk(tree) if isinstance(node, ast.arg)}
    return free - judges, modules, judges


def _callee(node: ast.AST, found: dict[str, str]) -> str:
    """The name of the program's function that an expression calls, also as an attribute of its module; empty if it
    calls none."""
    function = node.func if isinstance(node, ast.Call) else None
    if isinstance(function, ast.Attribute) and isinstance(function.value, ast.Name) and function.value.id in found:
        return found[function.value.id] or function.attr
    return found.get(function.id, "") if isinstance(function, ast.Name) else ""


def _judges(tree: ast.AST, found: dict[str, str], tested: set[str]) -> Iterator[str]:
    """Functions whose result decides about a result of the program: they are called with it, and their own is not
    compared. An object that is made for the call, of a class by its capital letter, is no result."""

    def is_result(node: ast.AST) -> bool:
        name = _callee(node, found)
        return name in tested or name[:1].islower() or (isinstance(node, ast.Name) and node.id in kept)

    kept: set[str] = set()
    for node in ast.walk(tree):
        if isinstance(node, ast.Assign) and any(_callee(each, found) in tested for each in ast.walk(node.value)):
            kept |= {each.id for target in node.targets for each in ast.walk(target) if isinstance(each, ast.Name)}
    for node in ast.walk(tree):
        for deciding in _deciding(node, found):
            given = [*deciding.args, *(keyword.value for keyword in deciding.keywords)]
            if any(is_result(each) for argument in given for each in ast.walk(argument)):
                yield _callee(deciding, found)
        if isinstance(node, ast.FunctionDef) and node.name.startswith("test"):
            calls = [each if isinstance(each, ast.Call) else ast.Call(each, [], []) for each in node.decorator_list]
            yield from filter(None, (_callee(each, found) for each in calls))


def _deciding(node: ast.AST, found: dict[str, str]) -> Iterator[ast.Call]:
    """The program's functions whose result decides a statement or an assertion, not compared with anything."""
    waiting = [node.test] if isinstance(node, ast.Assert) else [node.value] if isinstance(node, ast.Expr) else []
    while waiting:
        each = waiting.pop()
        if isinstance(each, ast.BoolOp):
            waiting += each.values
        elif isinstance(each, ast.UnaryOp):
            waiting.append(each.operand)
        elif isinstance(each, ast.GeneratorExp | ast.ListComp):
            waiting.append(each.elt)
        elif isinstance(each, ast.Call) and _callee(each, found):
            yield each
        elif isinstance(each, ast.Call) and ast.unparse(each.func).rpartition(".")[2] in _DECIDING:
            waiting += each.args[:1]


_DECIDING = ("all", "any", "bool", "assertTrue", "assertFalse")


def add_modules(modules: Collection[str], names: Collection[str], find: Callable[[str], Any]) -> None:
    """Let modules be imported whose `names` are those of the program, which `find` looks up."""

    def attribute(name: str) -> Any:
        if name not in names:
            raise AttributeError(f"the program defines no {name}")
        return find(name)

    for name in modules:
        parts = name.split(".")
        for end in range(1, len(parts) + 1):
            module = sys.modules[".".join(parts[:end])] = types.ModuleType(name)
            vars(module).update(__getattr__=attribute, __all__=[*names], __path__=[])
