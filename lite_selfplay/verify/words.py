"""Numbers and units of measurement in a text: "twelve", "three quarters", "square feet", "km/h".

Units are a short table instead of a library: those that people and models write after an answer, as words or
abbreviations, with the kind of quantity that they measure and the factor by which they differ. Other words, such as
"apples", and degrees of an angle have no effect. Money is not a unit, so "$5" and "5" are the same answer; cents are a
hundredth.
"""

import re
from dataclasses import dataclass
from fractions import Fraction

_ONES = (
    "zero one two three four five six seven eight nine ten eleven twelve thirteen fourteen fifteen sixteen seventeen "
    "eighteen nineteen"
).split()
_TENS = "twenty thirty forty fifty sixty seventy eighty ninety".split()
_SMALL = {word: n for n, word in enumerate(_ONES)} | {word: 10 * n for n, word in enumerate(_TENS, 2)}
_SCALES = {"hundred": 100, "thousand": 1000, "million": 10**6, "billion": 10**9}

_NUMBER_WORD = "|".join([*_SMALL, *_SCALES])
_RUN = rf"(?:a\s+(?={'|'.join(_SCALES)}))?(?:{_NUMBER_WORD})(?:[\s-]+(?:and\s+)?(?:{_NUMBER_WORD}))*"
# A run of number words in a text. It need not be a single number: "two three" is not.
NUMBER_WORDS = re.compile(rf"(?<![\w-]){_RUN}(?![\w-])", re.IGNORECASE)
_PARTS = ["half", "third", "quarter", "fifth", "sixth", "seventh", "eighth", "ninth", "tenth"]
_DENOMINATORS = {word: n for n, word in enumerate(_PARTS, 2)} | {"halve": 2, "fourth": 4, "hundredth": 100}
_FRACTION = rf"(?P<above>an?|{'|'.join(_ONES[1:10])})[\s-]+(?P<below>{'|'.join(_DENOMINATORS)})s?"
_AND = r"\s+and\s+"
# After any other word a number is part of a name, such as "Room Twelve".
_SPELLED = re.compile(
    r"(?:(?<![\w-])(?<![A-Za-z]\s)|(?<=\bor\s)|(?<=\band\s)|(?<=\bminus\s)|(?<=\bnegative\s)|(?<=\bbase\s))"
    rf"(?:(?:(?P<whole>{_RUN}|\d+){_AND})?{_FRACTION}|(?P<run>{_RUN}))(?![\w-])",
    re.IGNORECASE,
)


def in_digits(text: str) -> str:
    """Replace numbers and fractions in words by digits. A run of words that is not a number stays unchanged."""
    return _SPELLED.sub(_digits, text)


def _digits(match: re.Match[str]) -> str:
    if run := match["run"]:
        parts = [run] if number_of(run) is not None else re.split(_AND, run)
        return " and ".join(part if (number := number_of(part)) is None else str(number) for part in parts)
    if (whole := number_of(match["whole"] or "zero")) is None:
        return match[0]
    return written(whole + Fraction(number_of(match["above"]) or 0, _DENOMINATORS[match["below"].casefold()]))


def written(value: Fraction) -> str:
    """A number as a whole number or a fraction, in LaTeX."""
    return str(value) if value.denominator == 1 else rf"\frac{{{value.numerator}}}{{{value.denominator}}}"


def number_of(words: str) -> int | None:
    """The number that a run of words or digits names; None if it names none or several ("two three", "twenty ten")."""
    if words.isdigit():
        return int(words) if len(words) < 20 else None
    total, bound = 0, 10**12  # the next word must be smaller than the bound: "twenty one" but not "one twenty"
    for word in re.split(r"[\s-]+(?:and\s+)?", words.casefold().strip()):
        value = 1 if word in ("a", "an") else _SMALL.get(word, bound)
        if (scale := _SCALES.get(word)) is not None:
            most = 10 if scale == 100 else 1000  # it counts fewer than that, which come just before it
            counted = total % (scale * most)
            if not 0 < counted < most:
                return None
            total, bound = total + counted * (scale - 1), scale
        elif value < bound and (value or not total):
            total, bound = total + value, 10 if value >= 20 else 1
        else:
            return None
    return total


# Units

Dimension = frozenset[tuple[str, int]]

# Letters that are units only if one of reference and answer is a plain number, or within a compound such as km/h.
SINGLE_LETTERS = "m s h g L J N W V A K C F".split()


@dataclass(frozen=True)
class Unit:
    """A unit: `factor` times the base unit of its `dimension`, a product of powers such as {("length", 1), ("time",
    -1)}."""

    factor: Fraction = Fraction(1)
    dimension: Dimension = frozenset()

    def times(self, other: "Unit", power: int = 1) -> "Unit":
        own, others = dict(self.dimension), dict(other.dimension)
        powers = {name: own.get(name, 0) + power * others.get(name, 0) for name in {*own, *others}}
        dimension = frozenset((name, count) for name, count in powers.items() if count)
        return Unit(self.factor * other.factor**power, dimension)

    def __str__(self) -> str:
        return " ".join(f"{name}^{count}" if count != 1 else name for name, count in sorted(self.dimension))


