"""The remote log through a broker's own requests: copied, deleted locally, read again, looked up, expired, removed."""

from __future__ import annotations

import random
from collections.abc import AsyncIterator, Sequence
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import pytest

from headrace.broker.backup.archive import RESTORED_NAME
from headrace.broker.configs.config_key import ConfigError
from headrace.broker.configs.remote_log import UNLIMITED
from headrace.broker.metrics import remote_log
from headrace.broker.metrics.model import Gathering, HistogramValue
from headrace.broker.objects.files import LocalFiles
from headrace.broker.partitions.partition import Partition
from headrace.broker.remote import bootstrap, cluster_copy
from headrace.broker.remote.log import newest_manifest
from headrace.broker.remote.manager import RemoteLogManager
from headrace.broker.remote.manifest import Manifest, ManifestError, RemoteSegment
from headrace.broker.remote.quotas import RemoteQuota
from headrace.broker.runtime.disk import SystemDisk
from headrace.broker.stores.embedded import StoreImage
from headrace.broker.tests.api.test_broker_configs import change
from headrace.protocol.errors import ErrorCode, KafkaError
from headrace.protocol.messages.delete_records import (
    DeleteRecordsPartition,
    DeleteRecordsRequest,
    DeleteRecordsTopic,
)
from headrace.protocol.messages.list_offsets import ListOffsetsPartition, ListOffsetsRequest, ListOffsetsTopic
from headrace.protocol.records.encode import Record, build_batch
from simulator.direct import DirectBroker, direct_broker, values_of
from simulator.transactional_client import Client, committed_values

TOPIC = {
    "remote_storage_enable": "true",
    "segment_bytes": "400",
    "local_retention_bytes": "500",
    "file_delete_delay_ms": "0",
}
RECORDS = 40
FIRST_MS = 1_700_000_000_000
LATEST, EARLIEST, MAX_TIMESTAMP, EARLIEST_LOCAL, LATEST_TIERED, EARLIEST_PENDING = range(-1, -7, -1)


def values() -> list[bytes]:
    return [b"%03d" % number + b"x" * 100 for number in range(RECORDS)]


@asynccontextmanager
async def tiered(tmp_path: Path, data: str = "data", **config: str) -> AsyncIterator[DirectBroker]:
    settings = {
        "remote.log.storage.system.enable": "true",
        "remote.log.storage.directory": str(tmp_path / "remote"),
        "log.initial.task.delay.ms": "3600000",
        "log.retention.ms": "-1",
        **{name.replace("_", "."): value for name, value in config.items()},
    }
    async with direct_broker(tmp_path / data, settings) as made:
        yield made


def manager(made: DirectBroker) -> RemoteLogManager:
    found = made.broker._cluster.remote
    assert found is not None
    return found


def use(made: DirectBroker, files: LocalFiles) -> None:
    """Let the broker copy to this object store."""
    found = manager(made)
    found._files = found._objects._files = files


def partition_of(made: DirectBroker) -> Partition:
    return made.context.replicas.partition("t", 0)


async def tend(made: DirectBroker) -> None:
    """Run one turn of the manager, then of retention."""
    partition = partition_of(made)
    await partition.flush(made.context.executor)
    await manager(made).turn()
    partition.apply_retention(made.context.clock.time_ms())


async def filled(made: DirectBroker, **config: str) -> None:
    """A record a batch, three batches a segment, a second between two records."""
    await made.create_topic("t", **{**TOPIC, **config})
    for number, value in enumerate(values()):
        batch = build_batch([Record(None, value, (), FIRST_MS + 1000 * number)])
        assert (await made.produce("t", batch)).error_code == 0


async def read_all(made: DirectBroker, start: int = 0, **options: Any) -> list[tuple[int, bytes | None]]:
    found: list[tuple[int, bytes | None]] = []
    while True:
        answer = await made.fetch("t", start, max_wait_ms=10_000, **options)
        assert answer.error_code == 0, ErrorCode(answer.error_code)
        some = [each for each in values_of(answer.records) if each[0] >= start]
        found += some
        start = some[-1][0] + 1
        if start >= answer.high_watermark:
            return found


async def offset_at(made: DirectBroker, timestamp: int) -> int:
    request = ListOffsetsRequest(
        replica_id=-1,
        topics=[
            ListOffsetsTopic(
                name="t", partitions=[ListOffsetsPartition(partition_index=0, timestamp=timestamp)]
            )
        ],
    )
    answer = (await made.send(request, 11)).topics[0].partitions[0]
    assert answer.error_code == 0
    offset: int = answer.offset
    return offset


