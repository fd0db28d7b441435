"""Flink SQL over topics and tables while the server is killed.

The `kafka` connector is a source, `upsert-kafka` a sink into a table with a primary key, and that table a source of its
changes. The `kafka` connector's exactly-once sink writes into a topic, and gets a clear error for a table.
"""

from __future__ import annotations

import json
import shutil
import sys
from collections import Counter
from pathlib import Path

import pytest

sys.path.insert(0, str(Path(__file__).resolve().parent.parent))

from apps.connect_worker import run_java, stop
from apps.loads import Attempt, consumed, produce, rows_by_key, until
from apps.programs import UnavailableError

from bench.maven import fetch
from headrace import connect

HERE = Path(__file__).resolve().parent
pytestmark = [pytest.mark.soak, pytest.mark.timeout(1800)]
FLINK, CONNECTOR = "2.2.0", "4.0.1-2.0"
COUNT, KEYS, GROUPS = 15_000, 500, 7
KILLS = 2
ARTIFACTS = [
    ("org.apache.flink", "flink-clients", FLINK),
    ("org.apache.flink", "flink-table-api-java-bridge", FLINK),
    ("org.apache.flink", "flink-table-planner-loader", FLINK),
    ("org.apache.flink", "flink-table-runtime", FLINK),
    ("org.apache.flink", "flink-connector-files", FLINK),
    ("org.apache.flink", "flink-json", FLINK),
    ("org.apache.flink", "flink-sql-connector-kafka", CONNECTOR),
    ("org.apache.logging.log4j", "log4j-slf4j-impl", "2.25.1"),
    ("org.apache.logging.log4j", "log4j-core", "2.25.1"),
]
OPENS = [
    "java.base/java.lang", "java.base/java.util", "java.base/java.net", "java.base/java.io", "java.base/java.nio",
    "java.base/java.lang.reflect", "java.base/java.text", "java.base/java.time",
    "java.base/java.util.concurrent", "java.base/java.util.concurrent.atomic", "java.base/java.util.concurrent.locks",
]  # fmt: skip
SQL = """
CREATE TABLE clicks (k BIGINT, n BIGINT) WITH (
  'connector' = 'kafka', 'topic' = 'clicks', 'properties.bootstrap.servers' = '{server}',
  'properties.group.id' = 'flink', 'scan.startup.mode' = 'earliest-offset', 'format' = 'json');
CREATE TABLE counts (k BIGINT, clicks BIGINT, total BIGINT, PRIMARY KEY (k) NOT ENFORCED) WITH (
  'connector' = 'upsert-kafka', 'topic' = 'default.counts', 'properties.bootstrap.servers' = '{server}',
  'properties.delivery.timeout.ms' = '600000', 'key.format' = 'json', 'value.format' = 'json');
CREATE TABLE totals (part BIGINT, members BIGINT, total BIGINT, PRIMARY KEY (part) NOT ENFORCED) WITH (
  'connector' = 'upsert-kafka', 'topic' = 'default.totals', 'properties.bootstrap.servers' = '{server}',
  'properties.delivery.timeout.ms' = '600000', 'key.format' = 'json', 'value.format' = 'json');
EXECUTE STATEMENT SET BEGIN
INSERT INTO counts SELECT k, COUNT(*), SUM(n) FROM clicks GROUP BY k;
INSERT INTO totals SELECT MOD(k, {groups}), COUNT(*), SUM(total) FROM counts WHERE total > 0 GROUP BY MOD(k, {groups});
END;
"""


EXACTLY_ONCE = """
CREATE TABLE clicks (k BIGINT, n BIGINT) WITH (
  'connector' = 'kafka', 'topic' = 'clicks', 'properties.bootstrap.servers' = '{server}',
  'properties.group.id' = 'flink', 'scan.startup.mode' = 'earliest-offset', 'format' = 'json');
CREATE TABLE copies (k BIGINT, n BIGINT) WITH (
  'connector' = 'kafka', 'topic' = '{topic}', 'properties.bootstrap.servers' = '{server}',
  'sink.delivery-guarantee' = 'exactly-once', 'sink.transactional-id-prefix' = 'copies-{topic}',
  'properties.transaction.timeout.ms' = '600000', 'properties.delivery.timeout.ms' = '600000', 'format' = 'json');
EXECUTE STATEMENT SET BEGIN
INSERT INTO copies SELECT k, n FROM clicks;
END;
"""


class Flink:
    """One run of a program of statements."""

    def __init__(self, folder: Path, sql: str, *words: str) -> None:
        if shutil.which("javac") is None:
            raise UnavailableError("a program of its Java API needs a JDK")
        jars = fetch(f"flink-{FLINK}-{CONNECTOR}", ARTIFACTS, f"flink-table-planner-loader-{FLINK}.jar")
        folder.mkdir(exist_ok=True)
        self.folder = folder
        (folder / "job.sql").write_text(sql)
        opens = [f"--add-opens={each}=ALL-UNNAMED" for each in OPENS]
        given = [str(folder / "job.sql"), *words]
        self.process = run_java(folder, jars, str(HERE / "RunSql.java"), given, "900M", *opens)

    def said(self) -> str:
        return (self.folder / "log").read_text(errors="replace")

    def words(self) -> str:
        return f"{self.process.poll()} {self.said()[-4000:]}"


