"""The sections of a configuration: every key with its default, its bounds, its meaning and its flag, declared once.

Sections about learning are in `learning.py`. Command-line options, their help, the flat keys of configuration files
(`lite_selfplay.config.layers`) and the output of `lite-selfplay config keys` are derived from both modules.
"""

from collections.abc import Mapping
from pathlib import Path
from typing import Annotated, Any, Literal, get_args
from urllib.parse import urlsplit

from pydantic import BaseModel, BeforeValidator, ConfigDict, Field, ValidationInfo, field_validator
from pydantic_core import PydanticCustomError

from lite_selfplay.config.user_files import short_name, task_of
from lite_selfplay.errors import ConfigError

# The largest number that any key takes: the largest seed of NumPy, and near the limits of torch.
LARGEST = 2**32 - 1
# The most characters of a text or a name: as many as a path may have.
LONGEST = 4096
Unit = Annotated[float, Field(gt=0, le=1)]
# A task's name or file, or rows, which become a text.
Problems = Annotated[str | None, BeforeValidator(task_of)]


def key(
    default: Any,
    about: str,
    *,
    flag: str = "",
    short: str = "",
    metavar: str = "",
    unset: str = "",
    lifts: str = "",
    **bounds: Any,
) -> Any:
    """A key of a section; a required one has the default `...`.

    `about` is its meaning, without a full stop at the end. `flag` is its name as a flat key and, in kebab-case, as an
    option of the command line; `short` and `metavar` belong to that option. `unset` says what is used instead of None.
    `lifts` names the guard that the key lifts, which no file may do alone. `bounds` are pydantic's.
    """
    extra = {"flag": flag, "short": short, "metavar": metavar, "unset": unset, "lifts": lifts}
    return Field(default, description=about, json_schema_extra={k: v for k, v in extra.items() if v}, **bounds)


class Numbers(BaseModel):
    """An immutable mapping of known keys, in which a yes or a no is no number: pydantic would read 1 and 0."""

    model_config = ConfigDict(extra="forbid", frozen=True)

    @field_validator("*", mode="before")
    @classmethod
    def _no_switch(cls, value: Any, about: ValidationInfo) -> Any:
        kind = cls.model_fields[str(about.field_name)].annotation
        kinds = {kind, *get_args(kind)}
        if isinstance(value, bool) and kinds & {int, float} and bool not in kinds:
            raise PydanticCustomError("number", "should be a number, not {value}", {"value": "yes" if value else "no"})
        return value


class Section(Numbers):
    """A section of the configuration, with finite numbers and bounded texts."""

    model_config = ConfigDict(protected_namespaces=(), allow_inf_nan=False)

    @field_validator("*")
    @classmethod
    def _in_range(cls, value: Any) -> Any:
        if isinstance(value, int | float) and abs(value) > LARGEST:
            raise PydanticCustomError("number", "should be at most {most}", {"most": LARGEST})
        texts = [value] if isinstance(value, str) else value if isinstance(value, Mapping) else ()
        # `tasks` given as objects are JSON lines of any length.
        if any(isinstance(text, str) and len(text) > LONGEST and not text.startswith("{") for text in texts):
            raise PydanticCustomError("text", "should have at most {most} characters", {"most": LONGEST})
        return value


class GameSection(BaseModel):
    """The game and its options: the game itself checks every other key."""

    model_config = ConfigDict(extra="allow", frozen=True)

    name: str = key(
        ...,
        "The game whose seats are trained: a name that `lite-selfplay list games` lists, or FILE.py:CLASS",
        max_length=LONGEST,
    )

    @property
    def label(self) -> str:
        """The name to show: for `FILE.py:CLASS` the name of the class."""
        return short_name(self.name)

    @property
    def options(self) -> dict[str, Any]:
        """The game's own options, as given."""
        return dict(self.model_extra or {})


