"""`export`: a seat of a run as a folder that other tools load, written whole or not at all, and verified."""

import contextlib
import errno
import gc
import json
import os
import re
import shlex
import shutil
import socket
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from functools import partial
from importlib.util import find_spec
from pathlib import Path
from typing import TYPE_CHECKING, Any

import psutil

from lite_selfplay.errors import ConfigError, RunFolderError, SaveFailed, VerificationFailed
from lite_selfplay.extras.export.request import Asked, Form, ask
from lite_selfplay.models.backends import import_first
from lite_selfplay.models.chat_template import Chat
from lite_selfplay.models.silence import quiet
from lite_selfplay.models.sources import ResolvedModel, base_of
from lite_selfplay.runs.folder import CARD, RunFolder
from lite_selfplay.runs.report.closing import Evaluations, counted
from lite_selfplay.runs.report.pages import FORMS, base_id, code, loading, metadata, plain, shown, whole_card
from lite_selfplay.tasks.files import sha256_of, sync
from lite_selfplay.training.interrupts import Interrupts
from lite_selfplay.training.progress import Poll, Progress, as_progress

if TYPE_CHECKING:
    from lite_selfplay.extras.export.verification import Question, Verification
    from lite_selfplay.models.backends.backend import Backend


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
    asked: Asked, model: ResolvedModel, folder: Path, verify: bool, progress: Progress, poll: Poll
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
    asked: Asked, model: ResolvedModel, folder: Path, chat: Chat, verify: bool, progress: Progress, poll: Poll
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


_MERGED = """```python
from transformers import AutoModelForCausalLM, AutoTokenizer

model = AutoModelForCausalLM.from_pretrained("FOLDER", dtype="auto")
tokenizer = AutoTokenizer.from_pretrained("FOLDER")
```"""
_VLLM_RANKS = (16, 32, 64, 128, 256, 320, 512)
"""What `--max-lora-rank` takes, from its default on."""


def export_card(asked: Asked, revision: str | None, evaluations: Evaluations, verified: str) -> str:
    """The README of an export. `revision`: of its base on a hub; `verified`: what another tool made of it."""
    config, sampling = asked.config, asked.sampling
    parts = " and ".join(map(code, asked.roles)) or "no role so far"
    base, name = base_id(config.model.name), code(shown(config.model.name))
    about = f"""{FORMS[asked.form][0]} trained by self-play with lite-selfplay: seat {code(asked.seat)} of a run of
{plain(config.game.label)} after {counted(asked.step, "step")}, which played {parts}, over {name}."""
    stops = f", ending at {' or '.join(map(code, sampling.stop))}" if sampling.stop else ""
    python = {"peft": loading(config, "FOLDER", revision, tokenizer="FOLDER"), "merged": _MERGED}.get(asked.form, "")
    commands = serving(asked, "FOLDER", base, revision) if base or asked.form != "peft" else []
    use = f"""{python}

{"".join(f"    {command}{chr(10)}" for command in commands)}
It was sampled at temperature {sampling.temperature:g} with up to {sampling.max_tokens} tokens{stops};
`{"Modelfile" if asked.form == "gguf" else "generation_config.json"}` holds these settings.

## Is it the same model?

{_about_weights(asked)}

{verified}"""
    title = plain(f"{config.game.label} on {shown(config.model.name)}, seat {asked.name}")
    return whole_card(config, metadata(config, asked.form), title, about, use, asked.metrics, evaluations)


def serving(asked: Asked, folder: str, base: str | None, revision: str | None) -> list[str]:
    """The commands that serve an export in a folder; `base` is the hub id or the folder of an adapter's base.

    https://docs.vllm.ai/en/latest/features/lora.html, https://huggingface.co/docs/transformers/serving
    """
    if asked.form == "merged":
        return [f"transformers serve {folder}", f"vllm serve {folder}"]
    if asked.form == "gguf":
        file = f"{folder}/{asked.file}"
        return [
            f"llama-server -m {file} --jinja",
            f"ollama create {Path(asked.file).stem.lower()} -f {folder}/Modelfile",
        ]
    rank = asked.config.seats[asked.seat].rank
    more = f" --max-lora-rank {next((r for r in _VLLM_RANKS if r >= rank), rank)}" if rank > _VLLM_RANKS[0] else ""
    more += " --quantization bitsandbytes" if asked.config.model.precision == "4bit" else ""
    where = f"{base} --revision {revision}" if revision else base
    return [f"vllm serve {where} --enable-lora --lora-modules {asked.seat}={folder}{more}"]


def _about_weights(asked: Asked) -> str:
    """What the weights are, and over which they are the seat."""
    if asked.config.model.precision != "4bit":
        return "The weights are as they were trained, or the sum of the base's and the adapter's."
    if asked.form == "peft":
        return (
            "The adapter was trained over 4-bit (NF4) weights and is this model over these alone: over the 16-bit "
            "weights of the base it is another one, since it also learned what the quantisation had changed."
        )
    return (
        "The seat was trained over 4-bit (NF4) weights. These were expanded and the adapter added to them in float32, "
        "so nothing is lost but the rounding to 16 bits. Merged into the base's original 16-bit weights, the adapter "
        "would have been another model, which was never trained or measured."
    )


@contextlib.contextmanager
def written_whole_folder(out: Path) -> Iterator[Path]:
    """A folder beside `out` that takes its name once everything in it is on the disk; after an error nothing is left.

    What a killed process left is removed by the next export to the same place. Raises SaveFailed, ConfigError where
    something has come to be at `out` in the meantime.
    """
    start = f".{out.name}.partial-{socket.gethostname()}-"
    aside = out.with_name(f"{start}{os.getpid()}")
    try:
        out.parent.mkdir(parents=True, exist_ok=True)
        for left in out.parent.glob(f"{start}*"):
            pid = left.name.removeprefix(start)
            if pid.isdecimal() and not psutil.pid_exists(int(pid)):
                shutil.rmtree(left)
        aside.mkdir()
        yield aside
        for path in [*(path for path in sorted(aside.rglob("*")) if path.is_file()), aside]:
            if path.is_file():
                path.chmod(aside.stat().st_mode & 0o666)  # safetensors writes files that only their owner may read
            sync(path)
        if os.path.lexists(out):
            raise ConfigError(f"{out} has come to be in the meantime and is not overwritten: choose another --out")
        aside.rename(out)
        sync(out.parent)
    except OSError as error:
        cut_short = " requested and " in str(error)  # numpy's words, without a number, for a file on a full disk
        why = error.strerror or (os.strerror(errno.ENOSPC) if cut_short else error)
        raise SaveFailed(f"cannot write {out}: {why}. Nothing was left there") from None
    finally:
        shutil.rmtree(aside, ignore_errors=True)
