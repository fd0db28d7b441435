"""R17.3: a producer's batch for several buckets is written whole or not at all, also after a failure in between."""

from __future__ import annotations

import asyncio
import json
import random
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pytest

from headrace.broker.log.partition_log import AppendInfo
from headrace.broker.partitions.partition import Partition
from headrace.protocol.errors import ErrorCode, KafkaError
from headrace.protocol.records.encode import Record, build_batch
from headrace.tablelayer.model.ddl import CreateTable, parse
from headrace.tablelayer.model.table.buckets import bucket_of
from headrace.tablelayer.server.bucket.key_bucket import KeyBucket
from headrace.tablelayer.server.limits import Limits
from headrace.tablelayer.tests.server.tables import TIMEOUT_MS, Table, Tables, run, tables, until

BUCKETS = 3
KEYS = range(40)
SUM = "'table.merge-engine' = 'aggregation', 'fields.n.agg' = 'sum'"
HITS = (
    "CREATE TABLE hits (k BIGINT, n TINYINT, PRIMARY KEY (k) NOT ENFORCED)"
    f" WITH ('bucket.num' = '{BUCKETS}', {SUM})"
)
HITS_BY_DAY = (
    "CREATE TABLE hits (d INT, k BIGINT, n TINYINT, PRIMARY KEY (d, k) NOT ENFORCED) PARTITIONED BY (d)"
    f" WITH ('bucket.num' = '2', 'bucket.key' = 'k', {SUM})"
)
LOG = f"CREATE TABLE hits (k BIGINT, n TINYINT) WITH ('bucket.num' = '{BUCKETS}', 'bucket.key' = 'k')"
DEBEZIUM = HITS.replace("WITH (", "WITH ('table.kafka.value-format' = 'debezium-json', ")
WHO = {"producer_id": 7, "producer_epoch": 0}
Rows = list[tuple[int, int]]


class Hits:
    """A table of counters, written through Kafka."""

    def __init__(self, all_tables: Tables, table: Table, text: str) -> None:
        self.all_tables, self.table, self.text = all_tables, table, text

    @classmethod
    async def of(cls, all_tables: Tables, sql: str) -> Hits:
        (statement,) = parse(sql)
        assert isinstance(statement, CreateTable)
        return cls(all_tables, await all_tables.create_as(statement.definition), sql)

    async def produce(self, rows: Rows, partition: int = 0, acks: int = -1, **options: Any) -> Any:
        records = [Record(None, self._value(k, n), (), 1000) for k, n in rows]
        return await self.table.broker.produce(
            "default.hits", build_batch(records, **options), partition=partition, acks=acks
        )

    def _value(self, key: int, count: int) -> bytes:
        row = {"k": key, "n": count}
        if "(d INT" in self.text:
            row["d"] = key % 2
        if "debezium" in self.text:
            return json.dumps({"op": "c", "before": None, "after": row}).encode()
        return json.dumps(row).encode()

    async def parts(self) -> list[Table]:
        if "(d INT" not in self.text:
            return [self.table]
        names = [path.name for path in self.all_tables.broker.context.metadata.topics()]
        return [await self.all_tables.open(f"hits.{d}") for d in (0, 1) if f"default.hits.{d}" in names]

    async def sums(self) -> dict[int, int]:
        found: dict[int, int] = {}
        for part in await self.parts():
            for bucket in range(part.definition.bucket_count):
                for change, row in await part.changelog(bucket=bucket):
                    if change == "+A":
                        found[row["k"]] = found.get(row["k"], 0) + row["n"]
                    elif change != "-U":
                        found[row["k"]] = row["n"]
        return found

    async def ends(self) -> list[int]:
        """Return the end of every log, the whole table's own too."""
        found = []
        for part in {str(each.definition.path): each for each in [self.table, *await self.parts()]}.values():
            for bucket in range(part.definition.bucket_count):
                topic = part.definition.path.topic
                found.append(part.broker.context.replicas.partition(topic, bucket).log.log_end_offset)
        return found


