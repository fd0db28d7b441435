"""Rows as DataFrames. pandas and polars are imported on first use and are optional."""

from __future__ import annotations

import importlib
from typing import TYPE_CHECKING, Any

import pyarrow as pa

from headrace.tablelayer.client.errors import ClientError

if TYPE_CHECKING:
    import pandas as pd
    import polars as pl


def to_polars(rows: pa.Table) -> pl.DataFrame:
    """Return a polars DataFrame, without copies of equal types. Raises ClientError if polars is not installed."""
    frame: pl.DataFrame = _library("polars").from_arrow(rows)
    return frame


def to_pandas(rows: pa.Table) -> pd.DataFrame:
    """Return a pandas DataFrame. Integers with nulls become floats. Raises ClientError if pandas is not installed, or
    if a value has no Python object, such as a date after the year 9999.
    """
    _library("pandas")
    try:
        return rows.to_pandas()
    except (ValueError, OverflowError, pa.ArrowException) as error:
        raise ClientError(
            f"the rows cannot become a pandas DataFrame: {error}; use to_arrow, or cast the column to STRING"
        ) from error


def _library(name: str) -> Any:
    try:
        return importlib.import_module(name)
    except ModuleNotFoundError as error:
        if error.name != name:
            raise
        raise ClientError(
            f"{name} is not installed: pip install {name}, or use to_arrow, which does not need it"
        ) from None
