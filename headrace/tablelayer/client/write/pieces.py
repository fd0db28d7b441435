"""Cut rows into pieces that fit into a request.

A request of more than `socket.request.max.bytes` closes the connection, as with Kafka, and would be retried until the
deadline. So rows are cut by their real size. A row that does not fit is refused before anything is sent.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Final

import pyarrow as pa

from headrace.tablelayer.client.errors import DataError
from headrace.tablelayer.model.batches.ipc import BYTES_PER_MESSAGE_MAX, ROWS_PER_MESSAGE_MAX

PIECE_BYTES_MAX: Final = BYTES_PER_MESSAGE_MAX - (1 << 20)
"""Maximum size of a piece in Arrow: a server's limit for one message, without its frame."""

_FILLED: Final = 0.75


def check_rows_fit(rows: pa.Table, table: str) -> None:
    """Raise DataError for a row that is too large for a request."""
    places = [(0, rows.num_rows)] if rows.nbytes > PIECE_BYTES_MAX else []
    while places:
        start, count = places.pop()
        if count == 1:
            row = rows.slice(start, 1)
            sizes = {name: column.nbytes for name, column in zip(row.column_names, row.columns, strict=True)}
            largest = max(sizes, key=lambda name: sizes[name])
            raise DataError(
                f"{table}: row {start} has {row.nbytes} bytes, but at most {PIECE_BYTES_MAX} are allowed; "
                f"column '{largest}' has {sizes[largest]} of them",
                column=largest,
                row=start,
            )
        half = count // 2
        for begin, size in ((start + half, count - half), (start, half)):  # the first row first
            if rows.slice(begin, size).nbytes > PIECE_BYTES_MAX:
                places.append((begin, size))


def slabs(rows: pa.Table, count: int) -> Iterator[pa.RecordBatch]:
    """Return the rows in order, at most `count` at a time and, except for the last, at least `_FILLED` of that.

    Adjacent rows are not copied: joining two chunks to fill a slab costs more than the fuller slab saves.
    """
    waiting: list[pa.RecordBatch] = []
    wanted = count
    for chunk in rows.to_batches():
        start = 0
        while start < chunk.num_rows:
            part = chunk.slice(start, wanted)
            start += part.num_rows
            wanted -= part.num_rows
            waiting.append(part)
            if wanted <= count * (1 - _FILLED):
                yield waiting[0] if len(waiting) == 1 else pa.concat_batches(waiting)
                waiting, wanted = [], count
    if waiting:
        yield waiting[0] if len(waiting) == 1 else pa.concat_batches(waiting)


def pieces(rows: pa.RecordBatch, size_bytes: int) -> Iterator[pa.RecordBatch]:
    """Return the rows in order, about `size_bytes` at a time if the rows have about the same size."""
    if not rows.num_rows:
        return
    row_size = max(1, rows.nbytes // rows.num_rows)
    step = min(max(1, size_bytes // row_size), ROWS_PER_MESSAGE_MAX)
    for start in range(0, rows.num_rows, step):
        yield from _halved(rows.slice(start, step))


def _halved(piece: pa.RecordBatch) -> Iterator[pa.RecordBatch]:
    if piece.nbytes <= PIECE_BYTES_MAX or piece.num_rows <= 1:
        yield piece
        return
    half = piece.num_rows // 2
    yield from _halved(piece.slice(0, half))
    yield from _halved(piece.slice(half))
