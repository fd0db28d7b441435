"""Rows for people and for pipes: a table, CSV, or JSON lines. Exact: a decimal keeps its digits in all three.

A table that is wider than the terminal becomes one line per column, with whole names; in a pipe its width is not
limited. Control characters in a table's texts are escaped, so that no value can control the terminal.
"""

from __future__ import annotations

import base64
import csv
import json
import re
import sys
import unicodedata
from collections.abc import Iterable, Iterator, Mapping, Sequence
from datetime import date, datetime, time
from decimal import Decimal
from itertools import islice
from pathlib import Path
from shutil import get_terminal_size
from typing import TYPE_CHECKING, Any

from headrace.tablelayer.cli.options import Format

if TYPE_CHECKING:
    import pyarrow as pa
    from rich.console import Console

_WIDE = 10_000


def console(*, stderr: bool = False) -> Console:
    """Return a console of the terminal's width; for a pipe, wide enough that nothing is cut or folded."""
    from rich.console import Console

    stream = sys.stderr if stderr else sys.stdout
    return Console(file=stream, width=None if stream.isatty() else _WIDE, highlight=False, soft_wrap=False)


def write_arrow(rows: pa.Table, output: Format) -> None:
    """Write an Arrow table to standard output."""
    names = rows.column_names
    write_rows(names, _python_rows(rows, output), output, numeric=_numeric(rows.schema), keys=names)


def write_batches(schema: pa.Schema, batches: Iterable[pa.RecordBatch], output: Format) -> int:
    """Write rows to standard output as they come; return their number.

    A table's columns have the width that the first thousand rows need, and become wider if later rows need it.
    """
    import pyarrow as pa

    count, waiting = 0, list[pa.RecordBatch]()
    stream: RowStream | None = None
    for batch in batches:
        count += batch.num_rows
        waiting.append(batch)
        if stream is None and output is Format.TABLE and count < _ROWS_TO_MEASURE:
            continue
        stream = stream or RowStream(output)
        stream.write_arrow(pa.Table.from_batches(waiting, schema))
        waiting.clear()
    if stream is None:
        write_arrow(pa.Table.from_batches(waiting, schema), output)
    return count


class Ends:
    """The first and last rows of many, as they come. Memory: the rows that are shown, and one batch."""

    def __init__(self, schema: pa.Schema, rows_shown: int) -> None:
        self._schema = schema
        self._half = rows_shown // 2
        self._first: list[pa.RecordBatch] = []
        self._last: list[pa.RecordBatch] = []
        self._room = rows_shown
        self.count = 0

    def add(self, batch: pa.RecordBatch) -> None:
        self.count += batch.num_rows
        kept = batch.slice(0, self._room)
        if kept.num_rows:
            self._first.append(kept)
            self._room -= kept.num_rows
        self._last.append(batch.slice(max(0, batch.num_rows - self._half)))
        while len(self._last) > 1 and sum(each.num_rows for each in self._last[1:]) >= self._half:
            del self._last[0]

    def write(self, *, expanded: bool = False) -> None:
        """Write the rows as a table, with the number of left-out rows between them."""
        import pyarrow as pa

        first = pa.Table.from_batches(self._first, self._schema)
        left_out = max(0, self.count - first.num_rows)
        if left_out:
            last = pa.Table.from_batches(self._last, self._schema)
            left_out = self.count - 2 * self._half
            first = pa.concat_tables([first.slice(0, self._half), last.slice(last.num_rows - self._half)])
        room = 0 if expanded else get_terminal_size().columns if sys.stdout.isatty() else None
        columns = [_python_values(column, Format.TABLE) for column in first.columns]
        names = list(map(visible, first.column_names))
        gap = (self._half, f"… {left_out:,} rows …") if left_out else None
        sys.stdout.writelines(_table(names, columns, _numeric(first.schema), room, gap))


_ROWS_TO_MEASURE = 1_000
_ROW_GROUP_ROWS = 122_880
_ROW_GROUP_BYTES = 64 << 20


def write_parquet(schema: pa.Schema, batches: Iterable[pa.RecordBatch], path: Path) -> int:
    """Write rows to a file as they come, one row group at a time; return their number."""
    import pyarrow as pa
    import pyarrow.parquet as pq

    count = 0
    with pq.ParquetWriter(path, schema, compression="zstd") as writer:
        waiting, rows, size = list[pa.RecordBatch](), 0, 0
        for batch in batches:
            waiting.append(batch)
            rows, size = rows + batch.num_rows, size + batch.nbytes
            if rows >= _ROW_GROUP_ROWS or size >= _ROW_GROUP_BYTES:
                writer.write_table(pa.Table.from_batches(waiting, schema))
                count, rows, size = count + rows, 0, 0
                waiting.clear()
        if waiting or not count:
            writer.write_table(pa.Table.from_batches(waiting, schema))
    return count + rows


