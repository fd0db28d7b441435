"""Merge engines and numbered columns by every API of a user, and behind kill -9."""

from __future__ import annotations

import json
import subprocess
import sys
import threading

import pytest
from confluent_kafka import Consumer, Producer, TopicPartition

from headrace.tablelayer.client import connect
from headrace.tablelayer.model.errors import TableError

pytestmark = pytest.mark.slow

STATISTICS = (
    "CREATE TABLE product_stats (product_id BIGINT, price DOUBLE, sales BIGINT, last_update_time TIMESTAMP(3), "
    "PRIMARY KEY (product_id) NOT ENFORCED) WITH ('table.merge-engine' = 'aggregation', "
    "'fields.price.agg' = 'max', 'fields.sales.agg' = 'sum')"
)
LOADS = 24
KEYS = 50


def sql(address: str, text: str) -> str:
    command = [sys.executable, "-m", "headrace.tablelayer.cli.main", "sql", "-s", address, "-e", text]
    done = subprocess.run(command, capture_output=True, text=True, timeout=60)
    assert done.returncode == 0, done.stderr
    return done.stdout


def test_the_example_of_the_documentation_by_sql_and_kafka(server) -> None:
    shown = sql(
        server.address,
        f"{STATISTICS}; INSERT INTO product_stats VALUES (1, 23.0, 15, TIMESTAMP '2024-01-01 10:00:00'), "
        "(1, 30.2, 20, TIMESTAMP '2024-01-01 11:00:00'); "
        "SELECT price, sales, last_update_time FROM product_stats WHERE product_id = 1",
    )
    assert all(each in shown for each in ("2 rows written", "30.2", "35", "2024-01-01 11:00:00")), shown
    # Kafka's producers add to it, and the error of a record that would overflow names it.
    failures: list[str] = []
    producer = Producer({"bootstrap.servers": server.address, "linger.ms": 50})

    def seen(error: object, _: object) -> None:
        if error is not None:
            failures.append(str(error))

    producer.produce("default.product_stats", json.dumps({"product_id": 1, "sales": 7}), on_delivery=seen)
    assert producer.flush(60) == 0
    assert not failures
    producer.produce(
        "default.product_stats", json.dumps({"product_id": 1, "sales": 2**63 - 1}), on_delivery=seen
    )
    assert producer.flush(60) == 0
    assert len(failures) == 1
    consumer = Consumer(
        {"bootstrap.servers": server.address, "group.id": "engines", "enable.auto.commit": False}
    )
    consumer.assign([TopicPartition("default.product_stats", 0, 0)])
    sales = [json.loads(message.value())["sales"] for message in consumer.consume(3, 60)]
    consumer.close()
    assert sales == [15, 35, 42]
    # UPDATE sets values, whatever the functions are.
    sql(server.address, "UPDATE product_stats SET sales = 1 WHERE product_id = 1")
    with connect(server.address) as connection:
        table = connection.table("default.product_stats")
        row = table.lookup_one(1)
        assert row is not None
        assert (row["price"], row["sales"]) == (30.2, 1)


@pytest.mark.soak
def test_counters_and_numbers_are_exact_through_kill_9(own_server, wait_until) -> None:
    """Every load adds 1 to each of 50 counters, and looks up 20 names, which become rows with numbers of their own."""
    with connect(own_server.address) as connection:
        connection.execute(
            "CREATE TABLE hits (k BIGINT, n BIGINT, PRIMARY KEY (k) NOT ENFORCED) WITH ('bucket.num' = '2', "
            "'table.merge-engine' = 'aggregation', 'fields.n.agg' = 'sum')"
        )
        connection.execute(
            "CREATE TABLE ids (name STRING, id BIGINT, PRIMARY KEY (name) NOT ENFORCED) WITH ('bucket.num' = '2', "
            "'auto-increment.fields' = 'id', 'table.auto-increment.cache-size' = '100')"
        )
    done: list[int] = []
    given: dict[str, int] = {}
    errors: list[BaseException] = []

    def load() -> None:
        try:
            with connect(own_server.address) as connection:
                hits, ids = connection.table("default.hits"), connection.table("default.ids")
                for number in range(LOADS):
                    hits.upsert([{"k": key, "n": 1} for key in range(KEYS)])
                    names = [f"name {number * 10 + each}" for each in range(20)]  # half of them exist already
                    found, rows = ids.lookup(names, insert_if_absent=True)
                    assert all(found)
                    for name, value in zip(names, rows.column("id").to_pylist(), strict=True):
                        assert given.setdefault(name, value) == value
                    done.append(number)
        except BaseException as error:
            errors.append(error)
            raise

    worker = threading.Thread(target=load)
    worker.start()
    for kill in (1, 2):
        wait_until(lambda kill=kill: len(done) > 6 * kill or errors, "loads to be done")
        own_server.restart()
    worker.join(60)
    assert not errors
    assert not worker.is_alive()
    with connect(own_server.address) as connection:
        hits = connection.table("default.hits").to_arrow().to_pylist()
        assert sorted((row["k"], row["n"]) for row in hits) == [(key, LOADS) for key in range(KEYS)]
        ids = connection.table("default.ids").to_arrow().to_pylist()
        assert {row["name"]: row["id"] for row in ids} == given
        assert len(set(given.values())) == len(given) == LOADS * 10 + 10
        with pytest.raises(TableError, match="the server numbers this column"):
            connection.table("default.ids").upsert([{"name": "mine", "id": 7}])
