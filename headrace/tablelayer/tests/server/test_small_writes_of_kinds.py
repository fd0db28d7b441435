"""Small batches of producers for tables of every kind: writes on the event loop equal those beside it."""

from __future__ import annotations

import json
import random
from datetime import date
from pathlib import Path
from typing import Any

import pytest

from headrace.protocol.errors import ErrorCode, KafkaError
from headrace.protocol.records.header import iter_headers
from headrace.tablelayer.model import messages as m
from headrace.tablelayer.model.batches.batch import ArrowBatch
from headrace.tablelayer.server import stored_message
from headrace.tablelayer.server.store.kv import KeyValueStore
from headrace.tablelayer.server.store.tablet import Tablet
from headrace.tablelayer.tests.server.tables import Table, Tables, tables
from headrace.tablelayer.tests.server.test_kafka_view import batch
from headrace.tablelayer.tests.server.test_partitions import add, create

COLUMNS = "id BIGINT, p STRING, v STRING, n BIGINT, d DOUBLE, day DATE"
KEYED = f"{COLUMNS}, PRIMARY KEY (id, p) NOT ENFORCED"
MERGED = "'table.merge-engine' = 'aggregation', 'fields.v.agg' = 'listagg', "
LAKE = "'table.datalake.format' = 'iceberg'"
FIRST_ROW = "'table.merge-engine' = 'first_row'"
KINDS = {
    "buckets": f"({KEYED}) WITH ('bucket.num' = '3')",
    "buckets of a lake": f"({KEYED}) WITH ('bucket.num' = '3', 'bucket.key' = 'id', {LAKE})",
    "log by key": f"({COLUMNS}) WITH ('bucket.num' = '3', 'bucket.key' = 'n,p')",
    "log by day": f"({COLUMNS}) WITH ('bucket.num' = '3', 'bucket.key' = 'day', {LAKE})",
    "log": f"({COLUMNS}) WITH ('bucket.num' = '2')",
    "first row": f"({KEYED}) WITH ('bucket.num' = '2', {FIRST_ROW})",
    "versioned": f"({KEYED}) WITH ('bucket.num' = '1', 'table.merge-engine' = 'versioned', "
    "'table.merge-engine.versioned.ver-column' = 'n')",
    "sums": f"({KEYED}) WITH ('bucket.num' = '1', {MERGED} 'fields.n.agg' = 'sum', 'fields.d.agg' = 'sum', "
    "'fields.day.agg' = 'max')",
    "extremes": f"({KEYED}) WITH ('bucket.num' = '1', {MERGED} 'fields.n.agg' = 'min', "
    "'fields.d.agg' = 'first_value_ignore_nulls', 'fields.day.agg' = 'first_value')",
    "expiring": f"({KEYED}) WITH ('bucket.num' = '1', 'table.kv.ttl' = '1 h')",
    "expiring by a column": f"({KEYED}) WITH ('bucket.num' = '1', 'table.kv.ttl' = '1 h', "
    "'table.kv.ttl.time-column' = 'n')",
    "partitions": f"({KEYED}) PARTITIONED BY (p) WITH ('bucket.num' = '2')",
    "partitions of a log": f"({COLUMNS}) PARTITIONED BY (p, day) WITH ('bucket.num' = '2')",
}  # fmt: skip
PARTITIONS = {"partitions": ["a", "b"], "partitions of a log": ["a.1970-01-02", "b.1970-01-02"]}


@pytest.fixture(autouse=True, scope="module")
def _kernels() -> None:
    stored_message.warm()


def record(row: dict[str, Any], *, is_delete: bool) -> tuple[bytes, bytes | None]:
    key = {"id": row["id"], "p": row["p"]}
    return json.dumps(key).encode(), None if is_delete else json.dumps(row).encode()


async def made(world: Tables, name: str, kind: str) -> Table:
    table = await create(world, f"CREATE TABLE {name} {KINDS[kind]}")
    for partition in PARTITIONS.get(kind, ()):
        assert not (await add(table, partition)).error_code
    return table


def places(world: Tables, table: Table) -> list[Any]:
    """Return the partitions of the table's topics, in order."""
    path = table.definition.path.topic
    found = []
    for topic in sorted(world.broker.context.metadata.image.topics):
        if topic == path or topic.startswith(f"{path}."):
            count = world.broker.context.metadata.topic(topic).partition_count
            found += [world.broker.context.replicas.partition(topic, index) for index in range(count)]
    return found


