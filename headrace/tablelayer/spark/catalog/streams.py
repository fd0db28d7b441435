"""A table as a stream of Spark's catalog: the data source's own streams (`tablelayer.spark.stream`), asked by Spark's
micro-batches in Java. Each function answers one request of `helper`; nothing is kept between two.

What Python's sources cannot have: Spark says where a batch begins, whether `maxOffsetsPerTrigger` is to be kept, and
that the trigger is AvailableNow, which then reads what was there at its beginning in as many batches as that takes.
"""

from __future__ import annotations

import json
from typing import Any

from headrace.tablelayer.spark.catalog.requests import (
    Request,
    object_of,
    table_definition,
    table_options,
    text_of,
)
from headrace.tablelayer.spark.options import ReadOptions
from headrace.tablelayer.spark.stream import stream_reader


def stream(request: Request) -> dict[str, Any]:
    """The `reader` of these `columns`, and how many offsets a batch has at most, if that is limited. Raises TableError,
    ValueError."""
    options = ReadOptions.parse(table_options(request))
    definition = table_definition(request)
    if definition.is_primary_key_table and options.mode == "current" and not options.view:
        name = f"{request['database']}.`{request['table']}$changelog`"
        raise ValueError(
            f"a stream of {definition.path}, which has a primary key, is one of its changes, since rows alone could not"
            f" say what was deleted: read {name} of the catalog; with the option mode = 'upsert' without old images"
        )
    reader = stream_reader(options, list(request["columns"]))
    return {"reader": text_of(reader), "limit": options.max_offsets}


def initial(request: Request) -> str:
    """Where a new query begins, as JSON."""
    return json.dumps(object_of(request["reader"]).initialOffset())


def latest(request: Request) -> str:
    """Where the batch that begins at `start` ends; `capped`: after `maxOffsetsPerTrigger` offsets."""
    reader = object_of(request["reader"])
    if not request["capped"]:
        reader = reader.without_cap()
    return json.dumps(reader.latestOffset(json.loads(request["start"])))


def pinned(request: Request) -> str:
    """The reader, which goes no further than the table's end as it is now."""
    return text_of(object_of(request["reader"]).pinned())


def splits(request: Request) -> list[str]:
    """What the tasks of the batch from `start` to `end` read."""
    reader = object_of(request["reader"])
    found = reader.partitions(json.loads(request["start"]), json.loads(request["end"]))
    return [text_of(each) for each in found]
