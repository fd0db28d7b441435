"""`headrace tables lake`: how far the lake is, who works on it, and what went wrong."""

from __future__ import annotations

import time

import typer

from tablelayer.cli.connect import open_connection
from tablelayer.cli.options import Format
from tablelayer.cli.output import write_rows
from tablelayer.lake.coordinator import LakeStatus, ServerCoordinator, lake_tables
from tablelayer.model.table import TableDefinition

_COLUMNS = ("table", "format", "snapshot", "behind", "age", "freshness", "state")


def show(server: str, name: str | None, output: Format, *, finish: bool) -> None:
    """One line per table that is tiered; of one table also its buckets."""
    with open_connection(server) as connection:
        coordinator = ServerCoordinator(connection, "headrace-cli")
        if name is None:
            rows = [
                _row(definition, _status(coordinator, definition)) for definition in lake_tables(connection)
            ]
            write_rows(_COLUMNS, rows, output, numeric=(False, False, True, True, True, True, False))
            return
        definition = connection.admin.describe_table(name)
        assert definition.table_id is not None
        if finish:
            running = coordinator.finish(definition.table_id)
            typer.echo(
                f"{definition.path}: the running round ends after what is in hand"
                if running
                else f"{definition.path}: no round is running"
            )
            return
        status = _status(coordinator, definition)
        if output is Format.TABLE:
            for title, value in zip(_COLUMNS, _row(definition, status), strict=True):
                typer.echo(f"{title}: {value}")
        rows = [
            (bucket, status.offsets.get(bucket, 0), end, max(0, end - status.offsets.get(bucket, 0)))
            for bucket, end in sorted(status.ends.items())
        ]
        write_rows(("bucket", "tiered", "log end", "behind"), rows, output, numeric=(True,) * 4)


def state_text(status: LakeStatus) -> str:
    """What is going on with a table, in a few words."""
    if not status.enabled:
        return "not tiered"
    if status.worker is not None:
        doing = f"{status.doing or 'beginning'}, {status.changes:,} changes so far"
        return f"{status.worker}: {doing}, {_span(status.round_ms)}"
    if status.failures:
        again = f"again in {_span(status.retry_in_ms)}" if status.retry_in_ms else "may be tried again"
        return f"failed {status.failures} times, {again}: {status.failure}"
    if not status.behind:
        return "up to date"
    return "due" if _age_ms(status) >= status.freshness_ms else "fresh enough"


def _status(coordinator: ServerCoordinator, definition: TableDefinition) -> LakeStatus:
    assert definition.table_id is not None
    return coordinator.describe(definition.table_id)


def _row(definition: TableDefinition, status: LakeStatus) -> tuple[object, ...]:
    never = status.committed_at_ms < 0
    return (
        str(definition.path),
        status.format,
        "" if status.snapshot_id is None else status.snapshot_id,
        status.behind,
        "never" if never else _span(_age_ms(status)),
        _span(status.freshness_ms),
        state_text(status),
    )


def _age_ms(status: LakeStatus) -> int:
    """Time since the last commit; very long before the first."""
    return int(time.time() * 1000) - status.committed_at_ms if status.committed_at_ms >= 0 else 1 << 62


def _span(ms: int) -> str:
    """A duration with one unit, as a person says it."""
    for size, unit in ((86_400_000, "d"), (3_600_000, "h"), (60_000, "min")):
        if ms >= 2 * size:
            return f"{ms // size} {unit}"
    return f"{max(0, ms) / 1000:.0f} s"
