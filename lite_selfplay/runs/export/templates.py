"""A chat template for tools that render it themselves: with the run's switches in it, and in Ollama's language.

Ollama reads no Jinja. Its template is put together from the pieces that the Jinja template puts around each message,
which are found by rendering short conversations, and is used only if the pieces give the same text for a long one.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from lite_selfplay.models.chat import DATE, Thinking

_SYSTEM, _FIRST, _REPLY, _SECOND = "probesystem", "probefirst", "probereply", "probesecond"

Turn = tuple[str, str]
"""Who speaks (`system`, `user`, `assistant`), and what."""


def with_switches(template: str | None, thinking: Thinking) -> str | None:
    """A chat template that renders without arguments what the run rendered: its date, and thinking on or off.

    An argument that is given still wins.
    """
    if template is None:
        return None
    values = {"date_string": f'"{DATE}"'} if "date_string" in template else {}
    if thinking != "auto":
        switch = "true" if thinking == "on" else "false"
        values |= {name: switch for name in ("enable_thinking", "thinking") if name in template}
    set_first = (
        f"{{%- if {key} is not defined %}}{{%- set {key} = {value} %}}{{%- endif %}}" for key, value in values.items()
    )
    return "".join(set_first) + template


@dataclass(frozen=True)
class Pieces:
    """What a chat template writes around messages: `default` before the first where no system message is given,
    and `reply`, which begins the assistant's turn."""

    default: str
    system: tuple[str, str]
    user: tuple[str, str]
    assistant: tuple[str, str]
    reply: str

    def render(self, turns: Sequence[Turn]) -> str:
        around = {"system": self.system, "user": self.user, "assistant": self.assistant}
        parts = [f"{around[role][0]}{text}{around[role][1]}" for role, text in turns]
        return ("" if turns[0][0] == "system" else self.default) + "".join(parts) + self.reply


def ollama_template(tokenizer: Any, template: str | None, *, bos_added: bool) -> tuple[str, bool]:
    """A template in Ollama's language (Go's `text/template`), and whether it takes more than a single question.

    `bos_added`: the reader puts a beginning of sequence before everything, so that the template must not.
    """
    if template is None:
        return "{{ .Prompt }}", False
    bos = tokenizer.bos_token if bos_added else None
    pieces = _pieces(tokenizer, template)
    if pieces is None:
        before, _, after = _render(tokenizer, template, [("user", _FIRST)]).partition(_FIRST)
        return f"{_go(_without(before, bos))}{{{{ .Prompt }}}}{_go(after)}", False
    system = f"{_go(_without(pieces.system[0], bos))}{{{{ .System }}}}{_go(pieces.system[1])}"
    default = _go(_without(pieces.default, bos))
    user, assistant = (f"{_go(a)}{{{{ .Content }}}}{_go(b)}" for a, b in (pieces.user, pieces.assistant))
    return (
        f"{{{{ if .System }}}}{system}{{{{ else }}}}{default}{{{{ end }}}}"
        f'{{{{ range .Messages }}}}{{{{ if eq .Role "user" }}}}{user}'
        f'{{{{ else if eq .Role "assistant" }}}}{assistant}{{{{ end }}}}{{{{ end }}}}{_go(pieces.reply)}'
    ), True


def _pieces(tokenizer: Any, template: str) -> Pieces | None:
    """The pieces of a template; None where it is not one that can be cut into pieces."""
    from jinja2.exceptions import TemplateError

    try:
        found = _cut(tokenizer, template)
        if found is None:
            return None
        turns = [("system", "Be brief."), ("user", "One?"), ("assistant", "1"), ("user", "Two?"), ("assistant", "2")]
        long = [*turns, ("user", "Three?")]
        for conversation in (long, long[1:], [("user", "Only this?")]):
            if found.render(conversation) != _render(tokenizer, template, conversation):
                return None
    except TemplateError:  # a template that takes no system message, or single questions only
        return None
    return found


def _cut(tokenizer: Any, template: str) -> Pieces | None:
    with_system = _render(tokenizer, template, [("system", _SYSTEM), ("user", _FIRST)])
    long = _render(tokenizer, template, [("user", _FIRST), ("assistant", _REPLY), ("user", _SECOND)])
    plain = _render(tokenizer, template, [("user", _FIRST)], reply=False)
    if any(text.count(mark) != 1 for text, mark in ((with_system, _SYSTEM), (long, _REPLY), (plain, _FIRST))):
        return None
    start, _, rest = long.partition(_FIRST)
    to_reply, _, rest = rest.partition(_REPLY)
    to_second, _, end = rest.partition(_SECOND)
    user_close = plain.partition(_FIRST)[2]
    ended = _render(tokenizer, template, [("user", _FIRST), ("assistant", _REPLY)], reply=False)
    reply_close = ended.partition(_REPLY)[2]
    system_open, _, after_system = with_system.partition(_SYSTEM)
    user_open = to_second.removeprefix(reply_close)
    between = after_system.partition(_FIRST)[0]
    whole = (
        to_reply.startswith(user_close)
        and end.startswith(user_close)
        and to_second.startswith(reply_close)
        and start.endswith(user_open)
        and between.endswith(user_open)
    )
    if not whole:
        return None
    return Pieces(
        default=start.removesuffix(user_open),
        system=(system_open, between.removesuffix(user_open)),
        user=(user_open, user_close),
        assistant=(to_reply.removeprefix(user_close), reply_close),
        reply=end.removeprefix(user_close),
    )


def _render(tokenizer: Any, template: str, turns: Sequence[Turn], *, reply: bool = True) -> str:
    messages = [{"role": role, "content": text} for role, text in turns]
    return str(
        tokenizer.apply_chat_template(messages, chat_template=template, tokenize=False, add_generation_prompt=reply)
    )


def _without(text: str, bos: str | None) -> str:
    return text.removeprefix(bos) if bos else text


def _go(text: str) -> str:
    """Text as it stands in a Go template."""
    return text.replace("{{", '{{ "{{" }}')
