"""A run of the simulator with several replicas of each partition: three brokers, each of which has them all.

As `cluster_simulation.py`. Beside what is done there brokers are cut off each other, one way or both, and the power is
cut where nothing is synced (`lossy`), of one broker at a time: while the other replicas are in sync, nothing may be
lost by it. Partitions are moved between the brokers all the time, turned back and sent elsewhere; at the end each
broker is to have all of them again.

Beside C1, C2 and M1 to M7

    R1, R3    what was acknowledged by all, or read by anybody, is there at the end (C1, C2 of `histories.py`)
    R2        below the high watermark the logs of all replicas are the same, byte by byte
    R4        one leader of a partition in an epoch (M3); the high watermark that a leader shows never goes back in one
    R9        after all was healed every ISR is whole again
"""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import Callable
from pathlib import Path
from typing import Any

from broker.cluster import tree
from broker.cluster.metadata import Reassignment
from broker.cluster.reassignment import is_moving
from broker.ports import STORE_LOST
from broker.testing.cluster_simulation import BROKERS, ClusterSimulation, simulate_cluster
from broker.testing.disk import Tear
from broker.testing.simulation import KEPT, POWER_TEARS, Report
from broker.testing.world import Member
from protocol.errors import KafkaError

MODES = ("kill", "power", "lossy")
LAG_MS = 2_000
WHOLE_SECONDS = 20.0
CUT_SECONDS = (0.2, 1.0, 4.0)
MOVE_SECONDS = 5.0
READ_BYTES = 1 << 20


