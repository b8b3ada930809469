import random

import pytest

from lite_selfplay.data import Problem
from lite_selfplay.games import make_game
from lite_selfplay.games.agon.recap import summarise, worked_attempt
from lite_selfplay.games.worked_examples import solution_of, worked_example
from lite_selfplay.tasks.slips import with_a_slip
from lite_selfplay.verify.format import split_reasoning, well_formed

SUM = Problem("sum", "Ann has 5 pens, buys 3 and loses 2.", "6", extra={"solution": "5 + 3 = 8. 8 - 2 = 6."})
NOTED = "She sells 16 - 3 - 4 = <<16-3-4=9>>9.\n9 * 2 = $<<9*2=18>>18\n#### 18"
GSM = Problem("gsm", "?", "18", extra={"solution": NOTED})


class Chosen(random.Random):
    """A generator that draws the given slips first: (step, by)."""

    def __init__(self, *slips: tuple[int, int], draw: float = 0.3):
        super().__init__(0)
        self._slips, self._draw = slips, draw

    def sample(self, population, k, **_):
        assert set(self._slips) <= set(population)
        return [*self._slips, *(slip for slip in population if slip not in self._slips)]

    def random(self):
        return self._draw


def test_calculator_notes_and_the_final_line_are_left_out():
    assert solution_of(GSM) == "She sells 16 - 3 - 4 = 9.\n9 * 2 = $18"
    assert solution_of(Problem("p", "?", "1")) is None
    assert solution_of(Problem("p", "?", ["1", "2"], extra={"solution": "1, 2"})) is None


@pytest.mark.parametrize("thinks", [False, True])
def test_an_example_keeps_the_format_and_leaves_something_to_read(thinks: bool):
    example = worked_example(SUM, "prompt", thinks=thinks)
    assert well_formed(example.completion, thinks)
    assert example.completion.endswith("5 + 3 = 8. 8 - 2 = 6. <answer>6</answer>")
    assert ("<think>" in example.completion) == thinks
    # The challenger would read the recap after the reasoning, without the answer block.
    assert summarise(example.completion, SUM.text, thinks=thinks) == "5 + 3 = 8. 8 - 2 = 6."
    if thinks:
        reasoning = example.completion.partition("</think>")[0].removeprefix("<think>")
        assert reasoning.strip() == "5 + 3 = 8. 8 - 2 = 6."
        assert split_reasoning(example.completion).rest.strip().startswith("5 + 3 = 8.")


def test_a_solution_with_tags_of_its_own_is_no_example_and_none_without_an_answer():
    for solution, answer in (("<think>1 + 1 = 2", "2"), ("1 + 1 = 2 <answer>2</answer>", "2"), ("1 + 1 = 2", " ")):
        problem = Problem("p", "?", answer, extra={"solution": solution})
        assert worked_example(problem, "prompt", thinks=False) is None


def test_a_challenge_never_repeats_the_attempt():
    game = make_game("agon", {})
    told = {game.cold_start("challenger", SUM, random.Random(seed), thinks=False) for seed in range(50)}
    assert {example.completion for example in told} == {"5 + 3 = 8. 8 - 2 = 6. <answer>6</answer>"}
    assert len({example.prompt for example in told}) > 5
    assert all("attempt" in example.prompt for example in told)
    assert "attempt" not in game.cold_start("drafter", SUM, random.Random(3), thinks=False).prompt


