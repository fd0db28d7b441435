"""CreateTopics (19), DeleteTopics (20), CreatePartitions (37): changes to topics by admin clients."""

from __future__ import annotations

import uuid
from collections import Counter
from collections.abc import Container, Sequence

from headrace.broker.api.configs import describe_topic, require_named_topics
from headrace.broker.cluster.metadata_follower import MetadataFollower
from headrace.broker.cluster.topic_changes import NewTopic, TopicChanges
from headrace.broker.configs.broker_config import BrokerConfig
from headrace.broker.metadata.cluster import ClusterMetadata
from headrace.broker.metadata.topic_names import (
    INTERNAL_TOPICS,
    already_exists,
    check_growth,
    check_topic_name,
    unknown_topic,
)
from headrace.broker.partitions.topic import TopicImage
from headrace.broker.requests.answers import AnswerBudget
from headrace.broker.requests.declaration import ApiDeclaration, RequestContext
from headrace.broker.runtime.ports import STORE_LOST
from headrace.broker.runtime.slices import Slices, Work
from headrace.broker.security.quotas.model import Quota
from headrace.broker.security.requirement import within
from headrace.broker.security.rights import CLUSTER_NAME, Operation, ResourceType, denied
from headrace.protocol.errors import ErrorCode, KafkaError
from headrace.protocol.messages.create_partitions import (
    CreatePartitionsRequest,
    CreatePartitionsResponse,
    CreatePartitionsTopic,
    CreatePartitionsTopicResult,
)
from headrace.protocol.messages.create_topics import (
    CreatableTopic,
    CreatableTopicConfigs,
    CreatableTopicResult,
    CreateTopicsRequest,
    CreateTopicsResponse,
)
from headrace.protocol.messages.delete_topics import (
    DeletableTopicResult,
    DeleteTopicsRequest,
    DeleteTopicsResponse,
    DeleteTopicState,
)

_FIRST_VERSION_WITH_CONFIGS = 5
_CREATE_STRICT_SINCE, _DELETE_STRICT_SINCE, _GROW_STRICT_SINCE = 6, 5, 3
"""Versions whose clients understand THROTTLING_QUOTA_EXCEEDED (KIP-599)."""


