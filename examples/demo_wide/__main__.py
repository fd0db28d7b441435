"""`python -m examples.demo_wide`: three sources, one wide table; the changelog is checked row for row.

With HEADRACE_BROKERS=3 three brokers and a ZooKeeper are in the place of the server. With HEADRACE_WIDE_BY=spark the
sources are written into the wide table by Spark SQL (Java 17 or 21), else by `headrace sql`; the statements are the
same.
"""

from __future__ import annotations

import os
import shutil
import sys
from collections.abc import Callable

from examples import server as processes
from examples.cluster import Cluster, on_three_brokers
from examples.demo_wide.scenario import KEY, SOURCES, TABLES, WIDE_COLUMNS, Change, Key, expected
from examples.server import ROOT, Server
from examples.stage import Stage, StepFailedError
from headrace import Connection, connect

WORK = ROOT / ".demo" / "wide"
SHORT_NAMES = ("+A", "+I", "-U", "+U", "-D")


def statements(address: str) -> tuple[str, Callable[[str], object]]:
    """Return the catalog before a table's name, and what runs a statement: `headrace sql` or Spark SQL."""
    if os.environ.get("HEADRACE_WIDE_BY") != "spark":
        return "", lambda statement: processes.run("sql", "--server", address, "-e", statement)
    from headrace.spark import session

    spark = session("demo-wide", extra={"spark.headrace.bootstrap.servers": address})
    return "headrace.", spark.sql


def fill(stage: Stage, server: Server | Cluster, connection: Connection) -> None:
    """Write each source's rows into its own table, then its key and column into the wide table."""
    wide = connection.table("wide.user_rec_wide")
    catalog, run = statements(server.address)
    for source in SOURCES:
        processes.run("sql", "--server", server.address, "-e", source.insert())
        statement = source.widen(catalog)
        stage.say(statement)
        run(statement)
        state = wide.to_arrow().sort_by([(name, "ascending") for name in KEY])
        stage.rows(
            WIDE_COLUMNS,
            [[row[name] for name in WIDE_COLUMNS] for row in state.to_pylist()],
            title=f"user_rec_wide after {source.table} wrote {source.column}",
        )


def changelog(connection: Connection) -> dict[int, list[Change]]:
    """Return every change by bucket, in the log's order."""
    found: dict[int, list[Change]] = {}
    for part in connection.table("wide.user_rec_wide").scan(start="earliest", until="latest"):
        rows = zip(*[part.batch.column(name).to_pylist() for name in WIDE_COLUMNS], strict=True)
        changes = [
            (SHORT_NAMES[kind], row) for kind, row in zip(part.change_types.tolist(), rows, strict=True)
        ]
        found.setdefault(part.bucket, []).extend(changes)
    return found


def check(stage: Stage, connection: Connection) -> None:
    """Check the changelog and the table against the rules."""
    wanted, final = expected()
    found = changelog(connection)
    stage.rows(
        ["bucket", "change", *WIDE_COLUMNS],
        [(bucket, kind, *row) for bucket, changes in sorted(found.items()) for kind, row in changes],
        title="the changelog",
    )
    bucket_of: dict[Key, int] = {
        (row[0], row[1]): bucket for bucket, changes in found.items() for _, row in changes
    }
    by_bucket: dict[int, list[Change]] = {}
    for key, change in wanted:
        by_bucket.setdefault(bucket_of.get(key, -1), []).append(change)
    stage.check(
        "the changelog is the expected one, row for row",
        found == by_bucket,
        f"{sum(map(len, found.values()))} changes in {len(found)} buckets",
    )
    rows = {
        (row["user_id"], row["item_id"]): tuple(row[name] for name in WIDE_COLUMNS)
        for row in connection.table("wide.user_rec_wide").to_arrow().to_pylist()
    }
    stage.check("the table holds every source's columns", rows == final, f"{len(rows)} rows")
    replayed: dict[Key, tuple[object, ...]] = {}
    for changes in found.values():
        for kind, row in changes:
            if kind in ("+I", "+U"):
                replayed[row[0], row[1]] = row
            elif kind == "-D":
                replayed.pop((row[0], row[1]), None)
    stage.check("replaying the changelog gives the table", replayed == rows)


def main() -> int:
    stage = Stage("Headrace: three sources, one wide table")
    shutil.rmtree(WORK, ignore_errors=True)
    WORK.mkdir(parents=True)
    server = Cluster.of_three(WORK) if on_three_brokers() else Server(WORK / "data", WORK / "server.log")
    connection: Connection | None = None
    try:
        with stage.step("A server and four tables"):
            for line in server.start().splitlines():
                stage.say(line)
            processes.run("sql", "--server", server.address, "-e", TABLES)
            connection = connect(server.address)
        with stage.step("Three sources write their columns"):
            fill(stage, server, connection)
        with stage.step("The changelog, against the rules"):
            check(stage, connection)
    except StepFailedError as error:
        stage.fail(error)
    finally:
        if connection is not None:
            connection.close()
        server.stop()
    return stage.summary()


if __name__ == "__main__":
    sys.exit(main())
