"""Random lives of a group whose members use both protocols: it is upgraded and downgraded with them in it.

In every schedule:
- The group never contradicts itself (`check_group`, after every step).
- Each partition that members in good standing believe to own has one owner, across every change of protocol.
- A restart finds the earlier state, whichever protocol the group had.
- A committed offset reads back as the last acknowledged commit, or one whose client never heard its outcome.
- Once the disturbances stop, every partition has exactly one owner, and the group has the protocol that its members and
  the policy call for.

Classic clients are all eager, or all cooperative; a leader assigns round robin. `MUTANTS` are injected defects, each of
which must be found.
"""

import itertools
import os
import random
import struct

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from msgspec.structs import replace

from headrace.broker.groups.classic import members
from headrace.broker.groups.model import records
from headrace.broker.groups.model.classic import Phase
from headrace.broker.groups.model.events import Abandoned, JoinResult, Leaver, SyncResult
from headrace.broker.groups.model.limits import Limits
from headrace.broker.groups.modern import classic_members, conversion, sessions
from headrace.broker.groups.offsets import validation
from headrace.broker.runtime.invariants import InvariantError
from headrace.protocol.consumer_protocol import (
    read_assignment,
    read_subscription,
    write_assignment,
)
from headrace.protocol.errors import ErrorCode
from simulator.groups import CrashAt, CrashError, GroupHarness, durable

CLIENTS = 5
TOPICS = {"apples": 5, "berries": 2}
ABANDONS = {ErrorCode.UNKNOWN_MEMBER_ID, ErrorCode.ILLEGAL_GENERATION, ErrorCode.FENCED_MEMBER_EPOCH}


def subscription(owned, version):
    """Version 0 has no field for owned partitions."""

    def array(entries):
        return struct.pack(">i", len(entries)) + b"".join(entries)

    def string(text):
        return struct.pack(">h", len(text)) + text.encode()

    data = (
        struct.pack(">h", version) + array([string(name) for name in sorted(TOPICS)]) + struct.pack(">i", -1)
    )
    if version >= 1:
        topics = sorted({topic for topic, _ in owned})
        data += array(
            [
                string(topic)
                + array([struct.pack(">i", index) for other, index in sorted(owned) if other == topic])
                for topic in topics
            ]
        )
    return data


def grouped(partitions):
    topics = sorted({topic for topic, _ in partitions})
    return [(topic, sorted(index for other, index in partitions if other == topic)) for topic in topics]


