"""The function `export` writes a seat (a LoRA adapter) of a run as a folder for other tools, atomically, and verifies
it."""

import json
import math
import os
import re
import shlex
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal

from lite_selfplay.config import RunConfig
from lite_selfplay.data import Sampling
from lite_selfplay.errors import ConfigError, RequestError, RunFolderError, SaveFailed, VerificationFailed
from lite_selfplay.models.silence import quiet
from lite_selfplay.models.sources import base_of
from lite_selfplay.models.sources.folders import read_json
from lite_selfplay.runs.folder import CARD, RunFolder
from lite_selfplay.runs.report.closing import Evaluations, counted
from lite_selfplay.runs.report.pages import FORMS, added, base_id, code, loading, metadata, plain, shown, whole_card
from lite_selfplay.runs.targets import saved_adapters
from lite_selfplay.tasks.files import write_errors, written_whole_folder
from lite_selfplay.training.interrupts import Interrupts
from lite_selfplay.training.progress import Poll, Progress, as_progress

if TYPE_CHECKING:
    from lite_selfplay.extras.export.verification import Verification

Form = Literal["peft", "merged", "gguf"]
VERIFICATION = "verification.json"


@dataclass(frozen=True)
class Asked:
    """A request to export a seat (a LoRA adapter) of a run, after `ask` has checked it.

    - `folder`: the run folder
    - `config`: the run's configuration, in which the backend is replaced by `transformers`
    - `name`: the seat as requested, such as `A` or `A@20` (the seat at the checkpoint of step 20)
    - `seat`: the seat's name alone, such as `A`
    - `adapter`: the folder of the seat's saved weights
    - `step`: the number of training steps after which these weights were saved
    - `total`: the sum of the rows of `metrics.jsonl` up to `step` (`added`), empty if there is none
    - `roles`: the roles that the seat played in these rows
    - `sampling`: the settings with which training sampled the first role in `roles`, or default settings if `roles` is
      empty
    - `form`: the format of the export, `peft`, `merged` or `gguf`
    - `out`: the folder that the export creates
    """

    folder: RunFolder
    config: RunConfig
    name: str
    seat: str
    adapter: Path
    step: int
    total: dict[str, Any]
    roles: tuple[str, ...]
    sampling: Sampling
    form: Form
    out: Path

    @property
    def file(self) -> str:
        """The name of the file that an export in the format `gguf` writes."""
        parts = self.config.game.label, Path(self.config.model.name).name, self.name, "f16.gguf"
        return re.sub(r"[^\w.-]+", "-", "-".join(parts))


def ask(folder: RunFolder, name: str | None, form: Form, out: Path | str | None, trusted: bool) -> Asked:
    """Check a request to export a seat (a LoRA adapter) of a run, before the model is loaded.

    - `folder`: the run folder
    - `name`: the seat: `A` (as saved last), `A@20` (from the checkpoint of step 20), `A@best` (from the checkpoint with
      the highest pass@1), or None for the run's only seat
    - `form`: the format of the export
    - `out`: the folder to create, or None for `exports/RUN-SEAT-FORM` in the working directory
    - `trusted`: whether the base model's own Python code may run

    Returns the request with all that the export needs. Raises RequestError if the seat is unknown or not saved, if
    `name` is None and the run has several seats, if the format is unknown or does not support the model, if the base
    model has Python code and `trusted` is false, if the run's game or tasks are in a Python file that the user has not
    allowed on this machine by running it before, or if `out` exists.
    """
    config = folder.config_to_load(trusted, unsafe_code=True)  # an export runs no code that the model writes
    if form not in FORMS:
        raise ConfigError(f"a seat can be exported to {', '.join(FORMS)}, not to {form!r}")
    if config.model.trust_remote_code and form != "peft":
        raise ConfigError(f"{config.model.name} has Python code of its own, so it can only be exported --to peft")
    if name is None and len(config.seats) > 1:
        raise RequestError(f"{folder.path} has the seats {', '.join(config.seats)}: name one of them after the run")
    name = name or next(iter(config.seats))
    ((seat, step, adapter),) = saved_adapters(folder, config.seats, [name]).values()
    if not adapter.is_dir():
        when = "a run writes its adapters at its checkpoints and at its end"
        raise RunFolderError(f"{folder.path} has no adapter of seat {name!r}: {when}")
    total, played = dict[str, Any](), set[str]()
    for row in folder.steps(last=math.inf if step is None else step):
        total = added(total, row)
        played |= {role for role, stream in row["streams"].items() if stream["seat"] == seat}
    roles = tuple(role for role in config.roles if role in played)
    tokens = config.run.max_completion_tokens or 512
    path = Path(out or f"exports/{folder.path.resolve().name}-{name.replace('@', '-')}-{form}").expanduser()
    _require_free(path)
    return Asked(
        folder,
        config.having({"model": {"backend": "transformers"}}),
        name,
        seat,
        adapter,
        total.get("step", 0) if step is None else step,
        total,
        roles,
        config.roles[roles[0]].sampling(tokens) if roles else Sampling(max_tokens=tokens),
        form,
        path,
    )


