"""`headrace serve` as a process that costs a quarter to start: a fork of one that has imported it.

Other commands start as fast by themselves. Tests of the start itself call the command as users do; with
HEADRACE_NO_FORKS all tests do, as in `make soak`. See `simulator/fork_server.py`.
"""

from __future__ import annotations

import os
import subprocess
import sys
from collections.abc import Callable, Sequence
from importlib import import_module
from pathlib import Path
from time import perf_counter
from typing import Any

from simulator.fork_server import ForkServer

ROOT = Path(__file__).resolve().parents[3]
COMMAND = (sys.executable, "-m", "headrace.tablelayer.cli.main", "serve")
_forks = ForkServer(
    "from headrace.tablelayer.tests.serve import prepared; from simulator.fork_server import main; main(prepared)",
    ROOT,
)


class Serve(subprocess.Popen[Any]):
    """`subprocess.Popen` of `headrace serve` with these words: `Serve(["--data", ...], stdout=subprocess.PIPE)`."""

    def __init__(self, words: Sequence[str], **options: Any) -> None:
        """`options` of Popen: the streams, their form, `cwd` and `env`."""
        if unknown := {*options} - {"stdin", "stdout", "stderr", "text", "encoding", "errors", "cwd", "env"}:
            raise TypeError(f"a fork does not have {', '.join(sorted(unknown))}")
        super().__init__([*COMMAND, *words], **options)

    def _execute_child(self, args: Any, *more: Any) -> None:
        if os.environ.get("HEADRACE_NO_FORKS"):
            super()._execute_child(args, *more)  # type: ignore[misc]
            return
        _, _, _, _, cwd, env, _, _, _, *pipes = more[:15]
        stdin, _, _, stdout, _, stderr = pipes
        streams = [given if given != -1 else own for own, given in enumerate((stdin, stdout, stderr))]
        words = ["headrace", "serve", *args[len(COMMAND) :]]
        self.pid = _forks.fork(
            words, os.fspath(cwd or os.getcwd()), os.environ if env is None else env, streams
        )
        self._child_created = True
        self._close_pipe_fds(*pipes)  # type: ignore[attr-defined]


def prepared() -> Callable[[], None]:
    """Import the server and load all kernels; return the function of the command."""
    process = import_module("headrace.tablelayer.cli.process")
    process.is_own.set(True)
    process.leave_pandas_out()
    process.leave_numbas_extras_out()
    main = import_module("headrace.tablelayer.cli.main")
    import_module("headrace.tablelayer.cli.serve")
    for _ in import_module("headrace.tablelayer.cli.warm").warm_up():
        pass

    def command() -> None:
        main.STARTED = perf_counter()
        main.main()

    return command
