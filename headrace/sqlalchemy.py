"""Headrace for SQLAlchemy 2: `create_engine("headrace://host:9092/database")`.

Name several servers by `headrace://host/db?server=host:9092&server=other:9092`. Other parameters of the URL are
connection properties (`?security.protocol=SASL_SSL&sasl.mechanism=...`); a user and password are SASL's. Tables,
columns, primary keys and comments are reflected. `headrace_with={"bucket.num": "4"}` sets the options of a table to
create. There are no transactions: every statement takes effect at once, and a rollback takes nothing back.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

from sqlalchemy import Table, exc, types
from sqlalchemy.engine import URL, default
from sqlalchemy.sql import compiler

from headrace.tablelayer.model.errors import TableError
from headrace.tablelayer.model.table.definition import TableDefinition
from headrace.tablelayer.model.types.column_types import DataType, TypeKind
from headrace.tablelayer.model.types.quoting import quote_text
from headrace.tablelayer.sql.catalog import INFORMATION_SCHEMA


class Nested(types.UserDefinedType[Any]):
    """An ARRAY, MAP or ROW; its values are lists, lists of pairs or dicts."""

    cache_ok = True

    def __init__(self, text: str) -> None:
        self.text = text

    def get_col_spec(self, **_: Any) -> str:
        return self.text


_PLAIN: dict[TypeKind, Callable[[DataType], Any]] = {
    TypeKind.BOOLEAN: lambda _: types.BOOLEAN(),
    TypeKind.TINYINT: lambda _: types.SMALLINT(),
    TypeKind.SMALLINT: lambda _: types.SMALLINT(),
    TypeKind.INT: lambda _: types.INTEGER(),
    TypeKind.BIGINT: lambda _: types.BIGINT(),
    TypeKind.FLOAT: lambda _: types.REAL(),
    TypeKind.DOUBLE: lambda _: types.DOUBLE(),
    TypeKind.DECIMAL: lambda of: types.DECIMAL(of.precision, of.scale),
    TypeKind.CHAR: lambda of: types.CHAR(of.length),
    TypeKind.STRING: lambda _: types.String(),
    TypeKind.DATE: lambda _: types.DATE(),
    TypeKind.TIME: lambda _: types.TIME(),
    TypeKind.TIMESTAMP: lambda _: types.TIMESTAMP(),
    TypeKind.TIMESTAMP_LTZ: lambda _: types.TIMESTAMP(timezone=True),
    TypeKind.BINARY: lambda _: types.LargeBinary(),
    TypeKind.BYTES: lambda _: types.LargeBinary(),
}


def type_of(data_type: DataType) -> Any:
    """Return SQLAlchemy's type for a column type."""
    make = _PLAIN.get(data_type.kind)
    return Nested(str(data_type)) if make is None else make(data_type)


class _Types(compiler.GenericTypeCompiler):
    def visit_string(self, type_: Any, **_: Any) -> str:
        return "STRING"

    visit_VARCHAR = visit_NVARCHAR = visit_TEXT = visit_CLOB = visit_text = visit_unicode = visit_string  # noqa: N815
    visit_unicode_text = visit_enum = visit_JSON = visit_uuid = visit_UUID = visit_string  # noqa: N815

    def visit_CHAR(self, type_: Any, **_: Any) -> str:  # noqa: N802
        return "STRING" if type_.length is None else f"CHAR({type_.length})"

    def visit_INTEGER(self, type_: Any, **_: Any) -> str:  # noqa: N802
        return "INT"

    def visit_float(self, type_: Any, **_: Any) -> str:
        return "DOUBLE"

    visit_FLOAT = visit_DOUBLE = visit_DOUBLE_PRECISION = visit_double = visit_float  # noqa: N815

    def visit_REAL(self, type_: Any, **_: Any) -> str:  # noqa: N802
        return "FLOAT"

    def visit_DECIMAL(self, type_: Any, **_: Any) -> str:  # noqa: N802
        precision = 38 if type_.precision is None else type_.precision
        scale = (10 if type_.precision is None else 0) if type_.scale is None else type_.scale
        return f"DECIMAL({precision}, {scale})"

    visit_NUMERIC = visit_numeric = visit_DECIMAL  # noqa: N815

    def visit_TIMESTAMP(self, type_: Any, **_: Any) -> str:  # noqa: N802
        return "TIMESTAMP_LTZ(6)" if type_.timezone else "TIMESTAMP(6)"

    visit_DATETIME = visit_datetime = visit_TIMESTAMP  # noqa: N815

    def visit_TIME(self, type_: Any, **_: Any) -> str:  # noqa: N802
        return "TIME(6)"

    visit_time = visit_TIME

    def visit_BLOB(self, type_: Any, **_: Any) -> str:  # noqa: N802
        return "BYTES"

    visit_BINARY = visit_VARBINARY = visit_large_binary = visit_BLOB  # noqa: N815

    def visit_ARRAY(self, type_: Any, **options: Any) -> str:  # noqa: N802
        inner: str = self.process(type_.item_type, **options)
        return f"ARRAY<{inner}>"


