"""Decisions about topics and partitions. Pure: `step(image, event)` returns transactions of the coordination store, and
the image after them. It waits for nothing and keeps no state.

Any broker creates, alters and deletes topics when a client asks it to, and elects leaders on request; the leader
changes the ISR. Only one broker, the controller, decides about the consequences of brokers that come and go; it alone
watches the registrations.

Invariants
- Every transaction adds to the journal of changes, at the version at which the image was read, and names the version of
  every node that it changes. So a broker with an outdated image cannot write: its transaction is refused, it reads on,
  and steps again.
- Decisions of the controller also check its epoch: of two controllers the older one writes nothing.
- Transactions of one step change different topics or chunks. Each is complete by itself. A step that was interrupted
  between two of them continues with the image at that time. A topic is created, grown or deleted by one transaction.
- A partition's leader epoch goes up with each change of its leader. It also goes up with each return of a leader that
  may have lost records (after an unclean stop), so that its readers find out (KIP-320). It never goes down.
- The leaders and in-sync replicas of new partitions are brokers that are alive. A registered but absent broker may be a
  replica, too, as in Kafka, so that topics with as many replicas as brokers can be created while one broker is missing.
- A leader is in the ISR and alive; the ISR is a part of the replicas. The last member of an ISR stays in it when it
  dies, because it has everything. It leaves the ISR when it returns from a stop in which it may have lost records
  (unclean, and the machine has restarted), unless there is no other replica.
- A replica that leaves an ISR smaller than `min.insync.replicas` stays eligible (KIP-966) until that number is lowered.
  If a topic does not set the number, it is the default of the broker that decides. A leader with a smaller number shows
  and acknowledges nothing until there are no eligible replicas any more (`broker.replication.progress`), so brokers may
  learn a new number one after the other.
- Each member of an ISR that its leader proposes is alive under the named broker epoch (KIP-903), and is not leaving.
- A partition that is being moved (`reassignment`) gets its final replicas with the change of the ISR that makes it
  possible.
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
"""Maximum number of changed chunks of states: ZooKeeper writes 20,000 states in 0.3 to 0.6 s this way."""
TRANSACTION_BYTES: Final = 400_000
"""Approximate maximum, since some operations are not separated. ZooKeeper accepts 1 MB."""


Assignment = Sequence[Sequence[int]]
"""Replicas of consecutive partitions; each list begins with the preferred leader."""


class Known(msgspec.Struct, frozen=True):
    """Facts beside the image that a decision about replicas goes by."""

    absent: tuple[BrokerImage, ...] = ()
    """Brokers that are to come back, and may be replicas meanwhile (`absent_of`)."""
    min_isr: int = 1
    """`min.insync.replicas` of topics that do not set it."""


NOTHING_KNOWN: Final = Known()


class CreateTopics(msgspec.Struct, frozen=True):
    """Create checked topics; topics that exist under the same id are left out."""

    topics: tuple[TopicImage, ...]
    replication_factor: int = 1
    assignments: Mapping[str, Assignment] = {}
    """Replicas of each partition by topic, if the client has chosen them."""
    factors: Mapping[str, int] = {}
    """Number of replicas by topic, if it is not `replication_factor`."""
    absent: tuple[BrokerImage, ...] = ()
    """Brokers that are expected to return. They get replicas, too, if there are too few other brokers, or if the client
    has chosen them (`absent_of`).
    """


class DeleteTopics(msgspec.Struct, frozen=True):
    """Delete several topics; missing ones are left out."""

    names: tuple[str, ...]


class ReplaceTopic(msgspec.Struct, frozen=True):
    """The topic's new configuration and its number of partitions, which may be higher. `version` is that of the entry
    that they were made from. Added partitions have as many replicas as the first one, or `replication_factor`.
    """

    topic: TopicImage
    version: int
    replication_factor: int | None = None
    assignment: Assignment | None = None
    """Replicas of the added partitions, if the client has chosen them."""
    known: Known = NOTHING_KNOWN


class AdoptStates(msgspec.Struct, frozen=True):
    """Topics of the layout without states: the broker has and leads all of them, with this epoch."""

    broker_id: int
    leader_epoch: int


class BrokerStarted(msgspec.Struct, frozen=True):
    """A broker has registered and counts from now on.

    - `clean`: its last stop was clean, so its logs are complete
    - `kept`: the stop was not clean, but its logs are complete, because only the process has ended
    - `synced`: it had acknowledged only records on disk, for topics without a durability of their own
    """

    broker: BrokerImage
    clean: bool
    kept: bool = False
    synced: bool = False


class BrokerLeaving(msgspec.Struct, frozen=True):
    """A broker is about to stop: other brokers take over the leadership of its partitions where they can, and it leaves
    every ISR that has another member.
    """

    broker_id: int
    min_isr: int = 1
    """`min.insync.replicas`, see `Known`."""


class BrokerGone(msgspec.Struct, frozen=True):
    broker_id: int
    min_isr: int = 1
    """`min.insync.replicas`, see `Known`."""


class ElectLeaders(msgspec.Struct, frozen=True):
    """Elect leaders of these partitions (None: all): the preferred leader if it may lead. With `unclean`, any broker
    that is alive if no other one may lead.
    """

    partitions: tuple[tuple[str, int], ...] | None = None
    unclean: bool = False


class Reassign(msgspec.Struct, frozen=True):
    """Move partitions to these brokers; None: back to those that had them before the move. Partitions that cannot be
    moved so are left out (`reassigned`).
    """

    targets: tuple[tuple[str, int, tuple[int, ...] | None], ...]
    factor_may_change: bool = True
    known: Known = NOTHING_KNOWN


class ReplicasLost(msgspec.Struct, frozen=True):
    """A broker that is alive reports that it does not have these replicas (topic, partition) any more: their logs are
    damaged, or their disk has failed. They leave the ISR and are not eligible any more, and other brokers take over
    their leadership. Nothing changes where no other replica has everything.
    """

    broker_id: int
    partitions: tuple[tuple[str, int], ...]


class ChangeIsr(msgspec.Struct, frozen=True):
    """A leader's proposal (as in AlterPartition, KIP-497). `isr`: (broker, its epoch). `min_isr` is the leader's
    number.
    """

    topic: str
    index: int
    leader: int
    leader_epoch: int
    partition_epoch: int
    isr: tuple[tuple[int, int], ...]
    min_isr: int | None = None


class ChangeIsrs(msgspec.Struct, frozen=True):
    """Proposals for different partitions. Those that cannot be carried out (any more) are left out."""

    proposals: tuple[ChangeIsr, ...]


Event = (
    CreateTopics
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
    DeleteTopics,
    ReplaceTopic,
    ElectLeaders,
    Reassign,
    ReplicasLost,
    ChangeIsr,
    ChangeIsrs,
)
"""Events that any broker decides, with the newest image."""


class Transaction(msgspec.Struct, frozen=True):
    """The operations of a transaction, and the image after it: topics (None: deleted), and brokers if they change."""

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
    """Return the transactions for the store that make the changes of `event`, each computed
    when it is asked for. Without a change there are no transactions.

    Raises KafkaError before the first one.
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
    """Operations that must not be separated: all changes of a topic, or of one chunk of it."""

    name: str
    operations: list[StoreOperation]
    entry: TopicEntry | None = None
    chunk: int = -1  # the only chunk that changes
    states: tuple[PartitionState, ...] = ()