def logged(world: Tables, table: Table) -> list[Any]:
    """Return all that the logs of the table's topics have: their offsets, producers, changes and rows."""
    found = []
    for partition in places(world, table):
        log = partition.log
        region = log.read(0, 1 << 30, up_to=log.log_end_offset).region
        data = memoryview(b"" if region is None else bytes(region.read()))
        batches = []
        for position, header in iter_headers(data):
            each = ArrowBatch.parse(data[position : position + header.size])
            rows = each.to_record_batch(table.definition.schema.arrow(), untrusted=True).to_pylist()
            changes = None if each.change_types is None else each.change_types.tolist()
            producer = header.producer_id, header.producer_epoch, header.base_sequence
            batches.append((header.base_offset, header.next_offset, producer, changes or [], rows))
        found.append((partition.high_watermark, batches))
    return found


def stored(world: Tables, table: Table) -> list[Any]:
    """Return the stored rows, and the number of the entries beside them."""
    found = []
    for partition in places(world, table):
        store = getattr(partition.hooks, "store", None)
        if store is not None:
            keys = store.keys_from(b"\x01", b"\x02", 999)
            entries = store.keys_from(b"\x00e", b"\x00u", 999)
            found.append((store.row_count, list(zip(keys, store.get(keys), strict=True)), len(entries)))
    return found


def few(chosen: random.Random, step: int) -> list[tuple[dict[str, Any], bool]]:
    """Return some rows, and whether they are deleted."""
    return [
        (
            {
                "id": chosen.randrange(4), "p": chosen.choice("ab"), "v": chosen.choice((None, "", f"{step}")),
                "n": chosen.choice((None, chosen.randrange(-3, 9))), "d": chosen.choice((None, step / 8)),
                "day": "1970-01-02",
            },
            chosen.random() < 0.2,
        )
        for _ in range(chosen.randint(1, 4))
    ]  # fmt: skip


@pytest.mark.parametrize("kind", KINDS)
async def test_small_batches_have_the_effects_of_others(tmp_path: Path, kind: str) -> None:
    chosen = random.Random(kind)
    has_deletes = "log" not in kind and kind not in ("first row", "versioned")
    async with tables(tmp_path, {"datalake.iceberg.warehouse": "/lake"}) as world:
        ours, theirs = await made(world, "ours", kind), await made(world, "theirs", kind)
        mine, others = (places(world, each) for each in (ours, theirs))
        sequences = [0] * len(mine)
        taken = tried = 0
        for step in range(50):
            records = [record(row, is_delete=gone and has_deletes) for row, gone in few(chosen, step)]
            at = chosen.randrange(len(mine))
            of_producer = {}
            if step % 2:
                of_producer = {"producer_id": 7, "producer_epoch": 0, "base_sequence": sequences[at]}
            data = memoryview(batch(*records, **of_producer))
            own = mine[at].topic.name.split(".")[2:3]
            if own and any(json.loads(key)["p"] != own[0] for key, _ in records):
                assert mine[at].hooks.produce_at_once(data) is None, "a row of another partition"
                continue
            tried += 1
            sequences[at] += len(records) if of_producer else 0
            info = mine[at].hooks.produce_at_once(data)
            taken += info is not None
            info = info or await mine[at].hooks.produce(data, -1, 60_000)
            other = await others[at].hooks.produce(data, -1, 60_000)
            assert (info.base_offset, info.last_offset) == (other.base_offset, other.last_offset)
        assert 2 * taken > tried
        assert logged(world, ours) == logged(world, theirs)
        assert stored(world, ours) == stored(world, theirs)
        assert world.extension._services.budget.used == 0


