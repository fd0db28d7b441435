"""The controller against a store that decides conflicts: in every order of events its rules hold."""

from __future__ import annotations

import os
import random
import uuid
import zlib
from collections import Counter
from collections.abc import Callable

import pytest
from msgspec.structs import replace

from headrace.broker.metadata import tree
from headrace.broker.metadata.controller import CHUNKS_PER_TRANSACTION, step
from headrace.broker.metadata.events import (
    AdoptStates,
    BrokerGone,
    BrokerLeaving,
    BrokerStarted,
    ChangeIsr,
    ChangeIsrs,
    CreateTopics,
    DeleteTopics,
    ElectLeaders,
    Event,
    Known,
    Reassign,
    ReplaceTopic,
    ReplicasLost,
)
from headrace.broker.metadata.image import (
    NO_LEADER,
    STATES_PER_CHUNK,
    BrokerImage,
    ClusterImage,
    FrozenMap,
    PartitionState,
    TopicEntry,
)
from headrace.broker.partitions.topic import TopicImage
from headrace.broker.runtime.ports import BadVersionError, CreateNode, SetNode, SystemClock
from headrace.protocol.errors import ErrorCode, KafkaError
from simulator.coordination import SimulatedEnsemble

SEEDS = range(int(os.environ.get("HEADRACE_CONTROLLER_SEEDS", "60")))
NAMES = ("a", "b", "c", "d")


class Store:
    """The nodes, and the image that they make."""

    def __init__(self) -> None:
        self.ensemble = SimulatedEnsemble(SystemClock())
        self.ensemble.transact([CreateNode(tree.CONTROLLER_EPOCH, b"1")], 0)

    def topics(self) -> dict[str, TopicEntry]:
        found = {}
        for name in self.ensemble.children(tree.TOPICS):
            node = self.ensemble.node(tree.topic_path(name))
            assert node is not None
            chunks = []
            for number in range(len(self.ensemble.children(tree.states_path(name)))):
                chunk = self.ensemble.node(tree.chunk_path(name, number))
                assert chunk is not None
                chunks.append(tree.decode_chunk(chunk))
            found[name] = TopicEntry(tree.decode_topic(node.data), node.version, tuple(chunks))
        return found

    def raise_epoch(self) -> tuple[int, int]:
        """Claim the next epoch as a new controller does."""
        node = self.ensemble.node(tree.CONTROLLER_EPOCH)
        assert node is not None
        epoch = int(node.data) + 1
        self.ensemble.transact([SetNode(tree.CONTROLLER_EPOCH, b"%d" % epoch, node.version)], 0)
        return epoch, node.version + 1


class Controller:
    """A controller that carries out its steps in a store."""

    def __init__(self, store: Store, image: ClusterImage) -> None:
        self.store = store
        self.image = image

    def carry_out(self, event: Event) -> int:
        """Carry out an event; return the number of transactions."""
        count = 0
        for transaction in step(self.image, event):
            self.store.ensemble.transact(transaction.operations, 0)
            self.image = transaction.applied_to(self.image)
            count += 1
        return count


def elected(brokers: int = 0) -> Controller:
    store = Store()
    controller = Controller(store, ClusterImage(controller_epoch=1, controller_version=0))
    for broker_id in range(brokers):
        controller.carry_out(BrokerStarted(BrokerImage(broker_id, 100 + broker_id, "x"), clean=True))
    return controller


def topic(name: str, partitions: int, **config: str) -> TopicImage:
    return TopicImage(
        name,
        uuid.uuid4(),
        partitions,
        {key.replace("_", "."): value for key, value in config.items()},
    )


def state_of(controller: Controller, name: str = "t", index: int = 0) -> PartitionState:
    return controller.image.topics[name].state(index)


