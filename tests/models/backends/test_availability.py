"""Which backend can work, and the message if one cannot. Versions and GPUs are simulated: nothing is imported."""

import re
import sys
from importlib import metadata

import pytest
import torch

from lite_selfplay.config import ModelSection, SeatConfig
from lite_selfplay.errors import RequestError
from lite_selfplay.models import backends
from lite_selfplay.models.backends import availability, choose_backend, chosen, import_first
from lite_selfplay.models.packages import install


@pytest.fixture
def installed(monkeypatch):
    """Installed packages by name and version."""
    found = {"lite-selfplay": "0.1.0", "unsloth": "2026.10.9", "unsloth_zoo": "2026.10.9"}

    def version(name: str) -> str:
        if name not in found:
            raise metadata.PackageNotFoundError(name)
        return found[name]

    monkeypatch.setattr(metadata, "version", version)
    return found


@pytest.fixture
def card(monkeypatch):
    """A CUDA GPU with a compute capability; None is no GPU."""

    def put(capability: tuple[int, int] | None, cuda: str | None = "13.0") -> None:
        monkeypatch.setattr(torch.cuda, "is_available", lambda: capability is not None)
        monkeypatch.setattr(torch.cuda, "get_device_capability", lambda *_: capability)
        monkeypatch.setattr(torch.cuda, "get_device_name", lambda *_: "Tesla X")
        monkeypatch.setattr(torch.cuda, "get_arch_list", list)
        monkeypatch.setattr(torch.version, "cuda", cuda)
        monkeypatch.setattr(availability, "driver", lambda: None)
        monkeypatch.setattr(availability, "compiler_problem", lambda: None)

    return put


@pytest.mark.parametrize(
    ("capability", "cuda", "missing", "sentence"),
    [
        (None, None, None, f"torch {torch.__version__} is built without CUDA"),
        (None, "13.0", None, "needs a CUDA GPU, and torch finds none. Use --backend transformers"),
        ((6, 1), "13.0", None, "Tesla X is too old for it: compute capability 6.1, and it needs 7.0 or later"),
        ((8, 0), "13.0", "unsloth", "unsloth is not installed ({install})"),
    ],
)
def test_what_is_missing_is_named(installed, card, capability, cuda, missing, sentence):
    card((7, 5))
    backends.require_available("unsloth")
    card(capability, cuda)
    installed.pop(missing, None)
    with pytest.raises(RequestError, match=re.escape(sentence.format(install=install("unsloth")))):
        backends.require_available("unsloth")


@pytest.fixture
def unsloth(monkeypatch, tmp_path):
    """A package called unsloth, of one line."""

    def write(line: str) -> None:
        (tmp_path / "unsloth").mkdir()
        (tmp_path / "unsloth" / "__init__.py").write_text(f"{line}\n")
        monkeypatch.syspath_prepend(str(tmp_path))

    monkeypatch.delitem(sys.modules, "unsloth", raising=False)
    yield write
    sys.modules.pop("unsloth", None)


def test_a_broken_unsloth_on_a_cpu_is_never_imported(installed, card, unsloth, tiny_path):
    card(None)
    unsloth("raise RuntimeError('broken')")
    section = ModelSection(name="tiny", precision="fp32")
    import_first(section)
    backend = choose_backend(tiny_path, section, {"A": SeatConfig()}, seed=0, eos_ids=[2])
    assert backend.name == "transformers"
    assert "unsloth" not in sys.modules


def test_a_broken_unsloth_on_a_gpu_is_said_and_nothing_continues_half_patched(installed, card, unsloth, monkeypatch):
    card((8, 0))
    unsloth("raise RuntimeError('no kernels for you')")
    monkeypatch.setenv("UNSLOTH_COMPILE_LOCATION", "kept")
    with pytest.raises(RequestError, match=r"cannot be imported \(RuntimeError: no kernels.*--backend transformers"):
        import_first(ModelSection(name="tiny", backend="unsloth"))
    import_first(ModelSection(name="tiny", backend="auto"))


def test_what_it_compiles_goes_into_the_cache_and_what_it_prints_nowhere(unsloth, monkeypatch, tmp_path, capsys):
    monkeypatch.setenv("LITE_SELFPLAY_CACHE", str(tmp_path / "cache"))
    monkeypatch.setenv("UNSLOTH_COMPILE_LOCATION", "")
    monkeypatch.delenv("UNSLOTH_COMPILE_LOCATION")
    monkeypatch.setenv("UNSLOTH_BLOCK_COMPILE_LEGACY", "")
    monkeypatch.delenv("UNSLOTH_BLOCK_COMPILE_LEGACY")
    names = "'UNSLOTH_COMPILE_LOCATION', 'UNSLOTH_BLOCK_COMPILE_LEGACY'"
    unsloth(f"import os; found = [os.environ[name] for name in ({names})]; print('noise')")
    assert backends.import_unsloth().found == [str(tmp_path / "cache" / "unsloth"), "0"]
    assert capsys.readouterr().out == ""


@pytest.mark.parametrize(
    ("capability", "section", "expected"),
    [
        ((8, 0), {}, "transformers"),
        ((8, 0), {"precision": "fp32"}, "transformers"),
        ((8, 0), {"backend": "unsloth"}, "unsloth"),
        ((8, 0), {"backend": "unsloth", "precision": "fp32"}, "4 or 16 bits, not in fp32. Use --backend transformers"),
    ],
)
def test_which_backend_is_chosen_or_why_none(installed, card, capability, section, expected):
    card(capability)
    given = ModelSection(name="tiny", **section)
    if " " not in expected:
        assert chosen(given) == expected
    else:
        with pytest.raises(RequestError, match=re.escape(expected)):
            chosen(given)
