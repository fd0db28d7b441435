"""Records of a plain topic as rows of its lake table, batch by batch, with the reasons for records that do not fit.

Every record is accounted for: it is a row, a delete, a tombstone after a Debezium delete (which adds nothing), or bad.
Executors import this module: it depends neither on Spark nor on the server.
"""

from __future__ import annotations

import json
from collections.abc import Callable
from dataclasses import dataclass
from functools import partial
from typing import TYPE_CHECKING, Any

import numpy as np
import numpy.typing as npt
import pyarrow as pa
import pyarrow.compute as pc

from headrace.tablelayer.lake.field_names import as_fields
from headrace.tablelayer.model.errors import RowError
from headrace.tablelayer.model.lake.topic_options import TopicFormat
from headrace.tablelayer.model.options.kafka_formats import DebeziumDecimals, DebeziumTime, OutOfRange
from headrace.tablelayer.model.options.table_options import UnknownFields
from headrace.tablelayer.model.schema.schema import Schema

if TYPE_CHECKING:
    from headrace.tablelayer.model.json.connect_schema import ConnectSchema
    from headrace.tablelayer.model.json.debezium_values import Conventions

Indices = npt.NDArray[np.int64]


@dataclass(frozen=True, slots=True)
class Decoded:
    """Decoded records of a batch.

    `rows` belong to the records at `places` (int64[n], ascending); all columns are nullable. `deleted` (bool[n]) marks
    rows that have only their key columns. `bad` has the places of records that do not fit, with the reason.
    """

    rows: pa.RecordBatch
    places: Indices
    deleted: npt.NDArray[np.bool_]
    bad: list[tuple[int, str]]


@dataclass(frozen=True, slots=True)
class RecordDecoder:
    """Decoder for the records of one topic. It is pickled and sent to the executors."""

    value_format: TopicFormat
    schema: Schema
    unknown_fields: UnknownFields

    def decode(self, keys: pa.Array, values: pa.Array) -> Decoded:
        """Decode n binary keys and values."""
        work = _Work(self, keys, values)
        given = np.flatnonzero(pc.is_valid(values).to_numpy(zero_copy_only=False))
        if self.value_format is TopicFormat.DEBEZIUM_JSON:
            work.tolerate(given, work.envelopes)
        else:
            work.tolerate(given, work.objects)
            absent = np.setdiff1d(np.arange(len(values)), given)
            if self.schema.primary_key:
                work.tolerate(absent, work.deletes_by_key)
            else:
                work.bad += [(int(place), "its value is null") for place in absent]
        return work.result()


