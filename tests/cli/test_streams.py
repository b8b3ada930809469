"""Output that nobody takes any more."""

import errno
import io
import subprocess
import sys

import pytest

from lite_selfplay_cli.streams import Lasting, outlast_readers


class Gone(io.StringIO):
    """A stream whose reader has gone after the first line."""

    encoding = "utf-8"

    def write(self, text: str) -> int:
        if self.getvalue():
            raise OSError(errno.EPIPE, "Broken pipe")
        return super().write(text)

    def flush(self) -> None:
        if self.getvalue():
            raise OSError(errno.EIO, "Input/output error")


def test_what_cannot_be_written_is_lost_and_raises_nothing(monkeypatch: pytest.MonkeyPatch):
    gone = Gone()
    monkeypatch.setattr(sys, "stdout", gone)
    monkeypatch.setattr(sys, "stderr", Gone())
    outlast_readers()
    outlast_readers()
    print("read", flush=True)
    print("lost", flush=True)
    assert gone.getvalue() == "read"
    assert isinstance(sys.stdout, Lasting)
    assert sys.stdout._stream is gone
    assert sys.stdout.encoding == "utf-8"


def test_other_errors_are_not_hidden():
    with pytest.raises(TypeError):
        Lasting(io.StringIO()).write(b"")  # type: ignore[arg-type]


def test_a_base_is_loaded_without_the_notices_of_its_libraries():
    """bitsandbytes misses a kernel of inference on CPUs with bf16 instructions, which training does not use."""
    program = "from lite_selfplay.models.silence import quiet\nwith quiet():\n    import bitsandbytes"
    ended = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, timeout=300, check=False)
    assert (ended.returncode, ended.stdout, ended.stderr) == (0, "", "")
