"""CreateDelegationToken (38), Renew (39), Expire (40) and Describe (41): see `broker.security.sasl.tokens`.

A client that authenticated with a token may not ask, as in Kafka. A token for another user needs CREATE_TOKENS on that
user; tokens of others are shown with DESCRIBE on the token or DESCRIBE_TOKENS on their owner.
"""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable
from concurrent.futures import Executor
from typing import Any, Final

from headrace.broker.requests.declaration import ApiDeclaration, RequestContext
from headrace.broker.runtime.ports import Clock, Entropy
from headrace.broker.runtime.slices import Work
from headrace.broker.security.principal import ANONYMOUS, Principal
from headrace.broker.security.requirement import within
from headrace.broker.security.rights import Operation, ResourceType
from headrace.broker.security.sasl.scram import ScramMechanism
from headrace.broker.security.sasl.tokens import DelegationToken, DelegationTokens
from headrace.protocol.errors import ErrorCode, KafkaError
from headrace.protocol.messages.create_delegation_token import (
    CreateDelegationTokenRequest,
    CreateDelegationTokenResponse,
)
from headrace.protocol.messages.describe_delegation_token import (
    DescribedDelegationToken,
    DescribedDelegationTokenRenewer,
    DescribeDelegationTokenRequest,
    DescribeDelegationTokenResponse,
)
from headrace.protocol.messages.expire_delegation_token import (
    ExpireDelegationTokenRequest,
    ExpireDelegationTokenResponse,
)
from headrace.protocol.messages.renew_delegation_token import (
    RenewDelegationTokenRequest,
    RenewDelegationTokenResponse,
)

RENEWERS_MAX: Final = 1000
"""Maximum number of renewers of one token."""
_NEVER: Final = -1