class ClassicClient:
    """A consumer of the classic protocol. `owned` are the partitions that it reads."""

    protocol = "classic"

    def __init__(self, world, rng, instance_id):
        self.world, self.rng, self.instance_id = world, rng, instance_id
        self.cooperative = world.cooperative
        self.subscription_version = rng.choice([1, 3]) if self.cooperative else rng.choice([0, 1])
        self.version = rng.choice([3, 5, 9]) if instance_id is None else 9
        self.session_ms = rng.choice([6_000, 10_000])
        self.alive, self.waiting, self.member_id = True, None, ""
        self.abandon()

    def abandon(self):
        self.generation, self.owned = -1, set()
        self.everybody, self.must_join, self.must_sync = (), True, False

    @property
    def protocols(self):
        name = "cooperative-sticky" if self.cooperative else "range"
        return {name: subscription(self.owned, min(self.subscription_version, 1))}

    def behave(self):
        if self.waiting is not None:
            return
        if self.must_join:
            if not self.cooperative:
                self.owned = set()
            self.request(
                lambda: self.world.group.join(
                    self.member_id,
                    instance_id=self.instance_id,
                    protocols=self.protocols,
                    session_ms=self.session_ms,
                    rebalance_ms=15_000,
                    version=self.version,
                )
            )
        elif self.must_sync:
            self.request(
                lambda: self.world.group.sync(
                    self.member_id, self.generation, self.assignments(), instance_id=self.instance_id
                )
            )
        else:
            self.heard(self.world.group.heartbeat(self.member_id, self.generation, self.instance_id))

    def request(self, send):
        self.world.sender = self
        token = send()
        self.world.sender = None
        if token not in self.world.group.results:
            self.world.owners[token] = self
            self.waiting = token

    def assignments(self):
        """Assign as a leader: everything to all in turn; in a cooperative group nothing that another one still has."""
        if not self.everybody:
            return {}
        owned = {
            (topic, index): name
            for name, _, metadata in self.everybody
            for topic, indexes in read_subscription(metadata).owned
            for index in indexes
        }
        given = {name: set() for name, _, _ in self.everybody}
        every = [(topic, index) for topic, count in sorted(TOPICS.items()) for index in range(count)]
        for partition, name in zip(every, itertools.cycle(sorted(given)), strict=False):
            if not self.cooperative or owned.get(partition, name) == name:
                given[name].add(partition)
        return {name: write_assignment(grouped(partitions), 1) for name, partitions in given.items()}

    def answered(self, result):
        self.waiting = None
        if isinstance(result, JoinResult):
            if result.error is ErrorCode.MEMBER_ID_REQUIRED:
                self.member_id = result.member_id
            elif result.error is ErrorCode.NONE:
                assert result.protocol in self.protocols
                self.member_id, self.generation = result.member_id, result.generation
                self.everybody = result.members if result.leader == result.member_id else ()
                if result.skip_assignment:
                    self.everybody = ()
                self.must_join, self.must_sync = False, True
            else:
                self.heard(result.error)
        elif isinstance(result, SyncResult):
            if result.error is not ErrorCode.NONE:
                self.heard(result.error)
                return
            assigned = {
                (topic, index)
                for topic, indexes in read_assignment(result.assignment).partitions
                for index in indexes
            }
            # A cooperative consumer that must revoke a partition does so, and joins again.
            self.must_join = self.cooperative and bool(self.owned - assigned)
            self.owned, self.must_sync = assigned, False

    def heard(self, error):
        if error is ErrorCode.NONE:
            return
        if error is ErrorCode.REBALANCE_IN_PROGRESS or error is ErrorCode.COORDINATOR_NOT_AVAILABLE:
            self.must_join, self.must_sync = True, False
        elif error in ABANDONS:
            if error is ErrorCode.UNKNOWN_MEMBER_ID:
                self.member_id = ""
            self.abandon()
        else:
            assert error in (
                ErrorCode.FENCED_INSTANCE_ID,
                ErrorCode.GROUP_MAX_SIZE_REACHED,
                ErrorCode.INCONSISTENT_GROUP_PROTOCOL,
            ), error
            self.alive = False

    def commit(self):
        if self.waiting is None and self.owned and not self.must_join and not self.must_sync:
            self.world.commit(self, min(self.owned), self.member_id, self.generation, self.instance_id)

    def leave(self):
        if self.waiting is None and self.member_id:
            self.world.group.leave(Leaver(self.member_id, self.instance_id))
            self.alive = False

    def die(self):
        self.alive = False
        if self.waiting is not None:
            token, self.waiting = self.waiting, None
            self.world.owners.pop(token, None)
            self.world.group.send(Abandoned(token))

    def stands_in(self, group):
        if group.consumer is None:
            return self.member_id in group.members
        member = group.consumer.members.get(self.member_id)
        return member is not None and member.is_classic and self.generation == member.current.epoch


class ModernClient:
    protocol = "consumer"

    def __init__(self, world, rng, instance_id):
        self.world, self.rng, self.instance_id = world, rng, instance_id
        self.member_id = f"modern-{next(world.names)}"
        self.alive = True
        self.waiting = None
        self.abandon()

    def abandon(self):
        self.epoch, self.owned, self.wanted, self.reported, self.says_all = 0, set(), set(), None, True

    def behave(self):
        topics = self.world.group.topics
        owned = {}
        for topic, index in self.owned:
            topic_id = topics.topic(topic).topic_id
            owned[topic_id] = owned.get(topic_id, frozenset()) | {index}
        full, self.says_all = self.says_all, True  # until an answer comes
        result = self.world.group.consumer_heartbeat(
            self.member_id,
            self.epoch,
            topics=sorted(TOPICS) if full else None,
            owned=owned if full or self.owned != self.reported else None,
            instance_id=self.instance_id,
            rebalance_ms=20_000 if full else -1,
        )
        match result.error:
            case ErrorCode.NONE:
                assert result.epoch >= self.epoch
                self.epoch, self.reported, self.says_all = result.epoch, set(self.owned), False
                if result.assignment is not None:
                    self.wanted = {
                        (topics.topic_by_id(topic_id).name, index)
                        for topic_id, indexes in result.assignment.items()
                        for index in indexes
                    }
                if self.owned <= self.wanted:
                    self.owned = set(self.wanted)
                elif self.rng.random() < 0.7:
                    self.owned &= self.wanted
            case ErrorCode.FENCED_MEMBER_EPOCH | ErrorCode.UNKNOWN_MEMBER_ID:
                self.abandon()
            case ErrorCode.GROUP_ID_NOT_FOUND:
                self.abandon()
                self.alive = "not found" in result.message
                may = "upgrade is disabled" in result.message or "maximum size" in result.message
                assert self.alive or may, result
            case ErrorCode.COORDINATOR_NOT_AVAILABLE:
                pass
            case _:
                assert result.error in (
                    ErrorCode.FENCED_INSTANCE_ID,
                    ErrorCode.UNRELEASED_INSTANCE_ID,
                    ErrorCode.GROUP_MAX_SIZE_REACHED,
                ), result
                self.alive = False

    def commit(self):
        if self.owned:
            self.world.commit(self, min(self.owned), self.member_id, self.epoch, self.instance_id)

    def heard(self, error):
        if error in (ErrorCode.UNKNOWN_MEMBER_ID, ErrorCode.STALE_MEMBER_EPOCH):
            self.behave()

    def leave(self):
        if self.epoch > 0:
            epoch = -2 if self.instance_id and self.rng.random() < 0.5 else -1
            self.world.group.consumer_heartbeat(self.member_id, epoch, instance_id=self.instance_id)
        self.alive = False

    def die(self):
        self.alive = False

    def stands_in(self, group):
        member = group.consumer.members.get(self.member_id) if group.consumer is not None else None
        return member is not None and self.epoch in (member.current.epoch, member.current.previous_epoch)