async def delete_records(made: DirectBroker, offset: int) -> None:
    request = DeleteRecordsRequest(
        timeout_ms=60_000,
        topics=[
            DeleteRecordsTopic(
                name="t", partitions=[DeleteRecordsPartition(partition_index=0, offset=offset)]
            )
        ],
    )
    answer = (await made.send(request)).topics[0].partitions[0]
    assert (answer.error_code, answer.low_watermark) == (0, offset)


def stored(tmp_path: Path) -> list[str]:
    return [name for name in LocalFiles(tmp_path / "remote").names("") if name.endswith(".segment")]


async def test_records_without_a_local_segment_are_read_from_remote_storage(tmp_path: Path) -> None:
    expected = list(enumerate(values()))
    async with tiered(tmp_path) as made:
        await filled(made)
        await tend(made)
        log = partition_of(made).log
        assert log.log_start_offset == 0
        assert 30 < log.local_start_offset < RECORDS
        assert await read_all(made) == expected
        assert await read_all(made, 17) == expected[17:]
        assert await read_all(made, partition_max_bytes=1) == expected
        local = log.local_start_offset
    async with tiered(tmp_path) as made:
        assert partition_of(made).log.local_start_offset == local
        assert await read_all(made) == expected
        assert (await made.produce("t", [b"more"])).base_offset == RECORDS


async def test_offsets_are_found_by_time_and_by_storage_tier(tmp_path: Path) -> None:
    async with tiered(tmp_path) as made:
        await filled(made)
        assert await offset_at(made, EARLIEST_LOCAL) == 0
        assert await offset_at(made, LATEST_TIERED) == -1
        assert await offset_at(made, EARLIEST_PENDING) == 0
        await tend(made)
        log = partition_of(made).log
        assert await offset_at(made, EARLIEST) == 0
        assert await offset_at(made, EARLIEST_LOCAL) == log.local_start_offset > 30
        assert await offset_at(made, LATEST_TIERED) == log.segments[-1].base_offset - 1
        assert await offset_at(made, EARLIEST_PENDING) == log.segments[-1].base_offset
        assert await offset_at(made, LATEST) == RECORDS
        assert await offset_at(made, MAX_TIMESTAMP) == RECORDS - 1
        for number in (0, 1, 20, log.local_start_offset - 1, log.local_start_offset, RECORDS - 1):
            assert await offset_at(made, FIRST_MS + 1000 * number) == number
            assert await offset_at(made, FIRST_MS + 1000 * number - 1) == number
        assert await offset_at(made, FIRST_MS + 1000 * RECORDS) == -1


async def test_retention_of_all_that_is_kept_and_deleted_records(tmp_path: Path) -> None:
    async with tiered(tmp_path) as made:
        await filled(made)
        await tend(made)
        count = len(stored(tmp_path))
        await delete_records(made, 10)
        await tend(made)
        assert await offset_at(made, EARLIEST) == 10
        assert len(stored(tmp_path)) < count
        assert await read_all(made, 10) == list(enumerate(values()))[10:]
        assert (await made.fetch("t", 9)).error_code == ErrorCode.OFFSET_OUT_OF_RANGE
        await made.context.topics.alter_config("t", {"retention.bytes": "2000"})
        await tend(made)
        start = await offset_at(made, EARLIEST)
        assert 10 < start < partition_of(made).log.local_start_offset
        assert await read_all(made, start) == list(enumerate(values()))[start:]
        await made.context.topics.alter_config("t", {"retention.ms": "1000"})
        await tend(made)
        assert stored(tmp_path) == []
        assert await offset_at(made, EARLIEST) == partition_of(made).log.segments[-1].base_offset


async def test_a_deleted_topic_leaves_nothing_and_others_stay(tmp_path: Path) -> None:
    async with tiered(tmp_path) as made:
        await filled(made)
        await tend(made)
        foreign = LocalFiles(tmp_path / "remote")
        foreign.put("6d0fdb73-6f2c-4dd2-b8d3-6a9b8ab9a3f1/0/x.segment", b"of another cluster")
        await made.context.topics.delete_topic("t")
        await manager(made).turn()
        left = [name for name in foreign.names("") if not name.startswith(f"{cluster_copy.FOLDER}/")]
        assert left == ["6d0fdb73-6f2c-4dd2-b8d3-6a9b8ab9a3f1/0/x.segment"]


async def test_a_reader_of_committed_records_is_told_of_transactions_that_were_aborted_there(
    tmp_path: Path,
) -> None:
    async with tiered(tmp_path) as made:
        await made.create_topic("t", **TOPIC)
        client = Client(made)
        await client.init()
        for number in range(6):
            await client.add(("t", 0))
            for part in range(4):
                answer = await client.send([b"%d.%d" % (number, part) + b"x" * 100], "t")
                assert answer.error_code == 0
            await client.end(commit=number % 2 == 0)
        before = await committed_values(made, "t")
        await tend(made)
        log = partition_of(made).log
        assert log.local_start_offset > 20
        assert before == [b"%d.%d" % (number, part) + b"x" * 100 for number in (0, 2, 4) for part in range(4)]
        assert await committed_values(made, "t") == before


