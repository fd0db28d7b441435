"""Partitions of a partitioned table: creating, dropping and listing them."""

from __future__ import annotations

from uuid import UUID

from headrace.protocol.schema import ApiMessage, Struct, array, boolean, int32, string, uuid
from headrace.tablelayer.model.messages.answers import TableResponse


class CreatePartitionRequest(ApiMessage, key=10024, kind="request", versions="0", flexible="0+"):
    """`name`: the values of the partition columns as text, joined by dots (`partitions.py`)."""

    table_id: UUID = uuid()
    name: str = string()
    ignore_if_exists: bool = boolean()


class CreatePartitionResponse(TableResponse, key=10024, kind="response", versions="0", flexible="0+"):
    partition_id: UUID = uuid()
    bucket_count: int = int32(default=0)


class DropPartitionRequest(ApiMessage, key=10025, kind="request", versions="0", flexible="0+"):
    table_id: UUID = uuid()
    name: str = string()
    ignore_if_not_exists: bool = boolean()


class DropPartitionResponse(TableResponse, key=10025, kind="response", versions="0", flexible="0+"):
    pass


class ListedPartition(Struct):
    name: str = string()
    partition_id: UUID = uuid()
    bucket_count: int = int32()


class ListPartitionsRequest(ApiMessage, key=10026, kind="request", versions="0", flexible="0+"):
    table_id: UUID = uuid()


class ListPartitionsResponse(TableResponse, key=10026, kind="response", versions="0", flexible="0+"):
    """The partitions in order of name."""

    partitions: list[ListedPartition] = array(ListedPartition)
