r"""Answers as a person would judge them: right in another form, almost right, restated, hedged, several values.

Each line has a reference, answers that are right, and answers that are wrong.
"""

from itertools import permutations

import pytest

from lite_selfplay.verify.exact import judge
from lite_selfplay.verify.keys import answer_key, vote_key
from lite_selfplay.verify.math import check, check_all, references

WHOLE_NUMBERS = [
    (
        "72",
        ["72", "72.0", "72.", "072", "+72", "$72$", r"\(72\)", "**72**", "x = 72", "72 apples", "seventy-two"],
        ["71", "-72", "7.2", "720", "7 2", "72 or 73", "72, 73", "about 70", "72 thousand", "not 72", "72x"],
    ),
    (
        "72",
        [r"48 + 24 = 72", r"n = 8 \cdot 9 = 72", r"\frac{144}{2} = 72", "72 = x", "6 * 12 = 72 = 72.0"],
        [
            "48 + 24",
            "48+24+x-x",
            r"6 \times 12",
            "(8)(9)",
            "8(9)",
            "144/2",
            r"\frac{144}{2}",
            r"\sqrt{5184}",
            "72 + 0",
            "72/1 + 0",
            "2^3 * 9",
            "100 - 28",
            "48 + 25 = 72",
            "48 + 24 = 73",
            "72 = 73",
            "73 = 72",
            "x^2 = 5184 = 72",
        ],
    ),
    (
        "12",
        ["12", "twelve", r"\text{12}", r"\boxed{12}", "12 km/h", "$12", r"\$12.00", r"12\text{ cm}^2"],
        [
            r"\sqrt{144}",
            "x^2 = 144 = 12",
            r"\max(1, 12)",
            r"\min(12, 13)",
            r"\gcd(24, 36)",
            r"\operatorname{lcm}(4, 6)",
            "12 squared",
            "-12",
            "twenty-one",
            "at least 12",
            r"x \ge 12",
            r"x \neq 12",
            "12 (or 13)",
            "(12, 13)",
        ],
    ),
    (
        "10",
        ["10", "ten", "1 \\times 10^1", "10^1"],
        [r"\binom{5}{2}", r"\frac{5!}{2!3!}", r"{5 \choose 2}", "C(5, 2)", r"\sum_{i=1}^{4} i", "1+2+3+4", "10!"],
    ),
    (
        "120",
        ["120", "5! = 120", "one hundred and twenty", "1.2 x 10^2", "1.2e2"],
        ["5!", r"\prod_{i=1}^{5} i", r"5 \cdot 4 \cdot 3 \cdot 2 \cdot 1", "5! = 121", "120!", "2 minutes"],
    ),
    ("55", ["55", r"\sum_{i=1}^{10} i = 55", "fifty five"], [r"\sum_{i=1}^{10} i", r"\frac{10 \cdot 11}{2}", "5 5"]),
    (
        "3",
        ["3", r"\log_2 8 = 3", "three"],
        [
            r"\log_2 8",
            r"\log_{2}(8)",
            r"\ln e^3",
            "log_2(8)",
            r"\lfloor 3.7 \rfloor",
            r"\lceil 2.1 \rceil",
            r"|{-3}|",
            r"\sqrt[3]{27}",
            "27^{1/3}",
            r"17 \bmod 7",
            r"3 \pmod 7",
            r"\det\begin{pmatrix} 3 & 0 \\ 0 & 1 \end{pmatrix}",
        ],
    ),
    (
        "2",
        ["2", "two", "2.00"],
        [
            r"\lim_{x \to 1} 2x",
            r"\lim_{n\to\infty} \frac{2n}{n+1}",
            r"\max(1,2)",
            r"\max\{1, 2\}",
            r"\int_0^2 dx",
            r"\frac{d}{dx}(2x)",
            r"\begin{vmatrix} 2 & 0 \\ 0 & 1 \end{vmatrix}",
            r"e^{\ln 2}",
            r"\frac{\sqrt{8}}{\sqrt{2}}",
            r"\sqrt{2} \cdot \sqrt{2}",
            r"(\sqrt{2})^2",
            r"\sin 90^\circ + 1",
            r"-i^2 + 1",
            "x - x + 2",
            "2x/x",
            "2 + 0i + 0",
        ],
    ),
    (
        "1024",
        ["1024", "1,024", r"2^{10} = 1024", "1.024e3", r"1.024 \times 10^3"],
        ["2^{10}", "2**10", "4^5", "1,0240"],
    ),
    ("-5", ["-5", "\u22125", "x=-5", "minus 5 = -5"], ["5", "5-10", "-(-5)", "|-5|", "±5"]),
    ("0", ["0", "-0", "0.0", "zero", "x = 0", "0%"], ["1", "x - x", r"\ln 1", r"\sin 0", "00.1", "0/5 + 0"]),
    ("1000000", ["1,000,000", "10^6", "10^{6}", "1e6", "one million", r"1{,}000{,}000"], ["1,000", "10^7", "100^3"]),
]
FRACTIONS = [
    (
        "1/2",
        ["1/2", "0.5", ".5", r"\frac{1}{2}", r"\frac12", r"\dfrac{1}{2}", "2/4", "½", r"50\%", "50%"],
        [
            "1/3",
            "0.05",
            "2/1",
            "-1/2",
            "0.5%",
            "1 or 2",
            r"\frac{1}{4} + \frac{1}{4}",
            r"\cos 60^\circ",
            "2^{-1}",
            r"\frac{1}{2} \cdot 1 + 0",
            r"\frac{\frac{1}{2}}{1}",
            "50",
        ],
    ),
    (
        r"\frac{1}{3}",
        ["1/3", "0.333333", r"\frac{2}{6}", r"\frac{1}{3} \approx 0.333", r"\frac13 \approx 0.33"],
        ["0.3333", "0.33", r"\int_0^1 x^2 dx", r"\frac13 \approx 0.34", "1/3 = 0.34", "3^{-1}", "33%"],
    ),
    (r"\frac{9}{5}", ["9/5", "1.8", r"1\frac{4}{5}", "1 4/5", r"\frac{18}{10}"], ["14/5", "1 5/4", "0.18", "9 5"]),
    ("3.5", ["7/2", "3.50", r"3\frac{1}{2}"], ["3.49", "3,5 or 4", "7/2 + 0", "35%"]),
    ("0.333333", ["1/3", "0.3333330"], ["0.3333333", "0.333334", "1/4"]),
    ("2/3", [r"\frac{2}{3}", "0.666667", "4/6", r"\frac{2}{3} \text{ cup}"], ["0.666", "0.67", "3/2", "1 - 1/3"]),
    ("-3/4", [r"-\frac{3}{4}", r"\frac{-3}{4}", r"\frac{3}{-4}", "-0.75", "\u22123/4"], ["3/4", "-4/3", "1/4 - 1"]),
    ("0.05", ["5%", "1/20", "0.050", "5 percent"], ["5", "0.5%", "0.05%", "50%"]),
    ("50", ["50%", "50 percent", "50.0"], ["0.5", "5%", "50 or 60"]),
    ("0.5", ["50%", "1/2"], ["0.5%", "5%"]),
    ("62.5%", ["0.625", "5/8", r"62.5\%"], ["0.625%", "6.25", "62%"]),
    ("3.61e-10", [r"3.61 \times 10^{-10}", "0.000000000361"], ["3.6e-10", "3.61e10", r"\pi \times 10^{-10}"]),
]
ROOTS = [
    (
        r"2\sqrt{2}",
        [r"\sqrt{8}", r"2 \sqrt 2", "2sqrt(2)", "2√2", r"\frac{4}{\sqrt{2}}", "2.828427", r"2\cdot\sqrt{2}"],
        [
            "2.828",
            r"\sqrt{2}",
            r"\sqrt{2} + \sqrt{2}",
            r"\sqrt{2} \cdot \sqrt{4}",
            r"\sqrt{4} \cdot \sqrt{2}",
            r"4\sqrt{2}",
            r"\int_0^2 \sqrt{2} dx",
            "2 2",
        ],
    ),
    (
        r"\sqrt{51}",
        [r"\sqrt{51}", "51^{1/2}", "7.141428"],
        [r"\sqrt{50}", r"\sqrt{25 + 26}", "51", r"\sqrt{3}\sqrt{17}"],
    ),
    (
        r"\frac{1+\sqrt{5}}{2}",
        [r"\frac{\sqrt5 + 1}{2}", r"\frac12 + \frac{\sqrt5}{2}", "1.618034", r"(1+\sqrt{5})/2"],
        [r"\frac{1-\sqrt{5}}{2}", "1.618", r"1 + \sqrt{5}", r"\frac{2+\sqrt{5}-1}{2}"],
    ),
    (
        r"3 - 2\sqrt{2}",
        [r"3-2\sqrt2", r"3 - \sqrt{8}", r"-2\sqrt{2}+3"],
        [r"(\sqrt{2} - 1)^2", r"(1-\sqrt2)^2", "0.17"],
    ),
    (
        r"\frac{\sqrt{3}}{3}",
        [r"\frac{1}{\sqrt{3}}", r"\sqrt{3}/3", "0.577350"],
        [r"\sqrt{3}", r"\tan 30^\circ", "0.577"],
    ),
    (r"5\sqrt[3]{4}", [r"5 \sqrt[3]{4}", r"5 \cdot 4^{1/3}", r"\sqrt[3]{500}"], [r"5\sqrt{4}", r"\sqrt[3]{4}"]),
    ("7", [r"\sqrt{49} = 7"], [r"\sqrt{49}", r"\sqrt{50 - 1}", "49^{0.5}"]),
]
CONSTANTS = [
    (
        r"7\pi",
        [r"7 \pi", "7π", r"\pi \cdot 7", "21.991149", r"7\pi \text{ cm}^2", r"A = 7\pi"],
        ["7", "22", r"3\pi + 4\pi", r"8\pi", r"\pi^7", r"\int_0^7 \pi dx", "21.99"],
    ),
    (
        r"\frac{\pi}{6}",
        [r"\pi/6", r"\frac{1}{6}\pi", "0.523599"],
        [r"\arcsin\frac{1}{2}", r"30^\circ", r"\frac{6}{\pi}"],
    ),
    (r"18+2\pi", [r"2\pi + 18", r"2(\pi + 9)"], [r"20\pi", r"10 + 8 + 2\pi", r"18 + \pi + \pi"]),
    ("e^2", ["e^{2}", "7.389056"], ["2e", r"e \cdot e", "7.39", r"e^3"]),
    (r"\ln 2", [r"\ln(2)", r"\log 2"], [r"\ln 3", "0.69", r"\int_1^2 \frac{1}{x} dx"]),
    (r"90^\circ", ["90", "90°", "90 degrees", r"90^{\circ}"], ["91", r"9^\circ", r"45^\circ + 45^\circ"]),
]
COMPLEX_NUMBERS = [
    (
        "3+4i",
        ["4i+3", "3 + 4i", r"3+4 i"],
        ["(2+i)^2", "3-4i", "7i", "5", "(1+2i)(2+0i) - 1", "3+3i+i", r"\sqrt{-7+24i} + 0"],
    ),
    ("6 - 5i", ["-5i + 6", "6-5i"], ["6+5i", "11", r"\frac{12-10i}{2+0i}"]),
    ("2i", ["2i", "0 + 2i = 2i"], [r"\sqrt{-4}", "2", "-2i", "i+i"]),
    (r"\frac{1}{2} - \frac{1}{2}i", [r"\frac{1-i}{2}", "0.5 - 0.5i"], [r"\frac{1}{1+i}", r"\frac{1+i}{2}"]),
]
FORMULAS = [
    ("x^2-1", ["x^2 - 1", "(x-1)(x+1)", "-1 + x^2", "x*x - 1"], ["x^2+1", "x^2-2x+1", "x^2 - 2 + 1", "y^2-1", "0"]),
    ("2x", ["2x", r"2 \cdot x", "x*2"], [r"\frac{d}{dx} x^2", r"\frac{d x^2}{dx}", r"\int 2 dx", "x^2", "x + x", "2"]),
    (
        r"\frac{n(n+1)}{2}",
        ["n(n+1)/2", r"\frac{n^2+n}{2}", r"\frac12 n(n+1)"],
        [r"\sum_{k=1}^n k", "n(n-1)/2", "1+2+...+n"],
    ),
    ("2k+2", ["2(k+1)", "2 + 2k"], ["2k", "k+k+2", "2k + 1 + 1", "2m+2"]),
    (
        r"\cot x",
        [r"\cot(x)", r"\frac{\cos x}{\sin x}", r"\frac{1}{\tan x}"],
        [r"\tan x", r"\cos x", r"\frac{d}{dx} \ln \sin x"],
    ),
    (r"\frac{e^{-2t}}{15}", [r"\frac{1}{15}e^{-2t}", "e^{-2t}/15"], ["e^{2t}/15", r"\frac{e^{-2s}}{15}", "15"]),
    (r"\binom{2n}{n}", [r"\frac{(2n)!}{n! n!}", r"\binom{2n}{n}"], [r"\binom{n}{2}", r"\sum_{k=0}^n \binom{n}{k}^2"]),
    (
        r"\lfloor n/2 \rfloor",
        [r"\left\lfloor \frac{n}{2} \right\rfloor"],
        [r"\lceil n/2 \rceil", "n/2", r"\lfloor n/3 \rfloor"],
    ),
    ("|x-3|", ["|3-x|", r"\lvert x - 3 \rvert"], ["x-3", "|x|-3", r"\max(x-3, 3-x)"]),
    (r"\frac{1}{m} t", [r"\frac{t}{m}", "t/m"], [r"\frac{m}{t}", "t"]),
    ("2^{n}-1", ["2^n - 1"], [r"\sum_{k=0}^{n-1} 2^k", "2^{n-1}"]),
    (r"\sqrt{x^2+1}", [r"(x^2+1)^{1/2}"], ["x+1", r"\sqrt{x^2}+1"]),
]
EQUATIONS = [
    (
        "y = 2x + 3",
        ["2x+3", "y=3+2x", "y - 2x = 3", "2x - y + 3 = 0"],
        ["y = 2x - 3", "x = 2y + 3", "2x + 3 = 11", "3"],
    ),
    ("5x - 7y + 11z + 4 = 0", ["11z + 5x - 7y + 4 = 0", "10x - 14y + 22z + 8 = 0"], ["5x - 7y + 11z = 4", "0"]),
    ("x=5", ["5", "5 = x", "x = 5"], ["y=5", "x=-5", "x + 1 = 6", "2x = 10", "x^2 = 25"]),
    (
        "5",
        ["x = 5", "n=5", "f(2) = 5", r"\angle ABC = 5", "AB = CD = 5", "P(A) = 5"],
        ["x + 1 = 6", "x = 5, y = 6", "5x = 25"],
    ),
    ("f(x)=2x", ["2x", "f(x) = 2 x"], ["f(x) = x + 2", "f(x)=2"]),
]
COLLECTIONS = [
    (
        "3, 5, 7",
        ["7, 5 and 3", r"\{3,5,7\}", "3; 5; 7", "5, 3, 7", "3,5,7"],
        ["3, 5", "3, 5, 7, 9", "(3, 5)", "3 + 5 + 7", "357"],
    ),
    (
        r"1 \pm \sqrt{19}",
        [r"1+\sqrt{19}, 1-\sqrt{19}", r"1 - \sqrt{19} \text{ or } 1 + \sqrt{19}"],
        [r"1 + \sqrt{19}", r"\pm\sqrt{19}"],
    ),
    ("1,-2", ["-2, 1", "x = 1 or x = -2", r"\{-2, 1\}"], ["1, 2", "1", "-1, 2", "1 - 2"]),
    (
        "(1,2)",
        [r"\left( 1, 2 \right)", "(1.0, 4/2 = 2)", "1, 2", "(x,y) = (1,2)"],
        ["(2,1)", "[1,2]", "(1,2,3)", "{1,2,3}", "(1,3)"],
    ),
    (
        r"\left(3, \frac{\pi}{2}\right)",
        [r"(3, \pi/2)", r"(3,\frac{1}{2}\pi)"],
        [r"(\frac{\pi}{2}, 3)", r"(3, \pi)", "(3, 1.57)"],
    ),
    ("(3,4]", [r"(3, 4]", r"x \in (3,4]"], ["[3,4]", "(3,4)", "[3,4)", "3 4"]),
    ("[-2,7]", [r"-2 \le x \le 7", r"x \in [-2, 7]"], [r"-2 < x < 7", "(-2,7)", "[7,-2]"]),
    (
        r"(-\infty, 2) \cup (3, \infty)",
        [r"(3,\infty)\cup(-\infty,2)"],
        [r"(-\infty, 2)", r"(-\infty, 3) \cup (2, \infty)"],
    ),
    (
        r"\begin{pmatrix} -1/3 \\ 2/3 \end{pmatrix}",
        [r"\begin{pmatrix} -\frac13 \\ \frac23 \end{pmatrix}"],
        [r"\begin{pmatrix} 2/3 \\ -1/3 \end{pmatrix}", r"\begin{pmatrix} -1/3 & 2/3 \end{pmatrix}"],
    ),
    ("(1,1), (3,2)", ["(3,2),(1,1)"], ["(1,1)", "(1,3),(1,2)", "(1,1),(2,3)"]),
    ("100,200", ["100200", "100, 200", "200; 100"], ["100", "100,2000"]),
]
UNITS = [
    (
        "2 hours",
        ["2 hours", "120 minutes", "2", "2 h", "7200 seconds", "two hours", "2 hr"],
        ["2 minutes", "120", "2 days", "120 hours", "2 km", "2 seconds"],
    ),
    ("120 min", ["2 hours", "120 minutes", "120"], ["120 hours", "2 minutes", "2"]),
    ("5 km", ["5000 m", "5 kilometers", "5", "500000 cm"], ["5 m", "5 miles", "5 kg", "50 km"]),
    (
        "5",
        ["5 km", "5 apples", "5 dollars", "$5", "5 m", "5 cm^2", "5 hot dogs"],
        ["5 thousand", "5 squared", "5 times 2"],
    ),
    ("$5", ["5 dollars", "500 cents", "5", r"\$5.00", "5.00 dollars"], ["5 cents", "50", "$50", "0.05 dollars"]),
    ("5.4 cents", ["5.4", "5.4 cents", "$0.054"], ["5.4 dollars", "54 cents"]),
    ("60 mph", ["60 miles per hour", "60 miles/hour", "60"], ["60 km/h", "60 miles", "60 hours"]),
    ("15 cm^2", ["15 square centimeters", "15", r"15\text{ cm}^2", "0.0015 m^2"], ["15 cm", "15 m^2", "15 cm^3"]),
    ("1 gallon", ["4 quarts", "8 pints", "1"], ["1 quart", "4 gallons", "1 kg"]),
    ("3 feet", ["36 inches", "1 yard", "3 ft", "3"], ["3 inches", "3 yards", "3 meters"]),
    (
        r"12\pi \text{ cm}^2",
        [r"12\pi", r"12\pi \text{ square centimeters}"],
        ["12", r"12\pi \text{ cm}^3", r"12\pi \text{ m}^2"],
    ),
    ("2 years", ["24 months", "2"], ["2 months", "24 years", "730 kg"]),
    (r"1950^\circ C", ["1950", r"1950^\circ C", r"1950^\circ"], [r"1950^\circ F", "195"]),
]
WORDS = [
    (r"\text{Evelyn}", ["evelyn", "Evelyn", "**Evelyn**"], ["Evelin", "Evelyn or Bob", "5"]),
    ("east", ["East", r"\text{east}"], ["seat", "west", "eats"]),
    (r"\text{(C)}", ["C", "(C)", r"\textbf{(C)}"], ["(D)", "c or d", "A, C"]),
    ("yes", ["Yes", "YES"], ["no", "yes or no"]),
    ("even", ["Even", r"\text{even}"], ["odd", "even and odd"]),
    ("52_8", ["52_{8}", "52"], ["52_9", "42", "52_{10}"]),
    ("ACB", ["ACB", "acb"], ["CAB", "ABC"]),
]
# Judged as well. Which of them vote together is told by the answers above.
OTHERS = [
    ("12", ["12.0", "x = 12", "24/2 = 12", "12, or equivalently 12.0", r"\sqrt{144} = 12"], ["13", "5 m", "12 or 13"]),
    ("12", [], ["12, 13", "either 12 or 13", "between 12 and 13", r"12 \text{ or } 13", r"12 \lor 13", "12\n13"]),
    ("12", [], ["12; 13", r"12 \\ 13", r"\{12, 13\}", r"12 \pm 1", "x = 12, x = 13", "not 12", "", "$ $"]),
    ("12", [], ["12 thousand", "12 (13)", "12x", "[12, 13]", r"12 \cup 13"]),
    ("0.5", [r"\frac12", r"50\%"], []),
    ("1/3", ["0.333333"], ["0.3333"]),
    ("1 4/5", [], ["14/5"]),
    ("x=12", ["12"], []),
    ("5", [], ["x = 10/2"]),
    ("50%", ["50%", "50", "0.5"], ["5", "0.5%"]),
    ("1", ["1%"], []),
    ("72", [], ["x = 48+24"]),
    ("3, 5", ["[3, 5]", "(5, 3)"], ["3, 5, 7"]),
    ("3, 5, 7", [r"\{7, 5, 3\}"], []),
    ("$69$,$84$", ["84 or 69"], []),
    ("-2,-2", ["-2"], []),
    (r"1 \pm \sqrt{19}", [r"1+\sqrt{19}, 1 - \sqrt{19}", r"1 - \sqrt{19}, \sqrt{19}+1"], []),
    (r"\{1\pm\sqrt{5},-2\}", [r"-2, 1+\sqrt5, 1-\sqrt5"], []),
    ("100; 200", ["100,200"], []),
    ("100", [], ["100,200"]),
    ("100200", [], ["100, 200"]),
    ("(1,2)", [r"\left( 1, \, 2 \right)"], []),
    (r"(-\infty,0]", ["(-infinity, 0]"], []),
    ("(1,1), (3,2)", ["(3,2), (1,1)"], []),
    (r"x \in [-2,7]", ["[-2,7]", r"-2 \le x \le 7"], []),
    ("y = 2x + 3", ["y=2x + 3"], []),
    ("E_{1},E_{2}", ["E_1, E_2"], []),
    (r"2\sqrt2", [r"\sqrt{8}"], []),
    ("2k", [], ["k+k", r"\frac{"]),
    ("(1, x)", ["(1, 2x/2)"], []),
    ("abc", ["cab"], []),
    ("[1, 2]", [], ["(1, 2)"]),
    ("2^{10}", ["1024"], []),
    ("5!", ["120"], []),
    (r"7\pi", ["21.99114857512855"], []),
    ("6 - 5i", ["-5i+6"], []),
    ("5/2", ["x = 10/4"], []),
    (r"-2 \le x \le 7", ["[-2,7]"], []),
    (r"\left( 3, \frac{\pi}{2} \right)", [r"(3, \pi/2)"], []),
    (r"\arcsin{\frac{1}{1.3}}", [r"\arcsin(10/13)"], []),
    (r"2\sqrt{2}\times 10^{-9}", [r"\sqrt{8}\times 10^{-9}"], []),
    (r"2\sqrt{2}", [], [r"\sqrt{9}"]),
    ("6m", [], ["6"]),
    ("6", [], ["6m"]),
    (r"2.88 \times 10^{-19}", [], [r"\pi \times 10^{-19}"]),
    (r"\sqrt{2} \times 10^{-9}", [], [r"\sqrt{3} \times 10^{-9}"]),
    (r"1 + \sqrt{19}", [], [r"1 \pm \sqrt{19}"]),
]
GROUPS = {
    "whole numbers": WHOLE_NUMBERS,
    "fractions": FRACTIONS,
    "roots": ROOTS,
    "constants": CONSTANTS,
    "complex numbers": COMPLEX_NUMBERS,
    "formulas": FORMULAS,
    "equations": EQUATIONS,
    "collections": COLLECTIONS,
    "units": UNITS,
    "words": WORDS,
}


