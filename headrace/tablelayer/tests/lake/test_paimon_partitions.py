"""Partitions of Paimon tables: equal to what the library itself says.

`paimon_partitions.json` was made by Paimon 1.4.2: rows put into a `BinaryRow` by its `BinaryRowWriter` and written by
`SerializationUtils.serializeBinaryRow`, with the folders that `InternalRowPartitionComputer` and `PartitionPathUtils`
make of them, by `partition.legacy-name` and without. Column n is called `pn`, the second one `p 1`.
"""

from __future__ import annotations

import datetime
import json
import struct
import tempfile
import uuid
from pathlib import Path
from typing import Any, ClassVar

import fastavro
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from headrace.tablelayer.lake.adapter import LakeError
from headrace.tablelayer.lake.paimon_partitions import (
    can_match,
    partition_condition,
    partition_folder,
    partition_values,
)
from headrace.tablelayer.lake.paimon_reader import PaimonReader
from headrace.tablelayer.model.filters.conditions import DUCKDB, filter_of_sql, push_down
from headrace.tablelayer.model.filters.filters import Filter, encode_filter
from headrace.tablelayer.model.schema.schema import Column, Schema
from headrace.tablelayer.model.table.definition import StoredTable
from headrace.tablelayer.model.table.path import TablePath
from headrace.tablelayer.model.types.column_types import (
    BIGINT,
    BOOLEAN,
    DATE,
    DOUBLE,
    INT,
    SMALLINT,
    STRING,
    TINYINT,
)

GOLDEN: list[dict[str, Any]] = json.loads(Path(__file__).with_name("paimon_partitions.json").read_text())[
    "rows"
]
TYPES = {str(kind): kind for kind in (BOOLEAN, TINYINT, SMALLINT, INT, BIGINT, DATE, STRING)}


def columns_of(golden: dict[str, Any]) -> list[Column]:
    names = ["p 1" if at == 1 else f"p{at}" for at in range(len(golden["types"]))]
    return [
        Column(at, name, TYPES[kind])
        for at, (name, kind) in enumerate(zip(names, golden["types"], strict=True))
    ]


@pytest.mark.parametrize("golden", GOLDEN, ids=lambda each: "-".join(each["types"][:3]))
def test_partition_values_and_folders_equal_paimons(golden: dict[str, Any]) -> None:
    columns = columns_of(golden)
    row = bytes.fromhex(golden["row"])
    values = partition_values(row, columns)
    assert list(values) == golden["values"]
    assert partition_folder(columns, values, {}) == golden["legacy"]
    assert partition_folder(columns, values, {"partition.legacy-name": "false"}) == golden["plain"]
    named = golden["legacy"].replace("__DEFAULT_PARTITION__", "none")
    if "__DEFAULT_PARTITION__" not in golden["values"]:
        assert partition_folder(columns, values, {"partition.default-name": "none"}) == named
    shortest = 4 + (len(columns) + 71) // 64 * 8 + 8 * len(columns)
    for end in range(shortest):
        with pytest.raises(ValueError, match="is not a partition"):
            partition_values(row[:end], columns)


def test_rows_of_another_schema_are_refused() -> None:
    row = bytes.fromhex(GOLDEN[0]["row"])
    with pytest.raises(ValueError, match="not a partition of 2 columns"):
        partition_values(row, [Column(0, "a", INT), Column(1, "b", INT)])
    with pytest.raises(ValueError, match="column a is DOUBLE"):
        partition_values(row, [Column(0, "a", DOUBLE)])
    long = next(each for each in GOLDEN if each["types"] == ["STRING"] and len(each["values"][0] or "") > 20)
    with pytest.raises(ValueError, match="column a ends after"):
        partition_values(bytes.fromhex(long["row"])[:-16], [Column(0, "a", STRING)])


@pytest.mark.parametrize(
    ("condition", "matches"),
    [
        ("r = 'eu'", True),
        ("r = 'us'", False),
        ("d >= DATE '2024-01-02'", False),
        ("d IN (DATE '2024-01-01', DATE '2025-01-01') AND v > 3", True),
        ("r = 'us' AND v > 3", False),
        ("r = 'us' OR v > 3", True),
        ("NOT r = 'eu' AND v > 3", False),
        ("v > 3", True),
        ("n = 5", False),
        ("n IS NULL", True),
    ],
)
def test_a_condition_leaves_out_partitions_that_have_no_row_for_it(condition: str, matches: bool) -> None:
    schema = Schema.of([("d", DATE), ("r", STRING), ("n", INT), ("v", INT)])
    columns = list(schema.columns[:3])
    days = (datetime.date(2024, 1, 1) - datetime.date(1970, 1, 1)).days
    pushed = push_down([condition], schema, DUCKDB)
    assert pushed.complete
    found = partition_condition(pushed.predicate, columns)
    assert can_match(found, columns, (days, "eu", None)) is matches
    assert can_match(partition_condition(None, columns), columns, (days, "eu", None))


