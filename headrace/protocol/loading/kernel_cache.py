"""The cache of compiled kernels: its folder, one writer at a time, and warm-up that gives way to requests.

numba keeps compiled kernels beside the source or in the user's cache. If it can write to neither (a read-only root, no
home), it raises `no locator available` when a module with kernels is imported. `keep_kernels` gives it another folder.
It copies kernels there that were compiled before, so the kernels of an image are not compiled again.

A cache is code that is executed: only the owner of the folder can write to it.

`one_writer` makes processes that share a cache write one after the other. numba numbers the files of a function by the
entries of its index. Without it, two processes that compile one function for different arguments can store one's code
under the other's entry.

`without_modules` saves the memory of what only the compilation of other kernels needs.

`giving_way` is for a warm-up. numba compiles or loads one kernel at a time, and its lock has no queue: without
`giving_way`, each kernel that a request needs may wait for one or more kernels of the warm-up.
"""

from __future__ import annotations

import atexit
import contextlib
import fcntl
import functools
import hashlib
import itertools
import os
import shutil
import sys
import tempfile
import threading
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any, Final

VARIABLE: Final = "NUMBA_CACHE_DIR"
FOLDER: Final = "compiled-kernels"
_LOCK: Final = "kernels.lock"
_MEMORY: Final = "/dev/shm"
_ROOT: Final = Path(__file__).resolve().parents[2]
_PACKAGES: Final = ("protocol", "broker", "tablelayer")
_PAUSE_SECONDS: Final = 0.005
_PAUSES_MAX: Final = 2000
"""Limit of one wait for other threads: a thread that was counted may have ended."""
_QUIET_SECONDS: Final = 0.05
"""Wait after another thread has had its kernel: it asks for its next one within this time."""


def keep_kernels(folder: Path | None = None) -> Path | None:
    """Give numba a folder if it has none that it can write, and return it; None if numba has one.

    The folder is `folder`, which is created. Without `folder`, or if it cannot be written, it is a temporary folder, on
    disk or in memory, that is deleted when the process ends. Call this before numba is imported.
    """
    given = os.environ.get(VARIABLE)
    places = [Path(given)] if given else [_ROOT / "protocol" / "__pycache__", _users()]
    if any(_is_writable(place) for place in places):
        return None
    if folder is None or not _is_writable(folder):
        folder = _temporary()
        atexit.register(shutil.rmtree, folder, ignore_errors=True)
    folder.chmod(0o700)
    for source, name in _compiled(places):
        target = folder / name / source.name
        with contextlib.suppress(OSError):  # a kernel that cannot be copied is compiled again
            if not target.exists() or target.stat().st_mtime_ns != source.stat().st_mtime_ns:
                target.parent.mkdir(exist_ok=True)
                part = target.with_name(f"{target.name}.{os.getpid()}")
                shutil.copy2(source, part)
                part.replace(target)
    os.environ[VARIABLE] = str(folder)
    numba = sys.modules.get("numba")
    if numba is not None:
        numba.config.CACHE_DIR = str(folder)
    return folder


def _temporary() -> Path:
    try:
        return Path(tempfile.mkdtemp(prefix="headrace-kernels-"))
    except FileNotFoundError:  # a container with a read-only root and no /tmp still has it
        return Path(tempfile.mkdtemp(prefix="headrace-kernels-", dir=_MEMORY))


def one_writer() -> None:
    """Let only one process at a time save a kernel into a folder, among those that called this. Imports numba.

    A file of older sources is deleted before the index names its number again.
    """
    # Import all of numba first. A thread that begins with a submodule holds its lock while it waits for the package,
    # and another thread that imports the package gets the submodule half initialized.
    import numba  # noqa: F401
    from numba.core.caching import IndexDataCacheFile

    save = IndexDataCacheFile.save
    if hasattr(save, "__wrapped__"):
        return

    @functools.wraps(save)
    def alone(self: Any, key: Any, data: Any) -> None:
        with _locked(Path(self._cache_path) / _LOCK):
            known = self._load_index()
            if key not in known:
                names = map(self._data_name, itertools.count(1))
                name = next(name for name in names if name not in known.values())
                Path(self._data_path(name)).unlink(missing_ok=True)
            save(self, key, data)

    IndexDataCacheFile.save = alone


