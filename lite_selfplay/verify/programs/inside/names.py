"""Which names of a test are the program's: those that it uses and defines nowhere, or imports from no known module."""

import ast
import builtins
import itertools
import re
import sys
import types
from collections.abc import Callable, Collection, Sequence
from typing import Any

SERVED = ("numpy", "pytest")  # packages that tests may import where they are installed

LOADED = (*SERVED, *(f"numpy.{part}" for part in ("testing", "random", "linalg", "fft", "ma", "polynomial")))


def imported_packages(source: str) -> set[str]:
    """The served packages that a source imports."""
    return set(re.findall(rf"^[ \t]*(?:import|from)[ \t]+({'|'.join(SERVED)})\b", source, re.MULTILINE))


def names_of_program(sources: Sequence[str], function: str = "") -> tuple[set[str], set[str], set[str]]:
    """(names that tests use and bind nowhere, modules that they import and that are not known, functions that judge).

    A function judges if it decides about what another function of the program returns, such as `isclose(f(2), 4.0)`
    without an import: that is never the program's. Raises SyntaxError for a source that is not Python."""
    tested = {function, "candidate"} if function else set[str]()
    nodes = [*ast.walk(ast.parse("\n".join(sources)))]
    names = [node for node in nodes if isinstance(node, ast.Name)]
    bound = (
        {node.id for node in names if not isinstance(node.ctx, ast.Load)}
        | {node.name for node in nodes if isinstance(node, ast.FunctionDef | ast.ClassDef)}
        | {(each.asname or each.name).partition(".")[0] for each in nodes if isinstance(each, ast.alias)}
    )
    free = tested | ({node.id for node in names} - bound - {*dir(builtins)})
    # (the module, the name in the test, the name in the module: empty for the module itself)
    imports = [
        (node.module or "", each.asname or each.name, each.name)
        if isinstance(node, ast.ImportFrom)
        else (each.name, each.asname or each.name, "")
        for node in nodes
        if isinstance(node, ast.Import | ast.ImportFrom)
        for each in node.names
    ]
    known = {"", *sys.stdlib_module_names, *SERVED}
    unknown = [each for each in imports if each[0].partition(".")[0] not in known]
    found = {name: name for name in free} | {name: real for _, name, real in unknown}
    several = "" in found.values() or len({*found.values()} - {"candidate"}) > 1
    parameters = {node.arg for node in nodes if isinstance(node, ast.arg)}
    judges = _judges(nodes, found, tested) - parameters if several else set[str]()
    return free - judges, {module for module, _, _ in unknown}, judges


class _Classes(ast.NodeTransformer):
    def visit(self, node: ast.AST) -> Any:
        match self.generic_visit(node):
            case ast.Call(ast.Name("type"), [thing], []) | ast.Attribute(thing, "__class__", ast.Load()):
                return ast.copy_location(ast.Call(ast.Name("__class_of__", ast.Load()), [thing], []), node)
            case other:
                return other


def asking_for_classes(source: str) -> ast.Module:
    """A test that calls `__class_of__` instead of `type`: the class of an object may be one of the program."""
    return ast.fix_missing_locations(_Classes().visit(ast.parse(source)))


def _callee(node: ast.AST, found: dict[str, str]) -> str:
    """The name of the program's function that an expression calls, also as an attribute of its module; empty if it
    calls none."""
    function = node.func if isinstance(node, ast.Call) else None
    if isinstance(function, ast.Attribute) and isinstance(function.value, ast.Name) and function.value.id in found:
        return found[function.value.id] or function.attr
    return found.get(function.id, "") if isinstance(function, ast.Name) else ""


def _judges(nodes: Sequence[ast.AST], found: dict[str, str], tested: set[str]) -> set[str]:
    """Functions whose result decides about a result of the program: they are called with it, and their own is not
    compared. An object that is made for the call, of a class by its capital letter, is no result."""
    kept = {
        each.id
        for node in nodes
        if isinstance(node, ast.Assign) and tested & {_callee(each, found) for each in ast.walk(node.value)}
        for target in node.targets
        for each in ast.walk(target)
        if isinstance(each, ast.Name)
    }

    def is_result(node: ast.AST) -> bool:
        name = _callee(node, found)
        return name in tested or name[:1].islower() or (isinstance(node, ast.Name) and node.id in kept)

    roots = [node.test if isinstance(node, ast.Assert) else node.value for node in nodes if isinstance(node, _DECIDED)]
    marks = [
        each if isinstance(each, ast.Call) else ast.Call(each, [], [])
        for node in nodes
        if isinstance(node, ast.FunctionDef) and node.name.startswith("test")
        for each in node.decorator_list
    ]
    calls = [
        call
        for root in roots
        for call in _deciding(root, found)
        if any(is_result(each) for each in ast.walk(call) if each is not call)
    ]
    return {_callee(call, found) for call in calls + marks} - {""}


def _deciding(node: ast.AST, found: dict[str, str]) -> list[ast.Call]:
    """The calls of the program's functions that decide an expression, not compared with anything."""
    if isinstance(node, ast.Call) and _callee(node, found):
        return [node]
    named = isinstance(node, ast.Call) and ast.unparse(node.func).rpartition(".")[2] in _DECIDING
    parts = ast.iter_child_nodes(node) if named or isinstance(node, _PASSED_ON) else ()
    return [call for part in parts for call in _deciding(part, found)]


_DECIDING = ("all", "any", "bool", "assertTrue", "assertFalse")
_DECIDED, _PASSED_ON = (ast.Assert, ast.Expr), (ast.BoolOp, ast.UnaryOp, ast.GeneratorExp, ast.ListComp)


def add_modules(modules: Collection[str], names: Collection[str], find: Callable[[str], Any]) -> None:
    """Let modules be imported whose `names` are those of the program, which `find` looks up."""

    def attribute(name: str) -> Any:
        if name not in names:
            raise AttributeError(f"the program defines no {name}")
        return find(name)

    for name in modules:
        for part in itertools.accumulate(name.split("."), "{}.{}".format):
            module = sys.modules[part] = types.ModuleType(name)
            vars(module).update(__getattr__=attribute, __all__=[*names], __path__=[])