# On a busy machine two kills may outlast the two minutes after which a producer abandons a record.
def test_flink_sql_through_kills(own_server, tmp_path: Path, attempt: Attempt) -> None:
    what = "SQL by `kafka` and `upsert-kafka`: a topic to a table, its changes to another, the server killed twice"
    with attempt("Apache Flink", f"{FLINK}, connector {CONNECTOR}", what):
        with connect(own_server.address) as connection:
            connection.kafka.create_topic("clicks", partitions=3)
            for table, key, more in (("counts", "k", "clicks"), ("totals", "part", "members")):
                connection.execute(
                    f"CREATE TABLE {table} ({key} BIGINT, {more} BIGINT, total BIGINT,"
                    f" PRIMARY KEY ({key}) NOT ENFORCED) WITH ('bucket.num' = '2')"
                )
        flink = Flink(tmp_path, SQL.format(server=own_server.address, groups=GROUPS))
        words = flink.words
        wanted: Counter[int] = Counter()
        clicks: Counter[int] = Counter()
        try:
            for part in range(KILLS + 1):
                numbers = range(part * COUNT // (KILLS + 1), (part + 1) * COUNT // (KILLS + 1))
                produce(own_server.address, "clicks", ((None, {"k": n % KEYS, "n": n}) for n in numbers))
                for n in numbers:
                    wanted[n % KEYS] += n
                    clicks[n % KEYS] += 1

                def all_there(part: int = part, total: int = sum(clicks.values())) -> bool:
                    assert flink.process.poll() is None, words()
                    rows = rows_by_key(own_server.address, "counts", "k").values()
                    return sum(row["clicks"] for row in rows) >= total // (2 if part < KILLS else 1)

                until(all_there, "the counts", words)
                if part < KILLS:
                    own_server.kill()
                    own_server.start()
            rows = rows_by_key(own_server.address, "counts", "k")
            assert {k: (row["clicks"], row["total"]) for k, row in rows.items()} == {
                k: (clicks[k], wanted[k]) for k in range(KEYS)
            }
            sums = {part: (len(range(part, KEYS, GROUPS)), sum(wanted[k] for k in range(part, KEYS, GROUPS)))
                    for part in range(GROUPS)}  # fmt: skip

            def totals() -> bool:
                found = rows_by_key(own_server.address, "totals", "part")
                return {part: (row["members"], row["total"]) for part, row in found.items()} == sums

            until(totals, f"totals {sums}", words)
        finally:
            stop(flink.process)


def test_flinks_exactly_once_sink_onto_a_topic_and_a_table(
    own_server, tmp_path: Path, attempt: Attempt
) -> None:
    what = "SQL: an exactly-once sink onto a topic, the server killed twice; onto a table it is told why not"
    with attempt("Apache Flink, exactly once", f"{FLINK}, connector {CONNECTOR}", what):
        with connect(own_server.address) as connection:
            connection.kafka.create_topic("clicks", partitions=3)
            connection.kafka.create_topic("copies", partitions=2)
            connection.execute("CREATE TABLE refused (k BIGINT, n BIGINT) WITH ('bucket.num' = '2')")
        flink = Flink(tmp_path / "topic", EXACTLY_ONCE.format(server=own_server.address, topic="copies"))
        try:
            for part in range(KILLS + 1):
                numbers = range(part * COUNT // (KILLS + 1), (part + 1) * COUNT // (KILLS + 1))
                produce(own_server.address, "clicks", ((None, {"k": n % KEYS, "n": n}) for n in numbers))

                def copied(least: int = numbers.stop if part == KILLS else numbers.start + 1) -> bool:
                    assert flink.process.poll() is None, flink.words()
                    return len(consumed(own_server.address, "copies")) >= least

                until(copied, "the copies", flink.words)
                if part < KILLS:
                    own_server.kill()
                    own_server.start()
            found = [json.loads(value)["n"] for value in consumed(own_server.address, "copies")]
            assert sorted(found) == list(range(COUNT))
        finally:
            stop(flink.process)
        flink = Flink(
            tmp_path / "table", EXACTLY_ONCE.format(server=own_server.address, topic="default.refused"), "0"
        )
        try:
            until(lambda: flink.process.poll() is not None, "the job's end", flink.words)
        finally:
            stop(flink.process)
        assert "default.refused is a table, and tables take no part in transactions" in flink.said(), (
            flink.words()
        )
        with connect(own_server.address) as connection:
            assert connection.table("refused").to_arrow().num_rows == 0
