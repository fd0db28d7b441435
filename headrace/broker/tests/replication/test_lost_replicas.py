"""A broker gives up a replica whose log is damaged or whose disk has failed: others lead, and it copies the log again.

The damaged log is set aside. If no other replica has everything, it is left as it is.
"""

from __future__ import annotations

import asyncio
import errno
from pathlib import Path
from typing import Any

import pytest

from headrace.broker.log.checkpoint import CLEAN_NAME
from headrace.broker.log.partition_log import PartitionLog
from headrace.broker.log.segment_chain import SegmentChain
from headrace.broker.log.validation import AppendOrigin
from headrace.broker.tests.replication.test_replication import (
    TOPIC,
    create,
    described,
    led,
    log_of,
    produce,
    until,
)
from headrace.protocol.errors import ErrorCode
from headrace.protocol.records.encode import Record, build_batch
from simulator.cluster import DEADLINE_SECONDS, DirectCluster, direct_cluster
from simulator.direct import values_of

BATCHES = 6
STARTED = {"replica.lag.time.max.ms": "1000"}


def folder_of(root: Path, node_id: int) -> Path:
    return root / str(node_id) / f"{TOPIC}-0"


def flip_a_bit(root: Path, node_id: int) -> bytes:
    """Flip a bit in the middle of a log, which is checked as after a kill. Return the log as it is then."""
    folder = folder_of(root, node_id)
    (folder / CLEAN_NAME).unlink()
    (segment,) = folder.glob("*.log")
    data = bytearray(segment.read_bytes())
    data[len(data) // 2] ^= 0x10
    segment.write_bytes(data)
    return bytes(data)


def content(cluster: DirectCluster, node_id: int) -> bytes:
    log = log_of(cluster.brokers[node_id])
    return log.read(0, 1 << 20, up_to=log.log_end_offset).read() if log.log_end_offset else b""


async def filled(cluster: DirectCluster) -> int:
    """Return the leader of a topic with some records that all replicas have."""
    await create(cluster.brokers[1], min_insync_replicas="2")
    leader = await led(cluster, {1, 2, 3})
    for number in range(BATCHES):
        assert (await produce(leader, [b"%d" % number], acks=-1)).error_code == 0
    return next(node_id for node_id, broker in cluster.brokers.items() if broker is leader)


async def stopped_one_after_the_other(cluster: DirectCluster) -> int:
    """Stop all brokers one after the other; return the last one."""
    for node_id in (1, 2, 3):
        await cluster.stop(node_id)
    return node_id


async def all_have_the_same(cluster: DirectCluster) -> None:
    await led(cluster, {1, 2, 3})
    await until(lambda: len({content(cluster, node_id) for node_id in (1, 2, 3)}) == 1)
    assert log_of(cluster.brokers[1]).log_end_offset >= BATCHES


async def test_a_follower_whose_log_is_damaged_copies_it_again(tmp_path: Path) -> None:
    async with direct_cluster(tmp_path, 3, config=STARTED) as cluster:
        leader = await filled(cluster)
        follower = leader % 3 + 1
        await cluster.stop(follower)
        damaged = flip_a_bit(tmp_path, follower)
        await cluster.start(follower, STARTED)
        await all_have_the_same(cluster)
        (kept,) = (tmp_path / str(follower)).glob(f"{TOPIC}-0.*-stray")
        (segment,) = kept.glob("*.log")
        assert segment.read_bytes() == damaged, "for inspection"


async def test_a_replica_copies_a_batch_whose_first_records_are_deleted(tmp_path: Path) -> None:
    """It was away and has no records: DeleteRecords removed a part of the leader's first batch."""
    async with direct_cluster(tmp_path, 3, config=STARTED) as cluster:
        await create(cluster.brokers[1])
        leader = await led(cluster, {1, 2, 3})
        first, *_, away = (await described(leader))[0].replica_nodes
        assert leader is cluster.brokers[first]
        await cluster.stop(away)
        assert (await produce(leader, [b"%d" % number for number in range(4)], acks=-1)).error_code == 0
        log_of(leader).delete_records(2)
        await cluster.start(away, STARTED)
        await led(cluster, {1, 2, 3})
        copied = log_of(cluster.brokers[away])
        assert (copied.log_start_offset, copied.log_end_offset) == (2, 4)
        for node_id in {1, 2, 3} - {away}:
            await cluster.stop(node_id)
        found = await (await led(cluster, {away})).fetch(TOPIC, 2)
        assert [value for _, value in values_of(found.records) if value in (b"2", b"3")] == [b"2", b"3"]
        assert (await cluster.brokers[away].fetch(TOPIC, 1)).error_code == ErrorCode.OFFSET_OUT_OF_RANGE


async def test_a_follower_that_has_lost_the_beginning_of_its_log_copies_it_again(tmp_path: Path) -> None:
    """A power cut may lose the first segments and leave later ones."""
    config = STARTED | {"log.segment.bytes": "1000"}
    async with direct_cluster(tmp_path, 3, config=config) as cluster:
        leader = await filled(cluster)
        for number in range(BATCHES):
            assert (await produce(cluster.brokers[leader], [b"%d" % number * 300], acks=-1)).error_code == 0
        follower = leader % 3 + 1
        await cluster.stop(follower)
        folder = folder_of(tmp_path, follower)
        (folder / CLEAN_NAME).unlink()
        first, *later = sorted(folder.glob("*.log"))
        assert later
        first.unlink()
        await cluster.start(follower, config)
        await led(cluster, {1, 2, 3})
        copied = log_of(cluster.brokers[follower])
        assert (copied.log_start_offset, copied.log_end_offset) == (0, 2 * BATCHES)
        await all_have_the_same(cluster)


async def test_an_in_sync_replica_keeps_a_log_that_starts_later(tmp_path: Path) -> None:
    """A former leader had deleted more than its successor knows of."""
    async with direct_cluster(tmp_path, 3, config=STARTED) as cluster:
        leader = await filled(cluster)
        follower = log_of(cluster.brokers[leader % 3 + 1])
        follower.delete_records(2)
        assert (await produce(cluster.brokers[leader], [b"more"], acks=-1)).error_code == 0
        await until(lambda: follower.log_end_offset == BATCHES + 1)
        assert follower.log_start_offset == 2
        assert (await produce(cluster.brokers[leader], [b"more"], acks=-1)).error_code == 0
        await until(lambda: follower.log_end_offset == BATCHES + 2)
        assert follower.log_start_offset == 2
        await led(cluster, {1, 2, 3})


async def test_another_replica_leads_when_the_leaders_log_is_damaged(tmp_path: Path) -> None:
    """A broker finds the damage when it begins to lead after all were down."""
    async with direct_cluster(tmp_path, 3, config=STARTED) as cluster:
        await filled(cluster)
        last = await stopped_one_after_the_other(cluster)
        flip_a_bit(tmp_path, last)
        for node_id in (last, *({1, 2, 3} - {last})):
            await cluster.start(node_id, STARTED)
        await all_have_the_same(cluster)
        assert list((tmp_path / str(last)).glob(f"{TOPIC}-0.*-stray"))


async def test_a_leader_that_reads_what_is_damaged_leads_no_longer_and_copies_it_again(
    tmp_path: Path,
) -> None:
    async with direct_cluster(tmp_path, 3, config=STARTED) as cluster:
        await filled(cluster)
        number = await stopped_one_after_the_other(cluster)
        (segment,) = folder_of(tmp_path, number).glob("*.log")
        with segment.open(
            "r+b"
        ) as file:  # the length of the first batch; a log that was closed cleanly is not checked
            file.seek(8)
            file.write(b"\xff\xff")
        for node_id in (number, *({1, 2, 3} - {number})):
            await cluster.start(node_id, STARTED)
        leader = await led(cluster, {1, 2, 3})
        assert leader is cluster.brokers[number]
        assert (await leader.fetch(TOPIC, 0)).error_code == ErrorCode.KAFKA_STORAGE_ERROR
        await until(lambda: leader.context.replicas.follower(TOPIC, 0) is not None)
        await all_have_the_same(cluster)


async def test_a_damaged_log_of_the_last_replica_is_left_unchanged(tmp_path: Path) -> None:
    async with direct_cluster(tmp_path, 3, config=STARTED) as cluster:
        await create(cluster.brokers[1])
        first = await led(cluster, {1, 2, 3})
        alone = next(node_id for node_id, broker in cluster.brokers.items() if broker is first)
        for node_id in {1, 2, 3} - {alone}:
            await cluster.stop(node_id)
        leader = await led(cluster, {alone})
        for number in range(BATCHES):
            assert (await produce(leader, [b"%d" % number], acks=-1)).error_code == 0
        await cluster.stop(alone)
        damaged = flip_a_bit(tmp_path, alone)
        for node_id in (1, 2, 3):
            await cluster.start(node_id, STARTED)
        await cluster.agreed(lambda broker: len(broker.context.metadata.image.brokers) == 3)
        back = cluster.brokers[alone]
        assert (await produce(back, [b"x"], acks=1)).error_code == ErrorCode.KAFKA_STORAGE_ERROR
        (part,) = await described(back)
        assert (part.leader_id, part.isr_nodes) == (alone, [alone])
        metadata = back.context.metadata
        assert not await back.context.replica_changes.set_aside_replica(metadata.topic(TOPIC), 0), (
            "nor when it is asked to"
        )
        (segment,) = folder_of(tmp_path, alone).glob("*.log")
        assert segment.read_bytes() == damaged


async def test_another_replica_leads_when_the_leaders_disk_fails(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A log is not used again after a failed fsync: the replica is out until a restart."""
    async with direct_cluster(tmp_path, 3, config=STARTED) as cluster:
        number = await filled(cluster)
        log = log_of(cluster.brokers[number])

        def failing(self: PartitionLog) -> None:
            if self is not log:
                return flush(self)
            raise self._health.sync_error(OSError(errno.EIO, "I/O error"))

        flush = PartitionLog.flush
        monkeypatch.setattr(PartitionLog, "flush", failing)
        partition = cluster.brokers[number].context.replicas.partition(TOPIC, 0)
        await partition.flush(cluster.brokers[number].context.executor)
        leader = await led(cluster, {1, 2, 3} - {number})
        assert leader is not cluster.brokers[number]
        assert (await produce(leader, [b"after"], acks=-1)).error_code == 0
        await until(
            lambda: (
                "fsync"
                in (
                    getattr(cluster.brokers[number].context.replicas.follower(TOPIC, 0), "failure", None)
                    or ""
                )
            )
        )
        await cluster.stop(number)
        monkeypatch.undo()
        await cluster.start(number, STARTED)
        await all_have_the_same(cluster)
        async with asyncio.timeout(DEADLINE_SECONDS):
            assert (await produce(await led(cluster), [b"x"], acks=-1)).error_code == 0


async def test_a_follower_whose_log_finds_no_room_is_opened_when_there_is_some(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    async with direct_cluster(tmp_path, 3, config=STARTED) as cluster:
        leader = await filled(cluster)
        follower, refused = leader % 3 + 1, []
        await cluster.stop(follower)
        opened = PartitionLog.open

        def without_room(directory: Path, *arguments: Any, **rest: Any) -> PartitionLog:
            if directory == folder_of(tmp_path, follower) and len(refused) < 2:
                refused.append(directory)
                raise OSError((errno.ENOSPC, errno.EMFILE)[len(refused) - 1], "none is left")
            return opened(directory, *arguments, **rest)

        monkeypatch.setattr(PartitionLog, "open", without_room)
        await cluster.start(follower, STARTED)
        await all_have_the_same(cluster)
        assert len(refused) == 2


async def test_a_follower_whose_truncation_finds_no_room_goes_on_when_there_is_some(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    async with direct_cluster(tmp_path, 3, config=STARTED) as cluster:
        number = await filled(cluster)
        leader, follower, refused = cluster.brokers[number], number % 3 + 1, []
        cut = SegmentChain.cut

        def without_room(self: SegmentChain, *arguments: Any) -> None:
            if len(refused) < 2:
                refused.append(self)
                raise OSError((errno.EMFILE, errno.ENOMEM)[len(refused) - 1], "none is left")
            cut(self, *arguments)

        monkeypatch.setattr(SegmentChain, "cut", without_room)
        replica: Any = cluster.brokers[follower].context.replicas.follower(TOPIC, 0)
        log = replica.log
        log.append(
            build_batch([Record(None, b"of no leader", (), 0)]),
            leader_epoch=log.last_epoch,
            origin=AppendOrigin.CLIENT,
        )
        replica.changed(replica)
        await until(lambda: len(refused) == 2 and replica.is_open and replica.log.log_end_offset == BATCHES)
        assert replica.log is not log
        assert (await produce(leader, [b"after"], acks=-1)).error_code == 0
        await all_have_the_same(cluster)


async def test_a_follower_that_cannot_commit_says_nothing_until_it_has_committed(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    async with direct_cluster(tmp_path, 3) as cluster:
        await create(cluster.brokers[1], min_insync_replicas="2", durability="power")
        leader = await led(cluster, {1, 2, 3})
        number = next(node_id for node_id, broker in cluster.brokers.items() if broker is leader)
        log, refused = log_of(cluster.brokers[number % 3 + 1]), []
        commit = PartitionLog.commit

        def without_files(self: PartitionLog) -> None:
            if self is log and len(refused) < 2:
                refused.append(described_end(leader))
                error = OSError(errno.EMFILE, "none is left")
                raise self._health.sync_error(error) from error
            commit(self)

        def described_end(broker: Any) -> int:
            return broker.context.replicas.partition(TOPIC, 0).high_watermark

        monkeypatch.setattr(PartitionLog, "commit", without_files)
        assert (await produce(leader, [b"x"], acks=-1)).error_code == 0
        assert refused == [0, 0]
        await until(lambda: log.recovery_point == 1)
        replica: Any = cluster.brokers[number % 3 + 1].context.replicas.follower(TOPIC, 0)
        assert replica.failure is None