class ModelSection(Section):
    """The base model, and the hardware and precision that it runs on."""

    name: str = key(
        ...,
        "The base model: a short name, hub id, folder, .gguf file, smollm2-135m, or tiny",
        flag="model",
        short="-m",
        metavar="M",
    )
    precision: Literal["4bit", "bf16", "fp16", "fp32"] = key("4bit", "Precision of the weights", flag="precision")
    compute_dtype: Literal["auto", "bf16", "fp16", "fp32"] = key(
        "auto",
        "Precision of arithmetic with 4-bit weights; auto is bf16 if the hardware supports it, else fp16 on GPUs and "
        "fp32 on CPUs",
    )
    backend: str = key(
        "auto",
        "The library that runs the model: transformers, unsloth, or a name given to register_backend; auto is "
        "transformers",
        flag="backend",
    )
    device: Literal["auto", "cpu"] = key(
        "auto",
        "Where the model runs: auto is the first GPU that torch sees, or the CPU if there is none",
        flag="device",
    )
    thinking: Literal["auto", "on", "off"] = key(
        "auto", "Switches a chat template's reasoning on or off; auto keeps the template's default"
    )
    gradient_checkpointing: Literal["auto"] | bool = key(
        "auto",
        "Recompute activations in the backward pass instead of keeping them; auto does so on a GPU if those of a "
        "microbatch would take half of its memory, and on a CPU if a token's take more than 1 MB (but keeps the "
        "results of matrix products if these take less)",
    )
    decoding: Literal["auto", "plain", "lookup"] = key(
        "auto",
        "The decoding loop: auto replays CUDA graphs on a GPU and checks every 16 tokens for finished completions; "
        "lookup (not measured on a GPU) also samples the last eight completions several tokens at a time, by prompt "
        "lookup, if there is flash attention; plain checks after each token, as on a CPU",
    )
    threads: int | None = key(
        None,
        "Threads on a CPU",
        flag="threads",
        unset="one for a small base, else the cores that the process may use",
        ge=1,
        le=1024,
    )
    trust_remote_code: bool = key(
        False,
        "Run the Python code in the model's repository, with all your rights",
        flag="trust_remote_code",
        lifts="runs Python code that comes with the model",
    )

    @field_validator("thinking", mode="before")
    @classmethod
    def _yaml_switch(cls, value: Any) -> Any:
        """YAML reads a bare `on` as true."""
        return {True: "on", False: "off"}[value] if isinstance(value, bool) else value


class TasksSection(Section):
    """Sources of problems: `.jsonl` files or tasks by name."""

    train: Problems = key(
        None,
        "The problems to train on: a .jsonl file, a name such as arithmetic or reasoning-gym:NAME, or FILE.py:FUNCTION",
        flag="tasks",
        short="-t",
        metavar="T",
        unset="the game's own",
    )
    knowledge: str | None = key(
        None,
        "Passages for a proposer to read: a text or JSONL file, a folder of them, hub:NAME",
        flag="knowledge",
        unset="those of --tasks",
    )
    passage_tokens: int = key(1024, "The most tokens of a passage", ge=1)
    validation: Problems = key(
        None,
        "Problems that a game measures a seat on while it plays",
        flag="validation",
        metavar="T",
        unset="those of --tasks",
    )
    solutions: Problems = key(
        None,
        "Solutions for a game that works on their steps: a .jsonl file of problem, answer and solution",
        flag="solutions",
        metavar="FILE",
        unset="those that a seat writes",
    )
    validation_limit: int = key(100, "How many of them: the first ones", ge=1)
    data_dir: str | None = key(
        None,
        "The folder of downloaded data, searched for benchmarks and hub:NAME",
        flag="data_dir",
        metavar="D",
        unset="$LITE_SELFPLAY_DATA",
    )
    answer_from: Literal["anywhere", "block"] = key(
        "anywhere", "Where answers are read from: the <answer> block, a box or a sentence (anywhere), or only the block"
    )
    unsafe_code: bool = key(
        False,
        "Run programs that a model wrote even if no sandbox protects this machine from them",
        flag="unsafe_code",
        lifts="runs programs that the model writes without protection",
    )


