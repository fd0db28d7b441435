"""What becomes of topics and partitions, decided. Pure: `step(image, event)` gives transactions of the coordination
store, and what they make of the image; it waits for nothing and keeps nothing.

Topics are made, altered and deleted by whichever broker is asked to, and so are leaders elected by request; the ISR is
changed by the leader. What follows from brokers that come and go is decided by one of them, the controller, which alone
looks at who is registered.

Invariants
- Every transaction adds to the journal of changes, at the version that the image was read at, and names the version of
  every node it changes: nobody writes by an image that is not the newest. Whoever is refused reads on, and steps again.
- What only the controller decides checks its epoch too: of two controllers the older one writes nothing.
- Transactions of one step touch different topics or chunks: each is whole by itself, and a step that was cut off
  between two of them goes on from the image as it is then. A topic is created, grown or deleted by one of them.
- A partition's leader epoch goes up with each change of its leader and with each return of a leader that may have lost
  records (after a stop that was not clean), by which its readers find out (KIP-320). It never goes down.
- New partitions are led, and held in sync, by brokers that are alive; who is registered and absent may be a replica
  too, as in Kafka, so that topics with as many replicas as there are brokers are made while one of them is missing.
- A leader is in the ISR and alive; the ISR is a part of the replicas. The last member of an ISR stays in it when it
  dies, for it has everything; it leaves it when it comes back from a stop in which it may have lost records (not clean,
  and the machine has started anew), unless there is no other replica. What has left an ISR that is smaller than
  `min.insync.replicas` stays eligible (KIP-966), until that is lowered. Where a topic does not set that, it is what the
  broker that decides has for all; a leader that goes by less shows and acknowledges nothing before nobody is eligible
  any more (`broker.replication.progress`), so that brokers may hear of another number one after the other.
- Of an ISR that its leader proposes, each member is alive under the broker epoch that is named (KIP-903), and does not
  leave.
- A partition that is being moved (`reassignment`) is where it is to be with the change of the ISR that
  makes it possible.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from typing import Final

import msgspec
from msgspec.structs import replace

from headrace.broker.metadata import reassignment, tree
from headrace.broker.metadata.image import (
    BROKERS,
    NO_LEADER,
    STATES_PER_CHUNK,
    BrokerImage,
    Changes,
    ClusterImage,
    PartitionState,
    StatesChunk,
    TopicEntry,
    chunks_of,
)
from headrace.broker.metadata.topic_names import (
    already_exists,
    check_growth,
    unknown_partition,
    unknown_topic,
)
from headrace.broker.partitions.topic import TopicImage
from headrace.broker.runtime.ports import CheckNode, CreateNode, SetNode, StoreOperation
from headrace.protocol.errors import ErrorCode, KafkaError

OPERATIONS_PER_TRANSACTION: Final = 800
CHUNKS_PER_TRANSACTION: Final = 100
"""Of states that change: ZooKeeper takes 20,000 states in 0.3 to 0.6 s so."""
TRANSACTION_BYTES: Final = 400_000
"""About; what belongs together is not parted. ZooKeeper takes 1 MB."""


Assignment = Sequence[Sequence[int]]
"""Replicas of partitions in a row, each list begins with the preferred leader."""


class Known(msgspec.Struct, frozen=True):
    """Facts beside the image that a decision about replicas goes by."""

    absent: tuple[BrokerImage, ...] = ()
    """Brokers that are to come back, and may be replicas meanwhile (`absent_of`)."""
    min_isr: int = 1
    """`min.insync.replicas` of topics that do not set it."""


NOTHING_KNOWN: Final = Known()


class CreateTopics(msgspec.Struct, frozen=True):
    """Topics that are checked; those that are there already under the same id are left out."""

    topics: tuple[TopicImage, ...]
    replication_factor: int = 1
    assignments: Mapping[str, Assignment] = {}
    """By topic: who is to hold each partition, where somebody has chosen that."""
    factors: Mapping[str, int] = {}
    """By topic: how many replicas, where that is not `replication_factor`."""
    absent: tuple[BrokerImage, ...] = ()
    """Who is to come back: replicas are theirs too where there are fewer others, or somebody has chosen them
    (`absent_of`).
    """


class DeleteTopic(msgspec.Struct, frozen=True):
    name: str


class DeleteTopics(msgspec.Struct, frozen=True):
    """Several; those that are not there any more are left out."""

    names: tuple[str, ...]


class ReplaceTopic(msgspec.Struct, frozen=True):
    """The topic's new configuration and its number of partitions, which may be higher. `version` is that of the entry
    which they were made from. Partitions that are added have as many replicas as the first one, or
    `replication_factor`.
    """

    topic: TopicImage
    version: int
    replication_factor: int | None = None
    assignment: Assignment | None = None
    """Of the partitions that are added."""
    known: Known = NOTHING_KNOWN


class AdoptStates(msgspec.Struct, frozen=True):
    """Topics of the layout without states: the broker has and leads all of them, with this epoch."""

    broker_id: int
    leader_epoch: int


class BrokerStarted(msgspec.Struct, frozen=True):
    """It has registered, and counts from here on. `clean`: its last stop was, so that its logs have all they had;
    `kept`: they have it although the stop was not clean, because only the process has ended; `synced`: of topics that
    do not say how durable they are it had acknowledged only what was on disk.
    """

    broker: BrokerImage
    clean: bool
    kept: bool = False
    synced: bool = False


class BrokerLeaving(msgspec.Struct, frozen=True):
    """It is about to stop: others lead what they can, and it is in no ISR that has another member."""

    broker_id: int
    min_isr: int = 1
    """As in `Known`."""


class BrokerGone(msgspec.Struct, frozen=True):
    broker_id: int
    min_isr: int = 1
    """As in `Known`."""


class ElectLeaders(msgspec.Struct, frozen=True):
    """Of these partitions, None for all: the preferred leader where it may lead; `unclean`, whoever is alive where
    nobody else may.
    """

    partitions: tuple[tuple[str, int], ...] | None = None
    unclean: bool = False


class Reassign(msgspec.Struct, frozen=True):
    """Partitions that are to be held by these brokers, None: by those that held them before they were moved. Those that
    cannot be moved so are left out (`reassigned`).
    """

    targets: tuple[tuple[str, int, tuple[int, ...] | None], ...]
    factor_may_change: bool = True
    known: Known = NOTHING_KNOWN


class ReplicasLost(msgspec.Struct, frozen=True):
    """A broker that is alive says that it has these replicas no longer, as (topic, partition): their logs are damaged,
    or their disk has failed. They are in no ISR and not eligible any more, and others lead what it led. Nothing changes
    where nobody else has everything.
    """

    broker_id: int
    partitions: tuple[tuple[str, int], ...]


class ChangeIsr(msgspec.Struct, frozen=True):
    """A leader's proposal (as in AlterPartition, KIP-497). `isr`: (broker, its epoch). `min_isr`: what the leader goes
    by.
    """

    topic: str
    index: int
    leader: int
    leader_epoch: int
    partition_epoch: int
    isr: tuple[tuple[int, int], ...]
    min_isr: int | None = None


class ChangeIsrs(msgspec.Struct, frozen=True):
    """Proposals for partitions, each for another one. Those that cannot be carried out (any more) are left out."""

    proposals: tuple[ChangeIsr, ...]


Event = (
    CreateTopics
    | DeleteTopic
    | DeleteTopics
    | ReplaceTopic
    | AdoptStates
    | BrokerStarted
    | BrokerGone
    | BrokerLeaving
    | ElectLeaders
    | Reassign
    | ReplicasLost
    | ChangeIsr
    | ChangeIsrs
)

ANYBODYS: Final = (
    CreateTopics,
    DeleteTopic,
    DeleteTopics,
    ReplaceTopic,
    ElectLeaders,
    Reassign,
    ReplicasLost,
    ChangeIsr,
    ChangeIsrs,
)
"""What a broker decides that is not the controller, by an image that is the newest."""


class Transaction(msgspec.Struct, frozen=True):
    """What is written, and what the image is then: topics (None: no longer there), and brokers if they change."""

    operations: tuple[StoreOperation, ...]
    topics: Mapping[str, TopicEntry | None]
    changes: Changes
    brokers: Mapping[int, BrokerImage] | None = None

    def applied_to(self, image: ClusterImage) -> ClusterImage:
        image = replace(image.with_topics(self.topics), changes=self.changes)
        if self.brokers is None:
            return image
        return replace(image, brokers=self.brokers, brokers_version=image.brokers_version + 1)


def step(image: ClusterImage, event: Event) -> Iterator[Transaction]:
    """What `event` changes, in transactions for the store, one after the other, each worked out when it is asked for.
    None if there is nothing to change.

    Raises KafkaError, before the first one.
    """
    guards: list[StoreOperation] = []
    if not isinstance(event, ANYBODYS):
        if image.controller_epoch < 0:
            raise KafkaError(ErrorCode.NOT_CONTROLLER, "this broker is not the controller")
        guards = [CheckNode(tree.CONTROLLER_EPOCH, image.controller_version)]
    brokers = None
    if isinstance(event, BrokerStarted):
        brokers = image.with_broker(event.broker).brokers
    elif isinstance(event, BrokerGone):
        brokers = image.without_broker(event.broker_id).brokers
    elif isinstance(event, BrokerLeaving):
        brokers = image.with_broker(replace(image.brokers[event.broker_id], leaving=True)).brokers
    return iter(_packed(image, _changes(image, event), guards, brokers))


class _Change(msgspec.Struct, frozen=True):
    """What belongs together: all that happens to a topic, or to one chunk of it."""

    name: str
    operations: list[StoreOperation]
    entry: TopicEntry | None = None
    chunk: int = -1  # of which only this is changed
    states: tuple[PartitionState, ...] = ()


def _changes(image: ClusterImage, event: Event) -> Iterable[_Change]:
    """Checked when this returns; how the nodes are written is worked out one change after the other."""
    match event:
        case CreateTopics():
            return _create(image, event)
        case DeleteTopic(name):
            return [_Change(name, tree.deletion(_entry(image, name)))]
        case DeleteTopics(names):
            topics = image.topics
            return (_Change(name, tree.deletion(topics[name])) for name in names if name in topics)
        case ReplaceTopic():
            return _replace(image, event)
        case AdoptStates(broker_id, leader_epoch):
            state = PartitionState((broker_id,), broker_id, leader_epoch, (broker_id,))
            return (
                _with_states(replace(entry, chunks=chunks_of([state] * entry.topic.partition_count)))
                for entry in image.topics.values()
                if not entry.chunks
            )
        case BrokerStarted(broker, clean, kept, synced):
            alive = {*_staying(image), broker.broker_id}
            return _restated(
                image,
                image.topics.values(),
                lambda topic, _, state: _started(
                    state, broker.broker_id, clean, kept or _is_synced(topic, synced), alive
                ),
            )
        case BrokerLeaving(broker_id, min_isr):
            alive = _staying(image) - {broker_id}
            return _restated(
                image,
                image.topics.values(),
                lambda topic, _, state: _leaving(state, broker_id, alive, _min_isr(topic, min_isr)),
            )
        case BrokerGone(broker_id, min_isr):
            alive = _staying(image) - {broker_id}
            return _restated(
                image,
                image.topics.values(),
                lambda topic, _, state: _gone(state, broker_id, alive, _min_isr(topic, min_isr)),
            )
        case ElectLeaders():
            return _elect(image, event)
        case Reassign(targets, factor_may_change, known):
            moved = []
            for name, index, target in targets:
                try:
                    state = reassigned(
                        image,
                        name,
                        index,
                        target,
                        factor_may_change=factor_may_change,
                        known=known,
                    )
                except KafkaError:
                    continue
                moved.append((name, index, state))
            return _changed_states(image, moved)
        case ReplicasLost(broker_id, partitions):
            alive = _staying(image) - {broker_id}
            lost = []
            for name, index in partitions:
                entry = image.topics.get(name)
                if entry is not None and index < entry.topic.partition_count:
                    lost.append((name, index, _lost(entry.state(index), broker_id, alive)))
            return _changed_states(image, lost)
        case ChangeIsr():
            return _changed_states(image, [(event.topic, event.index, _changed_isr(image, event))])
        case ChangeIsrs(proposals):
            changed = []
            for proposal in proposals:
                try:
                    changed.append((proposal.topic, proposal.index, _changed_isr(image, proposal)))
                except KafkaError:
                    continue
            return _changed_states(image, changed)


def _entry(image: ClusterImage, name: str) -> TopicEntry:
    entry = image.topics.get(name)
    if entry is None:
        raise unknown_topic(name)
    return entry


# -- topics ------------------------------------------------------------------------------------------------


def _create(image: ClusterImage, event: CreateTopics) -> Iterator[_Change]:
    new = []
    for topic in event.topics:
        there = image.topics.get(topic.name)
        if there is None:
            new.append(topic)
        elif there.topic.topic_id != topic.topic_id:
            raise already_exists(topic.name)
    for topic in new:
        if topic.name not in event.assignments:
            factor = event.factors.get(topic.name, event.replication_factor)
            check_replication_factor(image, factor, event.absent)

    def created(topic: TopicImage) -> _Change:
        chosen = event.assignments.get(topic.name)
        if chosen is not None:
            states = assigned(image, chosen, event.absent)
        else:
            factor = event.factors.get(topic.name, event.replication_factor)
            states = _placed(image, topic, range(topic.partition_count), factor, event.absent)
        entry = TopicEntry(topic, 0, chunks_of(states))
        return _Change(topic.name, tree.creation(entry), entry)

    return map(created, new)


def _replace(image: ClusterImage, event: ReplaceTopic) -> list[_Change]:
    topic, name = event.topic, event.topic.name
    old = _entry(image, name)
    operations: list[StoreOperation] = [
        SetNode(tree.topic_path(name), tree.encode_topic(topic), event.version)
    ]
    new = replace(old, topic=topic, version=event.version + 1)
    before, total = old.topic.partition_count, topic.partition_count
    added: list[PartitionState] = []
    if total != before:
        check_growth(old.topic, total)
        if event.assignment is not None:
            added = assigned(image, event.assignment, event.known.absent)
        else:
            factor = event.replication_factor
            if factor is None:
                factor = len(old.state(0).replicas) - len(old.state(0).removing)
            added = _placed(image, topic, range(before, total), factor, event.known.absent)
    min_isr, alive = _min_isr(topic, event.known.min_isr), _staying(image)
    is_lowered = min_isr < _min_isr(old.topic, event.known.min_isr)
    if added or is_lowered:
        # Where the lower number is enough something may be acknowledged that those who are eligible have not, and a
        # move may end.
        kept = (
            _moved_on(_without_eligible(state, min_isr), alive, min_isr) if is_lowered else state
            for state in old.states()
        )
        states = (*kept, *added)
        chunks = list(old.chunks)
        for number in range(-(-total // STATES_PER_CHUNK)):
            some = states[number * STATES_PER_CHUNK : (number + 1) * STATES_PER_CHUNK]
            path, data = tree.chunk_path(name, number), tree.encode_states(some)
            if number == len(chunks):
                operations.append(CreateNode(path, data))
                chunks.append(StatesChunk(0, some))
            elif some != chunks[number].states:
                version = chunks[number].version
                operations.append(SetNode(path, data, version))
                chunks[number] = StatesChunk(version + 1, some)
        new = replace(new, chunks=tuple(chunks))
    return [_Change(name, operations, new)]


def _without_eligible(state: PartitionState, min_isr: int) -> PartitionState:
    """Unless fewer are in sync than have to be: nothing was acknowledged since the others left."""
    if not state.elr or len(state.isr) < min_isr:
        return state
    return replace(state, elr=(), partition_epoch=state.partition_epoch + 1)


def _with_states(entry: TopicEntry) -> _Change:
    name = entry.topic.name
    guard = CheckNode(tree.topic_path(name), entry.version)
    return _Change(name, [guard, *tree.states_creation(entry)], entry)


def _placed(
    image: ClusterImage,
    topic: TopicImage,
    indexes: range,
    replication_factor: int,
    absent: Sequence[BrokerImage],
) -> list[PartitionState]:
    """States of new partitions: leaders go round the brokers that are alive, on different racks one after the other;
    followers are others after them, another one each round, on other racks where there are any. Where a topic begins is
    told by its id, so that many small ones are spread too. Where more replicas are wanted than brokers are alive, some
    of the absent are the last ones, and not in sync: those on racks on which nobody is alive before others.
    """
    check_replication_factor(image, replication_factor, absent)
    brokers = _by_racks(image)
    count, racks = len(brokers), {each: image.brokers[each].rack for each in brokers}
    alive_count = min(replication_factor, count)
    live_racks = set(racks.values())
    first = topic.topic_id.int % count
    kinds: dict[tuple[int, int], PartitionState] = {}
    states = []
    for index in indexes:
        place, shift = (first + index) % count, (index // count) % max(count - 1, 1)
        state = kinds.get((place, shift))
        if state is None:
            others = [
                brokers[(place + 1 + (shift + step) % (count - 1)) % count] for step in range(count - 1)
            ]
            isr = (brokers[place], *_on_other_racks(brokers[place], others, racks, alive_count - 1))
            turned = [absent[(place + step) % len(absent)] for step in range(len(absent))]
            turned.sort(key=lambda broker: broker.rack in live_racks)
            later = [broker.broker_id for broker in turned[: replication_factor - alive_count]]
            state = kinds[place, shift] = PartitionState((*isr, *later), isr[0], 0, isr)
        states.append(state)
    return states


def _by_racks(image: ClusterImage) -> list[int]:
    """Those that may be given partitions, of one rack after the other in turn."""
    of_rack: dict[str, list[int]] = {}
    for broker in sorted(_staying(image)):
        of_rack.setdefault(image.brokers[broker].rack or "", []).append(broker)
    turns = max(map(len, of_rack.values()))
    return [
        of_rack[rack][turn] for turn in range(turns) for rack in sorted(of_rack) if turn < len(of_rack[rack])
    ]


def _on_other_racks(
    leader: int, others: Sequence[int], racks: Mapping[int, str | None], count: int
) -> list[int]:
    """The first `count` of `others`, those first that are on a rack of their own."""
    chosen: list[int] = []
    used = {racks[leader]}
    for broker in others:
        if len(chosen) < count and racks[broker] is not None and racks[broker] not in used:
            used.add(racks[broker])
            chosen.append(broker)
    chosen += [broker for broker in others if broker not in chosen][: count - len(chosen)]
    return chosen


def _staying(image: ClusterImage) -> set[int]:
    """The brokers that are alive and do not leave."""
    return {broker.broker_id for broker in image.brokers.values() if not broker.leaving}


def _registered(image: ClusterImage, absent: Iterable[BrokerImage]) -> set[int]:
    """Who may be chosen."""
    return {*image.brokers, *(broker.broker_id for broker in absent)}


def assigned(
    image: ClusterImage, assignment: Assignment, absent: Sequence[BrokerImage] = ()
) -> list[PartitionState]:
    """States of new partitions that somebody has chosen replicas for, led by the first that is alive. Raises
    KafkaError(INVALID_REPLICA_ASSIGNMENT).
    """
    states: list[PartitionState] = []
    staying, registered = _staying(image), _registered(image, absent)
    for replicas in assignment:
        missing = next((broker for broker in replicas if broker not in registered), None)
        isr = tuple(broker for broker in replicas if broker in staying)
        if not replicas:
            problem = "includes an empty replica list."
        elif len(set(replicas)) != len(replicas):
            twice = next(broker for broker in replicas if list(replicas).count(broker) > 1)
            problem = f"includes the broker {twice} more than once."
        elif len(replicas) != len(assignment[0]):
            problem = "gives partitions different numbers of replicas."
        elif missing is not None:
            problem = reassignment.not_registered(missing, registered)
        elif not isr:
            problem = f"names for partition {len(states)} only brokers that are not alive: {list(replicas)}."
        else:
            states.append(PartitionState(tuple(replicas), isr[0], 0, isr))
            continue
        raise KafkaError(ErrorCode.INVALID_REPLICA_ASSIGNMENT, f"The manual partition assignment {problem}")
    return states


def absent_of(image: ClusterImage, known: Iterable[BrokerImage]) -> tuple[BrokerImage, ...]:
    """Of the brokers that are known those that are not alive, or are about to stop."""
    staying = _staying(image)
    return tuple(broker for broker in known if broker.broker_id not in staying)


def check_replication_factor(
    image: ClusterImage, replication_factor: int, absent: Sequence[BrokerImage] = ()
) -> None:
    """Raises KafkaError(INVALID_REPLICATION_FACTOR) if there are not so many brokers, alive or absent."""
    alive = len(_staying(image))
    if alive == 0 or not 0 < replication_factor <= alive + len(absent):
        raise KafkaError(
            ErrorCode.INVALID_REPLICATION_FACTOR,
            f"Unable to replicate the partition {replication_factor} time(s): The target replication factor of"
            f" {replication_factor} cannot be reached because only {alive + len(absent)} broker(s) are registered.",
        )


# -- leaders and replicas ----------------------------------------------------------------------------------


def _restated(
    image: ClusterImage,
    entries: Iterator[TopicEntry] | Sequence[TopicEntry],
    decide: Callable[[TopicImage, int, PartitionState], PartitionState],
) -> Iterator[_Change]:
    """The chunks in which `decide(topic, partition, state)` gives another state for any partition."""
    for entry in entries:
        for number, chunk in enumerate(entry.chunks):
            first = number * STATES_PER_CHUNK
            states = tuple(
                decide(entry.topic, index, state) for index, state in enumerate(chunk.states, first)
            )
            if states != chunk.states:
                yield _restate(entry, number, states)


def _restate(entry: TopicEntry, number: int, states: tuple[PartitionState, ...]) -> _Change:
    name = entry.topic.name
    path, version = tree.chunk_path(name, number), entry.chunks[number].version
    operations: list[StoreOperation] = [SetNode(path, tree.encode_states(states), version)]
    return _Change(name, operations, chunk=number, states=states)


def _led_by(state: PartitionState, leader: int) -> PartitionState:
    return replace(
        state, leader=leader, leader_epoch=state.leader_epoch + 1, partition_epoch=state.partition_epoch + 1
    )


def _elected(state: PartitionState, alive: set[int], *, unclean: bool = False) -> PartitionState:
    """With the first replica that may lead, by the order of preference; without a leader if there is none. Who was in
    sync, and is not alive, has everything as before: where one leads that is eligible, it is eligible too.
    """
    for broker in state.replicas:
        if broker in state.isr and broker in alive:
            return _led_by(state, broker)
    for broker in state.replicas:
        if broker in state.elr and broker in alive:
            elr = (*_without(state.elr, broker), *state.isr)
            return _led_by(replace(state, isr=(broker,), elr=elr), broker)
    if unclean:
        for broker in state.replicas:
            if broker in alive:
                return _led_by(replace(state, isr=(broker,), elr=()), broker)
    return state if state.leader == NO_LEADER else _led_by(state, NO_LEADER)


def _started(state: PartitionState, broker: int, clean: bool, kept: bool, alive: set[int]) -> PartitionState:
    if broker not in state.replicas:
        return state
    if clean:
        return state if state.leader != NO_LEADER else _elected(state, alive)
    if state.replicas == (broker,):
        return _led_by(replace(state, isr=(broker,), elr=()), broker)  # there is no other, whatever it lost
    if not kept and (broker in state.isr or broker in state.elr):
        state = replace(
            state,
            isr=_without(state.isr, broker),
            elr=_without(state.elr, broker),
            partition_epoch=state.partition_epoch + 1,
        )
    if state.leader in (broker, NO_LEADER):
        return _elected(state, alive)
    return state


def _leaving(state: PartitionState, broker: int, alive: set[int], min_isr: int) -> PartitionState:
    """As `_gone`, where somebody else may lead; as it is otherwise."""
    if broker not in state.isr or not any(each in alive for each in state.isr):
        return state
    return _gone(state, broker, alive, min_isr)


def _gone(state: PartitionState, broker: int, alive: set[int], min_isr: int) -> PartitionState:
    if broker in state.isr and len(state.isr) > 1:
        isr = _without(state.isr, broker)
        elr = (*state.elr, broker) if len(isr) < min_isr and broker not in state.elr else state.elr
        state = replace(state, isr=isr, elr=elr, partition_epoch=state.partition_epoch + 1)
    return _elected(state, alive) if state.leader == broker else state


def _lost(state: PartitionState, broker: int, alive: set[int]) -> PartitionState:
    """Without what the broker had. As it is, where it has no part or nobody else has everything."""
    isr, elr = _without(state.isr, broker), _without(state.elr, broker)
    if not (isr or elr) or (isr, elr) == (state.isr, state.elr):
        return state
    state = replace(state, isr=isr, elr=elr, partition_epoch=state.partition_epoch + 1)
    return _elected(state, alive) if state.leader == broker else state


def _elect(image: ClusterImage, event: ElectLeaders) -> Iterator[_Change]:
    alive = _staying(image)

    def decide(_: TopicImage, __: int, state: PartitionState) -> PartitionState:
        preferred = state.replicas[0]
        if event.unclean:
            return _elected(state, alive, unclean=True) if state.leader == NO_LEADER else state
        if state.leader != preferred and preferred in state.isr and preferred in alive:
            return _led_by(state, preferred)
        return state

    if event.partitions is None:
        return _restated(image, image.topics.values(), decide)
    wanted: dict[str, set[int]] = {}
    for name, index in event.partitions:
        entry = _entry(image, name)
        if not 0 <= index < entry.topic.partition_count:
            raise unknown_partition(name, index, entry.topic.partition_count)
        wanted.setdefault(name, set()).add(index)
    return _restated(
        image,
        [image.topics[name] for name in wanted],
        lambda topic, index, state: decide(topic, index, state) if index in wanted[topic.name] else state,
    )


def _changed_isr(image: ClusterImage, event: ChangeIsr) -> PartitionState:
    """What a proposal makes of a partition. Raises KafkaError."""
    entry = _entry(image, event.topic)
    if not 0 <= event.index < entry.topic.partition_count:
        raise unknown_partition(event.topic, event.index, entry.topic.partition_count)
    state = entry.state(event.index)
    where = f"{event.topic}-{event.index}"
    if event.leader_epoch != state.leader_epoch:
        code = (
            ErrorCode.NOT_CONTROLLER
            if event.leader_epoch > state.leader_epoch
            else ErrorCode.FENCED_LEADER_EPOCH
        )
        raise KafkaError(code, f"{where} has leader epoch {state.leader_epoch}, not {event.leader_epoch}")
    if event.leader != state.leader:
        raise KafkaError(
            ErrorCode.INVALID_REQUEST, f"{where} is led by broker {state.leader}, not by {event.leader}"
        )
    if event.partition_epoch != state.partition_epoch:
        raise KafkaError(
            ErrorCode.INVALID_UPDATE_VERSION,
            f"{where} has partition epoch {state.partition_epoch}, not {event.partition_epoch}",
        )
    isr = tuple(broker for broker, _ in event.isr)
    if event.leader not in isr or not set(isr) <= set(state.replicas) or len(set(isr)) != len(isr):
        raise KafkaError(
            ErrorCode.INVALID_REQUEST,
            f"{list(isr)} cannot be the ISR of {where}, which has the replicas {list(state.replicas)}"
            f" and the leader {state.leader}",
        )
    for broker_id, epoch in event.isr:
        broker = image.brokers.get(broker_id)
        if broker is None or broker.epoch != epoch or broker.leaving:
            why = "it is not alive" if broker is None else f"its epoch is {broker.epoch}"
            raise KafkaError(
                ErrorCode.INELIGIBLE_REPLICA,
                f"broker {broker_id} with epoch {epoch} cannot join the ISR of {where}: "
                + ("it is about to stop" if broker is not None and broker.leaving else why),
            )
    left = tuple(broker for broker in state.isr if broker not in isr)
    min_isr = _min_isr(entry.topic, 1) if event.min_isr is None else event.min_isr
    elr = tuple(broker for broker in (*state.elr, *left) if broker not in isr) if len(isr) < min_isr else ()
    state = replace(state, isr=isr, elr=elr, partition_epoch=state.partition_epoch + 1)
    return _moved_on(state, _staying(image), min_isr)


def _changed_states(
    image: ClusterImage, changed: Sequence[tuple[str, int, PartitionState]]
) -> Iterator[_Change]:
    chunks: dict[tuple[str, int], list[PartitionState]] = {}
    for name, index, state in changed:
        number, place = divmod(index, STATES_PER_CHUNK)
        states = chunks.get((name, number))
        if states is None:
            states = chunks[name, number] = list(image.topics[name].chunks[number].states)
        states[place] = state
    return (
        _restate(image.topics[name], number, tuple(states))
        for (name, number), states in chunks.items()
        if tuple(states) != image.topics[name].chunks[number].states
    )


def reassigned(
    image: ClusterImage,
    name: str,
    index: int,
    target: Sequence[int] | None,
    *,
    factor_may_change: bool = True,
    known: Known = NOTHING_KNOWN,
) -> PartitionState:
    """The state of a partition that these brokers are to hold; None: those that held it before it was moved. Raises
    KafkaError.
    """
    entry = _entry(image, name)
    if not 0 <= index < entry.topic.partition_count:
        raise unknown_partition(name, index, entry.topic.partition_count)
    state, where, alive = entry.state(index), f"{name}-{index}", _staying(image)
    min_isr = _min_isr(entry.topic, known.min_isr)
    if target is None:
        unclean = entry.topic.config.get("unclean.leader.election.enable") == "true"
        back = reassignment.cancelled(state, where, unclean=unclean, min_isr=min_isr)
        return back if back.leader in back.replicas else _elected(back, alive)
    registered = _registered(image, known.absent)
    reassignment.check_target(registered, state, target, where, factor_may_change=factor_may_change)
    return _moved_on(reassignment.begun(state, target, min_isr), alive, min_isr)


def _moved_on(state: PartitionState, alive: set[int], min_isr: int) -> PartitionState:
    """With the replicas that it is to have, as soon as those are in sync and one of them can lead."""
    done = reassignment.completed(state, min_isr)
    if done is None:
        return state
    if done.leader == NO_LEADER or done.leader in done.replicas:
        return done
    leader = next((each for each in done.replicas if each in done.isr and each in alive), None)
    return state if leader is None else _led_by(done, leader)


def _is_synced(topic: TopicImage, by_default: bool) -> bool:
    durability = topic.config.get("durability")
    return by_default if durability is None else durability == "power"


def _min_isr(topic: TopicImage, by_default: int) -> int:
    own = topic.config.get("min.insync.replicas")
    return by_default if own is None else int(own)


def _without(brokers: tuple[int, ...], broker: int) -> tuple[int, ...]:
    return tuple(each for each in brokers if each != broker)


# -- transactions ------------------------------------------------------------------------------------------


def _packed(
    image: ClusterImage,
    changes: Iterable[_Change],
    guards: Sequence[StoreOperation],
    brokers: Mapping[int, BrokerImage] | None,
) -> Iterator[Transaction]:
    """What happens to the live brokers is in the last one: whoever finds it undone does all of it again."""
    journal = image.changes
    operations: list[StoreOperation] = []
    topics: dict[str, TopicEntry | None] = {}
    entries: dict[str, TopicEntry] = {}  # of topics whose chunks change one after the other
    size = chunks = 0
    for change in changes:
        cost = sum(len(each.data) for each in change.operations if isinstance(each, CreateNode | SetNode))
        if operations and (
            size + cost > TRANSACTION_BYTES
            or chunks == CHUNKS_PER_TRANSACTION
            or len(operations) + len(change.operations) > OPERATIONS_PER_TRANSACTION
        ):
            journal = journal.followed_by(tuple(topics))
            yield Transaction((*guards, tree.changes_operation(journal), *operations), topics, journal)
            operations, topics, size, chunks = [], {}, 0, 0
        operations += change.operations
        size += cost
        chunks += change.chunk >= 0
        if change.chunk >= 0:
            entry = entries.get(change.name) or image.topics[change.name]
            listed = list(entry.chunks)
            listed[change.chunk] = StatesChunk(listed[change.chunk].version + 1, change.states)
            topics[change.name] = entries[change.name] = replace(entry, chunks=tuple(listed))
        else:
            topics[change.name] = change.entry
    names = tuple(topics)
    if brokers is not None:
        operations.append(tree.live_brokers_operation(brokers, image.brokers_version))
        names = (*names, BROKERS)
    if operations:
        journal = journal.followed_by(names)
        yield Transaction((*guards, tree.changes_operation(journal), *operations), topics, journal, brokers)
