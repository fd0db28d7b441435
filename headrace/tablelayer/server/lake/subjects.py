"""The unit of tiering: a table, with all partitions if it is partitioned, or a plain topic.

Rounds, offsets and leases belong to the subject; its places are the buckets with its records.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable, Iterable, Iterator, Mapping
from typing import TYPE_CHECKING
from uuid import UUID

import msgspec

from headrace.broker.net.peers import PeerLostError
from headrace.protocol.errors import KafkaError
from headrace.protocol.records.header import ARROW_HEADER_SIZE, read_header
from headrace.tablelayer.model import messages as m
from headrace.tablelayer.model.errors import TableError, TableErrorCode
from headrace.tablelayer.model.lake.offsets import PartitionBucket, Place
from headrace.tablelayer.model.lake.topic_options import TopicOptions
from headrace.tablelayer.model.lake.topics import TopicLake, is_tiered_topic
from headrace.tablelayer.model.options.table_options import TableOptions
from headrace.tablelayer.model.table.definition import StoredTable
from headrace.tablelayer.model.table.path import TablePath
from headrace.tablelayer.server.catalog.catalog import Catalog, is_partition, is_table
from headrace.tablelayer.server.lake_catalogs import has_catalog

if TYPE_CHECKING:
    from headrace.broker.partitions.partition import Partition
    from headrace.broker.partitions.topic import TopicImage
    from headrace.tablelayer.server.lake.tiering import LakeRounds

_ENDS_SECONDS = 5.0
"""Maximum time to wait for a broker's answer; a slower broker is left out."""

_HOLD_SECONDS = 60.0
"""Time for which a partition that is about to be dropped accepts nothing.

It exceeds `_DROP_SECONDS` by more than a write to the coordination store may take, or a session lasts.
"""

_DROP_SECONDS = 20.0
"""Time after the request to hold a partition within which its drop may begin."""

_OPTIONS = {
    False: ("table", TableOptions.datalake_enabled.name),
    True: ("topic", TopicOptions.enabled.name),
}
"""Names for a table (False) and for a plain topic (True)."""

logger = logging.getLogger("headrace.tables")

Ends = Mapping[tuple[str, int], m.FoundEnd]
"""Ends by topic and partition."""


class Subject(msgspec.Struct, frozen=True):
    """A unit of tiering. `definition` is None for a plain topic, which has no schema on the server."""

    table_id: UUID
    name: str
    enabled: bool
    format: str
    freshness_ms: int
    definition: StoredTable | None


