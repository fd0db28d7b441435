"""Log and metric shippers write into tables while the server is killed: rsyslog, syslog-ng and Telegraf.

All deliver at least once, and the tables have primary keys: each line that was written to a file must be there once.
"""

from __future__ import annotations

import json
import subprocess
import sys
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest

sys.path.insert(0, str(Path(__file__).resolve().parent.parent))

from apps.connect_worker import stop
from apps.loads import Attempt, rows_by_key, until
from apps.programs import debian, go_program

from headrace import connect

pytestmark = [pytest.mark.soak, pytest.mark.timeout(2400)]
COUNT = 6_000
KILLS = 2
TELEGRAF = "v1.36.4"
TELEGRAF_TAGS = "custom,inputs.kafka_consumer,inputs.tail,outputs.kafka,parsers.influx,serializers.json"

RSYSLOG = """
global(workDirectory="{folder}")
module(load="imfile" mode="polling" pollingInterval="1")
module(load="omkafka")
template(name="row" type="list" option.jsonf="on") {{
  property(outname="message" name="msg" format="jsonf")
  property(outname="host" name="hostname" format="jsonf")
  property(outname="severity" name="syslogseverity-text" format="jsonf")
  property(outname="at" name="timereported" dateFormat="rfc3339" format="jsonf")
}}
input(type="imfile" file="{source}" tag="app")
action(
  type="omkafka" broker=["{server}"] topic="default.logs" template="row" partitions.auto="on"
  confParam=["enable.idempotence=true", "linger.ms=20"] resubmitOnFailure="on" keepFailedMessages="on"
  failedMsgFile="{folder}/failed" action.resumeRetryCount="-1" action.resumeInterval="1"
)
"""
SYSLOG_NG = """@version: 3.38
source lines {{ file("{source}" follow-freq(0.5) flags(no-parse)); }};
destination table {{
  kafka-c(
    bootstrap-servers("{server}") topic("default.logs") workers(1)
    config(queue.buffering.max.ms("20") enable.idempotence("true"))
    message("$(format-json --scope none message=$MESSAGE host=$HOST severity=$LEVEL at=$ISODATE)")
  );
}};
log {{ source(lines); destination(table); }};
"""
TELEGRAF_CONFIG = """
[agent]
  interval = "1s"
  flush_interval = "1s"
  metric_batch_size = 500
  metric_buffer_limit = 100000
  omit_hostname = true
[[inputs.kafka_consumer]]
  brokers = ["{servers}"]
  topics = ["readings"]
  kafka_version = "4.0.0"
  consumer_group = "telegraf"
  offset = "oldest"
  max_undelivered_messages = 2000
  data_format = "influx"
[[outputs.kafka]]
  brokers = ["{servers}"]
  topic = "default.readings"
  version = "4.0.0"
  required_acks = -1
  max_retry = 100
  idempotent_writes = true
  data_format = "json"
  json_timestamp_units = "1ns"
"""


@contextmanager
def running(
    command: Sequence[str], folder: Path, environment: Mapping[str, str] | None = None
) -> Iterator[Callable[[], str]]:
    """Run a program while the body runs; give a function that returns its output."""
    with (folder / "said").open("wb") as said:
        process = subprocess.Popen(
            command, stdout=said, stderr=subprocess.STDOUT, cwd=folder, env=environment
        )
    try:  # the output of a running program begins with "None:"
        yield lambda: f"{process.poll()}: {(folder / 'said').read_text(errors='replace')}"
    finally:
        stop(process)


