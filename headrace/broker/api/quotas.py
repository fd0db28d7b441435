"""DescribeClientQuotas (48) and AlterClientQuotas (49): limits of users, clients and addresses (KIP-546).

Requests are validated as in Kafka, so that a tool gets the same errors.
"""

from __future__ import annotations

from collections import Counter

from headrace.broker.requests.declaration import ApiDeclaration, RequestContext
from headrace.broker.runtime.slices import Work
from headrace.broker.security.quotas.model import CLIENT_ID, ENTITY_TYPES, IP, USER, Entity, changed
from headrace.broker.security.quotas.store import QuotaStore
from headrace.broker.security.requirement import whole
from headrace.broker.security.rights import Operation
from headrace.protocol.errors import ErrorCode, KafkaError
from headrace.protocol.messages import describe_client_quotas as describe
from headrace.protocol.messages.alter_client_quotas import (
    AlterClientQuotasRequest,
    AlterClientQuotasResponse,
    EntryResult,
)
from headrace.protocol.messages.alter_client_quotas import EntryData as AlteredEntry
from headrace.protocol.messages.describe_client_quotas import (
    ComponentData,
    DescribeClientQuotasRequest,
    DescribeClientQuotasResponse,
)

_EXACT, _DEFAULT, _ANY = range(3)  # match types
_CHANGED_TOGETHER_MAX = 1000
_PARTS_MAX = 3


class QuotasApi:
    def __init__(self, store: QuotaStore) -> None:
        self._store = store

    def declarations(self) -> list[ApiDeclaration]:
        return [
            ApiDeclaration(
                DescribeClientQuotasRequest,
                DescribeClientQuotasResponse,
                self.describe,
                whole(Operation.DESCRIBE_CONFIGS),
                on_error=_not_described,
            ),
            ApiDeclaration(
                AlterClientQuotasRequest,
                AlterClientQuotasResponse,
                self.alter,
                whole(Operation.ALTER_CONFIGS),
                on_error=_not_altered,
            ),
        ]

    # -- DescribeClientQuotas ------------------------------------------------------------------------------

    def describe(
        self, context: RequestContext, request: DescribeClientQuotasRequest
    ) -> Work[DescribeClientQuotasResponse]:
        filters = _checked(request.components)
        entries = []
        for entity, limits in sorted(self._store.quotas.limits.items(), key=_by_name):
            yield
            if _fits(entity, filters, strict=request.strict):
                entries.append(
                    describe.EntryData(
                        entity=[
                            describe.EntityData(entity_type=kind, entity_name=name)
                            for kind, name in entity.pairs()
                        ],
                        values=[
                            describe.ValueData(key=key, value=value) for key, value in sorted(limits.items())
                        ],
                    )
                )
        return DescribeClientQuotasResponse(error_message=None, entries=entries)

    # -- AlterClientQuotas ---------------------------------------------------------------------------------

    async def alter(
        self, context: RequestContext, request: AlterClientQuotasRequest
    ) -> AlterClientQuotasResponse:
        if len(request.entries) > _CHANGED_TOGETHER_MAX:
            raise KafkaError(
                ErrorCode.INVALID_REQUEST,
                f"{len(request.entries)} entities in one request; at most {_CHANGED_TOGETHER_MAX} are accepted",
            )
        named = Counter(_named(entry) for entry in request.entries if len(entry.entity) <= _PARTS_MAX)
        results = []
        for entry in request.entries:
            result = EntryResult(error_message=None, entity=entry.entity)
            results.append(result)
            try:
                if len(entry.entity) > _PARTS_MAX:
                    raise KafkaError(
                        ErrorCode.INVALID_REQUEST,
                        f"an entity of {len(entry.entity)} parts; it has at most a user, a client-id and an ip",
                    )
                if named[_named(entry)] > 1:
                    raise KafkaError(ErrorCode.INVALID_REQUEST, "the entity is in the request twice")
                await self._alter(entry, validate_only=request.validate_only)
            except KafkaError as error:
                result.error_code, result.error_message = error.code, error.message
        return AlterClientQuotasResponse(entries=results)

    async def _alter(self, entry: AlteredEntry, *, validate_only: bool) -> None:
        entity = Entity.of((each.entity_type, each.entity_name) for each in entry.entity)
        operations = [(each.key, each.value, each.remove) for each in entry.ops]
        if validate_only:
            changed(entity, self._store.quotas.limits.get(entity, {}), operations)
        else:
            await self._store.alter(entity, lambda limits: changed(entity, limits, operations))


def _named(entry: AlteredEntry) -> frozenset[tuple[str, str | None]]:
    return frozenset((each.entity_type, each.entity_name) for each in entry.entity)


def _by_name(item: tuple[Entity, object]) -> list[tuple[str, str]]:
    return [(kind, name or "") for kind, name in item[0].pairs()]


def _checked(components: list[ComponentData]) -> dict[str, ComponentData]:
    """Return the filters by type. Raises KafkaError."""
    found: dict[str, ComponentData] = {}
    for component in components:
        kind = component.entity_type
        if kind not in ENTITY_TYPES:
            raise KafkaError(
                ErrorCode.UNSUPPORTED_VERSION if kind else ErrorCode.INVALID_REQUEST,
                f"entity type {kind!r} has no quotas; it must be one of {', '.join(ENTITY_TYPES)}",
            )
        if kind in found:
            raise KafkaError(ErrorCode.INVALID_REQUEST, f"entity type {kind!r} is in the filter twice")
        found[kind] = component
        if component.match_type not in (_EXACT, _DEFAULT, _ANY):
            raise KafkaError(
                ErrorCode.INVALID_REQUEST,
                f"match type {component.match_type} is unknown; it must be 0 (exact), 1 (default) or 2 (any)",
            )
        if (component.match is not None) != (component.match_type == _EXACT):
            raise KafkaError(
                ErrorCode.INVALID_REQUEST,
                f"a name for {kind!r} is required for an exact match and not allowed otherwise",
            )
    if IP in found and len(found) > 1:
        raise KafkaError(ErrorCode.INVALID_REQUEST, "the entity type 'ip' cannot be combined with others")
    return found


def _fits(entity: Entity, filters: dict[str, ComponentData], *, strict: bool) -> bool:
    """Return whether an entity matches. `strict`: an entity with more parts than the filters name does not match."""
    for kind, name in ((USER, entity.user), (CLIENT_ID, entity.client_id), (IP, entity.ip)):
        wanted = filters.get(kind)
        if wanted is None:
            if strict and name is not None:
                return False
        elif (
            name is None
            or (wanted.match_type == _EXACT and (name != wanted.match or not name))
            or (wanted.match_type == _DEFAULT and name)
        ):
            return False
    return True


def _not_described(
    request: DescribeClientQuotasRequest, version: int, error: KafkaError
) -> DescribeClientQuotasResponse:
    return DescribeClientQuotasResponse(error_code=error.code, error_message=error.message, entries=None)


def _not_altered(
    request: AlterClientQuotasRequest, version: int, error: KafkaError
) -> AlterClientQuotasResponse:
    return AlterClientQuotasResponse(
        entries=[
            EntryResult(error_code=error.code, error_message=error.message, entity=entry.entity)
            for entry in request.entries
        ]
    )
