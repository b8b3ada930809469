"""The function `export` writes a seat (a LoRA adapter) of a run as a folder for other tools (LoRA adapter, merged model
or GGUF file), atomically, and verifies it."""

import contextlib
import gc
import json
import re
import shlex
import shutil
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from functools import partial
from importlib.util import find_spec
from pathlib import Path
from typing import Any

import torch
from transformers import AutoConfig, AutoModelForCausalLM, GenerationConfig

from lite_selfplay.errors import RequestError, SaveFailed, VerificationFailed
from lite_selfplay.extras.export import verification
from lite_selfplay.extras.export.gguf_file import require_convertible, write_gguf
from lite_selfplay.extras.export.request import Asked, Form, ask, export_card, require_free, serving
from lite_selfplay.extras.export.verification import Question, Verification
from lite_selfplay.models.adapter_files import CONFIG, WEIGHTS
from lite_selfplay.models.backends.backend import Backend
from lite_selfplay.models.backends.transformers import dense_weight
from lite_selfplay.models.chat_template import DATE, NOW, Chat, Thinking
from lite_selfplay.models.silence import quiet
from lite_selfplay.models.sources import ResolvedModel, base_of
from lite_selfplay.models.sources.folders import reading
from lite_selfplay.runs.folder import CARD, RunFolder
from lite_selfplay.runs.report.closing import Evaluations
from lite_selfplay.runs.report.pages import shown
from lite_selfplay.tasks.files import (
    read_json,
    read_tensors,
    sha256_of,
    write_errors,
    write_whole,
    written_whole_folder,
)
from lite_selfplay.training.interrupts import Interrupts
from lite_selfplay.training.progress import Monitor, ProgressLike
from lite_selfplay.training.rollout import Loaded, load_chat

VERIFICATION = "verification.json"
Weights = Callable[[], Iterator[tuple[str, torch.Tensor]]]
"""A function that returns an iterator over the merged weights as (name, float32 tensor) pairs."""


@dataclass(frozen=True)
class Export:
    """The result of `export`.

    - `path`: the folder that the export created
    - `seat`: the exported seat (a LoRA adapter) as requested, such as `A` or `A@20`
    - `verification`: the comparison of the exported files with the seat, or None if the comparison was not made
    - `commands`: shell commands; the last one uploads the folder, and each of the others serves the files
    """

    path: Path
    seat: str
    verification: Verification | None
    commands: list[str]


def export(
    run: Path | str,
    seat: str | None = None,
    *,
    to: Form = "peft",
    out: Path | str | None = None,
    verify: bool = True,
    trust_remote_code: bool = False,
    progress: ProgressLike = None,
) -> Export:
    """Export a seat (a LoRA adapter) of a run as a folder for other tools.

    - `run`: the run folder
    - `seat`: `A` (as saved last), `A@20` (from the checkpoint of step 20), `A@best` (from the checkpoint with the
      highest pass@1), or None for the run's only seat
    - `to`: the format, which is `peft` (an adapter), `merged` (a full bf16 model) or `gguf` (a float16 file, and a
      Modelfile for Ollama)
    - `out`: the folder to create, or None for `exports/RUN-SEAT-TO` in the working directory
    - `verify`: whether another tool loads the files in a fresh process and computes the log-probabilities of some of
      the seat's answers, which are compared with those that the seat computes; skipped for `gguf` if llama.cpp is
      missing
    - `trust_remote_code`: whether the base model's own Python code may run
    - `progress`: the receiver of progress reports, a function for lines of text, or None for no reports

    Raises RequestError if `run` is not a run folder, the seat is unknown, `seat` is None and the run has several seats,
    the format is unknown or does not support the base model, the folder to create exists, the base model has changed
    since training, or the base model, game or tasks need Python code that the user has not allowed. Raises SaveFailed
    if files cannot be written, and Interrupted after a signal; in both cases no folder is left. Raises
    VerificationFailed if the other tool cannot load the files (no folder is left), or if the log-probabilities or the
    token ids of prompts differ (the folder stays, and its `verification.json` has the reasons).
    """
    asked = ask(RunFolder.open(Path(run)), seat, to, out, trust_remote_code)
    with quiet(), Interrupts() as interrupts:
        monitor = Monitor(progress, stop=interrupts.poll)
        model = base_of(asked.config.model, monitor.progress)
        asked.folder.require_base(model)
        with write_errors(asked.out, SaveFailed), written_whole_folder(asked.out) as folder:
            verification, verified = write(asked, model, folder, verify, monitor)
            write_whole(folder / CARD, export_card(asked, model.revision, measured(asked), verified))
            if verification is not None:
                write_whole(folder / VERIFICATION, json.dumps(verification.to_json(), indent=1) + "\n")
            require_free(asked.out)  # it may have been created meanwhile
    monitor.progress.say(f"written: {asked.out}")
    if verification is not None and verification.failures:
        raise VerificationFailed(
            f"{asked.out} is not the same model as seat {asked.name}: {'; '.join(verification.failures)}. "
            f"Its {VERIFICATION} has the details"
        )
    quoted = shlex.quote(str(asked.out))
    upload = f"hf upload {re.sub(r'[^A-Za-z0-9_.-]+', '-', asked.out.name)} {quoted} . --private"
    commands = [*serving(asked, quoted, model.hub_id or shlex.quote(str(model.path)), model.revision), upload]
    return Export(asked.out, asked.name, verification, commands)


