"""`lite-selfplay plan`: of memory, and with `--prompts` and `--reward`."""

import json

import pytest
from tokenizers import AddedToken

from lite_selfplay.models.sources.tiny import TEMPLATE, build_tiny, byte_tokenizer
from tests.models.small import change


def test_a_plan_names_the_parts_and_whether_the_card_is_large_enough(call):
    lines = call("plan", "--model", "Qwen3-4B", "--gpu", "t4", "--preset", "t4").out.splitlines()
    assert lines[0].startswith("agon with Qwen3-4B in 4bit: 4.02B parameters, 2 seats, 32 completions at a time")
    assert lines[1] == "a step: 64 completions, at most 65,536 tokens"
    assert any(line.startswith("keys and values") and line.endswith("sampling") for line in lines)
    assert any(line.startswith("Tesla T4") for line in lines)
    assert call("plan", "--model", "tiny").out.count(" GiB  fits") >= 10  # without a card all are listed
    told = json.loads(call("plan", "--model", "tiny", "--game", "grpo", "--gpu", "l4", "--json").out)
    assert (told["fits"], told["completions_per_step"]) == ({"L4": True}, 64)
    assert told["parts"]["gradients"] * 2 == told["parts"]["optimizer"]
    # A CPU has dense weights to speak with.
    assert "dense weights" in json.loads(call("plan", "--model", "tiny", "--gpu", "cpu", "--json").out)["parts"]


def test_a_file_says_which_game_it_is_of_and_a_flag_has_the_last_word(call, tmp_path):
    (tmp_path / "mine.yaml").write_text("model: tiny\ngame: {name: grpo, budget: single}\n")
    seats = json.loads(call("plan", "--config", tmp_path / "mine.yaml", "--json").out)
    assert call("plan", "--config", tmp_path / "mine.yaml", "--game", "agon").code == 2  # which has no such option
    assert seats == json.loads(
        call("plan", "--model", "tiny", "--game", "grpo", "--set", "game.budget=single", "--json").out
    )


@pytest.mark.parametrize(
    "command", [("plan", "--model"), ("train", "grpo", "--dry-run", "--model"), ("eval",), ("train", "grpo", "--model")]
)
def test_completions_beyond_the_positions_of_a_base_are_refused_before_it_is_loaded(call, tmp_path, command):
    build_tiny(tmp_path / "base")
    change(tmp_path / "base" / "config.json", max_position_embeddings=64)
    asked = [*command, tmp_path / "base", "--tasks", "letters", "--precision", "fp32", "--max-completion-tokens"]
    if command[0] == "plan":
        asked = [*command, tmp_path / "base", "--max-completion-tokens"]
    ended = call(*asked, 200)
    assert (ended.code, ended.out, "loading" in ended.err) == (2, "", False)
    assert "the base has 64 positions, and completions take up to 200 of them" in ended.err
    assert list(tmp_path.glob("runs*")) == []
    if command == ("eval",):
        ended = call(*asked, 8, "--limit", "2")
        assert (ended.code, "prompts of more than 56 tokens are not asked" in ended.err) == (0, True)


@pytest.mark.parametrize("special", [False, True])
def test_a_token_beyond_the_embedding_is_refused_at_load(call, tmp_path, special):
    build_tiny(tmp_path / "base")
    tokenizer = byte_tokenizer()
    tokenizer.add_tokens([AddedToken("<tool>", special=special)])
    tokenizer.save_pretrained(tmp_path / "base")
    ended = call("eval", tmp_path / "base", "--tasks", "letters", "--limit", 2, "--max-completion-tokens", 8)
    told = "has the token '<tool>' with the id 259, and the model embeds 259 tokens" in ended.err
    assert (ended.code, told) == ((0, False) if special else (2, True))


REWARDS = """
def right(completions, answer, **columns):
    return [float(f"<answer>{a}</answer>" in c) for c, a in zip(completions, answer)]
def same(completions):
    return [1.0] * len(completions)
def against(completions, answer):
    return [0.0 if str(a) in c else 1.0 for c, a in zip(completions, answer)]
def short(completions):
    return [1.0]
def leaves(completions):
    raise SystemExit(3)
"""


def test_the_prompts_of_a_game(call):
    ended = call("plan", "--prompts", "--game", "agon", "--model", "tiny", "--tasks", "arithmetic")
    assert ended.code == 0, ended.err
    drafter, challenger = ended.out.split("== ")[1:]
    assert drafter.startswith("drafter (seat A): ")
    assert "<s>user" in drafter
    assert "Here is a rival's attempt" in challenger
    assert "the model's chat template has no thinking switch" in ended.out.casefold()
    found = json.loads(call("plan", "--prompts", "--game", "sqlm", "--model", "tiny", "--json").out)
    assert [prompt["role"] for prompt in found["prompts"]] == ["proposer", "solver"]  # which poses its problems
    assert found["not_asked"] == []


def test_thinking_on_and_off(call, tmp_path):
    build_tiny(tmp_path / "model")
    off_switch = "{% if enable_thinking is defined and not enable_thinking %}<think>\n\n</think>\n\n{% endif %}"
    byte_tokenizer(TEMPLATE.replace("assistant\n", f"assistant\n{off_switch}")).save_pretrained(tmp_path / "model")
    ended = call("plan", "--prompts", "--game", "grpo", "--model", tmp_path / "model", "--tasks", "letters", "--json")
    on, off = json.loads(ended.out)["prompts"]
    assert (on["role"], on["thinking"], off["thinking"]) == ("solver", "on", "off")
    assert off["text"] == on["text"] + "<think>\n\n</think>\n\n"
    assert off["tokens"] - on["tokens"] == len("<think>\n\n</think>\n\n")


@pytest.mark.parametrize(
    ("function", "code", "says"),
    [
        ("right", 0, "As it should be, right answers earn 1 on average, wrong ones 0."),
        ("same", 0, "Every completion earns 1: a group without variance gives no signal."),
        ("against", 0, "Check this reward: right answers earn 0 on average, wrong ones 1."),
        ("short", 1, "returned 1 values for 10"),
        ("leaves", 1, "SystemExit"),
    ],
)
def test_a_reward_before_any_training(call, tmp_path, function, code, says):
    (tmp_path / "rewards.py").write_text(REWARDS)
    ended = call("plan", "--model", "tiny", "--reward", f"rewards.py:{function}", "--tasks", "arithmetic")
    lines = ended.out.splitlines()
    assert (ended.code, len(lines)) == (code, 0 if code else 13)
    assert says in (ended.err if code else lines[-1])
    assert code or lines[0].split() == ["problem", "completion", "reward", "checker", "text"]
