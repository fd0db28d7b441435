"""Committed offsets of consumer groups in remote storage: copied on change, fenced, loaded by a new machine."""

from __future__ import annotations

import asyncio
import dataclasses
import threading
from collections.abc import Collection, Iterable, Mapping
from concurrent.futures import Executor
from pathlib import Path
from typing import Any

import pytest

from headrace.broker.configs.config_key import ConfigError
from headrace.broker.groups.model.records import (
    CommittedOffset,
    PutEpoch,
    PutGroup,
    PutOffset,
    PutTargetEpoch,
    StoredGroup,
)
from headrace.broker.groups.offsets.positions import GroupPositions, at
from headrace.broker.objects.files import LocalFiles
from headrace.broker.partitions.data_dir import POSITIONS_PENDING
from headrace.broker.partitions.partition import Partition
from headrace.broker.remote import bootstrap, cluster_copy, group_positions
from headrace.broker.remote.entering import Clamped, Entered, fitted
from headrace.broker.runtime.disk import SystemDisk
from headrace.broker.tests.groups.test_coordinator import commit_request, join_request, sync_request
from headrace.broker.tests.remote.test_remote_log import (
    TOPIC,
    delete_records,
    filled,
    manager,
    partition_of,
    tend,
    tiered,
)
from headrace.protocol.errors import ErrorCode, KafkaError
from headrace.protocol.messages.consumer_group_heartbeat import ConsumerGroupHeartbeatRequest
from headrace.protocol.messages.describe_groups import DescribeGroupsRequest
from headrace.protocol.messages.find_coordinator import FindCoordinatorRequest
from headrace.protocol.messages.offset_fetch import OffsetFetchRequest, OffsetFetchRequestGroup
from simulator.direct import DirectBroker

WAIT_SECONDS = 60
NOT_YET = {
    ErrorCode.COORDINATOR_LOAD_IN_PROGRESS,
    ErrorCode.COORDINATOR_NOT_AVAILABLE,
    ErrorCode.NOT_COORDINATOR,
}
"""Errors while the groups are loaded, or their leader waits for its lease."""


def put_into(copy: Any, files: LocalFiles) -> None:
    """Copy offsets to this place from now on."""
    copy._place = dataclasses.replace(copy._place, files=files)


async def settled(made: DirectBroker, request: Any, version: int | None = None) -> Any:
    """Return the answer, once the groups are loaded."""
    async with asyncio.timeout(WAIT_SECONDS):
        while True:
            answer = await made.send(request, version)
            codes = {each.error_code for each in getattr(answer, "groups", [answer])}
            if not codes & NOT_YET:
                return answer
            await asyncio.sleep(0.01)


async def commit(
    made: DirectBroker, offsets: Mapping[tuple[str, int], int], group: str = "g", **member: Any
) -> None:
    await settled(made, FindCoordinatorRequest(key=group, key_type=0), 3)
    async with asyncio.timeout(WAIT_SECONDS):
        while True:
            answer = await made.send(commit_request(offsets, group=group, **member), 9)
            codes = {partition.error_code for topic in answer.topics for partition in topic.partitions}
            if codes == {0}:
                return
            assert codes <= NOT_YET
            await asyncio.sleep(0.01)


async def committed(made: DirectBroker, group: str = "g") -> dict[tuple[str, int], int]:
    request = OffsetFetchRequest(groups=[OffsetFetchRequestGroup(group_id=group, topics=None)])
    (fetched,) = (await settled(made, request, 8)).groups
    assert fetched.error_code == 0
    return {
        (topic.name, partition.partition_index): partition.committed_offset
        for topic in fetched.topics
        for partition in topic.partitions
    }


async def copy(made: DirectBroker) -> None:
    """Run a turn of the manager, which finds that the files are this broker's, and one of offsets."""
    await tend(made)
    await manager(made).copy_positions()


def objects(tmp_path: Path) -> dict[str, bytes]:
    files = LocalFiles(tmp_path / "remote")
    return {name: files.read(name) for name in files.names("cluster") if "/groups/" in name}


def restored(tmp_path: Path, data: str = "new") -> bootstrap.Restored:
    location = str(tmp_path / "remote")
    return bootstrap.make_directory(
        LocalFiles(tmp_path / "remote"), location, None, SystemDisk(), tmp_path / data
    )


