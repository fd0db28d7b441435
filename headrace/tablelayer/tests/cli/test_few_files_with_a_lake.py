"""A server that may open few files tiers hundreds of tables, stages writes, and reads their past.

The stores of all tables would need seven times as many files as the server may have.
"""

from __future__ import annotations

import re
import time
from pathlib import Path

import pytest

from headrace.tablelayer.client import connect
from headrace.tablelayer.client.write.conform import conform
from headrace.tablelayer.tests.cli.test_few_files import open_files, served
from headrace.tablelayer.tests.lake.tier_by_pyiceberg import Tierer

pytestmark = [pytest.mark.soak, pytest.mark.timeout(3600)]

KEYS = range(5)


@pytest.mark.parametrize(("tables", "files"), [(300, 600)])
def test_tables_beyond_the_files_are_tiered_staged_and_read_as_they_were(
    tmp_path: Path, tables: int, files: int
) -> None:
    log, lake = tmp_path / "log", tmp_path / "lake"
    lake.mkdir()
    warehouse = ["--set", f"datalake.iceberg.warehouse={lake}"]
    with (
        served(tmp_path / "data", log, *warehouse, files=files) as (address, process),
        connect(address) as client,
    ):
        client.execute("CREATE DATABASE few")
        names = [f"few.t{number}" for number in range(tables)]
        for name in names:
            client.execute(
                f"CREATE TABLE {name} (id BIGINT, v STRING, PRIMARY KEY (id) NOT ENFORCED) WITH ('bucket.num'='2', "
                "'table.datalake.enabled'='true', 'table.datalake.format'='iceberg')"
            )
            client.table(name).upsert([{"id": key, "v": "first"} for key in KEYS])
        time.sleep(0.01)
        moment = int(time.time() * 1000)
        time.sleep(0.01)
        most = 0
        for number, name in enumerate(names):
            table = client.table(name)
            writer = table.staged_writer("w", 1, "attempt")
            columns = table.definition.schema.columns
            rows = [{"id": key, "v": "staged"} for key in KEYS if key]
            writer.write(conform(rows, columns, table=name, fill_missing=True))
            table.commit_staged("w", 1, [writer.finish()])
            writer.close()
            Tierer(client, name).round()
            most = max(most, open_files(process))
            if number % 50 == 49:
                print(f"{number + 1} tables: at most {most} open files")
        expected = ["first"] + ["staged"] * (len(KEYS) - 1)
        for name in names:
            table = client.table(name)
            assert table.to_arrow().sort_by("id")["v"].to_pylist() == expected
            assert table.to_arrow(as_of=moment)["v"].to_pylist() == ["first"] * len(KEYS)
            database, _, alone = name.partition(".")
            changes = client.sql(f'SELECT COUNT(*) AS n FROM {database}."{alone}$changelog"').rows()
            assert changes == [{"n": len(KEYS) + 2 * (len(KEYS) - 1)}]
            in_lake = client.sql(f'SELECT v FROM {database}."{alone}$lake" ORDER BY id').rows()
            assert [row["v"] for row in in_lake] == expected
            most = max(most, open_files(process))
        assert most < files
    wrong = [line for line in log.read_text().splitlines() if re.search(r"offline|Traceback|ERROR", line)]
    assert not wrong
