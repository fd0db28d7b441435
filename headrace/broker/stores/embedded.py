"""The embedded coordination store: one SQLite file in the data directory.

A transaction is on disk when `transact` returns (`synchronous=FULL`), so a broker that is killed at any time finds
everything that it had acknowledged. All statements run in one thread of the store; the event loop never waits for the
disk. Version rules are ZooKeeper's: a node starts at 0, each set adds one; parents are made as needed and count as
nodes.

The process is the only session, so its lease has no end. Ephemeral nodes go when the store is closed, or is opened
after a kill. A coordinator (`broker.stores.coordinator`) names more sessions, whose nodes go with `end`.
"""

from __future__ import annotations

import asyncio
import contextlib
import errno
import logging
import math
import sqlite3
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from functools import partial
from pathlib import Path
from typing import TypeVar

import msgspec

from headrace.broker.runtime import disk_errors
from headrace.broker.runtime.ports import (
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
    SystemThreads,
    Threads,
)
from headrace.protocol.errors import ErrorCode, KafkaError

logger = logging.getLogger("headrace.metadata")

Result = TypeVar("Result")

_TABLES = {
    "nodes": "(path TEXT PRIMARY KEY, parent TEXT NOT NULL, data BLOB NOT NULL, version INTEGER NOT NULL)"
    " WITHOUT ROWID",
    "ephemerals": "(path TEXT PRIMARY KEY, created INTEGER NOT NULL) WITHOUT ROWID",
    "counters": "(name TEXT PRIMARY KEY, value INTEGER NOT NULL) WITHOUT ROWID",
}
_SCHEMA = ";".join(
    [
        *(f"CREATE TABLE IF NOT EXISTS {table} {columns}" for table, columns in _TABLES.items()),
        "CREATE INDEX IF NOT EXISTS nodes_by_parent ON nodes (parent, path)",
    ]
)
OWN_SESSION = 1
_CREATIONS = (
    "ephemeral nodes"  # a sequence's counter is named by the path of its parent, which begins with a slash
)


class StoreImage(msgspec.Struct, frozen=True):
    """The permanent contents of a store, by path and by name: (path, data, version) of nodes, (name, value) of
    counters.
    """

    nodes: tuple[tuple[str, bytes, int], ...]
    counters: tuple[tuple[str, int], ...]


