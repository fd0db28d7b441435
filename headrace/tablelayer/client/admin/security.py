"""Users and rights: Kafka's SCRAM credentials and ACLs, and grants of single columns of tables.

Kafka's own tools and this module see the same ACLs. Only grants of columns are Headrace's own.
"""

from __future__ import annotations

import hashlib
import secrets
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Final

from headrace.protocol.errors import ErrorCode, KafkaError
from headrace.protocol.messages.alter_user_scram_credentials import (
    AlterUserScramCredentialsRequest,
    AlterUserScramCredentialsResponse,
    ScramCredentialDeletion,
    ScramCredentialUpsertion,
)
from headrace.protocol.messages.create_acls import AclCreation, CreateAclsRequest, CreateAclsResponse
from headrace.protocol.messages.delete_acls import DeleteAclsFilter, DeleteAclsRequest, DeleteAclsResponse
from headrace.protocol.messages.describe_acls import DescribeAclsRequest, DescribeAclsResponse
from headrace.protocol.messages.describe_user_scram_credentials import (
    DescribeUserScramCredentialsRequest,
    DescribeUserScramCredentialsResponse,
    UserName,
)
from headrace.protocol.messages.metadata import MetadataResponseTopic
from headrace.tablelayer.client.admin.acls import Acl, create_acls, delete_acls, list_acls
from headrace.tablelayer.client.names import several
from headrace.tablelayer.client.wire.cluster import Cluster
from headrace.tablelayer.client.wire.retry import Deadline, raise_for, retrying
from headrace.tablelayer.model.messages.rights import (
    GrantColumnsRequest,
    GrantColumnsResponse,
    ListColumnGrantsRequest,
    ListColumnGrantsResponse,
    RevokeColumnsRequest,
    RevokeColumnsResponse,
)
from headrace.tablelayer.model.rights import (
    DESCRIBE,
    LITERAL,
    OPERATIONS,
    PREFIXED,
    PRIVILEGES,
    READ,
    TOPIC,
    database_prefix,
    not_granted,
    resource_text,
)
from headrace.tablelayer.model.table.path import TablePath

_ANY, _MATCH, _DENY, _ALLOW = 1, 2, 2, 3
_MECHANISMS: Final = {1: "SCRAM-SHA-256", 2: "SCRAM-SHA-512"}
_DIGESTS: Final = {1: "sha256", 2: "sha512"}
_ITERATIONS: Final = 8192
_SALT_BYTES: Final = 32

Object = TablePath | str
"""The object of a right: a table, or a database by its name."""


@dataclass(frozen=True, slots=True)
class GrantListing:
    """One ACL, or a grant of columns of one table. `columns` is empty for all columns."""

    principal: str
    privilege: str
    resource: str
    columns: tuple[str, ...] = ()
    is_denial: bool = False
    host: str = "*"


@dataclass(frozen=True, slots=True)
class UserListing:
    """A user with a password, and the SCRAM mechanisms that accept it."""

    name: str
    mechanisms: tuple[str, ...]