class LakeProgress(msgspec.Struct, frozen=True):
    """The progress of one subject's lake.

    `ends` has the end offset of each place. `behind` counts offsets that the lake lacks; `behind_ms` is the age of the
    oldest of them, to the batch (0: the lake has all; -1: unknown). `commits` were reported since the server started,
    `failures` are consecutive since the last commit, and `snapshot_id` is -1 before the first commit.
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
        self._told_without_lake: set[UUID] = set()
        self._warned_at = -1

    def all_tiered(self) -> list[Subject]:
        found = [of_table(each) for each in self._catalog.all_tables(TableOptions.datalake_enabled.name)]
        topics = self._catalog.context.metadata.topics_that_set(TopicOptions.enabled.name)
        found += [of_topic(topic) for topic in topics if _is_plain(topic) and is_tiered_topic(topic.config)]
        return [each for each in found if each.enabled]

    def without_lake(self) -> list[Subject]:
        """Return subjects that are to be tiered, never were, and have no catalog in this broker's configuration.

        Their logs never expire, unless a tiering job has a warehouse of its own.
        """
        config = self._catalog.context.config
        return [
            each
            for each in self.all_tiered()
            if not has_catalog(config, each.format) and self._lake.state(each.table_id).committed_at_ms < 0
        ]

    def warn_without_lake(self) -> None:
        """Log a warning for each new subject without a lake. Costs nothing while the metadata is the same."""
        version = self._catalog.context.metadata.version
        if version == self._warned_at:
            return
        self._warned_at = version
        for each in self.without_lake():
            if each.table_id not in self._told_without_lake:
                self._told_without_lake.add(each.table_id)
                kind, option = _OPTIONS[each.definition is None]
                logger.warning(
                    "%s %s has '%s' = 'true', but this broker has no lake for it ('datalake.%s.warehouse' is not set):"
                    " its log never expires until it is tiered",
                    kind, each.name, option, each.format,
                )  # fmt: skip

    async def ends(
        self, subjects: Iterable[Subject], partition_name: str | None = None, hold_seconds: float = 0.0
    ) -> Ends:
        """Return the ends of the subjects' partitions that other brokers lead, by topic and partition.

        There is one request for each broker; a broker that does not answer is left out. With `partition_name`, only
        that partition's ends are returned; `hold_seconds` as in `hold`.
        """
        metadata = self._catalog.context.metadata
        if metadata.is_alone:
            return {}
        wanted: dict[int, list[m.WantedEnd]] = {}
        for subject in subjects:
            offsets = self._lake.state(subject.table_id).offsets
            for place, partition in self.places(subject):
                if partition_name is not None and not _is_of(place, partition_name):
                    continue
                leader = metadata.leader(partition.topic.name, partition.index)
                if partition.closed and leader is not None:
                    asked = m.WantedEnd(
                        topic=partition.topic.name, partition=partition.index, offset=offsets.get(place, 0)
                    )
                    wanted.setdefault(leader.broker_id, []).append(asked)
        found: dict[tuple[str, int], m.FoundEnd] = {}
        for broker_id, all_asked in wanted.items():
            try:
                answer = await self._catalog.context.peers.ask(
                    broker_id,
                    m.DescribeEndsRequest(partitions=all_asked, hold_ms=round(hold_seconds * 1000)),
                    m.DescribeEndsResponse,
                    channel="tables",
                    seconds=_ENDS_SECONDS,
                )
            except PeerLostError:
                continue
            if not answer.error_code:
                for each, end in zip(all_asked, answer.partitions, strict=True):
                    if end.end >= 0:
                        found[each.topic, each.partition] = end
        return found

    def describe_ends(self, wanted: Iterable[m.WantedEnd], hold_seconds: float = 0.0) -> Iterator[m.FoundEnd]:
        """Answer another broker's `ends`. A new leader gives no end until it knows what was published."""
        seconds = min(hold_seconds, _HOLD_SECONDS)
        for each in wanted:
            partition = self._catalog.context.replicas.find_partition(each.topic, each.partition)
            if partition is None or partition.closed:
                yield m.FoundEnd()
                continue
            end = _end(partition)
            if not partition.is_end_known:
                yield m.FoundEnd()
                continue
            if seconds > 0:
                yield m.FoundEnd(end=end, held_epoch=_hold(partition, each.offset, seconds))
                continue
            newest_ms = _newest_ms(partition, each.offset) if end > each.offset else -1
            yield m.FoundEnd(end=end, newest_ms=newest_ms)

    def by_topic(self, name: str) -> Subject:
        """Return a plain topic. Raises TableError: TABLE_NOT_FOUND, LAKE_NOT_ENABLED."""
        topic = self._catalog.context.metadata.topic(name)
        if topic is None or not _is_plain(topic):
            what = "does not exist" if topic is None else "is a table"
            raise TableError(TableErrorCode.TABLE_NOT_FOUND, f"plain topic {name} {what}")
        return _enabled(of_topic(topic))

    def by_path(self, path: TablePath) -> Subject:
        """Return a table's subject. Raises TableError: the catalog's, or LAKE_NOT_ENABLED."""
        return _enabled(of_table(self._catalog.by_path(path)))

    def by_id(self, table_id: UUID) -> Subject:
        """Return a subject. Raises TableError(TABLE_NOT_FOUND)."""
        topic = self._catalog.context.metadata.topic_by_id(table_id)
        if topic is not None and _is_plain(topic):
            return of_topic(topic)
        return of_table(self._catalog.by_id(table_id))

    def tiered_by_id(self, table_id: UUID) -> Subject:
        """Return a subject that is tiered. Raises TableError: TABLE_NOT_FOUND, LAKE_NOT_ENABLED."""
        return _enabled(self.by_id(table_id))

    def places(self, subject: Subject) -> Iterator[tuple[Place, Partition]]:
        """Yield the places that have the subject's records now."""
        definition = subject.definition
        if definition is None or not definition.is_partitioned:
            for partition in self._catalog.context.replicas.partitions(
                subject.name if definition is None else definition.path.topic
            ):
                yield partition.index, partition
            return
        for each in self._catalog.partitions(definition):
            assert each.path.partition is not None
            for partition in self._catalog.context.replicas.partitions(each.path.topic):
                yield PartitionBucket(each.path.partition, each.table_id, partition.index), partition

    def progress(self, subject: Subject, others: Ends | None = None) -> LakeProgress:
        """Return the lake's progress, with one small read for each place that is behind.

        `others` has the ends of other brokers' partitions; a missing one counts as tiered. With None, only this
        broker's partitions are counted.
        """
        record = self._lake.state(subject.table_id)
        ends, behind, oldest_ms = {}, 0, -1
        for place, partition in self.places(subject):
            tiered = record.offsets.get(place, 0)
            if not partition.closed:
                end = _end(partition)
                time_ms = _newest_ms(partition, tiered) if end > tiered else -1
            elif others is None:
                continue
            else:
                told = others.get((partition.topic.name, partition.index))
                end, time_ms = (tiered, -1) if told is None else (told.end, told.newest_ms)
            ends[place] = end
            if end > tiered:
                behind += end - tiered
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

    def has_more(self, subject: Subject, others: Ends) -> bool:
        """Return whether the lake lacks readable records. `others` as in `progress`.

        Returns False if a leader is missing, or does not know yet what was published.
        """
        tiered = self._lake.state(subject.table_id).offsets
        has_more = False
        for place, partition in self.places(subject):
            if not partition.closed:
                end = _end(partition)
                if not partition.is_end_known:
                    return False
            else:
                told = others.get((partition.topic.name, partition.index))
                if told is None:
                    return False
                end = told.end
            has_more = has_more or end > tiered.get(place, 0)
        return has_more

    def tiered_offset(self, table_id: UUID, bucket: int) -> int | None:
        """Return the offset up to which the lake has a bucket; None if it is not tiered, so that retention does not
        wait.
        """
        topic = self._catalog.context.metadata.topic_by_id(table_id)
        if topic is None:
            return None
        if _is_plain(topic):
            return self._lake.tiered_offset(table_id, bucket) if is_tiered_topic(topic.config) else None
        try:
            definition = self._catalog.definition(topic)
        except TableError:
            return None  # the table is gone, and this partition will go too
        if not definition.settings.datalake_enabled:
            return None
        if definition.path.partition is None:
            return self._lake.tiered_offset(table_id, bucket)
        whole = self._catalog.by_path(definition.path.whole).table_id
        return self._lake.tiered_offset(whole, PartitionBucket(definition.path.partition, table_id, bucket))

    async def is_all_tiered(self, definition: StoredTable, name: str) -> bool:
        """Return whether the lake has all records of the partition `name`; True if the table is not tiered.

        Returns False also while this is unknown because a leader is missing or new.
        """
        if not definition.settings.datalake_enabled:
            return True
        others = await self.ends([of_table(definition)], name)
        offsets = self._lake.state(definition.table_id).offsets
        for place, partition in self.places(of_table(definition)):
            if not _is_of(place, name):
                continue
            if partition.closed:
                told = others.get((partition.topic.name, partition.index))
                if told is None:
                    return False
                end = told.end
            else:
                end = _end(partition)
                if partition.failure is not None or not partition.is_end_known:
                    return False
            if end > offsets.get(place, 0):
                return False
        return True

    async def hold(self, definition: StoredTable, name: str) -> Callable[[], bool] | None:
        """Make the partition `name` accept nothing for a while, so that it can be dropped, if the lake has all of it.

        Returns None if the partition must stay, else a function that returns whether the hold is still valid. Call it
        in the step that drops the partition. Nothing is held for a table that is not tiered.
        """
        if not await self.is_all_tiered(definition, name):
            return None
        if not definition.settings.datalake_enabled:
            return lambda: True
        metadata, loop = self._catalog.context.metadata, asyncio.get_running_loop()
        latest = loop.time() + _DROP_SECONDS
        others = await self.ends([of_table(definition)], name, _HOLD_SECONDS)
        offsets = self._lake.state(definition.table_id).offsets
        held: dict[tuple[str, int], int] = {}
        for place, partition in self.places(of_table(definition)):
            if not _is_of(place, name):
                continue
            key = (partition.topic.name, partition.index)
            if partition.closed:
                told = others.get(key)
                held[key] = -1 if told is None else told.held_epoch
            else:
                held[key] = _hold(partition, offsets.get(place, 0), _HOLD_SECONDS)
        if -1 in held.values():
            return None

        def is_held() -> bool:
            states = {key: metadata.state(*key) for key in held}
            return loop.time() < latest and all(
                state is not None and state.leader_epoch == held[key] for key, state in states.items()
            )

        return is_held


