"""`durability=power` of the internal topics: changes that a coordinator has acknowledged are on the medium."""

import asyncio
import errno
import random
import shutil
import threading
from pathlib import Path

import pytest

from headrace.broker.log.partition_log import PartitionLog
from headrace.broker.partitions.partition import Partition
from headrace.broker.runtime.deadlines import Deadlines
from headrace.protocol.errors import ErrorCode
from headrace.protocol.messages.add_offsets_to_txn import AddOffsetsToTxnRequest
from headrace.protocol.messages.describe_transactions import DescribeTransactionsRequest
from headrace.protocol.messages.end_txn import EndTxnRequest
from headrace.protocol.messages.incremental_alter_configs import (
    AlterableConfig,
    AlterConfigsResource,
    IncrementalAlterConfigsRequest,
)
from headrace.protocol.messages.list_transactions import ListTransactionsRequest
from headrace.protocol.messages.offset_commit import (
    OffsetCommitRequest,
    OffsetCommitRequestPartition,
    OffsetCommitRequestTopic,
)
from simulator.direct import direct_broker
from simulator.disk import Fault, SimulatedDisk, Tear
from simulator.transactional_client import TV1, TV2, Client, committed_values, loaded, position, until

POWER = {
    "log.durability": "power",
    "offsets.topic.num.partitions": "2",
    "transaction.state.log.num.partitions": "2",
}
JOURNALS = ("__consumer_offsets", "__transaction_state")


class PowerDisk:
    """All logs of a broker are on a simulated disk. `close(names)` makes the fsyncs of these topics wait."""

    def __init__(self, home: Path) -> None:
        self.home, self.disk = home, SimulatedDisk()
        self.threads: set[int] = set()
        self.commits: dict[str, int] = {}
        self._closed: tuple[str, ...] = ()
        self._changed = threading.Condition()
        self._whole = threading.Lock()

    def open(self, directory, config, *, is_new=False, disk=None, **more):
        place = self.home / directory.relative_to(directory.parent)
        self.disk.make_directory(self.home)
        self.disk.sync_directory(self.home.parent)
        return REAL_OPEN(place, config, disk=self.disk, **more)

    def commit(self, log: PartitionLog) -> None:
        name = log.directory.name
        self.threads.add(threading.get_ident())
        with self._changed:
            assert self._changed.wait_for(lambda: not name.startswith(self._closed or ("-",)), 60)
        self.commits[name] = self.commits.get(name, 0) + 1
        with self._whole:
            REAL_COMMIT(log)

    def close(self, *names: str) -> None:
        with self._changed:
            self._closed = names
            self._changed.notify_all()

    def crash(self, tear: Tear) -> SimulatedDisk:
        with self._whole:
            return self.disk.restart(tear)


IN_USE: list[PowerDisk] = []
REAL_OPEN, REAL_COMMIT = PartitionLog.open, PartitionLog.commit


@pytest.fixture
def power(monkeypatch, tmp_path):
    disk = PowerDisk(Path("/logs"))
    monkeypatch.setattr(PartitionLog, "open", disk.open)
    monkeypatch.setattr(PartitionLog, "commit", lambda log: disk.commit(log))
    IN_USE.append(disk)
    yield disk
    IN_USE.remove(disk)
    disk.close()


async def commit(broker, group: str, offset: int) -> ErrorCode:
    place = OffsetCommitRequestPartition(partition_index=0, committed_offset=offset)
    topics = [OffsetCommitRequestTopic(name="a", partitions=[place])]
    answer = await broker.send(OffsetCommitRequest(group_id=group, topics=topics), 8)
    return ErrorCode(answer.topics[0].partitions[0].error_code)


def coordinator_of(broker):
    return next(
        api.handler.__self__._coordinator
        for api in broker.broker.dispatcher._declarations.values()
        if api.request is EndTxnRequest
    )


async def state_of(broker, name="tx") -> str:
    answer = await broker.send(DescribeTransactionsRequest(transactional_ids=[name]), 0)
    return answer.transaction_states[0].transaction_state


def run(test, directory, config=POWER):
    async def main():
        async with direct_broker(directory, config) as broker:
            for name in ("a", "b"):
                if broker.context.metadata.topic(name) is None:
                    await broker.create_topic(name)
            try:
                await test(broker)
            finally:
                for disk in IN_USE:
                    disk.close()  # or a broker that stops would wait for fsyncs that a failed test holds back

    asyncio.run(main())


