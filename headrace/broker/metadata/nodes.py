"""Changes of nodes in the coordination store, for components that keep a copy of them: never without a version.

`modify` is for nodes that several processes may change: the change is made again on top of another process's change. A
change of a node below a root is noted at the root, in the same transaction; a process that keeps a copy of all of them
(`follow`) needs one watch. `OwnedNodes` is for nodes that one process decides about in memory and writes. Each write
names the version of the one before it. So a process that was overtaken is refused (NOT_COORDINATOR, which a client
repeats) and reads the nodes again.
"""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Sequence

from headrace.broker.runtime.ports import (
    BadVersionError,
    CoordinationStore,
    CreateNode,
    DeleteNode,
    Node,
    NodeExistsError,
    NoNodeError,
    SetNode,
    StoreOperation,
    StoreOutcomeUnknownError,
    StoreUnavailableError,
)
from headrace.protocol.errors import ErrorCode, KafkaError

OUTDATED = (BadVersionError, NoNodeError, NodeExistsError)
"""The refusals of a transaction whose writer is not up to date."""


async def modify(
    store: CoordinationStore,
    path: str,
    change: Callable[[bytes | None], bytes | None],
    *,
    root: str | None = None,
) -> bytes | None:
    """Make a node what `change` returns for its present contents, None for no node; return the new contents. `root` is
    where the change is noted.

    `change` is called again when another process was faster, or when the outcome of the transaction is unknown; it
    refuses by raising. Raises StoreUnavailableError, StoreOutcomeUnknownError.
    """
    unknown: StoreOutcomeUnknownError | None = None
    while True:
        try:
            node = await store.get(path)
        except StoreUnavailableError as error:
            raise unknown or error from None
        old = None if node is None else node.data
        new = change(old)
        if new == old:
            return new
        # The root comes first: without it, creating the node below would create it.
        operations = [] if root is None else [await noted(store, root)]
        operations.append(_operation(path, node, new))
        try:
            await store.transact(operations)
        except OUTDATED:
            continue
        except StoreOutcomeUnknownError as error:
            unknown = error
            continue
        return new


async def modify_all(
    store: CoordinationStore, paths: Sequence[str], change: Callable[[bytes | None], bytes | None]
) -> None:
    """Do `modify` for several nodes, by one transaction unless another process is in between. Raises the same
    errors.
    """
    nodes = await store.get_many(paths)
    changed = [
        (path, node, change(None if node is None else node.data))
        for path, node in zip(paths, nodes, strict=True)
    ]
    operations = [
        _operation(path, node, new)
        for path, node, new in changed
        if new != (None if node is None else node.data)
    ]
    if not operations:
        return
    try:
        await store.transact(operations)
    except (*OUTDATED, StoreOutcomeUnknownError):
        for path in paths:
            await modify(store, path, change)


async def noted(store: CoordinationStore, root: str) -> StoreOperation:
    """Return the operation, a part of a transaction, that notes a change for the followers of the root."""
    node = await store.get(root)
    return CreateNode(root) if node is None else SetNode(root, b"", node.version)


async def follow(store: CoordinationStore, root: str, read: Callable[[], Awaitable[None]]) -> None:
    """Call `read` to read everything again after every change that was noted at the root, until cancelled. Raises its
    errors, and StoreError; if it is started again, it misses nothing.
    """
    changed = asyncio.Event()
    end = store.watch(root, changed.set)
    try:
        while True:
            await read()
            await changed.wait()
            changed.clear()
    finally:
        end()


class OwnedNodes:
    """The direct children of `root`, or nodes below them, by their paths relative to it. With `noted`, writes are noted
    at the root, for its followers.
    """

    def __init__(self, store: CoordinationStore, root: str, *, noted: bool = False) -> None:
        self._store = store
        self._root = root
        self._noted = noted
        self._versions: dict[str, int] = {}

    async def children(self, name: str = "") -> list[str]:
        return await self._store.children(self._path(name))

    async def read(self, name: str) -> bytes | None:
        """Return the present contents in the store; the next write is compared with their version."""
        node = await self._store.get(self._path(name))
        if node is None:
            self._versions.pop(name, None)
            return None
        self._versions[name] = node.version
        return node.data

    async def read_if_changed(self, name: str) -> bytes | None:
        """Return the same as `read`, but also None if no other process has written the node since it was last
        read or written.
        """
        known = self._versions.get(name)
        data = await self.read(name)
        return None if self._versions.get(name) == known else data

    async def write(self, name: str, data: bytes) -> None:
        """Raises KafkaError(NOT_COORDINATOR) if the node has changed since it was last read or written: `read` it
        before the next decision.
        """
        version = self._versions.get(name)
        operation: StoreOperation
        if version is None:
            operation, following = CreateNode(self._path(name), data), 0
        else:
            operation, following = SetNode(self._path(name), data, version), version + 1
        # The root comes first: without it, creating the node below would create it.
        operations = [await noted(self._store, self._root)] if self._noted else []
        try:
            await self._store.transact([*operations, operation])
        except (*OUTDATED, StoreOutcomeUnknownError) as error:
            raise KafkaError(
                ErrorCode.NOT_COORDINATOR, f"{self._path(name)} was changed by another broker: {error}"
            ) from error
        self._versions[name] = following

    async def delete(self, name: str) -> None:
        """Delete the node, even if another process has changed it. No error if it does not exist."""
        self._versions.pop(name, None)
        root = self._root if self._noted else None
        await modify(self._store, self._path(name), lambda _: None, root=root)

    def _path(self, name: str) -> str:
        return f"{self._root}/{name}" if name else self._root


def _operation(path: str, node: Node | None, new: bytes | None) -> StoreOperation:
    if node is None:
        assert new is not None
        return CreateNode(path, new)
    return DeleteNode(path, node.version) if new is None else SetNode(path, new, node.version)
