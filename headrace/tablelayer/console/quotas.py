"""Client quotas in the console: limits of users, client ids and addresses, as `kafka-configs` sets them."""

from __future__ import annotations

from typing import Annotated, Any, Final

import msgspec

from headrace.tablelayer.client import Connection
from headrace.tablelayer.client.admin.quotas import ENTITY_TYPES
from headrace.tablelayer.console.routes import Body, RequestError, Text, get, post

_LIMITS: Final = (
    "producer_byte_rate",
    "consumer_byte_rate",
    "request_percentage",
    "controller_mutation_rate",
    "connection_creation_rate",
)
_Entity = dict[Text, str | None]


class QuotaChange(Body):
    """`entity`: names by type, null for the default of a type."""

    entity: Annotated[_Entity, msgspec.Meta(min_length=1)]
    set: dict[Text, float] = msgspec.field(default_factory=dict)
    remove: list[Text] = msgspec.field(default_factory=list)


class Quotas:
    def __init__(self, connection: Connection) -> None:
        self._connection = connection

    @get("/api/quotas")
    def quotas(self) -> dict[str, Any]:
        """Client quotas by user, client id and address; a name that is null is the default."""
        return {
            "quotas": [
                {"entity": dict(each.entity), "limits": dict(sorted(each.limits.items()))}
                for each in self._connection.kafka.client_quotas()
            ],
            "kinds": list(ENTITY_TYPES),
            "limits": list(_LIMITS),
        }

    @post("/api/quotas")
    def change(self, body: QuotaChange) -> dict[str, Any]:
        """Set some limits of an entity, and remove others: all or none."""
        if not body.set and not body.remove:
            raise RequestError(
                'send {"set": {"producer_byte_rate": 1000000}, "remove": [...]}, or one of both'
            )
        self._connection.kafka.alter_client_quotas(body.entity, body.set, body.remove)
        return {"set": sorted(body.set), "removed": sorted(body.remove)}
