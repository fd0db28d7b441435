"""Copies of key-value stores from one broker to another, for a replica whose log does not reach back far enough.

A broker with a store (a leader, or a standby) makes a checkpoint beside it, mostly of hard links, and sends it in
pieces. The checkpoint is removed when it was sent, when no request came for a while, or at the next start. The receiver
writes the pieces into a separate folder, which becomes the bucket's store once it is complete and durable.
"""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final, Protocol
from uuid import UUID

import msgspec

from headrace.broker.net.peers import PeerLostError
from headrace.protocol.errors import ErrorCode, KafkaError
from headrace.tablelayer.model import messages as m
from headrace.tablelayer.server.store import recovery
from headrace.tablelayer.server.store.errors import DamagedStoreError
from headrace.tablelayer.server.store.kv import KeyValueStore

if TYPE_CHECKING:
    from headrace.broker.context import BrokerContext
    from headrace.broker.partitions.topic import TopicImage
    from headrace.broker.runtime.ports import Disk

PIECE_BYTES: Final = 1 << 20
IDLE_SECONDS: Final = 60.0
COPIES_MAX: Final = 8
"""Maximum number of concurrent copies: each keeps the space of files that the store has merged in the meantime."""
MAKE_SECONDS: Final = 120.0
_CHANNEL: Final = "store-copies"
_NONE: Final = UUID(int=0)


class Workers(recovery.Workers, Protocol):
    """The threads for the work, and the broker's context."""

    store_disk: Disk
    context: BrokerContext


class NoCopyError(Exception):
    """No broker has a usable store now; one may have it later."""


class _Copy(msgspec.Struct):
    folder: Path
    names: frozenset[str]
    ends: asyncio.TimerHandle | None = None


class StoreCopies:
    """The copies that a broker sends. Runs on the event loop."""

    def __init__(self, services: Workers) -> None:
        self._services = services
        self._copies: dict[UUID, _Copy] = {}

    async def make(
        self, directory: Path, checkpoint: Callable[[Path], Awaitable[None]]
    ) -> tuple[UUID, list[m.CopiedFile]]:
        """Copy the store in `directory`: `checkpoint` puts it into the folder that it is given. Return the copy's id
        and files.

        Raises KafkaError if that fails or there is no store.
        """
        if len(self._copies) >= COPIES_MAX:
            raise KafkaError(
                ErrorCode.THROTTLING_QUOTA_EXCEEDED,
                f"{COPIES_MAX} stores are being copied already; try again",
            )
        services, copy_id = self._services, self._services.context.entropy.uuid()
        copy = self._copies[copy_id] = _Copy(
            directory.with_name(f"{directory.name}.copy-{copy_id.hex[:8]}"), frozenset()
        )
        try:
            await checkpoint(copy.folder)
            files = await services.run(_listed, services.store_disk, copy.folder)
        except BaseException:
            await self.done(copy_id)
            raise
        if not files:
            await self.done(copy_id)
            raise KafkaError(ErrorCode.NOT_LEADER_OR_FOLLOWER, "this broker has no store to copy now")
        copy.names = frozenset(file.name for file in files)
        self._keep(copy_id, copy)
        return copy_id, files

    def _keep(self, copy_id: UUID, copy: _Copy) -> None:
        if copy.ends is not None:
            copy.ends.cancel()
        copy.ends = asyncio.get_running_loop().call_later(IDLE_SECONDS, self._idle, copy_id)

    def _idle(self, copy_id: UUID) -> None:
        self._services.context.background.start(self.done(copy_id), "an unused copy of a store")

    async def read(self, copy_id: UUID, name: str, position: int) -> bytes:
        """Return a piece of a file of a copy. Raises KafkaError."""
        copy = self._copies.get(copy_id)
        if copy is None or name not in copy.names or position < 0:
            raise KafkaError(ErrorCode.INVALID_REQUEST, f"the copy of a store has no piece {name!r:.100}")
        self._keep(copy_id, copy)
        return await self._services.run(_piece, self._services.store_disk, copy.folder / name, position)

    async def done(self, copy_id: UUID) -> None:
        copy = self._copies.pop(copy_id, None)
        if copy is not None:
            if copy.ends is not None:
                copy.ends.cancel()
            await self._services.run(self._services.store_disk.remove_tree, copy.folder)