def write(
    asked: Asked, model: ResolvedModel, folder: Path, verify: bool, monitor: Monitor
) -> tuple[Verification | None, str]:
    """Write the files of the export request `asked` into `folder`, except the model card. The base model is `model`.
    With `verify`, another tool loads the files and computes the log-probabilities of some answers that the seat (a LoRA
    adapter) gave; they are compared with the seat's own. If that tool is llama.cpp and not installed, nothing is
    compared. The `monitor` is polled often, and may raise to stop the export. Returns the comparison (also if it
    failed; None if nothing was compared) and a paragraph about it for the model card. Raises VerificationFailed if the
    tool cannot load the files, RequestError if the format does not support the model, and RunFolderError if the seat's
    saved weights are damaged. The caller deletes `folder` after an error."""
    section, why = asked.config.model, "the export was made with `--no-verify`"
    if verify and asked.form == "gguf" and find_spec("xllamacpp") is None:
        verify, why = False, 'llama.cpp is not installed (`pip install "lite-selfplay[llama-cpp]"`)'
    chat = load_chat(asked.config, model)
    questions, compute = list[Question](), ""
    if verify or asked.form != "peft":
        monitor.progress.say(f"loading {model.name} in {section.precision}")
        questions, compute = _from_memory(asked, model, folder, chat, verify, monitor)
        gc.collect()
        torch.cuda.empty_cache()
    if asked.form == "peft":
        chat.tokenizer.chat_template = with_switches(chat.tokenizer.chat_template, asked.config.model.thinking)
        write_adapter(folder, asked, model, chat)
    monitor.poll()
    if not verify:
        monitor.progress.say(f"not verified: {why}")
        return None, f"Not verified: {why}."
    monitor.progress.say("another tool reads the files in a fresh process")
    found = verification.verify(asked, folder, str(model.path), questions, compute, chat.tokens("a")[0], monitor.poll)
    monitor.progress.say(f"{found.reader}: {found.sentence()}")
    return found, found.paragraph()


def measured(asked: Asked) -> Evaluations:
    """The evaluations of the seat (LoRA adapter) of the export request `asked`. They are the evaluations during
    training up to the exported step, by moment (such as `after 20 steps`), and those evaluations after training that
    used exactly the exported weights, by file name."""
    own = sha256_of(asked.adapter / WEIGHTS)
    found = {moment: each for moment, each in asked.folder.evaluations().items() if each["step"] <= asked.step}
    return found | {
        name: each for name, each in asked.folder.later_evaluations().items() if own in each.get("weights", {}).values()
    }


def _from_memory(
    asked: Asked, model: ResolvedModel, folder: Path, chat: Chat, verify: bool, monitor: Monitor
) -> tuple[list[Question], str]:
    """Do the parts of the export request `asked` that need the base `model` with the seat's adapter in memory. With
    `verify`, the seat answers the prompts on which another tool will be compared with it. In the formats `merged` and
    `gguf`, the files are written into `folder`; `peft` needs no model for that (`write_adapter`). `chat` has the
    tokenizer and chat template. The `monitor` is polled often, and may raise to stop. Returns the prompts with the
    seat's answers (empty without `verify`), and the name of the torch dtype in which the model computes. Raises
    RequestError if the format does not support the model."""
    with reading(model.path):
        config = AutoConfig.from_pretrained(model.path, trust_remote_code=asked.config.model.trust_remote_code)
    if asked.form == "gguf":
        require_convertible(config)
    seats = {asked.seat: asked.config.seats[asked.seat]}
    with contextlib.closing(Loaded.of(asked.config, model, monitor, seats=seats)) as loaded:
        backend = loaded.backend
        backend.adapters.load(asked.seat, asked.adapter)
        questions = []
        if verify:
            monitor.progress.say(f"asking seat {asked.name} {verification.QUESTIONS} prompts of the run")
            special = [str(token) for token in chat.tokenizer.all_special_tokens]
            seen = [row["prompt"] for row in asked.folder.episodes() if row["seat"] == asked.seat]
            prompts = verification.choose_prompts(seen, lambda text: not any(token in text for token in special))
            questions = verification.ask_seat(backend, chat, asked.seat, prompts)
        if asked.form != "peft":
            chat.tokenizer.chat_template = with_switches(chat.tokenizer.chat_template, asked.config.model.thinking)
            fill = write_merged if asked.form == "merged" else write_gguf_folder
            fill(folder, asked, partial(_weights, backend, asked.seat, monitor), config, chat)
    return questions, str(backend.compute_dtype).removeprefix("torch.")


def _weights(backend: Backend, seat: str, monitor: Monitor) -> Iterator[tuple[str, torch.Tensor]]:
    for name, tensor in backend.adapters.merged(seat, partial(dense_weight, dtype=torch.float32)):
        monitor.poll()
        yield name, tensor