async def test_a_forwarded_row_that_is_not_stored_at_once_is_written_once(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    async with tables(tmp_path) as world:
        table = await made(world, "t", "buckets")
        hooks = [partition.hooks for partition in places(world, table)]
        for number in range(8):  # makes the files of all stores
            await hooks[0].produce(
                memoryview(batch(record({"id": number, "p": "a"}, is_delete=False))), -1, 60_000
            )
        rows = [record({"id": number, "p": "a", "v": "x"}, is_delete=False) for number in range(8)]
        data = memoryview(batch(*rows, producer_id=7, producer_epoch=0, base_sequence=0))
        monkeypatch.setattr(KeyValueStore, "write_at_once", lambda *_: False)
        with pytest.raises(KafkaError) as refused:
            hooks[0].produce_at_once(data)
        assert refused.value.code is ErrorCode.REQUEST_TIMED_OUT
        assert hooks[0].produce_at_once(data) is None, "a part of it is logged"
        await hooks[0].produce(data, -1, 60_000)
        images = [row for bucket in range(3) for _, row in await table.changelog(bucket=bucket)]
        assert sorted(row["id"] for row in images if row["v"] == "x") == list(range(8))
        assert world.extension._services.budget.used == 0


PUTS = {
    "plain": f"({KEYED}) WITH ('bucket.num' = '1')",
    "new images": f"({KEYED}) WITH ('bucket.num' = '1', 'table.changelog.image' = 'WAL')",
    "default": f"({COLUMNS}, more INT DEFAULT 5, PRIMARY KEY (id, p) NOT ENFORCED) WITH ('bucket.num' = '1')",
    **{kind: KINDS[kind] for kind in ("sums", "extremes", "versioned", "expiring")},
    "first row": f"({KEYED}) WITH ('bucket.num' = '1', {FIRST_ROW})",
}


@pytest.mark.parametrize("kind", PUTS)
async def test_a_few_rows_of_a_table_client_have_the_effects_of_many(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, kind: str
) -> None:
    chosen, columns = random.Random(kind), ["v", "n", "d", "day"]
    is_whole = kind in ("first row", "versioned")
    async with tables(tmp_path) as world:
        ours, theirs = [
            await create(world, f"CREATE TABLE {name} {PUTS[kind]}") for name in ("ours", "theirs")
        ]
        services, taken = world.extension._services, 0
        prepare = Tablet.prepare

        def counting(*args: Any) -> Any:
            nonlocal taken
            taken += 1
            return prepare(*args)

        monkeypatch.setattr(Tablet, "prepare", counting)
        await ours.put(("+", {"id": 9, "p": "a"}))  # loads the kernels
        await theirs.put(("+", {"id": 9, "p": "a"}))
        beside = taken
        for step in range(50):
            rows = few(chosen, step)
            some = not is_whole and chosen.random() < 0.5
            names = ["id", "p", *chosen.sample(columns, chosen.randrange(4))] if some else None
            update = bool(names and len(names) > 2 and chosen.random() < 0.3)
            overwrite = not is_whole and not update and chosen.random() < 0.2
            operations = [
                ("-" if gone and not is_whole and not update else "+", {**row, "day": date(1970, 1, 2)})
                for row, gone in rows
            ]
            if names is not None:
                operations = [(sign, {name: row[name] for name in names}) for sign, row in operations]
            said = []
            for table, at_once in ((ours, True), (theirs, False)):
                services.has_put = at_once
                answer = await table.put(*operations, columns=names, update=update, overwrite=overwrite)
                said.append((answer.error_code, answer.error_message, getattr(answer, "end_offset", None)))
            assert said[0] == said[1]
        assert taken - beside < 90, "most of ours are written at once"
        assert logged(world, ours) == logged(world, theirs)
        assert stored(world, ours) == stored(world, theirs)
        assert services.budget.used == 0


async def test_more_buckets_than_a_turn_has_time_for_are_written_beside(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    async with tables(tmp_path) as world:
        table = await create(world, f"CREATE TABLE t ({KEYED}) WITH ('bucket.num' = '8')")
        hooks = [partition.hooks for partition in places(world, table)]
        rows = [record({"id": number, "p": "a"}, is_delete=False) for number in range(16)]
        assert (await hooks[0].produce(memoryview(batch(*rows)), -1, 60_000)).base_offset >= 0
        assert hooks[0].produce_at_once(memoryview(batch(*rows))) is None
        assert hooks[0].produce_at_once(memoryview(batch(rows[0]))) is not None
        monkeypatch.setattr(Tablet, "prepare_few", None)
        world.extension._services.has_put = True
        parts = [
            m.WriteBucket(bucket=bucket, batch=table.batch([{"id": 1, "p": "a"}], [3])) for bucket in (0, 1)
        ]
        answer = await table.broker.send(
            m.PutRowsRequest(table_id=table.table_id, acks=-1, timeout_ms=60_000, buckets=parts)
        )
        assert [each.error_code for each in answer.buckets] == [0, 0]