class EvalSection(Section):
    """Evaluation on held-out problems: before training, after it, and every `every` steps."""

    tasks: Problems = key(
        None,
        "Held-out problems to measure on before and after; never trained on. `none` asks for no evaluation",
        flag="eval_tasks",
        metavar="T",
    )
    limit: int | None = key(
        None, "How many of the held-out problems", flag="eval_limit", unset="all of a file, else 100", ge=1
    )
    every: int | None = key(
        None, "Steps between evaluations", flag="eval_every", unset="before and after training", ge=1
    )
    samples: int = key(1, "Completions per seat and problem", ge=1)
    temperature: float = key(0.6, "Temperature of sampling; 0 is greedy", ge=0)
    top_p: Unit = key(0.95, "Nucleus sampling; 1 switches it off")

    @field_validator("tasks", mode="before")
    @classmethod
    def _switched_off(cls, value: Any) -> Any:
        return None if isinstance(value, str) and value == "none" else value


class RunSection(Section):
    """The run itself. `dir` is its folder, the only key that `config.yaml` omits."""

    preset: str | None = key(
        None, "For the record: the preset that the other keys override", unset="the one that fits the machine"
    )
    steps: int = key(200, "Steps of play and update", flag="steps", ge=1, le=1_000_000)
    least_steps: int | None = key(
        None,
        "Steps that must fit into `minutes`, with fewer problems each if necessary",
        unset="as many as fit",
        ge=1,
    )
    group_size: int = key(8, "Completions that share a baseline", flag="group_size", ge=2, le=65536)
    problems_per_step: int = key(4, "Problems drawn per step", flag="problems_per_step", ge=1, le=65536)
    max_completion_tokens: int | None = key(
        None, "Cap of a completion", flag="max_completion_tokens", unset="the task's, else 512", ge=1
    )
    max_prompt_tokens: int = key(2048, "Cap of a prompt; longer ones are not sampled", ge=1)
    seed: int = key(0, "Seed of everything random", flag="seed", ge=0)
    dir: Path | None = key(None, "The run folder; never overwritten", flag="run_dir", unset="runs/GAME-MODEL-TIME")
    minutes: float = key(
        0,
        "Minutes that the run may take, final evaluation included: it plays as many of the steps as fit, and evaluates "
        "no more problems than a quarter of the time allows; 0: no bound",
        flag="minutes",
        ge=0,
        le=1e6,
    )
    init: str | None = key(
        None,
        "Start from the seats of another run, of `cold-start`, or from a PEFT adapter, instead of a cold start",
        flag="init",
        metavar="RUN",
    )
    save_every: int = key(50, "Steps between checkpoints", flag="save_every", ge=1)
    save_minutes: float = key(
        10, "A checkpoint is also saved if the last one is this many minutes old; 0: only by steps", ge=0
    )
    preflight: bool | None = key(
        None,
        "Before the first step play for up to a minute: probe the base, say what to expect, and refuse a run that "
        "cannot learn",
        flag="preflight",
        unset="yes, except for tiny, whose weights are random, and the demo's own problems",
    )
    max_bad_steps: int = key(
        3, "Steps with numbers that are not finite are skipped; this many in a row stop the run", ge=1
    )
    keep_checkpoints: int = key(3, "Checkpoints to keep, besides the best one", ge=1)
    episodes_limit_mb: float = key(256, "Size in MB after which nothing is added to episodes.jsonl", ge=0)
    keep_tokens: bool = key(
        False,
        "Also write each step's token ids and log-probabilities, from which it can be recomputed",
        flag="keep_tokens",
    )
    minibatches: int = key(
        1, "Updates per step, each on its share of every stream; above 1 the ratio's clip has an effect", ge=1
    )
    microbatch_tokens: int | None = key(
        None,
        "The most tokens of one forward and backward pass, padding included",
        unset="8,192 on a GPU; 1,280 on a CPU, or 896 for large models in float32",
        ge=1,
    )
    generation_tokens: int | None = key(
        None,
        "Size of the KV cache while sampling, in tokens",
        unset="two fifths of a GPU's memory; 65,536 on a CPU",
        ge=1,
    )
    end_loops: bool = key(
        True, "End a completion whose last 256 tokens or more only repeat themselves: it would not end otherwise"
    )
    reward: str | None = key(None, "A function that replaces the checker", flag="reward", metavar="FILE.py:FUNCTION")
    verify_timeout_s: float = key(5.0, "Seconds that checking one answer may take before it counts as wrong", gt=0)
    report_to: Literal["none", "tensorboard", "wandb", "trackio"] = key(
        "none", "A tracker that gets the curves and warnings as well", flag="report_to"
    )

    @field_validator("reward", mode="before")
    @classmethod
    def _a_name(cls, value: Any) -> Any:
        if callable(value):
            raise ConfigError(
                "a reward function is given to train, as in train(config, reward=f); the key takes FILE.py:NAME"
            )
        return value

    def tokens_at_once(self, *, on_cpu: bool, lean: bool = False) -> int:
        """The value of `microbatch_tokens` on a GPU or a CPU; `lean`: memory matters more than a little time."""
        return self.microbatch_tokens or ((896 if lean else 1280) if on_cpu else 8192)


