"""Run pytest again and again, each time in a fork of one process that has imported the third-party packages.

Importing them takes half the time of a short test. The process imports nothing of the project, so a fork imports the
files of the current mutant. A request is a line of JSON on stdin (`tests`, `timeout_s`, `output`: a file). The answer
is a line on stdout: pytest's exit code, or null for a run that did not end in time. Each run is a session of its own
and is killed as a whole, so no process of a test outlives it.
"""

from __future__ import annotations

import contextlib
import importlib
import json
import os
import select
import signal
import sys
import traceback
from typing import Any, Final, NoReturn

# Seeds are fixed, so that a mutant is not killed by chance. The limits of single tests are off: `timeout_s` finds
# hangs.
_OPTIONS: Final = (
    *("-q", "-x", "--tb=short", "-p", "no:randomly", "-p", "no:cacheprovider"),
    *("--hypothesis-seed=0", "--timeout", "0"),
    *("-W", "ignore:Module already imported:pytest.PytestAssertRewriteWarning"),
)
_PRELOADED: Final = (
    *("crc32c", "cramjam", "hypothesis.strategies", "msgspec", "numba", "numpy", "pyarrow.compute"),
    *("pyarrow.substrait", "pytest", "rocksdict", "sqlglot", "typer"),
)


def main() -> None:
    signal.signal(signal.SIGTERM, lambda *_: sys.exit(1))  # the `finally` of `_run` kills a run in progress
    for name in _PRELOADED:
        importlib.import_module(name)
    for line in sys.stdin:
        print(json.dumps(_run(json.loads(line))), flush=True)


def _run(asked: dict[str, Any]) -> int | None:
    child = os.fork()
    if not child:
        _pytest(asked)
    watched = os.pidfd_open(child)
    try:
        ended = bool(select.select([watched], [], [], asked["timeout_s"])[0])
    finally:
        os.close(watched)
        with contextlib.suppress(ProcessLookupError):
            os.killpg(child, signal.SIGKILL)
        with contextlib.suppress(ProcessLookupError):
            os.kill(child, signal.SIGKILL)  # before it has a session
        _, status = os.waitpid(child, 0)
    return os.waitstatus_to_exitcode(status) if ended else None


def _pytest(asked: dict[str, Any]) -> NoReturn:
    code = 3  # pytest's own for an internal error
    try:
        os.setsid()
        signal.signal(signal.SIGTERM, signal.SIG_DFL)
        output = os.open(asked["output"], os.O_WRONLY | os.O_CREAT | os.O_TRUNC)
        nothing = os.open(os.devnull, os.O_RDONLY)
        for source, target in ((nothing, 0), (output, 1), (output, 2)):
            os.dup2(source, target)
        import pytest

        code = int(pytest.main([*_OPTIONS, *asked["tests"]]))
    except BaseException:
        traceback.print_exc()
        raise
    finally:
        sys.stdout.flush()
        sys.stderr.flush()
        os._exit(code)


if __name__ == "__main__":
    main()
