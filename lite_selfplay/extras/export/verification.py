"""Verifies that exported files are the same model as the seat (a LoRA adapter) that they were made from. Another tool
loads the files in a fresh process, and scores answers that the seat sampled greedily. The tool's log-probabilities must
be close to those of the seat, and the tool must turn the prompts into the same token ids. The base model alone scores
the answers, too; if its log-probabilities are also close to those of the seat, the comparison proves little."""

import json
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

from lite_selfplay.data import BASE, Sampling
from lite_selfplay.errors import VerificationFailed
from lite_selfplay.extras.export import reader
from lite_selfplay.extras.export.request import Asked
from lite_selfplay.models.backends.availability import device_of
from lite_selfplay.models.backends.backend import Backend
from lite_selfplay.models.chat_template import Chat
from lite_selfplay.models.generation.sampling import GenerationRequest

QUESTIONS, TOKENS = 20, 24  # the number of prompts, and the most tokens of an answer
# Each format's tool, and the mean difference, in nats per token, allowed for rounding: of weights to bf16 in a merged
# model; of activations in llama.cpp's products. Measured: docs/export.md.
_READERS = {"peft": ("PEFT", 0.01), "merged": ("transformers", 0.05), "gguf": ("llama.cpp", 0.02)}
# The mean difference allowed since another tool adds numbers in another order, by dtype.
_COMPUTING = {"float32": 0.0, "bfloat16": 0.05, "float16": 0.02}

Question = Mapping[str, Any]
"""A `prompt` and its token ids `prompt_ids`. The seat's greedy answer has the token ids `token_ids`; their
log-probabilities are `logprobs` under the seat, and `base_logprobs` under the base model alone."""


@dataclass(frozen=True)
class Verification:
    """The result of comparing exported files with the seat (a LoRA adapter) that they were made from.

    - `reader`: the tool that loaded the files
    - `compute`: the name of the torch dtype in which the tool and the seat's own model computed
    - `questions`: the number of prompts that the seat answered
    - `prompts_same`: the number of these prompts that the tool turned into the same token ids as this library
    - `tokens`: the number of tokens in all of the seat's answers
    - `mean_difference`: the mean absolute difference between the tool's and the seat's log-probability of a token, in
      nats
    - `base_difference`: the mean absolute difference between the log-probability of a token under the base model alone
      and under the seat, in nats, both computed by this library
    - `limit`: the files count as the same model if `mean_difference` is at most `limit`
    """

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
        """The reasons why the files do not count as the same model as the seat, empty if they do. There are two
        possible reasons: the other tool (named in `reader`) turns some prompts into other token ids than this library
        does, or the mean difference between that tool's log-probabilities and the seat's is above `limit`."""
        other, close = self.questions - self.prompts_same, self.mean_difference <= self.limit  # NaN is not close
        found = {
            f"{other} of {self.questions} prompts become other tokens": other > 0,
            f"mean |delta| {self.mean_difference:.3g} is more than {self.limit:g}": not close,
        }
        return [why for why, wrong in found.items() if wrong]

    def sentence(self) -> str:
        """The result in words, such as `mean |delta| 0.003 nats over the 480 tokens of 20 answers; the base's is 1.03`.
        Here 0.003 is `mean_difference` (exported files against seat), and 1.03 is `base_difference` (base model against
        seat)."""
        return (
            f"mean |delta| {self.mean_difference:.2g} nats over the {self.tokens} tokens of {self.questions} answers; "
            f"the base's is {self.base_difference:.2g}"
        )

    def paragraph(self) -> str:
        """The comparison, and whether it succeeded, as a paragraph for the export's model card."""
        verdict = f"FAILED ({'; '.join(self.failures)})" if self.failures else "Verified"
        return (
            f"{verdict}: {self.reader}, alone in a fresh process, scored the seat's greedy answers to {self.questions} "
            f"prompts of the run, each of up to {TOKENS} tokens, in {self.compute}: "
            f"{self.sentence()}. "
            f"{self.prompts_same} of the prompts become the same tokens."
        )

    def to_json(self) -> dict[str, Any]:
        return {**asdict(self), "passed": not self.failures, "failures": self.failures, "sentence": self.sentence()}


