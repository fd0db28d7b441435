"""The embedded coordination store: one SQLite file in the data directory.

A transaction is on disk when `transact` returns (`synchronous=FULL`), so that a broker killed at any time
finds what it had acknowledged. All statements run in one thread of the store's own; the event loop never
waits for the disk. Version rules are ZooKeeper's: a node starts at 0, each set adds one; parents are made as
needed and count as nodes.
"""

from __future__ import annotations

import asyncio
import sqlite3
from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import TypeVar

from broker.ports import (
    BadVersionError,
    CheckNode,
    CreateNode,
    DeleteNode,
    Node,
    NodeExistsError,
    NoNodeError,
    SetNode,
    StoreError,
    StoreOperation,
)

Result = TypeVar("Result")

_SCHEMA = """
CREATE TABLE IF NOT EXISTS nodes (
    path TEXT PRIMARY KEY,
    parent TEXT NOT NULL,
    data BLOB NOT NULL,
    version INTEGER NOT NULL
) WITHOUT ROWID;
CREATE INDEX IF NOT EXISTS nodes_by_parent ON nodes (parent, path);
"""


class EmbeddedStore:
    """A CoordinationStore in the file `path`."""

    def __init__(self, path: Path) -> None:
        self._path = path
        self._executor = ThreadPoolExecutor(max_workers=1, thread_name_prefix="store")
        self._connection: sqlite3.Connection | None = None

    async def open(self) -> None:
        await self._run(self._connect)

    async def get(self, path: str) -> Node | None:
        _check_path(path)
        return await self._run(lambda connection: _get(connection, path))

    async def children(self, path: str) -> list[str]:
        _check_path(path)
        parent = path.rstrip("/")
        rows = await self._run(
            lambda connection: connection.execute(
                "SELECT path FROM nodes WHERE parent = ? ORDER BY path", (parent,)
            ).fetchall()
        )
        return [row[0][len(parent) + 1 :] for row in rows]

    async def transact(self, operations: Sequence[StoreOperation]) -> None:
        for operation in operations:
            _check_path(operation.path)
        frozen = tuple(operations)
        await self._run(lambda connection: _transact(connection, frozen))

    async def close(self) -> None:
        if self._connection is not None:
            await self._run(lambda connection: connection.close())
            self._connection = None
        self._executor.shutdown(wait=False)

    async def _run(self, work: Callable[[sqlite3.Connection], Result]) -> Result:
        def call() -> Result:
            if self._connection is None:
                self._connection = self._open_file()
            return work(self._connection)

        # A cancelled caller must not leave a transaction half observed: the work itself always finishes.
        return await asyncio.shield(asyncio.get_running_loop().run_in_executor(self._executor, call))

    def _connect(self, connection: sqlite3.Connection) -> None:
        connection.execute("SELECT 1")

    def _open_file(self) -> sqlite3.Connection:
        connection = sqlite3.connect(self._path, isolation_level=None, check_same_thread=False)
        connection.execute("PRAGMA journal_mode=WAL")
        connection.execute("PRAGMA synchronous=FULL")
        connection.executescript(_SCHEMA)
        return connection


def _check_path(path: str) -> None:
    if not path.startswith("/") or (path != "/" and path.endswith("/")) or "//" in path:
        raise StoreError(f"{path!r} is not a node path: it must be absolute, without empty parts")


def _parent(path: str) -> str:
    return path.rpartition("/")[0]


def _get(connection: sqlite3.Connection, path: str) -> Node | None:
    row = connection.execute("SELECT data, version FROM nodes WHERE path = ?", (path,)).fetchone()
    return None if row is None else Node(bytes(row[0]), row[1])


def _transact(connection: sqlite3.Connection, operations: Sequence[StoreOperation]) -> None:
    connection.execute("BEGIN IMMEDIATE")
    try:
        for operation in operations:
            _apply(connection, operation)
    except BaseException:
        connection.execute("ROLLBACK")
        raise
    connection.execute("COMMIT")


def _apply(connection: sqlite3.Connection, operation: StoreOperation) -> None:
    path = operation.path
    node = _get(connection, path)
    if isinstance(operation, CreateNode):
        if node is not None:
            raise NodeExistsError(f"{path} exists")
        _make_parents(connection, _parent(path))
        connection.execute("INSERT INTO nodes VALUES (?, ?, ?, 0)", (path, _parent(path), operation.data))
        return
    if node is None:
        raise NoNodeError(f"{path} does not exist")
    if operation.version not in (-1, node.version):
        raise BadVersionError(f"{path} is at version {node.version}, not {operation.version}")
    if isinstance(operation, SetNode):
        connection.execute(
            "UPDATE nodes SET data = ?, version = version + 1 WHERE path = ?", (operation.data, path)
        )
    elif isinstance(operation, DeleteNode):
        if connection.execute("SELECT 1 FROM nodes WHERE parent = ? LIMIT 1", (path,)).fetchone():
            raise StoreError(f"{path} has children and cannot be deleted")
        connection.execute("DELETE FROM nodes WHERE path = ?", (path,))
    elif not isinstance(operation, CheckNode):
        raise TypeError(f"{operation!r} is not a store operation")


def _make_parents(connection: sqlite3.Connection, path: str) -> None:
    while path:
        connection.execute("INSERT OR IGNORE INTO nodes VALUES (?, ?, x'', 0)", (path, _parent(path)))
        path = _parent(path)
