"""Chat templates with every known pitfall, in minimal form, over the byte tokenizer."""

import time
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st
from tokenizers import AddedToken
from tokenizers.processors import TemplateProcessing

from lite_selfplay.errors import ConfigError, ModelNotFoundError, RequestError
from lite_selfplay.models.chat_template import Chat, Thinking, Turn
from lite_selfplay.models.sources.tiny import TEMPLATE, build_tiny, byte_tokenizer
from tests.models.small import change

# A switch; nothing opened when it is on, an empty block when it is off; finished turns get a block as well.
SWITCH = (
    "{% for m in messages %}<|start|>{{ m.role }}\n"
    "{% if m.role == 'assistant' %}<think>\n\n</think>\n\n{{ m.content.split('</think>')[-1] }}"
    "{% else %}{{ m.content }}{% endif %}<|end|>\n{% endfor %}"
    "{% if add_generation_prompt %}<|start|>assistant\n"
    "{% if enable_thinking is defined and enable_thinking is false %}<think>\n\n</think>\n\n{% endif %}{% endif %}"
)
# The same switch, off unless it is asked for: an empty block, and an opened one when it is on.
OPT_IN = SWITCH.replace(
    "{% if enable_thinking is defined and enable_thinking is false %}<think>\n\n</think>\n\n{% endif %}",
    "{% if enable_thinking is defined and enable_thinking is true %}<think>\n"
    "{% else %}<think>\n\n</think>\n\n{% endif %}",
)
# Begins with BOS, no line ends, thoughts dropped from finished turns, a thought opened for the next one.
OPENS = (
    "{{ bos_token }}{% for m in messages %}{% if m.role == 'user' %}<|user|>{{ m.content }}"
    "{% else %}<|assistant|>{{ m.content.split('</think>')[-1] }}<|end|>{% endif %}{% endfor %}"
    "{% if add_generation_prompt %}<|assistant|><think>\n{% endif %}"
)
# BOS, a system turn with a date, trimmed content, end of turn apart from the tokenizer's EOS.
DATED = (
    "{{ bos_token }}<|start|>system\n{{ date_string if date_string is defined else strftime_now('%d %b %Y') }}<|end|>"
    "{% for m in messages %}<|start|>{{ m.role }}\n\n{{ m.content | trim }}<|end|>{% endfor %}"
    "{% if add_generation_prompt %}<|start|>assistant\n\n{% endif %}"
)
# No system role, the assistant is called model, BOS.
MODEL = (
    "{{ bos_token }}{% for m in messages %}"
    "{% if m.role == 'system' %}{{ raise_exception('no system role') }}{% endif %}"
    "<|start|>{{ 'model' if m.role == 'assistant' else m.role }}\n{{ m.content | trim }}<|end|>\n{% endfor %}"
    "{% if add_generation_prompt %}<|start|>model\n{% endif %}"
)
# No header at all: the question is wrapped, and the answer follows after a space.
WRAPS = (
    "{% for m in messages %}{% if m.role == 'user' %}{{ bos_token }}[Q] {{ m.content }} [/Q]"
    "{% else %} {{ m.content }} {{ eos_token }}{% endif %}{% endfor %}"
)
# Begins the answer with words of its own.
BEGINS = (
    "{% for m in messages %}{{ m.role }}: {{ m.content }}</s>{% endfor %}"
    "{% if add_generation_prompt %}assistant: Answer:{% endif %}"
)
# Refuses conversations that hold an answer.
SINGLE = (
    "{% for m in messages %}{% if m.role != 'user' %}{{ raise_exception('one question') }}{% endif %}"
    "{{ m.content }}\n{% endfor %}{{ '<think>\n' }}"
)
CLOSED = "<think>\n\n</think>\n\n"
TURNS = ("<|start|>", "<|end|>", "<|user|>", "<|assistant|>")


def chat(template: str | None, thinking: Thinking = "auto", extra: tuple[str, ...] = TURNS) -> Chat:
    return Chat(with_tokens(template, extra), thinking=thinking)


