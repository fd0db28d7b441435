"""Every API of the registry in eight states of the ACLs: a denied request changes nothing and reveals nothing.

A case is a request with the rights that it needs. Each right is taken through all states while the others are there. In
a state that denies, the broker is unchanged afterwards, to the last record, and the answer equals that of another
broker with the same ACLs and none of the resources.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import AsyncExitStack
from pathlib import Path
from typing import Any
from uuid import UUID

import msgspec
import pytest

from headrace.broker.security.acl.model import PatternType, Permission
from headrace.broker.security.rights import CLUSTER_NAME, Operation, ResourceType, Right
from headrace.broker.tests.security.people import (
    HOST,
    allow,
    client,
    creation,
    grant,
    revoke_all,
    secured_broker,
)
from headrace.protocol.errors import ErrorCode
from headrace.protocol.messages import (
    alter_configs,
    alter_replica_log_dirs,
    create_partitions,
    create_topics,
    delete_records,
    delete_topics,
    describe_configs,
    describe_producers,
    describe_topic_partitions,
    incremental_alter_configs,
    list_offsets,
    offset_commit,
    offset_delete,
    offset_fetch,
    offset_for_leader_epoch,
    txn_offset_commit,
    write_txn_markers,
)
from headrace.protocol.messages import fetch as fetching
from headrace.protocol.messages import metadata as metadata_messages
from headrace.protocol.messages import produce as producing
from headrace.protocol.messages.add_offsets_to_txn import AddOffsetsToTxnRequest
from headrace.protocol.messages.add_partitions_to_txn import (
    AddPartitionsToTxnRequest,
    AddPartitionsToTxnTopic,
    AddPartitionsToTxnTransaction,
)
from headrace.protocol.messages.consumer_group_describe import ConsumerGroupDescribeRequest
from headrace.protocol.messages.consumer_group_heartbeat import ConsumerGroupHeartbeatRequest
from headrace.protocol.messages.create_acls import AclCreation
from headrace.protocol.messages.delete_groups import DeleteGroupsRequest
from headrace.protocol.messages.describe_cluster import DescribeClusterRequest
from headrace.protocol.messages.describe_groups import DescribeGroupsRequest
from headrace.protocol.messages.describe_transactions import DescribeTransactionsRequest
from headrace.protocol.messages.end_txn import EndTxnRequest
from headrace.protocol.messages.find_coordinator import FindCoordinatorRequest
from headrace.protocol.messages.heartbeat import HeartbeatRequest
from headrace.protocol.messages.init_producer_id import InitProducerIdRequest
from headrace.protocol.messages.join_group import JoinGroupRequest, JoinGroupRequestProtocol
from headrace.protocol.messages.leave_group import LeaveGroupRequest, MemberIdentity
from headrace.protocol.messages.list_groups import ListGroupsRequest
from headrace.protocol.messages.list_transactions import ListTransactionsRequest
from headrace.protocol.messages.sync_group import SyncGroupRequest
from headrace.protocol.records.encode import Record, build_batch
from headrace.protocol.schema import NIL_UUID, ApiMessage, Struct
from simulator.direct import DirectBroker

TOPIC, GROUP, CLUSTER, TRANSACTION = (
    ResourceType.TOPIC, ResourceType.GROUP, ResourceType.CLUSTER, ResourceType.TRANSACTIONAL_ID,
)  # fmt: skip
READ, WRITE, CREATE, DELETE, ALTER, DESCRIBE, CLUSTER_ACTION, DESCRIBE_CONFIGS, ALTER_CONFIGS, IDEMPOTENT_WRITE = (
    Operation.READ, Operation.WRITE, Operation.CREATE, Operation.DELETE, Operation.ALTER, Operation.DESCRIBE,
    Operation.CLUSTER_ACTION, Operation.DESCRIBE_CONFIGS, Operation.ALTER_CONFIGS, Operation.IDEMPOTENT_WRITE,
)  # fmt: skip
REFUSALS = {29, 30, 31, 53, 65}
ELSEWHERE = {38, 39, 40, 41}
"""Delegation tokens, which have tests of their own."""
BATCH = build_batch([Record(None, b"v", (), 1_750_000_000_000)])
IMPLYING = {DESCRIBE: READ, DESCRIBE_CONFIGS: ALTER_CONFIGS}


class Names(msgspec.Struct):
    """The names in a case: everything but `fresh` exists, on one of two brokers."""

    topic: str
    group: str
    transaction: str
    fresh: str
    topic_id: UUID

    def of(self, resource_type: ResourceType, case: Case) -> str:
        if resource_type == CLUSTER:
            return CLUSTER_NAME
        if resource_type == TOPIC:
            return self.fresh if case.is_about_fresh else self.topic
        return self.group if resource_type == GROUP else self.transaction


def codes(value: Any) -> Iterator[int]:
    """Every error code of an answer."""
    if isinstance(value, list):
        for each in value:
            yield from codes(each)
    elif isinstance(value, Struct | ApiMessage):
        for name in type(value).FIELDS:
            found = getattr(value, name)
            if name.endswith("error_code"):
                yield found
            else:
                yield from codes(found)


def shown(value: Any) -> Any:
    """Return an answer without the fields that differ between two brokers."""
    if isinstance(value, list):
        return [shown(each) for each in value]
    if isinstance(value, Struct | ApiMessage):
        return {
            name: shown(getattr(value, name))
            for name in type(value).FIELDS
            if name not in ("port", "cluster_id", "log_dir", "total_bytes", "usable_bytes")
        }
    return value


def is_refused(response: Any) -> bool:
    return bool(REFUSALS & set(codes(response)))


def hides(*path: str) -> Callable[[Any], bool]:
    """Return a check that the list at the end of the path is empty; the lists before it have one element."""

    def is_hidden(response: Any) -> bool:
        found = response
        for name in path[:-1]:
            found = getattr(found, name)
            if isinstance(found, list):
                (found,) = found
        return not getattr(found, path[-1])

    return is_hidden


class Case(msgspec.Struct):
    request: Callable[[Names], ApiMessage]
    rights: list[Right]
    version: int | None = None
    is_denied: Callable[[Any], bool] = is_refused
    is_about_fresh: bool = False
    is_as_missing: bool = True
    """Whether a denied request is answered as on a broker without the resources."""
    changes_nothing: bool = True
    has_member: bool = False
    """Whether there is a consumer group with a member that subscribes to the topic."""


def produce(n: Names, **fields: Any) -> ApiMessage:
    data = producing.PartitionProduceData(index=0, records=BATCH)
    topic = producing.TopicProduceData(name=n.topic, topic_id=n.topic_id, partition_data=[data])
    return producing.ProduceRequest(acks=1, timeout_ms=1000, topic_data=[topic], **fields)


def fetch(n: Names, **fields: Any) -> ApiMessage:
    partition = fetching.FetchPartition(partition=0, partition_max_bytes=1 << 20)
    topic = fetching.FetchTopic(topic=n.topic, topic_id=n.topic_id, partitions=[partition])
    return fetching.FetchRequest(max_bytes=1 << 20, session_epoch=-1, topics=[topic], **fields)


def metadata(names: list[tuple[str | None, UUID]] | None, **fields: Any) -> ApiMessage:
    topics = None if names is None else [
        metadata_messages.MetadataRequestTopic(name=name, topic_id=topic_id) for name, topic_id in names
    ]  # fmt: skip
    return metadata_messages.MetadataRequest(topics=topics, **{"allow_auto_topic_creation": False, **fields})


def commit(n: Names) -> ApiMessage:
    partition = offset_commit.OffsetCommitRequestPartition(committed_offset=7)
    topic = offset_commit.OffsetCommitRequestTopic(name=n.topic, topic_id=n.topic_id, partitions=[partition])
    return offset_commit.OffsetCommitRequest(group_id=n.group, topics=[topic])


def fetch_offsets(n: Names, *, all_topics: bool = False) -> ApiMessage:
    topic = offset_fetch.OffsetFetchRequestTopics(name=n.topic, topic_id=n.topic_id, partition_indexes=[0])
    group = offset_fetch.OffsetFetchRequestGroup(group_id=n.group, topics=None if all_topics else [topic])
    return offset_fetch.OffsetFetchRequest(groups=[group])


def txn_commit(n: Names) -> ApiMessage:
    partition = txn_offset_commit.TxnOffsetCommitRequestPartition(committed_offset=7)
    topic = txn_offset_commit.TxnOffsetCommitRequestTopic(name=n.topic, partitions=[partition])
    return txn_offset_commit.TxnOffsetCommitRequest(
        transactional_id=n.transaction, group_id=n.group, topics=[topic]
    )


def verify_transaction(n: Names) -> AddPartitionsToTxnRequest:
    asked = AddPartitionsToTxnTransaction(
        transactional_id=n.transaction,
        verify_only=True,
        topics=[AddPartitionsToTxnTopic(name=n.topic, partitions=[0])],
    )
    return AddPartitionsToTxnRequest(transactions=[asked])


def write_markers(n: Names) -> ApiMessage:
    topic = write_txn_markers.WritableTxnMarkerTopic(name=n.topic, partition_indexes=[0])
    marker = write_txn_markers.WritableTxnMarker(producer_id=1, topics=[topic])
    return write_txn_markers.WriteTxnMarkersRequest(markers=[marker])


def describe_config(resource_type: int, name: str) -> ApiMessage:
    resource = describe_configs.DescribeConfigsResource(
        resource_type=resource_type, resource_name=name, configuration_keys=None
    )
    return describe_configs.DescribeConfigsRequest(resources=[resource])


def replace_config(resource_type: int, name: str, key: str, value: str) -> ApiMessage:
    resource = alter_configs.AlterConfigsResource(
        resource_type=resource_type,
        resource_name=name,
        configs=[alter_configs.AlterableConfig(name=key, value=value)],
    )
    return alter_configs.AlterConfigsRequest(resources=[resource])


def alter_config(resource_type: int, name: str, key: str, value: str) -> ApiMessage:
    entry = incremental_alter_configs.AlterableConfig(name=key, value=value, config_operation=0)
    resource = incremental_alter_configs.AlterConfigsResource(
        resource_type=resource_type, resource_name=name, configs=[entry]
    )
    return incremental_alter_configs.IncrementalAlterConfigsRequest(resources=[resource])


def configs_of(operation: Operation) -> list[Case]:
    if operation is DESCRIBE_CONFIGS:
        return [
            Case(lambda n: describe_config(2, n.topic), [(operation, TOPIC)]),
            Case(lambda n: describe_config(4, "0"), [(operation, CLUSTER)]),
            Case(lambda n: describe_config(32, n.group), [(operation, GROUP)]),
        ]
    cases = []
    for change in (replace_config, alter_config):
        cases += [
            Case(lambda n, c=change: c(2, n.topic, "retention.ms", "77777"), [(operation, TOPIC)]),
            Case(lambda n, c=change: c(4, "0", "log.cleaner.backoff.ms", "14000"), [(operation, CLUSTER)]),
            Case(
                lambda n, c=change: c(32, n.group, "consumer.session.timeout.ms", "50000"),
                [(operation, GROUP)],
            ),
        ]
    return cases


def list_offset(n: Names) -> ApiMessage:
    partition = list_offsets.ListOffsetsPartition(timestamp=-1)
    return list_offsets.ListOffsetsRequest(
        replica_id=-1, topics=[list_offsets.ListOffsetsTopic(name=n.topic, partitions=[partition])]
    )


def end_of_epoch(n: Names) -> ApiMessage:
    partition = offset_for_leader_epoch.OffsetForLeaderPartition(leader_epoch=0)
    topic = offset_for_leader_epoch.OffsetForLeaderTopic(topic=n.topic, partitions=[partition])
    return offset_for_leader_epoch.OffsetForLeaderEpochRequest(replica_id=-1, topics=[topic])


def delete_record(n: Names) -> ApiMessage:
    partition = delete_records.DeleteRecordsPartition(offset=-1)
    return delete_records.DeleteRecordsRequest(
        topics=[delete_records.DeleteRecordsTopic(name=n.topic, partitions=[partition])]
    )


def create(n: Names) -> ApiMessage:
    topic = create_topics.CreatableTopic(name=n.fresh, num_partitions=1, replication_factor=1)
    return create_topics.CreateTopicsRequest(topics=[topic])


def delete(name: str | None, topic_id: UUID = NIL_UUID) -> ApiMessage:
    topic = delete_topics.DeleteTopicState(name=name, topic_id=topic_id)
    return delete_topics.DeleteTopicsRequest(topics=[topic])


def delete_offset(n: Names) -> ApiMessage:
    topic = offset_delete.OffsetDeleteRequestTopic(
        name=n.topic, partitions=[offset_delete.OffsetDeleteRequestPartition(partition_index=0)]
    )
    return offset_delete.OffsetDeleteRequest(group_id=n.group, topics=[topic])


def describe_partitions(*names: str) -> ApiMessage:
    topics = [describe_topic_partitions.TopicRequest(name=name) for name in names]
    return describe_topic_partitions.DescribeTopicPartitionsRequest(topics=topics)


def is_unknown_id(response: Any) -> bool:
    return ErrorCode.UNKNOWN_TOPIC_ID in set(codes(response))


CASES: dict[int, list[Case]] = {
    0: [
        Case(produce, [(WRITE, TOPIC)], version=12),
        Case(produce, [(WRITE, TOPIC)], version=13, is_denied=is_unknown_id),
        Case(lambda n: produce(n, transactional_id=n.transaction), [(WRITE, TRANSACTION), (WRITE, TOPIC)], version=12),
    ],
    1: [
        Case(fetch, [(READ, TOPIC)], version=12),
        Case(fetch, [(READ, TOPIC)], version=17, is_denied=is_unknown_id),
        Case(lambda n: fetch(n, replica_id=0), [(CLUSTER_ACTION, CLUSTER)], version=12),
    ],
    2: [Case(list_offset, [(DESCRIBE, TOPIC)])],
    3: [
        Case(lambda n: metadata([(n.topic, NIL_UUID)]), [(DESCRIBE, TOPIC)]),
        Case(lambda n: metadata([(None, n.topic_id)]), [(DESCRIBE, TOPIC)], is_denied=is_unknown_id),
        Case(lambda n: metadata(None), [(DESCRIBE, TOPIC)], is_denied=hides("topics")),
        Case(
            lambda n: metadata([(n.fresh, NIL_UUID)], allow_auto_topic_creation=True),
            [(DESCRIBE, TOPIC), (CREATE, TOPIC)], is_about_fresh=True,
        ),
        Case(
            lambda n: metadata([(n.fresh, NIL_UUID)], allow_auto_topic_creation=True),
            [(DESCRIBE, TOPIC), (CREATE, CLUSTER)], is_about_fresh=True,
        ),
        Case(
            lambda n: metadata([], include_cluster_authorized_operations=True), [(DESCRIBE, CLUSTER)], version=10,
            is_denied=lambda response: response.cluster_authorized_operations == 0,
        ),
    ],
    8: [
        Case(commit, [(READ, GROUP), (READ, TOPIC)], version=9),
        Case(
            commit, [(READ, GROUP), (READ, TOPIC)], version=10,
            is_denied=lambda response: is_refused(response) or is_unknown_id(response),
        ),
    ],
    9: [
        Case(fetch_offsets, [(DESCRIBE, GROUP), (DESCRIBE, TOPIC)], version=9),
        Case(lambda n: fetch_offsets(n, all_topics=True), [(DESCRIBE, GROUP)], version=9),
        Case(
            lambda n: fetch_offsets(n, all_topics=True), [(DESCRIBE, GROUP), (DESCRIBE, TOPIC)], version=9,
            is_denied=hides("groups", "topics"),
        ),
        Case(
            fetch_offsets, [(DESCRIBE, GROUP), (DESCRIBE, TOPIC)], version=10,
            is_denied=lambda response: is_refused(response) or is_unknown_id(response),
        ),
    ],
    10: [
        Case(lambda n: FindCoordinatorRequest(key_type=0, coordinator_keys=[n.group]), [(DESCRIBE, GROUP)]),
        Case(lambda n: FindCoordinatorRequest(key_type=0, key=n.group), [(DESCRIBE, GROUP)], version=3),
        Case(
            lambda n: FindCoordinatorRequest(key_type=1, coordinator_keys=[n.transaction]),
            [(DESCRIBE, TRANSACTION)],
        ),
    ],
    11: [
        Case(
            lambda n: JoinGroupRequest(
                group_id=n.group, session_timeout_ms=10000, rebalance_timeout_ms=10000, protocol_type="consumer",
                protocols=[JoinGroupRequestProtocol(name="range", metadata=b"")],
            ),
            [(READ, GROUP)],
        )
    ],
    12: [Case(lambda n: HeartbeatRequest(group_id=n.group, member_id="m"), [(READ, GROUP)])],
    13: [
        Case(
            lambda n: LeaveGroupRequest(group_id=n.group, members=[MemberIdentity(member_id="m")]), [(READ, GROUP)]
        )
    ],
    14: [
        Case(
            lambda n: SyncGroupRequest(
                group_id=n.group, member_id="m", protocol_type="consumer", protocol_name="range"
            ),
            [(READ, GROUP)],
        )
    ],
    15: [Case(lambda n: DescribeGroupsRequest(groups=[n.group]), [(DESCRIBE, GROUP)])],
    16: [
        Case(lambda n: ListGroupsRequest(), [(DESCRIBE, GROUP)], is_denied=hides("groups")),
        Case(lambda n: ListGroupsRequest(), [(DESCRIBE, CLUSTER)], is_denied=hides("groups")),
    ],
    19: [
        Case(create, [(CREATE, TOPIC)], is_about_fresh=True, is_denied=lambda r: r.topics[0].error_code == 29),
        Case(create, [(CREATE, CLUSTER)], is_about_fresh=True, is_denied=lambda r: r.topics[0].error_code == 29),
        Case(
            create, [(DESCRIBE_CONFIGS, TOPIC), (CREATE, TOPIC)], is_about_fresh=True, changes_nothing=False,
            is_as_missing=False,
        ),
    ],
    20: [
        Case(lambda n: delete(n.topic), [(DELETE, TOPIC)]),
        Case(lambda n: delete(n.topic), [(DELETE, CLUSTER)]),
        Case(lambda n: delete(None, n.topic_id), [(DELETE, TOPIC)], is_denied=is_unknown_id),
        Case(lambda n: delete(n.fresh), [(DESCRIBE, TOPIC)], is_about_fresh=True),
    ],
    21: [Case(delete_record, [(DELETE, TOPIC)])],
    22: [
        Case(lambda n: InitProducerIdRequest(transactional_id=n.transaction, transaction_timeout_ms=1000),
             [(WRITE, TRANSACTION)]),
        Case(lambda n: InitProducerIdRequest(transactional_id=None), [(IDEMPOTENT_WRITE, CLUSTER)]),
        Case(lambda n: InitProducerIdRequest(transactional_id=None), [(WRITE, TOPIC)]),
    ],
    23: [Case(end_of_epoch, [(DESCRIBE, TOPIC)]), Case(end_of_epoch, [(CLUSTER_ACTION, CLUSTER)])],
    24: [
        Case(
            lambda n: AddPartitionsToTxnRequest(
                v3_and_below_transactional_id=n.transaction,
                v3_and_below_topics=[AddPartitionsToTxnTopic(name=n.topic, partitions=[0])],
            ),
            [(WRITE, TRANSACTION), (WRITE, TOPIC)], version=3,
        ),
        Case(verify_transaction, [(CLUSTER_ACTION, CLUSTER)]),
    ],
    25: [
        Case(
            lambda n: AddOffsetsToTxnRequest(transactional_id=n.transaction, group_id=n.group),
            [(WRITE, TRANSACTION), (READ, GROUP)],
        )
    ],
    26: [Case(lambda n: EndTxnRequest(transactional_id=n.transaction), [(WRITE, TRANSACTION)])],
    27: [
        Case(write_markers, [(ALTER, CLUSTER)]),
        Case(write_markers, [(CLUSTER_ACTION, CLUSTER)]),
    ],
    28: [Case(txn_commit, [(WRITE, TRANSACTION), (READ, GROUP), (READ, TOPIC)])],
    32: configs_of(DESCRIBE_CONFIGS),
    33: configs_of(ALTER_CONFIGS)[:3],
    34: [
        Case(
            lambda n: alter_replica_log_dirs.AlterReplicaLogDirsRequest(
                dirs=[
                    alter_replica_log_dirs.AlterReplicaLogDir(
                        path="/elsewhere",
                        topics=[alter_replica_log_dirs.AlterReplicaLogDirTopic(name=n.topic, partitions=[0])],
                    )
                ]
            ),
            [(ALTER, CLUSTER)],
        )
    ],
    37: [
        Case(
            lambda n: create_partitions.CreatePartitionsRequest(
                topics=[create_partitions.CreatePartitionsTopic(name=n.topic, count=2, assignments=None)]
            ),
            [(ALTER, TOPIC)],
        )
    ],
    42: [Case(lambda n: DeleteGroupsRequest(groups_names=[n.group]), [(DELETE, GROUP)])],
    44: configs_of(ALTER_CONFIGS)[3:],
    47: [Case(delete_offset, [(DELETE, GROUP), (READ, TOPIC)], is_as_missing=False)],
    60: [
        Case(
            lambda n: DescribeClusterRequest(include_cluster_authorized_operations=True), [(DESCRIBE, CLUSTER)],
            is_denied=lambda response: response.cluster_authorized_operations == 0,
        )
    ],
    61: [
        Case(
            lambda n: describe_producers.DescribeProducersRequest(
                topics=[describe_producers.TopicRequest(name=n.topic, partition_indexes=[0])]
            ),
            [(READ, TOPIC)],
        )
    ],
    65: [
        Case(
            lambda n: DescribeTransactionsRequest(transactional_ids=[n.transaction]), [(DESCRIBE, TRANSACTION)]
        ),
        Case(
            lambda n: DescribeTransactionsRequest(transactional_ids=[n.transaction]),
            [(DESCRIBE, TRANSACTION), (DESCRIBE, TOPIC)],
            is_denied=lambda r: is_refused(r) or not r.transaction_states[0].topics, is_as_missing=False,
        ),
    ],
    66: [
        Case(
            lambda n: ListTransactionsRequest(), [(DESCRIBE, TRANSACTION)], is_denied=hides("transaction_states")
        )
    ],
    68: [
        Case(
            lambda n: ConsumerGroupHeartbeatRequest(
                group_id=n.group, member_id="m", subscribed_topic_names=[n.topic], rebalance_timeout_ms=10000,
                topic_partitions=[],
            ),
            [(READ, GROUP), (DESCRIBE, TOPIC)],
        )
    ],
    69: [
        Case(
            lambda n: ConsumerGroupDescribeRequest(group_ids=[n.group]), [(DESCRIBE, GROUP), (DESCRIBE, TOPIC)],
            has_member=True, is_as_missing=False,
        )
    ],
    75: [
        Case(lambda n: describe_partitions(n.topic), [(DESCRIBE, TOPIC)]),
        Case(lambda n: describe_partitions(), [(DESCRIBE, TOPIC)], is_denied=hides("topics")),
    ],
}  # fmt: skip


# -- states ------------------------------------------------------------------------------------------------


def states(right: Right, name: str) -> Iterator[tuple[str, bool, list[AclCreation]]]:
    """Return eight states: a name, whether `User:ann` at HOST may, the ACLs."""
    operation, resource_type = right
    of_cluster = resource_type == CLUSTER  # its one name has no prefix and no wildcard

    def acl(what: Operation = operation, of: str = name, **parts: Any) -> AclCreation:
        return creation(what, resource_type, of, **parts)

    yield "no ACL", False, []
    yield "allowed", True, [acl()]
    yield "implied", True, [acl(IMPLYING.get(operation, Operation.ALL) if not of_cluster else Operation.ALL)]
    deny = Permission.DENY
    denied = [acl(permission=deny), acl(DESCRIBE, permission=deny), acl()]
    yield "denied and allowed", False, denied
    yield "prefixed", True, [acl(of=name if of_cluster else name[:-1], kind=PatternType.PREFIXED, host=HOST)]
    yield "wildcard", True, [acl(of=name if of_cluster else "*", who="User:*")]
    yield "another host", False, [acl(host="10.9.9.9"), acl(Operation.ALL, host="10.0.0.70")]
    yield "another principal", False, [acl(who="User:anna"), acl(Operation.ALL, who="Group:ann")]


async def snapshot(broker: DirectBroker) -> list[Any]:
    """Return all state: the store without ACLs, the start and end of every log, and the groups' members."""
    context = broker.context
    rows = await context.store._run(
        lambda connection: connection.execute(
            "SELECT path, version FROM nodes WHERE path NOT LIKE '/security/%' ORDER BY path"
        ).fetchall()
    )
    logs = [
        (partition.topic.name, partition.index, partition.log.log_start_offset, partition.log.log_end_offset)
        for partition in context.replicas.all_partitions()
    ]
    return [rows, logs, sorted(members(broker))]


