"""Tests that work on the program's objects: right programs pass them, and no object talks its way past them."""

import re
from pathlib import Path

import pytest

from lite_selfplay.verify.programs import Limits, run_tests, shared_sandbox
from lite_selfplay.verify.programs.sandbox import probe
from tests.verify.programs.outside import programs_of

PLACE = Path(__file__).parent
LAYOUTS = programs_of(PLACE / "layouts.txt")
RESULTS = programs_of(PLACE / "forged" / "border.txt")


@pytest.mark.parametrize("name", LAYOUTS)
def test_a_layout_tells_a_right_program_from_a_wrong_one(name):
    tests, right, wrong = re.split("^--- .*\n", LAYOUTS[name], flags=re.MULTILINE)
    good, bad = run_tests([right, wrong], [tests])
    assert (good.results, good.reason, good.detail) == ((True,), "", "")
    assert bad.results == (False,)
    assert bad.reason not in ("", "not_judged")


NUMBER, TEXT = "731946.25", "'q7w8e9r0t1y2u3i4'"
FORMS = [
    *(f"assert f(0) == {value}" for value in (NUMBER, TEXT)),
    *(f"assert not f(0) != {value}\nassert {value} == f(0)" for value in (NUMBER, TEXT)),
    *(f"assert f(0) in ({value}, 1)" for value in (NUMBER, TEXT)),
    *(f"assert [f(0)] == [{value}]" for value in (NUMBER, TEXT)),
    *(
        f"import unittest as u\nclass T(u.TestCase):\n    def test(self): self.assertEqual(f(0), {v})"
        for v in (NUMBER, TEXT)
    ),
    f"import unittest as u\nclass T(u.TestCase):\n    def test(self): self.assertAlmostEqual(f(0), {NUMBER})",
    f"import unittest as u\nclass T(u.TestCase):\n    def test(self): self.assertIn({TEXT}, f(0))",
    f"assert abs(f(0) - {NUMBER}) < 1e-6",
    f"assert abs({NUMBER} - f(0)) < 1e-6",
    f"assert abs(f(0) * 1 - {NUMBER}) < 1e-6",
    f"assert abs(f(0) * (1 / {NUMBER}) - 1) < 1e-6",
    f"import math\nassert math.isclose(f(0) * (1 / {NUMBER}), 1)",
    f"assert 0.999999 < f(0) * (1 / {NUMBER}) < 1.000001 and round(f(0) * (1 / {NUMBER})) == 1",
    f"assert -1e-6 < f(0) - {NUMBER} < 1e-6",
    f"assert not f(0) - {NUMBER}",
    f"assert (f(0) - {NUMBER}) ** 2 < 1e-6",
    f"assert round(f(0) - {NUMBER}, 3) == 0",
    f"assert sum(abs(a - b) for a, b in zip([f(0)], [{NUMBER}])) < 1e-6",
    f"d = f(0)\nd -= {NUMBER}\nassert abs(d) < 1e-6",
    f"assert f(0) > {NUMBER} - 1 and f(0) < {NUMBER} + 1",
    f"import math\nassert math.isclose(f(0), {NUMBER})",
    f"assert {TEXT} in f(0)",
    f"assert f(0).startswith({TEXT})",
    f"assert {{{TEXT}: 1}}[f(0)]",
    f"assert f'{{f(0)}}' == {TEXT}",
    f"assert f(0) >= {TEXT} and f(0) <= {TEXT}",
    f"with f(0) as x:\n    assert x == {TEXT}",
    f"assert f(0)[0] == {TEXT}",
    f"for a, b in zip(map(f, [0, 0]), [{TEXT}] * 2):\n    assert a == b",
    f"assert all(a == {TEXT} for a in [*map(f, [0])] or [0])",
    "x = [3, 1]\nassert f(x) == max(x)",
    "x = [3, 1]\nassert f(x) == sorted(x)",
    f"assert isclose(f(0), {NUMBER})",
    f"assert all(isclose(f(i), {NUMBER}) for i in range(2))",
    f"assert np.isclose(f(0), {NUMBER})",
    f"assertEqual(f(0), {TEXT})",
    f"from approval import assertEqual\nassertEqual(f(0), {TEXT})",
    f"import approval\nassert approval.isclose(approval.f(0), {NUMBER})",
    f"from solution import f\n@given(1)\ndef test_it(x=0):\n    assert f(x) == {NUMBER}\ntest_it()",
    f"assert f(lambda x: x) == {TEXT}",
    f"assert type(f(0)) is str and f(0) == {TEXT}",
    f"assert type(f(0)) is type({TEXT}) and f(0).__class__ == {TEXT}.__class__ and {TEXT} in [f(0)]",
    f"from pathlib import Path\nassert Path(f(0)) == Path({TEXT})",
]
WITH_PACKAGES = [
    *(f"import numpy as np\n{checked}" for checked in [
        f"assert np.isclose(f(0), {NUMBER})",
        f"assert np.shape(f(0)) == () and np.allclose([f(0)], [{NUMBER}])",
        f"assert np.shape(f(0)) == () and (np.abs(f(0) - np.array([{NUMBER}])) < 1e-6).all()",
        f"assert np.sqrt((f(0) - {NUMBER}) ** 2) < 1e-6",
        f"assert np.shape(f(0)) == () and (f(0) == np.array([{NUMBER}])).all()",
        f"assert np.array_equal(f(0), [{NUMBER}])",
        f"assert np.array_equal(f(np.array([1.0])), np.array([{NUMBER}]))",
        f"assert f(0).__class__ is np.float64 and f(0) == np.float64({NUMBER})",
        f"np.testing.assert_equal(f(0), {NUMBER})",
        f"assert np.shape(f(0)) == ()\nnp.testing.assert_almost_equal(f(0), {NUMBER})",
        f"assert np.shape(f(0)) == ()\nnp.testing.assert_allclose(f(0), {NUMBER})",
    ]),
    f"import pytest\nassert f(0) == pytest.approx({NUMBER})",
    f"import pytest\nassert pytest.approx({NUMBER}) == f(0)",
    f"import pytest\n@pytest.fixture\ndef x(): return 0\ndef test_it(x): assert f(x) == {NUMBER}",
]  # fmt: skip


