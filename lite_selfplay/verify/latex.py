r"""Light normalisation of written answers: LaTeX stays LaTeX, and only parts without meaning are removed.

`tidy` unifies different spellings of one answer, `values` splits a list of values, and `canonical` is the form in which
two answers are compared as strings. Nothing is evaluated here.
"""

import re
import unicodedata
from collections.abc import Iterator, Sequence
from fractions import Fraction
from functools import lru_cache

from lite_selfplay.verify.expression import GROUPED
from lite_selfplay.verify.format import unboxed
from lite_selfplay.verify.words import compound, in_digits, written

_SCRIPTS = re.compile(r"(?P<power>[⁰¹²³⁴-⁹⁺⁻ⁿⁱ]+)|(?P<index>[₀-₉₊₋]+)|(?P<fraction>[¼-¾⅐-⅞])")
_OTHER = re.compile(r"[^\x00-\x7f]")
_ALIKE = dict(zip("−∶∕⁄∗‘’“”。", "-://*''\"\".", strict=True)) | {"μ": "µ"}
_CATEGORIES = {"Pd": "-", "Zs": " ", "Cf": ""}  # dashes, spaces, invisible characters

_UNICODE = str.maketrans(
    {
        "×": r"\times ", "⋅": r"\cdot ", "·": r"\cdot ", "÷": r"\div ", "π": r"\pi ", "∞": r"\infty ", "°": r"^\circ ",
        "±": r"\pm ", "≤": r"\le ", "≥": r"\ge ", "≠": r"\ne ", "≈": r"\approx ", "≃": r"\simeq ", "∪": r"\cup ",
        "∈": r"\in ", "∅": r"\emptyset ",
    }
)  # fmt: skip

