"""A bucket of a table as the broker sees it: the base of log buckets and primary-key buckets.

This module has the Kafka view (fetch and produce). Subclasses define how rows get into the log. All methods run on the
event loop; blocking or long work goes to the executor, once per batch.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Awaitable, Callable, Sequence
from contextlib import AbstractAsyncContextManager
from typing import TYPE_CHECKING, Any

import numpy as np
import pyarrow as pa

from headrace.broker.log.errors import RecordErrors
from headrace.broker.log.partition_log import AppendInfo
from headrace.broker.partitions.hooks import FetchedRecords
from headrace.protocol.errors import DecodeError, ErrorCode, KafkaError
from headrace.protocol.one_line import one_line
from headrace.protocol.records.header import BatchHeader, read_header, verify_crc
from headrace.protocol.records.small import read_small
from headrace.tablelayer.model.avro.schema import schema_text
from headrace.tablelayer.model.avro.write import Frame
from headrace.tablelayer.model.batches.batch import PREFIX_SIZE
from headrace.tablelayer.model.errors import RowError, TableError, TableErrorCode
from headrace.tablelayer.model.options.kafka_formats import AvroSchemaPlace, KafkaValueFormat
from headrace.tablelayer.model.options.table_options import UnknownFields
from headrace.tablelayer.model.rows.versions import SchemaVersions
from headrace.tablelayer.model.table.buckets import bucket_of
from headrace.tablelayer.model.table.definition import StoredTable, TableDefinition
from headrace.tablelayer.model.table.evolution import changes_to_json
from headrace.tablelayer.server.bucket.dead_letters import write_dead_letters
from headrace.tablelayer.server.bucket.joining import Joiners
from headrace.tablelayer.server.bucket.joint_write import Part, log_at_once, write_together
from headrace.tablelayer.server.bucket.remote_bucket import RemoteBucket, wait_elsewhere
from headrace.tablelayer.server.kafka_view import producers as kafka_view
from headrace.tablelayer.server.kafka_view.few_records import BYTES_MAX, COMPRESSED_MAX, FewRecords, reader_of
from headrace.tablelayer.server.kafka_view.pieces import Answer, Consumption
from headrace.tablelayer.server.kafka_view.refusals import REFUSALS
from headrace.tablelayer.server.kafka_view.refused import Refused, Sifting, dead_letters, without
from headrace.tablelayer.server.kafka_view.schema_registry import REGISTRY_URL
from headrace.tablelayer.server.merge import forwarding
from headrace.tablelayer.server.merge.engines import Operations
from headrace.tablelayer.server.merge.few_rows import FewRows, NeedsArrays
from headrace.tablelayer.server.merge.writes import ClientWrite, OperationSource, Writer, made_for
from headrace.tablelayer.server.services import Services

if TYPE_CHECKING:
    from headrace.broker.partitions.partition import Partition

logger = logging.getLogger("headrace.tables")

Decode = Callable[[TableDefinition, kafka_view.Opened], Operations]
_ADDED_TIMES_MAX = 4
"""Maximum number of times that one batch adds columns: its records' fields may be found one after another, and other
requests may alter the table too."""
_UNREADABLE_TOLD_MAX = 1_000
_NONE_UNREADABLE: frozenset[int] = frozenset()
"""One for all buckets: each empty set takes 216 bytes."""
_MERGES_REFUSED_MAX = 100
"""Maximum number of a batch's records that only a merge can refuse: each one costs another attempt to write the batch.
"""
_REASON_LENGTH_MAX = 500
_PARTS_AT_ONCE_MAX = 4
"""Maximum number of other buckets to which a small batch is written on the event loop: half a millisecond."""
# JSON is at least this much larger than stored Arrow; an underestimate only costs another fetch
_EXPANSION = 4


class TableBucket:
    """One partition of a table's topic (see the module)."""

    def __init__(self, services: Services, partition: Partition) -> None:
        self.services = services
        self.partition = partition
        self.closed = False
        self._topic = partition.topic
        self._known = (partition.topic, services.catalog.definition(partition.topic))
        self.joiners = Joiners(services, partition)
        self._transcoding = asyncio.Lock()
        self._unreadable = _NONE_UNREADABLE
        self._producing = 0
        """Number of batches of producers that are under way beside the event loop."""

    @property
    def definition(self) -> StoredTable:
        """The table's definition now (it can be altered). Thread-safe."""
        topic, definition = self._known
        if definition.path.partition is not None:  # the table's topic has the definition
            try:
                return self.services.catalog.definition(self.partition.topic)
            except TableError:
                return definition  # the table is gone, and this partition will go too
        if self.partition.topic is not topic:
            topic = self.partition.topic
            definition = self.services.catalog.definition(topic)
            self._known = (topic, definition)
        return definition

    def versions(self) -> SchemaVersions:
        """Return the table's schemas now. Called after a read, it covers all schemas that the rows may have."""
        return self.definition.versions

    @property
    def rows_written(self) -> int:
        """Rows (log table) or keys (primary-key table) written since the bucket was opened."""
        return self.partition.traffic.records_in

    @property
    def name(self) -> str:
        return f"table {self.definition.path} bucket {self.partition.index}"

    def unreadable(self, header: BatchHeader, error: Exception) -> None:
        """Note and log, once per batch, that readers skip a batch which they cannot read. Thread-safe.

        Such a batch is damaged, or was accepted before there were checks.
        """
        if header.base_offset in self._unreadable or len(self._unreadable) >= _UNREADABLE_TOLD_MAX:
            return
        self._unreadable |= {header.base_offset}
        logger.error(
            "%s: the batch at offsets %d to %d cannot be read; readers skip it: %s",
            self.name, header.base_offset, header.next_offset - 1, error,
        )  # fmt: skip

    @property
    def unreadable_batches(self) -> int:
        """Number of unreadable batches found since the bucket was opened, each counted once."""
        return len(self._unreadable)

    def may_join(self, broker: int, broker_epoch: int) -> bool:
        return self.joiners.may_join(broker, broker_epoch)

    def check_open(self) -> None:
        if self.closed:
            raise KafkaError(ErrorCode.NOT_LEADER_OR_FOLLOWER, f"{self.name} is closed")
        if self.partition.failure is not None:
            raise KafkaError(
                ErrorCode.KAFKA_STORAGE_ERROR, f"{self.name} is offline: {self.partition.failure}"
            )
        if self.partition.is_fenced:
            raise KafkaError(
                ErrorCode.NOT_LEADER_OR_FOLLOWER, f"{self.name}: this broker may not lead it any longer"
            )

    def check_end_known(self) -> None:
        """Raise KafkaError until the new leader knows everything that an earlier leader may have shown (KIP-207).

        Until then a reader of all rows would get fewer rows than before.
        """
        if not self.partition.is_end_known:
            raise KafkaError(
                ErrorCode.OFFSET_NOT_AVAILABLE,
                f"{self.name} has a new leader, which waits for its replicas; try again",
            )

    # -- abstract methods ----------------------------------------------------------------------------------

    async def write_rows(
        self, source: OperationSource, writer: Writer, size: int, acks: int, timeout_ms: int
    ) -> AppendInfo:
        """Write rows of this bucket; `size` is their charge to the budget, in bytes. Raises KafkaError, TableError."""
        raise AssertionError("abstract")

    @property
    def writing(self) -> AbstractAsyncContextManager[object]:
        """Context held from `prepare_rows` to `log_prepared`: nothing else is prepared for this bucket meanwhile."""
        raise AssertionError("abstract")

    async def prepare_rows(self, source: OperationSource, writer: Writer) -> Any:
        """Return the input of `log_prepared`, without any effect. Raises KafkaError, TableError."""
        raise AssertionError("abstract")

    def log_prepared(self, prepared: Any, size: int) -> AppendInfo:
        """Log prepared rows. On success this bucket releases their charge to the budget (`size` bytes).

        Raises KafkaError; the log is then unchanged.
        """
        raise AssertionError("abstract")

    def check_write(self, write: ClientWrite) -> None:
        """Raise TableError or KafkaError if the write is not possible. Runs in an executor thread."""
        raise AssertionError("abstract")

    async def write_staged(
        self, write: ClientWrite, writer: Writer, acks: int, timeout_ms: int
    ) -> AppendInfo:
        """Write staged rows, which `check_write` has checked, in the name of `writer`."""
        raise AssertionError("abstract")

    # -- common to all hooks -------------------------------------------------------------------------------

    @property
    def place(self) -> tuple[bytes, int]:
        """The bucket's position in the total order in which several buckets are locked."""
        return self._topic.topic_id.bytes, self.partition.index

    def repeated(self, writer: Writer) -> AppendInfo | None:
        """Return the offsets of a batch that this writer sent before; None for a new batch.

        Raises KafkaError for a batch that is out of sequence.
        """
        if writer.producer_id == -1:
            return None
        return self.partition.log.check_producer(writer.header())

    def check_unaltered(self, made_for: StoredTable | None) -> None:
        """Raise TableError(SCHEMA_CHANGED) if the table has another definition than rows were made for; None: any."""
        if made_for is not None and self.definition is not made_for and self.definition != made_for:
            raise altered(made_for)

    def logged_count(self, info: AppendInfo) -> int:
        """Return the number of rows that a batch has in the log; -1 if it cannot be read from a local segment."""
        try:
            found = self.partition.log.read(info.base_offset, 1, up_to=info.last_offset + 1)
            if found.region is None or found.start_offset != info.base_offset:
                return -1
            return read_header(found.region.read_at(0, PREFIX_SIZE)).record_count
        except (KafkaError, DecodeError, OSError):
            return -1

    def retention_floor(self) -> int | None:
        """Return the offset from which the lake lacks records; nothing from there on may be deleted. None without a
        lake.
        """
        return self.services.tiered_offset(self._topic.topic_id, self.partition.index)

    def local_floor(self) -> int | None:
        """Return None: readers find remote records in remote storage."""
        return None

    def check_publishing(self) -> None:
        """Raise KafkaError if logged rows cannot be published without the operator's help."""

    async def wait_published(self, info: AppendInfo, acks: int, timeout_ms: int) -> AppendInfo:
        """Wait until rows are visible, with acks=all (R11). With acks=1 wait too if an acknowledgement means fsync."""
        waits = acks == -1 or (acks == 1 and self.partition.log.config.flushes_by_count)
        if waits and not await self.partition.wait_acknowledged(
            info.last_offset + 1, acks, timeout_ms, self.check_publishing
        ):
            raise KafkaError(
                ErrorCode.REQUEST_TIMED_OUT,
                f"{self.name}: logged at offset {info.base_offset}, but not stored in time",
            )
        return info

    # -- the Kafka view ------------------------------------------------------------------------------------

    async def fetch(self, offset: int, max_bytes: int, min_one: bool) -> FetchedRecords:
        self.check_open()
        definition = self.definition
        frame = await self._avro_frame(definition)
        services = self.services
        async with (
            self._transcoding,
            services.transcoding,
        ):  # a second consumer finds the first one's result in the cache
            found = await self.partition.read_anywhere(offset, max(1, max_bytes // _EXPANSION), True)
            if found.region is None:
                return FetchedRecords()
            answer = Answer(min(max_bytes, services.pieces.consumed.left), must=min_one)
            consumption = Consumption(
                services.pieces, self.partition.index, definition, frame, max_bytes, self.unreadable
            )
            await services.run_on(
                found.region, self.partition, consumption.read, found.region, offset, answer
            )
        return FetchedRecords(tuple(answer.parts), answer.size, answer.records)

    async def _avro_frame(self, definition: StoredTable) -> Frame | None:
        """Return the frame around this table's Avro values; None if its values are not Avro. Raises KafkaError."""
        settings = definition.settings
        if settings.kafka_value_format is not KafkaValueFormat.AVRO:
            return None
        whole = definition.path.whole
        text = schema_text(definition.schema, whole.database, whole.table)
        if settings.avro_schema is AvroSchemaPlace.RECORD:
            return Frame.container(text)
        registries = self.services.registries
        url = settings.avro_registry or registries.own_url
        if url is None:
            raise KafkaError(
                ErrorCode.INVALID_CONFIG,
                f"{self.name} has Avro values, but the server has no '{REGISTRY_URL}'; set it",
            )
        return Frame.confluent(await registries.id_of(url, f"{whole.topic}-value", text))

    async def opened(
        self, definition: StoredTable, batch: memoryview, refused: Sequence[Refused] = ()
    ) -> memoryview | kafka_view.OpenedBatch:
        """Return a producer's batch without the refused records, and with the schemas of its Avro values if it has any.

        Raises KafkaError.
        """
        settings = definition.settings
        if settings.kafka_value_format is not KafkaValueFormat.AVRO:
            if not refused:
                return batch
            opened = kafka_view.OpenedBatch(await self.services.run(kafka_view.open_batch, batch), {})
        else:
            records, ids = await self.services.run(kafka_view.avro_ids, definition, batch)
            registries = self.services.registries
            url = settings.avro_registry or registries.own_url
            opened = kafka_view.OpenedBatch(
                records, {} if url is None else await registries.schemas(url, ids)
            )
        if not refused:
            return opened
        rest, sent_as = await self.services.run(without, opened.records, refused)
        return kafka_view.OpenedBatch(rest, opened.schemas, sent_as)

    async def produce(self, batch: memoryview, acks: int, timeout_ms: int) -> AppendInfo:
        """Write a producer's batch (R17.3).

        A batch with a bad record is refused. If the table has a dead-letter topic, the bad record goes there instead
        and the rest is written.
        """
        definition = self.definition
        self._producing += 1
        try:
            return await self.write_produced(batch, acks, timeout_ms)
        except RecordErrors as error:
            topic = definition.settings.kafka_dead_letter_topic
            if topic is None or not error.errors:
                self._note_refused(definition, error.errors or [(-1, error.message)], error.code)
                raise
            return await self._write_without_refused(batch, acks, timeout_ms, definition, topic, error)
        except KafkaError as error:
            if error.code in REFUSALS:
                self._note_refused(definition, [(-1, error.message)], error.code)
            raise
        finally:
            self._producing -= 1

    def produce_at_once(self, batch: memoryview) -> AppendInfo | None:
        """Write a producer's small batch on the event loop, if nothing has to be awaited (see `few_records`).

        Return None, without any effect, for any other batch: one that is large or refused, one of a table whose
        records need arrays, or one behind a batch that is under way. `produce` writes or refuses it. Raises KafkaError
        if only a part of it could be written.
        """
        if len(batch) > BYTES_MAX or self._producing:
            return None
        try:
            self.check_open()
            reader = reader_of(self.definition)
            if reader is None or not self.services.can_write_at_once():
                return None
            header = kafka_view.check_frame(batch)
            if (
                header.record_count > reader.records_max
                or self.partition.log.check_producer(header) is not None
            ):
                return None
            if (header.compression and len(batch) > COMPRESSED_MAX) or not verify_crc(batch):
                return None
            few = reader.read([(key, value) for _, key, value in read_small(batch, max_bytes=BYTES_MAX)])
            prepared = self._prepared_parts(reader, few, header)
        except (NeedsArrays, DecodeError, KafkaError, TableError):
            return None
        return None if prepared is None else log_at_once(self.services.budget, prepared, len(batch))

    def _prepared_parts(
        self, reader: FewRecords, few: FewRows, header: BatchHeader
    ) -> list[tuple[TableBucket, Any]] | None:
        """Return a few rows as their buckets log them, this one last; None if that has to be awaited."""
        parts: dict[tuple[str, int], list[int]] = {}
        own = self._topic.name, self.partition.index
        for at, (partition, hashed) in enumerate(few.places):
            parts.setdefault(self.place_of_few(partition, hashed), []).append(at)
        mine = parts.pop(own, [])
        prepared: list[tuple[TableBucket, Any]] = []
        if parts:
            # Rows of other buckets must be as durable as acknowledged ones before the sequence is logged here.
            apart = self.partition.log.config.flushes_by_count or self.partition.is_replicated
            if apart or len(parts) > _PARTS_AT_ONCE_MAX:
                return None
            forwarded = self.forwarded(header)
            for (topic, bucket), chosen in parts.items():
                other = self._led_here(topic, bucket)
                if (
                    other is None
                    or other.partition.is_replicated
                    or not other.publishes_at_once
                    or other.repeated(forwarded) is not None
                ):
                    return None
                prepared.append((other, other.prepare_few(reader, few.select(chosen), forwarded)))
            few = few.select(mine)
        prepared.append((self, self.prepare_few(reader, few, Writer.of(header))))
        return None if any(write is None for _, write in prepared) else prepared

    def place_of_few(self, partition: str, hashed: int) -> tuple[str, int]:
        """Return topic and bucket of a row, by its partition and the hash of its bucket key. Raises NeedsArrays."""
        definition = self.definition
        return (
            self._topic.name,
            hashed % definition.bucket_count if definition.bucket_key else self.partition.index,
        )

    def forwarded(self, header: BatchHeader) -> Writer:
        """Return the writer of rows of a producer's batch that belong to other buckets."""
        return forwarding.forwarded(header, self.partition.index)

    def _led_here(self, topic: str, bucket: int) -> TableBucket | None:
        """Return another bucket, if this broker leads it now. Raises KafkaError."""
        context = self.services.context
        leader = context.metadata.leader(topic, bucket)
        if leader is None or leader.broker_id != context.identity.broker_id:
            return None
        hooks: object = context.replicas.partition(topic, bucket).hooks
        if not isinstance(hooks, TableBucket):
            return None
        hooks.check_open()
        return hooks

    @property
    def publishes_at_once(self) -> bool:
        """Whether a few logged rows will be visible at once, unless the bucket is replicated."""
        return True

    def prepare_few(self, reader: FewRecords, few: FewRows, writer: Writer) -> Any:
        """Return the input of `log_prepared` for a few rows, on the event loop; None if that has to be awaited.

        Raises KafkaError, TableError and NeedsArrays, without any effect.
        """
        raise AssertionError("abstract")

    def _note_refused(
        self,
        definition: StoredTable,
        refused: Sequence[tuple[int, str]],
        code: ErrorCode,
        *,
        dead_letter: bool = False,
    ) -> None:
        self.services.refusals.note(
            definition, self._topic.name, self.partition.index, refused, code,
            self.services.context.clock.time_ms(), dead_letter=dead_letter,
        )  # fmt: skip

    async def _write_without_refused(
        self,
        batch: memoryview,
        acks: int,
        timeout_ms: int,
        definition: StoredTable,
        topic: str,
        error: RecordErrors,
    ) -> AppendInfo:
        """Send the bad records to the dead-letter topic, then write the rest.

        The dead letters go first, so that none is lost. A batch that fails afterwards and is sent again leaves them
        there twice.
        """
        run = self.services.run
        opened = await self.opened(definition, batch)
        if not isinstance(opened, kafka_view.OpenedBatch):
            opened = kafka_view.OpenedBatch(await run(kafka_view.open_batch, batch), {})
        adds = definition.settings.kafka_unknown_fields is UnknownFields.ADD
        known = kafka_view.ignoring(definition) if adds else definition
        sifting = Sifting(known, opened.records, opened.schemas)
        while not await run(sifting.some):
            pass
        # Only a write finds what a merge refuses: that depends on the stored rows.
        found = sifting.refused or [Refused(*error.errors[0])]
        refused: list[Refused] = []
        while True:
            letters = await run(dead_letters, opened.records, found, self._topic.name, self.partition.index)
            try:
                await write_dead_letters(self.services.context, topic, letters, timeout_ms)
            except KafkaError as failure:
                self._note_refused(definition, error.errors, error.code)
                what = f"{error.message}; it cannot go to dead-letter topic {topic} either: {failure.message}"
                raise KafkaError(failure.code, what) from failure
            refused = [*refused, *found]
            pairs = [(each.index, each.reason) for each in found]
            self._note_refused(definition, pairs, ErrorCode.INVALID_RECORD, dead_letter=True)
            index, reason = pairs[0]
            logger.warning(
                "%s: %d records of a batch are in dead-letter topic %s, the first one (%d): %s",
                self.name, len(found), topic, index, one_line(reason, _REASON_LENGTH_MAX),
                extra={"kind": f"dead letters of {definition.path.whole}"},
            )  # fmt: skip
            try:
                return await self.write_produced(batch, acks, timeout_ms, refused)
            except RecordErrors as again:
                gone = {each.index for each in refused}
                if not again.errors or again.errors[0][0] in gone:
                    raise
                if len(refused) - len(sifting.refused) >= _MERGES_REFUSED_MAX:
                    raise
                found = [Refused(*again.errors[0])]

    async def write_produced(
        self, batch: memoryview, acks: int, timeout_ms: int, refused: Sequence[Refused] = ()
    ) -> AppendInfo:
        """Log the rows of all buckets or of none (R17.2), and the producer's own sequence in this bucket."""
        self.check_open()
        definition = self.definition
        header = kafka_view.check_frame(batch)
        duplicate = self.partition.log.check_producer(header)
        if duplicate is not None:
            if acks == -1:
                await self._all_published(definition, timeout_ms)
            return await self.wait_published(duplicate, acks, timeout_ms)
        opened = await self.opened(definition, batch, refused)

        async def write(decode: Decode) -> AppendInfo:
            return await self._write_opened(header, opened, decode, len(batch), acks, timeout_ms)

        return await self.with_added_columns(opened, write)

    async def with_added_columns(
        self, opened: kafka_view.Opened, write: Callable[[Decode], Awaitable[AppendInfo]]
    ) -> AppendInfo:
        """Write a producer's batch. If the table adds columns for unknown fields, add them first.

        A field that cannot become a column (it is null, and no record gives its type) is ignored. A refused batch
        alters nothing.
        """
        for _ in range(_ADDED_TIMES_MAX):
            try:
                return await write(kafka_view.decode_produced)
            except RecordErrors as error:
                definition = self.definition
                if definition.settings.kafka_unknown_fields is not UnknownFields.ADD or not error.errors:
                    raise
            # raises if the batch is refused
            await self.services.run(kafka_view.decode_ignoring, definition, opened)
            columns = await self.services.run(kafka_view.added_columns, definition, opened)
            if not columns:
                break
            names = ", ".join(column.name for column in columns)
            logger.info("table %s adds columns for fields of its records: %s", definition.path, names)
            try:
                await self.services.catalog.alter_table(definition.path.whole, changes_to_json(columns))
            except TableError as error:
                raise as_kafka_error(error, definition) from error
        return await write(kafka_view.decode_ignoring)

    async def _write_opened(
        self,
        header: BatchHeader,
        opened: kafka_view.Opened,
        decode: Decode,
        size: int,
        acks: int,
        timeout_ms: int,
    ) -> AppendInfo:
        definition, index = self.definition, self.partition.index
        writer = Writer.of(header)
        try:
            if definition.bucket_count == 1 or not definition.bucket_key:
                return await self.write_rows(lambda now: decode(now, opened), writer, size, acks, timeout_ms)
            operations = await self.services.run(decode, definition, opened)
            by_bucket = await self.services.run(split, definition, operations)
            own = by_bucket.get(index)
            if own is not None and len(by_bucket) == 1:
                return await self.write_rows(made_for(definition, own), writer, size, acks, timeout_ms)
            forwarded = self.forwarded(header)
            # A client that finds the sequence here concludes that all buckets have the rows. If an acknowledgement
            # means fsynced or replicated, the rows must be that before the sequence is logged: otherwise the rows could
            # be lost while the sequence stays.
            apart = self.partition.log.config.flushes_by_count or (
                acks == -1 and any(map(self._is_replicated, by_bucket))
            )
            parts = [
                self.part(self._topic.name, bucket, definition, rows, forwarded)
                for bucket, rows in by_bucket.items()
                if apart or bucket != index
            ]
            empty = Operations(no_rows(definition))
            if apart:
                await self.write_parts(parts, acks, timeout_ms)
                return await self.write_rows(made_for(definition, empty), writer, size, acks, timeout_ms)
            # Last: a client that finds the sequence here concludes that all buckets have the rows.
            parts.append(Part(self, made_for(definition, own or empty), writer, size))
            return await self.write_parts(parts, acks, timeout_ms)
        except TableError as error:
            raise as_kafka_error(error, definition) from error

    def _is_replicated(self, bucket: int) -> bool:
        state = self.services.context.metadata.state(self._topic.name, bucket)
        return state is not None and len(state.replicas) > 1

    def part(
        self, topic: str, bucket: int, definition: StoredTable, rows: Operations, writer: Writer
    ) -> Part:
        """Return rows of this broker's producer, decoded for `definition`, as a write to their bucket.

        Raises KafkaError if the bucket is not served.
        """
        metadata = self.services.context.metadata
        leader = metadata.leader(topic, bucket)
        if leader is not None and leader.broker_id != self.services.context.identity.broker_id:
            there = self.services.context.replicas.partition(topic, bucket)
            remote = RemoteBucket(self.services, there, leader.broker_id, definition, rows, writer)
            return Part(remote, made_for(definition, rows), writer, rows.rows.nbytes)
        other: object = self.services.context.replicas.partition(topic, bucket).hooks
        if not isinstance(other, TableBucket):
            raise KafkaError(ErrorCode.NOT_LEADER_OR_FOLLOWER, f"bucket {bucket} is not served")
        return Part(other, made_for(definition, rows), writer, rows.rows.nbytes)

    async def write_parts(self, parts: Sequence[Part], acks: int, timeout_ms: int) -> AppendInfo:
        """Write all parts or none, wait as `acks` demands, and return the offsets of the last part."""
        infos = await write_together(self.services.budget, parts)
        await self.wait_parts(parts, infos, acks, timeout_ms)
        return infos[-1]

    async def wait_parts(
        self, parts: Sequence[Part], infos: Sequence[AppendInfo], acks: int, timeout_ms: int
    ) -> None:
        """Wait as `acks` demands for all logged parts."""
        # With acks=0 the answer must still mean that every row is in some log.
        acks = -1 if acks == -1 else 1
        waits = [
            self.wait_part(part, info, acks, timeout_ms) for part, info in zip(parts, infos, strict=True)
        ]
        for result in await asyncio.gather(*waits, return_exceptions=True):
            if isinstance(result, BaseException):
                raise result

    async def wait_part(self, part: Part, info: AppendInfo, acks: int, timeout_ms: int) -> None:
        await part.bucket.wait_published(info, acks, timeout_ms)

    async def _published_elsewhere(self, partition: Partition, timeout_ms: int) -> None:
        topic, bucket = partition.topic.name, partition.index
        leader = self.services.context.metadata.leader(topic, bucket)
        if leader is None:
            raise KafkaError(ErrorCode.LEADER_NOT_AVAILABLE, f"bucket {bucket} of {topic} has no leader now")
        await wait_elsewhere(self.services, leader.broker_id, partition, -1, -1, timeout_ms)

    async def _all_published(self, definition: StoredTable, timeout_ms: int) -> None:
        """Wait until the present end of every bucket's log is visible.

        Part of it belongs to the batch whose repetition is about to be acknowledged.
        """
        for bucket in range(definition.bucket_count):
            partition = self.services.context.replicas.partition(self._topic.name, bucket)
            if partition.closed:
                await self._published_elsewhere(partition, timeout_ms)
                continue
            end = partition.log.log_end_offset
            if not await partition.wait_for_high_watermark(end, timeout_ms):
                raise KafkaError(
                    ErrorCode.REQUEST_TIMED_OUT,
                    f"{self.name}: logged, but not stored in bucket {bucket} in time",
                )


def altered(definition: StoredTable) -> TableError:
    """Return the error of rows that were made for another definition."""
    return TableError(
        TableErrorCode.SCHEMA_CHANGED,
        f"table {definition.path} was altered after the writer asked for its definition",
    )


def as_kafka_error(error: TableError, definition: StoredTable) -> KafkaError:
    """Return a table's error as a Kafka client can understand it: Kafka's codes, and the bad record's index (R17.3)."""
    if isinstance(error, RowError):
        return kafka_view.refused_record(definition, error)
    if error.retriable:
        return KafkaError(ErrorCode.THROTTLING_QUOTA_EXCEEDED, error.message)
    return KafkaError(ErrorCode.INVALID_RECORD, error.message)


def no_rows(definition: StoredTable) -> pa.RecordBatch:
    return pa.RecordBatch.from_pylist([], schema=definition.schema.arrow())


def split(definition: StoredTable, operations: Operations) -> dict[int, Operations]:
    """Return a producer's rows by bucket, in order."""
    if definition.bucket_count == 1:
        return {0: operations}
    buckets = bucket_of(definition, operations.rows)
    parts = {}
    for bucket in np.unique(buckets).tolist():
        parts[bucket] = operations.select(np.flatnonzero(buckets == bucket))
    return parts