class World:
    def __init__(self, seed):
        self.rng = rng = random.Random(seed)
        self.cooperative = rng.random() < 0.5
        upgrade, downgrade = rng.choice([(True, True)] * 4 + [(True, False), (False, True), (False, False)])
        self.group = GroupHarness(
            Limits(
                initial_rebalance_delay_ms=rng.choice([0, 0, 3_000]),
                allows_upgrade=upgrade,
                allows_downgrade=downgrade,
                group_size_max=rng.choice([3, 100, 100]),
                consumer_group_size_max=rng.choice([3, 100, 100]),
            )
        )
        for name, count in TOPICS.items():
            self.group.topics.put(name, count)
        self.group.on_reply = self.replied
        self.owners, self.sender = {}, None
        self.names, self.values = itertools.count(1), itertools.count(1)
        self.allowed = {}
        self.upgrades = self.downgrades = 0
        self.modern_share = rng.choice([0.1, 0.3])
        self.clients = []
        for _ in range(CLIENTS):
            self.clients.append(self.new_client())

    def new_client(self):
        kind = ModernClient if self.rng.random() < self.modern_share else ClassicClient
        taken = {client.instance_id for client in self.clients if client.alive}
        instance_id = self.rng.choice([None, None, None, "static-1"])
        return kind(self, self.rng, None if instance_id in taken else instance_id)

    def replied(self, token, result):
        owner = self.owners.pop(token, None)
        if owner is None and self.sender is not None and token == self.group.last_token:
            owner = self.sender
        if owner is not None:
            owner.answered(result)

    def commit(self, client, key, member_id, epoch, instance_id):
        value = next(self.values)
        before = self.allowed.get(key, {None})
        self.allowed[key] = before | {value}
        owns = client.stands_in(self.group.group)
        error = self.group.commit({key: value}, member_id, epoch, instance_id).error
        assert owns or error is not ErrorCode.NONE, "a commit of a former member"
        self.allowed[key] = {value} if error is ErrorCode.NONE else before
        client.heard(error)

    def step(self):
        rng = self.rng
        index = rng.randrange(CLIENTS)
        client = self.clients[index]
        action = rng.choices(list(ACTIONS), list(ACTIONS.values()))[0]
        if not client.alive and action in ("behave", "commit", "leave", "die", "switch", "fail"):
            self.clients[index] = self.new_client()
            return
        was_modern = self.group.group.consumer is not None
        had_members = not self.group.group.is_empty
        try:
            self.act(action, index, client)
        except CrashError:
            self.crash()
        if had_members and not self.group.group.is_empty:
            self.upgrades += not was_modern and self.group.group.consumer is not None
            self.downgrades += was_modern and self.group.group.consumer is None
        self.check()

    def act(self, action, index, client):
        rng, group = self.rng, self.group
        match action:
            case "behave":
                client.behave()
            case "commit":
                client.commit()
            case "leave":
                client.leave()
            case "die":
                client.die()
            case "switch":
                # The application comes back with the other protocol, with its instance id if it has one.
                client.leave() if rng.random() < 0.6 else client.die()
                other = ModernClient if isinstance(client, ClassicClient) else ClassicClient
                self.clients[index] = other(self, rng, client.instance_id)
            case "advance":
                group.advance(rng.choice([0.001, 1, 3, 7, 20, 50]))
            case "fail":
                group.append_error = ErrorCode.COORDINATOR_NOT_AVAILABLE
                try:
                    client.behave() if rng.random() < 0.7 else client.leave()
                finally:
                    group.append_error = ErrorCode.NONE
            case "crash":
                self.crash()
            case "tear":
                group.crash_at = rng.choice(list(CrashAt))

    def crash(self):
        self.sender = None
        self.owners.clear()
        for client in self.clients:
            client.waiting = None
        was_torn, before = self.group.crash_at is not None, durable(self.group.group)
        self.group.crash()
        assert was_torn or durable(self.group.group) == before, "the restart found another state"

    def check(self):
        group = self.group.group
        for (topic, index), allowed in self.allowed.items():
            committed = group.offsets.get(topic, {}).get(index)
            assert (committed.offset if committed else None) in allowed, f"{topic}-{index}"
        readers = {}
        for client in self.clients:
            if client.alive and client.stands_in(group):
                for partition in client.owned:
                    other = readers.setdefault(partition, client)
                    assert other is client, f"{partition} is read by {other.member_id} and {client.member_id}"
                if group.consumer is not None:
                    current = group.consumer.members[client.member_id].current
                    has = {
                        (self.group.topics.topic_by_id(topic_id).name, index)
                        for held in (current.assigned, current.revoking)
                        for topic_id, indexes in held.items()
                        for index in indexes
                    }
                    assert client.owned <= has, f"{client.member_id} reads what is not its own"

    def settle(self):
        """Stop all disturbances: every living client follows its protocol, and dead ones time out."""
        self.group.crash_at = None
        for _ in range(70):
            for client in self.clients:
                if client.alive:
                    client.behave()
            self.group.advance(2)
            self.check()
        group, limits = self.group.group, self.group.limits
        alive = [client for client in self.clients if client.alive]
        assert not self.owners
        if not alive:
            assert group.is_empty
            return
        if any(client.protocol == "consumer" for client in alive):
            assert group.consumer is not None
        if group.consumer is not None:
            assert set(group.consumer.members) == {client.member_id for client in alive}
            assert group.consumer.state_name == "Stable"
        else:
            assert set(group.members) == {client.member_id for client in alive}
            assert group.phase is Phase.STABLE
        owned = [partition for client in alive for partition in client.owned]
        assert len(owned) == len(set(owned)), "a partition is owned twice"
        every = {(topic, index) for topic, count in TOPICS.items() for index in range(count)}
        assert set(owned) == every, f"without an owner: {every - set(owned)}"
        self.crash()
        if limits.allows_downgrade and len(alive) <= limits.group_size_max:
            self.leave_all_modern(alive)

    def leave_all_modern(self, alive):
        """Let the last members of the consumer protocol leave; the group is a classic one then."""
        modern_ones = [client for client in alive if client.protocol == "consumer"]
        rest = [client for client in alive if client.protocol == "classic"]
        for client in modern_ones:
            self.group.consumer_heartbeat(client.member_id, -1, instance_id=client.instance_id)
            client.alive = False
            self.check()
        if modern_ones and rest:
            assert self.group.group.consumer is None
            self.downgrades += 1
            if self.rng.random() < 0.3:
                self.crash()
            for _ in range(30):
                for client in rest:
                    client.behave()
                self.group.advance(2)
                self.check()
            assert self.group.group.phase is Phase.STABLE
            assert sum(len(client.owned) for client in rest) == sum(TOPICS.values())


