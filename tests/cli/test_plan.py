import json

import pytest


def test_a_plan_names_the_parts_and_whether_the_card_is_large_enough(call):
    ended = call("plan", "--model", "Qwen3-4B", "--gpu", "t4", "--preset", "t4")
    assert ended.code == 0
    lines = ended.out.splitlines()
    assert lines[0].startswith("agon with Qwen3-4B in 4bit: 4.02B parameters, 2 seats, 32 completions side by side")
    assert lines[1] == "a step: 64 completions, at most 65,536 tokens"
    assert any(line.startswith("keys and values") and line.endswith("sampling") for line in lines)
    assert any(line.startswith("Tesla T4") for line in lines)


def test_without_a_card_all_are_listed(call):
    ended = call("plan", "--model", "tiny")
    lines = [line for line in ended.out.splitlines() if " GiB  fits" in line]
    assert len(lines) >= 10


def test_numbers_for_a_machine(call):
    told = json.loads(call("plan", "--model", "tiny", "--game", "grpo", "--gpu", "l4", "--json").out)
    assert told["fits"] == {"L4": True}
    assert told["completions_per_step"] == 64
    assert told["parts"]["gradients"] * 2 == told["parts"]["optimizer"]


def test_a_cpu_has_dense_weights_to_speak_with(call):
    assert "dense weights" in json.loads(call("plan", "--model", "tiny", "--gpu", "cpu", "--json").out)["parts"]


@pytest.mark.parametrize(
    ("arguments", "said"),
    [
        (["--model", "tiny", "--gpu", "t5"], "t4"),
        (["--model", "Qwen3-5B"], "Qwen3-4B"),
        (["--model", "somebody/unheard-of"], "hub"),
        ([], "model"),
        (["--model", "tiny", "--game", "agno"], "agon"),
    ],
)
def test_what_is_not_known_is_named_with_what_is_near(call, arguments, said):
    ended = call("plan", *arguments)
    assert ended.code == 2
    assert said in ended.err


def test_a_file_says_which_game_it_is_of_and_a_flag_has_the_last_word(call, tmp_path):
    (tmp_path / "mine.yaml").write_text("model: tiny\ngame: {name: grpo, budget: single}\n")
    seats = json.loads(call("plan", "--config", tmp_path / "mine.yaml", "--json").out)
    assert call("plan", "--config", tmp_path / "mine.yaml", "--game", "agon").code == 2  # which has no such option
    assert seats == json.loads(
        call("plan", "--model", "tiny", "--game", "grpo", "--set", "game.budget=single", "--json").out
    )
