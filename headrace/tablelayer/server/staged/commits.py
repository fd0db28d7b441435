"""Exactly-once writes for engines that repeat their tasks (R3.5): staged first, then committed as a whole.

A *writer* has a name that it keeps over restarts (a streaming query) and numbers its batches upwards. Its tasks
stage rows, each run of a task under an attempt name of its own; then one commit names the attempts that count.
What is promised:

- the rows of exactly these attempts are written, all of them, once; rows of failed, repeated or speculative
  attempts never are, whatever order or number of rows or tasks a repetition has;
- a batch is decided once. Committing it again, or a batch before it, has no effect and succeeds; the attempts of the
  first commit count. The decision is in the coordination store before the first row is written, so a commit that
  is interrupted (the server is killed, the client dies) is completed with the same rows;
- the rows of one bucket become visible in the order of the attempts; buckets do not become visible together;
- a partitioned table is one table here too: one decision for the rows of all partitions. A partition that is gone
  before the decision makes the batch fail, to be run again; one that is dropped after it takes its rows along.

How: a ledger per table and writer, at `/staged/<table id>/<writer>`, holds the last decided batch. Chunks are written
under a producer identity of the writer's own, numbered on from batch to batch, of the kind whose sequence may have
gaps and for which everything at or before the last number is a repeat (`broker.log.producer_state`), so that
completing a commit writes only what is missing. That memory of the log ends after a day without a write, hence a
commit that fails also notes in the ledger how far it came.

What is decided says how many chunks there are for each place. Where some are gone (a power cut took files that
`durability=process` had not put on the disk; somebody removed them), the batch is never taken for done: its commit, and
all that the writer sends after it, fails with STAGED_ROWS_MISSING and says what is gone.

Of several brokers, each has the chunks of the buckets that it leads, and so have the replicas in sync when a chunk is
acknowledged, at least `min.insync.replicas`, and those that come into the ISR later (`bucket/joining.py`). The one that
leads the table's first bucket decides: it counts what the others have, has whoever leads a bucket now be given what it
lacks (it was away when that was staged), saves the decision, and has each write what is its own (`others.py`). When it
is gone, whoever leads that bucket next goes on, from the decision in the store.

State: one ledger of some hundred bytes for each (writer, table); those of single batches are kept for a day, those of
streams for 90 days after their last commit. Staged rows that are never committed go after a day, or sooner when space
is short (`staged_space`).
"""

from __future__ import annotations

import asyncio
import json
import logging
from collections import Counter
from collections.abc import Awaitable, Callable, Coroutine, Iterator, Mapping, Sequence
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final
from uuid import UUID
from weakref import WeakValueDictionary

import msgspec
from msgspec.structs import asdict, replace

from headrace.broker.metadata.nodes import OwnedNodes
from headrace.protocol.errors import DecodeError, ErrorCode, KafkaError
from headrace.protocol.records.header import MAX_SEQUENCE
from headrace.tablelayer.model import messages as m
from headrace.tablelayer.model.errors import RowError, TableError, TableErrorCode
from headrace.tablelayer.model.table.definition import TableDefinition
from headrace.tablelayer.server.bucket.bucket import TableBucket
from headrace.tablelayer.server.kafka_face.producers import forwarded_producer_id
from headrace.tablelayer.server.merge.writes import Writer
from headrace.tablelayer.server.services import table_of
from headrace.tablelayer.server.staged.others import OtherBrokers, Staged
from headrace.tablelayer.server.staged.space import StagedSpace
from headrace.tablelayer.server.staged.staging import (
    Chunk,
    Place,
    StagingArea,
    check_key,
    check_names,
    place_of,
    place_text,
    writer_key,
)

if TYPE_CHECKING:
    from headrace.broker.partitions.partition import Partition
    from headrace.tablelayer.server.services import Services

logger = logging.getLogger("headrace.tables")

_ROOT: Final = "/staged"
_DAY_MS: Final = 86_400_000
_STREAM_KEPT_MS: Final = 90 * _DAY_MS
_RETRY_SECONDS: Final = 0.05
_PLACES_AT_ONCE: Final = 32
"""Buckets that are written at the same time, each with two chunks in memory."""
_TIMEOUT_MS: Final = 30_000
_KEPT_FOR_OTHERS: Final = "brokers"
"""Whose the space is that staged chunks of buckets take which are led elsewhere."""


