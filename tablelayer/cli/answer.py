"""What a statement of SQL gives."""

from __future__ import annotations

from dataclasses import dataclass

import pyarrow as pa

from tablelayer.model.table.definition import TableDefinition


@dataclass(frozen=True, slots=True)
class Answer:
    """What a statement gave: rows, a table's definition, or a text (`is_code`: SQL to copy, not a message)."""

    rows: pa.Table | None = None
    definition: TableDefinition | None = None
    text: str | None = None
    is_code: bool = False
