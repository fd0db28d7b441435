"""`headrace sql`: statements from the command line, a file, a pipe, or a prompt."""

from __future__ import annotations

import sys
from collections.abc import Iterator
from contextlib import contextmanager, redirect_stdout
from pathlib import Path

import typer

from headrace.tablelayer.cli.connect import PATIENCE_MS, open_connection
from headrace.tablelayer.cli.describe import describe_definition
from headrace.tablelayer.cli.errors import CommandError
from headrace.tablelayer.cli.interrupting import InterruptedWorkError, interruptible
from headrace.tablelayer.cli.options import Format, SqlFormat
from headrace.tablelayer.cli.output import RowStream, write_batches, write_notices, write_parquet, write_rows
from headrace.tablelayer.cli.process import INTERRUPTED, leave
from headrace.tablelayer.cli.progress import showing
from headrace.tablelayer.cli.streams import finish
from headrace.tablelayer.client import Connection, stopping
from headrace.tablelayer.sql.answer import Answer
from headrace.tablelayer.sql.session import Session


def run_sql(
    server: str,
    database: str,
    *,
    execute: str | None,
    file: Path | None,
    output: SqlFormat,
    to: Path | None = None,
    patience_ms: int = PATIENCE_MS,
) -> None:
    """Run the given statements, or those of standard input; with a prompt if that is a terminal.

    `to` is a file for the rows. It is written under another name and renamed at the end, so that it never has half of
    the result.
    """
    with open_connection(server, patience_ms) as connection:
        session = Session(connection, database)
        if execute is not None:
            text = execute
        elif file is not None:
            text = _read(file)
        elif not sys.stdin.isatty():
            text = _read(Path("-"))
        elif to is not None or output is SqlFormat.PARQUET:
            raise CommandError("pass the statements with -e or -f to write their rows to a file")
        else:
            from headrace.tablelayer.cli.prompt import (
                run_prompt,
            )  # a tenth of a second, only for the prompt

            run_prompt(connection, session, server, Format(output.value), show)
            return

        def work() -> None:
            if output is SqlFormat.PARQUET:
                _write_parquet(connection, session, text, to)
            elif to is None:
                _run(connection, session, text, Format(output.value))
            else:
                with (
                    _replacing(to) as path,
                    path.open("w", encoding="utf-8") as written,
                    redirect_stdout(written),
                ):
                    _run(connection, session, text, Format(output.value))

        try:
            interruptible(work, lambda: session.written_count)
        except InterruptedWorkError as error:
            typer.echo(error.told, err=True)
            if to is not None:
                _part_of(to).unlink(missing_ok=True)
            if error.goes_on:
                leave(finish(INTERRUPTED))  # the work would keep the process
            raise typer.Exit(INTERRUPTED) from None


@contextmanager
def _replacing(path: Path) -> Iterator[Path]:
    """Yield a temporary path, which is renamed to `path` at the end of the block if that succeeds."""
    part = _part_of(path)
    try:
        try:
            yield part
            part.replace(path)
        except OSError as error:
            raise CommandError(f"{path} cannot be written: {error.strerror or error}") from error
    finally:
        part.unlink(missing_ok=True)


def _part_of(path: Path) -> Path:
    return path.with_name(f"{path.name}.part")


def _write_parquet(connection: Connection, session: Session, sql: str, to: Path | None) -> None:
    """Write one query's rows; other statements may precede and follow it."""
    if to is None:
        raise CommandError("Parquet output needs a file: add --to FILE")
    count: int | None = None
    with _replacing(to) as path:
        for answer in _answers(connection, session, sql):
            write_notices(answer.notices)
            if answer.schema is None:
                continue
            if answer.is_endless:
                raise CommandError("a streaming query never fills a Parquet file: leave out EMIT CHANGES")
            if count is not None:
                raise CommandError("a Parquet file has the rows of one query, but there are two queries")
            count = write_parquet(answer.schema, answer.batches(), path)
        if count is None:
            raise CommandError("no statement is a query, so there are no rows to write")
    typer.echo(f"{count} row{'' if count == 1 else 's'} written to {to}", err=True)


def _answers(connection: Connection, session: Session, sql: str) -> Iterator[Answer]:
    """Yield the answers of a text's statements, with progress on the terminal while each one runs."""
    running = session.run(sql)
    while True:
        stopping.check()
        with showing(connection, session):
            answer = next(running, None)
        if answer is None:
            return
        yield answer


def _read(file: Path) -> str:
    try:
        return sys.stdin.read() if str(file) == "-" else file.read_text(encoding="utf-8")
    except UnicodeDecodeError as error:
        where = "standard input" if str(file) == "-" else str(file)
        raise CommandError(f"{where} is not UTF-8: {error}") from error
    except OSError as error:
        raise CommandError(f"{file} cannot be read: {error}") from error


def _run(connection: Connection, session: Session, sql: str, output: Format) -> None:
    for answer in _answers(connection, session, sql):
        show(answer, output)


def show(answer: Answer, output: Format, *, took: str = "") -> None:
    """Write an answer: rows as they come, and definitions, to standard output.

    Messages are written there too, but not among CSV or JSON rows. `took` is the text about its duration.
    """
    write_notices(answer.notices)
    if answer.is_endless:
        show_arriving(answer, output)
        return
    count: int | None = None
    if answer.texts is not None:
        rows = list(zip(*answer.texts.values(), strict=True))
        write_rows(list(answer.texts), rows, output, keys=list(answer.texts))
        count = len(rows)
    elif answer.schema is not None:
        count = write_batches(answer.schema, answer.batches(), output)
    if count is not None:
        if output is Format.TABLE:
            typer.echo(f"{count} row{'' if count == 1 else 's'}{took}")
    elif answer.definition is not None:
        describe_definition(answer.definition, output)
    elif answer.text is not None:
        typer.echo(
            answer.text + ("" if answer.is_code else took),
            err=output is not Format.TABLE and not answer.is_code,
        )


def show_arriving(answer: Answer, output: Format) -> None:
    """Write rows when they arrive, until the work is stopped or they end."""
    import pyarrow as pa

    rows = RowStream(output)
    for batch in answer.batches():
        stopping.check()
        if batch.num_rows:
            rows.write_arrow(pa.Table.from_batches([batch]))
