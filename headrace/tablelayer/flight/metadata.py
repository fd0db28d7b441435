"""Metadata for Flight SQL's clients: databases, tables, keys, types, and the abilities of the server's SQL.

Databases are Flight SQL's schemas; there are no catalogs. The schemas of the answers are those of `FlightSql.proto`.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterable, Iterator, Mapping
from typing import Any, Final

import pyarrow as pa

from headrace.tablelayer.client import Connection
from headrace.tablelayer.model.errors import TableError
from headrace.tablelayer.model.table.definition import TableDefinition

TABLE_TYPE: Final = "TABLE"


def _field(name: str, kind: pa.DataType, *, null: bool = True) -> pa.Field:
    return pa.field(name, kind, nullable=null)


_TEXT = pa.string()
_INT = pa.int32()
_KEYS: Final = pa.schema(
    [
        *(
            _field(f"{side}_{name}", _TEXT, null=name in ("catalog_name", "db_schema_name"))
            for side in ("pk", "fk")
            for name in ("catalog_name", "db_schema_name", "table_name", "column_name")
        ),
        _field("key_sequence", _INT, null=False),
        _field("fk_key_name", _TEXT),
        _field("pk_key_name", _TEXT),
        _field("update_rule", pa.uint8(), null=False),
        _field("delete_rule", pa.uint8(), null=False),
    ]
)
_TABLES: Final = pa.schema(
    [
        _field("catalog_name", _TEXT),
        _field("db_schema_name", _TEXT),
        _field("table_name", _TEXT, null=False),
        _field("table_type", _TEXT, null=False),
    ]
)
_TABLES_WITH_SCHEMA: Final = _TABLES.append(_field("table_schema", pa.binary(), null=False))
_INFO_KINDS: Final = (
    ("string_value", _TEXT),
    ("bool_value", pa.bool_()),
    ("bigint_value", pa.int64()),
    ("int32_bitmask", _INT),
    ("string_list", pa.list_(pa.field("string_data", _TEXT))),
    ("int32_to_int32_list_map", pa.map_(_INT, pa.list_(_INT))),
)
_INFO: Final = pa.schema(
    [
        _field("info_name", pa.uint32(), null=False),
        _field("value", pa.dense_union([_field(name, kind) for name, kind in _INFO_KINDS])),
    ]
)
_TYPES: Final = pa.schema(
    [
        _field("type_name", _TEXT, null=False),
        _field("data_type", _INT, null=False),
        _field("column_size", _INT),
        _field("literal_prefix", _TEXT),
        _field("literal_suffix", _TEXT),
        _field("create_params", pa.list_(_field("item", _TEXT, null=False))),
        _field("nullable", _INT, null=False),
        _field("case_sensitive", pa.bool_(), null=False),
        _field("searchable", _INT, null=False),
        _field("unsigned_attribute", pa.bool_()),
        _field("fixed_prec_scale", pa.bool_(), null=False),
        _field("auto_increment", pa.bool_()),
        _field("local_type_name", _TEXT),
        _field("minimum_scale", _INT),
        _field("maximum_scale", _INT),
        _field("sql_data_type", _INT, null=False),
        _field("datetime_subcode", _INT),
        _field("num_prec_radix", _INT),
        _field("interval_precision", _INT),
    ]
)
SCHEMAS: Final[Mapping[str, Callable[[Any], pa.Schema]]] = {
    "CommandGetSqlInfo": lambda _: _INFO,
    "CommandGetXdbcTypeInfo": lambda _: _TYPES,
    "CommandGetCatalogs": lambda _: pa.schema([_field("catalog_name", _TEXT, null=False)]),
    "CommandGetDbSchemas": lambda _: pa.schema(
        [_field("catalog_name", _TEXT), _field("db_schema_name", _TEXT, null=False)]
    ),
    "CommandGetTables": lambda it: _TABLES_WITH_SCHEMA if it.include_schema else _TABLES,
    "CommandGetTableTypes": lambda _: pa.schema([_field("table_type", _TEXT, null=False)]),
    "CommandGetPrimaryKeys": lambda _: pa.schema(
        [
            _field("catalog_name", _TEXT),
            _field("db_schema_name", _TEXT),
            _field("table_name", _TEXT, null=False),
            _field("column_name", _TEXT, null=False),
            _field("key_name", _TEXT),
            _field("key_sequence", _INT, null=False),
        ]
    ),
    "CommandGetExportedKeys": lambda _: _KEYS,
    "CommandGetImportedKeys": lambda _: _KEYS,
    "CommandGetCrossReference": lambda _: _KEYS,
}
"""The schema of the answer to each command, which may depend on the command's fields."""