class TopicsApi:
    def __init__(
        self,
        config: BrokerConfig,
        metadata: ClusterMetadata,
        topics: TopicChanges,
        following: MetadataFollower,
        slices: Slices,
    ) -> None:
        self._metadata = metadata
        self._topics = topics
        self._following = following
        self._config = config
        self._slices = slices

    def declarations(self) -> list[ApiDeclaration]:
        return [
            ApiDeclaration(
                CreateTopicsRequest,
                CreateTopicsResponse,
                self.create_topics,
                within(cluster=Operation.CREATE, topic=(Operation.CREATE, Operation.DESCRIBE_CONFIGS)),
                charged=Quota.MUTATION,
                on_error=_create_failed,
            ),
            ApiDeclaration(
                DeleteTopicsRequest,
                DeleteTopicsResponse,
                self.delete_topics,
                within(topic=(Operation.DELETE, Operation.DESCRIBE), cluster=Operation.DELETE),
                charged=Quota.MUTATION,
                on_error=_delete_failed,
            ),
            ApiDeclaration(
                CreatePartitionsRequest,
                CreatePartitionsResponse,
                self.create_partitions,
                within(topic=Operation.ALTER),
                charged=Quota.MUTATION,
                on_error=_growth_failed,
            ),
        ]

    # -- CreateTopics --------------------------------------------------------------------------------------

    async def create_topics(
        self, context: RequestContext, request: CreateTopicsRequest
    ) -> CreateTopicsResponse:
        await self._following.refreshed()
        results = []
        named = Counter(topic.name for topic in request.topics)
        wanted: list[tuple[CreatableTopicResult, NewTopic]] = []
        pace = self._slices.pace()
        for topic in request.topics:
            await pace.rest()
            result = CreatableTopicResult(name=topic.name, error_message=None, configs=None)
            results.append(result)
            try:
                if named[topic.name] > 1:
                    raise _twice(topic.name)
                if not _may_of_all(context, Operation.CREATE, topic.name):
                    raise denied(ResourceType.TOPIC)
                new = self._wanted(topic)
                require_named_topics(context, self._metadata.topic_configs.keys(new.config), new.config)
                if not request.validate_only:
                    context.mutates(self._made(new), _CREATE_STRICT_SINCE)
                wanted.append((result, new))
            except KafkaError as error:
                result.error_code, result.error_message = error.code, error.message
        made: Sequence[TopicImage | KafkaError]
        try:
            made = await self._topics.create_topics(
                [new for _, new in wanted], validate_only=request.validate_only
            )
        except STORE_LOST as error:
            made = [error] * len(wanted)
        described: dict[tuple[tuple[str, str], ...], list[CreatableTopicConfigs]] = {}
        made_as = {new.name: self._topics.factor_of(new) for _, new in wanted}
        budget = AnswerBudget()
        for (result, _), image in zip(wanted, made, strict=True):
            await pace.rest()
            if isinstance(image, KafkaError):
                result.error_code, result.error_message = image.code, image.message
                continue
            if not request.validate_only:
                result.topic_id = image.topic_id
            is_seen = context.may(Operation.DESCRIBE_CONFIGS, ResourceType.TOPIC, image.name, audited=False)
            if not is_seen:
                result.topic_config_error_code = ErrorCode.TOPIC_AUTHORIZATION_FAILED
            elif context.api_version >= _FIRST_VERSION_WITH_CONFIGS:
                result.num_partitions = image.partition_count
                entry = self._metadata.entry(image.name)
                result.replication_factor = (
                    made_as[image.name] if entry is None else len(entry.state(0).replicas)
                )
                # topics created together usually have the same configuration
                config = tuple(sorted(image.config.items()))
                if config not in described:
                    described[config] = self._configs(image)
                try:
                    budget.charge(
                        sum(16 + len(each.name) + len(each.value or "") for each in described[config])
                    )
                    result.configs = described[config]
                except KafkaError as error:
                    result.topic_config_error_code = error.code
        return CreateTopicsResponse(topics=results)

    def _configs(self, image: TopicImage) -> list[CreatableTopicConfigs]:
        return [
            CreatableTopicConfigs(
                name=entry.name,
                value=entry.value,
                read_only=entry.read_only,
                config_source=entry.config_source,
                is_sensitive=entry.is_sensitive,
            )
            for entry in describe_topic(self._metadata.topic_configs, self._config, image)
        ]

    def _made(self, new: NewTopic) -> int:
        return new.partitions if new.partitions > 0 else int(self._config["num.partitions"])

    def _wanted(self, topic: CreatableTopic) -> NewTopic:
        check_topic_name(topic.name)
        if topic.name in INTERNAL_TOPICS:
            raise KafkaError(
                ErrorCode.INVALID_TOPIC_EXCEPTION,
                f"{topic.name} is an internal topic; clients cannot create it",
            )
        if self._metadata.topic(topic.name) is not None:
            raise already_exists(topic.name)
        partitions = self._partition_count(topic)
        config = {}
        for entry in topic.configs:
            if entry.value is None:
                raise KafkaError(
                    ErrorCode.INVALID_CONFIG, f"Null value not supported for topic configs: {entry.name}"
                )
            config[entry.name] = entry.value
        by_index = {each.partition_index: each.broker_ids for each in topic.assignments}
        assignment = [by_index[index] for index in range(partitions)] if by_index else None
        return NewTopic(topic.name, partitions, config, assignment, topic.replication_factor)

    def _partition_count(self, topic: CreatableTopic) -> int:
        if not topic.assignments:
            if topic.replication_factor != -1 and topic.replication_factor <= 0:
                raise KafkaError(
                    ErrorCode.INVALID_REPLICATION_FACTOR,
                    "Replication factor must be larger than 0, or -1 to use the default value.",
                )
            if topic.num_partitions == 0 or topic.num_partitions < -1:
                raise KafkaError(
                    ErrorCode.INVALID_PARTITIONS,
                    "Number of partitions was set to an invalid non-positive value.",
                )
            return topic.num_partitions
        for given, what in (
            (topic.replication_factor, "replication factor was"),
            (topic.num_partitions, "partitions were"),
        ):
            if given != -1:
                raise KafkaError(
                    ErrorCode.INVALID_REQUEST,
                    f"A manual partition assignment was specified, but {what} not set to -1.",
                )
        indexes = sorted(assignment.partition_index for assignment in topic.assignments)
        if indexes != list(range(len(indexes))):
            raise KafkaError(
                ErrorCode.INVALID_REPLICA_ASSIGNMENT,
                f"partitions should be a consecutive 0-based integer sequence, not {indexes}",
            )
        return len(indexes)

    # -- DeleteTopics --------------------------------------------------------------------------------------

    async def delete_topics(
        self, context: RequestContext, request: DeleteTopicsRequest
    ) -> DeleteTopicsResponse:
        await self._following.refreshed()
        wanted = request.topics or [DeleteTopicState(name=name) for name in request.topic_names]
        response = DeleteTopicsResponse(responses=[])
        deleted: dict[uuid.UUID, tuple[DeletableTopicResult, TopicImage]] = {}
        pace = self._slices.pace()
        for topic in wanted:
            await pace.rest()
            result = DeletableTopicResult(name=topic.name, topic_id=topic.topic_id)
            response.responses.append(result)
            try:
                image = self._deletable(context, topic, result, deleted)
                deleted[image.topic_id] = result, image
            except KafkaError as error:
                result.error_code, result.error_message = error.code, error.message
        outcomes = await self._topics.delete_topics([image for _, image in deleted.values()])
        for (result, _), outcome in zip(deleted.values(), outcomes, strict=True):
            if outcome is not None:
                result.error_code, result.error_message = outcome.code, outcome.message
        return response

    def _deletable(
        self,
        context: RequestContext,
        topic: DeleteTopicState,
        result: DeletableTopicResult,
        deleted: Container[uuid.UUID],
    ) -> TopicImage:
        """Return the topic to delete, unless it is in `deleted`. Raises KafkaError: without DESCRIBE, the same error
        whether the topic exists or not.
        """
        if topic.name is not None:
            if not _may_of_all(context, Operation.DESCRIBE, topic.name):
                raise denied(ResourceType.TOPIC)
            image = self._metadata.topic(topic.name)
            if image is not None and image.topic_id in deleted:
                image = None
            if topic.topic_id.int:
                raise KafkaError(
                    ErrorCode.INVALID_REQUEST, "give either the name or the id of a topic, not both"
                )
            if image is None:
                raise unknown_topic(topic.name)
        else:
            image = self._metadata.topic_by_id(topic.topic_id)
            if (
                image is None
                or image.topic_id in deleted
                or not _may_of_all(context, Operation.DESCRIBE, image.name)
            ):
                raise KafkaError(
                    ErrorCode.UNKNOWN_TOPIC_ID,
                    f"This server does not host this topic ID. There is no topic with id {topic.topic_id}.",
                )
        if not _may_of_all(context, Operation.DELETE, image.name):
            result.name = image.name
            raise denied(ResourceType.TOPIC)
        if not self._config["delete.topic.enable"]:
            raise KafkaError(ErrorCode.TOPIC_DELETION_DISABLED, "delete.topic.enable is false")
        if image.internal:
            raise KafkaError(
                ErrorCode.INVALID_REQUEST, f"{image.name} is an internal topic and cannot be deleted"
            )
        result.name, result.topic_id = image.name, image.topic_id
        context.mutates(image.partition_count, _DELETE_STRICT_SINCE)
        return image

    # -- CreatePartitions ----------------------------------------------------------------------------------

    async def create_partitions(
        self, context: RequestContext, request: CreatePartitionsRequest
    ) -> CreatePartitionsResponse:
        await self._following.refreshed()
        response = CreatePartitionsResponse(results=[])
        named = Counter(topic.name for topic in request.topics)
        pace = self._slices.pace()
        for topic in request.topics:
            await pace.rest()
            result = CreatePartitionsTopicResult(name=topic.name)
            response.results.append(result)
            try:
                if named[topic.name] > 1:
                    raise _twice(topic.name)
                context.require(Operation.ALTER, ResourceType.TOPIC, topic.name)
                await self._grow(context, topic, request.validate_only)
            except KafkaError as error:
                result.error_code, result.error_message = error.code, error.message
        return response

    async def _grow(self, context: RequestContext, topic: CreatePartitionsTopic, validate_only: bool) -> None:
        image = self._metadata.topic(topic.name)
        if image is None:
            raise unknown_topic(topic.name)
        if image.internal:
            raise KafkaError(
                ErrorCode.INVALID_REQUEST,
                f"{topic.name} is an internal topic; its number of partitions is fixed",
            )
        check_growth(image, topic.count)
        assignment = None
        if topic.assignments is not None:
            added = topic.count - image.partition_count
            if len(topic.assignments) != added:
                raise KafkaError(
                    ErrorCode.INVALID_REPLICA_ASSIGNMENT,
                    f"Attempted to add {added} additional partition(s), but only {len(topic.assignments)} "
                    "assignment(s) were specified.",
                )
            assignment = [each.broker_ids for each in topic.assignments]
        if not validate_only:
            context.mutates(topic.count - image.partition_count, _GROW_STRICT_SINCE)
        await self._topics.create_partitions(
            topic.name, topic.count, assignment=assignment, validate_only=validate_only
        )


