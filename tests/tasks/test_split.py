"""Training and held-out problems never overlap in content, whatever their seeds and options."""

import random
import time
from collections.abc import Callable
from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from lite_selfplay.data import Problem
from lite_selfplay.errors import ConfigError, TaskError
from lite_selfplay.tasks import Task, content_key, data_facts, evaluation_set, held_out_side, load_task, without
from lite_selfplay.tasks.procedural import TRIES, Procedural
from lite_selfplay.tasks.split import WORDS, Overlap, overlap, training_side
from lite_selfplay.tasks.task import derived_rng
from tests.made import jsonl

SPECS = {
    "arithmetic": ["arithmetic", "arithmetic:digits=1,terms=2", "arithmetic:ops=*+,terms=4,max=5,seed=3"],
    "code-arithmetic": ["code-arithmetic", "code-arithmetic:steps=2"],
    "equations": ["equations", "equations:variables=2"],
    "multiplication": ["multiplication", "multiplication:digits=2"],
    "letters": ["letters", "letters:named=5,of=9", "letters:named=2,of=26"],
    "stories": ["stories", "stories:max=5", "stories:max=500", "stories:steps=1"],
}


def problem(text: str, **extra: object) -> Problem:
    return Problem("p", text, "1", extra=extra)


def keys(problems: object) -> list[str]:
    return [content_key(p) for p in problems]  # type: ignore[attr-defined]


def write(folder: Path, texts: list[str]) -> Task:
    rows = [{"problem": text, "answer": "1"} for text in texts]
    return load_task(str(jsonl(folder / "sums.jsonl", *rows)))


# Content


def test_the_content_is_given_by_the_task_or_is_the_text():
    assert content_key(problem("What is 2 + 1?", content="+1 +2")) == "+1 +2"
    assert content_key(problem("  What\tIS\n 2 + 1? ")) == "what is 2 + 1?" == content_key(problem("What is 2 + 1?"))
    assert content_key(problem("x", content=3)) == "x"
    assert content_key(problem("STRASSE")) == content_key(problem("Straße"))
    assert content_key(Problem("a", "x", "1")) == content_key(Problem("b", "x", "2"))  # not of id and answer


def test_about_one_content_in_five_is_held_out_and_always_the_same():
    # Another split would let a later version train on what an earlier one held out.
    assert [key for key in "abcdefghijklmnop" if held_out_side(key)] == ["a", "h", "j", "l", "o"]
    share = sum(held_out_side(str(number)) for number in range(20_000)) / 20_000
    assert abs(share - 0.2) < 0.01  # over three standard errors of 0.0028


# The two sides of tasks that are made


@settings(deadline=None, max_examples=30)
@given(st.sampled_from(sorted(SPECS)), st.data(), st.integers(0, 10**6), st.integers(0, 10**6), st.integers(0, 9000))
def test_the_sides_never_overlap(name, data, seed, other_seed, start):
    spec, other_spec = data.draw(st.sampled_from(SPECS[name])), data.draw(st.sampled_from(SPECS[name]))
    training = load_task(spec, seed=seed).problems[start : start + 50]
    held_out = load_task(other_spec, seed=other_seed, held_out=True).problems[start : start + 50]
    assert not any(map(held_out_side, keys(training)))
    assert all(map(held_out_side, keys(held_out)))
    assert set(keys(training)).isdisjoint(keys(held_out))


@pytest.mark.parametrize("name", SPECS)
def test_problems_of_either_side_follow_from_seed_and_index(name):
    for held_out in (False, True):
        one, same, other = (load_task(name, seed=s, held_out=held_out).problems[:20] for s in (1, 1, 2))
        assert one == same
        assert one != other
        assert [p.id for p in one] == [f"{name}-{index}" for index in range(20)]


def toy(make: Callable[[int, int], str], held_out: bool = True) -> tuple[Procedural, list[tuple[int, int]]]:
    """Problems whose texts follow from index and attempt, and a list of those that were drawn."""
    drawn: list[tuple[int, int]] = []

    def made(*draw: int) -> Problem:
        drawn.append(draw)
        return problem(make(*draw))

    return Procedural("toy", 10**9, held_out, made), drawn


