"""`headrace serve --metrics`: a scrape of a running server, and the page that lists its metrics."""

import re
import urllib.request
from pathlib import Path

import pytest
from prometheus_client.parser import text_string_to_metric_families

from headrace.broker.metrics.collect import BROKER_METRICS
from headrace.broker.metrics.event_loop import TURN_CPU_SECONDS, TURN_SECONDS
from headrace.broker.metrics.model import markdown_rows
from headrace.broker.metrics.remote_log import REMOTE_METRICS
from headrace.broker.metrics.replication import REPLICATION_METRICS
from headrace.broker.metrics.requests import REQUEST_SECONDS
from headrace.tablelayer.client import connect
from headrace.tablelayer.server.metrics import TABLE_METRICS
from headrace.tablelayer.tests.lakes import lake_offered

PAGE = Path(__file__).parents[2] / "METRICS.md"


@pytest.fixture
def served(serve, tmp_path):
    words = ("--metrics", "127.0.0.1:0", "--set", "kv.snapshot.interval=1 s")
    server = serve("--listen", "127.0.0.1:0", "--data", str(tmp_path / "data"), *words)
    found = re.search(r"metrics on (http://127\.0\.0\.1:\d+/metrics)", server.ready)
    assert found, server.ready
    server.metrics = found.group(1)
    return server


def scrape(server):
    """Values by name and labels."""
    with urllib.request.urlopen(server.metrics, timeout=60) as answer:
        text = answer.read().decode()
    return {
        (sample.name, *sample.labels.values()): sample.value
        for family in text_string_to_metric_families(text)
        for sample in family.samples
    }


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
    assert all("default.fruit" in line and "has no lake for it" in line for line in err.splitlines())
