"""Whether exported files are the seat: another tool reads them in a fresh process and is asked what the seat was asked.

Compared are the tokens that the seat says greedily, the log-probabilities of these, and whether the prompts' words
become the same tokens. The base is asked as well: where it answers as the seat does, agreement shows little.
"""

import json
import subprocess
import sys
import tempfile
from collections.abc import Callable, Container, Mapping, Sequence
from dataclasses import asdict, dataclass
from importlib.util import find_spec
from pathlib import Path
from typing import TYPE_CHECKING, Any

from lite_selfplay.data import BASE, Sampling
from lite_selfplay.errors import VerificationFailed
from lite_selfplay.models.generation.sampling import GenerationRequest
from lite_selfplay.runs.export import foreign

if TYPE_CHECKING:
    from lite_selfplay.models.backends.base import Backend
    from lite_selfplay.models.chat import Chat

QUESTIONS, TOKENS = 20, 24
"""Prompts that are asked, and the most tokens of an answer to one."""
SHARE = 0.05
"""How near, in nats, two tokens must be for either to be the likelier one by rounding alone, at the least."""


@dataclass(frozen=True)
class Question:
    """A prompt, what the seat says to it greedily with the log-probability of each token, and what the base would."""

    prompt: str
    prompt_ids: tuple[int, ...]
    token_ids: tuple[int, ...]
    logprobs: tuple[float, ...]
    base_first: int
    base_logprobs: tuple[float, ...]


@dataclass(frozen=True)
class Verification:
    """What came of asking another tool, in figures. Differences are of log-probabilities, in nats a token.

    `prompts_same` is None where the reader was given the prompts' ids. `near_ties` are first tokens that differ where
    the reader's own two likeliest are closer than rounding; they count against nobody. `original_base` is the mean
    difference of the same adapter over the base's original 16-bit weights, where it was trained over 4-bit ones.
    """

    reader: str
    versions: Mapping[str, str]
    compute: str
    questions: int
    first_tokens_same: int
    near_ties: int
    texts_same: int
    prompts_same: int | None
    tokens: int
    mean_difference: float
    largest_difference: float
    base_first_tokens_same: int
    base_mean_difference: float
    limit: float
    original_base: float | None = None

    @property
    def failures(self) -> list[str]:
        """What shows that it is another model; nothing where it is the seat."""
        found = []
        if self.prompts_same is not None and self.prompts_same < self.questions:
            found.append(f"{self.questions - self.prompts_same} of {self.questions} prompts become other tokens")
        if (other := self.questions - self.first_tokens_same - self.near_ties) > 0:
            found.append(f"{other} of {self.questions} first tokens are others")
        if not self.mean_difference <= self.limit:
            found.append(f"mean |delta| {self.mean_difference:.3g} is more than {self.limit:g}")
        return found

    @property
    def passed(self) -> bool:
        return not self.failures

    def sentence(self) -> str:
        """`20 of 20 first tokens agree, mean |delta| 0.003; the base agrees on 6`."""
        ties = f" ({self.near_ties} near ties apart)" if self.near_ties else ""
        return (
            f"{self.first_tokens_same} of {self.questions} first tokens agree{ties}, mean |delta| "
            f"{self.mean_difference:.2g}; the base agrees on {self.base_first_tokens_same}"
        )

    def paragraph(self) -> str:
        """What a model card says of it."""
        verdict = "Verified" if self.passed else f"FAILED ({'; '.join(self.failures)})"
        versions = ", ".join(f"{name} {version}" for name, version in self.versions.items())
        words = "" if self.prompts_same is None else f"{self.prompts_same} of the prompts become the same tokens. "
        text = (
            f"{verdict}: {self.reader}, alone in a fresh process and computing in {self.compute}, was asked "
            f"{self.questions} prompts of the run against the seat's own answers. {self.sentence()}. {words}"
            f"{self.texts_same} of {self.questions} greedy texts of up to {TOKENS} tokens are the same; the largest "
            f"difference among {self.tokens} log-probabilities is {self.largest_difference:.2g}, and the base's mean "
            f"difference from the seat {self.base_mean_difference:.2g}."
        )
        if self.original_base is not None:
            text += (
                " The same adapter over the base's original 16-bit weights differs from the seat by "
                f"{self.original_base:.2g} on average."
            )
        return f"{text} ({versions})"

    def to_json(self) -> dict[str, Any]:
        return {**asdict(self), "passed": self.passed, "failures": self.failures, "sentence": self.sentence()}


