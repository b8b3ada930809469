"""Prompts under a model's own chat template: text in, ids out, and back.

Templates have different pitfalls. Some open `<think>` in the prompt, so completions lack the opening tag; some write a
beginning-of-sequence token that the tokenizer would repeat; some end a turn with a token other than the tokenizer's
EOS. No model's name is hard-coded: short rendered conversations show everything.
"""

import contextlib
import re
import signal
import threading
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from datetime import datetime
from pathlib import Path
from typing import Any, Literal

from lite_selfplay.errors import ConfigError, ModelNotFoundError, RequestError
from lite_selfplay.models.sources.folders import described, end_ids, reading

Thinking = Literal["auto", "on", "off"]

_QUESTION, _ANSWER = "probequestion", "probeanswer"
_OPENED, _CLOSED = "<think>", "</think>"
_EMPTY_BLOCK = "<think>\n\n</think>\n\n"
# The two names of the switch in templates; a template ignores unknown ones.
_SWITCH: dict[Thinking, dict[str, Any]] = {
    "auto": {},
    "on": {"enable_thinking": True, "thinking": True},
    "off": {"enable_thinking": False, "thinking": False},
}
# Seconds that a template may take for one conversation; milliseconds are usual.
_SECONDS = 10
# Some templates write today's date into their system turn; Llama 3's uses this one by default. Prompts that change at
# midnight would change a resumed run, so every template gets this date, at midnight.
DATE, NOW = "26 Jul 2024", datetime(2024, 7, 26)


@dataclass(frozen=True)
class Turn:
    """One message of a conversation."""

    role: Literal["system", "user", "assistant"]
    text: str


@dataclass(frozen=True)
class EncodedPrompt:
    """A prompt as the model reads it.

    `prefill` is the part of the assistant's turn that it already contains: what the template wrote (`<think>\\n`, or an
    empty closed block), then the requested beginning. Readers of the completion put `prefill` before it.
    """

    ids: list[int]
    prefill: str


