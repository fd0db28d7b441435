"""Options that several commands share."""

from __future__ import annotations

import os
from contextvars import ContextVar
from enum import StrEnum
from pathlib import Path
from typing import Annotated, Any

import typer
from typer.core import TyperOption

DEFAULT_SERVER = "127.0.0.1:9092"
CONFIG_VARIABLE = "HEADRACE_CONFIG"
_config: ContextVar[Path | None] = ContextVar("--config of the command that runs", default=None)


def client_config() -> Path | None:
    """The file that `--config` names."""
    return _config.get()


def config_option(*, of_all: bool = False) -> TyperOption:
    """`--config`, for a command that connects to a server, or for a group of such: what a command names itself goes
    before."""

    def keep(_context: Any, _parameter: Any, value: str | None) -> None:
        if of_all or value is not None:
            _config.set(None if value is None else Path(value))

    return TyperOption(
        param_decls=["--config"],
        metavar="FILE",
        help="Kafka's client properties to connect with, such as bootstrap.servers, security.protocol and"
        " sasl.jaas.config: a file, or NAME for ~/.config/headrace/NAME.properties; default: what"
        f" {CONFIG_VARIABLE} names.",
        expose_value=False,
        is_eager=True,
        callback=keep,
    )


def version_option() -> TyperOption:
    """`--version`: of what is installed, by which Python."""

    def show(context: Any, _parameter: Any, value: bool) -> None:
        if value and not context.resilient_parsing:
            from importlib.metadata import version
            from platform import python_version

            typer.echo(f"headrace {version('headrace')} (Python {python_version()})")
            raise typer.Exit

    return TyperOption(
        param_decls=["--version", "-V"],
        is_flag=True,
        help="Show the version and end.",
        expose_value=False,
        is_eager=True,
        callback=show,
    )


def _server(context: typer.Context, value: str) -> str:
    """What is named nowhere else is the properties' `bootstrap.servers`."""
    source = context.get_parameter_source("server")
    has_file = client_config() is not None or CONFIG_VARIABLE in os.environ
    if source is None or source.name != "DEFAULT" or not has_file:
        return value
    from headrace.tablelayer.client.security.settings import environment

    return environment(client_config()).get("bootstrap.servers") or value


ServerOption = Annotated[
    str,
    typer.Option(
        "--server",
        "-s",
        envvar="HEADRACE_SERVER",
        metavar="HOST:PORT",
        help="A server of the cluster.",
        callback=_server,
    ),
]


class Format(StrEnum):
    """How rows are written."""

    TABLE = "table"
    CSV = "csv"
    JSON = "json"


class LogFormat(StrEnum):
    """How lines of the server's log look."""

    TEXT = "text"
    JSON = "json"


class SqlFormat(StrEnum):
    """How the rows of queries are written; `Format`, and a file format."""

    TABLE = "table"
    CSV = "csv"
    JSON = "json"
    PARQUET = "parquet"


FormatOption = Annotated[
    Format,
    typer.Option(
        "--format", "--output", "-o", help="A table to read, CSV with a header, or one JSON object a line."
    ),
]
SqlFormatOption = Annotated[
    SqlFormat,
    typer.Option(
        "--format",
        "--output",
        "-o",
        help="A table to read, CSV with a header, one JSON object a line, or Parquet (into a file: --to).",
    ),
]