class ReplicatedSimulation(ClusterSimulation):
    """See the module."""

    def __init__(self, *args: Any) -> None:
        super().__init__(*args)
        if args[3] is None:
            self.mode = self.random.choice(MODES)
        self._shown: dict[tuple[int, int, int], int] = {}
        self._is_losing = False
        self.moves = 0

    def broker_config(self) -> dict[str, str]:
        return super().broker_config() | {
            "replica.lag.time.max.ms": str(LAG_MS),
            "offsets.topic.replication.factor": "3",
        }

    async def _create_topics(self) -> None:
        # What one replica alone has, a power cut of that one may take.
        min_isr = 2 if self.mode == "lossy" else self.random.choice((1, 2))
        await self._made(KEPT, self.kept_partitions, BROKERS, min_insync_replicas=str(min_isr))

    # -- faults --------------------------------------------------------------------------------------------

    def _tear(self) -> Tear:
        """Of what is done to any broker at any time: in `lossy` the power is cut by `_lose`."""
        return super()._tear() if self.mode == "power" else Tear.KEPT

    async def _harm_ways(self) -> None:
        others = asyncio.ensure_future(self._part_brokers())
        watching = asyncio.ensure_future(self._watch_high_watermarks())
        moving = asyncio.ensure_future(self._move_partitions())
        try:
            await super()._harm_ways()
            await others
        finally:
            others.cancel()
            watching.cancel()
            moving.cancel()

    async def _part_brokers(self) -> None:
        while not self._healing:
            await asyncio.sleep(self.random.uniform(0.5, 6.0))
            if not self._healing:
                self.faults += 1
                await (
                    self._lose() if self.mode == "lossy" and self.random.random() < 0.5 else self._part_two()
                )

    async def _move_partitions(self) -> None:
        """Whichever broker is asked: to two or three of them, in any order, or no longer."""
        while not self._healing:
            await asyncio.sleep(self.random.uniform(0.3, 3.0))
            metadata = self._somebodys_metadata()
            if metadata is None or self._healing:
                continue
            target = self.random.sample(range(BROKERS), self.random.choice((2, 3)))
            index = self.random.randrange(self.kept_partitions)
            move = Reassignment(KEPT, index, None if self.random.random() < 0.2 else target)
            with contextlib.suppress(TimeoutError, KafkaError, *STORE_LOST):
                async with asyncio.timeout(MOVE_SECONDS):
                    self.moves += await metadata.reassign([move]) == [None]

    def _somebodys_metadata(self) -> Any:
        up = [
            member.direct.context.metadata
            for member in self.world.members.values()
            if member.is_up and member.direct is not None and member.direct.broker._loaded
        ]
        return self.random.choice(up) if up else None

    async def _part_two(self) -> None:
        """Brokers; one of them may still hear the other."""
        one, other = self.random.sample(sorted(self.world.members), 2)
        members = self.world.members
        self.world.cut(members[one], members[other], both=self.random.random() < 0.5)
        await asyncio.sleep(self.random.choice(CUT_SECONDS))
        self.world.heal()

    async def _end(self, member: Member) -> None:
        while self._is_losing:
            await self._rest()
        await super()._end(member)

    async def _lose(self) -> None:
        """Of one broker everything that was not synced, while the others have it."""
        member = self.world.members[self.random.randrange(BROKERS)]
        if not member.is_up or member.died.is_set() or not self._are_all_in_sync():
            return
        self._is_losing = True
        try:
            member.disk.crash_at = None
            member.cut_power(self.random.choice(POWER_TEARS))
            await asyncio.sleep(self.random.uniform(0, 0.5))
            await self._up(member)
        finally:
            self._is_losing = False

    def _are_all_in_sync(self) -> bool:
        """As the store has it. A broker whose process is dying holds its log as it is: nobody else loses any."""
        if any(not each.is_up or each.died.is_set() for each in self.world.members.values()):
            return False
        return all(len(state.isr) == BROKERS for state in self._states())

    def _states(self) -> list[Any]:
        assert self.world.ensemble is not None
        node = self.world.ensemble.node(tree.chunk_path(KEPT, 0))
        return [] if node is None else list(tree.decode_states(node.data))

    async def _watch_high_watermarks(self) -> None:
        """R4, looking at what runs."""
        while True:
            await asyncio.sleep(0.05)
            for member in self.world.members.values():
                if member.direct is None or not member.direct.broker._loaded:
                    continue
                for partition in member.direct.context.metadata.partitions(KEPT):
                    if partition.closed or not partition.is_open:
                        continue
                    key = (
                        member.incarnation * BROKERS + member.node_id,
                        partition.index,
                        partition.leader_epoch,
                    )
                    before = self._shown.get(key, 0)
                    if partition.high_watermark < before:
                        self.problems.append(
                            f"the high watermark of {KEPT}-{partition.index} in epoch {partition.leader_epoch} went"
                            f" from {before} back to {partition.high_watermark}"
                        )
                    self._shown[key] = partition.high_watermark

    # -- checks --------------------------------------------------------------------------------------------

    async def _check(self) -> None:
        await self._check_whole()
        await super()._check()
        self._check_logs()

    async def _check_whole(self) -> None:
        ends = self.world.loop.time() + WHOLE_SECONDS
        everybody = [Reassignment(KEPT, index, range(BROKERS)) for index in range(self.kept_partitions)]
        while self.world.loop.time() < ends:
            metadata = self._somebodys_metadata()
            if metadata is not None and any(_is_elsewhere(state) for state in self._states()):
                with contextlib.suppress(KafkaError, *STORE_LOST):
                    await metadata.reassign(everybody)
            states = self._states()
            if all(
                len(state.isr) == BROKERS and state.leader >= 0 and not is_moving(state) for state in states
            ):
                return
            await self._rest()
        self.problems.append(
            f"not every replica is in sync {WHOLE_SECONDS:g} s after all was healed: {self._states()}"
        )

    def _check_logs(self) -> None:
        """R2."""
        for index, state in enumerate(self._states()):
            leader = self.world.members[state.leader].direct
            assert leader is not None
            partition = leader.context.metadata.partition(KEPT, index)
            expected = _content(partition.log, partition.high_watermark)
            for broker in state.replicas:
                if broker == state.leader:
                    continue
                direct = self.world.members[broker].direct
                assert direct is not None
                follower = direct.context.metadata.follower(KEPT, index)
                if follower is None or not follower.is_open:
                    self.problems.append(f"broker {broker} does not follow {KEPT}-{index}")
                elif _content(follower.log, partition.high_watermark) != expected:
                    self.problems.append(f"the log of {KEPT}-{index} at broker {broker} is not its leader's")


def _is_elsewhere(state: Any) -> bool:
    return set(state.replicas) - set(state.removing) != set(range(BROKERS))


def _content(log: Any, end_offset: int) -> bytes:
    parts, offset = [], log.log_start_offset
    while offset < end_offset:
        found = log.read(offset, READ_BYTES, up_to=end_offset)
        if not found.size:
            break
        parts.append(found.read())
        offset = found.end_offset
    return b"".join(parts)


def simulate_replication(
    seed: int, folder: Path, *, operations: int = 200, mode: str | None = None, **rest: Callable[[], Any]
) -> Report:
    """One run. `seconds` are virtual ones."""
    return simulate_cluster(seed, folder, operations=operations, mode=mode, kind=ReplicatedSimulation, **rest)
