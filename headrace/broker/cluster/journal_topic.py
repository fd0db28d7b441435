"""An internal topic that is the journal of a coordinator: it is created, read, written and kept small here.

Its keys (groups, transactional ids) belong to the partition that Java's `String.hashCode` selects, as in Kafka, so a
data directory means the same to both. Only the owner (`Contents`) interprets the records.

Invariants
- An append is stored when it is as durable as the topic requires (`durability`): at once, or after an fsync that all
  appends to the partition share. Owners are notified in the order of their appends, and act only then.
- A key is served only after its partition has been read in full (COORDINATOR_LOAD_IN_PROGRESS until then). A partition
  that cannot be read answers COORDINATOR_NOT_AVAILABLE: showing its keys as unknown would lose their state.
- Keys of partitions that another broker leads belong to it (NOT_COORDINATOR). The state of a partition is dropped with
  its leadership, and read again when leadership returns or another broker may have led in between. One task at a time
  reads a partition: earlier state is dropped before it is read again.
- A partition is rewritten (live content appended again, what is before it deleted) when it has grown to several times
  its live content, so it does not grow forever. No other append is in progress while content is written again, so an
  old record never follows a newer one; nothing is deleted before its copy is durable. A crash in between leaves some
  records twice, which has no effect.

Everything runs on the event loop; reading at start and fsyncs run in the executor.
"""

from __future__ import annotations

import asyncio
import logging
from collections import Counter
from collections.abc import Callable, Iterator, Mapping, Sequence, Set
from functools import lru_cache
from types import MappingProxyType
from typing import TYPE_CHECKING, Protocol, TypeVar

from headrace.broker.runtime.disk_errors import DISK_LOG
from headrace.broker.runtime.ports import STORE_LOST
from headrace.protocol.errors import DecodeError, ErrorCode, KafkaError

if TYPE_CHECKING:
    from concurrent.futures import Executor

    from headrace.broker.cluster.topic_changes import TopicChanges
    from headrace.broker.metadata.cluster import ClusterMetadata
    from headrace.broker.metadata.image import TopicEntry
    from headrace.broker.partitions.partition import Partition
    from headrace.broker.replication.replicas import LocalReplicas
    from headrace.broker.runtime.background import BackgroundTasks
    from headrace.broker.runtime.ports import Clock
    from headrace.protocol.records.header import BatchHeader

logger = logging.getLogger("headrace.journal")

T = TypeVar("T")

Later = Callable[[KafkaError | None], None]
"""Called with the outcome of an append that took time: None, or the reason why it is unknown whether the record
survives.
"""

# Kafka's settings for such topics, as far as they apply: a whole group must fit into one record, and with small
# segments a rewrite frees disk space. Owners rewrite these topics, so the log cleaner skips them.
TOPIC_CONFIG = {
    "cleanup.policy": "compact",
    "segment.bytes": str(16 << 20),
    "max.message.bytes": str(64 << 20),
}
READ_SIZE_BYTES = 1 << 20
REWRITE_RECORDS_MIN = 10_000
REWRITE_FACTOR = 4
KEYS_PER_TURN = 100
SYNC_MS_MAX = 60_000
"""Maximum wait for an fsync during a rewrite, in milliseconds. If it takes longer, the rewrite is postponed."""


class Contents(Protocol[T]):
    """The owner of a journal's records."""

    def read(self, index: int, partition: Partition) -> T:
        """Read everything on a partition; in the executor."""

    async def adopt(self, index: int, read: T) -> None:
        """Take over the state that was read; the partition's keys are served afterwards."""

    def let_go(self, index: int) -> None:
        """Forget the keys of a partition that is not led here any more, and answer requests that wait for them."""

    def live_keys(self, index: int) -> list[str]:
        """Return the keys of a partition with live records."""

    def live_count(self, index: int) -> int:
        """Return the approximate number of live records."""

    def live_batch(self, key: str) -> bytes | None:
        """Return all live records of a key as a batch; None if there are none. Raises KafkaError."""


