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
    """Return the file that `--config` names."""
    return _config.get()


def config_option(*, of_all: bool = False) -> TyperOption:
    """Return `--config`, for a command that connects to a server, or for a group of them.

    The option of a command takes precedence over that of its group.
    """

    def keep(_context: Any, _parameter: Any, value: str | None) -> None:
        if value is not None and "=" in value and not Path(value).exists():
            raise typer.BadParameter(
                f"{value!r} is not a file of client properties; a configuration of a topic or server is --set {value}"
            )
        if of_all or value is not None:
            _config.set(None if value is None else Path(value))

    return TyperOption(
        param_decls=["--config"],
        metavar="FILE",
        help="Kafka's client properties to connect with, such as bootstrap.servers, security.protocol and"
        " sasl.jaas.config: a file, or NAME for ~/.config/headrace/NAME.properties; default:"
        f" the value of {CONFIG_VARIABLE}.",
        expose_value=False,
        is_eager=True,
        callback=keep,
    )


def version_option() -> TyperOption:
    """Return `--version`, which shows the installed version and the Python that runs it."""

    def show(context: Any, _parameter: Any, value: bool) -> None:
        if value and not context.resilient_parsing:
            from importlib.metadata import version
            from platform import python_version

            typer.echo(f"headrace {version('headrace')} (Python {python_version()})")
            raise typer.Exit

    return TyperOption(
        param_decls=["--version", "-V"],
        is_flag=True,
        help="Show the version and exit.",
        expose_value=False,
        is_eager=True,
        callback=show,
    )


def _server(context: typer.Context, value: str) -> str:
    """Return the server that was named, or else `bootstrap.servers` of the properties."""
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
    """Formats of rows."""

    TABLE = "table"
    CSV = "csv"
    JSON = "json"


class LogFormat(StrEnum):
    """Formats of the server's log lines."""

    TEXT = "text"
    JSON = "json"


class SqlFormat(StrEnum):
    """Formats of query results: those of `Format`, and a file format."""

    TABLE = "table"
    CSV = "csv"
    JSON = "json"
    PARQUET = "parquet"


FormatOption = Annotated[
    Format,
    typer.Option(
        "--format",
        "--output",
        "-o",
        help="A table for people, CSV with a header, or one JSON object per line.",
    ),
]
SqlFormatOption = Annotated[
    SqlFormat,
    typer.Option(
        "--format",
        "--output",
        "-o",
        help="A table for people, CSV with a header, one JSON object per line, or Parquet (to a file: --to).",
    ),
]
