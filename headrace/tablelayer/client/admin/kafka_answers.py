"""Answers of Kafka's administration: topics, groups, sizes of logs, records."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from uuid import UUID

from headrace.protocol.errors import ErrorCode
from headrace.tablelayer.client.admin.cluster_state import PartitionDescription
from headrace.tablelayer.client.wire.retry import raise_for
from headrace.tablelayer.model.table.definition import PARTITION_OF_CONFIG
from headrace.tablelayer.model.table.path import whole_table


@dataclass(frozen=True, slots=True)
class TopicDescription:
    """A topic: `leaders` by partition; `configs` has the explicitly set configurations and is empty in a listing. It is
    also empty where they are withheld: a client may DESCRIBE the topic but not its configurations.
    """

    name: str
    topic_id: UUID
    is_internal: bool
    leaders: Mapping[int, int]
    configs: Mapping[str, str] = field(default_factory=dict)
    configs_withheld: bool = False
    partitions: Mapping[int, PartitionDescription] = field(default_factory=dict)

    def required_configs(self) -> Mapping[str, str]:
        """Return `configs`. KafkaError TOPIC_AUTHORIZATION_FAILED if they are withheld."""
        if self.configs_withheld:
            raise_for(
                ErrorCode.TOPIC_AUTHORIZATION_FAILED,
                None,
                doing=f"describe the configurations of {self.name}",
            )
        return self.configs

    @property
    def is_table(self) -> bool:
        return "table.schema" in self.configs

    @property
    def table(self) -> str | None:
        """The table whose rows the topic has: that of its name, or that of a partition. Its configurations tell it."""
        return whole_table(self.name) if self.is_table or PARTITION_OF_CONFIG in self.configs else None


@dataclass(frozen=True, slots=True)
class GroupListing:
    group: str
    protocol_type: str
    state: str


@dataclass(frozen=True, slots=True)
class GroupMember:
    """A member of a group. `assigned` has its partitions by topic; empty if they are unknown."""

    member_id: str
    client_id: str
    client_host: str
    instance_id: str | None
    assigned: Mapping[str, Sequence[int]] = field(default_factory=dict)


@dataclass(frozen=True, slots=True)
class GroupDescription:
    """A consumer group; `positions` are its committed offsets by (topic, partition)."""

    group: str
    state: str
    assignor: str
    members: Sequence[GroupMember]
    positions: Mapping[tuple[str, int], int]


@dataclass(frozen=True, slots=True)
class LogSizes:
    """Sizes of logs: `bytes` of log files, without indexes, by topic and partition. `disks` has (bytes free, total
    bytes) of each server's data volume, -1 if the server does not report them.
    """

    bytes: Mapping[str, Mapping[int, int]]
    disks: Mapping[int, tuple[int, int]]


@dataclass(frozen=True, slots=True)
class KafkaRecord:
    """One record as a Kafka client sees it."""

    partition: int
    offset: int
    timestamp_ms: int
    key: bytes | None
    value: bytes | None
    headers: tuple[tuple[str, bytes | None], ...] = ()
