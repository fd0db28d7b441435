"""The `headrace` command. Each command imports what it needs when it runs: `--help` imports none of our modules."""

from __future__ import annotations

import gc
import os
from enum import StrEnum
from pathlib import Path
from typing import Annotated

import typer

from headrace.tablelayer.cli import STARTED
from headrace.tablelayer.cli.acls import acls
from headrace.tablelayer.cli.cluster import cluster
from headrace.tablelayer.cli.configs import configs
from headrace.tablelayer.cli.deferred import deferred
from headrace.tablelayer.cli.errors import CommandError, Group
from headrace.tablelayer.cli.groups import groups
from headrace.tablelayer.cli.help_texts import finish_command
from headrace.tablelayer.cli.options import (
    DEFAULT_SERVER,
    Format,
    FormatOption,
    LogFormat,
    ServerOption,
    SqlFormat,
    SqlFormatOption,
)
from headrace.tablelayer.cli.process import begin, leave
from headrace.tablelayer.cli.spark import spark
from headrace.tablelayer.cli.streams import broken_output, finish, prepare
from headrace.tablelayer.cli.tables import tables
from headrace.tablelayer.cli.topics import topics
from headrace.tablelayer.cli.users import users

COMPLETE_VARIABLE = "_HEADRACE_COMPLETE"


class Shell(StrEnum):
    """Shells with completion."""

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
app.add_typer(acls, name="acls")
app.add_typer(cluster, name="cluster")
app.add_typer(spark, name="spark")


@app.command()
def serve(
    data: Annotated[Path, typer.Option(metavar="DIR", help="Data directory; created if it does not exist.")],
    listen: Annotated[
        str | None,
        typer.Option(
            metavar="HOST:PORT",
            help="Address to listen on; port 0 takes a free one. "
            f"By default {DEFAULT_SERVER}, or the configuration listeners.",
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
            help="Run as a broker of the cluster there; each broker has its own node.id and data directory.",
        ),
    ] = None,
    processes: Annotated[
        int | None,
        typer.Option(
            min=1,
            max=64,
            metavar="N",
            help="Run N broker processes on this machine, one for each core, as one cluster without ZooKeeper. Each"
            " port of process i is that of the first one plus i.",
        ),
    ] = None,
    metrics: Annotated[
        str | None,
        typer.Option(
            metavar="HOST:PORT",
            help="Serve GET /metrics for Prometheus there; without it there are no metrics.",
        ),
    ] = None,
    log_format: Annotated[
        LogFormat, typer.Option(help="Format of log lines, on stderr and in the file.")
    ] = LogFormat.TEXT,
    verbose: Annotated[
        bool, typer.Option("--verbose", "-v", help="Also log informational messages to stderr.")
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
      headrace serve --data ./data2 --processes 2
    """
    gc.disable()  # saves a tenth of the start: imported modules are not garbage. `Broker.run_forever` enables it
    try:
        from headrace.tablelayer.cli.serve import parse_sets
        from headrace.tablelayer.cli.serve import serve as run_server

        if processes is not None:
            from headrace.tablelayer.cli.supervisor import serve_processes

            serve_processes(
                processes,
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
            return
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
    finally:  # the start may have failed earlier, and the process may not be the server's alone
        gc.enable()


@app.command()
def zookeeper(
    data: Annotated[
        Path, typer.Option(metavar="DIR", help="Directory for its nodes; created if it does not exist.")
    ],
    listen: Annotated[
        str, typer.Option(metavar="HOST:PORT", help="Address to listen on.")
    ] = "127.0.0.1:2181",
) -> None:
    """Run one ZooKeeper server for development until Ctrl-C or SIGTERM: Apache's own, from pyspark. It needs Java.

    \b
      headrace zookeeper --data ./zookeeper
      headrace serve --data ./data1 --zookeeper 127.0.0.1:2181/headrace --set node.id=1 --listen 127.0.0.1:9091
      headrace serve --data ./data2 --zookeeper 127.0.0.1:2181/headrace --set node.id=2 --listen 127.0.0.1:9092
    """
    from headrace.tablelayer.cli.zookeeper import run_zookeeper

    run_zookeeper(data, listen)


@app.command("format")
def format_data(
    data: Annotated[Path, typer.Option(metavar="DIR", help="Data directory; created if it does not exist.")],
    add_scram: Annotated[
        list[str] | None,
        typer.Option(
            "--add-scram",
            metavar="SCRAM-SHA-256=[name=NAME]",
            help="User with SCRAM-SHA-256 or SCRAM-SHA-512; optionally iterations=N beside the name; repeatable.",
        ),
    ] = None,
    node_id: Annotated[int, typer.Option(min=0, help="node.id of its server.")] = 0,
) -> None:
    """Create a data directory with the first users, before its server starts. They can create all others.

    Passwords are asked for, or read from standard input, one per line, or from HEADRACE_PASSWORD.

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
        str, typer.Option("-d", "--database", metavar="DATABASE", help="Database of table names without one.")
    ] = "default",
    output: SqlFormatOption = SqlFormat.TABLE,
    to: Annotated[
        Path | None,
        typer.Option(
            "--to",
            metavar="FILE",
            help="Write the rows to this file; it is replaced once all rows are written.",
        ),
    ] = None,
    server: ServerOption = DEFAULT_SERVER,
) -> None:
    """Run SQL on tables: define, change and query them. Without -e and -f: a prompt.

    \b
      headrace sql -e "CREATE TABLE fruit (id INT, name STRING, PRIMARY KEY (id) NOT ENFORCED)"
      headrace sql -e "INSERT INTO fruit VALUES (1, 'apple'), (2, 'pear')"
      headrace sql -e "UPDATE fruit SET name = 'fig' WHERE id = 1; DELETE FROM fruit WHERE id = 2"
      headrace sql -e "SELECT name, count(*) FROM fruit GROUP BY name" --format csv
      headrace sql -e 'SELECT * FROM "fruit$changelog"'
      headrace sql -e "SELECT min(id), max(id), count(*) FROM fruit"
      headrace sql -e "SELECT * FROM fruit" --output parquet --to fruit.parquet
      headrace sql -f tables.sql

    Equality on the whole primary key is a lookup, and on the bucket key a prefix lookup. LIMIT, COUNT, MIN and MAX
    alone read almost nothing. Any other SELECT runs in DuckDB, over the columns that it names and the rows that the
    server selects by its WHERE. The prompt has tab completion and keeps its history in ~/.cache/headrace.
    """
    if execute is not None and file is not None:
        raise CommandError("pass the statements with -e or with -f, not both")
    from headrace.tablelayer.cli.shell import run_sql

    run_sql(server, database, execute=execute, file=file, output=output, to=to)


