"""The state of one partition after its brokers come and go: leader, ISR, eligible replicas. Pure."""

from __future__ import annotations

from msgspec.structs import replace

from headrace.broker.metadata import reassignment
from headrace.broker.metadata.image import NO_LEADER, PartitionState


def led_by(state: PartitionState, leader: int) -> PartitionState:
    """Return the state with another leader, or the same one in a new leader epoch."""
    return replace(
        state, leader=leader, leader_epoch=state.leader_epoch + 1, partition_epoch=state.partition_epoch + 1
    )


def elected(state: PartitionState, alive: set[int], *, unclean: bool = False) -> PartitionState:
    """Return the state with the first replica that may lead, by the order of preference; without a leader if there is
    none. If an eligible replica becomes the leader, the members of the ISR, which are not alive but still have
    everything, become eligible, too.
    """
    for broker in state.replicas:
        if broker in state.isr and broker in alive:
            return led_by(state, broker)
    for broker in state.replicas:
        if broker in state.elr and broker in alive:
            elr = (*without(state.elr, broker), *state.isr)
            return led_by(replace(state, isr=(broker,), elr=elr), broker)
    if unclean:
        for broker in state.replicas:
            if broker in alive:
                return led_by(replace(state, isr=(broker,), elr=()), broker)
    return state if state.leader == NO_LEADER else led_by(state, NO_LEADER)


def started(state: PartitionState, broker: int, clean: bool, kept: bool, alive: set[int]) -> PartitionState:
    """Return the state after a broker has started; `clean` and `kept` as in `BrokerStarted`."""
    if broker not in state.replicas:
        return state
    if clean:
        return state if state.leader != NO_LEADER else elected(state, alive)
    if state.replicas == (broker,):
        # there is no other replica, even if it has lost records
        return led_by(replace(state, isr=(broker,), elr=()), broker)
    if not kept and (broker in state.isr or broker in state.elr):
        state = replace(
            state,
            isr=without(state.isr, broker),
            elr=without(state.elr, broker),
            partition_epoch=state.partition_epoch + 1,
        )
    if state.leader in (broker, NO_LEADER):
        return elected(state, alive)
    return state


def leaving(state: PartitionState, broker: int, alive: set[int], min_isr: int) -> PartitionState:
    """Return the state of `gone` if another member of the ISR is alive; otherwise the state is unchanged."""
    if broker not in state.isr or not any(each in alive for each in state.isr):
        return state
    return gone(state, broker, alive, min_isr)


def gone(state: PartitionState, broker: int, alive: set[int], min_isr: int) -> PartitionState:
    """Return the state after a broker has gone. The last member of the ISR stays in it, because it has everything."""
    if broker in state.isr and len(state.isr) > 1:
        isr = without(state.isr, broker)
        elr = (*state.elr, broker) if len(isr) < min_isr and broker not in state.elr else state.elr
        state = replace(state, isr=isr, elr=elr, partition_epoch=state.partition_epoch + 1)
    return elected(state, alive) if state.leader == broker else state


def lost(state: PartitionState, broker: int, alive: set[int]) -> PartitionState:
    """Return the state without the broker's replica. Unchanged if it is not in sync or eligible, or if no other replica
    has everything.
    """
    isr, elr = without(state.isr, broker), without(state.elr, broker)
    if not (isr or elr) or (isr, elr) == (state.isr, state.elr):
        return state
    state = replace(state, isr=isr, elr=elr, partition_epoch=state.partition_epoch + 1)
    return elected(state, alive) if state.leader == broker else state


def moved_on(state: PartitionState, alive: set[int], min_isr: int) -> PartitionState:
    """Return the state with the target replicas, as soon as those are in sync and one of them can lead."""
    done = reassignment.completed(state, min_isr)
    if done is None:
        return state
    if done.leader == NO_LEADER or done.leader in done.replicas:
        return done
    leader = next((each for each in done.replicas if each in done.isr and each in alive), None)
    return state if leader is None else led_by(done, leader)


def without(brokers: tuple[int, ...], broker: int) -> tuple[int, ...]:
    return tuple(each for each in brokers if each != broker)
