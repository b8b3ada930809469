import random

import pytest

from lite_selfplay.data import Problem
from lite_selfplay.games import make_game
from lite_selfplay.games.worked import solution_of, with_a_slip, worked_attempt, worked_example
from lite_selfplay.text import well_formed

SUM = Problem("sum", "Ann has 5 pens, buys 3 and loses 2.", "6", extra={"solution": "5 + 3 = 8. 8 - 2 = 6."})
NOTED = "She sells 16 - 3 - 4 = <<16-3-4=9>>9.\n9 * 2 = $<<9*2=18>>18\n#### 18"
GSM = Problem("gsm", "?", "18", extra={"solution": NOTED})


def test_calculator_notes_and_the_final_line_are_left_out():
    assert solution_of(GSM) == "She sells 16 - 3 - 4 = 9.\n9 * 2 = $18"
    assert solution_of(Problem("p", "?", "1")) is None
    assert solution_of(Problem("p", "?", ["1", "2"], extra={"solution": "1, 2"})) is None


@pytest.mark.parametrize("thinks", [False, True])
def test_an_example_keeps_the_format(thinks: bool):
    example = worked_example(SUM, "prompt", thinks=thinks)
    assert well_formed(example.completion, thinks)
    assert example.completion.endswith("5 + 3 = 8. 8 - 2 = 6. <answer>6</answer>")
    assert ("<think>" in example.completion) == thinks


def test_a_slip_changes_exactly_one_result():
    for seed in range(40):
        wrong = with_a_slip("5 + 3 = 8. 8 - 2 = 6.", random.Random(seed))
        words = list(zip(wrong.split(), ["5", "+", "3", "=", "8.", "8", "-", "2", "=", "6."], strict=True))
        assert [i for i, (a, b) in enumerate(words) if a != b] in ([4], [9])
    assert with_a_slip("no calculation", random.Random(0)) == "no calculation"


def test_attempts_are_right_wrong_or_missing_and_never_show_the_final_value():
    rng = random.Random(0)
    attempts = [worked_attempt(SUM, rng) for _ in range(400)]
    assert 0.05 < attempts.count("") / 400 < 0.15
    assert 0.3 < sum("= 8. 8 - 2 = ?" in text for text in attempts) / 400 < 0.75
    assert any("= 8. 8 - 2 = ?" not in text for text in attempts if text)
    assert not any("= 6" in text for text in attempts)


def test_agon_teaches_both_roles_in_their_own_prompts():
    game, rng = make_game("agon", {}), random.Random(3)
    draft = game.cold_start("drafter", SUM, rng, thinks=False)
    challenge = game.cold_start("challenger", SUM, rng, thinks=False)
    assert draft.completion == challenge.completion
    assert "attempt" not in draft.prompt
    assert "attempt" in challenge.prompt
    assert game.cold_start("drafter", Problem("p", "?", "1"), rng, thinks=False) is None
