"""How nodes of the coordination store are changed by those who keep a copy of them: never blindly.

`modify` is for what several may change: the change is made again on what somebody else has written meanwhile.
Who changes a node below a root notes it at the root, in the same transaction; whoever keeps a copy of all of them
(`follow`) needs that one watch.
`OwnedNodes` is for what one process decides in memory and writes down: each write names the version of the one before
it, so that whoever was overtaken is refused (NOT_COORDINATOR, which a client repeats) and reads what is there.
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
"""What a transaction is refused with whose reader is not up to date."""


async def modify(
    store: CoordinationStore,
    path: str,
    change: Callable[[bytes | None], bytes | None],
    *,
    root: str | None = None,
) -> bytes | None:
    """Make a node what `change` gives for what it is, None for no node; gives what it is now. `root`: where that is
    noted.

    `change` is called again when somebody else was in between, or nobody knows whether the transaction was carried out;
    it refuses by raising. Raises StoreUnavailableError, StoreOutcomeUnknownError.
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
        # The root first: without it, the node below would make it.
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
    """`modify` for several nodes, by one transaction unless another process is in between. Raises as `modify` does."""
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
    """What tells those who follow the root of a change: part of its transaction."""
    node = await store.get(root)
    return CreateNode(root) if node is None else SetNode(root, b"", node.version)


async def follow(store: CoordinationStore, root: str, read: Callable[[], Awaitable[None]]) -> None:
    """Have `read` read all again after every change that was noted at the root, until cancelled. Raises what it does,
    and StoreError; begun again it misses nothing.
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
    """The direct children of `root`, or nodes below them, by their paths relative to it. `noted`: what is written is
    noted at the root, for those who follow it.
    """

    def __init__(self, store: CoordinationStore, root: str, *, noted: bool = False) -> None:
        self._store = store
        self._root = root
        self._noted = noted
        self._versions: dict[str, int] = {}

    async def children(self, name: str = "") -> list[str]:
        return await self._store.children(self._path(name))

    async def read(self, name: str) -> bytes | None:
        """What the store has now: the next write is compared with it."""
        node = await self._store.get(self._path(name))
        if node is None:
            self._versions.pop(name, None)
            return None
        self._versions[name] = node.version
        return node.data

    async def read_if_changed(self, name: str) -> bytes | None:
        """As `read`; None also where nobody else has written it since it was read or written last."""
        known = self._versions.get(name)
        data = await self.read(name)
        return None if self._versions.get(name) == known else data

    async def write(self, name: str, data: bytes) -> None:
        """Raises KafkaError(NOT_COORDINATOR) if it is not as it was read or written last: `read` it before anything is
        decided.
        """
        version = self._versions.get(name)
        operation: StoreOperation
        if version is None:
            operation, following = CreateNode(self._path(name), data), 0
        else:
            operation, following = SetNode(self._path(name), data, version), version + 1
        # The root first: without it, the node below would make it.
        operations = [await noted(self._store, self._root)] if self._noted else []
        try:
            await self._store.transact([*operations, operation])
        except (*OUTDATED, StoreOutcomeUnknownError) as error:
            raise KafkaError(
                ErrorCode.NOT_COORDINATOR, f"{self._path(name)} was changed by another broker: {error}"
            ) from error
        self._versions[name] = following

    async def delete(self, name: str) -> None:
        """Whatever somebody else has made of it. No error if it is not there."""
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