class AsyncSecurityAdmin:
    """Manages users and rights. KafkaError SECURITY_DISABLED if the server has no authorizer."""

    def __init__(self, cluster: Cluster) -> None:
        self._cluster = cluster

    # -- rights --------------------------------------------------------------------------------------------

    async def require(self, privilege: str, table: TablePath) -> None:
        """Raise if this connection does not have a privilege of `GRANT` (SELECT, DELETE, ...) on a table.

        The server checks every write itself. This is for statements that turn out to write nothing. Raises KafkaError
        TOPIC_AUTHORIZATION_FAILED, which names the privilege.
        """
        table, operation, config = table.whole, OPERATIONS[privilege], self._cluster.config

        async def ask(deadline: Deadline) -> MetadataResponseTopic:
            (found,) = (await self._cluster.metadata([table.topic], deadline, with_operations=True)).topics
            raise_for(found.error_code, None, doing=f"ask for the rights on {table}")
            return found

        deadline = Deadline(config.delivery_timeout_ms)
        found = await retrying(ask, config=config, deadline=deadline, repeatable=True)
        if not found.topic_authorized_operations >> operation & 1:
            raise not_granted(privilege, str(table))

    async def grant(
        self, privileges: Sequence[str], on: Object, principal: str, *, columns: Sequence[str] = ()
    ) -> None:
        """Allow `principal` (`User:ann`) privileges such as SELECT on a table or a database.

        With `columns`, SELECT is limited to them and includes DESCRIBE of the table.
        """
        operations, columns = _operations(privileges), several("columns", columns)
        doing = f"grant {', '.join(privileges)} on {_named(on)} to {principal}"
        if columns:
            path = _table(on)
            request = GrantColumnsRequest(
                database=path.database, table=path.table, principal=principal, columns=list(columns)
            )
            await self._cluster.call(request, GrantColumnsResponse, doing=doing)
            operations = [DESCRIBE if each == READ else each for each in operations]
        name, pattern = _pattern(on)
        creations = [
            AclCreation(
                resource_type=TOPIC,
                resource_name=name,
                resource_pattern_type=pattern,
                principal=principal,
                host="*",
                operation=each,
                permission_type=_ALLOW,
            )
            for each in operations
        ]
        answer = await self._cluster.call(
            CreateAclsRequest(creations=creations), CreateAclsResponse, doing=doing
        )
        for result in answer.results:
            raise_for(result.error_code, result.error_message, doing=doing)

    async def revoke(
        self, privileges: Sequence[str], on: Object, principal: str, *, columns: Sequence[str] = ()
    ) -> int:
        """Take back grants of `grant` or of Kafka's tools, and return their number.

        SELECT without `columns` also takes back all grants of columns. DESCRIBE of the table is removed with the last
        of them.
        """
        operations, columns = _operations(privileges), several("columns", columns)
        doing = f"revoke {', '.join(privileges)} on {_named(on)} from {principal}"
        taken, filters = 0, []
        if isinstance(on, TablePath) and (READ in operations or OPERATIONS["ALL"] in operations):
            taken = await self._revoke_columns(on, principal, columns, doing)
            if taken and not await self._columns_of(on, principal):
                filters.append(_filter(on, principal, DESCRIBE))
        if columns:
            operations = [each for each in operations if each != READ]
        everything = OPERATIONS["ALL"] in operations
        filters += [_filter(on, principal, _ANY if everything else each) for each in operations]
        if not filters:
            return taken
        answer = await self._cluster.call(DeleteAclsRequest(filters=filters), DeleteAclsResponse, doing=doing)
        for result in answer.filter_results:
            raise_for(result.error_code, result.error_message, doing=doing)
            taken += len(result.matching_acls)
        return taken

    async def grants(self, *, on: Object | None = None, principal: str | None = None) -> list[GrantListing]:
        """Return the grants and denials: on a table (by any pattern), in a database, to a principal, or all."""
        doing = "list the grants"
        request = DescribeAclsRequest(
            resource_type_filter=_ANY,
            resource_name_filter=None,
            pattern_type_filter=_ANY,
            principal_filter=principal,
            host_filter=None,
            operation=_ANY,
            permission_type=_ANY,
        )
        columns_of = ListColumnGrantsRequest(principal=principal)
        if isinstance(on, TablePath):
            request.resource_type_filter, request.pattern_type_filter = TOPIC, _MATCH
            request.resource_name_filter = on.topic
            columns_of.database, columns_of.table = on.database, on.table
        elif on is not None:
            request.resource_type_filter = TOPIC
            columns_of.database = on
        answer = await self._cluster.call(request, DescribeAclsResponse, doing=doing)
        found = [
            GrantListing(
                each.principal,
                PRIVILEGES.get(each.operation, f"operation {each.operation}"),
                resource_text(resource.resource_type, resource.pattern_type, resource.resource_name),
                is_denial=each.permission_type == _DENY,
                host=each.host,
            )
            for resource in answer.resources
            if not isinstance(on, str) or resource.resource_name.startswith(database_prefix(on))
            for each in resource.acls
        ]
        listed = await self._cluster.call(columns_of, ListColumnGrantsResponse, doing=doing)
        found += [
            GrantListing(each.principal, "SELECT", f"table {each.database}.{each.table}", tuple(each.columns))
            for each in listed.grants
        ]
        return sorted(found, key=lambda each: (each.principal, each.resource, each.privilege))

    async def _columns_of(self, path: TablePath, principal: str) -> bool:
        request = ListColumnGrantsRequest(database=path.database, table=path.table, principal=principal)
        return bool(
            (await self._cluster.call(request, ListColumnGrantsResponse, doing="list the grants")).grants
        )

    async def _revoke_columns(
        self, path: TablePath, principal: str, columns: Sequence[str], doing: str
    ) -> int:
        request = RevokeColumnsRequest(
            database=path.database,
            table=path.table,
            principal=principal,
            columns=list(columns) if columns else None,
        )
        answer = await self._cluster.call(request, RevokeColumnsResponse, doing=doing)
        return 1 if answer.columns else 0

    # -- users ---------------------------------------------------------------------------------------------

    async def create_acls(self, acls: Sequence[Acl]) -> None:
        """Add ACLs; every field must have a value. KafkaError INVALID_REQUEST, SECURITY_DISABLED, ..."""
        await create_acls(self._cluster, acls)

    async def list_acls(self, wanted: Acl) -> list[Acl]:
        """Return the ACLs that match, in order. KafkaError SECURITY_DISABLED, CLUSTER_AUTHORIZATION_FAILED."""
        return await list_acls(self._cluster, wanted)

    async def delete_acls(self, wanted: Sequence[Acl]) -> list[Acl]:
        """Remove the ACLs that match any of these, and return them."""
        return await delete_acls(self._cluster, wanted)

    async def create_user(self, name: str, password: str, *, if_not_exists: bool = False) -> None:
        """Create a user with a password for both SCRAM mechanisms. KafkaError DUPLICATE_RESOURCE if it exists."""
        if await self._mechanisms(name):
            if if_not_exists:
                return
            raise KafkaError(
                ErrorCode.DUPLICATE_RESOURCE, f"user {name} exists already; ALTER USER changes it"
            )
        await self._set_password(name, password, f"create user {name}")

    async def alter_user(self, name: str, password: str) -> None:
        """Change a user's password. KafkaError RESOURCE_NOT_FOUND if the user does not exist."""
        if not await self._mechanisms(name):
            raise KafkaError(ErrorCode.RESOURCE_NOT_FOUND, f"there is no user {name}")
        await self._set_password(name, password, f"alter user {name}")

    async def drop_user(self, name: str, *, if_exists: bool = False) -> None:
        """Delete a user's password. Its grants stay and hold for a later user of this name."""
        mechanisms = await self._mechanisms(name)
        if not mechanisms:
            if if_exists:
                return
            raise KafkaError(ErrorCode.RESOURCE_NOT_FOUND, f"there is no user {name}")
        deletions = [ScramCredentialDeletion(name=name, mechanism=each) for each in mechanisms]
        await self._alter(AlterUserScramCredentialsRequest(deletions=deletions), f"drop user {name}")

    async def list_users(self) -> list[UserListing]:
        """Return the users with a SCRAM password. Users of TLS, PLAIN and tokens are configured on the server."""
        answer = await self._cluster.call(
            DescribeUserScramCredentialsRequest(users=None),
            DescribeUserScramCredentialsResponse,
            doing="list the users",
        )
        found = []
        for each in answer.results:
            mechanisms = sorted(info.mechanism for info in each.credential_infos)
            found.append(
                UserListing(each.user, tuple(_MECHANISMS.get(code, str(code)) for code in mechanisms))
            )
        return sorted(found, key=lambda user: user.name)

    async def _mechanisms(self, name: str) -> list[int]:
        answer = await self._cluster.call(
            DescribeUserScramCredentialsRequest(users=[UserName(name=name)]),
            DescribeUserScramCredentialsResponse,
            doing=f"describe user {name}",
        )
        (result,) = answer.results
        if result.error_code == ErrorCode.RESOURCE_NOT_FOUND:
            return []
        raise_for(result.error_code, result.error_message, doing=f"describe user {name}")
        return [each.mechanism for each in result.credential_infos]

    async def _set_password(self, name: str, password: str, doing: str) -> None:
        """Set a password. It is salted here and never sent (KIP-554)."""
        upsertions = []
        for mechanism, digest in _DIGESTS.items():
            salt = secrets.token_bytes(_SALT_BYTES)
            salted = hashlib.pbkdf2_hmac(digest, password.encode(), salt, _ITERATIONS)
            upsertions.append(
                ScramCredentialUpsertion(
                    name=name, mechanism=mechanism, iterations=_ITERATIONS, salt=salt, salted_password=salted
                )
            )
        await self._alter(AlterUserScramCredentialsRequest(upsertions=upsertions), doing)

    async def _alter(self, request: AlterUserScramCredentialsRequest, doing: str) -> None:
        answer = await self._cluster.call(
            request, AlterUserScramCredentialsResponse, doing=doing, repeatable=False
        )
        for result in answer.results:
            raise_for(result.error_code, result.error_message, doing=doing)


