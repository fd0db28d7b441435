"""InitProducerId (22): an id that no other producer ever had, for idempotence.

Transactions are not offered: a transactional id is refused with a code no client retries.
"""

from __future__ import annotations

from broker.extension import ApiDeclaration, BrokerContext, RequestContext
from protocol.errors import ErrorCode, KafkaError
from protocol.messages.init_producer_id import InitProducerIdRequest, InitProducerIdResponse


class ProducerIdsApi:
    def __init__(self, context: BrokerContext) -> None:
        self._allocate = context.allocate_producer_id

    def declarations(self) -> list[ApiDeclaration]:
        return [ApiDeclaration(InitProducerIdRequest, InitProducerIdResponse, self.init_producer_id)]

    async def init_producer_id(
        self, context: RequestContext, request: InitProducerIdRequest
    ) -> InitProducerIdResponse:
        if request.transactional_id is not None:
            raise KafkaError(ErrorCode.INVALID_REQUEST, "transactions are not offered by this broker")
        return InitProducerIdResponse(producer_id=await self._allocate(), producer_epoch=0)