async def test_a_new_machine_goes_on_at_the_positions_of_groups(tmp_path: Path) -> None:
    async with tiered(tmp_path) as made:
        await filled(made)
        await made.create_topic("plain", 2)
        await made.produce("plain", [b"a", b"b", b"c"])
        await tend(made)
        await commit(made, {("t", 0): 17, ("plain", 0): 2}, "g")
        await commit(made, {("t", 0): 40}, "far")
        await copy(made)
        end = partition_of(made).log.tiered_to
        assert 17 < end < 40
    said = restored(tmp_path)
    expected = Entered(
        {"g", "far"}, 3, [Clamped("far", "t", 0, 40, end), Clamped("g", "plain", 0, 2, 0)], [], 0
    )
    said.positions.beyond.sort(key=str)
    assert said.positions == expected
    assert f"far: t-0 40 -> {end}" in str(said.positions)
    assert said.positions_ms is not None
    async with tiered(tmp_path, "new") as made:
        assert not (tmp_path / "new" / POSITIONS_PENDING).exists()
        assert await committed(made, "g") == {("t", 0): 17, ("plain", 0): 0}
        assert await committed(made, "far") == {("t", 0): end}
        await commit(made, {("t", 0): 18})
    async with tiered(tmp_path, "new") as made:
        assert await committed(made, "g") == {("t", 0): 18, ("plain", 0): 0}, "they were entered again"


async def test_positions_before_the_logs_start_are_set_to_it(tmp_path: Path) -> None:
    async with tiered(tmp_path) as made:
        await filled(made)
        await commit(made, {("t", 0): 3})
        await tend(made)
        await delete_records(made, 11)
        await copy(made)
    said = restored(tmp_path)
    assert said.positions.before == [Clamped("g", "t", 0, 3, 11)]
    async with tiered(tmp_path, "new") as made:
        assert await committed(made) == {("t", 0): 11}


async def test_groups_of_both_protocols_come_back_empty_and_go_on_counting(tmp_path: Path) -> None:
    def heartbeat(member: str, epoch: int) -> ConsumerGroupHeartbeatRequest:
        return ConsumerGroupHeartbeatRequest(
            group_id="modern",
            member_id=member,
            member_epoch=epoch,
            rebalance_timeout_ms=60_000,
            subscribed_topic_names=["t"],
            topic_partitions=[],
        )

    async with tiered(tmp_path) as made:
        await filled(made)
        await settled(made, FindCoordinatorRequest(key="g", key_type=0), 3)
        joined = await made.send(join_request("g"), 3)
        await made.send(sync_request(joined.member_id, joined.generation_id, {joined.member_id: b""}), 3)
        member = {"member_id": joined.member_id, "generation": joined.generation_id}
        await commit(made, {("t", 0): 5}, "g", **member)
        for number in range(3):  # an epoch each
            epoch = (await made.send(heartbeat(f"m{number}", 0))).member_epoch
        await commit(made, {("t", 0): 7}, "modern", member_id="m2", generation=epoch)
        await copy(made)
    restored(tmp_path)
    async with tiered(tmp_path, "new") as made:
        assert await committed(made, "g") == {("t", 0): 5}
        assert await committed(made, "modern") == {("t", 0): 7}
        (described,) = (await made.send(DescribeGroupsRequest(groups=["g"]))).groups
        assert (described.group_state, described.members) == ("Empty", [])
        again = await made.send(join_request("g"), 3)
        assert again.generation_id > joined.generation_id
        assert (await made.send(heartbeat("m2", epoch))).error_code == ErrorCode.UNKNOWN_MEMBER_ID
        assert (await made.send(heartbeat("m2", 0))).member_epoch > epoch


async def test_only_changed_positions_are_copied(tmp_path: Path) -> None:
    async with tiered(tmp_path) as made:
        await filled(made)
        await commit(made, {("t", 0): 1}, "g")
        await manager(made).copy_positions()
        assert objects(tmp_path) == {}, "before it was known that what is there is this broker's"
        await copy(made)
        await commit(made, {("t", 0): 1}, "other")
        await copy(made)
        first = objects(tmp_path)
        assert len(first) == 2
        await commit(made, {("t", 0): 1}, "g")
        await copy(made)
        assert objects(tmp_path) == first, "the same positions were written again"
        await commit(made, {("t", 0): 2}, "g")
        await copy(made)
        second = objects(tmp_path)
        assert len(second) == 2
        assert len(set(first) & set(second)) == 1
        await made.context.topics.delete_topic("t")
        await manager(made).turn()
        await manager(made).copy_positions()
    assert restored(tmp_path).positions == Entered()


async def test_copied_positions_count_against_the_copy_quota(tmp_path: Path) -> None:
    name = "remote_log_manager_copy_max_bytes_per_second"
    async with tiered(tmp_path, **{name: str(1 << 40)}) as made:
        await filled(made)
        await tend(made)
        quota, used = manager(made)._copy_quota, []
        quota.used = used.append  # type: ignore[method-assign]
        await commit(made, {("t", 0): 1})
        await manager(made).copy_positions()
        assert sum(used) == sum(map(len, objects(tmp_path).values())) > 0


