"""Configurations of topics, brokers and groups, as Kafka's tools see and set them."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from enum import IntEnum

from headrace.protocol.errors import ErrorCode, KafkaError
from headrace.protocol.messages.describe_configs import (
    DescribeConfigsRequest,
    DescribeConfigsResource,
    DescribeConfigsResponse,
)
from headrace.protocol.messages.incremental_alter_configs import (
    AlterableConfig,
    AlterConfigsResource,
    IncrementalAlterConfigsRequest,
    IncrementalAlterConfigsResponse,
)
from headrace.protocol.messages.list_config_resources import (
    ListConfigResourcesRequest,
    ListConfigResourcesResponse,
)
from headrace.tablelayer.client.names import several
from headrace.tablelayer.client.wire.cluster import Cluster
from headrace.tablelayer.client.wire.retry import Deadline, raise_for, retrying

_SET, _DELETE = 0, 1  # AlterConfigOp.OpType


class ConfigKind(IntEnum):
    """The kinds of resource that have configurations: Kafka's ConfigResource.Type."""

    TOPIC = 2
    BROKER = 4
    BROKER_LOGGER = 8
    GROUP = 32


#: Kafka's ConfigSource, in words.
SOURCES = {
    1: "topic",
    2: "broker",
    3: "all brokers",
    4: "started with",
    5: "default",
    6: "broker logger",
    7: "client metrics",
    8: "group",
}


@dataclass(frozen=True, slots=True)
class ConfigListing:
    """One configuration. `value` is None if unset or secret (`is_sensitive`). `source` is a word of `SOURCES`."""

    name: str
    value: str | None
    source: str
    is_read_only: bool
    is_sensitive: bool
    documentation: str

    @property
    def is_default(self) -> bool:
        """Return whether the value is the default."""
        return self.source == SOURCES[5]


async def list_resources(cluster: Cluster) -> list[tuple[ConfigKind, str]]:
    """Return the resources that have configurations: kind and name (empty for all brokers together)."""
    answer = await cluster.call(
        ListConfigResourcesRequest(resource_types=[kind.value for kind in ConfigKind]),
        ListConfigResourcesResponse,
        doing="list the resources with configurations",
    )
    known = {kind.value for kind in ConfigKind}
    return sorted(
        (ConfigKind(each.resource_type), each.resource_name)
        for each in answer.config_resources
        if each.resource_type in known
    )


async def describe_configs(cluster: Cluster, kind: ConfigKind, name: str) -> list[ConfigListing]:
    """Return every configuration of a topic, broker or group, by name. Raises KafkaError."""
    doing = f"describe the configurations of {kind.name.lower()} {name}"
    request = DescribeConfigsRequest(
        resources=[
            DescribeConfigsResource(resource_type=kind.value, resource_name=name, configuration_keys=None)
        ],
        include_documentation=True,
    )
    node_id = await _whom(cluster, kind, name)
    result = (await cluster.call(request, DescribeConfigsResponse, doing=doing, node_id=node_id)).results[0]
    raise_for(result.error_code, result.error_message, doing=doing)
    return sorted(
        (
            ConfigListing(
                each.name,
                each.value,
                SOURCES.get(each.config_source, "unknown"),
                each.read_only,
                each.is_sensitive,
                each.documentation or "",
            )
            for each in result.configs
        ),
        key=lambda each: each.name,
    )


async def alter_configs(
    cluster: Cluster,
    kind: ConfigKind,
    name: str,
    values: Mapping[str, str],
    delete: Sequence[str],
    *,
    validate_only: bool,
) -> None:
    """Set some configurations and reset others to their defaults: all or none. Raises KafkaError."""
    doing = f"alter the configurations of {kind.name.lower()} {name}"
    request = IncrementalAlterConfigsRequest(
        resources=[
            AlterConfigsResource(
                resource_type=kind.value,
                resource_name=name,
                configs=[
                    *(AlterableConfig(name=n, config_operation=_SET, value=v) for n, v in values.items()),
                    *(
                        AlterableConfig(name=n, config_operation=_DELETE, value=None)
                        for n in several("delete", delete)
                    ),
                ],
            )
        ],
        validate_only=validate_only,
    )
    node_id = await _whom(cluster, kind, name)
    answer = await cluster.call(
        request, IncrementalAlterConfigsResponse, doing=doing, changes=True, node_id=node_id
    )
    raise_for(answer.responses[0].error_code, answer.responses[0].error_message, doing=doing)


async def _whom(cluster: Cluster, kind: ConfigKind, name: str) -> int | None:
    """Return the broker to ask: a broker alone knows its own configurations and loggers. None: any broker.

    Raises KafkaError BROKER_NOT_AVAILABLE.
    """
    if kind not in (ConfigKind.BROKER, ConfigKind.BROKER_LOGGER) or not name:
        return None

    async def attempt(deadline: Deadline) -> list[int]:
        return sorted(each.node_id for each in (await cluster.metadata([], deadline)).brokers)

    alive = await retrying(attempt, config=cluster.config, repeatable=True)
    if name not in map(str, alive):
        raise KafkaError(
            ErrorCode.BROKER_NOT_AVAILABLE,
            f"broker {name} is not alive: the brokers are {', '.join(map(str, alive))}",
        )
    return int(name)
