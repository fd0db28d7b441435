"""A blocking connection inside a running event loop, for code in a thread that the loop's own program waits for.

It opens no connection of its own and closes nothing.
"""

from __future__ import annotations

import asyncio
from collections.abc import Coroutine
from typing import Any, TypeVar, cast

from headrace.protocol.schema import ApiMessage
from headrace.tablelayer.client.admin.databases import AsyncAdmin, as_path
from headrace.tablelayer.client.blocking.databases import Admin
from headrace.tablelayer.client.blocking.table import Table
from headrace.tablelayer.client.blocking.waiting import LoopThread
from headrace.tablelayer.client.table.table import AsyncTable
from headrace.tablelayer.client.wire.cluster import Cluster
from headrace.tablelayer.model.table.definition import StoredTable
from headrace.tablelayer.model.table.path import TablePath

T = TypeVar("T")
ResponseT = TypeVar("ResponseT", bound=ApiMessage)


class _OtherLoop:
    """The part of `LoopThread` that blocking objects use, for a loop that runs in another thread."""

    def __init__(self, loop: asyncio.AbstractEventLoop) -> None:
        self._loop = loop

    def run(self, coroutine: Coroutine[Any, Any, T], total: int | None = None) -> T:
        return asyncio.run_coroutine_threadsafe(coroutine, self._loop).result()

    def start(self, coroutine: Coroutine[Any, Any, object]) -> None:
        asyncio.run_coroutine_threadsafe(coroutine, self._loop)


class BorrowedConnection:
    """The reading part of `Connection`, over the cluster of an asynchronous one. Not for the loop's own thread."""

    def __init__(self, cluster: Cluster, loop: asyncio.AbstractEventLoop) -> None:
        self._cluster = cluster
        self._loop = cast(LoopThread, _OtherLoop(loop))
        self.admin = Admin(AsyncAdmin(cluster), self._loop)

    def table(self, path: TablePath | str) -> Table:
        return self.open_table(self.admin.describe_table(as_path(path)))

    def open_table(self, definition: StoredTable) -> Table:
        return Table(AsyncTable(self._cluster, definition), self._loop)

    def call(self, request: ApiMessage, response: type[ResponseT], **named: Any) -> ResponseT:
        """See `Connection.call`."""
        return self._loop.run(self._cluster.call(request, response, **named))
