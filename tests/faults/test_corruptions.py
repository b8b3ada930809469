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
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest
import torch
from safetensors.torch import load_file, save_file

from lite_selfplay.runs.checkpoints import MANIFEST, OPTIMIZER, STATE
from lite_selfplay.tasks.files import JSON_LIMIT, sha256_of
from tests import damaged

from .conftest import refusal

LAST, BEFORE = "checkpoints/step-3", "checkpoints/step-2"
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


@dataclass(frozen=True)
class Corruption:
    """What is done to a run folder; what a resume is to do then; which other commands are to refuse."""

    name: str
    damage: Damage
    resume: str
    refuse: tuple[str, ...] = ()


# Ways to damage a file


def place_of(path: Path) -> Path:
    """The folder that the damaged run lies in."""
    return next(parent for parent in path.parents if parent.name == PLACE)


def cut(path: Path, share: float = 0.5) -> None:
    content = path.read_bytes()
    path.write_bytes(content[: int(len(content) * share)])


def flip(path: Path, offset: int, bit: int = 0) -> None:
    content = bytearray(path.read_bytes())
    content[offset % len(content)] ^= 1 << bit
    path.write_bytes(content)


def swap(one: Path, other: Path) -> None:
    aside = one.with_name("aside")
    one.rename(aside)
    other.rename(one)
    aside.rename(other)


def link(path: Path) -> None:
    """Move a file or folder out of the run, and leave a link to it in its place."""
    outside = place_of(path) / "outside" / path.name
    outside.parent.mkdir(exist_ok=True)
    if path.exists():
        path.rename(outside)
    else:
        outside.write_text("somebody else's\n")
    path.symlink_to(outside)


def huge(path: Path) -> None:
    path.write_bytes(b'{"step": 0, "x": "' + b"a" * JSON_LIMIT + b'"}\n')


def pickled(path: Path) -> None:
    path.write_bytes(pickle.dumps(Touch(place_of(path) / TOUCHED)))


def change(path: Path, **values: Any) -> None:
    path.write_text(json.dumps({**json.loads(path.read_text()), **values}))


def relist(checkpoint: Path) -> None:
    """Make the manifest fit what the files hold now."""
    manifest = json.loads((checkpoint / MANIFEST).read_text())
    change(
        checkpoint / MANIFEST,
        files={
            n: {"size": (checkpoint / n).stat().st_size, "sha256": sha256_of(checkpoint / n)} for n in manifest["files"]
        },
    )


def listed_as(name: str) -> Damage:
    """The manifest names another file in the place of the state."""

    def damage(run: Path) -> None:
        manifest = json.loads((run / LAST / MANIFEST).read_text())
        manifest["files"][name] = manifest["files"][STATE]
        (run / LAST / MANIFEST).write_text(json.dumps(manifest))

    return damage


def in_state(**values: Any) -> Damage:
    """The state says something else, and the manifest was made to fit."""

    def damage(run: Path) -> None:
        change(run / LAST / STATE, **values)
        relist(run / LAST)

    return damage


def in_tensors(name: str, change_one: Callable[[torch.Tensor], torch.Tensor]) -> Damage:
    """The tensors of a file are others, and the manifest was made to fit."""

    def damage(run: Path) -> None:
        file = run / LAST / name
        save_file({key: change_one(tensor).contiguous() for key, tensor in load_file(file).items()}, file)
        relist(run / LAST)

    return damage


def relisted(name: str, damage_one: Damage) -> Damage:
    def damage(run: Path) -> None:
        damage_one(run / LAST / name)
        relist(run / LAST)

    return damage


def at(name: str, damage_one: Damage) -> Damage:
    return lambda run: damage_one(run / name)


def text(content: str | bytes) -> Damage:
    return lambda path: path.write_bytes(content if isinstance(content, bytes) else content.encode())


def lines(content: bytes) -> Damage:
    """A line more at the end of a JSONL file."""

    def damage(path: Path) -> None:
        path.write_bytes(path.read_bytes() + content)

    return damage


