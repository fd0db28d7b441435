"""What is tiered as one: a table, all partitions of a partitioned table together, or a plain topic.

Rounds, offsets and leases are the subject's; its places are the buckets in which its records are.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import TYPE_CHECKING
from uuid import UUID

import msgspec

from protocol.errors import KafkaError
from protocol.records.header import ARROW_HEADER_SIZE, read_header
from tablelayer.model.errors import TableError, TableErrorCode
from tablelayer.model.lake.offsets import PartitionBucket, Place
from tablelayer.model.lake.topic_options import TopicOptions
from tablelayer.model.lake.topics import TopicLake, is_tiered_topic
from tablelayer.model.options.table_options import TableOptions
from tablelayer.model.table.definition import TableDefinition, TablePath
from tablelayer.server.catalog.catalog import Catalog, is_partition, is_table

if TYPE_CHECKING:
    from broker.cluster.partition import Partition
    from broker.cluster.topic import TopicImage
    from tablelayer.server.lake.tiering import LakeRounds


class Subject(msgspec.Struct, frozen=True):
    """`definition` is the table's; None for a plain topic, which has no schema on the server."""

    table_id: UUID
    name: str
    enabled: bool
    format: str
    freshness_ms: int
    definition: TableDefinition | None


class LakeProgress(msgspec.Struct, frozen=True):
    """How far one subject's lake is: a few numbers, also for metrics.

    `ends` is where the records end, by place; `behind` counts offsets that the lake does not have, `behind_ms` says
    how long ago the oldest of them was written, within its batch (0: it has all; -1: nobody knows). `commits` were
    reported since the server started, `failures` are those in a row since the last commit, `snapshot_id` is -1
    before the first.
    """

    name: str
    ends: Mapping[Place, int]
    behind: int
    behind_ms: int
    commits: int
    failures: int
    snapshot_id: int
    committed_at_ms: int


class LakeSubjects:
    def __init__(self, catalog: Catalog, lake: LakeRounds) -> None:
        self._catalog = catalog
        self._lake = lake

    def all_tiered(self) -> list[Subject]:
        found = [of_table(each) for each in self._catalog.all_tables()]
        topics = self._catalog.context.metadata.topics()
        found += [of_topic(topic) for topic in topics if _is_plain(topic) and is_tiered_topic(topic.config)]
        return [each for each in found if each.enabled and self.is_here(each)]

    def is_here(self, subject: Subject) -> bool:
        """Whether this broker leads all of it: what several lead is not tiered, for none of them sees its ends."""
        return not any(partition.closed for _, partition in self.places(subject))

    def _tierable(self, subject: Subject) -> Subject:
        """Raises TableError(LAKE_NOT_ENABLED)."""
        if not self.is_here(_enabled(subject)):
            raise TableError(
                TableErrorCode.LAKE_NOT_ENABLED,
                f"{subject.name} is led by several brokers or by another one, and is not tiered there yet",
            )
        return subject

    def by_topic(self, name: str) -> Subject:
        """A plain topic. Raises TableError: TABLE_NOT_FOUND, LAKE_NOT_ENABLED."""
        topic = self._catalog.context.metadata.topic(name)
        if topic is None or not _is_plain(topic):
            what = "does not exist" if topic is None else "is a table"
            raise TableError(TableErrorCode.TABLE_NOT_FOUND, f"plain topic {name} {what}")
        return self._tierable(of_topic(topic))

    def by_path(self, path: TablePath) -> Subject:
        """Raises TableError: the catalog's, or LAKE_NOT_ENABLED."""
        return self._tierable(of_table(self._catalog.by_path(path)))

    def by_id(self, table_id: UUID) -> Subject:
        """Raises TableError(TABLE_NOT_FOUND)."""
        topic = self._catalog.context.metadata.topic_by_id(table_id)
        if topic is not None and _is_plain(topic):
            return of_topic(topic)
        return of_table(self._catalog.by_id(table_id))

    def tiered_by_id(self, table_id: UUID) -> Subject:
        """Raises TableError: TABLE_NOT_FOUND, LAKE_NOT_ENABLED."""
        return self._tierable(self.by_id(table_id))

    def places(self, subject: Subject) -> Iterator[tuple[Place, Partition]]:
        """Where the subject's records are now."""
        metadata = self._catalog.context.metadata
        definition = subject.definition
        if definition is None or not definition.is_partitioned:
            for partition in metadata.partitions(
                subject.name if definition is None else definition.path.topic
            ):
                yield partition.index, partition
            return
        for each in self._catalog.partitions(definition):
            assert each.table_id is not None
            assert each.path.partition is not None
            for partition in metadata.partitions(each.path.topic):
                yield PartitionBucket(each.path.partition, each.table_id, partition.index), partition

    def progress(self, subject: Subject) -> LakeProgress:
        """How far the lake is, of what this broker leads; one small read for each place that is behind."""
        record = self._lake.state(subject.table_id)
        ends, behind, oldest_ms = {}, 0, -1
        for place, partition in self.places(subject):
            end = ends[place] = _end(partition)
            tiered = record.offsets.get(place, 0)
            if end > tiered:
                behind += end - tiered
                time_ms = _newest_ms(partition, tiered)
                oldest_ms = time_ms if oldest_ms < 0 else min(oldest_ms, time_ms)
        behind_ms = 0
        if behind:
            behind_ms = max(0, self._catalog.context.clock.time_ms() - oldest_ms) if oldest_ms >= 0 else -1
        failures = self._lake.trouble(subject.table_id).failures
        return LakeProgress(
            subject.name,
            ends,
            behind,
            behind_ms,
            record.commits,
            failures,
            record.snapshot_id,
            record.committed_at_ms,
        )

    def has_more(self, subject: Subject) -> bool:
        """Whether there is anything that the lake does not have yet."""
        tiered = self._lake.state(subject.table_id).offsets
        return any(_end(part) > tiered.get(place, 0) for place, part in self.places(subject))

    def tiered_offset(self, table_id: UUID, bucket: int) -> int | None:
        """How far the lake has a bucket of a topic; None if it is not tiered, so that nothing waits for it."""
        topic = self._catalog.context.metadata.topic_by_id(table_id)
        if topic is None:
            return None
        if _is_plain(topic):
            return self._lake.tiered_offset(table_id, bucket) if is_tiered_topic(topic.config) else None
        try:
            definition = self._catalog.definition(topic)
        except TableError:
            return None  # the table is gone, and this partition is about to go
        if not definition.settings.datalake_enabled:
            return None
        if definition.path.partition is None:
            return self._lake.tiered_offset(table_id, bucket)
        whole = self._catalog.by_path(definition.path.whole).table_id
        assert whole is not None
        return self._lake.tiered_offset(whole, PartitionBucket(definition.path.partition, table_id, bucket))

    def is_all_tiered(self, definition: TableDefinition, name: str) -> bool:
        """Whether the lake has all that the partition `name` of a tiered table has; True if it is not tiered."""
        if not definition.settings.datalake_enabled:
            return True
        assert definition.table_id is not None
        if not self.is_here(of_table(definition)):
            return False
        offsets = self._lake.state(definition.table_id).offsets
        return all(
            partition.high_watermark <= offsets.get(place, 0)
            for place, partition in self.places(of_table(definition))
            if isinstance(place, PartitionBucket) and place.partition == name
        )