async def test_unstable_and_unflushed_segments_are_not_copied(tmp_path: Path) -> None:
    async with tiered(tmp_path) as made:
        await made.create_topic("t", **TOPIC)
        client = Client(made)
        await client.init()
        await client.add(("t", 0))
        for _ in range(12):
            await client.send([b"x" * 100], "t")
        await tend(made)
        assert stored(tmp_path) == []
        await client.end(commit=True)
        await tend(made)
        copied = len(stored(tmp_path))
        assert copied > 2
        log = partition_of(made).log
        log._writer._background = None  # which would put sealed segments on the disk
        for _ in range(12):
            await made.produce("t", [b"x" * 100])
        await manager(made).turn()
        assert len(stored(tmp_path)) <= copied + 1
        await tend(made)
        assert len(stored(tmp_path)) > 5


async def test_disabling_remote_storage_deletes_only_on_request(tmp_path: Path) -> None:
    async with tiered(tmp_path) as made:
        await filled(made)
        await tend(made)
        count = len(stored(tmp_path))
        alter = made.context.topics.alter_config
        await alter("t", {"remote.log.copy.disable": "true"})
        for _ in range(8):
            await made.produce("t", [b"x" * 100])
        await tend(made)
        assert len(stored(tmp_path)) == count
        assert len(await read_all(made)) == RECORDS + 8
        with pytest.raises(KafkaError, match="without deleting remote data"):
            await alter("t", {"remote.storage.enable": "false"})
        local = partition_of(made).log.local_start_offset
        await alter("t", {"remote.storage.enable": "false", "remote.log.delete.on.disable": "true"})
        await tend(made)
        assert stored(tmp_path) == []
        assert await offset_at(made, EARLIEST) == local
        assert len(await read_all(made, local)) == RECORDS + 8 - local


async def test_an_invalid_remote_topic_configuration_is_refused(tmp_path: Path) -> None:
    async with direct_broker(tmp_path / "without") as made:
        with pytest.raises(KafkaError, match="Tiered Storage functionality is disabled"):
            await made.create_topic("t", remote_storage_enable="true")
    async with tiered(tmp_path) as made:
        for config, complaint in (
            ({"cleanup.policy": "compact"}, "a compacted topic"),
            ({"retention.ms": "10", "local.retention.ms": "20"}, "local.retention.ms is 20"),
            ({"retention.bytes": "10", "local.retention.bytes": "-1"}, "local.retention.bytes is -1"),
        ):
            with pytest.raises(KafkaError, match=complaint):
                await made.context.topics.create_topic("t", 1, {"remote.storage.enable": "true", **config})


async def test_a_restored_directory_reads_and_leaves_everything_as_it_is(tmp_path: Path) -> None:
    async with tiered(tmp_path) as made:
        await filled(made)
        await tend(made)
    before = LocalFiles(tmp_path / "remote").names("")
    (tmp_path / "data" / RESTORED_NAME).write_text("x")
    async with tiered(tmp_path) as made:
        assert await read_all(made) == list(enumerate(values()))
        await made.context.topics.alter_config("t", {"retention.ms": "1000"})
        for _ in range(8):
            await made.produce("t", [b"x" * 100])
        await tend(made)
        assert LocalFiles(tmp_path / "remote").names("") == before


class LostError(OSError):
    """The store does not answer."""


class FailingFiles(LocalFiles):
    """Fail at the operation of this number, before it is done or after; from then on fail as if killed."""

    def __init__(self, root: Path) -> None:
        super().__init__(root)
        self.count, self.at, self.after, self.stays = 0, -1, False, False

    def _step(self, work: Any, *arguments: Any, **named: Any) -> Any:
        self.count += 1
        fails = self.count == self.at or (self.stays and self.count > self.at)
        if fails and not (self.after and self.count == self.at):
            raise LostError("the store does not answer")
        result = work(*arguments, **named)
        if fails:
            raise LostError("the answer is lost")
        return result

    def put(self, name: str, data: Any, *, create: bool = False) -> None:
        self._step(super().put, name, data, create=create)

    def remove(self, name: str) -> None:
        self._step(super().remove, name)

    def names(self, prefix: str, after: str = "") -> list[str]:
        found: list[str] = self._step(super().names, prefix, after)
        return found

    def read(self, name: str) -> bytes:
        data: bytes = self._step(super().read, name)
        return data