@app.command()
def load(
    file: Annotated[
        str, typer.Argument(metavar="FILE", help="CSV, JSON or Parquet file, or a pattern: 's/*.parquet'.")
    ],
    table: Annotated[
        str, typer.Argument(metavar="DATABASE.TABLE", help="Table; its database is `default` if not given.")
    ],
    key: Annotated[
        str | None,
        typer.Option(
            "--key",
            metavar="A,B,...",
            help="Primary key of the new table; without one it is a log table.",
            show_default=False,
        ),
    ] = None,
    sets: Annotated[
        list[str] | None,
        typer.Option("--set", metavar="NAME=VALUE", help="Table option of the new table; repeatable."),
    ] = None,
    shown: Annotated[
        bool, typer.Option("--print", help="Show the SQL statements without running them.")
    ] = False,
    server: ServerOption = DEFAULT_SERVER,
) -> None:
    """Write the rows of a file to a table. If it does not exist, create it with the columns and types of the file.

    A row with the primary key of another one replaces it. To choose other types, change the statement that --print
    shows and run it.

    \b
      headrace load orders.csv shop.orders --key id
      headrace load 'days/*.parquet' shop.clicks
      headrace load orders.json shop.orders --key id --set bucket.num=4 --print
    """
    from headrace.tablelayer.cli.load import load_file
    from headrace.tablelayer.cli.words import named_values

    keys = [name.strip() for name in (key or "").split(",") if name.strip()]
    load_file(server, file, table, keys, named_values(sets or []), shown=shown)


