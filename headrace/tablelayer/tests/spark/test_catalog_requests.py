"""Requests of the Java half of Spark's catalog, answered over a real server.

They are writes as tasks and the driver send them, and streams batch by batch. Spark itself is in `test_catalog.py`.
"""

from __future__ import annotations

import io
import json
from collections.abc import Iterable, Sequence
from typing import Any

import pyarrow as pa
import pytest
from pyspark.sql.types import StructType

from headrace.tablelayer.client import Connection, DataError
from headrace.tablelayer.model.errors import TableError
from headrace.tablelayer.model.types.column_types import BIGINT, DOUBLE, STRING
from headrace.tablelayer.spark.catalog import rows, statements, streams, writes
from headrace.tablelayer.spark.catalog.requests import object_of
from headrace.tablelayer.spark.options import WriteOptions
from headrace.tablelayer.spark.sink import plan_write
from headrace.tablelayer.tests.spark.spark_tables import create

pytestmark = [pytest.mark.xdist_group("spark"), pytest.mark.filterwarnings("ignore::ResourceWarning")]

COLUMNS = [("k", BIGINT), ("a", STRING), ("b", STRING), ("c", DOUBLE)]
SPARKS = "k bigint, a string, b string, c double"
KIND, CHANGED = writes.ROW_KIND_COLUMN, writes.CHANGED_COLUMN


class Catalog:
    """The requests about one table."""

    def __init__(self, address: str, path: str) -> None:
        database, _, name = path.partition(".")
        self.path = path
        self._place = {"options": {"bootstrap.servers": address}, "database": database, "table": name}

    def request(self, **more: Any) -> dict[str, Any]:
        return {**self._place, **more}

    def write(
        self, schema: str, tasks: Iterable[Sequence[tuple[Any, ...]]], batch: int | None = None, **terms: Any
    ) -> None:
        """One statement, each task with its rows, the last task's commit first; twice committed."""
        writer = writes.begin_write(self.request(schema=_schema(schema), **terms))
        messages = [writes.write({"writer": writer, "batch": batch}, _stream(schema, task)) for task in tasks]
        for _ in range(2):
            writes.commit({"writer": writer, "messages": messages, "batch": batch})

    def change(self, *tasks: Sequence[tuple[Any, ...]]) -> None:
        """UPDATE, DELETE or MERGE: rows with their kind and the places of what changes."""
        self.write(f"{SPARKS}, {KIND} string, {CHANGED} string", tasks)


_TYPES = {"bigint": ("long", pa.int64()), "int": ("integer", pa.int32()), "string": ("string", pa.string()), "double":
          ("double", pa.float64())}  # fmt: skip


def _fields(schema: str) -> list[tuple[str, str, pa.DataType]]:
    return [(name, *_TYPES[kind]) for name, kind in (each.split() for each in schema.split(", "))]


def _schema(schema: str) -> str:
    """Return a schema as Spark writes it."""
    fields = [
        {"name": name, "type": kind, "nullable": True, "metadata": {}} for name, kind, _ in _fields(schema)
    ]
    return json.dumps({"type": "struct", "fields": fields})


def _stream(schema: str, rows: Sequence[tuple[Any, ...]]) -> io.BytesIO:
    arrow = pa.schema([(name, kind) for name, _, kind in _fields(schema)])
    given = [dict(zip(arrow.names, row, strict=True)) for row in rows]
    stream = io.BytesIO()
    with pa.ipc.new_stream(stream, arrow) as out:
        out.write_batch(pa.RecordBatch.from_pylist(given, schema=arrow))
    stream.seek(0)
    return stream


def found(client: Connection, path: str) -> dict[Any, tuple[Any, ...]]:
    rows = client.table(path).to_arrow().to_pylist()
    return {row["k"]: tuple(row.values())[1:] for row in rows}


def changes(client: Connection, path: str, start: dict[int, int]) -> list[tuple[str, Any]]:
    names = ("+A", "+I", "-U", "+U", "-D")
    with client.table(path).scan(start=start, until="latest") as scan:
        return [
            (names[kind], key)
            for part in scan
            for kind, key in zip(part.change_types, part.batch.column("k").to_pylist(), strict=True)
        ]


