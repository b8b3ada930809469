"""Numbers out of range, values of another type: every key of a configuration, every flag of every command."""

from collections.abc import Iterator

from lite_selfplay.config import KEYS

from .wrong import TRAIN, Request

NUMBERS = ("abc", "-1", "", "1e400", "nan", "99999999999999999999999999")
NO_TEXTS = ("{a: 1}", "[[1]]")
NO_CHOICES = ("nosuch", "{a: 1}", "3.5")
FLAGS = ("--steps", "--group-size", "--problems-per-step", "--max-completion-tokens", "--seed", "--eval-every",
         "--eval-limit", "--save-every")  # fmt: skip
OF_OTHERS = {
    "eval tiny --tasks letters": (
        *("--limit", "--samples", "--temperature", "--top-p", "--max-completion-tokens", "--seed"),
    ),
    "plan --model tiny": ("--prompt-tokens", "--group-size", "--problems-per-step", "--max-completion-tokens"),
    "cold-start agon --model tiny --tasks letters": (
        *("--steps", "--examples-per-step", "--lr", "--eval-limit", "--seed"),
    ),
    "report .": ("--duels",),
    "train --resume nosuch": ("--steps",),
}  # fmt: skip
PRECISE = {
    "run.seed": ("4294967296", "18446744073709551616"),
    "run.steps": ("2147483648", "9223372036854775808"),
    "seats.A.lr": ("1e300", "1e39", "11"),
    "seats.*.lr": ("1e300",),
    "cold_start.lr": ("1e300",),
    "roles.*.temperature": ("1e300", "1e-300", "0"),
    "roles.*.beta": ("1e300",),
    "roles.*.entropy": ("1e300", "-1e300"),
    "seats.*.init_std": ("1e300",),
    "seats.*.weight_decay": ("1e300",),
    "seats.*.rank": ("100000000",),
    "run.group_size": ("1", "100000000000"),
    "run.max_completion_tokens": ("1000000000000000",),
    "run.verify_timeout_s": ("1e300",),
    "run.save_minutes": ("1e400",),
    "eval.temperature": ("1e300",),
    "eval.samples": ("100000000000",),
}


def numbers() -> Iterator[Request]:
    for flag in FLAGS:
        for odd in ("abc", "-1", "1.5", "", NUMBERS[-1]):
            yield Request((*TRAIN[:6], flag, odd))
    for line, flags in OF_OTHERS.items():
        for flag in flags:
            for odd in ("abc", "-1", "", "nan", NUMBERS[-1]):
                yield Request((*line.split(), flag, odd))
    for path, odds in PRECISE.items():
        for odd in odds:
            yield Request((*TRAIN, "--set", f"{path}={odd}"))
    yield Request((*TRAIN, "--seed", "4294967296"))
    yield Request(("eval", "tiny", "--tasks", "letters", "--seed", "4294967296"))


def keys() -> Iterator[Request]:
    for key in KEYS.values():
        path = key.path.replace("ROLE", "drafter").replace("SEAT", "A")
        odds = NUMBERS if key.kind in (int, float) else NO_CHOICES if key.choices or key.kind is bool else NO_TEXTS
        for odd in odds:
            if path == "roles.drafter.entropy" and odd == "-1":  # an entropy bonus may well be a penalty
                continue
            yield Request((*TRAIN, "--set", f"{path}={odd or '[]'}"))


REQUESTS = [*numbers(), *keys()]
