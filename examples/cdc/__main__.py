"""`python -m examples.cdc`: PostgreSQL's changes in primary-key tables, through Debezium, until both sides are equal.

Snapshot, changes of every kind, large values that an update leaves alone, a broker that is killed while changes come,
and reads of lake and log together. Needs PostgreSQL and Java; the jars are fetched once. With HEADRACE_BROKERS=3 three
brokers and a ZooKeeper are in the place of the server: the leader of a bucket is killed, and changes go on without it.
"""

from __future__ import annotations

import shutil
import sys
import threading
import time
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from examples import server as processes
from examples.cdc.connect import DEBEZIUM_VERSION, Connect, jars
from examples.cdc.postgres import DATABASE, USER, Postgres
from examples.cdc.truth import QUERIES, by_key, difference
from examples.cluster import Cluster, on_three_brokers
from examples.server import ROOT, Server
from examples.stage import Stage, StepFailedError
from headrace.tablelayer.client import Connection, connect
from headrace.tablelayer.lake.union_scan import union_scan

HERE = Path(__file__).parent
WORK = ROOT / ".demo" / "cdc"
EQUAL_SECONDS = 180.0
AWAY_SECONDS = 60.0

CHANGES = """
UPDATE documents SET note = 'second' WHERE part % 2 = 0;
UPDATE documents SET pages = ARRAY['rewritten'], note = NULL WHERE part % 5 = 0;
UPDATE orders SET price = price + 0.01, changed = changed + interval '1 microsecond' WHERE id % 3 = 0;
UPDATE orders SET weight = NULL, wait = NULL WHERE id % 7 = 0;
DELETE FROM orders WHERE id % 10 = 0;
UPDATE customers SET id = id + 100000 WHERE id < 5;
UPDATE customers SET mood = 'cross', profile = profile || '{"more": null}' WHERE id % 2 = 0;
BEGIN; DELETE FROM customers WHERE id = 7; INSERT INTO customers (id, name) VALUES (7, 'came back'); COMMIT;
BEGIN; DELETE FROM customers; ROLLBACK;
"""
STEADY = """
INSERT INTO orders (id, customer, price, made) VALUES ({n} + 1000000, {n} % 500, {n}, now());
UPDATE orders SET score = {n}, is_open = NOT is_open WHERE id % 50 = {n} % 50;
UPDATE documents SET note = 'n{n}' WHERE part % 8 = {n} % 8;
DELETE FROM orders WHERE id = {n} * 3 + 1;
"""


def connector(postgres: Postgres) -> Mapping[str, str]:
    return {
        "connector.class": "io.debezium.connector.postgresql.PostgresConnector",
        "plugin.name": "pgoutput",
        "database.hostname": "127.0.0.1",
        "database.port": str(postgres.port),
        "database.user": USER,
        "database.password": "trusted",
        "database.dbname": DATABASE,
        "topic.prefix": "cdc",
        "schema.include.list": "public",
        "heartbeat.interval.ms": "1000",
        "provide.transaction.metadata": "true",
        "transforms": "table",
        "transforms.table.type": "org.apache.kafka.connect.transforms.RegexRouter",
        "transforms.table.regex": r"cdc\\.public\\.(.*)",
        "transforms.table.replacement": "shop.$1",
    }


def wait_until_equal(stage: Stage, postgres: Postgres, connection: Connection, worker: Connect) -> None:
    """Wait until the tables hold what PostgreSQL's do."""
    for table, query in QUERIES.items():
        deadline = time.monotonic() + EQUAL_SECONDS
        source = by_key(table, postgres.rows(query))
        while True:
            rows = by_key(table, connection.table(f"shop.{table}").to_arrow().to_pylist())
            unlike = difference(source, rows)
            if not unlike or time.monotonic() > deadline:
                break
            failed = [state for state in worker.states().values() if state != "RUNNING"]
            if failed:
                raise StepFailedError(f"the connector stopped: {failed[0][-1500:]}")
            time.sleep(0.5)
        stage.check(f"shop.{table} is PostgreSQL's {table}", not unlike, unlike or f"{len(source):,} rows")


def check_union(stage: Stage, postgres: Postgres, connection: Connection) -> None:
    for table, query in QUERIES.items():
        rows = [row for batch in union_scan(connection, f"shop.{table}") for row in batch.to_pylist()]
        source = by_key(table, postgres.rows(query))
        unlike = difference(source, by_key(table, rows))
        if len(rows) != len(source):
            unlike = unlike or f"{len(rows)} rows, {len(source)} in PostgreSQL"
        stage.check(
            f"lake and log of shop.{table} together are it too", not unlike, unlike or f"{len(rows):,} rows"
        )