CLOCK = " h"  # the suffix of a time whose am or pm is known: "3:45 pm" becomes "15:45 h"
_NUMBER = r"(?:\d[\d,]{0,20}(?:\.\d{1,20})?(?:/[1-9]\d{0,9})?|\\frac\{\d{1,20}\}\{[1-9]\d{0,19}\})"
_CLOCK = re.compile(r"(?<![\d.:])(\d{1,2})(?::([0-5]\d))?\s*([ap])(?:\.\s?m\b\.?|m\b)", re.IGNORECASE)
_PART = rf"({_NUMBER})\s*([A-Za-zµ]+)\.?"
_COMPOUND = re.compile(rf"(?<![\w.,/}}])(?<!\d[\s-]){_PART}(?:,?\s+and\s+|,?\s*){_PART}(?![\w^])", re.IGNORECASE)
# Applied in this order, after numbers in words have become digits.
_REWRITES = [
    (re.compile(pattern), replacement)
    for pattern, replacement in [
        (r"√\s*\(([^()]*)\)|(?<![\\A-Za-z])sqrt\s*\(([^()]*)\)", r"\\sqrt{\1\2}"),
        (r"√\s*(\d+)", r"\\sqrt{\1}"),
        (r"√", r"\\sqrt "),
        (r"\{,\}|,\\!\s*", ","),  # a comma without the space after it is a thousands separator
        (r"(?<=\d)\\,(?=\d{3}(?!\d))", ","),
        (r"\\(?:left|right|[bB]igg?[lrm]?)(?![A-Za-z])", ""),
        (r"\\[dtc]frac(?![A-Za-z])", r"\\frac"),
        (r"\\(?:geqslant|geq)(?![A-Za-z])|>=", r"\\ge "),
        (r"\\(?:leqslant|leq)(?![A-Za-z])|<=", r"\\le "),
        (r"\\neq(?![A-Za-z])|\\not\s*=|(?<=\s)!=", r"\\ne "),  # "5!=120" is a factorial
        (r"\\lt(?![A-Za-z])", "<"),
        (r"\\gt(?![A-Za-z])", ">"),
        (r"\\varnothing(?![A-Za-z])", r"\\emptyset "),
        (r"\^\s*\{\s*\\circ\s*\}", r"^\\circ "),
        (r"\\\$\s*(?=[\d.])|^([^$\\]*)\$(?=[\d.][^$]*$)", r"\1¤"),  # a dollar sign that means money
        (r"\\?\$|(?<!\\)\\[()\[\]]", " "),  # math delimiters
        (r"\\(?:displaystyle|textstyle|limits|thinspace)(?![A-Za-z])", " "),
        (r"\\degrees?(?![A-Za-z])", r"^\\circ "),
        (r"\\!", ""),
        (r"(?<!\\)\\[,;:> ]|~", " "),
        (r"\\(?:text(?:bf|it|rm|sf|tt)?|mbox|mathrm|mathbf|mathit)\s*\{((?:[^{}]|\{[^{}]*\})*)\}", r" \1 "),
        (r"\\frac\s*([0-9A-Za-z])", r"\\frac{\1}"),
        (r"(\\frac\s*\{[^{}]*\})\s*([0-9A-Za-z])", r"\1{\2}"),
        (r"\\sqrt\s*([0-9A-Za-z])", r"\\sqrt{\1}"),
        (r"\\%", "%"),
        (r"\*\*", "^"),
        (r"\^(-\d+|\d{2,})", r"^{\1}"),
        (r"(?<![\\A-Za-z])pi(?![A-Za-z])", r"\\pi "),
        (r"(?<![\\A-Za-z])(?:infinity|inf)(?![A-Za-z])", r"\\infty "),
        (r"[ \t\r\f\v]+", " "),
        (  # the condition of a set of numbers
            r"^\s*\\?\{\s*(\\?[A-Za-z])\s*(?:\\in\s*\\mathbb\s*\{?\s*R\s*\}?\s*)?(?:\\mid(?![A-Za-z])|[:|])"
            r"(?=.*(?:[<>]|\\[lgn]e(?![A-Za-z])))(.*\1.*)\\?\}\s*$",
            r"\2",
        ),
        (r"^\s*\\\{\s*\\\}\s*$", r"\\emptyset "),
        (r"\\mathbb\s*(?:\{\s*R\s*\}|R)(?!\s*[\^_])|(?i:\ball real numbers\b)", r"(-\\infty,\\infty)"),
        (r"(?<=\d)\s*\(?\s*(?:\bin )?\bbase[\s-]+(\w+)\)?$", r"_{\1}"),
        (r"(?<![\d)}]\s)\b(?i:negative|minus)\s+(?=[\d.\\(])", "-"),
        (r"(?<=\d)\s*(?:[xX]|\bby\b)\s*(?=\d)", r"\\times "),
        (r"([(\[][^()\[\]]*,[^()\[\]]*[)\]])\s*(?i:U|union)\s*(?=[(\[][^()\[\]]*,)", r"\1\\cup "),  # of intervals
        (r"^\s*(?:[Ff]rom )?(\d+) to (\d+)\s*$", r"\1:\2"),  # a ratio
        (r"^\s*(?:[Ff]rom )?(\d+) to (\d+\s*[A-Za-z])", r"\1-\2"),  # a range, of days
        (rf"^\s*([-¤]?{_NUMBER}%?) \(([-¤]?{_NUMBER}%?[A-Za-z ]*)\)([A-Za-z ]*)$", r"\2 = \1\3"),  # 5 (five) apples
        (r"^\s*(?i:half)\s*$", r"\\frac{1}{2}"),
        (r"^\s*(?i:(?:12 )?noon)\s*$", f"12:00{CLOCK}"),
        (r"^\s*(?i:(?:12 )?midnight)\s*$", f"00:00{CLOCK}"),
        (r"^\s*(?i:(no [a-z][a-z ]*?)s?(?: exists?)?)\s*$", r"\1"),
    ]
]
_SPACED = re.compile(r"(?<![\d.,])(?:[1-9]\d{0,2})(?: \d{3})+(?!\s*(?:[\d/]|[.,]\d))")
_REPEATING = re.compile(
    r"""(?<![\d.,]) (?P<whole>\d{0,20}) \. (?:
      (?P<before>\d{0,20}) \\(?:overline|bar|dot)\s*(?:\{\s*(?P<barred>\d{1,20})\s*\}|(?P<digit>\d))  # 0.1\overline{6}
    | \((?P<bracketed>\d{1,20})\)                                                                    # 0.(3)
    | (?P<start>\d{0,20}?) (?:(?P<one>\d)(?P=one){2,20}|(?P<block>\d{2,20}?)(?P=block){1,9})
      (?:\.{2,3}|\\[lcd]?dots)                                                                       # 0.1666...
    )""",
    re.VERBOSE,
)
_LEADING = re.compile(
    r"\A(?:[\s*_`=:]|\\(?:approx|simeq|sim|quad|qquad)(?![A-Za-z])"
    r"|(?:approximately|about|exactly|simply|just|equivalently|equal to|either|both|between|is"
    r"|there (?:is|are))\b)+",
    re.IGNORECASE,
)
_TRAILING = re.compile(r"(?:[\s*_`.,;:]|\\q?quad|(?<!\\)\\$)+$")

