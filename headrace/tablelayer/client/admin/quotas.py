"""Client quotas: limits of users, client ids and addresses, as `kafka-configs` sets them (KIP-546)."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Final

from headrace.protocol.messages import alter_client_quotas as alter
from headrace.protocol.messages.alter_client_quotas import AlterClientQuotasRequest, AlterClientQuotasResponse
from headrace.protocol.messages.describe_client_quotas import (
    DescribeClientQuotasRequest,
    DescribeClientQuotasResponse,
)
from headrace.tablelayer.client.wire.retry import raise_for

if TYPE_CHECKING:
    from headrace.tablelayer.client.wire.cluster import Cluster

ENTITY_TYPES: Final = ("user", "client-id", "ip")


@dataclass(frozen=True, slots=True)
class ClientQuota:
    """The limits of one entity. `entity` has the name of each of its types (ENTITY_TYPES); None is the default of all
    names. `limits` are by Kafka's key, such as `producer_byte_rate`.
    """

    entity: Mapping[str, str | None]
    limits: Mapping[str, float] = field(default_factory=dict)


async def list_quotas(cluster: Cluster) -> list[ClientQuota]:
    """See `AsyncKafkaAdmin.client_quotas`."""
    doing = "list the client quotas"
    answer = await cluster.call(
        DescribeClientQuotasRequest(components=[]), DescribeClientQuotasResponse, doing=doing
    )
    raise_for(answer.error_code, answer.error_message, doing=doing)
    found = [
        ClientQuota(
            {part.entity_type: part.entity_name for part in each.entity},
            {value.key: value.value for value in each.values},
        )
        for each in answer.entries or ()
    ]
    return sorted(found, key=lambda each: sorted((kind, name or "") for kind, name in each.entity.items()))


async def alter_quotas(
    cluster: Cluster, entity: Mapping[str, str | None], limits: Mapping[str, float], remove: Sequence[str]
) -> None:
    """See `AsyncKafkaAdmin.alter_client_quotas`."""
    entry = alter.EntryData(
        entity=[alter.EntityData(entity_type=kind, entity_name=name) for kind, name in entity.items()],
        ops=[
            *(alter.OpData(key=key, value=value, remove=False) for key, value in limits.items()),
            *(alter.OpData(key=key, value=0.0, remove=True) for key in remove),
        ],
    )
    doing = "alter client quotas"
    answer = await cluster.call(
        AlterClientQuotasRequest(entries=[entry]), AlterClientQuotasResponse, doing=doing
    )
    for each in answer.entries:
        raise_for(each.error_code, each.error_message, doing=doing)
