"""The cost of some work on a GPU: kernels by operation, and the host's waits."""

import sys
import threading
from collections import Counter
from dataclasses import dataclass, field
from pathlib import Path
from types import FrameType

_HERE = str(Path(__file__).parent)


@dataclass(frozen=True)
class Wait:
    """A line at which the host waits for the GPU.

    `kind` is `read` (a number or a tensor comes to the host, or the host synchronises), `shape` (a result's size
    depends on the GPU's numbers) or `write` (a copy from host memory that is blocking or not pinned). `place` is the
    innermost line of the watched package, `via` the innermost outside torch.
    """

    kind: str
    operation: str
    place: str
    via: str


@dataclass
class Seen:
    """The counts: `kernels` by operation, and `waits` by kind and line.

    `operations` has every operation in order, with the shapes of its arguments, if requested, and `sizes` for each the
    bytes of its arguments and results: what it reads and writes, if it does so once.
    """

    with_operations: bool = False
    kernels: Counter[str] = field(default_factory=Counter)
    waits: Counter[Wait] = field(default_factory=Counter)
    operations: list[tuple[str, tuple[tuple[int, ...], ...]]] = field(default_factory=list)
    sizes: list[int] = field(default_factory=list)

    @property
    def launches(self) -> int:
        """The number of kernels."""
        return sum(self.kernels.values())

    @property
    def syncs(self) -> int:
        """The number of waits."""
        return sum(self.waits.values())

    def table(self) -> str:
        """The waits, most frequent first, below the totals."""
        lines = [f"{n:6}  {w.kind:5}  {w.operation:28} {w.place:46} {w.via}" for w, n in self.waits.most_common()]
        return "\n".join([f"{self.launches} kernels, {self.syncs} waits", *lines])


def places(package: str) -> tuple[str, str]:
    """The innermost line of a package, and the innermost outside torch and this folder, as `file:line`.

    `(backward)` stands for a package's line on autograd's threads, which have none.
    """
    frame: FrameType | None = sys._getframe(1)
    own = via = ""
    while frame is not None and not own:
        name = frame.f_code.co_filename
        if not name.startswith(_HERE):
            if not via and "/torch/" not in name and "/contextlib.py" not in name:
                via = f"{'/'.join(name.split('/')[-2:])}:{frame.f_lineno}"
            if f"/{package}/" in name and "site-packages" not in name:
                own = f"{name.rsplit(f'/{package}/', 1)[1]}:{frame.f_lineno}"
        frame = frame.f_back
    if not own and threading.current_thread() is not threading.main_thread():
        own = "(backward)"
    return own, via