class Run:
    """Random events; each change is checked against the state before it."""

    def __init__(self, seed: int) -> None:
        self.random = random.Random(seed)
        self.controller = elected()
        self.epochs = 0
        self.alive: dict[int, BrokerImage] = {}
        self.unclean = False

    def event(self) -> Event | None:
        rng, image = self.random, self.controller.image
        names = sorted(image.topics)
        kind = rng.choice(
            (
                "start",
                "start",
                "gone",
                "create",
                "create",
                "delete",
                "replace",
                "elect",
                *3 * ("isr",),
                *2 * ("move",),
                "lost",
            )
        )
        if kind == "start" and len(self.alive) < 4:
            self.epochs += 1
            broker = BrokerImage(rng.choice([b for b in range(4) if b not in self.alive]), self.epochs, "x")
            self.alive[broker.broker_id] = broker
            return BrokerStarted(broker, clean=rng.random() < 0.6)
        if kind == "gone" and self.alive:
            broker_id = rng.choice(sorted(self.alive))
            del self.alive[broker_id]
            return BrokerGone(broker_id)
        if kind == "create" and self.alive:
            config = {"min.insync.replicas": str(rng.randint(1, 3))}
            new = TopicImage(
                rng.choice(NAMES), uuid.UUID(int=rng.getrandbits(128)), rng.randint(1, 5), config
            )
            return CreateTopics((new,), rng.randint(1, 4))
        if kind == "elect":
            return ElectLeaders(unclean=rng.random() < 0.3)
        if not names:
            return None
        name = rng.choice(names)
        entry = image.topics[name]
        if kind == "delete":
            return DeleteTopics((name,))
        if kind == "replace":
            count = entry.topic.partition_count + rng.randint(0, 2)
            return ReplaceTopic(replace(entry.topic, partition_count=count), entry.version, rng.randint(1, 3))
        if kind == "move":
            index = rng.randrange(entry.topic.partition_count)
            target = tuple(rng.sample(range(4), rng.randint(1, 3)))
            return Reassign(((name, index, target if rng.random() < 0.8 else None),))
        if kind == "lost" and self.alive:
            parts = tuple((name, index) for index in range(entry.topic.partition_count))
            return ReplicasLost(rng.choice(sorted(self.alive)), parts)
        if kind == "isr":
            index = rng.randrange(entry.topic.partition_count)
            state = entry.state(index)
            members = rng.sample(state.replicas, rng.randint(1, len(state.replicas)))
            if rng.random() < 0.2:
                members = rng.sample(range(4), rng.randint(1, 3))
            if state.leader not in members and rng.random() < 0.8:
                members.append(state.leader)
            isr = tuple((b, self.alive[b].epoch if b in self.alive else 0) for b in members)
            stale = rng.random() < 0.1
            return ChangeIsr(
                name, index, state.leader, state.leader_epoch - stale, state.partition_epoch, isr
            )
        return None

    def run(self, events: int) -> None:
        carried_out = refused = 0
        for _ in range(events):
            event = self.event()
            if event is None:
                continue
            before = self.controller.image
            try:
                self.controller.carry_out(event)
                carried_out += 1
            except KafkaError:
                refused += 1
                assert self.controller.image == before
            self.check(before, event)
        assert carried_out

    def check(self, before: ClusterImage, event: Event) -> None:
        image = self.controller.image
        assert {name: image.topics[name] for name in image.topics} == self.controller.store.topics()
        assert dict(image.brokers) == self.alive
        lost = {*before.topics} - {*image.topics}
        assert lost == ({*event.names} if isinstance(event, DeleteTopics) else set()), "no topic is lost"
        for entry in image.topics.values():
            assert sum(1 for _ in entry.states()) == entry.topic.partition_count
            for state in entry.states():
                self.check_state(state)
        for name in {*before.topics} & {*image.topics}:
            old, new = before.topics[name], image.topics[name]
            if old.topic.topic_id == new.topic.topic_id:
                for was, state in zip(old.states(), new.states(), strict=False):
                    self.check_change(was, state, event)

    def check_state(self, state: PartitionState) -> None:
        assert len(set(state.replicas)) == len(state.replicas) > 0
        assert set(state.isr) <= set(state.replicas)
        assert set(state.elr) <= set(state.replicas) - set(state.isr)
        assert set(state.adding) | set(state.removing) <= set(state.replicas)
        assert not set(state.adding) & set(state.removing)
        assert set(state.removing) != set(state.replicas), "a replica remains"
        if state.leader != NO_LEADER:
            assert state.leader in state.isr
            assert state.leader in self.alive

    def check_change(self, was: PartitionState, state: PartitionState, event: Event) -> None:
        assert state.leader_epoch >= was.leader_epoch
        assert (state == was) == (state.partition_epoch == was.partition_epoch)
        assert state.partition_epoch >= was.partition_epoch
        if state.leader != was.leader:
            assert state.leader_epoch > was.leader_epoch
        if (
            state.leader not in (was.leader, NO_LEADER)
            and not (isinstance(event, ElectLeaders) and event.unclean)
            and state.replicas != (state.leader,)
        ):
            joined = {broker for broker, _ in event.isr} if isinstance(event, ChangeIsr) else set()
            assert state.leader in {*was.isr, *was.elr} | joined, (
                "who may have less than is committed never leads"
            )
        if isinstance(event, Reassign):
            had_all = set(was.isr or was.elr)
            assert had_all & {*state.isr, *state.elr} or not had_all, "a complete replica stays"
            assert set(state.isr) <= set(was.isr), "a request puts no replica in sync"
        if isinstance(event, ReplicasLost):
            assert {*state.isr, *state.elr} == {*was.isr, *was.elr} - {event.broker_id} or state == was
            assert {*state.isr, *state.elr} or not {*was.isr, *was.elr}, "a complete replica stays"
        if isinstance(event, BrokerStarted) and event.clean:
            assert {*state.isr, *state.elr} == {*was.isr, *was.elr}, "complete replicas stay complete"
        if isinstance(event, BrokerStarted) and not event.clean and len(state.replicas) > 1:
            assert event.broker.broker_id not in {*state.isr, *state.elr}