def _numeric(schema: pa.Schema) -> list[bool]:
    import pyarrow as pa

    return [
        pa.types.is_integer(field.type) or pa.types.is_floating(field.type) or pa.types.is_decimal(field.type)
        for field in schema
    ]


def _python_rows(rows: pa.Table, output: Format) -> Iterable[Sequence[Any]]:
    columns = [_python_values(column, output) for column in rows.columns]
    return zip(*columns, strict=True) if columns else ()


class RowStream:
    """Rows that come in pieces, with one header at the beginning.

    A table's columns have the width that the rows so far needed.
    """

    def __init__(self, output: Format) -> None:
        self._output = output
        self._widths: list[int] = []
        self._as_records = False
        self._written = 0

    def write_arrow(self, rows: pa.Table) -> None:
        """Write the rows and flush."""
        names = rows.column_names
        self.write(names, _python_rows(rows, self._output), _numeric(rows.schema), keys=names)

    def write(
        self,
        names: Sequence[str],
        rows: Iterable[Sequence[Any]],
        numeric: Sequence[bool],
        *,
        keys: Sequence[str] | None = None,
    ) -> None:
        """Write the rows and flush. `keys` as in `write_rows`."""
        begun = bool(self._widths)
        if self._output is not Format.TABLE:
            write_rows(names, rows, self._output, header=not begun, keys=keys)
            self._widths = [0]
        else:
            texts = [
                ["NULL" if value is None else visible(plain_text(value)) for value in row] for row in rows
            ]
            before = self._widths if begun else [len(name) for name in names]
            self._widths = [
                max(width, *(_width(row[index]) for row in texts)) if texts else width
                for index, width in enumerate(before)
            ]
            if not begun and sys.stdout.isatty():
                total = sum(self._widths) + 2 * (len(names) - 1)
                self._as_records = total > get_terminal_size().columns
            if self._as_records:
                for row in texts:
                    self._written += 1
                    sys.stdout.writelines(_record(list(map(visible, names)), row, self._written))
                texts = []
                begun = True
            lines = texts if begun else [list(names), ["─" * width for width in self._widths], *texts]
            for line in lines:
                sys.stdout.write(self._line(line, numeric) + "\n")
        sys.stdout.flush()

    def _line(self, texts: Sequence[str], numeric: Sequence[bool]) -> str:
        cells = []
        for text, width, right in zip(texts, self._widths, numeric, strict=True):
            room = " " * (width - _width(text))
            cells.append(room + text if right else text + room)
        return "  ".join(cells).rstrip()


def _python_values(column: pa.ChunkedArray, output: Format) -> list[Any]:
    """Return Python values for output.

    Nested values become their JSON text, as in the Kafka view. Timestamps that Python cannot represent become texts in
    the usual form.
    """
    import pyarrow as pa

    from headrace.tablelayer.model.json.python_values import python_values
    from headrace.tablelayer.model.rows.nested import is_nested

    if not is_nested(column.type):
        values = python_values(column)
        if not pa.types.is_timestamp(column.type):
            return values
        between = "T" if output is Format.JSON else " "
        return [
            value.replace("T", between).replace("Z", "+00:00") if isinstance(value, str) else value
            for value in values
        ]
    from headrace.tablelayer.model.json.rows import rows_to_json

    texts: list[Any] = []
    for chunk in column.chunks:
        try:
            rows = rows_to_json(pa.record_batch([chunk], names=["v"])).to_pylist()
        except ValueError:  # a type from a query, which no table has
            return python_values(column)
        present = chunk.is_valid().to_pylist()
        texts += [
            Json(row[5:-1].decode()) if is_there else None
            for row, is_there in zip(rows, present, strict=True)
        ]
    return texts


class Json(str):
    """A text that is already JSON."""


def write_rows(
    names: Sequence[str],
    rows: Iterable[Sequence[Any]],
    output: Format,
    *,
    numeric: Sequence[bool] | None = None,
    header: bool = True,
    keys: Sequence[str] | None = None,
) -> None:
    """Write rows of plain values.

    `numeric` marks the columns to align right; `header=False` continues CSV that was begun before. `keys` are those of
    JSON, by default the names as `json_key` writes them; names of a table's columns stay as they are.
    """
    if output is Format.JSON:
        texts = [json.dumps(key, ensure_ascii=False) for key in keys or map(json_key, names)]
        for row in rows:
            pairs = (f"{text}: {json_text(value)}" for text, value in zip(texts, row, strict=True))
            sys.stdout.write("{" + ", ".join(pairs) + "}\n")
        return
    if output is Format.CSV:
        writer = csv.writer(sys.stdout, lineterminator="\n")
        if header:
            writer.writerow(names)
        writer.writerows([["" if value is None else plain_text(value) for value in row] for row in rows])
        return
    columns = list(zip(*rows, strict=True)) or [()] * len(names)
    is_terminal = sys.stdout.isatty()
    sys.stdout.writelines(
        _table(list(map(visible, names)), columns, numeric or [False] * len(names),
               get_terminal_size().columns if is_terminal else None, wraps=keys is None)
    )  # fmt: skip


