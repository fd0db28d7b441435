"""`durability=power`: acknowledged and read records are on the medium; many batches share an fsync."""

from __future__ import annotations

import asyncio
import errno
import random
import threading
import uuid
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest

from headrace.broker.configs.broker_config import BrokerConfig
from headrace.broker.log.config import LogConfig
from headrace.broker.log.errors import CorruptLogError
from headrace.broker.log.partition_log import AppendOrigin, PartitionLog
from headrace.broker.log.segment import Segment
from headrace.broker.partitions.partition import Partition
from headrace.broker.partitions.topic import TopicImage
from headrace.protocol.errors import ErrorCode, KafkaError
from headrace.protocol.records.check import Effort
from simulator.direct import direct_broker, values_of
from simulator.disk import Fault, SimulatedDisk, Tear
from simulator.log import LogWorld, batches_of


class PowerWorld(LogWorld):
    """Partitions whose fsyncs wait until `go_on` is set."""

    def __init__(self) -> None:
        super().__init__()
        self.executor = ThreadPoolExecutor(2)
        self.go_on = threading.Event()
        self.go_on.set()

    def partition(self, disk: SimulatedDisk | None = None, **config: str | int) -> Partition:
        disk = disk or self.disk
        config = {"durability": "power", **config}
        partition = Partition(
            TopicImage("orders", uuid.uuid4(), 1),
            0,
            lambda _: self.open(disk, **config),
            executor=self.executor,
        )
        commit = partition.log.commit

        def when_allowed() -> None:
            assert self.go_on.wait(60)
            commit()

        partition.log.commit = when_allowed
        return partition

    def survivors(self, disk: SimulatedDisk, tear: Tear = Tear.LOST) -> list[tuple[int, bytes]]:
        return batches_of(self.open(disk.restart(tear), durability="power"))


@pytest.fixture
def power():
    world = PowerWorld()
    yield world
    world.go_on.set()
    world.executor.shutdown()


async def test_d1_nothing_is_acknowledged_or_shown_before_its_fsync_and_batches_share_one(power) -> None:
    partition = power.partition()
    power.go_on.clear()
    seen = []
    partition.add_waiter(lambda: seen.append(partition.high_watermark))
    infos = [partition.append(power.batch(2), AppendOrigin.CLIENT) for _ in range(20)]
    assert [info.base_offset for info in infos] == list(range(0, 40, 2))
    assert not await partition.wait_for_high_watermark(1, 20)
    assert not partition.read(0, 1 << 20).size
    assert power.survivors(power.disk) == []
    power.go_on.set()
    for info in infos:
        assert await partition.wait_for_high_watermark(info.last_offset + 1, 5000)
    assert seen[-1] == partition.high_watermark == 40
    syncs = power.disk.calls["sync"]
    assert syncs <= 3, "one or two for twenty batches, one more for the snapshot of producers"
    assert len(power.survivors(power.disk)) == 20
    await partition.close()


async def test_d1_a_duplicate_waits_for_its_originals_fsync(power) -> None:
    partition = power.partition()
    power.go_on.clear()
    batch = power.batch(1, producer_id=5, producer_epoch=0, base_sequence=0)
    first = partition.append(batch, AppendOrigin.CLIENT)
    retry = partition.append(batch, AppendOrigin.CLIENT)
    assert (retry.duplicate, retry.base_offset) == (True, first.base_offset)
    assert partition.high_watermark == 0
    power.go_on.set()
    assert await partition.wait_for_high_watermark(1, 5000)
    await partition.close()


async def test_d1_records_of_a_killed_process_are_synced_before_a_retry_is_a_duplicate(power) -> None:
    batch = power.batch(1, producer_id=5, producer_epoch=0, base_sequence=0)
    log = power.open(durability="power")
    log.append(batch, leader_epoch=0)
    survived = power.disk.restart(Tear.KEPT)  # killed between append and fsync
    assert power.survivors(survived) == []
    partition = power.partition(survived)
    assert partition.high_watermark == 1
    assert len(power.survivors(survived)) == 1
    assert partition.append(batch, AppendOrigin.CLIENT).duplicate
    assert len(power.survivors(survived)) == 1
    await partition.close()


