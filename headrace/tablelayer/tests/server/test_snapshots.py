"""Snapshots of a bucket's state, and stores that are restored from them (R12, R14)."""

from __future__ import annotations

import asyncio
import contextlib
import json
import random
import shutil
from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import Any

import msgspec
import pytest

from headrace.broker.objects.files import LocalFiles
from headrace.tablelayer.server.bucket.tasks import Kind
from headrace.tablelayer.server.limits import Limits
from headrace.tablelayer.server.services import Due
from headrace.tablelayer.server.store.kv import KeyValueStore
from headrace.tablelayer.server.store.shared_memory import SharedMemory
from headrace.tablelayer.server.store.snapshots import (
    BucketSnapshots,
    DamagedSnapshotError,
    SnapshotSchedule,
    SnapshotStoppedError,
)
from headrace.tablelayer.tests.server.tables import MovableClock, Row, Table, tables, until
from simulator.files import copy_as_killed
from simulator.fsyncs import recorded_fsyncs

NEVER = {"kv.snapshot.interval": "1 d"}
COLUMNS = "k INT, v STRING, PRIMARY KEY (k)"


class _Definition:
    def to_json(self) -> str:
        return "{}"


def key(number: int) -> bytes:
    return b"\x01" + number.to_bytes(8, "big")


class Bucket:
    """A store and its snapshots, without a broker."""

    def __init__(self, tmp_path: Path, kept: int = 2) -> None:
        self.memory = SharedMemory(Limits())
        self.files = LocalFiles(tmp_path / "remote")
        self.path = tmp_path / "store" / "0"
        self.store = KeyValueStore.open(self.path, self.memory)
        self.snapshots = BucketSnapshots(self.files, "table", 0, kept)
        self.rows: dict[bytes, bytes] = {}

    def write(self, numbers: range, value: bytes) -> None:
        keys = [key(number) for number in numbers]
        self.rows.update(dict.fromkeys(keys, value))
        self.store.write([(keys, [value] * len(keys))], self.store.applied_offset + len(keys), len(self.rows))

    def take(self) -> Any:
        taken = self.snapshots.take(self.store, self.memory, _Definition(), 0)  # type: ignore[arg-type]
        self.snapshots.clean()
        return taken


def state_of(store: KeyValueStore) -> dict[bytes, bytes]:
    return dict(store._files._database.items(from_key=b"\x01"))


def test_r14_a_snapshot_is_the_state_at_its_offset(tmp_path: Path) -> None:
    bucket = Bucket(tmp_path)
    bucket.write(range(1000), b"a")
    taken = bucket.take()
    then = dict(bucket.rows)
    assert (taken.offset, taken.row_count) == (1000, 1000)
    bucket.write(range(500, 1500), b"b")
    target = tmp_path / "copy"
    bucket.snapshots.download(taken, target)
    copy = KeyValueStore.open(target, bucket.memory)
    assert (copy.applied_offset, copy.row_count) == (1000, 1000)
    assert state_of(copy) == then
    copy.close()
    bucket.store.close()


def test_a_store_that_is_given_back_is_durable_before_it_has_its_name(tmp_path: Path) -> None:
    """Otherwise a power cut would leave a store without contents, and the next snapshot would be one of it."""
    bucket = Bucket(tmp_path)
    bucket.write(range(1000), b"a")
    taken = bucket.take()
    target = tmp_path / "copies" / "0"
    with recorded_fsyncs(tmp_path / "copies") as synced:
        bucket.snapshots.download(taken, target)
    partial = target.with_name("0.partial")
    assert set(synced[:-2]) == {partial / file.name for file in taken.files}
    assert synced[-2:] == [partial, target.parent]
    bucket.store.close()


def test_a_file_is_uploaded_once_and_goes_with_the_last_snapshot_that_has_it(tmp_path: Path) -> None:
    bucket = Bucket(tmp_path, kept=2)
    bucket.write(range(1000), b"a")
    first = bucket.take()
    bucket.write(range(1000, 1010), b"b")
    second = bucket.take()
    shared = {file.path for file in first.files} & {file.path for file in second.files}
    assert len(shared) == 1
    assert bucket.snapshots.uploaded_bytes < second.size_bytes
    bucket.store._files._database.compact_range(None, None)
    third = bucket.take()
    assert [each.id for each in bucket.snapshots.known] == [third.id, second.id]
    fourth_wanted = {f"table/0/{file.path}" for each in (third, second) for file in each.files}
    manifests = {f"table/0/{each.id:012}.json" for each in (third, second)}
    assert set(bucket.files.names("table")) == fourth_wanted | manifests
    # Another process finds the same snapshots, and uploads nothing that is there.
    again = BucketSnapshots(bucket.files, "table", 0, 2)
    assert again.load() == bucket.snapshots.known
    again.take(bucket.store, bucket.memory, _Definition(), 0)  # type: ignore[arg-type]
    assert again.uploaded_bytes < 20_000
    bucket.store.close()


