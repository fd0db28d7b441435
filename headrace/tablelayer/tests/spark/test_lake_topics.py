"""Plain topics in the lake: raw, JSON by a declared and by an inferred schema, Debezium; and records that do not
fit.
"""

from __future__ import annotations

import json
from collections.abc import Iterable
from typing import Any

import pytest
from confluent_kafka import Producer

from headrace.tablelayer.client import Connection
from headrace.tablelayer.lake.coordinator import ServerCoordinator, list_lake
from headrace.tablelayer.lake.paimon import PaimonTable
from headrace.tablelayer.lake.tiering_job import run_tiering
from headrace.tablelayer.model.table.definition import SCHEMA_CONFIG
from headrace.tablelayer.model.table.path import TablePath
from headrace.tablelayer.model.topic_config import from_topic_config
from headrace.tablelayer.tests.lake.paimon_world import rows_by_paimon
from headrace.tablelayer.tests.spark.spark_tables import Server

pytestmark = [
    pytest.mark.spark,
    pytest.mark.slow,
    pytest.mark.xdist_group("spark"),
    pytest.mark.filterwarnings("ignore::ResourceWarning"),
]

LAKES = pytest.mark.parametrize("lake", ["iceberg", pytest.param("paimon", marks=pytest.mark.soak)])


class TieredTopic:
    def __init__(self, server: Server, client: Connection, name: str, **configs: str) -> None:
        self.server, self.client, self.name = server, client, name
        self.is_paimon = configs.get("format") == "paimon"
        given = {f"datalake.{key.replace('_', '-')}": value for key, value in configs.items()}
        client.kafka.create_topic(name, partitions=2, configs={"datalake.enabled": "true", **given})

    def produce(
        self, records: Iterable[tuple[Any, Any]], *, transaction: str = "", abort: bool = False
    ) -> None:
        """(key, value) as texts, bytes, None, or objects that become JSON; partitions by key."""
        options = {"transactional.id": transaction} if transaction else {}
        producer = Producer({"bootstrap.servers": self.server.address, **options})
        if transaction:
            producer.init_transactions(60)
            producer.begin_transaction()
        for key, value in records:
            texts = [json.dumps(v) if isinstance(v, (dict, list, int)) else v for v in (key, value)]
            headers = [("h", b"\x00x"), ("h", None)]
            producer.produce(self.name, texts[1], texts[0], headers=headers)
        assert producer.flush(60) == 0
        if transaction:
            (producer.abort_transaction if abort else producer.commit_transaction)(60)

    def tier(self) -> str:
        lines: list[str] = []
        code = run_tiering(self.server.address, topics=[self.name], report=lines.append)
        assert code == 0, lines
        return "\n".join(lines)

    def _in_paimon(self, spark: Any, path: TablePath) -> PaimonTable:
        properties = {"warehouse": str(self.server.folder / "paimon")}
        topic_id = self.client.kafka.describe_topic(self.name).topic_id
        known = from_topic_config(path, 1, {SCHEMA_CONFIG: "id BIGINT"}).with_id(topic_id)
        definition = PaimonTable(spark, known, properties).stored_definition()
        assert definition is not None
        return PaimonTable(spark, definition, properties)

    def lake(self, spark: Any, suffix: str = "") -> list[dict[str, Any]]:
        """The lake table as Iceberg itself reads it; or as Paimon does, and we, by the definition that it keeps."""
        database, _, table = self.name.rpartition(".")
        if self.is_paimon:
            lake = self._in_paimon(spark, TablePath(database or "default", f"{table}{suffix}"))
            found = lake.read().toArrow()
            theirs = rows_by_paimon(lake).select(found.column_names).cast(found.schema).to_pylist()
            assert sorted(found.to_pylist(), key=repr) == sorted(theirs, key=repr)
            return theirs
        folder = self.server.folder / "warehouse" / (database or "default") / f"{table}{suffix}"
        return [row.asDict() for row in spark.read.format("iceberg").load(str(folder)).collect()]