def test_d5_commits_wait_for_an_fsync_that_they_share_and_that_is_not_on_the_event_loop(power, tmp_path):
    async def test(broker):
        assert await commit(broker, "first", 1) is ErrorCode.NONE
        power.close(*JOURNALS)
        before = sum(power.commits.values())
        journal = broker.context.replicas.partitions("__consumer_offsets")

        def end() -> int:
            return sum(partition.log.log_end_offset for partition in journal)

        there = end()
        waiting = [asyncio.create_task(commit(broker, f"g{n % 8}", n)) for n in range(40)]
        await until(lambda: asyncio.sleep(0, end()), lambda end: end == there + 40)
        await asyncio.sleep(0.05)
        assert not any(task.done() for task in waiting)
        assert await position(broker, "g1") == -1, "a position that may be lost is not shown"
        power.close()
        assert set(await asyncio.gather(*waiting)) == {ErrorCode.NONE}
        assert sum(power.commits.values()) - before <= 4, (
            "one for the first of a partition, one for the others"
        )
        # Requests of different connections have no order.
        assert all([await position(broker, f"g{n}") in range(n, 40, 8) for n in range(8)])
        assert threading.get_ident() not in power.threads

    run(test, tmp_path)


def test_a_timeout_during_a_pending_end_does_not_fire_repeatedly(power, tmp_path, monkeypatch):
    fired = []
    fire = Deadlines._fire
    monkeypatch.setattr(Deadlines, "_fire", lambda deadlines: fired.append(1) or fire(deadlines))

    async def test(broker):
        client = Client(broker)
        await client.init()
        await client.add(("a", 0))
        assert (await client.send([b"1"], "a")).error_code == 0
        power.close("__transaction_state")
        ending = asyncio.create_task(client.end(commit=True))
        coordinator = coordinator_of(broker)
        transaction = coordinator.transactions["tx"]
        await until(lambda: asyncio.sleep(0, transaction.appending), bool)
        transaction.deadline = coordinator._clock.monotonic()
        coordinator._deadlines.wake("tx", transaction.deadline)
        await until(lambda: asyncio.sleep(0, fired), bool)
        await asyncio.sleep(0.3)
        assert not ending.done()
        assert len(fired) < 10
        power.close()
        assert await ending is ErrorCode.NONE

    run(test, tmp_path)


@pytest.mark.parametrize("version", [TV1, TV2])
def test_d6_a_decision_is_on_disk_before_a_marker_and_the_markers_before_the_end(power, tmp_path, version):
    async def test(broker):
        client = Client(broker, version=version)
        await client.init()
        if version == TV1:
            await client.add(("a", 0), ("b", 0))
        for topic in ("a", "b"):
            assert (await client.send([b"1"], topic)).error_code == 0
        log = broker.context.replicas.partition("a", 0).log
        power.close("__transaction_state")
        ending = asyncio.create_task(client.end(commit=True))
        await asyncio.sleep(0.05)
        assert (log.log_end_offset, await state_of(broker), ending.done()) == (1, "Ongoing", False)
        power.close("a-")
        await until(lambda: state_of(broker), lambda state: state == "PrepareCommit")
        await until(lambda: asyncio.sleep(0, log.log_end_offset), lambda end: end > 1)
        await asyncio.sleep(0.05)
        assert (log.log_end_offset, await state_of(broker), ending.done()) == (2, "PrepareCommit", False)
        assert await committed_values(broker, "a") == []
        power.close()
        assert await ending is ErrorCode.NONE
        assert await state_of(broker) == "CompleteCommit"
        assert await committed_values(broker, "a") == await committed_values(broker, "b") == [b"1"]

    run(test, tmp_path)


def test_d6_a_marker_that_is_on_its_way_to_the_disk_is_not_written_again(power, tmp_path):
    async def test(broker):
        client = Client(broker)
        await client.init()
        await client.add(("a", 0))
        await client.send([b"x"])
        power.close("a-0")
        ending = asyncio.create_task(client.end(True))
        log = broker.context.replicas.partition("a", 0).log
        await until(lambda: asyncio.sleep(0, log.log_end_offset), lambda end_offset: end_offset == 2)
        coordinator = coordinator_of(broker)
        coordinator.transactions["tx"].deadline = 0  # the time at which missing markers are tried again
        coordinator._tick("tx")
        power.close()
        assert await ending is ErrorCode.NONE
        assert log.log_end_offset == 2

    run(test, tmp_path)


def test_d6_a_batch_of_a_transaction_is_acknowledged_when_it_is_on_disk(power, tmp_path):
    async def test(broker):
        client = Client(broker, version=TV2)
        await client.init()
        power.close("a-0")
        sending = asyncio.create_task(client.send([b"x"]))
        log = broker.context.replicas.partition("a", 0).log
        await until(lambda: asyncio.sleep(0, log.log_end_offset), lambda end_offset: end_offset == 1)
        for _ in range(5):
            await asyncio.sleep(0)
        assert not sending.done()
        power.close()
        assert (await sending).error_code == 0

    run(test, tmp_path)


