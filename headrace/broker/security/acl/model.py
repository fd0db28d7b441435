"""An ACL as in Kafka (KIP-11, KIP-290): principal, permission, operation, host and pattern of resources.

The numbers are those of Kafka's protocol. An existing `Acl` is legal (`checked`). An `AclFilter` may leave everything
open (ANY, None); with MATCH it finds the patterns of every kind that match a name.
"""

from __future__ import annotations

from enum import IntEnum
from ipaddress import ip_address
from typing import Final

import msgspec
from msgspec.structs import replace

from headrace.broker.security.rights import CLUSTER_NAME, Operation, ResourceType
from headrace.protocol.errors import ErrorCode, KafkaError

WILDCARD: Final = "*"
"""Every resource (as a literal name), or every host (as a host)."""
EVERYBODY: Final = "User:*"
NAME_LENGTH_MAX: Final = 4096
"""Maximum number of characters of the name of a resource, a principal or a host. Topic names have at most 249; clients
choose the names of groups.
"""


class PatternType(IntEnum):
    ANY = 1
    MATCH = 2
    LITERAL = 3
    PREFIXED = 4


class Permission(IntEnum):
    ANY = 1
    DENY = 2
    ALLOW = 3


class Acl(msgspec.Struct, frozen=True, order=True):
    """One ACL. `principal` is `Type:name`, `host` an address or `*`."""

    resource_type: int
    pattern_type: int
    name: str
    principal: str
    host: str
    operation: int
    permission: int


class AclFilter(msgspec.Struct, frozen=True):
    """A filter of ACLs. None and ANY leave a part open."""

    resource_type: int
    pattern_type: int
    name: str | None
    principal: str | None
    host: str | None
    operation: int
    permission: int

    def matches(self, acl: Acl) -> bool:
        return (
            self.resource_type in (ResourceType.ANY, acl.resource_type)
            and self._names(acl)
            and self.principal in (None, acl.principal)
            and self.host in (None, acl.host)
            and self.operation in (Operation.ANY, acl.operation)
            and self.permission in (Permission.ANY, acl.permission)
        )

    def _names(self, acl: Acl) -> bool:
        kind, name = self.pattern_type, self.name
        if kind not in (PatternType.ANY, PatternType.MATCH, acl.pattern_type):
            return False
        if name is None:
            return True
        if kind != PatternType.MATCH:
            return name == acl.name
        if acl.pattern_type == PatternType.PREFIXED:
            return name.startswith(acl.name)
        return acl.name in (name, WILDCARD)


def address(host: str) -> str:
    """Return the normal form of an address, the same for all its spellings. Another text is returned unchanged."""
    try:
        parsed = ip_address(host)
    except ValueError:
        return host
    return str(getattr(parsed, "ipv4_mapped", None) or parsed)


def checked(acl: Acl) -> Acl:
    """Return the ACL, with its host as connections have it. Raises KafkaError(INVALID_REQUEST) if it is not legal."""
    if acl.resource_type not in _RESOURCE_TYPES:
        raise _invalid(f"Invalid resourceType {acl.resource_type}")
    if acl.pattern_type not in (PatternType.LITERAL, PatternType.PREFIXED):
        raise _invalid(f"Invalid patternType {acl.pattern_type}; use 3 (literal) or 4 (prefixed)")
    if acl.operation not in _OPERATIONS:
        raise _invalid(f"Invalid operation {acl.operation}")
    if acl.permission not in (Permission.DENY, Permission.ALLOW):
        raise _invalid(f"Invalid permissionType {acl.permission}; use 2 (deny) or 3 (allow)")
    if not acl.name:
        raise _invalid("Resource name should not be empty")
    if acl.resource_type == ResourceType.CLUSTER and acl.name != CLUSTER_NAME:
        raise _invalid(f"The only valid name for the CLUSTER resource is {CLUSTER_NAME}")
    kind, colon, name = acl.principal.partition(":")
    if not (kind and colon and name):
        raise _invalid(
            f"Could not parse principal from {acl.principal!r}; write type and name, for example User:ann"
        )
    if not acl.host:
        raise _invalid("The host should not be empty; use * for every host")
    if max(len(acl.name), len(acl.principal), len(acl.host)) > NAME_LENGTH_MAX:
        raise _invalid(f"A name is longer than {NAME_LENGTH_MAX} characters")
    return replace(acl, host=address(acl.host))


def checked_filter(wanted: AclFilter) -> AclFilter:
    """Return the filter, with its host as ACLs have it. Raises KafkaError(INVALID_REQUEST) if parts of it are
    unknown.
    """
    if wanted.resource_type != ResourceType.ANY and wanted.resource_type not in _RESOURCE_TYPES:
        raise _invalid(f"The filter's resource type {wanted.resource_type} is unknown")
    if wanted.pattern_type not in _FILTER_PATTERNS:
        raise _invalid(f"The filter's pattern type {wanted.pattern_type} is unknown")
    if wanted.operation != Operation.ANY and wanted.operation not in _OPERATIONS:
        raise _invalid(f"The filter's operation {wanted.operation} is unknown")
    if wanted.permission not in _FILTER_PERMISSIONS:
        raise _invalid(f"The filter's permission type {wanted.permission} is unknown")
    return wanted if wanted.host is None else replace(wanted, host=address(wanted.host))


def _invalid(message: str) -> KafkaError:
    return KafkaError(ErrorCode.INVALID_REQUEST, message)


_RESOURCE_TYPES: Final = frozenset(ResourceType) - {ResourceType.ANY}
_OPERATIONS: Final = frozenset(Operation) - {Operation.ANY}
_FILTER_PATTERNS: Final = frozenset(PatternType)
_FILTER_PERMISSIONS: Final = frozenset(Permission)