@pytest.mark.parametrize("stays", [False, True], ids=["once", "and-killed"])
@pytest.mark.parametrize("after", [False, True], ids=["not-done", "answer-lost"])
async def test_a_failure_at_any_step_loses_nothing_and_leaves_nothing(
    tmp_path: Path, after: bool, stays: bool
) -> None:
    """Copy and expiry fail at each operation of the store; then it works again, after a restart or without one."""
    at, step = (after - 1, 2) if not stays else (after, 3)
    while True:
        at += step
        path = tmp_path / str(at)
        async with tiered(path) as made:
            await filled(made, segment_bytes="1500")
            files = FailingFiles(path / "remote")
            use(made, files)
            files.at, files.after, files.stays = at, after, stays
            await tend(made)
            await delete_records(made, 15)
            await tend(made)
            is_over = files.count < at
            log = partition_of(made).log
            assert log.local_start_offset <= max(15, log.tiered_to)
            if not stays:
                files.at = -1
                await check(made, path)
        if stays:
            for mark in (path / "data").rglob("*clean*shutdown"):  # no marker of a clean stop
                mark.unlink()
            async with tiered(path) as made:
                await check(made, path)
        if is_over:
            break
    assert at > 10


async def check(made: DirectBroker, path: Path) -> None:
    await tend(made)
    await tend(made)
    assert await read_all(made, 15) == list(enumerate(values()))[15:]
    remote = partition_of(made).remote
    assert remote is not None
    await remote.load()
    named = {f"{remote.folder}/{segment.name}" for segment in remote.manifest.segments}
    assert set(stored(path)) == named, "unknown objects"
    manifests = [name for name in LocalFiles(path / "remote").names(remote.folder) if "manifest" in name]
    assert len(manifests) <= 2
    assert manifests[-1] == f"{remote.folder}/{remote.manifest.name}"


class Deposed:
    """A former leader, at some moment of its work, while another broker takes over."""

    def __init__(self, made: DirectBroker, tmp_path: Path) -> None:
        self.remote = partition_of(made).remote
        assert self.remote is not None
        self.files = LocalFiles(tmp_path / "remote")
        self.manifest = self.remote.manifest

    def goes_on(self, *segments: RemoteSegment) -> None:
        """Act as the other broker: write its next manifest, and remove the one before."""
        before = self.manifest
        self.manifest = before.with_segments((*before.segments, *segments), "another broker", 0)
        self.files.put(f"{self.remote.folder}/{self.manifest.name}", self.manifest.encode(), create=True)
        self.files.remove(f"{self.remote.folder}/{before.name}")


async def test_an_abandoned_manifest_number_is_not_reused(tmp_path: Path) -> None:
    async with tiered(tmp_path) as made:
        await filled(made)
        await tend(made)
        other = Deposed(made, tmp_path)
        other.goes_on()
        other.goes_on()
        tiered_to = partition_of(made).log.tiered_to
        for _ in range(8):
            await made.produce("t", [b"x" * 100])
        await tend(made)
        assert partition_of(made).log.tiered_to == tiered_to, (
            "what the other one does not know counts as copied"
        )
        assert newest_manifest(other.files, other.remote.folder) == other.manifest
        await tend(made)  # it has read the manifest again
        assert partition_of(made).log.tiered_to > tiered_to
        assert len(await read_all(made)) == RECORDS + 8


async def test_an_object_of_another_leader_is_not_removed_as_a_leftover(tmp_path: Path) -> None:
    async with tiered(tmp_path) as made:
        await filled(made)
        await tend(made)
        other = Deposed(made, tmp_path)
        other.goes_on()
        folder = other.remote.folder
        other.files.put(f"{folder}/{RECORDS:020d}-new.segment", b"is about to be named")
        other.remote.has_leftovers = True
        await tend(made)
        assert f"{folder}/{RECORDS:020d}-new.segment" in stored(tmp_path)


@pytest.mark.parametrize("has_leftover", [False, True], ids=["copies", "cleans"])
async def test_a_new_leader_claims_the_next_manifest_number_first(tmp_path: Path, has_leftover: bool) -> None:
    """A former leader may be about to name an object, or to take one for a leftover."""
    async with tiered(tmp_path) as made:
        await filled(made)
        await tend(made)
        folder = Deposed(made, tmp_path).remote.folder
        for _ in range(0 if has_leftover else 8):
            await made.produce("t", [b"x" * 100])
    files = LocalFiles(tmp_path / "remote")
    if has_leftover:
        files.put(f"{folder}/{RECORDS:020d}-late.segment", b"is about to be named")
    before = newest_manifest(files, folder)
    done: list[str] = []

    class Watched(LocalFiles):
        def put(self, name: str, data: Any, *, create: bool = False) -> None:
            done.append(name)
            super().put(name, data, create=create)

        def remove(self, name: str) -> None:
            done.append(name)
            super().remove(name)

    async with tiered(tmp_path) as made:
        use(made, Watched(tmp_path / "remote"))
        await tend(made)
    claim = f"{folder}/{before.with_segments((), '', 0).name}"
    of_segments = [name for name in done if name.endswith(".segment")]
    assert of_segments
    assert done.index(claim) < done.index(of_segments[0])


