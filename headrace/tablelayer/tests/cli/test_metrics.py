"""`headrace serve --metrics`: a scrape of a running server, and the page that lists its metrics."""

import re
import urllib.request
from pathlib import Path

import pytest
from confluent_kafka import Producer
from prometheus_client.parser import text_string_to_metric_families

from headrace.broker.metrics.collect import BROKER_METRICS
from headrace.broker.metrics.event_loop import TURN_CPU_SECONDS, TURN_SECONDS
from headrace.broker.metrics.model import markdown_rows
from headrace.broker.metrics.remote_log import REMOTE_METRICS
from headrace.broker.metrics.replication import REPLICATION_METRICS
from headrace.broker.metrics.requests import REQUEST_SECONDS
from headrace.protocol.errors import KafkaError
from headrace.tablelayer.client import OutgoingRecord, connect
from headrace.tablelayer.server.metrics import TABLE_METRICS
from headrace.tablelayer.tests.cli.dashboards import needed
from headrace.tablelayer.tests.lakes import lake_offered

PAGE = Path(__file__).parents[2] / "METRICS.md"
OF_CLUSTERS = {"headrace_replication_lag_records", "headrace_table_standby_lookups_total"}
"""Metrics of the dashboard that one broker does not export: `test_replication_metrics` and `test_replicated_tables`
have them from brokers of a cluster."""


@pytest.fixture
def served(serve, tmp_path):
    sets = [
        "kv.snapshot.interval=1 s",
        "remote.log.storage.system.enable=true",
        f"remote.log.storage.directory={tmp_path / 'remote'}",
        "remote.log.manager.task.interval.ms=100",
    ]
    words = [word for each in sets for word in ("--set", each)]
    server = serve(
        "--listen", "127.0.0.1:0", "--data", str(tmp_path / "data"), "--metrics", "127.0.0.1:0", *words
    )
    found = re.search(r"metrics on (http://127\.0\.0\.1:\d+/metrics)", server.ready)
    assert found, server.ready
    server.metrics = found.group(1)
    return server


def samples(server):
    with urllib.request.urlopen(server.metrics, timeout=60) as answer:
        text = answer.read().decode()
    return [sample for family in text_string_to_metric_families(text) for sample in family.samples]


def scrape(server):
    """Values by name and labels."""
    return {(each.name, *each.labels.values()): each.value for each in samples(server)}


def lacking(server):
    """Return the metrics of the alerts and the dashboard that are not exported with the labels that these need."""
    exported = {each.name: set(each.labels) for each in samples(server)}
    return {name for name, labels in needed().items() if name not in exported or not labels <= exported[name]}


def transact(address):
    """Write a record in a transaction; the producer ends with the function."""
    producer = Producer({"bootstrap.servers": address, "transactional.id": "one"})
    producer.init_transactions(60)
    producer.begin_transaction()
    producer.produce("plain", b"x")
    producer.commit_transaction(60)


def test_the_page_lists_every_metric_with_its_words():
    lines = PAGE.read_text().splitlines()
    declared = sorted(
        (
            *BROKER_METRICS,
            *REPLICATION_METRICS,
            *REMOTE_METRICS,
            REQUEST_SECONDS,
            TURN_SECONDS,
            TURN_CPU_SECONDS,
            *TABLE_METRICS,
        ),
        key=lambda each: each.name,
    )
    expected = markdown_rows(declared)
    assert [line for line in lines if line.startswith("| `headrace_")] == expected, "\n".join(expected)


