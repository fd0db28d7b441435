"""Rights: operations on resources, with Kafka's names and codes, and the authorizer's interface.

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
"""The only resource of the type CLUSTER."""

EVERYTHING: Final = (("", True),)
"""Result of `Authorizer.allowed` if no name is ruled out."""

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
"""Operations that are meaningful on a resource, for answers that list the allowed ones
(AclEntry.supportedOperations).
"""

_DENIED: Final = {
    ResourceType.TOPIC: ErrorCode.TOPIC_AUTHORIZATION_FAILED,
    ResourceType.GROUP: ErrorCode.GROUP_AUTHORIZATION_FAILED,
    ResourceType.CLUSTER: ErrorCode.CLUSTER_AUTHORIZATION_FAILED,
    ResourceType.TRANSACTIONAL_ID: ErrorCode.TRANSACTIONAL_ID_AUTHORIZATION_FAILED,
    ResourceType.DELEGATION_TOKEN: ErrorCode.DELEGATION_TOKEN_AUTHORIZATION_FAILED,
    ResourceType.USER: ErrorCode.DELEGATION_TOKEN_AUTHORIZATION_FAILED,
}


def denied(resource_type: ResourceType) -> KafkaError:
    """Return the refusal. It contains no names, so it is the same whether the resource exists or not."""
    kind = resource_type.name.lower().replace("_", " ")
    return KafkaError(_DENIED[resource_type], f"not authorized: {kind} authorization failed")


class Authorizer(Protocol):
    """Decides at once, without waiting. Its rules may change at any time."""

    @property
    def is_open(self) -> bool:
        """Whether all users may do everything, so that `may` need not be called."""
        ...

    @property
    def version(self) -> int:
        """A number that rises with every change that may alter an answer. A cache of `may` compares it."""
        ...

    def may(
        self, session: Session, host: str, operation: Operation, resource_type: ResourceType, name: str
    ) -> bool: ...

    def denies(
        self, session: Session, host: str, operation: Operation, resource_type: ResourceType, name: str
    ) -> bool:
        """Return whether it is denied explicitly, not merely not allowed: then an extension must not allow it
        either.
        """
        ...

    def may_any(self, session: Session, host: str, operation: Operation, resource_type: ResourceType) -> bool:
        """Return whether there is a resource of the type on which this operation is allowed (KIP-679)."""
        ...

    def allowed(
        self, session: Session, host: str, operation: Operation, resource_type: ResourceType
    ) -> Iterable[tuple[str, bool]]:
        """Return all that `may` could allow: names (False), and prefixes of names (True; "" is the prefix of all). The
        time that this takes does not depend on which resources exist.
        """
        ...


class _Open:
    """The authorizer of a broker without authorization: everything is allowed."""

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