def without_modules() -> None:
    """Let kernels that are loaded from the cache keep their intermediate code as bytes. Imports numba.

    numba keeps it as a module of LLVM, only to compile other kernels that call them: 17 MB for 77 kernels.
    """
    import numba  # noqa: F401
    from llvmlite import binding
    from numba.core.codegen import JITCodeLibrary

    load = getattr(getattr(JITCodeLibrary, "_unserialize", None), "__func__", None)
    module_of = getattr(JITCodeLibrary, "_get_module_for_linking", None)
    if load is None or module_of is None or hasattr(module_of, "__wrapped__"):
        return  # a numba without these private parts keeps its modules, which costs memory alone

    def loaded(cls: Any, codegen: Any, state: Any) -> Any:
        library = load(cls, codegen, state)
        if library._shared_module is not None:
            library._shared_module, library._bitcode = None, state[2][1]
        return library

    @functools.wraps(module_of)
    def parsed(self: Any) -> Any:
        bitcode = getattr(self, "_bitcode", None)
        return module_of(self) if bitcode is None else binding.parse_bitcode(bitcode)

    JITCodeLibrary._unserialize = classmethod(loaded)
    JITCodeLibrary._get_module_for_linking = parsed


@contextlib.contextmanager
def giving_way() -> Iterator[None]:
    """Let other threads compile or load their kernels first, before each kernel of the calling thread.

    Imports numba.
    """
    import numba  # noqa: F401
    from numba.core import event
    from numba.core.compiler_lock import global_compiler_lock

    own = threading.get_ident()

    class Turns(event.Listener):  # type: ignore[misc]
        def __init__(self) -> None:
            self.others: set[int] = set()
            self.quiet_at = 0.0

        def on_start(self, _: object) -> None:
            if (thread := threading.get_ident()) != own:
                self.others.add(thread)

        def on_end(self, _: object) -> None:
            if (thread := threading.get_ident()) != own:
                self.quiet_at = time.monotonic() + _QUIET_SECONDS
                self.others.discard(thread)
            elif not global_compiler_lock.is_locked():  # the kernel is complete, not only a part of it
                for _ in range(_PAUSES_MAX):
                    if not self.others and time.monotonic() >= self.quiet_at:
                        return
                    time.sleep(_PAUSE_SECONDS)
                self.others.clear()

    with event.install_listener("numba:compiler_lock", Turns()):
        yield


@contextlib.contextmanager
def _locked(path: Path) -> Iterator[None]:
    with path.open("w") as file:
        fcntl.flock(file, fcntl.LOCK_EX)
        yield


def _users() -> Path:
    """The user's cache folder, as numba computes it."""
    base = os.environ.get("XDG_CACHE_HOME") or os.path.join(os.path.expanduser("~"), ".cache")
    return Path(base) / "numba"


def _is_writable(folder: Path) -> bool:
    try:
        folder.mkdir(parents=True, exist_ok=True)
        tempfile.TemporaryFile(dir=folder).close()
    except OSError:
        return False
    return True


def _compiled(places: list[Path]) -> Iterator[tuple[Path, str]]:
    """Yield the files of numba that can be read, each with the name of its folder in a separate cache."""
    for place in places:
        for path in _files(place, "*/*.nb[ic]"):
            yield path, path.parent.name
    for package in _PACKAGES:
        for path in _files(_ROOT / package, "**/__pycache__/*.nb[ic]"):
            sources = path.parent.parent
            yield path, f"{sources.name}_{hashlib.sha1(str(sources).encode()).hexdigest()}"


def _files(folder: Path, pattern: str) -> list[Path]:
    try:
        return sorted(folder.glob(pattern))
    except OSError:
        return []
