"""The state of one bucket of a primary-key table: stored rows, and writes that are logged but not stored yet.

The steps of a batch (rules R1, R3, R12): `prepare` computes its changes and builds its changelog batch, without any
effect; the caller appends that to the log, and then calls `logged`. Until the log reports the batch as replicated, its
rows are in the pre-write buffer, where the next batch sees them and lookups do not. `store` moves a prefix of the
buffer into the key-value store, together with its end offset.

Rows keep the schema with which they were written. A merge converts them to the latest one, as well as old images
(R4.3); a replay uses each batch's own schema.

Threads: one `prepare` at a time, and none between it and its `logged`; `store` and `flush` at any time beside them, one
at a time. `prepare`, `store`, `flush` and reads block and run in executor threads; the rest runs on the event loop.
"""

from __future__ import annotations

from collections.abc import Sequence

import msgspec
import numpy as np
import numpy.typing as npt
import pyarrow as pa

from headrace.protocol.errors import DecodeError, ErrorCode, KafkaError
from headrace.protocol.records.header import iter_headers
from headrace.tablelayer.model.arrays.order import sorted_order
from headrace.tablelayer.model.batches.batch import ArrowBatch, ChangeType, encode_arrow_batch
from headrace.tablelayer.model.errors import RowError
from headrace.tablelayer.model.rows.stored import encode_rows
from headrace.tablelayer.model.rows.versions import SchemaVersions, decode_stored, upgraded
from headrace.tablelayer.model.schema.schema import Schema
from headrace.tablelayer.model.table.definition import TableDefinition
from headrace.tablelayer.model.types.sizes import BATCH_BYTES_MAX
from headrace.tablelayer.server.merge.auto_increment import Numbers
from headrace.tablelayer.server.merge.engines import MergeRules, Operations, merge, row_keys
from headrace.tablelayer.server.merge.few_rows import FewRows, Merge, batch_of_few, merge_few
from headrace.tablelayer.server.merge.writes import OperationSource, Writer, compression_of, statistics_of
from headrace.tablelayer.server.store.kv import KeyValueStore
from headrace.tablelayer.server.store.row_ttl import Entries, RowTimes, ended

Changes = npt.NDArray[np.uint8]
STANDING_BYTES_MAX = BATCH_BYTES_MAX
"""Maximum size of the stored rows that one write may read: as many bytes as it may bring."""
STANDING_AT_ONCE_BYTES_MAX = 64 << 10
"""The same for a write on the event loop."""
STORED_AT_ONCE_BYTES_MAX = 64 << 10
"""Maximum size of the writes that are stored together on the event loop: some tens of microseconds."""
_RUN_ROWS = 4096
"""Number of rows from which replayed batches are not joined any more: it saves nothing, and copies them."""
_STALL_SECONDS = 0.5  # after that the caller decides
# no encoded row is equal to it: a row begins with a schema id and is longer than 2 bytes
_MISSING = b"\x00missing"


class PreparedWrite(msgspec.Struct, frozen=True):
    """A batch for the log, and its changes of the store."""

    batch: memoryview
    keys: list[bytes]
    values: list[bytes | None]
    row_delta: int
    numbers_taken: int = 0
    times: Entries | None = None
    """The entries of a table with expiring rows (`row_ttl.py`)."""


class _Pending:
    """A logged batch whose rows are not in the store yet."""

    __slots__ = ("_by_key", "end_offset", "keys", "row_delta", "size", "times", "values")

    def __init__(self, prepared: PreparedWrite, end_offset: int, size: int) -> None:
        self.keys = prepared.keys
        self.times = prepared.times
        self.values = prepared.values
        self._by_key: dict[bytes, bytes | None] | None = None
        self.row_delta = prepared.row_delta
        self.end_offset = end_offset
        self.size = size

    @property
    def by_key(self) -> dict[bytes, bytes | None]:
        """The values by key, built on first use: mostly a write is stored before the next one comes."""
        if self._by_key is None:
            self._by_key = dict(zip(self.keys, self.values, strict=True))
        return self._by_key


