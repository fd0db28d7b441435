"""Records of Kafka producers that tables refused."""

from __future__ import annotations

from uuid import UUID

from headrace.protocol.schema import ApiMessage, Struct, array, boolean, int32, int64, string, uuid
from headrace.tablelayer.model.messages.answers import TableResponse


class RefusedRecord(Struct):
    """`index`: the record's number in its batch, -1 for the whole batch.

    `dead_letter`: the record is in the table's dead-letter topic, and the rest of the batch was accepted.
    """

    time_ms: int = int64()
    topic: str = string()
    partition: int = int32()
    index: int = int32(default=-1)
    code: str = string()
    reason: str = string()
    dead_letter: bool = boolean()


class RefusedTable(Struct):
    """`count`: refused records since the server started. `records`: the last ones, newest first."""

    table_id: UUID = uuid()
    table: str = string()
    count: int = int64()
    records: list[RefusedRecord] = array(RefusedRecord)


class ListRefusedRequest(ApiMessage, key=10071, kind="request", versions="0", flexible="0+"):
    """Ask a broker which records it refused for the table of this topic, or for all tables (null)."""

    topic: str | None = string(nullable="0+", default=None)


class ListRefusedResponse(TableResponse, key=10071, kind="response", versions="0", flexible="0+"):
    """Tables in order of name. Only tables that the client may read, since reasons quote values."""

    tables: list[RefusedTable] = array(RefusedTable)
