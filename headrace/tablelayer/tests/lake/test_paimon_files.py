"""Paimon's data files in ORC and Avro, and deletion vectors, compared with what was written."""

from __future__ import annotations

import datetime
import decimal
import io
import random
import tarfile
import zlib
from pathlib import Path
from typing import Any

import fastavro
import pyarrow as pa
import pytest
from pyarrow import fs, orc
from pyroaring import BitMap

from headrace.tablelayer.lake import paimon_files
from headrace.tablelayer.lake.adapter import LakeError
from headrace.tablelayer.lake.paimon_files import DeletionVector, deleted_positions, read_file
from headrace.tablelayer.lake.paimon_reader import PaimonReader
from headrace.tablelayer.model.table.definition import StoredTable, TableDefinition

ROWS = 3000
FILES = fs.LocalFileSystem()


def vector_of(positions: list[int], magic: int = 1581511376) -> bytes:
    body = magic.to_bytes(4, "big") + BitMap(positions).serialize()
    return len(body).to_bytes(4, "big") + body + zlib.crc32(body).to_bytes(4, "big")


def test_orc_without_the_rows_of_its_deletion_vector(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(paimon_files, "BATCH_ROWS", 700)
    rows = pa.table(
        {
            "a": pa.array(range(ROWS), pa.int64()),
            "a.b": pa.array([f"{n}" if n % 3 else None for n in range(ROWS)]),
            "m": pa.array([[(n, b"\0")] for n in range(ROWS)], pa.map_(pa.int32(), pa.binary())),
        }
    )
    path = str(tmp_path / "data-0.orc")
    orc.write_table(rows, path, stripe_size=1000)
    assert orc.ORCFile(path).nstripes > 2
    deleted = sorted(random.Random(36).sample(range(ROWS), 900))
    (tmp_path / "index-0").write_bytes(b"\x01" + vector_of([5]) + vector_of(deleted))
    place = DeletionVector(str(tmp_path / "index-0"), 1 + len(vector_of([5])), len(vector_of(deleted)) - 8)
    for names in (["m", "a"], ["a.b", "a"]):
        found = pa.Table.from_batches(read_file(FILES, path, place, names, {})).select(names)
        kept = rows.take([n for n in range(ROWS) if n not in set(deleted)]).select(names)
        assert found.to_pylist() == kept.to_pylist()


def test_a_damaged_deletion_vector_is_refused() -> None:
    good = vector_of([1, 70_000])
    assert deleted_positions(good, len(good) - 8).tolist() == [1, 70_000]
    for data, size in (
        (good[:-1], len(good) - 8),
        (good, len(good) - 9),
        (good[:9] + bytes([good[9] ^ 1]) + good[10:], len(good) - 8),
    ):
        with pytest.raises(ValueError, match=r"size|checksum"):
            deleted_positions(data, size)
    with pytest.raises(ValueError, match="bitmap64"):
        deleted_positions(vector_of([1, 70_000], 1681511377), len(good) - 8)


SCHEMA = {
    "type": "record", "name": "org.apache.paimon.avro.generated.record", "fields": [
        {"name": "t", "type": ["null", {"type": "long", "logicalType": "timestamp-micros"}]},
        {"name": "z", "type": ["null", {"type": "long", "logicalType": "local-timestamp-micros"}]},
        {"name": "d", "type": ["null", {"type": "int", "logicalType": "date"}]},
        {"name": "p", "type": {"type": "bytes", "logicalType": "decimal", "precision": 9, "scale": 2}},
        {"name": "m", "type": ["null", {"type": "array", "items": {
            "type": "record", "name": "record_m", "fields": [
                {"name": "key", "type": "int"}, {"name": "value", "type": ["null", "string"]}]}}]},
        {"name": "s", "type": ["null", {"type": "map", "values": ["null", "bytes"]}]},
        {"name": "r", "type": ["null", {"type": "record", "name": "record_r", "fields": [
            {"name": "x", "type": ["null", {"type": "array", "items": ["null", "int"]}]}]}]},
    ],
}  # fmt: skip
TYPES = {
    "t": pa.timestamp("us"), "z": pa.timestamp("us", "UTC"), "d": pa.date32(), "p": pa.decimal128(12, 2),
    "m": pa.map_(pa.int32(), pa.string()), "s": pa.map_(pa.string(), pa.binary()),
    "r": pa.struct([("x", pa.list_(pa.int16()))]),
}  # fmt: skip


def test_avro_with_times_that_python_does_not_have(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(paimon_files, "BATCH_ROWS", 100)
    long_ago, far = datetime.datetime(1, 1, 1), 200_000 * 366 * 86_400_000_000
    rows: list[dict[str, Any]] = [
        {"t": far + n, "z": -n, "d": 5_000_000 + n, "p": decimal.Decimal("-1.25"), "m": [{"key": n, "value": None}],
         "s": {"k": b"v"}, "r": {"x": [n, None]}}
        for n in range(250)
    ]  # fmt: skip
    rows.append({"p": decimal.Decimal(0)})
    path = tmp_path / "data-0.avro"
    out = io.BytesIO()
    numbers = fastavro.parse_schema(paimon_files._without_times(SCHEMA))
    fastavro.writer(out, numbers, rows, codec="zstandard", sync_interval=500)
    path.write_bytes(out.getvalue())
    found = pa.Table.from_batches(read_file(FILES, str(path), None, list(TYPES), TYPES))
    expected = {
        "t": pa.array([row.get("t") for row in rows], pa.int64()).cast(TYPES["t"]),
        "z": pa.array([row.get("z") for row in rows], pa.int64()).cast(TYPES["z"]),
        "d": pa.array([row.get("d") for row in rows], pa.int32()).cast(TYPES["d"]),
        "p": pa.array([row["p"] for row in rows], TYPES["p"]),
        "m": pa.array([row.get("m") and [(row["m"][0]["key"], None)] for row in rows], TYPES["m"]),
        "s": pa.array([row.get("s") and [("k", b"v")] for row in rows], TYPES["s"]),
        "r": pa.array([row.get("r") for row in rows], TYPES["r"]),
    }
    assert found.equals(pa.table(expected))
    # The same schema with the logical types that Paimon writes, in Python's own times.
    timed = io.BytesIO()
    given = {"t": long_ago, "z": long_ago, "d": long_ago.date(), "p": decimal.Decimal("0.01")}
    fastavro.writer(timed, fastavro.parse_schema(SCHEMA), [given])
    path.write_bytes(timed.getvalue())
    (batch,) = read_file(FILES, str(path), None, ["t", "d"], TYPES)
    assert batch.to_pylist() == [{"t": long_ago, "d": long_ago.date()}]


@pytest.fixture(scope="module")
def tables(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Tables that `headrace tier` wrote by Paimon 1.4.2 in two rounds, and the server's rows then."""
    folder = tmp_path_factory.mktemp("paimon")
    with tarfile.open(Path(__file__).with_name("paimon_tables.tar.gz")) as kept:
        kept.extractall(folder, filter="data")
    return folder


@pytest.mark.parametrize("name", ["fx_avro", "fx_orc", "fx_dv"])
def test_tables_written_by_paimon_equal_the_servers_rows(tables: Path, name: str) -> None:
    definition = TableDefinition.from_json((tables / f"{name}.json").read_text())
    assert isinstance(definition, StoredTable)
    with pa.ipc.open_file(str(tables / f"{name}.arrow")) as kept:
        expected = kept.read_all()
    reader = PaimonReader(definition, {"warehouse": str(tables)})
    head = reader.state(None).head
    assert head is not None
    files = reader.data_files(head)
    ending = {"fx_dv": "parquet"}.get(name, name.removeprefix("fx_"))
    assert {Path(file.path).suffix for file in files} == {f".{ending}"}
    assert any(file.deleted for file in files) is (name == "fx_dv")
    found = pa.Table.from_batches(reader.read(head, definition.schema.columns))
    assert found.sort_by("id").to_pylist() == expected.to_pylist()
    keys = [
        batch
        for piece in reader.pieces(head)
        for batch in reader.read(head, definition.schema.key_columns, pieces=[piece.key])
    ]
    assert sorted(pa.Table.from_batches(keys)["id"].to_pylist()) == expected["id"].to_pylist()


def test_another_format_is_refused(tmp_path: Path) -> None:
    (tmp_path / "data-0.csv").write_text("a")
    with pytest.raises(LakeError, match="neither Parquet nor ORC nor Avro"):
        list(read_file(FILES, str(tmp_path / "data-0.csv"), None, ["a"], {}))
