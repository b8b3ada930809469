"""Written mathematics as a tree, before anything is evaluated.

`parse` reads one formula (after `latex.tidy`), in LaTeX or plain, as people and models write final answers: numbers,
symbols, sums, products, fractions, powers, roots and the usual functions. It keeps the form as written: `5!` stays a
factorial and `48 + 24` a sum. It refuses everything else; operators with bounds, such as integrals, are recognised
(`lite_selfplay.verify.operations`) but not parsed.
"""

import re
from collections.abc import Callable
from dataclasses import dataclass
from fractions import Fraction
from typing import Literal

from lite_selfplay.errors import LiteSelfPlayError
from lite_selfplay.verify.operations import FUNCTIONS, OPERATION_OF, PLAIN_FUNCTIONS, SPELLINGS, is_derivative

Kind = Literal[
    "number", "mixed", "symbol", "constant", "sum", "product", "fraction", "power", "root", "function", "negative",
    "degree", "percent",
]  # fmt: skip

MAX_NODES, MAX_DEPTH = 400, 40
MAX_DIGITS, MAX_EXPONENT = 400, 1000  # of one written number: Python converts only so many digits


class Unreadable(LiteSelfPlayError):
    """A text that is not a supported formula."""


@dataclass(frozen=True)
class Expression:
    """A node of a formula. Numbers have a `value`; symbols, constants, functions and products with × a `name`."""

    kind: Kind
    parts: tuple["Expression", ...] = ()
    name: str = ""
    value: Fraction = Fraction(0)


_OF_SEVERAL = {"max", "min", "gcd", "lcm"}
_GREEK = frozenset(
    "alpha beta gamma delta epsilon varepsilon zeta eta theta vartheta iota kappa lambda mu nu xi rho varrho sigma tau "
    "upsilon phi varphi chi psi omega Gamma Delta Theta Lambda Xi Pi Sigma Upsilon Phi Psi Omega hbar ell infty odot "
    "mho Re Im emptyset varnothing aleph".split()
)
_ACCENTS = frozenset(
    "dot ddot bar hat vec tilde overline widehat overrightarrow mathbb mathcal boldsymbol bm mathbf".split()
)
_CONTINUES = frozenset({"frac", "sqrt", "pi"}) | _GREEK
_BEGIN_FACTORS = _CONTINUES | {"binom", "dbinom", "tbinom"} | FUNCTIONS | _ACCENTS
_BRACKETS = {"(": ")", "[": "]", "{": "}"}
_SIDES = {"\\lfloor": ("\\rfloor", "floor"), "\\lceil": ("\\rceil", "ceiling"), "\\lvert": ("\\rvert", "absolute")}

GROUPED = r"[1-9]\d{0,2}(?:,\d{3})+"  # the digits of a whole number in groups of three
_TOKEN = re.compile(
    rf"""\s* (?:
      (?P<number> (?: {GROUPED}(?!\d)(?:\.\d+)? | \d+\.?\d* | \.\d+ ) (?: [eE][-+]?\d+ (?![\w.]) )? )
    | (?P<command> \\[A-Za-z]+ | \\. )
    | (?P<word> (?<![A-Za-z\\])(?:{"|".join(PLAIN_FUNCTIONS)})(?![A-Za-z]) )
    | (?P<letter> [A-Za-z] )
    | (?P<sign> [-+*/^_!%'|()\[\]{{}},] )
    )""",
    re.VERBOSE,
)
# The name of a product that is written only with this sign: it may be a size, such as 3 x 4, whose order matters.
TIMES = "\\times"


def parse(text: str) -> Expression:
    """One formula as a tree. Raises Unreadable for anything else, and if it is too long or nested too deeply."""
    parser = _Parser(_tokens(text))
    tree = parser.sum()
    if parser.peek():
        raise Unreadable(f"cannot read {parser.peek()!r}")
    return tree


def _tokens(text: str) -> list[tuple[str, str]]:
    """(kind, text) of each token; both are empty after the end."""
    found, position = [], 0
    while position < len(text.rstrip()):
        match = _TOKEN.match(text, position)
        if match is None or match.lastgroup is None:
            raise Unreadable(f"cannot read {text[position : position + 20]!r}")
        found.append((match.lastgroup, match[match.lastgroup]))
        position = match.end()
    return [*found, *[("", "")] * 3]  # the parser looks up to two tokens ahead


