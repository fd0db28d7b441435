"""Metadata (3), DescribeCluster (60), DescribeTopicPartitions (75): leaders and replicas.

Answers come from this broker's image, for the client's listener: brokers without that listener are left out, and so are
leaders that are not alive (LEADER_NOT_AVAILABLE). Clients of large clusters repeat their requests, so answers are
encoded once per version of the image: the answers for all topics, one for each set of topics that clients see, and the
last few large answers for some topics.
"""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Awaitable, Hashable, Mapping, Sequence
from hashlib import blake2b
from itertools import islice
from typing import Any
from uuid import UUID

from headrace.broker.cluster.brokers import ClusterBrokers
from headrace.broker.cluster.endpoints import address_of, endpoints
from headrace.broker.cluster.topic_changes import NewTopic, TopicChanges
from headrace.broker.configs.broker_config import BrokerConfig
from headrace.broker.metadata.cluster import ClusterMetadata
from headrace.broker.metadata.identity import BrokerIdentity
from headrace.broker.metadata.image import NO_LEADER, BrokerImage, TopicEntry
from headrace.broker.metadata.topic_names import INTERNAL_TOPICS, check_topic_name
from headrace.broker.partitions.topic import TopicImage
from headrace.broker.requests.answers import ANSWER_BYTES_MAX, AnswerBudget
from headrace.broker.requests.declaration import ApiDeclaration, Encodable, RequestContext
from headrace.broker.runtime.ports import STORE_LOST
from headrace.broker.runtime.slices import Work, sort_in_slices
from headrace.broker.security.requirement import within
from headrace.broker.security.rights import CLUSTER_NAME, Operation, ResourceType
from headrace.protocol.errors import ErrorCode, KafkaError
from headrace.protocol.messages.describe_cluster import (
    DescribeClusterBroker,
    DescribeClusterRequest,
    DescribeClusterResponse,
)
from headrace.protocol.messages.describe_topic_partitions import (
    Cursor,
    DescribeTopicPartitionsRequest,
    DescribeTopicPartitionsResponse,
    DescribeTopicPartitionsResponsePartition,
    DescribeTopicPartitionsResponseTopic,
)
from headrace.protocol.messages.metadata import (
    MetadataRequest,
    MetadataRequestTopic,
    MetadataResponse,
    MetadataResponseBroker,
    MetadataResponsePartition,
    MetadataResponseTopic,
)
from headrace.protocol.schema import NIL_UUID

DESCRIBED_PARTITIONS_MAX = 2000  # Kafka's max.request.partition.size.limit


KEPT_PARTITIONS_MIN = 50  # below, encoding costs less than comparing the requests
KEPT_ANSWERS_MAX, KEPT_BYTES_MAX = 32, 1 << 20
KEPT_TOPICS_MAX = 1000  # above, comparing the request takes long itself
ALL_TOPICS_BYTES_MAX = 1 << 31  # a frame cannot have more; every client asks for all topics at some time
ALL_KEPT_BYTES_MAX = 64 << 20  # limit of all kept answers for all topics, if there are several
SEEN_KEPT_MAX = 10_000  # maximum number of principals whose visible topics are remembered: 3 MB
_PARTITION_BYTES = 30  # approximate bytes in an answer


class _Encoded:
    """A response that is encoded already, in the place of a message."""

    __slots__ = ("_body",)

    def __init__(self, body: list[Any]) -> None:
        self._body = body

    def encode_parts(self, version: int) -> list[Any]:
        return list(self._body)


class _Bodies:
    """Encoded answers for all topics of one version of the topic image, most recently used last.

    A body is found by the request and the visible topics. The visible topics are found by principal, so that neither
    the rights to each topic are checked again nor the same answer is encoded for each principal.
    """

    def __init__(self) -> None:
        self.seen: dict[Hashable, bytes] = {}
        """A digest of the visible topics, by principal."""
        self._of_image = -1
        self._bodies: OrderedDict[Hashable, list[Any]] = OrderedDict()
        self._size = 0

    def renew(self, image_version: int) -> None:
        """Forget the answers of another image."""
        if self._of_image != image_version:
            self._of_image = image_version
            self.seen.clear()
            self._bodies.clear()
            self._size = 0

    def get(self, key: Hashable) -> list[Any] | None:
        body = self._bodies.get(key)
        if body is not None:
            self._bodies.move_to_end(key)
        return body

    def put(self, image_version: int, whose: Hashable, seen: bytes, key: Hashable, body: list[Any]) -> None:
        """Keep an answer, made from the image of `image_version`."""
        if image_version != self._of_image:
            return
        if len(self.seen) >= SEEN_KEPT_MAX:
            self.seen.clear()
        self.seen[whose] = seen
        if key not in self._bodies:
            self._bodies[key] = body
            self._size += sum(map(len, body))
        while self._size > ALL_KEPT_BYTES_MAX and len(self._bodies) > 1:
            _, oldest = self._bodies.popitem(last=False)
            self._size -= sum(map(len, oldest))


