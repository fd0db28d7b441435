"""The `headrace` command. Each command imports what it needs when it runs: `--help` imports nothing of ours."""

from __future__ import annotations

import gc
import os
import sys
from enum import StrEnum
from pathlib import Path
from typing import Annotated

import typer

from headrace.tablelayer.cli import STARTED
from headrace.tablelayer.cli.cluster import cluster
from headrace.tablelayer.cli.configs import configs
from headrace.tablelayer.cli.deferred import deferred
from headrace.tablelayer.cli.errors import CommandError, Group, give_config
from headrace.tablelayer.cli.groups import groups
from headrace.tablelayer.cli.options import (
    DEFAULT_SERVER,
    Format,
    FormatOption,
    LogFormat,
    ServerOption,
    SqlFormat,
    SqlFormatOption,
)
from headrace.tablelayer.cli.process import begin
from headrace.tablelayer.cli.streams import broken_output, finish, prepare
from headrace.tablelayer.cli.tables import tables
from headrace.tablelayer.cli.topics import topics
from headrace.tablelayer.cli.users import users

COMPLETE_VARIABLE = "_HEADRACE_COMPLETE"


class Shell(StrEnum):
    """Those whose completion is known."""

    BASH = "bash"
    ZSH = "zsh"
    FISH = "fish"


app = typer.Typer(
    name="headrace",
    cls=Group,
    no_args_is_help=True,
    pretty_exceptions_enable=False,
    add_completion=False,
    rich_markup_mode=None,
    context_settings={"help_option_names": ["-h", "--help"]},
    help="""A Kafka broker and a streaming table store in one process.

    \b
    Start here:
      headrace serve --data ./data
      headrace sql -e "CREATE TABLE fruit (id INT, name STRING, PRIMARY KEY (id) NOT ENFORCED)"
      headrace sql -e "INSERT INTO fruit VALUES (1, 'apple'), (2, 'pear')"
      headrace sql -e "SELECT * FROM fruit WHERE id = 1"

    Every Kafka client can read and write the same table as topic default.fruit, as JSON.
    `headrace COMMAND --help` explains a command, with examples.""",
)
app.add_typer(topics, name="topics")
app.add_typer(tables, name="tables")
app.add_typer(groups, name="groups")
app.add_typer(configs, name="configs")
app.add_typer(users, name="users")
app.add_typer(cluster, name="cluster")


@app.command()
def serve(
    data: Annotated[
        Path, typer.Option(metavar="DIR", help="Where everything is kept; made if it does not exist.")
    ],
    listen: Annotated[
        str | None,
        typer.Option(
            metavar="HOST:PORT",
            help="Address to listen on; port 0 takes a free one. "
            f"By default {DEFAULT_SERVER}, or what the configuration listeners says.",
        ),
    ] = None,
    sets: Annotated[
        list[str] | None,
        typer.Option(
            "--set", metavar="NAME=VALUE", help="A broker configuration under Kafka's own name; repeatable."
        ),
    ] = None,
    config: Annotated[
        Path | None,
        typer.Option(metavar="FILE", help="Broker configurations in a .properties or .toml file."),
    ] = None,
    zookeeper: Annotated[
        str | None,
        typer.Option(
            metavar="HOST:PORT/PATH",
            help="Be one of the brokers of the cluster there: each has a node.id and a data directory of its own.",
        ),
    ] = None,
    metrics: Annotated[
        str | None,
        typer.Option(
            metavar="HOST:PORT",
            help="Serve GET /metrics for Prometheus there; without it nothing is measured.",
        ),
    ] = None,
    log_format: Annotated[
        LogFormat, typer.Option(help="How lines of the log look, on stderr and in the file.")
    ] = LogFormat.TEXT,
    verbose: Annotated[
        bool, typer.Option("--verbose", "-v", help="Log what the server does to stderr.")
    ] = False,
) -> None:
    """Run the server until Ctrl-C or SIGTERM.

    One line on standard output says when it is ready. Warnings go to standard error, everything to DIR/headrace.log.

    \b
      headrace serve --data ./data
      headrace serve --data ./data --listen 0.0.0.0:9092 --set advertised.listeners=kafka.example:9092
      headrace serve --data ./data --set num.partitions=4 --set auto.create.topics.enable=false
      headrace serve --data ./data --config server.properties
      headrace serve --data ./data --metrics 127.0.0.1:9308
      headrace serve --data ./data1 --zookeeper 127.0.0.1:2181/headrace --set node.id=1 --listen 127.0.0.1:9091
    """
    gc.disable()  # a tenth of the start; what is imported is no garbage. `Broker.run_forever` switches it on
    try:
        from headrace.tablelayer.cli.serve import parse_sets
        from headrace.tablelayer.cli.serve import serve as run_server

        run_server(
            listen,
            data,
            parse_sets(sets or []),
            config,
            zookeeper=zookeeper,
            metrics=metrics,
            log_format=log_format,
            verbose=verbose,
            started=STARTED,
        )
    finally:  # it may not have come so far, and the process may not be the server's alone
        gc.enable()