class _Work:
    """Decoding of one batch."""

    def __init__(self, decoder: RecordDecoder, keys: pa.Array, values: pa.Array) -> None:
        self.decoder = decoder
        self.schema = decoder.schema.arrow()
        self.fields = as_fields(decoder.schema.columns)
        self.key_fields = as_fields(decoder.schema.key_columns)
        self.keys, self.values = keys, values
        self.parts: list[tuple[pa.RecordBatch, Indices, bool]] = []
        self.bad: list[tuple[int, str]] = []

    def tolerate(self, places: Indices, decode: Callable[[Indices], None]) -> None:
        """Decode all of these records except the bad ones.

        `decode` raises RowError with the position of a bad record and has then changed nothing. The pieces get shorter
        when bad records are close together.
        """
        pieces, size = [(0, len(places))], max(1, len(places))
        while pieces:
            begin, end = pieces.pop()
            stop = min(end, begin + size)
            if stop < end:
                pieces.append((stop, end))
            if begin == stop:
                continue
            try:
                decode(places[begin:stop])
            except RowError as error:
                at = begin + error.index
                column = "" if error.column is None else f"column '{error.column}': "
                self.bad.append((int(places[at]), f"{column}{error.reason}"))
                pieces += [(at + 1, stop), (begin, at)]
                size = max(1, size // 2)
            else:
                size *= 2

    def objects(self, places: Indices) -> None:
        from headrace.tablelayer.model.json.rows import json_to_rows

        texts = self.values.take(pa.array(places))
        rows = json_to_rows(texts, self.fields, unknown_fields=self.decoder.unknown_fields)
        self._put(rows, places, deleted=False)

    def deletes_by_key(self, places: Indices) -> None:
        self._put(self._rows_of_keys(places), places, deleted=True)

    def envelopes(self, places: Indices) -> None:
        """Decode Debezium envelopes, and the record's key for a delete without `before`."""
        from headrace.tablelayer.model.json.debezium import read_envelopes
        from headrace.tablelayer.model.json.rows import json_to_rows
        from headrace.tablelayer.model.json.texts import JsonTexts

        found = read_envelopes(JsonTexts.of(self.values.take(pa.array(places))))
        if found.error is not None:
            raise found.error
        unknown = self.decoder.unknown_fields
        decoded = []
        for group in found.groups:
            put = partial(
                json_to_rows,
                group.upserted,
                self.fields,
                unknown_fields=unknown,
                make_field=self._conventions(group.rows_schema(), extended=group.extended).field,
            )
            gone = partial(
                json_to_rows,
                group.deleted,
                self.key_fields,
                make_field=self._conventions(group.rows_schema(deleted=True), extended=group.extended).field,
            )
            keyed = partial(self._rows_of_keys, places[group.keyed])
            decoded.append((_at(group.upserts, put), _at(group.deletes, gone), _at(group.keyed, keyed)))
        for group, (upserts, deletes, keyed) in zip(found.groups, decoded, strict=True):
            self._put(upserts, places[group.upserts], deleted=False)
            self._put(deletes, places[group.deletes], deleted=True)
            self._put(keyed, places[group.keyed], deleted=True)

    def _rows_of_keys(self, places: Indices) -> pa.RecordBatch:
        """Return key columns from the records' keys: JSON objects, or for a one-column key also a bare value."""
        from headrace.tablelayer.model.json.debezium import key_groups, mongo_keys
        from headrace.tablelayer.model.json.rows import json_to_rows

        keys = self.keys.take(pa.array(places))
        if keys.null_count:
            missing = int(pc.index(pc.is_null(keys), True).as_py())
            raise RowError(
                missing, None, "its value and its key are null, so it does not name the row to delete"
            )
        columns = self.key_fields
        rows, order = [], []
        for group in key_groups(keys):
            part, schema = group.keys, group.schema
            mongo = None
            if len(columns) == 1 and self.decoder.value_format is TopicFormat.DEBEZIUM_JSON:
                mongo = mongo_keys(part, columns[0].name)
            if mongo is not None:
                part, schema = mongo, None
            elif len(columns) == 1:
                bare = pc.invert(pc.match_substring_regex(part, pattern=rb"^\s*\{"))
                front = pa.scalar(f"{{{json.dumps(columns[0].name)}:".encode(), part.type)
                ends = pa.scalar(b"}", part.type), pa.scalar(b"", part.type)
                part = pc.if_else(bare, pc.binary_join_element_wise(front, part, *ends), part)
            try:
                conventions = self._conventions(schema, extended=mongo is not None)
                rows.append(json_to_rows(part, columns, make_field=conventions.field))
            except RowError as error:
                place, reason = int(group.at[error.index]), f"in the record's key, {error.reason}"
                raise RowError(place, error.column, reason) from error
            order.append(group.at)
        if len(rows) == 1:
            return rows[0]
        return pa.concat_batches(rows).take(pa.array(np.argsort(np.concatenate(order))))

    def _conventions(self, schema: ConnectSchema | None, *, extended: bool = False) -> Conventions:
        """Return the conventions by which values are written: those of a connector, or those of the row's own JSON."""
        from headrace.tablelayer.model.json.debezium_values import Conventions

        if self.decoder.value_format is TopicFormat.DEBEZIUM_JSON:
            return Conventions(schema=schema, extended=extended)
        return Conventions(DebeziumTime.ISOSTRING, DebeziumDecimals.STRING, OutOfRange.KEEP, schema=schema)

    def _put(self, rows: pa.RecordBatch, places: Indices, *, deleted: bool) -> None:
        if not len(places):
            return
        by_name = dict(zip(rows.schema.names, rows.columns, strict=True))
        columns = [
            by_name.get(field.name, pa.nulls(len(places), column.type))
            for field, column in zip(self.fields, self.schema, strict=True)
        ]
        nullable = pa.schema([pa.field(field.name, field.type) for field in self.schema])
        self.parts.append((pa.RecordBatch.from_arrays(columns, schema=nullable), places, deleted))

    def result(self) -> Decoded:
        nullable = pa.schema([pa.field(field.name, field.type) for field in self.schema])
        empty = pa.RecordBatch.from_pylist([], schema=nullable)
        rows = pa.concat_batches([empty, *(part for part, _, _ in self.parts)])
        places = np.concatenate([np.zeros(0, np.int64), *(places for _, places, _ in self.parts)])
        deleted = np.concatenate(
            [np.zeros(0, bool), *(np.full(len(places), gone) for _, places, gone in self.parts)]
        )
        order = np.argsort(places, kind="stable")
        return Decoded(rows.take(pa.array(order)), places[order], deleted[order], sorted(self.bad))


def _at(places: Indices, decode: Callable[[], Any]) -> Any:
    """Decode some records of a batch; errors then name the record's place in the batch."""
    try:
        return decode() if len(places) else pa.RecordBatch.from_pylist([], schema=pa.schema([]))
    except RowError as error:
        raise RowError(int(places[error.index]), error.column, error.reason) from error