@dataclass
class _Parser:
    """Recursive descent over the tokens; products and slashes associate to the left, as written."""

    tokens: list[tuple[str, str]]
    position: int = 0
    nodes: int = 0
    depth: int = 0

    def peek(self, ahead: int = 0) -> str:
        return self.tokens[self.position + ahead][1]

    def kind(self, ahead: int = 0) -> str:
        return self.tokens[self.position + ahead][0]

    def take(self) -> str:
        if not self.peek():
            raise Unreadable("the formula ends too soon")
        self.position += 1
        return self.peek(-1)

    def expect(self, text: str) -> None:
        if self.take() != text:
            raise Unreadable(f"expected {text!r}")

    def node(self, kind: Kind, *parts: Expression, name: str = "", value: Fraction = Fraction(0)) -> Expression:
        self.nodes += 1
        if self.nodes > MAX_NODES:
            raise Unreadable("too long")
        return Expression(kind, parts, name, value)

    # Sums, products, factors

    def sum(self) -> Expression:
        terms = [self.signed(self.product)]
        while self.peek() in ("+", "-"):
            terms.append(self.signed(self.product))
        return terms[0] if len(terms) == 1 else self.node("sum", *terms)

    def signed(self, part: Callable[[], Expression]) -> Expression:
        negative = False
        while self.peek() in ("+", "-"):
            negative ^= self.take() == "-"
        found = part()
        return self.node("negative", found) if negative else found

    def product(self) -> Expression:
        factors = [self.factor()]
        signs: set[str] = set()
        while True:
            sign = self.peek()
            if sign in ("*", "\\cdot", TIMES):
                signs.add(self.take())
                factors.append(self.signed(self.factor))
            elif sign in ("/", "\\div"):
                self.take()
                below = self.signed(self.factor)
                if below.kind == "symbol":  # t/RC is t/(RC), as physicists write it; 1/2x is x/2
                    below = self.run_on(below)
                above = factors[0] if len(factors) == 1 else self.node("product", *factors)
                factors = [self.node("fraction", above, below)]
            elif self.begins_factor():
                factors.append(self.juxtaposed(factors))
            else:
                break
        return factors[0] if len(factors) == 1 else self.node("product", *factors, name=TIMES * (signs == {TIMES}))

    def run_on(self, first: Expression) -> Expression:
        factors = [first]
        while self.kind() == "letter" or self.peek()[1:] in _GREEK:
            factors.append(self.factor())
        return first if len(factors) == 1 else self.node("product", *factors)

    def juxtaposed(self, before: list[Expression]) -> Expression:
        r"""The next factor, written without an operator; `1\frac{4}{5}` and `1 4/5` are mixed numbers."""
        last = before[-1]
        whole_number = last.kind == "number" and last.value.denominator == 1 and self.kind(-1) == "number"
        second_number = self.kind() == "number" and self.peek(-1) != ")"
        following = self.number() if second_number else self.factor()
        if second_number and self.peek() == "/" and self.kind(1) == "number":
            self.take()
            following = self.node("fraction", following, self.number())
        if whole_number and _is_proper(following):
            return self.node("mixed", before.pop(), following)
        if second_number:
            raise Unreadable("two numbers side by side")
        return following

    def begins_factor(self) -> bool:
        sign = self.peek()
        begins = self.kind() in ("number", "letter", "word") or sign in _BRACKETS or sign in _SIDES
        return begins or (self.kind() == "command" and sign[1:] in _BEGIN_FACTORS)

    def factor(self) -> Expression:
        """An atom with the powers, factorials, percent and degree signs that follow it."""
        base = self.atom()
        while (sign := self.peek()) in ("^", "!", "%"):
            self.take()
            if sign == "!":
                base = self.node("function", base, name="factorial")
            elif sign == "%":
                base = self.node("percent", base)
            else:
                degree = self.takes_degree()
                base = self.node("degree", base) if degree else self.node("power", base, self.signed(self.atom))
        return base

    def takes_degree(self) -> bool:
        """Whether the exponent is a degree sign, which is then consumed."""
        for sign in (["\\circ"], ["{", "\\circ", "}"]):
            if [self.peek(ahead) for ahead in range(len(sign))] == sign:
                self.position += len(sign)
                return True
        return False

    # Atoms

    def atom(self) -> Expression:
        self.depth += 1
        if self.depth > MAX_DEPTH:
            raise Unreadable("nested too deep")
        found = self.one_atom()
        self.depth -= 1
        return found

    def one_atom(self) -> Expression:
        sign = self.peek()
        if sign in _BRACKETS:
            return self.bracketed()
        if sign == "|" or sign in _SIDES:
            closing, name = _SIDES.get(sign, ("|", "absolute"))
            return self.node("function", self.enclosed(closing), name=name)
        match self.kind():
            case "number":
                return self.number()
            case "letter":
                return self.symbol()
            case "word" | "command":
                return self.command()
        raise Unreadable(f"cannot read {sign!r}")

    def number(self) -> Expression:
        text = self.take().replace(",", "")
        exponent = text.lower().partition("e")[2]
        if len(text) > MAX_DIGITS or len(exponent) > 5 or abs(int(exponent or 0)) > MAX_EXPONENT:
            raise Unreadable("a number too long")
        return self.node("number", value=Fraction(text.rstrip(".") if text[-1:] == "." else text))

    def bracketed(self) -> Expression:
        return self.enclosed(_BRACKETS[self.peek()])

    def enclosed(self, closing: str) -> Expression:
        self.take()
        inner = self.sum()
        self.expect(closing)
        return inner

    def symbol(self) -> Expression:
        r"""A letter with its marks. `e`, `i` and `\pi` alone are constants; a Latin letter with a number, as in `f(2)`,
        is a name."""
        name = self.take()
        marks = self.marks()
        if name in ("e", "i", "\\pi") and not marks:
            return self.node("constant", name=name.removeprefix("\\"))
        if len(name) == 1 and [self.peek(), self.kind(1), self.peek(2)] == ["(", "number", ")"]:
            marks += f"({self.peek(1)})"
            self.position += 3
        return self.node("symbol", name=name + marks)

    def marks(self) -> str:
        """The subscripts and primes after a symbol, in a uniform spelling."""
        marks = ""
        while True:
            match self.peek():
                case "'":
                    marks += self.take()
                case "_":
                    self.take()
                    marks += "_" + self.raw_group()
                case "^" if primes := self.primes():
                    marks += "'" * primes
                case _:
                    return marks

    def primes(self) -> int:
        r"""The number of `\prime` in an exponent, which is then consumed; 0 if it is another exponent."""
        braced, found = self.peek(1) == "{", 0
        while self.peek(1 + braced + found) == "\\prime":
            found += 1
        if not found or (braced and self.peek(2 + found) != "}"):
            return 0
        self.position += 1 + found + 2 * braced
        return found

    def raw_group(self) -> str:
        """The next token, or the content of the next braces, as text without spaces."""
        if self.peek() != "{":
            return self.take()
        depth = 0
        pieces: list[str] = []
        while True:
            token = self.take()
            depth += {"{": 1, "}": -1}.get(token, 0)
            if depth == 0:
                return "".join(pieces[1:])
            pieces.append(token)

    def command(self) -> Expression:
        name = self.peek().removeprefix("\\")
        name = SPELLINGS.get(name, name)
        match name:
            case "frac":
                return self.fraction()
            case "sqrt":
                return self.root()
            case "binom" | "dbinom" | "tbinom":
                self.take()
                return self.node("function", self.argument(), self.argument(), name="binomial")
            case "operatorname" if self.peek(1) == "{":
                self.take()
                function = self.raw_group()
                return self.applied(SPELLINGS.get(function, function))
        if name == "pi" or name in _GREEK:
            return self.symbol()
        if name in _ACCENTS:
            return self.node("symbol", name=f"{self.take()}{{{self.raw_group()}}}{self.marks()}")
        if name in FUNCTIONS or name == "absolute":
            self.take()
            return self.applied(name)
        raise Unreadable(f"cannot read {self.peek()!r}")

    def argument(self) -> Expression:
        return self.bracketed() if self.peek() == "{" else self.atom()

    def fraction(self) -> Expression:
        self.take()
        start = self.position
        above, below = self.raw_group(), self.raw_group()
        if is_derivative(above, below):
            return self.node("function", self.node("symbol", name=f"{above}/{below}"), name="derivative")
        self.position = start
        return self.node("fraction", self.argument(), self.argument())

    def root(self) -> Expression:
        self.take()
        degree = [self.bracketed()] if self.peek() == "[" else []
        return self.node("root", self.bracketed() if self.peek() in _BRACKETS else self.atom(), *degree)

    def applied(self, name: str) -> Expression:
        r"""A function with its argument, in brackets or as the product that follows (`\sin 2t`). The base of `\log_2 8`
        is a second part; `\sin^2 x` is a power and `\sin^{-1} x` the inverse function."""
        base = power = None
        while self.peek() in ("_", "^"):
            if (base if self.peek() == "_" else power) is not None:
                raise Unreadable("a function with two bases or powers")
            if self.take() == "_":
                base = self.argument()
            else:
                power = self.signed(self.atom)
        if power is not None and power.kind == "negative" and power.parts[0].value == 1:
            name, power = f"arc{name}", None
        arguments = self.arguments() if name in _OF_SEVERAL else [self.one_argument()]
        if name == "lg":
            name, base = "log", self.node("number", value=Fraction(10))
        if base is not None:
            if name != "log":
                raise Unreadable(f"{name} has no base")
            arguments.append(base)
        if name not in OPERATION_OF:
            raise Unreadable(f"unknown function {name!r}")
        if name == "exp":
            result = self.node("power", self.node("constant", name="e"), *arguments)
        else:
            result = self.node("function", *arguments, name=name)
        return result if power is None else self.node("power", result, power)

    def arguments(self) -> list[Expression]:
        self.expect("(")
        found = [self.sum()]
        while self.peek() == ",":
            self.take()
            found.append(self.sum())
        self.expect(")")
        return found

    def one_argument(self) -> Expression:
        if self.peek() in _BRACKETS:
            return self.bracketed()
        factors = [self.signed(self.factor)]
        while self.kind() in ("number", "letter") or self.peek().removeprefix("\\") in _CONTINUES:
            factors.append(self.juxtaposed(factors))
        return factors[0] if len(factors) == 1 else self.node("product", *factors)


def _is_proper(part: Expression) -> bool:
    """Whether a fraction may follow the whole part of a mixed number."""
    if part.kind != "fraction" or any(half.kind != "number" for half in part.parts):
        return False
    above, below = (half.value for half in part.parts)
    return above.denominator == below.denominator == 1 and 0 < above < below
