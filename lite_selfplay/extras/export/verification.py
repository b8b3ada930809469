"""Whether exported files are the seat: another tool reads them in a fresh process and is asked what the seat was asked.

Compared are the log-probabilities of the seat's greedy answers, and whether the prompts' words become the same tokens.
The base's log-probabilities stand beside them: where they differ little from the seat's, agreement shows little.
"""

import json
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

from lite_selfplay.data import BASE, Sampling
from lite_selfplay.errors import VerificationFailed
from lite_selfplay.extras.export import reader
from lite_selfplay.models.backends.availability import device_of
from lite_selfplay.models.backends.backend import Backend
from lite_selfplay.models.chat_template import Chat
from lite_selfplay.models.generation.sampling import GenerationRequest

if TYPE_CHECKING:
    from lite_selfplay.extras.export.exporting import Asked

QUESTIONS, TOKENS = 20, 24
"""Prompts that are asked, and the most tokens of an answer to one."""
# Who reads a form, and the mean difference, in nats a token, that rounding the weights may make: to bf16 in a merged
# model; llama.cpp's own products are of rounded activations. Measured: docs/export.md.
_READERS = {"peft": ("PEFT", 0.01), "merged": ("transformers", 0.05), "gguf": ("llama.cpp", 0.02)}
# And multiplying in a type, in another order.
_COMPUTING = {"float32": 0.0, "bfloat16": 0.05, "float16": 0.02}

Question = Mapping[str, Any]
"""A `prompt` and its `prompt_ids`; `token_ids`, what the seat says to it greedily, with the `logprobs` of each token,
and with those that the base gives them, `base_logprobs`."""


@dataclass(frozen=True)
class Verification:
    """What came of asking another tool, in figures: how many of the prompts become the same tokens, and the mean
    differences of its log-probabilities, and of the base's, from the seat's, in nats a token."""

    reader: str
    compute: str
    questions: int
    prompts_same: int
    tokens: int
    mean_difference: float
    base_difference: float
    limit: float

    @property
    def failures(self) -> list[str]:
        """What shows that it is another model; nothing where it is the seat."""
        found = []
        if (other := self.questions - self.prompts_same) > 0:
            found.append(f"{other} of {self.questions} prompts become other tokens")
        if not self.mean_difference <= self.limit:
            found.append(f"mean |delta| {self.mean_difference:.3g} is more than {self.limit:g}")
        return found

    def sentence(self) -> str:
        """`mean |delta| 0.003 nats over the 480 tokens of 20 answers; the base's is 1.03`."""
        return (
            f"mean |delta| {self.mean_difference:.2g} nats over the {self.tokens} tokens of {self.questions} answers; "
            f"the base's is {self.base_difference:.2g}"
        )

    def paragraph(self) -> str:
        """What a model card says of it."""
        verdict = f"FAILED ({'; '.join(self.failures)})" if self.failures else "Verified"
        return (
            f"{verdict}: {self.reader}, alone in a fresh process, was asked {self.questions} prompts of the run "
            f"against the seat's own greedy answers of up to {TOKENS} tokens, computed in {self.compute}: "
            f"{self.sentence()}. "
            f"{self.prompts_same} of the prompts become the same tokens."
        )

    def to_json(self) -> dict[str, Any]:
        return {**asdict(self), "passed": not self.failures, "failures": self.failures, "sentence": self.sentence()}


