"""DescribeConfigs (32), IncrementalAlterConfigs (44), AlterConfigs (33), ListConfigResources (74).

Everything is computed from the declared tables: every configuration is listed, with its value, where the value comes
from, its type and its documentation. Configurations of topics and groups can be changed, and so can the levels of
loggers and those of the broker's configurations that are declared dynamic. The others are read-only.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from functools import partial
from typing import Any, Final

from headrace.broker.api.broker_loggers import change_loggers, describe_loggers
from headrace.broker.cluster.metadata_follower import MetadataFollower
from headrace.broker.cluster.topic_changes import TopicChanges
from headrace.broker.configs.broker_config import ALL_BROKERS_SOURCE, DEFAULT_SOURCE, BrokerConfig, TopicLayer
from headrace.broker.configs.config_key import ConfigKey, ConfigType
from headrace.broker.groups.group_configs import GROUP_CONFIGS, GroupConfigs, broker_synonym
from headrace.broker.metadata.broker_configs import ALL_BROKERS, BrokerConfigs, unknown_broker
from headrace.broker.metadata.cluster import ClusterMetadata
from headrace.broker.metadata.identity import BrokerIdentity
from headrace.broker.metadata.topic_config import INTERNAL_DEFAULTS, TopicConfigs
from headrace.broker.metadata.topic_names import check_topic_name, unknown_topic
from headrace.broker.partitions.topic import TopicImage
from headrace.broker.requests.answers import AnswerBudget
from headrace.broker.requests.declaration import ApiDeclaration, RequestContext
from headrace.broker.runtime.slices import Slices, Work
from headrace.broker.security.requirement import Requirement, whole, within
from headrace.broker.security.rights import CLUSTER_NAME, Operation, ResourceType
from headrace.protocol.errors import ErrorCode, KafkaError
from headrace.protocol.messages.alter_configs import AlterableConfig as ReplacedConfig
from headrace.protocol.messages.alter_configs import (
    AlterConfigsRequest,
    AlterConfigsResourceResponse,
    AlterConfigsResponse,
)
from headrace.protocol.messages.describe_configs import (
    DescribeConfigsRequest,
    DescribeConfigsResource,
    DescribeConfigsResourceResult,
    DescribeConfigsResponse,
    DescribeConfigsResult,
    DescribeConfigsSynonym,
)
from headrace.protocol.messages.incremental_alter_configs import (
    AlterableConfig,
    AlterConfigsResource,
    IncrementalAlterConfigsRequest,
    IncrementalAlterConfigsResponse,
)
from headrace.protocol.messages.list_config_resources import (
    ConfigResource,
    ListConfigResourcesRequest,
    ListConfigResourcesResponse,
)

TOPIC, BROKER, BROKER_LOGGER, CLIENT_METRICS, GROUP = 2, 4, 8, 16, 32  # ConfigResource.Type
_TOPIC_SOURCE, _GROUP_SOURCE = 1, 8  # ConfigSource; those of the broker are in `broker.configs.broker_config`
_SET, _DELETE, _APPEND, _SUBTRACT = range(4)  # AlterConfigOp.OpType
CHANGES_MAX = 1000
"""Maximum number of changes to one resource in one request: many more than there are configurations."""
_LIST_OPERATIONS = {_APPEND: "APPEND", _SUBTRACT: "SUBTRACT"}


OF_REPLICAS: Final = (
    "min.insync.replicas",
    "leader.replication.throttled.replicas",
    "follower.replication.throttled.replicas",
)
"""The configurations that may be set on the broker's internal topics: by administrators, and by Kafka's tools that move
partitions.
"""
Wanted = dict[str, str | None]
"""Values by name; None returns a configuration to its default."""
Changes = Callable[[Mapping[str, str], Mapping[str, ConfigKey]], Wanted]
"""A function from the values that are set and the known configurations to the requested changes."""


def _on_any(operation: Operation) -> Requirement:
    """Return the rights of a request whose resources have configurations of all kinds."""
    return within(topic=operation, cluster=operation, group=operation)


class ConfigsApi:
    def __init__(
        self,
        config: BrokerConfig,
        brokers: BrokerConfigs,
        groups: GroupConfigs,
        metadata: ClusterMetadata,
        topics: TopicChanges,
        following: MetadataFollower,
        identity: BrokerIdentity,
        slices: Slices,
    ) -> None:
        self._brokers = brokers
        self._groups = groups
        self._metadata = metadata
        self._topics = topics
        self._following = following
        self._config = config
        self._broker_id = identity.broker_id
        self._slices = slices

    def declarations(self) -> list[ApiDeclaration]:
        return [
            ApiDeclaration(
                DescribeConfigsRequest,
                DescribeConfigsResponse,
                self.describe,
                _on_any(Operation.DESCRIBE_CONFIGS),
            ),
            ApiDeclaration(
                AlterConfigsRequest,
                AlterConfigsResponse,
                self.alter,
                _on_any(Operation.ALTER_CONFIGS),
                on_error=_alter_failed,
            ),
            ApiDeclaration(
                IncrementalAlterConfigsRequest,
                IncrementalAlterConfigsResponse,
                self.alter_incrementally,
                _on_any(Operation.ALTER_CONFIGS),
                on_error=_alter_failed,
            ),
            ApiDeclaration(
                ListConfigResourcesRequest,
                ListConfigResourcesResponse,
                self.list_resources,
                whole(Operation.DESCRIBE_CONFIGS),
            ),
        ]

    def describe(
        self, context: RequestContext, request: DescribeConfigsRequest
    ) -> Work[DescribeConfigsResponse]:
        response = DescribeConfigsResponse(results=[])
        budget = AnswerBudget()
        for resource in request.resources:
            yield
            result = DescribeConfigsResult(
                error_message=None,
                resource_type=resource.resource_type,
                resource_name=resource.resource_name,
                configs=[],
            )
            response.results.append(result)
            wanted = frozenset(resource.configuration_keys or ())  # none: all
            try:
                _require(context, Operation.DESCRIBE_CONFIGS, resource)
                for entry in self._entries(resource):
                    if wanted and entry.name not in wanted:
                        continue
                    if not request.include_synonyms:
                        entry.synonyms = []
                    if not request.include_documentation:
                        entry.documentation = None
                    budget.charge(_size_of(entry))
                    result.configs.append(entry)
            except KafkaError as error:
                result.error_code, result.error_message, result.configs = error.code, error.message, []
        return response

    def _entries(self, resource: DescribeConfigsResource) -> list[DescribeConfigsResourceResult]:
        if resource.resource_type == TOPIC:
            image = self._existing(resource.resource_name)
            return describe_topic(self._metadata.topic_configs, self._config, image)
        if resource.resource_type == GROUP:
            return _describe_group(self._groups, self._config, resource.resource_name)
        if resource.resource_type == BROKER_LOGGER:
            self._check_own(resource.resource_name)
            return describe_loggers()
        self._check_broker(resource.resource_type, resource.resource_name)
        return _describe_broker(self._config, for_all=resource.resource_name == ALL_BROKERS)

    def list_resources(
        self, context: RequestContext, request: ListConfigResourcesRequest
    ) -> Work[ListConfigResourcesResponse]:
        """List the resources that can be described. Client metrics have no configuration here."""
        known = (TOPIC, BROKER, BROKER_LOGGER, CLIENT_METRICS, GROUP)
        wanted = set(request.resource_types or known) if context.api_version else {CLIENT_METRICS}
        for resource_type in wanted.difference(known):
            raise KafkaError(ErrorCode.UNSUPPORTED_VERSION, f"resource type {resource_type} is unknown")
        found = []
        if TOPIC in wanted:
            for image in self._metadata.topics():
                yield
                found.append(ConfigResource(resource_name=image.name, resource_type=TOPIC))
        brokers = sorted({self._broker_id, *self._metadata.image.brokers})
        for kind in sorted(wanted & {BROKER, BROKER_LOGGER}):
            found += [ConfigResource(resource_name=str(each), resource_type=kind) for each in brokers]
        if GROUP in wanted:
            for name in self._groups.names():
                yield
                found.append(ConfigResource(resource_name=name, resource_type=GROUP))
        return ListConfigResourcesResponse(config_resources=found)

    async def alter(self, context: RequestContext, request: AlterConfigsRequest) -> AlterConfigsResponse:
        """Replace the configuration: one that is not named returns to its default."""
        return AlterConfigsResponse(responses=await self._alter(context, request, _replaced))

    async def alter_incrementally(
        self, context: RequestContext, request: IncrementalAlterConfigsRequest
    ) -> IncrementalAlterConfigsResponse:
        return IncrementalAlterConfigsResponse(responses=await self._alter(context, request, _changed))

    async def _alter(
        self,
        context: RequestContext,
        request: AlterConfigsRequest | IncrementalAlterConfigsRequest,
        changes: Callable[..., Wanted],
    ) -> list[AlterConfigsResourceResponse]:
        """Change each resource of the request. `changes` gets the entries of one resource, then the arguments of
        `Changes`.
        """
        await self._following.refreshed()
        answers = []
        pace = self._slices.pace()
        for resource in request.resources:
            await pace.rest()
            code, message = await self._change(
                context, resource, partial(changes, resource.configs), request.validate_only
            )
            answers.append(
                AlterConfigsResourceResponse(
                    error_code=code,
                    error_message=message,
                    resource_type=resource.resource_type,
                    resource_name=resource.resource_name,
                )
            )
        return answers

    async def _change(
        self, context: RequestContext, resource: Any, changes: Changes, validate_only: bool
    ) -> tuple[int, str | None]:
        try:
            _require(context, Operation.ALTER_CONFIGS, resource)
            if len(resource.configs) > CHANGES_MAX:
                raise KafkaError(
                    ErrorCode.INVALID_REQUEST,
                    f"{len(resource.configs)} configurations of one resource; at most {CHANGES_MAX} are accepted",
                )
            if resource.resource_type == GROUP:
                name = resource.resource_name
                await self._groups.alter(
                    name, lambda config: changes(config, GROUP_CONFIGS), validate_only=validate_only
                )
                return 0, None
            if isinstance(resource, AlterConfigsResource) and resource.resource_type == BROKER_LOGGER:
                self._check_own(resource.resource_name)
                change_loggers(resource.configs, validate_only=validate_only)
                return 0, None
            if resource.resource_type != TOPIC:
                self._check_broker(resource.resource_type, resource.resource_name)
                await self._brokers.alter(
                    resource.resource_name,
                    lambda config: changes(self._with_effective_lists(config), self._config.keys),
                    validate_only=validate_only,
                )
                return 0, None
            image = self._existing(resource.resource_name)
            await self._topics.alter_config(
                image.name, partial(self._of_topic, context, image, changes), validate_only=validate_only
            )
        except KafkaError as error:
            return error.code, error.message
        return 0, None

    def _of_topic(
        self, context: RequestContext, image: TopicImage, changes: Changes, config: Mapping[str, str]
    ) -> Wanted:
        keys = self._metadata.topic_configs.keys(config)
        wanted = changes(config, keys)
        others = [name for name in wanted if name not in OF_REPLICAS and wanted[name] != config.get(name)]
        if image.internal and others:
            raise KafkaError(
                ErrorCode.POLICY_VIOLATION,
                f"{image.name} is an internal topic: {others[0]} cannot be set on it, only {', '.join(OF_REPLICAS)}",
            )
        require_named_topics(context, keys, wanted)
        return wanted

    def _with_effective_lists(self, config: Mapping[str, str]) -> Mapping[str, str]:
        """Return the lists that APPEND and SUBTRACT start from: the broker's values, from any source."""
        lists = {
            name: self._config.explicit[name]
            for name, key in self._config.keys.items()
            if key.type == ConfigType.LIST and name in self._config.explicit
        }
        return {**lists, **config}

    def _existing(self, name: str) -> TopicImage:
        image = self._metadata.topic(name)
        if image is None:
            check_topic_name(name)
            raise unknown_topic(name)
        return image

    def _check_broker(self, resource_type: int, name: str) -> None:
        if resource_type != BROKER:
            raise KafkaError(
                ErrorCode.INVALID_REQUEST,
                f"resource type {resource_type} has no configuration here; "
                f"{TOPIC} (topics), {BROKER} (brokers), {BROKER_LOGGER} (the loggers of a broker, incrementally) and "
                f"{GROUP} (groups) have",
            )
        if name not in ("", str(self._broker_id)):
            raise unknown_broker(name, str(self._broker_id))

    def _check_own(self, name: str) -> None:
        if name != str(self._broker_id):
            raise unknown_broker(name, str(self._broker_id))