@app.command()
def console(
    listen: Annotated[
        str, typer.Option(metavar="HOST:PORT", help="Address to listen on; port 0 takes a free one.")
    ] = "127.0.0.1:9380",
    basic_auth_file: Annotated[
        Path | None,
        typer.Option(
            metavar="FILE", help="File with the USER:PASSWORD that browsers must present (HTTP basic)."
        ),
    ] = None,
    token_file: Annotated[
        Path | None,
        typer.Option(metavar="FILE", help="File with the token that programs must present (HTTP bearer)."),
    ] = None,
    host: Annotated[
        list[str] | None,
        typer.Option(
            metavar="HOST[:PORT]",
            help="A host name under which browsers reach it, for example behind a proxy; repeatable.",
        ),
    ] = None,
    allow_writes: Annotated[
        bool,
        typer.Option(
            "--allow-writes",
            help="Allow it to create, change and delete topics, produce, write rows, reset groups, change users, "
            "rights, ACLs and quotas, and restart connectors.",
        ),
    ] = False,
    flight_sql: Annotated[
        str | None,
        typer.Option(
            metavar="HOST:PORT",
            help="Also serve Arrow Flight SQL (ADBC, JDBC, ODBC), read-only; port 0 takes a free one.",
        ),
    ] = None,
    schema_registry: Annotated[
        str | None,
        typer.Option(
            metavar="URL",
            help="Schema registry by which it decodes keys and values, such as http://registry:8081.",
        ),
    ] = None,
    schema_registry_auth_file: Annotated[
        Path | None,
        typer.Option(metavar="FILE", help="File with USER:PASSWORD, or a token, for the schema registry."),
    ] = None,
    connect: Annotated[
        str | None,
        typer.Option(
            metavar="URL", help="Kafka Connect whose connectors it shows, such as http://connect:8083."
        ),
    ] = None,
    connect_auth_file: Annotated[
        Path | None,
        typer.Option(metavar="FILE", help="File with USER:PASSWORD, or a token, for Kafka Connect."),
    ] = None,
    query_seconds: Annotated[
        float,
        typer.Option(
            "--query-seconds",
            min=0,
            metavar="SECONDS",
            help="Time after which a query and any other read of the page and of REST is stopped; 0: never.",
        ),
    ] = 60.0,
    history: Annotated[
        Path | None,
        typer.Option(
            "--history",
            metavar="FILE",
            help="File that keeps the numbers of plots for a day (10 MB); without it they end with the console.",
        ),
    ] = None,
    server: ServerOption = DEFAULT_SERVER,
) -> None:
    """Run the web console until Ctrl-C or SIGTERM: a page, and a REST interface (/openapi.json) below it.

    It has the rights of its own connection (--config client.properties). It changes nothing without --allow-writes, and
    needs credentials to listen on more than this machine. Install with: pip install 'headrace[console]'

    \b
      headrace console
      headrace console --flight-sql 127.0.0.1:31337
      headrace console --schema-registry http://registry:8081 --connect http://connect:8083
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
        query_seconds=query_seconds,
        history=history,
        schema_registry=schema_registry,
        schema_registry_auth_file=schema_registry_auth_file,
        kafka_connect=connect,
        kafka_connect_auth_file=connect_auth_file,
    )


@app.command()
def top(
    interval: Annotated[
        float, typer.Option(min=0.1, metavar="SECONDS", help="Time between two updates.")
    ] = 1.0,
    count: Annotated[int | None, typer.Option("-n", min=1, help="Number of updates before it ends.")] = None,
    internal: Annotated[bool, typer.Option(help="Show internal topics too.")] = False,
    output: FormatOption = Format.TABLE,
    server: ServerOption = DEFAULT_SERVER,
) -> None:
    """Watch a server: CPU, memory, records per second, lag of groups, and the lake's progress.

    100 % CPU is one core. Topics and tables are listed busiest first. The sum of a topic's end offsets is unknown while
    one of its partitions has no leader.

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
        typer.Option(
            metavar="DIR", help="Also check this data directory: owner, disk, and the process that uses it."
        ),
    ] = None,
    listen: Annotated[
        str | None,
        typer.Option(metavar="HOST:PORT", help="Check whether a server could listen there."),
    ] = None,
    output: FormatOption = Format.TABLE,
    server: ServerOption = DEFAULT_SERVER,
) -> None:
    """Find common mistakes on this machine, in a data directory, in a server and in its advertised address.

    Each finding says what to do. The exit code is 1 if something does not work; warnings alone give 0.

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
        bool,
        typer.Option("--once", help="Bring the lake up to date and end; otherwise run until interrupted."),
    ] = False,
    interval: Annotated[
        float, typer.Option(min=0.1, metavar="SECONDS", help="Time between two requests for work.")
    ] = 10.0,
    warehouse: Annotated[
        str | None, typer.Option(metavar="URI", help="The lake's root; default: the server's configuration.")
    ] = None,
    tables: Annotated[
        list[str] | None,
        typer.Option(
            "--table", metavar="DATABASE.TABLE", help="Only this table; repeatable.", show_default=False
        ),
    ] = None,
    databases: Annotated[
        list[str] | None,
        typer.Option(
            "--database",
            metavar="DATABASE",
            help="Only tables of this database; repeatable.",
            show_default=False,
        ),
    ] = None,
    topics: Annotated[
        list[str] | None,
        typer.Option(
            "--topic", metavar="TOPIC", help="Only this plain topic; repeatable.", show_default=False
        ),
    ] = None,
    parallelism: Annotated[
        int, typer.Option(min=1, max=64, help="Number of tables that are tiered at the same time.")
    ] = 1,
    maintenance: Annotated[
        str | None,
        typer.Option(
            metavar="HH:MM-HH:MM",
            help="Compact and expire in rounds of this time only, in UTC; default: always.",
        ),
    ] = None,
    master: Annotated[
        str | None,
        typer.Option(
            metavar="URL", help="Spark's master; default: this process, as local[CORES].", show_default=False
        ),
    ] = None,
    cores: Annotated[
        int | None,
        typer.Option(min=1, help="Cores of Spark: 2 in this process; on a cluster those of all executors."),
    ] = None,
    memory: Annotated[
        str | None, typer.Option(metavar="SIZE", help="Heap of Spark's driver; 1g in this process.")
    ] = None,
    conf: Annotated[
        list[str] | None,
        typer.Option(metavar="NAME=VALUE", help="A setting of Spark; repeatable.", show_default=False),
    ] = None,
    packages: Annotated[
        str | None, typer.Option(metavar="G:A:V,...", help="More jars for Spark, by Maven coordinates.")
    ] = None,
    jars: Annotated[
        str | None, typer.Option(metavar="FILE,...", help="More jars for Spark, as files or URLs.")
    ] = None,
    application: Annotated[
        bool,
        typer.Option("--application", help="Print the path of this job's file for spark-submit, and end."),
    ] = False,
    server: ServerOption = DEFAULT_SERVER,
) -> None:
    """Move tables and topics into the lake, as a PySpark application.

    Takes tables with 'table.datalake.enabled'='true', and plain topics with 'datalake.enabled'='true'. Needs Java 17
    or 21 and the `spark` extra. Tiered offsets are inside the lake's own snapshots, so running it twice, or two of
    them at once, duplicates no row.

    The exit code of --once is 0 when the lake is up to date, 1 when a table could not be tiered, and 3 when another
    tiering job held every table, so that this one did nothing.

    \b
      headrace tier --once
      headrace tier default.enriched_orders --interval 30
      headrace tier --topic clicks --once
      headrace tier --master spark://host:7077 --cores 8 --parallelism 4 --maintenance 01:00-05:00
      spark-submit --master spark://host:7077 $(headrace tier --application) --once
    """
    from headrace.tablelayer.cli.tier import APPLICATION, run
    from headrace.tablelayer.cli.words import named_values

    if application:
        typer.echo(APPLICATION)
        return
    spark = {
        "master": master,
        "conf": named_values(conf or [], "--conf"),
        "packages": packages,
        "jars": jars,
        "cores": cores,
        "memory": memory,
    }
    run(
        server,
        [*(names or []), *(tables or [])],
        topics or [],
        databases=databases or [],
        once=once,
        interval_s=interval,
        warehouse=warehouse,
        spark=spark,
        parallelism=parallelism,
        maintenance=maintenance,
    )


@app.command()
def catalog(
    listen: Annotated[
        str, typer.Option(metavar="HOST:PORT", help="Address of the catalog for engines.")
    ] = "127.0.0.1:8181",
    warehouse: Annotated[
        str | None, typer.Option(metavar="URI", help="The lake's root; default: the server's configuration.")
    ] = None,
    server: ServerOption = DEFAULT_SERVER,
) -> None:
    """Serve the lake's tables as a read-only Iceberg REST catalog, for Spark, DuckDB and pyiceberg.

    If the environment has a token in HEADRACE_CATALOG_TOKEN, every caller must present it, and the credentials of the
    lake's store are returned with its tables. Needs the `lake` extra.

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
    """Back up a running server or cluster: topics, tables, groups and users, as of one cut.

    It reads data directories on this machine itself, and asks the other brokers for their files. It writes only what
    the earlier backups in TARGET do not have. The servers continue to run; no segment is deleted or compacted until the
    command is done.

    \b
      headrace backup /mnt/backups
      headrace backup s3://company-backups/headrace --keep 14
    """
    from headrace.tablelayer.cli.backup import backup as make

    make(server, target, keep)


