"""The ledger of a writer: its last decided batch, as stored in the coordination store."""

from __future__ import annotations

import json
from collections.abc import Mapping
from typing import Any
from uuid import UUID

import msgspec
from msgspec.structs import asdict, replace

from headrace.protocol.errors import DecodeError
from headrace.protocol.records.header import MAX_SEQUENCE
from headrace.tablelayer.model.errors import TableError, TableErrorCode
from headrace.tablelayer.server.staged.place import Place


class Ledger(msgspec.Struct, frozen=True):
    """The decision about a writer's last batch.

    `written` counts chunks by bucket, after a failed commit. `partitions` are the partitions with rows of the batch, in
    a partitioned table. `chunks` is the number of committed chunks for each bucket (None: unknown, decided by an older
    version).
    """

    writer: str
    producer_id: int
    batch_id: int
    attempts: tuple[str, ...]
    first_sequence: int
    kept_ms: int
    updated_ms: int
    done: bool = False
    written: Mapping[Place, int] = msgspec.field(default_factory=dict)
    partitions: tuple[UUID, ...] = ()
    chunks: Mapping[Place, int] | None = None

    def to_json(self) -> bytes:
        value = asdict(self) | {
            "version": 1,
            "written": _by_text(self.written),
            "partitions": [str(each) for each in self.partitions],
            "chunks": None if self.chunks is None else _by_text(self.chunks),
        }
        return json.dumps(value).encode()

    @classmethod
    def from_json(cls, data: bytes) -> Ledger:
        """Return the ledger from bytes of the coordination store."""
        value: dict[str, Any] = json.loads(data)
        del value["version"]
        value["attempts"] = tuple(value["attempts"])
        value["written"] = _by_place(value["written"])
        value["partitions"] = tuple(UUID(each) for each in value.get("partitions", ()))
        if value.get("chunks") is not None:
            value["chunks"] = _by_place(value["chunks"])
        return cls(**value)

    @classmethod
    def from_broker(cls, data: bytes) -> Ledger:
        """Return the ledger from bytes of another broker. Raises DecodeError."""
        try:
            return msgspec.convert(asdict(cls.from_json(data)), cls)
        except (ValueError, TypeError, KeyError, AttributeError, RecursionError) as error:
            raise DecodeError(f"the decision of another broker cannot be read: {error!r:.200}") from None

    def sequence(self, number: int) -> int:
        """Return the sequence number of a chunk; chunks are numbered from 0."""
        return (self.first_sequence + number) & MAX_SEQUENCE

    def chunks_for(self, place: Place, otherwise: int) -> int:
        """Return the number of chunks that were decided for a place; `otherwise` if that is unknown."""
        return otherwise if self.chunks is None else self.chunks.get(place, 0)

    def rows_missing(self, place: Place, there: int, decided: int) -> TableError:
        return TableError(
            TableErrorCode.STAGED_ROWS_MISSING,
            f"batch {self.batch_id} of {self.writer} is decided with {decided} staged chunks for bucket"
            f" {place.text}, but the disk has {there} of them: rows are lost, and the batch is not done. Put its"
            " files back, or write its rows and those after it under another writer's name",
        )


def following(ledger: Ledger, chunks: int, now_ms: int) -> Ledger:
    """Return the ledger after its batch was written; `chunks` is the largest number of chunks in a bucket."""
    return replace(
        ledger,
        done=True,
        attempts=(),
        partitions=(),
        chunks=None,
        written={},
        first_sequence=ledger.sequence(chunks),
        updated_ms=now_ms,
    )


def _by_text(counts: Mapping[Place, int]) -> dict[str, int]:
    return {place.text: count for place, count in counts.items()}


def _by_place(counts: Mapping[str, int]) -> dict[Place, int]:
    return {Place.from_text(text): count for text, count in counts.items()}
