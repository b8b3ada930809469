"""`export`: a seat of a run as a folder that other tools load, written whole or not at all, and verified."""

import gc
import json
import re
from collections.abc import Callable, Iterator
from dataclasses import dataclass, replace
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any

import psutil

from lite_selfplay.config import ModelSection, RunConfig
from lite_selfplay.errors import SaveFailed, VerificationFailed
from lite_selfplay.models.backends import import_first
from lite_selfplay.models.silence import quiet
from lite_selfplay.runs.export.card import Exported, Form, export_card
from lite_selfplay.runs.export.request import Asked, ask
from lite_selfplay.runs.export.whole_folder import written_whole_folder
from lite_selfplay.runs.folder import CARD, RunFolder
from lite_selfplay.runs.report.card import base_id
from lite_selfplay.training.interrupts import Interrupts
from lite_selfplay.training.progress import Poll, Progress, as_progress

if TYPE_CHECKING:
    from lite_selfplay.models.backends.base import Backend
    from lite_selfplay.models.chat import Chat
    from lite_selfplay.models.sources import ResolvedModel
    from lite_selfplay.runs.export.verification import Question, Verification

VERIFICATION = "verification.json"
_ROUNDING = {"fp32": 0.01, "fp16": 0.01, "bf16": 0.05, "q8_0": 0.05}
"""The mean difference, in nats a token, that rounding weights to a type may make. Measured: docs/export.md."""
_COMPUTING = {"float32": 0.0, "bfloat16": 0.05, "float16": 0.02}
"""And multiplying in a type, in another order."""
_LLAMA_CPP = 0.01
"""And llama.cpp's own arithmetic, whose products are of rounded activations."""


@dataclass(frozen=True)
class Export:
    """A finished export: its folder, what it is of, and what its verification found; None where it was not verified."""

    path: Path
    seat: str
    form: Form
    dtype: str
    verification: "Verification | None"

    @property
    def files(self) -> list[Path]:
        """Every file of the folder, by name."""
        return sorted(path for path in self.path.rglob("*") if path.is_file())


def export(
    run: Path | str,
    seat: str | None = None,
    *,
    to: Form = "peft",
    out: Path | str | None = None,
    dtype: str | None = None,
    verify: bool = True,
    trust_remote_code: bool = False,
    portable: bool = False,
    progress: Progress | Callable[[str], None] | None = None,
) -> Export:
    """Write a seat of a run as a folder for other tools, and have one of them verify it in a fresh process.

    `seat` None is the run's only seat. `to`: `peft` (an adapter), `merged` (a model of its own in 16 bits), `gguf`, or
    `ollama` (GGUF and a Modelfile). `out` None is `exports/RUN-SEAT-TO`. `dtype`: bf16 or fp16 for `merged`, q8_0 as
    well for GGUF; None takes the form's own. The weights are those in the run's `adapters/`. `portable` names a
    base that is a folder of this machine by the folder's name alone, as `push` does.

    Raises RequestError where the request is wrong, the folder exists, or the model cannot be written in this form;
    SaveFailed where it cannot be written; VerificationFailed where what was written does not answer as the seat: the
    folder is there then, with `verification.json`. Interrupted by a signal. In every other case nothing is left.
    """
    shown = as_progress(progress)
    asked = ask(RunFolder.open(Path(run)), seat, to, out, dtype, trust_remote_code, portable)
    import_first(asked.config.model)
    with quiet(), Interrupts() as interrupts:
        from lite_selfplay.models.sources import base_of

        model = base_of(asked.config.model, shown)
        asked.require_base(model.identity)
        poll = Poll(shown, interrupts.poll)
        with written_whole_folder(asked.out) as folder:
            verification = _write(asked, model, folder, verify, shown, poll)
    done = Export(asked.out, asked.seat, to, asked.dtype, verification)
    shown.say(f"written: {asked.out}")
    if verification is not None:
        shown.say(f"{verification.reader}: {verification.sentence()}")
        if not verification.passed:
            raise VerificationFailed(
                f"{asked.out} is not the same model as seat {asked.seat}: {'; '.join(verification.failures)}. "
                f"{VERIFICATION} there holds the figures"
            )
    return done


# Writing