def _changes(image: ClusterImage, event: Event) -> Iterable[_Change]:
    """Return the changes. The event is checked when this returns; the operations are computed one change after the
    other.
    """
    match event:
        case CreateTopics():
            return _create(image, event)
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
        # If the lower number is enough, records may be acknowledged that the eligible replicas lack, and a move may
        # end.
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
    """Return the state without eligible replicas, unless the ISR is too small: nothing was acknowledged since the
    others left.
    """
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
    """Return the states of new partitions. Leaders rotate over the brokers that are alive, alternating between racks.
    Followers are the brokers after them, starting one further in each round, on other racks if there are any. The
    topic's id decides where it begins, so that many small topics are spread, too. If more replicas are wanted than
    brokers are alive, some absent brokers are the last ones and not in sync, beginning with racks without a live
    broker.
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
    """Return the brokers that may be given partitions, alternating between racks."""
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
    """Return the first `count` of `others`, beginning with those on a rack of their own."""
    chosen: list[int] = []
    used = {racks[leader]}
    for broker in others:
        if len(chosen) < count and racks[broker] is not None and racks[broker] not in used:
            used.add(racks[broker])
            chosen.append(broker)
    chosen += [broker for broker in others if broker not in chosen][: count - len(chosen)]
    return chosen


def _staying(image: ClusterImage) -> set[int]:
    """Return the brokers that are alive and not leaving."""
    return {broker.broker_id for broker in image.brokers.values() if not broker.leaving}


def _registered(image: ClusterImage, absent: Iterable[BrokerImage]) -> set[int]:
    """Return the brokers that may be chosen."""
    return {*image.brokers, *(broker.broker_id for broker in absent)}


def assigned(
    image: ClusterImage, assignment: Assignment, absent: Sequence[BrokerImage] = ()
) -> list[PartitionState]:
    """Return the states of new partitions whose replicas the client has chosen, led by the first live one. Raises
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
    """Return the known brokers that are not alive, or are about to stop."""
    staying = _staying(image)
    return tuple(broker for broker in known if broker.broker_id not in staying)


def check_replication_factor(
    image: ClusterImage, replication_factor: int, absent: Sequence[BrokerImage] = ()
) -> None:
    """Raise KafkaError(INVALID_REPLICATION_FACTOR) if there are fewer brokers, alive or absent, than
    `replication_factor`.
    """
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
    """Yield the chunks in which `decide(topic, partition, state)` returns another state for any partition."""
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
    """Return the state with the first replica that may lead, by the order of preference; without a leader if there is
    none. If an eligible replica becomes the leader, the members of the ISR, which are not alive but still have
    everything, become eligible, too.
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
        # there is no other replica, even if it has lost records
        return _led_by(replace(state, isr=(broker,), elr=()), broker)
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
    """Return the state of `_gone` if another member of the ISR is alive; otherwise the state is unchanged."""
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
    """Return the state without the broker's replica. Unchanged if it is not in sync or eligible, or if no other replica
    has everything.
    """
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
    """Return the state of a partition after a proposal. Raises KafkaError."""
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
    """Return the state of a partition after the request to move it to these brokers; None: back to those that had it
    before the move. Raises KafkaError.
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
    """Return the state with the target replicas, as soon as those are in sync and one of them can lead."""
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
    """Pack changes into transactions. The change of the live brokers is in the last one; if it is missing after a
    failure, the whole step is done again.
    """
    journal = image.changes
    operations: list[StoreOperation] = []
    topics: dict[str, TopicEntry | None] = {}
    entries: dict[str, TopicEntry] = {}  # for topics whose chunks change one after the other
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