def _operations(privileges: Sequence[str]) -> list[int]:
    """Return the operations of some privileges. Raises ValueError for an unknown one."""
    unknown = [each for each in several("privileges", privileges) if each.upper() not in OPERATIONS]
    if unknown or not privileges:
        raise ValueError(
            f"{unknown[0] if unknown else 'nothing'} is not a privilege: use {', '.join(OPERATIONS)}"
        )
    return list(dict.fromkeys(OPERATIONS[each.upper()] for each in privileges))


def _table(on: Object) -> TablePath:
    if not isinstance(on, TablePath):
        raise ValueError(f"columns are of a table, but {on} is a database")
    return on


def _pattern(on: Object) -> tuple[str, int]:
    return (on.topic, LITERAL) if isinstance(on, TablePath) else (database_prefix(on), PREFIXED)


def _named(on: Object) -> str:
    return f"table {on}" if isinstance(on, TablePath) else f"database {on}"


def _filter(on: Object, principal: str, operation: int) -> DeleteAclsFilter:
    name, pattern = _pattern(on)
    return DeleteAclsFilter(
        resource_type_filter=TOPIC,
        resource_name_filter=name,
        pattern_type_filter=pattern,
        principal_filter=principal,
        host_filter=None,
        operation=operation,
        permission_type=_ALLOW,
    )
