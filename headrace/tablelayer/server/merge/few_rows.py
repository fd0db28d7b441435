"""The effects of a few upserts and deletes, as rows in bytes: rules R1 and R2, and a merge engine (`few_merge`).

`engines.merge` works on arrays, which take a millisecond for one row or for a hundred. Here rows stay as they are
stored, and two kernel calls make the batch for the log of them (`stored_message`). Pure; called on the event loop.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Final

import msgspec

from headrace.tablelayer.model.batches.batch import APPEND_ONLY, ChangeType, with_header
from headrace.tablelayer.model.options.table_options import ArrowCompression
from headrace.tablelayer.model.schema.schema import Schema
from headrace.tablelayer.model.table.definition import TableDefinition
from headrace.tablelayer.server.merge.writes import COMPRESS_FROM_BYTES, Writer
from headrace.tablelayer.server.stored_message import message_of

_INSERT: Final = int(ChangeType.INSERT)
_UPDATE_BEFORE: Final = int(ChangeType.UPDATE_BEFORE)
_UPDATE_AFTER: Final = int(ChangeType.UPDATE_AFTER)
_DELETE: Final = int(ChangeType.DELETE)


Merge = Callable[[bytes, bytes], bytes | None]
"""A merge engine. It returns the row after an upsert, from the row before and the given one; None: nothing changes."""


class NeedsArrays(Exception):  # noqa: N818 - nothing is wrong
    """The rows have a form that only arrays know. Nothing has changed."""


class FewRows(msgspec.Struct, frozen=True):
    """Writes in order: stored rows, None for a delete, and their store keys (none in a log table).

    `places`: partition and hash of the bucket key of each row, if the table has several parts.
    """

    rows: list[bytes | None]
    keys: list[bytes]
    places: list[tuple[str, int]] = []

    def select(self, at: Sequence[int]) -> FewRows:
        """Return some of the rows, in this order."""
        return FewRows([self.rows[each] for each in at], [self.keys[each] for each in at if self.keys])


class FewChanges(msgspec.Struct, frozen=True):
    """The changes to log (rows and their change types) and to store (in key order, None to delete)."""

    rows: list[bytes]
    change_types: bytes
    keys: list[bytes]
    values: list[bytes | None]
    row_delta: int


def merge_few(
    few: FewRows,
    standing: dict[bytes, bytes | None],
    engine: Merge | None,
    *,
    full_image: bool,
    inserts: bool = True,
) -> FewChanges:
    """Apply rows in order. `standing` has the row of each key before, and has the row after it then. Without `inserts`
    only existing rows are written.
    """
    changed: set[bytes] = set()
    logged: list[bytes] = []
    kinds = bytearray()
    row_delta = 0
    for key, row in zip(few.keys, few.rows, strict=True):
        before = standing[key]
        if row is None:
            if before is None:
                continue
            logged.append(before)
            kinds.append(_DELETE)
            row_delta -= 1
        elif before is None:
            if not inserts:
                continue
            logged.append(row)
            kinds.append(_INSERT)
            row_delta += 1
        else:
            if engine is not None:
                row = engine(before, row)
                if row is None:
                    continue
            if full_image:
                logged.append(before)
                kinds.append(_UPDATE_BEFORE)
            logged.append(row)
            kinds.append(_UPDATE_AFTER)
        standing[key] = row
        changed.add(key)
    ordered = sorted(changed)
    return FewChanges(logged, bytes(kinds), ordered, [standing[key] for key in ordered], row_delta)


def batch_of_few(
    definition: TableDefinition,
    rows: Sequence[bytes],
    change_types: bytes | None,
    writer: Writer,
    now_ms: int,
) -> memoryview | None:
    """Return the batch of stored rows for the log; None if arrays are needed: a row of an older schema, or a batch that
    is compressed.
    """
    schema: Schema = definition.schema
    is_compressed = definition.settings.arrow_compression is not ArrowCompression.NONE
    if is_compressed and sum(map(len, rows)) >= COMPRESS_FROM_BYTES:
        return None
    message = message_of(rows, schema)
    if message is None:
        return None
    return with_header(
        message,
        len(rows),
        schema_id=schema.schema_id,
        changes=change_types or b"",
        flags=APPEND_ONLY if change_types is None else 0,
        timestamp_ms=now_ms,
        **writer.fields(),
    )