async def test_the_old_server_does_not_replace_what_the_new_one_has(tmp_path: Path) -> None:
    async with tiered(tmp_path) as old:
        await filled(old)
        await commit(old, {("t", 0): 10})
        await copy(old)
        restored(tmp_path)
        async with tiered(tmp_path, "new") as new:
            await tend(new)
            await commit(old, {("t", 0): 11})
            await manager(old).copy_positions()  # before its metadata show that it was replaced
            await commit(new, {("t", 0): 20})
            await copy(new)
            there = objects(tmp_path)
            await commit(old, {("t", 0): 12})
            for _ in range(2):
                await manager(old).copy_positions()
            assert objects(tmp_path) == there
            await commit(new, {("t", 0): 21})
            await copy(new)
    restored(tmp_path, "third")
    async with tiered(tmp_path, "third") as made:
        assert await committed(made) == {("t", 0): 21}


class Failing(LocalFiles):
    """Puts of offsets raise, or are carried out and raise, by `modes` one after the other."""

    def __init__(self, root: Path, modes: Iterable[str]) -> None:
        super().__init__(root)
        self.modes = list(modes)

    def put(self, name: str, data: Any, *, create: bool = False) -> None:
        mode = self.modes.pop(0) if "/groups/" in name and self.modes else ""
        if mode == "fails":
            raise OSError("500")
        super().put(name, data, create=create)
        if mode == "lost":
            raise OSError("no answer")

    def remove(self, name: str) -> None:
        if "/groups/" in name and self.modes:
            raise OSError("500")
        super().remove(name)


@pytest.mark.parametrize(
    "modes", [["fails"], ["lost"], ["fails", "lost", "fails"], ["lost", "lost", "lost"], ["", ""]]
)
async def test_a_store_that_fails_is_written_to_again(tmp_path: Path, modes: list[str]) -> None:
    files = Failing(tmp_path / "remote", modes)
    async with tiered(tmp_path) as made:
        await filled(made)
        await tend(made)
        copier = manager(made)._positions
        assert copier is not None
        put_into(copier, files)
        for offset in range(1, 8):
            await commit(made, {("t", 0): offset})
            await manager(made).copy_positions()
        assert not files.modes
        assert len(objects(tmp_path)) == 1
    restored(tmp_path)
    async with tiered(tmp_path, "new") as made:
        assert await committed(made) == {("t", 0): 7}


async def test_a_failed_copy_of_positions_is_repeated(tmp_path: Path) -> None:
    async with tiered(tmp_path) as made:
        await filled(made)
        await tend(made)
        copier = manager(made)._positions
        assert copier is not None
        put_into(copier, Failing(tmp_path / "remote", ["fails"]))
        await commit(made, {("t", 0): 1})
        await manager(made).copy_positions()
        assert objects(tmp_path) == {}
        await manager(made).copy_positions()
        assert len(objects(tmp_path)) == 1


async def test_positions_of_a_lost_journal_partition_are_not_copied(tmp_path: Path) -> None:
    async with tiered(tmp_path) as made:
        await filled(made)
        await commit(made, {("t", 0): 1})
        await copy(made)
        there = objects(tmp_path)
        copier = manager(made)._positions
        assert copier is not None
        groups = copier._groups
        await commit(made, {("t", 0): 2})
        looked_at = groups.positions

        def interrupted(indexes: Collection[int]) -> Any:
            for index in indexes:
                groups.let_go(index)
                groups.journal._led.discard(index)
            return (yield from looked_at(indexes))

        groups.positions = interrupted  # type: ignore[method-assign]
        await manager(made).copy_positions()
        assert objects(tmp_path) == there


async def test_a_silent_store_does_not_delay_commits(tmp_path: Path) -> None:
    answers = threading.Event()

    class Slow(LocalFiles):
        def put(self, name: str, data: Any, *, create: bool = False) -> None:
            assert "/groups/" not in name or answers.wait(WAIT_SECONDS)
            super().put(name, data, create=create)

    async with tiered(tmp_path) as made:
        await filled(made)
        await tend(made)
        copier = manager(made)._positions
        assert copier is not None
        put_into(copier, Slow(tmp_path / "remote"))
        await commit(made, {("t", 0): 1})
        copying = asyncio.ensure_future(manager(made).copy_positions())
        await asyncio.sleep(0)
        await commit(made, {("t", 0): 2})
        await tend(made)
        assert await committed(made) == {("t", 0): 2}
        assert not copying.done()
        answers.set()
        await copying
        await manager(made).copy_positions()
    restored(tmp_path)
    async with tiered(tmp_path, "new") as made:
        assert await committed(made) == {("t", 0): 2}