def _may_of_all(context: RequestContext, operation: Operation, name: str) -> bool:
    """Return whether the caller has the right on the cluster, and so for all topics. The right to delete any topic
    includes DESCRIBE.
    """
    of_cluster = Operation.DELETE if operation is Operation.DESCRIBE else operation
    return context.may(of_cluster, ResourceType.CLUSTER, CLUSTER_NAME, audited=False) or context.may(
        operation, ResourceType.TOPIC, name
    )


def _twice(name: str) -> KafkaError:
    return KafkaError(ErrorCode.INVALID_REQUEST, f"Duplicate topic name. '{name}' is in the request twice.")


def _create_failed(
    request: CreateTopicsRequest, version: int, error: KafkaError
) -> Work[CreateTopicsResponse]:
    response = CreateTopicsResponse(topics=[])
    for topic in request.topics:
        yield
        response.topics.append(
            CreatableTopicResult(
                name=topic.name, error_code=error.code, error_message=error.message, configs=None
            )
        )
    return response


def _delete_failed(
    request: DeleteTopicsRequest, version: int, error: KafkaError
) -> Work[DeleteTopicsResponse]:
    response = DeleteTopicsResponse(responses=[])
    for topic in request.topics or [DeleteTopicState(name=name) for name in request.topic_names]:
        yield
        response.responses.append(
            DeletableTopicResult(
                name=topic.name, topic_id=topic.topic_id, error_code=error.code, error_message=error.message
            )
        )
    return response


def _growth_failed(
    request: CreatePartitionsRequest, version: int, error: KafkaError
) -> Work[CreatePartitionsResponse]:
    response = CreatePartitionsResponse(results=[])
    for topic in request.topics:
        yield
        response.results.append(
            CreatePartitionsTopicResult(name=topic.name, error_code=error.code, error_message=error.message)
        )
    return response