def of_table(definition: StoredTable) -> Subject:
    """Return a table's subject. A partition's subject can be described, but is not tiered by itself."""
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
    """Return a plain topic's subject; it is not tiered if its configuration cannot be read."""
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
        what, option = _OPTIONS[definition is None]
        raise TableError(
            TableErrorCode.LAKE_NOT_ENABLED,
            f"{what} {subject.name} is not tiered: set its option '{option}' to 'true'",
        )
    return subject


def _is_of(place: Place, name: str) -> bool:
    """Return whether a place is a bucket of this partition of a table."""
    return isinstance(place, PartitionBucket) and place.partition == name


def _hold(partition: Partition, tiered: int, seconds: float) -> int:
    """Hold a partition of this broker, unless it has more records than the lake. Return the leader epoch, or -1."""
    try:
        if partition.log.log_end_offset > tiered:
            return -1
        partition.hold(seconds)
    except KafkaError:
        return -1
    return partition.leader_epoch


def _end(partition: Partition) -> int:
    """Return the end of the published records. This opens a plain topic's log on its first use."""
    if not partition.is_open and partition.failure is None:
        try:
            partition.log  # noqa: B018 - opens it
        except KafkaError:
            return partition.high_watermark
    return partition.high_watermark


def _newest_ms(partition: Partition, offset: int) -> int:
    """Return the newest timestamp in the batch that has the record at `offset`; -1 if there is none."""
    try:
        region = partition.read(max(offset, partition.log.log_start_offset), 1, True).region
    except KafkaError:
        return -1
    if region is None:
        return -1
    header = read_header(region.read_at(0, min(region.size, ARROW_HEADER_SIZE)))
    return int(header.max_timestamp)
