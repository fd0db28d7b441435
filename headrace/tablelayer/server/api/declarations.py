"""The table extension's APIs: one row each, with its messages, its handler, its rights and its quota.

The rows are here and not in the modules of the handlers: a broker declares its APIs at its start, and the modules are
loaded with the first request (`handlers.py`).

A handler takes the request's context and the request. An error of the whole request is in the response's own fields. An
error of a bucket is in that bucket's part; the other parts are served. A write with acks=0 has no answer, and an error
closes the connection, as in Kafka (`write.py`).
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from inspect import isawaitable
from typing import TYPE_CHECKING, Any, Final, TypeVar

import msgspec

from headrace.broker.requests.declaration import ApiDeclaration, RequestContext
from headrace.broker.security.quotas.model import Quota
from headrace.broker.security.requirement import Operations, Requirement, within
from headrace.broker.security.requirement import whole as on_cluster
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

CREATE, DELETE, ALTER, DESCRIBE, READ, WRITE = (
    Operation.CREATE, Operation.DELETE, Operation.ALTER, Operation.DESCRIBE, Operation.READ, Operation.WRITE,
)  # fmt: skip
CLUSTER_ACTION = Operation.CLUSTER_ACTION
PRODUCER, CONSUMER, MUTATION = Quota.PRODUCER, Quota.CONSUMER, Quota.MUTATION


Later = Callable[[], Awaitable[Any]]
"""The part of a request that has to wait: called once, and awaited."""


class Api(msgspec.Struct, frozen=True):
    """A row: an API's messages, its handler, the rights that it needs, and the quota that it is charged to."""

    request: type[ApiMessage]
    response: type[m.TableResponse]
    handler: Callable[[Handlers], Callable[[RequestContext, Any], Any]]
    authorize: Requirement
    charged: Quota | None
    at_once: bool
    cancel_on_disconnect: bool


def api(
    request: type[Request],
    handler: Callable[[Handlers], Callable[[RequestContext, Request], object]],
    *,
    topic: Operations = (),
    cluster: Operations = (),
    whole: Operation | None = None,
    charged: Quota | None = None,
    at_once: bool = False,
    cancel_on_disconnect: bool = False,
) -> Api:
    """Return a row. The handler itself checks `topic` and `cluster`; the dispatcher checks `whole` on the cluster.

    A handler returns an awaitable of the response. With `at_once` it returns the response or `Later`, because most of
    these requests need neither a task nor a turn of the event loop.
    """
    response = getattr(m, f"{request.__name__.removesuffix('Request')}Response")
    authorize = within(topic=topic, cluster=cluster) if whole is None else on_cluster(whole)
    return Api(request, response, handler, authorize, charged, at_once, cancel_on_disconnect)