def _write(
    asked: Asked, model: "ResolvedModel", folder: Path, verify: bool, progress: Progress, poll: Poll
) -> "Verification | None":
    """Fill the folder; the model is in memory only for as long as it is needed."""
    from safetensors import SafetensorError
    from transformers import AutoConfig

    from lite_selfplay.models.chat import Chat
    from lite_selfplay.models.sources.folders import reading
    from lite_selfplay.runs.export import forms
    from lite_selfplay.runs.export.gguf_file import require_convertible

    section = asked.config.model
    with reading(model.path):
        config = AutoConfig.from_pretrained(model.path, trust_remote_code=section.trust_remote_code)
    if asked.form in ("gguf", "ollama"):
        require_convertible(config)
    if _computes_exactly(config, model.path, section):
        asked = replace(
            asked, config=RunConfig.of(asked.config.model_dump(mode="json"), {"model": {"compute_dtype": "fp32"}})
        )
    chat = Chat.load(model.path, section.thinking, trust_remote_code=section.trust_remote_code)
    about, questions = _about(asked, model), list["Question"]()
    try:
        if verify or asked.form != "peft":
            backend = _load(asked, model, chat, progress, poll)
            try:
                about = replace(about, compute=str(backend.compute_dtype).removeprefix("torch."))
                if asked.form != "peft":
                    progress.say(f"writing the {asked.form} files in {asked.dtype}")
                    write = forms.write_merged if asked.form == "merged" else forms.write_gguf_folder
                    write(folder, about, partial(_weights, backend, asked.seat, poll), config, chat)
                if verify:
                    questions = _questions(asked, backend, chat, progress)
            finally:
                backend.close()
                del backend
                _free_memory()
        if asked.form == "peft":
            forms.write_adapter(folder, about, asked.adapter, chat)
    except SafetensorError as error:
        raise SaveFailed(f"cannot write {asked.out}: {error}. Nothing was left there") from None
    poll()
    verification = _verify(asked, about, model, folder, config, chat, questions, progress, poll) if verify else None
    _write_texts(asked, about, folder, verification)
    return verification


def _computes_exactly(config: Any, path: Path, section: ModelSection) -> bool:
    """Whether a seat over 4-bit weights may be computed in float32, so that rounding hides no difference.

    Not where the base's file is in float32: a run quantised its numbers after rounding them. And only where the whole
    base in float32 fits into memory.
    """
    import torch

    from lite_selfplay.models.sources.folders import weight_files

    if section.precision != "4bit" or config.dtype not in (torch.bfloat16, torch.float16):
        return False
    if torch.cuda.is_available():
        free, _ = torch.cuda.mem_get_info()
    else:
        free = psutil.virtual_memory().available
    return 3 * sum(file.stat().st_size for file in weight_files(path)) < int(free)


def _about(asked: Asked, model: "ResolvedModel") -> Exported:
    """What a card says of the seat before it is loaded."""
    metrics, run = asked.folder.metrics(), asked.config.run
    played = {role: None for row in metrics for role, stream in row["streams"].items() if stream["seat"] == asked.seat}
    roles = tuple(role for role in asked.config.roles if role in played) or tuple(played)
    first = asked.config.roles.get(roles[0]) if roles else None
    sampling = first.sampling(run.max_completion_tokens or 512) if first is not None else None
    name = asked.config.model.name
    base = base_id(name) or (Path(name).name if asked.portable and Path(name).is_dir() else name)
    revision = model.identity.partition("@")[2] if model.identity.startswith("hub:") else ""
    plain = re.sub(r"[^\w.-]+", "-", f"{asked.config.game.label}-{Path(name).name}-{asked.seat}")
    suffix = {"fp16": "f16"}.get(asked.dtype, asked.dtype)
    return Exported(
        asked.config,
        asked.seat,
        asked.form,
        asked.dtype,
        "float32",
        roles,
        temperature=sampling.temperature if sampling else 1.0,
        max_tokens=sampling.max_tokens if sampling else run.max_completion_tokens or 512,
        stop=sampling.stop if sampling else (),
        base=base,
        revision=revision or None,
        file=f"{plain}-{suffix}.gguf" if asked.form in ("gguf", "ollama") else None,
    )


