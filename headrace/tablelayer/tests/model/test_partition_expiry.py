"""Options of the expiry of partitions in a Paimon lake: what is accepted, and how the time of a partition is read."""

from __future__ import annotations

import pytest

from headrace.tablelayer.model.ddl import CreateTable, parse
from headrace.tablelayer.model.errors import TableError
from headrace.tablelayer.model.options.lake_options import expiration_check_ms
from headrace.tablelayer.model.table.definition import TableDefinition
from headrace.tablelayer.model.table.lake_shape import lake_complaint
from headrace.tablelayer.model.table.partition_expiry import time_options

TIME = "paimon.partition.expiration-time"


def definition(*, columns: str = "id INT, dt STRING", by: str = "dt", **options: str) -> TableDefinition:
    """Return a tiered table; `__` in an option's name is a dot, and `_` a hyphen."""
    names = {name.replace("__", ".").replace("_", "-"): value for name, value in options.items()}
    given = {"table.datalake.enabled": "true", "table.datalake.format": "paimon", **names}
    texts = ", ".join(f"'{name}' = '{value}'" for name, value in given.items())
    partitioned = f" PARTITIONED BY ({by})" if by else ""
    (statement,) = parse(f"CREATE TABLE t ({columns}){partitioned} WITH ({texts})")
    assert isinstance(statement, CreateTable)
    return statement.definition


def test_the_options_are_taken_in_their_canonical_form() -> None:
    table = definition(
        paimon__partition__expiration_time="7day",
        paimon__partition__expiration_check_interval="90 m",
        paimon__partition__expiration_strategy="values-time",
        paimon__partition__expiration_max_num="5",
        paimon__partition__timestamp_pattern="$dt 00:00:00",
        paimon__partition__timestamp_formatter="yyyyMMdd HH:mm:ss",
    )
    assert table.options[TIME] == "7 d"
    assert expiration_check_ms(table.options) == 90 * 60_000
    assert lake_complaint(table) is None
    assert time_options(table) == {
        "partition.timestamp-pattern": "$dt 00:00:00",
        "partition.timestamp-formatter": "yyyyMMdd HH:mm:ss",
    }
    assert expiration_check_ms(definition(paimon__partition__expiration_time="7 d").options) == 3_600_000
    assert expiration_check_ms(definition().options) is None


@pytest.mark.parametrize(
    ("options", "said"),
    [
        ({"paimon__partition__expiration_time": "soon"}, "a duration is a number and a unit"),
        ({"paimon__partition__expiration_strategy": "update-time"}, "must be 'values-time'"),
        ({"paimon__partition__expiration_batch_size": "3"}, "the options of the expiry of partitions are"),
        ({"partition__expiration_time": "7 d"}, "write it with its prefix"),
        ({"iceberg__partition__expiration_time": "7 d"}, "Iceberg has no expiry of partitions: choose"),
        (
            {"paimon__partition__expiration_time": "7 d", "table__datalake__format": "iceberg"},
            "Iceberg has no expiry of partitions: choose",
        ),
        ({"by": "", "paimon__partition__expiration_time": "7 d"}, "is for tables with PARTITIONED BY"),
    ],
)
def test_invalid_expiry_options_are_refused(options: dict[str, str], said: str) -> None:
    with pytest.raises(TableError, match=said):
        definition(**options)


@pytest.mark.parametrize(
    ("options", "said"),
    [
        ({"paimon__partition__timestamp_pattern": "$dt"}, f"needs '{TIME}'"),
        (
            {"paimon__partition__expiration_time": "7 d", "paimon__partition__timestamp_pattern": "$day"},
            "partition column; they are dt",
        ),
        (
            {
                "paimon__partition__expiration_time": "7 d",
                "table__auto_partition__enabled": "true",
                "table__auto_partition__time_unit": "QUARTER",
            },
            "partitions of a QUARTER",
        ),
    ],
)
def test_contradicting_expiry_options_are_refused(options: dict[str, str], said: str) -> None:
    complaint = lake_complaint(definition(**options))
    assert complaint is not None
    assert said in complaint


@pytest.mark.parametrize(
    ("columns", "unit", "pattern", "formatter"),
    [
        ("id INT, dt STRING", "HOUR", "$dt", "yyyyMMddHH"),
        ("id INT, dt STRING", "DAY", "$dt", "yyyyMMdd"),
        ("id INT, dt DATE", "DAY", "$dt", "yyyy-MM-dd"),
        ("id INT, dt INT", "MONTH", "$dt-01", "yyyyMM-dd"),
        ("id INT, dt STRING", "YEAR", "$dt-01-01", "yyyy-MM-dd"),
    ],
)
def test_the_time_of_an_automatic_partition_is_read_as_the_calendar_writes_it(
    columns: str, unit: str, pattern: str, formatter: str
) -> None:
    table = definition(
        columns=columns,
        paimon__partition__expiration_time="30 d",
        table__auto_partition__enabled="true",
        table__auto_partition__time_unit=unit,
    )
    assert lake_complaint(table) is None
    assert time_options(table) == {
        "partition.timestamp-pattern": pattern,
        "partition.timestamp-formatter": formatter,
    }