def _require(context: RequestContext, operation: Operation, resource: Any) -> None:
    """Require `operation` on the topic or group, or on the cluster for other resources. Raises KafkaError."""
    if resource.resource_type == TOPIC:
        context.require(operation, ResourceType.TOPIC, resource.resource_name)
    elif resource.resource_type == GROUP:
        context.require(operation, ResourceType.GROUP, resource.resource_name)
    else:
        context.require(operation, ResourceType.CLUSTER, CLUSTER_NAME)


def require_named_topics(
    context: RequestContext, keys: Mapping[str, ConfigKey], wanted: Mapping[str, str | None]
) -> None:
    """Raises KafkaError if a configuration names a topic that the caller may not write to."""
    for name, text in wanted.items():
        key = keys.get(name)
        if text is not None and key is not None and key.names_topic:
            context.require(Operation.WRITE, ResourceType.TOPIC, text.strip())


def describe_topic(
    configs: TopicConfigs, broker: BrokerConfig, image: TopicImage
) -> list[DescribeConfigsResourceResult]:
    """All configurations of a topic: the log's, and those of an extension that are set on the topic."""
    entries = []
    for name, key in configs.keys(image.config).items():
        if name not in configs.log_keys and name not in image.config:
            continue  # defaults of an extension mean nothing to a topic that it does not own
        synonyms: list[tuple[str, str | None, int]] = []
        layers: list[TopicLayer] = []
        if name in image.config:
            synonyms.append((name, image.config[name], _TOPIC_SOURCE))
        if not (image.internal and name in INTERNAL_DEFAULTS):
            layers = broker.topic_layers(name)
            synonyms += [(layer.name, layer.text, layer.source) for layer in layers]
        default = INTERNAL_DEFAULTS.get(name, key.default) if image.internal else key.default
        synonyms.append((broker.topic_synonym(name), default, DEFAULT_SOURCE))
        entry = _entry(key, synonyms, read_only=False)
        if layers and name not in image.config and not entry.is_sensitive:
            entry.value = layers[0].topic_text  # hours of the broker are milliseconds of the topic
        entries.append(entry)
    return entries


