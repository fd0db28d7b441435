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


FormatOption = Annotated[
    Format,
    typer.Option("--format", "-o", help="A table to read, CSV with a header, or one JSON object a line."),
]
