"""The part of a member in the cut of a cluster: what its steps hold, note and refuse."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any
from uuid import UUID

import msgspec
import pytest

from headrace.broker.backup import member
from headrace.broker.backup.cut import CUT_NAME, READ_BYTES_MAX, Backup, Backups, Cut
from headrace.broker.backup.logs import PartitionCut, described, noted
from headrace.broker.backup.member import Step
from headrace.broker.cluster.journal_topic import partition_of
from headrace.broker.log.validation import AppendOrigin
from headrace.broker.metadata import tree
from headrace.broker.partitions.topic import TopicImage
from headrace.broker.remote.backup_nodes import (
    IMAGE_NAME,
    LEADERS_NAME,
    BackupNodes,
    check_parts,
    decode_leaders,
)
from headrace.broker.remote.cluster_copy import ClusterImage
from headrace.broker.runtime.ports import CreateNode, SetNode
from headrace.broker.stores.embedded import StoreImage
from headrace.broker.tests.transactions.test_across_brokers import CONFIG, PLACES, leader, spread, written
from headrace.broker.transactions.coordinator import TransactionCoordinator
from headrace.broker.transactions.journal import TOPIC as TRANSACTION_TOPIC
from headrace.protocol.errors import ErrorCode, KafkaError
from headrace.protocol.records.encode import Record, build_batch
from headrace.protocol.records.header import iter_headers
from simulator.cluster import DirectCluster, direct_cluster
from simulator.direct import direct_broker
from simulator.transactional_client import TV2, Client

CUT_STEPS = (Step.HOLD, Step.OFFSETS, Step.PARTITIONS, Step.RELEASE)


class Begun:
    """A backup that has begun at all brokers of a cluster."""

    def __init__(self, cluster: DirectCluster) -> None:
        self.backups: dict[int, Backups] = {}
        self.begun: dict[int, Backup] = {}
        self.image_at = min(cluster.brokers)
        for number, broker in cluster.brokers.items():
            found = broker.context.backups
            assert found is not None
            self.backups[number] = found

    async def begin(self) -> None:
        for number, each in self.backups.items():
            self.begun[number] = await each.begin(in_steps=True)
        await self.backups[self.image_at].step(self.begun[self.image_at].id, Step.NODES)

    async def step(self, *steps: Step) -> None:
        for step in steps:
            await asyncio.gather(
                *(each.step(self.begun[number].id, step) for number, each in self.backups.items())
            )

    async def image(self) -> tuple[ClusterImage, dict[str, list[tuple[int, int]]]]:
        backup = self.begun[self.image_at]
        await self.backups[self.image_at].step(backup.id, Step.IMAGE)
        image = ClusterImage.decode(IMAGE_NAME, (backup.folder / IMAGE_NAME).read_bytes())
        return image, decode_leaders((backup.folder / LEADERS_NAME).read_bytes())

    def cuts(self) -> dict[int, Cut]:
        return {
            number: msgspec.json.decode((backup.folder / CUT_NAME).read_bytes(), type=Cut)
            for number, backup in self.begun.items()
        }

    def sizes(self) -> dict[str, int]:
        """Return the bytes of records by partition."""
        return {
            each.folder: sum(size for name, size in each.files if name.endswith(".log"))
            for cut in self.cuts().values()
            for each in cut.partitions
        }

    async def end(self) -> None:
        for number, each in self.backups.items():
            await each.end(self.begun[number].id)


@asynccontextmanager
async def begun(cluster: DirectCluster) -> AsyncIterator[Begun]:
    made = Begun(cluster)
    await made.begin()
    yield made
    await made.end()


def log_bytes(cluster: DirectCluster, topic: str, index: int) -> int:
    made = cluster.brokers[leader(cluster, topic, index)]
    return made.context.replicas.partition(topic, index).log.size_bytes


async def test_no_transaction_ends_between_hold_and_release(tmp_path: Path) -> None:
    async with direct_cluster(tmp_path, 3, config=CONFIG) as cluster:
        client = Client(await spread(cluster), "tx", TV2)  # type: ignore[arg-type]
        assert await client.init() is ErrorCode.NONE
        await written(client, b"yes", "g", 7)
        async with begun(cluster) as made:
            await made.step(Step.HOLD)
            before = {f"{topic}-{index}": log_bytes(cluster, topic, index) for topic, index in PLACES}
            ending = asyncio.create_task(client.end(True))
            done, _ = await asyncio.wait([ending], timeout=0.3)
            assert not done, "the end was stored"
            await made.step(Step.OFFSETS, Step.PARTITIONS, Step.RELEASE)
            assert await ending is ErrorCode.NONE
            sizes = made.sizes()
            assert {name: sizes[name] for name in before} == before, "a marker is in the cut"
            check_parts(*await made.image(), made.cuts())
        await written(client, b"next", "g", 8)
        assert await client.end(True) is ErrorCode.NONE


async def test_journals_go_on_by_themselves_and_the_cut_fails(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(member, "HOLD_SECONDS", 0.2)
    async with direct_cluster(tmp_path, 3, config=CONFIG) as cluster:
        client = Client(await spread(cluster), "tx", TV2)  # type: ignore[arg-type]
        assert await client.init() is ErrorCode.NONE
        await written(client, b"yes", "g", 7)
        async with begun(cluster) as made:
            await made.step(Step.HOLD, Step.OFFSETS, Step.PARTITIONS)
            async with asyncio.timeout(60):
                assert await client.end(True) is ErrorCode.NONE
            await refused(made.step(Step.RELEASE), "took longer")
        async with begun(cluster) as made:
            await made.step(Step.HOLD)
            async with asyncio.timeout(60):
                await written(client, b"next", "g", 8)
                assert await client.end(True) is ErrorCode.NONE
            await refused(made.step(Step.OFFSETS), "not asked for in time")


async def test_a_held_journal_has_stored_everything_before_and_stores_nothing_more(tmp_path: Path) -> None:
    async with direct_cluster(tmp_path, 2, config=CONFIG) as cluster:
        client = Client(await spread(cluster), "tx", TV2)  # type: ignore[arg-type]
        assert await client.init() is ErrorCode.NONE
        transactions: TransactionCoordinator = cluster.brokers[
            leader(cluster, TRANSACTION_TOPIC, partition_of("tx", 3))
        ].broker._coordinators.transactions
        journal, batch = transactions.journal, transactions.live_batch("tx")
        index = journal.index_of("tx")
        assert batch is not None
        before: list[KafkaError | None] = []
        assert not journal.append(index, batch, before.append), "its replica has it at once"
        rewriting = asyncio.create_task(journal._write_again(index, ["tx"]))
        await asyncio.sleep(0)
        later: list[KafkaError | None] = []
        assert not journal.append(index, batch, later.append), "it waits for the rewriting"
        await journal.hold()
        assert before == [None]
        await rewriting
        assert not journal.append(index, batch, later.append), "it waits for the end of the hold"
        partition = journal.partitions[index]
        await asyncio.sleep(0.1)
        assert later == []
        end_offset = partition.log.log_end_offset
        journal.release()
        async with asyncio.timeout(60):
            while len(later) < 2:  # noqa: ASYNC110 - the replica's fetches
                await asyncio.sleep(0.01)
        assert later == [None, None]
        assert partition.log.log_end_offset == end_offset + 2


async def test_a_hold_that_takes_too_long_is_given_up(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(member, "HOLD_SECONDS", 0.2)

    class Stuck:
        is_held = False

        async def hold(self) -> None:
            self.is_held = True
            await asyncio.sleep(60)

        def release(self) -> None:
            self.is_held = False

    async with direct_cluster(tmp_path, 1) as cluster:
        backups = cluster.brokers[1].context.backups
        assert backups is not None
        assert backups.cluster is not None
        journal = Stuck()
        backups.cluster.journals.append(journal)
        backup = await backups.begin(in_steps=True)
        async with asyncio.timeout(30):
            await refused(backups.step(backup.id, Step.HOLD), "cannot be stored now")
        await backups.end(backup.id)
        assert not journal.is_held


async def refused(step: Any, words: str) -> None:
    with pytest.raises(KafkaError, match=words) as told:
        await step
    assert told.value.code is ErrorCode.OPERATION_NOT_ATTEMPTED


async def test_a_backup_that_ends_early_releases_the_journals(tmp_path: Path) -> None:
    async with direct_cluster(tmp_path, 3, config=CONFIG) as cluster:
        client = Client(await spread(cluster), "tx", TV2)  # type: ignore[arg-type]
        assert await client.init() is ErrorCode.NONE
        await written(client, b"yes", "g", 7)
        async with begun(cluster) as made:
            await made.step(Step.HOLD)
        async with asyncio.timeout(5):
            assert await client.end(True) is ErrorCode.NONE


async def test_committed_offsets_are_noted_before_the_records(tmp_path: Path) -> None:
    async with direct_cluster(tmp_path, 3, config=CONFIG) as cluster:
        client = Client(await spread(cluster), "tx", TV2)  # type: ignore[arg-type]
        assert await client.init() is ErrorCode.NONE
        await written(client, b"yes", "g", 7)
        async with begun(cluster) as made:
            await made.step(Step.HOLD, Step.OFFSETS)
            offsets = {
                f"__consumer_offsets-{index}": log_bytes(cluster, "__consumer_offsets", index)
                for index in range(3)
            }
            await written(client, b"more", "g", 8)
            records = {f"t-{index}": log_bytes(cluster, "t", index) for index in range(3)}
            await made.step(Step.PARTITIONS, Step.RELEASE)
            assert made.sizes().items() >= {**offsets, **records}.items()
            await refused(made.step(Step.OFFSETS), "does not follow")


async def test_records_above_the_high_watermark_are_left_out(tmp_path: Path) -> None:
    settings = {**CONFIG, "default.replication.factor": "2"}
    async with direct_cluster(tmp_path, 2, config=settings) as cluster:
        await cluster.agreed(lambda broker: len(broker.context.metadata.image.brokers) == 2)
        await cluster.brokers[1].create_topic("t")
        number = leader(cluster, "t", 0)
        assert not (await cluster.brokers[number].produce("t", [b"x"])).error_code
        partition = cluster.brokers[number].context.replicas.partition("t", 0)
        async with begun(cluster) as made:
            await made.step(Step.HOLD, Step.OFFSETS)
            size = partition.log.size_bytes
            (other,) = set(cluster.brokers) - {number}
            await made.backups[other].step(made.begun[other].id, Step.PARTITIONS)
            partition.append(build_batch([Record(None, b"y")]), AppendOrigin.CLIENT)
            # in the same turn, so that the follower has not fetched
            await made.backups[number].step(made.begun[number].id, Step.PARTITIONS)
            assert partition.high_watermark == 1
            await made.step(Step.RELEASE)
            assert made.sizes()["t-0"] == size < partition.log.size_bytes


async def test_a_leader_that_changed_since_the_beginning_gives_nothing(tmp_path: Path) -> None:
    async with direct_cluster(tmp_path, 3, config=CONFIG) as cluster:
        await spread(cluster)
        async with begun(cluster) as made:
            await made.step(Step.HOLD)
            await cluster.brokers[1].create_topic("new")
            await made.step(Step.OFFSETS)
            await refused(made.step(Step.PARTITIONS), "partition new-0 may have got another leader")


async def test_nodes_are_of_both_readings(tmp_path: Path) -> None:
    async with direct_cluster(tmp_path, 1) as cluster:
        store, context = cluster.stores[1], cluster.brokers[1].context
        await store.transact([CreateNode(f"/{name}/x", b"before") for name in ("early", "late", "still")])
        nodes = BackupNodes(
            store, lambda: context.metadata.image, cluster_id="c", broker_id=1, early=["/early"], still=["/still"],
            time_ms=lambda: 1, executor=context.executor,
        )  # fmt: skip
        await nodes.read()
        for name in ("early", "late"):
            await store.transact([SetNode(f"/{name}/x", b"after", 0)])
        image = ClusterImage.decode("", (await nodes.image())[IMAGE_NAME])
        found = {path: data for path, data, _ in image.store.nodes}
        assert (found["/early/x"], found["/late/x"]) == (b"before", b"after")
        await refused(nodes.image(), "were not read before")
        await nodes.read()
        await store.transact([SetNode("/still/x", b"after", 0)])
        await refused(nodes.image(), "below /still changed")


async def test_a_log_is_cut_at_any_offset(tmp_path: Path) -> None:
    async with direct_broker(tmp_path) as made:
        await made.create_topic("t", segment_bytes="300")
        for number in range(12):
            await made.produce("t", [b"x" * (20 * number)] * (number % 3 + 1))
        partition = made.context.replicas.partition("t", 0)
        data = b"".join(path.read_bytes() for path in sorted((tmp_path / "t-0").glob("*.log")))
        ends = {0: 0} | {
            header.last_offset + 1: position + header.size for position, header in iter_headers(data)
        }
        assert len(partition.log.segments) > 3
        for offset, size in ends.items():
            end_offset, cut = described(noted(partition, up_to=offset))
            assert (end_offset, sum(each for _, each in cut.files)) == (offset, size)


async def test_only_ranges_below_the_cut_are_read(tmp_path: Path) -> None:
    async with direct_broker(tmp_path) as made:
        await made.create_topic("t")
        await made.produce("t", [b"x" * 100])
        backups = made.context.backups
        assert backups is not None
        backup = await backups.begin()
        size = made.context.replicas.partition("t", 0).log.size_bytes
        await made.produce("t", [b"y" * 100])
        name = f"t-0/{0:020d}.log"
        whole = await backups.read(backup.id, name, 0, size)
        assert whole.data == (tmp_path / name).read_bytes()[:size]
        assert (whole.end, whole.written_ms > 0) == (size, True)
        assert (await backups.read(backup.id, f"backup/{backup.id}/{CUT_NAME}", 0, 1)).data == b"{"
        for place, position, count, words in (
            (name, 1, size, "are not a range"),
            (name, -1, 1, "are not a range"),
            (name, 0, -1, "are not a range"),
            (name, 0, READ_BYTES_MAX + 1, "are not a range"),
            (f"../{tmp_path.name}/{name}", 0, 1, "is not a file of"),
            (str(tmp_path / name), 0, 1, "is not a file of"),
            ("meta.db", 0, 1, "is not a file of"),
        ):
            with pytest.raises(KafkaError, match=words) as told:
                await backups.read(backup.id, place, position, count)
            assert told.value.code is ErrorCode.INVALID_REQUEST
        (tmp_path / name).rename(tmp_path / f"{name}.gone")
        with pytest.raises(KafkaError, match="is gone") as told:
            await backups.read(backup.id, name, 0, 1)
        assert told.value.code is ErrorCode.RESOURCE_NOT_FOUND
        (tmp_path / f"{name}.gone").rename(tmp_path / name)
        with pytest.raises(KafkaError, match="has ended"):
            await backups.read("0" * 32, name, 0, 1)
        await backups.end(backup.id)


@pytest.mark.parametrize(
    ("given", "words"),
    [
        ({1: [("a", 0, 5)], 2: [("a", 1, 7)]}, ""),
        ({1: [("a", 0, 5)]}, "got another leader during the cut: a-1"),
        ({1: [("a", 0, 4)], 2: [("a", 1, 7)]}, "got another leader during the cut: a-0"),
        ({2: [("a", 0, 5), ("a", 1, 7)]}, "got another leader during the cut: a-0"),
        ({1: [("a", 0, 5), ("a", 1, 6)], 2: [("a", 1, 7)]}, "got another leader during the cut: a-1"),
        ({1: [("a", 0, 5), ("b", 0, 0)], 2: [("a", 1, 7)]}, "1 partitions were deleted"),
    ],
)
def test_each_partition_is_given_by_its_leader_alone(
    given: dict[int, list[tuple[str, int, int]]], words: str
) -> None:
    cuts = {
        broker: Cut(
            "",
            0,
            [PartitionCut("", [], {}, {}, str(ids[name]), index, epoch) for name, index, epoch in some],
            [],
        )
        for broker, some in given.items()
    }
    leaders = {str(ids["a"]): [(1, 5), (2, 7)]}
    if words:
        with pytest.raises(KafkaError, match=words) as told:
            check_parts(IMAGE, leaders, cuts)
        assert told.value.code is ErrorCode.OPERATION_NOT_ATTEMPTED
    else:
        check_parts(IMAGE, leaders, cuts)
        with pytest.raises(KafkaError, match="without a leader cannot be backed up: a-1"):
            check_parts(IMAGE, {str(ids["a"]): [(1, 5), (-1, 7)]}, cuts)


ids = {"a": UUID(int=1), "b": UUID(int=2)}
IMAGE = ClusterImage(
    "c",
    1,
    "w",
    0,
    StoreImage(
        ((tree.topic_path("a"), tree.encode_topic(TopicImage("a", ids["a"], 2, {}, internal=False)), 0),), ()
    ),
)
