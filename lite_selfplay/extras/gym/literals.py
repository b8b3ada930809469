"""Reads answers in place of Python's `eval`, so that no scorer of reasoning-gym runs an answer as a program.

Some scorers evaluate an answer: as a list, or as a formula by `sympy.parse_expr`, which ends in `eval` as well. Both
need only constants, lists, arithmetic and, for formulas, the classes and functions of sympy's expressions. Everything
else that Python could evaluate raises ValueError here, which scorers count as a wrong answer.
"""

import ast
import operator
import re
import sys
from collections import ChainMap
from collections.abc import Callable
from typing import Any

_OPERATORS: dict[type[ast.AST], Callable[..., Any]] = {
    ast.Add: operator.add,
    ast.Sub: operator.sub,
    ast.Mult: operator.mul,
    ast.Div: operator.truediv,
    ast.FloorDiv: operator.floordiv,
    ast.Mod: operator.mod,
    ast.Pow: operator.pow,
    ast.LShift: operator.lshift,
    ast.RShift: operator.rshift,
    ast.BitAnd: operator.and_,
    ast.BitOr: operator.or_,
    ast.BitXor: operator.xor,
    ast.UAdd: operator.pos,
    ast.USub: operator.neg,
    ast.Invert: operator.invert,
}
_ROWS: dict[type[ast.AST], Callable[..., Any]] = {ast.List: list, ast.Tuple: tuple, ast.Set: set}
# A name or a number. Sympy parses other texts that its functions get.
_PLAIN = re.compile(r"[\w.+-]*")


def read(source: str, known: dict[str, Any] | None = None, local: dict[str, Any] | None = None, /) -> Any:
    """The value of a literal, or of a formula over the names in `known` and `local`, with the parameters of `eval`.

    Of the named objects a formula may use sympy's expressions, and call their classes and a few functions. Raises
    ValueError for anything else, and what arithmetic raises.
    """
    names = ChainMap(local or {}, known or {})

    def value(node: ast.AST) -> Any:
        match node:
            case ast.Constant(value=constant):
                return constant
            case ast.List(elts=items) | ast.Tuple(elts=items) | ast.Set(elts=items):
                return _ROWS[type(node)](map(value, items))
            case ast.UnaryOp(op=sign, operand=operand) if type(sign) in _OPERATORS:
                return _OPERATORS[type(sign)](value(operand))
            case ast.BinOp(left=left, op=sign, right=right) if type(sign) in _OPERATORS:
                return _OPERATORS[type(sign)](value(left), value(right))
            case ast.Name(id=name) if _is_of_formulas(names.get(name)):
                return names[name]
            case ast.Call(func=called, args=given, keywords=[]):
                function, arguments = value(called), [*map(value, given)]
                if callable(function) and all(_PLAIN.fullmatch(x) for x in arguments if isinstance(x, str)):
                    return function(*arguments)
        raise ValueError(f"neither a literal nor a formula: {ast.dump(node)[:100]}")

    return value(ast.parse(source.strip(), mode="eval").body)


def _is_of_formulas(value: Any) -> bool:
    """Whether a formula may use an object: an expression of sympy, one of their classes, or a function of numbers."""
    import sympy

    if isinstance(value, type):
        return issubclass(value, sympy.Expr)
    return isinstance(value, sympy.Expr) or value in (abs, pow, round, sympy.sqrt, sympy.cbrt, sympy.root)


def replace_eval() -> None:
    """Let reasoning-gym's modules, and sympy's parser, call `read` as `eval`, and fail to call `exec` or `compile`."""
    import sympy.parsing.sympy_parser as parser

    vars(parser)["eval"] = read
    for name, module in sys.modules.items():
        if name.partition(".")[0] == "reasoning_gym":
            # A name of the module's own, such as the compiler of `bf`, is not Python's.
            vars(module).update({name: read for name in ("eval", "exec", "compile") if name not in vars(module)})