def _replaced(
    entries: Sequence[ReplacedConfig], config: Mapping[str, str], known: Mapping[str, ConfigKey]
) -> Wanted:
    return {**dict.fromkeys(config), **{entry.name: entry.value for entry in entries}}


def _changed(
    entries: Sequence[AlterableConfig], config: Mapping[str, str], known: Mapping[str, ConfigKey]
) -> Wanted:
    changes: Wanted = {}
    for entry in entries:
        if entry.name in changes:
            raise KafkaError(
                ErrorCode.INVALID_REQUEST,
                f"Error due to duplicate config keys: {entry.name} is in the request twice",
            )
        if entry.config_operation == _DELETE:
            changes[entry.name] = None
            continue
        if entry.value is None:
            raise KafkaError(ErrorCode.INVALID_REQUEST, f"Null value not supported for : {entry.name}")
        if entry.config_operation == _SET:
            changes[entry.name] = entry.value
        elif entry.config_operation in (_APPEND, _SUBTRACT):
            key = known.get(entry.name)
            if key is None or key.type != ConfigType.LIST:
                raise KafkaError(
                    ErrorCode.INVALID_CONFIG,
                    f"Can't {_LIST_OPERATIONS[entry.config_operation]} to key {entry.name} because its type is not "
                    "LIST.",
                )
            changes[entry.name] = _changed_list(config.get(entry.name, key.default or ""), entry)
        else:
            raise KafkaError(
                ErrorCode.INVALID_REQUEST,
                f"operation {entry.config_operation} on {entry.name!r} is unknown",
            )
    return changes