def pairs_of(group: list[tuple[str, list[str], list[str]]]) -> list[tuple[str, str, bool]]:
    """Reference, answer, and whether it is right."""
    labelled = [(r, answers, label) for r, *both in group for answers, label in zip(both, (True, False), strict=True)]
    return [(reference, answer, label) for reference, answers, label in labelled for answer in answers]


PAIRS = [pair for group in GROUPS.values() for pair in pairs_of(group)]


def test_there_are_enough_pairs() -> None:
    assert len(PAIRS) >= 300
    assert sum(right for *_, right in PAIRS) >= 120
    assert len(set(PAIRS)) == len(PAIRS)


FORMS = [
    "<answer>%s</answer>",
    r"so \boxed{%s}.",
    "<think>x</think><answer>%s</answer>",
    r"<answer>\boxed{%s}</answer>",
]


@pytest.mark.parametrize("form", FORMS)
def test_every_pair_is_judged_as_labelled(form: str) -> None:
    pairs = [*PAIRS, *pairs_of(OTHERS)]
    verdicts = check_all([(form % answer, reference) for reference, answer, _ in pairs])
    judged = zip(pairs, verdicts, strict=True)
    assert [(pair, verdict.reason) for pair, verdict in judged if verdict.correct != pair[2]] == []


def test_keys_agree_with_the_labels() -> None:
    # Answers of one key are one answer: a wrong answer never has its reference's key.
    shared = [
        (r, a) for r, a, right in PAIRS if not right and (key := answer_key(a)) is not None and key == answer_key(r)
    ]
    assert shared == []