def choose_prompts(seen: Sequence[str], is_plain: Callable[[str], bool]) -> list[str]:
    """Twenty prompts evenly spread over those that a seat saw; sums where there are too few. `is_plain` says whether a
    text spells no special token."""
    known = [text for text in dict.fromkeys(seen) if text.strip() and is_plain(text)]
    spread = [known[i * len(known) // QUESTIONS] for i in range(QUESTIONS)] if len(known) > QUESTIONS else known
    sums = [f"What is {7 * i % 40 + 11} + {11 * i % 50 + 3}?" for i in range(QUESTIONS)]
    return [*spread, *sums][:QUESTIONS]


def ask_seat(backend: Backend, chat: Chat, seat: str, prompts: Sequence[str]) -> list[Question]:
    """What a seat says to prompts, and how likely the base finds it."""
    ids = [list(chat.encode(prompt).ids) for prompt in prompts]
    greedy = Sampling(temperature=0.0, max_tokens=TOKENS)
    said = backend.generate(GenerationRequest(seat, ids, 1, greedy, [[0]] * len(ids)))
    rows = [(row, made[0].token_ids) for row, made in zip(ids, said, strict=True)]
    scores = zip(backend.score(seat, rows, 1.0), backend.score(BASE, rows, 1.0), strict=True)
    return [
        {"prompt": prompt, "prompt_ids": row, "token_ids": answer, "logprobs": list(own.logprobs),
         "base_logprobs": list(base.logprobs)}
        for prompt, (row, answer), (own, base) in zip(prompts, rows, scores, strict=True)
    ]  # fmt: skip


def verify(
    asked: "Asked",
    folder: Path,
    base: str,
    questions: Sequence[Question],
    compute: str,
    plain_token: int,
    poll: Callable[[], None],
) -> Verification:
    """Ask another tool what the seat was asked. `base`: the folder of the run's base; `compute`: a type of torch's;
    `plain_token`: one that is text.

    `poll` is called meanwhile, and may raise to stop it. Raises VerificationFailed where the tool cannot answer.
    """
    name, rounding = _READERS[asked.form]
    request = {
        "reader": name,
        "folder": str(folder.absolute()),
        "file": asked.file,
        "base": base if asked.form == "peft" else str(folder.absolute()),
        "nf4": asked.config.model.precision == "4bit" and asked.form == "peft",
        "dtype": compute,
        "device": device_of(asked.config.model).type,
        "trust_remote_code": asked.config.model.trust_remote_code,
        "plain_token": plain_token,
        "questions": questions,
    }
    return compare(name, questions, read_back(request, poll), compute, rounding + _COMPUTING[compute])


def read_back(request: Mapping[str, Any], poll: Callable[[], None]) -> list[dict[str, Any]]:
    """What a tool answers from exported files, in a process of its own: see `reader`. Raises VerificationFailed."""
    with tempfile.TemporaryDirectory(prefix="lite-selfplay-") as place:
        asked, answered, said = (Path(place, name) for name in ("asked.json", "answered.json", "said"))
        asked.write_text(json.dumps(request), encoding="utf-8")
        # -P: no module beside the script takes the place of an installed one.
        command = [sys.executable, "-P", reader.__file__, str(asked), str(answered)]
        with (
            said.open("wb") as log,
            subprocess.Popen(command, stdout=log, stderr=log, start_new_session=True) as process,
        ):
            try:
                while process.poll() is None:
                    poll()
                    time.sleep(0.1)
            finally:
                process.kill()
        if process.returncode != 0:
            last = said.read_text(encoding="utf-8", errors="replace").strip().splitlines()[-1:]
            why = "".join(last)[:300] or f"it ended with {process.returncode}"
            raise VerificationFailed(f"{request['reader']} could not answer from the exported files: {why}")
        found: list[dict[str, Any]] = json.loads(answered.read_text(encoding="utf-8"))
    return found


def compare(
    name: str, questions: Sequence[Question], answers: Sequence[Mapping[str, Any]], compute: str, limit: float
) -> Verification:
    """A reader's answers beside the seat's."""
    pairs = list(zip(questions, answers, strict=True))
    tokens = sum(len(question["logprobs"]) for question in questions)
    return Verification(
        reader=name,
        compute=compute,
        questions=len(questions),
        prompts_same=sum(question["prompt_ids"] == answer["prompt_ids"] for question, answer in pairs),
        tokens=tokens,
        mean_difference=sum(_apart(question["logprobs"], answer["logprobs"]) for question, answer in pairs) / tokens,
        base_difference=sum(_apart(each["logprobs"], each["base_logprobs"]) for each in questions) / tokens,
        limit=limit,
    )


def _apart(own: Sequence[float], other: Sequence[float]) -> float:
    return sum(abs(a - b) for a, b in zip(own, other, strict=True))
