"""Databases. A database is a node in the coordination store.

The database `default` always exists. A database is dropped when it is empty, or together with its tables. The names of
databases are held in memory, and updated after the store; one change of a database runs at a time.
"""

from __future__ import annotations

import asyncio
import json
from collections.abc import Awaitable, Callable, Mapping, Sequence
from typing import TYPE_CHECKING
from weakref import WeakValueDictionary

import msgspec

from headrace.broker.metadata.nodes import modify
from headrace.tablelayer.model.errors import TableError, TableErrorCode
from headrace.tablelayer.model.table.path import DEFAULT_DATABASE, TablePath, check_name

if TYPE_CHECKING:
    from headrace.broker.context import BrokerContext

DATABASES = "/databases"

DATABASE_BYTES_MAX = 64 << 10
"""Maximum size of a database's comment and properties: a node in the coordination store must be small."""


class Database(msgspec.Struct, frozen=True):
    """A database's attributes; `created_at_ms` is -1 for `default`."""

    created_at_ms: int = -1
    comment: str | None = None
    properties: Mapping[str, str] = msgspec.field(default_factory=dict)

    def to_json(self) -> bytes:
        value = {
            "created_at_ms": self.created_at_ms,
            "comment": self.comment,
            "properties": dict(self.properties),
        }
        return json.dumps(value).encode()

    @classmethod
    def from_json(cls, data: bytes) -> Database:
        value = json.loads(data)
        return cls(value.get("created_at_ms", -1), value.get("comment"), value.get("properties", {}))

    def check(self, name: str) -> None:
        """Raise TableError(INVALID_TABLE) if the database is too large to be stored."""
        size = len(self.to_json())
        if size > DATABASE_BYTES_MAX:
            raise TableError(
                TableErrorCode.INVALID_TABLE,
                f"the comment and properties of database '{name}' have {size} bytes; the "
                f"maximum is {DATABASE_BYTES_MAX}",
            )


class Databases:
    """The databases of a cluster. `tables` returns the names of a database's tables; `drop_table` drops one."""

    def __init__(
        self,
        context: BrokerContext,
        tables: Callable[[str], Sequence[str]],
        drop_table: Callable[[TablePath], Awaitable[None]],
    ) -> None:
        self._context = context
        self._tables = tables
        self._drop_table = drop_table
        self._known: dict[str, Database] = {DEFAULT_DATABASE: Database()}
        self._dropping: set[str] = set()
        self._changing: WeakValueDictionary[str, asyncio.Lock] = WeakValueDictionary()

    async def read(self) -> None:
        store = self._context.store
        names = await store.children(DATABASES)
        nodes = await store.get_many([f"{DATABASES}/{name}" for name in names])
        found = {
            name: Database.from_json(node.data)
            for name, node in zip(names, nodes, strict=True)
            if node is not None and name not in self._dropping
        }
        self._known = {DEFAULT_DATABASE: Database(), **found}

    def check(self, name: str) -> None:
        """Raise TableError(DATABASE_NOT_FOUND) if there is no such database."""
        if name not in self._known:
            raise TableError(
                TableErrorCode.DATABASE_NOT_FOUND,
                f"there is no database '{name}'; create it first: CREATE DATABASE {name}",
            )

    def names(self) -> list[str]:
        return sorted(self._known)

    def get(self, name: str) -> Database:
        """Return a database. Raises TableError(DATABASE_NOT_FOUND)."""
        self.check(name)
        return self._known[name]

    async def create(
        self,
        name: str,
        *,
        ignore_if_exists: bool,
        comment: str | None = None,
        properties: Mapping[str, str] | None = None,
    ) -> None:
        check_name("database", name)
        async with self._lock(name):
            if name not in self._known:
                created = Database(self._context.clock.time_ms(), comment, dict(properties or {}))
                created.check(name)
                stored = await modify(
                    self._context.store,
                    f"{DATABASES}/{name}",
                    lambda data: data or created.to_json(),
                    root=DATABASES,
                )
                assert stored is not None
                self._known[name] = Database.from_json(stored)
            elif not ignore_if_exists:
                raise TableError(TableErrorCode.DATABASE_EXISTS, f"database '{name}' exists already")

    async def alter(
        self,
        name: str,
        *,
        comment: str | None,
        set_properties: Mapping[str, str],
        reset_properties: Sequence[str],
    ) -> None:
        """Alter a database. A `comment` of None keeps the old one; '' removes it. Raises TableError."""
        async with self._lock(name):
            self.check(name)

            def changed(data: bytes | None) -> bytes:
                old = Database() if data is None else Database.from_json(data)
                kept = {key: value for key, value in old.properties.items() if key not in reset_properties}
                new = Database(
                    old.created_at_ms,
                    old.comment if comment is None else (comment or None),
                    {**kept, **set_properties},
                )
                new.check(name)
                return new.to_json()

            stored = await modify(self._context.store, f"{DATABASES}/{name}", changed, root=DATABASES)
            assert stored is not None
            self._known[name] = Database.from_json(stored)

    async def drop(self, name: str, *, ignore_if_not_exists: bool, cascade: bool) -> None:
        async with self._lock(name):
            if name not in self._known:
                if ignore_if_not_exists:
                    return
                raise TableError(TableErrorCode.DATABASE_NOT_FOUND, f"there is no database '{name}'")
            if name == DEFAULT_DATABASE:
                raise TableError(
                    TableErrorCode.INVALID_TABLE, f"the database '{DEFAULT_DATABASE}' cannot be dropped"
                )
            if not cascade:
                self._check_empty(name)
            database = self._known.pop(name)  # from here on no table can be created in it
            self._dropping.add(name)
            try:
                await self._context.following.settled()  # tables that were being created are visible now
                if not cascade:
                    self._check_empty(name)
                for table in self._tables(name):
                    await self._drop_table(TablePath(name, table))
                await modify(self._context.store, f"{DATABASES}/{name}", lambda _: None, root=DATABASES)
            except BaseException:
                self._known[name] = database
                raise
            finally:
                self._dropping.discard(name)

    def _check_empty(self, name: str) -> None:
        tables = self._tables(name)
        if tables:
            raise TableError(
                TableErrorCode.DATABASE_NOT_EMPTY,
                f"database '{name}' has {len(tables)} tables ({', '.join(tables[:5])}); drop them, or use CASCADE",
            )

    def _lock(self, name: str) -> asyncio.Lock:
        """Return the lock for changes of a database; it exists while it is held or awaited."""
        return self._changing.setdefault(name, asyncio.Lock())