class Chat:
    """A tokenizer and its chat template. Without a template a prompt is plain text.

    - `eos_ids`: the ids that end a completion; the first one ends a turn under the template and is the one to teach.
    - `end_of_turn`: the added token with which the template ends an assistant's turn, special or not, or None.
    - `pad_id`: for padding. It may equal an EOS, so masks must come from lengths, never from ids.
    - `knows_thinking`: whether the template has a reasoning block, so that thinking can be switched on and off.
    - `thinks`: whether completions may think aloud between `<think>` tags.

    Raises `ConfigError` for thinking "on" under a template without it, `ModelNotFoundError` if nothing names an end of
    sequence, and `RequestError` for a template or tokenizer under which every question is the same.
    """

    def __init__(self, tokenizer: Any, *, thinking: Thinking = "auto", eos_ids: Iterable[int] = ()) -> None:
        self.tokenizer = tokenizer
        template = tokenizer.get_chat_template() if tokenizer.chat_template else ""
        self._templated = bool(template)
        self.knows_thinking = _OPENED in template or _CLOSED in template
        if thinking == "on" and not self.knows_thinking:
            raise ConfigError("thinking is on, but the model's chat template has no thinking: use auto or off.")
        self._thinking: Thinking = thinking
        self._header, self.end_of_turn = self._probe()
        self._hidden, self._special_text = _special_tokens(tokenizer, self.end_of_turn)
        ends = (self.end_of_turn, tokenizer.eos_token_id, *eos_ids)
        self.eos_ids = tuple(dict.fromkeys(identity for identity in ends if identity is not None))
        if not self.eos_ids:
            raise ModelNotFoundError("neither the model's tokenizer nor its config names an end-of-sequence token.")
        pad = tokenizer.pad_token_id
        self.pad_id: int = self.eos_ids[0] if pad is None else pad
        asked = self.encode(_QUESTION)
        if asked.ids == self.encode(_ANSWER).ids:
            raise RequestError(f"the tokenizer of {self._name} gives different questions the same ids")
        self.thinks: bool = self.knows_thinking and not asked.prefill.rstrip().endswith(_CLOSED)

    @classmethod
    def load(cls, path: Path | str, thinking: Thinking = "auto", *, trust_remote_code: bool = False) -> "Chat":
        """The chat of the model folder `path`; its generation config (or its config) may name further EOS ids. Raises
        `ConfigError` for a tokenizer with untrusted code of its own, and `ModelNotFoundError` for an unreadable one."""
        from transformers import AutoTokenizer

        folder = Path(path)
        with reading(folder):
            tokenizer = AutoTokenizer.from_pretrained(folder, trust_remote_code=trust_remote_code)
        chat = cls(tokenizer, thinking=thinking, eos_ids=end_ids(folder))
        chat._require_embedded(described(folder, "vocab_size"))
        return chat

    def _require_embedded(self, vocabulary: int | None) -> None:
        """Raises ModelNotFoundError if a prompt or a completion may have an id of the embedding's size or more. Special
        tokens beyond it, as for images, do no harm if the template writes none: they are text in prompts."""
        ids = {self.tokenizer.vocab_size - 1, *self.tokenizer.added_tokens_decoder} - self._hidden
        ids |= {*self.encode(_QUESTION).ids, *self.eos_ids}
        if vocabulary is not None and (beyond := [identity for identity in sorted(ids) if identity >= vocabulary]):
            raise ModelNotFoundError(
                f"the tokenizer of {self._name} has the token {self.tokenizer.convert_ids_to_tokens(beyond[0])!r} with "
                f"the id {beyond[0]:,}, and the model embeds {vocabulary:,} tokens: remove it from the tokenizer, or "
                "resize the model's embedding"
            )

    def encode(self, prompt: str | Sequence[Turn], beginning: str = "") -> EncodedPrompt:
        """The ids of a user's `prompt`, up to the assistant's turn, or up to the end of the answer's `beginning`.

        `prompt` may be a conversation whose last turn is the user's; without a template its turns are separated by
        blank lines. With a `beginning` under a template that thinks, an empty reasoning block comes first. Raises
        RequestError if the template rejects the conversation (some reject a system turn) or drops what a system or user
        said.

        Special tokens spelled out in the prompt become ordinary text: one seat's text reaches another seat's prompt and
        must not end its turn. The beginning-of-sequence token comes from the template, or without one from the
        tokenizer, never from both.
        """
        text, prefill = self._render(prompt)
        if beginning:
            if self.knows_thinking and _CLOSED not in prefill:
                text, prefill = _without_thinking(text, prefill)
            beginning = self._as_text(beginning)
        return EncodedPrompt(self._ids(text + beginning), prefill + beginning)

    def decode(self, ids: Sequence[int]) -> str:
        """The text of `ids` without special tokens, except `<think>` and `</think>`."""
        shown = [identity for identity in ids if identity not in self._hidden]
        return str(self.tokenizer.decode(shown, skip_special_tokens=False, clean_up_tokenization_spaces=False))

    def tokens(self, text: str) -> list[int]:
        """The ids of plain text, without special tokens."""
        return list(self.tokenizer(text, add_special_tokens=False)["input_ids"])

    def plain(self, prompt: str, completion: str) -> tuple[str, str]:
        """An example from a file, as the texts that `conversation` takes: a prompt that this template has rendered
        already is the user's message again, and a completion ends before the tokens that end it.

        Raises RequestError for a prompt that begins with a special token and is not a single message of the user.
        """
        bos, rendered = self.tokenizer.bos_token or "", self._render(_QUESTION)[0].partition(_OPENED)[0]
        before, after = (re.escape(part.strip()) for part in rendered.removeprefix(bos).split(_QUESTION))
        mark = rf"(?:{re.escape(bos)})?\s*{before}(.+?){after}(?:\s*<think>\s*(?:</think>)?)?"
        if (found := re.fullmatch(mark, prompt.strip(), re.DOTALL)) and found[1] != prompt.strip():
            prompt = found[1].strip()
        if begun := self._special_text.match(prompt.strip()):
            raise RequestError(
                f"a prompt begins with the special token {begun[0]!r} and is not one message of the user in the chat "
                f"template of {self._name}: give the message alone, without the template's marks ({prompt[:60]!r})"
            )
        ends = "|".join(re.escape(str(end)) for end in self.tokenizer.convert_ids_to_tokens(list(self.eos_ids)))
        return prompt, re.sub(rf"(?:\s*(?:{ends}))+\s*\Z", "", completion)

    def conversation(self, prompt: str, completion: str) -> tuple[EncodedPrompt, list[int]]:
        """The prompt and the ids to learn `completion` from, which end with `eos_ids[0]` and do not repeat the part
        that the template already wrote (`prefill`)."""
        text, prefill = self._render(prompt)
        if prefill.strip() and completion.lstrip().startswith(prefill.strip()):
            completion = completion.lstrip().removeprefix(prefill.strip()).lstrip()
        completion = self._as_text(completion)
        prompt_ids, whole = self._ids(text), self._ids(text + completion)
        # Tokenized together if that keeps the prompt's ids: some tokenizers put a space before a separate text.
        together = whole[: len(prompt_ids)] == prompt_ids
        completion_ids = whole[len(prompt_ids) :] if together else self.tokens(completion)
        return EncodedPrompt(prompt_ids, prefill), [*completion_ids, self.eos_ids[0]]

    def _render(self, prompt: str | Sequence[Turn]) -> tuple[str, str]:
        """The rendered prompt and its prefill."""
        turns = [Turn("user", prompt)] if isinstance(prompt, str) else prompt
        messages = [{"role": turn.role, "content": self._as_text(turn.text)} for turn in turns]
        if not self._templated:
            return "\n\n".join(message["content"] for message in messages), ""
        text = self._apply(messages, add_generation_prompt=True)
        for message in messages:
            said = message["content"].strip()
            if message["role"] != "assistant" and said not in text and _packed(said) not in _packed(text):
                raise RequestError(
                    f"the chat template of {self._name} drops a part of the conversation: {said[:60]!r} of the turn of "
                    f"{message['role']} is not in the rendered prompt, {text[:60]!r}"
                )
        prefill = self._prefill(text)
        if self._thinking == "off" and self.knows_thinking and _CLOSED not in prefill:
            # A template without a switch: close the block as those with a switch do.
            text, prefill = _without_thinking(text, prefill)
        return text, prefill

    def _prefill(self, text: str) -> str:
        """The text after the last assistant header of a rendered prompt."""
        headers = [header for header in (self._header, self._header.rstrip()) if header.strip() and header in text]
        # Without a header, it is written differently with an answer after it. The shorter one may stand alone at the
        # end, the other before an earlier answer.
        if headers:
            last = max(headers, key=lambda header: (text.rindex(header), len(header)))
            return text[text.rindex(last) + len(last) :]
        opened = re.search(r"<think>(\s*</think>)?\s*\Z", text)
        return opened[0] if opened else ""

    def _probe(self) -> tuple[str, int | None]:
        """The template's text between a question and its answer, up to any `<think>`, and the added token that ends
        the answer."""
        if not self._templated:
            return "", None
        turns = [{"role": "user", "content": _QUESTION}, {"role": "assistant", "content": _ANSWER}]
        try:
            text = self._apply(turns, add_generation_prompt=False)
        except RequestError:
            return "", None  # a template for single questions; one that accepts none is refused at the first
        before, found, after = text.rpartition(_ANSWER)
        header = before.rpartition(_QUESTION)[2].partition(_OPENED)[0] if found else ""
        first = self.tokens(after.strip())[:1] if found else []
        # Not every tokenizer flags it as special.
        whole = {*self.tokenizer.added_tokens_decoder, *self.tokenizer.all_special_ids}
        return header, first[0] if first and first[0] in whole else None

    def _apply(self, turns: list[dict[str, str]], *, add_generation_prompt: bool) -> str:
        from jinja2.exceptions import TemplateError

        template = f"the chat template of {self._name}"
        given = {"add_generation_prompt": add_generation_prompt, "date_string": DATE, "strftime_now": NOW.strftime}
        try:
            with _within(_SECONDS, template):
                return str(
                    self.tokenizer.apply_chat_template(turns, tokenize=False, **given, **_SWITCH[self._thinking])
                )
        except RequestError:
            raise
        except Exception as error:  # of the template's code, including MemoryError and RecursionError
            why = error if isinstance(error, TemplateError) else f"{type(error).__name__} {error}".rstrip()
            raise RequestError(f"{template} rejects this conversation: {why}") from None

    @property
    def _name(self) -> str:
        return self.tokenizer.name_or_path or "the model"

    def _ids(self, text: str) -> list[int]:
        plain = self.tokens(text)
        if self._templated:
            return plain
        bos = self.tokenizer.bos_token_id
        # Some tokenizers also append EOS, which would end the prompt early.
        starts = self.tokenizer(text)["input_ids"][:1] == [bos] and plain[:1] != [bos]
        return [bos, *plain] if starts and bos is not None else plain

    def _as_text(self, text: str) -> str:
        """`text` with a zero-width space inside each spelled-out special token."""
        return self._special_text.sub(lambda match: f"{match[0][0]}\u200b{match[0][1:]}", text)