ACTIONS = {
    "behave": 50,
    "commit": 5,
    "leave": 2,
    "die": 1.5,
    "switch": 3,
    "advance": 7,
    "fail": 2,
    "crash": 1,
    "tear": 0.5,
}


def live(seed, steps):
    world = World(seed)
    for _ in range(steps):
        world.step()
    world.settle()
    return world


@settings(max_examples=50, deadline=None)
@given(seed=st.integers(0, 2**32), steps=st.integers(0, 120))
def test_any_schedule(seed, steps):
    live(seed, steps)


def test_schedules_change_the_protocol_both_ways():
    worlds = [live(seed, 100) for seed in range(20)]
    assert sum(world.upgrades for world in worlds) > 8
    assert sum(world.downgrades for world in worlds) > 3


def test_a_partition_is_not_assigned_before_its_owner_knows_of_the_loss():
    """A cooperative member's SyncGroup is not answered, and the group changes its protocol before it asks again."""
    live(3716, 136)


@pytest.mark.soak
def test_thousands_of_schedules():
    """HEADRACE_SCHEDULES of them (default 20,000), from seed HEADRACE_SEED on."""
    first = int(os.environ.get("HEADRACE_SEED", "0"))
    for seed in range(first, first + int(os.environ.get("HEADRACE_SCHEDULES", "20000"))):
        try:
            live(seed, 20 + seed % 180)
        except BaseException as error:
            error.add_note(f"seed {seed}")
            raise


