"""Databases and tables: create, alter, drop, list, describe."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from functools import lru_cache
from uuid import UUID

from headrace.tablelayer.client.admin.partitions import create_partition, drop_partition, list_partitions
from headrace.tablelayer.client.names import several
from headrace.tablelayer.client.wire.cluster import Cluster
from headrace.tablelayer.client.wire.retry import Deadline
from headrace.tablelayer.model.errors import TableError, TableErrorCode
from headrace.tablelayer.model.messages.catalog import (
    AlterDatabaseRequest,
    AlterDatabaseResponse,
    AlterTableRequest,
    AlterTableResponse,
    CreateDatabaseRequest,
    CreateDatabaseResponse,
    CreateTableRequest,
    CreateTableResponse,
    DescribeDatabaseRequest,
    DescribeDatabaseResponse,
    DescribeTableRequest,
    DescribeTableResponse,
    DropDatabaseRequest,
    DropDatabaseResponse,
    DropTableRequest,
    DropTableResponse,
    ListDatabasesRequest,
    ListDatabasesResponse,
    ListTablesRequest,
    ListTablesResponse,
    Property,
)
from headrace.tablelayer.model.messages.loads import ListTableLoadsRequest, ListTableLoadsResponse
from headrace.tablelayer.model.messages.process import DescribeServerRequest, DescribeServerResponse
from headrace.tablelayer.model.messages.refused import ListRefusedRequest, ListRefusedResponse
from headrace.tablelayer.model.messages.snapshots import ListSnapshotsRequest, ListSnapshotsResponse
from headrace.tablelayer.model.options.table_options import TableOptions
from headrace.tablelayer.model.table.definition import StoredTable, TableDefinition
from headrace.tablelayer.model.table.evolution import Change, changes_to_json
from headrace.tablelayer.model.table.partitions import Partition, matching, name_of_spec, spec_texts
from headrace.tablelayer.model.table.path import TablePath
from headrace.tablelayer.model.types.values import Value


@lru_cache(maxsize=64)
def _definition_of(text: str, table_id: UUID) -> StoredTable:
    """Return a table's definition, the same one for the same text: reading it takes longer than a request."""
    return TableDefinition.from_json(text).with_id(table_id)


@dataclass(frozen=True, slots=True)
class DatabaseDescription:
    """A database. `created_at_ms` is None if it always existed."""

    name: str
    comment: str | None
    properties: Mapping[str, str]
    created_at_ms: int | None
    table_count: int


@dataclass(frozen=True, slots=True)
class ServerProcess:
    """A broker's process. `cpu_ms` is user and system time so far. `memory_bytes` is resident memory, -1 if unknown.
    `open_files_max` is the limit of open files, -1 for none. `open_files` is their number, -1 if unknown.
    """

    broker_id: int
    host: str
    port: int
    version: str
    process_id: int
    uptime_ms: int
    cpu_ms: int
    memory_bytes: int
    open_files_max: int
    open_files: int = -1


@dataclass(frozen=True, slots=True)
class RefusedRecord:
    """A record that a table refused. `index` is its place in its batch, -1 for the whole batch. `code` is Kafka's name
    of the error. `dead_letter` says whether it is in the table's dead-letter topic.
    """

    time_ms: int
    topic: str
    partition: int
    index: int
    code: str
    reason: str
    dead_letter: bool


@dataclass(frozen=True, slots=True)
class RefusedTable:
    """The refused records of a table: `count` since the brokers started, and the last ones, the newest first."""

    table: str
    count: int
    records: tuple[RefusedRecord, ...]


@dataclass(frozen=True, slots=True)
class TableLoad:
    """Rows written to a table, and keys looked up in it, since a broker opened its buckets."""

    broker_id: int
    table: str
    rows_written: int
    keys_looked_up: int


@dataclass(frozen=True, slots=True)
class SnapshotListing:
    """A snapshot of a bucket's state in remote storage. It has the log below `offset`, which is exclusive."""

    id: int
    offset: int
    row_count: int
    created_at_ms: int
    size_bytes: int