@app.command()
def zookeeper(
    data: Annotated[
        Path, typer.Option(metavar="DIR", help="Where it keeps its nodes; made if it does not exist.")
    ],
    listen: Annotated[
        str, typer.Option(metavar="HOST:PORT", help="Address to listen on.")
    ] = "127.0.0.1:2181",
) -> None:
    """Run one ZooKeeper server for development until Ctrl-C or SIGTERM: Apache's own, from pyspark; it needs Java.

    \b
      headrace zookeeper --data ./zookeeper
      headrace serve --data ./data1 --zookeeper 127.0.0.1:2181/headrace --set node.id=1 --listen 127.0.0.1:9091
      headrace serve --data ./data2 --zookeeper 127.0.0.1:2181/headrace --set node.id=2 --listen 127.0.0.1:9092
    """
    from headrace.tablelayer.cli.zookeeper import run_zookeeper

    run_zookeeper(data, listen)


@app.command("format")
def format_data(
    data: Annotated[Path, typer.Option(metavar="DIR", help="The data directory; made if it does not exist.")],
    add_scram: Annotated[
        list[str] | None,
        typer.Option(
            "--add-scram",
            metavar="SCRAM-SHA-256=[name=NAME]",
            help="A user, with SCRAM-SHA-256 or SCRAM-SHA-512; iterations=N beside its name if need be; repeatable.",
        ),
    ] = None,
    node_id: Annotated[int, typer.Option(min=0, help="The node.id of its server.")] = 0,
) -> None:
    """Make a data directory before its server starts, with the first users in it: whoever makes all others.

    Their passwords are asked for, or read from standard input, a line each, or from HEADRACE_PASSWORD.

    \b
      headrace format --data ./data --add-scram 'SCRAM-SHA-512=[name=admin]' < password.txt
      headrace serve --data ./data --config server.properties
    """
    from headrace.tablelayer.cli.users import format_directory

    format_directory(data, add_scram or [], node_id)


