"""What the broker that decides about staged rows asks of those that have some of them.

A broker has the chunks of the buckets that it leads; whoever leads the table's first bucket decides. What may be asked
again is asked with the decision itself, so that it has the same effect.
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
from headrace.tablelayer.model.table.definition import TableDefinition
from headrace.tablelayer.server.staged.staging import Place

if TYPE_CHECKING:
    from headrace.broker.context import BrokerContext

_ITSELF: Final = UUID(int=0)
_CHANNELS: Final = 4
"""Buckets of one broker that are written at the same time."""
_APPLY_SECONDS: Final = 300.0
_DROP_SECONDS: Final = 5.0

Staged = dict[str, dict[Place, int]]
"""Chunks by attempt and place."""


class OtherBrokers:
    """See the module's contract."""

    def __init__(self, context: BrokerContext) -> None:
        self.own_id = context.identity.broker_id
        self._metadata = context.metadata
        self._peers = context.peers
        self._turn = 0

    @property
    def are_none(self) -> bool:
        return self._metadata.is_alone

    def decides(self, definition: TableDefinition) -> bool:
        """Whether this broker leads the table's first bucket."""
        return self.are_none or self.leader_of(definition.path.topic, 0) is None

    def check_decides(self, definition: TableDefinition) -> None:
        """Raises KafkaError(NOT_LEADER_OR_FOLLOWER)."""
        if not self.decides(definition):
            raise KafkaError(
                ErrorCode.NOT_LEADER_OR_FOLLOWER,
                f"staged rows of {definition.path} are committed where its first bucket is led, which is not here",
            )

    def leader_of(self, topic: str | None, place: Place) -> int | None:
        """The other broker that leads a bucket, NO_LEADER for nobody; None if it is this one."""
        if self.are_none:
            return None
        bucket = place if isinstance(place, int) else place[1]
        state = None if topic is None else self._metadata.state(topic, bucket)
        leader = NO_LEADER if state is None else state.leader
        return None if leader == self.own_id else leader

    async def counted(
        self, topics: Sequence[str], table_id: UUID, writer: str, batch_id: int, attempts: Sequence[str]
    ) -> dict[int, Staged]:
        """What each of the others has that is alive, whoever led when it was staged. Raises
        KafkaError(LEADER_NOT_AVAILABLE) if one does not say that leads something of these topics, or something has no
        leader.
        """
        if self.are_none:
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
                each.attempt: {_place(place): place.count for place in each.places}
                for each in answer.attempts
            }
        return found

    async def apply(
        self, leader: int, table_id: UUID, ledger: bytes, place: Place, written: dict[Place, int]
    ) -> None:
        """Have what is decided written by the bucket's leader; counts in `written`. Raises what that has raised, and
        KafkaError(LEADER_NOT_AVAILABLE).
        """
        self._turn += 1
        partition, bucket = (_ITSELF, place) if isinstance(place, int) else place
        asked = m.StagedPlace(partition_id=partition, bucket=bucket, count=written.get(place, 0))
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
        """The other brokers that may lead a bucket next."""
        state = None if self.are_none else self._metadata.state(topic, bucket)
        return [] if state is None else [broker for broker in state.isr if broker != self.own_id]

    async def keep(self, broker: int, request: m.KeepStagedRequest) -> None:
        """Have another replica keep a chunk. Raises what that has raised, and KafkaError(LEADER_NOT_AVAILABLE)."""
        self._turn += 1
        try:
            answer = await self._peers.ask(
                broker, request, m.KeepStagedResponse, channel=f"staged-kept-{self._turn % _CHANNELS}"
            )
        except PeerLostError as error:
            raise KafkaError(ErrorCode.LEADER_NOT_AVAILABLE, error.message) from None
        _check(answer)

    async def hand_over(self, broker: int, request: m.HandOverStagedRequest) -> None:
        """Have a broker give its chunks to the one that leads their place. Raises as `keep`."""
        try:
            answer = await self._peers.ask(
                broker, request, m.HandOverStagedResponse, channel="staged", seconds=_APPLY_SECONDS
            )
        except PeerLostError as error:
            raise KafkaError(ErrorCode.LEADER_NOT_AVAILABLE, error.message) from None
        _check(answer)

    def unheard(self, topic: str | None, place: Place, heard: Collection[int]) -> list[int]:
        """Replicas of a bucket that are not among these."""
        bucket = place if isinstance(place, int) else place[1]
        state = None if self.are_none or topic is None else self._metadata.state(topic, bucket)
        return [] if state is None else sorted({*state.replicas} - {*heard})

    async def drop(self, table_id: UUID, writer: str, batch_id: int, attempts: Sequence[str]) -> None:
        """Nobody needs this any more; who does not hear it forgets it after a day."""
        if self.are_none:
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


def _place(told: m.StagedPlace) -> Place:
    return (told.partition_id, told.bucket) if told.partition_id.int else told.bucket


def _check(answer: m.TableResponse) -> None:
    """Raises TableError, KafkaError."""
    code, message = answer.error_code, answer.error_message or ""
    if code == ErrorCode.NONE:
        return
    if code >= TableErrorCode.DATABASE_NOT_FOUND:
        raise TableError(TableErrorCode(code), message)
    raise KafkaError(ErrorCode(code), message)
