"""Committed positions of consumer groups in remote storage, written beside segments (`group_copy`) and read by a new
machine (`bootstrap`).

    cluster/<cluster id>/groups/<index>/positions-<n>.gz
        of the groups of one partition of `__consumer_offsets`; the highest number is valid

Compressed: a line of JSON (`Head`), then record batches as they are on `__consumer_offsets`, with positions and
generations (`broker.groups.offsets.positions`), without members and times. Numbers are created, never replaced, and
each object has its precedence `(claim, leader_epoch)`; the higher one is valid. So an earlier leader of the partition,
or an earlier owner of remote storage, notices and stops writing.
"""

from __future__ import annotations

import gzip
import re
import zlib
from collections.abc import Iterable, Iterator, Mapping
from typing import TYPE_CHECKING, Final

import msgspec

from headrace.broker.groups.journal.records import decode_journal_batch, encode_journal_batch
from headrace.broker.groups.model.records import JournalRecord
from headrace.broker.groups.offsets.positions import GroupPositions, records_of
from headrace.broker.remote.cluster_copy import FOLDER, ClusterCopyError
from headrace.protocol.errors import DecodeError
from headrace.protocol.records.header import iter_headers

if TYPE_CHECKING:
    from headrace.broker.objects.files import RemoteFiles

_VERSION: Final = 1
_NAME: Final = re.compile(r"positions-(\d{20})\.gz")
_PROBED: Final = 16
"""Tolerance for stale listings: they may show this many removed numbers, or miss this many new ones."""
BATCH_RECORDS: Final = 1_000


class Head(msgspec.Struct, frozen=True):
    """The head of an object. `topics`: ids of the topics with positions, by name. `claim`: of the cluster's owner
    (`cluster_copy`); `leader_epoch`: of the partition.
    """

    cluster_id: str
    claim: int
    leader_epoch: int
    writer: str
    made_ms: int
    topics: Mapping[str, str]
    version: int = _VERSION

    @property
    def right(self) -> tuple[int, int]:
        return self.claim, self.leader_epoch


def body_of(groups: Iterable[GroupPositions], topics: Mapping[str, str]) -> bytes:
    """Return the body: the same for the same positions, whatever the order of groups. Raises KafkaError."""
    records: list[JournalRecord] = []
    for group in sorted(groups, key=lambda each: each.group_id):
        records += records_of(group, topics)
    return b"".join(
        encode_journal_batch(records[first : first + BATCH_RECORDS], 0)
        for first in range(0, len(records), BATCH_RECORDS)
    )


def encode(head: Head, body: bytes) -> bytes:
    return gzip.compress(b"%b\n%b" % (msgspec.json.encode(head), body), 1, mtime=0)


def decode_head(name: str, data: bytes) -> Head:
    """Return the head of an object. Raises ClusterCopyError."""
    return _parts(name, data)[0]


def decode(name: str, data: bytes) -> tuple[Head, Iterator[JournalRecord]]:
    """Return the head and the records of an object. Raises ClusterCopyError, also for damaged objects, before the first
    record.
    """
    head, body = _parts(name, data)
    try:
        batches = [body[position : position + each.size] for position, each in iter_headers(memoryview(body))]
    except DecodeError as error:
        raise ClusterCopyError(f"{name} cannot be read: {error}") from error
    if sum(map(len, batches)) != len(body):
        raise ClusterCopyError(f"{name} cannot be read: a part of it is missing")
    return head, (record for batch in batches for record in decode_journal_batch(batch))


def _parts(name: str, data: bytes) -> tuple[Head, bytes]:
    try:
        line, _, body = gzip.decompress(data).partition(b"\n")
        version = msgspec.json.decode(line, type=_Version).version
        if version > _VERSION:
            raise NewerError(f"{name} was written by a newer version: upgrade first")
        return msgspec.json.decode(line, type=Head), body
    except (OSError, EOFError, zlib.error, msgspec.DecodeError) as error:
        raise ClusterCopyError(f"{name} cannot be read: {error}") from error


class _Version(msgspec.Struct):
    version: int


class NewerError(ClusterCopyError):
    """The object has a version that this program does not support."""


def folder_of(cluster_id: str) -> str:
    return f"{FOLDER}/{cluster_id}/groups"


def name_of(cluster_id: str, index: int, number: int) -> str:
    return f"{folder_of(cluster_id)}/{index}/positions-{number:020d}.gz"


def listed(files: RemoteFiles, cluster_id: str) -> dict[int, list[int]]:
    """Return the existing numbers by partition, in order. A listing may be stale. Blocking. Raises OSError."""
    found: dict[int, list[int]] = {}
    for name in files.names(folder_of(cluster_id)):
        index, _, short = name.removeprefix(f"{folder_of(cluster_id)}/").partition("/")
        number = _NAME.fullmatch(short)
        if number is not None and index.isdigit():
            found.setdefault(int(index), []).append(int(number.group(1)))
    return {index: sorted(numbers) for index, numbers in sorted(found.items())}


def read_newest(files: RemoteFiles, cluster_id: str) -> dict[str, bytes]:
    """Return the valid object of each partition, by its name. Blocking. Raises OSError."""
    found: dict[str, bytes] = {}
    for index, numbers in listed(files, cluster_id).items():
        newest: tuple[str, bytes] | None = None
        for number in range(numbers[-1], numbers[-1] + _PROBED):
            name = name_of(cluster_id, index, number)
            try:
                newest = name, files.read(name)
            except FileNotFoundError:
                if newest is not None:
                    break
        if newest is None:
            raise OSError(f"{folder_of(cluster_id)}/{index} changes faster than it can be read")
        found[newest[0]] = newest[1]
    return found