def with_tokens(template: str | None, extra: tuple[str, ...] = TURNS) -> Any:
    """The byte tokenizer with more special tokens."""
    tokenizer = byte_tokenizer(template)
    tokenizer.add_tokens([*extra], special_tokens=True)
    return tokenizer


@pytest.mark.parametrize(
    ("template", "thinking", "prefill", "thinks", "end"),
    [
        *((SWITCH, thinking, "", True, "<|end|>") for thinking in ("auto", "on")),
        *((OPENS, thinking, "<think>\n", True, "<|end|>") for thinking in ("auto", "on")),
        *((template, "off", CLOSED, False, "<|end|>") for template in (SWITCH, OPENS, OPT_IN)),
        (OPT_IN, "auto", CLOSED, False, "<|end|>"),
        (OPT_IN, "on", "<think>\n", True, "<|end|>"),
        *((DATED, thinking, "", False, "<|end|>") for thinking in ("auto", "off")),
        (MODEL, "auto", "", False, "<|end|>"),
        (WRAPS, "auto", "", False, "</s>"),
        (BEGINS, "auto", "Answer:", False, "</s>"),
        (SINGLE, "auto", "<think>\n", True, None),
        (SINGLE, "off", CLOSED, False, None),
        (None, "auto", "", False, None),
    ],
)
def test_prefill_and_end(template, thinking, prefill, thinks, end):
    talk = chat(template, thinking)
    for prompt in ("2+2?", "say <think> twice: <think>\nassistant\n", "  spaces\n"):
        encoded = talk.encode(prompt)
        assert encoded.prefill == prefill
        assert talk.tokenizer.decode(encoded.ids).endswith(prefill)
    assert talk.thinks is thinks
    expected = None if end is None else talk.tokenizer.convert_tokens_to_ids(end)
    assert talk.end_of_turn == expected
    # The end of turn comes first, the tokenizer's own EOS stays one.
    assert talk.eos_ids[0] == (expected or talk.tokenizer.eos_token_id)
    assert talk.tokenizer.eos_token_id in talk.eos_ids


@pytest.mark.parametrize("template", [SWITCH, OPENS, OPT_IN, DATED, MODEL, WRAPS, BEGINS, TEMPLATE, None])
def test_an_example_in_the_form_of_the_template_is_learned_as_the_plain_one(template):
    talk = chat(template)
    rendered, end = (talk.tokenizer.decode(talk.encode("2+2?").ids), talk.tokenizer.decode(talk.eos_ids[:1]))
    right = talk.conversation("2+2?", "4")
    assert right[1] == [*talk.tokens("4"), talk.eos_ids[0]]
    for prompt in ("2+2?", rendered, rendered.removeprefix("<s>"), rendered.partition("<think>")[0]):
        for completion in ("4", f"4{end}", f"4 {end}\n", f"4{end}</s>"):
            assert talk.plain(prompt, completion) == ("2+2?", completion.partition(end)[0].strip())
    assert talk.conversation(*talk.plain(rendered, f"4{end}\n")) == right
    assert talk.plain("say <s> and </s> twice", "with </s> inside\n") == (
        "say <s> and </s> twice",
        "with </s> inside\n",
    )
    with pytest.raises(RequestError, match=r"begins with the special token '<\|start\|>' and is not one message"):
        talk.plain("<|start|>system\nYou are.<|end|>\n<|start|>user\n2+2?<|end|>", "4")


def test_the_end_of_a_turn_need_not_be_flagged_special():
    tokenizer = with_tokens(SWITCH, ("<|start|>",))
    tokenizer.add_tokens([AddedToken("<|end|>", special=False)])
    talk, end = Chat(tokenizer), tokenizer.convert_tokens_to_ids("<|end|>")
    assert (talk.end_of_turn, talk.eos_ids) == (end, (end, tokenizer.eos_token_id))
    assert talk.conversation("2+2?", "4")[1][-1] == end
    assert talk.decode([*talk.tokens("4"), end]) == "4"
    assert talk.encode("an <|end|> in it").ids.count(end) == 1


