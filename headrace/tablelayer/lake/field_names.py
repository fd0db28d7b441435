"""Column names for the fields of JSON objects, where a lake table's columns are such fields.

A field's name may be any text: empty, of any length, with dots and backquotes, or equal to another name except for
case. Tables, Spark, Iceberg and Paimon do not accept all of that. A name that all of them accept becomes the column's
name. Any other field gets a name made of its letters and a digest of the whole name, and the column's comment records
the field. The comment is stored in the lake table, so an assigned name never changes.
"""

from __future__ import annotations

import hashlib
import json
import re
from collections.abc import Collection, Iterable, Sequence
from dataclasses import replace

from headrace.tablelayer.model.errors import TableError
from headrace.tablelayer.model.schema.schema import Column, check_column_name

_COMMENT = "JSON field "
_LENGTH_MAX = 128
_LETTERS_MAX = 40
_TROUBLE = re.compile(r"""[.`,"'\\]""")
_TAKEN = frozenset(
    {
        # Iceberg's metadata columns (`MetadataColumns`).
        "_file", "_pos", "_deleted", "_spec_id", "_partition", "_change_type", "_change_ordinal", "_commit_snapshot_id",
        "_row_id", "_last_updated_sequence_number",
        # Columns that rounds add temporarily.
        "_row", "_topic_timestamp", "_topic_partition", "_topic_offset",
    }
)  # fmt: skip
_PAIMONS = ("_key_", "_sequence_number", "_value_kind", "_level", "rowkind")


def field_of(column: Column) -> str:
    """Return the name of the JSON field that a column stands for."""
    if column.comment is not None and column.comment.startswith(_COMMENT):
        try:
            field = json.loads(column.comment.removeprefix(_COMMENT))
        except ValueError:
            return column.name
        if isinstance(field, str):
            return field
    return column.name


def as_fields(columns: Iterable[Column]) -> tuple[Column, ...]:
    """Return the columns renamed to their fields, for looking them up in JSON objects."""
    return tuple(replace(column, name=field_of(column)) for column in columns)


def columns_of_fields(
    fields: Sequence[Column], stored: Sequence[Column], as_they_are: Collection[str] = ()
) -> list[Column]:
    """Return columns for `fields`, which are given as columns named after their fields.

    `stored` are the existing columns; `as_they_are` are names that the user chose.
    """
    known = {field_of(column): column for column in stored}
    taken = {column.name.lower() for column in stored} | {name.lower() for name in as_they_are}
    found = []
    for field in fields:
        column = known.get(field.name)
        if column is not None:
            found.append(replace(field, name=column.name, comment=column.comment))
        elif field.name in as_they_are or (field.name.lower() not in taken and _is_plain(field.name)):
            found.append(field)
        else:
            comment = _COMMENT + json.dumps(field.name)
            found.append(replace(field, name=_safe(field.name), comment=comment))
        taken.add(found[-1].name.lower())
    return found


def _is_plain(name: str) -> bool:
    lower = name.lower()
    if len(name) > _LENGTH_MAX or _TROUBLE.search(name) or lower in _TAKEN or lower.startswith(_PAIMONS):
        return False
    try:
        check_column_name(name)
    except TableError:
        return False
    return True


def _safe(field: str) -> str:
    letters = re.sub(r"[^0-9A-Za-z]+", "_", field).strip("_")[:_LETTERS_MAX]
    digest = hashlib.sha256(field.encode("utf-8", "surrogatepass")).hexdigest()[:8]
    return f"{letters or 'field'}_{digest}"
