"""Copy the metadata of topics, tables, configurations and users to remote storage, beside segments, so that a new
machine can start from remote storage alone (`bootstrap`). This module is for a single broker, `shared_copy` for a
cluster.

    cluster/<cluster id>/metadata-<n>.json.gz   its coordination store (`ClusterImage`); the highest number is valid
    cluster/<cluster id>/claim-<n>.json         the owner since metadata number n; the highest is valid
    cluster/<cluster id>/groups/                committed positions of consumer groups (`group_positions`)

Numbers are created, never replaced. A broker creates the next one when it starts, before it writes anything else to
remote storage, and after each change of its store; it regularly checks for a later one. So if two brokers run with the
same identity, the later one writes; the other one notices, and only reads from then on.

The copy contains ACLs and the users' password verifiers: readers of remote storage can read them.
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
"""Versions of the copy. The second one is a cluster's: a program that cannot make a single broker of it must refuse it.
"""
_VERSION: Final = OF_SEVERAL
_NAME: Final = re.compile(r"metadata-(\d{20})\.json\.gz")
_CLAIM: Final = re.compile(r"claim-(\d{20})\.json")
_PROBED: Final = 16
"""Tolerance for stale listings: they may show this many removed numbers, or miss this many new ones."""


class ClusterCopyError(Exception):
    """The copy of a cluster cannot be used; the text is for users."""


class ReplacedError(Exception):
    """Another broker has taken over this broker's remote storage."""


class ClusterImage(msgspec.Struct, frozen=True):
    """The copied metadata of a cluster. `layout`: the writer's version of data directories. `controller_epoch`: of the
    controller that wrote it, -1 of a single broker. `claim`: the number of the writer's claim, 0 if unknown.
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
        """The precedence of the copy: the higher one is valid."""
        return self.claim, self.controller_epoch

    def encode(self) -> bytes:
        return gzip.compress(msgspec.json.encode(self), 1, mtime=0)

    @classmethod
    def decode(cls, name: str, data: bytes) -> ClusterImage:
        """Decode a copy. Raises ClusterCopyError."""
        try:
            text = gzip.decompress(data)
            head = msgspec.json.decode(text, type=_Head)
            if head.version > _VERSION or head.layout > LAYOUT_VERSION:
                raise ClusterCopyError(
                    f"{name} was written by a newer version (layout {head.layout}; supported: {LAYOUT_VERSION}): "
                    "upgrade first"
                )
            return msgspec.json.decode(text, type=cls)
        except (OSError, EOFError, zlib.error, msgspec.DecodeError) as error:
            raise ClusterCopyError(f"{name} cannot be read: {error}") from error


class _Head(msgspec.Struct):
    version: int
    layout: int


class Store(Protocol):
    """The store to copy."""

    @property
    def changes(self) -> int: ...

    async def image(self) -> StoreImage: ...


@dataclass(frozen=True, slots=True)
class Place:
    """A broker's place for metadata in remote storage, and its identity there. `writer`: a unique id of this process;
    `executor`: its threads wait for the network.
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
        """Return the newest numbers of metadata and of claims."""
        return await self.run(newest_numbers, self.files, self.cluster_id)

    async def make_claim(self, number: int) -> None:
        """Make a claim; see the function."""
        await self.run(make_claim, self.files, self.cluster_id, number, self.writer)

    def read(self, number: int) -> ClusterImage:
        """Read metadata. Blocking. Raises ClusterCopyError, OSError."""
        name = name_of(self.cluster_id, number)
        return ClusterImage.decode(name, self.files.read(name))

    def create(self, number: int, data: bytes) -> None:
        """Create metadata. Blocking. Raises FileExistsError, OSError."""
        self.files.put(name_of(self.cluster_id, number), data, create=True)

    def remove(self, number: int) -> None:
        """Remove metadata. Blocking. Raises OSError."""
        self.files.remove(name_of(self.cluster_id, number))

    def remove_older(self, number: int) -> None:
        """Remove older claims and metadata; see the function. Blocking."""
        remove_older(self.files, self.cluster_id, number)


class ClusterCopy:
    """The copy of a single broker."""

    def __init__(self, place: Place, store: Store) -> None:
        self._place = place
        self._store = store
        self.claim: int | None = None
        """The number of this broker's claim; None before it."""
        self._number = 0
        self._lowest = 0
        """The lowest metadata number that may exist."""
        self._has_removed = False
        """True once the objects of earlier owners were removed; by then this broker has written some."""
        self._written: StoreImage | None = None
        self._changes = -1

    is_writer: Final = True

    async def keep(self) -> bool:
        """Claim remote storage, and copy the store if it has changed. Raises ReplacedError, OSError."""
        metadata, claim = await self._place.newest_numbers()
        if self.claim is None:
            number = max(metadata, claim) + 1
            await self._place.make_claim(number)
            self.claim = self._lowest = number
            self._number = number - 1
        else:
            # A listing may be stale, and the next number may be gone already.
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
        """Return whether metadata of this number exist. Raises ReplacedError if a later broker has written them."""
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
            self._written = None  # the earlier owner has not noticed yet
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
                self._number = number  # from an earlier process, or one whose answer was lost
                continue
            self._number = number
            break
        if not self._has_removed:
            place.remove_older(self.claim)
            self._has_removed = True
        with contextlib.suppress(OSError):  # objects that stay are removed with the next one
            for older in range(self._lowest, number):
                place.remove(older)
                self._lowest = older + 1


def name_of(cluster_id: str, number: int) -> str:
    return f"{FOLDER}/{cluster_id}/metadata-{number:020d}.json.gz"


def clusters(files: RemoteFiles) -> list[str]:
    """Return the ids of the clusters with metadata there. Blocking. Raises OSError."""
    found = (name.split("/") for name in files.names(FOLDER))
    return sorted({parts[1] for parts in found if len(parts) == 3 and _NAME.fullmatch(parts[2])})


def newest_numbers(files: RemoteFiles, cluster_id: str) -> tuple[int, int]:
    """Return the newest numbers of metadata and of claims; 0 without any. A listing may be stale. Blocking. Raises
    OSError.
    """
    names = [name.rpartition("/")[2] for name in files.names(f"{FOLDER}/{cluster_id}")]

    def newest(pattern: re.Pattern[str]) -> int:
        found = map(pattern.fullmatch, names)
        return max((int(each.group(1)) for each in found if each is not None), default=0)

    return newest(_NAME), newest(_CLAIM)


def make_claim(files: RemoteFiles, cluster_id: str, number: int, writer: str) -> None:
    """Claim the cluster's remote storage for `writer`; the earlier owner will notice. Blocking. Raises FileExistsError,
    OSError: then make another claim with a higher number.
    """
    files.put(claim_name(cluster_id, number), msgspec.json.encode({"writer": writer}), create=True)


def remove_older(files: RemoteFiles, cluster_id: str, number: int) -> None:
    """Remove claims and metadata with lower numbers, once metadata with this number exist. Objects that cannot be
    removed stay until the next claim. Blocking.
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
    """Return the newest metadata. Blocking. Raises ClusterCopyError, OSError."""
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
        raise ClusterCopyError(f"{files} has no metadata of cluster {cluster_id}")
    return newest