@pytest.mark.soak
def test_topics_in_paimon(spark: Any, server: Server, client: Connection) -> None:
    topic = TieredTopic(server, client, "seen", format="paimon", value_format="json", primary_key="id")
    topic.produce([(n, {"id": n, "n": 1.5}) for n in range(10)])
    topic.produce([(3, None), (4, {"id": 4, "n": 7}), ("k", "{"), ("k", {"n": 1})])
    assert "2 records do not fit and were written to default.seen_dead_letters" in topic.tier()
    rows = {row["id"]: row["n"] for row in topic.lake(spark)}
    assert rows == {n: 7.0 if n == 4 else 1.5 for n in range(10) if n != 3}
    bad = topic.lake(spark, "_dead_letters")
    assert {bytes(row["value"]).decode() for row in bad} == {"{", '{"n": 1}'}
    assert "nothing new" in topic.tier()
    topic.produce([(4, {"id": 4, "n": 8}), (5, None), ("k", "[]")])
    topic.tier()
    rows = {row["id"]: row["n"] for row in topic.lake(spark)}
    assert rows == {n: 8.0 if n == 4 else 1.5 for n in range(10) if n not in (3, 5)}
    assert len(topic.lake(spark, "_dead_letters")) == 3
    status = next(each for each in list_lake(client) if each.name == "seen")
    assert (status.behind, status.behind_ms) == (0, 0)
    client.kafka.delete_topic(topic.name)


@LAKES
def test_raw_records_and_only_committed_ones(
    spark: Any, server: Server, client: Connection, lake: str
) -> None:
    topic = TieredTopic(server, client, "clicks", format=lake)
    topic.produce([(f"k{n}", f"v{n}") for n in range(10)])
    topic.produce([("gone", "gone")], transaction="t1", abort=True)
    topic.produce([("kept", None)], transaction="t2")
    status = next(each for each in list_lake(client) if each.name == "clicks")
    assert status.behind >= 12
    assert status.is_topic
    assert "changes into snapshot" in topic.tier()
    rows = topic.lake(spark)
    assert sorted(bytes(row["key"]).decode() for row in rows) == sorted(
        ["kept", *(f"k{n}" for n in range(10))]
    )
    kept = next(row for row in rows if row["key"] == b"kept")
    assert kept["value"] is None
    assert json.loads(kept["headers"]) == [{"key": "h", "value": "AHg="}, {"key": "h"}]
    assert len({(row["partition"], row["offset"]) for row in rows}) == 11
    described = ServerCoordinator(client, "test").describe(status.table_id)
    assert (described.behind, described.behind_ms) == (0, 0)
    assert dict(described.offsets) == client.kafka.offsets("clicks")
    assert "nothing new" in topic.tier()
    client.kafka.delete_topic("clicks")
    topic = TieredTopic(server, client, "clicks", format=lake)
    topic.produce([("a", "b")])
    lines: list[str] = []
    assert run_tiering(server.address, topics=["clicks"], report=lines.append) == 1
    assert "dropped and created again" in lines[0]
    client.kafka.delete_topic("clicks")


@LAKES
def test_json_follows_a_schema_and_bad_records_are_kept_apart(
    spark: Any, server: Server, client: Connection, lake: str
) -> None:
    schema = "id BIGINT NOT NULL, price DECIMAL(9, 2)"
    topic = TieredTopic(server, client, "shop.orders", format=lake, value_format="json", schema=schema)
    topic.produce([("k", {"id": n, "price": f"{n}.50"}) for n in range(20)])
    topic.produce([("k", "{"), ("k", {"id": 1, "price": "1.001"}), ("k", None), ("k", {"price": 1})])
    assert "4 records do not fit and were written to shop.orders_dead_letters" in topic.tier()
    assert sorted(row["id"] for row in topic.lake(spark)) == list(range(20))
    bad = topic.lake(spark, "_dead_letters")
    assert sorted(row["offset"] for row in bad) == [20, 21, 22, 23]
    reasons = {row["offset"]: row["error"] for row in bad}
    assert "price" in reasons[21]
    assert reasons[22] == "its value is null"
    topic.produce([("k", {"id": 99, "price": 1, "note": "x"}), ("k", "[]")])
    alter(client, topic.name, "datalake.schema", "id BIGINT NOT NULL, price DECIMAL(11, 2), note STRING")
    topic.tier()
    assert {row["id"]: row["note"] for row in topic.lake(spark)}[99] == "x"
    assert len(topic.lake(spark, "_dead_letters")) == 5
    with pytest.raises(RuntimeError, match="while it is tiered"):
        alter(client, topic.name, "datalake.primary-key", "id")
    client.kafka.delete_topic(topic.name)


