"""Tables and rows as text for a Python prompt and as HTML for a notebook."""

from __future__ import annotations

from html import escape
from typing import Any

import pyarrow as pa

from headrace.tablelayer.model.json.python_values import python_values
from headrace.tablelayer.model.table.definition import TableDefinition

ROWS_SHOWN = 20
_WIDTH_MAX = 60
"""Characters of a value that are shown. Names are shown whole."""


def rows_text(rows: pa.Table, *, more: bool = False) -> str:
    """Return the first rows as a text table. `more` says whether there are further rows."""
    names = rows.column_names
    cells = [
        [_short(value) for value in python_values(column)] for column in rows.slice(0, ROWS_SHOWN).columns
    ]
    if not names:
        return "no columns"
    widths = [
        max(len(name), *map(len, column)) if column else len(name)
        for name, column in zip(names, cells, strict=True)
    ]
    lines = [_line(names, widths), "  ".join("─" * width for width in widths)]
    lines += [_line(row, widths) for row in zip(*cells, strict=True)]
    if more or rows.num_rows > ROWS_SHOWN:
        lines.append("…")
    return "\n".join(lines)


def rows_html(rows: pa.Table, *, more: bool = False) -> str:
    """Return the first rows as an HTML table."""
    cells = [
        [_short(value) for value in python_values(column)] for column in rows.slice(0, ROWS_SHOWN).columns
    ]
    head = "".join(f"<th>{escape(name)}<br><small>{escape(str(field.type))}</small></th>"
                   for name, field in zip(rows.column_names, rows.schema, strict=True))  # fmt: skip
    body = "".join(
        "<tr>" + "".join(f"<td>{escape(cell)}</td>" for cell in row) + "</tr>"
        for row in zip(*cells, strict=True)
    )
    after = "<p>…</p>" if more or rows.num_rows > ROWS_SHOWN else ""
    return f"<table><thead><tr>{head}</tr></thead><tbody>{body}</tbody></table>{after}"


def definition_text(definition: TableDefinition) -> str:
    """Return one line that describes a table."""
    schema = definition.schema
    columns = ", ".join(f"{column.name} {column.type}" for column in schema.columns)
    key = f", PRIMARY KEY ({', '.join(schema.primary_key)})" if schema.primary_key else ""
    count = definition.bucket_count
    return f"<Table {definition.path} ({columns}{key}), {count} bucket{'' if count == 1 else 's'}>"


def definition_html(definition: TableDefinition) -> str:
    """Return the table's columns as an HTML table."""
    schema = definition.schema
    rows = "".join(
        f"<tr><td>{escape(column.name)}</td><td>{escape(str(column.type))}</td>"
        f"<td>{'key' if column.name in schema.primary_key else '' if column.nullable else 'not null'}</td>"
        f"<td>{escape(column.comment or '')}</td></tr>"
        for column in schema.columns
    )
    comment = f"<p>{escape(definition.comment)}</p>" if definition.comment else ""
    return f"<p><b>{escape(str(definition.path))}</b></p>{comment}<table><tbody>{rows}</tbody></table>"


def _line(cells: Any, widths: list[int]) -> str:
    return "  ".join(cell.ljust(width) for cell, width in zip(cells, widths, strict=True)).rstrip()


def _short(value: Any) -> str:
    text = "NULL" if value is None else str(value)
    text = text if text.isprintable() else repr(text)[1:-1]
    return text if len(text) <= _WIDTH_MAX else text[: _WIDTH_MAX - 1] + "…"
