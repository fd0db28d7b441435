"""Tiering rounds, and how far the lake has got."""

from __future__ import annotations

from uuid import UUID

from headrace.protocol.schema import ApiMessage, Struct, array, boolean, int32, int64, string, uuid
from headrace.tablelayer.model.lake.offsets import PartitionBucket, Place
from headrace.tablelayer.model.messages.answers import TableResponse


class LakeOffset(Struct):
    """The log of a bucket is in the lake up to `offset`, exclusive.

    The bucket of a partitioned table belongs to the partition with this name and id.
    """

    bucket: int = int32()
    offset: int = int64()
    partition: str | None = string(versions="1+", nullable="1+", default=None)
    partition_id: UUID = uuid(versions="1+", ignorable=True)

    @classmethod
    def of(cls, place: Place, offset: int) -> LakeOffset:
        if isinstance(place, PartitionBucket):
            return cls(
                bucket=place.bucket, offset=offset, partition=place.partition, partition_id=place.table_id
            )
        return cls(bucket=place, offset=offset)

    @property
    def place(self) -> Place:
        if self.partition is None:
            return self.bucket
        return PartitionBucket(self.partition, self.partition_id, self.bucket)


class LakeProperty(Struct):
    """`value` null: the property is set, but it may be a secret and is not shown to this client."""

    key: str = string()
    value: str | None = string(nullable="0+", default=None)

    def __repr__(self) -> str:
        return f"LakeProperty(key={self.key!r})"


class LakeBeginRequest(ApiMessage, key=10020, kind="request", versions="0-1", flexible="0+"):
    """Ask for a tiering round of one table or, with nulls, of the table that needs it most.

    `force`: even if no round is due. `topic`: a round of this plain topic.
    """

    worker: str = string()
    database: str | None = string(nullable="0+", default=None)
    table: str | None = string(nullable="0+", default=None)
    force: bool = boolean()
    topic: str | None = string(versions="1+", nullable="1+", default=None)


class LakeBeginResponse(TableResponse, key=10020, kind="response", versions="0-1", flexible="0+"):
    """`epoch` fences every earlier round of the table. The round is lost `lease_ms` after the last heartbeat.

    `topic`: the round is for this plain topic, whose id is `table_id`.
    """

    granted: bool = boolean()
    table_id: UUID = uuid()
    database: str = string()
    table: str = string()
    epoch: int = int64(default=-1)
    lease_ms: int = int32()
    topic: str | None = string(versions="1+", nullable="1+", default=None)


class LakeHeartbeatRequest(ApiMessage, key=10021, kind="request", versions="0", flexible="0+"):
    """Renew the lease. `changes`: the number that this round has put into the lake; `doing`: the step, for people."""

    table_id: UUID = uuid()
    epoch: int = int64(default=-1)
    changes: int = int64()
    doing: str = string()


class LakeHeartbeatResponse(TableResponse, key=10021, kind="response", versions="0", flexible="0+"):
    """`finish`: end the round after the step that is under way."""

    finish: bool = boolean()


class DroppedPartition(Struct):
    """A partition that a client dropped, while the lake may still have its rows."""

    name: str = string()
    partition_id: UUID = uuid()


class LakeCommitRequest(ApiMessage, key=10022, kind="request", versions="0-2", flexible="0+"):
    """Report the offsets up to which the lake has the log: `offsets` as they stand in snapshot `snapshot_id`.

    `cleared`: partitions that clients dropped, and that have no rows in the lake any more. The round goes on until the
    worker ends it.
    """

    table_id: UUID = uuid()
    epoch: int = int64(default=-1)
    snapshot_id: int = int64(default=-1)
    offsets: list[LakeOffset] = array(LakeOffset)
    cleared: list[DroppedPartition] = array(DroppedPartition, versions="2+", ignorable=True)


class LakeCommitResponse(TableResponse, key=10022, kind="response", versions="0-2", flexible="0+"):
    pass


