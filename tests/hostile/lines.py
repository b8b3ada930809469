"""Names that mean nothing, numbers out of range, places that are not there: over every command, flag and key."""

import shlex
from collections.abc import Iterator
from pathlib import Path

import yaml

from lite_selfplay.config import KEYS
from lite_selfplay.tasks import task_names

from .wrong import LONG_NAME, TRAIN, Request

DATA = yaml.safe_load(Path(__file__).with_name("requests.yaml").read_text(encoding="utf-8"))
BIG = "99999999999999999999999999"
PLACES = {
    "--knowledge": "", "--validation": ".jsonl", "--eval-tasks": ".jsonl", "--init": "", "--reward": ".py:f",
    "--config": "", "--resume": "", "--run-dir": "",
}  # fmt: skip
GAMES = {"--knowledge": "pasodoble", "--validation": "cpmobius"}


def request(*arguments: str, names: tuple[str, ...] = ()) -> Request:
    return Request(tuple(argument.replace("LONG", LONG_NAME) for argument in arguments), names=names)


def names() -> Iterator[Request]:
    for line, name in DATA["train_and_cold_start"].items():
        for command in ("train", "cold-start"):
            yield request(command, *shlex.split(line), names=(name,) if name else ())
    for line in DATA["lines"]:
        yield request(*shlex.split(line))
    for line in DATA["train"]:
        yield request(*TRAIN, *shlex.split(line))
    for odd in DATA["tasks"]:
        yield request(*TRAIN[:4], "--tasks", odd)
        yield request("eval", "tiny", "--tasks", odd)
    for name in task_names():
        yield request(*TRAIN[:4], "--tasks", f"{name}:nosuch=1", names=("nosuch",))
    for setting in DATA["settings"]:
        yield request(*TRAIN, "--set", setting)
    for flag, ending in PLACES.items():
        base = () if flag == "--resume" else (GAMES.get(flag, "agon"), *TRAIN[2:6])
        nowhere = "/proc/no/such" if flag == "--run-dir" else "no/such"
        for odd in (f"LONG{ending}", f"no/{'y' * 300}/such{ending}", nowhere, "/".join(["z" * 200] * 30) + ending):
            yield request("train", *base, flag, odd)


def values() -> Iterator[Request]:
    for line, flags in DATA["numbers"].items():
        for flag in flags:
            for odd in ("abc", "-1", "", BIG, "1.5" if line.startswith("train agon") else "nan"):
                yield Request((*line.split(), flag, odd))
    for path, odds in DATA["out_of_range"].items():
        for odd in odds:
            yield Request((*TRAIN, "--set", f"{path}={odd}"))
    for key in KEYS.values():
        path = key.path.replace("ROLE", "drafter").replace("SEAT", "A")
        odds = ("{a: 1}", "[[1]]")
        if key.kind in (int, float):
            odds = ("abc", "-1", "", "1e400", "nan", BIG)
        elif key.choices or key.kind is bool:
            odds = ("nosuch", "{a: 1}", "3.5")
        for odd in odds:
            if path != "roles.drafter.entropy" or odd != "-1":  # an entropy bonus may well be a penalty
                yield Request((*TRAIN, "--set", f"{path}={odd or '[]'}"))


NAMES, VALUES = [*names()], [*values()]
