"""The administration APIs of transactions: the producers of a partition, and the transactions of a coordinator."""

from __future__ import annotations

from typing import TYPE_CHECKING

from headrace.broker.requests.answers import AnswerBudget
from headrace.broker.requests.declaration import ApiDeclaration, RequestContext
from headrace.broker.runtime.pattern import PatternError, matching
from headrace.broker.runtime.slices import Slices, Work, sort_in_slices
from headrace.broker.security.requirement import within
from headrace.broker.security.rights import Operation, ResourceType
from headrace.broker.transactions.model import State
from headrace.protocol.errors import ErrorCode, KafkaError
from headrace.protocol.messages.describe_producers import (
    DescribeProducersRequest,
    DescribeProducersResponse,
    PartitionResponse,
    ProducerState,
    TopicResponse,
)
from headrace.protocol.messages.describe_transactions import (
    DescribeTransactionsRequest,
    DescribeTransactionsResponse,
    TopicData,
    TransactionState,
)
from headrace.protocol.messages.list_transactions import ListTransactionsRequest, ListTransactionsResponse
from headrace.protocol.messages.list_transactions import TransactionState as ListedTransaction

if TYPE_CHECKING:
    from concurrent.futures import Executor

    from headrace.broker.replication.replicas import LocalReplicas
    from headrace.broker.runtime.ports import Clock
    from headrace.broker.transactions.coordinator import TransactionCoordinator

_PRODUCER_BYTES = 40  # size in an answer