class Ledger(msgspec.Struct, frozen=True):
    """What is decided about a writer's last batch. `written` counts chunks by bucket, of a commit that failed;
    `partitions` are those that the batch has rows for, of a partitioned table. `chunks` says how many were committed
    for each bucket (None: not known, decided by an older version).
    """

    writer: str
    producer_id: int
    batch_id: int
    attempts: tuple[str, ...]
    first_sequence: int
    kept_ms: int
    updated_ms: int
    done: bool = False
    written: Mapping[Place, int] = msgspec.field(default_factory=dict)
    partitions: tuple[UUID, ...] = ()
    chunks: Mapping[Place, int] | None = None

    def to_json(self) -> bytes:
        value = asdict(self) | {
            "version": 1,
            "written": {place_text(place): count for place, count in self.written.items()},
            "partitions": [str(each) for each in self.partitions],
            "chunks": None
            if self.chunks is None
            else {place_text(place): count for place, count in self.chunks.items()},
        }
        return json.dumps(value).encode()

    @classmethod
    def from_json(cls, data: bytes) -> Ledger:
        value: dict[str, Any] = json.loads(data)
        del value["version"]
        value["attempts"] = tuple(value["attempts"])
        value["written"] = {place_of(text): count for text, count in value["written"].items()}
        value["partitions"] = tuple(UUID(each) for each in value.get("partitions", ()))
        if value.get("chunks") is not None:
            value["chunks"] = {place_of(text): count for text, count in value["chunks"].items()}
        return cls(**value)


def following(ledger: Ledger, chunks: int, now_ms: int) -> Ledger:
    """The ledger after its batch was written, with `chunks` in the bucket that got most."""
    return replace(
        ledger,
        done=True,
        attempts=(),
        partitions=(),
        chunks=None,
        written={},
        first_sequence=(ledger.first_sequence + chunks) & MAX_SEQUENCE,
        updated_ms=now_ms,
    )


