"""What a scan of Spark's catalog reads and a write of it writes, by the data source's own readers and writers. Each
function answers one request of `helper`; what tasks need travels through Spark as pickled text.
"""

from __future__ import annotations

import base64
import json
import pickle
from collections.abc import Iterator, Mapping
from typing import Any, BinaryIO

import pyarrow as pa
from pyspark.sql.types import StructType

from tablelayer.model.filters.conditions import push_down
from tablelayer.model.table.definition import TableDefinition
from tablelayer.spark.options import ReadOptions, server_of
from tablelayer.spark.planning import SplitPartition
from tablelayer.spark.source import HeadraceDataSource
from tablelayer.spark.worker import connection
from tablelayer.spark.worker import table as open_table

Request = Mapping[str, Any]

ROW_KIND_COLUMN = "_headrace_row_kind"
"""Of what UPDATE, DELETE and MERGE write: which change a row is."""


def push(request: Request) -> dict[str, Any]:
    """Which of these conditions (texts of Spark's) the readers apply: `complete`, a boolean for each, and the
    `predicate` of all that can be pushed, as an option."""
    definition = _definition(request)
    complete = [push_down([text], definition.schema).complete for text in request["conditions"]]
    predicate = push_down(request["conditions"], definition.schema).predicate
    return {"complete": complete, "predicate": None if predicate is None else json.dumps(predicate)}


def plan(request: Request) -> dict[str, Any]:
    """Pin what is read: `reader`, `splits` (at least one), and how many rows and bytes there are at most, if known.

    `columns` are those to read, at least one; `as_of_ms` a time, or None.
    """
    given = {**request["options"], "table": f"{request['database']}.{request['table']}"}
    if request["predicate"] is not None:
        given["where"] = request["predicate"]
    if request["limit"] is not None:
        given["limit"] = str(request["limit"])
    names = list(request["columns"])
    if request["as_of_ms"] is not None:
        definition = _definition(request)
        table = open_table(server_of(given), definition)
        offsets = (
            table.partition_offsets_as_of(request["as_of_ms"])
            if definition.is_partitioned
            else table.offsets_as_of(request["as_of_ms"])
        )
        given["endingOffsets"] = json.dumps(offsets)
    source = HeadraceDataSource(given)
    reader = source.reader(_Names(names))
    splits = reader.partitions()
    answer: dict[str, Any] = {"reader": _text(reader), "splits": [_text(split) for split in splits]}
    if not ReadOptions.parse(given).view:
        rows = _rows(reader, splits)
        widths = reader.read_plan.arrow_schema()
        answer |= {"rows": rows, "bytes": rows * sum(_width(field.type) for field in widths)}
    return answer


class _Names:
    """As much of Spark's schema as readers ask for."""

    def __init__(self, names: list[str]) -> None:
        self._names = names

    def fieldNames(self) -> list[str]:  # noqa: N802 - Spark's name
        return self._names


def _rows(reader: Any, splits: list[SplitPartition]) -> int:
    """At most so many; of a PK table about as many."""
    if any(each.split.state for each in splits):
        table = open_table(reader.options.bootstrap, reader.read_plan.definition)
        return int(table.count())
    rows: int = sum(each.split.end_offset - each.split.start_offset for each in splits)
    return rows


def _width(kind: pa.DataType) -> int:
    try:
        return max(1, int(kind.bit_width) // 8)
    except ValueError:
        return _WIDTH_OF_TEXT


_WIDTH_OF_TEXT = 20
"""What Spark assumes too (its `StringType.defaultSize`)."""


def read(request: Request) -> Iterator[pa.RecordBatch]:
    """The rows of one split."""
    yield from _object(request["reader"]).read(_object(request["split"]))


def begin_write(request: Request) -> str:
    """The writer of one statement. Spark's schema is that of the rows; those with ROW_KIND_COLUMN are changes."""
    schema = StructType.fromJson(json.loads(request["schema"]))
    given = {**request["options"], "table": f"{request['database']}.{request['table']}"}
    if ROW_KIND_COLUMN in schema.fieldNames():
        given["row.kind.column"] = ROW_KIND_COLUMN
    return _text(HeadraceDataSource(given).writer(schema, False))


def write(request: Request, stream: BinaryIO) -> str:
    """What a task tells the driver, having staged the rows of an Arrow stream."""
    with pa.ipc.open_stream(stream) as batches:
        return _text(_object(request["writer"]).write(iter(batches)))


def commit(request: Request) -> None:
    _object(request["writer"]).commit([_object(each) for each in request["messages"]])


def abort(request: Request) -> None:
    _object(request["writer"]).abort([_object(each) for each in request["messages"]])


def _definition(request: Request) -> TableDefinition:
    client = connection(server_of(request["options"]))
    return client.admin.describe_table(f"{request['database']}.{request['table'].partition('$')[0]}")


def _text(value: object) -> str:
    return base64.b64encode(pickle.dumps(value)).decode()


def _object(text: str) -> Any:
    """Of what `_text` made, in a process of the same session."""
    return pickle.loads(base64.b64decode(text))
