"""Which column is which field, where the columns of a lake table are the fields of JSON objects.

A field's name may be any text: empty, with dots and backquotes, of any length, or the name of another one but for its
case. Tables, Spark, Iceberg and Paimon do not take all of that. A field that nobody has trouble with is the column of
its name; any other gets a name made of its letters and a digest of the whole, and the column's comment says which field
it is. That is kept with the lake table, so that a name, once given, stays.
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
        # columns that Iceberg has of its own (its `MetadataColumns`)
        "_file", "_pos", "_deleted", "_spec_id", "_partition", "_change_type", "_change_ordinal", "_commit_snapshot_id",
        "_row_id", "_last_updated_sequence_number",
        # those that rounds add meanwhile
        "_row", "_topic_timestamp", "_topic_partition", "_topic_offset",
    }
)  # fmt: skip
_PAIMONS = ("_key_", "_sequence_number", "_value_kind", "_level", "rowkind")


def field_of(column: Column) -> str:
    """The name of the field that a column is."""
    if column.comment is not None and column.comment.startswith(_COMMENT):
        try:
            field = json.loads(column.comment.removeprefix(_COMMENT))
        except ValueError:
            return column.name
        if isinstance(field, str):
            return field
    return column.name


def as_fields(columns: Iterable[Column]) -> tuple[Column, ...]:
    """The columns under the names of their fields, as they are looked for in JSON objects."""
    return tuple(replace(column, name=field_of(column)) for column in columns)


def columns_of_fields(
    fields: Sequence[Column], stored: Sequence[Column], as_they_are: Collection[str] = ()
) -> list[Column]:
    """The columns for fields, given as columns of their names. `stored`: those that there are already; `as_they_are`:
    names that somebody has chosen."""
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