def members(broker: DirectBroker) -> Iterator[tuple[str, str]]:
    describe = next(each for each in broker.broker.dispatcher.declarations if each.key == 15).handler
    for group_id, group in describe.__self__._coordinator.groups.items():
        yield group_id, repr(group)


class Worlds:
    """Two brokers with the same ACLs: `full` has the resources of the cases, `empty` does not."""

    def __init__(self, full: DirectBroker, empty: DirectBroker) -> None:
        self.full = full
        self.empty = empty
        self._count = 0

    async def names(self, case: Case) -> Names:
        """Return new names for each state, so that earlier allowed requests do not interfere."""
        self._count += 1
        number = f"{self._count:05d}x"
        names = Names(f"t{number}", f"g{number}", f"x{number}", f"f{number}", UUID(int=self._count << 70))
        types = {resource_type for _, resource_type in case.rights}
        if not case.is_about_fresh:
            image = await self.full.create_topic(names.topic)
            names.topic_id = image.topic_id
            await self.full.produce(names.topic, BATCH)
        if case.has_member:
            await self.full.send(
                ConsumerGroupHeartbeatRequest(
                    group_id=names.group, member_id="m", subscribed_topic_names=[names.topic],
                    rebalance_timeout_ms=10000, topic_partitions=[],
                )
            )  # fmt: skip
        elif GROUP in types or case.request(names).API_KEY == ListGroupsRequest.API_KEY:
            await self.full.send(commit(names), 9)
        if TRANSACTION in types:
            begun = await self.full.send(
                InitProducerIdRequest(transactional_id=names.transaction, transaction_timeout_ms=60000)
            )
            added = await self.full.send(
                AddPartitionsToTxnRequest(
                    v3_and_below_transactional_id=names.transaction,
                    v3_and_below_producer_id=begun.producer_id,
                    v3_and_below_producer_epoch=begun.producer_epoch,
                    v3_and_below_topics=[AddPartitionsToTxnTopic(name=names.topic, partitions=[0])],
                ),
                3,
            )
            assert set(codes(added)) == {0}
        return names

    async def clean(self, names: Names) -> None:
        """Remove the entries of the earlier state that listings would show."""
        await revoke_all(self.full)
        await revoke_all(self.empty)