@pytest.mark.parametrize("seed", SEEDS)
def test_random_events_keep_epochs_rising_leaders_in_sync_and_topics(seed: int) -> None:
    Run(seed).run(150)


@pytest.mark.parametrize("seed", range(20))
def test_an_older_controller_decides_nothing_about_brokers(seed: int) -> None:
    run = Run(seed)
    run.run(60)
    run.controller.carry_out(BrokerStarted(BrokerImage(9, 999, "x"), clean=True))
    old, store = run.controller, run.controller.store
    if not old.image.topics:
        old.carry_out(CreateTopics((topic("t", 3),)))
    epoch, version = store.raise_epoch()
    new = Controller(store, replace(old.image, controller_epoch=epoch, controller_version=version))
    there = store.topics()
    name = sorted(there)[0]
    before = old.image
    for event in (BrokerGone(9), BrokerStarted(BrokerImage(8, 1000, "x"), clean=True)):
        with pytest.raises(BadVersionError):
            old.carry_out(event)
    assert store.topics() == there
    assert new.carry_out(BrokerGone(9)) >= 1
    assert 9 not in new.image.brokers
    # An old image decides nothing, also where any broker may decide.
    late: list[Event] = [
        CreateTopics((topic("late", 1),)),
        DeleteTopics((name,)),
        ReplaceTopic(there[name].topic, there[name].version),
    ]
    there = store.topics()
    for event in late:
        with pytest.raises(BadVersionError):
            old.carry_out(event)
    assert (old.image, store.topics()) == (before, there)
    assert new.carry_out(DeleteTopics((name,))) == 1
    assert name not in store.topics()


def test_a_change_of_another_writer_is_not_overwritten() -> None:
    one = elected(2)
    one.carry_out(CreateTopics((topic("t", 150),), 2))
    other = Controller(one.store, one.image)
    state = state_of(one, index=120)
    isr = ((state.leader, 100 + state.leader),)
    proposal = ChangeIsr("t", 120, state.leader, state.leader_epoch, state.partition_epoch, isr)
    one.carry_out(proposal)
    for event in (proposal, ElectLeaders(unclean=False), BrokerGone(1), DeleteTopics(("t",))):
        if event == ElectLeaders(unclean=False):
            assert other.carry_out(event) == 0, "every preferred replica leads"
            continue
        with pytest.raises(BadVersionError):
            other.carry_out(event)
    assert one.store.topics() == {"t": one.image.topics["t"]}


def test_leaders_of_new_partitions_go_round_the_brokers() -> None:
    controller = elected(3)
    controller.carry_out(CreateTopics((topic("t", 9), topic("u", 1), topic("v", 1)), 2))
    states = list(controller.image.topics["t"].states())
    assert sorted(state.leader for state in states) == [0, 0, 0, 1, 1, 1, 2, 2, 2]
    assert all(state.replicas[0] == state.leader for state in states)
    pairs = Counter(state.replicas for state in states)
    assert sorted(pairs.values()) in ([1, 1, 1, 2, 2, 2], [1] * 9), (
        "who follows whom changes from round to round"
    )
    assert all(state.isr == state.replicas and state.leader_epoch == 0 for state in states)
    for count in (0, 4):
        with pytest.raises(KafkaError) as refused:
            controller.carry_out(CreateTopics((topic("w", 1),), count))
        assert refused.value.code is ErrorCode.INVALID_REPLICATION_FACTOR


