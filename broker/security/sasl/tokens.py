"""Delegation tokens (KIP-48): an id and a secret that stand for a principal for some time, used with SCRAM.

The secret is HMAC-SHA512 of the id under `delegation.token.secret.key`, so it is not kept: a node
`/security/tokens/<id>` has whose the token is, its times, and SCRAM credentials whose password is the secret in base
64. One that was made under another key is not known any more.

Decisions are Kafka's (DelegationTokenControlManager).
"""

from __future__ import annotations

import base64
import contextlib
import hmac
import json
import logging
from collections.abc import Callable, Mapping
from typing import Any, Final

import msgspec
from msgspec.structs import replace

from broker.cluster.nodes import modify
from broker.ports import CoordinationStore, CreateNode, NodeExistsError
from broker.security.principal import Principal
from broker.security.sasl.scram import (
    BY_NAME,
    ITERATIONS_MIN,
    ScramCredential,
    ScramMechanism,
    credential_of,
    salt_text,
    salted_password,
)
from broker.security.sasl.users import decode_credential, encode_credential
from protocol.errors import ErrorCode, KafkaError

logger = logging.getLogger("headrace.security")

ROOT: Final = "/security/tokens"
_LONG_MAX: Final = (1 << 63) - 1


class DelegationToken(msgspec.Struct, frozen=True):
    """One token. Times are wall clock milliseconds; it is good until the earlier of the last two."""

    token_id: str
    owner: Principal
    requester: Principal
    renewers: tuple[Principal, ...]
    issued_ms: int
    max_ms: int
    expires_ms: int
    credentials: dict[ScramMechanism, ScramCredential]

    @property
    def ends_ms(self) -> int:
        return min(self.max_ms, self.expires_ms)

    def is_of(self, principal: Principal) -> bool:
        """As its owner, as who asked for it, or as a renewer."""
        return principal in (self.owner, self.requester, *self.renewers)

    def may_be_renewed_by(self, principal: Principal) -> bool:
        return principal == self.owner or principal in self.renewers