@dataclass(frozen=True, slots=True)
class BucketState:
    """A bucket's state: the log is applied below `applied_offset` (exclusive); `snapshots` has the newest first."""

    bucket: int
    applied_offset: int
    row_count: int
    snapshots: tuple[SnapshotListing, ...]


class AsyncAdmin:
    """Creates, alters, drops and lists databases and tables. Any broker answers. Errors are TableError with a code.

    A change whose answer is lost is not repeated, because it might then fail after it had succeeded: it raises
    OutcomeUnknown, and may or may not have been carried out. With `if_not_exists` or `if_exists` it is repeated.
    """

    def __init__(self, cluster: Cluster) -> None:
        self._cluster = cluster

    async def create_database(
        self,
        name: str,
        *,
        if_not_exists: bool = False,
        comment: str | None = None,
        properties: Mapping[str, str] | None = None,
    ) -> None:
        """Create a database. TableError DATABASE_EXISTS unless `if_not_exists`."""
        request = CreateDatabaseRequest(
            name=name, ignore_if_exists=if_not_exists, comment=comment, properties=_pairs(properties or {})
        )
        await self._cluster.call(
            request,
            CreateDatabaseResponse,
            doing=f"create database {name}",
            repeatable=if_not_exists,
            changes=True,
        )

    async def drop_database(self, name: str, *, if_exists: bool = False, cascade: bool = False) -> None:
        """Drop a database. It must be empty, or `cascade` drops its tables and their data too."""
        request = DropDatabaseRequest(name=name, ignore_if_not_exists=if_exists, cascade=cascade)
        await self._cluster.call(
            request, DropDatabaseResponse, doing=f"drop database {name}", repeatable=if_exists, changes=True
        )

    async def alter_database(
        self,
        name: str,
        *,
        set_properties: Mapping[str, str] | None = None,
        reset_properties: Sequence[str] = (),
        comment: str | None = None,
    ) -> None:
        """Change a database's properties and comment ('' removes it). TableError DATABASE_NOT_FOUND."""
        request = AlterDatabaseRequest(
            name=name,
            comment=comment,
            set_properties=_pairs(set_properties or {}),
            reset_properties=several("reset_properties", reset_properties),
        )
        await self._cluster.call(request, AlterDatabaseResponse, doing=f"alter database {name}", changes=True)

    async def describe_database(self, name: str) -> DatabaseDescription:
        """Return the description of a database. TableError DATABASE_NOT_FOUND."""
        answer = await self._cluster.call(
            DescribeDatabaseRequest(name=name), DescribeDatabaseResponse, doing=f"describe database {name}"
        )
        properties = {each.key: each.value for each in answer.properties}
        created_at = None if answer.created_at_ms < 0 else answer.created_at_ms
        return DatabaseDescription(name, answer.comment, properties, created_at, answer.table_count)

    async def list_databases(self) -> list[str]:
        """Return the names of all databases, sorted."""
        answer = await self._cluster.call(
            ListDatabasesRequest(), ListDatabasesResponse, doing="list the databases"
        )
        return sorted(answer.databases)

    async def create_table(self, definition: TableDefinition, *, if_not_exists: bool = False) -> StoredTable:
        """Create a table and return its definition with the id that the server gave it."""
        request = CreateTableRequest(definition=definition.to_json(), ignore_if_exists=if_not_exists)
        answer = await self._cluster.call(
            request,
            CreateTableResponse,
            doing=f"create table {definition.path}",
            repeatable=if_not_exists,
            changes=True,
        )
        self._cluster.forget_routes(definition.path.topic)
        if answer.lake_format:
            options = {**definition.options, TableOptions.datalake_format.name: answer.lake_format}
            definition = replace(definition, options=options)
        return definition.with_id(answer.table_id).with_buckets(
            answer.bucket_count or definition.bucket_count
        )

    async def alter_table(
        self, path: TablePath | str, changes: Sequence[Change], *, expected_schema_id: int | None = None
    ) -> TableDefinition:
        """Carry out changes (`tablelayer.model.table.evolution`), all or none, and return the changed definition.

        Simultaneous calls run one after the other. With `expected_schema_id` the second one fails: TableError
        SCHEMA_CHANGED.
        """
        path = as_path(path)
        request = AlterTableRequest(
            database=path.database,
            table=path.table,
            changes=changes_to_json(changes),
            expected_schema_id=-1 if expected_schema_id is None else expected_schema_id,
        )
        answer = await self._cluster.call(
            request, AlterTableResponse, doing=f"alter table {path}", repeatable=False
        )
        return TableDefinition.from_json(answer.definition)

    async def drop_table(self, path: TablePath | str, *, if_exists: bool = False) -> None:
        """Drop a table and its data. TableError TABLE_NOT_FOUND unless `if_exists`."""
        path = as_path(path)
        request = DropTableRequest(database=path.database, table=path.table, ignore_if_not_exists=if_exists)
        await self._cluster.call(
            request, DropTableResponse, doing=f"drop table {path}", repeatable=if_exists, changes=True
        )
        self._cluster.forget_routes(path.topic)

    async def list_tables(self, database: str) -> list[str]:
        """Return the names of a database's tables, sorted. TableError DATABASE_NOT_FOUND."""
        request = ListTablesRequest(database=database)
        answer = await self._cluster.call(request, ListTablesResponse, doing=f"list the tables of {database}")
        return sorted(answer.tables)

    async def describe_table(self, path: TablePath | str) -> StoredTable:
        """Return a table's definition, including its id. TableError TABLE_NOT_FOUND."""
        path = as_path(path)
        request = DescribeTableRequest(database=path.database, table=path.table)
        answer = await self._cluster.call(request, DescribeTableResponse, doing=f"describe table {path}")
        return _definition_of(answer.definition, answer.table_id)

    async def list_partitions(
        self, path: TablePath | str, spec: Mapping[str, Value] | None = None
    ) -> list[Partition]:
        """Return a table's partitions by name; with `spec` only those with these values of partition columns.

        TableError TABLE_NOT_FOUND, NOT_PARTITIONED, INVALID_PARTITION.
        """
        definition = await self.describe_table(path)
        texts = spec_texts(definition, spec or {})
        found = {each.name: each for each in await list_partitions(self._cluster, definition)}
        return [found[name] for name in matching(definition, found, texts)]

    async def add_partition(
        self, path: TablePath | str, spec: Mapping[str, Value], *, if_not_exists: bool = False
    ) -> Partition:
        """Add the partition that has this value of each partition column.

        TableError PARTITION_EXISTS, INVALID_PARTITION, TOO_MANY_PARTITIONS, NOT_PARTITIONED.
        """
        definition = await self.describe_table(path)
        name = name_of_spec(definition, spec)
        return await create_partition(self._cluster, definition, name, if_not_exists=if_not_exists)

    async def drop_partition(
        self, path: TablePath | str, spec: Mapping[str, Value], *, if_exists: bool = False
    ) -> None:
        """Drop one partition and its data. TableError PARTITION_NOT_FOUND unless `if_exists`, INVALID_PARTITION."""
        definition = await self.describe_table(path)
        name = name_of_spec(definition, spec)
        await drop_partition(self._cluster, definition, name, if_exists=if_exists)

    async def servers(self) -> list[ServerProcess]:
        """Return the process of each broker: version, age, CPU, memory. UnsupportedRequest without tables."""
        deadline = Deadline(self._cluster.config.delivery_timeout_ms)
        found = []
        for broker in sorted((await self._cluster.metadata([], deadline)).brokers, key=lambda b: b.node_id):
            said = await self._cluster.call(
                DescribeServerRequest(),
                DescribeServerResponse,
                doing=f"describe broker {broker.node_id}",
                node_id=broker.node_id,
                deadline=deadline,
            )
            found.append(
                ServerProcess(
                    broker.node_id,
                    broker.host,
                    broker.port,
                    said.version,
                    said.process_id,
                    said.uptime_ms,
                    said.cpu_ms,
                    said.memory_bytes,
                    said.open_files_max,
                    said.open_files,
                )
            )
        return found

    async def refused(self, topic: str | None = None) -> list[RefusedTable]:
        """Return the records that tables refused from Kafka producers since their brokers started.

        They are those of the table of `topic`, or of all tables that may be read. UnsupportedRequest if the server has
        no tables; TableError, KafkaError.
        """
        deadline = Deadline(self._cluster.config.delivery_timeout_ms)
        found: dict[str, RefusedTable] = {}
        for broker in sorted((await self._cluster.metadata([], deadline)).brokers, key=lambda b: b.node_id):
            answer = await self._cluster.call(
                ListRefusedRequest(topic=topic),
                ListRefusedResponse,
                doing=f"list the records that broker {broker.node_id} refused",
                node_id=broker.node_id,
                deadline=deadline,
            )
            for each in answer.tables:
                before = found.get(each.table, RefusedTable(each.table, 0, ()))
                records = [
                    RefusedRecord(
                        one.time_ms,
                        one.topic,
                        one.partition,
                        one.index,
                        one.code,
                        one.reason,
                        one.dead_letter,
                    )
                    for one in each.records
                ]
                together = sorted((*before.records, *records), key=lambda one: -one.time_ms)
                found[each.table] = RefusedTable(each.table, before.count + each.count, tuple(together))
        return [found[name] for name in sorted(found)]

    async def table_loads(self) -> list[TableLoad]:
        """Return the load of the tables that may be described, one entry for each broker that has some of a table.

        UnsupportedRequest if a server does not count it; TableError, KafkaError.
        """
        deadline = Deadline(self._cluster.config.delivery_timeout_ms)
        found = []
        for broker in sorted((await self._cluster.metadata([], deadline)).brokers, key=lambda b: b.node_id):
            answer = await self._cluster.call(
                ListTableLoadsRequest(),
                ListTableLoadsResponse,
                doing=f"list the load of the tables of broker {broker.node_id}",
                node_id=broker.node_id,
                deadline=deadline,
            )
            found += [
                TableLoad(broker.node_id, each.table, each.rows_written, each.keys_looked_up)
                for each in answer.tables
            ]
        return found

    async def snapshots(self, path: TablePath | str) -> list[BucketState]:
        """Return the buckets of a primary-key table (or a partition of one) with their snapshots; none for a log table.

        UnsupportedRequest if the server has no tables; TableError, KafkaError.
        """
        deadline = Deadline(self._cluster.config.delivery_timeout_ms)
        found: dict[int, BucketState] = {}
        for broker in (await self._cluster.metadata([], deadline)).brokers:
            answer = await self._cluster.call(
                ListSnapshotsRequest(topic=as_path(path).topic),
                ListSnapshotsResponse,
                doing=f"list the snapshots of {path} at broker {broker.node_id}",
                node_id=broker.node_id,
                deadline=deadline,
            )
            for each in answer.buckets:
                listed = tuple(
                    SnapshotListing(one.id, one.offset, one.row_count, one.created_at_ms, one.size_bytes)
                    for one in each.snapshots
                )
                found[each.bucket] = BucketState(each.bucket, each.applied_offset, each.row_count, listed)
        return [found[bucket] for bucket in sorted(found)]

    async def table_exists(self, path: TablePath | str) -> bool:
        """Return whether the table exists."""
        try:
            await self.describe_table(path)
        except TableError as error:
            if error.code in (TableErrorCode.TABLE_NOT_FOUND, TableErrorCode.DATABASE_NOT_FOUND):
                return False
            raise
        return True


def _pairs(properties: Mapping[str, str]) -> list[Property]:
    return [Property(key=key, value=value) for key, value in properties.items()]


def as_path(path: TablePath | str) -> TablePath:
    """Return a path that is given as text or as a path."""
    return path if isinstance(path, TablePath) else TablePath.parse(path)
