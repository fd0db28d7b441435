"""Declaration of an API: its messages, its versions, its handler, and the handler's arguments and result.

Every component that serves an API gives its declarations to the composition root. The dispatcher and ApiVersions know
these declarations only.
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Iterable
from typing import TYPE_CHECKING, Any, Protocol

import msgspec

from headrace.broker.runtime.slices import Work
from headrace.broker.runtime.usage import USAGE
from headrace.broker.security.principal import Principal, Session
from headrace.broker.security.quotas.model import Quota
from headrace.broker.security.requirement import Requirement
from headrace.broker.security.rights import OPERATIONS, Authorizer, Operation, ResourceType, denied
from headrace.protocol.errors import ErrorCode, KafkaError

if TYPE_CHECKING:
    from headrace.broker.security.audit import AuditLog
    from headrace.broker.security.quotas.quotas import Quotas
    from headrace.protocol.schema import ApiMessage


class RequestContext(msgspec.Struct):
    """The context of a request, for its handler."""

    api_key: int
    api_version: int
    correlation_id: int
    client_id: str | None
    client_host: str
    connection_id: int
    listener: str
    session: Session
    authorizer: Authorizer
    audit: AuditLog | None = None
    quotas: Quotas | None = None

    @property
    def principal(self) -> Principal:
        return self.session.principal

    def may(
        self, operation: Operation, resource_type: ResourceType, name: str, *, audited: bool = True
    ) -> bool:
        """Return whether the caller is authorized now. Ask again after an `await`.

        With `audited` false the question is not logged: it serves to leave resources out of a listing, or to report
        rights.
        """
        authorizer = self.authorizer
        if authorizer.is_open:
            return True
        allowed = authorizer.may(self.session, self.client_host, operation, resource_type, name)
        if audited and self.audit is not None:
            self.audit.note(self, operation, resource_type, name, allowed=allowed)
        return allowed

    def operations(self, resource_type: ResourceType, name: str) -> int:
        """Return the caller's rights on the resource: a bit for each operation's code (KIP-430)."""
        return sum(
            1 << operation
            for operation in OPERATIONS[resource_type]
            if self.may(operation, resource_type, name, audited=False)
        )

    def may_any(self, operation: Operation, resource_type: ResourceType) -> bool:
        """Return whether the caller has the right on some resource of the type (KIP-679)."""
        authorizer = self.authorizer
        return authorizer.is_open or authorizer.may_any(
            self.session, self.client_host, operation, resource_type
        )

    def allowed(self, operation: Operation, resource_type: ResourceType) -> Iterable[tuple[str, bool]]:
        """Return all names for which `may` could allow the operation (`Authorizer.allowed`)."""
        return self.authorizer.allowed(self.session, self.client_host, operation, resource_type)

    def require(self, operation: Operation, resource_type: ResourceType, name: str) -> None:
        """Raise KafkaError with the error code of the resource's type if the caller is not authorized."""
        if not self.may(operation, resource_type, name):
            raise denied(resource_type)

    def mutates(self, partitions: int, strict_since: int = 0) -> None:
        """Count partitions that are about to be created or deleted (KIP-599). If earlier changes have exceeded the
        quota, raise KafkaError and count nothing. In versions before `strict_since` the client waits after the answer
        instead. A newer client does not wait for the change that exceeds the quota; its next one is refused.
        """
        quotas = self.quotas
        if quotas is None or not quotas.is_set or partitions <= 0:
            return
        strict = self.api_version >= strict_since
        user, client_id, usage = self.principal.name, self.client_id or "", USAGE.get()
        accepted = quotas.may_mutate(user, client_id, partitions, strict=strict)
        if usage is not None and not (accepted and strict):
            usage.mutations_exceeded = True
        if not accepted:
            raise KafkaError(
                ErrorCode.THROTTLING_QUOTA_EXCEEDED,
                "The controller_mutation_rate quota is used up: try again later.",
            )


class Encodable(Protocol):
    """An ApiMessage, or one that was encoded beforehand."""

    def encode_parts(self, version: int) -> list[Any]: ...


Handler = Callable[
    [RequestContext, Any],
    "Encodable | Awaitable[Encodable | Work[Encodable] | None] | Work[Encodable | Awaitable[Any] | None] | None",
]
"""Returns the response (None: there is none), or an awaitable of it, or work in slices with that result
(`broker.runtime.slices`). A loop over what a client has named must be such work.
"""


class Repeat(msgspec.Struct):
    """Answers later requests that equal an answered one except for their records.

    `handle` gets the records, does the same as the handler, and returns the numbers for the `placeholders` in
    `response`. It returns None, or raises KafkaError having changed nothing, if the handler has to answer: also when a
    state has changed that the first answer depended on.
    """

    handle: Callable[[memoryview], tuple[int, ...] | None]
    response: ApiMessage
    placeholders: tuple[int, ...]


class ApiDeclaration(msgspec.Struct, frozen=True):
    """One API: its messages, its versions, its handler, and the rights of its callers. ApiVersions is computed from
    these.

    `authorize` is the right that it requires of the caller (`broker.security.requirement`).

    `handler` returns the response, None for "no answer" (acks=0 only), or an awaitable of either. It may raise
    KafkaError (becomes the error code of the response), DecodeError (closes the connection), or another exception
    (becomes UNKNOWN_SERVER_ERROR, with a traceback in the log).

    `min_version` and `max_version` default to the request's own. `advertised_min_version` is for the one API whose
    clients expect a version that they never send (Produce 0, KAFKA-18659).

    A handler runs to its end even if its client has gone, since its work must not stop half-way. With
    `cancel_on_disconnect` it is cancelled: for handlers that only wait and change nothing.

    `on_error` builds the response that carries an error. Without it the error goes to the fields `error_code` and
    `error_message` of the response, which must have the former.

    An API that is not `advertised` is for clients that send it all the same: its answer is only a reason for the
    refusal.

    `charged` is the quota that its bytes, or its changes of topics, count for; its time always counts.

    `repeat` is called after a request was answered at once. It returns how to answer similar requests (None: not
    possible).
    """

    request: type[ApiMessage]
    response: type[ApiMessage]
    handler: Handler
    authorize: Requirement
    min_version: int = -1
    max_version: int = -1
    advertised_min_version: int = -1
    cancel_on_disconnect: bool = False
    on_error: Callable[[Any, int, KafkaError], ApiMessage | Work[ApiMessage]] | None = None
    repeat: Callable[[RequestContext, Any], Repeat | None] | None = None
    advertised: bool = True
    charged: Quota | None = None

    def __post_init__(self) -> None:
        if self.min_version < 0:
            msgspec.structs.force_setattr(self, "min_version", self.request.MIN_VERSION)
        if self.max_version < 0:
            msgspec.structs.force_setattr(self, "max_version", self.request.MAX_VERSION)
        if self.advertised_min_version < 0:
            msgspec.structs.force_setattr(self, "advertised_min_version", self.min_version)

    @property
    def key(self) -> int:
        return self.request.API_KEY