def test_the_first_attempt_on_the_requested_side_is_used_and_their_number_is_bounded():
    wanted = next(attempt for attempt in range(50) if held_out_side(f"3/{attempt}"))
    problems, drawn = toy(lambda index, attempt: f"{index}/{attempt}")
    assert problems[3].text == f"3/{wanted}"
    assert drawn == [(3, attempt) for attempt in range(wanted + 1)]
    problems, drawn = toy(lambda *_: "a", not held_out_side("a"))
    with pytest.raises(TaskError, match=r"toy has too few different problems: none of 1000 draws was "):
        problems[0]
    assert drawn == [(0, attempt) for attempt in range(TRIES)]


# Files


def test_a_step_goes_with_the_problem_that_it_is_about():
    step = problem("s", content="What is 2 + 3?\n\n2 + 3 = 5", about="What is 2 + 3?")
    learned = [problem("what is 2 +  3?")]
    assert without([step], learned) == without(learned, [step]) == []
    assert overlap([step], learned).same == (step.id,)


def test_held_out_problems_are_removed_from_training():
    training = [problem("A b"), problem("c"), problem("a  B "), problem("d", content="x")]
    assert without(training, [problem("a b"), problem("X", content="x"), problem("e")]) == [training[1]]
    assert without(training, []) == training
    assert without([], training) == []


def test_a_file_is_trained_on_without_its_held_out_problems(tmp_path):
    task = write(tmp_path, ["a", "b", "A ", "c"])
    assert not task.procedural
    assert load_task(str(tmp_path / "sums.jsonl"), held_out=True) == task  # all of it on either side
    assert keys(training_side(task, [problem("a")]).problems) == ["b", "c"]
    assert training_side(task, []) is task
    with pytest.raises(ConfigError, match="every problem of sums is held out for evaluation"):
        training_side(task, task.problems)
    made = load_task("letters")
    assert training_side(made, task.problems) is made


# What to evaluate on


def test_a_whole_file_each_row_once(tmp_path):
    task = write(tmp_path, ["a", "b", "A ", "c", "b"])
    for limit in (None, 4, 5):
        assert [p.text for p in evaluation_set(task, limit)] == ["a", "b", "A", "c"]
    assert data_facts(task)["repeated"] == 1
    assert "repeated" not in data_facts(write(tmp_path, ["a", "b", "A "]))


@pytest.mark.parametrize(
    ("one", "other", "n"),
    [
        (("How many capitals are in 'Abc'?", "1"), ("How many capitals are in 'aBC'?", "2"), 2),
        (("How many capitals are in 'Abc'?", "1"), ("How many capitals are in 'aBc'?", "1"), 2),
        (("Straße?", "1"), ("STRASSE?", "1"), 2),
        (("Count the blanks of 'a  b'.", "1"), ("Count the blanks of 'a b'.", "1"), 2),
        (("Name one of them.", "1"), ("Name one of them.", "2"), 2),
        (("Name one of them.", ["1", "2"]), ("Name one of them.", ["2", "1"]), 2),
        (("a + b", "1", "a+b"), ("b + a", "1", "a+b"), 1),  # the task itself says that these are one
        (("a + b", "1", "a+b"), ("b + a", "2", "a+b"), 2),
        (("a + b", "1"), ("a + b", "1"), 1),
    ],
)
def test_rows_are_one_where_every_letter_and_the_answer_are(one, other, n):
    rows = [
        Problem(text, text, answer, extra=dict(zip(["content"], key, strict=False)))
        for text, answer, *key in (one, other)
    ]
    assert evaluation_set(Task("toy", rows)) == rows[:n]
    # Of what is so much alike, nothing is trained on where the other is held out.
    assert without(rows[1:], rows[:1]) == []


def test_a_part_of_a_file_follows_from_seed_and_name(tmp_path):
    task = write(tmp_path, [str(number) for number in range(100)])
    chosen = [int(p.text) for p in evaluation_set(task, 10, seed=4)]
    assert chosen == sorted(derived_rng(4, "evaluation", "sums").sample(range(100), 10))
    assert chosen == [int(p.text) for p in evaluation_set(task, 10, seed=4)]
    assert chosen != [int(p.text) for p in evaluation_set(task, 10, seed=5)]


@pytest.mark.parametrize(("limit", "n"), [(None, 100), (7, 7)])
def test_the_first_different_problems_of_a_task(limit, n):
    task = load_task("stories:max=9", held_out=True)
    chosen = evaluation_set(task, limit)
    assert len(set(keys(chosen))) == len(chosen) == n
    first_of_each = dict(reversed([(content_key(p), p) for p in task.problems[:500]]))
    assert chosen == sorted(first_of_each.values(), key=lambda p: int(p.id.partition("-")[2]))[:n]