@pytest.mark.parametrize("value", ["a\\b", "\\u0041", "\\", "a\\%"])
def test_a_condition_with_a_backslash_is_left_to_spark(address: str, client: Connection, value: str) -> None:
    """Spark writes the text without escapes, and reads escapes in texts: 'a\\b' would be another value."""
    catalog = Catalog(address, create(client, COLUMNS, ("k",)))
    given = [f"`a` = '{value}'", "`k` > 1", f"`a` IN ('{value}', 'x')", f"NOT (`a` = '{value}') AND `k` > 2"]
    answer = rows.push(catalog.request(conditions=given))
    assert answer == {"complete": [False, True, False, False], "predicate": json.dumps([">", "k", 1])}


def test_an_update_writes_the_columns_that_it_changes(address: str, client: Connection) -> None:
    path = create(client, COLUMNS, ("k",))
    table, catalog = client.table(path), Catalog(address, path)
    table.upsert([{"k": n, "a": "a", "b": "b", "c": 1.0} for n in range(4)])
    # Between a statement's read and its end another writer has set b.
    table.partial([{"k": n, "b": "theirs"} for n in range(4)], ["k", "b"])
    catalog.change(
        [(0, "x", "b", 1.0, "+U", "1"), (1, "a", "b", 2.0, "+U", "3"), (2, "y", "b", 3.0, "+U", "1,3")],
        [(3, "z", "b", 1.0, "+U", None), (9, "n", None, None, "+U", None)],
    )
    assert found(client, path) == {
        0: ("x", "theirs", 1.0), 1: ("a", "theirs", 2.0), 2: ("y", "theirs", 3.0), 3: ("z", "b", 1.0),
        9: ("n", None, None),
    }  # fmt: skip


def test_rows_of_some_columns_are_a_partial_update(address: str, client: Connection) -> None:
    """Micro-batches, and frames of the data source, whose writer has the same plan."""
    path = create(client, COLUMNS, ("k",))
    client.table(path).upsert([{"k": 1, "a": "a", "b": "b", "c": 1.0}])
    catalog = Catalog(address, path)
    some, rows = "k bigint, a string", [(1, "x"), (2, "y")]
    catalog.write(some, [rows], batch=0, query="a query")
    assert found(client, path) == {1: ("x", "b", 1.0), 2: ("y", None, None)}

    def plan(schema: str, **options: str) -> Any:
        given = {"bootstrap.servers": address, "table": path}
        given |= {name.replace("_", "."): value for name, value in options.items()}
        return plan_write(WriteOptions.parse(given), StructType.fromJson(json.loads(_schema(schema))), False)

    assert [column.name for column in plan(some).columns] == ["k", "a"]
    assert plan(some) == plan(some, write_mode="partial") == plan(some, columns="k,a")
    assert plan(some, write_mode="upsert").mode == plan(SPARKS).mode == "upsert"
    with pytest.raises(ValueError, match="no column 'b': set write"):
        plan(f"{some}, kind string", row_kind_column="kind")
    kinds = plan(f"{some}, kind string", row_kind_column="kind", write_mode="partial")
    assert [column.name for column in kinds.columns] == ["k", "a"]
    with pytest.raises(DataError, match="unknown column 'other'"):
        plan("k bigint, other string")


def test_an_insert_writes_the_columns_that_it_names(address: str, client: Connection) -> None:
    path = create(client, COLUMNS, ("k",))
    table, catalog = client.table(path), Catalog(address, path)
    table.upsert([{"k": 1, "a": "a", "b": "b", "c": 1.0}])
    rows = [(1, "x", None, None), (2, None, None, None)]
    catalog.write(SPARKS, [rows], left_out=["b", "c"])
    assert found(client, path) == {1: ("x", "b", 1.0), 2: (None, None, None)}
    whole = catalog.request(options={"bootstrap.servers": address, "write.mode": "upsert"})
    writer = writes.begin_write({**whole, "schema": _schema(SPARKS), "left_out": ["b", "c"]})
    message = writes.write({"writer": writer, "batch": None}, _stream(SPARKS, rows))
    writes.commit({"writer": writer, "messages": [message], "batch": None})
    assert found(client, path) == {1: ("x", None, None), 2: (None, None, None)}
    with pytest.raises(ValueError, match="option 'columns' is for df"):
        named = {"bootstrap.servers": address, "columns": "k,a"}
        writes.begin_write(catalog.request(schema=_schema(SPARKS), left_out=["b"], options=named))