def in_config(**sections: Any) -> Damage:
    """Other keys in config.yaml."""

    def damage(run: Path) -> None:
        import yaml

        values = yaml.safe_load((run / "config.yaml").read_text())
        for section, keys in sections.items():
            values[section] = {**values[section], **keys}
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
    (model / "pytorch_model.bin").write_bytes(pickle.dumps(Touch(run.parent / TOUCHED)))
    in_config(model={"name": str(model)})(run)


# The list

BAD_JSON: dict[str, Damage] = {
    "is empty": text(""),
    "is cut": cut,
    "is longer than any": huge,
    "is a pickle": pickled,
    **{f"holds {name}": text(content) for name, content in damaged.NO_JSON.items()},
}
BAD_LINES: dict[str, bytes] = {
    **{name: content + b"\n" for name, content in damaged.NO_JSON.items()},
    "a blank line": b"\n",
    "no step": b'{"x": 3}\n',
    "a step that is text": b'{"step": "3"}\n',
    "longer than any": b'{"step": 3, "x": "' + b"a" * JSON_LIMIT + b'"}\n',
}
FILES = (STATE, OPTIMIZER, SEAT, SEAT.replace("/A/", "/B/"), "snapshot-0.safetensors", MANIFEST)


def corruptions() -> Iterator[Corruption]:
    rng = random.Random(5)
    for name in FILES:
        for kind, damage in (("cut in half", cut), ("cut to nothing", text("")), ("longer", lines(b"\0"))):
            if (name, kind) != (MANIFEST, "longer"):
                yield Corruption(f"{name} {kind}", at(f"{LAST}/{name}", damage), FALLS_BACK)
        yield Corruption(f"{name} is missing", at(f"{LAST}/{name}", Path.unlink), FALLS_BACK)
        yield Corruption(f"{name} is a link", at(f"{LAST}/{name}", link), FALLS_BACK)
        yield Corruption(f"{name} is a pickle", at(f"{LAST}/{name}", pickled), FALLS_BACK)
        if name != MANIFEST:  # which is no file of itself; it is read, and some bits of it are spaces
            for offset in rng.sample(range(100_000), FLIPS):
                bit = rng.randrange(8)
                yield Corruption(
                    f"{name}, bit {bit} of byte {offset} flipped",
                    at(f"{LAST}/{name}", lambda path, offset=offset, bit=bit: flip(path, offset, bit)),
                    FALLS_BACK,
                )
    yield Corruption(
        "two seats swapped", lambda run: swap(run / LAST / SEAT, run / LAST / SEAT.replace("/A/", "/B/")), FALLS_BACK
    )
    yield Corruption(
        "state of the step before", lambda run: shutil.copy(run / BEFORE / STATE, run / LAST / STATE), FALLS_BACK
    )
    yield Corruption("the newest checkpoint is gone", at(LAST, shutil.rmtree), KEEPS_ON)
    yield Corruption(
        "a step under a later name", lambda run: shutil.copytree(run / LAST, run / "checkpoints/step-4"), KEEPS_ON
    )
    for kind, damage in BAD_JSON.items():
        yield Corruption(f"{MANIFEST} {kind}", at(f"{LAST}/{MANIFEST}", damage), FALLS_BACK)
    for name in ("/etc/passwd", "../step-2/state.json", "a/../../x", "C:\\x", "a\\b", "", "x\0y", "./state.json"):
        yield Corruption(f"{MANIFEST} names {name!r}", listed_as(name), FALLS_BACK)
    yield Corruption("the checkpoint is a link", at(LAST, link), FALLS_BACK)
    yield Corruption("its adapters are a link", at(f"{LAST}/adapters", link), FALLS_BACK)
    yield Corruption(
        "the checkpoint is a file", lambda run: (shutil.rmtree(run / LAST), (run / LAST).touch()), FALLS_BACK
    )
    yield Corruption("a file more, a pickle", at(f"{LAST}/more.safetensors", pickled), KEEPS_ON)

    # The manifest fits: whoever did this meant it.
    for kind, damage in BAD_JSON.items():
        if kind != "is cut":
            yield Corruption(f"fitting, {STATE} {kind}", relisted(STATE, damage), REFUSED)
    for name in (SEAT, OPTIMIZER, "snapshot-0.safetensors"):
        yield Corruption(f"fitting, {name} is a pickle", relisted(name, pickled), REFUSED)
        yield Corruption(f"fitting, {name} is cut", relisted(name, cut), REFUSED)
        yield Corruption(f"fitting, {name} has a huge header", relisted(name, text(b"\xff" * 7 + b"\0{}")), REFUSED)
        yield Corruption(f"fitting, {name} has an odd header", relisted(name, text(b"\2\0\0\0\0\0\0\0[]")), REFUSED)
    for name in (SEAT, "snapshot-0.safetensors"):
        yield Corruption(f"fitting, {name} of another rank", in_tensors(name, lambda t: t[:1, :1]), REFUSED)
        yield Corruption(f"fitting, {name} not finite", in_tensors(name, lambda t: t * float("nan")), REFUSED)
        yield Corruption(f"fitting, {name} in half precision", in_tensors(name, lambda t: t.half()), REFUSED)
    yield Corruption("fitting, moments of another shape", in_tensors(OPTIMIZER, lambda t: t.flatten()[:1]), REFUSED)
    for about, values in (
        ("the game", {"game": "grpo"}),
        ("the base", {"base": "tiny:2"}),
        ("the ranks", {"ranks": {"A": 2, "B": 2}}),
        ("the configuration", {"config_hash": "0" * 64}),
    ):
        damage = lambda run, values=values: change(run / LAST / MANIFEST, **values)  # noqa: E731
        yield Corruption(f"{MANIFEST} has changed {about}", damage, REFUSED)
    for about, values in (
        ("another step", {"step": 9}),
        ("other seats", {"versions": {"Z": 1}}),
        ("counts that are none", {"versions": {"A": -1, "B": "x"}}),
        ("snapshots of no seat", {"snapshots": [{"name": "x", "seat": "Z"}]}),
        ("a snapshot outside", {"snapshots": [{"name": "../../x", "seat": 1}]}),
        ("no game", {"game": None}),
        ("a game that is a list", {"game": [1]}),
        ("no sources", {"sources": {}}),
        ("a position before the first", {"sources": {"problems": {"position": -1}}}),
        ("a position that is text", {"sources": {"problems": {"position": "x"}}}),
        ("a cold start that is text", {"cold_started": "yes"}),
        ("skipped steps that are text", {"skipped_steps": "1"}),
        ("bad steps that are text", {"nonfinite": "1"}),
    ):
        yield Corruption(f"fitting, {STATE} has {about}", in_state(**values), REFUSED)

    # The rest of the folder
    everything = ("report", "eval")
    for name in damaged.WORST:
        damage = at("config.yaml", text(damaged.CONFIGS[name]))
        yield Corruption(f"config.yaml holds {name}", damage, REFUSED, everything)
    yield Corruption("config.yaml is a pickle", at("config.yaml", pickled), REFUSED, everything)
    yield Corruption("config.yaml is a link", at("config.yaml", link), REFUSED)
    yield Corruption("config.yaml names another game", in_config(game={"name": "chess"}), REFUSED, ("eval",))
    yield Corruption("config.yaml names another rank", in_config(seats={"A": {"rank": 2}}), REFUSED, ("eval",))
    yield Corruption(
        "config.yaml trusts the model's code", in_config(model={"trust_remote_code": True}), REFUSED, ("eval",)
    )
    yield Corruption("config.yaml names a reward function of the folder", with_code, REFUSED)
    yield Corruption("config.yaml names a model of the folder", with_a_model, REFUSED, ("eval",))
    for kind, damage in BAD_JSON.items():
        yield Corruption(f"environment.json {kind}", at("environment.json", damage), KEEPS_ON, ("eval",))
    for name in ("metrics.jsonl", "episodes.jsonl"):
        for kind, line in BAD_LINES.items():
            yield Corruption(f"a line of {name}: {kind}", at(name, lines(line)), REFUSED, ("report",))
        yield Corruption(f"{name} is a link", at(name, link), REFUSED)
    for kind, damage in BAD_JSON.items():
        yield Corruption(f"an evaluation {kind}", at("eval/step-000003.json", damage), REFUSED, ("report",))
    yield Corruption(
        "an evaluation without rates", at("eval/x.json", text('{"seats": {}, "moment": "m", "step": 1}')), REFUSED
    )
    for name in ("adapters", "checkpoints", "eval", "README.md", "environment.json", "cold_start.jsonl", ".lock"):
        yield Corruption(f"{name} is a link", at(name, link), REFUSED)
    for kind, damage in (("cut", cut), ("a pickle", pickled), ("empty", text("")), ("missing", Path.unlink)):
        yield Corruption(f"{SEAT} is {kind}", at(SEAT, damage), KEEPS_ON, ("eval",))
        yield Corruption(f"adapter_config.json is {kind}", at("adapters/A/adapter_config.json", damage), KEEPS_ON)
    yield Corruption("a seat of the adapters is a link", at("adapters/A", link), KEEPS_ON, ("eval",))
    for kind, damage in BAD_JSON.items():
        yield Corruption(f"best.json {kind}", at("checkpoints/best.json", damage), KEEPS_ON)


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
    wrong = []
    before = seen(place)
    for command in corruption.refuse:
        ended = lab.run(*COMMANDS[command](run))
        if ended.code not in (1, 2):
            wrong.append(f"{command} ends with {ended.code}")
        elif why := refusal(ended.said):
            wrong.append(f"{command}: {why}")
        if "Traceback" in ended.said or ended.code not in (0, 1, 2):
            wrong.append(f"{command} ends with {ended.code}: {ended.said[-300:]}")
        if seen(place) != before:
            wrong.append(f"{command} changed the folder")
            before = seen(place)
    ended = lab.run("train", "--resume", run)
    if corruption.resume == REFUSED:
        if ended.code not in (1, 2):
            wrong.append(f"resume ends with {ended.code}")
        elif why := refusal(ended.said):
            wrong.append(f"resume: {why}")
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