# fmt: off
APIS: Final = (
    # catalog.py
    api(m.CreateDatabaseRequest, lambda by: by.catalog.create_database, topic=CREATE, cluster=CREATE),
    api(m.DropDatabaseRequest, lambda by: by.catalog.drop_database, topic=DELETE, charged=MUTATION),
    api(m.ListDatabasesRequest, lambda by: by.catalog.list_databases, topic=DESCRIBE),
    api(m.DescribeDatabaseRequest, lambda by: by.catalog.describe_database, topic=DESCRIBE),
    api(m.AlterDatabaseRequest, lambda by: by.catalog.alter_database, topic=ALTER),
    api(m.CreateTableRequest, lambda by: by.catalog.create_table, topic=CREATE, cluster=CREATE, charged=MUTATION),
    api(m.DropTableRequest, lambda by: by.catalog.drop_table, topic=DELETE, charged=MUTATION),
    api(m.ListTablesRequest, lambda by: by.catalog.list_tables, topic=DESCRIBE),
    api(m.DescribeTableRequest, lambda by: by.catalog.describe_table, topic=DESCRIBE),
    api(m.AlterTableRequest, lambda by: by.catalog.alter_table, topic=ALTER),
    # partitions.py
    api(m.CreatePartitionRequest, lambda by: by.partitions.create, topic=WRITE, charged=MUTATION),
    api(m.DropPartitionRequest, lambda by: by.partitions.drop, topic=WRITE, charged=MUTATION),
    api(m.ListPartitionsRequest, lambda by: by.partitions.list, topic=DESCRIBE),
    # write.py
    api(m.AppendRowsRequest, lambda by: by.write.append, topic=WRITE, charged=PRODUCER),
    api(m.PutRowsRequest, lambda by: by.write.put, topic=WRITE, charged=PRODUCER),
    # read.py
    api(m.LookupRequest, lambda by: by.read.lookup, topic=(READ, WRITE), charged=CONSUMER, at_once=True),
    api(m.PrefixLookupRequest, lambda by: by.read.prefix_lookup, topic=READ, charged=CONSUMER),
    # A scan at the end of the log only waits; its answer is useless once the client is gone.
    api(m.ScanLogRequest, lambda by: by.read.scan_log, topic=READ, charged=CONSUMER, cancel_on_disconnect=True),
    api(m.LimitScanRequest, lambda by: by.read.limit_scan, topic=READ, charged=CONSUMER, at_once=True),
    api(m.CountRowsRequest, lambda by: by.read.count_rows, topic=READ, charged=CONSUMER),
    api(m.ScanSnapshotRequest, lambda by: by.read.scan_snapshot, topic=READ, charged=CONSUMER),
    # snapshots.py, refused.py, loads.py
    api(m.ListSnapshotsRequest, lambda by: by.snapshots.list_snapshots, topic=DESCRIBE),
    api(m.ListRefusedRequest, lambda by: by.refused.list_refused, topic=READ),
    api(m.ListTableLoadsRequest, lambda by: by.loads.list_loads, topic=DESCRIBE),
    # staged.py
    api(m.StageRowsRequest, lambda by: by.staged.stage, topic=WRITE, charged=PRODUCER),
    api(m.CommitStagedRequest, lambda by: by.staged.commit, topic=WRITE),
    api(m.AbortStagedRequest, lambda by: by.staged.abort, topic=WRITE),
    api(m.CountStagedRequest, lambda by: by.staged.count, whole=CLUSTER_ACTION),
    api(m.ApplyStagedRequest, lambda by: by.staged.apply, whole=CLUSTER_ACTION),
    api(m.KeepStagedRequest, lambda by: by.staged.keep, whole=CLUSTER_ACTION),
    api(m.HandOverStagedRequest, lambda by: by.staged.hand_over, whole=CLUSTER_ACTION),
    api(m.DropStagedRequest, lambda by: by.staged.drop, whole=CLUSTER_ACTION),
    # lake.py
    api(m.LakeBeginRequest, lambda by: by.lake.begin, topic=ALTER),
    api(m.LakeHeartbeatRequest, lambda by: by.lake.heartbeat, topic=ALTER),
    api(m.LakeCommitRequest, lambda by: by.lake.commit, topic=ALTER),
    api(m.LakeEndRequest, lambda by: by.lake.end, topic=ALTER),
    api(m.LakeFinishRequest, lambda by: by.lake.finish, topic=ALTER),
    api(m.DescribeLakeRequest, lambda by: by.lake.describe, topic=DESCRIBE),
    api(m.ListLakeRequest, lambda by: by.lake.list, topic=DESCRIBE),
    api(m.DescribeEndsRequest, lambda by: by.lake.ends, whole=CLUSTER_ACTION),
    # rights.py
    api(m.GrantColumnsRequest, lambda by: by.rights.grant, whole=ALTER),
    api(m.RevokeColumnsRequest, lambda by: by.rights.revoke, whole=ALTER),
    api(m.ListColumnGrantsRequest, lambda by: by.rights.list, whole=DESCRIBE),
    # forwarded.py, copies.py
    api(m.PrepareRowsRequest, lambda by: by.forwarded.prepare, whole=CLUSTER_ACTION),
    api(m.LogRowsRequest, lambda by: by.forwarded.log, whole=CLUSTER_ACTION),
    api(m.AwaitRowsRequest, lambda by: by.forwarded.wait, whole=CLUSTER_ACTION),
    api(m.KeepDeadLettersRequest, lambda by: by.forwarded.keep_dead_letters, whole=CLUSTER_ACTION),
    api(m.CopyStoreRequest, lambda by: by.copies.copy, whole=CLUSTER_ACTION),
)
# fmt: on


class TableApis:
    """The API declarations of one server."""

    def __init__(
        self, load: Callable[[], Awaitable[Handlers]], refreshed: Callable[[], Awaitable[bool]]
    ) -> None:
        """Await `load` when the first request comes. `refreshed` reads other brokers' changes; it returns False if
        there are none.
        """
        self._load = load
        self._refreshed = refreshed
        self._handlers: Handlers | None = None

    def declarations(self) -> list[ApiDeclaration]:
        return [self._declaration(row) for row in APIS]

    def _declaration(self, row: Api) -> ApiDeclaration:
        async def answer(context: RequestContext, asked: Any, begun: Later | None = None) -> Any:
            handlers = self._handlers
            if handlers is None:
                handlers = self._handlers = await self._load()
            try:
                return await _response(begun or row.handler(handlers)(context, asked))
            except TableError as error:
                return await refused(handlers, context, asked, error)

        async def refused(handlers: Handlers, context: RequestContext, asked: Any, error: TableError) -> Any:
            if error.code in _NOT_FOUND and await self._refreshed():
                try:  # another broker may have created it a moment ago
                    return await _response(row.handler(handlers)(context, asked))
                except TableError as last:
                    error = last
            return row.response(error_code=int(error.code), error_message=error.message)

        def answer_at_once(context: RequestContext, asked: Any) -> Any:
            handlers = self._handlers
            if handlers is None:
                return answer(context, asked)
            try:
                found = row.handler(handlers)(context, asked)
            except TableError as error:
                return refused(handlers, context, asked, error)
            return answer(context, asked, found) if callable(found) else found

        return ApiDeclaration(
            row.request,
            row.response,
            answer_at_once if row.at_once else answer,
            row.authorize,
            cancel_on_disconnect=row.cancel_on_disconnect,
            charged=row.charged,
        )


async def _response(found: Any) -> Any:
    """Return the response that a handler has returned, returns later, or returns once it is called (`Later`)."""
    if callable(found):
        found = found()
    return await found if isawaitable(found) else found