@app.command()
def restore(
    source: Annotated[
        str | None, typer.Argument(metavar="SOURCE", help="Target of the backups: a directory or a URL.")
    ] = None,
    data: Annotated[
        Path | None,
        typer.Option(metavar="DIR", help="Data directory to create; it must not exist, or be empty."),
    ] = None,
    as_of: Annotated[
        str | None,
        typer.Option(
            "--as-of", metavar="TIME", help="Restore the newest backup that was made at this time or before."
        ),
    ] = None,
    listed: Annotated[bool, typer.Option("--list", help="Only list the backups.")] = False,
    from_remote: Annotated[
        str | None,
        typer.Option(
            "--from-remote",
            metavar="URL",
            help="Restore from remote storage (remote.log.storage.directory) instead of a backup.",
        ),
    ] = None,
    cluster_id: Annotated[
        str | None,
        typer.Option(
            "--cluster-id", metavar="ID", help="Cluster to restore, if several have their remote log there."
        ),
    ] = None,
    output: FormatOption = Format.TABLE,
) -> None:
    """Create a data directory from a backup, or from a remote log alone, for `headrace serve --data DIR`.

    \b
      headrace restore /mnt/backups --list
      headrace restore /mnt/backups --data ./data
      headrace restore s3://company-backups/headrace --data ./data --as-of 2026-05-04T03:00:00
      headrace restore --from-remote s3://bucket/headrace --data ./data
    """
    from headrace.tablelayer.cli.backup import restore_backup, restore_from_remote
    from headrace.tablelayer.cli.errors import CommandError

    if (source is None) == (from_remote is None):
        raise CommandError("name the target of the backups, or the remote log with --from-remote")
    if source is not None:
        restore_backup(source, data, as_of, listed=listed, output=output)
    elif from_remote is not None:
        if listed or as_of is not None:
            raise CommandError("--list and --as-of apply to backups; a remote log has only the present state")
        restore_from_remote(from_remote, data, cluster_id)


