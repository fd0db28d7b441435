"""The asynchronous connection: `async with await connect_async("127.0.0.1:9092") as connection`."""

from __future__ import annotations

import asyncio
from collections.abc import Mapping, Sequence
from functools import cached_property
from typing import TYPE_CHECKING
from weakref import WeakSet

from headrace.tablelayer.client.admin.databases import AsyncAdmin, as_path
from headrace.tablelayer.client.config import ClientConfig
from headrace.tablelayer.client.metrics import ClientMetrics
from headrace.tablelayer.client.names import several
from headrace.tablelayer.client.security.settings import Bootstrap, ConnectionSettings
from headrace.tablelayer.client.wire.cluster import Cluster
from headrace.tablelayer.model.table.definition import StoredTable, TableDefinition
from headrace.tablelayer.model.table.path import TablePath

if TYPE_CHECKING:
    from headrace.tablelayer.client.admin.kafka import AsyncKafkaAdmin
    from headrace.tablelayer.client.admin.security import AsyncSecurityAdmin
    from headrace.tablelayer.client.table.table import AsyncTable
    from headrace.tablelayer.client.write.conform import Data


class AsyncConnection:
    """A client of one cluster, for one event loop. Connections to brokers are made as they are needed."""

    def __init__(
        self,
        bootstrap: Bootstrap,
        config: ClientConfig | None = None,
        properties: Mapping[str, object] | None = None,
    ) -> None:
        self.settings = ConnectionSettings.make(bootstrap, properties)
        self.config = config or ClientConfig()
        self.cluster = Cluster(self.settings, self.config)
        self.admin = AsyncAdmin(self.cluster)
        self._tables: WeakSet[AsyncTable] = WeakSet()

    @cached_property
    def kafka(self) -> AsyncKafkaAdmin:
        """Administration of topics and groups."""
        from headrace.tablelayer.client.admin.kafka import AsyncKafkaAdmin

        return AsyncKafkaAdmin(self.cluster)

    @cached_property
    def security(self) -> AsyncSecurityAdmin:
        """Administration of users and rights."""
        from headrace.tablelayer.client.admin.security import AsyncSecurityAdmin

        return AsyncSecurityAdmin(self.cluster)

    @property
    def bootstrap(self) -> str:
        """The server addresses that it was made with."""
        return self.settings.bootstrap

    async def table(self, path: TablePath | str) -> AsyncTable:
        """Open a table. TableError TABLE_NOT_FOUND if it does not exist."""
        return self.open_table(await self.admin.describe_table(as_path(path)))

    def open_table(self, definition: TableDefinition) -> AsyncTable:
        """Open a table by its definition, without a request. ValueError if the definition has no id."""
        from headrace.tablelayer.client.table.table import AsyncTable

        if not isinstance(definition, StoredTable):
            raise ValueError(
                f"the definition of {definition.path} has no table id: get it with describe_table"
            )
        table = AsyncTable(self.cluster, definition)
        self._tables.add(table)
        return table

    async def create_table(
        self,
        path: TablePath | str,
        rows: Data,
        *,
        key: Sequence[str] = (),
        partition_keys: Sequence[str] = (),
        options: Mapping[str, str] | None = None,
        comment: str | None = None,
        if_not_exists: bool = False,
    ) -> AsyncTable:
        """Create a table with the columns of these rows, write them, and open it.

        `rows` are an Arrow table, a pandas or polars DataFrame, or dicts. Their types become the columns'. `key` names
        the primary key; without one it is a log table. `options` are those of `CREATE TABLE ... WITH`. With
        `if_not_exists`, an existing table is opened and nothing is written. A table whose rows cannot be written is
        dropped again. Raises TableError TABLE_EXISTS, DataError, and the errors of writes.
        """
        from headrace.tablelayer.client.write.definitions import definition_of, typed_rows

        path = as_path(path)
        if if_not_exists and await self.admin.table_exists(path):
            return await self.table(path)
        typed = await asyncio.to_thread(typed_rows, rows)
        definition = definition_of(
            path,
            typed.schema,
            "the data",
            key=several("key", key),
            partition_keys=several("partition_keys", partition_keys),
            options=options,
            comment=comment,
        )
        table = self.open_table(await self.admin.create_table(definition))
        try:
            await (table.upsert if key else table.append)(typed)
        except BaseException as error:
            await self.admin.drop_table(path, if_exists=True)
            error.add_note(f"table {path} was dropped")
            raise
        return table

    def metrics(self) -> ClientMetrics:
        """Return counts of this connection's requests, retries and rows."""
        return self.cluster.counters.picture(self.cluster.connection_count)

    async def close(self) -> None:
        """Close the connection and the tables opened by it. Idempotent."""
        for table in list(self._tables):
            await table.close()
        self.cluster.close()

    async def __aenter__(self) -> AsyncConnection:
        return self

    async def __aexit__(self, *_: object) -> None:
        await self.close()


async def connect_async(
    bootstrap: Bootstrap = "127.0.0.1:9092",
    config: ClientConfig | None = None,
    properties: Mapping[str, object] | None = None,
) -> AsyncConnection:
    """Connect to a cluster by the addresses of some of its servers: "host:port,host:port".

    `properties` are Kafka's security properties, named as in Java and librdkafka (`tablelayer.client.security`). None
    takes those of the environment. Raises ConnectionFailed at once if no server answers, AuthenticationFailed if a
    server refuses the credentials or is not trusted, ValueError for a malformed address or property.
    """
    connection = AsyncConnection(bootstrap, config, properties)
    try:
        await connection.cluster.connect()
    except BaseException:
        await connection.close()
        raise
    return connection
