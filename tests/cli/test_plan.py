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
    assert all("sampling a step: at least" in line for line in lines)


def test_numbers_for_a_machine(call):
    told = json.loads(call("plan", "--model", "tiny", "--game", "grpo", "--gpu", "l4", "--json").out)
    assert told["fits"] == {"L4": True}
    assert told["completions_per_step"] == 64
    assert told["parts"]["gradients"] * 2 == told["parts"]["optimizer"]
    assert told["sampling"]["together"] == 64
    assert told["sampling"]["tokens_in_a_row"] == told["tokens_per_step"] // 64
    assert told["sampling"]["reading_s"].keys() == {"L4"}


def test_a_long_answer_says_how_long_it_takes_at_least(call):
    options = ("--model", "Qwen3-0.6B", "--precision", "bf16", "--gpu", "rtx4090", "--max-completion-tokens", "15000",
               "--group-size", "8", "--problems-per-step", "4", "--set", "run.steps=200")  # fmt: skip
    out = call("plan", *options, "--bandwidth", "500", "--launch-us", "8").out
    assert "4 completions side by side, 240,000 tokens one after the other, each reading 4.87 GB" in out
    assert "sampling a step: at least 39 min" in out  # 240,000 times 4.87 GB at 500 GB/s
    assert "about 880 kernels, which takes at least 28 min at 8 us each" in out
    assert call("plan", *options, "--bandwidth", "0").code == 2


def test_a_cpu_has_no_bandwidth_of_a_card(call):
    assert json.loads(call("plan", "--model", "tiny", "--gpu", "cpu", "--json").out)["sampling"] is None
    assert "sampling:" not in call("plan", "--model", "tiny", "--gpu", "cpu").out


def test_several_cards_and_machines(call):
    ended = call("plan", "--model", "Qwen3-4B", "--gpu", "h100", "--gpus", 8, "--nodes", 2)
    assert ended.code == 0
    table = ended.out[ended.out.index("a step on several H100 80 GB") :].splitlines()
    assert [line.split()[0] for line in table[2:7]] == ["1", "2", "4", "8", "16"]
    told = json.loads(call("plan", "--model", "Qwen3-4B", "--gpu", "h100", "--gpus", 8, "--json").out)
    assert told["pays_up_to"] in (1, 2, 4, 8)
    assert [step["processes"] for step in told["scaling"]] == [1, 2, 4, 8]


def test_a_cpu_has_dense_weights_to_speak_with(call):
    assert "dense weights" in json.loads(call("plan", "--model", "tiny", "--gpu", "cpu", "--json").out)["parts"]


@pytest.mark.parametrize(
    ("arguments", "said"),
    [
        (["--model", "tiny", "--gpu", "t5"], "t4"),
        (["--model", "tiny", "--gpus", "2"], "--gpus and --nodes need --gpu"),
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