class DelegationTokensApi:
    """The handlers of the four APIs; see the module."""

    def __init__(self, tokens: DelegationTokens, clock: Clock, entropy: Entropy, executor: Executor) -> None:
        self._tokens = tokens
        self._clock = clock
        self._entropy = entropy
        self._executor = executor

    def declarations(self) -> list[ApiDeclaration]:
        authorize = within(
            delegation_token=Operation.DESCRIBE, user=(Operation.CREATE_TOKENS, Operation.DESCRIBE_TOKENS)
        )
        return [
            ApiDeclaration(
                CreateDelegationTokenRequest,
                CreateDelegationTokenResponse,
                self.create,
                authorize,
                on_error=_made_none,
            ),
            ApiDeclaration(
                RenewDelegationTokenRequest,
                RenewDelegationTokenResponse,
                self.renew,
                authorize,
                on_error=_not_renewed,
            ),
            ApiDeclaration(
                ExpireDelegationTokenRequest,
                ExpireDelegationTokenResponse,
                self.expire,
                authorize,
                on_error=_not_expired,
            ),
            ApiDeclaration(
                DescribeDelegationTokenRequest, DescribeDelegationTokenResponse, self.describe, authorize
            ),
        ]

    def create(
        self, context: RequestContext, request: CreateDelegationTokenRequest
    ) -> Awaitable[CreateDelegationTokenResponse]:
        requester = context.principal
        owner = requester
        if request.owner_principal_name:
            owner = Principal(request.owner_principal_type or "", request.owner_principal_name)
        self._admit(context)
        if owner != requester:
            context.require(Operation.CREATE_TOKENS, ResourceType.USER, str(owner))
        if not self._tokens.are_enabled:
            raise KafkaError(ErrorCode.DELEGATION_TOKEN_AUTH_DISABLED)
        if len(request.renewers) > RENEWERS_MAX:
            raise KafkaError(ErrorCode.INVALID_REQUEST, f"a token has at most {RENEWERS_MAX} renewers")
        renewers = tuple(
            Principal(renewer.principal_type, renewer.principal_name) for renewer in request.renewers
        )
        if any(renewer.type != "User" for renewer in renewers):
            raise KafkaError(ErrorCode.INVALID_PRINCIPAL_TYPE)
        return self._create(owner, requester, renewers, request.max_lifetime_ms)

    async def _create(
        self,
        owner: Principal,
        requester: Principal,
        renewers: tuple[Principal, ...],
        max_lifetime_ms: int,
    ) -> CreateDelegationTokenResponse:
        token = await asyncio.get_running_loop().run_in_executor(
            self._executor,
            self._tokens.new,
            self._entropy.uuid().hex,
            {mechanism: self._entropy.uuid().int for mechanism in ScramMechanism},
            owner,
            requester,
            renewers,
            max_lifetime_ms,
            self._clock.time_ms(),
        )
        await self._tokens.keep(token)
        return CreateDelegationTokenResponse(
            error_code=ErrorCode.NONE,
            principal_type=owner.type,
            principal_name=owner.name,
            token_requester_principal_type=requester.type,
            token_requester_principal_name=requester.name,
            issue_timestamp_ms=token.issued_ms,
            expiry_timestamp_ms=token.expires_ms,
            max_timestamp_ms=token.max_ms,
            token_id=token.token_id,
            hmac=self._tokens.secret(token.token_id),
        )

    async def renew(
        self, context: RequestContext, request: RenewDelegationTokenRequest
    ) -> RenewDelegationTokenResponse:
        self._admit(context)
        expires_ms = await self._tokens.renew(
            bytes(request.hmac), request.renew_period_ms, context.principal, self._clock.time_ms()
        )
        return RenewDelegationTokenResponse(error_code=ErrorCode.NONE, expiry_timestamp_ms=expires_ms)

    async def expire(
        self, context: RequestContext, request: ExpireDelegationTokenRequest
    ) -> ExpireDelegationTokenResponse:
        self._admit(context)
        expires_ms = await self._tokens.expire(
            bytes(request.hmac), request.expiry_time_period_ms, context.principal, self._clock.time_ms()
        )
        return ExpireDelegationTokenResponse(error_code=ErrorCode.NONE, expiry_timestamp_ms=expires_ms)

    def describe(
        self, context: RequestContext, request: DescribeDelegationTokenRequest
    ) -> Work[DescribeDelegationTokenResponse]:
        """Return the tokens of the named owners (None: of all) that the requester may see."""
        self._admit(context)
        if not self._tokens.are_enabled:
            raise KafkaError(ErrorCode.DELEGATION_TOKEN_AUTH_DISABLED)
        owners = None
        if request.owners is not None:
            owners = {Principal(owner.principal_type, owner.principal_name) for owner in request.owners}
        found = []
        for token in self._tokens.all():
            parties = {token.owner, token.requester, *token.renewers}
            if (owners is None or owners & parties) and self._may_see(context, token):
                found.append(self._described(token))
            yield
        return DescribeDelegationTokenResponse(error_code=ErrorCode.NONE, tokens=found)

    def _may_see(self, context: RequestContext, token: DelegationToken) -> bool:
        return (
            token.is_of(context.principal)
            or context.may(Operation.DESCRIBE, ResourceType.DELEGATION_TOKEN, token.token_id)
            or context.may(Operation.DESCRIBE_TOKENS, ResourceType.USER, str(token.owner))
        )

    def _described(self, token: DelegationToken) -> DescribedDelegationToken:
        return DescribedDelegationToken(
            principal_type=token.owner.type,
            principal_name=token.owner.name,
            token_requester_principal_type=token.requester.type,
            token_requester_principal_name=token.requester.name,
            issue_timestamp=token.issued_ms,
            expiry_timestamp=token.expires_ms,
            max_timestamp=token.max_ms,
            token_id=token.token_id,
            hmac=self._tokens.secret(token.token_id),
            renewers=[
                DescribedDelegationTokenRenewer(principal_type=renewer.type, principal_name=renewer.name)
                for renewer in token.renewers
            ],
        )

    @staticmethod
    def _admit(context: RequestContext) -> None:
        """Raises KafkaError if the client is anonymous or authenticated with a token."""
        session = context.session
        if session.by_token or not session.mechanism or session.principal == ANONYMOUS:
            raise KafkaError(ErrorCode.DELEGATION_TOKEN_REQUEST_NOT_ALLOWED)


def _made_none(
    request: CreateDelegationTokenRequest, version: int, error: KafkaError
) -> CreateDelegationTokenResponse:
    return CreateDelegationTokenResponse(
        error_code=error.code,
        principal_type=request.owner_principal_type or "",
        principal_name=request.owner_principal_name or "",
        issue_timestamp_ms=_NEVER,
        expiry_timestamp_ms=_NEVER,
        max_timestamp_ms=_NEVER,
    )


def _not_renewed(request: Any, version: int, error: KafkaError) -> RenewDelegationTokenResponse:
    return RenewDelegationTokenResponse(error_code=error.code, expiry_timestamp_ms=_NEVER)


def _not_expired(request: Any, version: int, error: KafkaError) -> ExpireDelegationTokenResponse:
    return ExpireDelegationTokenResponse(error_code=error.code, expiry_timestamp_ms=_NEVER)
