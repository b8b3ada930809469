"""Imports without a file system: common modules are loaded beforehand, and the others are kept in memory."""

import contextlib
import importlib.machinery
import importlib.util
import marshal
import mmap
import os
import sys
from collections.abc import Sequence
from types import ModuleType
from typing import Any, cast

from lite_selfplay.verify.programs.inside.names import LOADED

# Modules that such programs import, loaded once; more of them would slow every fork. Other pure modules are imported
# from memory on demand, but extension modules can be loaded only here, before the process is confined.
_BEFOREHAND = """
abc array bisect calendar cmath codecs collections.abc copy dataclasses datetime decimal enum fractions hashlib heapq
inspect itertools keyword linecache numbers operator pprint queue re secrets stat statistics string textwrap threading
token tokenize typing unicodedata warnings weakref zlib
encodings.ascii encodings.latin_1 encodings.utf_16 encodings.idna encodings.cp1252
_heapq _bisect _random _struct _datetime _decimal _json _statistics _pickle _csv _hashlib _sha1 _sha256 _sha512 _sha2
_sha3 _md5 _blake2 binascii _zoneinfo _opcode _queue _contextvars _elementtree pyexpat _lzma _bz2 _asyncio mmap
_multibytecodec _codecs_jp _crypt _lsprof _posixsubprocess _multiprocessing _posixshmem grp fcntl termios
""".split()
_NOT_SERVED = frozenset(
    "test tests idle_test idlelib tkinter turtledemo lib2to3 ensurepip distutils pydoc_data site-packages "
    "dist-packages __pycache__ lib-dynload venv".split()
)
_HEADER = 16  # bytes before the code of a compiled module: PEP 552


def load_beforehand(folders: Sequence[str] = ()) -> None:
    """Import the common modules that this interpreter has, and serve the others from memory. `folders` have packages
    to import as well."""
    sys.path[:0] = folders
    for name in [*_BEFOREHAND, *(LOADED if folders else ())]:
        with contextlib.suppress(ImportError):
            __import__(name)
    finders = [finder for finder in sys.meta_path if finder is not importlib.machinery.PathFinder]
    sys.meta_path[:] = [*finders, InMemory(os.path.dirname(os.__file__))]
    sys.path.clear()
    sys.path_importer_cache.clear()


class InMemory:
    """Imports pure modules of the standard library from memory, except those that are already loaded."""

    def __init__(self, root: str):
        self._modules: dict[str, importlib.machinery.ModuleSpec] = {}
        contents = bytearray()
        for folder, folders, files in os.walk(root):
            folders[:] = sorted(each for each in folders if each not in _NOT_SERVED and not each.startswith("config-"))
            for file in (each for each in files if each.endswith(".py")):
                self._keep(root, os.path.join(folder, file), contents)
        self._contents = _mapped(contents)

    def _keep(self, root: str, path: str, contents: bytearray) -> None:
        parts = os.path.relpath(path, root).removesuffix(".py").split(os.sep)
        package = parts[-1] == "__init__"
        name = ".".join(parts[:-1] if package else parts)
        if not name or name in sys.modules:
            return
        for file, compiled in ((importlib.util.cache_from_source(path), True), (path, False)):
            with contextlib.suppress(OSError), open(file, "rb") as stream:
                content = stream.read()
                if not compiled or content[:4] == importlib.util.MAGIC_NUMBER:
                    start = len(contents)
                    contents += content[_HEADER:] if compiled else content
                    state = compiled, slice(start, len(contents))
                    self._modules[name] = importlib.machinery.ModuleSpec(
                        name, cast(Any, self), origin=path, loader_state=state, is_package=package
                    )
                    return

    def find_spec(
        self, name: str, path: Sequence[str] | None = None, target: ModuleType | None = None
    ) -> importlib.machinery.ModuleSpec | None:
        return self._modules.get(name)

    def create_module(self, spec: importlib.machinery.ModuleSpec) -> None:
        """None: the usual module object."""

    def exec_module(self, module: ModuleType) -> None:
        spec = self._modules[module.__name__]
        compiled, span = spec.loader_state
        content = self._contents[span]
        code = marshal.loads(content) if compiled else compile(content, str(spec.origin), "exec")
        exec(code, module.__dict__)


def _mapped(data: bytes | bytearray) -> mmap.mmap:
    """The same bytes in a mapped memory file: unlike for the heap, a fork does not copy its page tables. The mapping is
    private: a process that makes it writable writes only to its own copy."""
    with open(os.memfd_create("modules", os.MFD_CLOEXEC), "wb") as file:
        file.write(data)
        file.flush()
        return mmap.mmap(file.fileno(), len(data), flags=mmap.MAP_PRIVATE, prot=mmap.PROT_READ)
