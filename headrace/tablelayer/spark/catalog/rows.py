"""Rows of a scan by Spark's catalog, read by the data source's own readers.

Each function answers one request of `helper`. Data for the tasks is passed through Spark as pickled text.
"""

from __future__ import annotations

import itertools
import json
from collections.abc import Iterator, Sequence
from typing import Any

import pyarrow as pa

from headrace.tablelayer.model.filters.conditions import push_down
from headrace.tablelayer.spark.catalog.requests import (
    Request,
    object_of,
    table_definition,
    table_options,
    text_of,
)
from headrace.tablelayer.spark.options import ReadOptions, server_of
from headrace.tablelayer.spark.planning import SplitPartition
from headrace.tablelayer.spark.source import HeadraceDataSource
from headrace.tablelayer.spark.worker import table as open_table


def push(request: Request) -> dict[str, Any]:
    """Return which of these conditions (Spark texts) the readers apply.

    `complete` has a boolean for each condition; `predicate` is the option with everything that can be pushed down.
    A condition with a backslash is left to Spark: the texts come from its `V2ExpressionSQLBuilder`, which does not
    escape them as Spark's parser reads them.
    """
    schema = table_definition(request).schema
    texts = request["conditions"]
    clear = ["\\" not in text for text in texts]
    complete = [each and push_down([text], schema).complete for each, text in zip(clear, texts, strict=True)]
    predicate = push_down(itertools.compress(texts, clear), schema).predicate
    return {"complete": complete, "predicate": None if predicate is None else json.dumps(predicate)}


def plan(request: Request) -> dict[str, Any]:
    """Pin a read: `reader`, `splits` (at least one), and upper bounds of `rows` and `bytes`, if known.

    `columns` are the columns to read, at least one. `as_of_ms` is a time, or None. `version` is offsets by bucket as
    JSON, for the lake alone a snapshot, or None.
    """
    given = table_options(request)
    if request["predicate"] is not None:
        given["where"] = request["predicate"]
    if request["limit"] is not None:
        given["limit"] = str(request["limit"])
    names = list(request["columns"])
    given |= _as_of(request, given)
    source = HeadraceDataSource(given)
    reader = source.reader(_Names(names))
    splits = reader.partitions()
    answer: dict[str, Any] = {"reader": text_of(reader), "splits": [text_of(split) for split in splits]}
    if not ReadOptions.parse(given).view:
        rows = _rows(reader, splits)
        widths = reader.read_plan.arrow_schema()
        answer |= {"rows": rows, "bytes": rows * sum(_width(field.type) for field in widths)}
        answer["halves"] = _halves(reader.snapshot, splits)
    return answer


def _halves(snapshot: int | None, splits: Sequence[Any]) -> str | None:
    """Return a description of the halves of a read of lake and log; None if it reads the server alone."""
    if snapshot is None:
        return None
    parts = [each for each in splits if not isinstance(each, SplitPartition)]
    files = sum(len(each.pieces or ()) for each in parts)
    log = [each.split for each in splits if isinstance(each, SplitPartition)]
    offsets = sum(each.end_offset - each.start_offset for each in log)
    changed = "changed rows" if any(each.pieces is None for each in parts) else f"{offsets} offsets"
    return f"lake {files} files of snapshot {snapshot}, log {changed}"


def _as_of(request: Request, given: dict[str, str]) -> dict[str, str]:
    """Return the options for a table at an earlier time."""
    version, time = request["version"], request["as_of_ms"]
    if "$" in request["table"]:
        return (
            {"snapshot": version}
            if version is not None
            else {}
            if time is None
            else {"endingTimestamp": str(time)}
        )
    if version is not None:
        if not version.startswith("{"):
            raise ValueError(
                f"VERSION AS OF '{version}': a table's version is its offsets by bucket, such as"
                """ VERSION AS OF '{"0": 17}'; the version of its lake, `TABLE$lake`, is a snapshot's number"""
            )
        return {"endingOffsets": version}
    if time is None:
        return {}
    definition = table_definition(request)
    table = open_table(server_of(given), definition)
    offsets = table.partition_offsets_as_of(time) if definition.is_partitioned else table.offsets_as_of(time)
    return {"endingOffsets": json.dumps(offsets)}


class _Names:
    """The part of Spark's schema that readers use."""

    def __init__(self, names: list[str]) -> None:
        self._names = names

    def fieldNames(self) -> list[str]:  # noqa: N802 - Spark's name
        return self._names


def _rows(reader: Any, splits: list[Any]) -> int:
    """Return the number of rows at most; for a PK table approximately."""
    of_lake: int = sum(each.row_count for each in splits if not isinstance(each, SplitPartition))
    of_log = [each.split for each in splits if isinstance(each, SplitPartition)]
    if any(split.state for split in of_log):
        table = open_table(reader.options.bootstrap, reader.read_plan.definition)
        return int(table.count())
    rows: int = sum(split.end_offset - split.start_offset for split in of_log)
    return of_lake + rows


def _width(kind: pa.DataType) -> int:
    try:
        return max(1, int(kind.bit_width) // 8)
    except ValueError:
        return _WIDTH_OF_TEXT


_WIDTH_OF_TEXT = 20
"""Spark's own assumption (`StringType.defaultSize`)."""


def read(request: Request) -> Iterator[pa.RecordBatch]:
    """Yield the rows of one split."""
    yield from object_of(request["reader"]).read(object_of(request["split"]))
