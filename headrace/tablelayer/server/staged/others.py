"""Requests of the broker that decides about staged rows to other brokers.

A broker has the chunks of the buckets that it leads; the leader of the table's first bucket decides. A request that may
be repeated carries the decision itself, so that it has the same effect each time.
"""

from __future__ import annotations

from collections.abc import Collection, Sequence
from typing import TYPE_CHECKING, Final
from uuid import UUID

from headrace.broker.metadata.image import NO_LEADER
from headrace.broker.net.peers import PeerLostError
from headrace.protocol.errors import ErrorCode, KafkaError
from headrace.tablelayer.model import messages as m
from headrace.tablelayer.model.errors import TableError, TableErrorCode
from headrace.tablelayer.model.table.definition import StoredTable
from headrace.tablelayer.server.staged.place import Place, bucket_of_table

if TYPE_CHECKING:
    from headrace.broker.context import BrokerContext

_CHANNELS: Final = 4
"""Number of buckets of one broker that are written at the same time."""
_APPLY_SECONDS: Final = 300.0
_DROP_SECONDS: Final = 5.0

Staged = dict[str, dict[Place, int]]
"""Number of chunks by attempt and place."""


class OtherBrokers:
    """Sends the requests to other brokers (see the module)."""

    def __init__(self, context: BrokerContext) -> None:
        self.own_id = context.identity.broker_id
        self._metadata = context.metadata
        self._peers = context.peers
        self._turn = 0

    @property
    def is_empty(self) -> bool:
        """Return whether this broker is the only one of the cluster."""
        return self._metadata.is_alone

    def decides(self, definition: StoredTable) -> bool:
        """Return whether this broker leads the table's first bucket."""
        return self.is_empty or self.leader_of(definition.path.topic, bucket_of_table(0)) is None

    def check_decides(self, definition: StoredTable) -> None:
        """Raise KafkaError(NOT_LEADER_OR_FOLLOWER) unless this broker decides about a table."""
        if not self.decides(definition):
            raise KafkaError(
                ErrorCode.NOT_LEADER_OR_FOLLOWER,
                f"staged rows of {definition.path} are committed by the leader of its first bucket; ask that broker",
            )

    def leader_of(self, topic: str | None, place: Place) -> int | None:
        """Return a bucket's leader, NO_LEADER if there is none, None if it is this broker."""
        if self.is_empty:
            return None
        state = None if topic is None else self._metadata.state(topic, place.bucket)
        leader = NO_LEADER if state is None else state.leader
        return None if leader == self.own_id else leader

    async def counted(
        self, topics: Sequence[str], table_id: UUID, writer: str, batch_id: int, attempts: Sequence[str]
    ) -> dict[int, Staged]:
        """Return the chunks of every other live broker, whether or not it was the leader at the time.

        Raises KafkaError(LEADER_NOT_AVAILABLE) if a leader of these topics does not answer, or a bucket has no leader.
        """
        if self.is_empty:
            return {}
        leaders = {
            state.leader
            for entry in map(self._metadata.entry, topics)
            for state in (() if entry is None else entry.states())
        } - {self.own_id}
        request = m.CountStagedRequest(
            table_id=table_id, writer=writer, batch_id=batch_id, attempts=list(attempts)
        )
        found = {}
        for broker in sorted(leaders | set(self._metadata.image.brokers) - {self.own_id}):
            try:
                answer = await self._peers.ask(broker, request, m.CountStagedResponse, channel="staged")
            except PeerLostError as error:
                if broker not in leaders:
                    continue
                raise KafkaError(ErrorCode.LEADER_NOT_AVAILABLE, error.message) from None
            _check(answer)
            found[broker] = {
                each.attempt: {Place.named(place): place.count for place in each.places}
                for each in answer.attempts
            }
        return found

    async def apply(
        self, leader: int, table_id: UUID, ledger: bytes, place: Place, written: dict[Place, int]
    ) -> None:
        """Have the bucket's leader write a decided batch; put the number of its chunks into `written`.

        Raises the leader's error, and KafkaError(LEADER_NOT_AVAILABLE).
        """
        self._turn += 1
        asked = place.counted(written.get(place, 0))
        try:
            answer = await self._peers.ask(
                leader,
                m.ApplyStagedRequest(table_id=table_id, ledger=ledger, place=asked),
                m.ApplyStagedResponse,
                channel=f"staged-{self._turn % _CHANNELS}",
                seconds=_APPLY_SECONDS,
            )
        except PeerLostError as error:
            raise KafkaError(ErrorCode.LEADER_NOT_AVAILABLE, error.message) from None
        if answer.written:
            written[place] = max(answer.written, written.get(place, 0))
        _check(answer)

    def replicas_of(self, topic: str, bucket: int) -> list[int]:
        """Return the other brokers that may lead a bucket next: its replicas in sync."""
        state = None if self.is_empty else self._metadata.state(topic, bucket)
        return [] if state is None else [broker for broker in state.isr if broker != self.own_id]

    async def keep(self, broker: int, request: m.KeepStagedRequest) -> None:
        """Have another replica keep a chunk. Raises its error, and KafkaError(LEADER_NOT_AVAILABLE)."""
        self._turn += 1
        try:
            answer = await self._peers.ask(
                broker, request, m.KeepStagedResponse, channel=f"staged-kept-{self._turn % _CHANNELS}"
            )
        except PeerLostError as error:
            raise KafkaError(ErrorCode.LEADER_NOT_AVAILABLE, error.message) from None
        _check(answer)

    async def hand_over(self, broker: int, request: m.HandOverStagedRequest) -> None:
        """Have a broker give its chunks to the leader of their place. Raises the errors of `keep`."""
        try:
            answer = await self._peers.ask(
                broker, request, m.HandOverStagedResponse, channel="staged", seconds=_APPLY_SECONDS
            )
        except PeerLostError as error:
            raise KafkaError(ErrorCode.LEADER_NOT_AVAILABLE, error.message) from None
        _check(answer)

    def without_answer(self, topic: str | None, place: Place, answered: Collection[int]) -> list[int]:
        """Return the replicas of a bucket that are not in `answered`."""
        state = None if self.is_empty or topic is None else self._metadata.state(topic, place.bucket)
        return [] if state is None else sorted({*state.replicas} - {*answered})

    async def drop(self, table_id: UUID, writer: str, batch_id: int, attempts: Sequence[str]) -> None:
        """Have other brokers forget attempts. A broker that is not reached forgets them after a day."""
        if self.is_empty:
            return
        request = m.DropStagedRequest(
            table_id=table_id, writer=writer, batch_id=batch_id, attempts=list(attempts)
        )
        for broker_id in sorted(set(self._metadata.image.brokers) - {self.own_id}):
            try:
                await self._peers.ask(
                    broker_id, request, m.DropStagedResponse, channel="staged", seconds=_DROP_SECONDS
                )
            except PeerLostError:
                continue


def _check(answer: m.TableResponse) -> None:
    """Raise the answer's error: TableError or KafkaError."""
    code, message = answer.error_code, answer.error_message or ""
    if code == ErrorCode.NONE:
        return
    if code >= TableErrorCode.DATABASE_NOT_FOUND:
        raise TableError(TableErrorCode(code), message)
    raise KafkaError(ErrorCode(code), message)
