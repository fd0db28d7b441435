"""Acknowledged rows can be read: the rows of all acknowledged writes are compared with every reader's.

`Oracle.seen` gets each frame and its answer, and reads the acknowledged rows from the bytes themselves: rows of log
tables by offset, rows of primary-key tables without a merge engine by key. It reads from the log, once, the rows that
it cannot compute (merge engines, mutated values of Kafka producers, staged rows). `check_tail` reads new rows of a
bucket through every API, `check` a whole bucket: log scans of all, of every column alone and filtered, Kafka's fetch,
the snapshot scan, lookups of all keys with and without projection, the count. All must agree, or it is a
`DisagreementError`.
"""

from __future__ import annotations

import json
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from headrace.protocol.errors import DecodeError
from headrace.protocol.messages.fetch import FetchPartition, FetchRequest, FetchTopic
from headrace.protocol.records.decode import decode_records
from headrace.protocol.records.header import iter_headers
from headrace.tablelayer.model import messages as m
from headrace.tablelayer.model.batches.batch import ArrowBatch, ChangeType
from headrace.tablelayer.model.batches.ipc import decode_ipc, encode_ipc
from headrace.tablelayer.model.filters.filters import encode_filter
from headrace.tablelayer.tests.fuzz.world import FORMAT, Standing, World
from headrace.tablelayer.tests.server.test_hostile_batches import printed

Place = tuple[str, int]
"""(name of the table, bucket)."""
Logged = tuple[int, int, str]
"""(offset, change type, row)."""


class DisagreementError(AssertionError):
    """A reader's rows differ from the acknowledged ones, or from another reader's."""


def agree(what: str, found: Any, wanted: Any) -> None:
    if found != wanted:
        raise DisagreementError(f"{what}: {_short(found)} and not {_short(wanted)}")


def _short(value: Any) -> str:
    text = repr(value)
    return text if len(text) < 1500 else f"{text[:700]} ... {text[-700:]}"