def _describe_group(
    groups: GroupConfigs, broker: BrokerConfig, group_id: str
) -> list[DescribeConfigsResourceResult]:
    if not group_id:
        raise KafkaError(ErrorCode.INVALID_REQUEST, "Group name must not be empty")
    explicit = groups.explicit(group_id)
    entries = []
    for name, key in GROUP_CONFIGS.items():
        synonym = broker_synonym(name)
        synonyms: list[tuple[str, str | None, int]] = []
        if name in explicit:
            synonyms.append((name, explicit[name], _GROUP_SOURCE))
        synonyms += [(synonym, text, source) for text, source in broker.layers(synonym)]
        entries.append(_entry(key, synonyms, read_only=False))
    return entries


def _describe_broker(config: BrokerConfig, *, for_all: bool) -> list[DescribeConfigsResourceResult]:
    """`for_all`: show the defaults of all brokers; the values are those of this broker, as in Kafka."""
    entries = []
    for name, key in config.keys.items():
        layers = config.layers(name)
        synonyms = [
            (name, text, source)
            for text, source in layers
            if not for_all or source in (ALL_BROKERS_SOURCE, DEFAULT_SOURCE)
        ]
        entry = _entry(key, synonyms, read_only=not key.dynamic)
        if not entry.is_sensitive:
            entry.value = layers[0][0]
        entries.append(entry)
    return entries


