"""Parts that all requests of Spark's catalog share: the table, and objects that are passed through Spark."""

from __future__ import annotations

import base64
import pickle
from collections.abc import Mapping
from typing import Any

from headrace.tablelayer.model.table.definition import StoredTable
from headrace.tablelayer.spark.options import server_of
from headrace.tablelayer.spark.worker import connection

Request = Mapping[str, Any]


def table_options(request: Request) -> dict[str, str]:
    """Return the request's options in the data source's form."""
    return {**request["options"], "table": f"{request['database']}.{request['table']}"}


def table_definition(request: Request) -> StoredTable:
    """Return the definition of the request's table. Raises TableError(TABLE_NOT_FOUND)."""
    client = connection(server_of(request["options"]))
    return client.admin.describe_table(f"{request['database']}.{request['table'].partition('$')[0]}")


def text_of(value: object) -> str:
    return base64.b64encode(pickle.dumps(value)).decode()


def object_of(text: str) -> Any:
    """Return the object of a text from `text_of`, in a process of the same session."""
    return pickle.loads(base64.b64decode(text))
