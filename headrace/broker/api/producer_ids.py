"""InitProducerId (22): a new producer id, for idempotence, or the id and next epoch of a transactional id, which fences
its earlier owners (rules P1, T1).
"""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable

from msgspec.structs import replace

from headrace.broker.requests.declaration import ApiDeclaration, RequestContext
from headrace.broker.security.requirement import within
from headrace.broker.security.rights import CLUSTER_NAME, Operation, ResourceType
from headrace.broker.transactions.coordinator import TransactionCoordinator
from headrace.broker.transactions.events import InitProducer
from headrace.broker.transactions.state import needs_producer_id
from headrace.protocol.errors import ErrorCode
from headrace.protocol.messages.init_producer_id import InitProducerIdRequest, InitProducerIdResponse

_FIRST_VERSION_WITH_FENCED = 4


class ProducerIdsApi:
    def __init__(
        self, transactions: TransactionCoordinator, allocate_producer_id: Callable[[], Awaitable[int]]
    ) -> None:
        self._allocate = allocate_producer_id
        self._transactions = transactions

    def declarations(self) -> list[ApiDeclaration]:
        return [
            ApiDeclaration(
                InitProducerIdRequest,
                InitProducerIdResponse,
                self.init_producer_id,
                within(
                    transactional_id=Operation.WRITE,
                    cluster=Operation.IDEMPOTENT_WRITE,
                    topic=Operation.WRITE,
                ),
                on_error=lambda request, version, error: _refused(error.code),
            )
        ]

    async def init_producer_id(
        self, context: RequestContext, request: InitProducerIdRequest
    ) -> InitProducerIdResponse:
        transactional_id = request.transactional_id
        if transactional_id is None:
            if not context.may(
                Operation.IDEMPOTENT_WRITE, ResourceType.CLUSTER, CLUSTER_NAME, audited=False
            ) and not context.may_any(Operation.WRITE, ResourceType.TOPIC):
                context.require(Operation.IDEMPOTENT_WRITE, ResourceType.CLUSTER, CLUSTER_NAME)
            return InitProducerIdResponse(producer_id=await self._allocate(), producer_epoch=0)
        has_id, has_epoch = request.producer_id >= 0, request.producer_epoch >= 0
        context.require(Operation.WRITE, ResourceType.TRANSACTIONAL_ID, transactional_id)
        if not transactional_id or has_id != has_epoch:
            return _refused(ErrorCode.INVALID_REQUEST)
        coordinator = self._transactions
        await coordinator.journal.ensure()
        error = coordinator.unavailable(transactional_id)
        if error is not ErrorCode.NONE:
            return _refused(error)
        expected = (request.producer_id, request.producer_epoch) if has_id else None
        event = InitProducer(0, request.transaction_timeout_ms, expected)
        if needs_producer_id(coordinator.transaction(transactional_id), event):
            event = InitProducer(0, request.transaction_timeout_ms, expected, await self._allocate())
        outcome = coordinator.submit(
            transactional_id, lambda token: replace(event, token=token), lambda result: result
        )
        result = await outcome if isinstance(outcome, asyncio.Future) else outcome
        if result.error is ErrorCode.PRODUCER_FENCED and context.api_version < _FIRST_VERSION_WITH_FENCED:
            return _refused(ErrorCode.INVALID_PRODUCER_EPOCH)
        return InitProducerIdResponse(
            error_code=result.error, producer_id=result.producer_id, producer_epoch=result.producer_epoch
        )


def _refused(error: ErrorCode) -> InitProducerIdResponse:
    return InitProducerIdResponse(error_code=error, producer_id=-1, producer_epoch=-1)