async def test_d4_records_whose_fsync_failed_are_not_taken_for_durable_by_the_next_process(power) -> None:
    """The system goes on showing pages that it could not write; a retry must not count as a duplicate of them."""
    partition = power.partition()
    kept = power.batch(1, producer_id=5, producer_epoch=0, base_sequence=0)
    lost = power.batch(1, producer_id=5, producer_epoch=0, base_sequence=1)
    partition.append(kept, AppendOrigin.CLIENT)
    assert await partition.wait_for_high_watermark(1, 5000)
    power.disk.fail(Fault("sync", errno.EIO, suffix=".log"))
    partition.append(lost, AppendOrigin.CLIENT)
    with pytest.raises(KafkaError) as caught:
        await partition.wait_for_high_watermark(2, 5000)
    assert caught.value.code == ErrorCode.KAFKA_STORAGE_ERROR
    assert partition.high_watermark == 1
    for _ in range(2):
        with pytest.raises(KafkaError, match="offline"):
            partition.append(lost, AppendOrigin.CLIENT)
    again = power.disk.restart(Tear.KEPT)
    partition = power.partition(again)
    info = partition.append(lost, AppendOrigin.CLIENT)
    assert (info.duplicate, info.base_offset) == (False, 1)
    assert await partition.wait_for_high_watermark(2, 5000)
    assert len(power.survivors(again)) == 2
    await partition.close()


def test_the_name_of_a_segment_made_during_a_commit_is_durable_after_the_next(power) -> None:
    log = power.open(durability="power", segment_bytes=300)
    power.append(log, value=b"x" * 100)
    power.append(log, value=b"x" * 100)
    log.append(power.batch(1), leader_epoch=0)
    really_open = power.disk.open

    def open_during_a_commit(path, *, create=False):
        if path.suffix == ".log":
            power.disk.open = really_open
            log.commit()  # in its thread, before the file has its name
        return really_open(path, create=create)

    power.disk.open = open_during_a_commit
    log.append(power.batch(1, value=b"y" * 200), leader_epoch=0)
    assert power.disk.open == really_open
    assert log.must_commit
    log.commit()
    assert not log.must_commit
    assert len(power.survivors(power.disk)) == 4


async def test_records_before_their_fsync_are_not_stable_and_not_deletable(power) -> None:
    partition = power.partition()
    power.go_on.clear()
    partition.append(power.batch(1), AppendOrigin.CLIENT)
    transactional = power.batch(1, producer_id=1, producer_epoch=0, base_sequence=0, attributes=0x10)
    partition.append(transactional, AppendOrigin.CLIENT)
    assert (partition.high_watermark, partition.log.first_unstable_offset) == (0, 1)
    assert partition.last_stable_offset == 0
    with pytest.raises(KafkaError) as error:
        partition.delete_records(1)
    assert error.value.code == ErrorCode.OFFSET_OUT_OF_RANGE
    power.go_on.set()
    await partition.settled()
    assert (partition.high_watermark, partition.last_stable_offset) == (2, 1)
    assert partition.delete_records(1) == 1


async def test_waiters_for_an_fsync_are_told_one_by_one_in_append_order(power) -> None:
    partition, told = power.partition(), []

    def first(error: KafkaError | None) -> None:
        told.append("first is told")
        partition.wake()  # as its next step may carry it out
        told.append("first has acted")

    power.go_on.clear()
    for tell in (first, lambda error: told.append("second is told")):
        info = partition.append(power.batch(1), AppendOrigin.CLIENT)
        partition.when_published(info.last_offset + 1, tell)
    assert not partition.is_published(0)
    power.go_on.set()
    await partition.settled()
    assert told == ["first is told", "first has acted", "second is told"]


