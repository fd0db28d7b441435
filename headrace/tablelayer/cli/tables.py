"""`headrace tables`: inspect tables without SQL."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, Annotated

import typer

from headrace.tablelayer.cli.errors import CommandError
from headrace.tablelayer.cli.names import table_names, topic_names
from headrace.tablelayer.cli.options import DEFAULT_SERVER, Format, FormatOption, ServerOption
from headrace.tablelayer.cli.words import named_values

if TYPE_CHECKING:
    import pyarrow as pa

    from headrace.tablelayer.client import ScanBatch

tables = typer.Typer(
    no_args_is_help=True, rich_markup_mode=None, help="List, create, describe and inspect tables."
)

TableArgument = Annotated[
    str,
    typer.Argument(
        metavar="DATABASE.TABLE",
        help="Table; its database is `default` if not given.",
        autocompletion=table_names,
    ),
]
ColumnsOption = Annotated[
    str | None,
    typer.Option("--columns", "-c", metavar="A,B,...", help="Only these columns.", show_default=False),
]


def _columns(text: str | None) -> list[str] | None:
    return None if text is None else [name.strip() for name in text.split(",") if name.strip()]


@tables.command("list")
def list_tables(
    database: Annotated[
        str | None, typer.Option("-d", "--database", metavar="DATABASE", help="Only tables of this database.")
    ] = None,
    output: FormatOption = Format.TABLE,
    server: ServerOption = DEFAULT_SERVER,
) -> None:
    """List tables with their kind, buckets and rows.

    \b
      headrace tables list
    """
    from headrace.tablelayer.cli.connect import open_connection
    from headrace.tablelayer.cli.output import write_rows

    rows = []
    with open_connection(server) as connection:
        for name in [database] if database else connection.admin.list_databases():
            for table_name in connection.admin.list_tables(name):
                table = connection.table(f"{name}.{table_name}")
                definition = table.definition
                kind = "primary key" if definition.is_primary_key_table else "log"
                rows.append((str(table.path), kind, definition.bucket_count, table.count()))
    write_rows(("table", "kind", "buckets", "rows"), rows, output, numeric=(False, False, True, True))


@tables.command()
def create(
    name: Annotated[
        str | None,
        typer.Argument(
            metavar="TABLE",
            help="Table, as database.table; with --from-topics a database.",
            show_default=False,
        ),
    ] = None,
    from_topic: Annotated[
        str | None,
        typer.Option(
            "--from-topic",
            metavar="TOPIC",
            help="Topic whose records define the columns, for example a connector's.",
            autocompletion=topic_names,
            show_default=False,
        ),
    ] = None,
    from_topics: Annotated[
        str | None,
        typer.Option(
            "--from-topics",
            metavar="PATTERN",
            help="Pattern of topics, with * and ?: a table for each, with the last part of the topic's name.",
            show_default=False,
        ),
    ] = None,
    primary_key: Annotated[
        str | None,
        typer.Option(
            "--primary-key",
            metavar="A,B,...",
            help="Primary key; default: the fields of the records' keys.",
            show_default=False,
        ),
    ] = None,
    buckets: Annotated[
        int | None,
        typer.Option(min=1, help="Number of buckets, by default the server's `default.bucket.number`."),
    ] = None,
    sets: Annotated[
        list[str] | None,
        typer.Option("--set", metavar="NAME=VALUE", help="Table option; repeatable."),
    ] = None,
    shown: Annotated[
        bool, typer.Option("--print", help="Show the statement without creating the table.")
    ] = False,
    fills: Annotated[
        bool, typer.Option("--backfill", help="Write the records that the topic has now to the table.")
    ] = False,
    follow: Annotated[
        bool,
        typer.Option("--follow", "-f", help="Write the records of the topic to the table until Ctrl-C."),
    ] = False,
    skip_refused: Annotated[
        bool,
        typer.Option(
            "--skip-refused", help="Continue after a record that does not fit the table, and count it."
        ),
    ] = False,
    server: ServerOption = DEFAULT_SERVER,
) -> None:
    """Create a table for the records of a topic, from their schema (Kafka Connect's) or their fields.

    The table is a topic of its own, with its own name. Without --backfill it is empty, and the topic stays as it is.

    \b
      headrace tables create shop.orders --from-topic cdc.public.orders
      headrace tables create shop.orders --from-topic cdc.public.orders --print > orders.sql
      headrace tables create shop.orders --from-topic orders --primary-key id --backfill
      headrace tables create --from-topics 'cdc.shop.*' --backfill
    """
    from headrace.tablelayer.cli.connect import COPYING_PATIENCE_MS, PATIENCE_MS, open_connection
    from headrace.tablelayer.cli.inspect import table_for_topic, tables_for_topics
    from headrace.tablelayer.model.ddl import create_table_sql

    if (from_topic is None) == (from_topics is None):
        raise CommandError("pass --from-topic TOPIC, or --from-topics PATTERN for several tables")
    if from_topic is not None and name is None:
        raise CommandError("name the table, as database.table, before --from-topic")
    if from_topic is None and follow:
        raise CommandError("--follow is for one table: pass --from-topic")
    if shown and (fills or follow):
        raise CommandError(
            "--print creates no table, so there is nothing for --backfill and --follow to fill"
        )
    if skip_refused and not (fills or follow):
        raise CommandError("--skip-refused is for --backfill and --follow")
    options, key = named_values(sets or []), _columns(primary_key) or ()
    with open_connection(server, COPYING_PATIENCE_MS if fills or follow else PATIENCE_MS) as connection:
        if from_topic is not None:
            found = {from_topic: table_for_topic(connection, name or "", from_topic, key, buckets, options)}
        else:
            found = tables_for_topics(connection, name, from_topics or "", key, buckets, options)
            if not shown:
                for database in dict.fromkeys(each.path.database for each in found.values()):
                    connection.admin.create_database(database, if_not_exists=True)
        for source, definition in found.items():
            made = definition if shown else connection.admin.create_table(definition)
            typer.echo(f"{create_table_sql(made)};")
            topic = made.path.topic
            if fills or follow:
                from headrace.tablelayer.cli.backfill import backfill

                copied = backfill(connection, source, topic, follow=follow, skip_refused=skip_refused)
                refused = f", {copied.refused} refused" if copied.refused else ""
                typer.echo(f"{copied.written} records of {source} copied{refused}", err=True)
            elif not shown:
                typer.echo(
                    f"the table is empty: the records of {source} are not in it, and new ones will not be. Let"
                    f" producers write to topic {topic}, or copy the records by --backfill and --follow",
                    err=True,
                )


@tables.command(hidden=True)
def adopt(topic: Annotated[str, typer.Argument(help="Name of a topic.", autocompletion=topic_names)]) -> None:
    """Say how the records of a topic get into a table."""
    raise CommandError(
        f"topic {topic} cannot become a table in place, because the log of a table has another form. Copy its records"
        f" into a table with another name:\n"
        f"  headrace tables create DATABASE.TABLE --from-topic {topic} --backfill --follow"
    )


@tables.command()
def describe(
    name: TableArgument, output: FormatOption = Format.TABLE, server: ServerOption = DEFAULT_SERVER
) -> None:
    """Show a table's columns, keys and options.

    \b
      headrace tables describe orders
    """
    from headrace.tablelayer.cli.connect import open_connection
    from headrace.tablelayer.cli.describe import definition_object, describe_definition
    from headrace.tablelayer.cli.output import write_object

    with open_connection(server) as connection:
        definition = connection.admin.describe_table(name)
    if output is Format.JSON:
        write_object(definition_object(definition))
    else:
        describe_definition(definition, output)


@tables.command()
def head(
    name: TableArgument,
    count: Annotated[int, typer.Option("-n", min=1, help="Number of rows.")] = 10,
    columns: ColumnsOption = None,
    output: FormatOption = Format.TABLE,
    server: ServerOption = DEFAULT_SERVER,
) -> None:
    """Show some rows, quickly: the first by key of each bucket, or the latest of a log table.

    \b
      headrace tables head orders -n 3 --columns id,amount
    """
    from headrace.tablelayer.cli.connect import open_connection
    from headrace.tablelayer.cli.output import write_arrow

    with open_connection(server) as connection:
        write_arrow(connection.table(name).limit(count, _columns(columns)), output)


def _narrow(changes: pa.Table) -> pa.Table:
    """Return changes with narrow columns before those of the table."""
    import pyarrow as pa

    times = changes.column("_commit_timestamp").cast(pa.timestamp("ms")).cast(pa.string())
    narrow = changes.set_column(3, "time (UTC)", times)
    return narrow.rename_columns(["change", "bucket", "offset", "time (UTC)", *narrow.column_names[4:]])


@tables.command()
def tail(
    name: TableArgument,
    count: Annotated[
        int, typer.Option("-n", min=0, help="Number of changes of each bucket to begin with.")
    ] = 10,
    follow: Annotated[
        bool, typer.Option("--follow", "-f", help="Continue with new changes until Ctrl-C.")
    ] = False,
    columns: ColumnsOption = None,
    output: FormatOption = Format.TABLE,
    server: ServerOption = DEFAULT_SERVER,
) -> None:
    """Show the last changes of a table, with their change types: +A +I -U +U -D.

    CSV and JSON have the columns of `"t$changelog"`. The table is for people, and has shorter ones.

    \b
      headrace tables tail fruit
      headrace tables tail fruit --follow --format json
    """
    from headrace.tablelayer.cli.connect import open_connection
    from headrace.tablelayer.cli.output import RowStream, write_arrow
    from headrace.tablelayer.sql.changes import as_changes

    def changes(batches: Sequence[ScanBatch]) -> pa.Table:
        found = as_changes(batches, table.arrow_schema, _columns(columns))
        return _narrow(found) if output is Format.TABLE else found

    with open_connection(server) as connection:
        table = connection.table(name)
        begin, end = table.offsets("earliest"), table.offsets("latest")
        start = {bucket: max(begin[bucket], end[bucket] - count) for bucket in end}
        batches, shown = [], RowStream(output)
        with table.scan(_columns(columns), start=start, until=None if follow else end) as scan:
            for batch in scan:
                if follow:
                    shown.write_arrow(changes([batch]))
                else:
                    batches.append(batch)
        if not follow:
            write_arrow(changes(batches), output)


@tables.command()
def count(
    name: TableArgument, output: FormatOption = Format.TABLE, server: ServerOption = DEFAULT_SERVER
) -> None:
    """Print the number of rows, without reading them.

    \b
      headrace tables count orders
    """
    from headrace.tablelayer.cli.connect import open_connection
    from headrace.tablelayer.cli.output import write_rows

    with open_connection(server) as connection:
        table = connection.table(name)
        rows = table.count()
    if output is Format.TABLE:
        typer.echo(rows)
    else:
        write_rows(("table", "rows"), [(str(table.path), rows)], output)


@tables.command()
def partitions(
    name: TableArgument, output: FormatOption = Format.TABLE, server: ServerOption = DEFAULT_SERVER
) -> None:
    """List the partitions of a partitioned table with their buckets, rows and sizes.

    Partitions are added and dropped by SQL: ALTER TABLE t ADD PARTITION (day = '2024-09-19').

    \b
      headrace tables partitions daily
    """
    from headrace.tablelayer.cli.connect import open_connection
    from headrace.tablelayer.cli.inspect import partition_rows
    from headrace.tablelayer.cli.output import write_rows

    with open_connection(server) as connection:
        keys, rows = partition_rows(connection, name)
    names = (*keys, "topic", "buckets", "rows", "log bytes")
    numeric = (*(False for _ in keys), False, True, True, True)
    write_rows(names, rows, output, numeric=numeric, keys=(*names[:-1], "log_bytes"))


@tables.command()
def buckets(
    name: TableArgument,
    at: Annotated[
        str | None,
        typer.Option(
            metavar="TIME", help="Also show the offset at a time: 2024-09-19T12:00:00, or milliseconds."
        ),
    ] = None,
    output: FormatOption = Format.TABLE,
    server: ServerOption = DEFAULT_SERVER,
) -> None:
    """Show a table's buckets, or those of each partition: leader, offsets, and size of the log.

    \b
      headrace tables buckets orders
      headrace tables buckets orders --at 2024-09-19T12:00:00
    """
    from headrace.tablelayer.cli.connect import open_connection
    from headrace.tablelayer.cli.inspect import bucket_rows
    from headrace.tablelayer.cli.output import write_rows
    from headrace.tablelayer.cli.words import moment_of

    moment = None if at is None else moment_of(at)
    with open_connection(server) as connection:
        rows = bucket_rows(connection, name, moment)
    names = ["topic", "bucket", "leader", "first offset", "end offset", "log bytes"]
    if moment is not None:
        names.append("offset at time")
    write_rows(names, rows, output, numeric=(False, *(True for _ in names[1:])))


@tables.command()
def size(
    names: Annotated[
        list[str] | None,
        typer.Argument(metavar="DATABASE.TABLE", help="Only these tables.", show_default=False),
    ] = None,
    output: FormatOption = Format.TABLE,
    server: ServerOption = DEFAULT_SERVER,
) -> None:
    """Show the number of rows of tables and the bytes of their logs, largest first.

    \b
      headrace tables size
      headrace tables size shop.orders --output json
    """
    from headrace.tablelayer.cli.connect import open_connection
    from headrace.tablelayer.cli.inspect import size_rows
    from headrace.tablelayer.cli.output import write_rows

    with open_connection(server) as connection:
        rows = size_rows(connection, names or [])
    write_rows(
        ("table", "kind", "partitions", "rows", "log bytes", "bytes per row"), rows, output,
        numeric=(False, False, True, True, True, True),
    )  # fmt: skip


@tables.command()
def lookup(
    name: TableArgument,
    keys: Annotated[
        list[str],
        typer.Argument(
            metavar="KEY", help="Values of the key; for several columns: a=1,b=x", show_default=False
        ),
    ],
    columns: ColumnsOption = None,
    output: FormatOption = Format.TABLE,
    server: ServerOption = DEFAULT_SERVER,
) -> None:
    """Look up rows by primary key, or by a bucket key that is its prefix. The exit code is 1 if there is no row.

    \b
      headrace tables lookup fruit 1 2
      headrace tables lookup orders customer=7,number=3 --output json
      headrace tables lookup orders customer=7
    """
    from headrace.tablelayer.cli.connect import open_connection
    from headrace.tablelayer.cli.inspect import looked_up
    from headrace.tablelayer.cli.output import write_arrow

    with open_connection(server) as connection:
        rows, missing = looked_up(connection.table(name), keys, _columns(columns))
    write_arrow(rows, output)
    for key in missing:
        typer.echo(f"{key}: no such row", err=True)
    if not rows.num_rows:
        raise typer.Exit(1)


@tables.command()
def lake(
    name: Annotated[
        str | None,
        typer.Argument(
            metavar="DATABASE.TABLE", help="Only this table, with its buckets.", show_default=False
        ),
    ] = None,
    finish: Annotated[
        bool, typer.Option("--finish", help="End the running round after its present piece.")
    ] = False,
    output: FormatOption = Format.TABLE,
    server: ServerOption = DEFAULT_SERVER,
) -> None:
    """Show the lake's progress: snapshot, changes behind, age, running round, failures.

    \b
      headrace tables lake
      headrace tables lake shop.orders
      headrace tables lake shop.orders --finish
    """
    from headrace.tablelayer.cli.errors import CommandError
    from headrace.tablelayer.cli.lake import show

    if finish and name is None:
        raise CommandError("--finish needs a table: headrace tables lake DATABASE.TABLE --finish")
    show(server, name, output, finish=finish)
