"""Check the writes to a simulated ensemble: changes follow one another, and only the controller changes leaders.

watch = ControllerWatch(ensemble)
    ...
    assert watch.problems == []

- M1: an epoch is claimed together with the controller's node, is one more than the one before, and belongs to one
  session.
- M2: topics, partition states and live brokers are changed together with the journal of changes, whose version is
  compared. Live brokers are changed only by the process that has claimed the present epoch, in a transaction that
  checks it. The process may have lost the session of its claim: until another one claims the next epoch, no other
  process changes them.
- M3: the leader epoch of a partition never goes back, and belongs to one leader.
- M4: a broker is registered by an ephemeral node.
- M5: a broker that is not registered acknowledges nothing (`acknowledged`): its lease has ended before.
"""

from __future__ import annotations

import math
import re
from collections.abc import Sequence

from headrace.broker.metadata import tree
from headrace.broker.runtime.ports import CheckNode, CreateNode, SetNode, StoreOperation
from simulator.coordination import SimulatedEnsemble

_STATES = re.compile(rf"{tree.TOPICS}/(?P<topic>[^/]+)/states/(?P<chunk>\d+)")
_IN_THE_JOURNAL = (tree.TOPICS, tree.LIVE_BROKERS)


class ControllerWatch:
    """The checker. `claims` maps each epoch to the session that claimed it."""

    def __init__(self, ensemble: SimulatedEnsemble) -> None:
        self.problems: list[str] = []
        self.claims: dict[int, int] = {}
        self._ensemble = ensemble
        self._epoch = 0
        self._led: dict[tuple[str, int, int], tuple[int, int]] = {}
        self._registered: dict[str, list[list[float]]] = {}
        ensemble.observers.append(self._observe)
        ensemble.end_observers.append(self._ended)

    def acknowledged(self, node_id: int, asked_at: float) -> None:
        """Note that a broker has acknowledged an append that it was first asked for at that time."""
        times = self._registered.get(f"{tree.BROKER_IDS}/{node_id}", [])
        if not any(until >= asked_at for _, until in times):
            self.problems.append(
                f"broker {node_id} has appended what it was asked for at {asked_at}, and was registered {times}"
            )

    def _ended(self, session: int, gone: Sequence[str]) -> None:
        for path in gone:
            if path in self._registered:
                self._registered[path][-1][1] = self._ensemble.clock.monotonic()

    def _observe(self, session: int, operations: Sequence[StoreOperation]) -> None:
        claims = [
            each
            for each in operations
            if each.path == tree.CONTROLLER_EPOCH and isinstance(each, CreateNode | SetNode)
        ]
        if claims:
            self._claim(session, int(claims[-1].data), operations)
        changed = [
            each.path
            for each in operations
            if not isinstance(each, CheckNode) and each.path.startswith(_IN_THE_JOURNAL)
        ]
        if changed:
            self._change(session, changed, operations)
        for each in operations:
            if isinstance(each, CreateNode) and each.path.startswith(f"{tree.BROKER_IDS}/"):
                now = self._ensemble.clock.monotonic()
                self._registered.setdefault(each.path, []).append([now, math.inf])
            if isinstance(each, CreateNode | SetNode):
                self._lead(each)
            if (
                isinstance(each, CreateNode)
                and each.path.startswith(f"{tree.BROKER_IDS}/")
                and not each.ephemeral
            ):
                self.problems.append(f"{each.path} is made to stay")

    def _claim(self, session: int, epoch: int, operations: Sequence[StoreOperation]) -> None:
        made = [each for each in operations if isinstance(each, CreateNode) and each.path == tree.CONTROLLER]
        if not made or not made[0].ephemeral:
            self.problems.append(f"epoch {epoch} is claimed without the controller's node")
        if epoch != self._epoch + 1:
            self.problems.append(f"epoch {epoch} follows {self._epoch}")
        self._epoch = epoch
        self.claims[epoch] = session

    def _change(self, session: int, changed: list[str], operations: Sequence[StoreOperation]) -> None:
        if not any(
            each.path == tree.CHANGES and isinstance(each, CreateNode | SetNode) for each in operations
        ):
            self.problems.append(f"{changed[0]} is changed without an entry in the journal of changes")
        if tree.LIVE_BROKERS not in changed:
            return  # any process may do this that knows all earlier changes
        node = self._ensemble.node(tree.CONTROLLER_EPOCH)
        checked = [each for each in operations if each.path == tree.CONTROLLER_EPOCH]
        if node is None or not checked:
            self.problems.append(f"{changed[0]} is changed without a look at the controller's epoch")
        clients = self._ensemble.clients
        if clients.get(self.claims.get(self._epoch, 0)) is not clients.get(session):
            self.problems.append(
                f"{changed[0]} is changed by session {session}, and epoch {self._epoch} belongs to "
                f"{self.claims.get(self._epoch)}"
            )

    def _lead(self, operation: CreateNode | SetNode) -> None:
        match = _STATES.fullmatch(operation.path)
        if match is None or not operation.data:
            return
        topic = self._ensemble.node(tree.topic_path(match["topic"]))
        if topic is None:
            return
        topic_id = str(tree.decode_topic(topic.data).topic_id)
        for index, state in enumerate(tree.decode_states(operation.data)):
            key = topic_id, int(match["chunk"]), index
            epoch, leader = self._led.get(key, (-1, -1))
            if state.leader_epoch < epoch:
                self.problems.append(f"{match['topic']}: epoch {state.leader_epoch} follows {epoch}")
            if state.leader_epoch == epoch and state.leader not in (leader, -1) and leader != -1:
                self.problems.append(
                    f"{match['topic']}: {leader} and {state.leader} both lead in epoch {epoch}"
                )
            self._led[key] = state.leader_epoch, state.leader
