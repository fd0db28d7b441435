"""CreateTopics (19), DeleteTopics (20), CreatePartitions (37): what admin clients do to topics."""

from __future__ import annotations

from collections import Counter

from broker.api.configs import describe_topic
from broker.cluster.metadata import INTERNAL_TOPICS, NewTopic
from broker.cluster.partition import TopicImage
from broker.extension import ApiDeclaration, BrokerContext, RequestContext
from protocol.errors import ErrorCode, KafkaError
from protocol.messages.create_partitions import (
    CreatePartitionsRequest,
    CreatePartitionsResponse,
    CreatePartitionsTopic,
    CreatePartitionsTopicResult,
)
from protocol.messages.create_topics import (
    CreatableTopic,
    CreatableTopicConfigs,
    CreatableTopicResult,
    CreateTopicsRequest,
    CreateTopicsResponse,
)
from protocol.messages.delete_topics import (
    DeletableTopicResult,
    DeleteTopicsRequest,
    DeleteTopicsResponse,
    DeleteTopicState,
)

_FIRST_VERSION_WITH_CONFIGS = 5
_REPLICAS = 1  # one broker


class TopicsApi:
    def __init__(self, context: BrokerContext) -> None:
        self._metadata = context.metadata
        self._config = context.config
        self._broker_id = context.broker_id

    def declarations(self) -> list[ApiDeclaration]:
        return [
            ApiDeclaration(CreateTopicsRequest, CreateTopicsResponse, self.create_topics),
            ApiDeclaration(DeleteTopicsRequest, DeleteTopicsResponse, self.delete_topics),
            ApiDeclaration(CreatePartitionsRequest, CreatePartitionsResponse, self.create_partitions),
        ]

    # -- CreateTopics --------------------------------------------------------------------------------------

    async def create_topics(
        self, context: RequestContext, request: CreateTopicsRequest
    ) -> CreateTopicsResponse:
        results = [
            CreatableTopicResult(name=topic.name, error_message=None, configs=None)
            for topic in request.topics
        ]
        named = Counter(topic.name for topic in request.topics)
        wanted: list[tuple[CreatableTopicResult, NewTopic]] = []
        for topic, result in zip(request.topics, results, strict=True):
            try:
                if named[topic.name] > 1:
                    raise KafkaError(
                        ErrorCode.INVALID_REQUEST, f"topic {topic.name!r} is in the request twice"
                    )
                wanted.append((result, self._wanted(topic)))
            except KafkaError as error:
                result.error_code, result.error_message = error.code, error.message
        made = await self._metadata.create_topics(
            [new for _, new in wanted], validate_only=request.validate_only
        )
        described: dict[tuple[tuple[str, str], ...], list[CreatableTopicConfigs]] = {}
        for (result, _), image in zip(wanted, made, strict=True):
            if isinstance(image, KafkaError):
                result.error_code, result.error_message = image.code, image.message
                continue
            if not request.validate_only:
                result.topic_id = image.topic_id
            if context.api_version >= _FIRST_VERSION_WITH_CONFIGS:
                result.num_partitions = image.partition_count
                result.replication_factor = _REPLICAS
                config = tuple(sorted(image.config.items()))  # topics made together are mostly alike
                if config not in described:
                    described[config] = self._configs(image)
                result.configs = described[config]
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

    def _wanted(self, topic: CreatableTopic) -> NewTopic:
        if topic.name in INTERNAL_TOPICS:
            raise KafkaError(ErrorCode.INVALID_TOPIC_EXCEPTION, f"{topic.name} is the broker's own")
        partitions = self._partition_count(topic)
        config = {}
        for entry in topic.configs:
            if entry.value is None:
                raise KafkaError(ErrorCode.INVALID_CONFIG, f"configuration {entry.name!r} has no value")
            config[entry.name] = entry.value
        return NewTopic(topic.name, partitions, config)

    def _partition_count(self, topic: CreatableTopic) -> int:
        if not topic.assignments:
            if topic.replication_factor not in (-1, _REPLICAS):
                raise KafkaError(
                    ErrorCode.INVALID_REPLICATION_FACTOR,
                    f"replication factor {topic.replication_factor} needs more brokers; use 1 or -1",
                )
            if topic.num_partitions == 0 or topic.num_partitions < -1:
                raise KafkaError(
                    ErrorCode.INVALID_PARTITIONS,
                    f"{topic.num_partitions} partitions are not possible; use 1 or more, or -1",
                )
            return topic.num_partitions
        if topic.num_partitions != -1 or topic.replication_factor != -1:
            raise KafkaError(
                ErrorCode.INVALID_REQUEST,
                "give either an assignment or numbers of partitions and replicas, not both",
            )
        indexes = sorted(assignment.partition_index for assignment in topic.assignments)
        if indexes != list(range(len(indexes))):
            raise KafkaError(
                ErrorCode.INVALID_REPLICA_ASSIGNMENT,
                f"assigned partitions must be 0 to n-1 without gaps, not {indexes}",
            )
        for assignment in topic.assignments:
            self._check_assignment(assignment.broker_ids)
        return len(indexes)

    def _check_assignment(self, broker_ids: list[int]) -> None:
        if broker_ids != [self._broker_id]:
            raise KafkaError(
                ErrorCode.INVALID_REPLICA_ASSIGNMENT,
                f"replicas {broker_ids} are not possible: broker {self._broker_id} is the only one",
            )

    # -- DeleteTopics --------------------------------------------------------------------------------------

    async def delete_topics(
        self, context: RequestContext, request: DeleteTopicsRequest
    ) -> DeleteTopicsResponse:
        wanted = request.topics or [DeleteTopicState(name=name) for name in request.topic_names]
        response = DeleteTopicsResponse(responses=[])
        for topic in wanted:
            result = DeletableTopicResult(name=topic.name, topic_id=topic.topic_id)
            response.responses.append(result)
            try:
                await self._delete(topic, result)
            except KafkaError as error:
                result.error_code, result.error_message = error.code, error.message
        return response

    async def _delete(self, topic: DeleteTopicState, result: DeletableTopicResult) -> None:
        if topic.name is not None:
            image = self._metadata.topic(topic.name)
            if topic.topic_id.int:
                raise KafkaError(
                    ErrorCode.INVALID_REQUEST, "give either the name or the id of a topic, not both"
                )
            if image is None:
                raise KafkaError(ErrorCode.UNKNOWN_TOPIC_OR_PARTITION, f"there is no topic {topic.name!r}")
        else:
            image = self._metadata.topic_by_id(topic.topic_id)
            if image is None:
                raise KafkaError(ErrorCode.UNKNOWN_TOPIC_ID, f"there is no topic with id {topic.topic_id}")
        if not self._config["delete.topic.enable"]:
            raise KafkaError(ErrorCode.TOPIC_DELETION_DISABLED, "delete.topic.enable is false")
        if image.internal:
            raise KafkaError(
                ErrorCode.INVALID_REQUEST, f"{image.name} is the broker's own and cannot be deleted"
            )
        result.name, result.topic_id = image.name, image.topic_id
        await self._metadata.delete_topic(image.name)

    # -- CreatePartitions ----------------------------------------------------------------------------------

    async def create_partitions(
        self, context: RequestContext, request: CreatePartitionsRequest
    ) -> CreatePartitionsResponse:
        response = CreatePartitionsResponse(results=[])
        named = Counter(topic.name for topic in request.topics)
        for topic in request.topics:
            result = CreatePartitionsTopicResult(name=topic.name)
            response.results.append(result)
            try:
                if named[topic.name] > 1:
                    raise KafkaError(
                        ErrorCode.INVALID_REQUEST, f"topic {topic.name!r} is in the request twice"
                    )
                await self._grow(topic, request.validate_only)
            except KafkaError as error:
                result.error_code, result.error_message = error.code, error.message
        return response

    async def _grow(self, topic: CreatePartitionsTopic, validate_only: bool) -> None:
        image = self._metadata.topic(topic.name)
        if image is None:
            raise KafkaError(ErrorCode.UNKNOWN_TOPIC_OR_PARTITION, f"there is no topic {topic.name!r}")
        if image.internal:
            raise KafkaError(
                ErrorCode.INVALID_REQUEST, f"{topic.name} is the broker's own; its partitions are fixed"
            )
        if topic.assignments is not None:
            added = topic.count - image.partition_count
            if len(topic.assignments) != added:
                raise KafkaError(
                    ErrorCode.INVALID_REPLICA_ASSIGNMENT,
                    f"{added} partitions are added and {len(topic.assignments)} assignments are given",
                )
            for assignment in topic.assignments:
                self._check_assignment(assignment.broker_ids)
        await self._metadata.create_partitions(topic.name, topic.count, validate_only=validate_only)
