"""Kafka's side of the cluster: topics, groups, and the records of a topic, with Kafka's own requests.

It is for administration, and for tests of the Kafka view of tables. Programs use one of Kafka's clients.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING

from headrace.protocol.errors import ErrorCode
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
from headrace.protocol.messages.describe_log_dirs import (
    DescribableLogDirTopic,
    DescribeLogDirsRequest,
    DescribeLogDirsResponse,
)
from headrace.tablelayer.client.admin import groups, records
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
    KafkaRecord,
    LogSizes,
    TopicDescription,
)
from headrace.tablelayer.client.admin.moves import elect_preferred_leaders, move_partitions, moving_partitions
from headrace.tablelayer.client.admin.placement import Placement
from headrace.tablelayer.client.admin.produce import OutgoingRecord, Producer
from headrace.tablelayer.client.admin.quotas import ClientQuota, alter_quotas, list_quotas
from headrace.tablelayer.client.read.group_offsets import commit_offsets
from headrace.tablelayer.client.read.offsets import LATEST, list_offsets
from headrace.tablelayer.client.wire.cluster import Cluster
from headrace.tablelayer.client.wire.retry import Deadline, raise_for, retrying

if TYPE_CHECKING:
    from headrace.protocol.records.decode import RecordColumns

_TOPIC_RESOURCE = 2
_DELETE_BY_STATE_SINCE = 6


class AsyncKafkaAdmin:
    """Creates, describes and changes topics and groups."""

    def __init__(self, cluster: Cluster) -> None:
        self._cluster = cluster
        self._producer = Producer(cluster)

    def _deadline(self) -> Deadline:
        return Deadline(self._cluster.config.delivery_timeout_ms)

    async def describe_cluster(self) -> ClusterDescription:
        """Return the brokers, including those that are away, and the partitions, including internal topics."""
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

        return await retrying(attempt, config=self._cluster.config, repeatable=True)

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

        return await retrying(attempt, config=self._cluster.config, repeatable=True)

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
        return await records.delete_records(self._cluster, topic, before)

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
        return await records.read(
            self._cluster, topic, positions, max_wait_ms=max_wait_ms, max_bytes=max_bytes
        )

    async def read_batches(
        self, topic: str, positions: Mapping[int, int], *, max_wait_ms: int = 500, max_bytes: int = 4 << 20
    ) -> tuple[list[tuple[int, RecordColumns]], dict[int, int]]:
        """Fetch as `read` does, but return (partition, columns) for each batch.

        Columns are arrays with an element for each record (`protocol.records.decode.RecordColumns`). The first batch of
        a partition is whole and may have records before the position.
        """
        return await records.read_batches(
            self._cluster, topic, positions, max_wait_ms=max_wait_ms, max_bytes=max_bytes
        )

    async def list_groups(self) -> list[GroupListing]:
        """Return all consumer groups by name. Each broker is asked for those that it coordinates."""
        return await groups.list_groups(self._cluster)

    async def describe_group(self, group: str) -> GroupDescription:
        """Return a group's members and committed positions. KafkaError GROUP_ID_NOT_FOUND if it was never used."""
        return await groups.describe_group(self._cluster, group)

    async def delete_group(self, group: str) -> None:
        """Delete a group and its positions. KafkaError NON_EMPTY_GROUP while it has members, GROUP_ID_NOT_FOUND."""
        await groups.delete_group(self._cluster, group)

    async def delete_offsets(self, group: str, topic: str, partitions: Sequence[int]) -> None:
        """Delete a group's positions in these partitions.

        KafkaError GROUP_SUBSCRIBED_TO_TOPIC while a member reads the topic, GROUP_ID_NOT_FOUND.
        """
        await groups.delete_offsets(self._cluster, group, topic, partitions)

    async def commit_offsets(self, group: str, topic: str, offsets: Mapping[int, int]) -> None:
        """Set the next offset to read of each partition, for a group without members.

        KafkaError UNKNOWN_MEMBER_ID if the group has members.
        """
        await commit_offsets(self._cluster, group, topic, offsets)