@contextlib.contextmanager
def _within(seconds: int, what: str) -> Iterator[None]:
    """A context that raises RequestError after `seconds`, if this thread can have a timer."""
    if not hasattr(signal, "setitimer") or threading.current_thread() is not threading.main_thread():
        yield
        return

    def stop(*_: Any) -> None:
        raise RequestError(f"{what} did not end within {seconds} seconds")

    handler = signal.signal(signal.SIGALRM, stop)
    before = signal.setitimer(signal.ITIMER_REAL, seconds)
    try:
        yield
    finally:
        signal.setitimer(signal.ITIMER_REAL, *before)
        signal.signal(signal.SIGALRM, handler)


def _packed(text: str) -> str:
    """A text without white space, which templates change."""
    return "".join(text.split())


def _without_thinking(text: str, prefill: str) -> tuple[str, str]:
    """A rendered prompt and its prefill, with an empty reasoning block."""
    start = prefill.partition(_OPENED)[0]
    return text[: len(text) - len(prefill)] + start + _EMPTY_BLOCK, start + _EMPTY_BLOCK


def _special_tokens(tokenizer: Any, end: int | None) -> tuple[frozenset[int], re.Pattern[str]]:
    """The ids of special tokens, and of the `end` of a turn, that `decode` hides, and a pattern that finds them in
    text."""
    added = tokenizer.added_tokens_decoder.items()
    special = {identity: str(token) for identity, token in added if token.special or identity == end}
    special.update(zip(tokenizer.all_special_ids, tokenizer.all_special_tokens, strict=True))
    hidden = {identity: text for identity, text in special.items() if text not in (_OPENED, _CLOSED)}
    spelled = sorted(filter(None, hidden.values()), key=len, reverse=True)
    return frozenset(hidden), re.compile("|".join(map(re.escape, spelled)) or r"(?!)")  # without any, finds nothing