async def problems_of(worlds: Worlds, key: int, case: Case) -> list[str]:
    found = []
    for right in case.rights:
        for index in range(8):
            names = await worlds.names(case)
            of = f"{names.of(right[1], case)}"
            state, allowed, acls = list(states(right, of))[index]
            others = [
                creation(operation, resource_type, names.of(resource_type, case))
                for operation, resource_type in case.rights
                if (operation, resource_type) != right
            ]
            for broker in (worlds.full, worlds.empty):
                await grant(broker, *acls, *others)
            before = await snapshot(worlds.full)
            request = case.request(names)
            response = await client(worlds.full, "ann").send(request, case.version)
            where = f"API {key}, {type(request).__name__}, {right[0].name} {right[1].name}, {state}"
            if case.is_denied(response) is allowed:
                found.append(f"{where}: {'denied' if allowed else 'allowed'}: {response}")
            elif not allowed:
                if case.changes_nothing and await snapshot(worlds.full) != before:
                    found.append(f"{where}: something has changed")
                if case.is_as_missing:
                    missing = await client(worlds.empty, "ann").send(request, case.version)
                    if shown(response) != shown(missing):
                        found.append(f"{where}: {response} is not as of what is missing: {missing}")
            await worlds.clean(names)
    return found


PARTS = {
    "records": {0, 1, 2, 21, 23},
    "metadata": {3, 60, 75, 32, 33, 34, 44},
    "topics": {19, 20, 37},
    "groups": {8, 9, 10, 11, 12, 13, 14},
    "groups of others": {15, 16, 42, 47, 68, 69},
    "transactions": {22, 24, 25, 26, 27, 28, 61, 65, 66},
}


