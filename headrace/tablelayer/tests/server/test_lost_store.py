"""The answers to a client of tables while the coordination store is unreachable, and the state afterwards."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from pathlib import Path

import pytest

from headrace.broker.runtime.ports import (
    Node,
    StoreOperation,
    StoreOutcomeUnknownError,
    StoreUnavailableError,
)
from headrace.broker.stores.embedded import EmbeddedStore
from headrace.protocol.errors import ErrorCode
from headrace.protocol.schema import ApiMessage
from headrace.tablelayer.model import messages as m
from headrace.tablelayer.model.errors import TableErrorCode
from headrace.tablelayer.tests.server.tables import tables
from headrace.tablelayer.tests.server.test_rights import definition_of


class LosableStore(EmbeddedStore):
    """A store that is lost during the next transaction, which is carried out or not."""

    is_lost = False
    loses_next = False
    carries_out = False

    async def get(self, path: str) -> Node | None:
        if self.is_lost:
            raise StoreUnavailableError("the session is lost")
        return await super().get(path)

    async def children(self, path: str) -> list[str]:
        if self.is_lost:
            raise StoreUnavailableError("the session is lost")
        return await super().children(path)

    async def transact(self, operations: Sequence[StoreOperation]) -> list[str]:
        if self.is_lost:
            raise StoreUnavailableError("the session is lost")
        if not self.loses_next:
            return await super().transact(operations)
        self.is_lost = True
        if self.carries_out:
            await super().transact(operations)
        raise StoreOutcomeUnknownError("the session is lost under a transaction")


CHANGES: dict[str, tuple[Callable[[], ApiMessage], *tuple[int, ...]]] = {
    "create_database": (lambda: m.CreateDatabaseRequest(name="shop"), 0),
    "alter_database": (lambda: m.AlterDatabaseRequest(name="there", comment="c"), 0),
    "drop_database": (lambda: m.DropDatabaseRequest(name="there"), 0),
    "create": (lambda: m.CreateTableRequest(definition=definition_of("new")), TableErrorCode.TABLE_EXISTS),
    "drop": (lambda: m.DropTableRequest(database="default", table="t"), TableErrorCode.TABLE_NOT_FOUND, 0),
}
"""Requests, each with the error codes of a change that was already carried out. A server that has not seen yet that the
table is gone reports success, as for a table that another server drops meanwhile."""


@pytest.mark.parametrize("carries_out", [True, False])
@pytest.mark.parametrize("change", CHANGES)
async def test_a_table_change_with_an_unknown_outcome_times_out(
    tmp_path: Path, change: str, carries_out: bool
) -> None:
    build, *after = CHANGES[change]
    store = LosableStore(tmp_path / "store")
    await store.open()
    async with tables(tmp_path / "data", store=store) as made:
        await made.create("id BIGINT")
        assert (await made.broker.send(m.CreateDatabaseRequest(name="there"))).error_code == 0
        store.is_lost = True
        answer = await made.broker.send(build())
        assert answer.error_code == ErrorCode.NOT_CONTROLLER, "nothing was sent"
        store.is_lost, store.loses_next, store.carries_out = False, True, carries_out
        answer = await made.broker.send(build())
        assert answer.error_code == ErrorCode.REQUEST_TIMED_OUT, answer.error_message
        store.is_lost = store.loses_next = False
        answer = await made.broker.send(build())
        assert answer.error_code in (after if carries_out else [0]), answer.error_message