def _table(
    names: Sequence[str],
    columns: Sequence[Sequence[Any]],
    numeric: Sequence[bool],
    room: int | None,
    gap: tuple[int, str] | None = None,
    *,
    wraps: bool = False,
) -> Iterator[str]:
    """Yield the lines of a table.

    `room`: columns of the terminal, None for a pipe. `gap`: (row number, line to insert before it). `wraps`: each word
    of a name may have a line of its own.
    """
    texts = [
        ["NULL" if value is None else visible(plain_text(value)) for value in column] for column in columns
    ]
    widths = [max(map(_width, (name, *column))) for name, column in zip(names, texts, strict=True)]
    heads = [[name] for name in names]
    if wraps and room is not None and sum(widths) + 2 * (len(widths) - 1) > room:
        heads = [name.split(" ") for name in names]
        widths = [max(map(_width, (*head, *column))) for head, column in zip(heads, texts, strict=True)]
    if room is not None:
        texts = [
            [f"\x1b[2m{text}\x1b[0m" if value is None else text for text, value in zip(*both, strict=True)]
            for both in zip(texts, columns, strict=True)
        ]
    total = sum(widths) + 2 * (len(widths) - 1)
    if room is not None and total > room:
        for number, row in enumerate(zip(*texts, strict=True)):
            if gap is not None and number == gap[0]:
                yield gap[1] + "\n"
            yield from _record(names, row, number + 1)
        return
    high = max(map(len, heads), default=1)
    padded = [
        [_padded(text, width, right) for text in (*[""] * (high - len(head)), *head, *column)]
        for head, column, width, right in zip(heads, texts, widths, numeric, strict=True)
    ]
    lines = ("  ".join(row).rstrip() + "\n" for row in zip(*padded, strict=True))
    yield from islice(lines, high)
    yield "─" * total + "\n"
    for number, line in enumerate(lines):
        if gap is not None and number == gap[0]:
            yield gap[1] + "\n"
        yield line


def _record(names: Sequence[str], texts: Sequence[str], number: int) -> Iterator[str]:
    """Yield a row as one line per column."""
    margin = max(map(_width, names))
    yield f"─ row {number} ".ljust(margin + 2, "─") + "\n"
    yield from (f"{_padded(name, margin, False)}  {text}\n" for name, text in zip(names, texts, strict=True))


_ESCAPED = {code: f"\\x{code:02x}" for code in (*range(32), *range(127, 160))} | {
    9: "\\t",
    10: "\\n",
    13: "\\r",
}
_STYLE = re.compile(r"\x1b\[[0-9]m")


def visible(text: str) -> str:
    """Return a text with escaped control characters."""
    return text if text.isprintable() else text.translate(_ESCAPED)


def _width(text: str) -> int:
    """Return the width in terminal columns (Unicode Standard Annex 11; combining marks take none)."""
    if text.isascii():
        return len(text)
    return sum(
        0 if unicodedata.combining(each) else 2 if unicodedata.east_asian_width(each) in "WF" else 1
        for each in text
    )


def _padded(text: str, width: int, right: bool) -> str:
    shown = _STYLE.sub("", text) if text.startswith("\x1b") else text
    blanks = " " * (width - _width(shown))
    return blanks + text if right else text + blanks


def write_notices(notices: Iterable[str]) -> None:
    """Write to standard error what words of a statement mean here."""
    for notice in notices:
        sys.stderr.write(f"notice: {notice}\n")


def json_key(name: str) -> str:
    """Return the key of a column in JSON: `end offset` is end_offset, `records/s` is records_per_second."""
    return re.sub(r"/s$", "_per_second", name).replace(" ", "_")


def json_row(names: Sequence[str], row: Sequence[Any]) -> dict[str, Any]:
    """Return a row as an object with the keys of `json_key`."""
    return {json_key(name): value for name, value in zip(names, row, strict=True)}


def write_object(values: Mapping[str, Any]) -> None:
    """Write one JSON object on a line."""
    sys.stdout.write(json_text(dict(values)) + "\n")


def size_text(size_bytes: int) -> str:
    """Return a size with one unit, for people; "unknown" for -1."""
    if size_bytes < 0:
        return "unknown"
    for size, unit in ((1e12, "TB"), (1e9, "GB"), (1e6, "MB"), (1e3, "kB")):
        if size_bytes >= size:
            number = size_bytes / size
            return f"{number:.1f} {unit}" if number < 100 else f"{number:.0f} {unit}"
    return f"{size_bytes} B"


def plain_text(value: Any) -> str:
    """Return a value as people write it."""
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
    """Return a value as JSON; decimals as numbers with all their digits, times in ISO form, bytes in base64."""
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