class _Definitions(compiler.DDLCompiler):
    def visit_primary_key_constraint(self, constraint: Any, **options: Any) -> str:
        text = str(super().visit_primary_key_constraint(constraint, **options))
        return f"{text} NOT ENFORCED" if text else text

    def visit_foreign_key_constraint(self, constraint: Any, **_: Any) -> Any:
        return None  # foreign keys are not enforced

    def visit_unique_constraint(self, constraint: Any, **_: Any) -> Any:
        raise exc.CompileError("unique constraints are not supported: only the primary key is unique")

    def visit_check_constraint(self, constraint: Any, **_: Any) -> Any:
        raise exc.CompileError("check constraints are not supported")

    visit_column_check_constraint = visit_check_constraint

    def visit_create_index(self, create: Any, *_: Any, **__: Any) -> str:
        raise exc.CompileError("indexes are not supported: only the primary key is indexed")

    def get_column_specification(self, column: Any, **options: Any) -> str:
        text = str(super().get_column_specification(column, **options))
        return text + (f" COMMENT {quote_text(column.comment)}" if column.comment else "")

    def post_create_table(self, table: Any) -> str:
        text = f"\nCOMMENT {quote_text(table.comment)}" if table.comment else ""
        chosen = table.dialect_options["headrace"]["with"] or {}
        if chosen:
            pairs = ", ".join(
                f"{quote_text(str(name))} = {quote_text(str(value))}" for name, value in chosen.items()
            )
            text += f"\nWITH ({pairs})"
        return text

    def visit_set_table_comment(self, create: Any, **_: Any) -> str:
        name = self.preparer.format_table(create.element)
        return f"COMMENT ON TABLE {name} IS {quote_text(create.element.comment)}"