@pytest.mark.parametrize("local_bytes", ["500", "1000000"])
async def test_records_that_a_former_leader_removed_are_not_offered(tmp_path: Path, local_bytes: str) -> None:
    """It was gone before its followers knew the new start of the log; they may still have these records."""
    async with tiered(tmp_path) as made:
        await filled(made, local_retention_bytes=local_bytes)
        await tend(made)
        remote, log = partition_of(made).remote, partition_of(made).log
        assert remote is not None
        gone, *kept = remote.manifest.segments
        other = remote.manifest.with_segments(kept, "another broker", gone.end_offset)
        LocalFiles(tmp_path / "remote").put(f"{remote.folder}/{other.name}", other.encode())
        remote.reload()
        await tend(made)
        assert log.log_start_offset == await offset_at(made, EARLIEST) == gone.end_offset
        assert (await made.fetch("t", 0)).error_code == ErrorCode.OFFSET_OUT_OF_RANGE
        assert await read_all(made, gone.end_offset) == list(enumerate(values()))[gone.end_offset :]


async def test_one_of_two_writers_of_a_manifest_finds_the_conflict(tmp_path: Path) -> None:
    async with tiered(tmp_path) as made:
        await filled(made)
        await tend(made)
        remote = partition_of(made).remote
        assert remote is not None
        other = remote.manifest.with_segments(remote.manifest.segments, "another broker", 0)
        LocalFiles(tmp_path / "remote").put(f"{remote.folder}/{other.name}", other.encode())
        before = stored(tmp_path)
        for _ in range(8):
            await made.produce("t", [b"x" * 100])
        await tend(made)
        assert remote.end_offset == other.end_offset, "it went on with what it knew"
        assert set(before) <= set(stored(tmp_path)), "objects of the other writer were removed"
        await tend(made)
        assert remote.end_offset > other.end_offset
        assert len(await read_all(made)) == RECORDS + 8


def files_of(tmp_path: Path) -> LocalFiles:
    return LocalFiles(tmp_path / "remote")


def bootstrapped(tmp_path: Path, data: str) -> cluster_copy.ClusterImage:
    return bootstrap.make_directory(
        files_of(tmp_path), str(tmp_path / "remote"), None, SystemDisk(), tmp_path / data
    )


async def test_a_new_machine_goes_on_with_what_remote_storage_has(tmp_path: Path) -> None:
    async with tiered(tmp_path) as made:
        await filled(made)
        await made.create_topic("plain", retention_ms="12345")
        await made.produce("plain", [b"local alone"])
        again = build_batch(
            [Record(None, b"once", (), FIRST_MS)], producer_id=7, producer_epoch=0, base_sequence=0
        )
        once = (await made.produce("t", again)).base_offset
        for _ in range(4):
            await made.produce("t", [b"y" * 100])
        await tend(made)
        await delete_records(made, 10)
        await tend(made)
        await delete_records(made, 11)  # in the middle of a segment, which stays
        await tend(made)
        end = partition_of(made).log.tiered_to
        assert once < end < RECORDS + 5
        written = await read_all(made, 11)
        epoch = partition_of(made).log.last_epoch
    bootstrapped(tmp_path, "new")
    async with tiered(tmp_path, "new") as made:
        log = partition_of(made).log
        assert (log.log_start_offset, log.local_start_offset, log.log_end_offset) == (11, end, end)
        assert await read_all(made, 11) == [each for each in written if each[0] < end]
        assert await offset_at(made, FIRST_MS + 20_000) == 20
        assert (await made.produce("t", again)).base_offset == once, "the state of producers is lost"
        assert (await made.produce("t", [b"more"])).base_offset == end
        assert log.last_epoch > epoch
        plain = made.context.metadata.topic("plain")
        assert plain is not None
        assert plain.config == {"retention.ms": "12345"}
        for _ in range(8):
            await made.produce("t", [b"z" * 100])
        await tend(made)
        assert log.tiered_to > end
        assert len(await read_all(made, 11)) == log.log_end_offset - 11
    bootstrapped(tmp_path, "third")
    async with tiered(tmp_path, "third") as made:
        assert len(await read_all(made, 11)) == partition_of(made).log.log_end_offset - 11