def write_adapter(folder: Path, asked: Asked, model: ResolvedModel, chat: Chat) -> None:
    """Write the LoRA adapter of the export request `asked` into `folder` for PEFT and vLLM, with tokenizer, chat
    template and sampling settings. The adapter's configuration names the base `model` by hub id and revision, or by the
    last part of its path if it is not from the hub. Raises RunFolderError if the saved weights are damaged."""
    read_tensors(asked.adapter / WEIGHTS)  # raises RunFolderError for damaged ones
    shutil.copyfile(asked.adapter / WEIGHTS, folder / WEIGHTS)
    base = {"base_model_name_or_path": model.hub_id or shown(model.name), "revision": model.revision}
    config = json.dumps(read_json(asked.adapter / CONFIG) | base, indent=2, sort_keys=True)
    write_whole(folder / CONFIG, config + "\n")
    chat.tokenizer.save_pretrained(folder)
    _settings(asked, chat).save_pretrained(folder)


def write_merged(folder: Path, asked: Asked, weights: Weights, config: Any, chat: Chat) -> None:
    """Write a full bf16 model, the base model with a seat's adapter merged in, into `folder`, for transformers and
    vLLM. `asked` is the checked export request. The function `weights` returns an iterator over the merged weights as
    (name, float32 tensor) pairs. `config` is the base model's transformers configuration. Raises RequestError if the
    names of the weights are not those of the transformers model class for `config`."""
    state = {name: tensor.to("cpu", torch.bfloat16) for name, tensor in weights()}
    with torch.device("meta"):  # no second copy in memory, and no use of the global random generator
        plain = AutoModelForCausalLM.from_config(config.get_text_config(), dtype=torch.bfloat16)
    left_over = plain.load_state_dict(state, assign=True, strict=False).unexpected_keys
    plain.tie_weights()
    if missing := [*left_over, *(name for name, parameter in plain.named_parameters() if parameter.is_meta)]:
        raise RequestError(f"{missing[0]} does not fit into a merged model: export --to peft")
    plain.generation_config = _settings(asked, chat)
    plain.save_pretrained(folder)
    chat.tokenizer.save_pretrained(folder)


def write_gguf_folder(folder: Path, asked: Asked, weights: Weights, config: Any, chat: Chat) -> None:
    """Write a GGUF file, the base model with a seat's adapter merged in, into `folder`, with a Modelfile for `ollama
    create` (https://github.com/ollama/ollama/blob/main/docs/modelfile.md). `asked` is the checked export request, whose
    sampling settings go into the Modelfile. The function `weights` returns an iterator over the merged weights as
    (name, float32 tensor) pairs. `config` is the base model's transformers configuration; `chat` has its tokenizer."""
    title = f"{asked.config.game.label}, seat {asked.name}"
    write_gguf(folder / asked.file, weights(), config, chat.tokenizer, name=title, eos_ids=chat.eos_ids)
    lines = [
        f"FROM ./{asked.file}",
        f"PARAMETER temperature {asked.sampling.temperature:g}",
        "PARAMETER top_k 0",
        "PARAMETER top_p 1",
        "PARAMETER min_p 0",
        "PARAMETER repeat_penalty 1",
        f"PARAMETER num_predict {asked.sampling.max_tokens}",
        *(f"PARAMETER stop {json.dumps(stop, ensure_ascii=False)}" for stop in asked.sampling.stop),
    ]
    write_whole(folder / "Modelfile", "\n".join(lines) + "\n")


def with_switches(template: str | None, thinking: Thinking) -> str | None:
    """The chat template `template` with the settings of training built in, so that other tools render prompts as
    training did. Today's date is replaced by `DATE`, the date that this library uses in all training. `thinking`
    becomes the default of the switch for a reasoning block; `auto` keeps the template's own default. The result is None
    if `template` is None."""
    if template is None:
        return None
    switches = ("enable_thinking", "thinking") if thinking != "auto" else ()
    values = {"date_string": f'"{DATE}"', **dict.fromkeys(switches, "true" if thinking == "on" else "false")}
    set_first = "".join(
        f"{{%- if {key} is not defined %}}{{%- set {key} = {value} %}}{{%- endif %}}"
        for key, value in values.items()
        if key in template
    )
    asks = r"""strftime_now\(\s*(['"])(.*?)\1\s*\)"""
    return set_first + re.sub(asks, lambda call: json.dumps(NOW.strftime(call[2])), template)


def _settings(asked: Asked, chat: Chat) -> Any:
    """The sampling settings of the export request `asked` as transformers' GenerationConfig, with top-k and top-p
    switched off. `chat` has the ids of the special tokens."""
    return GenerationConfig(
        do_sample=True,
        temperature=asked.sampling.temperature,
        top_k=0,
        top_p=1.0,
        max_new_tokens=asked.sampling.max_tokens,
        eos_token_id=list(chat.eos_ids),
        pad_token_id=chat.pad_id,
        bos_token_id=chat.tokenizer.bos_token_id,
    )