class TransactionAdministration:
    """Answers requests of administrators. Changes nothing."""

    def __init__(
        self,
        coordinator: TransactionCoordinator,
        replicas: LocalReplicas,
        executor: Executor,
        clock: Clock,
        slices: Slices,
    ) -> None:
        self._coordinator = coordinator
        self._replicas = replicas
        self._executor = executor
        self._clock = clock
        self._slices = slices

    def declarations(self) -> list[ApiDeclaration]:
        return [
            ApiDeclaration(
                DescribeProducersRequest,
                DescribeProducersResponse,
                self.describe_producers,
                within(topic=Operation.READ),
            ),
            ApiDeclaration(
                DescribeTransactionsRequest,
                DescribeTransactionsResponse,
                self.describe,
                within(transactional_id=Operation.DESCRIBE, topic=Operation.DESCRIBE),
            ),
            ApiDeclaration(
                ListTransactionsRequest,
                ListTransactionsResponse,
                self.list,
                within(transactional_id=Operation.DESCRIBE),
            ),
        ]

    def describe_producers(
        self, context: RequestContext, request: DescribeProducersRequest
    ) -> Work[DescribeProducersResponse]:
        response = DescribeProducersResponse(topics=[])
        budget = AnswerBudget()
        for topic in request.topics:
            yield
            told = TopicResponse(name=topic.name)
            response.topics.append(told)
            may_read = context.may(Operation.READ, ResourceType.TOPIC, topic.name)
            for index in topic.partition_indexes:
                yield
                if not may_read:
                    told.partitions.append(
                        PartitionResponse(
                            partition_index=index, error_code=ErrorCode.TOPIC_AUTHORIZATION_FAILED
                        )
                    )
                    continue
                told.partitions.append((yield from self._producers(topic.name, index, budget)))
        return response

    def _producers(self, topic: str, index: int, budget: AnswerBudget) -> Work[PartitionResponse]:
        answer = PartitionResponse(partition_index=index)
        try:
            log = self._replicas.partition(topic, index).log
            opened, producers = log.open_transactions(), list(log.producers().items())
            budget.charge(_PRODUCER_BYTES * len(producers))
        except KafkaError as error:
            answer.error_code, answer.error_message = error.code, error.message
            return answer
        for producer_id, producer in producers:
            yield
            if producer_id < 0:
                continue
            answer.active_producers.append(
                ProducerState(
                    producer_id=producer_id,
                    producer_epoch=producer.epoch,
                    last_sequence=producer.last_sequence,
                    last_timestamp=producer.timestamp,
                    coordinator_epoch=producer.coordinator_epoch,
                    current_txn_start_offset=opened.get(producer_id, -1),
                )
            )
        return answer

    def describe(
        self, context: RequestContext, request: DescribeTransactionsRequest
    ) -> Work[DescribeTransactionsResponse]:
        """Describe each id once, even if the request repeats it."""
        response = DescribeTransactionsResponse(transaction_states=[])
        budget = AnswerBudget()
        for name in dict.fromkeys(request.transactional_ids):
            yield
            if context.may(Operation.DESCRIBE, ResourceType.TRANSACTIONAL_ID, name):
                response.transaction_states.append((yield from self._describe(context, name, budget)))
            else:
                response.transaction_states.append(
                    TransactionState(
                        transactional_id=name, error_code=ErrorCode.TRANSACTIONAL_ID_AUTHORIZATION_FAILED
                    )
                )
        return response

    def _describe(
        self, context: RequestContext, transactional_id: str, budget: AnswerBudget
    ) -> Work[TransactionState]:
        """Describe an id, with the partitions of topics that the caller may see."""
        answer = TransactionState(transactional_id=transactional_id)
        error = self._coordinator.refusal(transactional_id)
        known = self._coordinator.transaction(transactional_id)
        if error is ErrorCode.NONE and known.stored is None:
            error = ErrorCode.TRANSACTIONAL_ID_NOT_FOUND
        answer.error_code = error
        if error is not ErrorCode.NONE or known.stored is None:
            return answer
        stored = known.stored
        topics: dict[str, list[int]] = {}
        partitions = known.unmarked if stored.state.is_ending else stored.partitions
        try:
            budget.charge(sum(4 + len(topic) for topic, _ in partitions))
        except KafkaError as refused:
            return TransactionState(transactional_id=transactional_id, error_code=refused.code)
        for topic, index in (yield from sort_in_slices(list(partitions))):
            yield
            if context.may(Operation.DESCRIBE, ResourceType.TOPIC, topic, audited=False):
                topics.setdefault(topic, []).append(index)
        answer.transaction_state = stored.state.value
        answer.transaction_timeout_ms = stored.timeout_ms
        answer.transaction_start_time_ms = stored.start_ms
        answer.producer_id = stored.producer_id
        answer.producer_epoch = stored.producer_epoch
        answer.topics = [TopicData(topic=topic, partitions=indexes) for topic, indexes in topics.items()]
        return answer

    async def list(
        self, context: RequestContext, request: ListTransactionsRequest
    ) -> ListTransactionsResponse:
        if self._coordinator.journal.is_loading:
            return ListTransactionsResponse(error_code=ErrorCode.COORDINATOR_LOAD_IN_PROGRESS)
        names = {state.value: state for state in State}
        states = {names[name] for name in request.state_filters if name in names}
        unknown = [name for name in request.state_filters if name not in names]
        found = await self._slices.run(self._filtered(context, request, states))
        if request.transactional_id_pattern:
            try:
                matched = await matching(
                    request.transactional_id_pattern, list(found), self._executor, self._clock
                )
            except PatternError as error:
                raise KafkaError(
                    ErrorCode.INVALID_REGULAR_EXPRESSION,
                    f"{request.transactional_id_pattern!r} is not a regular expression: {error}",
                ) from None
            found = {name: found[name] for name in matched}
        return ListTransactionsResponse(
            unknown_state_filters=unknown, transaction_states=list(found.values())
        )

    def _filtered(
        self, context: RequestContext, request: ListTransactionsRequest, states: set[State]
    ) -> Work[dict[str, ListedTransaction]]:
        """Return the transactions by id that pass all filters except the id pattern."""
        now_ms = self._clock.time_ms()
        producer_ids = frozenset(request.producer_id_filters)
        found: dict[str, ListedTransaction] = {}
        for transactional_id, transaction in list(self._coordinator.transactions.items()):
            yield
            stored = transaction.stored
            if stored is None or (request.state_filters and stored.state not in states):
                continue
            if producer_ids and stored.producer_id not in producer_ids:
                continue
            running_ms = now_ms - stored.start_ms if stored.start_ms >= 0 else -1
            if request.duration_filter >= 0 and running_ms <= request.duration_filter:
                continue
            if not context.may(
                Operation.DESCRIBE, ResourceType.TRANSACTIONAL_ID, transactional_id, audited=False
            ):
                continue
            found[transactional_id] = ListedTransaction(
                transactional_id=transactional_id,
                producer_id=stored.producer_id,
                transaction_state=stored.state.value,
            )
        return found