class Table:
    """A partitioned lake table of keys and values, written file by file as Paimon lays them out."""

    entry: ClassVar[Any] = {
        "type": "record",
        "name": "Entry",
        "fields": [
            {"name": "_KIND", "type": "int"},
            {"name": "_PARTITION", "type": "bytes"},
            {"name": "_BUCKET", "type": "int"},
            {
                "name": "_FILE",
                "type": {
                    "type": "record",
                    "name": "File",
                    "fields": [
                        {"name": "_FILE_NAME", "type": "string"},
                        {"name": "_LEVEL", "type": "int"},
                        {"name": "_MIN_SEQUENCE_NUMBER", "type": "long"},
                        {"name": "_MAX_SEQUENCE_NUMBER", "type": "long"},
                        {"name": "_SCHEMA_ID", "type": "long"},
                        {"name": "_FILE_SIZE", "type": "long"},
                        {"name": "_ROW_COUNT", "type": "long"},
                    ],
                },
            },
        ],
    }
    listed: ClassVar[Any] = {
        "type": "record",
        "name": "Listed",
        "fields": [
            {"name": "_FILE_NAME", "type": "string"},
            *(
                {"name": name, "type": "long"}
                for name in ("_FILE_SIZE", "_NUM_ADDED_FILES", "_NUM_DELETED_FILES", "_SCHEMA_ID")
            ),
        ],
    }

    def __init__(self, warehouse: Path, **options: str) -> None:
        self.definition = StoredTable(
            TablePath("shop", "t"),
            Schema.of([("r", STRING), ("n", INT), ("id", INT), ("v", INT)], ("r", "n", "id")),
            bucket_count=2,
            partition_keys=("r", "n"),
            bucket_key=("id",),
            table_id=uuid.uuid4(),
        )
        self.properties = {"warehouse": str(warehouse)}
        self.folder = warehouse / "shop.db" / "t"
        for name in ("schema", "snapshot", "manifest"):
            (self.folder / name).mkdir(parents=True)
        self.options = {"headrace.table-id": str(self.definition.table_id), **options}
        fields = [{"id": at, "name": name} for at, name in enumerate(self.definition.schema.names)]
        schema = {"fields": fields, "options": self.options, "partitionKeys": ["r", "n"]}
        schema |= {"primaryKeys": ["r", "n", "id"], "timeMillis": 0}
        (self.folder / "schema" / "schema-0").write_text(json.dumps(schema))
        self.entries: list[dict[str, Any]] = []
        self.truth: dict[tuple[Any, ...], int] = {}
        self.files: list[Path] = []

    def write(self, partition: tuple[str, int], bucket: int, rows: list[tuple[int, int | None]]) -> None:
        """One more file of level 0; no value: the key is deleted."""
        sequence = len(self.entries)
        row = b"\x00\x00\x00\x02" + bytes(8) + self._slot(partition[0]) + struct.pack("<q", partition[1])
        name = f"data-{sequence}.parquet"
        folder = self.folder / f"r={partition[0]}" / f"n={partition[1]}" / f"bucket-{bucket}"
        folder.mkdir(parents=True, exist_ok=True)
        data = [
            {"r": partition[0], "n": partition[1], "id": key, "v": value, "_VALUE_KIND": 0 if value else 3}
            for key, value in rows
        ]
        schema = self.definition.schema.arrow().append(pa.field("_VALUE_KIND", pa.int8()))
        pq.write_table(pa.Table.from_pylist(data, schema), folder / name)
        self.files.append(folder / name)
        file: dict[str, Any] = {"_FILE_NAME": name, "_LEVEL": 0}
        file |= {"_MIN_SEQUENCE_NUMBER": sequence, "_MAX_SEQUENCE_NUMBER": sequence}
        size = (folder / name).stat().st_size
        file |= {"_SCHEMA_ID": 0, "_FILE_SIZE": size, "_ROW_COUNT": len(rows)}
        self.entries.append({"_KIND": 0, "_PARTITION": row, "_BUCKET": bucket, "_FILE": file})
        for key, value in rows:
            self.truth.pop((*partition, key), None)
            if value:
                self.truth[(*partition, key)] = value

    @staticmethod
    def _slot(text: str) -> bytes:
        return text.encode().ljust(7, b"\x00") + bytes([0x80 | len(text)])

    def commit(self) -> PaimonReader:
        """All files in two manifests of one snapshot."""
        manifests = [self._avro(f"manifest-{at}", self.entry, self.entries[at::2]) for at in (0, 1)]
        of_manifest = {"_FILE_SIZE": 1, "_NUM_ADDED_FILES": 1, "_NUM_DELETED_FILES": 0, "_SCHEMA_ID": 0}
        name = self._avro("list", self.listed, [{"_FILE_NAME": each, **of_manifest} for each in manifests])
        snapshot = {"deltaManifestList": name, "timeMillis": 0, "commitKind": "APPEND"}
        snapshot |= {"totalRecordCount": 4, "id": 1, "schemaId": 0}
        (self.folder / "snapshot" / "snapshot-1").write_text(json.dumps(snapshot))
        return PaimonReader(self.definition, self.properties)

    def _avro(self, name: str, schema: Any, records: list[dict[str, Any]]) -> str:
        with (self.folder / "manifest" / name).open("wb") as file:
            fastavro.writer(file, schema, records, codec="deflate")
        return name