class HeadraceDialect(default.DefaultDialect):
    """The dialect `headrace`; the docstring of the module describes it."""

    name = "headrace"
    driver = "dbapi"
    default_paramstyle = "qmark"
    type_compiler_cls = _Types
    ddl_compiler = _Definitions
    supports_statement_cache = True
    supports_native_boolean = True
    supports_native_decimal = True
    supports_multivalues_insert = True
    supports_comments = True
    inline_comments = True
    supports_sane_rowcount_returning = False
    supports_default_values = False
    supports_sequences = False
    supports_alter = True
    postfetch_lastrowid = False
    insert_returning = False
    div_is_floordiv = False
    max_identifier_length = 255
    construct_arguments = [(Table, {"with": None})]  # noqa: RUF012

    @classmethod
    def import_dbapi(cls) -> Any:
        from headrace import dbapi

        return dbapi

    def create_connect_args(self, url: URL) -> Any:
        properties: dict[str, Any] = dict(url.query)
        named = properties.pop("server", ())
        servers = [named] if isinstance(named, str) else list(named)
        if url.host or not servers:
            servers.insert(0, f"{url.host or '127.0.0.1'}:{url.port or 9092}")
        if url.username:
            properties.setdefault("security.protocol", "SASL_PLAINTEXT")
            properties.setdefault("sasl.mechanism", "SCRAM-SHA-256")
            properties |= {"sasl.username": url.username, "sasl.password": url.password or ""}
        return (
            [],
            {
                "bootstrap": ",".join(dict.fromkeys(servers)),
                "database": url.database or "default",
                "properties": properties or None,
            },
        )

    def do_rollback(self, dbapi_connection: Any) -> None:
        """Do nothing: every statement has taken effect already."""

    def do_ping(self, dbapi_connection: Any) -> bool:
        dbapi_connection.client.admin.list_databases()
        return True

    def is_disconnect(self, e: Any, connection: Any, cursor: Any) -> bool:
        return isinstance(e, self.loaded_dbapi.InterfaceError) and "connection is closed" in str(e)

    def _get_default_schema_name(self, connection: Any) -> str:
        return str(connection.connection.driver_connection.database)

    def _get_server_version_info(self, connection: Any) -> Any:
        return None

    def get_default_isolation_level(self, dbapi_conn: Any) -> Any:
        return "AUTOCOMMIT"

    def get_isolation_level(self, dbapi_connection: Any) -> Any:
        return "AUTOCOMMIT"

    def get_isolation_level_values(self, dbapi_conn: Any) -> Sequence[Any]:
        return ["AUTOCOMMIT"]

    def set_isolation_level(self, dbapi_connection: Any, level: Any) -> None:
        """Do nothing: AUTOCOMMIT is the only isolation level."""

    # -- reflection

    def _admin(self, connection: Any) -> Any:
        return connection.connection.driver_connection.client.admin

    def _definition(self, connection: Any, table: str, schema: str | None) -> TableDefinition:
        database = schema or self.default_schema_name
        try:
            found: TableDefinition = self._admin(connection).describe_table(f"{database}.{table}")
            return found
        except TableError as error:
            raise exc.NoSuchTableError(f"{database}.{table}") from error

    def get_schema_names(self, connection: Any, **_: Any) -> list[str]:
        return [*self._admin(connection).list_databases(), INFORMATION_SCHEMA]

    def get_table_names(self, connection: Any, schema: str | None = None, **_: Any) -> list[str]:
        database = schema or self.default_schema_name
        return [] if database == INFORMATION_SCHEMA else list(self._admin(connection).list_tables(database))

    def get_view_names(self, connection: Any, schema: str | None = None, **_: Any) -> list[str]:
        return []

    def has_table(self, connection: Any, table_name: str, schema: str | None = None, **_: Any) -> bool:
        try:
            return bool(
                self._admin(connection).table_exists(f"{schema or self.default_schema_name}.{table_name}")
            )
        except TableError:
            return False

    def get_columns(self, connection: Any, table_name: str, schema: str | None = None, **_: Any) -> list[Any]:
        definition = self._definition(connection, table_name, schema)
        return [
            {
                "name": column.name,
                "type": type_of(column.type),
                "nullable": column.nullable and column.name not in definition.schema.primary_key,
                "default": column.default,
                "autoincrement": False,
                "comment": column.comment,
            }
            for column in definition.schema.columns
        ]

    def get_pk_constraint(self, connection: Any, table_name: str, schema: str | None = None, **_: Any) -> Any:
        definition = self._definition(connection, table_name, schema)
        return {"constrained_columns": list(definition.schema.primary_key), "name": None}

    def get_table_comment(self, connection: Any, table_name: str, schema: str | None = None, **_: Any) -> Any:
        return {"text": self._definition(connection, table_name, schema).comment}

    def get_foreign_keys(
        self, connection: Any, table_name: str, schema: str | None = None, **_: Any
    ) -> list[Any]:
        return []

    def get_indexes(self, connection: Any, table_name: str, schema: str | None = None, **_: Any) -> list[Any]:
        return []

    def get_unique_constraints(
        self, connection: Any, table_name: str, schema: str | None = None, **_: Any
    ) -> list[Any]:
        return []

    def get_check_constraints(
        self, connection: Any, table_name: str, schema: str | None = None, **_: Any
    ) -> list[Any]:
        return []
