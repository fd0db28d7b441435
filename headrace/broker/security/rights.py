"""What may be allowed: operations on resources, with Kafka's names and codes, and who decides.

Source of the codes: org.apache.kafka.common.acl.AclOperation, org.apache.kafka.common.resource.ResourceType.
"""

from __future__ import annotations

from collections.abc import Iterable
from enum import IntEnum
from typing import Final, Protocol

from headrace.broker.security.principal import Session
from headrace.protocol.errors import ErrorCode, KafkaError


class Operation(IntEnum):
    ANY = 1
    ALL = 2
    READ = 3
    WRITE = 4
    CREATE = 5
    DELETE = 6
    ALTER = 7
    DESCRIBE = 8
    CLUSTER_ACTION = 9
    DESCRIBE_CONFIGS = 10
    ALTER_CONFIGS = 11
    IDEMPOTENT_WRITE = 12
    CREATE_TOKENS = 13
    DESCRIBE_TOKENS = 14
    TWO_PHASE_COMMIT = 15


class ResourceType(IntEnum):
    ANY = 1
    TOPIC = 2
    GROUP = 3
    CLUSTER = 4
    TRANSACTIONAL_ID = 5
    DELEGATION_TOKEN = 6
    USER = 7


CLUSTER_NAME: Final = "kafka-cluster"
"""The one resource of the type CLUSTER."""

EVERYTHING: Final = (("", True),)
"""Of `Authorizer.allowed`: no name is ruled out."""

Right = tuple[Operation, ResourceType]

OPERATIONS: Final = {
    ResourceType.TOPIC: (
        Operation.READ,
        Operation.WRITE,
        Operation.CREATE,
        Operation.DELETE,
        Operation.ALTER,
        Operation.DESCRIBE,
        Operation.DESCRIBE_CONFIGS,
        Operation.ALTER_CONFIGS,
    ),
    ResourceType.GROUP: (
        Operation.READ,
        Operation.DELETE,
        Operation.DESCRIBE,
        Operation.DESCRIBE_CONFIGS,
        Operation.ALTER_CONFIGS,
    ),
    ResourceType.CLUSTER: (
        Operation.CREATE,
        Operation.ALTER,
        Operation.DESCRIBE,
        Operation.CLUSTER_ACTION,
        Operation.DESCRIBE_CONFIGS,
        Operation.ALTER_CONFIGS,
        Operation.IDEMPOTENT_WRITE,
    ),
}
"""What makes sense on a resource, for answers that tell what of it is allowed (AclEntry.supportedOperations)."""

_DENIED: Final = {
    ResourceType.TOPIC: ErrorCode.TOPIC_AUTHORIZATION_FAILED,
    ResourceType.GROUP: ErrorCode.GROUP_AUTHORIZATION_FAILED,
    ResourceType.CLUSTER: ErrorCode.CLUSTER_AUTHORIZATION_FAILED,
    ResourceType.TRANSACTIONAL_ID: ErrorCode.TRANSACTIONAL_ID_AUTHORIZATION_FAILED,
    ResourceType.DELEGATION_TOKEN: ErrorCode.DELEGATION_TOKEN_AUTHORIZATION_FAILED,
    ResourceType.USER: ErrorCode.DELEGATION_TOKEN_AUTHORIZATION_FAILED,
}


def denied(resource_type: ResourceType) -> KafkaError:
    """The refusal, which names nobody and nothing: it looks the same whether the resource exists or not."""
    kind = resource_type.name.lower().replace("_", " ")
    return KafkaError(_DENIED[resource_type], f"not authorized: {kind} authorization failed")


class Authorizer(Protocol):
    """Decides at once and without waiting; what it goes by may change at any time."""

    @property
    def is_open(self) -> bool:
        """Nothing is checked: everybody may do everything, and `may` need not be asked."""
        ...

    @property
    def version(self) -> int:
        """Raised by every change that may alter an answer. Who remembers what `may` said compares it."""
        ...

    def may(
        self, session: Session, host: str, operation: Operation, resource_type: ResourceType, name: str
    ) -> bool: ...

    def denies(
        self, session: Session, host: str, operation: Operation, resource_type: ResourceType, name: str
    ) -> bool:
        """Whether it is denied outright, and not merely not allowed: what an extension allows besides is not then."""
        ...

    def may_any(self, session: Session, host: str, operation: Operation, resource_type: ResourceType) -> bool:
        """Whether there is some resource of the type that it may do this to (KIP-679)."""
        ...

    def allowed(
        self, session: Session, host: str, operation: Operation, resource_type: ResourceType
    ) -> Iterable[tuple[str, bool]]:
        """Outside of what `may` says no: names (False), and beginnings of names (True; "" is the one of all). How long
        that takes tells nothing of what exists.
        """
        ...


class _Open:
    """There is no authorizer."""

    is_open: Final = True
    version: Final = 0

    def may(
        self, session: Session, host: str, operation: Operation, resource_type: ResourceType, name: str
    ) -> bool:
        return True

    def denies(
        self, session: Session, host: str, operation: Operation, resource_type: ResourceType, name: str
    ) -> bool:
        return False

    def may_any(self, session: Session, host: str, operation: Operation, resource_type: ResourceType) -> bool:
        return True

    def allowed(
        self, session: Session, host: str, operation: Operation, resource_type: ResourceType
    ) -> Iterable[tuple[str, bool]]:
        return EVERYTHING


OPEN: Final[Authorizer] = _Open()
