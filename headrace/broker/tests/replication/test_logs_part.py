"""A follower returns to its leader's log by leader epochs: common records stay, its own are removed."""

from __future__ import annotations

import random
from collections.abc import Coroutine
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from headrace.broker.log.config import LogConfig
from headrace.broker.log.partition_log import PartitionLog
from headrace.broker.metadata.image import PartitionState
from headrace.broker.replication.follower_sessions import where_logs_part
from headrace.broker.replication.following import Follower
from headrace.broker.runtime.slices import Slices
from headrace.protocol.errors import ErrorCode, KafkaError
from headrace.protocol.messages.fetch import FetchPartition, PartitionData
from simulator.log import LogWorld

Records = list[tuple[int, bytes]]
"""Epoch and value, by offset."""


class Logs:
    """Logs of several brokers on one disk, written in their epochs."""

    def __init__(self) -> None:
        self.world = LogWorld()
        self.count = 0

    def log(self, records: Records) -> PartitionLog:
        self.count += 1
        directory = Path(f"/data/log{self.count}-0")
        log = PartitionLog.open(
            directory, LogConfig(segment_bytes=400), clock=self.world.clock, disk=self.world.disk
        )
        for epoch, value in records:
            self.world.append(log, epoch=epoch, value=value)
        return log

    def follower(self, records: Records, high_watermark: int = 0) -> Follower:
        partition: Any = SimpleNamespace(topic=SimpleNamespace(name="t", topic_id=None), index=0)
        follower = Follower(partition, PartitionState((1, 2), 1, 9, (1, 2)), lambda _: self.log([]))
        follower._take(self.log(records))
        follower.high_watermark = high_watermark
        return follower


def catch_up(leader: PartitionLog, follower: Follower) -> int:
    """Fetch until there is nothing more; return the lowest end that the follower's log has had."""
    least = follower.log.log_end_offset
    for _ in range(100):
        log = follower.log
        asked = FetchPartition(fetch_offset=log.log_end_offset, last_fetched_epoch=log.last_epoch)
        answer = PartitionData(high_watermark=0, log_start_offset=leader.log_start_offset, records=b"")
        try:
            answer.diverging_epoch = where_logs_part(leader, asked)
            if answer.diverging_epoch is None:
                if not leader.log_start_offset <= asked.fetch_offset <= leader.log_end_offset:
                    raise KafkaError(ErrorCode.OFFSET_OUT_OF_RANGE)
                if asked.fetch_offset == leader.log_end_offset:
                    return least
                answer.records = leader.read(asked.fetch_offset, 300, up_to=leader.log_end_offset).read()
        except KafkaError as error:
            answer.error_code = error.code
        at_once(follower.answered(answer, Slices(lambda: 0.0)))
        least = min(least, log.log_end_offset)
    raise AssertionError("it never caught up")


def at_once(work: Coroutine[Any, Any, None]) -> None:
    with pytest.raises(StopIteration):
        work.send(None)


def content(log: PartitionLog) -> bytes:
    parts, offset = [], log.log_start_offset
    while (found := log.read(offset, 1 << 20, up_to=log.log_end_offset)).size:
        parts.append(found.read())
        offset = found.end_offset
    return b"".join(parts)


def common(one: Records, other: Records) -> int:
    same = 0
    while same < min(len(one), len(other)) and one[same] == other[same]:
        same += 1
    return same


def history(rng: random.Random) -> tuple[Records, Records]:
    """Return the logs of two of three brokers after some changes of leader.

    Some changes are unclean. Each leader began with its own records, and others copied some of them.
    """
    logs: list[Records] = [[], [], []]
    epoch = number = 0
    for _ in range(rng.randrange(1, 9)):
        epoch += rng.randrange(1, 3)
        leader = rng.randrange(3)
        for _ in range(rng.randrange(0, 6)):
            number += 1
            logs[leader].append((epoch, b"%d" % number))
        for other in range(3):
            if other != leader and rng.random() < 0.6:
                same = common(logs[leader], logs[other])
                logs[other] = logs[leader][: rng.randrange(same, len(logs[leader]) + 1)]
    return logs[0], logs[1]


@pytest.mark.parametrize("seed", range(60))
def test_diverged_logs_become_equal_without_cutting_common_records(
    seed: int,
) -> None:
    rng = random.Random(seed)
    has, leads = history(rng)
    logs = Logs()
    leader = logs.log(leads)
    leader.assign_epoch(99)
    follower = logs.follower(has, rng.randrange(common(has, leads) + 1))
    least = catch_up(leader, follower)
    assert content(follower.log) == content(leader)
    assert least == min(len(has), common(has, leads)), "cut where the logs part, and not before"


def test_kip_101_a_leader_that_comes_back_keeps_what_its_successor_has_whatever_it_knew_of_the_high_watermark() -> (
    None
):
    logs = Logs()
    both: Records = [(0, b"a"), (0, b"b")]
    leader = logs.log(both)
    leader.assign_epoch(1)
    assert catch_up(leader, logs.follower(both, high_watermark=1)) == 2


def test_kip_279_after_two_failovers_what_was_written_in_an_epoch_that_the_leader_never_saw_goes() -> None:
    logs = Logs()
    leader = logs.log([(0, b"a"), (2, b"c")])
    leader.assign_epoch(3)
    follower = logs.follower([(0, b"a"), (1, b"b")])
    assert catch_up(leader, follower) == 1
    assert content(follower.log) == content(leader)


def test_a_follower_behind_the_leaders_log_start_begins_there() -> None:
    logs = Logs()
    records = [(epoch, b"%d" % epoch) for epoch in range(20)]
    leader = logs.log(records)
    leader.delete_records(15)
    leader.assign_epoch(30)
    follower = logs.follower(records[:5])
    catch_up(leader, follower)
    assert (follower.log.log_start_offset, follower.log.log_end_offset) == (leader.log_start_offset, 20)
    assert content(follower.log) == content(leader)


def test_a_follower_forgets_what_its_leader_has_deleted() -> None:
    logs = Logs()
    records = [(1, b"%d" % number) for number in range(9)]
    follower = logs.follower(records)
    answer = PartitionData(high_watermark=7, log_start_offset=6, records=b"")
    at_once(follower.answered(answer, Slices(lambda: 0.0)))
    assert (follower.log.log_start_offset, follower.high_watermark) == (6, 7)