def _entry(
    key: ConfigKey, synonyms: list[tuple[str, str | None, int]], *, read_only: bool
) -> DescribeConfigsResourceResult:
    """Return the description of a configuration. `synonyms` are the sources of its value, the effective one first;
    those without a value are left out. The value of a secret is never shown.
    """
    secret = key.type == ConfigType.PASSWORD
    _, value, source = synonyms[0]
    return DescribeConfigsResourceResult(
        name=key.name,
        value=None if secret else value,
        read_only=read_only,
        config_source=source,
        is_sensitive=secret,
        synonyms=[
            DescribeConfigsSynonym(name=name, value=None if secret else text, source=origin)
            for name, text, origin in synonyms
            if text is not None
        ],
        config_type=int(key.type),
        documentation=key.doc,
    )


def _changed_list(current: str, entry: AlterableConfig) -> str:
    items = dict.fromkeys(item.strip() for item in current.split(",") if item.strip())
    given = dict.fromkeys(item.strip() for item in (entry.value or "").split(",") if item.strip())
    if entry.config_operation == _APPEND:
        return ",".join({**items, **given})
    return ",".join(item for item in items if item not in given)


def _size_of(entry: DescribeConfigsResourceResult) -> int:
    """Approximate bytes of the entry in an answer."""
    texts = (entry.name, entry.value, entry.documentation)
    size = 16 + sum(len(text) for text in texts if text is not None)
    return size + sum(8 + len(each.name) + len(each.value or "") for each in entry.synonyms)


def _alter_failed(
    request: AlterConfigsRequest | IncrementalAlterConfigsRequest, version: int, error: KafkaError
) -> Work[AlterConfigsResponse | IncrementalAlterConfigsResponse]:
    answers = []
    for resource in request.resources:
        yield
        answers.append(
            AlterConfigsResourceResponse(
                error_code=error.code,
                error_message=error.message,
                resource_type=resource.resource_type,
                resource_name=resource.resource_name,
            )
        )
    if isinstance(request, AlterConfigsRequest):
        return AlterConfigsResponse(responses=answers)
    return IncrementalAlterConfigsResponse(responses=answers)
