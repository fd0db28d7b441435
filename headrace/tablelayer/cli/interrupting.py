"""Work of a command that Ctrl-C ends at once, whatever it does: it runs in a thread, and this one waits.

A thread that computes in a library does not hear Ctrl-C. So the thread of the work is told to stop
(`client.stopping`), and is left behind if it does not end soon.

The operating system may give the signal to any thread. Only the main thread acts on it, and not while it waits: so it
looks every _LOOK_SECONDS.

DuckDB looks for an interruption between parts of its work: a thread that sorts 30 million rows ended up to 2.3 s later.
The prompt was back after 0.37 s at most, because it does not wait for the thread.
"""

from __future__ import annotations

import sys
import termios
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from contextvars import copy_context

from headrace.tablelayer.client import stopping

_LOOK_SECONDS = 0.1
_PATIENCE_SECONDS = 0.15
_REPEAT_SECONDS = 0.03


class InterruptedWorkError(Exception):
    """Ctrl-C was pressed. `told` is for the user; `goes_on`: the thread has not ended yet."""

    def __init__(self, told: str, *, goes_on: bool) -> None:
        super().__init__(told)
        self.told = told
        self.goes_on = goes_on


def interruptible(work: Callable[[], None], written: Callable[[], int]) -> None:
    """Run some work to its end. Raises its error, and InterruptedWorkError after Ctrl-C.

    `written` returns the number of rows that the running statement has written so far.
    """
    stop, ended, errors = stopping.Stop(), threading.Event(), list[BaseException]()

    def run() -> None:
        try:
            with stopping.running(stop):
                work()
        except BaseException as error:  # noqa: BLE001 - the waiting thread raises it
            errors.append(error)
        finally:
            ended.set()

    context = copy_context()
    worker = threading.Thread(target=context.run, args=(run,), name="headrace-work", daemon=True)
    with _without_echo():
        try:
            worker.start()
            while not ended.wait(_LOOK_SECONDS):
                pass
        except KeyboardInterrupt:
            pass
        else:
            if errors:
                raise errors[0]
            return
        count = written()
        with suppress(KeyboardInterrupt):  # pressed again
            for _ in range(round(_PATIENCE_SECONDS / _REPEAT_SECONDS)):
                stop.set()
                if ended.wait(_REPEAT_SECONDS):
                    break
        stop.set()
    lines = ["interrupted"]
    if errors:
        lines += getattr(errors[0], "__notes__", ())
    elif count := max(count, written()):  # the thread has not ended, and has said nothing yet
        lines.append(f"{count} rows written before the interruption")
        lines.append("some of the next rows may be written, too")
    raise InterruptedWorkError("\n".join(lines), goes_on=not ended.is_set())


@contextmanager
def _without_echo() -> Iterator[None]:
    """Keep typed text from the terminal, where the progress is shown; the next prompt gets it."""
    try:
        number = sys.stdin.fileno()
        before = termios.tcgetattr(number)
    except (OSError, ValueError, AttributeError, termios.error):  # it is not a terminal
        yield
        return
    quiet = before.copy()
    quiet[3] &= ~termios.ECHO
    termios.tcsetattr(number, termios.TCSANOW, quiet)
    try:
        yield
    finally:
        termios.tcsetattr(number, termios.TCSANOW, before)