async def test_a_replaced_server_stops_writing(tmp_path: Path) -> None:
    async with tiered(tmp_path) as old:
        await filled(old)
        await tend(old)
        bootstrapped(tmp_path, "new")
        async with tiered(tmp_path, "new") as new:
            await tend(new)
            there = files_of(tmp_path).names("")
            for _ in range(20):
                await old.produce("t", [b"of the old one" * 10])
            await tend(old)
            assert files_of(tmp_path).names("") == there
            for _ in range(20):
                await new.produce("t", [b"of the new one" * 10])
            await tend(new)
            assert set(there) - set(files_of(tmp_path).names("")) <= {
                name for name in there if "manifest" in name
            }
            assert len(await read_all(new)) == partition_of(new).log.log_end_offset


async def test_segments_of_a_replaced_machine_are_not_in_the_new_log(tmp_path: Path) -> None:
    """The old machine was copying when the new one began: it may still name one segment more."""
    async with tiered(tmp_path) as old:
        await filled(old)
        await tend(old)
        bootstrapped(tmp_path, "new")
        async with tiered(tmp_path, "new") as new:
            end = partition_of(new).log.log_end_offset
            for _ in range(8):
                await old.produce("t", [b"of the old one" * 10])
            await partition_of(old).flush(old.context.executor)
            await manager(old).tend(partition_of(old))
            for _ in range(20):
                await new.produce("t", [b"of the new one" * 10])
            for _ in range(3):
                await tend(new)
            assert partition_of(new).log.local_start_offset > end
            assert [value for _, value in await read_all(new, end)] == [b"of the new one" * 10] * 20
    bootstrapped(tmp_path, "third")
    async with tiered(tmp_path, "third") as third:
        tail = [value for _, value in await read_all(third, end)]
        assert tail == [b"of the new one" * 10] * len(tail)
        assert len(tail) > 10


async def test_a_new_machine_does_not_begin_without_remote_storage(tmp_path: Path) -> None:
    async with tiered(tmp_path) as made:
        await filled(made)
        await tend(made)
    bootstrapped(tmp_path, "new")
    with pytest.raises(ConfigError, match="restored from remote storage"):
        async with direct_broker(tmp_path / "new"):
            pass
    for name in files_of(tmp_path).names(""):
        if "manifest" in name:
            (tmp_path / "remote" / name).rename(tmp_path / "manifest")
            (tmp_path / "remote" / name).write_bytes(b"{")
            broken = tmp_path / "remote" / name
    with pytest.raises(ConfigError, match=r"cannot restore t-0 from remote storage"):
        async with tiered(tmp_path, "new"):
            pass
    (tmp_path / "manifest").rename(broken)
    async with tiered(tmp_path, "new") as made:
        assert len(await read_all(made)) == partition_of(made).log.log_end_offset > 30


def test_remote_storage_without_cluster_metadata_is_not_restored(tmp_path: Path) -> None:
    with pytest.raises(cluster_copy.ClusterCopyError, match="has no metadata of a cluster"):
        bootstrapped(tmp_path, "new")
    files = files_of(tmp_path)
    for cluster in ("a", "b"):
        image = cluster_copy.ClusterImage(cluster, 0, "w", 1, StoreImage((), ()))
        files.put(cluster_copy.name_of(cluster, 1), image.encode())
    with pytest.raises(cluster_copy.ClusterCopyError, match=r"several clusters \(a, b\)"):
        bootstrapped(tmp_path, "new")
    newer = cluster_copy.ClusterImage("a", 0, "w", 1, StoreImage((), ()), layout=99)
    files.put(cluster_copy.name_of("a", 2), newer.encode())
    with pytest.raises(cluster_copy.ClusterCopyError, match="layout 99"):
        bootstrap.make_directory(files, "there", "a", SystemDisk(), tmp_path / "new")
    assert not (tmp_path / "new").exists()
    bootstrap.make_directory(files, "there", "b", SystemDisk(), tmp_path / "new")
    with pytest.raises(cluster_copy.ClusterCopyError, match="not empty"):
        bootstrap.make_directory(files, "there", "b", SystemDisk(), tmp_path / "new")


async def measured(made: DirectBroker) -> dict[str, float]:
    gathering = Gathering()
    await remote_log.collect(manager(made), gathering)
    found: dict[str, float] = {}
    for name, by_labels in gathering.values.items():
        for value in by_labels.values():
            assert not isinstance(value, HistogramValue)
            found[name.removeprefix("headrace_remote_")] = value
    return found


