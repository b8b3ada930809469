import re

from hypothesis import given
from hypothesis import strategies as st

from lite_selfplay.tasks import content_key, load_task

TASK = load_task("stories")


@given(st.integers(0, len(TASK.problems) - 1))
def test_the_worked_solution_is_right_and_uses_the_storys_numbers(index: int):
    problem = TASK.problems[index]
    first, second = re.findall(r"(\d+) ([+-]) (\d+) = (\d+)\.", problem.extra["solution"])
    a, sign, b, middle = first
    assert int(middle) == (int(a) + int(b) if sign == "+" else int(a) - int(b)) >= 0
    again, sign, c, final = second
    assert again == middle
    assert int(final) == (int(again) + int(c) if sign == "+" else int(again) - int(c)) >= 0
    assert problem.answer == final
    assert {int(n) for n in re.findall(r"\d+", problem.text)} == {int(a), int(b), int(c)}
    assert max(int(a), int(b), int(c)) <= 20


def test_stories_of_one_step():
    assert load_task("stories:steps=2").problems[7] == TASK.problems[7]
    assert len({problem.text for problem in TASK.problems[:500]}) > 450  # few come twice
    for problem in load_task("stories:steps=1,max=30").problems[:200]:
        a, sign, b, final = re.fullmatch(r"(\d+) ([+-]) (\d+) = (\d+)\.", problem.extra["solution"]).groups()
        assert problem.answer == final == str(int(a) + int(b) if sign == "+" else int(a) - int(b))
        assert re.findall(r"\d+", problem.text) == [a, b]


def test_names_and_things_do_not_belong_to_the_content():
    by_content: dict[str, set[str]] = {}
    for held_out in (False, True):
        for problem in load_task("stories:max=3", held_out=held_out).problems[:2000]:
            by_content.setdefault(content_key(problem), set()).add(problem.text)
    # Numbers from 1 to 3: two stories a + b - c with 26 choices, two a - b + c with 18, a + b + c with 27, a - b - c
    # with 4.
    assert len(by_content) == 2 * 26 + 2 * 18 + 27 + 4
    assert max(len(texts) for texts in by_content.values()) > 10
    for texts in by_content.values():
        assert len({tuple(re.findall(r"\d+", text)) for text in texts}) == 1
