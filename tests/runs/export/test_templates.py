"""Chat templates for tools that render them themselves."""

import jinja2
import pytest

from lite_selfplay.models.chat import DATE
from lite_selfplay.models.sources.tiny import byte_tokenizer
from lite_selfplay.runs.export.templates import ollama_template, with_switches

CHATML = (
    "{% for m in messages %}"
    "{% if loop.first and m.role != 'system' %}<|im_start|>system\nBe kind<|im_end|>\n{% endif %}"
    "<|im_start|>{{ m.role }}\n{{ m.content }}<|im_end|>\n{% endfor %}"
    "{% if add_generation_prompt %}<|im_start|>assistant\n{% endif %}"
)
ONE_QUESTION = (
    "{% if messages|length > 1 %}{{ raise_exception('one only') }}{% endif %}Q: {{ messages[0].content }}\nA:"
)


def rendered(template: str, **arguments: object) -> str:
    return jinja2.Template(template).render(**arguments)


def test_the_runs_switches_are_in_the_template_and_an_argument_still_wins():
    template = "{{ date_string }} {% if enable_thinking %}thinks{% else %}answers{% endif %}"
    assert rendered(with_switches(template, "off") or "") == f"{DATE} answers"
    assert rendered(with_switches(template, "on") or "") == f"{DATE} thinks"
    assert rendered(with_switches(template, "on") or "", enable_thinking=False, date_string="today") == "today answers"


def test_a_template_without_switches_stays_as_it_is():
    assert with_switches(CHATML, "off") == CHATML
    assert with_switches(None, "on") is None
    assert with_switches("{{ enable_thinking }}", "auto") == "{{ enable_thinking }}"


def test_pieces_of_a_conversation_in_ollamas_language():
    found, takes_more = ollama_template(byte_tokenizer(CHATML), CHATML, bos_added=False)
    assert takes_more
    assert found == (
        "{{ if .System }}<|im_start|>system\n{{ .System }}<|im_end|>\n"
        "{{ else }}<|im_start|>system\nBe kind<|im_end|>\n{{ end }}"
        '{{ range .Messages }}{{ if eq .Role "user" }}<|im_start|>user\n{{ .Content }}<|im_end|>\n'
        '{{ else if eq .Role "assistant" }}<|im_start|>assistant\n{{ .Content }}<|im_end|>\n{{ end }}{{ end }}'
        "<|im_start|>assistant\n"
    )


@pytest.mark.parametrize("added", [True, False])
def test_a_beginning_of_sequence_is_not_written_twice(added):
    template = "{{ bos_token }}" + CHATML
    found, _ = ollama_template(byte_tokenizer(template), template, bos_added=added)
    assert found.count("<s>") == (0 if added else 2)  # with a system message, and without


def test_a_template_that_cannot_be_cut_takes_single_questions():
    found, takes_more = ollama_template(byte_tokenizer(ONE_QUESTION), ONE_QUESTION, bos_added=False)
    assert (found, takes_more) == ("Q: {{ .Prompt }}\nA:", False)
    counting = "{% for m in messages %}{{ loop.index }}. {{ m.role }}: {{ m.content }}\n{% endfor %}"
    found, takes_more = ollama_template(byte_tokenizer(counting), counting, bos_added=False)
    assert (found, takes_more) == ("1. user: {{ .Prompt }}\n", False)


def test_no_template_is_the_words_alone_and_braces_stay_text():
    assert ollama_template(byte_tokenizer(None), None, bos_added=False) == ("{{ .Prompt }}", False)
    odd = "{{ '{{' }} {{ messages[0].content }}"
    found, _ = ollama_template(byte_tokenizer(odd), odd, bos_added=False)
    assert found == '{{ "{{" }} {{ .Prompt }}'
