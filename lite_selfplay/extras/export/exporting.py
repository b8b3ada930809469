"""`export`: a seat of a run as a folder that other tools load, written whole or not at all, and verified."""

import contextlib
import gc
import json
import re
import shlex
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from functools import partial
from importlib.util import find_spec
from pathlib import Path
from typing import TYPE_CHECKING, Any

from lite_selfplay.errors import RunFolderError, SaveFailed, VerificationFailed
from lite_selfplay.extras.export.card import export_card, serving
from lite_selfplay.extras.export.request import Asked, Form, ask
from lite_selfplay.extras.export.whole_folder import written_whole_folder
from lite_selfplay.models.backends import import_first
from lite_selfplay.models.silence import quiet
from lite_selfplay.runs.folder import CARD, RunFolder
from lite_selfplay.tasks.files import sha256_of
from lite_selfplay.training.interrupts import Interrupts
from lite_selfplay.training.progress import Poll, Progress, as_progress

if TYPE_CHECKING:
    from lite_selfplay.extras.export.verification import Question, Verification
    from lite_selfplay.models.backends.base import Backend
    from lite_selfplay.models.chat import Chat
    from lite_selfplay.models.sources import ResolvedModel

VERIFICATION = "verification.json"


@dataclass(frozen=True)
class Export:
    """A finished export: its folder, its seat, and what its verification found; None where it was not verified.

    `commands` serve it, or pass it on, from this machine.
    """

    path: Path
    seat: str
    verification: "Verification | None"
    commands: list[str]


def export(
    run: Path | str,
    seat: str | None = None,
    *,
    to: Form = "peft",
    out: Path | str | None = None,
    verify: bool = True,
    trust_remote_code: bool = False,
    progress: Progress | Callable[[str], None] | None = None,
) -> Export:
    """Write a seat of a run as a folder for other tools, and have one of them verify it in a fresh process.

    `seat`: `A` as saved last, `A@20` as in the checkpoint of step 20, `A@best`; None is the run's only seat. `to`:
    `peft` (an adapter), `merged` (a model of its own, in bf16) or `gguf` (a file in float16, and a Modelfile for
    Ollama). `out` None is `exports/RUN-SEAT-TO`.

    Raises RequestError where the request is wrong, the folder exists, or the model cannot be written in this form;
    SaveFailed where it cannot be written; VerificationFailed where what was written does not answer as the seat: the
    folder is there then, with `verification.json`. Interrupted by a signal. In every other case nothing is left.
    """
    shown = as_progress(progress)
    asked = ask(RunFolder.open(Path(run)), seat, to, out, trust_remote_code)
    import_first(asked.config.model)
    with quiet(), Interrupts() as interrupts:
        from lite_selfplay.models.sources import base_of

        model = base_of(asked.config.model, shown)
        if (base := asked.folder.base()) != model.identity:
            raise RunFolderError(f"{run} was made over the base {base!r}; {model.name} is {model.identity!r} now")
        with written_whole_folder(asked.out) as folder:
            verification = _write(asked, model, folder, verify, shown, Poll(shown, interrupts.poll))
    shown.say(f"written: {asked.out}")
    if verification is not None and verification.failures:
        raise VerificationFailed(
            f"{asked.out} is not the same model as seat {asked.name}: {'; '.join(verification.failures)}. "
            f"{VERIFICATION} there holds the figures"
        )
    place = shlex.quote(str(asked.out))
    upload = f"hf upload {re.sub(r'[^A-Za-z0-9_.-]+', '-', asked.out.name)} {place} . --private"
    commands = [*serving(asked, place, model.hub_id or shlex.quote(str(model.path)), model.revision), upload]
    return Export(asked.out, asked.name, verification, commands)


