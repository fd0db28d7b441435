"""Requests about transactions between the brokers of a cluster. The leader of a partition asks the coordinator
(KIP-890); the coordinator asks the leaders of the partitions that a transaction has written to.

- `part_of_transaction` may be asked again: verifying changes nothing, and a partition is added once.
- Markers for one leader go in one request at a time; those that have come meanwhile go in the next one. After a request
  without an answer the next one uses another connection, and the leader refuses markers over the older one
  (`SendersOfMarkers`). So a delayed marker does not end the transaction after the one that it was sent for.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable
from typing import TYPE_CHECKING, Final

import msgspec

from headrace.broker.cluster.journal_topic import Later
from headrace.broker.metadata.image import NO_LEADER
from headrace.broker.net.peers import PeerLostError, Peers
from headrace.broker.transactions.markers import Marker
from headrace.broker.transactions.model import TopicPartition
from headrace.protocol.errors import ErrorCode, KafkaError
from headrace.protocol.messages.add_partitions_to_txn import (
    AddPartitionsToTxnRequest,
    AddPartitionsToTxnResponse,
    AddPartitionsToTxnTopic,
    AddPartitionsToTxnTransaction,
)
from headrace.protocol.messages.write_txn_markers import (
    WritableTxnMarker,
    WritableTxnMarkerTopic,
    WriteTxnMarkersRequest,
    WriteTxnMarkersResponse,
)

if TYPE_CHECKING:
    from headrace.broker.cluster.metadata_follower import MetadataFollower
    from headrace.broker.metadata.cluster import ClusterMetadata
    from headrace.broker.runtime.background import BackgroundTasks

MARKERS_PER_REQUEST: Final = 1000
MARKER_SECONDS: Final = 10.0
VERIFY_SECONDS: Final = 5.0
_MARKERS, _COORDINATORS = "markers", "transactions"
"""Channels of connections: markers may wait for a disk, so other requests do not wait behind them."""


class _Wanted(msgspec.Struct, frozen=True):
    place: TopicPartition
    marker: Marker
    later: Later


class Others:
    """The other brokers, for transactions. On the event loop."""

    def __init__(
        self,
        peers: Peers,
        metadata: ClusterMetadata,
        following: MetadataFollower,
        broker_id: int,
        background: BackgroundTasks,
    ) -> None:
        self._peers = peers
        self._metadata = metadata
        self._following = following
        self._broker_id = broker_id
        self._background = background
        self._wanted: dict[int, deque[_Wanted]] = {}
        self._sending: set[int] = set()

    # -- of a leader ---------------------------------------------------------------------------------------

    async def part_of_transaction(
        self,
        coordinated_at: TopicPartition,
        transactional_id: str,
        producer: tuple[int, int],
        partition: TopicPartition,
        *,
        announces: bool,
    ) -> ErrorCode:
        """Return whether a write belongs to the producer's transaction, as its coordinator says: the leader of
        `coordinated_at`. `announces` adds the partition to the transaction.
        """
        state = self._metadata.state(*coordinated_at)
        if state is None or state.leader in (NO_LEADER, self._broker_id):
            return ErrorCode.COORDINATOR_NOT_AVAILABLE
        topic, index = partition
        asked = AddPartitionsToTxnTransaction(
            transactional_id=transactional_id,
            producer_id=producer[0],
            producer_epoch=producer[1],
            verify_only=not announces,
            topics=[AddPartitionsToTxnTopic(name=topic, partitions=[index])],
        )
        try:
            answer = await self._peers.ask(
                state.leader,
                AddPartitionsToTxnRequest(transactions=[asked]),
                AddPartitionsToTxnResponse,
                channel=_COORDINATORS,
                seconds=VERIFY_SECONDS,
            )
        except PeerLostError:
            return ErrorCode.COORDINATOR_NOT_AVAILABLE
        code = ErrorCode(answer.error_code)
        if code is ErrorCode.NONE:
            results = [
                each.partition_error_code
                for result in answer.results_by_transaction
                for each_topic in result.topic_results
                for each in each_topic.results_by_partition
            ]
            code = ErrorCode(results[0]) if len(results) == 1 else ErrorCode.UNKNOWN_SERVER_ERROR
        return ErrorCode.COORDINATOR_NOT_AVAILABLE if code is ErrorCode.NOT_COORDINATOR else code

    # -- of a coordinator ----------------------------------------------------------------------------------

    def leads_elsewhere(self, place: TopicPartition) -> bool:
        """Return whether another broker has to write to the partition, or none can now."""
        if self._metadata.is_alone:
            return False
        state = self._metadata.state(*place)
        return state is None or state.leader != self._broker_id

    def write_marker(self, place: TopicPartition, marker: Marker, later: Later) -> None:
        """Ask the leader to write a marker. `later` is called, never within this call: with None when it is written as
        durably as its topic demands, or with the error if it is not, or if the outcome is unknown.
        """
        state = self._metadata.state(*place)
        if state is None:
            self._background.start(self._look_for(place, later), "a topic of a transaction")
            return
        if state.leader == NO_LEADER:
            self._background.start(_tell(later, _passing("its partition has no leader now")), "a marker")
            return
        self._wanted.setdefault(state.leader, deque()).append(_Wanted(place, marker, later))
        if state.leader not in self._sending:
            self._sending.add(state.leader)
            self._background.start(self._send_to(state.leader), f"markers for broker {state.leader}")

    async def _look_for(self, place: TopicPartition, later: Later) -> None:
        """Look for the topic, which another broker may have made a moment ago."""
        topic, index = place
        try:
            await self._following.refreshed()
        except Exception as error:  # noqa: BLE001 - the store is away: the marker is tried again
            later(_passing(f"it is not known now whether {topic} exists: {error}"))
            return
        if self._metadata.state(topic, index) is None:
            later(KafkaError(ErrorCode.UNKNOWN_TOPIC_OR_PARTITION, f"{topic}-{index} does not exist"))
        else:
            later(_passing("its topic is new here"))

    async def _send_to(self, leader: int) -> None:
        wanted = self._wanted[leader]
        try:
            while wanted:
                some = [wanted.popleft() for _ in range(min(len(wanted), MARKERS_PER_REQUEST))]
                told = await self._sent(leader, some)
                for each, error in zip(some, told, strict=True):
                    each.later(error)
        finally:
            self._sending.discard(leader)

    async def _sent(self, leader: int, some: list[_Wanted]) -> list[KafkaError | None]:
        markers: dict[Marker, list[TopicPartition]] = {}
        for each in some:
            markers.setdefault(each.marker, []).append(each.place)
        request = WriteTxnMarkersRequest(
            markers=[_on_the_wire(marker, places) for marker, places in markers.items()]
        )
        try:
            answer = await self._peers.ask(
                leader, request, WriteTxnMarkersResponse, channel=_MARKERS, seconds=MARKER_SECONDS
            )
        except PeerLostError as error:
            return [_passing(error.message)] * len(some)
        codes = {
            (result.producer_id, topic.name, partition.partition_index): ErrorCode(partition.error_code)
            for result in answer.markers
            for topic in result.topics
            for partition in topic.partitions
        }
        return [
            _outcome(codes.get((each.marker.producer_id, *each.place)), each.place, leader) for each in some
        ]


def _outcome(code: ErrorCode | None, place: TopicPartition, leader: int) -> KafkaError | None:
    if code is ErrorCode.NONE:
        return None
    if code is None or code is ErrorCode.UNKNOWN_TOPIC_OR_PARTITION:
        # The leader may not know the partition yet, so its answer does not prove that the partition is gone.
        code = ErrorCode.NOT_LEADER_OR_FOLLOWER
    return KafkaError(code, f"broker {leader} has not written the marker to {place[0]}-{place[1]}")


def _passing(message: str) -> KafkaError:
    return KafkaError(ErrorCode.NOT_LEADER_OR_FOLLOWER, message)


async def _tell(later: Later, error: KafkaError) -> None:
    later(error)


def _on_the_wire(marker: Marker, places: list[TopicPartition]) -> WritableTxnMarker:
    topics: dict[str, list[int]] = {}
    for topic, index in places:
        topics.setdefault(topic, []).append(index)
    return WritableTxnMarker(
        producer_id=marker.producer_id,
        producer_epoch=marker.producer_epoch,
        transaction_result=marker.commit,
        topics=[
            WritableTxnMarkerTopic(name=topic, partition_indexes=indexes) for topic, indexes in topics.items()
        ],
        coordinator_epoch=marker.coordinator_epoch,
        transaction_version=marker.client_version,
    )


class SendersOfMarkers:
    """The connection over which each coordinator sends its markers now. With version 1 of transactions a marker does
    not name the transaction that it ends, so a late one would end the next transaction.
    """

    def __init__(self, is_broker: Callable[[str], bool]) -> None:
        """`is_broker` returns whether a client's name is that of a broker, which sends over one connection at a
        time.
        """
        self._is_broker = is_broker
        self._newest: dict[str, int] = {}

    def check(self, client_id: str | None, connection_id: int) -> None:
        """Raise KafkaError(REQUEST_TIMED_OUT) for requests over an older connection than an earlier request's."""
        if client_id is None or not self._is_broker(client_id):
            return
        if connection_id < self._newest.get(client_id, 0):
            raise KafkaError(
                ErrorCode.REQUEST_TIMED_OUT, f"{client_id} has sent later markers over another connection"
            )
        self._newest[client_id] = connection_id
