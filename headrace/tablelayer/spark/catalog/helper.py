"""Helper process of the catalog's Java half; each JVM that needs one starts one.

It listens on a socket in a private folder, prints the socket's name, and lives until its standard input ends, that is,
as long as the JVM. Each connection gets a forked process of its own, so that tasks do not wait for each other and a
cancelled task ends with its connection. That process serves one request after the other and keeps its connections to
servers open.

Requests and answers are JSON objects, each after its length (int32, big endian). An answer is `{"ok": ...}` or
`{"error": {"kind": ..., "message": ...}}`. After the request `read`, the answer is followed by an Arrow stream and one
more answer, which says whether the stream is complete. The request `write` is followed by an Arrow stream.
"""

from __future__ import annotations

import gc
import json
import os
import selectors
import shutil
import signal
import socket
import struct
import sys
import tempfile
from collections.abc import Callable
from pathlib import Path
from typing import Any, BinaryIO, Final

import pyarrow as pa

from headrace.tablelayer.model.errors import TableError
from headrace.tablelayer.spark.catalog import rows, statements, streams, writes

_LENGTH: Final = struct.Struct(">i")
_BACKLOG: Final = 128
_ANSWERS: Final[dict[str, Callable[[dict[str, Any]], Any]]] = {
    "namespaces": statements.namespaces,
    "namespace": statements.namespace,
    "create_namespace": statements.create_namespace,
    "alter_namespace": statements.alter_namespace,
    "drop_namespace": statements.drop_namespace,
    "tables": statements.tables,
    "table": statements.table,
    "create_table": statements.create_table,
    "alter_table": statements.alter_table,
    "drop_table": statements.drop_table,
    "partitions": statements.partitions,
    "add_partition": statements.add_partition,
    "drop_partition": statements.drop_partition,
    "push": rows.push,
    "plan": rows.plan,
    "stream": streams.stream,
    "stream_initial": streams.initial,
    "stream_latest": streams.latest,
    "stream_pinned": streams.pinned,
    "stream_splits": streams.splits,
    "begin_write": writes.begin_write,
    "commit": writes.commit,
    "abort": writes.abort,
    "truncate": writes.truncate,
}


def main() -> None:
    """Serve until standard input ends."""
    folder = Path(tempfile.mkdtemp(prefix="headrace-"))
    try:
        _listen(folder / "catalog")
    finally:
        shutil.rmtree(folder, ignore_errors=True)


def _listen(path: Path) -> None:
    signal.signal(signal.SIGINT, signal.SIG_IGN)  # Ctrl-C is for the shell that started Spark
    signal.signal(signal.SIGCHLD, signal.SIG_IGN)  # the forked processes are not waited for
    with socket.socket(socket.AF_UNIX) as listener, selectors.DefaultSelector() as selector:
        listener.bind(str(path))
        listener.listen(_BACKLOG)
        selector.register(listener, selectors.EVENT_READ)
        selector.register(0, selectors.EVENT_READ)
        gc.freeze()
        sys.stdout.write(f"{path}\n")
        sys.stdout.flush()
        while True:
            ready = {key.fd for key, _ in selector.select()}
            if 0 in ready and not os.read(0, 1):
                return
            if listener.fileno() in ready:
                connection, _ = listener.accept()
                with connection:
                    if os.fork() == 0:
                        _serve_and_end(connection, listener)


def _serve_and_end(connection: socket.socket, listener: socket.socket) -> None:
    code = 1
    try:
        listener.close()
        os.close(0)
        signal.signal(signal.SIGCHLD, signal.SIG_DFL)
        with connection.makefile("rb") as asked, connection.makefile("wb") as answers:
            serve(asked, answers)
        code = 0
    except (BrokenPipeError, ConnectionResetError):
        pass  # the task was cancelled
    finally:
        os._exit(code)


def serve(asked: BinaryIO, answers: BinaryIO) -> None:
    """Answer requests until the input ends."""
    while True:
        header = asked.read(_LENGTH.size)
        if len(header) < _LENGTH.size:
            return
        request = json.loads(asked.read(_LENGTH.unpack(header)[0]))
        kind = request["op"]
        try:
            if kind == "read":
                _read(request, answers)
                continue
            answer = {"ok": writes.write(request, asked) if kind == "write" else _ANSWERS[kind](request)}
        except Exception as error:  # noqa: BLE001 - any error is passed on to Spark
            answer = _refusal(error)
        _put(answers, answer)
        if kind == "write" and "error" in answer:
            return  # the rest of the stream would be read as a request


def _read(request: dict[str, Any], answers: BinaryIO) -> None:
    """Write one answer before the stream and one after it. There is a stream only if the first says so."""
    try:
        batches = rows.read(request)
        first = next(batches, None)
    except Exception as error:  # noqa: BLE001 - as above
        _put(answers, _refusal(error))
        return
    _put(answers, {"ok": first is not None})
    if first is None:
        return
    answer: dict[str, Any] = {"ok": True}
    with pa.ipc.new_stream(answers, first.schema) as stream:
        stream.write_batch(first)
        try:
            for batch in batches:
                stream.write_batch(batch)
        except (BrokenPipeError, ConnectionResetError):
            raise
        except Exception as error:  # noqa: BLE001 - as above
            answer = _refusal(error)
    _put(answers, answer)


def _refusal(error: Exception) -> dict[str, Any]:
    if isinstance(error, TableError):
        return {"error": {"kind": error.code.name, "message": error.message}}
    return {"error": {"kind": type(error).__name__, "message": str(error) or repr(error)}}


def _put(stream: BinaryIO, answer: dict[str, Any]) -> None:
    text = json.dumps(answer).encode()
    stream.write(_LENGTH.pack(len(text)) + text)
    stream.flush()


if __name__ == "__main__":
    main()
