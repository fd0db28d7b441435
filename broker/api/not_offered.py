"""Requests of Kafka's tools for what this server has not: known and refused, so never advertised.

Clients that go by ApiVersions say so themselves. Those that send all the same (by a configured version of Kafka, as
Sarama does) get UNSUPPORTED_VERSION with the reason; a closed connection would look like a broker that is lost.

| key | asks for |
|---|---|
| 55 DescribeQuorum | the Raft log of Kafka's controllers |
| 57 UpdateFeatures | levels of features, which are fixed here |
| 64 UnregisterBroker | brokers beside this one |
"""

from __future__ import annotations

from broker.requests.declaration import ApiDeclaration, RequestContext
from broker.security.requirement import whole
from broker.security.rights import Operation
from protocol.errors import ErrorCode, KafkaError
from protocol.messages.describe_quorum import DescribeQuorumRequest, DescribeQuorumResponse
from protocol.messages.unregister_broker import UnregisterBrokerRequest, UnregisterBrokerResponse
from protocol.messages.update_features import UpdateFeaturesRequest, UpdateFeaturesResponse
from protocol.schema import ApiMessage

REASONS: dict[type[ApiMessage], str] = {
    DescribeQuorumRequest: "there is no Raft quorum here: metadata are kept by this broker alone",
    UpdateFeaturesRequest: "the levels of features are fixed here",
    UnregisterBrokerRequest: "a broker is registered as long as it is alive, so there is nothing to take back",
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
        ApiDeclaration(
            UpdateFeaturesRequest, UpdateFeaturesResponse, _refuse, whole(Operation.ALTER), advertised=False
        ),
        ApiDeclaration(
            UnregisterBrokerRequest,
            UnregisterBrokerResponse,
            _refuse,
            whole(Operation.ALTER),
            advertised=False,
        ),
    ]


def _refuse(context: RequestContext, request: ApiMessage) -> None:
    raise KafkaError(ErrorCode.UNSUPPORTED_VERSION, REASONS[type(request)])
