"""Databases and tables in Spark's catalog: their descriptions and changes.

Each function answers one request of `helper`. A request becomes a statement of our own SQL, so that names, types,
defaults and options have the same meaning there. Types are Spark's, in its JSON form.
"""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from typing import Any

from headrace.tablelayer.model.ddl import AlterTable, parse
from headrace.tablelayer.model.errors import TableError, TableErrorCode, invalid_table
from headrace.tablelayer.model.options.table_options import BUCKET_COUNT, BUCKET_KEY
from headrace.tablelayer.model.table.definition import StoredTable
from headrace.tablelayer.model.table.evolution import Change, SetTableComment
from headrace.tablelayer.model.table.path import TablePath
from headrace.tablelayer.model.types.quoting import quote_name, quote_text
from headrace.tablelayer.model.types.values import literal_sql
from headrace.tablelayer.spark.catalog.requests import Request, table_options
from headrace.tablelayer.spark.options import server_of
from headrace.tablelayer.spark.sink import overwritten_columns
from headrace.tablelayer.spark.source import HeadraceDataSource
from headrace.tablelayer.spark.types import spark_type
from headrace.tablelayer.spark.worker import connection

PRIMARY_KEY_PROPERTIES = ("primary-key", "primary.key")
_LAKE = "$lake"
_COMMENT, _PROVIDER = "comment", "provider"
_SPARKS_OWN = frozenset({"owner", "is_managed_location", "table_type", "option.serialization.format"})
_SPARKS_PLACES = frozenset({"location", "external"})
_SIMPLE = {
    "boolean": "BOOLEAN", "byte": "TINYINT", "short": "SMALLINT", "integer": "INT", "long": "BIGINT", "float": "FLOAT",
    "double": "DOUBLE", "string": "STRING", "binary": "BYTES", "date": "DATE", "timestamp_ntz": "TIMESTAMP(6)",
    "timestamp": "TIMESTAMP_LTZ(6)",
}  # fmt: skip


# ---- databases


def namespaces(request: Request) -> list[str]:
    return sorted(_client(request).admin.list_databases())


def namespace(request: Request) -> dict[str, str]:
    """Return the database's comment and properties. Raises TableError(DATABASE_NOT_FOUND)."""
    found = _client(request).admin.describe_database(request["database"])
    comment = {} if found.comment is None else {_COMMENT: found.comment}
    return {**found.properties, **comment}


def create_namespace(request: Request) -> None:
    properties = _without(request["properties"], _SPARKS_OWN)
    comment = properties.pop(_COMMENT, None)
    _client(request).admin.create_database(request["database"], comment=comment, properties=properties)


def alter_namespace(request: Request) -> None:
    given = dict(request["set"])
    comment = given.pop(_COMMENT, None)
    _client(request).admin.alter_database(
        request["database"], set_properties=given, reset_properties=request["remove"], comment=comment
    )


def drop_namespace(request: Request) -> None:
    _client(request).admin.drop_database(request["database"], cascade=request["cascade"])


# ---- tables


def tables(request: Request) -> list[str]:
    """Return the names of the tables, sorted. Raises TableError(DATABASE_NOT_FOUND)."""
    return sorted(_client(request).admin.list_tables(request["database"]))


def table(request: Request) -> dict[str, Any]:
    """Return Spark's description of a table, or of its view after a `$`. Raises TableError(TABLE_NOT_FOUND)."""
    database, name = request["database"], request["table"]
    whole, dollar, _ = name.partition("$")
    definition = _client(request).admin.describe_table(TablePath(database, whole))
    if not dollar:
        return _described(definition)
    source = HeadraceDataSource(table_options(request))
    fields = source.schema().fields
    columns = [
        {"name": field.name, "type": field.dataType.json(), "nullable": field.nullable} for field in fields
    ]
    as_of = name.lower().endswith(_LAKE)
    return {
        "columns": columns, "primary_key": [], "partitions": [], "properties": {}, "view": True, "as_of": as_of,
        "partial": [], "overwritten": [], "unchanged": None,
    }  # fmt: skip