@pytest.mark.parametrize(
    ("solution", "slips", "wrong"),
    [
        ("27 + 14 = 41. 41 - 6 = 35.", [(0, 1)], "27 + 14 = 42. 42 - 6 = 36."),
        ("27 + 14 = 41. 41 - 6 = 35.", [(1, -10)], "27 + 14 = 41. 41 - 6 = 25."),
        ("3 * 4 = 12. 12 - 2 = 10. 10 / 2 = 5.", [(0, 2)], "3 * 4 = 14. 14 - 2 = 12. 12 / 2 = 6."),
        # Only steps that reuse the changed result change: 5 - 5 is the result minus the problem's number.
        ("4 + 1 = 5. 5 - 5 = 0.", [(0, 1)], "4 + 1 = 6. 6 - 5 = 1."),
        ("2 + 3 = 5. 7 + 4 = 11.", [(0, 1)], "2 + 3 = 6. 7 + 4 = 11."),
        # Products come first, and a result may be reused as the second operand and in words.
        (
            "48/2 = 24 clips. Of those 24, 48 + 2 * 24 = 96.",
            [(0, -1)],
            "48/2 = 23 clips. Of those 23, 48 + 2 * 23 = 94.",
        ),
        ("She has 8 left, because 10 - 2 = 8.", [(0, 1)], "She has 9 left, because 10 - 2 = 9."),
        ("16 - 3 - 4 = 9.\n9 * 2 = $18", [(0, 1)], "16 - 3 - 4 = 10.\n10 * 2 = $20"),
        ("500 + 500 = 1,000. 1000 * 2 = 2,000", [(0, 10)], "500 + 500 = 1,010. 1010 * 2 = 2,020"),
        # A calculation that cannot be read, or was rounded, keeps its result.
        ("(3 + 4) * 2 = 14. 14 - 2.5 * 2 = 9", [(0, 1)], "(3 + 4) * 2 = 15. 15 - 2.5 * 2 = 9"),
        ("10 / 4 = 2. 2 * 3 = 6", [(1, 1)], "10 / 4 = 2. 2 * 3 = 7"),
        # A slip that breaks a later step is not taken, but the next: it would be -1, 4.5, 6 / 0, and -1.
        ("5 + 3 = 8. 8 - 7 = 1.", [(0, -2), (0, 2)], "5 + 3 = 10. 10 - 7 = 3."),
        ("5 + 3 = 8. 8 / 2 = 4.", [(0, 1), (0, 2)], "5 + 3 = 10. 10 / 2 = 5."),
        ("5 - 3 = 2. 6 / 2 = 3.", [(0, -2), (0, 1)], "5 - 3 = 3. 6 / 3 = 2."),
        ("5 - 5 = 0.", [(0, -1), (0, 1)], "5 - 5 = 1."),
        # Without a whole result there is no slip.
        *((text, [], text) for text in ("no calculation", "x = 2.5", "1 - 3/7 = 4/7", "2 = -3")),
    ],
)
def test_a_slip_goes_on_from_there(solution: str, slips: list[tuple[int, int]], wrong: str):
    assert with_a_slip(solution, Chosen(*slips)) == wrong


def test_an_attempt_is_the_recap_of_a_right_draft_or_of_one_with_a_slip_or_missing():
    solution = "27 + 14 = 41. 41 - 6 = 35.\nThe answer is 35."
    problem = Problem("p", "Ann has 27 pens, gets 14, and loses 6.", "35", extra={"solution": solution})
    chosen = [Chosen((0, 1)), Chosen((1, 1)), Chosen(draw=0.9), Chosen(draw=0.05)]
    attempts = ["27 + 14 = 42. 42 - 6 = 36.", "27 + 14 = 41. 41 - 6 = 36.", "27 + 14 = 41. 41 - 6 = 35.", ""]
    assert [worked_attempt(problem, rng) for rng in chosen] == attempts
    attempts = [worked_attempt(SUM, random.Random(seed)) for seed in range(400)]
    assert 0.05 < attempts.count("") / 400 < 0.15
    assert 0.3 < attempts.count("5 + 3 = 8. 8 - 2 = 6.") / 400 < 0.5
    assert {"5 + 3 = 9. 9 - 2 = 7.", "5 + 3 = 7. 7 - 2 = 5.", "5 + 3 = 8. 8 - 2 = 7."} <= set(attempts)