_partition = st.tuples(st.sampled_from(["eu", "us"]), st.integers(0, 1))
_rows = st.dictionaries(st.integers(0, 5), st.none() | st.integers(1, 9), min_size=1)


@settings(max_examples=25, deadline=None)
@given(st.lists(st.tuples(_partition, _rows), min_size=1, max_size=8))
def test_each_partitions_versions_are_merged_by_themselves(writes: list[Any]) -> None:
    with tempfile.TemporaryDirectory() as folder:
        table = Table(Path(folder))
        for partition, rows in writes:
            for bucket in (0, 1):
                table.write(partition, bucket, [each for each in rows.items() if each[0] % 2 == bucket])
        reader = table.commit()
        found = [tuple(row.values()) for row in _read(reader)]
        assert sorted(found) == sorted((*key, value) for key, value in table.truth.items())
        for region in ("eu", "us"):
            some = [tuple(row.values()) for row in _read(reader, f"r = '{region}' AND v > 3")]
            assert sorted(some) == sorted(each for each in found if each[0] == region and each[3] > 3)


def test_files_of_excluded_partitions_are_not_opened(tmp_path: Path) -> None:
    table = Table(tmp_path)
    table.write(("eu", 1), 0, [(2, 5)])
    table.write(("us", 1), 0, [(4, 5)])
    reader = table.commit()
    table.files[1].unlink()
    assert _read(reader, "r = 'eu' AND v = 5") == [{"r": "eu", "n": 1, "id": 2, "v": 5}]
    with pytest.raises(LakeError, match="read again"):
        _read(reader, "v = 5")


def test_the_lakes_own_tables(tmp_path: Path) -> None:
    table = Table(tmp_path, **{"data-file.path-directory": ""})
    table.write(("eu", 1), 0, [(2, 5), (4, 6)])
    table.write(("eu", 1), 0, [(2, None)])
    table.write(("us", 1), 1, [(3, 7)])
    table.commit()
    (table.folder / "tag").mkdir()
    snapshot = (table.folder / "snapshot" / "snapshot-1").read_text()
    (table.folder / "tag" / "tag-kept").write_text(snapshot)
    (table.folder / "branch" / "branch-b").mkdir(parents=True)
    reader = table.commit()
    assert reader.metadata("snapshots")["total_record_count"].to_pylist() == [4]
    files = reader.metadata("files").to_pylist()
    assert sorted(each["file_path"] for each in files) == sorted(map(str, table.files))
    assert {(each["partition"], each["bucket"]) for each in files} == {("r=eu/n=1", 0), ("r=us/n=1", 1)}
    assert {each["file_format"] for each in files} == {"parquet"}
    found = reader.metadata("partitions").sort_by("partition").to_pylist()
    assert [(each["partition"], each["record_count"], each["file_count"]) for each in found] == [
        ("r=eu/n=1", 3, 2),
        ("r=us/n=1", 1, 1),
    ]
    assert reader.metadata("manifests")["num_added_files"].to_pylist() == [1, 1]
    (schema,) = reader.metadata("schemas").to_pylist()
    assert (schema["schema_id"], schema["primary_keys"]) == (0, ["r", "n", "id"])
    assert "headrace.table-id" in reader.metadata("options")["key"].to_pylist()
    (tag,) = reader.metadata("tags").to_pylist()
    assert (tag["tag_name"], tag["snapshot_id"], tag["record_count"]) == ("kept", 1, 4)
    assert reader.metadata("branches")["branch_name"].to_pylist() == ["b"]
    audited = {(each["rowkind"], each["id"]) for each in reader.metadata("audit_log").to_pylist()}
    assert audited == {("-D", 2), ("+I", 4), ("+I", 3)}
    with pytest.raises(LakeError, match=r"no table 'history': it has \$lake\$audit_log"):
        reader.metadata("history")


def test_a_table_of_other_partitions_is_refused(tmp_path: Path) -> None:
    table = Table(tmp_path)
    table.write(("eu", 1), 0, [(2, 5)])
    table.entries[0]["_PARTITION"] = bytes.fromhex(GOLDEN[0]["row"])
    with pytest.raises(
        LakeError, match=r"lake table of shop\.t has a partition that does not fit .*of 2 columns"
    ):
        _read(table.commit())


def _read(reader: PaimonReader, condition: str | None = None) -> list[dict[str, Any]]:
    schema = reader.definition.schema
    wanted, predicate = None, None
    if condition is not None:
        predicate = push_down([condition], schema, DUCKDB).predicate
        wanted = Filter.parse(encode_filter(filter_of_sql(condition, schema), schema), schema)
    return [row for batch in reader.read(1, schema.columns, wanted, predicate) for row in batch.to_pylist()]
