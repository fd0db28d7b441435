"""FindCoordinator: the broker that coordinates a group or a transactional id."""

from __future__ import annotations

from collections.abc import Awaitable
from typing import TYPE_CHECKING, Any

from headrace.broker.cluster.endpoints import endpoint
from headrace.broker.requests.declaration import ApiDeclaration, RequestContext
from headrace.broker.runtime.slices import Work
from headrace.broker.security.requirement import within
from headrace.broker.security.rights import Operation, ResourceType, denied
from headrace.protocol.errors import ErrorCode, KafkaError
from headrace.protocol.messages.find_coordinator import (
    Coordinator,
    FindCoordinatorRequest,
    FindCoordinatorResponse,
)

if TYPE_CHECKING:
    from headrace.broker.cluster.journal_topic import JournalTopic
    from headrace.broker.metadata.cluster import ClusterMetadata
    from headrace.broker.metadata.identity import BrokerIdentity

GROUP_KEY_TYPE = 0
TRANSACTION_KEY_TYPE = 1
_KEY_TYPES = {GROUP_KEY_TYPE: ResourceType.GROUP, TRANSACTION_KEY_TYPE: ResourceType.TRANSACTIONAL_ID}


class FindingHandlers:
    """FindCoordinator of one broker. `groups` and `transactions` are the journals of the two coordinators."""

    def __init__(
        self,
        groups: JournalTopic,
        transactions: JournalTopic,
        metadata: ClusterMetadata,
        identity: BrokerIdentity,
    ) -> None:
        self._journals = {GROUP_KEY_TYPE: groups, TRANSACTION_KEY_TYPE: transactions}
        self._metadata = metadata
        self._identity = identity

    def declarations(self) -> list[ApiDeclaration]:
        return [
            ApiDeclaration(
                FindCoordinatorRequest,
                FindCoordinatorResponse,
                self.find_coordinator,
                within(group=Operation.DESCRIBE, transactional_id=Operation.DESCRIBE),
                on_error=_failed_find,
            ),
        ]

    def find_coordinator(
        self, context: RequestContext, request: FindCoordinatorRequest
    ) -> Work[FindCoordinatorResponse | Awaitable[Any]]:
        """Return the leaders of the keys' journal partitions. The first authorized request creates the journal."""
        keys = request.coordinator_keys if context.api_version >= 4 else [request.key]
        found, is_used = [], False
        for key in keys:
            yield
            found.append(self._coordinator_for(context, key, request.key_type))
            is_used = is_used or not found[-1].error_code
        journal = self._journals.get(request.key_type)
        if journal is not None and not journal.partitions and is_used:
            return self._with_topic(context, request, journal)
        return _find_response(found, context.api_version)

    async def _with_topic(
        self, context: RequestContext, request: FindCoordinatorRequest, journal: JournalTopic
    ) -> Work[FindCoordinatorResponse | Awaitable[Any]]:
        await journal.ensure()
        return self.find_coordinator(context, request)

    def _coordinator_for(self, context: RequestContext, key: str, key_type: int) -> Coordinator:
        resource_type = _KEY_TYPES.get(key_type)
        if resource_type is not None:
            if not context.may(Operation.DESCRIBE, resource_type, key):
                refusal = denied(resource_type)
                return _no_coordinator(key, refusal.code, refusal.message)
            journal, own = self._journals[key_type], self._identity.broker_id
            leader = (
                self._metadata.leader(journal.name, journal.index_of(key)) if journal.partitions else None
            )
            leader_id = leader.broker_id if leader is not None else -1 if journal.partitions else own
            found = endpoint(self._metadata, self._identity, leader_id, context.listener)
            if found is None:
                return _no_coordinator(
                    key,
                    ErrorCode.COORDINATOR_NOT_AVAILABLE,
                    f"no live broker leads the partition of {journal.name} for {key}",
                )
            return Coordinator(key=key, node_id=leader_id, host=found["host"], port=found["port"])
        message = f"unknown coordinator key type {key_type}; 0 is a consumer group, 1 a transactional id"
        return _no_coordinator(key, ErrorCode.INVALID_REQUEST, message)


def _failed_find(
    request: FindCoordinatorRequest, version: int, error: KafkaError
) -> Work[FindCoordinatorResponse]:
    keys = request.coordinator_keys if version >= 4 else [request.key]
    found = []
    for key in keys:
        yield
        found.append(_no_coordinator(key, error.code, error.message))
    return _find_response(found, version)


def _find_response(found: list[Coordinator], version: int) -> FindCoordinatorResponse:
    if version >= 4:
        return FindCoordinatorResponse(coordinators=found)
    one = found[0]
    return FindCoordinatorResponse(
        error_code=one.error_code,
        error_message=one.error_message,
        node_id=one.node_id,
        host=one.host,
        port=one.port,
    )


def _no_coordinator(key: str, error: ErrorCode, message: str) -> Coordinator:
    return Coordinator(key=key, node_id=-1, host="", port=-1, error_code=error, error_message=message)
