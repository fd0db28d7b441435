"""The table and the buckets that a request names."""

from __future__ import annotations

from typing import TYPE_CHECKING, TypeVar
from uuid import UUID

from headrace.broker.security.principal import ANONYMOUS
from headrace.broker.security.rights import Operation
from headrace.protocol.errors import ErrorCode, KafkaError
from headrace.tablelayer.model.errors import TableError, TableErrorCode
from headrace.tablelayer.model.table.definition import StoredTable
from headrace.tablelayer.server.catalog.catalog import Catalog

if TYPE_CHECKING:
    from collections.abc import Iterable

    from headrace.broker.requests.declaration import RequestContext
    from headrace.tablelayer.server.bucket.bucket import TableBucket
    from headrace.tablelayer.server.read.wanted import Wanted
    from headrace.tablelayer.server.rights.table_rights import TableRights

Bucket = TypeVar("Bucket", bound="TableBucket")


class Targets:
    def __init__(self, catalog: Catalog, rights: TableRights) -> None:
        self._context = catalog.context
        self._rights = rights

    def written(self, context: RequestContext, table_id: UUID) -> StoredTable:
        """Return a table or a partition that the caller may write to. Raises KafkaError or TableError."""
        return _with_rows(self._rights.by_id(context, Operation.WRITE, table_id))

    def read(self, context: RequestContext, table_id: UUID) -> StoredTable:
        """Return a table of which the caller may read some columns. `check_columns` checks the requested ones."""
        return _with_rows(self._rights.readable_by_id(context, table_id))

    def check_keys(self, context: RequestContext, definition: StoredTable) -> None:
        """Raise KafkaError unless the key columns may be read, so that the caller may learn which keys exist."""
        from headrace.tablelayer.server.read.wanted import (
            Wanted,
        )  # a server without tables does not need its libraries

        key = [definition.schema.column(name).id for name in definition.schema.primary_key]
        self._rights.check_columns(context, definition, Wanted.of(definition, -1, key))

    def check_columns(
        self, context: RequestContext, definition: StoredTable, wanted: Wanted, used: Iterable[int] = ()
    ) -> None:
        self._rights.check_columns(context, definition, wanted, used)

    def bucket(self, definition: StoredTable, index: int, kind: type[Bucket]) -> Bucket:
        """Return an open bucket of a table. Raises KafkaError if it is absent, of another kind or not open."""
        hooks: object = self._context.replicas.partition(definition.path.topic, index).hooks
        if not isinstance(hooks, kind):
            raise KafkaError(
                ErrorCode.NOT_LEADER_OR_FOLLOWER, f"bucket {index} of {definition.path} is not served"
            )
        hooks.check_open()
        return hooks

    @staticmethod
    def check_replicas(definition: StoredTable, bucket: TableBucket) -> None:
        """Raise KafkaError(NOT_ENOUGH_REPLICAS) if a write with acks=all has too few replicas in sync, before the
        append (R11).
        """
        partition = bucket.partition
        needed, there = partition.needed_in_sync, partition.in_sync_count
        if there < needed:
            raise KafkaError(
                ErrorCode.NOT_ENOUGH_REPLICAS,
                f"bucket {partition.index} of {definition.path}: min.insync.replicas is {needed},"
                f" and {there} in sync",
            )


def _with_rows(definition: StoredTable) -> StoredTable:
    """Return the table. Raises TableError for a partitioned table: only its partitions have rows."""
    if definition.is_partitioned:
        raise TableError(
            TableErrorCode.PARTITION_NEEDED,
            f"table {definition.path} is partitioned: its rows are read and written by partition, "
            f"such as {definition.path}.{'.'.join(definition.partition_keys)}; use a newer client",
        )
    return definition


def client_of(context: RequestContext) -> str:
    """Return the owner of scans and limits: the host of an anonymous client, else principal@host."""
    if context.principal == ANONYMOUS:
        return context.client_host
    return f"{context.principal}@{context.client_host}"


def check_key_table(definition: StoredTable) -> None:
    """Raise TableError for a log table (R16)."""
    if not definition.is_primary_key_table:
        raise TableError(
            TableErrorCode.NOT_A_PRIMARY_KEY_TABLE,
            f"table {definition.path} is a log table: it has no keys to write or look up by",
        )