class EmbeddedStore:
    """A CoordinationStore in the file `path`."""

    def __init__(self, path: Path, threads: Threads | None = None) -> None:
        self._path = path
        self._executor = (threads or SystemThreads()).pool(1, "store")
        self._copies = (threads or SystemThreads()).pool(1, "copies of the store")
        self._connection: sqlite3.Connection | None = None
        self._watches: dict[str, list[Callable[[], None]]] = {}
        self._changes = 0
        self._owners: dict[str, int] = {}
        """The sessions of ephemeral nodes that are not the store's own. Used in the store's thread."""

    async def open(self) -> None:
        await self._run(self._connect)

    @property
    def session(self) -> int:
        return OWN_SESSION

    def lease_end(self) -> float:
        return math.inf

    def watch(self, path: str, callback: Callable[[], None]) -> Callable[[], None]:
        check_path(path)
        callbacks = self._watches.setdefault(path, [])
        callbacks.append(callback)
        return partial(callbacks.remove, callback)

    async def get(self, path: str) -> Node | None:
        check_path(path)
        return await self._run(lambda connection: _get(connection, path, self._owners))

    async def get_many(self, paths: Sequence[str]) -> list[Node | None]:
        for path in paths:
            check_path(path)
        frozen = tuple(paths)
        return await self._run(lambda connection: [_get(connection, path, self._owners) for path in frozen])

    async def children(self, path: str) -> list[str]:
        check_path(path)
        parent = path.rstrip("/")
        rows = await self._run(
            lambda connection: connection.execute(
                "SELECT path FROM nodes WHERE parent = ? ORDER BY path", (parent,)
            ).fetchall()
        )
        return [row[0][len(parent) + 1 :] for row in rows]

    async def transact(self, operations: Sequence[StoreOperation]) -> list[str]:
        return await self.transact_as(OWN_SESSION, operations)

    async def transact_as(self, session: int, operations: Sequence[StoreOperation]) -> list[str]:
        """Do `transact` for a session, which owns the ephemeral nodes that it creates."""
        for operation in operations:
            check_path(operation.path)
        frozen = tuple(operations)
        self._changes += 1
        paths = await self._run(lambda connection: self._carry_out(connection, frozen, session))
        self._tell(
            path for operation, made in zip(frozen, paths, strict=True) for path in _touched(operation, made)
        )
        return paths

    async def end(self, session: int) -> None:
        """Remove the ephemeral nodes of a session that is not the store's own. Raises KafkaError if the disk is
        full.
        """
        self._changes += 1
        gone = await self._run(lambda connection: self._remove_nodes(connection, session))
        self._tell(each for path in gone for each in (path, _parent(path) or "/"))

    def _tell(self, touched: Iterable[str]) -> None:
        for path in set(touched):
            for callback in tuple(self._watches.get(path, ())):
                asyncio.get_running_loop().call_soon(callback)

    def _carry_out(
        self, connection: sqlite3.Connection, operations: Sequence[StoreOperation], session: int
    ) -> list[str]:
        paths = _transact(connection, operations)
        for operation, path in zip(operations, paths, strict=True):
            if isinstance(operation, DeleteNode):
                self._owners.pop(path, None)
            elif isinstance(operation, CreateNode) and operation.ephemeral and session != OWN_SESSION:
                self._owners[path] = session
        return paths

    def _remove_nodes(self, connection: sqlite3.Connection, session: int) -> list[str]:
        gone = [path for path, owner in self._owners.items() if owner == session]
        with _transaction(connection):
            for path in gone:
                _delete(connection, path)
        for path in gone:
            del self._owners[path]
        return gone

    async def copy(self, target: Path) -> None:
        """Copy the store to the new file `target`, with all transactions that were begun before. Later transactions are
        not in it; they wait only for the beginning of the copy. Raises sqlite3.Error.
        """
        copying = await self._run(lambda _: self._begin_copy(target))
        await asyncio.get_running_loop().run_in_executor(self._copies, _copy, copying)

    @property
    def changes(self) -> int:
        """Number of transactions since it was opened."""
        return self._changes

    async def image(self) -> StoreImage:
        """Return the contents without ephemeral nodes. This and later transactions do not wait for each other. Raises
        sqlite3.Error.
        """
        return await asyncio.get_running_loop().run_in_executor(self._copies, read_store, self._path)

    def _begin_copy(self, target: Path) -> sqlite3.Connection:
        connection = sqlite3.connect(self._path, isolation_level=None, check_same_thread=False)
        connection.execute("ATTACH ? AS copy", (str(target),))
        connection.execute("BEGIN")
        # The first read fixes the state that the transaction reads.
        connection.execute("SELECT count(*) FROM (SELECT 1 FROM main.nodes LIMIT 1)").fetchone()
        return connection

    async def close(self) -> None:
        if self._connection is not None:
            # a full disk, which was reported: the next start does the same
            with contextlib.suppress(KafkaError):
                await self._run(_close)
            self._connection = None
        self._executor.shutdown(wait=False)
        self._copies.shutdown(wait=False)

    async def _run(self, work: Callable[[sqlite3.Connection], Result]) -> Result:
        def call() -> Result:
            try:
                if self._connection is None:
                    self._connection = self._open_file()
                return work(self._connection)
            except sqlite3.OperationalError as error:
                if error.sqlite_errorcode != sqlite3.SQLITE_FULL:
                    raise
                full = OSError(errno.ENOSPC, str(error), str(self._path))
                disk_errors.tell(logger, "the metadata cannot be changed", full)
                raise KafkaError(
                    ErrorCode.KAFKA_STORAGE_ERROR, f"the metadata cannot be changed: {disk_errors.DISK_FULL}"
                ) from full

        # If the caller is cancelled, the transaction itself still finishes.
        return await asyncio.shield(asyncio.get_running_loop().run_in_executor(self._executor, call))

    def _connect(self, connection: sqlite3.Connection) -> None:
        connection.execute("SELECT 1")

    def _open_file(self) -> sqlite3.Connection:
        connection = sqlite3.connect(self._path, isolation_level=None, check_same_thread=False)
        connection.execute("PRAGMA journal_mode=WAL")
        connection.execute("PRAGMA synchronous=FULL")
        connection.executescript(_SCHEMA)
        _end_session(connection)
        return connection


