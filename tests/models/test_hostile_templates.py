"""Chat templates, and files beside them, that end in one sentence: those that never end, and that drop the question."""

import json
from pathlib import Path

import pytest

from lite_selfplay.data import Turn
from lite_selfplay.errors import ModelNotFoundError, RequestError
from lite_selfplay.models import chat
from lite_selfplay.models.chat import Chat
from lite_selfplay.models.sources.tiny import build_tiny, byte_tokenizer

LOOPS = "{% for a in range(99999) %}" * 3 + "{% endfor %}" * 3
LAST = "{% for m in messages %}{% if loop.last %}{{ m.role }}: {{ m.content }}{% endif %}{% endfor %}"
NO_SYSTEM = "{% for m in messages %}{% if m.role != 'system' %}{{ m.role }}: {{ m.content }}{% endif %}{% endfor %}"
MARKER = "{% for m in messages %}{{ m.role }}: {{ m.content.split('###')[0] }}{% endfor %}"
TRIMS = "{% for m in messages %}{{ m.role }}: {{ m.content.replace('\\n', ' ') | trim }}{% endfor %}"


@pytest.mark.parametrize(
    ("template", "message"),
    [
        (LOOPS, "did not end within 1 seconds"),
        ("{{ 'x' * 10 ** 15 }}", "does not take this conversation: MemoryError"),
        ("{% macro f(x) %}{{ f(x) }}{% endmacro %}{{ f(1) }}", "does not take this conversation: RecursionError"),
        ("{{ 1 // 0 }}", "does not take this conversation: ZeroDivisionError"),
        ("hello", "leaves out what it is given: 'probequestion' of the turn of user is not in the prompt"),
    ],
)
def test_a_template_that_is_none(template: str, message: str, monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setattr(chat, "_SECONDS", 1)
    with pytest.raises(RequestError, match="the chat template of .* " + message):
        Chat(byte_tokenizer(template))


@pytest.mark.parametrize(
    ("template", "prompt"),
    [
        (LAST, [Turn("user", "first words"), Turn("assistant", "an answer"), Turn("user", "last words")]),
        (NO_SYSTEM, [Turn("system", "you are kind"), Turn("user", "words")]),
        (MARKER, "a question\n### and its numbers"),
    ],
)
def test_a_template_that_drops_what_was_said(template: str, prompt: str | list[Turn]):
    found = Chat(byte_tokenizer(template))
    with pytest.raises(RequestError, match="leaves out what it is given"):
        found.encode(prompt)
    assert found.encode("a question alone").ids


def test_white_space_may_change_and_an_answer_may_be_cut():
    prompt = [Turn("user", " two\nlines \n"), Turn("assistant", "<think>long</think>short"), Turn("user", "and?")]
    assert Chat(byte_tokenizer(TRIMS)).encode(prompt).ids


def test_a_tokenizer_for_which_everything_is_the_same(monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setattr(Chat, "_ids", lambda self, text: [1, 2])
    with pytest.raises(RequestError, match="gives different questions the same ids"):
        Chat(byte_tokenizer(TRIMS))


@pytest.mark.parametrize("content", ["{", "[]", json.dumps({"eos_token_id": ["a"]}), json.dumps({"eos_token_id": {}})])
def test_a_damaged_generation_config_is_named(tmp_path: Path, content: str):
    build_tiny(tmp_path)
    (tmp_path / "generation_config.json").write_text(content)
    with pytest.raises(ModelNotFoundError, match=r"generation_config\.json"):
        Chat.load(tmp_path)