class JournalTopic:
    def __init__(
        self,
        name: str,
        contents: Contents[T],
        *,
        new_partition_count: int,
        metadata: ClusterMetadata,
        replicas: LocalReplicas,
        topics: TopicChanges,
        executor: Executor,
        clock: Clock,
        background: BackgroundTasks,
        config: Mapping[str, str] = MappingProxyType({}),
    ) -> None:
        """`new_partition_count`, `config`: of the topic when it is created at its first use, in addition to
        `TOPIC_CONFIG`.
        """
        self.name = name
        self.partitions: Sequence[Partition] = ()
        self._contents = contents
        self._new_partition_count = new_partition_count
        self._config = {**TOPIC_CONFIG, **config}
        self._metadata = metadata
        self._replicas = replicas
        self._topics = topics
        self._executor = executor
        self._clock = clock
        self._background = background
        self._led: set[int] = set()
        self._loading: set[int] = set()
        self._failed: set[int] = set()
        self._terms: Counter[int] = Counter()
        """Number of times that each partition was lost."""
        self._turns: dict[int, asyncio.Lock] = {}
        self._creation: asyncio.Task[None] | None = None
        self._rewrite_at: dict[int, int] = {}
        self._rewriting: set[int] = set()
        self._held: dict[int, list[tuple[bytes, Later]]] = {}
        self._paused: list[tuple[int, bytes, Later]] | None = None
        """The appends that wait for `release`; None if the journal is not held."""
        metadata.topic_listeners.append(self._followed)

    # -- life ------------------------------------------------------------------------------------------------

    def start(self) -> None:
        """Begin to read the topic in the background, if it exists."""
        if self._metadata.topic(self.name) is not None:
            self._led = self._look()
            self._loading = set(self._led)
            self._background.start(self._load_all(self._led), f"load {self.name}")

    def _followed(self, before: TopicEntry | None, entry: TopicEntry) -> None:
        if entry.topic.name != self.name:
            return
        led = self._look()
        kept = {index for index in self._led & led if not _may_have_moved(before, entry, index)}
        for index in self._led - kept:
            self._terms[index] += 1
            self._loading.discard(index)
            self._failed.discard(index)
            self._contents.let_go(index)
        gained = led - kept if before is not None else set()  # a new topic is empty
        self._led = led
        if gained:
            self._loading |= gained
            self._background.start(self._load_all(gained), f"load {self.name}")

    async def stop(self) -> None:
        """Stop. Afterwards every append is stored or has failed."""
        if self._creation is not None:
            await asyncio.wait([self._creation])
        for partition in self.partitions:
            if not partition.is_published(0):
                try:
                    await self._settled(partition)
                except KafkaError as error:
                    logger.error("%s-%d: %s", self.name, partition.index, error)

    async def ensure(self) -> None:
        """Create the topic if this is its first use. Raises KafkaError.

        The creation goes on if its client disconnects, and all requests that need the topic share it.
        """
        if self.partitions:
            return
        if self._creation is None:
            self._creation = asyncio.get_running_loop().create_task(
                self._create(), name=f"create {self.name}"
            )
            self._creation.add_done_callback(self._created)
        await asyncio.shield(self._creation)

    async def _create(self) -> None:
        if self._metadata.topic(self.name) is None:
            try:
                await self._topics.create_journal(self.name, self._new_partition_count, self._config)
            except STORE_LOST as error:
                raise KafkaError(ErrorCode.COORDINATOR_NOT_AVAILABLE, error.message) from error
            except KafkaError as error:
                if error.code is not ErrorCode.TOPIC_ALREADY_EXISTS:  # by another broker
                    raise
        self._led = self._look()

    def _look(self) -> set[int]:
        """Return the partitions that are led here."""
        self.partitions = self._replicas.partitions(self.name)
        return {partition.index for partition in self.partitions if not partition.closed}

    def _created(self, creation: asyncio.Task[None]) -> None:
        self._creation = None  # after a failure the next client tries again
        if not creation.cancelled() and (error := creation.exception()) is not None:
            what = f"{self.name} cannot be created"
            DISK_LOG.tell(logger, logging.ERROR, what, f"{what}: %s", error)

    # -- serving ---------------------------------------------------------------------------------------------

    def index_of(self, key: str) -> int:
        """Return the partition of a key; the topic must exist."""
        return partition_of(key, len(self.partitions))

    @property
    def is_loading(self) -> bool:
        return bool(self._loading)

    def is_loaded(self, index: int) -> bool:
        """Return whether a partition has been read."""
        return index in self._led and index not in self._loading and index not in self._failed

    def unavailable(self, key: str) -> ErrorCode:
        """Return NONE, or the reason why the key cannot be served now."""
        if not self._loading and not self._failed and len(self._led) == len(self.partitions):
            return ErrorCode.NONE
        index = self.index_of(key)
        if index not in self._led:
            return ErrorCode.NOT_COORDINATOR
        if index in self._loading:
            return ErrorCode.COORDINATOR_LOAD_IN_PROGRESS
        return ErrorCode.COORDINATOR_NOT_AVAILABLE if index in self._failed else ErrorCode.NONE

    async def _load_all(self, indexes: Set[int]) -> None:
        started = self._clock.monotonic()
        for index in sorted(indexes):
            await self._load(index)
        elapsed_ms = (self._clock.monotonic() - started) * 1000
        logger.info("loaded %d partitions of %s in %.0f ms", len(indexes), self.name, elapsed_ms)

    async def _load(self, index: int) -> None:
        async with self._turns.setdefault(index, asyncio.Lock()):
            if index not in self._loading:
                return  # another broker leads it now, or it was read meanwhile
            partition, term = self.partitions[index], self._terms[index]
            failure: Exception | None = None
            try:
                partition.log  # noqa: B018  opened here, on the event loop, which owns it
                # Records of the previous leader are committed once all replicas have them.
                while not partition.is_end_known:
                    await partition.wait_for_high_watermark(partition.log.log_end_offset, SYNC_MS_MAX)
                read = await asyncio.get_running_loop().run_in_executor(
                    self._executor, self._contents.read, index, partition
                )
                if self._terms[index] == term:
                    await self._contents.adopt(index, read)
            except Exception as error:  # noqa: BLE001  whatever is wrong with it, the other partitions are served
                failure = error
            if self._terms[index] != term or partition.closed:
                self._contents.let_go(index)  # another broker leads it now, or led it meanwhile
                return
            self._loading.discard(index)
            if failure is not None:
                logger.error(
                    "%s-%d cannot be read, so none of its keys is served: %s", self.name, index, failure
                )
                self._failed.add(index)
                return
        self._rewrite_if_worth_it(index)

    # -- append ----------------------------------------------------------------------------------------------

    def append(self, index: int, batch: bytes, later: Later) -> bool:
        """Append a batch. True: it is stored. False: `later` will be called. Raises KafkaError if it was not appended;
        `later` is not called then.
        """
        held = self._held.get(index)
        if held is not None:
            held.append((batch, later))
            return False
        if self._paused is not None:
            self._paused.append((index, batch, later))
            return False
        return self._append(index, batch, later)

    async def hold(self) -> None:
        """Let appends wait until `release`, and return when those before it are stored and their owners are notified.
        Raises KafkaError.
        """
        if self._paused is None:
            self._paused = []
        for partition in [self.partitions[index] for index in sorted(self._led)]:
            while not partition.closed and not partition.is_published(partition.log.log_end_offset):
                await self._settled(partition)
                await asyncio.sleep(0)

    def release(self) -> None:
        """Carry out the appends that wait."""
        paused, self._paused = self._paused, None
        for index, batch, later in paused or ():
            self._append_late(index, batch, later)

    def _append_late(self, index: int, batch: bytes, later: Later) -> None:
        try:
            if self.append(index, batch, later):
                later(None)
        except KafkaError as error:
            later(error)

    def _append(self, index: int, batch: bytes, later: Later) -> bool:
        from headrace.broker.log.partition_log import AppendOrigin

        if not self.partitions:
            raise KafkaError(ErrorCode.COORDINATOR_NOT_AVAILABLE, f"{self.name} does not exist yet")
        partition = self.partitions[index]
        end_offset = partition.append(batch, AppendOrigin.COORDINATOR).last_offset + 1
        if end_offset - partition.log.log_start_offset >= self._rewrite_at.get(index, REWRITE_RECORDS_MIN):
            self._rewrite_if_worth_it(index)
        if partition.is_published(end_offset):
            return True
        partition.when_published(end_offset, later)
        return False

    # -- rewriting -------------------------------------------------------------------------------------------

    def _rewrite_if_worth_it(self, index: int) -> None:
        threshold = max(REWRITE_RECORDS_MIN, REWRITE_FACTOR * self._contents.live_count(index))
        log = self.partitions[index].log
        kept = log.log_end_offset - log.log_start_offset
        self._rewrite_at[index] = max(threshold, 2 * kept)
        if kept >= threshold and index not in self._rewriting:
            self._rewriting.add(index)
            self._background.start(self._rewrite(index), f"rewrite {self.name}-{index}")

    async def _rewrite(self, index: int) -> None:
        partition = self.partitions[index]
        try:
            start = partition.log.log_end_offset
            keys = self._contents.live_keys(index)
            for first in range(0, len(keys), KEYS_PER_TURN):
                await self._write_again(index, keys[first : first + KEYS_PER_TURN])
                await asyncio.sleep(0)
            await self._settled(partition)
            # With `durability=process` a power cut may lose the last seconds, but never older records.
            await partition.flush(self._executor)
            # Offsets committed in open transactions have no other copy.
            partition.delete_records(min(start, partition.last_stable_offset))
        except KafkaError as error:
            logger.warning("%s-%d cannot be rewritten now: %s", self.name, index, error)
            return
        finally:
            self._rewriting.discard(index)
        kept = partition.log.log_end_offset - start
        self._rewrite_at[index] = max(REWRITE_RECORDS_MIN, REWRITE_FACTOR * kept)
        logger.info("rewrote %s-%d: kept %d of %d records", self.name, index, kept, start + kept)

    async def _write_again(self, index: int, keys: Sequence[str]) -> None:
        """Append the stored state of `keys` again. Other appends wait meanwhile, as their outcome is not in it yet."""
        from headrace.broker.log.partition_log import AppendOrigin

        partition = self.partitions[index]
        held: list[tuple[bytes, Later]] = []
        self._held[index] = held
        try:
            await self._settled(partition)
            for key in keys:
                if (batch := self._contents.live_batch(key)) is not None:
                    partition.append(batch, AppendOrigin.COORDINATOR)
        finally:
            del self._held[index]
            for batch, later in held:
                self._append_late(index, batch, later)

    async def _settled(self, partition: Partition) -> None:
        """Wait until everything appended so far is stored and its owner is notified."""
        end_offset = partition.log.log_end_offset
        if not await partition.wait_for_high_watermark(end_offset, SYNC_MS_MAX):
            raise KafkaError(
                ErrorCode.REQUEST_TIMED_OUT,
                f"an fsync of {self.name}-{partition.index} takes longer than a minute",
            )