@app.command()
def sql(
    execute: Annotated[
        str | None,
        typer.Option("-e", "--execute", metavar="SQL", help="Run these statements, separated by semicolons."),
    ] = None,
    file: Annotated[
        Path | None,
        typer.Option(
            "-f", "--file", metavar="FILE", help="Run the statements of a file; - is standard input."
        ),
    ] = None,
    database: Annotated[
        str, typer.Option("-d", "--database", help="Database of table names without one.")
    ] = "default",
    output: SqlFormatOption = SqlFormat.TABLE,
    to: Annotated[
        Path | None,
        typer.Option(
            "--to", metavar="FILE", help="Write the rows there; it is replaced when all of them are written."
        ),
    ] = None,
    server: ServerOption = DEFAULT_SERVER,
) -> None:
    """Run SQL on tables: define, change and ask them. Without -e and -f: a prompt.

    \b
      headrace sql -e "CREATE TABLE fruit (id INT, name STRING, PRIMARY KEY (id) NOT ENFORCED)"
      headrace sql -e "INSERT INTO fruit VALUES (1, 'apple'), (2, 'pear')"
      headrace sql -e "UPDATE fruit SET name = 'fig' WHERE id = 1; DELETE FROM fruit WHERE id = 2"
      headrace sql -e "SELECT name, count(*) FROM fruit GROUP BY name" --format csv
      headrace sql -e 'SELECT * FROM "fruit$changelog"'
      headrace sql -e "SELECT min(id), max(id), count(*) FROM fruit"
      headrace sql -e "SELECT * FROM fruit" --output parquet --to fruit.parquet
      headrace sql -f tables.sql

    Equality on the whole primary key is a lookup, on the bucket key a prefix lookup; LIMIT, COUNT, MIN and MAX
    alone read almost nothing. Any other SELECT runs in DuckDB, over just the columns it names and the rows that the
    server leaves of its WHERE. The prompt knows the tab key and keeps its history in ~/.cache/headrace.
    """
    if execute is not None and file is not None:
        raise CommandError("give the statements by -e or by -f, not both")
    from headrace.tablelayer.cli.shell import run_sql

    run_sql(server, database, execute=execute, file=file, output=output, to=to)


@app.command()
def console(
    listen: Annotated[
        str, typer.Option(metavar="HOST:PORT", help="Address to listen on; port 0 takes a free one.")
    ] = "127.0.0.1:9380",
    basic_auth_file: Annotated[
        Path | None,
        typer.Option(metavar="FILE", help="USER:PASSWORD that browsers have to give (HTTP basic)."),
    ] = None,
    token_file: Annotated[
        Path | None, typer.Option(metavar="FILE", help="The token that programs have to give (HTTP bearer).")
    ] = None,
    host: Annotated[
        list[str] | None,
        typer.Option(
            metavar="HOST[:PORT]",
            help="A name by which browsers ask for it, behind a proxy, say; repeatable.",
        ),
    ] = None,
    allow_writes: Annotated[
        bool,
        typer.Option(
            "--allow-writes", help="Let it produce, write rows, reset groups, change users and rights too."
        ),
    ] = False,
    flight_sql: Annotated[
        str | None,
        typer.Option(
            metavar="HOST:PORT",
            help="Answer Arrow Flight SQL too (ADBC, JDBC, ODBC), reading only; port 0 takes a free one.",
        ),
    ] = None,
    server: ServerOption = DEFAULT_SERVER,
) -> None:
    """Run the web console until Ctrl-C or SIGTERM: a page, and a REST interface (/openapi.json) below it.

    What it may is what its own connection may (--config client.properties). It changes nothing without --allow-writes,
    and listens on more than this machine with credentials only. It needs: pip install 'headrace[console]'

    \b
      headrace console
      headrace console --flight-sql 127.0.0.1:31337
      headrace --config admin.properties console --listen 0.0.0.0:9380 --basic-auth-file who.txt --allow-writes
    """
    from headrace.tablelayer.cli.console import run_console

    run_console(
        server,
        listen,
        basic_auth_file=basic_auth_file,
        token_file=token_file,
        hosts=host or [],
        allow_writes=allow_writes,
        flight_sql=flight_sql,
    )


@app.command()
def top(
    interval: Annotated[float, typer.Option(min=0.1, help="Seconds between two looks.")] = 1.0,
    count: Annotated[int | None, typer.Option("-n", min=1, help="Stop after so many looks.")] = None,
    internal: Annotated[bool, typer.Option(help="Show internal topics too.")] = False,
    output: FormatOption = Format.TABLE,
    server: ServerOption = DEFAULT_SERVER,
) -> None:
    """Watch a server: its CPU (100 % is one core) and memory, records a second of every topic and table, busiest first,
    how far consumer groups are behind, and how far the lake is.

    \b
      headrace top
      headrace top --interval 5 -n 3
      headrace top -o json
    """
    from headrace.tablelayer.cli.top import watch

    watch(server, interval_s=interval, looks=count, internal=internal, output=output)