def placed(keys: range = KEYS) -> dict[int, list[int]]:
    """Return keys by the bucket they belong to."""
    (statement,) = parse(HITS)
    assert isinstance(statement, CreateTable)
    rows = pa.RecordBatch.from_pydict({"k": list(keys), "n": [0] * len(keys)}).cast(
        statement.definition.schema.arrow()
    )
    buckets = bucket_of(statement.definition, rows)
    return {each: np.flatnonzero(buckets == each).tolist() for each in range(BUCKETS)}


@contextmanager
def failing_append(monkeypatch: pytest.MonkeyPatch, number: int, error: Exception) -> Iterator[list[str]]:
    """Let the append of this number (from 0) fail; return the partitions that were appended to before."""
    real = Partition.append
    done: list[str] = []

    def append(self: Partition, *given: Any, **options: Any) -> AppendInfo:
        if len(done) == number:
            raise error
        done.append(f"{self.topic.name}-{self.index}")
        return real(self, *given, **options)

    with monkeypatch.context() as patched:
        patched.setattr(Partition, "append", append)
        yield done


@pytest.mark.parametrize("sql", [HITS, DEBEZIUM, HITS_BY_DAY])
async def test_r17_3_an_overflow_in_one_bucket_leaves_the_others_as_they_were(
    tmp_path: Path, sql: str
) -> None:
    """The bad record may be in any bucket, and the batch may be sent to any."""
    async with tables(tmp_path) as all_tables:
        hits = await Hits.of(all_tables, sql)
        full = [next(k for k in keys if k % 2 == index % 2) for index, keys in placed().items()]
        others = [(key, 1) for key in KEYS if key not in full]
        assert (await hits.produce([(key, 127 if key in full else 0) for key in KEYS])).error_code == 0
        before = await hits.sums(), await hits.ends()
        partitions = range(hits.table.definition.bucket_count)
        for key in full:
            for to in partitions:
                answer = await hits.produce([*others, (key, 1)], to, base_sequence=0, **WHO)
                assert answer.error_code == ErrorCode.INVALID_RECORD
                assert [each.batch_index for each in answer.record_errors] == [len(others)]
                assert "'n'" in answer.error_message
                assert (await hits.sums(), await hits.ends()) == before
        for to in partitions:
            for _ in range(2):
                answer = await hits.produce(others, to, base_sequence=0, **WHO)
                assert answer.error_code == 0, answer.error_message
        expected = dict.fromkeys(KEYS, len(partitions)) | dict.fromkeys(full, 127)
        assert await hits.sums() == expected


@pytest.mark.parametrize("sql", [HITS, HITS_BY_DAY, LOG])
@pytest.mark.parametrize("restarts", [False, True])
async def test_r17_3_an_interrupted_batch_is_completed_by_its_repetition(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, sql: str, restarts: bool
) -> None:
    """The batch breaks off at any place; with `restarts` the server continues from the files of that moment."""
    rows = [(key, 1) for key in KEYS]
    error = KafkaError(ErrorCode.KAFKA_STORAGE_ERROR, "the disk is full")
    number, sequence, broken = 0, 0, True
    while broken:
        number += 1
        async with tables(tmp_path) as all_tables:
            hits = (
                Hits(all_tables, await all_tables.open("hits"), sql)
                if number > 1
                else (await Hits.of(all_tables, sql))
            )
            if number == 1:
                assert (await hits.produce([(key, 0) for key in KEYS])).error_code == 0
            options = {"base_sequence": sequence, **WHO}
            with failing_append(monkeypatch, number, error) as appended:
                answer = await hits.produce(rows, **options)
            broken = answer.error_code != 0
            if broken:
                assert len(appended) == number
                assert ErrorCode(answer.error_code) is ErrorCode.KAFKA_STORAGE_ERROR, "clients repeat it"
            if not restarts:
                assert (await hits.produce(rows, **options)).error_code == 0
                assert await hits.sums() == dict.fromkeys(KEYS, number)
        if restarts:
            async with tables(tmp_path) as all_tables:
                hits = Hits(all_tables, await all_tables.open("hits"), sql)
                for _ in range(2):
                    assert (await hits.produce(rows, **options)).error_code == 0
                assert await hits.sums() == dict.fromkeys(KEYS, number)
        sequence += len(rows)
    assert number > 2