def test_absent_brokers_are_replicas_where_too_few_are_alive_and_never_lead_or_are_in_sync() -> None:
    controller = elected()
    for broker_id, rack in ((0, "a"), (1, "b")):
        controller.carry_out(BrokerStarted(BrokerImage(broker_id, 100, "x", rack=rack), clean=True))
    absent = tuple(BrokerImage(each, -1, "", rack=rack) for each, rack in ((2, "a"), (3, "c"), (4, "c")))
    controller.carry_out(CreateTopics((topic("t", 8), topic("two", 8)), 3, factors={"two": 2}, absent=absent))
    for state in controller.image.topics["t"].states():
        assert set(state.isr) == {0, 1} == set(state.replicas[:2])
        assert state.leader == state.replicas[0]
        assert state.replicas[2] in (3, 4), "on a rack without another broker"
    assert all(set(state.replicas) == {0, 1} for state in controller.image.topics["two"].states())
    controller.carry_out(CreateTopics((topic("all", 1),), 5, absent=absent))
    assert set(controller.image.topics["all"].state(0).replicas) == set(range(5))
    entry = controller.image.topics["t"]
    controller.carry_out(
        ReplaceTopic(replace(entry.topic, partition_count=9), entry.version, known=Known(absent))
    )
    assert len(controller.image.topics["t"].state(8).replicas) == 3
    with pytest.raises(KafkaError, match="only 5 broker") as refused:
        controller.carry_out(CreateTopics((topic("six", 1),), 6, absent=absent))
    assert refused.value.code is ErrorCode.INVALID_REPLICATION_FACTOR


def test_replicas_are_on_different_racks_as_far_as_there_are_any() -> None:
    controller = elected()
    for broker_id, rack in enumerate(("a", "a", "b", "b", "c")):
        broker = BrokerImage(broker_id, 100 + broker_id, "x", rack=rack)
        controller.carry_out(BrokerStarted(broker, clean=True))
    controller.carry_out(CreateTopics((topic("t", 20),), 3))
    controller.carry_out(CreateTopics((topic("u", 20),), 4))
    racks = "aabbc"
    states = {name: list(controller.image.topics[name].states()) for name in ("t", "u")}
    assert all({racks[broker] for broker in state.replicas} == {"a", "b", "c"} for state in states["t"])
    assert all(len(set(state.replicas)) == 4 for state in states["u"])
    assert set(Counter(state.leader for state in states["t"]).values()) == {4}


def test_absent_brokers_may_be_assigned_beside_an_alive_one() -> None:
    controller = elected(2)
    absent = (BrokerImage(2, -1, ""), BrokerImage(3, -1, ""))
    chosen = {"t": [[2, 1], [0, 3]]}
    controller.carry_out(CreateTopics((topic("t", 2),), assignments=chosen, absent=absent))
    entry = controller.image.topics["t"]
    assert [(each.replicas, each.leader, each.isr) for each in entry.states()] == [
        ((2, 1), 1, (1,)),
        ((0, 3), 0, (0,)),
    ]
    grown = ReplaceTopic(
        replace(entry.topic, partition_count=3), entry.version, assignment=[[3, 0]], known=Known(absent)
    )
    controller.carry_out(grown)
    assert controller.image.topics["t"].state(2).isr == (0,)
    controller.carry_out(Reassign((("t", 0, (3, 1)),), known=Known(absent)))
    state = state_of(controller)
    assert (state.replicas, state.adding, state.removing) == ((3, 1, 2), (3,), (2,))
    for wanted, words in (
        ([[1, 2], [2, 3]], r"for partition 1 only brokers that are not alive: \[2, 3\]"),
        ([[0, 4]], r"broker 4, but no such broker is registered\. Those that are: 0, 1, 2, 3\."),
    ):
        with pytest.raises(KafkaError, match=words) as refused:
            controller.carry_out(CreateTopics((topic("u", 1),), assignments={"u": wanted}, absent=absent))
        assert refused.value.code is ErrorCode.INVALID_REPLICA_ASSIGNMENT
    controller.carry_out(BrokerLeaving(1))
    controller.carry_out(CreateTopics((topic("u", 1),), assignments={"u": [[1, 0]]}, absent=absent))
    assert state_of(controller, "u").isr == (0,)


def test_a_leaving_broker_hands_over_leadership_and_joins_no_isr() -> None:
    controller = elected(3)
    controller.carry_out(CreateTopics((topic("t", 1, min_insync_replicas="2"),), 3))
    controller.carry_out(CreateTopics((topic("u", 3),)))
    leader, second, third = state_of(controller).replicas
    alone = [state.leader for state in controller.image.topics["u"].states()]
    controller.carry_out(BrokerLeaving(leader))
    state = state_of(controller)
    assert (state.leader, state.leader_epoch, state.isr, state.elr) == (second, 1, (second, third), ())
    assert [state.leader for state in controller.image.topics["u"].states()] == alone
    isr = ((second, 100 + second), (third, 100 + third), (leader, 100 + leader))
    with pytest.raises(KafkaError) as refused:
        controller.carry_out(ChangeIsr("t", 0, second, 1, state.partition_epoch, isr))
    assert refused.value.code is ErrorCode.INELIGIBLE_REPLICA
    controller.carry_out(ElectLeaders())
    assert state_of(controller).leader == second
    with pytest.raises(KafkaError):
        controller.carry_out(CreateTopics((topic("v", 1),), 3))
    controller.carry_out(BrokerLeaving(third))
    assert (state_of(controller).isr, state_of(controller).elr) == ((second,), (third,))
    controller.carry_out(BrokerLeaving(second))
    assert (state_of(controller).leader, state_of(controller).isr) == (second, (second,)), (
        "there is no other replica"
    )


