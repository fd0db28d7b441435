"""The right that an API requires of its callers. Every declaration of an API has one; there is no default.

|| made by | checked by |
||---|---|
|| `public()` | not checked: the API is also answered before authentication |
|| `whole(operation)` | the dispatcher, on the cluster, before the handler: the request is refused as a whole |
|| `within(topic=..., ...)` | the handler, for each resource that the request names or the answer shows |
"""

from __future__ import annotations

import msgspec

from headrace.broker.security.rights import Operation, ResourceType, Right

Operations = Operation | tuple[Operation, ...]


class Requirement(msgspec.Struct, frozen=True):
    rights: tuple[Right, ...]
    """The rights that may be checked; for tools and tests."""
    of_cluster: Operation | None = None
    """The operation on the cluster that the dispatcher checks."""
    is_public: bool = False


def public() -> Requirement:
    return Requirement((), is_public=True)


def whole(operation: Operation) -> Requirement:
    return Requirement(((operation, ResourceType.CLUSTER),), of_cluster=operation)


def within(
    *,
    topic: Operations = (),
    group: Operations = (),
    cluster: Operations = (),
    transactional_id: Operations = (),
    delegation_token: Operations = (),
    user: Operations = (),
) -> Requirement:
    """Raises ValueError without an operation: an API without a check is public."""
    asked = {
        ResourceType.TOPIC: topic,
        ResourceType.GROUP: group,
        ResourceType.CLUSTER: cluster,
        ResourceType.TRANSACTIONAL_ID: transactional_id,
        ResourceType.DELEGATION_TOKEN: delegation_token,
        ResourceType.USER: user,
    }
    rights = tuple(
        (operation, resource_type)
        for resource_type, operations in asked.items()
        for operation in ((operations,) if isinstance(operations, Operation) else operations)
    )
    if not rights:
        raise ValueError("a requirement within the handler names at least one operation")
    return Requirement(rights)