class Tablet:
    def __init__(self, store: KeyValueStore) -> None:
        self.kv = store
        self.numbers = Numbers()
        """The numbers for the auto-increment column."""
        self._pending: tuple[_Pending, ...] = ()

    # -- writing -------------------------------------------------------------------------------------------

    def prepare(
        self, definition: TableDefinition, decode: OperationSource, writer: Writer, now_ms: int
    ) -> PreparedWrite:
        """Compute a write. Raises TableError, KafkaError or OutOfNumbersError, without any effect."""
        operations, versions = decode(definition), definition.versions
        try:
            merged = merge(
                MergeRules.of(definition),
                operations,
                lambda keys: upgraded(self._read(keys), versions),
                self.numbers.peek,
            )
        except RowError as error:
            if operations.sent_as is None:
                raise
            raise RowError(int(operations.sent_as[error.index]), error.column, error.reason) from error
        batch = encode_arrow_batch(
            merged.changelog,
            schema_id=definition.schema.schema_id,
            change_types=merged.change_types,
            compression=compression_of(definition, merged.changelog),
            timestamp_ms=now_ms,
            statistics=statistics_of(definition, definition.schema, merged.changelog),
            message=merged.message,
            **writer.fields(),
        )
        times = _times(definition, merged.keys, merged.values, now_ms)
        return PreparedWrite(batch, merged.keys, merged.values, merged.row_delta, merged.numbers_taken, times)

    def prepare_few(
        self,
        definition: TableDefinition,
        few: FewRows,
        writer: Writer,
        now_ms: int,
        engine: Merge | None = None,
        *,
        full_image: bool,
        inserts: bool = True,
    ) -> PreparedWrite | None:
        """Compute a write of a few rows on the event loop, with the same result as `prepare`.

        Returns None if that is not possible: a key's row is not in memory, was written under another schema, or is
        large. Raises NeedsArrays, too, if the table's `engine` cannot merge a row.
        """
        stored = self._read_in_memory(list(dict.fromkeys(few.keys)))
        if stored is None:
            return None
        changes = merge_few(few, stored, engine, full_image=full_image, inserts=inserts)
        batch = batch_of_few(definition, changes.rows, changes.change_types, writer, now_ms)
        if batch is None:
            return None
        times = _times(definition, changes.keys, changes.values, now_ms)
        return PreparedWrite(batch, changes.keys, changes.values, changes.row_delta, times=times)

    def prepare_expiry(
        self, definition: TableDefinition, until_ms: int, limit: int, now_ms: int
    ) -> tuple[PreparedWrite | None, bool]:
        """Return the deletion of at most `limit` expired rows, and whether there may be more.

        Rows that are being written are left to the next call. No `prepare` may run at the same time.
        """
        under_way = {key for write in self._pending for key in write.keys}
        found = ended(self.kv, until_ms, limit, under_way)
        if found.stale:
            self.kv.remove(found.stale)
        values = self.kv.get_within(sorted(found.keys), STANDING_BYTES_MAX)
        if not values:
            return None, found.has_more and bool(found.stale)
        rows = decode_stored(pa.array(values, pa.binary()), definition.versions, definition.schema)
        deletes = Operations(rows, np.ones(rows.num_rows, np.bool_), overwrite=True)
        has_more = found.has_more or len(values) < len(found.keys)
        return self.prepare(definition, lambda _: deletes, Writer(), now_ms), has_more

    def _read(self, keys: list[bytes]) -> list[bytes | None]:
        """Return old rows: from the newest pending write with the key, else from the store."""
        pending = self._pending
        if not pending:
            return self._stored(keys)
        # A write that is stored meanwhile is found in both places, with the same value.
        known: list[bytes | None] = [_MISSING] * len(keys)
        for write in pending:
            get = write.by_key.get
            known = [get(key, value) for key, value in zip(keys, known, strict=True)]
        wanted = [key for key, value in zip(keys, known, strict=True) if value is _MISSING]
        if len(wanted) == len(keys):
            return self._stored(keys)
        stored = iter(self._stored(wanted))
        return [next(stored) if value is _MISSING else value for value in known]

    def _read_in_memory(self, keys: list[bytes]) -> dict[bytes, bytes | None] | None:
        """Return the old rows of distinct keys, without reading from a disk; None if that is not possible."""
        found: dict[bytes, bytes | None] = {}
        for write in self._pending:
            by_key = write.by_key
            found |= {key: by_key[key] for key in keys if key in by_key}
        wanted = [key for key in keys if key not in found] if found else keys
        values = self.kv.get_in_memory(wanted, STANDING_AT_ONCE_BYTES_MAX)
        return None if values is None else found | dict(zip(wanted, values, strict=True))

    def _stored(self, keys: list[bytes]) -> list[bytes | None]:
        """Return stored rows. Raises KafkaError MESSAGE_TOO_LARGE, for which Kafka's producers split a batch."""
        values = self.kv.get_within(keys, STANDING_BYTES_MAX)
        if len(values) < len(keys):
            raise KafkaError(
                ErrorCode.MESSAGE_TOO_LARGE,
                f"the stored rows of the first {len(values)} of {len(keys)} keys take more than "
                f"{STANDING_BYTES_MAX} bytes, and the changelog needs all of them: write fewer rows at a time",
            )
        return values

    def logged(self, prepared: PreparedWrite, end_offset: int, size: int) -> None:
        """Note that the prepared batch is in the log, below `end_offset`. `size` is its charge to the budget."""
        self._pending = (*self._pending, _Pending(prepared, end_offset, size))
        if prepared.numbers_taken:
            self.numbers.use(prepared.numbers_taken)

    # -- storing -------------------------------------------------------------------------------------------

    def covered(self, offset: int) -> int:
        """Return the number of the oldest pending writes that end at or below `offset`."""
        return sum(write.end_offset <= offset for write in self._pending)

    def end_of(self, count: int) -> int:
        """Return the end offset of the `count` oldest pending writes."""
        return self._pending[count - 1].end_offset

    def store(self, count: int) -> None:
        """Put the `count` oldest pending writes into the store.

        Raises RocksDB's errors, and DiskFullError or StalledStoreError if the same call may succeed later.
        """
        writes = self._pending[:count]
        groups: list[tuple[Sequence[bytes], Sequence[bytes | None]]] = []
        for write in writes:
            groups.append((write.keys, write.values))
            if write.times is not None:
                groups.append(write.times)
        self.kv.write(
            groups,
            writes[-1].end_offset,
            self.kv.row_count + sum(write.row_delta for write in writes),
            _STALL_SECONDS,
        )

    def store_at_once(self, count: int) -> bool:
        """Store writes like `store`, on the event loop. Return False if that is not possible: there is too much to
        store, or the store is closed or stalls. Raises RocksDB's errors.
        """
        writes = self._pending[:count]
        if sum(write.size for write in writes) > STORED_AT_ONCE_BYTES_MAX:
            return False
        groups: list[tuple[Sequence[bytes], Sequence[bytes | None]]] = []
        for write in writes:
            groups.append((write.keys, write.values))
            if write.times is not None:
                groups.append(write.times)
        row_count = self.kv.row_count + sum(write.row_delta for write in writes)
        return self.kv.write_at_once(groups, writes[-1].end_offset, row_count)

    def stored(self, count: int) -> int:
        """Remove the `count` oldest pending writes, which are stored. Return their charge to the budget."""
        released = sum(write.size for write in self._pending[:count])
        self._pending = self._pending[count:]
        return released

    @property
    def pending_bytes(self) -> int:
        return sum(write.size for write in self._pending)

    # -- replaying -----------------------------------------------------------------------------------------

    def replay(
        self,
        versions: SchemaVersions,
        data: bytes,
        up_to: int | None = None,
        *,
        times: RowTimes | None = None,
    ) -> int:
        """Apply whole log batches from the applied offset on, or their rows below `up_to`. Return the number of rows.

        `times` is the rule of a table with expiring rows. Raises DecodeError for batches that are not a changelog.
        """
        replayed = 0
        runs: list[_Run] = []
        end_offset = self.kv.applied_offset
        view = memoryview(data)
        for position, header in iter_headers(view):
            if header.next_offset <= end_offset or (up_to is not None and header.base_offset >= up_to):
                continue
            if header.base_offset != end_offset:
                raise DecodeError(f"a changelog batch begins at {header.base_offset}, not at {end_offset}")
            batch = ArrowBatch.parse(view[position : position + header.size])
            stop = None if up_to is None else up_to - header.base_offset
            schema = versions.get(batch.schema_id)
            written_ms = 0 if times is None else header.max_timestamp
            if not runs or not runs[-1].takes(schema, written_ms):
                runs.append(_Run(schema, written_ms))
            runs[-1].add(*_images(schema, batch, 0, stop))
            end_offset = header.next_offset if up_to is None else min(header.next_offset, up_to)
            replayed += header.record_count
        if runs:
            groups: list[tuple[Sequence[bytes], Sequence[bytes | None]]] = []
            row_count = self.kv.row_count
            for run in runs:
                keys, values, delta = changes_of(run.schema, run.rows, run.changes)
                groups.append((keys, values))
                if times is not None:
                    groups.append(times.entries(run.schema, keys, values, run.written_ms))
                row_count += delta
            self.kv.write(groups, end_offset, row_count)
        return replayed

    def take_back(self, versions: SchemaVersions, data: bytes, offset: int) -> None:
        """Undo whole log batches that end at the applied offset, back to `offset`, by their old images.

        Raises DecodeError for batches that have none or do not end there.
        """
        view = memoryview(data)
        groups: list[tuple[Sequence[bytes], Sequence[bytes | None]]] = []
        row_count, start = self.kv.row_count, self.kv.applied_offset
        for position, header in reversed(list(iter_headers(view))):
            if header.base_offset >= start or header.next_offset <= offset:
                continue
            if header.next_offset != start:
                raise DecodeError(f"a changelog batch ends at {header.next_offset}, not at {start}")
            batch = ArrowBatch.parse(view[position : position + header.size])
            keys, values, delta = undone_by(
                versions.get(batch.schema_id), batch, max(0, offset - header.base_offset)
            )
            groups.append((keys, values))
            row_count -= delta
            start = max(offset, header.base_offset)
        if groups:
            self.kv.write(groups, start, row_count)