async def test_remote_copies_reads_and_deletes_are_measured(tmp_path: Path) -> None:
    async with tiered(tmp_path) as made:
        await filled(made)
        partition = partition_of(made)
        await manager(made).turn()
        await partition.flush(made.context.executor)
        await tend(made)
        found = await measured(made)
        count = len(stored(tmp_path))
        assert (found["copy_requests_total"], found["log_segments"]) == (count, count)
        assert found["copy_bytes_total"] == found["log_size_bytes"] > 4000
        assert (found["copy_lag_bytes"], found["copy_errors_total"], found["fetch_errors_total"]) == (0, 0, 0)
        await read_all(made)
        found = await measured(made)
        local = sum(each.size for each in partition.log.segments)
        assert found["fetch_bytes_total"] >= found["log_size_bytes"] - local
        assert found["fetch_requests_total"] > 5
        assert found["store_reads_total"] > 0
        assert found["store_read_bytes_total"] > 4000
        assert found["reads_waiting"] == 0
        await made.context.topics.alter_config("t", {"retention.ms": "1000"})
        for _ in range(8):
            await made.produce("t", [b"x" * 100])
        await manager(made).turn()
        found = await measured(made)
        assert found["delete_requests_total"] >= count
        await made.context.topics.delete_topic("t")
        assert "copy_requests_total" not in await measured(made)


