"""What clients ask about security, answered as Kafka does where none is set up.

SaslHandshake (17), SaslAuthenticate (36):
connections are not authenticated, so there is nothing to shake hands about. DescribeUserScramCredentials (50): nobody
has any. Delegation tokens (38-41) stand for a principal, and there are none.
"""

from __future__ import annotations

from typing import Final

from broker.requests.declaration import ApiDeclaration, RequestContext
from broker.security.requirement import public, whole, within
from broker.security.rights import Operation
from protocol.errors import ErrorCode, KafkaError
from protocol.messages.create_delegation_token import (
    CreateDelegationTokenRequest,
    CreateDelegationTokenResponse,
)
from protocol.messages.describe_delegation_token import (
    DescribeDelegationTokenRequest,
    DescribeDelegationTokenResponse,
)
from protocol.messages.describe_user_scram_credentials import (
    DescribeUserScramCredentialsRequest,
    DescribeUserScramCredentialsResponse,
    DescribeUserScramCredentialsResult,
)
from protocol.messages.expire_delegation_token import (
    ExpireDelegationTokenRequest,
    ExpireDelegationTokenResponse,
)
from protocol.messages.renew_delegation_token import RenewDelegationTokenRequest, RenewDelegationTokenResponse
from protocol.messages.sasl_authenticate import SaslAuthenticateRequest, SaslAuthenticateResponse
from protocol.messages.sasl_handshake import SaslHandshakeRequest, SaslHandshakeResponse
from protocol.schema import ApiMessage

_NEVER: Final = -1


class SecurityApi:
    def declarations(self) -> list[ApiDeclaration]:
        return [
            ApiDeclaration(SaslHandshakeRequest, SaslHandshakeResponse, self.handshake, public()),
            ApiDeclaration(SaslAuthenticateRequest, SaslAuthenticateResponse, self.authenticate, public()),
            *(
                ApiDeclaration(
                    request,
                    response,
                    self.token,
                    within(
                        delegation_token=Operation.DESCRIBE,
                        user=(Operation.CREATE_TOKENS, Operation.DESCRIBE_TOKENS),
                    ),
                )
                for request, response in _OF_TOKENS.items()
            ),
            ApiDeclaration(
                DescribeUserScramCredentialsRequest,
                DescribeUserScramCredentialsResponse,
                self.describe_scram,
                whole(Operation.DESCRIBE),
            ),
        ]

    def handshake(self, context: RequestContext, request: SaslHandshakeRequest) -> SaslHandshakeResponse:
        return SaslHandshakeResponse(error_code=ErrorCode.ILLEGAL_SASL_STATE, mechanisms=[])

    def authenticate(
        self, context: RequestContext, request: SaslAuthenticateRequest
    ) -> SaslAuthenticateResponse:
        raise KafkaError(
            ErrorCode.ILLEGAL_SASL_STATE,
            "connections are not authenticated here; use security.protocol=PLAINTEXT",
        )

    def token(self, context: RequestContext, request: ApiMessage) -> ApiMessage:
        response = _OF_TOKENS[type(request)](error_code=ErrorCode.DELEGATION_TOKEN_REQUEST_NOT_ALLOWED)
        for name in response.FIELDS:
            if name.endswith("timestamp_ms"):
                setattr(response, name, _NEVER)
        return response

    def describe_scram(
        self, context: RequestContext, request: DescribeUserScramCredentialsRequest
    ) -> DescribeUserScramCredentialsResponse:
        """Of all users: nothing; of those who are named: that they have none."""
        results = [
            DescribeUserScramCredentialsResult(
                user=user.name,
                error_code=ErrorCode.RESOURCE_NOT_FOUND,
                error_message=f"Attempt to describe a user credential that does not exist: {user.name}",
            )
            for user in request.users or ()
        ]
        return DescribeUserScramCredentialsResponse(error_message=None, results=results)


_OF_TOKENS: Final[dict[type[ApiMessage], type[ApiMessage]]] = {
    CreateDelegationTokenRequest: CreateDelegationTokenResponse,
    RenewDelegationTokenRequest: RenewDelegationTokenResponse,
    ExpireDelegationTokenRequest: ExpireDelegationTokenResponse,
    DescribeDelegationTokenRequest: DescribeDelegationTokenResponse,
}