_TOKEN = re.compile(
    r"""\\begin\{\w+\*?\} | \\end\{\w+\*?\} | \\\\ | \\[{}] | \\[A-Za-z]+ | [()\[\]{},;\n] | \b(?:or|and)\b""",
    re.VERBOSE | re.IGNORECASE,
)
_SEPARATORS = {",", ";", "\n", "\\\\", "\\lor", "\\vee", "\\quad", "\\qquad", "or", "and"}
_THOUSANDS = re.compile(rf"(?<![\d.,]){GROUPED}(?!,?\d)")
MAX_BRACKETS = 64  # of a tuple; deeper nesting would exhaust the stack
_PLUS_MINUS = re.compile(r"\\pm(?![A-Za-z])")
_MINUS_PLUS = re.compile(r"\\mp(?![A-Za-z])")


def plain(text: str) -> str:
    """Normalise Unicode: NFKC, one form of dashes and spaces, `10⁻³` as `10^{-3}`, no invisible characters."""
    text = _SCRIPTS.sub(_spelled_out, text.replace("ℝ", r"\mathbb{R}"))
    return _OTHER.sub(_alike, unicodedata.normalize("NFKC", text))


def _spelled_out(match: re.Match[str]) -> str:
    text = unicodedata.normalize("NFKC", match[0])
    if match["fraction"]:
        return rf"\frac{{{text.replace('⁄', '}{')}}}"
    return f"{'^' if match['power'] else '_'}{{{text}}}"


def _alike(match: re.Match[str]) -> str:
    character = match[0]
    if character.isdecimal():
        return str(unicodedata.decimal(character))
    return _ALIKE.get(character) or _CATEGORIES.get(unicodedata.category(character), character)


@lru_cache(maxsize=4096)
def tidy(text: str) -> str:
    """One answer in a uniform spelling, without delimiters, spacing commands, text wrappers and markdown. Never raises;
    takes time linear in the length of `text`."""
    text = _REPEATING.sub(_as_fraction, plain(text).translate(_UNICODE))  # before dots at its end are removed
    text = in_digits(trim(text))  # markdown is removed first: "**" may also be a power
    for pattern, replacement in _REWRITES:
        text = pattern.sub(replacement, text)
    text = trim(_SPACED.sub(lambda match: match[0].replace(" ", ""), text))
    text = _COMPOUND.sub(compound, _COMPOUND.sub(compound, _CLOCK.sub(_clock, text)))  # hours, minutes, seconds
    content = unboxed(text)
    return text if content == text else trim(content)


def _clock(match: re.Match[str]) -> str:
    hour = int(match[1]) % 12 + 12 * (match[3] in "pP")
    return f"{hour:02d}:{match[2] or '00'}{CLOCK}" if 0 < int(match[1]) <= 12 else match[0]


def _as_fraction(match: re.Match[str]) -> str:
    """The fraction that equals a repeating decimal."""
    ahead = match["before"] or match["start"] or ""
    block = next(part for name in ("barred", "digit", "bracketed", "one", "block") if (part := match[name]))
    once, head = int(match["whole"] + ahead + block or 0), int(match["whole"] + ahead or 0)
    return written(Fraction(once - head, 10 ** len(ahead + block) - 10 ** len(ahead)))


def trim(text: str) -> str:
    """`text` without meaningless words and marks around its value."""
    return _TRAILING.sub("", _LEADING.sub("", text))


