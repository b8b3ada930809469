"""Values as text: equal where they are equal, different where they are not, read back as they were, or refused."""

import collections
import decimal
import fractions
import functools
import json
import math
import string
import time

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from lite_selfplay.verify.programs.checker import same_text, same_value
from lite_selfplay.verify.programs.inside.values import DEEPEST, Unwritable, canonical, pack, unpack

NUMBERS = st.one_of(
    st.booleans(),
    st.integers(),
    st.integers(min_value=-(10**300), max_value=10**300),
    st.floats(allow_nan=False),
    st.fractions(),
    st.decimals(allow_nan=False, allow_infinity=False, min_value=-(10**30), max_value=10**30),
    st.complex_numbers(allow_nan=False),
)
TEXTS = st.text(st.characters(exclude_categories=()))  # halves of surrogates included
HASHABLE = st.recursive(
    st.one_of(st.none(), NUMBERS, TEXTS, st.binary()),
    lambda inner: st.one_of(st.tuples(inner, inner), st.frozensets(inner, max_size=4)),
    max_leaves=6,
)
VALUES = st.recursive(
    st.one_of(HASHABLE, st.sets(HASHABLE, max_size=4), st.binary().map(bytearray)),
    lambda inner: st.one_of(
        st.lists(inner, max_size=5),
        st.tuples(inner, inner),
        st.dictionaries(HASHABLE, inner, max_size=4),
        st.lists(inner, max_size=4).map(collections.deque),
    ),
    max_leaves=20,
)


def kinds(value):
    """The types of a value and of all that is in it."""
    if isinstance(value, dict):
        return dict, sorted(str((kinds(k), kinds(v))) for k, v in value.items())
    if isinstance(value, set | frozenset):
        return type(value), sorted(str(kinds(item)) for item in value)
    if isinstance(value, list | tuple | collections.deque):
        return type(value), [kinds(item) for item in value]
    return type(value)


@given(VALUES)
@settings(max_examples=20)
def test_a_value_is_read_back_as_it_was_and_its_text_is_a_line_of_ascii(value):
    found, text = unpack(json.loads(json.dumps(pack(value)))), canonical(value)
    assert found == value
    assert kinds(found) == kinds(value)
    assert canonical(found) == text
    assert text.isascii()
    assert "\n" not in text
    assert same_value(text, text)


@given(VALUES, VALUES)
@settings(max_examples=20)
def test_texts_are_equal_where_values_are(one, other):
    """But for bytes and bytearrays, which stay apart in nothing, as in Python."""
    assert (canonical(one) == canonical(other)) == (one == other)


@given(st.dictionaries(HASHABLE, st.integers(), max_size=6), st.randoms())
@settings(max_examples=20)
def test_the_order_of_a_mapping_does_not_matter(value, rng):
    items = list(value.items())
    rng.shuffle(items)
    assert canonical(dict(items)) == canonical(value)
    assert canonical(set(value)) == canonical(frozenset(key for key, _ in items))


EQUAL = [
    *((1, 1.0), (1, True), (1, fractions.Fraction(2, 2)), (0.5, decimal.Decimal("0.50")), (0.0, -0.0), (2, 2 + 0j)),
    *((range(3), range(0, 3, 1)), (range(0), range(5, 5)), (10**400, fractions.Fraction(10**400))),
]
DIFFERENT = [
    *(([1], (1,)), ("1", 1), ("a b", ["a", "b"]), (b"a", "a"), ({1: 2}, {(1, 2)}), ([[], []], [[[]]]), (None, "N")),
    *(("[", [[]]), ("#1", 1), ("\\x20", " "), ('"', "\\x22"), ([1, 2], [12]), (0.1 + 0.2, 0.3), (math.inf, -math.inf)),
]


@pytest.mark.parametrize(
    ("one", "other", "equal"), [*((*pair, True) for pair in EQUAL), *((*pair, False) for pair in DIFFERENT)]
)
def test_what_python_calls_equal_has_one_text_and_what_differs_two(one, other, equal):
    assert ((one == other), canonical(one) == canonical(other)) == (equal, equal)


def deep(depth):
    return functools.reduce(lambda value, _: [value], range(depth), [])


def cycle():
    value = {}
    value["again"] = [value]
    return value


@pytest.mark.parametrize("value", [deep(DEEPEST + 1), deep(5000), cycle()], ids=["deep", "deeper", "a cycle"])
def test_what_is_nested_too_deeply_is_refused(value):
    for write in (canonical, pack):
        with pytest.raises(Unwritable):
            write(value)
    assert canonical(deep(DEEPEST - 1)) == canonical(deep(DEEPEST - 1))