# -- mutants -------------------------------------------------------------------------------------------------


def forgets_what_members_have_in_an_upgrade(monkeypatch):
    monkeypatch.setattr(conversion, "_held_by", lambda group, member, topics: {})


def gives_away_what_members_have_not_heard_of_losing(monkeypatch):
    original = conversion._subscription_of
    monkeypatch.setattr(conversion, "_subscription_of", lambda *args: (original(*args)[0], {}))


def believes_that_nothing_is_owned(monkeypatch):
    monkeypatch.setattr(
        classic_members, "read_subscription", lambda data: replace(read_subscription(data), owned=())
    )


def leaves_the_classic_group_on_the_journal(monkeypatch):
    monkeypatch.setattr(conversion, "DropGroup", lambda group_id: records.DropOffset(group_id, "none", 0))


def leaves_the_consumer_group_on_the_journal(monkeypatch):
    monkeypatch.setattr(conversion, "tombstones_of", lambda group_id, consumer: ())


def leaves_who_waits_in_an_upgrade(monkeypatch):
    monkeypatch.setattr(members, "dismiss_waiting", lambda step: None)


def never_tells_of_a_rebalance(monkeypatch):
    monkeypatch.setattr(classic_members, "_has_to_join", lambda state, member_id, current: False)


def waits_for_classic_members_for_ever(monkeypatch):
    monkeypatch.setattr(sessions, "watch", _without_sessions(sessions.watch))


def _without_sessions(original):
    def watch(step, consumer, member):
        original(step, consumer, member)
        if member.is_classic:
            consumer.sessions[member.member_id] = step.now.monotonic + 10_000

    return watch


def never_downgrades(monkeypatch):
    monkeypatch.setattr(conversion, "is_downgrade_due", lambda step, state: False)


def loses_the_rebalance_of_a_downgrade(monkeypatch):
    """The classic group goes on in the generation that all members know."""

    def downgrade(step, pending):
        stored, group = pending.stored, step.group
        group.consumer, group.journalled = None, stored
        group.take_members(stored, step.now)
        group.generation = stored.generation - 1

    monkeypatch.setattr(conversion, "downgrade", downgrade)


def takes_commits_of_any_generation(monkeypatch):
    monkeypatch.setattr(validation, "consumer_commit_error", lambda step, event: ErrorCode.NONE)


MUTANTS = [
    forgets_what_members_have_in_an_upgrade,
    gives_away_what_members_have_not_heard_of_losing,
    believes_that_nothing_is_owned,
    leaves_the_classic_group_on_the_journal,
    leaves_the_consumer_group_on_the_journal,
    leaves_who_waits_in_an_upgrade,
    never_tells_of_a_rebalance,
    waits_for_classic_members_for_ever,
    never_downgrades,
    loses_the_rebalance_of_a_downgrade,
    takes_commits_of_any_generation,
]

# Few schedules find these: begin with one of them.
FIRST_SEEDS = {
    forgets_what_members_have_in_an_upgrade: 73,
    gives_away_what_members_have_not_heard_of_losing: 3716,
    waits_for_classic_members_for_ever: 21,
    loses_the_rebalance_of_a_downgrade: 14,
    takes_commits_of_any_generation: 64,
}


@pytest.mark.parametrize("mutant", MUTANTS, ids=lambda mutant: mutant.__name__)
def test_each_mutant_is_found(mutant, monkeypatch):
    mutant(monkeypatch)
    first = FIRST_SEEDS.get(mutant, 0)
    for seed in range(first, first + 20):
        try:
            live(seed, 80)
        except (AssertionError, InvariantError, KeyError):
            print(f"found by seed {seed}")
            return
    pytest.fail("20 schedules found nothing wrong")