async def test_the_age_of_metadata_and_position_copies_is_measured(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    async with tiered(tmp_path) as made:
        remote = manager(made)
        ages = ("metadata_age_seconds", "group_positions_age_seconds")

        await remote.turn()
        await remote.copy_positions()
        found = await measured(made)
        assert all(0.0 <= found[each] < 900.0 for each in ages)
        remote._metadata_true_at -= 1000.0
        remote._positions_true_at -= 1000.0
        with monkeypatch.context() as patch:

            async def fail(*_: object) -> None:
                raise OSError("the store is away")

            patch.setattr(remote._cluster, "keep", fail)
            patch.setattr(remote._positions, "keep", fail)
            await remote.turn()
            await remote.copy_positions()
            found = await measured(made)
            assert all(found[each] >= 1000.0 for each in ages)
        await remote.turn()
        found = await measured(made)
        assert (found[ages[0]] < 900.0, found[ages[1]] >= 1000.0) == (True, True)
        await remote.copy_positions()
        assert (await measured(made))[ages[1]] < 900.0


async def test_quotas_of_copies_and_of_reads(tmp_path: Path) -> None:
    copies, fetches = (f"remote_log_manager_{work}_max_bytes_per_second" for work in ("copy", "fetch"))
    async with tiered(tmp_path, **{copies: "1"}) as made:
        await filled(made)
        await tend(made)
        await tend(made)
        assert len(stored(tmp_path)) == 1, "one segment is more than was allowed"
        await change(made, "0", **{copies: None})
        await change(made, "0", **{copies: str(1 << 40)})
        await tend(made)
        assert len(stored(tmp_path)) > 10
        await change(made, "0", **{fetches: "1"})
        assert values_of((await made.fetch("t", 0, max_wait_ms=10_000)).records)
        late = await made.fetch("t", 3, max_wait_ms=10)
        assert (late.error_code, len(late.records or b"")) == (0, 0)
        assert (await made.fetch("t", RECORDS - 1)).records, "local records do not wait for remote storage"
        await change(made, "0", **{fetches: str(1 << 40)})
        assert len(await read_all(made)) == RECORDS


def test_a_quota_is_kept_over_time() -> None:
    now, limit, moved = 0.0, 1000, 0
    quota = RemoteQuota(lambda: limit, 2.2, lambda: now)
    while now < 100.0:
        now += quota.wait_seconds()
        quota.used(900)
        moved += 900
        now += 0.001
    assert 100_000 <= moved <= 104_000
    limit = UNLIMITED
    assert quota.wait_seconds() == 0.0


class LateListing(LocalFiles):
    """A store whose listings are some changes old; reads and conditional writes are up to date."""

    def __init__(self, root: Path, behind: int) -> None:
        super().__init__(root)
        self._behind = behind
        self._shown: list[list[str]] = []

    def _changed(self) -> None:
        self._shown.append(super().names(""))

    def put(self, name: str, data: Any, *, create: bool = False) -> None:
        super().put(name, data, create=create)
        self._changed()

    def remove(self, name: str) -> None:
        super().remove(name)
        self._changed()

    def names(self, prefix: str, after: str = "") -> list[str]:
        shown = self._shown[-1 - self._behind] if len(self._shown) > self._behind else []
        return [name for name in shown if name.startswith(prefix) and name > after]


@pytest.mark.parametrize("behind", [1, 2, 3, 7])
async def test_a_listing_that_is_late_hides_nothing(tmp_path: Path, behind: int) -> None:
    files = LateListing(tmp_path / "remote", behind)
    async with tiered(tmp_path) as made:
        use(made, files)
        await filled(made, segment_bytes="1500")
        await tend(made)
        partition = partition_of(made)
        assert partition.remote is not None
        partition.remote._files = files
        partition.remote.reload()
        assert await read_all(made) == list(enumerate(values()))
        for _ in range(24):
            await made.produce("t", [b"x" * 100])
        await tend(made)
        folder = partition.remote.folder
        assert newest_manifest(files, folder) == partition.remote.manifest
        named = {f"{folder}/{segment.name}" for segment in partition.remote.manifest.segments}
        assert named <= set(stored(tmp_path)), "objects of a manifest are gone"


async def test_a_copied_segment_does_not_grow_after_a_restart(tmp_path: Path) -> None:
    """The segment after a copied one has no file before its first batch, so a restart begins without it."""
    async with tiered(tmp_path) as made:
        await filled(made)
        partition_of(made).log.roll()
        await tend(made)
    copied, expected = set(stored(tmp_path)), list(enumerate(values()))
    for _ in range(2):
        async with tiered(tmp_path) as made:
            assert (await made.produce("t", [b"more"])).error_code == 0
            expected.append((len(expected), b"more"))
            partition_of(made).log.roll()
            await tend(made)
            remote = partition_of(made).remote
            assert remote is not None
            segments = remote.manifest.segments
            assert [each.end_offset for each in segments[:-1]] == [each.base_offset for each in segments[1:]]
            assert remote.end_offset == len(expected)
            assert copied < set(stored(tmp_path))
            assert await read_all(made) == expected


def test_a_manifest_with_common_records_is_read_and_one_with_a_gap_is_not() -> None:
    first, second, third = (
        RemoteSegment(str(base), base, end, 100) for base, end in ((0, 9), (5, 12), (13, 20))
    )
    assert Manifest.decode(Manifest(segments=(first, second)).encode()).end_offset == 12
    with pytest.raises(ManifestError, match="a gap between offsets 12 and 13"):
        Manifest.decode(Manifest(segments=(first, second, third)).encode())


def merged(files: LocalFiles, folder: str, parts: Sequence[RemoteSegment], number: int) -> RemoteSegment:
    """Store these segments as one, as a leader with other ends of segments does."""
    first, last = parts[0], parts[-1]
    records = b"".join(files.read_range(f"{folder}/{each.name}", 0, each.size) for each in parts)
    aborted = b"".join(
        files.read_range(
            f"{folder}/{each.name}", each.producers_position - each.aborted_size, each.aborted_size
        )
        for each in parts
    )
    largest = max(parts, key=lambda each: each.largest_timestamp)
    made = RemoteSegment(
        f"merged{number}{len(records)}", first.base_offset, last.end_offset, len(records), aborted_size=len(aborted),
        largest_timestamp=largest.largest_timestamp, offset_of_largest=largest.offset_of_largest,
        first_timestamp=first.first_timestamp, epochs=first.epochs,
    )  # fmt: skip
    files.put(f"{folder}/{made.name}", records + aborted)
    return made


async def test_segments_of_leaders_with_other_ends_read_as_one_log(tmp_path: Path) -> None:
    """A model: any segments whose ends rise and that leave no gap; their beginnings may be in any order."""
    files = LocalFiles(tmp_path / "remote")
    async with tiered(tmp_path) as made:
        await made.create_topic("t", **TOPIC)
        client = Client(made)
        await client.init()
        for number in range(10):
            await client.add(("t", 0))
            for part in range(4):
                await client.send([b"%d.%d" % (number, part) + b"x" * 100], "t")
            await client.end(commit=number % 3 == 0)
        await tend(made)
        partition, remote = partition_of(made), partition_of(made).remote
        assert remote is not None
        plain, end = remote.manifest.segments, partition.log.local_start_offset
        stamps = [each.largest_timestamp + more for each in plain for more in (0, 1)]

        async def found(dice: random.Random) -> list[Any]:
            reads = []
            for at in range(end):
                up_to = dice.randint(at + 1, end)
                part = await remote.read(at, 1 << 20, up_to, True)
                assert part.end_offset <= up_to
                aborted = await partition.aborted_transactions(at, up_to)
                reads.append((part.start_offset, aborted))
            return [
                reads,
                [await offset_at(made, each) for each in stamps],
                await committed_values(made, "t"),
            ]

        for seed in range(8):
            before = await found(random.Random(seed))
            dice, chosen, stop = random.Random(seed), list[RemoteSegment](), 0
            while stop < len(plain):
                start, stop = dice.randint(0, stop), dice.randint(stop + 1, min(stop + 4, len(plain)))
                chosen.append(merged(files, remote.folder, plain[start:stop], len(chosen)))
            remote.install(remote.manifest.with_segments(chosen, f"leader {seed}", 0))
            assert await found(random.Random(seed)) == before, f"seed {seed}"
            remote.install(remote.manifest.with_segments(plain, "the leader", 0))