def read_store(path: Path) -> StoreImage:
    """Return the contents of a store's file without ephemeral nodes. Raises sqlite3.Error."""
    connection = sqlite3.connect(path, isolation_level=None)
    try:
        connection.execute("BEGIN")
        nodes = connection.execute(
            "SELECT path, data, version FROM nodes WHERE path NOT IN (SELECT path FROM ephemerals) ORDER BY path"
        ).fetchall()
        counters = connection.execute("SELECT name, value FROM counters ORDER BY name").fetchall()
    finally:
        connection.close()
    return StoreImage(tuple((each, bytes(data), version) for each, data, version in nodes), tuple(counters))


def without_json(path: Path) -> list[str]:
    """Return the nodes of a store's file whose contents are not JSON. Raises sqlite3.Error."""
    return [each for each, data, _ in read_store(path).nodes if data and not _is_json(data)]


def _is_json(data: bytes) -> bool:
    try:
        msgspec.json.decode(data)
    except (msgspec.DecodeError, UnicodeDecodeError):
        return False
    return True


def write_store(path: Path, image: StoreImage) -> None:
    """Write the contents of another store to the file of a new one. Durable except for the file's name. Raises
    sqlite3.Error.
    """
    connection = sqlite3.connect(path, isolation_level=None)
    try:
        connection.execute("PRAGMA synchronous = FULL")
        connection.executescript(_SCHEMA)
        connection.execute("BEGIN")
        rows = ((each, _parent(each), data, version) for each, data, version in image.nodes)
        connection.executemany("INSERT INTO nodes VALUES (?, ?, ?, ?)", rows)
        connection.executemany("INSERT INTO counters VALUES (?, ?)", image.counters)
        connection.execute("COMMIT")
    finally:
        connection.close()


def _copy(connection: sqlite3.Connection) -> None:
    try:
        for table, columns in _TABLES.items():
            connection.execute(f"CREATE TABLE copy.{table} {columns}")
            connection.execute(f"INSERT INTO copy.{table} SELECT * FROM main.{table}")
        connection.execute("CREATE INDEX copy.nodes_by_parent ON nodes (parent, path)")
        connection.execute("COMMIT")
    finally:
        connection.close()


def check_path(path: str) -> None:
    if not path.startswith("/") or (path != "/" and path.endswith("/")) or "//" in path:
        raise StoreError(f"{path!r} is not a node path: it must be absolute, without empty parts")


def _parent(path: str) -> str:
    return path.rpartition("/")[0]


def _touched(operation: StoreOperation, path: str) -> Iterator[str]:
    """Yield the nodes whose watches an operation fires: its own, and those whose list of children it changes."""
    if isinstance(operation, CheckNode):
        return
    yield path
    if isinstance(operation, DeleteNode):
        yield _parent(path) or "/"
    elif isinstance(operation, CreateNode):  # creating it may have made parents
        while path:
            path = _parent(path)
            yield path or "/"


def _get(connection: sqlite3.Connection, path: str, owners: Mapping[str, int]) -> Node | None:
    row = connection.execute("SELECT data, version FROM nodes WHERE path = ?", (path,)).fetchone()
    if row is None:
        return None
    created = connection.execute("SELECT created FROM ephemerals WHERE path = ?", (path,)).fetchone()
    if created is None:
        return Node(bytes(row[0]), row[1])
    return Node(bytes(row[0]), row[1], owners.get(path, OWN_SESSION), created[0])


