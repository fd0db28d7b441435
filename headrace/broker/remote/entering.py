"""At the first start of a new machine, enter the positions of consumer groups from remote storage (`group_positions`)
into `__consumer_offsets`, as if they were committed then, before any group is served.

`bootstrap.make_directory` leaves them in a file of the data directory (`POSITIONS_PENDING`). The file is removed when
everything is durable on `__consumer_offsets`; after a crash before that, the next start enters everything again, with
the same result.

A position beyond the end of the restored log is set to its end, one before its start to its start. Positions of missing
topics or partitions, or of another topic with the same name, are left out. Retention of positions starts again.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Iterable, Iterator, Mapping
from concurrent.futures import Executor
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Final

import msgspec
from msgspec.structs import replace

from headrace.broker.groups.journal import records as journal
from headrace.broker.groups.model.records import CommittedOffset, JournalRecord, PutOffset
from headrace.broker.groups.offsets.positions import at, group_of
from headrace.broker.partitions.data_dir import POSITIONS_PENDING
from headrace.broker.remote.group_positions import BATCH_RECORDS, decode
from headrace.protocol.errors import KafkaError

if TYPE_CHECKING:
    from headrace.broker.groups.coordinator import GroupCoordinator
    from headrace.broker.metadata.cluster import ClusterMetadata
    from headrace.broker.replication.replicas import LocalReplicas
    from headrace.broker.runtime.ports import Clock, Disk

_NAMED_MAX: Final = 10

Range = tuple[int, int]
"""The start and end offset of a log."""
ANY: Final[Range] = (0, (1 << 63) - 1)
"""The range of a log that cannot be read."""


class Clamped(msgspec.Struct, frozen=True):
    group_id: str
    topic: str
    partition: int
    committed: int
    offset: int

    def __str__(self) -> str:
        return f"{self.group_id}: {self.topic}-{self.partition} {self.committed} -> {self.offset}"


class Entered(msgspec.Struct):
    """The result for positions: their number and groups; those set to the log's end or start; the number without a
    partition.
    """

    groups: set[str] = msgspec.field(default_factory=set)
    positions: int = 0
    beyond: list[Clamped] = msgspec.field(default_factory=list)
    before: list[Clamped] = msgspec.field(default_factory=list)
    left_out: int = 0

    def __str__(self) -> str:
        """Return a summary for users, in one line."""
        said = [f"positions of {len(self.groups)} consumer groups in {self.positions} partitions"]
        for what, clamped in (
            ("were beyond the end of the restored log and set to its end", self.beyond),
            ("were before the start of the restored log and set to its start", self.before),
        ):
            if clamped:
                named = ", ".join(map(str, clamped[:_NAMED_MAX]))
                more = f" and {len(clamped) - _NAMED_MAX} more" if len(clamped) > _NAMED_MAX else ""
                said.append(f"{len(clamped)} of them {what} ({named}{more})")
        if self.left_out:
            said.append(f"{self.left_out} left out, because their partitions do not exist")
        return "; ".join(said)


def fitted(
    records: Iterable[JournalRecord], range_of: Callable[[str, int], Range | None], entered: Entered
) -> Iterator[JournalRecord]:
    """Yield the records with positions that the logs have. `range_of` returns the range of a partition, None if it does
    not exist. Pure except for `entered`, which collects the result.
    """
    for record in records:
        if not isinstance(record, PutOffset):
            yield record
            continue
        there = range_of(record.topic, record.partition)
        if there is None:
            entered.left_out += 1
            continue
        committed = _clamped(record.committed, there)
        entered.groups.add(record.group_id)
        entered.positions += 1
        if committed is not record.committed:
            told = Clamped(
                record.group_id, record.topic, record.partition, record.committed.offset, committed.offset
            )
            (entered.beyond if committed.offset < record.committed.offset else entered.before).append(told)
        yield PutOffset(record.group_id, record.topic, record.partition, committed)


def _clamped(committed: CommittedOffset, there: Range) -> CommittedOffset:
    start, end = there
    offset = max(start, min(committed.offset, end))
    # The leader epoch of another offset is not known.
    return committed if offset == committed.offset else replace(committed, offset=offset, leader_epoch=-1)


def encode_pending(objects: Mapping[str, bytes]) -> bytes:
    return msgspec.msgpack.encode(dict(objects))


async def enter(
    disk: Disk,
    data_dir: Path,
    groups: GroupCoordinator,
    metadata: ClusterMetadata,
    replicas: LocalReplicas,
    clock: Clock,
    executor: Executor,
) -> Entered:
    """Enter the positions of a broker whose topics are loaded and whose groups are not. Raises KafkaError, OSError,
    ClusterCopyError.
    """
    loop = asyncio.get_running_loop()
    read = await loop.run_in_executor(executor, _read, disk, data_dir / POSITIONS_PENDING)
    from headrace.broker.log.partition_log import AppendOrigin

    entered, now_ms = Entered(), clock.time_ms()
    if any(records for _, records in read):
        await groups.journal.ensure()
    touched = set()
    for topics, records in read:
        fitting = fitted(records, partial(_range_of, metadata, replicas, topics), entered)
        by_index: dict[int, list[JournalRecord]] = {}
        for record in fitting:
            by_index.setdefault(groups.journal.index_of(group_of(record)), []).append(at(record, now_ms))
        for index, some in by_index.items():
            touched.add(index)
            for first in range(0, len(some), BATCH_RECORDS):
                batch = await loop.run_in_executor(
                    executor, journal.encode_journal_batch, some[first : first + BATCH_RECORDS], now_ms
                )
                groups.journal.partitions[index].append(batch, AppendOrigin.COORDINATOR)
    for index in sorted(touched):
        await groups.journal.partitions[index].flush(executor)
    disk.remove(data_dir / POSITIONS_PENDING)
    disk.sync_directory(data_dir)
    return entered


def _read(disk: Disk, path: Path) -> list[tuple[Mapping[str, str], list[JournalRecord]]]:
    """Return the topic ids and the records of each object."""
    found = []
    for name, data in msgspec.msgpack.decode(disk.read(path), type=dict[str, bytes]).items():
        head, records = decode(name, data)
        found.append((head.topics, list(records)))
    return found


def _range_of(
    metadata: ClusterMetadata, replicas: LocalReplicas, ids: Mapping[str, str], topic: str, index: int
) -> Range | None:
    image, partition = metadata.topic(topic), replicas.find_partition(topic, index)
    if image is None or partition is None or str(image.topic_id) != ids.get(topic):
        return None
    try:
        return partition.log.log_start_offset, partition.log.log_end_offset
    except KafkaError:  # it is reported where logs are opened
        return ANY