def _described(definition: StoredTable) -> dict[str, Any]:
    columns = [
        {
            "name": column.name,
            "type": spark_type(column.type, column.name).json(),
            "nullable": column.nullable,
            "comment": column.comment,
            "default": None if column.default is None else literal_sql(column.default, column.type),
        }
        for column in definition.schema.columns
    ]
    bucket_key = definition.bucket_key
    properties = {**definition.options, BUCKET_COUNT: str(definition.bucket_count), _PROVIDER: "headrace"}
    if bucket_key:
        properties[BUCKET_KEY] = ",".join(bucket_key)
    if definition.schema.primary_key:
        properties[PRIMARY_KEY_PROPERTIES[0]] = ",".join(definition.schema.primary_key)
    if definition.comment is not None:
        properties[_COMMENT] = definition.comment
    return {
        "columns": columns,
        "primary_key": definition.schema.primary_key,
        "partitions": definition.partition_keys,
        "bucket_key": bucket_key,
        "buckets": definition.bucket_count,
        "properties": properties,
        "id": str(definition.table_id),
        "view": False,
        "as_of": True,
        "partial": _written_apart(definition),
        "overwritten": overwritten_columns(definition),
        "unchanged": _unchanged(definition),
    }


def _written_apart(definition: StoredTable) -> list[str]:
    """Return the columns that an UPDATE may leave unchanged: all except the key."""
    schema = definition.schema
    if not schema.primary_key:
        return []
    return [column.name for column in schema.columns if column.name not in schema.primary_key]


def _unchanged(definition: StoredTable) -> str | None:
    """Return why UPDATE and MERGE cannot change this table's rows; None if they can."""
    engine = definition.settings.merge_engine
    if engine is None:
        return None
    return (
        f"{definition.path} has the merge engine '{engine}', which decides how an existing row changes:"
        " use INSERT INTO"
    )


def create_table(request: Request) -> None:
    _client(request).execute(create_statement(request))


def create_statement(request: Request) -> str:
    """Return our CREATE TABLE statement. Raises TableError(INVALID_TABLE) for a table that cannot exist here."""
    given = dict(request["properties"])
    keys = list(request["primary_key"])
    for name in PRIMARY_KEY_PROPERTIES:
        text = given.pop(name, None)
        if text is not None:
            named = [part.strip() for part in text.split(",")]
            if keys and named != keys:
                raise invalid_table(f"the primary key is ({', '.join(keys)}), but '{name}' = '{text}'")
            keys = named
    provider = given.pop(_PROVIDER, "headrace")
    if provider.lower() != "headrace":
        raise invalid_table(f"USING {provider}: this catalog has only headrace tables: leave USING out")
    place = next((name for name in given if name in _SPARKS_PLACES), None)
    if place is not None:
        raise invalid_table(
            f"'{place}' = '{given[place]}': the server decides where a table is stored: leave it out"
        )
    comment = given.pop(_COMMENT, None)
    options = _options(given)
    if request.get("buckets"):
        options.setdefault(BUCKET_COUNT, str(request["buckets"]))
        options.setdefault(BUCKET_KEY, ",".join(request["bucket_key"]))
    parts = [column_clause(column) for column in request["columns"]]
    if keys:
        parts.append(f"PRIMARY KEY ({', '.join(map(quote_name, keys))}) NOT ENFORCED")
    sql = f"CREATE TABLE {_path_sql(request)} ({', '.join(parts)})"
    if comment is not None:
        sql += f" COMMENT {quote_text(comment)}"
    if request["partitions"]:
        sql += f" PARTITIONED BY ({', '.join(map(quote_name, request['partitions']))})"
    if options:
        pairs = (f"{quote_text(name)} = {quote_text(value)}" for name, value in options.items())
        sql += f" WITH ({', '.join(pairs)})"
    return sql


def _options(given: Mapping[str, str]) -> dict[str, str]:
    """Return a table's options, without Spark's own; Spark passes those in OPTIONS (...) twice."""
    return {
        name: value
        for name, value in _without(given, _SPARKS_OWN).items()
        if not name.startswith("option.") or name.removeprefix("option.") not in given
    }


def column_clause(column: Mapping[str, Any]) -> str:
    """Return a column's clause in our statements."""
    sql = f"{quote_name(column['name'])} {type_text(json.loads(column['type']), column['name'])}"
    if not column["nullable"]:
        sql += " NOT NULL"
    if column.get("default") is not None:
        sql += f" DEFAULT {column['default']}"
    if column.get("comment") is not None:
        sql += f" COMMENT {quote_text(column['comment'])}"
    return sql


