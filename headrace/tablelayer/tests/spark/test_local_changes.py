"""The driver reads small numbers of changes itself."""

from __future__ import annotations

import pytest

from headrace.tablelayer.client import Connection
from headrace.tablelayer.lake import change_source
from headrace.tablelayer.lake.change_source import TableChanges
from headrace.tablelayer.model.types.column_types import BIGINT, STRING, array_of, timestamp
from headrace.tablelayer.tests.spark.spark_tables import create

pytestmark = [pytest.mark.xdist_group("spark"), pytest.mark.filterwarnings("ignore::ResourceWarning")]


@pytest.mark.parametrize("limit", ["LOCAL_ROWS_MAX", "LOCAL_BYTES_MAX"])
def test_few_changes_are_rows_and_many_are_left_to_the_tasks(
    address: str, client: Connection, monkeypatch: pytest.MonkeyPatch, limit: str
) -> None:
    path = create(client, [("k", BIGINT), ("v", STRING)], ("k",))
    table = client.table(path)
    table.upsert([{"k": n, "v": "old"} for n in range(20)])
    source = TableChanges(client, address, client.admin.describe_table(path))
    start = source.latest()
    table.upsert([{"k": n, "v": f"{n}"} for n in range(5)])
    table.upsert([{"k": 3, "v": "last"}])
    table.delete([{"k": 4}])
    end = source.latest()
    rows = source.few(start, end)
    assert rows is not None
    assert rows.schema.names == ["k", "v", "_deleted"]
    assert sorted(tuple(row.values()) for row in rows.to_pylist()) == [
        (0, "0", False), (1, "1", False), (2, "2", False), (3, "last", False), (4, "4", True),
    ]  # fmt: skip
    monkeypatch.setattr(change_source, limit, 7)
    assert source.few(start, end) is None


def test_no_changes_are_a_table_without_rows(address: str, client: Connection) -> None:
    path = create(client, [("k", BIGINT), ("at", timestamp(6)), ("v", array_of(STRING))], ("k",))
    client.table(path).upsert([{"k": 1, "v": ["a"]}])
    source = TableChanges(client, address, client.admin.describe_table(path))
    end = source.latest()
    found = source.few(end, end)
    assert found is not None
    assert found.schema.names == ["k", "at", "v", "_deleted"]
    assert found.num_rows == 0