async def test_an_interrupted_start_restores_positions_again(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    async with tiered(tmp_path) as made:
        await filled(made)
        await commit(made, {("t", 0): 1}, "a")
        await commit(made, {("t", 0): 2}, "b")
        await copy(made)
    restored(tmp_path)
    with monkeypatch.context() as patch:
        patch.setattr(Partition, "flush", _switched_off)
        with pytest.raises(ConfigError, match="positions of consumer groups"):
            async with tiered(tmp_path, "new"):
                pass
    async with tiered(tmp_path, "new") as made:
        assert await committed(made, "a") == {("t", 0): 1}
        assert await committed(made, "b") == {("t", 0): 2}


async def _switched_off(partition: Partition, executor: Executor) -> None:
    """Lose everything that was written since the start."""
    log = partition.log
    log.truncate_to(log.log_start_offset)
    raise KafkaError(ErrorCode.KAFKA_STORAGE_ERROR, "the machine is switched off here")


async def test_unreadable_positions_are_named_and_left_out(tmp_path: Path) -> None:
    async with tiered(tmp_path) as made:
        await filled(made)
        await commit(made, {("t", 0): 1}, "a")
        await commit(made, {("t", 0): 2}, "b")
        await copy(made)
    broken, _ = objects(tmp_path)
    data = (tmp_path / "remote" / broken).read_bytes()
    (tmp_path / "remote" / broken).write_bytes(data[: len(data) // 2])
    said = restored(tmp_path)
    assert said.damaged == (broken,)
    assert said.positions.positions == 1
    head = group_positions.Head("c", 1, 1, "w", 1, {}, version=99)
    (tmp_path / "remote" / broken).write_bytes(group_positions.encode(head, b""))
    with pytest.raises(cluster_copy.ClusterCopyError, match="newer version"):
        restored(tmp_path, "third")
    assert not (tmp_path / "third").exists()


def test_positions_are_the_same_bytes_in_whatever_order() -> None:
    def group(name: str, *partitions: int) -> GroupPositions:
        offsets = {index: CommittedOffset(index, 3, "m", 1_000 + index) for index in partitions}
        return GroupPositions(
            name,
            StoredGroup(name, "consumer", 4, None, None, 0, ()),
            6,
            {"t": offsets, "gone": {0: CommittedOffset(1)}},
        )

    body = group_positions.body_of([group("a", 0, 1), group("b", 2)], {"t": "id"})
    assert group_positions.body_of([group("b", 2), group("a", 1, 0)], {"t": "id"}) == body
    head = group_positions.Head("c", 1, 2, "w", 3, {"t": "id"})
    found, records = group_positions.decode("name", group_positions.encode(head, body))
    assert found == head
    put = PutGroup(StoredGroup("a", "consumer", 4, None, None, 9, ()))
    assert [at(record, 9) for record in records][:4] == [
        put,
        PutEpoch("a", 6, 0),
        PutTargetEpoch("a", 6, 0),
        PutOffset("a", "t", 0, CommittedOffset(0, 3, "m", 9)),
    ]


def test_a_position_that_is_moved_has_no_epoch() -> None:
    records = [PutOffset("g", "t", index, CommittedOffset(index, 5)) for index in range(4)]
    ranges = {0: (1, 3), 1: (1, 3), 3: (1, 2)}
    entered = Entered()
    there = list(fitted(records, lambda _, index: ranges.get(index), entered))
    assert [(each.committed.offset, each.committed.leader_epoch) for each in there if isinstance(each, PutOffset)] == [
        (1, -1), (1, 5), (2, -1),
    ]  # fmt: skip
    assert (entered.positions, entered.left_out) == (3, 1)
    assert ([each.committed for each in entered.before], [each.committed for each in entered.beyond]) == (
        [0],
        [3],
    )


async def test_positions_of_a_deleted_topic_are_not_given_to_its_successor(tmp_path: Path) -> None:
    async with tiered(tmp_path) as made:
        await filled(made)
        await made.create_topic("other")
        await commit(made, {("t", 0): 5, ("other", 0): 0})
        await copy(made)
        there = objects(tmp_path)
        await made.context.topics.delete_topic("t")
        await made.create_topic("t", **TOPIC)
        await tend(made)
        assert objects(tmp_path) == there, "they were copied by the turn, and nothing is shown"
    assert restored(tmp_path).positions == Entered({"g"}, 1, left_out=1)
    async with tiered(tmp_path, "new") as made:
        assert await committed(made) == {("other", 0): 0}