def _load(asked: Asked, model: "ResolvedModel", chat: "Chat", progress: Progress, poll: Poll) -> "Backend":
    """The base in memory with the run's adapters."""
    from lite_selfplay.models.backends import choose_backend

    progress.say(f"loading {model.name} in {asked.config.model.precision}")
    backend = choose_backend(
        model.path,
        asked.config.model,
        {asked.seat: asked.config.seats[asked.seat]},
        seed=asked.config.run.seed,
        eos_ids=chat.eos_ids,
        pad_id=chat.pad_id,
        base_name=model.name,
        cache_tokens=asked.config.run.generation_tokens,
        decode=chat.decode,
        poll=poll,
    )
    backend.adapters.load(asked.seat, asked.adapter)
    return backend


def _weights(backend: "Backend", seat: str, poll: Poll) -> Iterator[tuple[str, Any]]:
    import torch

    from lite_selfplay.models.backends.transformers import dense_weight

    for name, tensor in backend.adapters.merged(seat, partial(dense_weight, dtype=torch.float32)):
        poll()
        yield name, tensor


def _free_memory() -> None:
    import torch

    gc.collect()
    if torch.cuda.is_available():
        torch.cuda.empty_cache()


# Verification


def _questions(asked: Asked, backend: "Backend", chat: "Chat", progress: Progress) -> "list[Question]":
    from lite_selfplay.runs.export.verification import QUESTIONS, ask_seat, choose_prompts

    progress.say(f"asking seat {asked.seat} {QUESTIONS} prompts of the run")
    special = [str(token) for token in chat.tokenizer.all_special_tokens]
    seen = [row["prompt"] for row in asked.folder.episodes() if row["seat"] == asked.seat]
    prompts = choose_prompts(seen, lambda text: not any(token in text for token in special))
    return ask_seat(backend, chat, asked.seat, prompts)


def _verify(
    asked: Asked,
    about: Exported,
    model: "ResolvedModel",
    folder: Path,
    config: Any,
    chat: "Chat",
    questions: "list[Question]",
    progress: Progress,
    poll: Poll,
) -> "Verification":
    """Ask another tool what the seat was asked; of a seat over 4-bit weights also what 16-bit ones would have made."""
    import torch

    from lite_selfplay.runs.export.verification import (
        NAMES,
        ask_foreign,
        compare,
        gguf_reader,
        mean_difference,
        request_of,
    )

    readers = {"peft": "peft", "merged": "transformers"}
    request = request_of(questions, chat.eos_ids) | {
        "reader": readers[asked.form] if asked.form in readers else gguf_reader(),
        "folder": str(folder.absolute()),
        "tokenizer": str(folder.absolute()),
        "file": about.file,
        "base": str(model.path),
        "nf4": about.nf4,
        "dtype": about.compute,
        "device": "cuda" if torch.cuda.is_available() else "cpu",
        "trust_remote_code": asked.config.model.trust_remote_code,
        "overrides": overrides(config),
        "plain_token": chat.tokens("a")[0],
    }
    progress.say(f"{NAMES[request['reader']]} reads the files in a fresh process")
    limit = _ROUNDING[asked.dtype] + (_LLAMA_CPP if request["reader"] == "llama.cpp" else _COMPUTING[about.compute])
    found = compare(questions, ask_foreign(request, poll), request, limit)
    if not about.nf4:
        return found
    progress.say("and the same adapter over the base's original 16-bit weights, for comparison")
    other = {
        "reader": "peft",
        "folder": str(asked.adapter.absolute()),
        "tokenizer": None,
        "nf4": False,
        "max_tokens": 0,
    }
    return replace(found, original_base=mean_difference(questions, ask_foreign(request | other, poll)))


def overrides(config: Any) -> dict[str, Any]:
    """What transformers' reader of GGUF files leaves at its defaults, of the base's configuration."""
    found = {"rope_parameters": getattr(config, "rope_parameters", None), "head_dim": getattr(config, "head_dim", None)}
    return {key: value for key, value in found.items() if value is not None}


def _write_texts(asked: Asked, about: Exported, folder: Path, verification: "Verification | None") -> None:
    """The model card, and the verification's figures."""
    metrics = asked.folder.metrics()
    card = export_card(
        about,
        step=metrics[-1]["step"] if metrics else 0,
        metrics=metrics,
        evaluations=asked.folder.evaluations(),
        verification=verification,
    )
    (folder / CARD).write_text(card, encoding="utf-8")
    if verification is not None:
        text = json.dumps(verification.to_json(), indent=1, allow_nan=False)
        (folder / VERIFICATION).write_text(text + "\n", encoding="utf-8")
