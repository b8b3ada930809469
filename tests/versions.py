"""Tries the core tests with the oldest and the newest releases that are let in, and the wheel beside its neighbours.

    python tests/versions.py [oldest] [newest] [3.12] [3.13] [beside]

Each end has an environment of its own, made by uv (`$UV`), which takes torch alone from the one this runs in. Another
Python, if `python3.12` is on the path, has the newest releases and a torch of its own: from the index that its platform
is given, gigabytes on Linux. `beside` asks uv whether one set of releases fits the wheel and each of its neighbours.
Needs a network, so it is no part of `make test`. Warnings of other libraries about themselves are not looked at here.
"""

import os
import re
import shutil
import subprocess
import sys
import sysconfig
import tempfile
from importlib.metadata import version
from pathlib import Path

ROOT = Path(__file__).parents[1]
PYTHON = f"{sys.version_info.major}.{sys.version_info.minor}"
SETS = {"oldest": ("lowest-direct", PYTHON), "newest": ("highest", PYTHON)}
SETS |= {python: ("highest", python) for python in ("3.12", "3.13") if python != PYTHON}
OF_TORCH = re.compile(r"(torch|triton|nvidia-|cuda-)")
NEIGHBOURS = {
    "hydra-core and omegaconf": ["hydra-core", "omegaconf<2.4"],  # whose antlr is of version 4.9
    "unsloth": ["unsloth"],
    "vllm": ["vllm"],
    "inspect-ai": ["inspect-ai"],
}
SHOWN = re.compile(
    r"(torch|transformers|trl|peft|datasets|accelerate|numpy|filelock|psutil|antlr4\S*|omegaconf|vllm)=="
)
CORE = [
    *("tests/games/test_golden.py", "tests/models/test_packages.py", "tests/models/test_chat_template.py"),
    *("tests/models/test_adapters.py", "tests/models/logprobs", "tests/models/generation"),
    *("tests/models/backends/test_quantised.py", "tests/models/sources/test_hub.py", "tests/runs/test_lock.py"),
    *("tests/training/test_losses.py", "tests/training/test_trainer.py", "tests/training/test_sampler_check.py"),
    *("tests/tasks/test_benchmarks.py", "tests/tasks/test_refused.py"),
]
QUIET = ("ignore::FutureWarning", "ignore::DeprecationWarning")


def main(asked: list[str]) -> int:
    failed = [name for name in asked or [*SETS, "beside"] if not (tried(name) if name in SETS else beside())]
    print(f"failed: {', '.join(failed)}" if failed else "all of it passed")
    return bool(failed)


def tried(name: str) -> bool:
    """Whether the core tests pass with one end of the bounds, or with another Python; also if that is not here."""
    resolution, wanted = SETS[name]
    own = wanted == PYTHON
    interpreter = sys.executable if own else shutil.which(f"python{wanted}")
    if interpreter is None or subprocess.run([interpreter, "--version"], capture_output=True).returncode:
        print(f"{name}: not tried, no python{wanted} is on the path", flush=True)
        return True
    environment = ROOT / f".venv-{name}"
    torch = f"torch=={version('torch').partition('+')[0]}"
    found = resolved(["pyproject.toml", "--extra", "test", "--resolution", resolution], torch, python=wanted)
    lines = [line for line in found.splitlines() if not (own and OF_TORCH.match(line))]
    print(f"{name}: {', '.join(filter(SHOWN.match, lines))}", flush=True)
    uv("venv", "--quiet", "--clear", "--python", interpreter, str(environment))
    python = environment / "bin" / "python"
    uv("pip", "install", "--quiet", "--no-deps", "--python", str(python), "-r", "-", stdin="\n".join(lines))
    if own:
        (site,) = environment.glob("lib/python*/site-packages")
        (site / "beside.pth").write_text(f"import site; site.addsitedir({sysconfig.get_paths()['purelib']!r})\n")
    else:
        uv("pip", "install", "--quiet", "--no-deps", "--python", str(python), "--editable", ".")
    tests = [python, "-m", "pytest", "-q", "-p", "no:cacheprovider", "--timeout", "0", "-m", "not long and not slow"]
    quiet = [part for each in QUIET for part in ("-W", each)]
    return subprocess.run([*tests, *CORE, *quiet], cwd=ROOT, env={**os.environ, "OMP_NUM_THREADS": "1"}).returncode == 0


def beside() -> bool:
    """Whether the wheel can be installed together with each of its neighbours."""
    fits = []
    with tempfile.TemporaryDirectory() as place:
        uv("build", "--quiet", "--wheel", "--out-dir", place)
        (wheel,) = Path(place).glob("*.whl")
        for name, packages in NEIGHBOURS.items():
            try:
                found = resolved(["-"], "", stdin="\n".join([f"lite-selfplay @ {wheel.as_uri()}", *packages]))
                print(f"beside {name}: {', '.join(filter(SHOWN.match, found.splitlines()))}", flush=True)
            except subprocess.CalledProcessError as error:
                print(f"not beside {name}:\n{error.stderr}", flush=True)
                fits.append(False)
    return all(fits)


def resolved(what: list[str], constraint: str, stdin: str = "", python: str = PYTHON) -> str:
    """The releases that fit together, one a line."""
    with tempfile.NamedTemporaryFile("w", suffix=".txt") as file:
        file.write(constraint)
        file.flush()
        asked = ("--python-version", python, "--no-header", "--no-annotate", "--constraint", file.name)
        return uv("pip", "compile", "--quiet", *what, *asked, stdin=stdin)


def uv(*arguments: str, stdin: str = "") -> str:
    command = [os.environ.get("UV", "uv"), *arguments]
    return subprocess.run(command, cwd=ROOT, input=stdin, capture_output=True, text=True, check=True).stdout


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
