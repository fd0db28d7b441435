"""The table extension's APIs, each declared once: its messages, and which handler answers them.

Handlers take the request's context and the request. Errors of a whole request are in the response's own fields, errors
of a bucket in that bucket's part; the others of the request are served all the same. A write with acks=0 has no answer,
and an error closes the connection, as in Kafka (`write.py`).
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from typing import TYPE_CHECKING, TypeVar

from headrace.broker.requests.declaration import ApiDeclaration, RequestContext
from headrace.broker.security.quotas.model import Quota
from headrace.broker.security.requirement import Requirement, whole, within
from headrace.broker.security.rights import Operation
from headrace.protocol.schema import ApiMessage
from headrace.tablelayer.model import messages as m
from headrace.tablelayer.model.errors import TableError, TableErrorCode

if TYPE_CHECKING:
    from headrace.tablelayer.server.api.handlers import Handlers

_NOT_FOUND = (
    TableErrorCode.TABLE_NOT_FOUND,
    TableErrorCode.DATABASE_NOT_FOUND,
    TableErrorCode.PARTITION_NOT_FOUND,
)

Request = TypeVar("Request", bound=ApiMessage)
Response = TypeVar("Response", bound=m.TableResponse)


class TableApis:
    def __init__(
        self, load: Callable[[], Awaitable[Handlers]], refreshed: Callable[[], Awaitable[bool]]
    ) -> None:
        """`load` is waited for when the first request comes. `refreshed` learns what other brokers were told; False
        where there are none.
        """
        self._load = load
        self._refreshed = refreshed
        self._handlers: Handlers | None = None

    def declarations(self) -> list[ApiDeclaration]:
        declare = self._declare
        return [
            declare(
                m.CreateDatabaseRequest,
                m.CreateDatabaseResponse,
                lambda by: by.catalog.create_database,
                within(topic=Operation.CREATE, cluster=Operation.CREATE),
            ),
            declare(
                m.DropDatabaseRequest,
                m.DropDatabaseResponse,
                lambda by: by.catalog.drop_database,
                within(topic=Operation.DELETE),
                charged=Quota.MUTATION,
            ),
            declare(
                m.ListDatabasesRequest,
                m.ListDatabasesResponse,
                lambda by: by.catalog.list_databases,
                within(topic=Operation.DESCRIBE),
            ),
            declare(
                m.CreateTableRequest,
                m.CreateTableResponse,
                lambda by: by.catalog.create_table,
                within(topic=Operation.CREATE, cluster=Operation.CREATE),
                charged=Quota.MUTATION,
            ),
            declare(
                m.DropTableRequest,
                m.DropTableResponse,
                lambda by: by.catalog.drop_table,
                within(topic=Operation.DELETE),
                charged=Quota.MUTATION,
            ),
            declare(
                m.ListTablesRequest,
                m.ListTablesResponse,
                lambda by: by.catalog.list_tables,
                within(topic=Operation.DESCRIBE),
            ),
            declare(
                m.DescribeTableRequest,
                m.DescribeTableResponse,
                lambda by: by.catalog.describe_table,
                within(topic=Operation.DESCRIBE),
            ),
            declare(
                m.AlterTableRequest,
                m.AlterTableResponse,
                lambda by: by.catalog.alter_table,
                within(topic=Operation.ALTER),
            ),
            declare(
                m.DescribeDatabaseRequest,
                m.DescribeDatabaseResponse,
                lambda by: by.catalog.describe_database,
                within(topic=Operation.DESCRIBE),
            ),
            declare(
                m.AlterDatabaseRequest,
                m.AlterDatabaseResponse,
                lambda by: by.catalog.alter_database,
                within(topic=Operation.ALTER),
            ),
            declare(
                m.AppendRowsRequest,
                m.AppendRowsResponse,
                lambda by: by.write.append,
                within(topic=Operation.WRITE),
                charged=Quota.PRODUCER,
            ),
            declare(
                m.PutRowsRequest,
                m.PutRowsResponse,
                lambda by: by.write.put,
                within(topic=Operation.WRITE),
                charged=Quota.PRODUCER,
            ),
            declare(
                m.LookupRequest,
                m.LookupResponse,
                lambda by: by.read.lookup,
                within(topic=(Operation.READ, Operation.WRITE)),
                charged=Quota.CONSUMER,
                at_once=lambda by: by.read.lookup_at_once,
            ),
            declare(
                m.PrefixLookupRequest,
                m.PrefixLookupResponse,
                lambda by: by.read.prefix_lookup,
                within(topic=Operation.READ),
                charged=Quota.CONSUMER,
            ),
            # A scan at the log's end only waits; nobody needs its answer once the client is gone.
            declare(
                m.ScanLogRequest,
                m.ScanLogResponse,
                lambda by: by.read.scan_log,
                within(topic=Operation.READ),
                cancel_on_disconnect=True,
                charged=Quota.CONSUMER,
            ),
            declare(
                m.LimitScanRequest,
                m.LimitScanResponse,
                lambda by: by.read.limit_scan,
                within(topic=Operation.READ),
                charged=Quota.CONSUMER,
                at_once=lambda by: by.read.limit_scan_at_once,
            ),
            declare(
                m.CountRowsRequest,
                m.CountRowsResponse,
                lambda by: by.read.count_rows,
                within(topic=Operation.READ),
                charged=Quota.CONSUMER,
            ),
            declare(
                m.ScanSnapshotRequest,
                m.ScanSnapshotResponse,
                lambda by: by.read.scan_snapshot,
                within(topic=Operation.READ),
                charged=Quota.CONSUMER,
            ),
            declare(
                m.LakeBeginRequest,
                m.LakeBeginResponse,
                lambda by: by.lake.begin,
                within(topic=Operation.ALTER),
            ),
            declare(
                m.LakeHeartbeatRequest,
                m.LakeHeartbeatResponse,
                lambda by: by.lake.heartbeat,
                within(topic=Operation.ALTER),
            ),
            declare(
                m.LakeCommitRequest,
                m.LakeCommitResponse,
                lambda by: by.lake.commit,
                within(topic=Operation.ALTER),
            ),
            declare(
                m.DescribeLakeRequest,
                m.DescribeLakeResponse,
                lambda by: by.lake.describe,
                within(topic=Operation.DESCRIBE),
            ),
            declare(
                m.StageRowsRequest,
                m.StageRowsResponse,
                lambda by: by.staged.stage,
                within(topic=Operation.WRITE),
                charged=Quota.PRODUCER,
            ),
            declare(
                m.CommitStagedRequest,
                m.CommitStagedResponse,
                lambda by: by.staged.commit,
                within(topic=Operation.WRITE),
            ),
            declare(
                m.AbortStagedRequest,
                m.AbortStagedResponse,
                lambda by: by.staged.abort,
                within(topic=Operation.WRITE),
            ),
            declare(
                m.CreatePartitionRequest,
                m.CreatePartitionResponse,
                lambda by: by.partitions.create,
                within(topic=Operation.WRITE),
                charged=Quota.MUTATION,
            ),
            declare(
                m.DropPartitionRequest,
                m.DropPartitionResponse,
                lambda by: by.partitions.drop,
                within(topic=Operation.WRITE),
                charged=Quota.MUTATION,
            ),
            declare(
                m.ListPartitionsRequest,
                m.ListPartitionsResponse,
                lambda by: by.partitions.list,
                within(topic=Operation.DESCRIBE),
            ),
            declare(
                m.LakeEndRequest, m.LakeEndResponse, lambda by: by.lake.end, within(topic=Operation.ALTER)
            ),
            declare(
                m.LakeFinishRequest,
                m.LakeFinishResponse,
                lambda by: by.lake.finish,
                within(topic=Operation.ALTER),
            ),
            declare(
                m.GrantColumnsRequest,
                m.GrantColumnsResponse,
                lambda by: by.rights.grant,
                whole(Operation.ALTER),
            ),
            declare(
                m.RevokeColumnsRequest,
                m.RevokeColumnsResponse,
                lambda by: by.rights.revoke,
                whole(Operation.ALTER),
            ),
            declare(
                m.ListColumnGrantsRequest,
                m.ListColumnGrantsResponse,
                lambda by: by.rights.list,
                whole(Operation.DESCRIBE),
            ),
            declare(
                m.PrepareRowsRequest,
                m.PrepareRowsResponse,
                lambda by: by.forwarded.prepare,
                whole(Operation.CLUSTER_ACTION),
            ),
            declare(
                m.LogRowsRequest,
                m.LogRowsResponse,
                lambda by: by.forwarded.log,
                whole(Operation.CLUSTER_ACTION),
            ),
            declare(
                m.AwaitRowsRequest,
                m.AwaitRowsResponse,
                lambda by: by.forwarded.wait,
                whole(Operation.CLUSTER_ACTION),
            ),
            declare(
                m.KeepDeadLettersRequest,
                m.KeepDeadLettersResponse,
                lambda by: by.forwarded.keep_dead_letters,
                whole(Operation.CLUSTER_ACTION),
            ),
            declare(
                m.CopyStoreRequest,
                m.CopyStoreResponse,
                lambda by: by.copies.copy,
                whole(Operation.CLUSTER_ACTION),
            ),
            declare(
                m.CountStagedRequest,
                m.CountStagedResponse,
                lambda by: by.staged.count,
                whole(Operation.CLUSTER_ACTION),
            ),
            declare(
                m.ApplyStagedRequest,
                m.ApplyStagedResponse,
                lambda by: by.staged.apply,
                whole(Operation.CLUSTER_ACTION),
            ),
            declare(
                m.KeepStagedRequest,
                m.KeepStagedResponse,
                lambda by: by.staged.keep,
                whole(Operation.CLUSTER_ACTION),
            ),
            declare(
                m.HandOverStagedRequest,
                m.HandOverStagedResponse,
                lambda by: by.staged.hand_over,
                whole(Operation.CLUSTER_ACTION),
            ),
            declare(
                m.DropStagedRequest,
                m.DropStagedResponse,
                lambda by: by.staged.drop,
                whole(Operation.CLUSTER_ACTION),
            ),
            declare(
                m.DescribeEndsRequest,
                m.DescribeEndsResponse,
                lambda by: by.lake.ends,
                whole(Operation.CLUSTER_ACTION),
            ),
            declare(
                m.ListLakeRequest,
                m.ListLakeResponse,
                lambda by: by.lake.list,
                within(topic=Operation.DESCRIBE),
            ),
            declare(
                m.ListRefusedRequest,
                m.ListRefusedResponse,
                lambda by: by.refused.list_refused,
                within(topic=Operation.READ),
            ),
            declare(
                m.ListSnapshotsRequest,
                m.ListSnapshotsResponse,
                lambda by: by.snapshots.list_snapshots,
                within(topic=Operation.DESCRIBE),
            ),
        ]

    def _declare(
        self,
        request: type[Request],
        response: type[Response],
        handler: Callable[[Handlers], Callable[[RequestContext, Request], Awaitable[Response | None]]],
        authorize: Requirement,
        *,
        cancel_on_disconnect: bool = False,
        charged: Quota | None = None,
        at_once: Callable[[Handlers], Callable[[RequestContext, Request], Response | None]] | None = None,
    ) -> ApiDeclaration:
        """`at_once` is asked first, and gives None for what has to wait: most requests cost a task and turns of the
        event loop."""

        async def answer(context: RequestContext, asked: Request) -> Response | None:
            handlers = self._handlers
            if handlers is None:
                handlers = self._handlers = await self._load()
            try:
                try:
                    return await handler(handlers)(context, asked)
                except TableError as error:
                    # Made a moment ago, perhaps, by another broker, which has answered already.
                    if error.code not in _NOT_FOUND or not await self._refreshed():
                        raise
                return await handler(handlers)(context, asked)
            except TableError as error:
                return response(error_code=int(error.code), error_message=error.message)

        def answer_at_once(context: RequestContext, asked: Request) -> Response | Awaitable[Response | None]:
            found = (
                None if at_once is None or self._handlers is None else at_once(self._handlers)(context, asked)
            )
            return answer(context, asked) if found is None else found

        return ApiDeclaration(
            request, response, answer if at_once is None else answer_at_once, authorize,
            cancel_on_disconnect=cancel_on_disconnect, charged=charged,
        )  # fmt: skip