@app.command("warm-up")
def warm_up() -> None:
    """Compile all kernels once after an installation, so that no server or request has to wait for it.

    The results are stored in this user's numba cache (NUMBA_CACHE_DIR), for this kind of CPU.
    """
    from headrace.tablelayer.cli.warm import warm_up_in

    for name, seconds in warm_up_in(min(len(os.sched_getaffinity(0)), 4)):
        typer.echo(f"{name}: {seconds:.1f} s")


@app.command()
def completion(
    shell: Annotated[Shell, typer.Argument(help="Shell to generate the completion for.")],
) -> None:
    """Print a shell script that completes commands, options, and the names of tables, topics and groups.

    \b
      source <(headrace completion bash)
      headrace completion zsh > ~/.zfunc/_headrace
      headrace completion fish > ~/.config/fish/completions/headrace.fish
    """
    from typer._completion_shared import get_completion_script

    typer.echo(get_completion_script(prog_name="headrace", complete_var=COMPLETE_VARIABLE, shell=shell.value))


def main() -> None:
    """Entry point of the console script."""
    begin()
    prepare()
    if COMPLETE_VARIABLE in os.environ:
        from typer._completion_classes import completion_init

        completion_init()
    code = 1
    try:
        deferred(app, finish_command)(prog_name="headrace", complete_var=COMPLETE_VARIABLE)
    except SystemExit as end:
        code = end.code if isinstance(end.code, int) else int(end.code is not None)
    except OSError:
        if broken_output() is None:
            raise
    leave(finish(code))


if __name__ == "__main__":
    main()
