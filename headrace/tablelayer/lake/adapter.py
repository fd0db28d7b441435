"""Interface between tiering and a lake format: each format has one adapter that implements `LakeTable`.

The offsets up to which a table was tiered live **inside the lake's own snapshot**. They are committed in one step with
the rows, so offsets and rows cannot disagree. The server keeps only a copy. Properties of a snapshot:

    headrace.offsets    {"0": 1200, ...}   exclusive ends, by bucket (`model/lake/offsets.py`)
    headrace.table-id   id of the table, also a property of the lake table; a recreated table has a new id
    headrace.epoch      epoch of the tiering round
"""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, Protocol
from uuid import UUID

from headrace.tablelayer.client.errors import ClientError
from headrace.tablelayer.model.lake.offsets import (
    Offsets,
    PartitionBucket,
    offsets_to_json,
    partitions_of,
)
from headrace.tablelayer.model.table.definition import StoredTable
from headrace.tablelayer.model.table.partition_keys import values_of
from headrace.tablelayer.model.types.values import literal_sql

OFFSETS_PROPERTY = "headrace.offsets"
TABLE_ID_PROPERTY = "headrace.table-id"
EPOCH_PROPERTY = "headrace.epoch"
BRANCH_PREFIX = "hr_"
TIERED_NAME = "headrace_tiered"
"""Name of the reference that keeps the last round's snapshot from expiry: an Iceberg tag, a Paimon consumer."""


class LakeError(ClientError):
    """Tiering or reading the lake cannot continue. The message names the table, the cause and the remedy.

    `cut`: the log was cut while it was read. A new plan finds the rows in the lake.
    """

    cut = False


class LogCutError(LakeError):
    """The log no longer has rows that a planned read still needed."""

    cut = True


class RoundLostError(LakeError):
    """Another writer committed to the lake table first. Nothing of this round is in it."""


@dataclass(frozen=True, slots=True)
class LakeState:
    """State of a lake table, read at one moment.

    `head` is the current snapshot (None: there is none yet). `committed` is the newest snapshot in the head's history
    that tiering made (None: none so far). `offsets` are the tiered offsets by place, as exclusive ends. `dropped` are
    the partitions that clients dropped, ids by name; the server knows them, not the lake.
    """

    head: int | None = None
    committed: int | None = None
    offsets: Offsets = field(default_factory=dict)
    epoch: int = -1
    dropped: Mapping[str, UUID] = field(default_factory=dict, compare=False)


def round_properties(definition: StoredTable, offsets: Offsets, epoch: int) -> dict[str, str]:
    """Return the snapshot properties of a round."""
    return {
        OFFSETS_PROPERTY: offsets_to_json(offsets),
        TABLE_ID_PROPERTY: str(definition.table_id),
        EPOCH_PROPERTY: str(epoch),
    }


class LakeTable(Protocol):
    """One table in a lake."""

    def stored_definition(self) -> StoredTable | None:
        """Return the definition that the lake table was created or last changed from; None without a lake table."""

    def find_committed(self, known_snapshot: int | None = None) -> LakeState:
        """Read the table's state from the lake itself.

        `known_snapshot` is the last snapshot that was reported to the server. It is used when the history in between
        was expired. Raises LakeError when the lake table belongs to another table id, or when its history no longer
        shows the tiered offsets.
        """

    def write(self, base: LakeState, changes: Any, offsets: Offsets, epoch: int) -> int:
        """Write a round and its `offsets` on top of `base`, invisible to readers; return the new snapshot's id.

        `changes` is a DataFrame; for a PK table it has the last change of each key and a column `_deleted`. If it has
        the system columns, a lake table that is made now gets them; one that exists keeps the columns that it has. A
        round may be written in several pieces with the same epoch, each on top of the previous one.

        For a partitioned table, a round has rows only of the partitions whose offsets differ from those of `base`.
        Partitions in `replaced_partitions(base, offsets)` may have old rows in the lake, from a partition of the same
        name that a client dropped; they are deleted in the same step.
        """

    def commit(self, base: LakeState, snapshot: int, epoch: int) -> None:
        """Make the written round the table's current state, if the current state is still `base`.

        Raises RoundLostError if it is not. When an error hides the outcome, the adapter looks at the lake again: a
        return means committed, any other exception means not committed.
        """

    def discard(self, epoch: int) -> None:
        """Delete uncommitted data of this and earlier rounds. Never raises."""

    def maintain(self) -> str:
        """Compact and expire as the table's options ask, if worthwhile; return a readable summary of the work.

        Offsets can still be found afterwards. The holder of the round calls this after its last commit. A concurrent
        commit of another writer takes precedence.
        """

    def read(self, snapshot: int | None = None, *, system_columns: bool = False) -> Any:
        """Return a DataFrame of the table at a snapshot (None: now), with the table's own types.

        `system_columns`: they come last, if the lake table has them.
        """

    def snapshots(self) -> Any:
        """Return a DataFrame with a row for each remaining snapshot, oldest first.

        Columns: `snapshot_id`, `parent_id`, `committed_at`, `operation`. Snapshots made by tiering also have `epoch`
        and `offsets`: a map of exclusive ends by bucket, or for a partitioned table a map of such maps by partition.
        """


def replaced_partitions(base: LakeState, offsets: Offsets) -> list[str]:
    """Return the names of partitions whose first round this is, after a client dropped one of the same name."""
    known = {place.table_id for place in base.offsets if isinstance(place, PartitionBucket)}
    return partitions_of(
        [
            place
            for place in offsets
            if isinstance(place, PartitionBucket)
            and place.table_id not in known
            and place.partition in base.dropped
        ]
    )


def hidden_partitions(state: LakeState, existing: Collection[Any]) -> list[str]:
    """Return the names of partitions whose rows in the lake do not belong to the table: clients dropped them.

    The lake's rows are those of a later partition if its snapshot has offsets of one that is among the `existing`
    places. Others are earlier ones: a client may have dropped several of a name since the last round.
    """
    later = {
        place.partition
        for place in state.offsets
        if isinstance(place, PartitionBucket)
        and place in existing
        and state.dropped.get(place.partition, place.table_id) != place.table_id
    }
    return sorted(state.dropped.keys() - later)


def touched_partitions(base: LakeState, offsets: Offsets) -> list[str]:
    """Return the names of the partitions that may have rows in a round from `base` to `offsets`."""
    return partitions_of([place for place, offset in offsets.items() if base.offsets.get(place) != offset])


def partition_condition(definition: StoredTable, partitions: Sequence[str], prefix: str = "") -> str:
    """Return an SQL condition that is true for rows of these partitions."""
    columns = [definition.schema.column(key) for key in definition.partition_keys]
    each = [
        " AND ".join(
            f"{prefix}`{column.name}` = {literal_sql(text, column.type)}"
            for column, text in zip(columns, values_of(name), strict=True)
        )
        for name in partitions
    ]
    return "(" + " OR ".join(f"({one})" for one in each) + ")"
