"""Run folders that were damaged, or made by somebody who means harm, and what the commands do with them.

Every command ends with exit code 0, 1 or 2, and in the latter two with one sentence; nothing is executed; what is
refused is left as it is. A resume that finds its newest checkpoint damaged says so, and goes on from the one before to
the same end.
"""

import json
import os
import pickle
import random
import shutil
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any, NamedTuple

import pytest
import torch
import yaml
from safetensors.torch import load_file, save_file

from lite_selfplay.runs.checkpoints import MANIFEST, OPTIMIZER, STATE
from lite_selfplay.tasks.files import JSON_LIMIT, sha256_of
from tests import damaged

from .conftest import refusal

LAST, BEFORE = "checkpoints/step-3", "step-2"
SEAT = "adapters/A/adapter_model.safetensors"
FLIPS = 6
"""Bits flipped in each file of a checkpoint, one at a time."""

Damage = Callable[[Path], Any]
PLACE, TOUCHED = "damaged", "touched"
FALLS_BACK, REFUSED, KEEPS_ON = "falls back", "refused", "keeps on"


class Touch:
    """A pickle that writes a file when it is read."""

    def __init__(self, path: Path):
        self.path = path

    def __reduce__(self) -> Any:
        return (Path.write_text, (self.path, "a pickle has run"))


class Corruption(NamedTuple):
    """What is done to a run folder; what a resume is to do then; which other commands are to refuse."""

    name: str
    damage: Damage
    resume: str
    refuse: tuple[str, ...] = ()


# Ways to damage a file or a folder


def place_of(path: Path) -> Path:
    """The folder that the damaged run lies in."""
    return next(parent for parent in path.parents if parent.name == PLACE)


def text(content: str | bytes) -> Damage:
    return lambda path: path.write_bytes(content if isinstance(content, bytes) else content.encode())


def with_line(content: bytes) -> Damage:
    return lambda path: path.write_bytes(path.read_bytes() + content)


