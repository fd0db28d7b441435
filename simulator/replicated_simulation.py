"""A run of the simulator with three brokers and a replica of each partition on all of them.

It works like `cluster_simulation.py`, with more faults. Brokers are cut off from each other, in one direction or both,
or one from all others. The controller ends, or all brokers at once. Where nothing is synced (`lossy`), power cuts hit
one broker at a time: nothing is lost while another replica, in sync or eligible, has the published records. Partitions,
including the groups' journals, are moved, reverted and redirected all the time; at the end each broker has all of them
again. Meanwhile preferred leaders are elected, min.insync.replicas changes, and topics of one to three replicas are
created and deleted. A consumer reads from the replica on its rack (KIP-392).

Beside C1, C2 and M1 to M7, these rules hold:

- R1, R3: records that were acknowledged by all, or read by a client, are there at the end (C1, C2 of `histories.py`).
- R2: below the high watermark the logs of all replicas are equal, byte by byte.
- R4: a partition has one leader in an epoch (M3), and its shown high watermark never goes back in it.
- S1: a follower that states a time up to which it is complete has everything that a leader had published by then.
- R6: a replica that joins the ISR has everything below the high watermark.
- R9: after all faults are healed every ISR is complete again.
"""

from __future__ import annotations

import asyncio
import contextlib
import itertools
from bisect import bisect_left
from collections.abc import Callable, Coroutine, Mapping, Sequence
from pathlib import Path
from typing import Any

from headrace.broker.cluster.replica_changes import Reassignment
from headrace.broker.context import BrokerContext
from headrace.broker.metadata import tree
from headrace.broker.metadata.image import BrokerImage, PartitionState
from headrace.broker.metadata.reassignment import is_moving
from headrace.broker.runtime.ports import STORE_LOST, CreateNode, SetNode, StoreOperation
from headrace.protocol.errors import ErrorCode, KafkaError
from headrace.protocol.messages.fetch import FetchPartition, FetchRequest, FetchTopic
from simulator.cluster_simulation import BROKERS, ClusterSimulation, simulate_cluster
from simulator.direct import values_of
from simulator.disk import Tear
from simulator.histories import Place, Poll
from simulator.simulation import KEPT, PASSING, POWER_TEARS, Report
from simulator.world import LinkLostError, Member

MODES = ("kill", "power", "lossy")
LAG_MS = 2_000
WHOLE_SECONDS = 20.0
CUT_SECONDS = (0.2, 1.0, 4.0)
MOVE_SECONDS = 5.0
GROUPS = "__consumer_offsets"
READ_BYTES = 1 << 20
UNKNOWN_EPOCH = -2
OUTDATED = {ErrorCode.FENCED_LEADER_EPOCH, ErrorCode.UNKNOWN_LEADER_EPOCH}


