"""DescribeClientQuotas (48): which limits are set for users, clients and addresses.

None are, ever: this broker has no quotas, and AlterClientQuotas is not offered. The question is checked as
Kafka checks it, so that a tool hears what is wrong with it.
"""

from __future__ import annotations

from broker.requests.declaration import ApiDeclaration, RequestContext
from broker.security.requirement import whole
from broker.security.rights import Operation
from protocol.errors import ErrorCode, KafkaError
from protocol.messages.describe_client_quotas import (
    DescribeClientQuotasRequest,
    DescribeClientQuotasResponse,
)

_ENTITY_TYPES = ("user", "client-id", "ip")
_EXACT, _DEFAULT, _ANY = range(3)  # match types


class QuotasApi:
    def declarations(self) -> list[ApiDeclaration]:
        return [
            ApiDeclaration(
                DescribeClientQuotasRequest,
                DescribeClientQuotasResponse,
                self.describe,
                whole(Operation.DESCRIBE_CONFIGS),
                on_error=_failed,
            )
        ]

    def describe(
        self, context: RequestContext, request: DescribeClientQuotasRequest
    ) -> DescribeClientQuotasResponse:
        seen = set()
        for component in request.components:
            kind = component.entity_type
            if kind not in _ENTITY_TYPES:
                raise KafkaError(
                    ErrorCode.UNSUPPORTED_VERSION if kind else ErrorCode.INVALID_REQUEST,
                    f"entity type {kind!r} has no quotas; {', '.join(_ENTITY_TYPES)} have in Kafka",
                )
            if kind in seen:
                raise KafkaError(ErrorCode.INVALID_REQUEST, f"entity type {kind!r} is in the filter twice")
            seen.add(kind)
            if component.match_type not in (_EXACT, _DEFAULT, _ANY):
                raise KafkaError(
                    ErrorCode.INVALID_REQUEST,
                    f"match type {component.match_type} is unknown; 0 (exact), 1 (default), 2 (any) exist",
                )
            if (component.match is not None) != (component.match_type == _EXACT):
                raise KafkaError(
                    ErrorCode.INVALID_REQUEST,
                    f"a name for {kind!r} goes with an exact match, and only with it",
                )
        if "ip" in seen and len(seen) > 1:
            raise KafkaError(ErrorCode.INVALID_REQUEST, "the entity type 'ip' cannot be combined with others")
        return DescribeClientQuotasResponse(error_message=None, entries=[])


def _failed(
    request: DescribeClientQuotasRequest, version: int, error: KafkaError
) -> DescribeClientQuotasResponse:
    return DescribeClientQuotasResponse(error_code=error.code, error_message=error.message, entries=None)