class RolloutsSection(Section):
    """vLLM servers that sample instead of this process. They reload a seat's adapter after each of its updates.

    They must have access to `folder`, where adapters are written for them.
    """

    servers: tuple[str, ...] = key(
        (),
        "Servers that sample instead of this process, such as http://node-1:8000: `vllm serve` with LoRA and the run's "
        "base; `none` samples here",
        flag="rollouts",
        metavar="URL,...",
        unset="none",
    )
    model: str | None = key(None, "The base's name on the servers", unset="the first base that a server lists")
    timeout_s: float = key(600, "Seconds that a server may take for one request", gt=0)
    rows_at_once: int = key(128, "The most completions requested from a server at a time", ge=1, le=1024)
    folder: str | None = key(
        None, "Where adapters are written for the servers", unset="rollouts in the run folder", min_length=1
    )
    seen_as: str | None = key(None, "The path under which the servers see that folder", unset="the same", min_length=1)

    @field_validator("servers", mode="before")
    @classmethod
    def _a_list(cls, value: Any) -> Any:
        """A text, such as a flag's, may list several; `none` switches them off."""
        if isinstance(value, str):
            value = [] if value == "none" else [part.strip() for part in value.split(",")]
        return value

    @field_validator("servers")
    @classmethod
    def _addresses(cls, value: tuple[str, ...]) -> tuple[str, ...]:
        found = tuple(map(_address, value))
        if len(set(found)) < len(found):
            raise PydanticCustomError("address", "should name each server once")
        return found

    @property
    def again(self) -> str:
        """The option that a resume needs besides the run folder: ` --rollouts URL,...`, empty without servers."""
        return f" --rollouts {','.join(self.servers)}" if self.servers else ""


def _address(text: str) -> str:
    """The address of a server, without a closing slash or `/v1`."""
    try:
        parts = urlsplit(text)
        whole = parts.scheme in ("http", "https") and bool(parts.hostname) and parts.port != 0
    except ValueError:
        whole = False
    if not whole or not text.isascii() or not text.isprintable() or " " in text:
        raise PydanticCustomError("address", "should be addresses of servers, such as http://node-1:8000")
    if parts.username is not None or parts.query or parts.fragment:
        raise PydanticCustomError(
            "address", "should hold no user, password, query or fragment (a key is read from VLLM_API_KEY)"
        )
    return text.rstrip("/").removesuffix("/v1").rstrip("/")
