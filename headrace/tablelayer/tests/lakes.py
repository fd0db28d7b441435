"""A lake for a server that several tests share."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

from headrace.tablelayer.client.admin.kafka import ConfigKind


@contextmanager
def lake_offered(connection: Any, lake: str = "iceberg") -> Iterator[None]:
    """Let tables be created with the lake enabled, as on a server whose tierers bring the warehouse."""
    connection.kafka.alter_configs(ConfigKind.BROKER, "", {"datalake.format": lake})
    try:
        yield
    finally:
        connection.kafka.alter_configs(ConfigKind.BROKER, "", {}, ["datalake.format"])