async def test_waiters_for_a_failed_fsync_get_its_error(power) -> None:
    partition, told = power.partition(), []
    power.go_on.clear()
    info = partition.append(power.batch(1), AppendOrigin.CLIENT)
    partition.when_published(info.last_offset + 1, told.append)
    power.disk.fail(Fault("sync", errno.EIO, suffix=".log"))
    power.go_on.set()
    await partition.settled()
    assert [error.code for error in told] == [ErrorCode.KAFKA_STORAGE_ERROR]
    assert partition.failure is not None


@pytest.mark.parametrize("moment", ["its fsync", "the sync of its folder"])
def test_records_appended_during_a_commit_need_the_next_commit(power, moment) -> None:
    log = power.open(durability="power", segment_bytes=300)
    sync, sync_directory = Segment.sync, power.disk.sync_directory

    def append_meanwhile() -> None:
        with pytest.MonkeyPatch.context() as undone:
            undone.setattr(Segment, "sync", sync)
            undone.setattr(power.disk, "sync_directory", sync_directory)
            log.append(power.batch(1, value=b"x" * 200), leader_epoch=0)  # into a segment of its own

    def sync_and_append(segment: Segment) -> None:
        sync(segment)
        append_meanwhile()

    def sync_directory_and_append(path: Path) -> None:
        sync_directory(path)
        if path == power.directory:
            append_meanwhile()

    log.append(power.batch(1, value=b"x" * 200), leader_epoch=0)
    with pytest.MonkeyPatch.context() as patched:
        if moment == "its fsync":
            patched.setattr(Segment, "sync", sync_and_append)
        else:
            patched.setattr(power.disk, "sync_directory", sync_directory_and_append)
        log.commit()
    assert (log.recovery_point, log.log_end_offset) == (1, 2)
    assert log.must_commit
    log.commit()
    assert len(power.survivors(power.disk)) == 2


def test_partition_metadata_is_as_durable_as_the_log_beside_it(power) -> None:
    power.disk.make_directory(power.directory)
    power.disk.open(power.directory / "partition.metadata", create=True).write([b"mine"], 0)
    log = PartitionLog.open(
        power.directory,
        LogConfig(durability="power"),
        clock=power.clock,
        disk=power.disk,
        is_new=True,
        companions=["partition.metadata"],
    )
    power.append(log)
    after = power.disk.restart(Tear.LOST)
    assert after.contents(power.directory / "partition.metadata") == b"mine"


async def test_flush_messages_holds_every_nth_acknowledgement(power) -> None:
    partition = power.partition(durability="process", flush_messages=3)
    power.go_on.clear()
    for expected in (1, 2, 2, 2):
        partition.append(power.batch(1), AppendOrigin.CLIENT)
        assert partition.high_watermark == expected
    power.go_on.set()
    assert await partition.wait_for_high_watermark(4, 5000)
    assert len(power.survivors(power.disk)) >= 3
    await partition.close()


@pytest.mark.parametrize("seed", range(12))
async def test_d1_over_random_kills_and_power_cuts_everything_acknowledged_is_there_once(power, seed) -> None:
    """It includes retries: an idempotent producer goes on where its acknowledgements end."""
    rng = random.Random(seed)
    disk, acknowledged, sent = power.disk, 0, []
    for _ in range(8):
        partition = power.partition(disk, segment_bytes=900)
        high_watermark = partition.high_watermark
        assert high_watermark >= acknowledged
        begin = acknowledged
        for sequence in range(begin, begin + rng.randrange(1, 14)):
            if sequence >= acknowledged + 5:  # no client has more under way
                assert await partition.wait_for_high_watermark(sequence - 4, 5000)
                acknowledged = partition.high_watermark
            if len(sent) <= sequence:
                value = rng.randbytes(rng.choice([10, 300]))
                sent.append(
                    power.batch(1, value=value, producer_id=5, producer_epoch=0, base_sequence=sequence)
                )
            info = partition.append(sent[sequence], AppendOrigin.CLIENT)
            assert info.base_offset == sequence
            assert info.duplicate == (sequence < high_watermark)
        if rng.random() < 0.6:
            asked = rng.randrange(min(acknowledged, info.last_offset), info.last_offset + 2)
            assert await partition.wait_for_high_watermark(asked, 5000)
        acknowledged = max(acknowledged, partition.high_watermark)
        before, disk = disk, disk.restart(rng.choice([Tear.KEPT, Tear.LOST, Tear.TORN, Tear.ZEROS]))
        try:
            power.open(disk.restart(Tear.KEPT), durability="power")
        except CorruptLogError:
            # An unsynced segment arrived without the one before it: this cannot be told from damage.
            disk = before.restart(Tear.LOST)
        partition.closed = True  # its process is gone
    found = batches_of(power.open(disk, durability="power"))
    assert len(found) >= acknowledged
    assert [batch for _, batch in found] == [batch[16:] for batch in sent[: len(found)]]