def test_a_killed_broker_stays_in_sync_and_one_that_lost_power_does_not() -> None:
    for kept, synced, durability, stays in (
        (True, False, None, True),
        (False, False, None, False),
        (False, True, None, True),
        (False, True, "process", False),
        (False, False, "power", True),
    ):
        controller = elected(2)
        config = {} if durability is None else {"durability": durability}
        controller.carry_out(CreateTopics((topic("t", 1, **config),), 2))
        leader, other = state_of(controller).replicas
        controller.carry_out(BrokerGone(other))
        controller.carry_out(BrokerGone(leader))
        assert state_of(controller).isr == (leader,)
        again = BrokerImage(leader, 500, "x")
        controller.carry_out(BrokerStarted(again, clean=False, kept=kept, synced=synced))
        state = state_of(controller)
        assert (state.leader == leader, state.isr == (leader,)) == (stays, stays)
        assert not stays or state.leader_epoch > 1


def test_an_in_sync_replica_stays_eligible_when_an_eligible_one_leads() -> None:
    controller = elected(3)
    controller.carry_out(CreateTopics((topic("t", 1, min_insync_replicas="3"),), 3))
    last, second, third = state_of(controller).replicas
    for broker in (third, second, last):
        controller.carry_out(BrokerGone(broker))
    assert (state_of(controller).isr, state_of(controller).elr) == ((last,), (third, second))
    controller.carry_out(BrokerStarted(BrokerImage(second, 500, "x"), clean=True))
    state = state_of(controller)
    assert (state.leader, state.isr, set(state.elr)) == (second, (second,), {third, last})
    controller.carry_out(BrokerStarted(BrokerImage(second, 501, "y"), clean=False))
    assert (state_of(controller).leader, state_of(controller).isr) == (-1, ()), "it has lost something"
    controller.carry_out(BrokerStarted(BrokerImage(last, 502, "z"), clean=True))
    state = state_of(controller)
    assert (state.leader, state.isr, state.elr) == (last, (last,), (third,)), "it has everything, still"


def test_eligibility_ends_when_min_insync_replicas_is_reached() -> None:
    controller = elected(2)
    controller.carry_out(CreateTopics((topic("t", 1, min_insync_replicas="2"),), 2))
    _, other = state_of(controller).replicas
    controller.carry_out(BrokerGone(other))
    assert state_of(controller).elr == (other,)
    entry = controller.image.topics["t"]
    lower = replace(entry.topic, config={"min.insync.replicas": "1"})
    controller.carry_out(ReplaceTopic(lower, entry.version))
    assert state_of(controller).elr == ()
    assert controller.image.topics["t"].topic.config == {"min.insync.replicas": "1"}


def test_eligibility_stays_while_a_lower_min_insync_replicas_is_not_reached() -> None:
    controller = elected(3)
    controller.carry_out(CreateTopics((topic("t", 1, min_insync_replicas="3"),), 3))
    _, *others = state_of(controller).replicas
    for other in others:
        controller.carry_out(BrokerGone(other))
    assert (len(state_of(controller).isr), state_of(controller).elr) == (1, tuple(others))
    for min_isr, eligible in (("2", tuple(others)), ("1", ())):
        entry = controller.image.topics["t"]
        lower = replace(entry.topic, config={"min.insync.replicas": min_isr})
        controller.carry_out(ReplaceTopic(lower, entry.version))
        assert state_of(controller).elr == eligible


def test_topics_without_min_insync_replicas_use_the_brokers_value() -> None:
    controller = elected(2)
    controller.carry_out(CreateTopics((topic("t", 1), topic("own", 1, min_insync_replicas="1")), 2))
    _, other = state_of(controller).replicas
    controller.carry_out(BrokerGone(other, min_isr=2))
    assert state_of(controller).elr == (other,)
    assert state_of(controller, "own").elr == ()
    entry = controller.image.topics["t"]
    same = replace(entry.topic, config={"min.insync.replicas": "2"})
    controller.carry_out(ReplaceTopic(same, entry.version, known=Known(min_isr=2)))
    assert state_of(controller).elr == (other,), "it is as many as before"
    entry = controller.image.topics["t"]
    controller.carry_out(ReplaceTopic(replace(entry.topic, config={}), entry.version, known=Known(min_isr=1)))
    assert state_of(controller).elr == ()


