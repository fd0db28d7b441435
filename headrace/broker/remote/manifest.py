"""The manifest of a partition's remote storage, and the names of objects. Pure.

    cluster/<cluster id>/metadata-<n>.json.gz all metadata of the cluster (`cluster_copy`)
    cluster/<cluster id>/groups/              committed positions of consumer groups (`group_positions`)
    <topic id>/topic.json                     name and partitions of the topic at the copy of its first segment
    <topic id>/<partition>/manifest-<n>.json  the list of segments; the highest number is valid.
    <topic id>/<partition>/<base>-<id>.segment
                                              a segment: the file of batches, then its offset index, its time index,
                                              the index of its aborted transactions, as they are on disk, and the
                                              snapshot of producers at its end

A segment is stored when a manifest names it. Each change is a manifest with the next number, which is created, never
replaced: of two writers, one fails and knows that it is not the leader any more. Objects without a manifest are left
over from an interruption, and are removed.
"""

from __future__ import annotations

import re
from collections.abc import Sequence
from typing import Final
from uuid import UUID

import msgspec

VERSION: Final = 1
_MANIFEST: Final = re.compile(r"manifest-(\d{20})\.json")


class ManifestError(Exception):
    """A manifest that cannot be used; the text gives the reason."""


class RemoteSegment(msgspec.Struct, frozen=True, omit_defaults=True):
    """`size` bytes of batches with offsets base_offset .. end_offset-1, and the sizes of its indexes. `epochs` are
    (leader epoch, start offset), beginning with the epoch of its first record. `producers_size`: of the snapshot of
    producers at its end; 0 without one. `common_size`: of its first batches, which earlier segments have, too.
    """

    id: str
    base_offset: int
    end_offset: int
    size: int
    index_size: int = 0
    time_index_size: int = 0
    aborted_size: int = 0
    largest_timestamp: int = -1
    offset_of_largest: int = -1
    first_timestamp: int = -1
    copied_ms: int = 0
    epochs: tuple[tuple[int, int], ...] = ()
    producers_size: int = 0
    common_size: int = 0

    @property
    def name(self) -> str:
        """The object's name in the partition's folder."""
        return f"{self.base_offset:020d}-{self.id}.segment"

    @property
    def newest_ms(self) -> int:
        """Time of the newest record, for retention; -1 if unknown."""
        return self.largest_timestamp

    @property
    def stored_size(self) -> int:
        return self.producers_position + self.producers_size

    @property
    def producers_position(self) -> int:
        """Position of the snapshot of producers in the object."""
        return self.size + self.index_size + self.time_index_size + self.aborted_size

    @property
    def last_epoch(self) -> int:
        """The leader epoch of its last record, -1 if unknown."""
        return self.epochs[-1][0] if self.epochs else -1


class Manifest(msgspec.Struct, frozen=True):
    """A list of segments in order, without gaps. `writer` shows who wrote it when an answer was lost. Offsets below
    `log_start_offset` are deleted, even if a segment has them.
    """

    number: int = 0
    writer: str = ""
    segments: tuple[RemoteSegment, ...] = ()
    version: int = VERSION
    log_start_offset: int = 0

    @property
    def name(self) -> str:
        """The manifest's name in the partition's folder."""
        return f"manifest-{self.number:020d}.json"

    @property
    def start_offset(self) -> int:
        return self.segments[0].base_offset if self.segments else 0

    @property
    def end_offset(self) -> int:
        return self.segments[-1].end_offset if self.segments else 0

    @property
    def last_epoch(self) -> int:
        """The leader epoch of the last record, -1 without any."""
        return self.segments[-1].last_epoch if self.segments else -1

    @property
    def size_bytes(self) -> int:
        return sum(segment.size for segment in self.segments)

    def epochs(self) -> list[tuple[int, int]]:
        """Return (leader epoch, start offset) of all segments."""
        found: dict[int, int] = {}
        for segment in self.segments:
            for epoch, start_offset in segment.epochs:
                found.setdefault(epoch, start_offset)
        return sorted(found.items())

    def with_segments(
        self, segments: Sequence[RemoteSegment], writer: str, log_start_offset: int
    ) -> Manifest:
        """Return the next manifest, with these segments."""
        return Manifest(self.number + 1, writer, tuple(segments), log_start_offset=log_start_offset)

    def encode(self) -> bytes:
        return msgspec.json.encode(self)

    @classmethod
    def decode(cls, data: bytes) -> Manifest:
        """Decode a manifest. Raises ManifestError."""
        try:
            manifest = msgspec.json.decode(data, type=cls)
        except msgspec.DecodeError as error:
            raise ManifestError(f"a manifest cannot be read: {error}") from error
        if manifest.version != VERSION:
            raise ManifestError(
                f"a manifest has version {manifest.version}; the supported version is {VERSION}"
            )
        for before, after in zip(manifest.segments, manifest.segments[1:], strict=False):
            # Leaders may end their segments at different offsets, so that two of them have common records.
            if before.end_offset < after.base_offset:
                raise ManifestError(
                    f"a manifest has a gap between offsets {before.end_offset} and {after.base_offset}"
                )
        return manifest


class TopicNote(msgspec.Struct, frozen=True):
    """A description of a topic for people who find its objects without the broker."""

    name: str
    topic_id: str
    partition_count: int
    config: dict[str, str]


def partition_folder(topic_id: UUID, index: int) -> str:
    return f"{topic_id}/{index}"


def manifest_number(name: str) -> int:
    """Return the number in the name of a manifest; 0 for other names."""
    found = _MANIFEST.fullmatch(name.rpartition("/")[2])
    return 0 if found is None else int(found.group(1))