async def test_r17_3_any_error_between_two_appends_is_one_that_clients_repeat(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    async with tables(tmp_path) as all_tables:
        hits = await Hits.of(all_tables, HITS)
        rows = [(key, 1) for key in KEYS]
        with failing_append(monkeypatch, 1, OSError("gone")):
            answer = await hits.produce(rows, base_sequence=0, **WHO)
        assert ErrorCode(answer.error_code).retriable
        assert "1 of 3 buckets" in answer.error_message
        with failing_append(monkeypatch, 0, KafkaError(ErrorCode.INVALID_PRODUCER_EPOCH, "old")):
            answer = await hits.produce(rows, base_sequence=0, **WHO)
        assert answer.error_code == ErrorCode.INVALID_PRODUCER_EPOCH, "nothing new was written"
        assert (await hits.produce(rows, base_sequence=0, **WHO)).error_code == 0
        assert await hits.sums() == dict.fromkeys(KEYS, 1)


@pytest.mark.parametrize("sql", [HITS, HITS_BY_DAY, LOG])
async def test_r17_3_a_sequence_is_fsynced_after_the_rows_it_stands_for(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, sql: str
) -> None:
    """An acknowledgement means the disk here: otherwise a power cut could keep the sequence and lose rows."""
    async with tables(tmp_path, {"log.flush.interval.messages": "1"}) as all_tables:
        hits = await Hits.of(all_tables, sql)
        real = Partition.append
        own: list[list[str]] = []

        def append(self: Partition, batch: Any, *given: Any, **options: Any) -> AppendInfo:
            producer_id = int.from_bytes(bytes(batch[43:51]), "big", signed=True)
            if producer_id == WHO["producer_id"]:
                own.append(
                    [
                        f"{part.definition.path} {bucket}"
                        for part in parts
                        for bucket in range(part.definition.bucket_count)
                        for log in [
                            part.broker.context.replicas.partition(part.definition.path.topic, bucket).log
                        ]
                        if log.recovery_point < log.log_end_offset
                    ]
                )
            return real(self, batch, *given, **options)

        await hits.produce([(key, 0) for key in KEYS])
        parts = await hits.parts()
        assert parts[0].partition.log.config.flushes_by_count
        monkeypatch.setattr(Partition, "append", append)
        for partition in range(2):
            for _ in range(2):
                answer = await hits.produce([(key, 1) for key in KEYS], partition, base_sequence=0, **WHO)
                assert answer.error_code == 0, answer.error_message
        assert own == [[], []]
        assert await hits.sums() == dict.fromkeys(KEYS, 2)


async def test_r11_a_repetition_is_acknowledged_when_the_rows_of_all_buckets_are_visible(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    async with tables(tmp_path) as all_tables:
        hits = await Hits.of(all_tables, HITS)
        other = all_tables.broker.context.replicas.partition("default.hits", 1)
        real = KeyBucket.high_watermark_candidate
        held: list[int] = []
        was_held = asyncio.Event()

        def candidate(self: KeyBucket, offset: int) -> None:
            if self.partition is other:
                held.append(offset)
                was_held.set()
            else:
                real(self, offset)

        rows = [(key, 1) for key in KEYS]
        with monkeypatch.context() as patched:
            patched.setattr(KeyBucket, "high_watermark_candidate", candidate)
            first = asyncio.create_task(hits.produce(rows, base_sequence=0, **WHO))
            await was_held.wait()
            again = asyncio.create_task(hits.produce(rows, base_sequence=0, **WHO))
            done, _ = await asyncio.wait([first, again], timeout=0.2)
            assert not done
        assert isinstance(other.hooks, KeyBucket)
        real(other.hooks, held[-1])
        assert [answer.error_code for answer in await asyncio.gather(first, again)] == [0, 0]
        assert await hits.sums() == dict.fromkeys(KEYS, 1)


async def test_r1_6_a_batch_that_the_budget_has_no_room_for_has_no_effect_in_any_bucket(
    tmp_path: Path,
) -> None:
    async with tables(tmp_path, limits=Limits(buffered_bytes_max=1000)) as all_tables:
        hits = await Hits.of(all_tables, HITS)
        budget = hits.table.partition.hooks.services.budget
        budget.reserve(900)
        answer = await hits.produce([(key, 1) for key in KEYS])
        assert answer.error_code == ErrorCode.THROTTLING_QUOTA_EXCEEDED
        assert await hits.ends() == [0] * BUCKETS
        budget.release(900)
        assert (await hits.produce([(key, 1) for key in KEYS])).error_code == 0
        assert budget.used == 0
        with pytest.MonkeyPatch.context() as patch, failing_append(patch, 1, OSError("gone")):
            assert (await hits.produce([(key, 1) for key in KEYS])).error_code != 0
        for bucket in range(BUCKETS):
            partition = all_tables.broker.context.replicas.partition("default.hits", bucket)
            assert await partition.wait_for_high_watermark(partition.log.log_end_offset, TIMEOUT_MS)
        await until(lambda: budget.used == 0)


def test_r17_3_random_faults_and_resends_of_several_producers_against_a_dict(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Producers write side by side and repeat failed batches: an acknowledged batch counts once, a refused one not at
    all.

    If the disk broke a batch off, and its repetition is refused because of others' rows meanwhile, its written part
    stays.
    """
    seed = random.randrange(1 << 30)
    print("seed", seed)
    rng = random.Random(seed)
    real = Partition.append

    def append(self: Partition, *given: Any, **options: Any) -> AppendInfo:
        if self.topic.name.startswith("default.hits") and rng.random() < 0.15:
            raise KafkaError(ErrorCode.KAFKA_STORAGE_ERROR, "the disk is full")
        return real(self, *given, **options)

    async def producer(
        hits: Hits, number: int, expected: dict[int, int], broken_off: dict[int, list[int]]
    ) -> None:
        sequence = epoch = 0
        for _ in range(8):
            rows = [(rng.choice(KEYS), rng.choice((1, 2, 60))) for _ in range(rng.randrange(1, 9))]
            partition = number % hits.table.definition.bucket_count
            torn = False
            for _ in range(200):
                answer = await hits.produce(
                    rows, partition, base_sequence=sequence, producer_id=number, producer_epoch=epoch
                )
                if answer.error_code != ErrorCode.KAFKA_STORAGE_ERROR:
                    break
                torn = torn or "buckets were written" in answer.error_message
            if answer.error_code == 0:
                sequence += len(rows)
                for key, count in rows:
                    expected[key] = expected.get(key, 0) + count
            else:
                assert answer.error_code == ErrorCode.INVALID_RECORD, answer.error_message
                epoch, sequence = epoch + 1, 0  # as clients go on after a batch that was refused
                if torn:
                    of_keys: dict[int, int] = {}
                    for key, count in rows:
                        of_keys[key] = of_keys.get(key, 0) + count
                    for key, count in of_keys.items():
                        broken_off.setdefault(key, []).append(count)

    async def work() -> None:
        async with tables(tmp_path / "plain") as all_tables:
            await lives(await Hits.of(all_tables, HITS))
        async with tables(tmp_path / "partitioned") as all_tables:
            await lives(await Hits.of(all_tables, HITS_BY_DAY))

    async def lives(hits: Hits) -> None:
        await hits.produce([(key, 0) for key in KEYS])
        expected: dict[int, int] = {}
        broken_off: dict[int, list[int]] = {}
        with monkeypatch.context() as patched:
            patched.setattr(Partition, "append", append)
            await asyncio.gather(*(producer(hits, number, expected, broken_off) for number in range(1, 4)))
        found = await hits.sums()
        for key, count in found.items():
            possible = {expected.get(key, 0)}
            for more in broken_off.get(key, []):
                possible |= {each + more for each in possible}
            assert count in possible, (key, count, possible)

    run(work)
