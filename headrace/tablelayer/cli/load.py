"""`headrace load`: a file as a table, in one line."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path

import typer

from headrace.tablelayer.cli.connect import COPYING_PATIENCE_MS, open_connection
from headrace.tablelayer.cli.errors import CommandError
from headrace.tablelayer.cli.options import SqlFormat
from headrace.tablelayer.cli.shell import run_sql
from headrace.tablelayer.model.table.path import TablePath
from headrace.tablelayer.model.types.quoting import quote_text, quoted
from headrace.tablelayer.sql.files import format_of


def load_file(
    server: str, file: str, name: str, key: Sequence[str], options: Mapping[str, str], *, shown: bool
) -> None:
    """Write a file's rows to a table, which is created if it does not exist. `shown`: print the statements instead."""
    path = TablePath.parse(name)
    kind = format_of(file, {})
    if not any(mark in file for mark in "*?[") and "://" not in file and not Path(file).exists():
        raise CommandError(f"{file} does not exist")
    with open_connection(server, COPYING_PATIENCE_MS) as connection:
        has_database = path.database in connection.admin.list_databases()
        exists = has_database and connection.admin.table_exists(path)
        known = connection.admin.describe_table(path).schema.primary_key if exists else ()
    table = f"{quoted(path.database)}.{quoted(path.table)}"
    if exists:
        if options or (key and tuple(key) != tuple(known)):
            kept = f"the primary key ({', '.join(known)})" if known else "no primary key"
            raise CommandError(
                f"table {path} exists already, with {kept}: --key and --set are for a new table. Leave them out to"
                f" write the rows into it, or drop it: headrace sql -e 'DROP TABLE {path}'"
            )
        statements = [f"COPY {table} FROM {quote_text(file)}"]
    else:
        statements = [] if has_database else [f"CREATE DATABASE {quoted(path.database)}"]
        keys = f" (PRIMARY KEY ({', '.join(map(quoted, key))}) NOT ENFORCED)" if key else ""
        given = ", ".join(f"{quote_text(each)} = {quote_text(value)}" for each, value in options.items())
        statements.append(
            f"CREATE TABLE {table}{keys}{f' WITH ({given})' if given else ''}"
            f" AS SELECT * FROM read_{kind}({quote_text(file)})"
        )
    if shown:
        typer.echo(";\n".join(statements) + ";")
        return
    if not exists:
        statements.append(f"SHOW CREATE TABLE {table}")
    text = ";\n".join(statements)
    run_sql(
        server,
        path.database,
        execute=text,
        file=None,
        output=SqlFormat.TABLE,
        patience_ms=COPYING_PATIENCE_MS,
    )
