"""Where compiled kernels are kept when numba finds no place for them.

numba keeps what it has compiled beside the source or in the user's cache, and where it may write neither (a read-only
root, no home) it raises `no locator available` as soon as a module with kernels is imported. `keep_kernels` gives it a
folder then, with whatever was compiled before and may be read: what an image brings along is not compiled again.

A cache is code that is run: the folder is one that nobody else may write.

`one_writer` has processes that share a cache write it one after the other. numba numbers the files of a function by
what its index says, so two that compile it for different arguments at a time may leave one's code under the other's
entry.

`giving_way` is for who compiles what nobody has asked for yet. numba compiles or loads one kernel at a time, and who
waits for that has no place in a queue: without it each of the several that a request needs may wait for one that nobody
needs, or for more.
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
_ROOT: Final = Path(__file__).resolve().parents[1]
_PACKAGES: Final = ("protocol", "broker", "tablelayer")
_PAUSE_SECONDS: Final = 0.005
_PAUSES_MAX: Final = 2000
"""For one turn of others: no more is waited for who was counted and is gone."""
_QUIET_SECONDS: Final = 0.05
"""After the turn of another thread: its next kernel is asked for by then."""


def keep_kernels(folder: Path | None = None) -> Path | None:
    """Call it before anything imports numba. `folder` (made if need be) is used if there is no other place; without one
    a temporary folder, or one in memory, which goes with the process. The folder, if it was needed.
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
        with contextlib.suppress(OSError):  # what cannot be copied is compiled
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
    except FileNotFoundError:  # a container with a read-only root and no /tmp has this all the same
        return Path(tempfile.mkdtemp(prefix="headrace-kernels-", dir=_MEMORY))


def one_writer() -> None:
    """From here on this process saves a kernel only while no other one with this rule saves one into its folder, and
    what was left of older sources under the number that it takes is gone before the index names it. Imports numba.
    """
    # The whole of it first: who begins with a part holds that part's lock while it waits for the whole, and another
    # thread that imports the whole is given the part half made then.
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


@contextlib.contextmanager
def giving_way() -> Iterator[None]:
    """While it lasts, the calling thread begins no kernel, to be compiled or loaded, before other threads that wait for
    theirs have had them, one after the other. Imports numba.
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
            elif not global_compiler_lock.is_locked():  # it was not a part of a kernel that is not done yet
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
    """The user's cache as numba knows it."""
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
    """Files of numba's that can be read, and the folder each has in a cache of its own."""
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