# Right for their reference, and of another class of votes, which follows from one answer alone.
TWO_CLASSES = {
    "a unit on one side": [
        ("12", "12 km/h"),
        ("12", r"12\text{ cm}^2"),
        ("2/3", r"\frac{2}{3} \text{ cup}"),
        (r"7\pi", r"7\pi \text{ cm}^2"),
        ("2 hours", "2"),
        ("120 min", "120"),
        ("5 km", "5"),
        ("5", "5 km"),
        ("5", "5 cm^2"),
        ("5.4 cents", "5.4"),
        ("60 mph", "60"),
        ("15 cm^2", "15"),
        ("1 gallon", "1"),
        ("3 feet", "3"),
        (r"12\pi \text{ cm}^2", r"12\pi"),
        ("2 years", "2"),
        (r"1950^\circ C", "1950"),
        (r"1950^\circ C", r"1950^\circ"),
    ],
    "cents, which may be meant as a plain number": [("$5", "500 cents"), ("5.4 cents", "$0.054")],
    "a letter that is a unit only beside a number": [("2 hours", "2 h"), ("5 km", "5000 m"), ("5", "5 m")],
    "a decimal that rounds a number without end": [
        (r"\frac{1}{3}", "0.333333"),
        ("0.333333", "1/3"),
        ("2/3", "0.666667"),
        (r"2\sqrt{2}", "2.828427"),
        (r"\sqrt{51}", "7.141428"),
        (r"\frac{1+\sqrt{5}}{2}", "1.618034"),
        (r"\frac{\sqrt{3}}{3}", "0.577350"),
        (r"7\pi", "21.991149"),
        (r"\frac{\pi}{6}", "0.523599"),
        ("e^2", "7.389056"),
    ],
    "a percent sign on one side": [("50", "50%"), ("50", "50 percent")],
    "a curve in another form": [("y = 2x + 3", "y - 2x = 3"), ("y = 2x + 3", "2x - y + 3 = 0")],
    "a comma that may separate": [("(1,2)", "1, 2"), ("100,200", "100, 200"), ("100,200", "200; 100")],
    "a base left out": [("52_8", "52")],
}