def through_kills(
    server: Any, table: str, key: str, write: Callable[[range], None], said: Callable[[], str]
) -> Mapping[Any, Mapping[str, Any]]:
    """Write all parts, with kills of the server between them; return the table's rows when all are there."""

    def has(count: int) -> bool:
        assert said().startswith("None:"), said()[-4000:]
        return len(rows_by_key(server.address, table, key)) >= count

    for part in range(KILLS + 1):
        numbers = range(part * COUNT // (KILLS + 1), (part + 1) * COUNT // (KILLS + 1))
        write(numbers)
        if part < KILLS:
            until(lambda least=numbers.start: has(least + 1), f"rows of {table}", said)
            server.kill()
            server.start()
    until(lambda: has(COUNT), f"all rows of {table}", said)
    return rows_by_key(server.address, table, key)


LOGS = """CREATE TABLE logs (message STRING, host STRING, severity STRING, at TIMESTAMP_LTZ(6),
    PRIMARY KEY (message) NOT ENFORCED) WITH ('bucket.num' = '2')"""


@pytest.mark.parametrize("shipper", ["rsyslog", "syslog-ng"])
def test_lines_of_a_file_are_shipped_while_the_server_is_killed(
    shipper: str, own_server, tmp_path: Path, attempt: Attempt
) -> None:
    names = {
        "rsyslog": ("rsyslog", "rsyslog-kafka"),
        "syslog-ng": ("syslog-ng-core", "syslog-ng-mod-rdkafka"),
    }[shipper]
    version = "8.2302 (omkafka)" if shipper == "rsyslog" else "3.38 (kafka-c)"
    with attempt(shipper, version, "lines of a file to a table, the server killed twice"):
        unpacked = debian(shipper, names)
        with connect(own_server.address) as connection:
            connection.execute(LOGS)
        source, config = tmp_path / "app.log", tmp_path / "shipper.conf"
        source.touch()
        text = RSYSLOG if shipper == "rsyslog" else SYSLOG_NG
        config.write_text(text.format(folder=tmp_path, source=source, server=own_server.address))
        if shipper == "rsyslog":
            modules = next(unpacked.root.glob("usr/lib/*/rsyslog"))
            command = [unpacked.program("usr/sbin/rsyslogd"), "-n", "-f", str(config)]
            command += ["-i", str(tmp_path / "pid"), "-M", str(modules)]
        else:
            modules = next(unpacked.root.glob("usr/lib/syslog-ng/*/"))
            command = [unpacked.program("usr/sbin/syslog-ng"), "-F", "--no-caps", "-f", str(config)]
            command += ["-R", str(tmp_path / "persist"), "-c", str(tmp_path / "control")]
            command += ["-p", str(tmp_path / "pid"), "--module-path", str(modules)]

        def write(numbers: range) -> None:
            with source.open("a") as file:
                file.writelines(f'line {n} "quoted" ü\n' for n in numbers)

        with running(command, tmp_path, unpacked.environment) as said:
            rows = through_kills(own_server, "logs", "message", write, said)
        assert set(rows) == {f'line {n} "quoted" ü' for n in range(COUNT)}
        assert all(row["host"] and row["severity"] and row["at"] is not None for row in rows.values())


def test_telegraf_reads_a_topic_and_fills_a_table_while_the_server_is_killed(
    own_server, tmp_path: Path, attempt: Attempt
) -> None:
    what = "kafka_consumer to outputs.kafka, a topic to a table, the server killed twice"
    with attempt("Telegraf", TELEGRAF.removeprefix("v"), what):
        program = go_program(
            "telegraf", "github.com/influxdata/telegraf", TELEGRAF, "./cmd/telegraf", TELEGRAF_TAGS
        )
        with connect(own_server.address) as connection:
            connection.kafka.create_topic("readings", partitions=2)
            connection.execute(
                "CREATE TABLE readings (timestamp BIGINT, name STRING, tags ROW<room STRING>,"
                " fields ROW<n BIGINT, value DOUBLE>, PRIMARY KEY (timestamp) NOT ENFORCED)"
            )
        servers = own_server.address.replace(",", '", "')
        (tmp_path / "telegraf.conf").write_text(TELEGRAF_CONFIG.format(servers=servers))

        def write(numbers: range) -> None:
            from confluent_kafka import Producer

            producer = Producer({"bootstrap.servers": own_server.address})
            for n in numbers:
                line = f"climate,room=r{n % 7} n={n}i,value={n / 4} {1_700_000_000_000_000_000 + n}"
                producer.produce("readings", line, f"r{n % 7}")
            assert producer.flush(60) == 0

        command = [str(program), "--config", str(tmp_path / "telegraf.conf")]
        with running(command, tmp_path) as said:
            rows = through_kills(own_server, "readings", "timestamp", write, said)
        found = [json.loads(json.dumps(rows[1_700_000_000_000_000_000 + n])) for n in range(COUNT)]
        assert [row["fields"] for row in found] == [{"n": n, "value": n / 4} for n in range(COUNT)]
        assert [row["tags"]["room"] for row in found] == [f"r{n % 7}" for n in range(COUNT)]
