"""What is known of topics, tables, configurations and users, kept in remote storage beside segments: a new machine that
has nothing but remote storage goes on from there (`bootstrap`). Of a broker alone; `shared_copy` is that of a cluster.

    cluster/<cluster id>/metadata-<n>.json.gz   its coordination store (`ClusterImage`); the highest number counts
    cluster/<cluster id>/claim-<n>.json         who has what is there, since its metadata number n; the highest counts
    cluster/<cluster id>/groups/                what consumer groups have committed (`group_positions`)

Numbers are created, never replaced. A broker creates the next one when it starts, before it writes anything else to
remote storage, and whenever its store has changed since; it looks for a later one all the time. So of two brokers that
take themselves for the same one the later is the one that writes: the other one finds out, and only reads from then on.

ACLs and what users prove their passwords by are part of it: who may read remote storage may read those.
"""

from __future__ import annotations

import asyncio
import contextlib
import gzip
import re
import zlib
from collections.abc import Callable
from concurrent.futures import Executor
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Final, Protocol, TypeVar

import msgspec

from headrace.broker.partitions.data_dir import LAYOUT_VERSION
from headrace.broker.stores.embedded import StoreImage

if TYPE_CHECKING:
    from headrace.broker.objects.files import RemoteFiles

Result = TypeVar("Result")

FOLDER: Final = "cluster"
OF_ONE: Final = 1
OF_SEVERAL: Final = 2
"""Versions of what is written: of a cluster's metadata nobody can make a broker alone who does not know how."""
_VERSION: Final = OF_SEVERAL
_NAME: Final = re.compile(r"metadata-(\d{20})\.json\.gz")
_CLAIM: Final = re.compile(r"claim-(\d{20})\.json")
_PROBED: Final = 16
"""Numbers that a listing may still have though they are gone, or not have yet."""


class ClusterCopyError(Exception):
    """What there is of a cluster cannot be used; the text is for a person."""


class ReplacedError(Exception):
    """Another broker has gone on with what this one has in remote storage."""


class ClusterImage(msgspec.Struct, frozen=True):
    """`layout`: of data directories, as the broker knows it that has written this. `controller_epoch`: of the
    controller that has, -1 of a broker alone; `claim`: by which what is there was the writer's, 0 where that is not
    told.
    """

    cluster_id: str
    broker_id: int
    writer: str
    made_ms: int
    store: StoreImage
    layout: int = LAYOUT_VERSION
    version: int = OF_ONE
    controller_epoch: int = -1
    claim: int = 0

    @property
    def right(self) -> tuple[int, int]:
        """The higher one goes on."""
        return self.claim, self.controller_epoch

    def encode(self) -> bytes:
        return gzip.compress(msgspec.json.encode(self), 1, mtime=0)

    @classmethod
    def decode(cls, name: str, data: bytes) -> ClusterImage:
        """Raises ClusterCopyError."""
        try:
            text = gzip.decompress(data)
            head = msgspec.json.decode(text, type=_Head)
            if head.version > _VERSION or head.layout > LAYOUT_VERSION:
                raise ClusterCopyError(
                    f"{name} was written by a newer version (layout {head.layout}; this one knows {LAYOUT_VERSION}): "
                    "upgrade first"
                )
            return msgspec.json.decode(text, type=cls)
        except (OSError, EOFError, zlib.error, msgspec.DecodeError) as error:
            raise ClusterCopyError(f"{name} cannot be read: {error}") from error


class _Head(msgspec.Struct):
    version: int
    layout: int


class Store(Protocol):
    """What is copied."""

    @property
    def changes(self) -> int: ...

    async def image(self) -> StoreImage: ...


@dataclass(frozen=True, slots=True)
class Place:
    """Where a broker keeps what is not of partitions, and what it says there of itself. `writer`: this one life of it;
    `executor`: where the network is waited for.
    """

    files: RemoteFiles
    cluster_id: str
    broker_id: int
    writer: str
    time_ms: Callable[[], int]
    executor: Executor

    async def run(self, work: Callable[..., Result], *arguments: Any) -> Result:
        return await asyncio.get_running_loop().run_in_executor(self.executor, work, *arguments)

    async def newest_numbers(self) -> tuple[int, int]:
        """Of metadata and of claims, as `newest_numbers`."""
        return await self.run(newest_numbers, self.files, self.cluster_id)

    async def make_claim(self, number: int) -> None:
        """As `make_claim`."""
        await self.run(make_claim, self.files, self.cluster_id, number, self.writer)

    def read(self, number: int) -> ClusterImage:
        """Blocking. Raises ClusterCopyError, OSError."""
        name = name_of(self.cluster_id, number)
        return ClusterImage.decode(name, self.files.read(name))

    def create(self, number: int, data: bytes) -> None:
        """Blocking. Raises FileExistsError, OSError."""
        self.files.put(name_of(self.cluster_id, number), data, create=True)

    def remove(self, number: int) -> None:
        """Blocking. Raises OSError."""
        self.files.remove(name_of(self.cluster_id, number))

    def remove_older(self, number: int) -> None:
        """As `remove_older`. Blocking."""
        remove_older(self.files, self.cluster_id, number)