@pytest.mark.parametrize("part", PARTS)
async def test_denied_requests_change_nothing_and_show_nothing(tmp_path: Path, part: str) -> None:
    async with AsyncExitStack() as stack:
        config = {"transaction.state.log.num.partitions": "1", "offsets.topic.num.partitions": "1"}
        worlds = Worlds(
            await stack.enter_async_context(secured_broker(tmp_path / "full", config)),
            await stack.enter_async_context(secured_broker(tmp_path / "empty", config)),
        )
        for broker in (worlds.full, worlds.empty):  # so that journals exist before
            await broker.send(FindCoordinatorRequest(key_type=0, coordinator_keys=["g"]))
            await broker.send(InitProducerIdRequest(transactional_id="x", transaction_timeout_ms=1000))
        found = []
        for key in sorted(PARTS[part]):
            for case in CASES[key]:
                found += await problems_of(worlds, key, case)
    assert not found, "\n".join(found)


async def test_the_matrix_has_every_api_and_every_right(tmp_path: Path) -> None:
    """The rights in an API's declaration are those of its cases."""
    assert set().union(*PARTS.values()) == set(CASES)
    async with secured_broker(tmp_path) as admin:
        for declaration in admin.broker.dispatcher.declarations:
            authorize = declaration.authorize
            if authorize.is_public or authorize.of_cluster is not None or declaration.key in ELSEWHERE:
                continue
            assert declaration.key in CASES, f"there is no case for API key {declaration.key}"
            rights = {right for case in CASES[declaration.key] for right in case.rights}
            assert rights == set(authorize.rights), f"API key {declaration.key}"


