"""A broker with an authorizer, and its clients by name."""

from __future__ import annotations

from collections.abc import AsyncIterator, Mapping
from contextlib import asynccontextmanager
from pathlib import Path

from headrace.broker.configs.authorization import AUTHORIZERS
from headrace.broker.net.reply import Peer
from headrace.broker.security.acl.model import PatternType, Permission
from headrace.broker.security.principal import Principal, Session
from headrace.broker.security.rights import Operation, ResourceType
from headrace.protocol.errors import ErrorCode
from headrace.protocol.messages.create_acls import AclCreation, CreateAclsRequest
from headrace.protocol.messages.delete_acls import DeleteAclsFilter, DeleteAclsRequest
from simulator.direct import DirectBroker, direct_broker

SECURED = {"authorizer.class.name": AUTHORIZERS[0], "super.users": "User:admin"}
HOST = "10.0.0.7"


def client(broker: DirectBroker, name: str, host: str = HOST) -> DirectBroker:
    """A connection of `User:name`."""
    direct = DirectBroker(broker.broker)
    direct.peer = Peer(id(direct), host, 1, "SASL", Session(Principal("User", name), "SASL", "PLAIN"))
    return direct


@asynccontextmanager
async def secured_broker(
    data_dir: Path, config: Mapping[str, str] | None = None
) -> AsyncIterator[DirectBroker]:
    """Run a broker whose own connection is the super user's."""
    async with direct_broker(data_dir, {**SECURED, **(config or {})}) as broker:
        yield client(broker, "admin")


def creation(
    operation: Operation,
    resource_type: ResourceType,
    name: str,
    *,
    who: str = "User:ann",
    host: str = "*",
    kind: PatternType = PatternType.LITERAL,
    permission: Permission = Permission.ALLOW,
) -> AclCreation:
    return AclCreation(
        resource_type=resource_type,
        resource_name=name,
        resource_pattern_type=kind,
        principal=who,
        host=host,
        operation=operation,
        permission_type=permission,
    )


async def grant(admin: DirectBroker, *creations: AclCreation) -> None:
    response = await admin.send(CreateAclsRequest(creations=list(creations)))
    assert [result.error_code for result in response.results] == [ErrorCode.NONE] * len(creations)


async def allow(admin: DirectBroker, operation: Operation, resource_type: ResourceType, *names: str) -> None:
    """Allow `User:ann` an operation."""
    await grant(admin, *(creation(operation, resource_type, name) for name in names))


async def revoke_all(admin: DirectBroker) -> int:
    """Remove every ACL; return their number."""
    everything = DeleteAclsFilter(
        resource_type_filter=1,
        resource_name_filter=None,
        pattern_type_filter=1,
        principal_filter=None,
        host_filter=None,
        operation=1,
        permission_type=1,
    )
    response = await admin.send(DeleteAclsRequest(filters=[everything]))
    (result,) = response.filter_results
    assert result.error_code == ErrorCode.NONE
    return len(result.matching_acls)