class DelegationTokens:
    """See the module's contract. `load` before anything else."""

    def __init__(
        self,
        store: CoordinationStore,
        secret_key: str | None,
        max_lifetime_ms: Callable[[], int],
        expiry_time_ms: Callable[[], int],
    ) -> None:
        """Without a `secret_key` there are none."""
        self._store = store
        self._key = secret_key.encode() if secret_key else None
        self._max_lifetime_ms = max_lifetime_ms
        self._expiry_time_ms = expiry_time_ms
        self._tokens: dict[str, DelegationToken] = {}
        self._by_secret: dict[bytes, str] = {}

    @property
    def are_enabled(self) -> bool:
        return self._key is not None

    async def load(self) -> None:
        """Read all that is there; also when others may have changed it."""
        if self._key is None:
            return
        if await self._store.get(ROOT) is None:
            with contextlib.suppress(NodeExistsError):
                await self._store.transact([CreateNode(ROOT)])
        tokens, foreign = {}, 0
        for token_id in await self._store.children(ROOT):
            node = await self._store.get(f"{ROOT}/{token_id}")
            token = None if node is None else self._decoded(token_id, node.data)
            if token is not None:
                tokens[token_id] = token
            foreign += node is not None and token is None
        if foreign:
            logger.warning(
                "%d delegation tokens are of another delegation.token.secret.key: unknown", foreign
            )
        self._tokens = tokens
        self._by_secret = {self.secret(token_id): token_id for token_id in tokens}

    def secret(self, token_id: str) -> bytes:
        """Its HMAC."""
        if self._key is None:
            raise KafkaError(ErrorCode.DELEGATION_TOKEN_AUTH_DISABLED)
        return hmac.digest(self._key, token_id.encode(), "sha512")

    def all(self) -> list[DelegationToken]:
        return [self._tokens[token_id] for token_id in sorted(self._tokens)]

    def find(self, token_id: str) -> DelegationToken | None:
        return self._tokens.get(token_id)

    def new(
        self,
        token_id: str,
        salts: Mapping[ScramMechanism, int],
        owner: Principal,
        requester: Principal,
        renewers: tuple[Principal, ...],
        max_lifetime_ms: int,
        now_ms: int,
    ) -> DelegationToken:
        """A token to `keep`. Takes some milliseconds, and may be called in a thread. `max_lifetime_ms` above 0 is what
        is asked for; `salts` are random numbers.
        """
        most_ms = self._max_lifetime_ms()
        if max_lifetime_ms > 0:
            most_ms = min(most_ms, max_lifetime_ms)
        max_ms = min(now_ms + most_ms, _LONG_MAX)
        expires_ms = min(max_ms, now_ms + self._expiry_time_ms())
        password = base64.b64encode(self.secret(token_id)).decode()
        credentials = {}
        for mechanism, number in salts.items():
            salt = salt_text(number)
            salted = salted_password(mechanism, password, salt, ITERATIONS_MIN)
            credentials[mechanism] = credential_of(mechanism, salted, salt, ITERATIONS_MIN)
        return DelegationToken(token_id, owner, requester, renewers, now_ms, max_ms, expires_ms, credentials)

    async def keep(self, token: DelegationToken) -> None:
        await self._store.transact([CreateNode(f"{ROOT}/{token.token_id}", self._encoded(token))])
        self._remember(token)

    async def renew(self, secret: bytes, period_ms: int, principal: Principal, now_ms: int) -> int:
        """Until when it is good from now on. Raises KafkaError."""
        token = self._renewable(secret, principal, now_ms, expired_first=True)
        period_ms = min(period_ms, self._expiry_time_ms()) if period_ms > 0 else self._expiry_time_ms()
        return await self._set_expiry(token, min(token.max_ms, now_ms + period_ms))

    async def expire(self, secret: bytes, period_ms: int, principal: Principal, now_ms: int) -> int:
        """Let it end after `period_ms`, at once if that is negative; when that is. Raises KafkaError."""
        token = self._renewable(secret, principal, now_ms, expired_first=False, at_once=period_ms < 0)
        if period_ms < 0:
            await self._remove(token)
            return now_ms
        return await self._set_expiry(token, min(token.max_ms, now_ms + period_ms))

    async def sweep(self, now_ms: int) -> None:
        """Forget those that have ended."""
        for token in self.all():
            if token.ends_ms < now_ms:
                await self._remove(token)

    def _renewable(
        self,
        secret: bytes,
        principal: Principal,
        now_ms: int,
        *,
        expired_first: bool,
        at_once: bool = False,
    ) -> DelegationToken:
        if self._key is None:
            raise KafkaError(ErrorCode.DELEGATION_TOKEN_AUTH_DISABLED)
        token_id = self._by_secret.get(secret)
        token = None if token_id is None else self._tokens.get(token_id)
        if token is None:
            raise KafkaError(ErrorCode.DELEGATION_TOKEN_NOT_FOUND)
        has_ended = token.ends_ms < now_ms and not at_once
        if has_ended and expired_first:
            raise KafkaError(ErrorCode.DELEGATION_TOKEN_EXPIRED)
        if not token.may_be_renewed_by(principal):
            raise KafkaError(ErrorCode.DELEGATION_TOKEN_OWNER_MISMATCH)
        if has_ended:
            raise KafkaError(ErrorCode.DELEGATION_TOKEN_EXPIRED)
        return token

    async def _set_expiry(self, token: DelegationToken, expires_ms: int) -> int:
        changed = replace(token, expires_ms=expires_ms)
        stored = await modify(
            self._store,
            f"{ROOT}/{token.token_id}",
            lambda data: None if data is None else self._encoded(changed),
        )
        if stored is None:
            self._forget(token)
            raise KafkaError(ErrorCode.DELEGATION_TOKEN_NOT_FOUND)
        self._remember(changed)
        return expires_ms

    async def _remove(self, token: DelegationToken) -> None:
        await modify(self._store, f"{ROOT}/{token.token_id}", lambda data: None)
        self._forget(token)

    def _remember(self, token: DelegationToken) -> None:
        self._tokens[token.token_id] = token
        self._by_secret[self.secret(token.token_id)] = token.token_id

    def _forget(self, token: DelegationToken) -> None:
        self._tokens.pop(token.token_id, None)
        self._by_secret.pop(self.secret(token.token_id), None)

    def _encoded(self, token: DelegationToken) -> bytes:
        return json.dumps(
            {
                "owner": _pair(token.owner),
                "requester": _pair(token.requester),
                "renewers": [_pair(renewer) for renewer in token.renewers],
                "issuedMs": token.issued_ms,
                "maxMs": token.max_ms,
                "expiresMs": token.expires_ms,
                "key": self._fingerprint(token.token_id),
                "credentials": {
                    mechanism.sasl_name: encode_credential(credential)
                    for mechanism, credential in token.credentials.items()
                },
            }
        ).encode()

    def _decoded(self, token_id: str, data: bytes) -> DelegationToken | None:
        """None: of another key."""
        fields: dict[str, Any] = json.loads(data)
        if not hmac.compare_digest(fields["key"], self._fingerprint(token_id)):
            return None
        return DelegationToken(
            token_id,
            Principal(*fields["owner"]),
            Principal(*fields["requester"]),
            tuple(Principal(*pair) for pair in fields["renewers"]),
            fields["issuedMs"],
            fields["maxMs"],
            fields["expiresMs"],
            {
                BY_NAME[name]: decode_credential(credential)
                for name, credential in fields["credentials"].items()
            },
        )

    def _fingerprint(self, token_id: str) -> str:
        """Tells which key a token was made under, and nothing else."""
        return hmac.digest(self.secret(token_id), b"fingerprint", "sha256").hex()[:16]


def _pair(principal: Principal) -> tuple[str, str]:
    return principal.type, principal.name
