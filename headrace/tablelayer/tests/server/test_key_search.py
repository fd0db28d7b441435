"""Equalities are searched in small batches without decoding them: no row is missed, and few batches are decoded."""

from __future__ import annotations

import datetime
import random
from decimal import Decimal
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
import pytest

from headrace.broker.log.region import FileRegion
from headrace.tablelayer.model.batches.batch import ArrowBatch, encode_arrow_batch
from headrace.tablelayer.model.ddl.clauses import parse_columns
from headrace.tablelayer.model.filters.filters import Filter, encode_filter
from headrace.tablelayer.model.options.table_options import ArrowCompression
from headrace.tablelayer.model.rows.versions import SchemaVersions
from headrace.tablelayer.model.schema.schema import Schema
from headrace.tablelayer.server.read import batch_filter, key_search
from headrace.tablelayer.tests.server.tables import tables
from headrace.tablelayer.tests.server.test_filters import found_rows, matching

COLUMNS = (
    "id BIGINT NOT NULL, tiny TINYINT, n INT, s STRING, d DATE, t TIME(3), fine TIME(6), at TIMESTAMP(6),"
    " price DECIMAL(12, 2), wide DECIMAL(30, 4), tags ARRAY<STRING>, ok BOOLEAN, x DOUBLE"
)
SCHEMA = parse_columns(COLUMNS)
DAY = datetime.date(2024, 9, 19)
NOON = datetime.datetime(2024, 9, 19, 12)


class Memory(FileRegion):
    """A region of bytes in memory."""

    def __init__(self, data: bytes) -> None:
        self._data = data
        self.position, self.size = 0, len(data)

    def read_at(self, position: int, size: int) -> bytes:
        return self._data[position : position + size]


def row(rng: random.Random) -> dict[str, Any]:
    k = rng.randrange(40)
    row: dict[str, Any] = {
        "id": k, "tiny": k, "n": -k, "s": str(k), "d": DAY + datetime.timedelta(k),
        "t": datetime.time(1, k, 0, 1000 * k), "fine": datetime.time(2, k, 0, k), "tags": ["a"] * (k % 3),
        "at": NOON + datetime.timedelta(microseconds=k), "price": Decimal(k) / 4, "wide": Decimal(-k) * 10**20,
        "ok": bool(k % 2), "x": k / 2,
    }  # fmt: skip
    return {name: None if name != "id" and rng.random() < 0.1 else value for name, value in row.items()}


def batch(rng: random.Random, schema: Schema, rows: list[dict[str, Any]], at: int) -> bytes:
    changes = None if rng.random() < 0.3 else np.zeros(len(rows), np.uint8)
    arrow = pa.RecordBatch.from_pylist(rows, schema=schema.arrow())
    codec = rng.choice([ArrowCompression.NONE] * 4 + [ArrowCompression.ZSTD])
    return bytes(
        encode_arrow_batch(
            arrow, schema_id=schema.schema_id, change_types=changes, compression=codec, base_offset=at,
            statistics=b"s" * rng.randrange(9) if rng.random() < 0.2 else b"",
        )
    )  # fmt: skip


def searched(data: bytes, wanted: Filter, versions: SchemaVersions) -> list[int]:
    search = key_search.KeySearch.of(wanted, versions)
    assert search is not None
    return [header.base_offset for _, header in search.batches(Memory(data))]


def parsed(expression: pc.Expression, schema: Schema = SCHEMA) -> Filter:
    return Filter.parse(encode_filter(expression, schema), schema)