COMMANDS: dict[str, Callable[[Path], tuple[object, ...]]] = {
    "report": lambda run: ("report", run),
    "eval": lambda run: ("eval", run, "--tasks", "letters", "--limit", 2),
}
QUICK = (f"{STATE} cut in half", f"fitting, {SEAT} is a pickle")


def test_damaged_and_hostile_folders_are_refused(lab: Any, stopped: Path, count: int, show: Callable[..., None]):
    tries = [one for one in corruptions() if count or one.name in QUICK]
    wrong = {one.name: found for one in tries if (found := tried(lab, stopped, one))}
    if count:
        table: list[list[object]] = [["a resume is to", "corruptions", "as it is to be"]]
        for way in (FALLS_BACK, REFUSED, KEEPS_ON, "all"):
            some = [one for one in tries if way in (one.resume, "all")]
            table.append([WAYS[way], len(some), sum(one.name not in wrong for one in some)])
        show("corruptions", table)
    assert not wrong, "\n".join(f"{name}: {'; '.join(found)}" for name, found in wrong.items())


WAYS = {
    FALLS_BACK: "skip the checkpoint, say so, end alike",
    REFUSED: "refuse in one sentence, change nothing",
    KEEPS_ON: "end alike; what else reads it refuses",
    "all": "all",
}


def test_the_page_says_how_many_there_are():
    page = (Path(__file__).parents[2] / "docs" / "reliability.md").read_text(encoding="utf-8")
    assert f"(the list has {len(list(corruptions()))} today)" in page.replace("\n", " ")