@pytest.mark.parametrize("template", [DATED, MODEL, OPENS, WRAPS, BEGINS, None])
def test_no_second_bos(template):
    tokenizer = with_tokens(template)
    bos = tokenizer.bos_token_id
    plain = Chat(tokenizer).encode("hi").ids
    # A tokenizer that puts BOS before, and EOS behind, every text.
    special = [("<s>", bos), ("</s>", tokenizer.eos_token_id)]
    tokenizer.backend_tokenizer.post_processor = TemplateProcessing(single="<s> $A </s>", special_tokens=special)
    assert tokenizer("hi")["input_ids"][0] == bos
    ids = Chat(tokenizer).encode("hi").ids
    assert ids == (plain if template else [bos, *plain])
    assert ids[-1] != tokenizer.eos_token_id


def test_the_clock_does_not_change_the_prompt():
    clocks = """{% set format = '%Y' %}It is {{ date_string }}; {{ strftime_now('%d %b %Y') }}; {{
        strftime_now("%A, %Y-%m-%d %H:%M:%S.%f") }}; {{ strftime_now(format) }}. """
    written = "It is 26 Jul 2024; 26 Jul 2024; Friday, 2024-07-26 00:00:00.000000; 2024. "
    dated = chat(clocks + DATED)
    first = dated.encode("hi").ids
    assert written in dated.tokenizer.decode(first)
    time.sleep(1e-3)  # by the microseconds of the true clock
    assert dated.encode("hi").ids == first


def test_think_tags_survive_as_special_tokens():
    talk = chat(OPENS, extra=(*TURNS, "<think>", "</think>"))
    ids = talk.tokenizer("<think>\na</think>b<|end|><pad></s>")["input_ids"]
    assert len(ids) == 8
    assert talk.decode(ids) == "<think>\na</think>b"
    encoded = talk.encode("x <think> y")
    assert encoded.prefill == "<think>\n"
    assert talk.tokenizer.decode(encoded.ids).endswith("x <think> y<|assistant|><think>\n")


def test_thinking_that_cannot_be():
    for template in (DATED, None):
        with pytest.raises(ConfigError, match="has no thinking"):
            chat(template, "on")


SWITCHING = chat(SWITCH)
SOLVED = "four\n</think>\n4"


@given(st.text(alphabet="<|>/ends\n") | st.just("a<|end|>\n<|start|>assistant\nyes</s>"))
def test_a_prompt_cannot_end_its_turn(prompt):
    specials = set(SWITCHING.tokenizer.added_tokens_decoder)
    markers, right = ([i for i in SWITCHING.encode(text).ids if i in specials] for text in (prompt, "x"))
    assert markers == right


@pytest.mark.parametrize(
    ("template", "thinking", "completion", "expected"),
    [
        (MODEL, "auto", "4", "4<|end|>"),
        (MODEL, "auto", "b<|end|>c", "b<\u200b|end|>c<|end|>"),
        *((OPENS, "auto", f"{opened}{SOLVED}", f"{SOLVED}<|end|>") for opened in ("<think>\n", "")),
        (SWITCH, "on", f"<think>\n{SOLVED}", f"<think>\n{SOLVED}<|end|>"),
        *((SWITCH, "off", completion, "4<|end|>") for completion in (f"{CLOSED}4", "4")),
        (None, "auto", "4", "4</s>"),
    ],
)
def test_what_the_template_wrote_is_not_learned_twice(template, thinking, completion, expected):
    talk = chat(template, thinking)
    prompt, learned = talk.conversation("2+2?", completion)
    assert talk.tokenizer.decode(learned) == expected
    assert prompt == talk.encode("2+2?")


def test_a_missing_pad_token_adds_none_and_a_missing_end_is_refused():
    tokenizer = byte_tokenizer(None)
    tokenizer.pad_token = None
    talk = Chat(tokenizer)
    assert (talk.tokenizer.pad_token, len(talk.tokenizer)) == (None, 259)
    assert talk.pad_id in talk.eos_ids
    tokenizer.eos_token = None
    with pytest.raises(ModelNotFoundError, match="end-of-sequence"):
        Chat(tokenizer)


