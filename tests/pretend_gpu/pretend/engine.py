"""What torch's C++ has to believe before Python can pretend: that there is a CUDA device.

Autograd's engine asks a table of device guards how many devices there are, and `.to("cuda")` asks CUDA's hooks. Both
are pointers to virtual functions, which a CPU build fills with ones that say no.
"""

import contextlib
import ctypes
import re
from collections.abc import Iterator
from pathlib import Path

import torch


def _lasting(words: list[int]) -> int:
    """The address of a table of pointers that is never freed."""
    table = (ctypes.c_void_p * len(words))(*words)
    ctypes.pythonapi.Py_IncRef(ctypes.py_object(table))
    return ctypes.addressof(table)


class _Engine:
    """Tells a CPU build of torch of one CUDA device, as far as autograd's engine and `.to("cuda")` ask.

    The engine starts a thread for each device when the first backward pass of a process begins, so the guard is
    registered when this module is imported, and stays: it does nothing. The hooks are exchanged while a GPU is there.
    Works where C++ objects begin with a pointer to their virtual functions in the order of their declaration, as on
    Linux and macOS; `believing` says where it did not.
    """

    _GUARDS, _HOOKS = "_ZN3c104impl26device_guard_impl_registryE", "_ZN2at6detail12getCUDAHooksEv"
    _YES = ("isBuilt", "isAvailable", "hasPrimaryContext", "deviceCount", "hasCUDA")
    _NO = ("init", "setCurrentDevice", "getCurrentDevice", "exchangeDevice", "maybeExchangeDevice")

    def __init__(self) -> None:
        lib = Path(torch.__file__).parent / "lib"
        c10, cpu = (ctypes.CDLL(str(next(lib.glob(f"{name}.[sd]*")))) for name in ("libc10", "libtorch_cpu"))
        hooks = getattr(cpu, self._HOOKS)
        hooks.restype = ctypes.c_void_p
        self._pointer = (ctypes.c_void_p * 1).from_address(hooks())
        self._own = self._pointer[0]
        slots = self._slots()
        table = list((ctypes.c_void_p * (len(slots) + 4)).from_address(self._own - 16))
        no = table[2 + slots["hasCUDA"]]  # in a CPU build that returns false, whatever it is given
        yes = ctypes.cast(ctypes.pythonapi.Py_IsInitialized, ctypes.c_void_p).value  # true, and needs no GIL
        guards = (ctypes.c_void_p * 2).in_dll(c10, self._GUARDS)
        if not guards[1]:
            # torch has a guard that does nothing, and puts it in the place of one that counts no devices.
            guards[1] = _lasting([_lasting([no] * 64), 0])
            torch._C._ensureCUDADeviceGuardSet()
        for names, function in ((self._YES, yes), (self._NO, no)):
            for name in names:
                table[2 + slots[name]] = function
        self._other = _lasting(table) + 16

    @staticmethod
    def _slots() -> dict[str, int]:
        """Each virtual function's index in the table, from torch's own headers."""
        folder = Path(torch.__file__).parent / "include" / "ATen" / "detail"
        found = {"destructor": 0, "deleting destructor": 1}
        for header in ("AcceleratorHooksInterface.h", "CUDAHooksInterface.h"):
            text = re.sub(r"//[^\n]*|#[^\n]*", "", (folder / header).read_text(encoding="utf-8"))
            for name in re.findall(r"\bvirtual\s+[^;{()]*?(~?\w+)\s*\(", text):
                if not name.startswith("~"):
                    found.setdefault(name, len(found))
        return found

    @contextlib.contextmanager
    def believing(self) -> Iterator[None]:
        """Raises RuntimeError if torch does not see the device."""
        self._pointer[0] = self._other
        try:
            if torch.accelerator.current_accelerator() != torch.device("cuda"):
                raise RuntimeError(f"torch {torch.__version__} has another table of CUDA hooks: see _Engine")
            yield
        finally:
            self._pointer[0] = self._own


ENGINE = None if torch.version.cuda else _Engine()
"""None in a CUDA build, which has its own table."""