class Metadata:
    """Answers the commands, with requests to the server each time. Errors are the client's."""

    def __init__(self, connection: Connection, version: str) -> None:
        self._connection = connection
        self._version = version

    def rows(self, name: str, command: Any) -> pa.Table:
        """Return the answer to a command of SCHEMAS."""
        schema = SCHEMAS[name](command)
        if name == "CommandGetSqlInfo":
            return _infos(self._version, set(command.info))
        found: Iterable[tuple[Any, ...]] = ()
        if name == "CommandGetDbSchemas":
            found = self._databases(command)
        elif name == "CommandGetTables":
            found = self._tables(command)
        elif name == "CommandGetTableTypes":
            found = [(TABLE_TYPE,)]
        elif name == "CommandGetPrimaryKeys":
            found = self._primary_keys(command)
        elif name == "CommandGetXdbcTypeInfo":
            found = _types(command.data_type if command.HasField("data_type") else None)
        listed = list(found)
        columns: Any = list(zip(*listed, strict=True)) if listed else [()] * len(schema)
        return pa.table(
            [pa.array(values, field.type) for values, field in zip(columns, schema, strict=True)],
            schema=schema,
        )

    def _matching_databases(self, command: Any) -> list[str]:
        if command.catalog:
            return []  # there are no catalogs
        matches = _pattern(command, "db_schema_filter_pattern")
        return sorted(each for each in self._connection.admin.list_databases() if matches(each))

    def _databases(self, command: Any) -> Iterator[tuple[Any, ...]]:
        for database in self._matching_databases(command):
            yield None, database

    def _tables(self, command: Any) -> Iterator[tuple[Any, ...]]:
        if command.table_types and TABLE_TYPE not in command.table_types:
            return
        matches = _pattern(command, "table_name_filter_pattern")
        for database in self._matching_databases(command):
            for table in sorted(filter(matches, self._connection.admin.list_tables(database))):
                row = (None, database, table, TABLE_TYPE)
                if not command.include_schema:
                    yield row
                    continue
                try:
                    found = self._connection.admin.describe_table(f"{database}.{table}")
                except TableError:
                    continue  # dropped meanwhile
                yield *row, _described(found).serialize().to_pybytes()

    def _primary_keys(self, command: Any) -> Iterator[tuple[Any, ...]]:
        if command.catalog:
            return
        database = command.db_schema or "default"
        definition = self._connection.admin.describe_table(f"{database}.{command.table}")
        for place, column in enumerate(definition.schema.primary_key, 1):
            yield None, database, command.table, column, f"{command.table}_pkey", place


def _pattern(command: Any, field: str) -> Callable[[str], bool]:
    """Return a test of names: % matches any characters, _ one, \\ before one of them the character itself."""
    if not command.HasField(field):
        return lambda _: True
    text = re.sub(
        r"\\([%_\\])|(%)|(_)|(.)",
        lambda found: ".*" if found[2] else "." if found[3] else re.escape(found[1] or found[4]),
        getattr(command, field),
        flags=re.DOTALL,
    )
    # Several % in a row are the same as one, which is faster to match.
    wanted = re.compile(re.sub(r"(\.\*)+", ".*", text), re.DOTALL)
    return lambda name: wanted.fullmatch(name) is not None


def _described(definition: TableDefinition) -> pa.Schema:
    """Return a table's columns with the metadata that Flight SQL's drivers show."""
    path = definition.path
    return pa.schema(
        [
            pa.field(
                column.name,
                column.type.arrow(),
                nullable=column.nullable and column.name not in definition.schema.primary_key,
                metadata={
                    "ARROW:FLIGHT:SQL:DB_SCHEMA_NAME": path.database,
                    "ARROW:FLIGHT:SQL:TABLE_NAME": path.table,
                    "ARROW:FLIGHT:SQL:TYPE_NAME": str(column.type),
                    "ARROW:FLIGHT:SQL:IS_READ_ONLY": "1",
                    "ARROW:FLIGHT:SQL:IS_CASE_SENSITIVE": "1",
                    "ARROW:FLIGHT:SQL:IS_AUTO_INCREMENT": "0",
                    "ARROW:FLIGHT:SQL:IS_SEARCHABLE": "1",
                }
                | ({} if column.comment is None else {"ARROW:FLIGHT:SQL:REMARKS": column.comment}),
            )
            for column in definition.schema.columns
        ]
    )


_UNLIMITED: Final = range(541, 562)
"""SQL_MAX_...: 0 says that there is no limit, or no known one."""
_NO: Final = (500, 501, 502, 527, 536, 537, 556, 563, 565, 566, 572, 573, 574, 575, 576)
_YES: Final = (506, 515, 516, 518, 520, 521, 523, 524, 539)