def cut(path: Path) -> None:
    path.write_bytes(path.read_bytes()[: path.stat().st_size // 2])


def flip(offset: int, bit: int) -> Damage:
    def damage(path: Path) -> None:
        content = bytearray(path.read_bytes())
        content[offset % len(content)] ^= 1 << bit
        path.write_bytes(content)

    return damage


def link(path: Path) -> None:
    """Move a file or folder out of the run, and leave a link to it in its place."""
    outside = place_of(path) / "outside" / path.name
    outside.parent.mkdir(exist_ok=True)
    if path.exists():
        path.rename(outside)
    else:
        outside.write_text("somebody else's\n")
    path.symlink_to(outside)


def pickled(path: Path) -> None:
    path.write_bytes(pickle.dumps(Touch(place_of(path) / TOUCHED)))


def swap_seats(checkpoint: Path) -> None:
    one, aside, other = (checkpoint / "adapters" / name / SEAT.rpartition("/")[2] for name in ("A", ".", "B"))
    one.rename(aside)
    other.rename(one)
    aside.rename(other)


def change(**values: Any) -> Damage:
    """Other values of a JSON object."""
    return lambda path: path.write_text(json.dumps({**json.loads(path.read_text()), **values}))


def listed_as(name: str) -> Damage:
    """The manifest names another file in the place of the state."""

    def damage(path: Path) -> None:
        files = json.loads(path.read_text())["files"]
        change(files={**files, name: files[STATE]})(path)

    return damage


def in_tensors(change_one: Callable[[torch.Tensor], torch.Tensor]) -> Damage:
    """The tensors of a file are others."""
    return lambda file: save_file({key: change_one(x).contiguous() for key, x in load_file(file).items()}, file)


def fitting(name: str, damage: Damage) -> Damage:
    """A file of the checkpoint is damaged, and the manifest was made to fit what the files hold now."""

    def damaged_and_listed(checkpoint: Path) -> None:
        damage(checkpoint / name)
        files = [checkpoint / each for each in json.loads((checkpoint / MANIFEST).read_text())["files"]]
        told = {f.relative_to(checkpoint).as_posix(): {"size": f.stat().st_size, "sha256": sha256_of(f)} for f in files}
        change(files=told)(checkpoint / MANIFEST)

    return damaged_and_listed


def in_config(**sections: Any) -> Damage:
    """Other keys in config.yaml."""

    def damage(run: Path) -> None:
        values = yaml.safe_load((run / "config.yaml").read_text())
        values |= {section: {**values[section], **keys} for section, keys in sections.items()}
        (run / "config.yaml").write_text(yaml.safe_dump(values))

    return damage


def with_code(run: Path) -> None:
    """A reward function that came with the folder."""
    (run / "reward.py").write_text(
        f"from pathlib import Path\nPath({str(run.parent / TOUCHED)!r}).write_text('a reward function has run')\n"
        "def reward(completions):\n    return [1.0] * len(completions)\n"
    )
    in_config(run={"reward": str(run / "reward.py") + ":reward"})(run)


def with_a_model(run: Path) -> None:
    """A base that came with the folder, its weights a pickle."""
    model = run / "model"
    model.mkdir()
    (model / "config.json").write_text(json.dumps({"model_type": "qwen3", "architectures": ["Qwen3ForCausalLM"]}))
    (model / "tokenizer.json").write_text("{}")
    pickled(model / "pytorch_model.bin")
    in_config(model={"name": str(model)})(run)


# The list

HUGE = b'{"step": 0, "x": "' + b"a" * JSON_LIMIT + b'"}\n'
BAD_JSON: dict[str, Damage] = {
    "is empty": text(""),
    "is cut": cut,
    "is longer than any": text(HUGE),
    "is a pickle": pickled,
    **{f"holds {name}": text(content) for name, content in damaged.NO_JSON.items()},
}
BAD_LINES: dict[str, bytes] = {
    **{name: content + b"\n" for name, content in damaged.NO_JSON.items()},
    "a blank line": b"\n",
    "no step": b'{"x": 3}\n',
    "a step that is text": b'{"step": "3"}\n',
    "longer than any": HUGE,
}
SNAPSHOT, OTHER_SEAT = "snapshot-0.safetensors", SEAT.replace("/A/", "/B/")
FILES = (STATE, OPTIMIZER, SEAT, OTHER_SEAT, SNAPSHOT, MANIFEST)
BREAK: dict[str, Damage] = {
    "cut in half": cut,
    "cut to nothing": text(""),
    "longer": with_line(b"\0"),
    "is missing": Path.unlink,
    "is a link": link,
    "is a pickle": pickled,
}
NAMES = ("/etc/passwd", "../step-2/state.json", "a/../../x", "C:\\x", "a\\b", "", "x\0y", "./state.json")
TENSORS: dict[str, Damage] = {
    "is a pickle": pickled,
    "is cut": cut,
    "has a huge header": text(b"\xff" * 7 + b"\0{}"),
    "has an odd header": text(b"\2\0\0\0\0\0\0\0[]"),
}
WEIGHTS: dict[str, Callable[[torch.Tensor], torch.Tensor]] = {
    "of another rank": lambda tensor: tensor[:1, :1],
    "not finite": lambda tensor: tensor * float("nan"),
    "in half precision": lambda tensor: tensor.half(),
}
OF_ANOTHER: dict[str, Any] = {
    "the game": {"game": "grpo"},
    "the base": {"base": "tiny:2"},
    "the ranks": {"ranks": {"A": 2, "B": 2}},
    "the configuration": {"config_hash": "0" * 64},
}
STATES: dict[str, Any] = {
    "another step": {"step": 9},
    "other seats": {"versions": {"Z": 1}},
    "counts that are none": {"versions": {"A": -1, "B": "x"}},
    "snapshots of no seat": {"snapshots": [{"name": "x", "seat": "Z"}]},
    "a snapshot outside": {"snapshots": [{"name": "../../x", "seat": 1}]},
    "no game": {"game": None},
    "a game that is a list": {"game": [1]},
    "no sources": {"sources": {}},
    "a position before the first": {"sources": {"problems": {"position": -1}}},
    "a position that is text": {"sources": {"problems": {"position": "x"}}},
    "a cold start that is text": {"cold_started": "yes"},
    "skipped steps that are text": {"skipped_steps": "1"},
    "bad steps that are text": {"nonfinite": "1"},
}


def of_the_checkpoint() -> Iterator[tuple[str, str, Damage, str]]:
    """Corruptions of the newest checkpoint, or of a file in it."""
    rng = random.Random(5)
    for name in FILES:
        for kind, damage in BREAK.items():
            if (name, kind) != (MANIFEST, "longer"):
                yield f"{name} {kind}", name, damage, FALLS_BACK
        if name != MANIFEST:  # which is no file of itself; it is read, and some bits of it are spaces
            for offset in rng.sample(range(100_000), FLIPS):
                bit = rng.randrange(8)
                yield f"{name}, bit {bit} of byte {offset} flipped", name, flip(offset, bit), FALLS_BACK
    for kind, damage in BAD_JSON.items():
        yield f"{MANIFEST} {kind}", MANIFEST, damage, FALLS_BACK
    for name in NAMES:
        yield f"{MANIFEST} names {name!r}", MANIFEST, listed_as(name), FALLS_BACK
    yield "two seats swapped", "", swap_seats, FALLS_BACK
    yield "state of the step before", "", lambda at: shutil.copy(at.parent / BEFORE / STATE, at / STATE), FALLS_BACK
    yield "the newest checkpoint is gone", "", shutil.rmtree, KEEPS_ON
    yield "a step under a later name", "", lambda at: shutil.copytree(at, at.with_name("step-4")), KEEPS_ON
    yield "the checkpoint is a link", "", link, FALLS_BACK
    yield "its adapters are a link", "adapters", link, FALLS_BACK
    yield "the checkpoint is a file", "", lambda at: (shutil.rmtree(at), at.touch()), FALLS_BACK
    yield "a file more, a pickle", "more.safetensors", pickled, KEEPS_ON
    for about, values in OF_ANOTHER.items():
        yield f"{MANIFEST} has changed {about}", MANIFEST, change(**values), REFUSED

    # The manifest fits: whoever did this meant it.
    meant = [(f"{STATE} {kind}", STATE, damage) for kind, damage in BAD_JSON.items() if kind != "is cut"]
    meant += [(f"{STATE} has {about}", STATE, change(**values)) for about, values in STATES.items()]
    for name in (SEAT, OPTIMIZER, SNAPSHOT):
        meant += [(f"{name} {kind}", name, damage) for kind, damage in TENSORS.items()]
        if name != OPTIMIZER:
            meant += [(f"{name} {kind}", name, in_tensors(change_one)) for kind, change_one in WEIGHTS.items()]
    meant += [("moments of another shape", OPTIMIZER, in_tensors(lambda tensor: tensor.flatten()[:1]))]
    for title, name, damage in meant:
        yield f"fitting, {title}", "", fitting(name, damage), REFUSED


def of_the_rest() -> Iterator[tuple[Any, ...]]:
    """Corruptions of the run folder, or of a file in it."""
    everything = ("report", "eval")
    for name in damaged.WORST:
        yield f"config.yaml holds {name}", "config.yaml", text(damaged.CONFIGS[name]), REFUSED, everything
    yield "config.yaml is a pickle", "config.yaml", pickled, REFUSED, everything
    yield "config.yaml names another game", "", in_config(game={"name": "chess"}), REFUSED, ("eval",)
    yield "config.yaml names another rank", "", in_config(seats={"A": {"rank": 2}}), REFUSED, ("eval",)
    trusting = in_config(model={"trust_remote_code": True})
    yield "config.yaml trusts the model's code", "", trusting, REFUSED, ("eval",)
    yield "config.yaml names a reward function of the folder", "", with_code, REFUSED
    yield "config.yaml names a model of the folder", "", with_a_model, REFUSED, ("eval",)
    for kind, damage in BAD_JSON.items():
        yield f"environment.json {kind}", "environment.json", damage, KEEPS_ON, ("eval",)
        yield f"an evaluation {kind}", "eval/step-000003.json", damage, KEEPS_ON
        yield f"best.json {kind}", "checkpoints/best.json", damage, KEEPS_ON
    for name in ("metrics.jsonl", "episodes.jsonl"):
        for kind, line in BAD_LINES.items():
            yield f"a line of {name}: {kind}", name, with_line(line), REFUSED, ("report",)
    without_rates = text('{"seats": {}, "moment": "m", "step": 1}')
    yield "an evaluation without rates", "eval/step-000003.json", without_rates, KEEPS_ON
    places = ("config.yaml", "metrics.jsonl", "episodes.jsonl", "adapters", "checkpoints", "eval", "README.md")
    for name in (*places, "environment.json", "cold_start.jsonl", ".lock"):
        yield f"{name} is a link", name, link, REFUSED
    for kind, damage in (("cut", cut), ("a pickle", pickled), ("empty", text("")), ("missing", Path.unlink)):
        yield f"{SEAT} is {kind}", SEAT, damage, KEEPS_ON
        yield f"adapter_config.json is {kind}", "adapters/A/adapter_config.json", damage, KEEPS_ON
    yield "a seat of the adapters is a link", "adapters/A", link, KEEPS_ON


def corruptions() -> Iterator[Corruption]:
    for place, some in ((LAST, of_the_checkpoint()), ("", of_the_rest())):
        for title, name, damage, *expected in some:
            whole = Path(place, name)
            yield Corruption(title, lambda run, whole=whole, damage=damage: damage(run / whole), *expected)


# What is to be seen


@pytest.fixture(scope="module")
def stopped(lab: Any) -> Path:
    """A run that was stopped in its last step."""
    run: Path = lab.stopped(lab.new(), generation=4)
    assert {path.name for path in (run / "checkpoints").glob("step-*")} >= {"step-2", "step-3"}
    return run


def seen(folder: Path) -> dict[str, Any]:
    """Everything below a folder: contents, links, and what is not a file."""
    found: dict[str, Any] = {}
    for place, folders, files in os.walk(folder):
        for name in [*folders, *files]:
            path = Path(place, name)
            if path.is_symlink():
                found[str(path)] = os.readlink(path)
            else:
                found[str(path)] = sha256_of(path) if path.is_file() else None
    return found


def tried(lab: Any, stopped: Path, corruption: Corruption) -> list[str]:
    """What a corruption led to that it must not."""
    place = lab.place / PLACE
    shutil.rmtree(place, ignore_errors=True)
    run = place / "run"
    shutil.copytree(stopped, run)
    corruption.damage(run)
    wrong: list[str] = []
    before = seen(place)
    for command in corruption.refuse:
        wrong += not_refused(lab.run(*COMMANDS[command](run)), command)
        if seen(place) != before:
            wrong.append(f"{command} changed the folder")
            before = seen(place)
    ended = lab.run("train", "--resume", run)
    if corruption.resume == REFUSED:
        wrong += not_refused(ended, "resume")
        if (after := seen(place)) != before:
            changed = sorted(key for key in before | after if before.get(key) != after.get(key))
            wrong.append(f"resume changed {len(changed)} files, {changed[0]} first")
    else:
        if ended.code != 0:
            wrong.append(f"resume ends with {ended.code}: {ended.said[-300:]}")
        elif differences := lab.differences(run):
            wrong.append(f"the resumed run has other {', '.join(differences)}")
        if corruption.resume == FALLS_BACK and "skipped" not in ended.said:
            wrong.append("resume does not say what it skipped")
    if touched := [path for path in (place / TOUCHED, lab.place / TOUCHED) if path.exists()]:
        wrong.append(f"code has run: {touched}")
    shutil.rmtree(place)
    return wrong


def not_refused(ended: Any, command: str) -> list[str]:
    why = refusal(ended.said) if ended.code in (1, 2) else f"ends with {ended.code}: {ended.said[-300:]}"
    return [f"{command}: {why}"] if why else []


COMMANDS: dict[str, Callable[[Path], tuple[object, ...]]] = {
    "report": lambda run: ("report", run),
    "eval": lambda run: ("eval", run, "--tasks", "letters", "--limit", 2),
}
QUICK = (f"{STATE} cut in half", f"fitting, {SEAT} is a pickle")


def test_damaged_and_hostile_folders_are_refused(lab: Any, stopped: Path, count: int, tally: Callable[..., None]):
    tries = [one for one in corruptions() if count or one.name in QUICK]
    tally("corruptions", "a resume is to", [(WAYS[one.resume], one.name, tried(lab, stopped, one)) for one in tries])


WAYS = {
    FALLS_BACK: "skip the checkpoint, say so, end alike",
    REFUSED: "refuse in one sentence, change nothing",
    KEEPS_ON: "end alike; what else reads it refuses",
}


def test_the_page_says_how_many_there_are():
    page = (Path(__file__).parents[2] / "docs" / "reliability.md").read_text(encoding="utf-8")
    assert f"{len(list(corruptions()))} damaged or hostile run folders" in page.replace("\n", " ")
