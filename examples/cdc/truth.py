"""The rows of both sides in one form: a query for each of PostgreSQL's tables, and its rows in Headrace."""

from __future__ import annotations

import datetime
from collections.abc import Iterable, Mapping
from decimal import Decimal
from typing import Any

_EPOCH = datetime.datetime(1970, 1, 1)
_FIRST, _LAST = "0001-01-01 00:00:00", "9999-12-31 23:59:59.999999"


def _micros(expression: str) -> str:
    return f"round(extract(epoch FROM {expression}) * 1000000)::bigint"


def _clamped(column: str, kind: str) -> str:
    return f"CASE WHEN {column} IS NOT NULL THEN greatest(least({column}, {kind} '{_LAST}'), {kind} '{_FIRST}') END"


QUERIES: Mapping[str, str] = {
    "customers": f"""SELECT id, name, mood::text, ({_clamped("since", "date")})::text AS since,
        {_micros(_clamped("seen", "timestamptz"))} AS seen, host(home) AS home, tags, profile::text FROM customers""",
    "orders": f"""SELECT id, customer, price::text, weight::text, {_micros("made")} AS made,
        {_micros("changed")} AS changed, {_micros("due")} AS due, {_micros("wait")} AS wait, paid::numeric::text,
        is_open, score FROM orders""",
    "documents": """SELECT id::text, part, body, encode(scan, 'hex') AS scan, pages, sizes, big, meta::text, note
        FROM documents""",
}
KEYS: Mapping[str, tuple[str, ...]] = {"customers": ("id",), "orders": ("id",), "documents": ("id", "part")}
_DECIMALS = ("price", "weight", "paid")

Rows = dict[tuple[Any, ...], dict[str, Any]]


def by_key(table: str, rows: Iterable[Mapping[str, Any]]) -> Rows:
    """Rows of either side by their key, each value in the one form that both have."""
    return {
        tuple(row[name] for name in KEYS[table]): {name: _plain(name, value) for name, value in row.items()}
        for row in rows
    }


def _plain(name: str, value: Any) -> Any:
    if isinstance(value, datetime.datetime):
        return (value.replace(tzinfo=None) - _EPOCH) // datetime.timedelta(microseconds=1)
    if isinstance(value, datetime.date):
        return value.isoformat()
    if isinstance(value, bytes):
        return value.hex()
    return Decimal(value) if name in _DECIMALS and value is not None else value


def difference(source: Rows, table: Rows) -> str:
    """Return the first difference; empty if both are equal."""
    missing, more = source.keys() - table.keys(), table.keys() - source.keys()
    if missing or more:
        return f"{len(missing)} rows are missing, {len(more)} are too many, such as {next(iter(missing or more))}"
    for key, row in source.items():
        for name, value in row.items():
            if table[key].get(name) != value:
                return f"{name} of {key} is {table[key].get(name)!r:.100}, and {value!r:.100} in PostgreSQL"
    return ""