def test_a_leased_snapshot_stays(tmp_path: Path) -> None:
    bucket = Bucket(tmp_path, kept=1)
    bucket.write(range(10), b"a")
    first = bucket.take()
    with bucket.snapshots.lease(first):
        bucket.write(range(10, 20), b"b")
        second = bucket.take()
        assert bucket.snapshots.known == (second, first)
        assert bucket.snapshots.floor == first.offset
        bucket.snapshots.download(first, tmp_path / "copy")
    bucket.snapshots.clean()
    assert bucket.snapshots.known == (second,)
    with pytest.raises(DamagedSnapshotError, match="removed"), bucket.snapshots.lease(first):
        pass
    bucket.store.close()


class Failing(LocalFiles):
    """A store that fails at the n-th change."""

    left = -1

    def _one(self) -> None:
        self.left -= 1
        if self.left == 0:
            raise OSError("the network is gone")

    def put(self, name: str, data: bytes) -> None:
        self._one()
        super().put(name, data)

    def upload(self, name: str, source: Path) -> None:
        self._one()
        super().upload(name, source)

    def remove(self, name: str) -> None:
        self._one()
        super().remove(name)


def test_an_upload_that_fails_anywhere_leaves_the_snapshots_as_they_were(tmp_path: Path) -> None:
    bucket = Bucket(tmp_path, kept=1)
    files = bucket.files = Failing(tmp_path / "remote")
    bucket.snapshots = BucketSnapshots(files, "table", 0, 1)
    bucket.write(range(100), b"0")
    bucket.take()
    failed = 0
    for failing_at in range(1, 24, 2):
        bucket.write(range(failing_at, 100 + failing_at), b"%d" % failing_at)
        files.left = failing_at
        try:
            bucket.take()
        except OSError:
            failed += 1
        files.left = -1
        # In any case a new process finds a snapshot that is whole.
        found = BucketSnapshots(files, "table", 0, 1)
        newest = found.load()[0]
        found.download(newest, tmp_path / "copy")
        copy = KeyValueStore.open(tmp_path / "copy", bucket.memory)
        assert copy.applied_offset == newest.offset
        copy.close()
        shutil.rmtree(tmp_path / "copy")
        bucket.snapshots = found
    assert failed > 3
    found.clean()
    kept = {f"table/0/{file.path}" for file in found.known[0].files} | {
        f"table/0/{found.known[0].id:012}.json"
    }
    assert set(files.names("table")) == kept
    assert not list((tmp_path / "store").glob("*.checkpoint"))
    bucket.store.close()


def test_a_snapshot_whose_files_changed_is_not_given_back(tmp_path: Path) -> None:
    bucket = Bucket(tmp_path)
    bucket.write(range(1000), b"a" * 100)
    taken = bucket.take()
    for file in taken.files:
        path = tmp_path / "remote" / "table" / "0" / file.path
        data = path.read_bytes()
        if not data:
            continue
        path.write_bytes(data[:-1] + bytes([data[-1] ^ 1]))
        with pytest.raises(DamagedSnapshotError, match=file.path):
            bucket.snapshots.download(taken, tmp_path / "copy")
        assert not (tmp_path / "copy").exists()
        path.unlink()
        with pytest.raises(DamagedSnapshotError, match="missing"):
            bucket.snapshots.download(taken, tmp_path / "copy")
        path.write_bytes(data)
    bucket.snapshots.download(taken, tmp_path / "copy")
    bucket.store.close()


def test_an_unknown_manifest_version_protects_shared_files(tmp_path: Path) -> None:
    bucket = Bucket(tmp_path)
    bucket.files.put("table/0/000000000009.json", b'{"version": 99}')
    bucket.files.put("table/0/shared/its-file", b"1")
    bucket.write(range(10), b"a")
    assert bucket.take().id == 10
    assert "table/0/shared/its-file" in bucket.files.names("table")
    bucket.store.close()


