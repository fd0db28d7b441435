"""`headrace spark`: what Spark on a cluster needs, as an archive and as settings."""

from __future__ import annotations

import sys
from enum import StrEnum
from pathlib import Path
from typing import Annotated

import typer

from headrace.tablelayer.cli.errors import CommandError

spark = typer.Typer(
    no_args_is_help=True,
    rich_markup_mode=None,
    help="Spark on a cluster: the environment of its executors, and its settings.",
)


class SettingsFormat(StrEnum):
    """Forms of Spark's settings."""

    DEFAULTS = "defaults"
    SUBMIT = "submit"


@spark.command()
def env(
    out: Annotated[
        Path, typer.Option(metavar="FILE", help="Archive to write, a .tar.gz; replaced if it exists.")
    ] = Path("env.tar.gz"),
    python: Annotated[
        str | None,
        typer.Option(
            metavar="PATH", help="Python on the machines of the executors; by default, as on this one."
        ),
    ] = None,
) -> None:
    """Write the installed packages as an archive that Spark's executors unpack. It leaves out pyspark.

    The executors' machines need a Python of the same minor version at the same path.

    \b
      headrace spark env
      spark-submit $(headrace spark conf --format submit --archive env.tar.gz) job.py
    """
    _with_pyspark()
    from headrace.tablelayer.spark.environment import write_environment

    if not out.name.endswith((".tar.gz", ".tgz")):
        raise CommandError(f"{out}: Spark unpacks archives by their name, which has to end in .tar.gz")
    interpreter = write_environment(out, python)
    typer.echo(f"wrote {out} ({out.stat().st_size / 1e6:,.0f} MB), for Python at {interpreter}")


@spark.command()
def conf(
    form: Annotated[
        SettingsFormat,
        typer.Option("--format", help="Lines of spark-defaults.conf, or arguments of spark-submit."),
    ] = SettingsFormat.DEFAULTS,
    server: Annotated[
        str | None,
        typer.Option(
            metavar="HOST:PORT,...", help="Server of the catalog and the data source, for all tables."
        ),
    ] = None,
    archive: Annotated[
        str | None,
        typer.Option(
            metavar="FILE", help="Archive of `headrace spark env`, a path or an address of the cluster."
        ),
    ] = None,
) -> None:
    """Print the settings that tables need in a Spark session: jars, catalog, extensions.

    With --archive executors run the Python of that archive, and the driver the one of this command.

    \b
      headrace spark conf --server kafka.example:9092 >> $SPARK_HOME/conf/spark-defaults.conf
      spark-submit $(headrace spark conf --format submit --archive env.tar.gz) job.py
    """
    _with_pyspark()
    from headrace.tablelayer.spark.environment import LINK
    from headrace.tablelayer.spark.jars import catalog_jar, spark_jars
    from headrace.tablelayer.spark.sessions import needed_settings

    def report(line: str) -> None:
        typer.echo(line, err=True)

    settings = needed_settings({}, [*spark_jars(report), catalog_jar(report)])
    if server is not None:
        settings["spark.headrace.bootstrap.servers"] = server
    if archive is not None:
        settings["spark.archives"] = f"{archive}#{LINK}"
        settings["spark.pyspark.python"] = f"./{LINK}/bin/python"
        settings["spark.pyspark.driver.python"] = sys.executable
    for name, value in sorted(settings.items()):
        if form is SettingsFormat.DEFAULTS:
            typer.echo(f"{name} {value}")
        else:
            typer.echo(f"--conf {name}={value}")  # without quotes, which the shell does not read in $(...)


def _with_pyspark() -> None:
    try:
        import pyspark  # noqa: F401
    except ImportError:
        raise CommandError("this command needs PySpark: pip install 'headrace[spark]'") from None
