"""The part of one member in the backup of a cluster: the partitions that it leads, up to their high watermarks.

The command that makes the backup asks all members for one step after the other. It begins a step when all members have
completed the one before it.

    Step.NODES       one member reads the nodes of the coordination store
    Step.HOLD        members store no change of a transaction any more; those before it are stored
    Step.OFFSETS     members note the ends of their partitions of committed offsets
    Step.PARTITIONS  members note the ends of all their other partitions
    Step.RELEASE     members store changes of transactions again, and describe the files up to the noted ends
    Step.IMAGE       one member reads the nodes again, and who leads each partition under which epoch

The parts belong together for these reasons
- Transactions: from the first to the last note the journals of all transaction coordinators stand still. A partition
  whose part has a marker is written after the decision, so the journal's part has the decision. A journal that calls a
  transaction complete was written after all markers. Other decided transactions get their markers again after the
  restore, and undecided ones have no marker in any part.
- Records of a transaction: a leader writes them only if the coordinator has stored that the partition is part of it. So
  the journal's part knows each partition that has records of an open transaction, and ends it there.
- Committed offsets: a group commits offsets of records that are below the high watermark. The ends of the other
  partitions are noted later.
- Leaders: the image is read after the last note, by a session that has written to the store before. A partition that
  was given by a leader that is no longer the leader under the same epoch is found, and the cut is made again.
- Nodes: the second reading contains each schema, topic and block of producer ids that the parts can use. The progress
  of lakes is taken from the first reading, because it must not be ahead of the logs.

A member that hears nothing releases the journals after `HOLD_SECONDS`; the step `RELEASE` then fails.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from enum import IntEnum
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Final, Protocol

import msgspec

from headrace.broker.backup.logs import (
    LOGS_PER_TURN,
    OpenLog,
    PartitionCut,
    again,
    closed_logs,
    described,
    noted,
    with_files_beside,
)
from headrace.protocol.errors import ErrorCode, KafkaError

if TYPE_CHECKING:
    from concurrent.futures import Executor

    from headrace.broker.partitions.partition import Partition
    from headrace.broker.replication.replicas import LocalReplicas
    from headrace.broker.runtime.ports import Disk

HOLD_SECONDS: Final = 10.0
NOTED_PER_TURN: Final = 256


class Step(IntEnum):
    """The steps of a member, in their order."""

    NODES = 0
    HOLD = 1
    OFFSETS = 2
    PARTITIONS = 3
    RELEASE = 4
    IMAGE = 5


class Journal(Protocol):
    """A journal whose appends can wait."""

    async def hold(self) -> None:
        """Let appends wait, and return when those before are stored. Raises KafkaError."""

    def release(self) -> None:
        """Carry out the appends that wait."""


class Nodes(Protocol):
    """The nodes of the coordination store that a backup contains."""

    async def read(self) -> None:
        """Read them for the first time. Raises KafkaError."""

    async def image(self) -> dict[str, bytes]:
        """Read them again; return the contents of files by name. Raises KafkaError if the cut has to be made again."""


class ClusterParts(msgspec.Struct):
    """The parts of a member that a backup of its cluster needs. `offsets_topic`: the topic of committed offsets;
    `journals`: those of transactions.
    """

    nodes: Nodes
    offsets_topic: str
    journals: list[Journal] = msgspec.field(default_factory=list)


class MemberCut:
    """One cut of a member; see the module. On the event loop."""

    def __init__(
        self, parts: ClusterParts, replicas: LocalReplicas, disk: Disk, data_dir: Path, executor: Executor
    ) -> None:
        """Note the leaders of all partitions, before extensions copy their state."""
        self._parts = parts
        self._replicas = replicas
        self._disk = disk
        self._data_dir = data_dir
        self._executor = executor
        self._epochs = {partition.place: partition.leader_epoch for partition in self._led()}
        self._lease: asyncio.TimerHandle | None = None
        self._opened: list[OpenLog] = []
        self._closed: list[Partition] = []
        self._completed = Step.NODES

    def _led(self) -> list[Partition]:
        return [partition for partition in self._replicas.all_partitions() if not partition.closed]

    # -- the steps -----------------------------------------------------------------------------------------

    async def hold(self) -> None:
        """Hold the journals of transactions. Raises KafkaError."""
        self._lease = asyncio.get_running_loop().call_later(HOLD_SECONDS, self.release)
        try:
            async with asyncio.timeout(HOLD_SECONDS):
                await asyncio.gather(*(journal.hold() for journal in self._parts.journals))
        except TimeoutError:
            raise again("changes of transactions cannot be stored now, as replicas are missing") from None
        self._completed = Step.HOLD

    async def note_offsets(self) -> None:
        """Note the ends of the partitions of committed offsets. Raises KafkaError."""
        await self._note(Step.OFFSETS, lambda partition: partition.topic.name == self._parts.offsets_topic)

    async def note_partitions(self) -> None:
        """Note the ends of all other partitions. Raises KafkaError."""
        await self._note(Step.PARTITIONS, lambda partition: partition.topic.name != self._parts.offsets_topic)

    async def _note(self, step: Step, is_wanted: Callable[[Partition], bool]) -> None:
        if self._completed != step - 1 or self._lease is None:
            raise again(f"{step.name} does not follow {self._completed.name}, or was not asked for in time")
        opened: list[OpenLog] = []
        for number, partition in enumerate(filter(is_wanted, self._led()), 1):
            if partition.failure is not None:
                raise KafkaError(
                    ErrorCode.KAFKA_STORAGE_ERROR,
                    f"partition {partition.name} is offline: {partition.failure}",
                )
            if self._epochs.get(partition.place) != partition.leader_epoch or partition.is_fenced:
                raise again(f"partition {partition.name} may have got another leader")
            if not partition.is_open and not partition.is_replicated and partition.hooks is None:
                self._closed.append(partition)
                continue
            if not partition.is_open or not partition.is_end_known:
                raise again(f"the end of partition {partition.name} is not known yet")
            opened.append(noted(partition, up_to=partition.high_watermark))
            if number % NOTED_PER_TURN == 0:
                await asyncio.sleep(0)
        self._opened += opened
        self._completed = step

    async def describe(self) -> list[PartitionCut]:
        """Release the journals, and return the files up to the noted ends. Raises KafkaError."""
        was_held = self._lease is not None and self._completed is Step.PARTITIONS
        self.release()
        if not was_held:
            raise again(f"the cut took longer than {HOLD_SECONDS:.0f} s")
        found = await self._run(closed_logs, self._disk, self._data_dir, self._closed)
        opened = [partition.name for partition in self._closed if partition.is_open or partition.closed]
        if opened:
            raise again(f"the log of {opened[0]} was opened meanwhile")
        for first in range(0, len(self._opened), LOGS_PER_TURN):
            some = [described(each) for each in self._opened[first : first + LOGS_PER_TURN]]
            found += await self._run(with_files_beside, self._disk, self._data_dir, some)
        return found

    def release(self) -> None:
        """Release the journals, whatever the state of the cut."""
        if self._lease is not None:
            self._lease.cancel()
            self._lease = None
            for journal in self._parts.journals:
                journal.release()

    async def _run(self, work: Callable[..., list[PartitionCut]], *arguments: object) -> list[PartitionCut]:
        return await asyncio.get_running_loop().run_in_executor(self._executor, partial(work, *arguments))
