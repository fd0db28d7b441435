"""Decisions about topics and partitions. Pure: `step(image, event)` returns transactions of the coordination store, and
the image after them. It waits for nothing and keeps no state. `events.py` has the events, `placement.py` chooses the
brokers of new partitions, and `elections.py` decides about the state of one partition.

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

from headrace.broker.metadata import elections, reassignment, tree
from headrace.broker.metadata.events import (
    ANYBODYS,
    NOTHING_KNOWN,
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
from headrace.broker.metadata.placement import (
    assigned,
    check_replication_factor,
    placed,
    registered_brokers,
    staying_brokers,
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
            alive = {*staying_brokers(image), broker.broker_id}
            return _restated(
                image,
                image.topics.values(),
                lambda topic, _, state: elections.started(
                    state, broker.broker_id, clean, kept or _is_synced(topic, synced), alive
                ),
            )
        case BrokerLeaving(broker_id, min_isr):
            alive = staying_brokers(image) - {broker_id}
            return _restated(
                image,
                image.topics.values(),
                lambda topic, _, state: elections.leaving(state, broker_id, alive, _min_isr(topic, min_isr)),
            )
        case BrokerGone(broker_id, min_isr):
            alive = staying_brokers(image) - {broker_id}
            return _restated(
                image,
                image.topics.values(),
                lambda topic, _, state: elections.gone(state, broker_id, alive, _min_isr(topic, min_isr)),
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
            alive = staying_brokers(image) - {broker_id}
            lost = []
            for name, index in partitions:
                entry = image.topics.get(name)
                if entry is not None and index < entry.topic.partition_count:
                    lost.append((name, index, elections.lost(entry.state(index), broker_id, alive)))
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
            states = placed(image, topic, range(topic.partition_count), factor, event.absent)
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
            added = placed(image, topic, range(before, total), factor, event.known.absent)
    min_isr, alive = _min_isr(topic, event.known.min_isr), staying_brokers(image)
    is_lowered = min_isr < _min_isr(old.topic, event.known.min_isr)
    if added or is_lowered:
        # If the lower number is enough, records may be acknowledged that the eligible replicas lack, and a move may
        # end.
        kept = (
            elections.moved_on(_without_eligible(state, min_isr), alive, min_isr) if is_lowered else state
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


def _elect(image: ClusterImage, event: ElectLeaders) -> Iterator[_Change]:
    alive = staying_brokers(image)

    def decide(_: TopicImage, __: int, state: PartitionState) -> PartitionState:
        preferred = state.replicas[0]
        if event.unclean:
            return elections.elected(state, alive, unclean=True) if state.leader == NO_LEADER else state
        if state.leader != preferred and preferred in state.isr and preferred in alive:
            return elections.led_by(state, preferred)
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
    return elections.moved_on(state, staying_brokers(image), min_isr)


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
    state, where, alive = entry.state(index), f"{name}-{index}", staying_brokers(image)
    min_isr = _min_isr(entry.topic, known.min_isr)
    if target is None:
        unclean = entry.topic.config.get("unclean.leader.election.enable") == "true"
        back = reassignment.cancelled(state, where, unclean=unclean, min_isr=min_isr)
        return back if back.leader in back.replicas else elections.elected(back, alive)
    registered = registered_brokers(image, known.absent)
    reassignment.check_target(registered, state, target, where, factor_may_change=factor_may_change)
    return elections.moved_on(reassignment.begun(state, target, min_isr), alive, min_isr)


def _is_synced(topic: TopicImage, by_default: bool) -> bool:
    durability = topic.config.get("durability")
    return by_default if durability is None else durability == "power"


def _min_isr(topic: TopicImage, by_default: int) -> int:
    own = topic.config.get("min.insync.replicas")
    return by_default if own is None else int(own)


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