class ClusterCopy:
    """Of one broker alone."""

    def __init__(self, place: Place, store: Store) -> None:
        self._place = place
        self._store = store
        self.claim: int | None = None
        """The number by which this broker has what is there; None before."""
        self._number = 0
        self._lowest = 0
        """Of the numbers that may be there."""
        self._has_removed = False
        """What others had there before; then it has written something itself."""
        self._written: StoreImage | None = None
        self._changes = -1

    is_writer: Final = True

    async def keep(self) -> bool:
        """See that what is there is this broker's, and as it is now. Raises ReplacedError, OSError."""
        metadata, claim = await self._place.newest_numbers()
        if self.claim is None:
            number = max(metadata, claim) + 1
            await self._place.make_claim(number)
            self.claim = self._lowest = number
            self._number = number - 1
        else:
            # A listing may be behind, and the next one gone already.
            for number in sorted({self._number + 1, metadata}):
                if number > self._number and await self._place.run(self._is_there, number):
                    self._number = number
        changes = self._store.changes
        if changes == self._changes and self._written is not None:
            return True
        image = await self._store.image()
        if image != self._written:
            await self._place.run(self._write, image)
            self._written = image
        self._changes = changes
        return True

    def _is_there(self, number: int) -> bool:
        """Raises ReplacedError if it is of another broker that came later."""
        try:
            found = self._place.read(number)
        except FileNotFoundError:
            return False
        except ClusterCopyError as error:
            raise ReplacedError(str(error)) from error
        if found.writer != self._place.writer:
            if not 0 < found.claim < (self.claim or 0):
                raise ReplacedError(
                    f"{name_of(self._place.cluster_id, number)} was written by another broker"
                )
            self._written = None  # who had it before has not found out yet
        return True

    def _write(self, store: StoreImage) -> None:
        assert self.claim is not None
        place = self._place
        image = ClusterImage(
            place.cluster_id, place.broker_id, place.writer, place.time_ms(), store, claim=self.claim
        )
        data = image.encode()
        while True:
            number = self._number + 1
            try:
                place.create(number, data)
            except FileExistsError:
                if self._has_removed:
                    self._is_there(number)
                self._number = number  # of the life before, or one whose answer was lost
                continue
            self._number = number
            break
        if not self._has_removed:
            place.remove_older(self.claim)
            self._has_removed = True
        with contextlib.suppress(OSError):  # what stays goes with the next one
            for older in range(self._lowest, number):
                place.remove(older)
                self._lowest = older + 1


def name_of(cluster_id: str, number: int) -> str:
    return f"{FOLDER}/{cluster_id}/metadata-{number:020d}.json.gz"


def clusters(files: RemoteFiles) -> list[str]:
    """The ids of the clusters that have their metadata there. Blocking. Raises OSError."""
    found = (name.split("/") for name in files.names(FOLDER))
    return sorted({parts[1] for parts in found if len(parts) == 3 and _NAME.fullmatch(parts[2])})


def newest_numbers(files: RemoteFiles, cluster_id: str) -> tuple[int, int]:
    """Of metadata and of claims; 0 if there is none. A listing may be behind. Blocking. Raises OSError."""
    names = [name.rpartition("/")[2] for name in files.names(f"{FOLDER}/{cluster_id}")]

    def newest(pattern: re.Pattern[str]) -> int:
        found = map(pattern.fullmatch, names)
        return max((int(each.group(1)) for each in found if each is not None), default=0)

    return newest(_NAME), newest(_CLAIM)


def make_claim(files: RemoteFiles, cluster_id: str, number: int, writer: str) -> None:
    """From here on what is there is that one's, and whoever had it finds out. Blocking. Raises FileExistsError,
    OSError: another one is to be made then, of a higher number.
    """
    files.put(claim_name(cluster_id, number), msgspec.json.encode({"writer": writer}), create=True)


def remove_older(files: RemoteFiles, cluster_id: str, number: int) -> None:
    """Claims and metadata of lower numbers, once there are metadata of this one. What cannot be removed stays until
    somebody else claims what is there. Blocking.
    """
    with contextlib.suppress(OSError):
        for name in files.names(f"{FOLDER}/{cluster_id}"):
            short = name.rpartition("/")[2]
            older = _CLAIM.fullmatch(short) or _NAME.fullmatch(short)
            if older is not None and int(older.group(1)) < number:
                files.remove(name)


def claim_name(cluster_id: str, number: int) -> str:
    return f"{FOLDER}/{cluster_id}/claim-{number:020d}.json"


def read_newest(files: RemoteFiles, cluster_id: str) -> ClusterImage:
    """Blocking. Raises ClusterCopyError, OSError."""
    listed, _ = newest_numbers(files, cluster_id)
    newest: ClusterImage | None = None
    for number in range(listed or 1, listed + _PROBED):
        name = name_of(cluster_id, number)
        try:
            newest = ClusterImage.decode(name, files.read(name))
        except FileNotFoundError:
            if newest is not None:
                break
    if newest is None:
        raise ClusterCopyError(f"there is no metadata of cluster {cluster_id} in {files}")
    return newest
