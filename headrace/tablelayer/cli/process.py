"""What the process of a command does, that a program which calls the command must not find done to its own."""

from __future__ import annotations

import gc
import sys
from contextvars import ContextVar

from headrace.protocol.loading.kernel_cache import keep_kernels

is_own: ContextVar[bool] = ContextVar("the process is there for the command alone", default=False)


class _WithoutPandas:
    left_out = frozenset({"pandas"})

    def find_spec(self, name: str, path: object = None, target: object = None) -> None:
        if name in self.left_out:
            raise ModuleNotFoundError(f"{name} is not loaded into this process", name=name)


class _WithoutNumbasExtras(_WithoutPandas):
    left_out = frozenset({"cffi", "yaml"})


def begin() -> None:
    """The process is the command's own. Until `loaded`, nothing is collected: what is imported is no garbage, and
    looking at it takes a fifth of the time of a short command."""
    is_own.set(True)
    gc.disable()
    if next((word for word in sys.argv[1:] if not word.startswith("-")), "") != "serve":
        keep_kernels()  # a server has a better place for them


def loaded() -> None:
    """What the command needs is imported; from here on it works, and what there is by now is never looked at again
    for garbage, however many modules the work itself loads. Does nothing in the process of another program."""
    leave_pandas_out()
    if is_own.get():
        gc.freeze()
        gc.enable()


def leave_pandas_out() -> None:
    """pyarrow loads pandas, where it is installed, at the first array made from a list: a third of a second and 60 MB
    that neither a server nor a command with a connection has a use for. In this process it is as if it were not
    installed. Does nothing in the process of another program.
    """
    if is_own.get():
        sys.meta_path.insert(0, _WithoutPandas())


def leave_numbas_extras_out() -> None:
    """numba loads cffi, with a parser of C, and yaml where they are installed, for functions of C and for a file of
    settings that nobody here has: a twentieth of the start of a server with tables. As `leave_pandas_out`.
    """
    if is_own.get():
        sys.meta_path.insert(0, _WithoutNumbasExtras())
