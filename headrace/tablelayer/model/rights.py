"""SQL's privileges and the operations of Kafka's ACLs that stand for them.

Codes: org.apache.kafka.common.acl.AclOperation and org.apache.kafka.common.resource.ResourceType.
"""

from __future__ import annotations

from typing import Final

from headrace.protocol.errors import ErrorCode, KafkaError

OPERATIONS: Final = {
    "ALL": 2,
    "SELECT": 3,
    "INSERT": 4,
    "UPDATE": 4,
    "DELETE": 4,
    "CREATE": 5,
    "DROP": 6,
    "ALTER": 7,
    "DESCRIBE": 8,
}
"""The operation of each privilege. INSERT, UPDATE and DELETE are Write: Kafka has one operation for them."""

PRIVILEGES: Final = {
    2: "ALL",
    3: "SELECT",
    4: "INSERT, UPDATE, DELETE",
    5: "CREATE",
    6: "DROP",
    7: "ALTER",
    8: "DESCRIBE",
    9: "CLUSTER ACTION",
    10: "DESCRIBE CONFIGS",
    11: "ALTER CONFIGS",
    12: "IDEMPOTENT WRITE",
    13: "CREATE TOKENS",
    14: "DESCRIBE TOKENS",
    15: "TWO PHASE COMMIT",
}
READ: Final = 3
DESCRIBE: Final = 8
TOPIC: Final = 2
LITERAL, PREFIXED = 3, 4
_RESOURCE_TYPES: Final = {
    2: "topic",
    3: "group",
    4: "cluster",
    5: "transactional id",
    6: "delegation token",
    7: "user",
}
EVERYBODY: Final = "User:*"


def not_granted(privilege: str, table: str) -> KafkaError:
    """Return the error for a request that needs a privilege on a table ("db.t") that was not granted."""
    return KafkaError(
        ErrorCode.TOPIC_AUTHORIZATION_FAILED,
        f"not authorized: {privilege} on table {table} is not granted",
    )


def principal_of(user: str) -> str:
    """Return the principal of a user's name. A text that is a principal already (`Type:name`) stays."""
    return user if ":" in user else f"User:{user}"


def database_prefix(name: str) -> str:
    """Return the prefix of the database's topics. Rights over the database are ACLs on this prefix."""
    return f"{name}."


def resource_text(resource_type: int, pattern_type: int, name: str) -> str:
    """Return the resource of an ACL in the words of GRANT where it has them."""
    kind = _RESOURCE_TYPES.get(resource_type, f"resource {resource_type}")
    if resource_type != TOPIC:
        return kind if resource_type == 4 else f"{kind} {_pattern(pattern_type, name)}"
    if pattern_type == PREFIXED and name.count(".") == 1 and name.endswith("."):
        return f"database {name[:-1]}"
    if pattern_type == LITERAL and name.count(".") == 1 and all(name.split(".")):
        return f"table {name}"
    return f"{kind} {_pattern(pattern_type, name)}"


def _pattern(pattern_type: int, name: str) -> str:
    return f"{name}*" if pattern_type == PREFIXED else name
