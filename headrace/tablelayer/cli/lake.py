"""`headrace tables lake`: the lake's progress, its worker, and its failures."""

from __future__ import annotations

import time
from uuid import UUID

import typer

from headrace.tablelayer.cli.connect import open_connection
from headrace.tablelayer.cli.options import Format
from headrace.tablelayer.cli.output import json_row, write_object, write_rows
from headrace.tablelayer.client import Connection
from headrace.tablelayer.lake.coordinator import LakeStatus, ServerCoordinator, list_lake
from headrace.tablelayer.model.lake.offsets import in_order
from headrace.tablelayer.model.messages.lake import ListedLake
from headrace.tablelayer.model.table.path import DEFAULT_DATABASE

_COLUMNS = ("table", "format", "snapshot", "behind", "lag", "age", "freshness", "state")
_BUCKETS = ("bucket", "tiered", "log end", "behind")
_NUMERIC = (False, False, True, True, True, True, True, False)


def show(server: str, name: str | None, output: Format, *, finish: bool) -> None:
    """Show one line per tiered table and plain topic; for a named one also its buckets."""
    with open_connection(server) as connection:
        coordinator = ServerCoordinator(connection, "headrace-cli")
        if name is None:
            rows = [_row(each.name, each) for each in list_lake(connection)]
            write_rows(_COLUMNS, rows, output, numeric=_NUMERIC)
            return
        shown, table_id = _find(connection, name)
        if finish:
            running = coordinator.finish(table_id)
            typer.echo(
                f"{shown}: the running round ends after its present piece"
                if running
                else f"{shown}: no round is running"
            )
            return
        status = coordinator.describe(table_id)
        rows = [
            (str(place), status.offsets.get(place, 0), end, max(0, end - status.offsets.get(place, 0)))
            for place, end in in_order(status.ends)
        ]
        if output is Format.JSON:
            told = json_row(_COLUMNS, _row(shown, status))
            write_object({**told, "buckets": [json_row(_BUCKETS, row) for row in rows]})
            return
        if output is Format.TABLE:
            for title, value in zip(_COLUMNS, _row(shown, status), strict=True):
                typer.echo(f"{title}: {value}")
        write_rows(_BUCKETS, rows, output, numeric=(True,) * 4)


def _find(connection: Connection, name: str) -> tuple[str, UUID]:
    """Return name and id of the table or topic that is tiered under this name, or of the table of this name. Raises
    TableError.
    """
    for each in list_lake(connection):
        if each.name == name or (each.name == f"{DEFAULT_DATABASE}.{name}" and not each.is_topic):
            return each.name, each.table_id
    definition = connection.admin.describe_table(name)
    return str(definition.path), definition.table_id


def state_text(status: LakeStatus | ListedLake) -> str:
    """Return the state of a table's lake in a few words."""
    if isinstance(status, LakeStatus) and not status.enabled:
        return "not tiered"
    if status.worker is not None:
        doing = f"{status.doing or 'beginning'}, {status.changes:,} changes so far"
        return f"{status.worker}: {doing}, {span_text(status.round_ms)}"
    if status.failures:
        again = f"again in {span_text(status.retry_in_ms)}" if status.retry_in_ms else "may be tried again"
        return f"failed {status.failures} times, {again}: {status.failure}"
    if not status.behind:
        return "up to date"
    return "due" if _age_ms(status) >= status.freshness_ms else "fresh enough"


def _row(name: str, status: LakeStatus | ListedLake) -> tuple[object, ...]:
    never = status.committed_at_ms < 0
    return (
        name,
        status.format,
        "" if status.snapshot_id in (None, -1) else status.snapshot_id,
        status.behind,
        "" if status.behind_ms < 0 else span_text(status.behind_ms),
        "never" if never else span_text(_age_ms(status)),
        span_text(status.freshness_ms),
        state_text(status),
    )


def _age_ms(status: LakeStatus | ListedLake) -> int:
    """Return the time since the last commit; very long before the first."""
    return int(time.time() * 1000) - status.committed_at_ms if status.committed_at_ms >= 0 else 1 << 62


def span_text(ms: int) -> str:
    """Return a duration with one unit, for people."""
    for size, unit in ((86_400_000, "d"), (3_600_000, "h"), (60_000, "min")):
        if ms >= 2 * size:
            return f"{ms // size} {unit}"
    return f"{max(0, ms) / 1000:.0f} s"