@pytest.mark.parametrize("in_thread", [False, True])
@pytest.mark.parametrize("acks", [1, -1])
async def test_a_produce_is_answered_after_its_fsync(tmp_path, acks, in_thread, monkeypatch) -> None:
    """A batch whose records are checked in a thread, too."""
    if in_thread:
        monkeypatch.setattr("headrace.broker.api.produce.Effort", lambda: Effort(-1))
    async with direct_broker(tmp_path) as broker:
        await broker.create_topic("t", durability="power")
        partition = broker.context.replicas.partition("t", 0)
        commit, go_on = partition.log.commit, threading.Event()
        partition.log.commit = lambda: (go_on.wait(60), commit())
        answers = [asyncio.ensure_future(broker.produce("t", [b"%d" % n], acks=acks)) for n in range(5)]
        await asyncio.sleep(0.05)
        assert not any(answer.done() for answer in answers)
        assert values_of((await broker.fetch("t")).records) == []
        go_on.set()
        done = await asyncio.gather(*answers)
        assert [answer.error_code for answer in done] == [0] * 5
        assert sorted(answer.base_offset for answer in done) == list(range(5))
        assert partition.log.recovery_point == 5
        records = values_of((await broker.fetch("t")).records)
        assert {value for _, value in records} == {b"%d" % n for n in range(5)}
        assert [offset for offset, _ in records] == list(range(5))


async def test_d4_a_failed_fsync_fails_its_partition_and_no_other(tmp_path) -> None:
    async with direct_broker(tmp_path) as broker:
        await broker.create_topic("t", 2, durability="power")
        broken = broker.context.replicas.partition("t", 0)
        assert (await broker.produce("t", [b"first"])).error_code == 0

        def fails() -> None:
            broken.log._health.fail("the disk could not make records durable (fsync: EIO)")
            raise KafkaError(ErrorCode.KAFKA_STORAGE_ERROR, "EIO")

        broken.log.commit = fails
        for _ in range(3):
            answer = await broker.produce("t", [b"never"], acks=1)
            assert (answer.error_code, answer.base_offset) == (ErrorCode.KAFKA_STORAGE_ERROR, -1)
            assert (await broker.produce("t", [b"other"], partition=1)).error_code == 0
        assert broken.failure is not None
        assert (await broker.fetch("t")).error_code == ErrorCode.KAFKA_STORAGE_ERROR


def test_the_brokers_default_reaches_its_own_topics(tmp_path) -> None:
    from headrace.broker.metadata.topic_config import TopicConfigs

    config = BrokerConfig.load({"log.durability": "power"})
    configs = TopicConfigs(config.topic_defaults())
    for internal in (True, False):
        assert configs.log_config(TopicImage("t", uuid.uuid4(), 1, internal=internal)).flush_messages == 1
    over = TopicImage("t", uuid.uuid4(), 1, {"durability": "process"})
    assert not configs.log_config(over).flushes_by_count
    with pytest.raises(KafkaError, match="durability"):
        configs.check({"durability": "maybe"})