class DescribeLakeRequest(ApiMessage, key=10023, kind="request", versions="0-4", flexible="0+"):
    """`token`: the server operator's secret for tiering jobs; with it the catalog's credentials are answered."""

    table_id: UUID = uuid()
    token: str | None = string(versions="2+", nullable="2+", default=None, ignorable=True)

    def __repr__(self) -> str:
        return f"DescribeLakeRequest(table_id={self.table_id!r})"


class DescribeLakeResponse(TableResponse, key=10023, kind="response", versions="0-4", flexible="0+"):
    """The coordinator's copy of what the lake's own snapshots say.

    `properties` are the catalog's. `ends` are the ends of the logs as readers see them. `worker` (null: none),
    `doing`, `changes` and `round_ms` describe the running round; `failures`, `retry_in_ms` and `failure` describe the
    rounds that failed since the last commit. `commits` counts since the server started. `behind_ms` is the age of the
    oldest record that the lake does not have (0: it has all; -1: unknown).

    `expired`: the lake may have rows of partitions that are gone without a client's drop; they belong to the table.
    `dropped` are the partitions that clients dropped, whose rows do not belong to it.

    `gone_count` counts the partitions that are gone, and `expired_count` those among them that no client dropped. -1:
    not counted. Only differences mean something. The partitions in `ends` exist at the time of the count.
    """

    enabled: bool = boolean()
    format: str = string()
    snapshot_id: int = int64(default=-1)
    epoch: int = int64(default=-1)
    committed_at_ms: int = int64(default=-1)
    offsets: list[LakeOffset] = array(LakeOffset)
    properties: list[LakeProperty] = array(LakeProperty)
    ends: list[LakeOffset] = array(LakeOffset)
    freshness_ms: int = int64()
    worker: str | None = string(nullable="0+", default=None)
    doing: str = string()
    changes: int = int64()
    round_ms: int = int64()
    failures: int = int32()
    retry_in_ms: int = int64()
    failure: str = string()
    commits: int = int64(versions="1+", ignorable=True)
    behind_ms: int = int64(versions="1+", default=-1, ignorable=True)
    expired: bool = boolean(versions="3+", ignorable=True)
    dropped: list[DroppedPartition] = array(DroppedPartition, versions="3+", ignorable=True)
    gone_count: int = int64(versions="4+", default=-1, ignorable=True)
    expired_count: int = int64(versions="4+", default=-1, ignorable=True)


class LakeEndRequest(ApiMessage, key=10050, kind="request", versions="0", flexible="0+"):
    """End a round. `failure` is the reason why it failed, null if it succeeded."""

    table_id: UUID = uuid()
    epoch: int = int64(default=-1)
    failure: str | None = string(nullable="0+", default=None)


class LakeEndResponse(TableResponse, key=10050, kind="response", versions="0", flexible="0+"):
    pass


class LakeFinishRequest(ApiMessage, key=10051, kind="request", versions="0", flexible="0+"):
    """Tell the worker that tiers the table to end the round after the step that is under way."""

    table_id: UUID = uuid()


class LakeFinishResponse(TableResponse, key=10051, kind="response", versions="0", flexible="0+"):
    """`running`: whether a round was running."""

    running: bool = boolean()


class ListedLake(Struct):
    """The state of the lake of one table or plain topic.

    The fields are those of `DescribeLakeResponse`; `behind` is the number of offsets that the lake does not have.
    """

    table_id: UUID = uuid()
    name: str = string()
    is_topic: bool = boolean()
    format: str = string()
    snapshot_id: int = int64(default=-1)
    committed_at_ms: int = int64(default=-1)
    freshness_ms: int = int64()
    behind: int = int64()
    behind_ms: int = int64(default=-1)
    commits: int = int64()
    failures: int = int32()
    retry_in_ms: int = int64()
    failure: str = string()
    worker: str | None = string(nullable="0+", default=None)
    doing: str = string()
    changes: int = int64()
    round_ms: int = int64()


class ListLakeRequest(ApiMessage, key=10052, kind="request", versions="0", flexible="0+"):
    """Ask for every tiered table and topic."""


class ListLakeResponse(TableResponse, key=10052, kind="response", versions="0", flexible="0+"):
    """Tables in order of name, then topics."""

    entries: list[ListedLake] = array(ListedLake)
