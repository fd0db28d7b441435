"""A few rows of a table client, as stored rows: writes of whole rows, of some columns and of existing rows only.

The batch is decoded and checked as every other (`decode_put`); only the merge and the batch for the log need no arrays.
Called on the event loop, with few rows.
"""

from __future__ import annotations

from typing import Final

from headrace.tablelayer.model.options.table_options import ChangelogImage
from headrace.tablelayer.model.rows.one_row import RowFormat
from headrace.tablelayer.model.rows.stored import encode_rows
from headrace.tablelayer.model.table.definition import TableDefinition
from headrace.tablelayer.server.merge.engines import Operations, few_row_keys
from headrace.tablelayer.server.merge.few_merge import (
    Fold,
    engine_of,
    folds_of,
    keep_given,
    keep_held,
    merging,
)
from headrace.tablelayer.server.merge.few_rows import FewRows, Merge

ROWS_MAX: Final = 16
BYTES_MAX: Final = 16 << 10
"""Maximum size of a batch, and of its decompressed rows."""
CELLS_MAX: Final = 512
_KNOWN_MAX: Final = 256


class FewPuts:
    """The merges of a table. `puts_of` returns it."""

    def __init__(self, definition: TableDefinition) -> None:
        settings, schema = definition.settings, definition.schema
        self.definition = definition
        self.full_image = settings.changelog_image is ChangelogImage.FULL
        self._engine, knows_engine = engine_of(definition)
        self._folds = folds_of(definition)
        self._defaults = frozenset(at for at, each in enumerate(schema.columns) if each.default is not None)
        self._key = frozenset(schema.index(name) for name in schema.primary_key)
        self._is_able = (
            knows_engine
            and settings.auto_increment_column is None
            and not any(column.type.is_nested for column in schema.columns)
        )
        self.rows_max = min(ROWS_MAX, CELLS_MAX // len(schema.columns)) if self._is_able else 0
        self._layout = RowFormat(schema) if self._is_able else None
        self._partial: dict[frozenset[int], Merge] = {}

    def rows(self, operations: Operations) -> FewRows | None:
        """Return the rows and their keys; None if only arrays can merge them."""
        targets, deletes, schema = operations.targets, operations.deletes, self.definition.schema
        if targets is not None and (deletes is not None or self._defaults - targets):
            return None
        rows: list[bytes | None] = encode_rows(operations.rows, schema).to_pylist()
        if deletes is not None:
            rows = [None if gone else row for row, gone in zip(rows, deletes.tolist(), strict=True)]
        return FewRows(rows, few_row_keys(schema, operations.rows))

    def engine(self, operations: Operations) -> Merge | None:
        """Return the merge of these rows with the stored ones; None if they replace them."""
        targets = operations.targets
        if targets is None:
            return None if operations.overwrite else self._engine
        if targets <= self._key:
            return _nothing  # R6.6: only the key was written
        if operations.overwrite:
            return self._merging(
                [keep_given if at in targets else keep_held for at in range(len(self._folds))]
            )
        known = self._partial.get(targets)
        if known is None:
            if len(self._partial) >= _KNOWN_MAX:
                self._partial.clear()
            folds = [fold if at in targets else keep_held for at, fold in enumerate(self._folds)]
            known = self._partial[targets] = self._merging(folds)
        return known

    def _merging(self, folds: list[Fold]) -> Merge:
        assert self._layout is not None
        return merging(self._layout, folds)


def _nothing(before: bytes, row: bytes) -> None:
    return None


_known: dict[int, tuple[TableDefinition, FewPuts]] = {}
"""Merges by the identity of a definition, which is kept with them: hashing a schema takes longer than a row."""


def puts_of(definition: TableDefinition) -> FewPuts:
    """Return the merges of a table."""
    known = _known.get(id(definition))
    if known is None:
        if len(_known) >= _KNOWN_MAX:
            _known.clear()
        known = _known[id(definition)] = definition, FewPuts(definition)
    return known[1]