@pytest.mark.parametrize("min_isr", [1, 2])
def test_a_leader_reports_its_min_insync_replicas(min_isr: int) -> None:
    controller = elected(2)
    controller.carry_out(CreateTopics((topic("t", 1),), 2))
    leader, other = state_of(controller).replicas
    controller.carry_out(BrokerGone(other, min_isr=2))
    state = state_of(controller)
    isr = ((leader, controller.image.brokers[leader].epoch),)
    controller.carry_out(ChangeIsr("t", 0, leader, state.leader_epoch, state.partition_epoch, isr, min_isr))
    assert state_of(controller).elr == ((other,) if min_isr == 2 else ())


def test_isrs_of_many_partitions_change_together_without_outdated_proposals() -> None:
    controller = elected(3)
    controller.carry_out(CreateTopics((topic("t", 150), topic("u", 2)), 3))

    def proposal(name: str, index: int, **other: int) -> ChangeIsr:
        state = state_of(controller, name, index)
        made = ChangeIsr(
            name,
            index,
            state.leader,
            state.leader_epoch,
            state.partition_epoch,
            ((state.leader, 100 + state.leader),),
        )
        return replace(made, **other)

    proposals = [proposal("t", index) for index in (0, 1, 120)] + [proposal("u", 1)]
    late = [proposal("t", 2, partition_epoch=9), proposal("u", 0, leader_epoch=4)]
    assert controller.carry_out(ChangeIsrs((*proposals, *late))) == 1
    changed = {
        (name, index)
        for name in ("t", "u")
        for index, state in enumerate(controller.image.topics[name].states())
        if len(state.isr) == 1
    }
    assert changed == {("t", 0), ("t", 1), ("t", 120), ("u", 1)}
    assert controller.carry_out(ChangeIsrs(tuple(late))) == 0


def test_the_last_in_sync_replica_leads_when_it_returns_and_no_other_before() -> None:
    controller = elected(3)
    controller.carry_out(CreateTopics((topic("t", 1),), 3))
    first, second, third = state_of(controller).replicas
    for broker in (first, second, third):
        controller.carry_out(BrokerGone(broker))
    assert state_of(controller).leader == NO_LEADER
    assert state_of(controller).isr == (third,)
    controller.carry_out(BrokerStarted(BrokerImage(first, 201, "x"), clean=True))
    assert state_of(controller).leader == NO_LEADER, "it may have less than what is committed"
    controller.carry_out(BrokerStarted(BrokerImage(third, 203, "x"), clean=True))
    assert state_of(controller).leader == third
    assert state_of(controller).leader_epoch == 4  # second, third, none, third


def test_the_last_replica_standing_that_lost_its_tail_does_not_lead(  # KIP-966
) -> None:
    controller = elected(2)
    controller.carry_out(CreateTopics((topic("t", 1, min_insync_replicas="2"),), 2))
    first, second = state_of(controller).replicas
    controller.carry_out(BrokerGone(first))
    assert state_of(controller).elr == (first,), "it has everything, since nothing is acknowledged without it"
    controller.carry_out(BrokerGone(second))
    controller.carry_out(BrokerStarted(BrokerImage(second, 202, "x"), clean=False))
    assert state_of(controller).leader == NO_LEADER
    controller.carry_out(BrokerStarted(BrokerImage(first, 201, "x"), clean=True))
    assert state_of(controller).leader == first
    assert state_of(controller).isr == (first,)


def test_without_eligible_replicas_only_a_request_elects_a_leader() -> None:
    controller = elected(2)
    controller.carry_out(CreateTopics((topic("t", 1),), 2))
    first, second = state_of(controller).replicas
    controller.carry_out(BrokerGone(first))
    controller.carry_out(BrokerGone(second))
    controller.carry_out(BrokerStarted(BrokerImage(first, 201, "x"), clean=True))
    assert controller.carry_out(ElectLeaders()) == 0
    controller.carry_out(ElectLeaders((("t", 0),), unclean=True))
    assert (state_of(controller).leader, state_of(controller).isr) == (first, (first,))


def test_a_single_replica_leads_again_under_a_later_epoch_only_after_a_stop_that_was_not_clean() -> None:
    controller = elected(1)
    controller.carry_out(CreateTopics((topic("t", 250),)))
    for epoch, clean in enumerate((False, False), 1):
        assert controller.carry_out(BrokerStarted(BrokerImage(0, 300 + epoch, "x"), clean)) == 1
        assert {state.leader_epoch for state in controller.image.topics["t"].states()} == {epoch}
    before = controller.image.topics
    assert controller.carry_out(BrokerStarted(BrokerImage(0, 400, "x"), clean=True)) == 1
    assert controller.image.topics == before


