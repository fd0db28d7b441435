"""The choice of a bucket's store: its own if the log continues it, else a snapshot's, else a new one, else none."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from headrace.tablelayer.server.limits import Limits
from headrace.tablelayer.server.store.kv import KeyValueStore
from headrace.tablelayer.server.store.recovery import StoreRecovery, UnrecoverableBucketError
from headrace.tablelayer.server.store.shared_memory import SharedMemory
from headrace.tablelayer.server.store.snapshots import DamagedSnapshotError, Snapshot

MEMORY = SharedMemory(Limits())


class Services:
    memory = MEMORY

    async def run(self, work: Callable[..., Any], *arguments: Any) -> Any:
        return work(*arguments)

    background = open_store = run


def make(directory: Path, offset: int) -> None:
    """Create a store whose state is the log below this offset, which its one row has too."""
    store = KeyValueStore.open(directory, MEMORY)
    if offset:
        store.write([([b"\x01k"], [b"%d" % offset])], offset, 1)
    store.close()


class Snapshots:
    """Snapshots at these offsets, the newest first by id; those in `damaged` cannot be restored."""

    def __init__(self, *offsets: int, damaged: tuple[int, ...] = ()) -> None:
        count = len(offsets)
        self.known = [Snapshot(count - at, offset, 1, 0, "", ()) for at, offset in enumerate(offsets)]
        self.damaged = damaged
        self.downloaded: list[int] = []

    def load(self) -> list[Snapshot]:
        return self.known

    def download(self, snapshot: Snapshot, directory: Path) -> None:
        self.downloaded.append(snapshot.offset)
        if snapshot.offset in self.damaged:
            raise DamagedSnapshotError("its file is missing")
        make(directory, snapshot.offset)

    def store_changed(self) -> None:
        """Do nothing: no state is kept."""


def opened(recovery: StoreRecovery, log_start: int, log_end: int) -> int:
    """Return the offset of the chosen store."""
    store = asyncio.run(recovery.open(log_start, log_end))
    offset = store.applied_offset
    assert store.get([b"\x01k"]) == ([b"%d" % offset] if offset else [None])
    store.close()
    return offset


def recovery_of(directory: Path, snapshots: Snapshots | None) -> StoreRecovery:
    services: Any = Services()
    kept: Any = snapshots
    return StoreRecovery(services, "bucket 0", directory, kept)


@pytest.mark.parametrize(
    ("own", "log", "snapshots", "expected"),
    [
        (5, (0, 9), (7,), 5),  # within the log: kept, though a snapshot is newer
        (4, (4, 9), (7,), 4),
        (9, (4, 9), (), 9),
        (10, (0, 9), (), 0),  # ahead of the log: begun again
        (10, (0, 9), (7, 3), 7),
        (3, (4, 9), (7, 5), 7),  # behind the log's start
        (0, (0, 9), (7,), 7),  # empty: the snapshot saves the replay
        (0, (0, 9), (), 0),
        (0, (0, 0), (), 0),
        (3, (4, 9), (10, 5, 2), 5),  # neither ahead of the log nor behind its start
        (3, (4, 9), (4,), 4),
        (3, (4, 9), (9,), 9),
    ],
)
def test_r12_the_store_that_the_log_continues(
    tmp_path: Path, own: int, log: tuple[int, int], snapshots: tuple[int, ...], expected: int
) -> None:
    make(tmp_path / "0", own)
    assert opened(recovery_of(tmp_path / "0", Snapshots(*snapshots)), *log) == expected


@pytest.mark.parametrize("snapshots", [None, Snapshots(), Snapshots(10, 2), Snapshots(7, damaged=(7,))])
def test_r12_rows_that_are_gone_are_said_and_the_store_stays(tmp_path: Path, snapshots: Any) -> None:
    make(tmp_path / "0", 3)
    with pytest.raises(
        UnrecoverableBucketError, match="the log begins at offset 4: the rows before it are gone"
    ):
        asyncio.run(recovery_of(tmp_path / "0", snapshots).open(4, 9))
    assert opened(recovery_of(tmp_path / "0", None), 0, 9) == 3


def test_r12_a_damaged_snapshot_is_not_tried_again(tmp_path: Path) -> None:
    make(tmp_path / "0", 3)
    snapshots = Snapshots(8, 6, damaged=(8,))
    recovery = recovery_of(tmp_path / "0", snapshots)
    assert opened(recovery, 4, 9) == 6
    assert snapshots.downloaded == [8, 6]
    recovery.distrust_restored()
    with pytest.raises(UnrecoverableBucketError):
        asyncio.run(recovery.open(7, 9))
    assert snapshots.downloaded == [8, 6]


def test_unfinished_stores_are_removed_and_damaged_ones_kept(tmp_path: Path) -> None:
    for name in ("0", "0.checkpoint", "0.restored", "0.as-of-1", "0.damaged", "1", "1.checkpoint"):
        (tmp_path / name).mkdir()
    opened(recovery_of(tmp_path / "0", None), 0, 9)
    assert sorted(path.name for path in tmp_path.iterdir()) == ["0", "0.damaged", "1", "1.checkpoint"]


def test_a_damaged_store_is_set_aside_when_its_successor_is_at_hand(tmp_path: Path) -> None:
    make(tmp_path / "0", 5)
    (tmp_path / "0" / "CURRENT").write_bytes(b"nonsense")
    with pytest.raises(UnrecoverableBucketError):
        asyncio.run(recovery_of(tmp_path / "0", Snapshots()).open(4, 9))
    assert not (tmp_path / "0.damaged").exists()
    assert opened(recovery_of(tmp_path / "0", Snapshots(6)), 4, 9) == 6
    assert (tmp_path / "0.damaged" / "CURRENT").read_bytes() == b"nonsense"