@contextmanager
def steady_changes(postgres: Postgres) -> Iterator[list[int]]:
    """Transactions one after the other while the body runs; how many, as they are done."""
    done, ended = [0], threading.Event()

    def work() -> None:
        while not ended.is_set():
            done[0] += 1
            postgres.sql("BEGIN;" + STEADY.format(n=done[0]) + "COMMIT;")
            ended.wait(0.1)

    thread = threading.Thread(target=work, name="changes")
    thread.start()
    try:
        yield done
    finally:
        ended.set()
        thread.join()


def check_that_a_leader_is_not_missed(stage: Stage, cluster: Cluster, connection: Connection) -> None:
    """kill -9 of a bucket's leader, while orders change: every bucket of theirs goes on before it is back."""
    table = "shop.orders"
    number = connection.kafka.describe_topic(table).leaders[0]
    killed = cluster.servers[number]
    killed.kill()
    begun = time.monotonic()
    stage.say(f"kill -9 of broker {number}, which leads a bucket of {table}")
    ends = ends_now = connection.kafka.offsets(table)
    while not (going_on := all(ends_now[bucket] > end for bucket, end in ends.items())):
        if time.monotonic() - begun > AWAY_SECONDS:
            break
        time.sleep(0.05)
        ends_now = connection.kafka.offsets(table)
    stage.check(f"every bucket of {table} goes on without it", going_on, f"{time.monotonic() - begun:.1f} s")
    stage.say(killed.start())
    stage.say(f"all replicas in sync again {cluster.wait_in_sync(connection):.1f} s later")


def run(stage: Stage, postgres: Postgres, server: Server | Cluster) -> None:
    resources: list[Any] = []
    try:
        with stage.step("PostgreSQL, a server, and a table for each of its tables"):
            stage.say(postgres.start())
            postgres.sql((HERE / "shop.sql").read_text())
            for line in server.start().splitlines():
                stage.say(line)
            processes.run("sql", "--server", server.address, "-e", (HERE / "tables.sql").read_text())
            connection = connect(server.address)
            resources.append(connection.close)
        with stage.step("Debezium takes a snapshot"):
            jars()
            worker = Connect(WORK / "connect", server.address, {"shop": connector(postgres)})
            resources.append(worker.stop)
            worker.start()
            stage.say(f"Debezium {DEBEZIUM_VERSION}, with its defaults but for where things are")
            wait_until_equal(stage, postgres, connection, worker)
        with stage.step("Updates, deletes, keys that change; large values are left alone"):
            postgres.sql(CHANGES)
            wait_until_equal(stage, postgres, connection, worker)
        with stage.step("The lake gets them"):
            stage.say(processes.run("tier", "--server", server.address, "--once", timeout_s=600).strip())
        with stage.step("The broker is killed while changes come"), steady_changes(postgres) as done:
            time.sleep(5)
            before = done[0]
            if isinstance(server, Cluster):
                check_that_a_leader_is_not_missed(stage, server, connection)
            else:
                server.kill()
                time.sleep(2)
                stage.say(server.start())
            time.sleep(5)
            stage.check("changes went on meanwhile", done[0] > before, f"{done[0]} transactions")
        with stage.step("Table is table, also over lake and log"):
            connection.close()
            connection = connect(server.address)
            resources.append(connection.close)
            wait_until_equal(stage, postgres, connection, worker)
            check_union(stage, postgres, connection)
    finally:
        for close in reversed(resources):
            close()


def main() -> int:
    stage = Stage("Headrace: changes of a PostgreSQL database")
    shutil.rmtree(WORK, ignore_errors=True)
    WORK.mkdir(parents=True)
    # PostgreSQL does not run as root, and another user may not read this folder.
    postgres = Postgres.in_temporary_folder()
    settings = {"datalake.iceberg.warehouse": str(WORK / "lake")}
    server = (
        Cluster.of_three(WORK, settings)
        if on_three_brokers()
        else Server(WORK / "data", WORK / "server.log", settings)
    )
    try:
        run(stage, postgres, server)
    except StepFailedError as error:
        stage.fail(error)
    finally:
        server.stop()
        postgres.stop()
    return stage.summary()


if __name__ == "__main__":
    sys.exit(main())
