"""Run folders and model folders that are damaged, of another kind, or may not be written."""

import json
import os
from collections.abc import Iterator
from pathlib import Path

from tests import damaged

from .files import holding, no_file
from .wrong import TRAIN, Prepare, Request

CONFIG = "game: {name: agon}\nmodel: {name: tiny}\ntasks: {train: letters}\n"


def folder(name: str, prefix: str = "run", **files: str | bytes) -> Prepare:
    """A folder with these files (`__` in a name stands for a dot, `_in_` for a slash); `name` says what is wrong."""

    def write(path: Path) -> None:
        (path / prefix).mkdir()
        for file, content in files.items():
            place = path / prefix / file.replace("_in_", "/").replace("__", ".")
            place.parent.mkdir(parents=True, exist_ok=True)
            place.write_bytes(content if isinstance(content, bytes) else content.encode())

    write.__name__ = name
    return write


def with_a_pipe_for(file: str, prefix: str = "run", **files: str | bytes) -> Prepare:
    """A run, or another folder, in which one file is a pipe."""

    def write(path: Path) -> None:
        folder("", prefix, **files or ({"config__yaml": CONFIG} if file != "config.yaml" else {}))(path)
        (path / prefix / file).parent.mkdir(parents=True, exist_ok=True)
        os.mkfifo(path / prefix / file)

    write.__name__ = f"a_pipe_for_{file}"
    return write


run_is_a_file = holding("run_is_a_file", "x", "run")
_, run_is_a_pipe, _, run_is_a_link_loop, *_ = no_file("run")
NO_RUNS = [
    run_is_a_file,
    run_is_a_pipe,
    run_is_a_link_loop,
    with_a_pipe_for("config.yaml"),
    folder("run_with_a_folder_for_a_config", config__yaml_in_x=""),
    folder("run_is_empty"),
    folder("run_of_another_game", config__yaml="game: {name: chess}\nmodel: {name: tiny}\n"),
    *(folder(f"run_configured_by_{name}", config__yaml=damaged.CONFIGS[name]) for name in damaged.WORST),
    folder("run_with_an_unknown_key", config__yaml=CONFIG + "run: {stepps: 3}\n"),
]
UNFINISHED = [
    folder("run_without_checkpoints", config__yaml=CONFIG),
    folder("run_with_broken_metrics", config__yaml=CONFIG, metrics__jsonl='{"step": 0}\nnonsense\n[1]\n'),
    folder("run_with_broken_episodes", config__yaml=CONFIG, metrics__jsonl='{"step": 0}\n', episodes__jsonl="[[[\n"),
    folder("run_with_a_broken_evaluation", config__yaml=CONFIG, **{"eval_in_step-000000__json": '{"step": 1}'}),
    folder("run_with_an_empty_checkpoint", config__yaml=CONFIG, **{"checkpoints_in_step-1_in_manifest__json": "{}"}),
    folder("run_with_a_step_out_of_range", config__yaml=CONFIG, **{f"checkpoints_in_step-{'9' * 40}_in_x": "{}"}),
    folder("run_of_no_environment", config__yaml=CONFIG, environment__json="[]"),
    with_a_pipe_for("environment.json"),
    with_a_pipe_for("metrics.jsonl"),
    with_a_pipe_for("episodes.jsonl"),
    with_a_pipe_for("eval/step-000000.json"),
    with_a_pipe_for("checkpoints/step-1/manifest.json"),
    with_a_pipe_for(".lock"),
]  # fmt: skip


def may_not_be_written(path: Path) -> None:
    (path / "closed").mkdir()
    (path / "closed").chmod(0o555)


def may_not_be_read(path: Path) -> None:
    (path / "run").mkdir()
    (path / "run" / "config.yaml").write_text(CONFIG)
    (path / "run").chmod(0)


GOING_ON = (("train", "--resume", "run"), ("eval", "run", "--tasks", "letters"), (*TRAIN, "--init", "run"))
SHOWING = (("report", "run"), ("report", "run", "--json"), ("report", "run", "--figures"),
           ("view", "run", "--bundle", "runs"), ("why", "run"), ("why", "kl", "run"))  # fmt: skip
LISTING = (("list", "runs", "run"), ("list", "runs", "."))