def test_d6_positions_of_a_transaction_count_when_its_marker_is_on_disk(power, tmp_path):
    async def test(broker):
        client = Client(broker, version=TV2)
        await client.init()
        await client.commit_offsets("g", {("a", 0): 7})
        power.close("__consumer_offsets")
        ending = asyncio.create_task(client.end(True))
        await until(lambda: state_of(broker), lambda state: state == "PrepareCommit")
        for _ in range(5):
            assert await position(broker) == -1
            await asyncio.sleep(0)
        power.close()
        assert await ending is ErrorCode.NONE
        assert await position(broker, stable=True) == 7

    run(test, tmp_path)


def test_d6_a_partition_is_announced_on_disk_before_version_2_writes_to_it(power, tmp_path):
    async def test(broker):
        client = Client(broker, version=TV2)
        await client.init()
        power.close("__transaction_state")
        sending = [asyncio.create_task(client.send([b"1"], topic)) for topic in ("a", "b")]
        await asyncio.sleep(0.05)
        for topic in ("a", "b"):
            assert broker.context.replicas.partition(topic, 0).log.log_end_offset == 0
        power.close()
        assert [answer.error_code for answer in await asyncio.gather(*sending)] == [0, 0]
        assert await client.commit_offsets("g", {("a", 0): 7}) == [ErrorCode.NONE]
        assert await client.end(commit=True) is ErrorCode.NONE
        assert await position(broker) == 7

    run(test, tmp_path)


def test_d4_a_commit_whose_fsync_failed_is_neither_acknowledged_nor_shown(power, tmp_path):
    async def test(broker):
        assert await commit(broker, "g", 1) is ErrorCode.NONE
        power.disk.fail(Fault("sync", errno.EIO, suffix=".log"))
        assert await commit(broker, "g", 2) is ErrorCode.COORDINATOR_NOT_AVAILABLE
        assert await position(broker) == 1
        power.disk.heal()
        assert await commit(broker, "g", 3) is ErrorCode.COORDINATOR_NOT_AVAILABLE, "until a restart"

    run(test, tmp_path)


@pytest.mark.parametrize("resource", [(2, "a"), (4, "0")], ids=["topic", "broker"])
def test_d7_a_topic_that_becomes_power_is_synced_once(power, tmp_path, resource):
    async def test(broker):
        assert (await broker.produce("a", [b"before"])).error_code == 0
        assert await commit(broker, "g", 5) is ErrorCode.NONE
        survivor = power.crash(Tear.LOST)
        assert not survivor.size(Path("/logs/a-0/00000000000000000000.log"))
        name = "durability" if resource[0] == 2 else "log.durability"
        kind, named = resource
        changes = [AlterableConfig(name=name, value="power")]
        request = IncrementalAlterConfigsRequest(
            resources=[AlterConfigsResource(resource_type=kind, resource_name=named, configs=changes)]
        )
        answer = (await broker.send(request, 1)).responses[0]
        if kind == 4 and answer.error_code:
            pytest.skip(f"not changed while it runs: {answer.error_message}")
        assert answer.error_code == 0, answer.error_message
        survivor = power.crash(Tear.LOST)
        assert b"before" in survivor.contents(Path("/logs/a-0/00000000000000000000.log"))

    run(test, tmp_path, {**POWER, "log.durability": "process"})


class History:
    """The clients' answers until the power cut, and the check of the next broker against them."""

    def __init__(self) -> None:
        self.positions: dict[str, int] = {}
        self.ended: dict[bytes, bool] = {}
        self.sent: dict[str, int] = {}

    async def check(self, broker) -> None:
        for group, offset in self.positions.items():
            found = await until(lambda name=group: position(broker, name), loaded)
            assert offset <= found <= self.sent[group], (
                f"{group}: {offset} was acknowledged, {found} is there"
            )
        for name in await until(lambda: ongoing(broker), lambda names: names is not None):
            # Records after an open transaction are hidden from read_committed consumers: its producer ends it.
            client = Client(broker, name)
            await until(client.init, lambda error: error is ErrorCode.NONE)
        await until(lambda: broker_is_at_rest(broker), bool)
        found = [await committed_values(broker, topic) for topic in ("a", "b")]
        assert sorted(found[0]) == sorted(found[1]), "a transaction is torn"
        assert len(set(found[0])) == len(found[0])
        for value, committed in self.ended.items():
            assert (value in found[0]) == committed, f"{value}: {'committed' if committed else 'aborted'}"


async def ongoing(broker) -> list[str] | None:
    """Return open transactions; None while they are unknown."""
    answer = await broker.send(ListTransactionsRequest(state_filters=["Ongoing"]), 0)
    return None if answer.error_code else [each.transactional_id for each in answer.transaction_states]