class ReplicatedSimulation(ClusterSimulation):
    """One run; see the module."""

    def __init__(self, *args: Any) -> None:
        super().__init__(*args)
        if args[3] is None:
            self.mode = self.random.choice(MODES)
        self._shown: dict[tuple[int, int, int], int] = {}
        self._is_losing = False
        self._is_one_lossy = False
        self._joined: dict[int, tuple[int, ...]] = {}
        self._published: dict[int, list[tuple[float, int]]] = {}
        self.safe_times = 0
        """Number of times that a follower has stated a time up to which it is complete."""
        self._lost: dict[int, int] = {}
        """The earlier broker epoch of each broker that has lost records."""
        self.moves = 0
        assert self.world.ensemble is not None
        self.world.ensemble.observers.append(self._observe)

    def broker_config(self) -> dict[str, str]:
        return super().broker_config() | {
            "replica.lag.time.max.ms": str(LAG_MS),
            "offsets.topic.replication.factor": "3",
            "replica.selector.class": "org.apache.kafka.common.replica.RackAwareReplicaSelector",
            # A power cut may lose records that only one replica has.
            "min.insync.replicas": "2" if self.mode == "lossy" else "1",
        }

    def member_config(self, node_id: int) -> dict[str, str]:
        return {"broker.rack": _rack(node_id)}

    def others(self) -> Sequence[Coroutine[Any, Any, None]]:
        return (self._near_reader(),)

    async def _create_topics(self) -> None:
        min_isr = 2 if self.mode == "lossy" else self.random.choice((1, 2))
        await self._made(KEPT, self.kept_partitions, BROKERS, min_insync_replicas=str(min_isr))

    # -- faults --------------------------------------------------------------------------------------------

    def _tear(self) -> Tear:
        """Choose a tear for ends of any broker at any time; in `lossy`, `_lose` cuts the power."""
        return super()._tear() if self.mode == "power" else Tear.KEPT

    async def _harm_ways(self) -> None:
        others = asyncio.ensure_future(self._part_brokers())
        watching = asyncio.ensure_future(self._watch_high_watermarks())
        moving = asyncio.ensure_future(self._move_partitions())
        administering = asyncio.ensure_future(self._administer())
        try:
            await super()._harm_ways()
            await others
        finally:
            others.cancel()
            watching.cancel()
            moving.cancel()
            administering.cancel()

    async def _part_brokers(self) -> None:
        faults = [self._part_two, self._isolate, self._end_controller, self._end_all]
        while not self._healing:
            await asyncio.sleep(self.random.uniform(0.5, 6.0))
            if not self._healing:
                self.faults += 1
                is_lost = self.mode == "lossy" and self.random.random() < 0.5
                await (self._lose if is_lost else self.random.choice(faults))()

    async def _move_partitions(self) -> None:
        """Move partitions to two or three brokers in any order, or cancel moves, through any broker."""
        while not self._healing:
            await asyncio.sleep(self.random.uniform(0.3, 3.0))
            context = self._some_context()
            if context is None or self._healing:
                continue
            target = self.random.sample(range(BROKERS), self.random.choice((2, 3)))
            topic, index = KEPT, self.random.randrange(self.kept_partitions)
            if self.random.random() < 0.2:
                topic, index = GROUPS, 0
            move = Reassignment(topic, index, None if self.random.random() < 0.2 else target)
            with contextlib.suppress(TimeoutError, KafkaError, *STORE_LOST):
                async with asyncio.timeout(MOVE_SECONDS):
                    self.moves += await context.replica_changes.reassign([move]) == [None]

    async def _administer(self) -> None:
        """Elect preferred leaders or change min.insync.replicas, through any broker."""
        fewest = 2 if self.mode == "lossy" else 1
        while not self._healing:
            await asyncio.sleep(self.random.uniform(0.5, 5.0))
            context = self._some_context()
            if context is None or self._healing:
                continue
            if self.random.random() < 0.5:
                change: Coroutine[Any, Any, Any] = context.replica_changes.elect_leaders(
                    [(KEPT, self.random.randrange(self.kept_partitions))], unclean=False
                )
            else:
                min_isr = str(self.random.randrange(fewest, BROKERS + 1))
                change = context.topics.alter_config(KEPT, {"min.insync.replicas": min_isr})
            with contextlib.suppress(TimeoutError, KafkaError, *STORE_LOST):
                async with asyncio.timeout(MOVE_SECONDS):
                    await change

    async def _made(self, name: str, partitions: int, replicas: int = 1, **configs: str) -> None:
        some = replicas if name == KEPT else self.random.randrange(1, BROKERS + 1)
        await super()._made(name, partitions, some, **configs)

    def _some_context(self) -> BrokerContext | None:
        up = [
            member.direct.context
            for member in self.world.members.values()
            if member.is_up and member.direct is not None and member.direct.broker.is_loaded
        ]
        return self.random.choice(up) if up else None

    async def _part_two(self) -> None:
        """Cut two brokers off from each other, in one direction or both."""
        one, other = self.random.sample(sorted(self.world.members), 2)
        members = self.world.members
        self.world.cut(members[one], members[other], both=self.random.random() < 0.5)
        await asyncio.sleep(self.random.choice(CUT_SECONDS))
        self.world.heal()

    async def _isolate(self) -> None:
        """Cut one broker off from all others, in one direction or both."""
        alone = self.world.members[self.random.randrange(BROKERS)]
        way = self.random.randrange(3)
        for other in self.world.members.values():
            if other is not alone:
                sender, receiver = (other, alone) if way == 1 else (alone, other)
                self.world.cut(sender, receiver, both=way == 2)
        await asyncio.sleep(self.random.choice(CUT_SECONDS))
        self.world.heal()

    async def _end(self, member: Member) -> None:
        while self._is_losing:
            await self._rest()
        await super()._end(member)

    async def _expire(self, member: Member) -> None:
        await self._after_a_loss()
        await super()._expire(member)

    async def _lose_store(self, member: Member) -> None:
        await self._after_a_loss()
        await super()._lose_store(member)

    async def _pause(self, member: Member) -> None:
        await self._after_a_loss()
        await super()._pause(member)

    async def _after_a_loss(self) -> None:
        """Wait until the store knows which log has lost records.

        A replica that left the ISR before that could leave only the damaged one in it, where one replica is enough, and
        the partition would stay without a leader.
        """
        while self._is_one_lossy:
            await self._rest()

    async def _crash(self, member: Member) -> None:
        """Crash a broker, unless another task is starting it, which would wait for good."""
        while self._is_losing:
            await self._rest()
        await super()._crash(member)

    async def _end_together(self, members: Sequence[Member], tear: Callable[[], Tear]) -> None:
        """End brokers together, unless one of them is down or about to be."""
        if any(not member.is_up or member.died.is_set() for member in members):
            return
        self._is_losing = True
        try:
            for member in members:
                member.disk.crash_at = None
                what = tear()
                member.cut_power(what) if what is not Tear.KEPT else member.kill()
            await asyncio.sleep(self.random.uniform(0, 0.5))
            await asyncio.gather(*(self._up(member) for member in members))
        finally:
            self._is_losing = False

    async def _end_all(self) -> None:
        """End all brokers at once, as by a power cut of the whole site."""
        await self._end_together(list(self.world.members.values()), self._tear)

    async def _end_controller(self) -> None:
        """End the controller, whatever it is about to do."""
        ensemble = self.world.ensemble
        assert ensemble is not None
        node = ensemble.node(tree.CONTROLLER)
        for member in self.world.members.values():
            if node is not None and member.store is not None and member.store.session == node.owner:
                await self._end_together([member], self._tear)
                return

    async def _lose(self) -> None:
        """Let one broker lose everything unsynced, while another one has the published records."""
        member = self.world.members[self.random.randrange(BROKERS)]
        if self._is_kept_without(member.node_id) and all(map(self._is_well, self.world.members.values())):
            self._lost[member.node_id] = _epoch(self._live(), member)
            self._is_one_lossy = True
            try:
                await self._end_together([member], lambda: self.random.choice(POWER_TEARS))
            finally:
                self._is_one_lossy = False

    def _is_well(self, member: Member) -> bool:
        """Return whether the broker can keep its session."""
        is_suspended = self.world.loop.is_suspended(member.owner)
        return not is_suspended and member.store is not None and member.store.connected

    def _is_kept_without(self, node_id: int) -> bool:
        """Return whether, by the store, another broker has the records. Other brokers lose none: a killed one keeps
        its log.
        """
        assert self.world.ensemble is not None
        live = self._live()
        for member in self.world.members.values():
            if member.node_id != node_id and self._lost.get(member.node_id, -1) == _epoch(live, member):
                return False  # the store does not know of its loss yet
        return all(
            {*state.isr, *state.elr} - {node_id}
            for name in self.world.ensemble.children(tree.TOPICS)
            for state in self._states(name)
            if len(state.replicas) > 1
        )

    def _live(self) -> Mapping[int, BrokerImage]:
        assert self.world.ensemble is not None
        return tree.decode_live_brokers(self.world.ensemble.node(tree.LIVE_BROKERS))

    def _states(self, topic: str = KEPT) -> list[Any]:
        assert self.world.ensemble is not None
        node = self.world.ensemble.node(tree.chunk_path(topic, 0))
        return [] if node is None else list(tree.decode_states(node.data))

    async def _watch_high_watermarks(self) -> None:
        """Check R4 on the running brokers."""
        for number in itertools.count():
            await asyncio.sleep(0.05)
            for member in self.world.members.values():
                if member.direct is None or not member.direct.broker.is_loaded:
                    continue
                for partition in member.direct.context.replicas.partitions(KEPT):
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
                    published = self._published.setdefault(partition.index, [])
                    if not published or partition.high_watermark > published[-1][1]:
                        published.append((self.world.loop.time(), partition.high_watermark))
            if number % 2:
                self._check_safe_times()

    def _check_safe_times(self) -> None:
        """Check S1 of all later answers."""
        for member in self.world.members.values():
            if member.direct is None or not member.direct.broker.is_loaded:
                continue
            for index, published in self._published.items():
                follower = member.direct.context.replicas.follower(KEPT, index)
                if follower is None or not follower.is_open:
                    continue
                has = min(follower.high_watermark, follower.log.log_end_offset)
                at = follower.safe_time.at(has)
                if at is None:
                    continue
                self.safe_times += 1
                before = bisect_left(published, (at, -1))
                known = published[before - 1][1] if before else 0
                if known > has:
                    self.problems.append(
                        f"broker {member.node_id} has {KEPT}-{index} below {has} and says that it is as of {at:.3f},"
                        f" when {known} was published"
                    )

    def _observe(self, session: int, operations: Sequence[StoreOperation]) -> None:
        """Check R6 on each write to the store."""
        path = tree.chunk_path(KEPT, 0)
        for operation in operations:
            if isinstance(operation, CreateNode | SetNode) and operation.path == path:
                for index, state in enumerate(tree.decode_states(operation.data)):
                    for broker in set(state.isr) - set(self._joined.get(index, state.isr)):
                        self._check_joined(index, state, broker)
                    self._joined[index] = state.isr

    def _check_joined(self, index: int, state: PartitionState, broker: int) -> None:
        leader, member = (self.world.members.get(node_id) for node_id in (state.leader, broker))
        if leader is None or member is None or leader is member:
            return
        if any(each.direct is None or each.died.is_set() for each in (leader, member)):
            return
        assert leader.direct is not None
        assert member.direct is not None
        led = leader.direct.context.replicas.find_partition(KEPT, index)
        copied = member.direct.context.replicas.follower(KEPT, index)
        if led is None or not led.is_open or led.leader_epoch != state.leader_epoch:
            return
        if copied is None or not copied.is_open:
            return
        if copied.log.log_end_offset < led.high_watermark:
            self.problems.append(
                f"broker {broker} joins the ISR of {KEPT}-{index} with a log that ends at"
                f" {copied.log.log_end_offset}, below the high watermark {led.high_watermark}"
            )

    # -- clients -------------------------------------------------------------------------------------------

    async def _near_reader(self) -> None:
        """Read from the replica on this client's rack, as the leader names it; a change of the replica keeps the
        position.
        """
        name, rack = "near", _rack(self.random.randrange(BROKERS))
        positions: dict[Place, int] = {}
        near: dict[Place, int] = {}
        while not self.is_over:
            place = KEPT, self.random.randrange(self.kept_partitions)
            replica = near.get(place)
            link = await self.leader(name, place) if replica is None else self.link(name, replica)
            position = positions.get(place, 0)
            wanted = FetchPartition(
                partition=place[1],
                current_leader_epoch=self.epochs[name, place],
                fetch_offset=position,
                partition_max_bytes=1 << 20,
            )
            request = FetchRequest(
                max_wait_ms=self.random.choice((0, 100)),
                min_bytes=1,
                max_bytes=1 << 24,
                rack_id=rack,
                topics=[FetchTopic(topic=KEPT, partitions=[wanted])],
            )
            try:
                part = (await link.send(request, 11)).responses[0].partitions[0]
            except LinkLostError:
                part = None
            code = None if part is None else ErrorCode(part.error_code)
            if code is ErrorCode.NONE and part.preferred_read_replica >= 0:
                near[place] = part.preferred_read_replica
            elif code is ErrorCode.NONE:
                for offset, value in values_of(part.records or b""):
                    if offset >= position:
                        self.history.polls.append(Poll(name, place, offset, value or b""))
                        positions[place] = offset + 1
                self.did(name)
            else:
                if replica is None and code is not None and code not in PASSING | OUTDATED:
                    self.problems.append(f"the reader of {place} on {rack} was told {code.name}")
                near.pop(place, None)
                await self.try_again(name, place)
            await asyncio.sleep(self.random.uniform(0, 0.4))

    # -- checks --------------------------------------------------------------------------------------------

    async def _check(self) -> None:
        await self._check_whole()
        await super()._check()
        self._check_logs()

    async def _check_whole(self) -> None:
        ends = self.world.loop.time() + WHOLE_SECONDS
        everybody = [Reassignment(KEPT, index, range(BROKERS)) for index in range(self.kept_partitions)]
        while self.world.loop.time() < ends:
            context = self._some_context()
            if context is not None and any(_is_elsewhere(state) for state in self._states()):
                with contextlib.suppress(KafkaError, *STORE_LOST):
                    await context.replica_changes.reassign(everybody)
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
        """Check R2."""
        for index, state in enumerate(self._states()):
            leader = self.world.members[state.leader].direct
            assert leader is not None
            partition = leader.context.replicas.partition(KEPT, index)
            expected = _content(partition.log, partition.high_watermark)
            for broker in state.replicas:
                if broker == state.leader:
                    continue
                direct = self.world.members[broker].direct
                assert direct is not None
                follower = direct.context.replicas.follower(KEPT, index)
                if follower is None or not follower.is_open:
                    self.problems.append(f"broker {broker} does not follow {KEPT}-{index}")
                elif _content(follower.log, partition.high_watermark) != expected:
                    self.problems.append(f"the log of {KEPT}-{index} at broker {broker} is not its leader's")


def _rack(node_id: int) -> str:
    return f"rack-{node_id}"


def _epoch(live: Mapping[int, BrokerImage], member: Member) -> int:
    """Return the broker's epoch as the controller knows it, which may not know yet that the process is new."""
    return live[member.node_id].epoch if member.node_id in live else UNKNOWN_EPOCH


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
    """Run one simulation; `seconds` are virtual ones."""
    return simulate_cluster(seed, folder, operations=operations, mode=mode, kind=ReplicatedSimulation, **rest)