def test_what_is_equal_votes_together() -> None:
    apart = {(r, a) for r, a, right in PAIRS if right and vote_key(r) != vote_key(a)}
    assert apart == {pair for pairs in TWO_CLASSES.values() for pair in pairs}


def test_what_votes_together_is_equal() -> None:
    # A name is dropped in votes: "x = 5" and "y = 5" are one class, and not equal.
    classes: dict[str, set[str]] = {}
    for text in {text for reference, answer, _ in PAIRS for text in (reference, answer)}:
        if (key := answer_key(text)) is not None:
            classes.setdefault(key, set()).add(text)
    together = [pair for texts in classes.values() for pair in permutations(texts, 2)]
    assert len(together) > 100
    assert [(r, a) for r, a in together if not judge(references(r), a)] == []


RESTATED = [
    r"\int_0^1 x^2 dx",
    r"\sum_{i=1}^{10} i",
    r"\lim_{x \to 0} \frac{\sin x}{x}",
    r"\prod_{i=1}^3 i",
    r"\binom{5}{2}",
    r"\det A",
    r"\log_2 8",
    r"\frac{d}{dx} x^2",
    r"\max(1,2)",
    "5!",
    "48+24",
    "48+24+x-x",
    "(2+i)^2",
    "2^{10}",
    r"\sqrt{144}",
    "144/2",
    r"2 \cdot 3",
    "3x + 2x",
    "2x + 3 = 11",
    "x + y = 5",
    "5 = 6 = 7",
    "x^2 = 144 = 12",
    r"\lfloor 2.5 \rfloor",
    "|-5|",
    r"17 \bmod 5",
    r"\sin 30^\circ",
    "five plus seven",
    "What is 2 + 2?",
]


