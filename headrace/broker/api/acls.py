"""DescribeAcls (29), CreateAcls (30), DeleteAcls (31): the rules of access.

Without an authorizer everything is allowed and there are no ACLs: the answer is SECURITY_DISABLED, as in Kafka.
MirrorMaker 2 asks by default and goes on without ACLs after that answer.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

from headrace.broker.requests.answers import AnswerBudget
from headrace.broker.requests.declaration import ApiDeclaration, RequestContext
from headrace.broker.runtime.slices import Slices, Work
from headrace.broker.security.acl.model import Acl, AclFilter, checked, checked_filter
from headrace.broker.security.requirement import whole
from headrace.broker.security.rights import Operation
from headrace.protocol.errors import ErrorCode, KafkaError
from headrace.protocol.messages.create_acls import (
    AclCreation,
    AclCreationResult,
    CreateAclsRequest,
    CreateAclsResponse,
)
from headrace.protocol.messages.delete_acls import (
    DeleteAclsFilter,
    DeleteAclsFilterResult,
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

if TYPE_CHECKING:
    from headrace.broker.security.acl.store import AclStore

NO_AUTHORIZER: Final = "No Authorizer is configured on the broker"
_ACL_BYTES: Final = 20  # bytes of an answer, besides texts


class AclsApi:
    """The handlers of the three APIs. `acls` is None without an authorizer."""

    def __init__(self, acls: AclStore | None, slices: Slices) -> None:
        self._acls = acls
        self._slices = slices

    def declarations(self) -> list[ApiDeclaration]:
        return [
            ApiDeclaration(
                DescribeAclsRequest, DescribeAclsResponse, self.describe, whole(Operation.DESCRIBE)
            ),
            ApiDeclaration(
                CreateAclsRequest,
                CreateAclsResponse,
                self.create,
                whole(Operation.ALTER),
                on_error=_create_failed,
            ),
            ApiDeclaration(
                DeleteAclsRequest,
                DeleteAclsResponse,
                self.delete,
                whole(Operation.ALTER),
                on_error=_delete_failed,
            ),
        ]

    def describe(self, context: RequestContext, request: DescribeAclsRequest) -> Work[DescribeAclsResponse]:
        acls = self._configured()
        found = yield from acls.rules.matching(_filter(request))
        resources: dict[tuple[int, int, str], DescribeAclsResource] = {}
        budget = AnswerBudget()
        for acl in found:
            yield
            budget.charge(_ACL_BYTES + len(acl.name) + len(acl.principal) + len(acl.host))
            key = (acl.resource_type, acl.pattern_type, acl.name)
            resource = resources.get(key)
            if resource is None:
                resource = resources[key] = DescribeAclsResource(
                    resource_type=acl.resource_type,
                    resource_name=acl.name,
                    pattern_type=acl.pattern_type,
                    acls=[],
                )
            resource.acls.append(
                AclDescription(
                    principal=acl.principal,
                    host=acl.host,
                    operation=acl.operation,
                    permission_type=acl.permission,
                )
            )
        return DescribeAclsResponse(error_message=None, resources=list(resources.values()))

    async def create(self, context: RequestContext, request: CreateAclsRequest) -> CreateAclsResponse:
        """Create all valid ACLs or none; each invalid one gets its own error."""
        acls = self._configured()
        pace = self._slices.pace()
        legal, results = [], []
        for creation in request.creations:
            await pace.rest()
            result = AclCreationResult(error_message=None)
            results.append(result)
            try:
                legal.append((checked(_acl(creation)), result))
            except KafkaError as error:
                result.error_code, result.error_message = error.code, error.message
        try:
            await acls.create([acl for acl, _ in legal])
        except KafkaError as error:
            for _, result in legal:
                result.error_code, result.error_message = error.code, error.message
        return CreateAclsResponse(results=results)

    async def delete(self, context: RequestContext, request: DeleteAclsRequest) -> DeleteAclsResponse:
        """Delete all ACLs that match valid filters, or none; each invalid filter gets its own error."""
        acls = self._configured()
        pace = self._slices.pace()
        legal, results = [], []
        for each in request.filters:
            await pace.rest()
            result = DeleteAclsFilterResult(error_message=None, matching_acls=[])
            results.append(result)
            try:
                legal.append((checked_filter(_filter(each)), result))
            except KafkaError as error:
                result.error_code, result.error_message = error.code, error.message
        try:
            found = await acls.delete([wanted for wanted, _ in legal])
        except KafkaError as error:
            for _, result in legal:
                result.error_code, result.error_message = error.code, error.message
            return DeleteAclsResponse(filter_results=results)
        for (_, result), gone in zip(legal, found, strict=True):
            for acl in gone:
                await pace.rest()
                result.matching_acls.append(_deleted(acl))
        return DeleteAclsResponse(filter_results=results)

    def _configured(self) -> AclStore:
        if self._acls is None:
            raise KafkaError(ErrorCode.SECURITY_DISABLED, NO_AUTHORIZER)
        return self._acls


def _acl(creation: AclCreation) -> Acl:
    return Acl(
        creation.resource_type,
        creation.resource_pattern_type,
        creation.resource_name,
        creation.principal,
        creation.host,
        creation.operation,
        creation.permission_type,
    )


def _filter(wanted: DescribeAclsRequest | DeleteAclsFilter) -> AclFilter:
    return checked_filter(
        AclFilter(
            wanted.resource_type_filter,
            wanted.pattern_type_filter,
            wanted.resource_name_filter,
            wanted.principal_filter,
            wanted.host_filter,
            wanted.operation,
            wanted.permission_type,
        )
    )


def _deleted(acl: Acl) -> DeleteAclsMatchingAcl:
    return DeleteAclsMatchingAcl(
        error_message=None,
        resource_type=acl.resource_type,
        resource_name=acl.name,
        pattern_type=acl.pattern_type,
        principal=acl.principal,
        host=acl.host,
        operation=acl.operation,
        permission_type=acl.permission,
    )


def _create_failed(request: CreateAclsRequest, version: int, error: KafkaError) -> CreateAclsResponse:
    refused = AclCreationResult(error_code=error.code, error_message=error.message)
    return CreateAclsResponse(results=[refused] * len(request.creations))


def _delete_failed(request: DeleteAclsRequest, version: int, error: KafkaError) -> DeleteAclsResponse:
    refused = DeleteAclsFilterResult(error_code=error.code, error_message=error.message)
    return DeleteAclsResponse(filter_results=[refused] * len(request.filters))