def type_text(kind: Any, column: str) -> str:
    """Return our type for one of Spark's in its JSON form. Raises TableError(INVALID_TABLE) if there is none."""
    if isinstance(kind, dict):
        match kind["type"]:
            case "array":
                return f"ARRAY<{type_text(kind['elementType'], column)}>"
            case "map":
                key, value = (type_text(kind[side], column) for side in ("keyType", "valueType"))
                return f"MAP<{key}, {value}>"
            case "struct":
                fields = (
                    f"{quote_name(field['name'])} {type_text(field['type'], column)}"
                    for field in kind["fields"]
                )
                return f"ROW<{', '.join(fields)}>"
    elif kind in _SIMPLE:
        return _SIMPLE[kind]
    elif kind.startswith(("decimal", "char", "time(")):
        return str(kind.upper())
    elif kind.startswith("varchar"):
        return "STRING"
    raise invalid_table(f"column '{column}' is {kind}, which is not a type of a table's column")


def alter_table(request: Request) -> None:
    _client(request).admin.alter_table(_path(request), alter_statement(request))


def alter_statement(request: Request) -> list[Change]:
    """Return the changes of one ALTER TABLE, parsed by our SQL. Raises TableError(INVALID_TABLE), DdlError."""
    given = request["changes"]
    found: list[Change] = []
    clauses = [_alter_clause(change) for change in given if not _is_comment(change)]
    if clauses:
        (statement,) = parse(f"ALTER TABLE {_path_sql(request)} {', '.join(clauses)}")
        assert isinstance(statement, AlterTable)
        found += statement.changes
    return [*found, *(SetTableComment(change["value"]) for change in given if _is_comment(change))]


def _is_comment(change: Mapping[str, Any]) -> bool:
    return change["kind"] in ("set", "remove") and change["name"] == _COMMENT


def _alter_clause(change: Mapping[str, Any]) -> str:
    kind, given = change["kind"], change["name"]
    if kind == "set":
        return f"SET ({quote_text(given)} = {quote_text(change['value'])})"
    if kind == "remove":
        return f"RESET ({quote_text(given)})"
    name = quote_name(_column(given))
    if kind == "add":
        return f"ADD COLUMN {column_clause({**change, 'name': _column(given)})}{_place(change)}"
    if kind == "drop":
        return f"DROP COLUMN {'IF EXISTS ' if change['if_exists'] else ''}{name}"
    if kind == "rename":
        return f"RENAME COLUMN {name} TO {quote_name(change['new'])}"
    if kind == "type":
        return f"ALTER COLUMN {name} TYPE {type_text(json.loads(change['type']), change['name'][0])}"
    if kind == "nullable":
        return f"ALTER COLUMN {name} {'DROP' if change['nullable'] else 'SET'} NOT NULL"
    if kind == "comment":
        return f"ALTER COLUMN {name} COMMENT {quote_text(change['comment'] or '')}"
    if kind == "default":
        value = change["default"]
        return f"ALTER COLUMN {name} {f'SET DEFAULT {value}' if value else 'DROP DEFAULT'}"
    if kind == "position":
        return f"ALTER COLUMN {name}{_place(change)}"
    raise invalid_table(f"{kind} is not a supported change of a table")


def _place(change: Mapping[str, Any]) -> str:
    after = change.get("after")
    return "" if after is None else f" AFTER {quote_name(after)}" if after else " FIRST"


def _column(names: Sequence[str]) -> str:
    if len(names) > 1:
        raise invalid_table(f"{'.'.join(names)} is inside column '{names[0]}', whose type cannot change")
    return names[0]


def drop_table(request: Request) -> bool:
    """Drop the table; return whether it existed."""
    try:
        _client(request).admin.drop_table(_path(request))
    except TableError as error:
        if error.code not in (TableErrorCode.TABLE_NOT_FOUND, TableErrorCode.DATABASE_NOT_FOUND):
            raise
        return False
    return True


# ---- partitions


def partitions(request: Request) -> list[tuple[str, ...]]:
    """Return the values of the partitions that have the values in `spec`."""
    return [each.values for each in _client(request).admin.list_partitions(_path(request), request["spec"])]


def add_partition(request: Request) -> None:
    _client(request).admin.add_partition(_path(request), request["spec"])


def drop_partition(request: Request) -> bool:
    """Drop the partition; return whether it existed."""
    try:
        _client(request).admin.drop_partition(_path(request), request["spec"])
    except TableError as error:
        if error.code is not TableErrorCode.PARTITION_NOT_FOUND:
            raise
        return False
    return True


def _client(request: Request) -> Any:
    return connection(server_of(request["options"]))


def _path(request: Request) -> TablePath:
    return TablePath(request["database"], request["table"])


def _path_sql(request: Request) -> str:
    return f"{quote_name(request['database'])}.{quote_name(request['table'])}"


def _without(given: Mapping[str, str], names: frozenset[str]) -> dict[str, str]:
    return {name: value for name, value in given.items() if name not in names}