@pytest.mark.parametrize("answer", RESTATED)
def test_a_restated_question_has_no_key(answer: str) -> None:
    assert answer_key(answer) is None


@pytest.mark.parametrize(
    ("answer", "reference"),
    [("48+24", "72"), (r"\int_0^1 x^2 dx", "1/3"), ("5!", "120"), (r"\binom{5}{2}", "10"), (r"\sqrt{144}", "12")],
)
def test_a_restated_question_has_its_own_reason(answer: str, reference: str) -> None:
    assert check(rf"\boxed{{{answer}}}", reference).reason == "restated"


@pytest.mark.parametrize(
    ("reference", "answer"),
    [("5!", "5!"), ("2^{1009}", "2^{1009}"), (r"\frac{100!}{2^{50}}", r"\frac{100!}{2^{50}}"), (r"\ln 2", r"\ln 2")],
)
def test_an_answer_may_have_the_operations_of_its_reference(reference: str, answer: str) -> None:
    assert check(f"<answer>{answer}</answer>", reference).correct


def test_block_only_ignores_other_answers() -> None:
    for text in (r"\boxed{5}", "The answer is 5.", "<answer>5", "#### 5"):
        assert check(text, 5).correct
        assert check(text, 5, block_only=True).reason == "no_answer"
    assert check(r"so \boxed{6} <answer>\boxed{5}</answer>", 5, block_only=True).correct
