"""Routes to a table's buckets: Kafka's routes, and the error for a table that was dropped.

Kafka's Metadata says "unknown topic" both for a topic that was created a moment ago and for one that was deleted. The
first is transient, the second is not. The table's description tells them apart, so that calls do not wait for dropped
tables.
"""

from __future__ import annotations

from collections.abc import Sequence

from headrace.protocol.errors import ErrorCode, KafkaError
from headrace.tablelayer.client.wire.cluster import Cluster
from headrace.tablelayer.client.wire.retry import Deadline, raise_for
from headrace.tablelayer.model.errors import TableError, TableErrorCode
from headrace.tablelayer.model.messages.catalog import DescribeTableRequest, DescribeTableResponse
from headrace.tablelayer.model.table.definition import StoredTable, TableDefinition


class TableRoutes:
    """Routes to one table. Every request about the table carries `table_id`."""

    def __init__(self, cluster: Cluster, definition: StoredTable) -> None:
        self.table_id = definition.table_id
        self._cluster = cluster
        self._path = definition.path

    async def leader(self, bucket: int, deadline: Deadline) -> int:
        """Return a bucket's leader. One attempt; TableError TABLE_NOT_FOUND if the table was dropped."""
        return next(iter(await self.by_leader([bucket], deadline)))

    async def by_leader(self, buckets: Sequence[int], deadline: Deadline) -> dict[int, list[int]]:
        """Return the buckets grouped by their leaders. Errors as `leader`."""
        try:
            return await self._cluster.by_leader(self._path.topic, buckets, deadline)
        except KafkaError as error:
            if error.code is ErrorCode.UNKNOWN_TOPIC_OR_PARTITION:
                await self._check_existence(deadline)
            raise

    async def replicas(self, bucket: int, deadline: Deadline) -> tuple[list[int], int]:
        """Return the replicas to ask for what any replica can answer (`Cluster.replicas`). Errors as `leader`."""
        try:
            return await self._cluster.replicas(self._path.topic, bucket, deadline)
        except KafkaError as error:
            if error.code is ErrorCode.UNKNOWN_TOPIC_OR_PARTITION:
                await self._check_existence(deadline)
            raise

    async def _check_existence(self, deadline: Deadline) -> None:
        await self.describe(deadline)

    async def describe(self, deadline: Deadline) -> StoredTable:
        """Return the table's current definition. One attempt; TableError TABLE_NOT_FOUND if it was dropped."""
        request = DescribeTableRequest(database=self._path.database, table=self._path.table)
        answer = await self._cluster.send(request, DescribeTableResponse, deadline=deadline)
        raise_for(answer.error_code, answer.error_message, doing=f"find table {self._path}")
        if answer.table_id != self.table_id:
            raise TableError(
                TableErrorCode.TABLE_NOT_FOUND,
                f"table {self._path} was dropped and created again after it was opened: open it again",
            )
        return TableDefinition.from_json(answer.definition).with_id(answer.table_id)

    async def bucket_count(self, deadline: Deadline) -> int:
        """Return the number of buckets that the table has now. One attempt; errors as `leader`."""
        try:
            return len((await self._cluster.fresh_routes(self._path.topic, deadline)).leaders)
        except KafkaError as error:
            if error.code is ErrorCode.UNKNOWN_TOPIC_OR_PARTITION:
                await self._check_existence(deadline)
            raise

    def forget(self) -> None:
        """Drop the routes; the next use asks again."""
        self._cluster.forget_routes(self._path.topic)