def run_folders() -> Iterator[Request]:
    for prepare in NO_RUNS:
        for arguments in (*GOING_ON, *SHOWING):
            # What a run of a game that is not there holds is shown without that game's own words.
            reads = arguments[0] in ("report", "view") or "kl" in arguments
            shown = reads and prepare.__name__ == "run_of_another_game"
            yield Request(arguments, prepare, (0,) if shown else (2,))
    for prepare in UNFINISHED:
        for arguments in GOING_ON:
            yield Request(arguments, prepare)
        for arguments in (*SHOWING, *LISTING):  # a run without a line has nothing wrong: there is little to show
            yield Request(arguments, prepare, (0, 2))
    for prepare in (run_is_a_file, run_is_a_pipe, run_is_a_link_loop, UNFINISHED[0]):
        yield Request((*TRAIN, "--run-dir", "run"), prepare)
        yield Request(("cold-start", *TRAIN[1:], "--run-dir", "run"), prepare)
    yield Request((*TRAIN, "--run-dir", "run/below"), run_is_a_file)
    yield Request((*TRAIN, "--run-dir", "/proc/1/run"))
    yield Request((*TRAIN, "--run-dir", "closed/run"), may_not_be_written, plain=True)
    yield Request(("cold-start", *TRAIN[1:], "--run-dir", "closed/run"), may_not_be_written, plain=True)
    yield Request(
        ("config", "init", "agon", "--model", "tiny", "--out", "closed/c.yaml"), may_not_be_written, plain=True
    )
    for arguments in (*GOING_ON, *SHOWING):
        yield Request(arguments, may_not_be_read, plain=True)


QWEN = json.dumps({"model_type": "qwen3", "architectures": ["Qwen3ForCausalLM"]})
EMPTY_WEIGHTS = b"\x08\0\0\0\0\0\0\0{}      "


def model(name: str, **files: str | bytes) -> Prepare:
    return folder(name, "model", **files)


def model_configured_by(name: str, config: str | bytes) -> Prepare:
    """A model folder in which all but its configuration is in order."""
    return model(name, config__json=config, tokenizer__json="{}", model__safetensors=EMPTY_WEIGHTS)


MODELS = [
    model("model_empty"),
    model("model_without_weights", config__json=QWEN),
    model_configured_by("model_of_no_kind", '{"model_type": 0}'),
    model_configured_by("model_config_is_no_json", "{"),
    model_configured_by("model_config_is_a_list", "[1]"),
    model_configured_by("model_config_is_binary", b"\xff\xfe"),
    model_configured_by("model_config_is_deep", "[" * 100_000),
    model_configured_by("model_of_odd_sizes", QWEN[:-1] + ', "hidden_size": -1}'),
    model_configured_by("model_of_texts_for_sizes", QWEN[:-1] + ', "hidden_size": "x"}'),
    model("model_with_cut_weights", config__json=QWEN, tokenizer__json="{}", model__safetensors=b"\xff" * 20),
    model("model_with_a_broken_tokenizer", config__json=QWEN, tokenizer__json="{", model__safetensors=EMPTY_WEIGHTS),
    model("model_with_a_broken_index", config__json=QWEN, tokenizer__json="{}", model__safetensors=EMPTY_WEIGHTS,
          model__safetensors__index__json="[1"),
    model("model_with_an_index_of_nothing", config__json=QWEN, tokenizer__json="{}", model__safetensors=EMPTY_WEIGHTS,
          model__safetensors__index__json='{"weight_map": 3}'),
    with_a_pipe_for("config.json", "model", tokenizer__json="{}"),
    with_a_pipe_for("model.safetensors", "model", config__json=QWEN, tokenizer__json="{}"),
]  # fmt: skip


HEADER = b"GGUF" + (3).to_bytes(4, "little")
GGUFS = [
    holding("a_gguf_of_nothing", b"", "m.gguf"),
    holding("a_gguf_of_noise", bytes((i * i * 7 + i) % 251 for i in range(5000)), "m.gguf"),
    holding("a_gguf_of_endless_tensors", HEADER + b"\xff" * 16, "m.gguf"),
    holding("a_gguf_of_2_to_the_60_tensors", HEADER + (2**60).to_bytes(8, "little") + bytes(8), "m.gguf"),
    holding("a_gguf_of_no_tensors", HEADER + bytes(16), "m.gguf"),
    holding("a_gguf_of_another_version", b"GGUF" + (77).to_bytes(4, "little") + bytes(16), "m.gguf"),
    holding("a_gguf_of_the_other_end", b"GGUF" + (3).to_bytes(4, "big") + bytes(16), "m.gguf"),
    *(prepare for prepare in no_file("m.gguf") if prepare.__name__ in ("a_folder", "a_pipe", "a_device")),
]


def model_folders() -> Iterator[Request]:
    for prepare in MODELS:
        yield Request(("train", "agon", "--model", "./model", *TRAIN[4:]), prepare)
        yield Request(("eval", "./model", "--tasks", "letters"), prepare)
        # The shape is all that is looked at: what has one can be planned for.
        yield Request(("plan", "--model", "./model"), prepare, (0, 2))
    for prepare in GGUFS:
        yield Request(("train", "agon", "--model", "m.gguf", *TRAIN[4:]), prepare)
        yield Request(("eval", "m.gguf", "--tasks", "letters"), prepare)
        yield Request(("plan", "--model", "m.gguf"), prepare)


REQUESTS = [*run_folders(), *model_folders()]