@pytest.mark.soak
def test_inferred_columns_grow_and_keys_are_upserted(spark: Any, server: Server, client: Connection) -> None:
    topic = TieredTopic(server, client, "events", value_format="json", primary_key="id")
    assert "nothing new" in topic.tier()
    topic.produce([(n, {"id": n, "n": 1.5, "tags": ["a"]}) for n in range(10)])
    topic.produce([(n, {"id": n, "n": 2}) for n in range(5)])
    topic.tier()
    rows = {row["id"]: row for row in topic.lake(spark)}
    assert {key: row["n"] for key, row in rows.items()} == {n: 2.0 if n < 5 else 1.5 for n in range(10)}
    assert rows[9]["tags"] == '["a"]'
    topic.produce([(3, None), (4, {"id": 4, "n": 7, "fresh": True}), ("k", "[]")])
    topic.tier()
    rows = {row["id"]: row for row in topic.lake(spark)}
    assert (3 in rows, rows[4]["fresh"], rows[5]["fresh"]) == (False, True, None)
    client.kafka.delete_topic(topic.name)


@LAKES
@pytest.mark.soak
def test_fields_of_any_name_do_not_stop_a_topic(
    spark: Any, server: Server, client: Connection, lake: str
) -> None:
    topic = TieredTopic(server, client, "odd", format=lake, value_format="json", primary_key="id")
    odd = {"": 1, "a.b": 2, "a`b": 3, "x" * 300: 4, "Name": 5, "name": 6, "_deleted": 7, "plain": 8}
    topic.produce([(1, {"id": 1, **odd})])
    told = topic.tier()
    assert 'field "a.b" is column a_b_' in told
    topic.produce([(1, {"id": 1, **odd, "plain": 9, "later.": 10}), (2, {"id": 2, "a.b": 11})])
    assert 'field "a.b"' not in topic.tier(), "said once"
    rows = {row["id"]: row for row in topic.lake(spark)}
    assert sorted(rows[1].values()) == [1, 1, 2, 3, 4, 5, 6, 7, 9, 10]
    dotted = next(name for name, value in rows[1].items() if value == 2)
    assert (rows[1]["plain"], rows[1]["Name"], rows[2][dotted]) == (9, 5, 11)
    client.kafka.delete_topic(topic.name)


@LAKES
@pytest.mark.soak
@pytest.mark.parametrize("schema", ["declared", "inferred"])
def test_debezium_is_flattened_to_upserts_and_deletes(
    spark: Any, server: Server, client: Connection, lake: str, schema: str
) -> None:
    given = {"schema": "id INT, v STRING"} if schema == "declared" else {}
    topic = TieredTopic(
        server, client, f"cdc_{schema}", format=lake, value_format="debezium-json", primary_key="id", **given
    )

    def change(op: str, before: Any, after: Any) -> dict[str, Any]:
        return {"schema": {}, "payload": {"op": op, "before": before, "after": after}}

    topic.produce([({"id": n}, change("c", None, {"id": n, "v": "new"})) for n in range(6)])
    topic.produce([({"id": 1}, change("u", {"id": 1, "v": "new"}, {"id": 1, "v": "more"}))])
    topic.produce([({"id": 2}, change("d", {"id": 2, "v": "new"}, None)), ({"id": 2}, None)])
    topic.produce([({"id": 7}, change("t", None, None))])
    assert "1 records do not fit" in topic.tier()
    bad = topic.lake(spark, "_dead_letters")
    assert [json.loads(bytes(row["key"])) for row in bad] == [{"id": 7}]
    assert {row["id"]: row["v"] for row in topic.lake(spark)} == {
        0: "new", 1: "more", 3: "new", 4: "new", 5: "new",
    }  # fmt: skip
    topic.produce([({"id": 0}, change("d", {"id": 0, "v": "new"}, None))])
    topic.tier()
    assert {row["id"] for row in topic.lake(spark)} == {1, 3, 4, 5}
    client.kafka.delete_topic(topic.name)


def alter(client: Connection, topic: str, name: str, value: str) -> None:
    """Raises RuntimeError with the server's reason."""
    from confluent_kafka import KafkaException
    from confluent_kafka.admin import (
        AdminClient,
        AlterConfigOpType,
        ConfigEntry,
        ConfigResource,
        ResourceType,
    )

    admin = AdminClient({"bootstrap.servers": client.bootstrap})
    entry = ConfigEntry(name, value, incremental_operation=AlterConfigOpType.SET)
    resource = ConfigResource(ResourceType.TOPIC, topic, incremental_configs=[entry])
    try:
        for future in admin.incremental_alter_configs([resource]).values():
            future.result(60)
    except KafkaException as error:
        raise RuntimeError(str(error)) from error
