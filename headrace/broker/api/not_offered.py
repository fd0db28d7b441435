"""Requests of Kafka's tools for features that this server does not have: known, refused and never advertised.

Clients that use ApiVersions report it themselves. Clients that send anyway (by a configured version of Kafka, as Sarama
does) get UNSUPPORTED_VERSION with the reason; a closed connection would look like a lost broker.

| key | asks for |
|---|---|
| 55 DescribeQuorum | the Raft log of Kafka's controllers |
"""

from __future__ import annotations

from headrace.broker.requests.declaration import ApiDeclaration, RequestContext
from headrace.broker.security.requirement import whole
from headrace.broker.security.rights import Operation
from headrace.protocol.errors import ErrorCode, KafkaError
from headrace.protocol.messages.describe_quorum import DescribeQuorumRequest, DescribeQuorumResponse
from headrace.protocol.schema import ApiMessage

REASONS: dict[type[ApiMessage], str] = {
    DescribeQuorumRequest: "there is no Raft quorum: metadata are kept in ZooKeeper, or by this broker alone",
}


def declarations() -> list[ApiDeclaration]:
    return [
        ApiDeclaration(
            DescribeQuorumRequest,
            DescribeQuorumResponse,
            _refuse,
            whole(Operation.DESCRIBE),
            advertised=False,
        ),
    ]


def _refuse(context: RequestContext, request: ApiMessage) -> None:
    raise KafkaError(ErrorCode.UNSUPPORTED_VERSION, REASONS[type(request)])