@pytest.mark.parametrize(
    ("change", "code"),
    [
        (lambda p: replace(p, leader_epoch=p.leader_epoch - 1), ErrorCode.FENCED_LEADER_EPOCH),
        (lambda p: replace(p, leader_epoch=p.leader_epoch + 1), ErrorCode.NOT_CONTROLLER),
        (lambda p: replace(p, leader=(p.leader + 1) % 3), ErrorCode.INVALID_REQUEST),
        (lambda p: replace(p, partition_epoch=p.partition_epoch + 1), ErrorCode.INVALID_UPDATE_VERSION),
        (lambda p: replace(p, isr=p.isr[1:]), ErrorCode.INVALID_REQUEST),
        (lambda p: replace(p, isr=(*p.isr, (7, 107))), ErrorCode.INVALID_REQUEST),
        (lambda p: replace(p, isr=(*p.isr, p.isr[0])), ErrorCode.INVALID_REQUEST),
        (lambda p: replace(p, isr=((p.leader, 5), *p.isr[1:])), ErrorCode.INELIGIBLE_REPLICA),
        (lambda p: replace(p, topic="none"), ErrorCode.UNKNOWN_TOPIC_OR_PARTITION),
        (lambda p: replace(p, index=1), ErrorCode.UNKNOWN_TOPIC_OR_PARTITION),
    ],
    ids=["old epoch", "later epoch", "not the leader", "old state", "without the leader", "no replica", "twice",
         "another incarnation", "no topic", "no partition"],
)  # fmt: skip
def test_an_isr_proposal_needs_the_leader_and_current_member_epochs(
    change: Callable[[ChangeIsr], ChangeIsr], code: ErrorCode
) -> None:
    controller = elected(3)
    controller.carry_out(CreateTopics((topic("t", 1),), 3))
    controller.carry_out(ElectLeaders())
    controller.carry_out(BrokerGone(state_of(controller).leader))
    state = state_of(controller)
    isr = tuple((broker, 100 + broker) for broker in (state.leader, *(set(state.isr) - {state.leader})))
    proposal = ChangeIsr("t", 0, state.leader, state.leader_epoch, state.partition_epoch, isr)
    with pytest.raises(KafkaError) as refused:
        controller.carry_out(change(proposal))
    assert refused.value.code is code
    assert state_of(controller) == state
    controller.carry_out(replace(proposal, isr=isr[:1]))
    assert state_of(controller).isr == (state.leader,)


def test_a_replica_that_left_a_sufficient_isr_is_not_eligible() -> None:
    controller = elected(3)
    controller.carry_out(CreateTopics((topic("t", 1, min_insync_replicas="2"),), 3))

    def propose(*members: int) -> PartitionState:
        state = state_of(controller)
        isr = tuple((broker, 100 + broker) for broker in members)
        controller.carry_out(ChangeIsr("t", 0, state.leader, state.leader_epoch, state.partition_epoch, isr))
        return state_of(controller)

    leader, second, third = state_of(controller).replicas
    assert propose(leader, second).elr == ()
    assert propose(leader).elr == (second,)
    assert propose(leader, third).elr == (), "the second may miss later acknowledgements"


def test_a_topic_that_was_made_before_the_store_was_lost_is_not_made_twice() -> None:
    controller = elected(1)
    event = CreateTopics((topic("t", 2), topic("u", 1)))
    controller.carry_out(event)
    assert controller.carry_out(event) == 0
    with pytest.raises(KafkaError) as refused:
        controller.carry_out(CreateTopics((topic("t", 2),)))
    assert refused.value.code is ErrorCode.TOPIC_ALREADY_EXISTS


