"""Flight SQL's commands, actions and their results, as protobuf messages.

Names, fields and their numbers are those of `FlightSql.proto` (Apache Arrow). A field's number is its place in the
list, from 1 on. A message is sent inside of a `google.protobuf.Any`. Messages that a server which only reads does not
need are left out: updates, ingestion, transactions, Substrait.
"""

from __future__ import annotations

from collections.abc import Mapping
from functools import cache
from typing import Any, Final

from google.protobuf import any_pb2, descriptor_pb2, descriptor_pool, message_factory
from google.protobuf.message import DecodeError

_PACKAGE: Final = "arrow.flight.protocol.sql"
_NAMED_TABLE: Final = {"catalog": "string?", "db_schema": "string?", "table": "string"}
_MESSAGES: Final[Mapping[str, Mapping[str, str]]] = {
    "CommandStatementQuery": {"query": "string", "transaction_id": "bytes?"},
    "CommandPreparedStatementQuery": {"prepared_statement_handle": "bytes"},
    "TicketStatementQuery": {"statement_handle": "bytes"},
    "CommandGetSqlInfo": {"info": "uint32*"},
    "CommandGetXdbcTypeInfo": {"data_type": "int32?"},
    "CommandGetCatalogs": {},
    "CommandGetDbSchemas": {"catalog": "string?", "db_schema_filter_pattern": "string?"},
    "CommandGetTables": {
        "catalog": "string?",
        "db_schema_filter_pattern": "string?",
        "table_name_filter_pattern": "string?",
        "table_types": "string*",
        "include_schema": "bool",
    },
    "CommandGetTableTypes": {},
    "CommandGetPrimaryKeys": _NAMED_TABLE,
    "CommandGetExportedKeys": _NAMED_TABLE,
    "CommandGetImportedKeys": _NAMED_TABLE,
    "CommandGetCrossReference": {
        "pk_catalog": "string?",
        "pk_db_schema": "string?",
        "pk_table": "string",
        "fk_catalog": "string?",
        "fk_db_schema": "string?",
        "fk_table": "string",
    },
    "CommandStatementUpdate": {"query": "string", "transaction_id": "bytes?"},
    "CommandPreparedStatementUpdate": {"prepared_statement_handle": "bytes"},
    "ActionCreatePreparedStatementRequest": {"query": "string", "transaction_id": "bytes?"},
    "ActionCreatePreparedStatementResult": {
        "prepared_statement_handle": "bytes",
        "dataset_schema": "bytes",
        "parameter_schema": "bytes",
    },
    "ActionClosePreparedStatementRequest": {"prepared_statement_handle": "bytes"},
    "DoPutPreparedStatementResult": {"prepared_statement_handle": "bytes?"},
}


class MessageError(ValueError):
    """Bytes that are not a Flight SQL message, or a message that this server does not support."""


def unpacked(data: bytes) -> tuple[str, Any]:
    """Return (name, message) of an `Any`. Raises MessageError."""
    holder = any_pb2.Any()
    try:
        holder.ParseFromString(data)
        package, _, name = holder.type_url.rpartition("/")[2].rpartition(".")
        if package != _PACKAGE or name not in _MESSAGES:
            raise MessageError(
                f"{holder.type_url[:200] or 'this'} is not a command that this server supports"
            )
        return name, _classes()[name].FromString(holder.value)
    except DecodeError as error:
        raise MessageError(f"this is not a Flight SQL message: {error}") from None


def packed(name: str, **fields: Any) -> bytes:
    """Return the bytes of an `Any` with this message."""
    message = _classes()[name](**fields)
    holder = any_pb2.Any(type_url=f"type.googleapis.com/{_PACKAGE}.{name}", value=message.SerializeToString())
    return bytes(holder.SerializeToString())


def bare(name: str, **fields: Any) -> bytes:
    """Return the bytes of a message without an `Any` around it."""
    return bytes(_classes()[name](**fields).SerializeToString())


@cache
def _classes() -> dict[str, Any]:
    """Return the message classes, from a pool of their own: a program may have classes of the same names."""
    of_field = descriptor_pb2.FieldDescriptorProto
    file = descriptor_pb2.FileDescriptorProto(
        name="headrace/flight_sql.proto", package=_PACKAGE, syntax="proto3"
    )
    for name, fields in _MESSAGES.items():
        message = file.message_type.add(name=name)
        for number, (field, kind) in enumerate(fields.items(), 1):
            made = message.field.add(
                name=field,
                number=number,
                type=getattr(of_field, f"TYPE_{kind.rstrip('?*').upper()}"),
                label=of_field.LABEL_REPEATED if kind.endswith("*") else of_field.LABEL_OPTIONAL,
            )
            if kind.endswith("?"):  # protoc represents `optional` as a oneof of its own
                made.proto3_optional = True
                made.oneof_index = len(message.oneof_decl)
                message.oneof_decl.add(name=f"_{field}")
    pool = descriptor_pool.DescriptorPool()
    pool.Add(file)
    return {
        name: message_factory.GetMessageClass(pool.FindMessageTypeByName(f"{_PACKAGE}.{name}"))
        for name in _MESSAGES
    }
