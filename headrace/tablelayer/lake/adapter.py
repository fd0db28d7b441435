"""What tiering asks of a lake, and the words for it. One small adapter per lake format implements `LakeTable`.

The offsets up to which a table was tiered live **inside the lake's own snapshot**, committed in one step
with the rows, so they can never disagree with them. What the server keeps is a copy.

    headrace.offsets    {"0": 1200, ...}   exclusive ends, by bucket (`model/lake/offsets.py`)
    headrace.table-id   the table's id, also of the lake table: a table dropped and created again has another one
    headrace.epoch      the tiering round's epoch
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any, Protocol

from headrace.tablelayer.model.lake.offsets import (
    Offsets,
    PartitionBucket,
    offsets_to_json,
    partitions_of,
)
from headrace.tablelayer.model.table.definition import TableDefinition
from headrace.tablelayer.model.table.partition_keys import values_of
from headrace.tablelayer.model.types.values import literal_sql

OFFSETS_PROPERTY = "headrace.offsets"
TABLE_ID_PROPERTY = "headrace.table-id"
EPOCH_PROPERTY = "headrace.epoch"
BRANCH_PREFIX = "hr_"
TIERED_NAME = "headrace_tiered"
"""Of what keeps the last round's snapshot from expiry: a tag of Iceberg's, a consumer of Paimon's."""


class LakeError(Exception):
    """Tiering or reading the lake cannot go on. The message says which table, what was found and what to do."""


class RoundLostError(LakeError):
    """Somebody else committed to the lake table first. Nothing of this round is in it."""


@dataclass(frozen=True, slots=True)
class LakeState:
    """What one look at the lake table found.

    `head` is its current snapshot (None: it has none yet); `committed` the newest snapshot in the head's
    history that tiering made (None: none so far); `offsets` what is tiered, by place, as exclusive ends.
    """

    head: int | None = None
    committed: int | None = None
    offsets: Offsets = field(default_factory=dict)
    epoch: int = -1


def round_properties(definition: TableDefinition, offsets: Offsets, epoch: int) -> dict[str, str]:
    """What a round's snapshot says of it."""
    return {
        OFFSETS_PROPERTY: offsets_to_json(offsets),
        TABLE_ID_PROPERTY: str(definition.table_id),
        EPOCH_PROPERTY: str(epoch),
    }


class LakeTable(Protocol):
    """One table in a lake."""

    def stored_definition(self) -> TableDefinition | None:
        """The definition that the lake table was made or last changed from; None if there is no such table."""

    def find_committed(self, known_snapshot: int | None = None) -> LakeState:
        """The table's state, read from the lake itself.

        `known_snapshot` is the last one the server was told of: a witness for the case that the history in
        between was expired. Raises LakeError when the table belongs to another table id, or when its
        history no longer says what was tiered.
        """

    def write(self, base: LakeState, changes: Any, offsets: Offsets, epoch: int) -> int:
        """Write a round where no reader sees it, on top of `base`, `offsets` with it; the new snapshot's id.

        `changes`: a DataFrame; for a PK table the last change of each key, with a column `_deleted`. A round may
        be written in several pieces, each on top of the one before, with the same epoch.

        Of a partitioned table a round has only rows of the partitions whose offsets differ from `base`'s; what the
        lake still has of those in `new_partitions(base, offsets)` is of earlier ones of the same name, and goes in
        the same step.
        """

    def commit(self, base: LakeState, snapshot: int, epoch: int) -> None:
        """Make the written round the table's current state, if that is still `base`.

        Raises RoundLostError if it is not. When an error hides the outcome, the lake is looked at again:
        returning means committed, any other exception means not committed.
        """

    def discard(self, epoch: int) -> None:
        """Forget what this and earlier rounds wrote and did not commit. Never raises."""

    def maintain(self) -> str:
        """Compact and expire as the table's options ask for, if it is worth while; what was done, for a person.

        Offsets can be found afterwards as before. Called by the holder of the round after its last commit; a
        commit of somebody else meanwhile wins over it.
        """

    def read(self, snapshot: int | None = None) -> Any:
        """A DataFrame of the table at a snapshot (None: now), with the table's own types."""

    def snapshots(self) -> Any:
        """A DataFrame with a row for each snapshot that is left, the oldest first.

        Columns: `snapshot_id`, `parent_id`, `committed_at`, `operation`, and for those that tiering made `epoch`
        and `offsets`, a map of exclusive ends by bucket, or for a partitioned table of such maps by partition.
        """


def new_partitions(base: LakeState, offsets: Offsets) -> list[str]:
    """Names of the partitions that this round is the first of: they are new, or made anew under an old name."""
    known = {place.table_id for place in base.offsets if isinstance(place, PartitionBucket)}
    return partitions_of(
        [place for place in offsets if isinstance(place, PartitionBucket) and place.table_id not in known]
    )


def touched_partitions(base: LakeState, offsets: Offsets) -> list[str]:
    """Names of the partitions that a round from `base` to `offsets` may have rows of."""
    return partitions_of([place for place, offset in offsets.items() if base.offsets.get(place) != offset])


def partition_condition(definition: TableDefinition, partitions: Sequence[str], prefix: str = "") -> str:
    """In SQL: whether a row is in one of these partitions."""
    columns = [definition.schema.column(key) for key in definition.partition_keys]
    each = [
        " AND ".join(
            f"{prefix}`{column.name}` = {literal_sql(text, column.type)}"
            for column, text in zip(columns, values_of(name), strict=True)
        )
        for name in partitions
    ]
    return "(" + " OR ".join(f"({one})" for one in each) + ")"
