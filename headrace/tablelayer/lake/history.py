"""Tiered offsets from a lake table's history: one rule for all formats, in Spark and without it.

The newest snapshot with tiering's properties in the history of the current one counts; other writers may have committed
on top of it. If the history was expired before such a snapshot was found, a snapshot that the caller vouches for is
accepted. Otherwise the tiered offsets are unknown, which is an error: starting over would duplicate rows.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

from headrace.tablelayer.lake.adapter import (
    EPOCH_PROPERTY,
    OFFSETS_PROPERTY,
    TABLE_ID_PROPERTY,
    LakeError,
    LakeState,
)
from headrace.tablelayer.model.lake.offsets import offsets_from_json
from headrace.tablelayer.model.table.definition import StoredTable


@dataclass(frozen=True, slots=True)
class LakeSnapshot:
    """One snapshot. `parent_id` None: it is the first. `properties` is a Python or Java mapping, or None."""

    snapshot_id: int
    parent_id: int | None
    properties: Any


def find_committed(
    definition: StoredTable,
    owner: str | None,
    head: int | None,
    look_up: Callable[[int], LakeSnapshot | None],
    vouched_for: int | None = None,
) -> LakeState:
    """Return the state of the lake table whose property names table id `owner` and whose current snapshot is `head`.

    `look_up` returns a snapshot, or None for an expired one. Raises LakeError when the lake table belongs to another
    table, or when its history no longer shows the tiered offsets.
    """
    _check_owner(definition, owner, "the lake table")
    if head is None:
        return LakeState()
    at: int | None = head
    while at is not None and (snapshot := look_up(at)) is not None:
        found = committed_in(definition, snapshot, head)
        if found is not None:
            return found
        at = snapshot.parent_id
    if at is None:  # the whole history was seen: nothing was ever tiered
        return LakeState(head=head)
    witness = None if vouched_for is None else look_up(vouched_for)
    found = None if witness is None else committed_in(definition, witness, head)
    if found is None:
        raise LakeError(
            f"the history of the lake table of {definition.path} no longer shows which offsets were tiered: the"
            f" snapshots with {OFFSETS_PROPERTY} were expired. Tiering stops: starting over would duplicate rows."
            " Drop the lake table to have it rebuilt."
        )
    return found


def committed_in(definition: StoredTable, snapshot: LakeSnapshot, head: int) -> LakeState | None:
    """Return the state that a snapshot of tiering records; None for a snapshot of another writer.

    Raises LakeError when the snapshot belongs to another table.
    """
    text = None if snapshot.properties is None else snapshot.properties.get(OFFSETS_PROPERTY)
    if text is None:
        return None
    number = snapshot.snapshot_id
    owner = snapshot.properties.get(TABLE_ID_PROPERTY)
    _check_owner(definition, owner, f"snapshot {number} of the lake table")
    epoch = int(snapshot.properties.get(EPOCH_PROPERTY) or -1)
    return LakeState(head, number, offsets_from_json(text), epoch)


def _check_owner(definition: StoredTable, owner: str | None, what: str) -> None:
    if owner != str(definition.table_id):
        raise LakeError(
            f"{what} of {definition.path} belongs to table id {owner}, but the table is {definition.table_id}: it was"
            " dropped and created again. Drop or rename the lake table, then tier again."
        )