_BASES: dict[str, dict[str, str]] = {
    "length": {
        "meter metre m": "1",
        "kilometer kilometre km": "1000",
        "centimeter centimetre cm": "1/100",
        "millimeter millimetre mm": "1/1000",
        "micrometer micrometre micron µm": "1e-6",
        "nanometer nanometre nm": "1e-9",
        "inch in": "0.0254",
        "foot feet ft": "0.3048",
        "yard yd": "0.9144",
        "mile mi": "1609.344",
    },
    "time": {
        "second sec s": "1",
        "minute min": "60",
        "hour hr h": "3600",
        "day": "86400",
        "week": "604800",
        "millisecond ms": "1e-3",
        "microsecond µs": "1e-6",
        "nanosecond ns": "1e-9",
    },
    "months": {"month": "1", "year yr": "12", "decade": "120", "century centuries": "1200"},
    "mass": {
        "gram g": "1",
        "kilogram kilo kg": "1000",
        "milligram mg": "1e-3",
        "tonne": "1e6",
        "pound lb": "453.59237",
        "ounce oz": "28.349523125",
    },
    "frequency": {"hertz Hz": "1", "kilohertz kHz": "1e3", "megahertz MHz": "1e6", "gigahertz GHz": "1e9"},
    "energy": {
        "joule J": "1",
        "kilojoule kJ": "1000",
        "calorie cal": "4.184",
        "kilocalorie kcal": "4184",
        "electronvolt eV": "1.602176634e-19",
    },
    "power": {"watt W": "1", "kilowatt kW": "1e3", "megawatt MW": "1e6"},
    "force": {"newton N": "1", "kilonewton kN": "1e3"},
    "voltage": {"volt V": "1", "millivolt mV": "1e-3", "kilovolt kV": "1e3"},
    "current": {"ampere amp A": "1", "milliampere mA": "1e-3"},
    "kelvin": {"kelvin K": "1"},
    "celsius": {"celsius C": "1"},
    "fahrenheit": {"fahrenheit F": "1"},
    "radian": {"radian rad": "1"},
    "information": {
        "bit": "1",
        "byte": "8",
        "kilobyte kB KB": "8e3",
        "megabyte MB": "8e6",
        "gigabyte GB": "8e9",
        "terabyte TB": "8e12",
    },
    "": {"dollar buck usd euro": "1", "cent penny pennies": "1/100"},
    "speed": {"mph": "0.44704", "kph kmh": "5/18"},  # in metres per second
    "volume": {  # in cubic metres; kitchen measures are those of the United States
        "liter litre L l": "1e-3",
        "milliliter millilitre ml mL": "1e-6",
        "centiliter centilitre cl cL": "1e-5",
        "deciliter decilitre dl dL": "1e-4",
        "gallon gal": "3.785411784e-3",
        "quart qt": "0.946352946e-3",
        "pint": "0.473176473e-3",
        "cup": "0.2365882365e-3",
        "tablespoon tbsp": "0.01478676478125e-3",
        "teaspoon tsp": "0.00492892159375e-3",
    },
}


_COMPOSED = {"": {}, "volume": {"length": 3}, "speed": {"length": 1, "time": -1}}
_UNITS = {
    name: Unit(Fraction(factor), frozenset(_COMPOSED.get(dimension, {dimension: 1}).items()))
    for dimension, units in _BASES.items()
    for names, factor in units.items()
    for name in names.split()
}
_POWERS = {"square": 2, "sq": 2, "cubic": 3, "cu": 3}
_UNIT_WORD = re.compile(r"(?P<name>[A-Za-zµ]+)\.?(?:\^?\{?(?P<power>-?\d)\}?)?")


def unit_of(text: str) -> Unit | None:
    """The unit that a text such as "km / h", "square feet" or "cm^2" names; None if one of its words is not a unit."""
    unit, side, power = Unit(), 1, 1
    for word in re.findall(r"/|[^\s/*]+", re.sub(r"\s*\^\s*", "^", text)):
        if word in ("/", "per"):
            side = -1
        elif word.casefold() in _POWERS:
            power = _POWERS[word.casefold()]
        elif word != "\\cdot":
            match = _UNIT_WORD.fullmatch(word)
            known = _named(match["name"]) if match else None
            if match is None or known is None:
                return None
            unit = unit.times(known, side * power * int(match["power"] or 1))
            side = power = 1
    return unit


def compound(match: re.Match[str]) -> str:
    """Convert a quantity in two units of one kind, the larger first, to the first: "2 hours 30 minutes" is 5/2 hours.

    The groups of the match are a number, a unit, a number, a unit; if the units do not fit, the text stays unchanged.
    """
    numbers = [Fraction(re.sub(r"\\frac{(.*)}{(.*)}", r"\1/\2", part).replace(",", "")) for part in match.group(1, 3)]
    first, second = unit_of(match[2]), unit_of("min" if match[4] == "m" and match[2][0] == "h" else match[4])
    if first is None or second is None or first.dimension != second.dimension or first.factor <= second.factor:
        return match[0]
    return f"{written(numbers[0] + numbers[1] * second.factor / first.factor)} {match[2]}"


def _named(name: str) -> Unit | None:
    """A unit by its name: abbreviations exactly as written, words in any case, singular or plural."""
    lowered, shortest = name.casefold(), 2 if name.islower() else 3
    words = [each for each in (lowered, lowered.removesuffix("s"), lowered.removesuffix("es")) if len(each) >= shortest]
    return next((_UNITS[each] for each in [name, *words] if each in _UNITS), None)
