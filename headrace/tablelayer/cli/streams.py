"""Standard streams of a command: they may be closed, full, without a reader, or in a locale without our characters.

`prepare` runs first in a process and `finish` last. In between, writing to an output that is closed or full raises
OSError as usual; `broken_output` tells whether such an error was the output's.
"""

from __future__ import annotations

import gc
import os
import sys
from io import TextIOWrapper
from typing import BinaryIO, TextIO, cast


class Output(TextIOWrapper):
    """Standard output that remembers its last error."""

    broken: OSError | None = None

    def write(self, text: str) -> int:
        try:
            return super().write(text)
        except OSError as error:
            self.broken = error
            raise

    def flush(self) -> None:
        try:
            super().flush()
        except OSError as error:
            self.broken = error
            raise


def prepare() -> None:
    """Prepare the standard streams.

    A closed stream is replaced, so that no later file becomes standard output by chance. Files and pipes get UTF-8; a
    terminal shows a character that it does not have by its number.
    """
    for number in (0, 1, 2):
        try:
            os.fstat(number)
        except OSError:
            os.open(os.devnull, os.O_RDONLY if number == 1 else os.O_RDWR)  # writing to the output fails
    sys.stdin = sys.stdin or _opened(0, "r")
    sys.stderr = sys.stderr or _opened(2, "w")
    if isinstance(sys.stdin, TextIOWrapper) and not sys.stdin.isatty():
        sys.stdin.reconfigure(encoding="utf-8")
    before = sys.stdout or _opened(1, "w")
    if isinstance(before, TextIOWrapper):
        on_terminal, unbuffered, encoding = before.isatty(), before.write_through, before.encoding
        sys.stdout = Output(
            cast(BinaryIO, before.detach()),
            encoding=encoding if on_terminal else "utf-8",
            errors="backslashreplace" if on_terminal else "strict",
            line_buffering=on_terminal,
            write_through=unbuffered,
        )
        sys.__stdout__ = sys.stdout  # type: ignore[misc] # the width of the terminal is asked of it


def _opened(number: int, mode: str) -> TextIO:
    return cast(TextIO, os.fdopen(number, mode, closefd=False))


def broken_output() -> OSError | None:
    """Return the error of standard output if written data is stuck or lost; None if there is none."""
    try:
        sys.stdout.flush()
    except OSError as error:
        return error
    return sys.stdout.broken if isinstance(sys.stdout, Output) else None


def silence() -> None:
    """Discard all pending and further writes to standard output."""
    nowhere = os.open(os.devnull, os.O_WRONLY)
    os.dup2(nowhere, 1)
    os.close(nowhere)
    if isinstance(sys.stdout, Output):
        sys.stdout.broken = None


def finish(code: int) -> int:
    """Write pending data; return the exit code of the process, `code` if all is well.

    An output without a reader (`| head`) is not an error. A closed output or a full disk is one, and is reported.
    """
    error = broken_output()
    if error is None:
        return code
    silence()
    nobody_reads, why = isinstance(error, BrokenPipeError), error.strerror or str(error)
    # The error holds a half-read answer, about which DuckDB would complain at exit.
    del error
    gc.collect()
    if nobody_reads:
        return code
    sys.stderr.write(f"the output cannot be written: {why}\n")
    return code or 1