@app.command()
def doctor(
    data: Annotated[
        Path | None,
        typer.Option(metavar="DIR", help="Look at this data directory too: owner, disk, who uses it."),
    ] = None,
    listen: Annotated[
        str | None,
        typer.Option(metavar="HOST:PORT", help="Look whether a server could listen there."),
    ] = None,
    output: FormatOption = Format.TABLE,
    server: ServerOption = DEFAULT_SERVER,
) -> None:
    """Find the usual mistakes: of this machine, of a data directory, of a server and of the address that it advertises.

    Each finding says what to do. Exit code 1 if something does not work; warnings alone give 0.

    \b
      headrace doctor
      headrace doctor --server kafka.example:9092 --output json
      headrace doctor --data ./data --listen 0.0.0.0:9092
    """
    from headrace.tablelayer.cli.doctor import examine

    raise typer.Exit(examine(server, data, listen, output))


@app.command()
def tier(
    names: Annotated[
        list[str] | None,
        typer.Argument(metavar="DATABASE.TABLE", help="Only these tables.", show_default=False),
    ] = None,
    once: Annotated[
        bool, typer.Option("--once", help="Bring the lake up to now and end; otherwise go on.")
    ] = False,
    interval: Annotated[float, typer.Option(min=0.1, help="Seconds between two questions for work.")] = 10.0,
    warehouse: Annotated[
        str | None, typer.Option(metavar="URI", help="The lake's root; default: the server's configuration.")
    ] = None,
    topics: Annotated[
        list[str] | None,
        typer.Option(
            "--topic", metavar="TOPIC", help="Only this plain topic; may be repeated.", show_default=False
        ),
    ] = None,
    server: ServerOption = DEFAULT_SERVER,
) -> None:
    """Move tables with 'table.datalake.enabled'='true', and plain topics with 'datalake.enabled'='true', into the lake
    (a PySpark job in this process).

    Needs Java 17 or 21 and the `spark` extra. Tiered offsets are inside the lake's own snapshots: running it
    twice, or two of them at once, changes nothing.

    The exit code of --once is 0 when the lake is up to now, 1 when a table could not be tiered, and 3 when another
    tierer had every table, so that this one did nothing.

    \b
      headrace tier --once
      headrace tier default.enriched_orders --interval 30
      headrace tier --topic clicks --once
    """
    from headrace.tablelayer.cli.tier import run

    run(server, names or [], topics or [], once=once, interval_s=interval, warehouse=warehouse)


@app.command()
def catalog(
    listen: Annotated[
        str, typer.Option(metavar="HOST:PORT", help="Where engines find the catalog.")
    ] = "127.0.0.1:8181",
    warehouse: Annotated[
        str | None, typer.Option(metavar="URI", help="The lake's root; default: the server's configuration.")
    ] = None,
    server: ServerOption = DEFAULT_SERVER,
) -> None:
    """Serve the lake's tables as an Iceberg REST catalog, for reading: Spark, Trino, DuckDB, pyiceberg find them there.

    A token in the environment as HEADRACE_CATALOG_TOKEN is asked of every caller, and then the credentials of the
    lake's store are handed out with its tables. Needs the `lake` extra.

    \b
      headrace catalog
      HEADRACE_CATALOG_TOKEN=... headrace catalog --listen 0.0.0.0:8181
    """
    from headrace.tablelayer.cli.catalog import run

    run(server, listen, warehouse)


