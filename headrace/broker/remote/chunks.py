"""Read ranges of objects in chunks, with a cache and read-ahead.

An object is read in chunks of `CHUNK_BYTES`, neighbouring ones in one request. Reads that continue where a read ended,
or a little behind it, form a stream: its next chunks are fetched ahead, twice as many from request to request, up to
`AHEAD_BYTES_MAX`. When half of them are used, one request fetches all missing ones: requests are expensive, and half is
enough time for the next. A read that jumps further (the columns of a projection) fetches only its own chunks.

The most recently used chunks are kept, up to `bytes_max` in total. A read waits for a chunk that is being fetched. Any
thread may read, and waits for the network. `ahead` is a separate pool, whose work never waits for other work.
"""

from __future__ import annotations

import threading
from collections import OrderedDict
from collections.abc import Callable
from concurrent.futures import Executor, Future
from typing import Final

CHUNK_BYTES: Final = 1 << 20
AHEAD_BYTES_MAX: Final = 8 << 20
JUMP_BYTES_MAX: Final = 1 << 20
"""Maximum gap within a stream: a request takes about as long as reading this many bytes."""
_STREAMS_KEPT: Final = 64

ReadRange = Callable[[str, int, int], bytes]
_Key = tuple[str, int]


class Chunks:
    """Cached reads of objects. `read_range(name, position, size)` fetches a range of an object. Raises OSError."""

    def __init__(self, read_range: ReadRange, ahead: Executor, bytes_max: int) -> None:
        self._read_range = read_range
        self._ahead = ahead
        self._bytes_max = bytes_max
        self._kept: OrderedDict[_Key, bytes] = OrderedDict()
        self._kept_bytes = 0
        self._coming: dict[_Key, Future[bytes]] = {}
        self._streams: OrderedDict[tuple[str, int], int] = OrderedDict()
        """Number of chunks to fetch ahead, by object and the chunk where a read ended."""
        self._lock = threading.Lock()
        self.requests = 0
        self.fetched_bytes = 0

    def read(self, name: str, object_size: int, position: int, size: int) -> bytes:
        """Return `size` bytes of an object from `position` on, fewer at its end. Raises OSError."""
        end = min(position + size, object_size)
        if end <= position:
            return b""
        first, last = position // CHUNK_BYTES, (end - 1) // CHUNK_BYTES
        count = -(-object_size // CHUNK_BYTES)
        with self._lock:
            waits, runs = self._claim(name, first, last)
            ahead = self._next_of_stream(name, first, last, count)
            ahead_runs = self._claim(name, *ahead)[1] if ahead else []
        for run in ahead_runs:
            self._ahead.submit(self._fetch, name, object_size, *run)
        for run in runs:
            self._fetch(name, object_size, *run)
        parts = [each.result() for each in waits]
        start = position - first * CHUNK_BYTES
        data = parts[0] if len(parts) == 1 else b"".join(parts)
        return data[start : start + end - position]

    def forget(self, name: str) -> None:
        """Drop the chunks of an object that was removed."""
        with self._lock:
            for key in [key for key in self._kept if key[0] == name]:
                self._kept_bytes -= len(self._kept.pop(key))

    def _claim(self, name: str, first: int, last: int) -> tuple[list[Future[bytes]], list[tuple[int, int]]]:
        """Return the chunks from first to last, and the runs of them that the caller must fetch. Call with the lock."""
        waits, runs = list[Future[bytes]](), list[tuple[int, int]]()
        for number in range(first, last + 1):
            key = (name, number)
            data = self._kept.get(key)
            future = self._coming.get(key)
            if data is not None:
                self._kept.move_to_end(key)
                future = Future()
                future.set_result(data)
            elif future is None:
                future = self._coming[key] = Future()
                if runs and runs[-1][1] == number - 1:
                    runs[-1] = (runs[-1][0], number)
                else:
                    runs.append((number, number))
            waits.append(future)
        return waits, runs

    def _next_of_stream(self, name: str, first: int, last: int, count: int) -> tuple[int, int] | None:
        """Return the range to fetch ahead if the read continues a stream, or None. Call with the lock."""
        jump = JUMP_BYTES_MAX // CHUNK_BYTES
        # A look at the next batch's header at the end of this range may have come first.
        near = [before for before in range(first - jump - 1, last + 1) if (name, before) in self._streams]
        ahead = max((self._streams.pop((name, before)) for before in near), default=0 if first else 1)
        if near and near[0] != last:
            ahead = min(max(2 * ahead, 1), AHEAD_BYTES_MAX // CHUNK_BYTES)
        self._streams[name, last] = ahead
        if len(self._streams) > _STREAMS_KEPT:
            self._streams.popitem(last=False)
        end, half = (min(last + far, count - 1) for far in (ahead, (ahead + 1) // 2))
        if end <= last or (name, half) in self._kept or (name, half) in self._coming:
            return None
        return last + 1, end

    def _fetch(self, name: str, object_size: int, first: int, last: int) -> None:
        """Fetch claimed chunks in one request, and give them to all reads that wait for them."""
        position = first * CHUNK_BYTES
        size = min((last + 1) * CHUNK_BYTES, object_size) - position
        error: BaseException | None = None
        data = b""
        try:
            data = self._read_range(name, position, size)
            if len(data) != size:
                raise OSError(f"{name}: {len(data)} bytes came instead of {size}")
        except BaseException as failure:  # noqa: BLE001 - reported to the reads that wait
            error = failure
        with self._lock:
            self.requests += 1
            self.fetched_bytes += len(data)
            futures = [(number, self._coming.pop((name, number))) for number in range(first, last + 1)]
            if error is None:
                for number, _ in futures:
                    self._keep((name, number), self._chunk(data, number - first))
        for number, future in futures:
            if error is None:
                future.set_result(self._chunk(data, number - first))
            else:
                future.set_exception(error if isinstance(error, OSError) else OSError(f"{name}: {error}"))

    def _chunk(self, data: bytes, number: int) -> bytes:
        return data[number * CHUNK_BYTES : (number + 1) * CHUNK_BYTES]

    def _keep(self, key: _Key, data: bytes) -> None:
        self._kept[key] = data
        self._kept_bytes += len(data)
        while self._kept_bytes > self._bytes_max and len(self._kept) > 1:
            _, gone = self._kept.popitem(last=False)
            self._kept_bytes -= len(gone)