class Oracle:
    def __init__(self, world: World) -> None:
        self.world = world
        self.logged: dict[Place, dict[int, str]] = {}
        """Rows of log tables, by offset."""
        self.states: dict[Place, dict[str, dict[str, str]] | None] = {}
        """Rows of tables with a key and no engine: by key, the values by column. None: to be read from the log."""
        self.acknowledged = 0

    # -- writes ---------------------------------------------------------------------------------------------

    def seen(self, request: Any, answer: Any) -> list[tuple[Standing, int, int]]:
        """Return (table, bucket, offset) of the rows that `request` has written; without an `answer` that is
        unknown.
        """
        if isinstance(request, (m.AppendRowsRequest, m.PutRowsRequest)):
            return self._rows_seen(request, answer)
        self.forget()
        return []

    def forget(self) -> None:
        """Forget a bucket: rows that cannot be computed here were written to it."""
        for place in self.states:
            self.states[place] = None

    def _rows_seen(self, request: Any, answer: Any) -> list[tuple[Standing, int, int]]:
        table = next((each for each in self.world.tables.values() if each.table_id == request.table_id), None)
        if table is None:
            return []
        if answer is None or answer.error_code:
            for part in request.buckets:
                self.states[table.name, part.bucket] = None
            return []
        buckets = [each.bucket for each in request.buckets]
        written = []
        for part, result in zip(request.buckets, answer.buckets, strict=True):
            agree("an answer's bucket", result.bucket, part.bucket)
            if result.error_code:
                continue
            if result.end_offset < result.base_offset:
                raise DisagreementError(
                    f"acknowledged offsets from {result.base_offset} to {result.end_offset}"
                )
            self.acknowledged += 1
            place = (table.name, part.bucket)
            if buckets.count(part.bucket) > 1:  # which one was first?
                self.states[place] = None
            else:
                self._take(table, place, request, part.batch, result)
            written.append((table, part.bucket, result.base_offset))
        return written

    def _take(self, table: Standing, place: Place, request: Any, data: Any, result: Any) -> None:
        schema = table.definition.schema
        batch = ArrowBatch.parse(data)
        if (
            table.name == "altered"
        ):  # its columns change meanwhile: there its readers have to agree, and no more
            self.states[place] = None
            return
        targets = getattr(request, "target_columns", None)
        columns = (
            list(schema.columns)
            if targets is None
            else [each for each in schema.columns if each.id in targets]
        )
        try:
            rows = batch.to_record_batch(pa.schema([each.field() for each in columns]))
        except DecodeError as error:
            raise DisagreementError(f"a batch was acknowledged that cannot be read: {error}") from error
        if not table.keyed:
            texts = printed(rows)
            for offset, text in enumerate(texts, result.base_offset):
                self.logged.setdefault(place, {})[offset] = text
            # A batch without rows takes an offset, and one that was sent again is where it was.
            agree(
                f"offsets of a batch for {place}", result.end_offset - result.base_offset, max(1, len(texts))
            )
            return
        state = self.states.setdefault(place, {} if result.base_offset == 0 else None)
        if (
            table.definition.settings.merge_engine is not None
            or table.definition.settings.auto_increment_column
        ):
            self.states[place] = state = None
        if state is None:
            return
        keys = printed(rows.select(list(schema.primary_key)))
        cells = {name: printed(rows.select([name])) for name in rows.schema.names}
        changes = np.full(rows.num_rows, 3) if batch.change_types is None else batch.change_types
        empty = {name: repr({name: None}) for name in schema.names}
        for index, (key, change) in enumerate(zip(keys, changes.tolist(), strict=True)):
            given = {name: texts[index] for name, texts in cells.items()}
            if change != ChangeType.DELETE:
                state[key] = {**(state.get(key, empty) if targets is not None else empty), **given}
            elif targets is None:
                state.pop(key, None)
            else:  # deletes of some columns only: what is left of the row is the server's to say
                self.states[place] = None
                return

    # -- reading --------------------------------------------------------------------------------------------

    def check_tail(self, table: Standing, bucket: int, offset: int) -> None:
        whole = self._log_agrees(table, bucket, offset)
        if table.keyed:
            self._keys_agree(table, bucket, {key for _, _, _, key in whole})

    def check_all(self) -> None:
        for table in self.world.tables.values():
            if not table.definition.is_partitioned:
                for bucket in range(table.definition.bucket_count):
                    self.check(table, bucket)

    def check(self, table: Standing, bucket: int) -> None:
        place = (table.name, bucket)
        whole = self._log_agrees(table, bucket, 0)
        if not table.keyed:
            found = {offset: row for offset, _, row, _ in whole}
            for offset, text in self.logged.get(place, {}).items():
                agree(f"acknowledged row at offset {offset} of {place}", found.get(offset), text)
            count = self._ask(m.CountRowsRequest(table_id=table.table_id, buckets=[bucket])).buckets[0]
            agree(f"rows counted in {place}", (count.error_code, count.count), (0, len(whole)))
            return
        replayed: dict[str, str] = {}
        for _, change, row, key in whole:
            if change in (ChangeType.DELETE, ChangeType.UPDATE_BEFORE):
                agree(
                    f"{ChangeType(change).short} of {key} in the changelog of {place}",
                    row,
                    replayed.pop(key, None),
                )
            else:
                replayed[key] = row
        rows = self._state(table, bucket)
        state = dict(zip(self._keys_of(table, rows), printed(rows), strict=True))
        agree(f"rows in the state of {place}", len(state), rows.num_rows)
        agree(f"the state of {place}, beside its changelog", state, replayed)
        known = self.states.get(place)
        cells = {name: printed(rows.select([name])) for name in rows.schema.names}
        by_key = {
            key: {name: texts[index] for name, texts in cells.items()}
            for index, key in enumerate(self._keys_of(table, rows))
        }
        if known is not None:
            agree(f"the state of {place}, beside what was acknowledged", by_key, known)
        self.states[place] = by_key
        self._keys_agree(table, bucket, set(state))
        count = self._ask(m.CountRowsRequest(table_id=table.table_id, buckets=[bucket])).buckets[0]
        agree(f"rows counted in {place}", (count.error_code, count.count), (0, len(state)))

    def _ask(self, request: Any) -> Any:
        answer = self.world.ask(request)
        if answer.error_code:
            raise DisagreementError(f"an honest {type(request).__name__} is refused: {answer.error_message}")
        return answer

    def _keys_of(self, table: Standing, rows: pa.RecordBatch) -> list[str]:
        return printed(rows.select(list(table.definition.schema.primary_key)))

    def _log_agrees(self, table: Standing, bucket: int, offset: int) -> list[tuple[int, int, str, str]]:
        """Return (offset, change, row, key) of the log, if all readers of logs agree."""
        self.world.server.until_published(table.topic, bucket)
        place, schema = f"{table.topic}-{bucket}", table.definition.schema
        whole = self._scan(table, bucket, offset, None)
        plain = [each[:2] for each in whole]
        # After a write two of the columns in turn; all of them whenever a table is read whole.
        names = (
            schema.names
            if not offset
            else [schema.names[(offset + each) % len(schema.names)] for each in (0, 5)]
        )
        for name in names:
            alone = [each[:2] for each in self._scan(table, bucket, offset, name)]
            agree(f"offsets of column {name} in {place} from {offset}", alone, plain)
        if {"id", "s"} <= set(schema.names) and str(schema.column("id").type) == "INT":
            low = pa.scalar(7, pa.int32())
            halves = (
                (pc.field("id") > low) | pc.field("id").is_null() | pc.field("s").is_null(),
                (pc.field("id") <= low) & pc.field("s").is_valid(),
            )
            parts = [self._scan(table, bucket, offset, None, each) for each in halves]
            agree(f"filtered scans of {place} from {offset}", sorted({*parts[0], *parts[1]}), sorted(whole))
        consumed = self._fetch(table, bucket, offset)
        shown = [each for each in whole if each[1] != ChangeType.UPDATE_BEFORE]
        agree(f"records for a Kafka consumer of {place} from {offset}", len(consumed), len(shown))
        if (
            FORMAT not in table.definition.options
            and "id" in schema
            and "table.kafka.value-path" not in table.definition.options
        ):
            ids = [json.loads(value).get("id") for value in consumed if value is not None]
            wanted = [_id_of(row) for _, change, row, _ in shown if change != ChangeType.DELETE]
            agree(f"ids that a Kafka consumer of {place} sees from {offset}", ids, wanted)
        return whole

    def _scan(
        self, table: Standing, bucket: int, offset: int, column: str | None, condition: Any = None
    ) -> list[tuple[int, int, str, str]]:
        definition, schema = table.definition, table.definition.schema
        found = []
        while True:
            answer = self._ask(
                m.ScanLogRequest(
                    table_id=table.table_id,
                    columns=None if column is None else [schema.column(column).id],
                    buckets=[m.ScanLogBucket(bucket=bucket, offset=offset)],
                    schema_id=schema.schema_id,
                    filter=None if condition is None else encode_filter(condition, schema),
                    row_filter=condition is not None,
                )
            )
            (result,) = answer.buckets
            if result.error_code:
                raise DisagreementError(
                    f"a scan of {table.topic}-{bucket} from {offset} (column {column}, filter {condition}) is refused: "
                    f"{result.error_message}"
                )
            records, end = memoryview(bytes(result.records or b"")), offset
            while records:
                batch = ArrowBatch.parse(records)
                records = records[batch.header.size :]
                versions = definition.versions
                source = versions.get(batch.schema_id)
                wanted = None if column is None else [schema.index(column)]
                conversion = versions.conversion(batch.schema_id, schema, wanted)
                if wanted is None:
                    rows = conversion.of(batch.to_record_batch(source.arrow(), untrusted=True))
                else:
                    sent = pa.schema([source.columns[index].field() for index in conversion.needed])
                    arrays = batch.to_record_batch(sent, untrusted=True).columns if len(sent) else []
                    rows = conversion.of_needed(arrays, batch.header.record_count)
                texts = printed(rows)
                keys = self._keys_of(table, rows) if table.keyed and column is None else texts
                count = batch.header.record_count
                changes = [0] * count if batch.change_types is None else batch.change_types.tolist()
                deltas = range(count) if batch.offset_deltas is None else batch.offset_deltas.tolist()
                for delta, change, row, key in zip(deltas, changes, texts, keys, strict=True):
                    if batch.header.base_offset + delta >= offset:
                        found.append((batch.header.base_offset + delta, change, row, key))
                end = batch.header.next_offset
            if condition is not None:
                end = max(end, result.filtered_end_offset)
            if end <= offset:
                if offset < result.high_watermark:
                    raise DisagreementError(f"a scan of {table.topic}-{bucket} stands still at {offset}")
                return found
            offset = end

    def _fetch(self, table: Standing, bucket: int, offset: int) -> list[bytes | None]:
        values: list[bytes | None] = []
        while True:
            wanted = FetchPartition(partition=bucket, fetch_offset=offset, partition_max_bytes=1 << 20)
            topic = FetchTopic(topic=table.topic, topic_id=table.table_id, partitions=[wanted])
            answer = self._ask(FetchRequest(max_wait_ms=0, min_bytes=1, topics=[topic]))
            part = answer.responses[0].partitions[0]
            if part.error_code:
                raise DisagreementError(
                    f"a fetch of {table.topic}-{bucket} from {offset}: error {part.error_code}"
                )
            if not part.records:
                return values
            records = memoryview(bytes(part.records))
            for position, header in iter_headers(records):
                columns = decode_records(records[position : position + header.size])
                for index, value in enumerate(columns.values()):
                    if columns.offsets[index] >= offset:
                        values.append(value)
                end = header.next_offset
            offset = end

    def _state(self, table: Standing, bucket: int) -> pa.RecordBatch:
        schema, pieces = table.definition.schema, []
        scan_id, more = m.OPEN_SCAN, True
        while more:
            answer = self._ask(
                m.ScanSnapshotRequest(
                    table_id=table.table_id, bucket=bucket, scan_id=scan_id, max_bytes=20_000,
                    schema_id=schema.schema_id,
                )
            )  # fmt: skip
            scan_id, more = answer.scan_id, answer.has_more
            pieces.append(decode_ipc(bytes(answer.rows), schema.arrow(), untrusted=True))
        return (
            pa.Table.from_batches(pieces).combine_chunks().to_batches()[0]
            if any(map(len, pieces))
            else pieces[0]
        )

    def _keys_agree(self, table: Standing, bucket: int, keys: set[str]) -> None:
        """Check that lookups of these keys, of whole rows and of one column, agree with the state scan."""
        rows = self._state(table, bucket)
        texts, names = printed(rows), table.definition.schema.names
        state = dict(zip(self._keys_of(table, rows), texts, strict=True))
        present = [index for index, key in enumerate(state) if key in keys]
        if not present:
            return
        asked = bytes(encode_ipc(rows.select(list(table.definition.schema.primary_key)).take(present)))
        schema = table.definition.schema
        for column in (None, schema.columns[-1]):
            answer = self._ask(
                m.LookupRequest(
                    table_id=table.table_id, buckets=[m.LookupBucket(bucket=bucket, keys=asked)],
                    schema_id=schema.schema_id, columns=None if column is None else [column.id], timeout_ms=5000,
                )
            ).buckets[0]  # fmt: skip
            if answer.error_code:
                raise DisagreementError(
                    f"a lookup in {table.topic}-{bucket} is refused: {answer.error_message}"
                )
            arrow = schema.arrow() if column is None else pa.schema([column.field()])
            agree(f"keys found in {table.topic}-{bucket}", bytes(answer.found), b"\1" * len(present))
            found = printed(decode_ipc(bytes(answer.rows), _nullable(arrow), untrusted=True))
            wanted = rows if column is None else rows.select([names.index(column.name)])
            agree(f"rows looked up in {table.topic}-{bucket}", found, printed(wanted.take(present)))


def _nullable(schema: pa.Schema) -> pa.Schema:
    return pa.schema([each.with_nullable(True) for each in schema])


def _id_of(row: str) -> Any:
    found = row.split("'id': ", 1)[1].split(",", 1)[0].rstrip("}")
    return None if found == "None" else int(found)