def test_a_topic_grows_over_chunks_and_goes_with_all_of_them() -> None:
    controller = elected(1)
    controller.carry_out(CreateTopics((topic("t", 1),)))
    for total in (99, 100, 101, 350):
        entry = controller.image.topics["t"]
        assert (
            controller.carry_out(ReplaceTopic(replace(entry.topic, partition_count=total), entry.version))
            == 1
        )
        assert controller.store.topics() == {"t": controller.image.topics["t"]}
        assert len(controller.image.topics["t"].chunks) == -(-total // STATES_PER_CHUNK)
    controller.carry_out(DeleteTopics(("t",)))
    assert controller.store.topics() == {}
    assert len(controller.store.ensemble.children(tree.DELETED)) == 1


def test_many_states_change_in_transactions_that_the_store_takes_and_a_cut_off_step_is_finished() -> None:
    controller = elected(1)
    count = 2 * CHUNKS_PER_TRANSACTION * STATES_PER_CHUNK + 1
    controller.carry_out(CreateTopics((topic("t", count),)))
    started = BrokerStarted(BrokerImage(0, 500, "x"), clean=False)
    transactions = step(controller.image, started)
    first = next(transactions)
    assert len(first.operations) == CHUNKS_PER_TRANSACTION + 2, (
        "the controller's epoch, and the journal of changes"
    )
    controller.store.ensemble.transact(first.operations, 0)
    controller.image = first.applied_to(controller.image)
    assert controller.image.brokers[0].epoch == 100, "it counts when all of it is done"
    assert controller.carry_out(started) == 3, "those that have changed already change again: later is later"
    assert controller.store.topics() == {"t": controller.image.topics["t"]}
    assert {state.leader_epoch for state in controller.image.topics["t"].states()} == {1, 2}


def test_topics_of_the_layout_before_get_the_states_that_they_had() -> None:
    store = Store()
    old = [topic("a", 3), topic("b", 120)]
    for each in old:
        store.ensemble.transact([CreateNode(tree.topic_path(each.name), tree.encode_topic(each))], 0)
    image = ClusterImage(
        controller_epoch=1, controller_version=0, topics=FrozenMap[str, TopicEntry]().changed(store.topics())
    )
    controller = Controller(store, image)
    controller.carry_out(AdoptStates(3, 7))
    assert store.topics() == {name: controller.image.topics[name] for name in ("a", "b")}
    for each in old:
        states = list(controller.image.topics[each.name].states())
        assert states == [PartitionState((3,), 3, 7, (3,))] * each.partition_count
    assert controller.carry_out(AdoptStates(3, 7)) == 0


def test_a_broker_that_is_not_the_controller_decides_nothing() -> None:
    with pytest.raises(KafkaError) as refused:
        list(step(ClusterImage(), BrokerGone(1)))
    assert refused.value.code is ErrorCode.NOT_CONTROLLER


def test_a_frozen_map_is_what_a_dict_is_and_stays_what_it_was() -> None:
    rng, model, frozen = random.Random(1), dict[str, int](), FrozenMap[str, int]()
    for _ in range(300):
        keys = [f"k{rng.randrange(400)}" for _ in range(rng.randint(1, 20))]
        changes = {key: None if rng.random() < 0.3 else rng.randrange(9) for key in keys}
        before, kept = frozen, dict(model)
        frozen = frozen.changed(changes)
        for key, value in changes.items():
            model.pop(key, None) if value is None else model.update({key: value})
        assert {key: frozen[key] for key in frozen} == model
        assert (len(frozen), sorted(frozen.values())) == (len(model), sorted(model.values()))
        assert {key: before.get(key) for key in kept} == kept
        assert len(before) == len(kept)
        assert all((key in frozen) == (key in model) for key in keys)


def test_a_lost_replica_leaves_the_isr_unless_it_is_the_last() -> None:
    controller = elected(3)
    controller.carry_out(CreateTopics((topic("t", 3),), 3))
    before = [state_of(controller, "t", index) for index in range(3)]
    assert controller.carry_out(ReplicasLost(1, (("t", 0), ("t", 1), ("t", 7), ("gone", 0)))) == 1
    for index in range(2):
        state = state_of(controller, "t", index)
        assert 1 not in state.isr
        assert state.leader in state.isr
        assert state.leader_epoch == before[index].leader_epoch + (before[index].leader == 1)
        assert state.partition_epoch > before[index].partition_epoch
    assert state_of(controller, "t", 2) == before[2]
    controller.carry_out(ReplicasLost(2, (("t", 0),)))
    alone = state_of(controller)
    assert (alone.leader, alone.isr) == (0, (0,))
    assert controller.carry_out(ReplicasLost(0, (("t", 0),))) == 0
    assert state_of(controller) == alone, "the last one keeps what it has"


def test_an_eligible_replica_replaces_a_leader_that_lost_its_log() -> None:
    controller = elected(2)
    controller.carry_out(CreateTopics((topic("t", 1, min_insync_replicas="2"),), 2))
    controller.carry_out(BrokerGone(1))
    assert (state_of(controller).leader, state_of(controller).elr) == (0, (1,))
    controller.carry_out(ReplicasLost(0, (("t", 0),)))
    assert (state_of(controller).leader, state_of(controller).isr) == (NO_LEADER, ())
    controller.carry_out(BrokerStarted(BrokerImage(1, 300, "x"), clean=True))
    assert (state_of(controller).leader, state_of(controller).isr) == (1, (1,))


def test_the_order_of_topics_is_the_same_in_every_process() -> None:
    names = ["a", "b", "c", "d"]
    frozen = FrozenMap[str, int]().changed(dict.fromkeys(names, 0))
    assert list(frozen) == sorted(names, key=lambda name: zlib.crc32(name.encode()) % 256)