def test_a_row_that_is_deleted_meanwhile_stays_deleted(
    address: str, client: Connection, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(writes, "_COLUMN_SETS_MAX", 1)
    path = create(client, COLUMNS, ("k",))
    # Key 0 was there when the statement read it; key 2 is one that it inserts.
    Catalog(address, path).change(
        [(0, "x", "b", 1.0, "+U", "1"), (0, "a", "y", 1.0, "+U", "2"), (2, "n", None, None, "+U", None)]
    )
    assert found(client, path) == {2: ("n", None, None)}


def test_an_update_of_a_not_null_column_leaves_the_others(address: str, client: Connection) -> None:
    path = "default.whole_and_named"
    client.execute(
        f"CREATE TABLE {path} (k BIGINT, a STRING NOT NULL, b STRING, c DOUBLE NOT NULL,"
        " PRIMARY KEY (k) NOT ENFORCED)"
    )
    described = statements.table(Catalog(address, path).request())
    assert described["partial"] == ["a", "b", "c"], "Spark has to see a change of any of them"
    client.table(path).upsert([{"k": 1, "a": "a", "b": "b", "c": 1.0}])
    client.table(path).partial([{"k": 1, "a": "theirs"}], ["k", "a"], only_existing=True)
    Catalog(address, path).change([(1, "a", "b", 2.0, "+U", "3"), (7, "a", "b", 2.0, "+U", "3")])
    assert found(client, path) == {1: ("theirs", "b", 2.0)}


def test_keys_that_move_up_take_no_row_along(address: str, client: Connection) -> None:
    path = create(client, COLUMNS, ("k",), buckets=1)
    client.table(path).upsert([{"k": n, "a": str(n), "b": None, "c": None} for n in range(4)])
    moved = [
        row
        for n in range(4)
        for row in ((n, None, None, None, "-D", None), (n + 1, str(n), None, None, "+U", None))
    ]
    Catalog(address, path).change(moved[:4], moved[4:])
    assert {key: row[0] for key, row in found(client, path).items()} == {n + 1: str(n) for n in range(4)}


def test_more_sets_of_columns_than_are_staged_apart(
    address: str, client: Connection, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(writes, "_COLUMN_SETS_MAX", 1)
    path = create(client, COLUMNS, ("k",))
    client.table(path).upsert([{"k": n, "a": "a", "b": "b", "c": 1.0} for n in range(3)])
    sets = [(0, "x", "b", 1.0, "+U", "1"), (1, "a", "y", 1.0, "+U", "2"), (2, "a", "b", 9.0, "+U", "3")]
    Catalog(address, path).change(sets)
    assert found(client, path) == {0: ("x", "b", 1.0), 1: ("a", "y", 1.0), 2: ("a", "b", 9.0)}


def test_overwritten_rows_are_removed(address: str, client: Connection) -> None:
    path = create(client, COLUMNS, ("k",))
    table, catalog = client.table(path), Catalog(address, path)
    table.upsert([{"k": n, "a": "old", "b": None, "c": float(n)} for n in range(6)])
    start = table.offsets("latest")
    catalog.write(SPARKS, [[(1, "new", None, 0.0)], [(7, "new", None, 0.0)]], overwrite="all")
    assert {key: row[0] for key, row in found(client, path).items()} == {1: "new", 7: "new"}
    assert sorted(changes(client, path, start)) == [
        ("+I", 7), ("+U", 1), ("-D", 0), *[("-D", n) for n in range(2, 6)], ("-U", 1),
    ]  # fmt: skip
    where = json.dumps([">", "k", 5])
    catalog.write(SPARKS, [[(8, "newer", None, 0.0)]], overwrite="where", predicate=where)
    assert {key: row[0] for key, row in found(client, path).items()} == {1: "new", 8: "newer"}
    catalog.write(SPARKS, [[(9, "all", None, 0.0)]], overwrite="partitions")  # the table has none: all rows
    assert {key: row[0] for key, row in found(client, path).items()} == {9: "all"}
    catalog.write(SPARKS, [], overwrite="all")
    assert found(client, path) == {}


def test_partitions_of_the_new_rows_are_overwritten(address: str, client: Connection) -> None:
    client.execute("CREATE DATABASE IF NOT EXISTS parts")
    client.execute("DROP TABLE IF EXISTS parts.overwritten")
    client.execute(
        "CREATE TABLE parts.overwritten (day STRING, n INT, k BIGINT, a STRING, PRIMARY KEY (day, n, k) NOT ENFORCED)"
        " PARTITIONED BY (day, n)"
    )
    table, catalog = client.table("parts.overwritten"), Catalog(address, "parts.overwritten")
    table.upsert([{"day": f"d{n % 3}", "n": n % 2, "k": n, "a": "old"} for n in range(12)])
    new = [("d0", 0, 6, "new"), ("d0", 0, 60, "new"), ("d1", 1, 100, "new")]
    catalog.write("day string, n int, k bigint, a string", [new[:1], new[1:]], overwrite="partitions")
    rows = {tuple(row.values()) for row in table.to_arrow().to_pylist()}
    kept = {(f"d{n % 3}", n % 2, n, "old") for n in range(12) if (n % 3, n % 2) not in ((0, 0), (1, 1))}
    assert rows == kept | set(new)


@pytest.mark.parametrize(
    ("key", "options", "said"),
    [
        ((), {}, "is a log table"),
        (("k",), {"table_merge-engine": "first_row"}, "has the merge engine 'first_row'"),
        (("k",), {"table_delete_behavior": "ignore"}, "does not allow deletes"),
    ],
)
def test_a_table_that_cannot_be_overwritten_names_the_reason(
    address: str, client: Connection, key: tuple[str, ...], options: dict[str, str], said: str
) -> None:
    path = create(client, COLUMNS, key, **options)
    if not key:  # a log without rows has none to be replaced
        Catalog(address, path).write(SPARKS, [[(1, "a", "b", 1.0)]], overwrite="all")
        assert client.table(path).count() == 1
    with pytest.raises(TableError, match=said):
        Catalog(address, path).write(SPARKS, [], overwrite="all")


def test_tables_are_truncated(address: str, client: Connection) -> None:
    log, keyed = create(client, COLUMNS), create(client, COLUMNS, ("k",))
    client.table(log).append([{"k": n, "a": "a", "b": "b", "c": 1.0} for n in range(9)])
    client.table(keyed).upsert([{"k": n, "a": "a", "b": "b", "c": 1.0} for n in range(9)])
    start = client.table(keyed).offsets("latest")
    for path in (log, keyed):
        writes.truncate(Catalog(address, path).request())
        assert client.table(path).count() == 0
    assert sorted(changes(client, keyed, start)) == [("-D", n) for n in range(9)]
    tiered = create(client, COLUMNS, table_datalake_enabled="true")
    with pytest.raises(TableError, match="the rows in the lake would stay"):
        writes.truncate(Catalog(address, tiered).request())


def test_a_micro_batch_is_in_the_table_once(address: str, client: Connection) -> None:
    path = create(client, COLUMNS)
    catalog = Catalog(address, path)
    for _ in range(2):  # the driver ends after the first commit, before Spark has noted it
        catalog.write(SPARKS, [[(1, "a", "b", 1.0)], [(2, "a", "b", 1.0)]], batch=0, query="the-query")
    catalog.write(SPARKS, [[(3, "a", "b", 1.0)]], batch=1, query="the-query")
    catalog.write(SPARKS, [[(4, "a", "b", 1.0)]], batch=1, query="another")
    assert sorted(client.table(path).to_arrow().column("k").to_pylist()) == [1, 2, 3, 4]


def read(reader: str, start: str, end: str) -> list[Any]:
    splits = streams.splits({"reader": reader, "start": start, "end": end})
    batches = [batch for each in splits for batch in rows.read({"reader": reader, "split": each})]
    return [key for batch in batches for key in batch.column("k").to_pylist()]


def test_a_stream_goes_as_far_as_it_is_asked(address: str, client: Connection) -> None:
    path = create(client, COLUMNS)
    table, catalog = client.table(path), Catalog(address, path)
    table.append([{"k": n, "a": "a", "b": "b", "c": 1.0} for n in range(100)])
    request = catalog.request(columns=["k"])
    request["options"] = {**request["options"], "maxOffsetsPerTrigger": "30"}
    began = streams.stream(request)
    assert began["limit"] == 30
    reader = began["reader"]
    start = streams.initial({"reader": reader})
    first = streams.latest({"reader": reader, "start": start, "capped": True})
    seen = read(reader, start, first)
    assert len(seen) == 30
    pinned = streams.pinned({"reader": reader})  # Trigger.AvailableNow: what comes now is for the next run
    table.append([{"k": n, "a": "a", "b": "b", "c": 1.0} for n in range(100, 150)])
    at, sizes = first, []
    while (end := streams.latest({"reader": pinned, "start": at, "capped": True})) != at:
        sizes.append(len(read(pinned, at, end)))
        seen += read(pinned, at, end)
        at = end
    assert sizes == [30, 30, 10]
    assert sorted(seen) == [*range(100)]
    whole = streams.latest({"reader": reader, "start": at, "capped": False})
    assert sorted(read(reader, at, whole)) == [*range(100, 150)]


def test_a_stream_of_a_keyed_table_is_one_of_its_changes(address: str, client: Connection) -> None:
    path = create(client, COLUMNS, ("k",))
    table, catalog = client.table(path), Catalog(address, path)
    table.upsert([{"k": n, "a": "a", "b": "b", "c": 1.0} for n in range(10)])
    with pytest.raises(ValueError, match=r"a stream of changes.*\$changelog`"):
        streams.stream(catalog.request(columns=["k"]))
    changes = Catalog(address, f"{path}$changelog")
    upserts = changes.request(columns=["k", "_change_type"])
    upserts["options"] = {**upserts["options"], "mode": "upsert"}
    for request, kinds in ((changes.request(columns=["k", "_change_type"]), 3), (upserts, 2)):
        reader = streams.stream(request)["reader"]
        start = streams.initial({"reader": reader})
        state = streams.latest({"reader": reader, "start": start, "capped": True})
        assert sorted(read(reader, start, state)) == [*range(10)]
        table.upsert([{"k": 3, "a": "x", "b": "b", "c": 1.0}])
        table.delete([{"k": 4}])
        end = streams.latest({"reader": reader, "start": state, "capped": True})
        assert len(read(reader, state, end)) == kinds
        table.upsert([{"k": 4, "a": "a", "b": "b", "c": 1.0}])


def test_a_version_is_offsets(address: str, client: Connection) -> None:
    path = create(client, COLUMNS, ("k",), buckets=1)
    table, catalog = client.table(path), Catalog(address, path)
    for n in range(5):
        table.upsert([{"k": n, "a": "a", "b": "b", "c": 1.0}])
    request = catalog.request(columns=["k"], predicate=None, limit=None, as_of_ms=None)
    plan = rows.plan({**request, "version": '{"0": 3}'})
    read_back = [
        row for split in plan["splits"] for row in rows.read({"reader": plan["reader"], "split": split})
    ]
    assert sum(batch.num_rows for batch in read_back) == 3
    with pytest.raises(ValueError, match="a table's version is its offsets by bucket"):
        rows.plan({**request, "version": "3"})
    assert type(object_of(plan["reader"])).__name__ == "HeadraceReader"
