"""A table as a stream of Spark's catalog: the data source's streams, driven by Spark's micro-batches in Java.

Each function answers one request of `helper`; no state is kept between requests. The streams are those of
`tablelayer.spark.stream`. Other than for a Python source, Spark tells where a batch begins, whether
`maxOffsetsPerTrigger` applies, and that the trigger is AvailableNow. That trigger reads the rows that existed at its
beginning in as many batches as needed.
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
    """Return the `reader` of these `columns`, and the maximum of offsets per batch as `limit`, if there is one.

    Raises TableError, ValueError.
    """
    options = ReadOptions.parse(table_options(request))
    definition = table_definition(request)
    if definition.is_primary_key_table and options.mode == "current" and not options.view:
        name = f"{request['database']}.`{request['table']}$changelog`"
        raise ValueError(
            f"a stream of {definition.path}, which has a primary key, has to be a stream of changes, because rows alone"
            f" cannot show what was deleted: read {name} of the catalog; with the option mode = 'upsert' without old"
            " images"
        )
    reader = stream_reader(options, list(request["columns"]))
    return {"reader": text_of(reader), "limit": options.max_offsets}


def initial(request: Request) -> str:
    """Return the position where a new query begins, as JSON."""
    return json.dumps(object_of(request["reader"]).initialOffset())


def latest(request: Request) -> str:
    """Return the end of the batch that begins at `start`; `capped`: after `maxOffsetsPerTrigger` offsets."""
    reader = object_of(request["reader"])
    if not request["capped"]:
        reader = reader.without_cap()
    return json.dumps(reader.latestOffset(json.loads(request["start"])))


def pinned(request: Request) -> str:
    """Return the reader, which stops at the table's present end."""
    return text_of(object_of(request["reader"]).pinned())


def splits(request: Request) -> list[str]:
    """Return the splits of the tasks for the batch from `start` to `end`."""
    reader = object_of(request["reader"])
    found = reader.partitions(json.loads(request["start"]), json.loads(request["end"]))
    return [text_of(each) for each in found]