def canonical(text: str) -> str:
    """A normal form of a tidy text: equal strings are equal answers. Keeps spaces only between digits: "1 4/5" and
    "14/5" are different numbers."""
    text = re.sub(r"(?<=[\d.,])\s+(?=[\d.])", "\0", text)
    text = re.sub(r"\s+", "", text).replace("\0", " ")
    text = re.sub(r"\\(?:cdot|times)(?![A-Za-z])", "*", text)
    text = re.sub(r"([_^])\{(\w)\}", r"\1\2", text)
    choice = re.fullmatch(r"\(([A-Za-z])\)", text)
    return choice[1] if choice else text


def split_top(text: str, separators: set[str], keep: frozenset[int] = frozenset()) -> list[str]:
    """`text` split at the separators outside all brackets and environments, except at the positions in `keep`."""
    return cut(text, [m for m in at_top(_TOKEN, text) if m[0].lower() in separators and m.start() not in keep])


def cut(text: str, marks: Sequence[re.Match[str]]) -> list[str]:
    """The parts of a text between its marks, trimmed."""
    bounds = [0, *(position for mark in marks for position in mark.span()), len(text)]
    return [trim(text[start:end]) for start, end in zip(bounds[::2], bounds[1::2], strict=True)]


def at_top(pattern: re.Pattern[str], text: str) -> Iterator[re.Match[str]]:
    """The matches of `pattern` outside all brackets and environments, which it must match as well. A round bracket may
    close a square one, as in intervals."""
    depth = 0
    for match in pattern.finditer(text):
        token = match[0].removeprefix("\\")
        if token.startswith(("(", "[", "{", "begin")):
            depth += 1
        elif token.startswith((")", "]", "}", "end")):
            depth = max(0, depth - 1)
        elif depth == 0:
            yield match


def inside(text: str, opening: str, closing: str) -> str | None:
    """The content of a pair of brackets around all of `text`; None if there is no such pair."""
    if not (text.startswith(opening) and text.endswith(closing) and len(text) >= len(opening) + len(closing)):
        return None
    depth = 0
    for match in re.finditer(r"\\[{}]|[()\[\]{}]", text):
        depth += 1 if match.group()[-1] in "([{" else -1
        if depth <= 0:
            return text[len(opening) : match.start()] if match.end() == len(text) else None
    return None


def tuple_entries(text: str) -> tuple[str, list[str]] | None:
    """(brackets, entries) of a tuple or an interval; None for anything else."""
    if text[:1] not in ("(", "[") or text[-1:] not in (")", "]") or len(re.findall(r"[(\[]", text)) > MAX_BRACKETS:
        return None
    content = inside(text, text[0], text[-1])
    entries = [] if content is None else split_top(content, {",", ";"})
    return (text[0] + text[-1], entries) if len(entries) > 1 else None


def values(text: str, thousands: bool = True) -> list[str]:
    r"""The different values a text names, in order: "3, 5 or 7" names three, `1 \pm x` two, "(2, 3)" one.

    A comma between groups of three digits is part of a number, unless `thousands` is False. The braces of a set are
    removed. The list is empty if the text names no value.
    """
    text = tidy(text)
    for opening, closing in (("\\{", "\\}"), ("{", "}")):
        members = inside(text, opening, closing)
        text = text if members is None or members.strip() == "\\emptyset" else members
    whole = _THOUSANDS.finditer(text) if thousands else ()
    keep = frozenset(position for match in whole for position in range(match.start(), match.end()))
    found: dict[str, str] = {}
    for item in split_top(text, _SEPARATORS, keep):
        grouped = inside(item, "{", "}")
        for value in _signs(item if grouped is None else trim(grouped)):
            if value:
                found.setdefault(canonical(value), value)
    return list(found.values())


def _signs(value: str) -> list[str]:
    """The two values of a text with a plus-minus sign; several such signs in one value change together."""
    if not (_PLUS_MINUS.search(value) or _MINUS_PLUS.search(value)):
        return [value]
    return [trim(_MINUS_PLUS.sub(minus, _PLUS_MINUS.sub(plus, value))) for plus, minus in ("+-", "-+")]