def test_a_small_task_gives_all_it_has():
    # Unordered pairs of 1 to 9 with a plus: 45 contents.
    sides = [evaluation_set(load_task("arithmetic:digits=1,terms=2,ops=+", held_out=side)) for side in (False, True)]
    pairs = {f"+{a} +{b}" for a in range(1, 10) for b in range(a, 10)}
    assert {*keys(sides[0]), *keys(sides[1])} == pairs
    assert len(sides[0]) + len(sides[1]) == 45
    assert sides[1]


def test_a_task_that_repeats_itself_is_not_walked_to_its_end():
    problems, drawn = toy(lambda *_: "a", held_out_side("a"))
    assert len(evaluation_set(Task("toy", problems, procedural=True))) == 1
    assert len(drawn) == 1001


def test_nothing_to_evaluate_on():
    for procedural in (False, True):
        with pytest.raises(TaskError, match="toy has no problem to evaluate on"):
            evaluation_set(Task("toy", [], procedural=procedural))
    for limit in (0, -1):
        with pytest.raises(TaskError, match=f"at least 1, got {limit}"):
            evaluation_set(load_task("letters"), limit)


WORD = [f"w{n}" for n in range(60)]
LONG = " ".join(WORD[:20])


def problems(*texts: str) -> list[Problem]:
    return [Problem(f"p{n}", text) for n, text in enumerate(texts)]


def content(text: str) -> Problem:
    return Problem("p0", text, extra={"content": "+2 +3"})


@pytest.mark.parametrize(
    ("evaluation", "training", "same", "shared"),
    [
        (problems("What is 2 + 2?", LONG), [Problem("t", "what is  2 + 2?")], ("p0",), ()),
        (problems("What is 2 + 2?", LONG), [f"Before, {', '.join(WORD[5:18]).upper()}; after.", "x"], (), ("p1",)),
        (problems(" ".join(WORD[30:50]), "Another short one?"), [LONG, "Nothing of it."], (), ()),
        (problems(LONG), [" ".join(WORD[3 : 3 + WORDS])], (), ("p0",)),  # thirteen words
        (problems(LONG), [" ".join(WORD[3 : 2 + WORDS]), " ".join(reversed(WORD[:20]))], (), ()),
        ([content("3 + 2?")], [content("2 + 3?")], ("p0",), ()),
        ([content("3 + 2?")], ["2 + 3?"], (), ()),
        (problems(LONG, LONG), [LONG], ("p0", "p1"), ("p0", "p1")),
    ],
)
def test_the_same_content_and_shared_runs_of_words(evaluation, training, same, shared) -> None:
    assert overlap(evaluation, training) == Overlap(len(evaluation), same, shared)


def test_a_warning_has_the_count_and_the_ids() -> None:
    assert Overlap(9, (), ()).warning() is None
    found = Overlap(9, ("a", "b"), ("b", "c", "d"))
    assert found.ids == ("a", "b", "c", "d")
    assert found.warning(3) == (
        "4 of 9 evaluation problems occur in the training data (2 with the same content, 3 with 13 words in a row in "
        "common): a, b, c, ..."
    )


@given(st.lists(st.sampled_from("abcd"), max_size=40), st.lists(st.sampled_from("abcd"), max_size=40))
def test_runs_by_definition(left: list[str], right: list[str]) -> None:
    def runs(words: list[str]) -> set[tuple[str, ...]]:
        return {tuple(words[i : i + WORDS]) for i in range(len(words) - WORDS + 1)}

    found = overlap(problems(" ".join(left)), [" ".join(right)])
    assert bool(found.shared) == bool(runs(left) & runs(right))
    assert bool(found.same) == (left == right)


def test_thousands_against_thousands_take_seconds() -> None:
    rng = random.Random(0)
    words = [f"w{n}" for n in range(5000)]
    evaluation = problems(*(" ".join(rng.choices(words, k=40)) for _ in range(2000)))
    training = [" ".join(rng.choices(words, k=80)) for _ in range(1999)] + [evaluation[77].text]
    start = time.process_time()
    assert overlap(evaluation, training) == Overlap(2000, ("p77",), ("p77",))
    assert time.process_time() - start < 6
