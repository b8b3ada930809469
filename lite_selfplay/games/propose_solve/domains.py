"""Which domain of mathematics a question belongs to, told by its words.

The domains are those of PasoDoble (section 5.5.2, table 6), whose authors ask GPT-5-mini, and arithmetic (ours), for
questions that name no concept but hold at least two numbers. The words are ours.
"""

import re

OTHER, ARITHMETIC = "other", "arithmetic"

_WORDS = {
    "calculus": r"integrals?|integrate|antiderivatives?|derivatives?|differentia\w+|limit (?:of|as)|converge\w*"
    r"|diverge\w*|series|tangent line|\\int|\\lim|gradient|concave|inflection|taylor|maclaurin",
    "trigonometry": r"sines?|cosines?|\\sin|\\cos|\\tan|\\sec|\\csc|\\cot|sin|cos|tan|trigonometr\w+|radians?",
    "probability/statistics": r"probabilit\w+|expected|variance|standard deviation|median|mode|random\w*|dice|die"
    r"|coins?|distribution|mean of|average|normally|samples?",
    "combinatorics": r"how many ways|number of ways|how many different|arrange\w*|permutations?|combinations?|choose"
    r"|committees?|seated|subsets?|\\binom|distinct ways|different ways|anagrams?|colou?rings?",
    "optimization": r"maximi[sz]\w*|minimi[sz]\w*|optimal|optimi[sz]\w*|largest possible|smallest possible"
    r"|maximum|minimum|greatest possible|least possible",
    "number theory": r"primes?|divisors?|divisible|remainder|modulo|mod|\\pmod|gcd|lcm|greatest common|least common"
    r"|multiples? of|factors of|digits?|congruent|integers|coprime|relatively prime|base \w+|parity",
    "geometry": r"triangles?|circles?|circular|rectang\w+|polygons?|hexagons?|pentagons?|angles?|perimeter|areas?"
    r"|volumes?|radius|radii|diameters?|parallel|perpendicular|spheres?|cones?|cylinders?|cubes?|\\triangle|\\angle"
    r"|\\overline|quadrilaterals?|trapezoids?|hypotenuse|midpoint|coordinate plane|parallelograms?",
    "algebra": r"equations?|solve|polynomials?|roots?|quadratic|functions?|linear|variables?|expressions?|simplify"
    r"|factor|inequalit\w+|matri\w+|vectors?|\\sqrt|logarithms?|\\log|exponent\w*|coefficients?|complex|slope|graph"
    r"|sequences?|[a-z]\s*=|[a-z]\^|f\(x\)",
}
_DOMAINS = {
    name: re.compile(rf"(?<![A-Za-z\\])(?:{words})(?![A-Za-z])", re.IGNORECASE) for name, words in _WORDS.items()
}
_NUMBER = re.compile(r"\d+")


def domain_of(text: str) -> str:
    """The domain most of whose words a question holds; of equals the more special one, which stands first above.

    Without any, `arithmetic` for a question of at least two numbers, else `other`.
    """
    counts = {name: len({found.casefold() for found in words.findall(text)}) for name, words in _DOMAINS.items()}
    best = max(counts, key=lambda name: counts[name])
    if counts[best]:
        return best
    return ARITHMETIC if len(_NUMBER.findall(text)) > 1 else OTHER
