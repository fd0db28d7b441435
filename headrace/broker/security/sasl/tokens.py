"""Delegation tokens (KIP-48): an id and a secret that stand for a principal for some time, used with SCRAM.

The secret is the HMAC-SHA512 of the id with `delegation.token.secret.key`, so it is not stored. A node
`/security/tokens/<id>` has the token's owner, its times, and SCRAM credentials whose password is the secret in base 64.
A token that was made with another key is not valid any more. Every change changes the root node, so all brokers that
share the store and the key know the same tokens (`security/followed.py`).

Decisions are Kafka's (DelegationTokenControlManager).
"""

from __future__ import annotations

import base64
import hmac
import json
import logging
from collections.abc import Callable, Mapping
from typing import Any, Final

import msgspec
from msgspec.structs import replace

from headrace.broker.runtime.ports import CoordinationStore, CreateNode, DeleteNode, SetNode, StoreOperation
from headrace.broker.security.followed import OVERTAKEN, Followed
from headrace.broker.security.principal import Principal
from headrace.broker.security.sasl.scram import (
    BY_NAME,
    ITERATIONS_MIN,
    ScramCredential,
    ScramMechanism,
    credential_of,
    salt_text,
    salted_password,
)
from headrace.broker.security.sasl.users import decode_credential, encode_credential
from headrace.protocol.errors import ErrorCode, KafkaError

logger = logging.getLogger("headrace.security")

ROOT: Final = "/security/tokens"
_LONG_MAX: Final = (1 << 63) - 1
_ATTEMPTS: Final = 10


class DelegationToken(msgspec.Struct, frozen=True):
    """One token. Times are wall clock milliseconds; it is valid until the earlier of the last two."""

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
        """Return whether the principal is the token's owner, its requester, or a renewer."""
        return principal in (self.owner, self.requester, *self.renewers)

    def may_be_renewed_by(self, principal: Principal) -> bool:
        return principal == self.owner or principal in self.renewers


class DelegationTokens(Followed):
    """The tokens of a broker; see the module. Call `load` before anything else, and `run` to follow other brokers."""

    def __init__(
        self,
        store: CoordinationStore,
        secret_key: str | None,
        max_lifetime_ms: Callable[[], int],
        expiry_time_ms: Callable[[], int],
    ) -> None:
        """Without a `secret_key` there are no tokens."""
        super().__init__(store, ROOT)
        self._key = secret_key.encode() if secret_key else None
        self._max_lifetime_ms = max_lifetime_ms
        self._expiry_time_ms = expiry_time_ms
        self._tokens: dict[str, DelegationToken] = {}
        self._nodes: dict[str, int] = {}
        """Versions of the tokens' nodes."""
        self._by_secret: dict[bytes, str] = {}

    @property
    def are_enabled(self) -> bool:
        return self._key is not None

    def secret(self, token_id: str) -> bytes:
        """Return the token's HMAC."""
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
        """Return a token for `keep`. This takes some milliseconds, and may be called in a thread. A `max_lifetime_ms`
        above 0 is the requested one; `salts` are random numbers.
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
        async with self._change:
            for _ in range(_ATTEMPTS):
                if self._tokens.get(token.token_id) == token or await self._written(token.token_id, token):
                    return
        raise _contended()

    async def renew(self, secret: bytes, period_ms: int, principal: Principal, now_ms: int) -> int:
        """Extend the validity of a token, and return its new end. Raises KafkaError."""
        period_ms = min(period_ms, self._expiry_time_ms()) if period_ms > 0 else self._expiry_time_ms()
        async with self._change:
            for _ in range(_ATTEMPTS):
                token = self._renewable(secret, principal, now_ms, expired_first=True)
                ends_ms = min(token.max_ms, now_ms + period_ms)
                if await self._written(token.token_id, replace(token, expires_ms=ends_ms)):
                    return ends_ms
        raise _contended()

    async def expire(self, secret: bytes, period_ms: int, principal: Principal, now_ms: int) -> int:
        """Let a token expire after `period_ms`, at once if that is negative; return its end. Raises KafkaError."""
        at_once = period_ms < 0
        async with self._change:
            for _ in range(_ATTEMPTS):
                token = self._renewable(secret, principal, now_ms, expired_first=False, at_once=at_once)
                ends_ms = now_ms if at_once else min(token.max_ms, now_ms + period_ms)
                changed = None if at_once else replace(token, expires_ms=ends_ms)
                if await self._written(token.token_id, changed):
                    return ends_ms
        raise _contended()

    async def sweep(self, now_ms: int) -> None:
        """Remove expired tokens."""
        for token_id in list(self._tokens):
            async with self._change:
                token = self._tokens.get(token_id)
                if token is not None and token.ends_ms < now_ms:
                    await self._written(token_id, None)  # overtaken: the next sweep removes it

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

    async def _written(self, token_id: str, token: DelegationToken | None) -> bool:
        """Return whether the change is in the store and here. Otherwise it was overtaken, and the other change is
        here.
        """
        path, version = f"{ROOT}/{token_id}", self._nodes.get(token_id, -1)
        node: StoreOperation
        if token is None:
            node = DeleteNode(path, version)
        elif version < 0:
            node = CreateNode(path, self._encoded(token))
        else:
            node = SetNode(path, self._encoded(token), version)
        try:
            await self._store.transact([self._counted(), node])
        except OVERTAKEN as refusal:
            await self._read_after(refusal)
            return False
        self._version += 1
        if token is None:
            del self._nodes[token_id], self._tokens[token_id], self._by_secret[self.secret(token_id)]
        else:
            self._nodes[token_id] = version + 1
            self._tokens[token_id] = token
            self._by_secret[self.secret(token_id)] = token_id
        return True

    async def _read(self) -> None:
        """Make the tokens equal to the store. Read again while another broker changes it."""
        while (
            self.are_enabled
            and (root := await self._store.get(ROOT)) is not None
            and root.version != self._version
        ):
            tokens: dict[str, DelegationToken] = {}
            nodes: dict[str, int] = {}
            by_secret: dict[bytes, str] = {}
            foreign = 0
            for token_id in await self._store.children(ROOT):
                node = await self._store.get(f"{ROOT}/{token_id}")
                if node is None:
                    continue
                token = self._decoded(token_id, node.data)
                if token is None:
                    foreign += 1
                else:
                    tokens[token_id], nodes[token_id] = token, node.version
                    by_secret[self.secret(token_id)] = token_id
            after = await self._store.get(ROOT)
            if after is None or after.version != root.version:
                continue
            if foreign and self._version < 0:
                logger.warning(
                    "%d delegation tokens were made with another delegation.token.secret.key and are ignored",
                    foreign,
                )
            self._tokens, self._nodes, self._by_secret = tokens, nodes, by_secret
            self._version = root.version

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
        """Return the token; None if it was made with another key."""
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
        """Return a text that depends on the key that a token was made with, and reveals nothing else."""
        return hmac.digest(self.secret(token_id), b"fingerprint", "sha256").hex()[:16]


def _pair(principal: Principal) -> tuple[str, str]:
    return principal.type, principal.name


def _contended() -> KafkaError:
    return KafkaError(
        ErrorCode.REQUEST_TIMED_OUT,
        f"other changes of delegation tokens came first {_ATTEMPTS} times; try again",
    )
