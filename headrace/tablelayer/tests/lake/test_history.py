"""The tiered offsets in a lake table's history; `test_tiering.py` and `test_paimon.py` have real histories."""

from __future__ import annotations

from uuid import UUID

import pytest

from headrace.tablelayer.lake.adapter import LakeError, LakeState, round_properties
from headrace.tablelayer.lake.history import LakeSnapshot, find_committed
from headrace.tablelayer.model.schema.schema import Schema
from headrace.tablelayer.model.table.definition import StoredTable, TableDefinition
from headrace.tablelayer.model.table.path import TablePath
from headrace.tablelayer.model.types.column_types import INT

TABLE = StoredTable(TablePath("shop", "orders"), Schema.of([("id", INT)], ()), table_id=UUID(int=1))
OWNER = str(TABLE.table_id)
OTHERS = {"operation": "replace"}


class History:
    """Snapshots numbered from 1, of which some may be gone."""

    def __init__(self) -> None:
        self.snapshots: dict[int, LakeSnapshot] = {}

    def add(self, offset: int | None = None, table: TableDefinition = TABLE) -> int:
        """Add a snapshot; one without an offset belongs to another engine."""
        number = len(self.snapshots) + 1
        properties = OTHERS if offset is None else round_properties(table, {0: offset}, offset + 1)
        self.snapshots[number] = LakeSnapshot(number, number - 1 or None, properties)
        return number

    def found(self, head: int | None, vouched_for: int | None = None, owner: str = OWNER) -> LakeState:
        return find_committed(TABLE, owner, head, self.snapshots.get, vouched_for)


def test_the_newest_snapshot_with_offsets_counts() -> None:
    history = History()
    assert history.found(None) == LakeState()
    history.add()
    assert history.found(1) == LakeState(head=1)
    for offset in (5, 8):
        history.add(offset)
    history.add()
    history.snapshots[5] = LakeSnapshot(5, 4, None)
    assert history.found(5) == LakeState(5, 3, {0: 8}, 9)
    assert history.found(2) == LakeState(2, 2, {0: 5}, 6)


def test_an_expired_commit_counts_only_with_a_witness() -> None:
    history = History()
    for offset in (None, 5, 8, None, None):
        history.add(offset)
    gone = history.snapshots.pop(4)
    assert history.found(5, vouched_for=3) == LakeState(5, 3, {0: 8}, 9)
    for witness in (None, 1, 4):
        with pytest.raises(LakeError, match="would duplicate"):
            history.found(5, vouched_for=witness)
    history.snapshots[4] = gone
    assert history.found(5, vouched_for=2) == LakeState(5, 3, {0: 8}, 9), (
        "the history goes before the witness"
    )


def test_another_tables_lake_is_never_taken() -> None:
    history = History()
    history.add(5, TABLE.with_id(UUID(int=2)))
    for owner in (str(UUID(int=2)), OWNER):
        with pytest.raises(LakeError, match="dropped and created again"):
            history.found(1, owner=owner)
    with pytest.raises(LakeError, match="dropped and created again"):
        history.found(None, owner=str(UUID(int=2)))