@app.command()
def backup(
    target: Annotated[
        str, typer.Argument(metavar="TARGET", help="A directory or a URL, such as s3://bucket/path.")
    ],
    keep: Annotated[
        int | None, typer.Option(min=1, metavar="N", help="Afterwards remove all but the newest N backups.")
    ] = None,
    server: ServerOption = DEFAULT_SERVER,
) -> None:
    """Make a backup of a running server: topics, tables, groups, users, everything as it is at one instant.

    Runs on the server's machine, reads the data directory itself, and writes only what the backups before it in TARGET
    do not have. The server goes on; segments are neither deleted nor compacted until the command is done.

    \b
      headrace backup /mnt/backups
      headrace backup s3://company-backups/headrace --keep 14
    """
    from headrace.tablelayer.cli.backup import backup as make

    make(server, target, keep)


@app.command()
def restore(
    source: Annotated[
        str | None, typer.Argument(metavar="SOURCE", help="Where backups were made to: a directory or a URL.")
    ] = None,
    data: Annotated[
        Path | None,
        typer.Option(metavar="DIR", help="The data directory to make; it must not be there, or be empty."),
    ] = None,
    as_of: Annotated[
        str | None,
        typer.Option("--as-of", metavar="TIME", help="The newest backup that is not younger than this."),
    ] = None,
    listed: Annotated[bool, typer.Option("--list", help="Only say what backups there are.")] = False,
    from_remote: Annotated[
        str | None,
        typer.Option(
            "--from-remote",
            metavar="URL",
            help="Instead of a backup: go on with what is in remote storage (remote.log.storage.directory).",
        ),
    ] = None,
    cluster_id: Annotated[
        str | None,
        typer.Option("--cluster-id", metavar="ID", help="Whose, if several keep their remote log there."),
    ] = None,
    output: FormatOption = Format.TABLE,
) -> None:
    """Make a data directory from a backup, or of a remote log alone, for `headrace serve --data DIR`.

    \b
      headrace restore /mnt/backups --list
      headrace restore /mnt/backups --data ./data
      headrace restore s3://company-backups/headrace --data ./data --as-of 2026-05-04T03:00:00
      headrace restore --from-remote s3://bucket/headrace --data ./data
    """
    from headrace.tablelayer.cli.backup import restore_backup, restore_from_remote
    from headrace.tablelayer.cli.errors import CommandError

    if (source is None) == (from_remote is None):
        raise CommandError("say where backups were made to, or with --from-remote where the remote log is")
    if source is not None:
        restore_backup(source, data, as_of, listed=listed, output=output)
    elif from_remote is not None:
        if listed or as_of is not None:
            raise CommandError("--list and --as-of are of backups; a remote log has the present only")
        restore_from_remote(from_remote, data, cluster_id)


@app.command("warm-up")
def warm_up() -> None:
    """Compile all kernels now, once after an installation, so that no server or request has to wait for it.

    They are kept in numba's cache of this user (NUMBA_CACHE_DIR), for this kind of CPU.
    """
    from headrace.tablelayer.cli.warm import warm_up as warm_all

    for name, seconds in warm_all():
        typer.echo(f"{name}: {seconds:.1f} s")


@app.command()
def completion(
    shell: Annotated[Shell, typer.Argument(help="The shell that is to complete commands and names.")],
) -> None:
    """Print what makes a shell complete commands, options, and the names of tables, topics and groups.

    \b
      source <(headrace completion bash)
      headrace completion zsh > ~/.zfunc/_headrace
      headrace completion fish > ~/.config/fish/completions/headrace.fish
    """
    from typer._completion_shared import get_completion_script

    typer.echo(get_completion_script(prog_name="headrace", complete_var=COMPLETE_VARIABLE, shell=shell.value))


def main() -> None:
    """The console script."""
    begin()
    prepare()
    if COMPLETE_VARIABLE in os.environ:
        from typer._completion_classes import completion_init

        completion_init()
    code = 1
    try:
        deferred(app, give_config)(prog_name="headrace", complete_var=COMPLETE_VARIABLE)
    except SystemExit as end:
        code = end.code if isinstance(end.code, int) else int(end.code is not None)
    except OSError:
        if broken_output() is None:
            raise
    sys.exit(finish(code))


if __name__ == "__main__":
    main()