class MetadataApi:
    def __init__(
        self,
        config: BrokerConfig,
        metadata: ClusterMetadata,
        topics: TopicChanges,
        brokers: ClusterBrokers,
        identity: BrokerIdentity,
    ) -> None:
        self._metadata = metadata
        self._changes = topics
        self._brokers = brokers
        self._identity = identity
        self._auto_create: bool = config["auto.create.topics.enable"]
        self._topics: dict[str, tuple[TopicEntry, frozenset[int], MetadataResponseTopic]] = {}
        self._reached: dict[str, tuple[Mapping[int, BrokerImage], Mapping[int, int], frozenset[int]]] = {}
        """Reachable brokers by listener."""
        self._all = _Bodies()
        self._some: dict[tuple[Any, ...], bytes] = {}  # by request, for the image version `_some_of`
        self._some_of = -1

    def declarations(self) -> list[ApiDeclaration]:
        return [
            ApiDeclaration(
                MetadataRequest,
                MetadataResponse,
                self.metadata,
                within(
                    topic=(Operation.DESCRIBE, Operation.CREATE),
                    cluster=(Operation.CREATE, Operation.DESCRIBE),
                ),
                on_error=_metadata_error,
            ),
            ApiDeclaration(
                DescribeClusterRequest,
                DescribeClusterResponse,
                self.describe_cluster,
                within(cluster=Operation.DESCRIBE),
            ),
            ApiDeclaration(
                DescribeTopicPartitionsRequest,
                DescribeTopicPartitionsResponse,
                self.describe_topic_partitions,
                within(topic=Operation.DESCRIBE),
                on_error=_describe_topics_error,
            ),
        ]

    # -- Metadata ------------------------------------------------------------------------------------------

    def metadata(
        self, context: RequestContext, request: MetadataRequest
    ) -> Work[Encodable | Awaitable[Any] | None]:
        """Answer Metadata. A topic that is named several times is answered once, as in Kafka."""
        if request.topics is None or (context.api_version == 0 and not request.topics):
            return (yield from self._all_topics(context, request))
        topics: dict[tuple[str | None, UUID], MetadataRequestTopic] = {}
        missing = []
        for topic in request.topics:
            yield
            key = topic.name, topic.topic_id
            if key in topics:
                continue
            topics[key] = topic
            if topic.name is None or topic.topic_id.int or not self._would_create(topic.name, request):
                continue
            is_seen = context.may(Operation.DESCRIBE, ResourceType.TOPIC, topic.name, audited=False)
            if is_seen and _may_create(context, topic.name, audited=False):
                missing.append(NewTopic(topic.name, -1, {}))
        if missing:
            return self._create_and_answer(context, request, list(topics.values()), missing)
        return (yield from self._encoded_topics(context, request, list(topics.values())))

    def _encoded_topics(
        self, context: RequestContext, request: MetadataRequest, wanted: list[MetadataRequestTopic]
    ) -> Work[MetadataResponse | _Encoded]:
        image_version = self._metadata.version
        if self._some_of != self._metadata.version:
            self._some.clear()
            self._some_of = self._metadata.version
        version = context.api_version
        key = (
            version,
            _whose(context),
            context.listener,
            request.include_cluster_authorized_operations,
            request.include_topic_authorized_operations,
            *((topic.name, topic.topic_id) for topic in wanted[:KEPT_TOPICS_MAX]),
        )
        known = self._some.get(key)
        if known is not None:
            return _Encoded([known])
        response = yield from self._some_topics(context, request, wanted)
        if len(wanted) > KEPT_TOPICS_MAX:
            return response
        partitions = sum(len(topic.partitions) for topic in response.topics)
        if partitions < KEPT_PARTITIONS_MIN:
            return response
        body = b"".join((yield from response.encode_in_slices(version, ANSWER_BYTES_MAX)))
        if len(body) <= KEPT_BYTES_MAX and image_version == self._some_of == self._metadata.version:
            if len(self._some) >= KEPT_ANSWERS_MAX:
                del self._some[next(iter(self._some))]
            self._some[key] = body
        return _Encoded([body])

    @staticmethod
    def _is_seen(context: RequestContext, name: str) -> bool:
        return context.may(Operation.DESCRIBE, ResourceType.TOPIC, name)

    def _would_create(self, name: str, request: MetadataRequest) -> bool:
        return (
            self._auto_create
            and request.allow_auto_topic_creation
            and name not in INTERNAL_TOPICS
            and self._metadata.topic(name) is None
        )

    async def _create_and_answer(
        self,
        context: RequestContext,
        request: MetadataRequest,
        wanted: list[MetadataRequestTopic],
        missing: list[NewTopic],
    ) -> Work[MetadataResponse]:
        made: Sequence[TopicImage | KafkaError]
        try:
            made = await self._changes.create_topics(missing)
        except STORE_LOST:
            made = [KafkaError(ErrorCode.LEADER_NOT_AVAILABLE)] * len(missing)  # clients ask again

        def answer() -> Work[MetadataResponse]:
            failed: dict[str, ErrorCode] = {}
            for new, outcome in zip(missing, made, strict=True):
                yield
                # Another client may have been faster.
                if isinstance(outcome, KafkaError) and outcome.code != ErrorCode.TOPIC_ALREADY_EXISTS:
                    failed[new.name] = _told_of(outcome.code)
            return (yield from self._some_topics(context, request, wanted, failed))

        return answer()

    def _some_topics(
        self,
        context: RequestContext,
        request: MetadataRequest,
        wanted: list[MetadataRequestTopic],
        failed: dict[str, ErrorCode] | None = None,
    ) -> Work[MetadataResponse]:
        response = self._frame(context, request)
        budget = AnswerBudget()
        for topic in wanted:
            yield
            name: str | None = topic.name
            if topic.topic_id.int or name is None:  # the id decides: Java sends an empty name beside it
                if context.api_version < 12:
                    raise KafkaError(ErrorCode.INVALID_REQUEST, "topic ids are supported from version 12 on")
                image = self._metadata.topic_by_id(topic.topic_id)
                if image is not None and not self._is_seen(context, image.name):
                    image = None
                name, code = None, ErrorCode.UNKNOWN_TOPIC_ID
            elif not self._is_seen(context, name):
                image, code = None, ErrorCode.TOPIC_AUTHORIZATION_FAILED
            else:
                image = self._metadata.topic(name)
                code = (failed or {}).get(name) or _missing_code(name)
                if self._would_create(name, request) and not _may_create(context, name):
                    code = ErrorCode.TOPIC_AUTHORIZATION_FAILED
            if image is not None:
                budget.charge(image.partition_count * _PARTITION_BYTES)
                response.topics.append((yield from self._describe(context, request, image)))
            else:
                response.topics.append(
                    MetadataResponseTopic(error_code=code, name=name, topic_id=topic.topic_id)
                )
        return response

    def _all_topics(
        self, context: RequestContext, request: MetadataRequest
    ) -> Work[MetadataResponse | _Encoded]:
        """Answer with all topics that the client may see. The answer is kept for clients that see the same ones."""
        version, image_version, kept = context.api_version, self._metadata.version, self._all
        kept.renew(image_version)
        with_operations = (
            request.include_topic_authorized_operations,
            request.include_cluster_authorized_operations,
        )
        whose = _whose(context)
        asked = version, context.listener, with_operations, whose if any(with_operations) else None
        seen = kept.seen.get(whose)
        if seen is not None and (known := kept.get((asked, seen))) is not None:
            return _Encoded(known)
        digest = blake2b(digest_size=16)
        images = []
        for image in self._metadata.topics():
            yield
            if context.may(Operation.DESCRIBE, ResourceType.TOPIC, image.name, audited=False):
                images.append(image)
                digest.update(image.topic_id.bytes)
        seen = digest.digest()
        key = asked, seen
        body = kept.get(key) if image_version == self._metadata.version else None
        if body is None:
            response = self._frame(context, request)
            for image in images:
                yield
                response.topics.append((yield from self._describe(context, request, image)))
            body = yield from response.encode_in_slices(version, ALL_TOPICS_BYTES_MAX)
        kept.put(image_version, whose, seen, key, body)
        return _Encoded(body)

    def _frame(self, context: RequestContext, request: MetadataRequest) -> MetadataResponse:
        brokers = endpoints(self._metadata, self._identity, context.listener)
        response = MetadataResponse(
            brokers=[MetadataResponseBroker(**each) for each in brokers],
            cluster_id=self._identity.cluster_id,
            controller_id=self._metadata.image.controller_id,
            topics=[],
        )
        if request.include_cluster_authorized_operations:
            response.cluster_authorized_operations = _cluster_operations(context)
        return response

    def _reachable(self, listener: str) -> frozenset[int]:
        """Return the brokers that are alive and have the listener."""
        brokers, ended = self._metadata.image.brokers, self._metadata.ended
        known = self._reached.get(listener)
        if known is None or known[0] is not brokers or known[1] is not ended:
            ids = frozenset(each["node_id"] for each in endpoints(self._metadata, self._identity, listener))
            known = self._reached[listener] = (brokers, ended, ids.difference(ended))
        return known[2]

    def _describe(
        self, context: RequestContext, request: MetadataRequest, image: TopicImage
    ) -> Work[MetadataResponseTopic]:
        with_operations = request.include_topic_authorized_operations
        entry = self._metadata.entry(image.name) or TopicEntry(image, 0, ())  # deleted meanwhile
        alive = self._reachable(context.listener)
        known = self._topics.get(image.name)
        if known is not None and known[0] is entry and known[1] == alive and not with_operations:
            return known[2]
        described = MetadataResponseTopic(
            name=image.name,
            topic_id=image.topic_id,
            is_internal=image.internal,
        )
        for index, state in enumerate(entry.states()):
            yield
            is_led, replicas = state.leader in alive, list(state.replicas)
            described.partitions.append(
                MetadataResponsePartition(
                    error_code=ErrorCode.NONE if is_led else ErrorCode.LEADER_NOT_AVAILABLE,
                    partition_index=index,
                    leader_id=state.leader if is_led else NO_LEADER,
                    leader_epoch=state.leader_epoch,
                    replica_nodes=replicas,
                    isr_nodes=list(state.isr),
                    offline_replicas=[each for each in replicas if each not in alive],
                )
            )
        if with_operations:
            described.topic_authorized_operations = context.operations(ResourceType.TOPIC, image.name)
        else:
            if len(self._topics) > 2 * self._metadata.topic_count + 100:
                self._topics.clear()  # deleted topics must not stay forever
            self._topics[image.name] = (entry, alive, described)
        return described

    # -- DescribeCluster, DescribeTopicPartitions ----------------------------------------------------------

    async def describe_cluster(
        self, context: RequestContext, request: DescribeClusterRequest
    ) -> DescribeClusterResponse:
        if request.endpoint_type != 1:
            raise KafkaError(
                ErrorCode.UNSUPPORTED_ENDPOINT_TYPE
                if request.endpoint_type != 2
                else ErrorCode.MISMATCHED_ENDPOINT_TYPE,
                f"endpoint type {request.endpoint_type} is not supported; only 1 (brokers) is",
            )
        brokers = endpoints(self._metadata, self._identity, context.listener)
        response = DescribeClusterResponse(
            cluster_id=self._identity.cluster_id,
            controller_id=self._metadata.image.controller_id,
            brokers=[DescribeClusterBroker(broker_id=each.pop("node_id"), **each) for each in brokers],
        )
        if request.include_fenced_brokers:
            response.brokers += await self._gone(context)
        if request.include_cluster_authorized_operations:
            response.cluster_authorized_operations = _cluster_operations(context)
        return response

    async def _gone(self, context: RequestContext) -> list[DescribeClusterBroker]:
        """Return the brokers that are not alive, with their last endpoint; without one if it is unknown."""
        return [
            DescribeClusterBroker(
                broker_id=broker.broker_id,
                host=host,
                port=port,
                rack=broker.rack,
                is_fenced=True,
            )
            for broker in await self._brokers.known_brokers()
            if broker.broker_id not in self._metadata.image.brokers
            for host, port in [address_of(self._identity, broker, context.listener) or ("", -1)]
        ]

    def describe_topic_partitions(
        self, context: RequestContext, request: DescribeTopicPartitionsRequest
    ) -> Work[DescribeTopicPartitionsResponse]:
        """Describe topics in order of their names; a page may end within a topic (KIP-966)."""
        if request.topics:
            names = yield from sort_in_slices({topic.name for topic in request.topics})
        else:
            names = [image.name for image in self._metadata.topics()]
        first_index = 0
        if request.cursor is not None:
            names = [name for name in names if name >= request.cursor.topic_name]
            if request.cursor.partition_index < 0:
                raise KafkaError(ErrorCode.INVALID_REQUEST, "the cursor's partition index is negative")
            if names and names[0] == request.cursor.topic_name:
                first_index = request.cursor.partition_index
        left = min(max(request.response_partition_limit, 1), DESCRIBED_PARTITIONS_MAX)
        response = DescribeTopicPartitionsResponse(topics=[])
        for name in names:
            yield
            if not context.may(Operation.DESCRIBE, ResourceType.TOPIC, name, audited=bool(request.topics)):
                if request.topics:
                    denied = ErrorCode.TOPIC_AUTHORIZATION_FAILED
                    response.topics.append(DescribeTopicPartitionsResponseTopic(error_code=denied, name=name))
                continue
            image = self._metadata.topic(name)
            if image is None:
                response.topics.append(
                    DescribeTopicPartitionsResponseTopic(error_code=_missing_code(name), name=name)
                )
                continue
            if left == 0:
                response.next_cursor = Cursor(topic_name=name, partition_index=first_index)
                break
            entry = self._metadata.entry(name) or TopicEntry(image, 0, ())
            alive = self._reachable(context.listener)
            partitions = list(islice(enumerate(entry.states()), first_index, first_index + left))
            response.topics.append(
                DescribeTopicPartitionsResponseTopic(
                    name=name,
                    topic_id=image.topic_id,
                    is_internal=image.internal,
                    partitions=[
                        DescribeTopicPartitionsResponsePartition(
                            error_code=ErrorCode.NONE
                            if state.leader in alive
                            else ErrorCode.LEADER_NOT_AVAILABLE,
                            partition_index=index,
                            leader_id=state.leader if state.leader in alive else NO_LEADER,
                            leader_epoch=state.leader_epoch,
                            replica_nodes=list(state.replicas),
                            isr_nodes=list(state.isr),
                            eligible_leader_replicas=list(state.elr),
                            last_known_elr=[],
                            offline_replicas=[each for each in state.replicas if each not in alive],
                        )
                        for index, state in partitions
                    ],
                    topic_authorized_operations=context.operations(ResourceType.TOPIC, name),
                )
            )
            left -= len(partitions)
            if first_index + len(partitions) < image.partition_count:
                response.next_cursor = Cursor(topic_name=name, partition_index=first_index + len(partitions))
                break
            first_index = 0
        return response