def _write(
    asked: Asked, model: "ResolvedModel", folder: Path, verify: bool, progress: Progress, poll: Poll
) -> "Verification | None":
    """Fill the folder; the model is in memory only for as long as it is needed."""
    import torch
    from safetensors import SafetensorError

    from lite_selfplay.extras.export import forms, verification
    from lite_selfplay.models.adapters import WEIGHTS
    from lite_selfplay.training.rollout import load_chat

    section, why = asked.config.model, "the export was made with `--no-verify`"
    if verify and asked.form == "gguf" and find_spec("xllamacpp") is None:
        verify, why = False, 'llama.cpp is not here (`pip install "lite-selfplay[llama-cpp]"`)'
    chat = load_chat(asked.config, model)
    questions, compute = list[verification.Question](), ""
    try:
        if verify or asked.form != "peft":
            progress.say(f"loading {model.name} in {section.precision}")
            questions, compute = _from_memory(asked, model, folder, chat, verify, progress, poll)
            gc.collect()
            if torch.cuda.is_available():
                torch.cuda.empty_cache()
        if asked.form == "peft":
            forms.write_adapter(folder, asked, model, chat)
    except SafetensorError as error:
        raise SaveFailed(f"cannot write {asked.out}: {error}. Nothing was left there") from None
    poll()
    found = None
    if verify:
        progress.say("another tool reads the files in a fresh process")
        token = chat.tokens("a")[0]
        found = verification.verify(asked, folder, str(model.path), questions, compute, token, poll)
        (folder / VERIFICATION).write_text(json.dumps(found.to_json(), indent=1) + "\n", encoding="utf-8")
    progress.say(f"{found.reader}: {found.sentence()}" if found else f"not verified: {why}")
    verified = found.paragraph() if found else f"Not verified: {why}."
    # The evaluations in training up to the seat's step, and later ones of this very adapter, by moment and by file.
    own = sha256_of(asked.adapter / WEIGHTS)
    measured = {moment: each for moment, each in asked.folder.evaluations().items() if each["step"] <= asked.step}
    later = asked.folder.later_evaluations().items()
    measured |= {name: each for name, each in later if own in each.get("weights", {}).values()}
    (folder / CARD).write_text(export_card(asked, model.revision, measured, verified), encoding="utf-8")
    return found


def _from_memory(
    asked: Asked, model: "ResolvedModel", folder: Path, chat: "Chat", verify: bool, progress: Progress, poll: Poll
) -> "tuple[list[Question], str]":
    """Load the base with the seat's adapter, ask it what another tool is to be asked, and write what needs its weights.

    Returns the questions with its answers, and the type it computes in.
    """
    from transformers import AutoConfig

    from lite_selfplay.extras.export import forms
    from lite_selfplay.extras.export.gguf_file import require_convertible
    from lite_selfplay.extras.export.verification import QUESTIONS, ask_seat, choose_prompts
    from lite_selfplay.models.sources.folders import reading
    from lite_selfplay.training.rollout import Loaded

    with reading(model.path):
        config = AutoConfig.from_pretrained(model.path, trust_remote_code=asked.config.model.trust_remote_code)
    if asked.form == "gguf":
        require_convertible(config)
    seats = {asked.seat: asked.config.seats[asked.seat]}
    with contextlib.closing(Loaded.of(asked.config, model, progress, poll, seats=seats)) as loaded:
        backend = loaded.backend
        backend.adapters.load(asked.seat, asked.adapter)
        questions = []
        if verify:
            progress.say(f"asking seat {asked.name} {QUESTIONS} prompts of the run")
            special = [str(token) for token in chat.tokenizer.all_special_tokens]
            seen = [row["prompt"] for row in asked.folder.episodes() if row["seat"] == asked.seat]
            prompts = choose_prompts(seen, lambda text: not any(token in text for token in special))
            questions = ask_seat(backend, chat, asked.seat, prompts)
        if asked.form != "peft":
            write = forms.write_merged if asked.form == "merged" else forms.write_gguf_folder
            write(folder, asked, partial(_weights, backend, asked.seat, poll), config, chat)
    return questions, str(backend.compute_dtype).removeprefix("torch.")


def _weights(backend: "Backend", seat: str, poll: Poll) -> Iterator[tuple[str, Any]]:
    import torch

    from lite_selfplay.models.backends.transformers import dense_weight

    for name, tensor in backend.adapters.merged(seat, partial(dense_weight, dtype=torch.float32)):
        poll()
        yield name, tensor
