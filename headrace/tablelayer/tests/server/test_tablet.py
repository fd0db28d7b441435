"""A bucket's state between log and store, alone: the time from which it may be stored, and storing in one step."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pytest

from headrace.tablelayer.model.batches.batch import ChangeType
from headrace.tablelayer.model.ddl.clauses import parse_columns
from headrace.tablelayer.model.rows.versions import decode_stored
from headrace.tablelayer.model.table.definition import TableDefinition
from headrace.tablelayer.model.table.path import TablePath
from headrace.tablelayer.server.limits import Limits
from headrace.tablelayer.server.merge.engines import Operations
from headrace.tablelayer.server.merge.writes import Writer
from headrace.tablelayer.server.read.time_travel import _move
from headrace.tablelayer.server.store.errors import DamagedStoreError
from headrace.tablelayer.server.store.kv import KeyValueStore
from headrace.tablelayer.server.store.row_ttl import RowTimes
from headrace.tablelayer.server.store.shared_memory import SharedMemory
from headrace.tablelayer.server.store.tablet import PreparedWrite, Tablet, changes_of

LIMITS = Limits()
TABLE = TableDefinition(
    TablePath("default", "t"), parse_columns("k INT, v INT, PRIMARY KEY (k) NOT ENFORCED"), bucket_key=("k",)
)
FIRST, SECOND = b"\x01first", b"\x01second"


@pytest.fixture
def store(tmp_path: Path) -> Iterator[KeyValueStore]:
    store = KeyValueStore.open(tmp_path / "store", SharedMemory(LIMITS))
    yield store
    store.close()


class Interrupted:
    """RocksDB that fails with every write after the first."""

    def __init__(self, database: Any) -> None:
        self._database = database
        self._writes = 0

    def __getattr__(self, name: str) -> Any:
        return getattr(self._database, name)

    def write(self, *arguments: Any) -> None:
        self._writes += 1
        if self._writes > 1:
            raise OSError("the power is gone")
        self._database.write(*arguments)


def test_r12_1_a_write_is_covered_when_all_of_it_is_replicated(store: KeyValueStore) -> None:
    tablet = Tablet(store)
    tablet.logged(PreparedWrite(bytearray(), [FIRST], [b"a"], 1), 1, 10)
    tablet.logged(PreparedWrite(bytearray(), [FIRST, SECOND], [b"b", b"c"], 1), 3, 10)
    assert [tablet.covered(offset) for offset in range(4)] == [0, 1, 1, 2]
    assert (tablet.end_of(1), tablet.end_of(2)) == (1, 3)


def test_r14_rows_and_the_offset_they_are_of_are_written_together(store: KeyValueStore) -> None:
    tablet = Tablet(store)
    tablet.logged(PreparedWrite(bytearray(), [FIRST], [b"a"], 1), 1, 10)
    tablet.logged(PreparedWrite(bytearray(), [FIRST, SECOND], [None, b"c"], 0), 3, 10)
    database = store._files._database
    store._files._database = Interrupted(database)
    tablet.store(2)
    store._files._database = database
    found = KeyValueStore(database, store.path, SharedMemory(LIMITS))  # as it is after a crash in between
    assert (found.applied_offset, found.row_count) == (3, 1)
    assert found.get([FIRST, SECOND]) == [None, b"c"]


def test_a_store_of_another_version_is_damage(tmp_path: Path) -> None:
    store = KeyValueStore.open(tmp_path / "other", SharedMemory(LIMITS))
    store.write([([FIRST], [b"a"])], 1, 1)
    meta = bytearray(store.get([b"\x00"])[0] or b"")
    meta[0] += 1
    store._files._database.put(b"\x00", bytes(meta))
    store.close()
    with pytest.raises(DamagedStoreError, match="not of version 1"):
        KeyValueStore.open(tmp_path / "other", SharedMemory(LIMITS))


# -- changelogs


class Region:
    """Some batches of the log."""

    def __init__(self, *batches: bytes) -> None:
        self._data = b"".join(batches)

    def read(self) -> bytes:
        return self._data


def changelog(store: KeyValueStore) -> list[bytes]:
    """Three batches as the log has them, of six offsets: rows 1 and 2; an update of row 1; row 1 deleted, row 3."""
    tablet, batches, offset = Tablet(store), [], 0
    for rows, deletes in (([(1, 10), (2, 20)], None), ([(1, 11)], None), ([(1, 0), (3, 30)], [True, False])):
        given = pa.RecordBatch.from_pylist([{"k": k, "v": v} for k, v in rows], TABLE.schema.arrow())
        operations = Operations(given, None if deletes is None else np.array(deletes))
        prepared = tablet.prepare(TABLE, lambda _, operations=operations: operations, Writer(), 0)  # type: ignore[misc]
        batch = bytes(offset.to_bytes(8, "big")) + bytes(prepared.batch[8:])
        offset += 2
        tablet.logged(prepared, offset, len(batch))
        batches.append(batch)
    tablet.store(3)
    return batches


COUNTS = [0, 1, 2, 2, 2, 1, 2]
"""Rows at each offset; between -U and +U (at 3) the row is there as it was."""


def test_r12_a_replay_applies_each_change_once(store: KeyValueStore, tmp_path: Path) -> None:
    batches = changelog(store)
    again = KeyValueStore.open(tmp_path / "again", SharedMemory(LIMITS))
    tablet = Tablet(again)
    assert tablet.replay(TABLE.versions, batches[0]) == 2
    assert tablet.replay(TABLE.versions, b"".join(batches[:2])) == 2
    assert tablet.replay(TABLE.versions, b"".join(batches)) == 2
    assert tablet.replay(TABLE.versions, b"".join(batches)) == 0
    assert (again.applied_offset, again.row_count) == (6, 2) == (store.applied_offset, store.row_count)
    assert again.values_from(b"\x01", 9) == store.values_from(b"\x01", 9)
    again.close()


def test_r12_3_a_replay_of_a_part_of_a_batch_counts_its_rows(store: KeyValueStore, tmp_path: Path) -> None:
    batches = changelog(store)
    again = KeyValueStore.open(tmp_path / "again", SharedMemory(LIMITS))
    tablet = Tablet(again)
    tablet.replay(TABLE.versions, b"".join(batches[:2]))
    assert again.row_count == 2
    tablet.replay(TABLE.versions, b"".join(batches), up_to=5)
    assert again.row_count == COUNTS[5] == 1
    again.close()


def test_r19_1_replayed_together_rows_have_the_times_of_their_own_batches(
    store: KeyValueStore, tmp_path: Path
) -> None:
    tablet, batches = Tablet(store), []
    for offset, now_ms in enumerate((100, 200)):
        given = pa.RecordBatch.from_pylist([{"k": offset, "v": 0}], TABLE.schema.arrow())
        prepared = tablet.prepare(TABLE, lambda _, given=given: Operations(given), Writer(), now_ms)  # type: ignore[misc]
        batches.append(bytes(offset.to_bytes(8, "big")) + bytes(prepared.batch[8:]))
    again = KeyValueStore.open(tmp_path / "again", SharedMemory(LIMITS))
    assert Tablet(again).replay(TABLE.versions, b"".join(batches), times=RowTimes(None)) == 2
    rows = again.keys_from(b"\x01", b"\x02", 9)
    times = again.get([b"\x00t" + key for key in rows])
    assert [int.from_bytes(time or b"", "big") - (1 << 63) for time in times] == [100, 200]
    again.close()


def test_changes_go_into_a_store_sorted_by_key_and_those_of_a_key_in_their_order() -> None:
    changes = [("+I", 2, 20), ("+I", 3, 30), ("+I", 1, 10), ("-U", 2, 20), ("+U", 2, 21), ("-D", 1, 10)]
    types = {
        "+I": ChangeType.INSERT,
        "-U": ChangeType.UPDATE_BEFORE,
        "+U": ChangeType.UPDATE_AFTER,
        "-D": ChangeType.DELETE,
    }
    rows = pa.RecordBatch.from_pylist([{"k": k, "v": v} for _, k, v in changes], TABLE.schema.arrow())
    kinds = np.array([types[kind] for kind, _, _ in changes], np.uint8)
    keys, values, delta = changes_of(TABLE.schema, rows, kinds)
    stored = decode_stored(
        pa.array([value for value in values if value], pa.binary()), TABLE.versions, TABLE.schema
    )
    assert keys == sorted(keys)
    assert stored.to_pylist() == [{"k": 1, "v": 10}, {"k": 2, "v": 20}, {"k": 2, "v": 21}, {"k": 3, "v": 30}]
    assert [value is None for value in values] == [False, True, False, False, False]
    assert delta == 2


@pytest.mark.parametrize("offset", range(7))
def test_r14_the_state_at_an_offset_is_the_same_forwards_and_backwards(
    store: KeyValueStore, tmp_path: Path, offset: int
) -> None:
    batches = changelog(store)
    forwards = KeyValueStore.open(tmp_path / "forwards", SharedMemory(LIMITS))
    _move(forwards, TABLE.versions, [Region(batches[0]), Region(*batches[1:])], offset, False)
    _move(store, TABLE.versions, [Region(batches[0]), Region(*batches[1:])], offset, True)
    assert (forwards.applied_offset, store.applied_offset) == (offset, offset)
    assert (forwards.row_count, store.row_count) == (COUNTS[offset], COUNTS[offset])
    assert forwards.values_from(b"\x01", 9) == store.values_from(b"\x01", 9)
    assert len(store.values_from(b"\x01", 9)) == COUNTS[offset]
    forwards.close()