@pytest.mark.parametrize("seed", range(3))
def test_no_batch_with_a_matching_row_is_passed_over(seed: int, monkeypatch: pytest.MonkeyPatch) -> None:
    rng = random.Random(seed)
    monkeypatch.setattr(key_search, "_PIECE_BYTES", 70_000)
    monkeypatch.setattr(key_search, "_PLACES", 7)
    older = Schema.of(SCHEMA.columns[:4], (), schema_id=SCHEMA.schema_id + 1)
    versions = SchemaVersions([SCHEMA, older])
    stored: list[tuple[bool, list[dict[str, Any]]]] = []
    pieces: list[bytes] = []
    for at in range(400):
        rows = [row(rng) for _ in range(rng.choice([0, 1, 2, 20, 20, 20, 300]))]
        schema = older if rng.random() < 0.1 else SCHEMA
        pieces.append(batch(rng, schema, rows, at))
        plain = ArrowBatch.parse(pieces[-1]).compression is ArrowCompression.NONE
        stored.append((plain and schema is SCHEMA and len(pieces[-1]) < key_search.LARGE, rows))
    data = b"".join(pieces)
    for name in ("id", "tiny", "n", "s", "d", "t", "fine", "at", "price", "wide"):
        value = next(each[name] for each in (row(rng) for _ in range(99)) if each[name] is not None)
        value = "3" if name == "s" else value  # some texts begin with it
        scalar = pa.scalar(value, SCHEMA.column(name).type.arrow())
        more = pc.field("id") == pa.scalar(value % 40, pa.int64()) if name == "tiny" else pc.field("id") >= 0
        found = searched(data, parsed((pc.field(name) == scalar) & more), versions)
        has = [any(each[name] == value for each in rows) for _, rows in stored]
        assert {at for at, each in enumerate(has) if each} <= set(found), name
        # A null has bytes too, so a batch with nulls may be given.
        plain = [at for at, (is_plain, rows) in enumerate(stored)
                 if is_plain and not any(each[name] is None for each in rows)]  # fmt: skip
        assert {at for at in plain if not has[at]} & set(found) == set(), name
        assert len(plain) > 30


def test_only_equalities_that_every_row_must_have_are_searched() -> None:
    versions = SchemaVersions([SCHEMA])
    id_, n = pc.field("id"), pc.field("n")
    one, two = pa.scalar(1, pa.int64()), pa.scalar(2, pa.int32())
    assert parsed((id_ == one) & (n == two) & (n > 0)).equalities() == [
        (SCHEMA.column("id"), one),
        (SCHEMA.column("n"), two),
    ]
    for expression in (
        id_ != one,
        (id_ == one) | (n == two),
        ~(id_ == one),
        id_ >= one,
        pc.field("x") == 1.0,
    ):
        assert key_search.KeySearch.of(parsed(expression), versions) is None


def test_damaged_batches_hide_no_sound_one() -> None:
    rng = random.Random(1)
    wanted, versions = parsed(pc.field("s") == "12"), SchemaVersions([SCHEMA])
    plain = {**row(rng), "s": "12"}
    for _ in range(300):
        pieces = [bytearray(batch(rng, SCHEMA, [plain, plain], at)) for at in range(3)]
        for _ in range(rng.randrange(1, 6)):  # not in the length, which the log checks
            pieces[1][rng.randrange(57, len(pieces[1]))] = rng.randrange(256)
        found = searched(b"".join(map(bytes, pieces)), wanted, versions)
        assert found in ([0, 1, 2], [0, 2])


async def test_a_changelog_of_small_batches_is_searched_for_a_key(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    decoded: list[int] = []
    mask = batch_filter.BatchFilter.mask
    monkeypatch.setattr(
        batch_filter.BatchFilter,
        "mask",
        lambda self, region, position, header: (
            decoded.append(header.base_offset) or mask(self, region, position, header)
        ),
    )
    rng = random.Random(7)
    async with tables(tmp_path) as all_tables:
        table = await all_tables.create("id BIGINT, s STRING, PRIMARY KEY (id) NOT ENFORCED")
        for _ in range(200):
            await table.put(*(("+", {"id": rng.randrange(1500), "s": "x" * 40}) for _ in range(20)))
        everything = await found_rows(table, None)
        for key in (1, 700, 9999):
            del decoded[:]
            expression = pc.field("id") == pa.scalar(key, pa.int64())
            expected = matching(everything, table, expression)
            assert await found_rows(table, expression) == expected
            assert (
                len(set(decoded)) <= len(expected) + 1
            )  # the last batches are fewer bytes than are searched
