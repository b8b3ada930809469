"""Run folders and model folders that are damaged, of another kind, or may not be written."""

import json
from collections.abc import Iterator, Mapping
from pathlib import Path

from tests import damaged

from .files import data
from .wrong import TRAIN, Prepare, Request, holding, no_file

CONFIG = "game: {name: agon}\nmodel: {name: tiny}\ntasks: {train: letters}\n"


def run(name: str, files: Mapping[str, str | bytes] | None = None, pipe: str | None = None) -> Prepare:
    """A run in which all but these files is in order."""
    inside = {"config.yaml": CONFIG, **(files or {})}
    return holding(name, {f"run/{file}": content for file, content in inside.items()}, pipe=pipe and f"run/{pipe}")


def with_a_pipe_for(file: str) -> Prepare:
    return run(f"a_pipe_for_{file}", pipe=file)


run_is_a_file = holding("run_is_a_file", {"run": "x"})
_, run_is_a_pipe, _, run_is_a_link_loop, *_ = no_file("run")
NO_RUNS = [
    run_is_a_file,
    run_is_a_pipe,
    run_is_a_link_loop,
    holding("a_pipe_for_config.yaml", {"run/": ""}, pipe="run/config.yaml"),
    holding("run_with_a_folder_for_a_config", {"run/config.yaml/x": ""}),
    holding("run_is_empty", {"run/": ""}),
    run("run_of_another_game", {"config.yaml": "game: {name: chess}\nmodel: {name: tiny}\n"}),
    *(run(f"run_configured_by_{name}", {"config.yaml": damaged.CONFIGS[name]}) for name in damaged.WORST),
    run("run_with_an_unknown_key", {"config.yaml": CONFIG + "run: {stepps: 3}\n"}),
]
UNFINISHED = [
    run("run_without_checkpoints"),
    run("run_with_broken_metrics", {"metrics.jsonl": '{"step": 0}\nnonsense\n[1]\n'}),
    run("run_with_broken_episodes", {"metrics.jsonl": '{"step": 0}\n', "episodes.jsonl": "[[[\n"}),
    run("run_with_a_broken_evaluation", {"eval/step-000000.json": '{"step": 1}'}),
    run("run_with_an_empty_checkpoint", {"checkpoints/step-1/manifest.json": "{}"}),
    run("run_with_a_step_out_of_range", {f"checkpoints/step-{'9' * 40}/x": "{}"}),
    run("run_of_no_environment", {"environment.json": "[]"}),
    *map(with_a_pipe_for, ("environment.json", "metrics.jsonl", "episodes.jsonl", "eval/step-000000.json")),
    *map(with_a_pipe_for, ("checkpoints/step-1/manifest.json", ".lock")),
]


def may_not_be_written(path: Path) -> None:
    (path / "closed").mkdir()
    (path / "closed").chmod(0o555)


def may_not_be_read(path: Path) -> None:
    run("")(path)
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


WHOLE = {"config.json": QWEN, "tokenizer.json": "{}", "model.safetensors": EMPTY_WEIGHTS}


def model(name: str, files: Mapping[str, str | bytes] = WHOLE, pipe: str | None = None) -> Prepare:
    """A model folder with these files."""
    inside = {f"model/{file}": content for file, content in files.items()}
    return holding(name, {"model/": "", **inside}, pipe=pipe and f"model/{pipe}")


CONFIGS: dict[str, str | bytes] = {
    "model_of_no_kind": '{"model_type": 0}',
    "model_config_is_no_json": "{",
    "model_config_is_a_list": "[1]",
    "model_config_is_binary": b"\xff\xfe",
    "model_config_is_deep": "[" * 100_000,
    "model_of_odd_sizes": QWEN[:-1] + ', "hidden_size": -1}',
    "model_of_texts_for_sizes": QWEN[:-1] + ', "hidden_size": "x"}',
}
MODELS = [
    model("model_empty", {}),
    model("model_without_weights", {"config.json": QWEN}),
    *(model(name, WHOLE | {"config.json": config}) for name, config in CONFIGS.items()),
    model("model_with_cut_weights", WHOLE | {"model.safetensors": b"\xff" * 20}),
    model("model_with_a_broken_tokenizer", WHOLE | {"tokenizer.json": "{"}),
    model("model_with_a_broken_index", WHOLE | {"model.safetensors.index.json": "[1"}),
    model("model_with_an_index_of_nothing", WHOLE | {"model.safetensors.index.json": '{"weight_map": 3}'}),
    model("a_pipe_for_config.json", {"tokenizer.json": "{}"}, "config.json"),
    model("a_pipe_for_model.safetensors", {"config.json": QWEN, "tokenizer.json": "{}"}, "model.safetensors"),
]
HEADER = b"GGUF" + (3).to_bytes(4, "little")
GGUFS = [
    data("a_gguf_of_nothing", b"", "m.gguf"),
    data("a_gguf_of_noise", bytes((i * i * 7 + i) % 251 for i in range(5000)), "m.gguf"),
    data("a_gguf_of_endless_tensors", HEADER + b"\xff" * 16, "m.gguf"),
    data("a_gguf_of_2_to_the_60_tensors", HEADER + (2**60).to_bytes(8, "little") + bytes(8), "m.gguf"),
    data("a_gguf_of_no_tensors", HEADER + bytes(16), "m.gguf"),
    data("a_gguf_of_another_version", b"GGUF" + (77).to_bytes(4, "little") + bytes(16), "m.gguf"),
    data("a_gguf_of_the_other_end", b"GGUF" + (3).to_bytes(4, "big") + bytes(16), "m.gguf"),
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
