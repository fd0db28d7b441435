"""Tables count like topics: bytes of writes and reads, and created and deleted partitions."""

from __future__ import annotations

from pathlib import Path

from headrace.broker.security.quotas.model import Quota
from headrace.protocol.errors import ErrorCode
from headrace.protocol.messages.alter_client_quotas import (
    AlterClientQuotasRequest,
    EntityData,
    EntryData,
    OpData,
)
from headrace.tablelayer.model import messages as m
from headrace.tablelayer.tests.server.tables import Tables, run, tables

CHARGED = {
    Quota.PRODUCER: {m.AppendRowsRequest, m.PutRowsRequest, m.StageRowsRequest},
    Quota.CONSUMER: {
        m.LookupRequest, m.PrefixLookupRequest, m.ScanLogRequest, m.LimitScanRequest, m.CountRowsRequest,
        m.ScanSnapshotRequest,
    },
    Quota.MUTATION: {
        m.CreateTableRequest, m.DropTableRequest, m.CreatePartitionRequest, m.DropPartitionRequest,
        m.DropDatabaseRequest,
    },
}  # fmt: skip


async def limit(db: Tables, key: str, value: float) -> None:
    entry = EntryData(
        entity=[EntityData(entity_type="client-id", entity_name="test")], ops=[OpData(key=key, value=value)]
    )
    answer = await db.broker.send(AlterClientQuotasRequest(entries=[entry]))
    assert answer.entries[0].error_code == 0


def test_charged_apis_are_declared(tmp_path: Path) -> None:
    async def work() -> None:
        async with tables(tmp_path) as db:
            found: dict[Quota, set[type]] = {quota: set() for quota in CHARGED}
            for declaration in db.broker.broker.dispatcher.declarations:
                if declaration.charged is not None and declaration.key >= 10_000:
                    found[declaration.charged].add(declaration.request)
            assert found == CHARGED

    run(work)


def test_buckets_that_are_made_and_dropped_count(tmp_path: Path) -> None:
    async def work() -> None:
        async with tables(tmp_path) as db:
            made = await db.create("id INT, PRIMARY KEY (id) NOT ENFORCED", buckets=3)
            await limit(db, "controller_mutation_rate", 0.01)
            drop = m.DropTableRequest(
                database=made.definition.path.database, table=made.definition.path.table
            )
            first = await db.broker.send(drop)
            assert (first.error_code, first.throttle_time_ms) == (0, 0)  # KIP-599: the next one is refused
            again = await db.broker.send(drop)
            assert again.error_code != ErrorCode.THROTTLING_QUOTA_EXCEEDED, "there is nothing to drop"
            refused = await db.broker.send(m.CreateTableRequest(definition=made.definition.to_json()))
            assert refused.error_code == ErrorCode.THROTTLING_QUOTA_EXCEEDED
            assert db.broker.context.metadata.topic(made.definition.path.topic) is None

    run(work)


def test_bytes_of_writes_and_scans_count(tmp_path: Path) -> None:
    async def work() -> None:
        async with tables(tmp_path) as db:
            made = await db.create("id INT, name STRING, PRIMARY KEY (id) NOT ENFORCED")
            await limit(db, "producer_byte_rate", 100)
            await limit(db, "consumer_byte_rate", 100)
            db.broker.peer.throttle_seconds = 0.0
            written = await made.put(
                ("+", {"id": 1, "name": "".join(chr(33 + i * i % 90) for i in range(9000))})
            )
            assert written.error_code == 0
            assert db.broker.peer.throttle_seconds > 15
            db.broker.peer.throttle_seconds = 0.0
            assert await made.scan()
            assert db.broker.peer.throttle_seconds > 1

    run(work)