def _whose(context: RequestContext) -> tuple[Any, ...]:
    """Return a key of the principal's view of topics: empty where everything is allowed."""
    if context.authorizer.is_open:
        return ()
    return context.authorizer.version, context.principal, context.client_host


def _may_create(context: RequestContext, name: str, *, audited: bool = True) -> bool:
    return context.may(Operation.CREATE, ResourceType.CLUSTER, CLUSTER_NAME, audited=False) or context.may(
        Operation.CREATE, ResourceType.TOPIC, name, audited=audited
    )


def _cluster_operations(context: RequestContext) -> int:
    if not context.may(Operation.DESCRIBE, ResourceType.CLUSTER, CLUSTER_NAME, audited=False):
        return 0
    return context.operations(ResourceType.CLUSTER, CLUSTER_NAME)


def _told_of(code: ErrorCode) -> ErrorCode:
    """Return the code of a failed auto-creation. The client chose no number of replicas and waits for the topic: it
    keeps its messages until there are enough brokers, which may be soon.
    """
    return ErrorCode.LEADER_NOT_AVAILABLE if code is ErrorCode.INVALID_REPLICATION_FACTOR else code


def _missing_code(name: str) -> ErrorCode:
    try:
        check_topic_name(name)
    except KafkaError as error:
        return error.code
    return ErrorCode.UNKNOWN_TOPIC_OR_PARTITION


def _metadata_error(request: MetadataRequest, version: int, error: KafkaError) -> Work[MetadataResponse]:
    response = MetadataResponse(error_code=error.code)
    for topic in request.topics or []:
        yield
        response.topics.append(
            MetadataResponseTopic(error_code=error.code, name=topic.name or "", topic_id=topic.topic_id)
        )
    return response


def _describe_topics_error(
    request: DescribeTopicPartitionsRequest, version: int, error: KafkaError
) -> Work[DescribeTopicPartitionsResponse]:
    response = DescribeTopicPartitionsResponse(topics=[])
    for topic in request.topics:
        yield
        response.topics.append(
            DescribeTopicPartitionsResponseTopic(error_code=error.code, name=topic.name, topic_id=NIL_UUID)
        )
    return response