@pytest.mark.parametrize("value", [object(), len, type, Ellipsis, (x for x in ()), {"a": [object()]}])
def test_what_is_no_plain_value_is_refused(value):
    with pytest.raises(Unwritable):
        canonical(value)


def test_nan_has_a_text_and_is_never_right():
    for nan in (math.nan, decimal.Decimal("nan"), [1, {"a": math.nan}]):
        assert "#nan" in canonical(nan).split(" ")
        assert not same_value(canonical(nan), canonical(nan))
        assert not same_value(canonical(nan), canonical(nan), 0.5)


def test_subclasses_are_written_as_what_they_hold():
    class Text(str):
        def __eq__(self, other):
            return True

        __hash__ = str.__hash__

    class Items(list):
        def __iter__(self):
            return iter("forged")

    assert canonical([Text("a")]) == canonical(["a"])
    assert canonical(Items([1])) == canonical([1])
    assert type(unpack(pack(Text("a")))) is str


def test_an_object_is_what_is_kept_for_it():
    kept = [object(), iter("ab")]
    data = json.loads(json.dumps(pack([1, *kept], lambda value: ["h", kept.index(value)])))
    assert unpack(data, lambda tag, number: kept[number]) == [1, *kept]


def test_a_huge_fraction_is_refused_at_once():
    started = time.monotonic()
    with pytest.raises(Unwritable):
        unpack(["q", "f" * 10**6, "e" * 10**6])
    assert time.monotonic() - started < 0.5
    assert unpack(pack(fractions.Fraction(7, 3**100))) == fractions.Fraction(7, 3**100)


HOSTILE = st.recursive(
    st.one_of(st.none(), st.booleans(), st.integers(), st.floats(), st.text(max_size=6)),
    lambda inner: st.lists(inner, max_size=4) | st.dictionaries(st.text(max_size=2), inner, max_size=2),
    max_leaves=12,
)


@given(st.one_of(HOSTILE, st.tuples(st.sampled_from([*"ifscbBltSFkdqDrMYuh", ""]), HOSTILE, HOSTILE).map(list)))
def test_what_a_program_sends_is_a_plain_value_or_an_error_that_is_known(data):
    try:
        value = unpack(json.loads(json.dumps(data)))
    except (ArithmeticError, LookupError, RecursionError, TypeError, ValueError, Unwritable):
        return
    modules = ("builtins", "fractions", "decimal", "collections", "datetime")
    assert type(value).__module__ in modules


TEXTS = {
    (0, True): [("3\n", "3"), ("3  \n\n\n", "3\n"), ("1\r\n2\r\n", "1\n2"), ("", ""), ("\n \n", "")],
    (0, False): [(" 3", "3"), ("1\n\n2", "1\n2"), ("3.0", "3")],
    (1e-6, True): [("0.333333", "0.3333333333"), ("1 0.5 x", "1.0000001 0.5 x")],
    (1e-6, False): [("0.3333", "0.3333333333"), ("nan", "1"), ("1_0", "10"), ("١", "1"), ("1e400", "1")],
}


@pytest.mark.parametrize(
    ("given", "wanted", "tolerance", "same"), [(*pair, *how) for how, pairs in TEXTS.items() for pair in pairs]
)
def test_texts_are_compared_line_by_line(given, wanted, tolerance, same):
    assert same_text(given.encode(), wanted.encode(), tolerance) == same


@given(st.text(string.printable), st.text(string.printable))
def test_different_words_are_different_texts(one, other):
    if one.split() != other.split():
        assert not same_text(one.encode(), other.encode())
    assert same_text(one.encode(), (one + " \n\n").encode())


@pytest.mark.parametrize(
    ("result", "expected", "tolerance", "same"),
    [
        ((1, 2), [1, 2], 0, True),  # JSON has no tuples
        ([(1, 2)], [[1, 2]], 0, True),
        ([1], (1,), 0, False),
        ("(", "[", 0, False),
        ([(1,)], [(1,)], 0, True),
        ([0.1 + 0.2], [0.3], 1e-9, True),
        ([0.1 + 0.2], [0.3], 0, False),
        (["0.3"], [0.3], 1e-9, False),
        (math.inf, 1e308, 0.5, False),
    ],
)
def test_values_are_compared(result, expected, tolerance, same):
    assert same_value(canonical(result), canonical(expected), tolerance) == same
    assert not same_value("#zz", "#1", 0.5)