def _times(
    definition: TableDefinition, keys: list[bytes], values: list[bytes | None], now_ms: int
) -> Entries | None:
    """Return the entries of the rows' times, if rows of the table expire."""
    if definition.settings.kv_ttl_ms is None:
        return None
    rule = RowTimes.of(definition)
    return None if rule is None else rule.entries(definition.schema, keys, values, now_ms)


class _Run:
    """Changelog batches in order that are applied together: to sort and encode one row takes as long as a hundred."""

    def __init__(self, schema: Schema, written_ms: int) -> None:
        self.schema = schema
        self.written_ms = written_ms
        self._rows: list[pa.RecordBatch] = []
        self._changes: list[Changes] = []
        self._count = 0

    def takes(self, schema: Schema, written_ms: int) -> bool:
        return schema is self.schema and written_ms == self.written_ms and self._count < _RUN_ROWS

    def add(self, rows: pa.RecordBatch, changes: Changes) -> None:
        self._rows.append(rows)
        self._changes.append(changes)
        self._count += rows.num_rows

    @property
    def rows(self) -> pa.RecordBatch:
        return self._rows[0] if len(self._rows) == 1 else pa.concat_batches(self._rows)

    @property
    def changes(self) -> Changes:
        return self._changes[0] if len(self._changes) == 1 else np.concatenate(self._changes)