async def broker_is_at_rest(broker) -> bool:
    ending = ListTransactionsRequest(state_filters=["PrepareCommit", "PrepareAbort"])
    answer = await broker.send(ending, 0)
    return not answer.error_code and not answer.transaction_states


def lose_power(power, directory, seed, monkeypatch) -> None:
    """Run clients, cut the power, and start another broker on the rest of the disk."""
    monkeypatch.setattr("headrace.broker.cluster.journal_topic.REWRITE_RECORDS_MIN", 40)
    rng, history = random.Random(seed), History()
    after = directory.with_name("after")
    survivor = None

    async def commits(broker, group):
        for offset in range(1, 1_000):
            history.sent[group] = offset
            if await commit(broker, group, offset) is ErrorCode.NONE:
                history.positions[group] = offset
            await asyncio.sleep(rng.random() / 200)

    async def transactions(broker, number):
        client = Client(broker, f"tx{number}", rng.choice([TV1, TV2]))
        await client.init()
        for turn in range(1_000):
            value = b"%d.%d" % (number, turn)
            if client.version == TV1 and await client.add(("a", 0), ("b", 0)) != [ErrorCode.NONE] * 2:
                await asyncio.sleep(0.005)
                continue
            for topic in ("a", "b"):
                assert (await client.send([value], topic)).error_code == 0
            if rng.random() < 0.5:
                if client.version == TV1:
                    await add_offsets(broker, client, f"gt{number}")
                history.sent[f"gt{number}"] = turn
                assert await client.commit_offsets(f"gt{number}", {("a", 0): turn}) == [ErrorCode.NONE]
            committed = rng.random() < 0.7
            if await client.end(committed) is ErrorCode.NONE:
                history.ended[value] = committed

    async def first(broker):
        nonlocal survivor
        tasks = [asyncio.create_task(commits(broker, f"g{n}")) for n in range(4)]
        tasks += [asyncio.create_task(transactions(broker, n)) for n in range(3)]
        while len(history.positions) < 4 or len(history.ended) < 4:
            await asyncio.sleep(0.01)
            for task in tasks:
                if task.done():
                    task.result()
        await asyncio.sleep(rng.random() * 0.2)
        told = History()
        told.positions, told.ended = dict(history.positions), dict(history.ended)
        survivor = power.crash(rng.choice([Tear.LOST, Tear.KEPT]) if seed % 3 else Tear.LOST)
        told.sent = dict(history.sent)
        shutil.copytree(directory, after)
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)
        history.positions, history.ended, history.sent = told.positions, told.ended, told.sent

    run(first, directory)
    assert survivor is not None
    power.disk = survivor
    run(history.check, after)


async def add_offsets(broker, client, group) -> None:
    request = AddOffsetsToTxnRequest(
        transactional_id=client.name,
        producer_id=client.identity[0],
        producer_epoch=client.identity[1],
        group_id=group,
    )
    assert (await broker.send(request, 3)).error_code == 0


@pytest.mark.parametrize("seed", range(3))
def test_d8_nothing_acknowledged_is_lost_with_the_power(power, tmp_path, monkeypatch, seed):
    lose_power(power, tmp_path / "data", seed, monkeypatch)


def test_d8_would_see_an_acknowledgement_before_the_fsync(power, tmp_path, monkeypatch):
    def hasty(partition, log, executor):
        partition._replicated(log.log_end_offset)

    monkeypatch.setattr(Partition, "_commit", hasty)
    with pytest.raises(AssertionError, match=r"acknowledged|torn|committed"):
        lose_power(power, tmp_path / "data", 0, monkeypatch)


def test_a_rewritten_journal_is_on_disk_before_what_it_replaces_goes(power, tmp_path, monkeypatch):
    """The rule holds with `durability=process` too: a power cut loses the last seconds, not old commits."""
    monkeypatch.setattr("headrace.broker.cluster.journal_topic.REWRITE_RECORDS_MIN", 30)
    config = {**POWER, "log.durability": "process", "offsets.topic.num.partitions": "1"}
    after = tmp_path / "after"
    survivor = None

    async def first(broker):
        nonlocal survivor
        assert await commit(broker, "old", 7) is ErrorCode.NONE
        (journal,) = broker.context.replicas.partitions("__consumer_offsets")
        await journal.flush(broker.context.executor)
        for offset in range(40):
            assert await commit(broker, "busy", offset) is ErrorCode.NONE
        await until(lambda: asyncio.sleep(0, journal.log.log_start_offset), lambda start: start > 1)
        survivor = power.crash(Tear.LOST)
        shutil.copytree(tmp_path / "data", after)

    async def second(broker):
        assert await until(lambda: position(broker, "old"), loaded) == 7

    run(first, tmp_path / "data", config)
    power.disk = survivor
    run(second, after, config)
