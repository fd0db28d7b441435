"""Staged chunks on the disk, and the bound of their space (R3.5): the rules between two threads."""

from __future__ import annotations

import os
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any
from uuid import UUID

import pytest

from headrace.broker.runtime.disk import SystemDisk
from headrace.broker.runtime.ports import DiskFile, DiskUsage, SystemClock
from headrace.protocol.errors import ErrorCode, KafkaError
from headrace.tablelayer.model.errors import TableError
from headrace.tablelayer.server.limits import Limits
from headrace.tablelayer.server.staged.place import bucket_of_table
from headrace.tablelayer.server.staged.space import StagedSpace
from headrace.tablelayer.server.staged.staging import Chunk, StagingArea, writer_key
from headrace.tablelayer.tests.server.tables import tables

TABLE = UUID(int=7)
DAY_SECONDS = 86_400


def chunk(data: bytes = b"rows") -> Chunk:
    return Chunk(None, memoryview(data))


def path_in(area: StagingArea, batch_id: int = 0, attempt: str = "a") -> Path:
    return area.path(TABLE, "w", batch_id, attempt, bucket_of_table(0))


class WatchedFile:
    def __init__(self, file: DiskFile, disk: Watched) -> None:
        self._file = file
        self._disk = disk

    def __getattr__(self, name: str) -> Any:
        return getattr(self._file, name)

    def read(self, size: int, position: int) -> bytes:
        found = self._file.read(size, position)
        self._disk.read_bytes += len(found)
        return found

    def write(self, parts: Any, position: int) -> None:
        self._disk.before_write()
        self._file.write(parts, position)


class Watched(SystemDisk):
    """Calls `before_write` when a file is open and about to be written, and counts the bytes that are read."""

    def __init__(self) -> None:
        super().__init__()
        self.before_write: Callable[[], object] = lambda: None
        self.read_bytes = 0

    def open(self, path: Path, *, create: bool = False) -> Any:
        return WatchedFile(super().open(path, create=create), self)

    def open_read_only(self, path: Path) -> Any:
        return WatchedFile(super().open_read_only(path), self)


class LaterClock(SystemClock):
    """A clock whose day is `days` ahead of the files'."""

    days = 0

    def time_ms(self) -> int:
        return super().time_ms() + 1000 * DAY_SECONDS * self.days


def test_a_chunk_that_is_admitted_counts_before_it_is_written(tmp_path: Path) -> None:
    """A measurement of the disk between the admission and the write does not see it."""
    disk = SystemDisk()
    disk.usage = lambda path: DiskUsage(100 << 20, 8 << 20)  # type: ignore[method-assign] # 2 MiB a client
    space = StagedSpace(tmp_path, Limits(), lambda folder: None, disk, SystemClock())
    folder = tmp_path / str(TABLE) / writer_key("w")
    with space.admitted(folder / "0" / "a.0", "host", 3 << 19, set):
        space._look()
        with (
            pytest.raises(TableError, match="of rows of this client are staged"),
            space.admitted(folder / "1" / "a.0", "host", 1 << 20, set),
        ):
            pytest.fail("more than there may be")
        (folder / "0").mkdir(parents=True)
        (folder / "0" / "a.0").write_bytes(bytes(3 << 19))
        space._look()
        assert space._sizes == {"host": 3 << 19}, "once, though it is on the disk by now"
    space._look()
    assert space._sizes == {"host": 3 << 19}
    (folder / "0" / "a.0").unlink()
    space._look()
    assert space._sizes.total() == 0


def test_a_batch_that_is_written_to_is_not_abandoned(tmp_path: Path) -> None:
    disk, clock = Watched(), LaterClock()
    area = StagingArea(tmp_path / "staged", disk=disk, clock=clock)
    path, removed = path_in(area), list[int]()
    area.append(path, 0, chunk(), durable=False)
    clock.days = 2
    disk.before_write = lambda: removed.append(area.drop_abandoned(DAY_SECONDS, set()))
    area.append(path, 1, chunk(b"more"), durable=False)
    assert removed == [0]
    assert [bytes(each.batch) for each in area.read(path)] == [b"rows", b"more"]
    assert area.drop_abandoned(DAY_SECONDS, set()) == 1
    assert not path.exists()


def test_a_chunk_does_not_go_on_where_its_batch_was_abandoned(tmp_path: Path, monkeypatch: Any) -> None:
    clock = LaterClock()
    area = StagingArea(tmp_path / "staged", clock=clock)
    path, find = path_in(area), area._tail
    area.append(path, 0, chunk(), durable=False)
    clock.days = 2

    def find_and_lose(path: Path) -> Any:
        tail = find(path)
        assert area.drop_abandoned(DAY_SECONDS, set()) == 1
        return tail

    monkeypatch.setattr(area, "_tail", find_and_lose)
    with pytest.raises(KafkaError, match="begin a new attempt") as refused:
        area.append(path, 1, chunk(), durable=False)
    assert refused.value.code is ErrorCode.OUT_OF_ORDER_SEQUENCE_NUMBER
    assert not path.exists()


async def test_a_batch_that_is_about_to_be_committed_is_not_abandoned(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The rule holds even if nothing was staged since the server was started."""
    monkeypatch.setattr("headrace.tablelayer.server.extension._STAGED_CHECK_SECONDS", float("inf"))
    async with tables(tmp_path) as all_tables:
        await all_tables.create("n BIGINT")  # from here on there is what commits
        staged = all_tables.extension._staged
        assert staged is not None
        area = staged.chunks._area
        path = path_in(area)
        area.append(path, 0, chunk(), durable=False)
        long_ago = time.time() - 2 * DAY_SECONDS
        for each in (path, path.parent):
            os.utime(each, (long_ago, long_ago))
        await staged.chunks.mark_used(TABLE, "w", 0)
        assert area.drop_abandoned(DAY_SECONDS, set()) == 0
        for each in (path, path.parent):
            os.utime(each, (long_ago, long_ago))
        assert area.drop_abandoned(DAY_SECONDS, set()) == 1


def test_the_last_chunk_is_read_alone_where_it_is_known_where_it_begins(tmp_path: Path) -> None:
    disk = Watched()
    area = StagingArea(tmp_path / "staged", disk=disk)
    path = path_in(area)
    assert area.last(path) is None
    for number in range(3):
        area.append(path, number, chunk(bytes([number]) * 10_000), durable=False)
    again = StagingArea(tmp_path / "staged", disk=disk)
    assert again.count(path) == 3
    for known in (area, again):
        disk.read_bytes = 0
        found = known.last(path)
        assert found is not None
        assert (found[0], bytes(found[1].batch)) == (2, b"\x02" * 10_000)
        assert disk.read_bytes < 11_000
    found = StagingArea(tmp_path / "staged").last(path)
    assert found is not None
    assert (found[0], bytes(found[1].batch)) == (2, b"\x02" * 10_000)
