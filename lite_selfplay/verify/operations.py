"""The operations that an answer may name: functions by operation, and operators that are recognised but not parsed."""

import re

# The operation that each function belongs to. Functions of one operation can be expressed by each other.
OPERATION_OF = {
    **dict.fromkeys(["sin", "cos", "tan", "cot", "sec", "csc", "sinh", "cosh", "tanh", "coth"], "trigonometry"),
    **dict.fromkeys(["arcsin", "arccos", "arctan", "arccot", "arcsec", "arccsc"], "trigonometry"),
    **dict.fromkeys(["arsinh", "arcosh", "artanh"], "trigonometry"),
    **dict.fromkeys(["ln", "log", "lg"], "logarithm"),
    **dict.fromkeys(["factorial", "binomial"], "factorial"),
    **dict.fromkeys(["floor", "ceiling"], "rounding"),
    **dict.fromkeys(["max", "min"], "extremum"),
    **dict.fromkeys(["gcd", "lcm"], "divisor"),
    "absolute": "absolute value",
    "exp": "exponential",
    "derivative": "derivative",
}

_NAMED = {
    "int": "integral", "iint": "integral", "iiint": "integral", "oint": "integral", "integral": "integral",
    "sum": "summation", "prod": "product over an index", "lim": "limit", "limsup": "limit", "liminf": "limit",
    "det": "determinant", "vmatrix": "determinant", "Vmatrix": "determinant", "nabla": "derivative",
    "partial": "derivative", "sup": "extremum", "inf": "extremum", "bmod": "remainder", "mod": "remainder",
    "pmod": "remainder", "binom": "factorial", "dbinom": "factorial", "tbinom": "factorial", "choose": "factorial",
    "Pr": "probability", "gcd": "divisor", "lcm": "divisor", "tr": "trace", "dim": "dimension", "deg": "degree of",
    "bigcup": "union over an index", "bigcap": "union over an index", "overbrace": "sum", "underbrace": "sum",
}  # fmt: skip

SPELLINGS = {"asin": "arcsin", "acos": "arccos", "atan": "arctan", "abs": "absolute"}
PLAIN_FUNCTIONS = (
    "arcsin arccos arctan sinh cosh tanh sin cos tan cot sec csc asin acos atan sqrt ln log exp abs max min gcd lcm"
).split()
_WITH_SIGNS = {"factorial", "binomial", "floor", "ceiling", "absolute", "derivative"}
# Those that are written before their argument.
FUNCTIONS = frozenset({*OPERATION_OF, *SPELLINGS, *PLAIN_FUNCTIONS} - _WITH_SIGNS)
_COMMAND = re.compile(r"\\(?:operatorname\s*\*?\s*\{\s*)?([A-Za-z]+)|(?<![A-Za-z\\])([A-Za-z]{2,})")
_DIFFERENTIAL = re.compile(r"(?:d|\\partial)(?:\^\{?\w\}?)?\s*(\\?[A-Za-z].*)?")
_BELOW = re.compile(r"(?:d|\\partial)\s*\\?[A-Za-z].*")


def operations_named(text: str) -> frozenset[str]:
    """The operations that a text names, as commands or in plain letters, whether or not the text can be parsed."""
    names = [match[1] or match[2] for match in _COMMAND.finditer(text)]
    found = {_NAMED.get(name) or OPERATION_OF.get(SPELLINGS.get(name, name), "") for name in names}
    if re.search(r"[\w)}]\s*!(?!=)", text):
        found.add("factorial")
    if any(is_derivative(match[1], match[2]) for match in re.finditer(r"\\frac\{([^{}]*)\}\{([^{}]*)\}", text)):
        found.add("derivative")
    return frozenset(found - {""})


def is_derivative(above: str, below: str) -> bool:
    r"""Whether `\frac{above}{below}` is a derivative, such as `\frac{d}{dx}` or `\frac{d^2 y}{dt^2}`."""
    return bool(_DIFFERENTIAL.fullmatch(above.strip()) and _BELOW.fullmatch(below.strip()))