async def test_rights_over_the_cluster_in_every_state(tmp_path: Path) -> None:
    """These are the APIs whose requests concern the whole cluster, with the requests that have no fields."""
    async with secured_broker(tmp_path) as admin:
        whole = [
            each for each in admin.broker.dispatcher.declarations if each.authorize.of_cluster is not None
        ]
        assert {each.key for each in whole} >= {29, 30, 31, 35, 43, 45, 46, 48, 50}
        for declaration in whole:
            for state, allowed, acls in states((declaration.authorize.of_cluster, CLUSTER), CLUSTER_NAME):
                await grant(admin, *acls)
                before = await snapshot(admin)
                response = await client(admin, "ann").send(declaration.request())
                has_place = bool(list(codes(response)))
                where = f"{declaration.request.__name__}, {state}: {response}"
                assert not (allowed and is_refused(response)), where
                if not allowed:
                    assert is_refused(response) or not has_place, where
                    assert await snapshot(admin) == before, where
                await revoke_all(admin)


async def test_describe_on_a_topic_does_not_allow_deletion(tmp_path: Path) -> None:
    """A user with DESCRIBE is told the name that belongs to an id."""
    async with secured_broker(tmp_path) as admin:
        image = await admin.create_topic("t")
        await allow(admin, Operation.DESCRIBE, TOPIC, "t")
        for request in (delete("t"), delete(None, image.topic_id)):
            (result,) = (await client(admin, "ann").send(request)).responses
            assert (result.name, result.error_code) == ("t", ErrorCode.TOPIC_AUTHORIZATION_FAILED)
        assert admin.context.metadata.topic("t") is image
