"""Whether the rows of a table can be replaced as a whole, by INSERT OVERWRITE or TRUNCATE."""

from __future__ import annotations

from headrace.tablelayer.model.errors import TableError, TableErrorCode
from headrace.tablelayer.model.options.table_options import DeleteBehavior
from headrace.tablelayer.model.table.definition import TableDefinition


def must_be_replaceable(definition: TableDefinition) -> None:
    """Raise TableError(INVALID_STATEMENT) for a table whose rows cannot be replaced."""
    path, settings = definition.path, definition.settings
    if not definition.is_primary_key_table:
        what = (
            "is a log table, whose rows cannot be replaced: INSERT INTO adds rows, TRUNCATE drops all, and ALTER TABLE"
            f" {path.table} DROP PARTITION those of a partition"
        )
    elif settings.merge_engine is not None:
        what = f"has the merge engine '{settings.merge_engine}', which decides how a row changes: use INSERT INTO"
    elif settings.delete_behavior is not DeleteBehavior.ALLOW:
        what = f"does not allow deletes ('table.delete.behavior' = '{settings.delete_behavior}'): use INSERT INTO"
    else:
        return
    raise TableError(TableErrorCode.INVALID_STATEMENT, f"{path} cannot be overwritten: it {what}")
