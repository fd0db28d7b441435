"""A process that has imported a command with all of its kernels, and becomes that command in a fork at each request.

Importing the server and loading its kernels takes 2.5 s of a core; a fork takes some milliseconds. A request has the
words, the folder, the environment and the three standard streams. A fork has nothing else of the one that asked, and
nothing of earlier forks. It is handed over to the process that asked, which is then its parent.
"""

from __future__ import annotations

import atexit
import ctypes
import gc
import io
import json
import os
import signal
import socket
import subprocess
import sys
import threading
import time
import warnings
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any, Final, cast

REQUEST_BYTES_MAX: Final = 1 << 17
_WITHOUT_THREADS: Final = {"OPENBLAS_NUM_THREADS": "1", "JE_ARROW_MALLOC_CONF": "background_thread:false"}
"""numpy and pyarrow start threads when they are imported."""
_PR_SET_CHILD_SUBREAPER: Final = 36


def serve(channel: socket.socket) -> dict[str, Any] | None:
    """Fork for each request of the channel. Return the request in a fork, None in this process when all is over."""
    while True:
        message, streams, _, _ = socket.recv_fds(channel, REQUEST_BYTES_MAX, 3)
        if not message:
            return None
        between = os.fork()
        if not between:
            # The parent of a fork ends at once. The process that asked adopts the fork (PR_SET_CHILD_SUBREAPER).
            parent = os.getpid()
            if child := os.fork():
                channel.send(str(child).encode())
                os._exit(0)
            while os.getppid() == parent:
                time.sleep(0.0005)
            channel.close()
            for number, stream in enumerate(streams):
                os.dup2(stream, number)
                os.close(stream)
            asked: dict[str, Any] = json.loads(message)
            return asked
        for stream in streams:
            os.close(stream)
        os.waitpid(between, 0)
        channel.send(b"adopted")


def become(asked: dict[str, Any]) -> None:
    """Give this process the arguments, folder, environment, signals, streams and warnings of a new one."""
    signal.signal(signal.SIGINT, signal.default_int_handler)
    sys.argv = asked["words"]
    os.chdir(asked["folder"])
    os.environ.clear()
    os.environ.update(asked["environment"])
    time.tzset()
    _open_streams(unbuffered=bool(os.environ.get("PYTHONUNBUFFERED")))
    for action in filter(None, os.environ.get("PYTHONWARNINGS", "").split(",")):
        warnings.simplefilter(action)  # type: ignore[arg-type]


def _open_streams(*, unbuffered: bool) -> None:
    sys.stdin = os.fdopen(0, "r", encoding="utf-8", closefd=False)
    sys.stdout = io.TextIOWrapper(
        cast(io.BufferedWriter, os.fdopen(1, "wb", buffering=0 if unbuffered else -1, closefd=False)),
        encoding="utf-8",
        line_buffering=os.isatty(1),
        write_through=unbuffered,
    )
    sys.stderr = os.fdopen(2, "w", buffering=1, encoding="utf-8", errors="backslashreplace", closefd=False)
    sys.__stdin__, sys.__stdout__, sys.__stderr__ = sys.stdin, sys.stdout, sys.stderr  # type: ignore[misc]


def main(prepared: Callable[[], Callable[[], None]]) -> None:
    """Call the function that `prepared` returns, in each fork. The last argument is the channel's descriptor."""
    signal.signal(
        signal.SIGINT, signal.SIG_IGN
    )  # Ctrl-C reaches the whole group; the end of the channel ends this
    channel = socket.socket(fileno=int(sys.argv[-1]))
    run = prepared()
    threads = os.listdir("/proc/self/task")
    if len(threads) > 1:
        raise RuntimeError(f"{len(threads)} threads run, and a fork has only one of them")
    gc.collect()
    gc.freeze()  # a collection in a fork would write to every page, and so copy it
    asked = serve(channel)
    if asked is not None:
        become(asked)
        run()


class ForkServer:
    """The process, started at the first request, by `code` that calls `main`. Threads take turns."""

    def __init__(self, code: str, folder: Path) -> None:
        self._code, self._folder = code, folder
        self._turn = threading.Lock()
        self._channel: socket.socket | None = None

    def fork(self, words: list[str], folder: str, environment: Mapping[str, str], streams: list[int]) -> int:
        """Return the process id of a fork with these words, which is a child of this process."""
        asked = {"words": words, "folder": folder, "environment": dict(environment)}
        message = json.dumps(asked).encode()
        if len(message) > REQUEST_BYTES_MAX:
            raise ValueError(
                f"words and environment have {len(message)} bytes, more than {REQUEST_BYTES_MAX}"
            )
        with self._turn:
            channel = self._channel = self._channel or self._start()
            _adopt(True)
            try:
                socket.send_fds(channel, [message], streams)
                child, _ = channel.recv(32), channel.recv(32)
            except ConnectionError as error:
                raise RuntimeError("the process that forks has ended; its standard error says why") from error
            finally:
                _adopt(False)
        return int(child)

    def _start(self) -> socket.socket:
        ours, its = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
        with its:
            process = subprocess.Popen(
                [sys.executable, "-c", self._code, str(its.fileno())],
                stdin=subprocess.DEVNULL,
                cwd=self._folder,
                env={**os.environ, **_WITHOUT_THREADS},
                pass_fds=[its.fileno()],
            )
        atexit.register(_end, ours, process)
        return ours


def _end(channel: socket.socket, process: subprocess.Popen[bytes]) -> None:
    channel.close()
    process.wait()


def _adopt(on: bool) -> None:
    """Set whether this process becomes the parent of a descendant whose parent has ended."""
    if ctypes.CDLL(None, use_errno=True).prctl(_PR_SET_CHILD_SUBREAPER, int(on), 0, 0, 0):
        raise OSError(ctypes.get_errno(), "prctl")
