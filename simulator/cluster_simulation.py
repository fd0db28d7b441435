"""A run of the simulator with several brokers: one cluster on one ensemble, clients, faults, and the checks.

It works like `simulation.py`, but its clients follow the brokers that Metadata and FindCoordinator name. It has more
faults than a single broker: brokers are paused for longer than their session, lose it while they run, and are cut off
from the ensemble, from each other and from clients. The ensemble loses connections during transactions and reports
changes late. Topics are created and deleted through any broker.

Beside C1 and C2 for all partitions, these rules hold:

- M1 to M5: the writes to the ensemble (`controllers.py`).
- M6: after all faults are healed, every broker is registered. All brokers name the same brokers at their addresses, the
  same topics (created and not deleted) and the same leaders.
- M7: deleting a topic that was created is never answered with an unknown topic, whichever broker is asked.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Coroutine, Sequence
from pathlib import Path
from typing import Any

from headrace.broker.extension import Extension
from headrace.protocol.errors import ErrorCode
from headrace.protocol.messages.create_topics import CreatableTopic, CreatableTopicConfig, CreateTopicsRequest
from headrace.protocol.messages.delete_topics import DeleteTopicsRequest
from headrace.protocol.messages.find_coordinator import FindCoordinatorRequest
from headrace.protocol.messages.metadata import MetadataRequest, MetadataRequestTopic
from simulator.controllers import ControllerWatch
from simulator.histories import Place
from simulator.simulation import CONFIG, KEPT, PARTITIONS, Report, Simulation, Workload
from simulator.world import PORT, Link, LinkLostError, Member, World

BROKERS = 3
SESSION_SECONDS = 6.0
STORE_LOSS = 0.005
WATCH_SECONDS_MAX = 0.2
RETRY_SECONDS = (0.05, 0.4)
PATIENCE_SECONDS = 30.0
"""Maximum time until clients get on after healing: the sessions of dead brokers end first, then others start."""
AGREED_SECONDS = 10.0
MADE = "made-"
PASSING = {
    ErrorCode.REQUEST_TIMED_OUT,
    ErrorCode.NOT_CONTROLLER,
    ErrorCode.COORDINATOR_NOT_AVAILABLE,
    ErrorCode.COORDINATOR_LOAD_IN_PROGRESS,
    ErrorCode.NOT_COORDINATOR,
    ErrorCode.BROKER_NOT_AVAILABLE,
    ErrorCode.LEADER_NOT_AVAILABLE,
    ErrorCode.INVALID_REPLICATION_FACTOR,
}


class ClusterSimulation(Simulation):
    """One run; see the module."""

    kept_partitions = PARTITIONS * BROKERS
    patience_seconds = PATIENCE_SECONDS

    def __init__(
        self, world: World, operations: int, workloads: Sequence[Workload] = (), mode: str | None = None
    ) -> None:
        super().__init__(world, operations, workloads, mode)
        assert world.ensemble is not None
        self.watch = ControllerWatch(world.ensemble)
        self._leaders: dict[tuple[str, Place], int] = {}
        self.epochs: dict[tuple[str, Place], int] = {}
        """The newest leader epoch of each partition that each client has seen."""
        self._coordinators: dict[tuple[str, str], int] = {}
        self._topics: set[str] = set()
        """Topics that were created and not deleted; each has only one creator."""
        self._doubtful: set[str] = set()
        """Topics whose creation was not answered: the request may still arrive at any time."""

    # -- brokers to ask ------------------------------------------------------------------------------------

    async def anybody(self, name: str) -> Link:
        return self.link(name, self.random.randrange(BROKERS))

    async def leader(self, name: str, place: Place) -> Link:
        while (node_id := self._leaders.get((name, place))) is None:
            topics = [MetadataRequestTopic(name=place[0])]
            request = MetadataRequest(topics=topics, allow_auto_topic_creation=False)
            try:
                answer = await (await self.anybody(name)).send(request, 9)
            except LinkLostError:
                await self._rest()
                continue
            for part in answer.topics[0].partitions:
                if part.partition_index == place[1] and part.leader_id >= 0:
                    self._leaders[name, place] = part.leader_id
                    self.epochs[name, place] = part.leader_epoch
            if (name, place) not in self._leaders:
                await self._rest()
        return self.link(name, node_id)

    async def coordinator(self, name: str, group: str) -> Link:
        while (node_id := self._coordinators.get((name, group))) is None:
            request = FindCoordinatorRequest(key=group, key_type=0)
            try:
                answer = await (await self.anybody(name)).send(request, 3)
            except LinkLostError:
                await self._rest()
                continue
            if answer.error_code:
                await self._rest()
            else:
                self._coordinators[name, group] = answer.node_id
        return self.link(name, node_id)

    def appended(self, link: Link, asked_at: float) -> None:
        self.watch.acknowledged(link.node_id, asked_at)

    async def try_again(self, name: str, about: Place | str) -> None:
        if isinstance(about, str):
            self._coordinators.pop((name, about), None)
        else:
            self._leaders.pop((name, about), None)
        await self._rest()

    async def _rest(self) -> None:
        await asyncio.sleep(self.random.uniform(*RETRY_SECONDS))

    # -- the run -------------------------------------------------------------------------------------------

    async def run(self) -> list[str]:
        world = self.world
        assert world.ensemble is not None
        config = self.broker_config()
        members = [world.add(node_id, config | self.member_config(node_id)) for node_id in range(BROKERS)]
        await asyncio.gather(*(member.start() for member in members))
        await self._create_topics()
        world.ensemble.loss, world.ensemble.watch_seconds_max = STORE_LOSS, WATCH_SECONDS_MAX
        for workload in self._workloads:
            await workload.prepare(self)
        clients = [
            *(self._producer(name) for name in ("a", "b")),
            self._reader(),
            self._group(),
            self._maker(),
            *self.others(),
            *(client() for workload in self._workloads for client in workload.clients(self)),
        ]
        tasks = [asyncio.ensure_future(client) for client in clients]
        harm = [
            *(asyncio.ensure_future(self._harm_one(member)) for member in members),
            asyncio.ensure_future(self._harm_ways()),
        ]
        await self._get_on(tasks, harm)
        self.problems += self.watch.problems
        return self.problems

    def others(self) -> Sequence[Coroutine[Any, Any, None]]:
        """Return further clients."""
        return ()

    async def _create_topics(self) -> None:
        await self._made(KEPT, self.kept_partitions)

    def broker_config(self) -> dict[str, str]:
        """Configurations of all brokers."""
        config = CONFIG | {"log.durability": "power" if self.mode == "power" else "process"}
        config["log.segment.bytes"] = str(self.random.choice((1000, 4000, 1 << 30)))
        return config

    def member_config(self, node_id: int) -> dict[str, str]:
        """Additional configurations of one broker."""
        return {}

    # -- faults --------------------------------------------------------------------------------------------

    async def _harm_one(self, member: Member) -> None:
        faults: list[Callable[[Member], Any]] = [
            self._end, self._crash, self._pause, self._lose_store, self._expire
        ]  # fmt: skip
        while not self._healing:
            await asyncio.sleep(self.random.uniform(0.2, 8.0))
            if not self._healing:
                self.faults += 1
                await self.random.choice(faults)(member)

    async def _harm_ways(self) -> None:
        """Disturb the network between clients and brokers, and wall clocks."""
        while not self._healing:
            await asyncio.sleep(self.random.uniform(0.2, 3.0))
            self.faults += 1
            member = self.world.members[self.random.randrange(BROKERS)]
            await self.random.choice((self._part, self._jump))(member)

    async def _up(self, member: Member) -> None:
        while not await member.start():
            if member.died.is_set():
                member.bury()
            else:
                await self._rest()

    async def _part(self, member: Member) -> None:
        """Cut a broker off from a client or from another broker."""
        if self.random.random() < 0.5:
            await super()._part(member)
            return
        other = self.world.members[(member.node_id + self.random.randrange(1, BROKERS)) % BROKERS]
        self.world.cut(other, member, both=self.random.random() < 0.5)
        await asyncio.sleep(self.random.choice((0.2, 1.0, 3.0, 12.0)))
        self.world.heal()

    async def _pause(self, member: Member) -> None:
        member.suspend()
        await asyncio.sleep(self.random.choice((0.3, 2.0, 1.5 * SESSION_SECONDS)))
        member.resume()

    async def _lose_store(self, member: Member) -> None:
        member.lose_store()
        await asyncio.sleep(self.random.choice((0.1, 1.0, 1.5 * SESSION_SECONDS)))
        member.find_store()

    async def _expire(self, member: Member) -> None:
        """End the session of a broker that goes on running."""
        assert self.world.ensemble is not None
        if member.store is not None and member.store.connected:
            self.world.loop.note("expire", member.owner)
            self.world.ensemble.expire(member.store)

    async def _heal(self) -> None:
        assert self.world.ensemble is not None
        self.world.ensemble.loss = 0.0
        await super()._heal()

    # -- clients -------------------------------------------------------------------------------------------

    async def _maker(self) -> None:
        number = 0
        while not self.is_over:
            if self._topics - {KEPT} and self.random.random() < 0.4:
                await self._deleted(self.random.choice(sorted(self._topics - {KEPT})))
            else:
                number += 1
                await self._made(f"{MADE}{number}", self.random.randrange(1, 4))
            self.did("maker")
            await asyncio.sleep(self.random.uniform(0, 0.8))

    async def _made(self, name: str, partitions: int, replicas: int = 1, **configs: str) -> None:
        topic = CreatableTopic(
            name=name,
            num_partitions=partitions,
            replication_factor=replicas,
            configs=[
                CreatableTopicConfig(name=key.replace("_", "."), value=value)
                for key, value in configs.items()
            ],
        )
        request, tries = CreateTopicsRequest(topics=[topic], timeout_ms=5_000), 0
        while True:
            tries += 1
            code = await self._told(request, 5)
            if code is ErrorCode.NONE or (code is ErrorCode.TOPIC_ALREADY_EXISTS and tries > 1):
                self._topics.add(name)
                return
            if code is None:
                self._doubtful.add(name)
            elif code not in PASSING:
                self.problems.append(f"who made {name} was told {code.name}")
                return
            await self._rest()

    async def _deleted(self, name: str) -> None:
        request, tries = DeleteTopicsRequest(topic_names=[name], timeout_ms=5_000), 0
        while True:
            tries += 1
            code = await self._told(request, 5)
            if code is ErrorCode.NONE or (code is ErrorCode.UNKNOWN_TOPIC_OR_PARTITION and tries > 1):
                self._topics.discard(name)
                return
            if code is not None and code not in PASSING:
                self.problems.append(f"who deleted {name} was told {code.name}")
                return
            await self._rest()

    async def _told(self, request: Any, version: int) -> ErrorCode | None:
        """Send a request; None if it was not answered."""
        try:
            answer = await (await self.anybody("maker")).send(request, version)
        except LinkLostError:
            return None
        results = answer.topics if isinstance(request, CreateTopicsRequest) else answer.responses
        return ErrorCode(results[0].error_code)

    def _compared(self, found: set[str], who: str) -> list[str]:
        expected = self._topics - {KEPT}
        problems = []
        if missing := sorted(expected - found):
            problems.append(f"{who} does not know {missing}, which were made")
        if left := sorted(found - expected - self._doubtful):
            problems.append(f"{who} knows {left}, which were deleted or never made")
        return problems

    # -- checks --------------------------------------------------------------------------------------------

    async def _check(self) -> None:
        await self._check_kept()
        await self._check_positions()
        await self._check_metadata()
        for workload in self._workloads:
            self.problems += await workload.check(self)

    async def _check_metadata(self) -> None:
        """Check M6, soon after the last change, which may have been a registration."""
        ends = self.world.loop.time() + AGREED_SECONDS
        while (problems := await self._disagreements()) and self.world.loop.time() < ends:
            await self._rest()
        self.problems += problems

    async def _disagreements(self) -> list[str]:
        said: dict[int, Any] = {}
        problems: list[str] = []
        for node_id in self.world.members:
            answer = await self.asked(self.link("checker", node_id), MetadataRequest(topics=None), 9)
            brokers = {each.node_id: (each.host, each.port) for each in answer.brokers}
            if brokers != {number: (f"broker-{number}", PORT) for number in range(BROKERS)}:
                problems.append(f"broker {node_id} names the brokers {brokers}")
            made = {each.name for each in answer.topics if each.name.startswith(MADE)}
            problems += self._compared(made, f"broker {node_id}")
            said[node_id] = {
                each.name: [(part.leader_id, part.leader_epoch, part.isr_nodes) for part in each.partitions]
                for each in answer.topics
            }
            for name, parts in said[node_id].items():
                if any(leader < 0 for leader, _, _ in parts):
                    problems.append(f"broker {node_id} says of {name} {parts}")
        for node_id, topics in said.items():
            if topics != said[0]:
                problems.append(f"broker 0 says {said[0]}, broker {node_id} {topics}")
        return problems


def simulate_cluster(
    seed: int,
    folder: Path,
    *,
    operations: int = 200,
    mode: str | None = None,
    make_extensions: Callable[[], Sequence[Extension]] = tuple,
    workloads: Callable[[], Sequence[Workload]] = tuple,
    kind: type[ClusterSimulation] = ClusterSimulation,
) -> Report:
    """Run one simulation; `seconds` are virtual ones."""
    with World(seed, folder, loss=0.02, make_extensions=make_extensions, shared=True) as world:
        simulation = kind(world, operations, workloads(), mode)
        begin = world.loop.time()
        problems = world.run(simulation.run())
        return Report(
            seed,
            simulation.mode,
            problems,
            world.loop.trace,
            world.loop.time() - begin,
            simulation.faults,
            len(simulation.history.sends),
        )
