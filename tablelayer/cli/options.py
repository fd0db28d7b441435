"""Options that several commands share."""

from __future__ import annotations

from enum import StrEnum
from typing import Annotated

import typer

DEFAULT_SERVER = "127.0.0.1:9092"

ServerOption = Annotated[
    str,
    typer.Option(
        "--server", "-s", envvar="HEADRACE_SERVER", metavar="HOST:PORT", help="A server of the cluster."
    ),
]


class Format(StrEnum):
    """How rows are written."""

    TABLE = "table"
    CSV = "csv"
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