def of_table(definition: TableDefinition) -> Subject:
    """The subject that a table is; of a partition one that nobody tiers, but that can be described."""
    assert definition.table_id is not None
    settings = definition.settings
    return Subject(
        definition.table_id,
        str(definition.path),
        settings.datalake_enabled,
        settings.datalake_format.value if settings.datalake_format else "",
        settings.datalake_freshness_ms,
        definition,
    )


def of_topic(topic: TopicImage) -> Subject:
    """A plain topic; one whose configuration nobody can read is not tiered."""
    try:
        lake = TopicLake.parse(topic.name, topic.config)
    except TableError:
        return Subject(topic.topic_id, topic.name, False, "", 0, None)
    enabled = lake.enabled and not topic.internal
    return Subject(topic.topic_id, topic.name, enabled, lake.format, lake.freshness_ms, None)


def _is_plain(topic: TopicImage) -> bool:
    return not (is_table(topic.config) or is_partition(topic.config))


def _enabled(subject: Subject) -> Subject:
    definition = subject.definition
    if definition is not None and definition.path.partition is not None:
        raise TableError(
            TableErrorCode.INVALID_PARTITION,
            f"{subject.name} is a partition: it is tiered together with its table {definition.path.whole}",
        )
    if not subject.enabled:
        what, option = (
            ("topic", TopicOptions.enabled.name)
            if definition is None
            else ("table", TableOptions.datalake_enabled.name)
        )
        raise TableError(
            TableErrorCode.LAKE_NOT_ENABLED,
            f"{what} {subject.name} is not tiered: its option '{option}' is not 'true'",
        )
    return subject


def _end(partition: Partition) -> int:
    """Where the records end. Logs of plain topics are opened on first use, which this is."""
    if not partition.is_open and partition.failure is None:
        try:
            partition.log  # noqa: B018 - opens it
        except KafkaError:
            return partition.high_watermark
    return partition.high_watermark


def _newest_ms(partition: Partition, offset: int) -> int:
    """The newest timestamp in the batch that has the record at `offset`; -1 if there is none."""
    try:
        region = partition.read(max(offset, partition.log.log_start_offset), 1, True).region
    except KafkaError:
        return -1
    if region is None:
        return -1
    header = read_header(region.read_at(0, min(region.size, ARROW_HEADER_SIZE)))
    return int(header.max_timestamp)