def test_a_manifest_of_another_version_is_left_alone(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    bucket = Bucket(tmp_path)
    bucket.write(range(10), b"a")
    taken = bucket.take()
    other = json.loads(taken.to_json()) | {"id": 7, "version": 2}
    bucket.files.put("table/0/000000000007.json", json.dumps(other).encode())
    found = BucketSnapshots(bucket.files, "table", 0, 2)
    assert found.load() == (taken,)
    assert "snapshot 000000000007.json" in caplog.text
    bucket.store.close()


def test_files_stay_while_they_are_downloaded(tmp_path: Path) -> None:
    class Interrupted(LocalFiles):
        meanwhile: Callable[[], object] | None = None

        def download(self, name: str, target: Path) -> None:
            work, self.meanwhile = self.meanwhile, None
            if work is not None:
                work()
            super().download(name, target)

    bucket = Bucket(tmp_path, kept=1)
    files = bucket.files = Interrupted(tmp_path / "remote")
    bucket.snapshots = BucketSnapshots(files, "table", 0, 1)
    bucket.write(range(100), b"a")
    first, then = bucket.take(), dict(bucket.rows)

    def another() -> None:
        bucket.write(range(100), b"b")
        bucket.store._files._database.compact_range(None, None)
        bucket.take()

    files.meanwhile = another
    bucket.snapshots.download(first, tmp_path / "copy")
    copy = KeyValueStore.open(tmp_path / "copy", bucket.memory)
    assert state_of(copy) == then
    copy.close()
    bucket.snapshots.clean()
    assert [each.id for each in bucket.snapshots.known] == [first.id + 1]
    bucket.store.close()


def test_files_of_a_failed_snapshot_are_not_overwritten(tmp_path: Path) -> None:
    class WithoutManifests(LocalFiles):
        def put(self, name: str, data: bytes) -> None:
            raise OSError("the network is gone")

    bucket = Bucket(tmp_path)
    bucket.write(range(10), b"a")
    assert bucket.take().id == 1
    bucket.snapshots = BucketSnapshots(WithoutManifests(tmp_path / "remote"), "table", 0, 2)
    bucket.write(range(10, 20), b"b")
    with pytest.raises(OSError, match="the network is gone"):
        bucket.take()
    assert any(name.startswith("table/0/000000000002/") for name in bucket.files.names("table"))
    bucket.snapshots = BucketSnapshots(bucket.files, "table", 0, 2)  # as after a restart
    assert bucket.take().id == 3
    bucket.store.close()


def test_a_file_of_another_store_is_not_taken_for_one_of_the_same_name(tmp_path: Path) -> None:
    bucket = Bucket(tmp_path)
    bucket.write(range(100), b"a")
    first = bucket.take()
    bucket.store.close()
    shutil.rmtree(bucket.path)
    bucket.store = KeyValueStore.open(bucket.path, bucket.memory)
    bucket.snapshots.store_changed()
    bucket.write(range(100), b"b")
    second = bucket.take()
    named = [
        {file.name: file for file in each.files if file.name.endswith(".sst")} for each in (first, second)
    ]
    alike = named[0].keys() & named[1].keys()
    assert any(named[0][name].size == named[1][name].size for name in alike), "nothing to take for another"
    bucket.snapshots.download(second, tmp_path / "copy")
    copy = KeyValueStore.open(tmp_path / "copy", bucket.memory)
    assert state_of(copy) == bucket.rows
    copy.close()
    bucket.store.close()


def test_a_snapshot_under_way_ends_when_its_bucket_is_closed(tmp_path: Path) -> None:
    bucket = Bucket(tmp_path)
    bucket.write(range(10), b"a")
    bucket.snapshots.stop()
    with pytest.raises(SnapshotStoppedError):
        bucket.take()
    assert bucket.snapshots.known == ()
    assert not list((tmp_path / "store").glob("*.checkpoint"))
    bucket.snapshots.store_changed()
    assert bucket.take().offset == 10
    bucket.store.close()


@pytest.mark.parametrize("name", ["../outside", "a/b", ""])
def test_a_manifest_names_files_of_the_store_alone(tmp_path: Path, name: str) -> None:
    bucket = Bucket(tmp_path)
    bucket.write(range(10), b"a")
    taken = bucket.take()
    forged = msgspec.structs.replace(
        taken, id=9, files=(*taken.files, msgspec.structs.replace(taken.files[0], name=name))
    )
    bucket.files.put("table/0/000000000009.json", forged.to_json())
    found = BucketSnapshots(bucket.files, "table", 0, 2)
    assert found.load()[0] == forged
    with pytest.raises(DamagedSnapshotError, match="is not a file of a store"):
        found.download(forged, tmp_path / "into" / "copy")
    assert list((tmp_path / "into").iterdir()) == []
    bucket.store.close()


def test_snapshots_are_due_after_the_interval_when_there_is_something_new() -> None:
    schedule = SnapshotSchedule(600, 60, now=1000, age=500)
    assert not schedule.due(1099, 5, 0)
    assert schedule.due(1100, 5, 0)
    assert not schedule.due(1100, 5, 5)
    schedule.attempted(1100, succeeded=False)
    assert not schedule.due(1159, 5, 0)
    assert schedule.due(1160, 5, 0)
    schedule.attempted(1160, succeeded=True)
    assert not schedule.due(1759, 6, 5)
    assert schedule.due(1760, 6, 5)


# -- with a broker


def rows(numbers: range, value: str) -> list[tuple[str, Row]]:
    return [("+", {"k": number, "v": value}) for number in numbers]


async def snapshot_now(table: Table) -> Any:
    """Take a snapshot as the schedule would."""
    bucket = table.partition.hooks
    bucket._look_for_snapshots()
    await bucket._tasks.wait(Kind.SNAPSHOT)
    await bucket._take_snapshot(bucket._tablet, bucket.snapshots, bucket._schedule)
    return bucket.snapshots.known[0]


def store_of(data: Path) -> Path:
    (folder,) = (data / "extensions" / "tables").iterdir()
    return folder / "0"


def cut_log(table: Table) -> int:
    """Delete the records that retention may; return the log's new start."""
    return int(table.partition.delete_records(table.partition.hooks.retention_floor()))


@pytest.mark.parametrize("harm", ["gone", "CURRENT", "missing file", "behind"])
async def test_r12_a_lost_store_comes_back_from_snapshot_and_log(tmp_path: Path, harm: str) -> None:
    data = tmp_path / "data"
    async with tables(data, NEVER) as all_tables:
        table = await all_tables.create(COLUMNS)
        await table.put(*rows(range(500), "a"))
        assert table.partition.hooks.retention_floor() == 0
        taken = await snapshot_now(table)
        assert table.partition.hooks.retention_floor() == taken.offset == 500
        await table.put(*rows(range(400, 600), "b"), ("-", {"k": 3, "v": None}))
        table.partition.hooks._tablet.kv.flush()
        expected = await table.state()
        assert cut_log(table) == 500
        if harm == "behind":
            copy_as_killed(store_of(data), tmp_path / "early")
    store = store_of(data)
    if harm == "gone":
        shutil.rmtree(store)
    elif harm == "CURRENT":
        (store / "CURRENT").write_bytes(b"nonsense")
    elif harm == "missing file":
        next(store.glob("*.sst")).unlink()
    else:
        shutil.rmtree(store)
        KeyValueStore.open(store, SharedMemory(Limits())).close()
    async with tables(data, NEVER) as all_tables:
        table = await all_tables.open()
        if harm in ("CURRENT", "missing file"):
            with contextlib.suppress(Exception):  # a closed store is found damaged by its first use
                await table.state()
            await table.partition.hooks._tasks.wait(Kind.REBUILD)
        assert await table.state() == expected
        assert await table.count() == len(expected) == 599
        await table.put(*rows(range(1), "c"))
        assert (await table.lookup({"k": 0}))[0] == {"k": 0, "v": "c"}
        assert (store.with_name("0.damaged")).exists() == (harm in ("CURRENT", "missing file"))


async def test_r12_damage_found_by_a_read_is_repaired_while_the_server_runs(tmp_path: Path) -> None:
    data = tmp_path / "data"
    async with tables(data, NEVER) as all_tables:
        table = await all_tables.create(COLUMNS)
        value = "".join(random.Random(1).choices("abcdefghij", k=300))
        await table.put(*rows(range(2000), value))
        await snapshot_now(table)
        await table.put(*rows(range(100), "new"))
        expected = await table.state()
        assert cut_log(table) == 2000
    for file in store_of(data).glob("*.sst"):
        damaged = bytearray(file.read_bytes())
        for position in range(0, len(damaged) // 2, 1000):
            damaged[position] ^= 0xFF
        file.write_bytes(damaged)
    async with tables(data, NEVER) as all_tables:
        table = await all_tables.open()
        found: list[Row | None] = []

        async def is_rebuilt() -> bool:
            try:
                found[:] = await table.lookup(*({"k": number} for number in range(2000)))
            except AssertionError as error:
                assert "rebuilt" in str(error) or "starting" in str(error)  # noqa: PT017
                return False
            return True

        await until(is_rebuilt)
        assert found == expected
        assert await table.state() == expected
        await table.put(*rows(range(1), "later"))
        assert store_of(data).with_name("0.damaged").exists()


async def test_a_failing_snapshot_directory_does_not_affect_the_bucket(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    blocked = tmp_path / "blocked"
    blocked.write_bytes(b"a file where a directory should be")
    config = {**NEVER, "kv.snapshot.directory": str(blocked)}
    async with tables(tmp_path / "data", config) as all_tables:
        table = await all_tables.create(COLUMNS)
        await table.put(*rows(range(100), "a"))
        bucket = table.partition.hooks
        bucket._look_for_snapshots()
        await bucket._tasks.wait(Kind.SNAPSHOT)
        await bucket._take_snapshot(bucket._tablet, bucket.snapshots, bucket._schedule)
        assert bucket.snapshots.known == ()
        assert "a snapshot to" in caplog.text
        await table.put(*rows(range(100), "b"))
        assert await table.count() == 100
        assert bucket.retention_floor() == 0


async def test_snapshots_go_with_their_table_and_can_be_switched_off(tmp_path: Path) -> None:
    kept = tmp_path / "kept"
    async with tables(tmp_path / "data", {**NEVER, "kv.snapshot.directory": str(kept)}) as all_tables:
        table = await all_tables.create(COLUMNS)
        await table.put(*rows(range(100), "a"))
        await snapshot_now(table)
        assert list(kept.rglob("*.json"))
        await all_tables.broker.context.topics.delete_topic(table.definition.path.topic)
        await until(lambda: not list(kept.rglob("*.json")))
    async with tables(tmp_path / "off", {"kv.snapshot.interval": "0"}) as all_tables:
        table = await all_tables.create(COLUMNS)
        await table.put(*rows(range(100), "a"))
        bucket = table.partition.hooks
        bucket._tablet.kv.flush()
        assert bucket.snapshots is None
        assert bucket.retention_floor() == 100


async def test_a_bucket_is_looked_after_until_it_is_at_rest_and_again_after_the_next_write(
    tmp_path: Path,
) -> None:
    limits = Limits(flush_seconds=0.0)
    async with tables(tmp_path / "data", {"kv.snapshot.interval": "1 ms"}, limits=limits) as all_tables:
        table = await all_tables.create(COLUMNS)
        await all_tables.create(COLUMNS, name="idle")
        bucket, restless = table.partition.hooks, table.partition.hooks.services.restless
        for number in range(2):
            await table.put(*rows(range(100), str(number)))
            assert bucket in restless
            await until(lambda: not bucket.tend() and not restless, "neither this one nor the idle one")
            assert bucket._tablet.kv.bytes_since_flush == 0
            assert bucket.snapshots.newest_offset == bucket.partition.high_watermark


async def test_a_bucket_at_rest_is_looked_after_less_often_until_its_snapshot_is_taken_however_late(
    tmp_path: Path,
) -> None:
    """Thousands of such buckets must not be asked each second."""
    limits, clock = Limits(flush_seconds=0.0), MovableClock()
    config = {"kv.snapshot.interval": "1 h"}
    async with tables(tmp_path / "data", config, limits=limits, clock=clock) as all_tables:
        table = await all_tables.create(COLUMNS)
        bucket = table.partition.hooks
        restless, unsaved = bucket.services.restless, bucket.services.unsaved
        look = partial(all_tables.extension._tend_buckets, all_tables.broker.context)

        async def rests() -> bool:
            await look()
            return bucket not in restless

        asked = []

        def tend(bucket: Any) -> Due:
            asked.append(bucket)
            return Due.LATER

        for number in range(2):
            await table.put(*rows(range(100), str(number)))
            await until(rests)
            assert bucket in unsaved
            assert not bucket._tablet.kv.bytes_since_flush
            asked.clear()
            with pytest.MonkeyPatch.context() as patched:
                patched.setattr(type(bucket), "tend", tend)
                for _ in range(40):
                    clock.waited_seconds += 1
                    await look()
            assert 1 <= len(asked) <= 2
            assert bucket.snapshots.newest_offset < bucket.partition.high_watermark
            clock.waited_seconds += 3600
            await until(rests)
            assert bucket not in unsaved
            assert bucket.snapshots.newest_offset == bucket.partition.high_watermark


async def test_the_schedule_takes_snapshots_by_itself(tmp_path: Path) -> None:
    async with tables(tmp_path / "data", {"kv.snapshot.interval": "1 ms"}) as all_tables:
        table = await all_tables.create(COLUMNS)
        await table.put(*rows(range(100), "a"))
        bucket = table.partition.hooks

        def is_taken() -> bool:
            bucket.tend()
            return bool(bucket.snapshots.newest_offset == 100)

        await until(is_taken)
        first = bucket.snapshots.known
        for _ in range(20):
            bucket.tend()
            await asyncio.sleep(0.005)
        assert bucket.snapshots.known == first  # nothing new, no snapshot
