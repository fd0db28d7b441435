"""Databases and tables: creating, dropping, listing, describing and altering them."""

from __future__ import annotations

from uuid import UUID

from headrace.protocol.schema import ApiMessage, Struct, array, boolean, int16, int32, int64, string, uuid
from headrace.tablelayer.model.messages.answers import TableResponse


class Property(Struct):
    """A custom property of a database."""

    key: str = string()
    value: str = string()


class CreateDatabaseRequest(ApiMessage, key=10000, kind="request", versions="0", flexible="0+"):
    name: str = string()
    ignore_if_exists: bool = boolean()
    comment: str | None = string(nullable="0+", default=None, tag=0)
    properties: list[Property] = array(Property, tag=1)


class CreateDatabaseResponse(TableResponse, key=10000, kind="response", versions="0", flexible="0+"):
    pass


class DropDatabaseRequest(ApiMessage, key=10001, kind="request", versions="0", flexible="0+"):
    name: str = string()
    ignore_if_not_exists: bool = boolean()
    cascade: bool = boolean()


class DropDatabaseResponse(TableResponse, key=10001, kind="response", versions="0", flexible="0+"):
    pass


class ListDatabasesRequest(ApiMessage, key=10002, kind="request", versions="0", flexible="0+"):
    pass


class ListDatabasesResponse(TableResponse, key=10002, kind="response", versions="0", flexible="0+"):
    databases: list[str] = array(string)


class CreateTableRequest(ApiMessage, key=10003, kind="request", versions="0", flexible="0+"):
    """`definition`: `TableDefinition.to_json()`."""

    definition: str = string()
    ignore_if_exists: bool = boolean()


class CreateTableResponse(TableResponse, key=10003, kind="response", versions="0", flexible="0+"):
    """The server may have chosen `lake_format`, the recorded `table.datalake.format` (empty: none), and the number of
    buckets.
    """

    table_id: UUID = uuid()
    lake_format: str = string(default="", ignorable=True, tag=0)
    bucket_count: int = int32(default=0, ignorable=True, tag=1)


class DropTableRequest(ApiMessage, key=10004, kind="request", versions="0", flexible="0+"):
    database: str = string()
    table: str = string()
    ignore_if_not_exists: bool = boolean()


class DropTableResponse(TableResponse, key=10004, kind="response", versions="0", flexible="0+"):
    pass


class ListTablesRequest(ApiMessage, key=10005, kind="request", versions="0", flexible="0+"):
    database: str = string()


class ListTablesResponse(TableResponse, key=10005, kind="response", versions="0", flexible="0+"):
    tables: list[str] = array(string)


class DescribeTableRequest(ApiMessage, key=10006, kind="request", versions="0", flexible="0+"):
    database: str = string()
    table: str = string()


class DescribeTableResponse(TableResponse, key=10006, kind="response", versions="0", flexible="0+"):
    """`definition`: JSON for `TableDefinition.from_json`."""

    table_id: UUID = uuid()
    definition: str = string()


class AlterTableRequest(ApiMessage, key=10007, kind="request", versions="0", flexible="0+"):
    """`changes`: the text of `evolution.changes_to_json`; all are carried out, or none.

    `expected_schema_id`: another latest schema fails with SCHEMA_CHANGED; -1 accepts any.
    """

    database: str = string()
    table: str = string()
    changes: str = string()
    expected_schema_id: int = int16(default=-1)


class AlterTableResponse(TableResponse, key=10007, kind="response", versions="0", flexible="0+"):
    """`definition`: the table as it is now, JSON for `TableDefinition.from_json`."""

    definition: str = string()


class DescribeDatabaseRequest(ApiMessage, key=10008, kind="request", versions="0", flexible="0+"):
    name: str = string()


class DescribeDatabaseResponse(TableResponse, key=10008, kind="response", versions="0", flexible="0+"):
    """`created_at_ms` is -1 for the database that always existed."""

    created_at_ms: int = int64(default=-1)
    table_count: int = int32()
    comment: str | None = string(nullable="0+", default=None)
    properties: list[Property] = array(Property)


class AlterDatabaseRequest(ApiMessage, key=10009, kind="request", versions="0", flexible="0+"):
    """`comment`: null keeps the comment, an empty text removes it."""

    name: str = string()
    comment: str | None = string(nullable="0+", default=None)
    set_properties: list[Property] = array(Property)
    reset_properties: list[str] = array(string)


class AlterDatabaseResponse(TableResponse, key=10009, kind="response", versions="0", flexible="0+"):
    pass