def choose_prompts(seen: Sequence[str], is_plain: Callable[[str], bool]) -> list[str]:
    """Twenty prompts evenly spread over those that a seat saw, the shorter ones where there are enough; sums where
    there are too few. `is_plain` says whether a text spells no special token."""
    known = [text for text in dict.fromkeys(seen) if text.strip() and is_plain(text)]
    short = [text for text in known if len(text) <= 2000]
    pool = short if len(short) >= QUESTIONS else known
    chosen = (
        [pool[i * len(pool) // QUESTIONS] for i in range(min(QUESTIONS, len(pool)))] if len(pool) > QUESTIONS else pool
    )
    sums = [f"What is {7 * i % 40 + 11} + {11 * i % 50 + 3}?" for i in range(QUESTIONS)]
    return [*chosen, *sums][:QUESTIONS]


def ask_seat(backend: "Backend", chat: "Chat", seat: str, prompts: Sequence[str]) -> list[Question]:
    """What a seat, and the base, say to prompts."""
    ids = [chat.encode(prompt).ids for prompt in prompts]
    said = _greedy(backend, seat, ids, TOKENS)
    first = _greedy(backend, BASE, ids, 1)
    rows = list(zip(ids, said, strict=True))
    own, base = backend.score(seat, rows, 1.0), backend.score(BASE, rows, 1.0)
    return [
        Question(prompt, tuple(row), tuple(answer), tuple(a.logprobs), start[0], tuple(b.logprobs))
        for prompt, row, answer, start, a, b in zip(prompts, ids, said, first, own, base, strict=True)
    ]


def _greedy(backend: "Backend", seat: str, ids: Sequence[Sequence[int]], tokens: int) -> list[list[int]]:
    sampling = Sampling(temperature=0.0, max_tokens=tokens)
    made = backend.generate(GenerationRequest(seat, ids, 1, sampling, [[0]] * len(ids)))
    return [row[0].token_ids for row in made]


def gguf_reader() -> str:
    """Which reader of GGUF files is installed: llama.cpp where its package `xllamacpp` is, else transformers'."""
    return "llama.cpp" if find_spec("xllamacpp") is not None else "gguf"


NAMES = {
    "peft": "PEFT",
    "transformers": "transformers",
    "gguf": "transformers' reader of GGUF files",
    "llama.cpp": "llama.cpp",
}


def request_of(questions: Sequence[Question], eos_ids: Sequence[int]) -> dict[str, Any]:
    """What every reader is told: the prompts, their ids, and what the seat said."""
    return {
        "eos_ids": list(eos_ids),
        "max_tokens": TOKENS,
        "longest": max(len(question.prompt_ids) for question in questions) + TOKENS,
        "questions": [
            {"prompt": each.prompt, "prompt_ids": list(each.prompt_ids), "token_ids": list(each.token_ids)}
            for each in questions
        ],
    }


def ask_foreign(request: Mapping[str, Any], poll: Callable[[], None]) -> dict[str, Any]:
    """What another tool answers, in a process of its own that imports nothing of this library.

    `poll` is called while it works, and may raise to stop it. Raises VerificationFailed where the process fails.
    """
    with tempfile.TemporaryDirectory(prefix="lite-selfplay-") as folder:
        asked, answered = Path(folder, "request.json"), Path(folder, "answer.json")
        asked.write_text(json.dumps(request), encoding="utf-8")
        with Path(folder, "said").open("w+b") as said:
            # -P: no module beside the script takes the place of an installed one.
            command = [sys.executable, "-P", foreign.__file__, str(asked), str(answered)]
            process = subprocess.Popen(command, stdin=subprocess.PIPE, stdout=said, stderr=said, start_new_session=True)
            try:
                while process.poll() is None:
                    poll()
                    _wait(process)
            finally:
                process.kill()
                process.wait()
                assert process.stdin is not None
                process.stdin.close()
            said.seek(0)
            last = [line for line in said.read().decode("utf-8", "replace").splitlines() if line.strip()][-1:]
        reader = NAMES[request["reader"]]
        if process.returncode != 0 or not answered.exists():
            why = last[0].strip() if last else f"it ended with {process.returncode}"
            raise VerificationFailed(f"{reader} could not answer from the exported files: {why[:300]}")
        found: dict[str, Any] = json.loads(answered.read_text(encoding="utf-8"))
    if not found["alone"]:
        raise VerificationFailed(f"{reader} was not alone in its process: this library was imported there")
    return found


def _wait(process: "subprocess.Popen[bytes]") -> None:
    try:
        process.wait(timeout=0.2)
    except subprocess.TimeoutExpired:
        return


def compare(
    questions: Sequence[Question], found: Mapping[str, Any], request: Mapping[str, Any], limit: float
) -> Verification:
    """A reader's answers beside the seat's."""
    answers = found["answers"]
    pairs = list(zip(questions, answers, strict=True))
    differences = _differences(questions, answers)
    base = [
        abs(a - b) for question in questions for a, b in zip(question.logprobs, question.base_logprobs, strict=True)
    ]
    same = [question.token_ids[0] == answer["first"] for question, answer in pairs]
    near, eos = max(SHARE, 2 * limit), set(request.get("eos_ids", ()))
    return Verification(
        reader=NAMES[request["reader"]],
        versions=found["versions"],
        compute=request["dtype"] if request["reader"] != "llama.cpp" else "its own precision",
        questions=len(questions),
        first_tokens_same=sum(same),
        near_ties=sum(not ok and answer["gap"] <= near for ok, (_, answer) in zip(same, pairs, strict=True)),
        texts_same=sum(_text(question.token_ids, eos) == _text(answer["token_ids"], eos) for question, answer in pairs),
        prompts_same=_prompts_same(pairs),
        tokens=len(differences),
        mean_difference=_mean(differences),
        largest_difference=max(differences, default=float("inf")),
        base_first_tokens_same=sum(question.base_first == question.token_ids[0] for question in questions),
        base_mean_difference=_mean(base),
        limit=limit,
    )


def mean_difference(questions: Sequence[Question], found: Mapping[str, Any]) -> float:
    """The mean difference of a reader's log-probabilities from the seat's, in nats a token."""
    return _mean(_differences(questions, found["answers"]))


def _differences(questions: Sequence[Question], answers: Sequence[Mapping[str, Any]]) -> list[float]:
    return [
        abs(own - other)
        for question, answer in zip(questions, answers, strict=True)
        for own, other in zip(question.logprobs, answer["logprobs"], strict=False)
    ]


def _text(ids: Sequence[int], eos: Container[int]) -> list[int]:
    """What is said before the end; some readers give the token that ends it and some do not."""
    return [token for token in ids if token not in eos]


def _prompts_same(pairs: Sequence[tuple[Question, Mapping[str, Any]]]) -> int | None:
    """How many prompts become the same tokens by the files' own template and vocabulary; None if they were given."""
    told = [
        list(question.prompt_ids) == answer["prompt_ids"]
        for question, answer in pairs
        if answer["prompt_ids"] is not None
    ]
    return sum(told) if told else None


def _mean(values: Sequence[float]) -> float:
    return sum(values) / len(values) if values else float("inf")