def choose_prompts(seen: Sequence[str], is_plain: Callable[[str], bool]) -> list[str]:
    """Choose 20 prompts on which to compare exported files with the seat, spread evenly over the different prompts in
    `seen`, which the seat got in the run. Prompts that are empty are skipped, as are those for which the function
    `is_plain` is false; it says whether a prompt is free of special tokens. If fewer than 20 are left, sums such as
    `What is 11 + 3?` are added."""
    known = [text for text in dict.fromkeys(seen) if text.strip() and is_plain(text)]
    spread = [known[i * len(known) // QUESTIONS] for i in range(QUESTIONS)] if len(known) > QUESTIONS else known
    sums = [f"What is {7 * i % 40 + 11} + {11 * i % 50 + 3}?" for i in range(QUESTIONS)]
    return [*spread, *sums][:QUESTIONS]


def ask_seat(backend: Backend, chat: Chat, seat: str, prompts: Sequence[str]) -> list[Question]:
    """Let the seat (LoRA adapter) named `seat` answer prompts by greedy decoding, with at most 24 tokens. `prompts` are
    plain texts; the chat template turns each into a user's message. `backend` holds the model in memory, and `chat` has
    the model's tokenizer and chat template. Returns a dict for each prompt: the plain text, the token ids of the
    rendered prompt, the answer's token ids, and their log-probabilities under the seat and under the base model
    alone."""
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
    asked: Asked,
    folder: Path,
    base: str,
    questions: Sequence[Question],
    compute: str,
    plain_token: int,
    poll: Callable[[], None],
) -> Verification:
    """Let another tool compute the log-probabilities of a seat's answers with exported files, and compare them with
    those of the seat.

    - `asked`: the checked export request
    - `folder`: the folder of the exported files
    - `base`: the folder of the base model
    - `questions`: the result of `ask_seat`
    - `compute`: the name of the torch dtype in which the tool computes
    - `plain_token`: the id of a token of ordinary text; it does not matter which. llama.cpp reports log-probabilities
      only at positions where it samples a token, and may report none where the sampled token is special. So llama.cpp
      is forced to sample `plain_token` at every position (see `reader.by_llama_cpp`)
    - `poll`: a function that is called while the tool runs, and may raise to stop it

    Raises VerificationFailed if the tool fails. If the log-probabilities or the token ids of prompts differ, nothing is
    raised; the reasons are in the result's `failures`.
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
    """Run the script `reader.py` in a fresh process on `request`, the dict that `verify` makes. Returns the script's
    result: for each question a dict with `prompt_ids` and `logprobs` (see `reader.by_transformers`). The function
    `poll` is called while the script runs; if `poll` raises, the process is killed and the exception of `poll` is
    passed on. Raises VerificationFailed if the script fails."""
    with tempfile.TemporaryDirectory(prefix="lite-selfplay-") as folder:
        asked, answered, said = (Path(folder, name) for name in ("asked.json", "answered.json", "said"))
        asked.write_text(json.dumps(request), encoding="utf-8")
        # -P: modules beside the script must not shadow installed ones.
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
            raise VerificationFailed(f"{request['reader']} could not score answers with the exported files: {why}")
        found: list[dict[str, Any]] = json.loads(answered.read_text(encoding="utf-8"))
    return found


def compare(
    name: str, questions: Sequence[Question], answers: Sequence[Mapping[str, Any]], compute: str, limit: float
) -> Verification:
    """Compare a tool's log-probabilities of a seat's answers with those of the seat itself. `name` is the tool's name.
    `questions` come from `ask_seat`, and have the seat's log-probabilities. `answers` come from the script `reader.py`,
    and have the tool's. `compute` is the name of the torch dtype in which both computed. The exported files count as
    the same model if the mean absolute difference over all answers' tokens is at most `limit` nats."""
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
