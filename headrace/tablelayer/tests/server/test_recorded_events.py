"""Change events as Debezium's MariaDB connector 3.4 wrote them, byte for byte: a snapshot, and then updates, a delete
and an insert from the binary log. `compat-tests/apps/test_debezium.py` records them, and holds the same of PostgreSQL.

`moments-MODE.jsonl`: [key, value] a line, in that `time.precision.mode` without schemas; `moments.jsonl` and
`kinds.jsonl`: with the connector's defaults, schemas around them; `flat-MODE.jsonl`: flattened, with that
`delete.tombstone.handling.mode` and the field `__op`.
"""

from __future__ import annotations

import datetime
import json
from decimal import Decimal
from pathlib import Path
from typing import Any

import pytest

from headrace.tablelayer.model.table.derived import Sample, derive
from headrace.tablelayer.model.table.path import TablePath
from headrace.tablelayer.tests.server.tables import Table, tables
from headrace.tablelayer.tests.server.test_kafka_view import batch
from headrace.tablelayer.tests.server.test_value_formats import DEBEZIUM

RECORDED = Path(__file__).parent / "recorded"
COLUMNS = (
    "id INT NOT NULL, d DATE, t TIME(6), at TIMESTAMP(3), exact TIMESTAMP(6), seen TIMESTAMP_LTZ(6),"
    " price DECIMAL(10, 2), note STRING, PRIMARY KEY (id) NOT ENFORCED"
)
PREFIX = "table.kafka.debezium."
SEEN = datetime.datetime(2024, 9, 19, 10, 0, 0, 123000, tzinfo=datetime.UTC)
LEAP = datetime.datetime(2024, 2, 29, 12, 34, 56, 789000)

Events = list[tuple[bytes | None, bytes | None]]


def moments() -> dict[int, dict[str, Any]]:
    """The rows of the source when all changes are done."""
    names = ("id", "d", "t", "at", "exact", "seen", "price", "note")
    epoch, spring = datetime.datetime(1970, 1, 1), datetime.datetime(2024, 3, 1, 1, 2, 3, 4000)
    rows: list[tuple[Any, ...]] = [
        (1, datetime.date(2038, 1, 19), LEAP.time(), LEAP, LEAP, SEEN, Decimal("99999999.99"), "second"),
        (2, datetime.date(1969, 12, 31), datetime.time(0), epoch, datetime.datetime(2000, 1, 1), SEEN,
         Decimal("-0.50"), ""),
        (3, None, None, spring, None, None, None, None),
        (5, *[None] * 6, "five"),
    ]  # fmt: skip
    return {row[0]: dict(zip(names, row, strict=True)) for row in rows}


def recorded(name: str) -> Events:
    lines = (RECORDED / f"{name}.jsonl").read_text().splitlines()
    return [tuple(None if part is None else part.encode() for part in json.loads(line)) for line in lines]  # type: ignore[misc]


async def rows_after(made: Table, events: Events) -> dict[int, dict[str, Any]]:
    """Return the table's rows after the events have come, one batch at a time and then all once more."""
    for each in ([event] for event in events):
        await write(made, each)
    first = await made.state()
    await write(made, events)
    again = await made.state()
    assert again == first, "events that are repeated change nothing"
    return {row["id"]: row for row in first}


async def write(made: Table, events: Events) -> None:
    answer = await made.broker.produce(made.definition.path.topic, batch(*events))
    assert answer.error_code == 0, answer.error_message


@pytest.mark.parametrize(
    "mode", ["adaptive_time_microseconds", "connect", "isostring", "microseconds", "nanoseconds"]
)
async def test_r17_10_times_are_those_of_the_source_in_every_mode(tmp_path: Path, mode: str) -> None:
    async with tables(tmp_path) as world:
        made = await world.create(COLUMNS, given={**DEBEZIUM, f"{PREFIX}time-precision-mode": mode})
        assert await rows_after(made, recorded(f"moments-{mode}")) == moments()


async def test_r17_10_with_schemas_the_table_is_made_of_the_events_alone(tmp_path: Path) -> None:
    events = recorded("moments")
    derived = derive(TablePath("default", "t"), [Sample.of(*event) for event in events])
    kinds = {column.name: str(column.type) for column in derived.schema.columns}
    assert kinds == {
        "id": "INT", "d": "DATE", "t": "TIME(6)", "at": "TIMESTAMP(3)", "exact": "TIMESTAMP(6)",
        "seen": "TIMESTAMP_LTZ(6)", "price": "DECIMAL(10, 2)", "note": "STRING",
    }  # fmt: skip
    async with tables(tmp_path) as world:
        assert await rows_after(await world.create_as(derived), events) == moments()


@pytest.mark.parametrize(
    "mode", ["drop", "tombstone", "rewrite", "rewrite-with-tombstone", "delete-to-tombstone"]
)
async def test_r17_10_deletes_are_deletes_in_every_mode_that_shows_them(tmp_path: Path, mode: str) -> None:
    events = recorded(f"flat-{mode}")
    given = {f"{PREFIX}time-precision-mode": "adaptive", f"{PREFIX}decimal-handling-mode": "precise"}
    async with tables(tmp_path) as world:
        found = await rows_after(await world.create(COLUMNS, given=given), events)
        assert (4 in found) == (mode == "drop")
        found.pop(4, None)
        assert found == moments()


async def test_r17_10_every_kind_of_column_comes_as_it_is(tmp_path: Path) -> None:
    events = recorded("kinds")
    derived = derive(TablePath("default", "t"), [Sample.of(*event) for event in events])
    async with tables(tmp_path) as world:
        found = await rows_after(await world.create_as(derived), events)
    assert set(found) == {4_000_000_000, 20, 5}
    assert set(found[20].values()) == {None, 20}
    noon = datetime.datetime(2024, 2, 29, 12, 34, 56)
    assert found[4_000_000_000] == {
        "id": 4_000_000_000, "big": 9223372036854775807, "tiny": 1, "small": -32768, "f": 1.5, "dbl": 0.1, "c": "abc",
        "price": Decimal("0.000001"), "v": 'ü "quoted"', "body": "long", "e": "l", "tags": "a,c", "doc": None,
        "bits": b"\x0f\x0b", "flag": True, "born": 2024, "photo": b"\x00\xff", "fixed": b"\x01\x02\x03\x04",
        "day": noon.date(), "t": noon.time(), "at": noon, "seen": noon.replace(tzinfo=datetime.UTC),
    }  # fmt: skip
