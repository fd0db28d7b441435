"""Tiering rounds, and how far the lake is."""

from __future__ import annotations

from uuid import UUID

from headrace.protocol.schema import ApiMessage, Struct, array, boolean, int32, int64, string, uuid
from headrace.tablelayer.model.lake.offsets import PartitionBucket, Place
from headrace.tablelayer.model.messages.answers import TableResponse


class LakeOffset(Struct):
    """The log of a bucket is in the lake up to `offset`, exclusive. Of a partitioned table the bucket is
    that of the partition of that name and id.
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
    """`value` null: it is set, and may be a secret, which is kept from who asks."""

    key: str = string()
    value: str | None = string(nullable="0+", default=None)

    def __repr__(self) -> str:
        return f"LakeProperty(key={self.key!r})"


class LakeBeginRequest(ApiMessage, key=10020, kind="request", versions="0-1", flexible="0+"):
    """Asks for a tiering round: of one table, or (nulls) of the one that needs it most; `force` if none
    is due. `topic`: of this plain topic.
    """

    worker: str = string()
    database: str | None = string(nullable="0+", default=None)
    table: str | None = string(nullable="0+", default=None)
    force: bool = boolean()
    topic: str | None = string(versions="1+", nullable="1+", default=None)


class LakeBeginResponse(TableResponse, key=10020, kind="response", versions="0-1", flexible="0+"):
    """`epoch` fences every earlier round of the table; the round is lost `lease_ms` after the last
    heartbeat. `topic`: the round is of this plain topic, whose id `table_id` is.
    """

    granted: bool = boolean()
    table_id: UUID = uuid()
    database: str = string()
    table: str = string()
    epoch: int = int64(default=-1)
    lease_ms: int = int32()
    topic: str | None = string(versions="1+", nullable="1+", default=None)


class LakeHeartbeatRequest(ApiMessage, key=10021, kind="request", versions="0", flexible="0+"):
    """Renews the lease; `changes` are in the lake by this round so far, `doing` is for people."""

    table_id: UUID = uuid()
    epoch: int = int64(default=-1)
    changes: int = int64()
    doing: str = string()


class LakeHeartbeatResponse(TableResponse, key=10021, kind="response", versions="0", flexible="0+"):
    """`finish`: end the round after what is in hand."""

    finish: bool = boolean()


class LakeCommitRequest(ApiMessage, key=10022, kind="request", versions="0-1", flexible="0+"):
    """Reports what is in the lake already: `offsets` as they stand inside of snapshot `snapshot_id`.

    The round goes on until it is given back.
    """

    table_id: UUID = uuid()
    epoch: int = int64(default=-1)
    snapshot_id: int = int64(default=-1)
    offsets: list[LakeOffset] = array(LakeOffset)


class LakeCommitResponse(TableResponse, key=10022, kind="response", versions="0-1", flexible="0+"):
    pass


class DescribeLakeRequest(ApiMessage, key=10023, kind="request", versions="0-2", flexible="0+"):
    """`token`: what the server's operator has given to tiering jobs, to be told the catalog's credentials."""

    table_id: UUID = uuid()
    token: str | None = string(versions="2+", nullable="2+", default=None, ignorable=True)

    def __repr__(self) -> str:
        return f"DescribeLakeRequest(table_id={self.table_id!r})"


class DescribeLakeResponse(TableResponse, key=10023, kind="response", versions="0-2", flexible="0+"):
    """The coordinator's copy of what the lake's own snapshots say; `properties` are the catalog's.

    `ends` are the log's ends as readers see them. `worker` (null: none), `doing`, `changes` and
    `round_ms` tell of the round that is running, `failures`, `retry_in_ms` and `failure` of those that
    failed since the last commit. `commits` were reported since the server started; `behind_ms` is how old the
    oldest record is that the lake does not have (0: it has all; -1: nobody knows).
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


class LakeEndRequest(ApiMessage, key=10050, kind="request", versions="0", flexible="0+"):
    """Ends a round; `failure` says why it could not be done, null that nothing was wrong."""

    table_id: UUID = uuid()
    epoch: int = int64(default=-1)
    failure: str | None = string(nullable="0+", default=None)


class LakeEndResponse(TableResponse, key=10050, kind="response", versions="0", flexible="0+"):
    pass


class LakeFinishRequest(ApiMessage, key=10051, kind="request", versions="0", flexible="0+"):
    """Has whoever tiers the table told to end the round after what is in hand."""

    table_id: UUID = uuid()


class LakeFinishResponse(TableResponse, key=10051, kind="response", versions="0", flexible="0+"):
    """`running`: whether there was a round to finish."""

    running: bool = boolean()


class ListedLake(Struct):
    """How far the lake of one table or plain topic is; the fields are those of DescribeLakeResponse, and `behind` is
    the number of offsets that the lake does not have.
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
    """Everything that is tiered."""


class ListLakeResponse(TableResponse, key=10052, kind="response", versions="0", flexible="0+"):
    """Tables in order of name, then topics."""

    entries: list[ListedLake] = array(ListedLake)
