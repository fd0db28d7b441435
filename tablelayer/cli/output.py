"""Rows for people and for pipes: a rich table, CSV, or JSON lines. Exact: a decimal keeps its digits in all three."""

from __future__ import annotations

import base64
import csv
import json
import sys
from collections.abc import Iterable, Sequence
from datetime import date, datetime, time
from decimal import Decimal
from typing import TYPE_CHECKING, Any

from tablelayer.cli.options import Format

if TYPE_CHECKING:
    import pyarrow as pa
    from rich.console import Console

_WIDE = 10_000


def console(*, stderr: bool = False) -> Console:
    """A console of the terminal's width; into a pipe, wide enough that nothing is cut or folded."""
    from rich.console import Console

    stream = sys.stderr if stderr else sys.stdout
    return Console(file=stream, width=None if stream.isatty() else _WIDE, highlight=False, soft_wrap=False)


def write_arrow(rows: pa.Table, output: Format, *, header: bool = True) -> None:
    """Write an Arrow table to standard output; `header=False` continues CSV that was begun before."""
    import pyarrow as pa

    numeric = [
        pa.types.is_integer(field.type) or pa.types.is_floating(field.type) or pa.types.is_decimal(field.type)
        for field in rows.schema
    ]
    columns = [_python_values(column) for column in rows.columns]
    values = zip(*columns, strict=True) if columns else ()
    write_rows(rows.column_names, values, output, numeric=numeric, header=header)


def _python_values(column: pa.ChunkedArray) -> list[Any]:
    """Nested values as the text of their JSON, which is that of the Kafka face."""
    import pyarrow as pa

    from tablelayer.model.json.python_values import python_values
    from tablelayer.model.rows.nested import is_nested

    if not is_nested(column.type):
        return python_values(column)
    from tablelayer.model.json.rows import rows_to_json

    texts: list[Any] = []
    for chunk in column.chunks:
        try:
            rows = rows_to_json(pa.record_batch([chunk], names=["v"])).to_pylist()
        except ValueError:  # of a type that no table has, which a query made
            return python_values(column)
        present = chunk.is_valid().to_pylist()
        texts += [
            Json(row[5:-1].decode()) if is_there else None
            for row, is_there in zip(rows, present, strict=True)
        ]
    return texts


class Json(str):
    """A text that is JSON already."""


def write_rows(
    names: Sequence[str],
    rows: Iterable[Sequence[Any]],
    output: Format,
    *,
    numeric: Sequence[bool] | None = None,
    header: bool = True,
) -> None:
    """Write rows of plain values. `numeric` says which columns are aligned to the right."""
    if output is Format.JSON:
        keys = [json.dumps(name, ensure_ascii=False) for name in names]
        for row in rows:
            pairs = (f"{key}: {json_text(value)}" for key, value in zip(keys, row, strict=True))
            sys.stdout.write("{" + ", ".join(pairs) + "}\n")
        return
    if output is Format.CSV:
        writer = csv.writer(sys.stdout, lineterminator="\n")
        if header:
            writer.writerow(names)
        writer.writerows([["" if value is None else plain_text(value) for value in row] for row in rows])
        return
    from rich import box
    from rich.table import Table
    from rich.text import Text

    table = Table(box=box.SIMPLE_HEAD, show_edge=False, pad_edge=False)
    for index, name in enumerate(names):
        table.add_column(Text(name), justify="right" if numeric is not None and numeric[index] else "left")
    for row in rows:
        table.add_row(
            *(Text("NULL", style="dim") if value is None else Text(plain_text(value)) for value in row)
        )
    console().print(table)


def plain_text(value: Any) -> str:
    """A value as a person writes it."""
    if isinstance(value, bool):
        return "true" if value else "false"
    if isinstance(value, datetime):
        return value.isoformat(sep=" ")
    if isinstance(value, (bytes, bytearray)):
        return base64.b64encode(value).decode()
    if isinstance(value, Decimal):
        return format(value, "f")
    return str(value)


def json_text(value: Any) -> str:
    """A value as JSON; decimals as numbers with all their digits, times in ISO form, bytes in base64."""
    if isinstance(value, Json):
        return value
    if isinstance(value, Decimal):
        return format(value, "f")
    if isinstance(value, (datetime, date, time)):
        return f'"{value.isoformat()}"'
    if isinstance(value, (bytes, bytearray)):
        return f'"{base64.b64encode(value).decode()}"'
    if (isinstance(value, float) and value != value) or value in (float("inf"), float("-inf")):
        return "null"
    if isinstance(value, dict):
        return "{" + ", ".join(f"{json.dumps(str(k))}: {json_text(v)}" for k, v in value.items()) + "}"
    if isinstance(value, (list, tuple)):
        return "[" + ", ".join(map(json_text, value)) + "]"
    return json.dumps(value, ensure_ascii=False, default=str)
