"""A coordinator's journal whose partitions change their leader: records that are read too late are never served."""

from __future__ import annotations

import asyncio
import uuid
from collections.abc import Callable
from concurrent.futures import Executor, Future
from types import SimpleNamespace
from typing import Any

from headrace.broker.cluster.journal_topic import JournalTopic
from headrace.broker.metadata.image import PartitionState, TopicEntry, chunks_of
from headrace.broker.partitions.topic import TopicImage
from headrace.broker.runtime.background import BackgroundTasks
from headrace.broker.runtime.ports import SystemClock
from headrace.protocol.errors import ErrorCode

NAME = "journal"


class Held(Executor):
    """An executor that runs work when the test says so."""

    def __init__(self) -> None:
        self.work: list[tuple[Future[Any], Callable[..., Any], tuple[Any, ...]]] = []

    def submit(self, work: Callable[..., Any], /, *arguments: Any, **_: Any) -> Future[Any]:
        self.work.append((future := Future(), work, arguments))
        return future

    async def do(self) -> None:
        while not self.work:  # noqa: ASYNC110 - a task of the journal's puts it there
            await asyncio.sleep(0)
        future, work, arguments = self.work.pop(0)
        future.set_result(work(*arguments))
        for _ in range(5):
            await asyncio.sleep(0.001)


class Contents:
    def __init__(self) -> None:
        self.stored = "first"
        self.adopted: list[str] = []

    def read(self, index: int, partition: Any) -> str:
        return self.stored

    async def adopt(self, index: int, read: str) -> None:
        self.adopted.append(read)

    def let_go(self, index: int) -> None:
        self.adopted.clear()

    def live_keys(self, index: int) -> list[str]:
        return []

    def live_count(self, index: int) -> int:
        return 0

    def live_batch(self, key: str) -> bytes | None:
        return None


class Moving:
    """A journal of one partition, which this broker, 1, leads or not."""

    def __init__(self) -> None:
        self.contents, self.executor = Contents(), Held()
        self.image = TopicImage(NAME, uuid.uuid4(), 1, {}, True)
        self.partitions = [self._partition(closed=True)]
        self.epoch = 0
        metadata: Any = SimpleNamespace(
            topic_listeners=[], topic=lambda _: self.image, partitions=lambda _: self.partitions
        )
        self.journal = JournalTopic(
            NAME,
            self.contents,
            new_partition_count=1,
            metadata=metadata,
            replicas=metadata,
            topics=metadata,
            executor=self.executor,
            clock=SystemClock(),
            background=BackgroundTasks(),
        )
        self.journal.start()
        (self._followed,) = metadata.topic_listeners
        self._entry = self._of(2)

    def _partition(self, *, closed: bool) -> Any:
        log = SimpleNamespace(log_end_offset=0, log_start_offset=0)
        return SimpleNamespace(index=0, closed=closed, log=log, is_end_known=True)

    def _of(self, leader: int) -> TopicEntry:
        state = PartitionState((1, 2), leader, self.epoch, (1, 2))
        return TopicEntry(self.image, 0, chunks_of([state]))

    def led_by(self, leader: int, changes: int = 1) -> None:
        """Change the leader, that many times in between."""
        self.epoch += changes
        if leader != 1:
            self.partitions[0].closed = True
        elif self.partitions[0].closed:
            self.partitions[0] = self._partition(closed=False)
        before, self._entry = self._entry, self._of(leader)
        self._followed(before, self._entry)

    @property
    def says(self) -> ErrorCode:
        return self.journal.unavailable("key")


async def test_journal_keys_are_served_once_loaded_and_while_led() -> None:
    moving = Moving()
    assert moving.says is ErrorCode.NOT_COORDINATOR
    moving.led_by(1)
    assert moving.says is ErrorCode.COORDINATOR_LOAD_IN_PROGRESS
    await moving.executor.do()
    assert (moving.says, moving.contents.adopted) == (ErrorCode.NONE, ["first"])
    moving.led_by(2)
    assert (moving.says, moving.contents.adopted) == (ErrorCode.NOT_COORDINATOR, [])


async def test_a_journal_read_before_a_lost_leadership_is_read_again() -> None:
    moving = Moving()
    moving.led_by(1)
    await asyncio.sleep(0)
    moving.led_by(2)
    moving.contents.stored = "of the other broker too"
    moving.led_by(1)
    while not moving.executor.work:  # noqa: ASYNC110 - a task of the journal's puts it there
        await asyncio.sleep(0)
    moving.executor.work[0] = (moving.executor.work[0][0], lambda *_: "first", ())  # as it was read before
    await moving.executor.do()
    assert moving.says is ErrorCode.COORDINATOR_LOAD_IN_PROGRESS
    await moving.executor.do()
    assert (moving.says, moving.contents.adopted) == (ErrorCode.NONE, ["of the other broker too"])


async def test_a_leader_that_may_have_missed_another_ones_term_reads_again() -> None:
    moving = Moving()
    moving.led_by(1)
    await moving.executor.do()
    moving.led_by(1)
    assert moving.says is ErrorCode.NONE, "it went on leading, under another epoch"
    moving.contents.stored = "of the other broker too"
    moving.led_by(1, changes=2)
    assert moving.says is ErrorCode.COORDINATOR_LOAD_IN_PROGRESS
    await moving.executor.do()
    assert (moving.says, moving.contents.adopted) == (ErrorCode.NONE, ["of the other broker too"])