def _images(
    schema: Schema, batch: ArrowBatch, first: int, stop: int | None
) -> tuple[pa.RecordBatch, Changes]:
    rows = batch.to_record_batch(schema.arrow())
    changes = batch.change_types
    if rows.num_rows == 0:
        return rows, np.zeros(0, np.uint8)
    if changes is None:
        raise DecodeError("a batch of a primary-key table has no change types")
    stop = rows.num_rows if stop is None else min(stop, rows.num_rows)
    return rows.slice(first, stop - first), changes[first:stop]


def undone_by(schema: Schema, batch: ArrowBatch, first: int) -> tuple[list[bytes], list[bytes | None], int]:
    """Return the keys and values that undo a batch from row `first` on, in order, and its change of the row count.

    A -U is before its +U; if `first` is between them, both are undone.
    """
    changes = batch.change_types
    if first and changes is not None and first < len(changes) and changes[first] == ChangeType.UPDATE_AFTER:
        first -= 1
        if changes[first] != ChangeType.UPDATE_BEFORE:
            raise DecodeError("an update has no old image")
    rows, changes = _images(schema, batch, first, None)
    if not len(changes):
        return [], [], 0
    if (changes == ChangeType.UPDATE_AFTER).sum() != (changes == ChangeType.UPDATE_BEFORE).sum():
        raise DecodeError("updates have no old images")
    kept = np.flatnonzero(changes != ChangeType.UPDATE_AFTER)[::-1]
    selected, inserted = rows.take(pa.array(kept)), changes[kept] == ChangeType.INSERT
    keys = row_keys(schema, selected).to_pylist()
    values: list[bytes | None] = encode_rows(selected, schema).to_pylist()
    values = [None if new else value for value, new in zip(values, inserted.tolist(), strict=True)]
    return keys, values, int(inserted.sum()) - int((changes == ChangeType.DELETE).sum())


def changes_of(
    schema: Schema, rows: pa.RecordBatch, changes: Changes
) -> tuple[list[bytes], list[bytes | None], int]:
    """Return the keys and values of rows of the changelog, and their change of the row count.

    `schema` is the rows' own. The keys are sorted, changes of one key in order: inserting unsorted keys into a
    memtable takes four times as long.
    """
    if not len(changes):
        return [], [], 0
    kept = changes != ChangeType.UPDATE_BEFORE
    selected = rows if kept.all() else rows.filter(pa.array(kept))
    encoded = row_keys(schema, selected)
    order = sorted_order(encoded)
    deletes = changes[kept][order] == ChangeType.DELETE
    keys = encoded.take(order).to_pylist()
    values: list[bytes | None] = encode_rows(selected, schema).take(order).to_pylist()
    if deletes.any():
        values = [None if gone else value for value, gone in zip(values, deletes.tolist(), strict=True)]
    delta = int((changes == ChangeType.INSERT).sum()) - int((changes == ChangeType.DELETE).sum())
    return keys, values, delta