@contextlib.contextmanager
def _transaction(connection: sqlite3.Connection) -> Iterator[None]:
    connection.execute("BEGIN IMMEDIATE")
    try:
        yield
        connection.execute("COMMIT")
    except BaseException:
        if connection.in_transaction:  # SQLite ends some failed transactions itself
            connection.execute("ROLLBACK")
        raise


def _transact(connection: sqlite3.Connection, operations: Sequence[StoreOperation]) -> list[str]:
    parents: set[str] = set()
    with _transaction(connection):
        return [_apply(connection, operation, parents) for operation in operations]


def _apply(connection: sqlite3.Connection, operation: StoreOperation, parents: set[str]) -> str:
    """Apply an operation. `parents` are nodes that are known to exist in this transaction and to accept children."""
    if isinstance(operation, CreateNode):
        return _create(connection, operation, parents)
    path = operation.path
    node = _get(connection, path, {})
    if node is None:
        raise NoNodeError(f"{path} does not exist")
    if operation.version != node.version:
        raise BadVersionError(f"{path} is at version {node.version}, not {operation.version}")
    if isinstance(operation, SetNode):
        connection.execute(
            "UPDATE nodes SET data = ?, version = version + 1 WHERE path = ?", (operation.data, path)
        )
    elif isinstance(operation, DeleteNode):
        if connection.execute("SELECT 1 FROM nodes WHERE parent = ? LIMIT 1", (path,)).fetchone():
            raise StoreError(f"{path} has children and cannot be deleted")
        parents.discard(path)
        _delete(connection, path)
    elif not isinstance(operation, CheckNode):
        raise TypeError(f"{operation!r} is not a store operation")
    return path


def _delete(connection: sqlite3.Connection, path: str) -> None:
    connection.execute("DELETE FROM nodes WHERE path = ?", (path,))
    connection.execute("DELETE FROM ephemerals WHERE path = ?", (path,))


def _create(connection: sqlite3.Connection, operation: CreateNode, parents: set[str]) -> str:
    path, parent = operation.path, _parent(operation.path)
    if operation.sequence:
        path = f"{path}{_next(connection, parent or '/'):010d}"
    if parent not in parents:
        if connection.execute("SELECT 1 FROM ephemerals WHERE path = ?", (parent,)).fetchone():
            raise StoreError(f"{parent} is ephemeral and cannot have children")
        _make_parents(connection, parent)
        parents.add(parent)
    try:
        connection.execute("INSERT INTO nodes VALUES (?, ?, ?, 0)", (path, parent, operation.data))
    except sqlite3.IntegrityError:
        raise NodeExistsError(f"{path} exists") from None
    if not operation.ephemeral:
        parents.add(path)
    else:
        connection.execute("INSERT INTO ephemerals VALUES (?, ?)", (path, _next(connection, _CREATIONS) + 1))
    return path


def _next(connection: sqlite3.Connection, counter: str) -> int:
    """Return a counter's value, from 0, and increment it."""
    (value,) = connection.execute(
        "INSERT INTO counters VALUES (?, 1) ON CONFLICT (name) DO UPDATE SET value = value + 1 RETURNING value",
        (counter,),
    ).fetchone()
    return int(value) - 1


def _end_session(connection: sqlite3.Connection) -> None:
    connection.executescript(
        "BEGIN; DELETE FROM nodes WHERE path IN (SELECT path FROM ephemerals); DELETE FROM ephemerals; COMMIT"
    )


def _close(connection: sqlite3.Connection) -> None:
    try:
        _end_session(connection)
    finally:
        connection.close()


def _make_parents(connection: sqlite3.Connection, path: str) -> None:
    while path:
        connection.execute("INSERT OR IGNORE INTO nodes VALUES (?, ?, x'', 0)", (path, _parent(path)))
        path = _parent(path)
