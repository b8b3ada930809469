"""Output that nobody takes any more."""

import errno
import io
import sys

import pytest

from lite_selfplay_cli.display import Lasting, outlast_readers


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
