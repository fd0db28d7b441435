"""Kafka's ACLs as they are: of topics, groups, the cluster, transactional ids, tokens and users (KIP-140)."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Final

from headrace.protocol.messages.create_acls import AclCreation, CreateAclsRequest, CreateAclsResponse
from headrace.protocol.messages.delete_acls import (
    DeleteAclsFilter,
    DeleteAclsMatchingAcl,
    DeleteAclsRequest,
    DeleteAclsResponse,
)
from headrace.protocol.messages.describe_acls import (
    AclDescription,
    DescribeAclsRequest,
    DescribeAclsResource,
    DescribeAclsResponse,
)
from headrace.tablelayer.client.wire.retry import raise_for

if TYPE_CHECKING:
    from headrace.tablelayer.client.wire.cluster import Cluster

RESOURCE_TYPES: Final = {
    "TOPIC": 2,
    "GROUP": 3,
    "CLUSTER": 4,
    "TRANSACTIONAL_ID": 5,
    "DELEGATION_TOKEN": 6,
    "USER": 7,
}
OPERATIONS: Final = {
    "ALL": 2,
    "READ": 3,
    "WRITE": 4,
    "CREATE": 5,
    "DELETE": 6,
    "ALTER": 7,
    "DESCRIBE": 8,
    "CLUSTER_ACTION": 9,
    "DESCRIBE_CONFIGS": 10,
    "ALTER_CONFIGS": 11,
    "IDEMPOTENT_WRITE": 12,
    "CREATE_TOKENS": 13,
    "DESCRIBE_TOKENS": 14,
}
PATTERNS: Final = {"LITERAL": 3, "PREFIXED": 4}
PERMISSIONS: Final = {"DENY": 2, "ALLOW": 3}
CLUSTER_NAME: Final = "kafka-cluster"
_ANY: Final = 1
_WORDS: Final = {
    id(names): {code: word for word, code in names.items()}
    for names in (RESOURCE_TYPES, OPERATIONS, PATTERNS, PERMISSIONS)
}


@dataclass(frozen=True, slots=True, order=True)
class Acl:
    """One ACL, in Kafka's words. As a filter, None stands for any value."""

    principal: str | None = None
    permission: str | None = None
    operation: str | None = None
    resource_type: str | None = None
    name: str | None = None
    pattern: str | None = None
    host: str | None = None


async def create_acls(cluster: Cluster, acls: Sequence[Acl]) -> None:
    """See `AsyncSecurityAdmin.create_acls`."""
    creations = [
        AclCreation(
            resource_type=RESOURCE_TYPES[each.resource_type or ""],
            resource_name=each.name or "",
            resource_pattern_type=PATTERNS[each.pattern or ""],
            principal=each.principal or "",
            host=each.host or "",
            operation=OPERATIONS[each.operation or ""],
            permission_type=PERMISSIONS[each.permission or ""],
        )
        for each in acls
    ]
    doing = "add ACLs"
    answer = await cluster.call(CreateAclsRequest(creations=creations), CreateAclsResponse, doing=doing)
    for result in answer.results:
        raise_for(result.error_code, result.error_message, doing=doing)


async def list_acls(cluster: Cluster, wanted: Acl) -> list[Acl]:
    """See `AsyncSecurityAdmin.list_acls`."""
    request = DescribeAclsRequest(
        resource_type_filter=_code(RESOURCE_TYPES, wanted.resource_type),
        resource_name_filter=wanted.name,
        pattern_type_filter=_code(PATTERNS, wanted.pattern),
        principal_filter=wanted.principal,
        host_filter=wanted.host,
        operation=_code(OPERATIONS, wanted.operation),
        permission_type=_code(PERMISSIONS, wanted.permission),
    )
    answer = await cluster.call(request, DescribeAclsResponse, doing="list ACLs")
    return sorted(_acl(each, resource) for resource in answer.resources for each in resource.acls)


async def delete_acls(cluster: Cluster, wanted: Sequence[Acl]) -> list[Acl]:
    """See `AsyncSecurityAdmin.delete_acls`."""
    filters = [
        DeleteAclsFilter(
            resource_type_filter=_code(RESOURCE_TYPES, each.resource_type),
            resource_name_filter=each.name,
            pattern_type_filter=_code(PATTERNS, each.pattern),
            principal_filter=each.principal,
            host_filter=each.host,
            operation=_code(OPERATIONS, each.operation),
            permission_type=_code(PERMISSIONS, each.permission),
        )
        for each in wanted
    ]
    doing = "remove ACLs"
    answer = await cluster.call(DeleteAclsRequest(filters=filters), DeleteAclsResponse, doing=doing)
    removed = []
    for result in answer.filter_results:
        raise_for(result.error_code, result.error_message, doing=doing)
        for each in result.matching_acls:
            raise_for(each.error_code, each.error_message, doing=doing)
            removed.append(_acl(each, each))
    return sorted(removed)


def _acl(
    acl: AclDescription | DeleteAclsMatchingAcl, resource: DescribeAclsResource | DeleteAclsMatchingAcl
) -> Acl:
    """Return an ACL of an answer; a removed one names its resource itself."""
    return Acl(
        acl.principal,
        _word(PERMISSIONS, acl.permission_type),
        _word(OPERATIONS, acl.operation),
        _word(RESOURCE_TYPES, resource.resource_type),
        resource.resource_name,
        _word(PATTERNS, resource.pattern_type),
        acl.host,
    )


def _code(names: dict[str, int], word: str | None) -> int:
    return _ANY if word is None else names[word]


def _word(names: dict[str, int], code: int) -> str:
    """Return the word for a code; the code itself if it is a newer server's."""
    return _WORDS[id(names)].get(code, str(code))