def _listed(disk: Disk, folder: Path) -> list[m.CopiedFile]:
    if not disk.is_directory(folder):
        return []
    return [
        m.CopiedFile(name=name, size=disk.size(folder / name) or 0) for name in sorted(disk.names(folder))
    ]


def _piece(disk: Disk, path: Path, position: int) -> bytes:
    file = disk.open_read_only(path)
    try:
        return bytes(file.read(PIECE_BYTES, position))
    finally:
        file.close()


async def copy_store(
    services: Workers,
    topic: TopicImage,
    bucket: int,
    directory: Path,
    brokers: Sequence[int],
    *,
    least_offset: int,
    is_over: Callable[[], bool],
) -> KeyValueStore:
    """Copy a store into `directory` from the first of these brokers that has it up to `least_offset`; return it.

    `is_over` returns True once the store is no longer needed. Raises NoCopyError, OSError.
    """
    disk, reasons = services.store_disk, []
    for broker in brokers:
        if broker < 0 or is_over():
            continue
        partial = directory.with_name(f"{directory.name}.copied")
        try:
            await _fetch(services, topic.name, bucket, broker, partial, is_over)
            await services.run(_exchange, disk, partial, directory)
            store = await services.open_store(
                KeyValueStore.open, directory, services.memory, topic.partition_count
            )
        except (PeerLostError, KafkaError, DamagedStoreError) as error:
            reasons.append(f"broker {broker}: {error}")
            await services.run(disk.remove_tree, partial)
            continue
        if store.applied_offset >= least_offset:
            return store
        reasons.append(
            f"broker {broker} has it up to offset {store.applied_offset}, but {least_offset} is needed"
        )
        await services.run(store.destroy)
    raise NoCopyError(
        "no other broker has a usable store: "
        + ("; ".join(reasons) or "there is no other broker with a replica")
    )


async def _fetch(
    services: Workers, topic: str, bucket: int, broker: int, folder: Path, is_over: Callable[[], bool]
) -> None:
    peers, disk = services.context.peers, services.store_disk

    async def ask(**wanted: Any) -> m.CopyStoreResponse:
        request = m.CopyStoreRequest(topic=topic, bucket=bucket, **wanted)
        answer = await peers.ask(broker, request, m.CopyStoreResponse, channel=_CHANNEL, seconds=MAKE_SECONDS)
        if answer.error_code:
            raise KafkaError(ErrorCode.NOT_LEADER_OR_FOLLOWER, answer.error_message or "it has no store")
        return answer

    made = await ask()
    try:
        await services.run(_empty, disk, folder)
        for file in made.files:
            if not file.name or "/" in file.name or file.name.startswith("."):
                raise KafkaError(ErrorCode.INVALID_REQUEST, f"{file.name!r:.100} is not a file of a store")
            position = 0
            while position < file.size:
                if is_over():
                    raise KafkaError(ErrorCode.NOT_LEADER_OR_FOLLOWER, "the copy is no longer needed")
                piece = await ask(copy_id=made.copy_id, file=file.name, position=position)
                if not piece.data:
                    raise KafkaError(ErrorCode.CORRUPT_MESSAGE, f"{file.name} ends at {position}")
                await services.run(_write, disk, folder / file.name, piece.data, position)
                position += len(piece.data)
    finally:
        services.context.background.start(_let_go(ask, made.copy_id), "a store that was copied")


async def _let_go(ask: Callable[..., Awaitable[object]], copy_id: UUID) -> None:
    try:
        await ask(copy_id=copy_id, done=True)
    except (PeerLostError, KafkaError):
        return  # the other broker removes it after a while


def _empty(disk: Disk, folder: Path) -> None:
    disk.remove_tree(folder)
    disk.make_directory(folder)


def _write(disk: Disk, path: Path, data: bytes, position: int) -> None:
    file = disk.open(path, create=position == 0)
    try:
        file.write([data], position)
    finally:
        file.close()


def _exchange(disk: Disk, copied: Path, directory: Path) -> None:
    for name in disk.names(copied):
        file = disk.open_read_only(copied / name)
        file.sync()
        file.close()
    disk.sync_directory(copied)
    disk.remove_tree(directory)
    disk.rename(copied, directory)
    disk.sync_directory(directory.parent)