def test_a_scrape_tells_of_topics_tables_groups_and_requests(served, serve, tmp_path, eventually):
    with connect(served.address) as connection, lake_offered(connection):
        connection.execute(
            "CREATE TABLE fruit (id INT, name STRING, PRIMARY KEY (id) NOT ENFORCED)"
            " WITH ('bucket.num' = '2', 'table.datalake.enabled' = 'true', 'table.datalake.format' = 'iceberg');"
            "CREATE TABLE visit (id INT);"
            "CREATE TABLE daily (day STRING, n INT) PARTITIONED BY (day)"
        )
        fruit, visit = connection.table("default.fruit"), connection.table("default.visit")
        fruit.upsert([{"id": i, "name": "x" * 10} for i in range(100)])
        fruit.upsert([{"id": i, "name": "y" * 10} for i in range(50)])
        fruit.delete([1, 2])
        fruit.lookup([{"id": i} for i in (1, 3, 4, 999)])
        loads = {
            each.table: (each.rows_written, each.keys_looked_up) for each in connection.admin.table_loads()
        }
        visit.append([{"id": i} for i in range(30)])
        connection.table("default.daily").append([{"day": d, "n": 1} for d in ("a", "b", "b")])
        connection.kafka.create_topic("plain")
        visit.to_arrow()
        visit.commit("readers", {0: 10})
        with pytest.raises(KafkaError, match="id"):
            connection.kafka.produce("default.visit", [OutgoingRecord(b'{"id": "x"}')])
        transact(served.address)
        before = scrape(served)
        again = scrape(served)
    assert before["headrace_tables",] == 3
    assert before["headrace_table_rows", "default.fruit"] == 98
    assert before["headrace_table_rows_written_total", "default.fruit"] == 152
    assert before["headrace_table_rows_written_total", "default.visit"] == 30
    assert before["headrace_table_lookups_total", "default.fruit"] == 4
    assert loads["default.fruit"] == (152, 4)
    assert before["headrace_table_rows_written_total", "default.daily"] == 3
    assert before["headrace_topic_records_in_total", "default.visit"] == 30
    assert before["headrace_topic_records_out_total", "default.visit"] == 30
    assert before["headrace_topic_bytes_out_total", "default.visit"] > 0
    assert before["headrace_log_size_bytes", "default.visit"] > 0
    assert before["headrace_table_kv_size_bytes", "default.fruit"] > 0
    assert before["headrace_lake_lag_records", "default.fruit"] == 100 + 2 * 50 + 2
    assert before["headrace_lake_missing", "default.fruit"] == 1
    assert before["headrace_group_lag_records", "readers", "default.visit"] == 20
    assert before["headrace_groups", "Empty"] == 1
    assert before["headrace_table_refused_records_total", "INVALID_RECORD", "default.visit"] == 1
    assert before["headrace_connection_faults_total", "frame"] == 0
    assert before["headrace_connections",] >= 1
    assert before["headrace_request_duration_seconds_count", "PutRows"] >= 3
    assert before["headrace_request_duration_seconds_sum", "PutRows"] > 0
    assert before["headrace_request_duration_seconds_bucket", "PutRows", "+Inf"] >= 3
    for turns in ("headrace_event_loop_turn_seconds", "headrace_event_loop_turn_cpu_seconds"):
        assert before[f"{turns}_count",] >= 30, "no request is answered without a turn"
        assert before[f"{turns}_sum",] > 0
    assert before["process_resident_memory_bytes",] > 0
    counters = [key for key in before if key[0].endswith(("_total", "_count"))]
    assert all(again[key] >= before[key] for key in counters)
    eventually(lambda: ("headrace_table_snapshot_size_bytes", "default.fruit") in scrape(served))
    eventually(lambda: scrape(served)["headrace_transactions_ended_total", "commit"] == 1)
    eventually(lambda: lacking(served) == OF_CLUSTERS)
    # An address that is in use gives one sentence.
    words = (
        "--data",
        str(tmp_path / "other"),
        "--listen",
        "127.0.0.1:0",
        "--metrics",
        served.metrics.split("/")[2],
    )
    code, out, err = serve(*words).stop()
    assert (code, out) == (1, "")
    assert err.startswith(f"cannot serve metrics on {served.metrics.split('/')[2]}: ")
    code, _, err = served.stop()
    assert code == 0
    expected = ("default.fruit", "has no lake for it"), ("default.visit-0 was refused", "INVALID_RECORD")
    assert all(any(all(word in line for word in words) for words in expected) for line in err.splitlines())