def _known_infos(version: str) -> dict[int, Any]:
    """Return the properties of this server and its SQL (DuckDB's, read only), by the numbers of `SqlInfo`."""
    known: dict[int, Any] = {
        0: "Headrace",
        1: version,
        2: pa.__version__,
        3: True,  # read only
        4: True,  # SQL
        5: False,  # Substrait
        8: _Number(0),  # no transactions
        9: False,  # no CancelQuery: a client ends the stream
        100: _Number(0),
        101: _Number(0),
        503: _Number(1),  # names in any case
        504: '"',
        505: _Number(1),
        507: _Number(3),  # nulls at the end
        **{number: [] for number in (508, 509, 510, 511, 512)},
        513: "\\",
        514: "",
        517: {},
        519: False,
        522: _Number(3),
        525: _Number(3),
        526: _Number(1),
        528: _Number(2),  # full outer joins
        529: "database",
        530: "",
        531: "",  # no catalogs
        532: False,
        533: _Number(0),
        534: _Number(0),
        535: _Number(0),
        538: _Number(15),
        540: _Number(3),
        562: _Number(0),
        564: _Number(1),
        567: _Number(2),  # forward only
        568: _Number(0),
        569: _Number(2),  # read only
        570: _Number(0),
        571: _Number(0),
    }
    known.update(dict.fromkeys(_NO, False))
    known.update(dict.fromkeys(_YES, True))
    known.update(dict.fromkeys((number for number in _UNLIMITED if number not in known), 0))
    return known


class _Number(int):
    """An int32 among the values; a plain int is an int64."""


def _infos(version: str, wanted: set[int]) -> pa.Table:
    listed = [
        (number, value)
        for number, value in sorted(_known_infos(version).items())
        if not wanted or number in wanted
    ]
    kinds, offsets = [], []
    values: list[list[Any]] = [[] for _ in _INFO_KINDS]
    for _, value in listed:
        kind = _kind(value)
        kinds.append(kind)
        offsets.append(len(values[kind]))
        values[kind].append(list(value.items()) if isinstance(value, dict) else value)
    union = pa.UnionArray.from_dense(
        pa.array(kinds, pa.int8()),
        pa.array(offsets, pa.int32()),
        [pa.array(each, kind) for each, (_, kind) in zip(values, _INFO_KINDS, strict=True)],
        [name for name, _ in _INFO_KINDS],
    )
    return pa.table([pa.array([number for number, _ in listed], pa.uint32()), union], schema=_INFO)


def _kind(value: Any) -> int:
    for kind, of in enumerate((str, bool, None, _Number, list, dict)):
        if of is not None and isinstance(value, of):
            return kind
    return 2


_XDBC: Final = (
    # name, XdbcDataType, size, quote, radix, scales, datetime subcode
    ("STRING", 12, None, "'", None, None, None),
    ("BYTES", -3, None, None, None, None, None),
    ("BOOLEAN", -7, 1, None, None, None, None),
    ("TINYINT", -6, 3, None, 10, (0, 0), None),
    ("SMALLINT", 5, 5, None, 10, (0, 0), None),
    ("INT", 4, 10, None, 10, (0, 0), None),
    ("BIGINT", -5, 19, None, 10, (0, 0), None),
    ("FLOAT", 7, 24, None, 2, None, None),
    ("DOUBLE", 8, 53, None, 2, None, None),
    ("DECIMAL", 3, 38, None, 10, (0, 38), None),
    ("DATE", 91, 10, "'", None, None, 2),
    ("TIME", 92, 18, "'", None, (0, 9), 2),
    ("TIMESTAMP", 93, 29, "'", None, (0, 9), 3),
    ("TIMESTAMP_LTZ", 93, 35, "'", None, (0, 9), 5),
)
_DATETIME: Final = 9


def _types(wanted: int | None) -> Iterator[tuple[Any, ...]]:
    for name, number, size, quote, radix, scales, subcode in sorted(
        _XDBC, key=lambda each: (each[1], each[0])
    ):
        if wanted is not None and number != wanted:
            continue
        is_number = radix is not None
        low, high = scales or (None, None)
        subcode = 1 if name == "DATE" else subcode
        yield (
            name, number, size, quote, quote, ["precision", "scale"] if name == "DECIMAL" else None,
            1, name == "STRING", 3, False if is_number else None, False, False if is_number else None,
            name, low, high, _DATETIME if subcode else number, subcode, radix, None,
        )  # fmt: skip