@pytest.mark.parametrize("form", [*FORMS, *WITH_PACKAGES])
def test_no_object_talks_its_way_past_a_test(form):
    reports = dict(zip(RESULTS, run_tests([*RESULTS.values()], [form], Limits(seconds=0.5)), strict=True))
    assert {name: report for name, report in reports.items() if report.passed} == {}


def test_programs_beside_packages_are_confined_as_all_others():
    tried, problem = probe(shared_sandbox()._with_packages)
    assert (problem, len(tried)) == ("", 13)


def test_a_program_does_not_get_the_class_of_an_object_of_its_test():
    asking = (
        "def f(x):\n    border = vars(type(x))['_Reference__at'].__get__(x).border\n"
        "    try: return border.ask('__class__', x)\n    except AttributeError: return 'refused'"
    )
    report = run_tests(asking, ["assert f(lambda: 1) == 'refused'"])
    assert report.results == (True,), report


def test_what_the_forms_ask_for_is_judged_right():
    defined = {"isclose", "np.", "assertEqual(f", "given"}
    plain = [form for form in FORMS if not any(name in form for name in defined)]
    right = (
        "class T(str):\n    def __sub__(self, x): return 0.0\n"
        f"def f(x): return max(x) if isinstance(x, list) else {TEXT}"
    )
    report = run_tests(right, [form for form in plain if TEXT in form and "[0] ==" not in form and "with" not in form])
    assert report.results == (True,) * report.total, report
    report = run_tests(f"def f(x): return {NUMBER}", [form for form in plain if NUMBER in form])
    assert report.results[:5] == (True,) * 5, report
