"""A request to `/v1/chat/completions`, read field by field. What is not supported is refused, never ignored."""

import difflib
import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Literal, cast

from lite_selfplay.data import Sampling, Turn

MOST_CHOICES, MOST_STOPS, LONGEST_STOP = 16, 4, 200
MOST_MESSAGES = 1000
LARGEST_SEED = 2**63 - 1


class Unfit(Exception):
    """A request that cannot be answered: the HTTP `status`, the field `param`, and OpenAI's `code` for it."""

    def __init__(self, sentence: str, param: str | None = None, code: str | None = None, status: int = 400):
        super().__init__(sentence)
        self.param, self.code, self.status = param, code, status


@dataclass(frozen=True)
class Asked:
    """What a request asks for."""

    model: str
    turns: tuple[Turn, ...]
    sampling: Sampling
    n: int = 1
    seed: int | None = None
    stream: bool = False
    with_usage: bool = False


def read_request(body: Any, default_tokens: int) -> Asked:
    """A request from its JSON. `default_tokens`: of a completion, where it does not say. Raises Unfit."""
    if not isinstance(body, dict):
        raise Unfit("the body must be a JSON object")
    _refuse_others(body)
    model = body.get("model")
    if not isinstance(model, str) or not model:
        raise Unfit("model must be a speaker's name, such as A: /v1/models lists them", "model")
    tokens = _number(body, "max_completion_tokens", int, 1, 10**9)
    tokens = tokens if tokens is not None else _number(body, "max_tokens", int, 1, 10**9)
    temperature, top_p = _number(body, "temperature", float, 0, 2), _number(body, "top_p", float, 0, 1)
    if top_p == 0:
        raise Unfit("top_p must be more than 0", "top_p")
    sampling = Sampling(
        temperature=1.0 if temperature is None else temperature,
        top_p=1.0 if top_p is None else top_p,
        max_tokens=default_tokens if tokens is None else tokens,
        stop=_stops(body.get("stop")),
    )
    stream = _flag(body, "stream")
    options = body.get("stream_options")
    if options is not None and not (stream and isinstance(options, dict) and set(options) <= {"include_usage"}):
        raise Unfit("stream_options holds include_usage alone, and goes with stream", "stream_options")
    return Asked(
        model=model,
        turns=_turns(body.get("messages")),
        sampling=sampling,
        n=_number(body, "n", int, 1, MOST_CHOICES) or 1,
        seed=_number(body, "seed", int, -LARGEST_SEED, LARGEST_SEED),
        stream=stream,
        with_usage=_flag(options or {}, "include_usage", "stream_options.include_usage"),
    )


_READ = ("model messages temperature top_p max_tokens max_completion_tokens stop n seed stream stream_options").split()
_WITHOUT_EFFECT = "user metadata safety_identifier prompt_cache_key".split()
_NEUTRAL: Mapping[str, Sequence[Any]] = {
    "frequency_penalty": (0,),
    "presence_penalty": (0,),
    "logit_bias": ({},),
    "logprobs": (False,),
    "response_format": ({"type": "text"},),
    "modalities": (["text"],),
    "service_tier": ("auto", "default"),
    "store": (False,),
    "tools": ([],),
}
"""Fields that are taken with the values that change nothing, and null, and refused with any other."""


def _refuse_others(body: Mapping[str, Any]) -> None:
    known = [*_READ, *_WITHOUT_EFFECT, *_NEUTRAL]
    for key, value in body.items():
        if key in _NEUTRAL:
            if value is not None and value not in _NEUTRAL[key]:
                raise Unfit(f"{key} is not supported here", key, "unsupported_parameter")
        elif key not in known:
            near = difflib.get_close_matches(key, known, n=1)
            hint = f": did you mean {near[0]}?" if near else ""
            raise Unfit(f"{_short(key)} is not supported here{hint}", _short(key), "unsupported_parameter")


def _turns(messages: Any) -> tuple[Turn, ...]:
    if not isinstance(messages, list) or not messages:
        raise Unfit("messages must be a list of at least one message", "messages")
    if len(messages) > MOST_MESSAGES:
        raise Unfit(f"there are {len(messages):,} messages, of at most {MOST_MESSAGES:,}", "messages")
    turns = tuple(_turn(message, f"messages[{i}]") for i, message in enumerate(messages))
    if turns[-1].role != "user":
        raise Unfit("the last message must be the user's", f"messages[{len(turns) - 1}].role")
    return turns


def _turn(message: Any, place: str) -> Turn:
    if not isinstance(message, dict):
        raise Unfit(f"{place} must be an object with role and content", place)
    role, content = message.get("role"), message.get("content")
    role = "system" if role == "developer" else role
    if role not in ("system", "user", "assistant"):
        raise Unfit(f"{place}.role must be system, developer, user or assistant", f"{place}.role")
    others = {key for key, value in message.items() if value is not None} - {"role", "content", "name", "refusal"}
    if others:
        other = _short(min(others))
        raise Unfit(f"{place}.{other} is not supported here", f"{place}.{other}", "unsupported_parameter")
    if isinstance(content, list):
        for i, part in enumerate(content):
            if not (isinstance(part, dict) and part.get("type") == "text" and isinstance(part.get("text"), str)):
                where = f"{place}.content[{i}]"
                raise Unfit(f'{where} must be {{"type": "text", "text": ...}}: only text is read here', where)
        content = "".join(part["text"] for part in content)
    if not isinstance(content, str):
        raise Unfit(f"{place}.content must be a text", f"{place}.content")
    if re.search("[\ud800-\udfff]", content):
        raise Unfit(f"{place}.content holds half of a surrogate pair, which is no character", f"{place}.content")
    return Turn(cast(Literal["system", "user", "assistant"], role), content)


def _stops(value: Any) -> tuple[str, ...]:
    stops = [value] if isinstance(value, str) else [] if value is None else value
    fits = isinstance(stops, list) and len(stops) <= MOST_STOPS
    if not fits or not all(isinstance(stop, str) and 0 < len(stop) <= LONGEST_STOP for stop in stops):
        raise Unfit(f"stop must be a text, or up to {MOST_STOPS} of 1 to {LONGEST_STOP} characters", "stop")
    return tuple(stops)


def _number(body: Mapping[str, Any], key: str, kind: type, least: float, most: float) -> Any:
    value = body.get(key)
    if value is None:
        return None
    fits = isinstance(value, (int,) if kind is int else (int, float)) and not isinstance(value, bool)
    if not fits or not least <= value <= most:  # which no value that is not a number fulfils
        what = "a whole number" if kind is int else "a number"
        raise Unfit(f"{key} must be {what} from {least:,} to {most:,}", key)
    return kind(value)


def _flag(body: Mapping[str, Any], key: str, place: str | None = None) -> bool:
    value = body.get(key)
    if value not in (None, True, False) or (isinstance(value, (int, float)) and not isinstance(value, bool)):
        raise Unfit(f"{place or key} must be true or false", place or key)
    return bool(value)


def _short(name: str) -> str:
    """A name that somebody else chose, as far as it fits in a sentence."""
    return name if len(name) <= 60 else f"{name[:60]}..."