class StagedCommits:
    """Stages and commits. One object per server; on the event loop."""

    def __init__(
        self,
        services: Services,
        area: StagingArea,
        definition_of: Callable[[UUID], TableDefinition],
        bucket_of: Callable[[TableDefinition, int], TableBucket],
    ) -> None:
        self._services = services
        self._area = area
        self._definition_of = definition_of
        self._bucket_of = bucket_of
        self._nodes = OwnedNodes(services.context.store, _ROOT)
        self._ledgers: dict[tuple[UUID, str], Ledger] = {}
        self._locks: WeakValueDictionary[tuple[UUID, str], asyncio.Lock] = WeakValueDictionary()
        self._others = OtherBrokers(services.context)
        self._unfinished: set[tuple[UUID, str]] = set()
        self._missing: set[UUID] = set()
        """Tables that did not exist when `expire` looked last."""
        self._resuming = False
        self._space = StagedSpace(area.root, services.limits, area.drop_batch, area.disk, area.clock)

    async def load(self) -> None:
        """Read what is in the store. Call once, before anything else."""
        for table in await self._nodes.children():
            await self.load_table(UUID(table))

    async def load_table(self, table_id: UUID) -> None:
        """Read what is in the store of a table: this broker may have to go on with it."""
        for name in await self._nodes.children(str(table_id)):
            await self._restore(table_id, f"{table_id}/{name}")

    # -- what writers ask --------------------------------------------------------------------------------

    async def is_decided(self, table_id: UUID, writer: str, batch_id: int) -> bool:
        """Whether staging for this batch is in vain: it, or a later one, is decided, by whichever broker."""
        ledger = self._ledgers.get((table_id, writer))
        if not self._others.are_none:
            node = await self._services.context.store.get(f"{_ROOT}/{_name(table_id, writer)}")
            ledger = None if node is None else Ledger.from_json(node.data)
        return ledger is not None and ledger.batch_id >= batch_id

    async def _read_on(self, table_id: UUID, writer: str) -> None:
        """Another broker may have decided."""
        if not self._others.are_none:
            await self._restore(table_id, _name(table_id, writer))

    async def stage(
        self,
        definition: TableDefinition,
        writer: str,
        batch_id: int,
        attempt: str,
        place: Place,
        number: int,
        chunk: Chunk,
        client: str = "",
    ) -> None:
        """Check a chunk and store it, for the host `client`. Raises TableError or KafkaError."""
        check_names(writer, batch_id, [attempt])
        assert definition.table_id is not None
        hooks = self._bucket_of(*self._resolved(definition, place))
        await self._services.run(hooks.check_write, chunk)
        needed = hooks.partition.needed_in_sync
        if needed > hooks.partition.in_sync_count:
            raise KafkaError(
                ErrorCode.NOT_ENOUGH_REPLICAS,
                f"bucket {place_text(place)} of {definition.path} wants min.insync.replicas={needed};"
                f" {hooks.partition.in_sync_count} is in sync",
            )
        path = self._area.path(definition.table_id, writer, batch_id, attempt, place)
        durable = hooks.partition.log.config.flush_messages == 1
        async with self._lock(definition.table_id, f"{writer_key(writer)}\0{attempt}\0{place_text(place)}"):
            await self._services.run(
                _append, self._area, path, number, chunk, durable, self._space, client, self._decided
            )
            topic, index = hooks.partition.topic.name, hooks.partition.index
            replicas = self._others.replicas_of(topic, index)
            joiners = hooks.joiners.besides(replicas)
            if replicas or joiners:
                kept = partial(
                    m.KeepStagedRequest,
                    table_id=definition.table_id,
                    writer=writer,
                    batch_id=batch_id,
                    attempt=attempt,
                    durable=durable,
                )
                have_kept = partial(self._have_kept, path, place, number, chunk, kept)
                await asyncio.gather(
                    *map(have_kept, replicas),
                    *(self._have_joiner_keep(hooks, broker, have_kept) for broker in joiners),
                )

    @staticmethod
    async def _have_joiner_keep(
        hooks: TableBucket, broker: int, have_kept: Callable[[int], Awaitable[None]]
    ) -> None:
        try:
            await have_kept(broker)
        except (KafkaError, TableError):
            hooks.joiners.missed(broker)

    async def give(self, partition: Partition, broker: int) -> None:
        """Have a broker keep all that is staged here for a bucket, but for what it has. Raises TableError, KafkaError,
        OSError.
        """
        table_id, topic_id = table_of(partition.topic), partition.topic.topic_id
        place: Place = partition.index if topic_id == table_id else (topic_id, partition.index)
        durable = partition.log.config.flush_messages == 1
        for key, batch_id, attempt in await self._services.run(self._area.of_place, table_id, place):
            path = self._area.path_of_key(table_id, key, batch_id, attempt, place)
            last = await self._services.run(self._area.last, path)
            if last is not None:
                kept = partial(
                    m.KeepStagedRequest,
                    table_id=table_id,
                    writer_key=key,
                    batch_id=batch_id,
                    attempt=attempt,
                    durable=durable,
                )
                await self._have_kept(path, place, *last, kept, broker)

    async def _have_kept(
        self,
        path: Path,
        place: Place,
        number: int,
        chunk: Chunk,
        make: Callable[..., m.KeepStagedRequest],
        broker: int,
    ) -> None:
        """Have another replica keep a chunk, and those before it if it was away then."""

        async def keep(number: int, chunk: Chunk) -> None:
            targets = None if chunk.targets is None else list(chunk.targets)
            request = make(
                place=_numbered(place, number),
                target_columns=targets,
                update=chunk.update,
                batch=bytes(chunk.batch),
            )
            await self._others.keep(broker, request)

        try:
            await keep(number, chunk)
        except KafkaError as error:
            if error.code is not ErrorCode.OUT_OF_ORDER_SEQUENCE_NUMBER:
                raise
        else:
            return
        chunks = self._area.read(path)
        for each in range(number + 1):
            found = await self._services.run(next, chunks, None)
            if found is not None:
                await keep(each, found)

    async def keep(self, request: m.KeepStagedRequest, place: Place) -> None:
        """A chunk that was staged with another broker, which leads its bucket. Raises TableError, KafkaError."""
        key = request.writer_key
        if key:
            check_key(key)
            check_names(key, request.batch_id, [request.attempt])
        else:
            check_names(request.writer, request.batch_id, [request.attempt])
            key = writer_key(request.writer)
        path = self._area.path_of_key(request.table_id, key, request.batch_id, request.attempt, place)
        targets = None if request.target_columns is None else tuple(request.target_columns)
        chunk = Chunk(targets, memoryview(request.batch), request.update)
        name = f"{key}\0{request.attempt}\0{place_text(place)}"
        async with self._lock(request.table_id, name):
            await self._services.run(
                _append, self._area, path, request.place.count, chunk, request.durable, self._space,
                _KEPT_FOR_OTHERS, self._decided,
            )  # fmt: skip

    async def hand_over(self, request: m.HandOverStagedRequest, place: Place) -> None:
        """Have the broker that leads a place keep what was staged for it here. Raises TableError, KafkaError."""
        check_names(request.writer, request.batch_id, [request.attempt])
        path = self._area.path(request.table_id, request.writer, request.batch_id, request.attempt, place)
        chunks = enumerate(self._area.read(path))
        while (found := await self._services.run(next, chunks, None)) is not None:
            number, chunk = found
            if number >= request.place.count:
                kept = m.KeepStagedRequest(
                    table_id=request.table_id,
                    writer=request.writer,
                    batch_id=request.batch_id,
                    attempt=request.attempt,
                    place=_numbered(place, number),
                    target_columns=None if chunk.targets is None else list(chunk.targets),
                    update=chunk.update,
                    batch=bytes(chunk.batch),
                    durable=True,
                )
                await self._others.keep(request.broker_id, kept)

    def _decided(self) -> set[Path]:
        """Folders of batches that are decided and not written. From any thread."""
        return {
            self._area.path(table_id, writer, ledger.batch_id, "", 0).parent
            for (table_id, writer), ledger in list(self._ledgers.items())
            if not ledger.done
        }

    def _resolved(self, definition: TableDefinition, place: Place) -> tuple[TableDefinition, int]:
        """The table that has this bucket, which is a partition of `definition` if that is partitioned. TableError."""
        if isinstance(place, int):
            if definition.is_partitioned:
                raise TableError(
                    TableErrorCode.PARTITION_NEEDED, f"{definition.path} is partitioned: say which partition"
                )
            return definition, place
        partition = self._definition_of(place[0])
        if partition.path.partition is None or partition.path.whole != definition.path:
            raise TableError(
                TableErrorCode.PARTITION_NOT_FOUND, f"{partition.path} is no partition of {definition.path}"
            )
        return partition, place[1]

    async def commit(
        self,
        definition: TableDefinition,
        writer: str,
        batch_id: int,
        attempts: Sequence[tuple[str, Mapping[Place, int]]],
        *,
        single: bool,
    ) -> None:
        """Write what these attempts have staged: (attempt, chunks by place), in this order.

        Returns when all of it is visible. `single` says that the writer has no second batch. Raises TableError
        STAGED_ROWS_MISSING if not all is there (nothing is decided then), or what a bucket raises, after which
        the same commit goes on from there.
        """
        names = [attempt for attempt, _ in attempts]
        check_names(writer, batch_id, names)
        if len(set(names)) < len(names):
            raise TableError(
                TableErrorCode.INVALID_ROW, "an attempt is named twice: its rows are written once in a batch"
            )
        table_id = definition.table_id
        assert table_id is not None
        async with self._lock(table_id, writer):
            self._others.check_decides(definition)
            await self._read_on(table_id, writer)
            ledger = self._ledgers.get((table_id, writer))
            if ledger is not None and not ledger.done:
                ledger = await self._write(definition, ledger)
            if ledger is not None and ledger.batch_id >= batch_id:
                await self._drop(table_id, writer, batch_id)
                return
            chunks: Counter[Place] = Counter()
            for _, counts in attempts:
                chunks.update(counts)
            for place in chunks:
                self._resolved(definition, place)
            await self.mark_used(table_id, writer, batch_id)
            staged, _ = await self._staged(definition, writer, batch_id, names)
            self._check_complete(batch_id, attempts, staged)
            context = self._services.context
            producer_id = ledger.producer_id if ledger is not None else await context.allocate_producer_id()
            decided = Ledger(
                writer=writer,
                producer_id=producer_id,
                batch_id=batch_id,
                attempts=tuple(attempt for attempt, _ in attempts),
                first_sequence=0 if ledger is None else ledger.first_sequence,
                kept_ms=_DAY_MS if single else _STREAM_KEPT_MS,
                updated_ms=context.clock.time_ms(),
                partitions=tuple(sorted({place[0] for place in chunks if not isinstance(place, int)})),
                chunks=dict(chunks),
            )
            await self._save(table_id, decided)
            await self._write(definition, decided)

    async def abort(self, table_id: UUID, writer: str, batch_id: int, attempts: Sequence[str]) -> None:
        """These attempts will not be committed. Without effect on a batch that is decided."""
        check_names(writer, batch_id, attempts)
        async with self._lock(table_id, writer):
            if not await self.is_decided(table_id, writer, batch_id):
                await self._services.run(self._area.drop_attempts, table_id, writer, batch_id, attempts)
                await self._others.drop(table_id, writer, batch_id, attempts)

    async def _drop(self, table_id: UUID, writer: str, batch_id: int) -> None:
        """What was staged for batches up to this one."""
        await self._services.run(self._area.drop_batches, table_id, writer, batch_id)
        await self._others.drop(table_id, writer, batch_id, ())

    async def _staged(
        self, definition: TableDefinition, writer: str, batch_id: int, attempts: Sequence[str]
    ) -> tuple[Staged, list[int]]:
        """Chunks by attempt and place, of each place with its leader, who is given what others have and it has not; and
        the brokers that were heard. Raises KafkaError if a leader does not say.
        """
        table_id = definition.table_id
        assert table_id is not None
        own = await self._services.run(self.count, table_id, writer, batch_id, attempts)
        if self._others.are_none:
            return own, [self._others.own_id]
        topics = [definition.path.topic]
        if definition.is_partitioned:
            topics = [each.path.topic for each in self._services.catalog.partitions(definition)]
        told = await self._others.counted(topics, table_id, writer, batch_id, attempts)
        held = {self._others.own_id: own, **told}
        found: Staged = {}
        for attempt in attempts:
            counts = {broker_id: theirs.get(attempt, {}) for broker_id, theirs in held.items()}
            for place in dict.fromkeys(place for theirs in counts.values() for place in theirs):
                topic = self._topic_of(definition, place)
                if topic is None:
                    continue
                leader = self._others.leader_of(topic, place)
                leader = self._others.own_id if leader is None else leader
                most = max(counts, key=lambda broker_id: counts[broker_id].get(place, 0))
                there, count = counts.get(leader, {}).get(place, 0), counts[most][place]
                if there < count:
                    request = m.HandOverStagedRequest(
                        table_id=table_id,
                        writer=writer,
                        batch_id=batch_id,
                        attempt=attempt,
                        place=_numbered(place, there),
                        broker_id=leader,
                    )
                    if most == self._others.own_id:
                        await self.hand_over(request, place)
                    else:
                        await self._others.hand_over(most, request)
                found.setdefault(attempt, {})[place] = count
        return found, list(held)

    def _topic_of(self, definition: TableDefinition, place: Place) -> str | None:
        """None for a partition that is gone."""
        if isinstance(place, int):
            return definition.path.topic
        partition = self._partition(place[0])
        return None if partition is None else partition.path.topic

    def count(self, table_id: UUID, writer: str, batch_id: int, attempts: Sequence[str]) -> Staged:
        """What is staged with this broker. Blocking."""
        return {
            attempt: {
                place: self._area.count(self._area.path(table_id, writer, batch_id, attempt, place))
                for place in self._area.places(table_id, writer, batch_id, attempt)
            }
            for attempt in attempts
        }

    @staticmethod
    def _check_complete(
        batch_id: int, attempts: Sequence[tuple[str, Mapping[Place, int]]], staged: Staged
    ) -> None:
        for attempt, counts in attempts:
            found = staged.get(attempt, {})
            for place in {**counts, **found}:
                count, there = counts.get(place, 0), found.get(place, 0)
                if there != count:
                    raise TableError(
                        TableErrorCode.STAGED_ROWS_MISSING,
                        f"attempt {attempt} of batch {batch_id} has {there} staged chunks for bucket"
                        f" {place_text(place)}, and {count} should be committed; nothing was written: run the batch"
                        " again",
                    )

    # -- writing what is decided ---------------------------------------------------------------------------

    async def _check_kept(self, definition: TableDefinition, ledger: Ledger, places: Sequence[Place]) -> None:
        """Raises TableError STAGED_ROWS_MISSING unless all that was decided is still there; KafkaError if a broker
        that is away may have what is not.
        """
        if ledger.chunks is None:
            return
        staged, heard = await self._staged(definition, ledger.writer, ledger.batch_id, ledger.attempts)
        for place in places:
            decided = ledger.chunks.get(place, 0)
            there = sum(counts.get(place, 0) for counts in staged.values())
            if there == decided:
                continue
            away = self._others.unheard(self._topic_of(definition, place), place, heard)
            if away and there < decided:
                raise KafkaError(
                    ErrorCode.LEADER_NOT_AVAILABLE,
                    f"batch {ledger.batch_id} of {ledger.writer} is decided with {decided} staged chunks for bucket"
                    f" {place_text(place)}, of which {there} are here; broker {away[0]}, which may have the others,"
                    " is away",
                )
            raise _gone(ledger, place, there, decided)

    async def _write(self, definition: TableDefinition, ledger: Ledger) -> Ledger:
        table_id = definition.table_id
        assert table_id is not None
        written = dict(ledger.written)
        places = self._places(definition, ledger)
        try:
            await self._check_kept(definition, ledger, places)
        except TableError as error:
            await self._read_on(table_id, ledger.writer)
            self._check_ours(table_id, ledger, error)
            raise
        gate = asyncio.Semaphore(_PLACES_AT_ONCE)

        async def write(place: Place) -> None:
            async with gate:
                await self._write_place(definition, ledger, place, written)

        results = await asyncio.gather(
            *map(write, places),
            return_exceptions=True,
        )
        failures = [result for result in results if isinstance(result, BaseException)]
        if failures:
            self._check_ours(table_id, ledger, failures[0])
            await self._save(table_id, replace(ledger, written=written))
            raise failures[0]
        self._check_ours(table_id, ledger)
        done = following(ledger, max(written.values(), default=0), self._services.context.clock.time_ms())
        await self._save(table_id, done)
        self._unfinished.discard((table_id, ledger.writer))
        await self._drop(table_id, ledger.writer, ledger.batch_id)
        return done

    def _check_ours(self, table_id: UUID, ledger: Ledger, cause: BaseException | None = None) -> None:
        """A broker that led the first bucket before may have gone on to the end, and been read since: what it has
        written is not written over. Raises KafkaError(NOT_COORDINATOR); whoever asks again reads what is there.
        """
        if self._ledgers.get((table_id, ledger.writer)) != ledger:
            raise KafkaError(
                ErrorCode.NOT_COORDINATOR,
                f"another broker goes on with batch {ledger.batch_id} of {ledger.writer}",
            ) from cause

    def _places(self, definition: TableDefinition, ledger: Ledger) -> list[Place]:
        """All buckets that the batch may have rows for, but for those of partitions that were dropped."""
        if not definition.is_partitioned:
            return list(range(definition.bucket_count))
        found: list[Place] = []
        for partition in ledger.partitions:
            if self._partition(partition) is not None:
                found += [
                    (partition, bucket) for bucket in range(self._definition_of(partition).bucket_count)
                ]
        return found

    def _partition(self, table_id: UUID) -> TableDefinition | None:
        try:
            return self._definition_of(table_id)
        except TableError as error:
            if error.code is not TableErrorCode.TABLE_NOT_FOUND:
                raise
            return None

    async def _write_place(
        self, definition: TableDefinition, ledger: Ledger, place: Place, written: dict[Place, int]
    ) -> None:
        """As `_write_bucket`; a partition that is dropped meanwhile is no failure."""
        table_id = definition.table_id
        assert table_id is not None
        if isinstance(place, int):
            await self._write_bucket(table_id, definition, ledger, place, written)
            return
        partition = self._partition(place[0])
        if partition is None:
            return
        try:
            await self._write_bucket(table_id, partition, ledger, place, written)
        except (KafkaError, TableError):
            if self._partition(place[0]) is not None:
                raise

    async def _write_bucket(
        self,
        table_id: UUID,
        definition: TableDefinition,
        ledger: Ledger,
        place: Place,
        written: dict[Place, int],
    ) -> None:
        """Write the chunks for one place, a bucket of `definition`, that are not there yet; counts all of them in
        `written`. Another broker does so that leads it.
        """
        bucket = place if isinstance(place, int) else place[1]
        leader = self._others.leader_of(definition.path.topic, place)
        if leader is not None:
            if ledger.chunks is not None and not ledger.chunks.get(place, 0):
                return
            await self._others.apply(leader, table_id, ledger.to_json(), place, written)
            return
        # The producer id is the ledger's alone, so any source partition will do.
        producer_id = forwarded_producer_id(ledger.producer_id, 0)
        chunks = self._chunks(table_id, ledger, place)
        number, noted = 0, written.get(place, 0)
        chunk = await self._services.run(next, chunks, None)
        while chunk is not None:
            following_chunk = await self._services.run(next, chunks, None)
            if number >= noted:
                sequence = (ledger.first_sequence + number) & MAX_SEQUENCE
                # Only the last one is waited for: it is visible after those before it.
                acks = 1 if following_chunk is not None else -1
                await self._write_chunk(definition, bucket, chunk, Writer(producer_id, 0, sequence, 1), acks)
                written[place] = number + 1
            number, chunk = number + 1, following_chunk
        decided = number if ledger.chunks is None else ledger.chunks.get(place, 0)
        if number == decided:
            return
        if self._others.are_none:
            raise _gone(ledger, place, number, decided)
        raise KafkaError(  # it leads since the decision; whoever asks again gives it what it lacks
            ErrorCode.LEADER_NOT_AVAILABLE,
            f"{number} of {decided} staged chunks for bucket {place_text(place)} are here yet",
        )

    def _chunks(self, table_id: UUID, ledger: Ledger, place: Place) -> Iterator[Chunk]:
        for attempt in ledger.attempts:
            yield from self._area.read(
                self._area.path(table_id, ledger.writer, ledger.batch_id, attempt, place)
            )

    async def _write_chunk(
        self, definition: TableDefinition, bucket: int, chunk: Chunk, writer: Writer, acks: int
    ) -> None:
        while True:
            hooks = self._bucket_of(definition, bucket)
            try:
                await hooks.write_staged(chunk, writer, acks, _TIMEOUT_MS)
            except TableError as error:
                if not error.retriable:
                    raise
                await asyncio.sleep(_RETRY_SECONDS)  # the buffer is full; it empties by itself
            else:
                return

    async def apply(self, table_id: UUID, data: bytes, place: Place, noted: int) -> dict[Place, int]:
        """Another broker has decided: write what this one has for a bucket that it leads, of which `noted` chunks are
        known to be written. Gives how many are now. Raises what a bucket raises, and NOT_LEADER_OR_FOLLOWER.
        """
        try:
            ledger = msgspec.convert(asdict(Ledger.from_json(data)), Ledger)
        except (ValueError, TypeError, KeyError, AttributeError, RecursionError) as error:
            raise DecodeError(f"what another broker has decided cannot be read: {error!r:.200}") from None
        check_names(ledger.writer, ledger.batch_id, ledger.attempts)
        self._ledgers[table_id, ledger.writer] = ledger
        definition = self._definition_of(table_id if isinstance(place, int) else place[0])
        written = {place: noted}
        async with self._lock(table_id, f"{ledger.writer}\0{place_text(place)}"):
            if self._others.leader_of(definition.path.topic, place) is not None:
                raise KafkaError(
                    ErrorCode.NOT_LEADER_OR_FOLLOWER, f"bucket {place_text(place)} is led by another broker"
                )
            await self._write_bucket(table_id, definition, ledger, place, written)
        return written

    async def drop(self, table_id: UUID, writer: str, batch_id: int, attempts: Sequence[str]) -> None:
        """Another broker says that this is not needed any more."""
        if attempts:
            await self._services.run(self._area.drop_attempts, table_id, writer, batch_id, attempts)
        else:
            await self._services.run(self._area.drop_batches, table_id, writer, batch_id)
            ledger = self._ledgers.get((table_id, writer))
            if ledger is not None and not ledger.done and not self._others.are_none:
                await self._restore(table_id, _name(table_id, writer))

    async def mark_used(self, table_id: UUID, writer: str, batch_id: int) -> None:
        """It is about to be committed."""
        await self._services.run(self._touch, self._area.path(table_id, writer, batch_id, "", 0).parent)

    def _touch(self, folder: Path) -> None:
        self._area.mark_used(folder)  # first: what looks at the disk from here on sees it
        self._space.mark_used(folder)

    # -- in the background ---------------------------------------------------------------------------------

    def resume_in(self, start_task: Callable[[Coroutine[Any, Any, None], str], object]) -> None:
        """Complete commits that a stop of the server has interrupted, in a task; called now and then."""
        if self._unfinished and not self._resuming:
            self._resuming = True
            start_task(self._resume(), "staged commits")

    async def _resume(self) -> None:
        try:
            for table_id, writer in list(self._unfinished):
                await self._resume_one(table_id, writer)
        finally:
            self._resuming = False

    async def _resume_one(self, table_id: UUID, writer: str) -> None:
        self._unfinished.discard((table_id, writer))
        try:
            definition = self._definition_of(table_id)
        except TableError:
            return  # dropped; `expire` clears up
        if not self._others.decides(definition):
            return  # whoever leads its first bucket does; it is read again when that is here
        async with self._lock(table_id, writer):
            await self._read_on(table_id, writer)
            self._unfinished.discard((table_id, writer))
            ledger = self._ledgers.get((table_id, writer))
            if ledger is None or ledger.done:
                return
            try:
                await self._write(definition, ledger)
            except (KafkaError, TableError) as error:
                if isinstance(error, KafkaError) and error.code.retriable:
                    self._unfinished.add((table_id, writer))  # its buckets are starting
                    return
                # Rows that do not fit what stands are their writer's mistake, who is told when it commits again.
                level = logging.WARNING if isinstance(error, RowError) else logging.ERROR
                logger.log(level, "table %s: batch %d of %s is decided and cannot be written: %s",
                           definition.path, ledger.batch_id, writer, error)  # fmt: skip
            else:
                logger.info("table %s: completed batch %d of %s", definition.path, ledger.batch_id, writer)

    async def expire(self, exists: Callable[[UUID], bool]) -> None:
        """Forget dropped tables, writers that were silent for long, and rows that nobody committed. A broker of several
        may not know a table yet that was just made: it counts as dropped when it is not there the next time either.
        """
        now = self._services.context.clock.time_ms()
        there = await self._services.run(self._area.tables)
        if not self._others.are_none:
            for table_id in there:
                await self.load_table(table_id)  # what others have decided of what is here
        tables = {*there, *(table_id for table_id, _ in self._ledgers)}
        missing = {table_id for table_id in tables if not exists(table_id)}
        gone = missing if self._others.are_none else missing & self._missing
        self._missing = missing
        for (table_id, writer), ledger in list(self._ledgers.items()):
            if table_id in missing and table_id not in gone:
                continue
            if exists(table_id) and not (ledger.done and now - ledger.updated_ms > ledger.kept_ms):
                continue
            if not self._others.are_none and exists(table_id):
                if not self._others.decides(self._definition_of(table_id)):
                    del self._ledgers[table_id, writer]
                    continue
                await self._read_on(table_id, writer)
                ledger = self._ledgers[table_id, writer]
                if now - ledger.updated_ms <= ledger.kept_ms:
                    continue  # another broker has gone on with it
            lock = self._lock(table_id, writer)
            if lock.locked():
                continue  # the writer is back, or still writes: next time
            async with lock:
                del self._ledgers[table_id, writer]
                await self._nodes.delete(_name(table_id, writer))
        for table_id in gone:
            await self._services.run(self._area.drop_table, table_id)
        kept = {
            (str(table_id), writer_key(writer), ledger.batch_id)
            for (table_id, writer), ledger in self._ledgers.items()
            if not ledger.done
        }
        await self._services.run(self._area.drop_abandoned, _DAY_MS / 1000, kept)

    # -- inside --------------------------------------------------------------------------------------------

    def _lock(self, table_id: UUID, name: str) -> asyncio.Lock:
        """There as long as somebody holds it or waits for it."""
        return self._locks.setdefault((table_id, name), asyncio.Lock())

    async def _save(self, table_id: UUID, ledger: Ledger) -> None:
        """Raises KafkaError when another broker has written: what it decided counts then."""
        name = _name(table_id, ledger.writer)
        try:
            await self._nodes.write(name, ledger.to_json())
        except KafkaError as error:
            if error.code is ErrorCode.NOT_COORDINATOR and not await self._restore(table_id, name):
                self._ledgers.pop((table_id, ledger.writer), None)
            raise
        self._ledgers[table_id, ledger.writer] = ledger

    async def _restore(self, table_id: UUID, name: str) -> bool:
        """Whether the store has it."""
        data = await self._nodes.read(name)
        if data is None:
            return False
        ledger = Ledger.from_json(data)
        self._ledgers[table_id, ledger.writer] = ledger
        if not ledger.done:
            self._unfinished.add((table_id, ledger.writer))
        return True


def _gone(ledger: Ledger, place: Place, there: int, decided: int) -> TableError:
    return TableError(
        TableErrorCode.STAGED_ROWS_MISSING,
        f"batch {ledger.batch_id} of {ledger.writer} is decided with {decided} staged chunks for bucket"
        f" {place_text(place)}, and the disk has {there} of them: rows are lost, so the batch is not done. Put its"
        " files back, or write its rows and those after it under another writer's name",
    )


def _append(
    area: StagingArea,
    path: Path,
    number: int,
    chunk: Chunk,
    durable: bool,
    space: StagedSpace,
    client: str,
    decided: Callable[[], set[Path]],
) -> None:
    if number < area.count(path):
        return
    with space.admitted(path, client, len(chunk.batch), decided):
        area.append(path, number, chunk, durable=durable)


def _numbered(place: Place, number: int) -> m.StagedPlace:
    if isinstance(place, int):
        return m.StagedPlace(bucket=place, count=number)
    return m.StagedPlace(partition_id=place[0], bucket=place[1], count=number)


def _name(table_id: UUID, writer: str) -> str:
    return f"{table_id}/{writer_key(writer)}"