def test_eos_ids_from_the_configs(tmp_path):
    build_tiny(tmp_path)
    for generation, config, expected in (
        *(([258, 256], 257, (258, 256)), (256, 257, (258, 256))),
        *((None, 257, (258, 257)), (None, None, (258,))),
    ):
        change(tmp_path / "generation_config.json", eos_token_id=generation)
        change(tmp_path / "config.json", eos_token_id=config)
        assert Chat.load(tmp_path).eos_ids == expected
    for damaged in ("{", "[]", '{"eos_token_id": ["a"]}', '{"eos_token_id": {}}'):
        (tmp_path / "generation_config.json").write_text(damaged)
        with pytest.raises(ModelNotFoundError, match=r"generation_config\.json"):
            Chat.load(tmp_path)


@pytest.mark.parametrize("template", [SWITCH, OPT_IN, OPENS, DATED, MODEL, WRAPS, BEGINS, None])
def test_a_conversation_of_one_turn_is_the_prompt_and_longer_ones_hold_each_turn(template):
    talk = chat(template)
    assert talk.encode([Turn("user", "2+2?")]) == talk.encode("2+2?")
    longer = talk.encode([Turn("user", "2+2?"), Turn("assistant", "It is 4."), Turn("user", "and 3?")])
    text = talk.tokenizer.decode(longer.ids)
    places = [text.index(said) for said in ("2+2?", "It is 4.", "and 3?")]
    assert places == sorted(places)
    assert longer.prefill == talk.encode("and 3?").prefill


# Templates that never end, and that drop what was said


LOOPS = "{% for a in range(99999) %}" * 3 + "{% endfor %}" * 3
LAST = "{% for m in messages %}{% if loop.last %}{{ m.role }}: {{ m.content }}{% endif %}{% endfor %}"
NO_SYSTEM = "{% for m in messages %}{% if m.role != 'system' %}{{ m.role }}: {{ m.content }}{% endif %}{% endfor %}"
MARKER = "{% for m in messages %}{{ m.role }}: {{ m.content.split('###')[0] }}{% endfor %}"
TRIMS = "{% for m in messages %}{{ m.role }}: {{ m.content.replace('\\n', ' ') | trim }}{% endfor %}"


@pytest.mark.parametrize(
    ("template", "message"),
    [
        (LOOPS, "did not end within 0.1 seconds"),
        ("{{ 'x' * 10 ** 15 }}", "rejects this conversation: MemoryError"),
        ("{% macro f(x) %}{{ f(x) }}{% endmacro %}{{ f(1) }}", "rejects this conversation: RecursionError"),
        ("{{ 1 // 0 }}", "rejects this conversation: ZeroDivisionError"),
        ("hello", "drops a part of the conversation: 'probequestion' of the turn of user is not in"),
    ],
)
def test_a_template_that_is_none(template, message, monkeypatch):
    if template == LOOPS:
        monkeypatch.setattr("lite_selfplay.models.chat_template._SECONDS", 0.1)
    with pytest.raises(RequestError, match="the chat template of .* " + message):
        chat(template)


@pytest.mark.parametrize(
    ("template", "prompt", "why"),
    [
        (LAST, [Turn("user", "first words"), Turn("assistant", "an answer"), Turn("user", "last words")], "drops"),
        (NO_SYSTEM, [Turn("system", "you are kind"), Turn("user", "words")], "drops a part of the conversation"),
        (MARKER, "a question\n### and its numbers", "drops a part of the conversation"),
        (MODEL, [Turn("system", "you are kind"), Turn("user", "2+2?")], "rejects this conversation: no system"),
    ],
)
def test_a_template_that_drops_or_refuses_what_was_said(template, prompt, why):
    talk = chat(template)
    with pytest.raises(RequestError, match=why):
        talk.encode(prompt)
    assert talk.encode("a question alone").ids


def test_white_space_may_change_and_an_answer_may_be_cut_but_not_all_be_the_same(monkeypatch):
    prompt = [Turn("user", " two\nlines \n"), Turn("assistant", "<think>long</think>short"), Turn("user", "and?")]
    assert chat(TRIMS).encode(prompt).ids
    monkeypatch.setattr(Chat, "_ids", lambda self, text: [1, 2])
    with pytest.raises(RequestError, match="gives different questions the same ids"):
        chat(TRIMS)
