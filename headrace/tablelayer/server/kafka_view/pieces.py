"""The records that Kafka consumers get of a region of the log: its batches in Kafka's form, in pieces.

JSON is many times larger than stored rows, and a batch of a few kilobytes may have a million rows. So a large batch is
cut by halves into pieces of about a MiB with their own offsets. A consumer gets the pieces that fit into its fetch,
from its offset on, and always the first one (KIP-74). The cuts depend on the batch alone, so consumers share the
pieces. A -U stays with its +U.

An unreadable batch becomes an empty one over the same offsets, so that consumers can go on, and is reported.

Blocking: called in executor threads.
"""

from __future__ import annotations

from collections.abc import Callable, Hashable
from typing import TYPE_CHECKING, Final

import pyarrow as pa

from headrace.protocol.errors import DecodeError, EncodeError
from headrace.protocol.records.header import BatchHeader
from headrace.tablelayer.model.avro.write import Frame
from headrace.tablelayer.model.batches.batch import ArrowBatch, ChangeType
from headrace.tablelayer.model.batches.ipc import STORED_BYTES_MAX
from headrace.tablelayer.model.errors import TableError
from headrace.tablelayer.model.options.kafka_formats import KafkaValueFormat
from headrace.tablelayer.model.table.definition import StoredTable
from headrace.tablelayer.model.types.sizes import text_size
from headrace.tablelayer.server.kafka_view.caches import Opened, PieceCaches
from headrace.tablelayer.server.kafka_view.rows_to_records import empty_batch, to_kafka
from headrace.tablelayer.server.regions import headers_of

if TYPE_CHECKING:
    from headrace.broker.log.region import FileRegion

_PIECE_BYTES: Final = 1 << 20
_PIECE_BYTES_MIN: Final = 64 << 10
"""Minimum size of a piece, for consumers with small fetches: a piece costs as much as some hundred rows."""
_RECORD_BYTES: Final = 24
_ENVELOPE_BYTES: Final = 100
_UNBOUNDED: Final = (1 << 63) - 1
_UNREADABLE: Final = (
    DecodeError, EncodeError, TableError, pa.ArrowException, ValueError, ArithmeticError, LookupError,
)  # fmt: skip


class Answer:
    """The pieces for one consumer, up to a maximum size."""

    def __init__(self, max_bytes: int, *, must: bool) -> None:
        """Create an empty answer. With `must`, the first piece is taken whatever its size."""
        self.parts: list[memoryview] = []
        self.size = 0
        self.records = 0
        self._max_bytes = max_bytes
        self._must = must

    def takes(self, piece: memoryview, records: int) -> bool:
        if self.size + len(piece) > self._max_bytes and (self.parts or not self._must):
            return False
        self.parts.append(piece)
        self.size += len(piece)
        self.records += records
        return True


class Consumption:
    """A fetch from one bucket. `definition` and `frame` determine how its values are written; `unreadable` is called
    with skipped batches.
    """

    def __init__(
        self,
        caches: PieceCaches,
        bucket: int,
        definition: StoredTable,
        frame: Frame | None,
        max_bytes: int,
        unreadable: Callable[[BatchHeader, Exception], None],
    ) -> None:
        self._caches = caches
        self._bucket = bucket
        self._unreadable = unreadable
        self._definition = definition
        self._frame = frame
        self._piece_bytes = max(_PIECE_BYTES_MIN, min(_PIECE_BYTES, max_bytes))
        schema, settings = definition.schema, definition.settings
        self._row_bytes = _RECORD_BYTES + schema.row_cost.width
        self._row_bytes += sum(len(column.name) + 4 for column in schema.columns)
        self._times = 1 + bool(definition.bucket_key)
        if settings.kafka_value_format is KafkaValueFormat.DEBEZIUM_JSON:
            self._row_bytes += _ENVELOPE_BYTES
            self._times += 1
        if frame is not None:
            self._row_bytes += frame.size

    def read(self, region: FileRegion, offset: int, answer: Answer) -> None:
        """Fill the answer with pieces of the region's batches, from the batch with the offset on."""
        for position, header in headers_of(region):
            if header.next_offset > offset and not self._read_batch(region, position, header, offset, answer):
                return

    def _read_batch(
        self, region: FileRegion, position: int, header: BatchHeader, offset: int, answer: Answer
    ) -> bool:
        """Add a batch's pieces. Return False if one did not fit."""
        row, opened = max(0, offset - header.base_offset), None
        cache = self._caches.transcoded
        while True:
            found = cache.get(self._key(header, row))
            if found is None:
                try:
                    if opened is None:
                        opened = self._open(region, position, header)
                    first, last = self._piece(opened, row)
                    found = cache.get(self._key(header, first)) or self._transcoded(
                        header, opened, first, last
                    )
                except _UNREADABLE as error:
                    if isinstance(error, MemoryError):
                        raise
                    self._unreadable(header, error)
                    found = 0, header.record_count, empty_batch(header)
            first, last, piece = found
            if not answer.takes(piece, last - first):
                return False
            if last >= header.record_count:
                return True
            row = last

    def _transcoded(
        self, header: BatchHeader, opened: Opened, first: int, last: int
    ) -> tuple[int, int, memoryview]:
        piece = to_kafka(opened.batch, self._definition, self._frame, opened.rows, (first, last))
        self._caches.consumed.add(piece)
        self._caches.transcoded.put(self._key(header, first), (first, last, piece), len(piece))
        return first, last, piece

    def _key(self, header: BatchHeader, row: int) -> Hashable:
        table = self._definition
        return (
            table.table_id,
            self._bucket,
            header.base_offset,
            table.schema.schema_id,
            self._piece_bytes,
            row,
        )

    def _open(self, region: FileRegion, position: int, header: BatchHeader) -> Opened:
        opened = self._caches.opened
        key = (self._definition.table_id, self._bucket, header.base_offset)
        found = opened.get(key)
        if found is not None:
            return found
        batch = ArrowBatch.parse(region.read_at(position, header.size))
        schema = self._definition.versions.get(batch.schema_id)
        # Check the whole batch again: a kernel must not read beyond its buffers, and old batches were accepted before
        # there were checks.
        rows = batch.to_record_batch(
            schema.arrow(), untrusted=True, rows_max=_UNBOUNDED, bytes_max=STORED_BYTES_MAX
        )
        found = Opened(batch, rows)
        if self._size(rows) > self._piece_bytes:
            opened.put(key, found, found.size)
        return found

    def _size(self, rows: pa.RecordBatch) -> int:
        """Return about how many bytes the rows become."""
        texts = sum(map(text_size, rows.columns))
        return int(self._times * texts + rows.num_rows * self._row_bytes)

    def _piece(self, opened: Opened, row: int) -> tuple[int, int]:
        """Return the row range [first, end) of the piece that contains a row."""
        first, last = 0, opened.rows.num_rows
        changes = opened.batch.change_types
        while last - first > 1 and self._size(opened.rows.slice(first, last - first)) > self._piece_bytes:
            middle = (first + last) // 2
            if changes is not None and changes[middle - 1] == ChangeType.UPDATE_BEFORE:
                middle += 1
            if middle == last:
                break
            first, last = (first, middle) if row < middle else (middle, last)
        return first, last