def _may_have_moved(before: TopicEntry | None, entry: TopicEntry, index: int) -> bool:
    """Return whether another broker may have led the partition between two states in which this broker leads: each
    change of the leader raises the epoch by one.
    """
    return before is not None and entry.state(index).leader_epoch > before.state(index).leader_epoch + 1


def partition_of(key: str, partition_count: int) -> int:
    """Return the partition of a key: abs(hashCode) % partitions, as in Java."""
    return _java_hash(key) % partition_count


@lru_cache(1024)
def _java_hash(key: str) -> int:
    code = 0
    units = key.encode("utf-16-be", "surrogatepass")
    for high, low in zip(units[::2], units[1::2], strict=True):
        code = (31 * code + (high << 8 | low)) & 0xFFFFFFFF
    signed = code - (1 << 32) if code & 0x80000000 else code
    # Java's abs of the smallest int is negative; Kafka's Utils.abs makes it 0.
    return 0 if signed == -(1 << 31) else abs(signed)


def read_records(
    batch: memoryview | bytes, decode: Callable[[bytes | None, bytes | None], T | None], topic: str
) -> Iterator[T]:
    """Yield the decoded records of one batch. `decode` gets key and value, and returns None for an unknown kind.

    A record that cannot be read (DecodeError) is reported and skipped, so that the other keys stay usable.
    """
    from headrace.protocol.records.small import read_small

    for offset, key, value in read_small(batch):
        try:
            record = decode(key, value)
        except DecodeError as error:
            logger.error("record %d of %s cannot be read and is skipped: %s", offset, topic, error)
            continue
        if record is not None:
            yield record


def read_batches(partition: Partition) -> Iterator[tuple[BatchHeader, memoryview]]:
    """Yield every batch of a partition, in order. Blocking; the partition must be open."""
    from headrace.protocol.records.header import iter_headers

    offset = partition.log.log_start_offset
    while offset < partition.high_watermark:
        data = memoryview(partition.read(offset, READ_SIZE_BYTES).read())
        if not data:
            return
        for position, header in iter_headers(data):
            offset = header.last_offset + 1
            yield header, data[position : position + header.size]
