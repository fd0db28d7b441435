"""Settings of a command's own process, which a program that calls the command must not get."""

from __future__ import annotations

import ctypes
import gc
import os
import signal
import sys
from contextlib import suppress
from contextvars import ContextVar
from typing import Final, NoReturn

from headrace.protocol.loading.kernel_cache import keep_kernels

is_own: ContextVar[bool] = ContextVar("the process is there for the command alone", default=False)


_PR_SET_PDEATHSIG: Final = 1
INTERRUPTED: Final = 130
"""Exit code after Ctrl-C: 128 and the number of the signal, as in a shell."""


class _WithoutPandas:
    left_out = frozenset({"pandas"})

    def find_spec(self, name: str, path: object = None, target: object = None) -> None:
        if name in self.left_out:
            raise ModuleNotFoundError(f"{name} is not loaded into this process", name=name)


class _WithoutNumbasExtras(_WithoutPandas):
    left_out = frozenset({"cffi", "yaml"})


def begin() -> None:
    """Mark the process as the command's own.

    No garbage is collected until `loaded`: imported modules are not garbage, and scanning them takes a fifth of the
    time of a short command.
    """
    is_own.set(True)
    gc.disable()
    if next((word for word in sys.argv[1:] if not word.startswith("-")), "") != "serve":
        keep_kernels()  # a server has a better place for them


def loaded() -> None:
    """Enable garbage collection after the command's imports, and exclude all present objects from it.

    Does nothing in the process of another program.
    """
    leave_pandas_out()
    if is_own.get():
        gc.freeze()
        gc.enable()


def leave(code: int) -> NoReturn:
    """End the process, after Ctrl-C at once. Standard output is written before, see `streams.finish`."""
    if code == INTERRUPTED:
        leave_at_once(code)
    sys.exit(code)


def leave_at_once(code: int) -> NoReturn:
    """End the process without Python's clean-up of all objects and libraries, which takes more than a second on a busy
    machine. The files that DuckDB would remove then are removed here.
    """
    if (duck := sys.modules.get("headrace.tablelayer.sql.duck")) is not None:
        duck.remove_spilled()
    for stream in (sys.stdout, sys.stderr):
        with suppress(OSError):
            stream.flush()
    os._exit(code)


def end_with(parent: int) -> None:
    """Let the system kill this process when the process `parent`, which started it, ends in any way. Elsewhere than on
    Linux nothing happens.
    """
    if sys.platform == "linux":
        ctypes.CDLL(None).prctl(_PR_SET_PDEATHSIG, signal.SIGKILL)
        if os.getppid() != parent:
            os._exit(1)


def leave_pandas_out() -> None:
    """Block the import of pandas.

    pyarrow imports an installed pandas at the first array made from a list, which takes a third of a second and 60 MB.
    Neither a server nor a command with a connection needs it. Does nothing in the process of another program.
    """
    if is_own.get():
        sys.meta_path.insert(0, _WithoutPandas())


def leave_numbas_extras_out() -> None:
    """Block numba's imports of cffi and yaml, which cost a twentieth of the start of a server with tables.

    numba needs them only for C functions and for a settings file, which are not used here. See `leave_pandas_out`.
    """
    if is_own.get():
        sys.meta_path.insert(0, _WithoutNumbasExtras())
