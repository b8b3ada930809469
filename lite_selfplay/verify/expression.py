"""Written mathematics as a tree, before anything is evaluated.

`parse` reads one formula (after `latex.tidy`), in LaTeX or plain, as people and models write final answers: numbers,
symbols, sums, products, fractions, powers, roots and the usual functions. It keeps the form as written: `5!` stays a
factorial and `48 + 24` a sum. It refuses everything else; operators with bounds, such as integrals, are recognised
(`lite_selfplay.verify.operations`) but not parsed.
"""

import re
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from fractions import Fraction
from itertools import chain
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

    def nodes(self) -> Iterator["Expression"]:
        """This node and all below it."""
        return chain([self], *(part.nodes() for part in self.parts))


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
_BEGIN_FACTORS = _CONTINUES | {"binom", "dbinom", "tbinom", "lfloor", "lceil", "lvert"} | FUNCTIONS | _ACCENTS
_BRACKETS = {"(": ")", "[": "]", "{": "}"}
_SIDES = {
    "|": ("|", "absolute"),
    "\\lvert": ("\\rvert", "absolute"),
    "\\lfloor": ("\\rfloor", "floor"),
    "\\lceil": ("\\rceil", "ceiling"),
}

GROUPED = r"[1-9]\d{0,2}(?:,\d{3})+"  # the digits of a whole number in groups of three
_TOKEN = re.compile(
    rf"""\s* (?:
      (?P<number> (?: {GROUPED}(?!\d)(?:\.\d+)? | \d+\.?\d* | \.\d+ ) (?: [eE][-+]?\d+ (?![\w.]) )? )
    | (?P<command> \\[A-Za-z]+ | \\. )
    | (?P<word> (?<![A-Za-z\\])(?:{"|".join(PLAIN_FUNCTIONS)})(?![A-Za-z]) )
    | (?P<letter> [A-Za-z] )
    | (?P<sign> [-+*/^_!%'|()\[\]{{}},] )
    | (?P<unknown> \S.{{0,19}} )
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
    found = [(kind, match[kind]) for match in _TOKEN.finditer(text) if (kind := match.lastgroup)]
    if unknown := [each for kind, each in found if kind == "unknown"]:
        raise Unreadable(f"cannot read {unknown[0]!r}")
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

    def takes(self, *texts: str) -> bool:
        """Whether the next tokens are these, which are then consumed."""
        found = all(self.peek(ahead) == text for ahead, text in enumerate(texts))
        self.position += len(texts) * found
        return found

    def expect(self, text: str) -> None:
        if not self.takes(text):
            raise Unreadable(f"expected {text!r}")

    def node(self, kind: Kind, *parts: Expression, name: str = "", value: Fraction = Fraction(0)) -> Expression:
        self.nodes += 1
        if self.nodes > MAX_NODES:
            raise Unreadable("too long")
        return Expression(kind, parts, name, value)

    def joined(self, kind: Kind, parts: list[Expression], name: str = "") -> Expression:
        return parts[0] if len(parts) == 1 else self.node(kind, *parts, name=name)

    # Sums, products, factors

    def sum(self) -> Expression:
        terms = [self.signed(self.product)]
        while self.peek() in ("+", "-"):
            terms.append(self.signed(self.product))
        return self.joined("sum", terms)

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
            if self.peek() in ("*", "\\cdot", TIMES):
                signs.add(self.take())
                factors.append(self.signed(self.factor))
            elif self.takes("/") or self.takes("\\div"):
                below = [self.signed(self.factor)]
                # t/RC is t/(RC), as physicists write it; 1/2x is x/2.
                while below[0].kind == "symbol" and (self.kind() == "letter" or self.peek()[1:] in _GREEK):
                    below.append(self.factor())
                factors = [self.node("fraction", self.joined("product", factors), self.joined("product", below))]
            elif self.begins_factor():
                factors.append(self.juxtaposed(factors))
            else:
                break
        return self.joined("product", factors, name=TIMES * (signs == {TIMES}))

    def juxtaposed(self, before: list[Expression]) -> Expression:
        r"""The next factor, written without an operator; `1\frac{4}{5}` and `1 4/5` are mixed numbers."""
        last = before[-1]
        whole_number = last.kind == "number" and last.value.denominator == 1 and self.kind(-1) == "number"
        second_number = self.kind() == "number" and self.peek(-1) != ")"
        following = self.number() if second_number else self.factor()
        if second_number and self.kind(1) == "number" and self.takes("/"):
            following = self.node("fraction", following, self.number())
        if whole_number and _is_proper(following):
            return self.node("mixed", before.pop(), following)
        if second_number:
            raise Unreadable("two numbers side by side")
        return following

    def begins_factor(self) -> bool:
        sign = self.peek()
        begins = self.kind() in ("number", "letter", "word") or sign in _BRACKETS
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
            elif self.takes("\\circ") or self.takes("{", "\\circ", "}"):
                base = self.node("degree", base)
            else:
                base = self.node("power", base, self.signed(self.atom))
        return base

    # Atoms

    def atom(self) -> Expression:
        self.depth += 1
        if self.depth > MAX_DEPTH:
            raise Unreadable("nested too deep")
        sign, kind = self.peek(), self.kind()
        if sign in _BRACKETS:
            found = self.bracketed()
        elif kind == "number":
            found = self.number()
        elif sign in _SIDES:
            closing, name = _SIDES[self.take()]
            found = self.node("function", self.enclosed(closing), name=name)
        else:
            found = self.symbol(self.take()) if kind == "letter" else self.command(self.take())
        self.depth -= 1
        return found

    def number(self) -> Expression:
        text = self.take().replace(",", "")
        exponent = text.lower().partition("e")[2]
        if len(text) > MAX_DIGITS or len(exponent) > 5 or abs(int(exponent or 0)) > MAX_EXPONENT:
            raise Unreadable("a number too long")
        return self.node("number", value=Fraction(text.rstrip(".") if text[-1:] == "." else text))

    def bracketed(self) -> Expression:
        return self.enclosed(_BRACKETS[self.take()])

    def enclosed(self, closing: str) -> Expression:
        inner = self.sum()
        self.expect(closing)
        return inner

    def symbol(self, name: str) -> Expression:
        r"""A letter with its marks. `e`, `i` and `\pi` alone are constants; a Latin letter with a number, as in `f(2)`,
        is a name."""
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
        if not self.takes("{"):
            return self.take()
        start, depth = self.position, 1
        while depth:
            depth += {"{": 1, "}": -1}.get(self.take(), 0)
        return "".join(text for _, text in self.tokens[start : self.position - 1])

    def command(self, text: str) -> Expression:
        name = text.removeprefix("\\")
        name = SPELLINGS.get(name, name)
        match name:
            case "frac":
                return self.fraction()
            case "sqrt":
                degree = [self.bracketed()] if self.peek() == "[" else []
                return self.node("root", self.bracketed() if self.peek() in _BRACKETS else self.atom(), *degree)
            case "binom" | "dbinom" | "tbinom":
                return self.node("function", self.argument(), self.argument(), name="binomial")
            case "operatorname" if self.peek() == "{":
                function = self.raw_group()
                return self.applied(SPELLINGS.get(function, function))
            case _ if name == "pi" or name in _GREEK:
                return self.symbol(text)
            case _ if name in _ACCENTS:
                return self.node("symbol", name=f"{text}{{{self.raw_group()}}}{self.marks()}")
            case _ if name in FUNCTIONS or name == "absolute":
                return self.applied(name)
        raise Unreadable(f"cannot read {text!r}")

    def argument(self) -> Expression:
        return self.bracketed() if self.peek() == "{" else self.atom()

    def fraction(self) -> Expression:
        start = self.position
        above, below = self.raw_group(), self.raw_group()
        if is_derivative(above, below):
            return self.node("function", self.node("symbol", name=f"{above}/{below}"), name="derivative")
        self.position = start
        return self.node("fraction", self.argument(), self.argument())

    def applied(self, name: str) -> Expression:
        r"""A function with its argument, in brackets or as the product that follows (`\sin 2t`). The base of `\log_2 8`
        is a second part; `\sin^2 x` is a power and `\sin^{-1} x` the inverse function."""
        base = self.argument() if self.takes("_") else None
        power = self.signed(self.atom) if self.takes("^") else None
        if base is None and self.takes("_"):
            base = self.argument()
        if power is not None and power.kind == "negative" and power.parts[0].value == 1:
            name, power = f"arc{name}", None
        arguments = self.arguments() if name in _OF_SEVERAL else [self.one_argument()]
        if name == "lg":
            name, base = "log", self.node("number", value=Fraction(10))
        if name not in OPERATION_OF or (base is not None and name != "log"):
            raise Unreadable(f"unknown function {name!r}, or one without a base")
        if base is not None:
            arguments.append(base)
        if name == "exp":
            result = self.node("power", self.node("constant", name="e"), *arguments)
        else:
            result = self.node("function", *arguments, name=name)
        return result if power is None else self.node("power", result, power)

    def arguments(self) -> list[Expression]:
        self.expect("(")
        found = [self.sum()]
        while self.takes(","):
            found.append(self.sum())
        self.expect(")")
        return found

    def one_argument(self) -> Expression:
        if self.peek() in _BRACKETS:
            return self.bracketed()
        factors = [self.signed(self.factor)]
        while self.kind() in ("number", "letter") or self.peek().removeprefix("\\") in _CONTINUES:
            factors.append(self.juxtaposed(factors))
        return self.joined("product", factors)


def _is_proper(part: Expression) -> bool:
    """Whether a fraction may follow the whole part of a mixed number."""
    if part.kind != "fraction" or any(half.kind != "number" for half in part.parts):
        return False
    above, below = (half.value for half in part.parts)
    return above.denominator == below.denominator == 1 and 0 < above < below
