"""A hundred thousand mutated answers: none raises or takes long, and none is accepted that sympy finds wrong."""

import random
import re
import time
from fractions import Fraction

import pytest
import sympy
from latex2sympy2_extended import NormalizationConfig
from math_verify import LatexExtractionConfig, parse

from lite_selfplay.verify.exact import judge
from lite_selfplay.verify.keys import answer_key
from lite_selfplay.verify.latex import tidy
from lite_selfplay.verify.math import references

ANSWERS = 100_000
LONGEST = 1.0
"""Seconds of the processor that one answer may take, on a slow machine."""
SEEDS = [
    "72", "-5", "0", "1,234", "1/2", "0.5", r"\frac{1}{3}", r"1\frac{4}{5}", "50%", r"3 \times 10^{8}", "4.5e3",
    r"2\sqrt{2}", r"\frac{1+\sqrt{5}}{2}", r"\frac{\sqrt{3}}{3}", r"7\pi", r"\frac{\pi}{6}", r"18+2\pi", "e^2",
    r"\ln 2", "3+4i", r"\frac{1}{2} - \frac{1}{2}i", "x = 12", "12 = 12", r"\sqrt[3]{4}", "2^{10}", "5!", "100!/2^{50}",
    "0.333333", "1.414214", "21.99114857512855", "2 hours", "120 minutes", "$5", "12 apples", "five", "3, 5, 7",
    "(1, 2)", r"1 \pm \sqrt{2}", "x^2-1", "y = 2x+3", r"\binom{5}{2}", r"\int_0^1 x dx", r"\log_2 8", "48 + 24",
]  # fmt: skip
PIECES = [
    *"0123456789+-*/^().,=%! xi", r"\frac{1}{2}", r"\sqrt{4}", r"\sqrt{2}", r"\pi", "e", "10^2", r"\cdot ", r"\times ",
    r"\left(", r"\right)", "{", "}", r"\ln ", r"\sin ", "^{2}", "+ 0", "- x + x", r"\approx ", "= 5", "0.5", "/3", "!",
    r"\infty", r"\pm ", " or ", " and ", "_2", "9" * 40, "e5", "^{99}", "^{9999999}", r"\binom{9}{2}", "°", "²", "½",
]  # fmt: skip


def mutated(rng: random.Random, text: str) -> str:
    """A text with some pieces removed, doubled, replaced or inserted."""
    for _ in range(rng.choice([0, 1, 1, 1, 2, 3])):
        place, kind = rng.randrange(len(text) + 1), rng.randrange(4)
        if kind == 0:
            text = text[:place] + rng.choice(PIECES) + text[place:]
        elif kind == 1:
            text = text[:place] + text[place + rng.randrange(1, 4) :]
        elif kind == 2:
            text = text[:place] + rng.choice(PIECES) + text[place + 1 :]
        else:
            text = text[:place] + text[max(0, place - 3) :]
    return text


def by_sympy(text: str) -> sympy.Expr | None:
    """The last side of an answer without unit or currency, evaluated by sympy; None if it is not a number."""
    side = re.split(r"=|\\approx", tidy(text))[-1].replace("¤", "").strip()
    side = re.sub(r"(?<=[\d}).])\s*(?:[A-Za-z]{2,}|[A-Za-z]+\s+[A-Za-z]+)$", "", side)
    normalization = NormalizationConfig(units=False, malformed_operators=True, nits=False, boxed="none")
    config = [LatexExtractionConfig(boxed_match_priority=-1, normalization_config=normalization)]
    try:
        found = parse(f"${side}$", config, fallback_mode="no_fallback", parsing_timeout=None)
        value = found[0] if found else None
        if isinstance(value, sympy.Expr) and not value.free_symbols and "%" not in side:
            return value.evalf(50)
    except Exception:  # what it cannot read, it cannot deny
        return None
    return None


def close(first: sympy.Expr, second: sympy.Expr, *texts: str) -> bool:
    """Equal to 40 digits, or to the last decimal of a text of six digits or more."""
    difference = abs(sympy.N(first - second, 50))
    if difference <= abs(first) * sympy.Float("1e-40"):
        return True
    places = [
        len(m[2]) for text in texts if (m := re.fullmatch(r".*?([\d,]*)\.(\d+)\D*", text)) and len(m[1] + m[2]) >= 6
    ]
    return any(difference <= Fraction(1, 2 * 10**n) + sympy.Float("1e-40") for n in places)


@pytest.mark.long
def test_mutated_answers() -> None:
    rng = random.Random(0)
    accepted = denied = unread = 0
    slowest = 0.0
    for _ in range(ANSWERS):
        reference = rng.choice(SEEDS)
        answer = mutated(rng, reference if rng.random() < 0.7 else rng.choice(SEEDS))
        started = time.process_time()
        verdict, key = judge(references(reference), answer), answer_key(answer)
        slowest = max(slowest, time.process_time() - started)
        assert verdict in (True, False)
        assert key is None or judge(references(answer), answer)
        if not verdict or tidy(answer) == tidy(reference) or "hour" in reference or "minute" in reference:
            continue
        if "," in answer or re.search(r"_\d\d", answer):  # read in another way by sympy
            continue
        accepted += 1
        wanted, given = by_sympy(reference), by_sympy(answer)
        if wanted is None or given is None:
            unread += 1
        elif not close(wanted, given, tidy(reference), tidy(answer)):
            denied += 1
            print(f"{answer!r} was accepted for {reference!r}: {given} against {wanted}")
    print(f"{accepted} accepted, {unread} of them unread by sympy; the slowest answer took {slowest:.3f} s")
    assert denied == 0
    assert accepted > 1000
    assert unread < accepted / 2
    assert slowest < LONGEST