def _require_free(path: Path) -> None:
    if os.path.lexists(path):
        raise ConfigError(f"{path} exists already and is not overwritten: choose another --out")


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
    said = as_progress(progress)
    asked = ask(RunFolder.open(Path(run)), seat, to, out, trust_remote_code)
    with quiet(), Interrupts() as interrupts:
        from lite_selfplay.extras.export import forms  # imports torch, so only after the request is checked

        model = base_of(asked.config.model, said)
        asked.folder.require_base(model)
        with write_errors(asked.out, SaveFailed), written_whole_folder(asked.out) as folder:
            verification, verified = forms.write(asked, model, folder, verify, said, Poll(said, interrupts.poll))
            card = export_card(asked, model.revision, forms.measured(asked), verified)
            (folder / CARD).write_text(card, encoding="utf-8")
            if verification is not None:
                text = json.dumps(verification.to_json(), indent=1) + "\n"
                (folder / VERIFICATION).write_text(text, encoding="utf-8")
            _require_free(asked.out)  # it may have been created meanwhile
    said.say(f"written: {asked.out}")
    if verification is not None and verification.failures:
        raise VerificationFailed(
            f"{asked.out} is not the same model as seat {asked.name}: {'; '.join(verification.failures)}. "
            f"Its {VERIFICATION} has the details"
        )
    quoted = shlex.quote(str(asked.out))
    upload = f"hf upload {re.sub(r'[^A-Za-z0-9_.-]+', '-', asked.out.name)} {quoted} . --private"
    commands = [*serving(asked, quoted, model.hub_id or shlex.quote(str(model.path)), model.revision), upload]
    return Export(asked.out, asked.name, verification, commands)


_MERGED = """```python
from transformers import AutoModelForCausalLM, AutoTokenizer

model = AutoModelForCausalLM.from_pretrained("FOLDER", dtype="auto")
tokenizer = AutoTokenizer.from_pretrained("FOLDER")
```"""
# The values that vLLM's `--max-lora-rank` accepts, the default first.
_VLLM_RANKS = (16, 32, 64, 128, 256, 320, 512)


def export_card(asked: Asked, revision: str | None, evaluations: Evaluations, verified: str) -> str:
    """The text of an export's README.md, its model card. `asked` is the checked export request. `revision` is the base
    model's commit on the hub, or None if the base model is not from the hub. `evaluations` is the result of
    `forms.measured`. `verified` is a paragraph on the comparison of the exported files with the seat."""
    config, sampling = asked.config, asked.sampling
    parts = " and ".join(map(code, asked.roles)) or "no role so far"
    base, name = base_id(config.model.name), code(shown(config.model.name))
    about = f"""{FORMS[asked.form][0]} trained by self-play with lite-selfplay: seat {code(asked.seat)} of a run of
{plain(config.game.label)} after {counted(asked.step, "step")}, which played {parts}, over {name}."""
    stops = f", ending at {' or '.join(map(code, sampling.stop))}" if sampling.stop else ""
    wrapped = isinstance(read_json(asked.adapter / "adapter_config.json")["target_modules"], str)
    peft = loading(config, "FOLDER", revision, tokenizer="FOLDER", wrapped=wrapped)
    python = {"peft": peft, "merged": _MERGED}.get(asked.form, "")
    commands = serving(asked, "FOLDER", base, revision) if base or asked.form != "peft" else []
    use = f"""{python}

{"".join(f"    {command}{chr(10)}" for command in commands)}
In training it was sampled at temperature {sampling.temperature:g} with up to {sampling.max_tokens} tokens{stops};
`{"Modelfile" if asked.form == "gguf" else "generation_config.json"}` holds these settings.

## Is it the same model?

{_about_weights(asked)}

{verified}"""
    title = plain(f"{config.game.label} on {shown(config.model.name)}, seat {asked.name}")
    rewards, metrics = asked.folder.rewards(), [asked.total] if asked.total else []
    return whole_card(config, metadata(config, asked.form), title, about, use, rewards, metrics, evaluations)


def serving(asked: Asked, folder: str, base: str | None, revision: str | None) -> list[str]:
    """Shell commands that serve exported files; each is an alternative to the others. `asked` is the checked export
    request, and `folder` is the path of the files, quoted for a shell. Only the format `peft` uses the last two
    arguments: `base` is the base model's hub id or folder, and must not be None for `peft`; `revision` is its commit on
    the hub, or None for the newest. vLLM's command for `peft` is documented at
    https://docs.vllm.ai/en/latest/features/lora.html, and that of transformers at
    https://huggingface.co/docs/transformers/serving."""
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
    """The model card's paragraph on how the weights of the export `asked` come from the adapter and the base model."""
    if asked.config.model.precision != "4bit":
        return "The adapter's weights are those of training; in a full model they are merged into the base's."
    if asked.form == "peft":
        return (
            "The adapter was trained over 4-bit (NF4) weights and works only with these: with the base's 16-bit "
            "weights it is a different model, since it also learned to correct the quantisation."
        )
    return (
        "The seat was trained over 4-bit (NF4) weights. These were dequantised and the adapter added in float32, so "
        "the only loss is the rounding to 16 bits. Merged into the base's original 16-bit weights, the adapter would "
        "be a different model, which was never trained or measured."
    )
