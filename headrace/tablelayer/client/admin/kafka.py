"""Kafka's side of the cluster: topics, groups, and the records of a topic, with Kafka's own requests.

It is for administration, and for tests of the Kafka view of tables. Programs use one of Kafka's clients.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING

from headrace.protocol.consumer_protocol import read_assignment
from headrace.protocol.errors import DecodeError, ErrorCode, KafkaError
from headrace.protocol.messages.consumer_group_describe import (
    ConsumerGroupDescribeRequest,
    ConsumerGroupDescribeResponse,
)
from headrace.protocol.messages.create_partitions import (
    CreatePartitionsRequest,
    CreatePartitionsResponse,
    CreatePartitionsTopic,
)
from headrace.protocol.messages.create_topics import (
    CreatableTopic,
    CreatableTopicConfig,
    CreateTopicsRequest,
    CreateTopicsResponse,
)
from headrace.protocol.messages.delete_groups import DeleteGroupsRequest, DeleteGroupsResponse
from headrace.protocol.messages.delete_records import (
    DeleteRecordsPartition,
    DeleteRecordsRequest,
    DeleteRecordsResponse,
    DeleteRecordsTopic,
)
from headrace.protocol.messages.delete_topics import (
    DeleteTopicsRequest,
    DeleteTopicsResponse,
    DeleteTopicState,
)
from headrace.protocol.messages.describe_configs import (
    DescribeConfigsRequest,
    DescribeConfigsResource,
    DescribeConfigsResponse,
)
from headrace.protocol.messages.describe_groups import DescribeGroupsRequest, DescribeGroupsResponse
from headrace.protocol.messages.describe_log_dirs import (
    DescribableLogDirTopic,
    DescribeLogDirsRequest,
    DescribeLogDirsResponse,
)
from headrace.protocol.messages.fetch import FetchPartition, FetchRequest, FetchResponse, FetchTopic
from headrace.protocol.messages.list_groups import ListGroupsRequest, ListGroupsResponse
from headrace.protocol.messages.offset_delete import (
    OffsetDeleteRequest,
    OffsetDeleteRequestPartition,
    OffsetDeleteRequestTopic,
    OffsetDeleteResponse,
)
from headrace.tablelayer.client.admin.cluster_state import (
    ClusterDescription,
    OffsetRange,
    describe_cluster,
    described,
    offset_ranges,
)
from headrace.tablelayer.client.admin.configs import (
    ConfigKind,
    ConfigListing,
    alter_configs,
    describe_configs,
    list_resources,
)
from headrace.tablelayer.client.admin.kafka_answers import (
    GroupDescription,
    GroupListing,
    GroupMember,
    KafkaRecord,
    LogSizes,
    TopicDescription,
)
from headrace.tablelayer.client.admin.moves import elect_preferred_leaders, move_partitions, moving_partitions
from headrace.tablelayer.client.admin.placement import Placement
from headrace.tablelayer.client.admin.produce import OutgoingRecord, Producer
from headrace.tablelayer.client.admin.quotas import ClientQuota, alter_quotas, list_quotas
from headrace.tablelayer.client.errors import UnsupportedRequest
from headrace.tablelayer.client.read.group_offsets import commit_offsets, fetch_offsets, find_coordinator
from headrace.tablelayer.client.read.offsets import EARLIEST, LATEST, list_offsets
from headrace.tablelayer.client.wire.cluster import Cluster
from headrace.tablelayer.client.wire.retry import Deadline, error_of, raise_for, retrying

if TYPE_CHECKING:
    from headrace.protocol.records.decode import RecordColumns

_TOPIC_RESOURCE = 2
_DELETE_BY_STATE_SINCE = 6
_FETCH_BY_ID_SINCE = 13
_NEEDED = (
    "the brokers need them: the topic is internal, or a table that has a primary key or is tiered; delete rows of a"
    " table with DELETE FROM"
)
"""The reason for POLICY_VIOLATION, which the answer of DeleteRecords has no room for."""


class AsyncKafkaAdmin:
    """Creates, describes and changes topics and groups."""

    def __init__(self, cluster: Cluster) -> None:
        self._cluster = cluster
        self._producer = Producer(cluster)

    def _deadline(self) -> Deadline:
        return Deadline(self._cluster.config.delivery_timeout_ms)

    async def describe_cluster(self) -> ClusterDescription:
        """Return the cluster's brokers, those that are away too, and its partitions, internal topics included."""
        return await describe_cluster(self._cluster)

    async def placements(self) -> list[Placement]:
        """Return the replicas of every partition, internal topics included, the preferred leader first."""

        async def attempt(deadline: Deadline) -> list[Placement]:
            answer = await self._cluster.metadata(None, deadline)
            return sorted(
                (
                    Placement(topic.name or "", each.partition_index, tuple(each.replica_nodes))
                    for topic in answer.topics
                    for each in topic.partitions
                ),
                key=lambda each: (each.topic, each.partition),
            )

        return await retrying(
            attempt, config=self._cluster.config, deadline=self._deadline(), repeatable=True
        )

    async def move_partitions(
        self, wanted: Sequence[Placement | tuple[str, int]]
    ) -> dict[tuple[str, int], str]:
        """Begin to move partitions to these brokers (`Placement`), or cancel the move of a (topic, partition).

        Moves go on after this returns: see `moving_partitions`. Returns the refused ones, each with the reason.
        """
        return await move_partitions(self._cluster, wanted)

    async def moving_partitions(self) -> list[Placement]:
        """Return the partitions that are being moved, with all their replicas for now."""
        return await moving_partitions(self._cluster)

    async def elect_preferred_leaders(self) -> Mapping[tuple[str, int], str]:
        """Let the first replica of each partition lead it. Returns the refused ones, each with the reason."""
        return await elect_preferred_leaders(self._cluster)

    async def list_topics(self) -> list[TopicDescription]:
        """Return all topics by name, tables and internal ones included, without their configurations."""

        async def attempt(deadline: Deadline) -> list[TopicDescription]:
            answer = await self._cluster.metadata(None, deadline)
            return sorted(
                (
                    TopicDescription(
                        topic.name or "",
                        topic.topic_id,
                        topic.is_internal,
                        {p.partition_index: p.leader_id for p in topic.partitions},
                        partitions={p.partition_index: described(p) for p in topic.partitions},
                    )
                    for topic in answer.topics
                ),
                key=lambda topic: topic.name,
            )

        return await retrying(
            attempt, config=self._cluster.config, deadline=self._deadline(), repeatable=True
        )

    async def create_topic(
        self,
        name: str,
        *,
        partitions: int = -1,
        replicas: int = -1,
        configs: Mapping[str, str] | None = None,
    ) -> TopicDescription:
        """Create a topic; -1 partitions or replicas: the server's default.

        KafkaError TOPIC_ALREADY_EXISTS, INVALID_REPLICATION_FACTOR, ...
        """
        request = CreateTopicsRequest(
            topics=[
                CreatableTopic(
                    name=name,
                    num_partitions=partitions,
                    replication_factor=replicas,
                    configs=[
                        CreatableTopicConfig(name=key, value=value) for key, value in (configs or {}).items()
                    ],
                )
            ],
            timeout_ms=self._cluster.config.request_timeout_ms,
        )
        answer = await self._cluster.call(
            request, CreateTopicsResponse, doing=f"create topic {name}", repeatable=False
        )
        raise_for(answer.topics[0].error_code, answer.topics[0].error_message, doing=f"create topic {name}")
        return await self.describe_topic(name)

    async def delete_topic(self, name: str) -> None:
        """Delete a topic and its data; a table's topic is the table. KafkaError UNKNOWN_TOPIC_OR_PARTITION."""
        connection = await self._cluster.connection(None)
        request = DeleteTopicsRequest(timeout_ms=self._cluster.config.request_timeout_ms)
        if connection.version_for(DeleteTopicsRequest) >= _DELETE_BY_STATE_SINCE:
            request.topics = [DeleteTopicState(name=name)]
        else:
            request.topic_names = [name]
        answer = await self._cluster.call(
            request, DeleteTopicsResponse, doing=f"delete topic {name}", repeatable=False
        )
        raise_for(
            answer.responses[0].error_code, answer.responses[0].error_message, doing=f"delete topic {name}"
        )
        self._cluster.forget_routes(name)

    async def describe_topic(self, name: str) -> TopicDescription:
        """Return a topic with its explicit configuration. KafkaError UNKNOWN_TOPIC_OR_PARTITION, without retries."""
        deadline = self._deadline()
        topics = (await self._cluster.metadata([name], deadline)).topics
        raise_for(topics[0].error_code, f"there is no topic {name}", doing="describe topic")
        request = DescribeConfigsRequest(
            resources=[
                DescribeConfigsResource(
                    resource_type=_TOPIC_RESOURCE, resource_name=name, configuration_keys=None
                )
            ]
        )
        answer = await self._cluster.call(request, DescribeConfigsResponse, doing=f"describe topic {name}")
        result = answer.results[0]
        withheld = result.error_code == ErrorCode.TOPIC_AUTHORIZATION_FAILED
        if not withheld:
            raise_for(result.error_code, result.error_message, doing=f"describe topic {name}")
        explicit = {
            entry.name: entry.value
            for entry in result.configs
            if entry.config_source == 1 and entry.value is not None
        }
        leaders = {p.partition_index: p.leader_id for p in topics[0].partitions}
        partitions = {p.partition_index: described(p) for p in topics[0].partitions}
        return TopicDescription(
            name, topics[0].topic_id, topics[0].is_internal, leaders, explicit, withheld, partitions
        )

    async def add_partitions(self, topic: str, count: int, *, validate_only: bool = False) -> None:
        """Increase the number of a topic's partitions to `count`. Records with a key may go to another partition from
        then on. KafkaError INVALID_PARTITIONS if `count` is not larger than before, UNKNOWN_TOPIC_OR_PARTITION.
        """
        doing = f"add partitions to {topic}"
        request = CreatePartitionsRequest(
            topics=[CreatePartitionsTopic(name=topic, count=count, assignments=None)],
            timeout_ms=self._cluster.config.request_timeout_ms,
            validate_only=validate_only,
        )
        answer = await self._cluster.call(request, CreatePartitionsResponse, doing=doing, repeatable=False)
        raise_for(answer.results[0].error_code, answer.results[0].error_message, doing=doing)
        self._cluster.forget_routes(topic)

    async def configs(self, kind: ConfigKind, name: str) -> list[ConfigListing]:
        """Return every configuration of a topic, broker or group: value, source and documentation."""
        return await describe_configs(self._cluster, kind, name)

    async def configured(self) -> list[tuple[ConfigKind, str]]:
        """Return the resources that have configurations: kind and name (empty for all brokers together)."""
        return await list_resources(self._cluster)

    async def alter_configs(
        self,
        kind: ConfigKind,
        name: str,
        values: Mapping[str, str],
        delete: Sequence[str] = (),
        *,
        validate_only: bool = False,
    ) -> None:
        """Set some configurations and reset others (`delete`) to their defaults, all or none. KafkaError
        INVALID_CONFIG, INVALID_REQUEST for one that cannot be changed, UNKNOWN_TOPIC_OR_PARTITION.
        """
        await alter_configs(self._cluster, kind, name, values, delete, validate_only=validate_only)

    async def client_quotas(self) -> list[ClientQuota]:
        """Return all limits of users, client ids and addresses. KafkaError CLUSTER_AUTHORIZATION_FAILED."""
        return await list_quotas(self._cluster)

    async def alter_client_quotas(
        self, entity: Mapping[str, str | None], limits: Mapping[str, float], remove: Sequence[str] = ()
    ) -> None:
        """Set limits of an entity, such as {"user": "ann"}, by Kafka's key, and remove others: all or none.

        The name None is the default of a type. KafkaError INVALID_REQUEST, CLUSTER_AUTHORIZATION_FAILED.
        """
        await alter_quotas(self._cluster, entity, limits, remove)

    async def produce(self, topic: str, records: Sequence[OutgoingRecord]) -> list[tuple[int, int]]:
        """Write records with acks=all, each exactly once, and return (partition, offset) of each.

        KafkaError INVALID_RECORD, with the record and the reason, if a record does not fit a table: nothing of its
        partition's batch is written. MESSAGE_TOO_LARGE, UNKNOWN_TOPIC_OR_PARTITION, ...
        """
        return await self._producer.produce(topic, records)

    async def offsets(
        self,
        topic: str,
        at: int = LATEST,
        *,
        committed: bool = False,
        partitions: Sequence[int] | None = None,
    ) -> dict[int, int]:
        """Return offsets of partitions (None: all): LATEST (-1, the end), EARLIEST (-2), or the first at or after a
        time in ms (-1: none). With `committed` the end is the beginning of the first undecided transaction.

        KafkaError LEADER_NOT_AVAILABLE while one of them has no leader: see `offset_ranges`.
        """

        async def attempt(deadline: Deadline) -> dict[int, int]:
            routes = await self._cluster.routes(topic, deadline)
            found: dict[int, int] = {}
            wanted = sorted(routes.leaders if partitions is None else partitions)
            for leader, led in (await self._cluster.by_leader(topic, wanted, deadline)).items():
                answers = await list_offsets(
                    self._cluster, topic, at, leader, led, deadline, committed=committed
                )
                for partition, answer in answers.items():
                    raise_for(answer.error_code, None, doing=f"find offsets of {topic}")
                    found[partition] = answer.offset
            return dict(sorted(found.items()))

        return await retrying(
            attempt,
            config=self._cluster.config,
            deadline=self._deadline(),
            repeatable=True,
            on_stale_route=lambda: self._cluster.forget_routes(topic),
        )

    async def offset_ranges(
        self, topics: Sequence[str] | None = None
    ) -> Mapping[str, Mapping[int, OffsetRange]]:
        """Return the first offset and the end of each partition, by topic (None: all topics) and partition.

        Partitions without a leader and topics that do not exist are left out. Each broker is asked once for all that it
        leads.
        """
        return await offset_ranges(self._cluster, topics)

    async def delete_records(self, topic: str, before: Mapping[int, int]) -> dict[int, int]:
        """Delete the records before an offset of each partition (-1: all), and return where the logs begin now.

        KafkaError OFFSET_OUT_OF_RANGE, POLICY_VIOLATION, TOPIC_AUTHORIZATION_FAILED.
        """

        async def attempt(deadline: Deadline) -> dict[int, int]:
            found: dict[int, int] = {}
            for leader, partitions in (await self._cluster.by_leader(topic, list(before), deadline)).items():
                asked = [DeleteRecordsPartition(partition_index=p, offset=before[p]) for p in partitions]
                answer = await self._cluster.call(
                    DeleteRecordsRequest(
                        topics=[DeleteRecordsTopic(name=topic, partitions=asked)], timeout_ms=30_000
                    ),
                    DeleteRecordsResponse,
                    doing=f"delete records of {topic}",
                    node_id=leader,
                    deadline=deadline,
                    changes=True,
                )
                for each in (each for of_topic in answer.topics for each in of_topic.partitions):
                    reason = _NEEDED if each.error_code == ErrorCode.POLICY_VIOLATION else None
                    raise_for(each.error_code, reason, doing=f"delete records of {topic}")
                    found[each.partition_index] = each.low_watermark
            return found

        return await retrying(
            attempt,
            config=self._cluster.config,
            deadline=self._deadline(),
            repeatable=True,
            on_stale_route=lambda: self._cluster.forget_routes(topic),
        )

    async def log_sizes(self, topic: str | None = None) -> LogSizes:
        """Return the bytes of log files by topic (None: all) and partition over all servers, and their disk space."""
        deadline = self._deadline()
        asked = None
        if topic is not None:
            described = await self.describe_topic(topic)
            asked = [DescribableLogDirTopic(topic=topic, partitions=sorted(described.leaders))]
        answer = await self._cluster.metadata([] if topic is None else [topic], deadline)
        sizes: dict[str, dict[int, int]] = {}
        disks: dict[int, tuple[int, int]] = {}
        for broker in answer.brokers:
            found = await self._cluster.call(
                DescribeLogDirsRequest(topics=asked),
                DescribeLogDirsResponse,
                doing="measure logs",
                node_id=broker.node_id,
                deadline=deadline,
            )
            for each in found.results:
                raise_for(each.error_code, None, doing=f"measure logs in {each.log_dir}")
                disks[broker.node_id] = each.usable_bytes, each.total_bytes
                for of_topic in each.topics:
                    parts = sizes.setdefault(of_topic.name, {})
                    for part in of_topic.partitions:
                        parts[part.partition_index] = parts.get(part.partition_index, 0) + part.partition_size
        return LogSizes(sizes, disks)

    async def brokers(self) -> dict[int, tuple[str, int]]:
        """Return the servers' advertised addresses by broker id."""
        answer = await self._cluster.metadata([], self._deadline())
        return {broker.node_id: (broker.host, broker.port) for broker in answer.brokers}

    async def read(
        self, topic: str, positions: Mapping[int, int], *, max_wait_ms: int = 500, max_bytes: int = 4 << 20
    ) -> tuple[list[KafkaRecord], dict[int, int]]:
        """Fetch once: return records from these positions on, and the positions behind them.

        A position before the log's beginning moves to it. A table's records are those of its Kafka view.
        """
        batches, next_positions = await self.read_batches(
            topic, positions, max_wait_ms=max_wait_ms, max_bytes=max_bytes
        )
        records = [
            KafkaRecord(partition, offset, timestamp, key, value, tuple(columns.headers(index)))
            for partition, columns in batches
            for index, (offset, timestamp, key, value) in enumerate(
                zip(
                    columns.offsets.tolist(),
                    columns.timestamps.tolist(),
                    columns.keys(),
                    columns.values(),
                    strict=True,
                )
            )
            if offset >= positions[partition]
        ]
        return records, next_positions

    async def read_batches(
        self, topic: str, positions: Mapping[int, int], *, max_wait_ms: int = 500, max_bytes: int = 4 << 20
    ) -> tuple[list[tuple[int, RecordColumns]], dict[int, int]]:
        """Fetch as `read` does, but return (partition, columns) for each batch.

        Columns are arrays with an element for each record (`protocol.records.decode.RecordColumns`). The first batch of
        a partition is whole and may have records before the position.
        """
        try:
            from headrace.protocol.records.decode import (
                decode_records,
            )  # it needs numba, which is only imported here
        except ModuleNotFoundError as error:
            raise UnsupportedRequest(
                f"reading records needs {error.name}, which is not installed: pip install headrace instead of"
                " headrace-client, or use a Kafka client"
            ) from error
        from headrace.protocol.records.header import iter_headers

        next_positions = dict(positions)
        batches: list[tuple[int, RecordColumns]] = []

        async def attempt(deadline: Deadline) -> None:
            batches.clear()
            next_positions.update(positions)
            for leader, partitions in (
                await self._cluster.by_leader(topic, list(positions), deadline)
            ).items():
                answer = await self._fetch(
                    topic, leader, {p: positions[p] for p in partitions}, max_wait_ms, max_bytes
                )
                for data in (data for found in answer.responses for data in found.partitions):
                    if data.error_code == ErrorCode.OFFSET_OUT_OF_RANGE:
                        beginning = await list_offsets(
                            self._cluster, topic, EARLIEST, leader, [data.partition_index], deadline
                        )
                        next_positions[data.partition_index] = beginning[data.partition_index].offset
                        continue
                    raise_for(data.error_code, None, doing=f"read {topic}-{data.partition_index}")
                    buffer = memoryview(data.records or b"")
                    for position, header in iter_headers(buffer):
                        next_positions[data.partition_index] = header.next_offset
                        if not header.is_control:
                            columns = decode_records(buffer[position : position + header.size])
                            batches.append((data.partition_index, columns))

        await retrying(
            attempt,
            config=self._cluster.config,
            deadline=self._deadline(),
            repeatable=True,
            on_stale_route=lambda: self._cluster.forget_routes(topic),
        )
        return batches, next_positions

    async def _fetch(
        self, topic: str, leader: int, positions: Mapping[int, int], max_wait_ms: int, max_bytes: int
    ) -> FetchResponse:
        connection = await self._cluster.connection(leader)
        wanted = FetchTopic(
            topic=topic,
            partitions=[
                FetchPartition(partition=partition, fetch_offset=offset, partition_max_bytes=1 << 20)
                for partition, offset in positions.items()
            ],
        )
        if connection.version_for(FetchRequest) >= _FETCH_BY_ID_SINCE:
            found = (await self._cluster.metadata([topic], self._deadline())).topics[0]
            error = error_of(found.error_code, None, doing=f"find topic {topic}")
            if error is not None:
                raise error
            wanted.topic_id = found.topic_id
        request = FetchRequest(max_wait_ms=max_wait_ms, min_bytes=1, max_bytes=max_bytes, topics=[wanted])
        answer = await self._cluster.send(
            request, FetchResponse, node_id=leader, deadline=self._deadline(), extra_wait_ms=max_wait_ms
        )
        raise_for(answer.error_code, None, doing=f"read {topic}")
        return answer

    async def list_groups(self) -> list[GroupListing]:
        """Return all consumer groups by name. Each broker is asked for those that it coordinates."""

        async def attempt(deadline: Deadline) -> list[GroupListing]:
            listed: dict[str, GroupListing] = {}
            for broker in (await self._cluster.metadata([], deadline)).brokers:
                answer = await self._cluster.send(
                    ListGroupsRequest(), ListGroupsResponse, node_id=broker.node_id, deadline=deadline
                )
                raise_for(answer.error_code, None, doing=f"list the groups of broker {broker.node_id}")
                for group in answer.groups:
                    listed[group.group_id] = GroupListing(
                        group.group_id, group.protocol_type, group.group_state
                    )
            return [listed[name] for name in sorted(listed)]

        return await retrying(
            attempt, config=self._cluster.config, deadline=self._deadline(), repeatable=True
        )

    async def describe_group(self, group: str) -> GroupDescription:
        """Return a group's members and committed positions. KafkaError GROUP_ID_NOT_FOUND if it was never used."""

        async def attempt(deadline: Deadline) -> GroupDescription:
            node_id = await find_coordinator(self._cluster, group, deadline)
            request = DescribeGroupsRequest(groups=[group])
            answer = await self._cluster.send(
                request, DescribeGroupsResponse, node_id=node_id, deadline=deadline
            )
            found = answer.groups[0]
            if found.error_code == ErrorCode.GROUP_ID_NOT_FOUND or found.group_state == "Dead":
                modern = await self._consumer_group(group, node_id, deadline)
                if modern is not None:
                    return modern
            raise_for(found.error_code, found.error_message, doing=f"describe group {group}")
            members = [
                GroupMember(
                    m.member_id,
                    m.client_id,
                    m.client_host,
                    m.group_instance_id,
                    _assigned(m.member_assignment),
                )
                for m in found.members
            ]
            positions = await fetch_offsets(self._cluster, group)
            if found.group_state == "Dead" and not positions:
                raise KafkaError(ErrorCode.GROUP_ID_NOT_FOUND, f"there is no group {group}")
            return GroupDescription(group, found.group_state, found.protocol_data, members, positions)

        return await retrying(
            attempt, config=self._cluster.config, deadline=self._deadline(), repeatable=True
        )

    async def _consumer_group(self, group: str, node_id: int, deadline: Deadline) -> GroupDescription | None:
        """Return a group of the consumer protocol (KIP-848); None if it is not one."""
        try:
            answer = await self._cluster.send(
                ConsumerGroupDescribeRequest(group_ids=[group]),
                ConsumerGroupDescribeResponse,
                node_id=node_id,
                deadline=deadline,
            )
        except UnsupportedRequest:
            return None
        found = answer.groups[0]
        if found.error_code == ErrorCode.GROUP_ID_NOT_FOUND:
            return None
        raise_for(found.error_code, found.error_message, doing=f"describe group {group}")
        members = [
            GroupMember(
                m.member_id,
                m.client_id,
                m.client_host,
                m.instance_id,
                {each.topic_name: sorted(each.partitions) for each in m.assignment.topic_partitions},
            )
            for m in found.members
        ]
        positions = await fetch_offsets(self._cluster, group)
        return GroupDescription(group, found.group_state, found.assignor_name, members, positions)

    async def delete_group(self, group: str) -> None:
        """Delete a group and its positions. KafkaError NON_EMPTY_GROUP while it has members, GROUP_ID_NOT_FOUND."""
        doing = f"delete group {group}"

        async def attempt(deadline: Deadline) -> None:
            node_id = await find_coordinator(self._cluster, group, deadline)
            answer = await self._cluster.send(
                DeleteGroupsRequest(groups_names=[group]),
                DeleteGroupsResponse,
                node_id=node_id,
                deadline=deadline,
            )
            raise_for(answer.results[0].error_code, None, doing=doing)

        await retrying(
            attempt, config=self._cluster.config, deadline=self._deadline(), repeatable=False, changes=True
        )

    async def delete_offsets(self, group: str, topic: str, partitions: Sequence[int]) -> None:
        """Delete a group's positions in these partitions.

        KafkaError GROUP_SUBSCRIBED_TO_TOPIC while a member reads the topic, GROUP_ID_NOT_FOUND.
        """
        doing = f"delete offsets of group {group} in {topic}"

        async def attempt(deadline: Deadline) -> None:
            node_id = await find_coordinator(self._cluster, group, deadline)
            request = OffsetDeleteRequest(
                group_id=group,
                topics=[
                    OffsetDeleteRequestTopic(
                        name=topic,
                        partitions=[OffsetDeleteRequestPartition(partition_index=p) for p in partitions],
                    )
                ],
            )
            answer = await self._cluster.send(
                request, OffsetDeleteResponse, node_id=node_id, deadline=deadline
            )
            raise_for(answer.error_code, None, doing=doing)
            for part in (part for found in answer.topics for part in found.partitions):
                raise_for(part.error_code, None, doing=doing)

        await retrying(
            attempt, config=self._cluster.config, deadline=self._deadline(), repeatable=True, changes=True
        )

    async def commit_offsets(self, group: str, topic: str, offsets: Mapping[int, int]) -> None:
        """Set the next offset to read of each partition, for a group without members.

        KafkaError UNKNOWN_MEMBER_ID if the group has members.
        """
        await commit_offsets(self._cluster, group, topic, offsets)


def _assigned(assignment: bytes) -> dict[str, list[int]]:
    """Return the partitions that a classic consumer has; nothing for members of other kinds of groups."""
    try:
        return {topic: sorted(partitions) for topic, partitions in read_assignment(assignment).partitions}
    except DecodeError:
        return {}
