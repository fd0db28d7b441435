"""Records that Kafka producers sent and tables did not take."""

from __future__ import annotations

from uuid import UUID

from headrace.protocol.schema import ApiMessage, Struct, array, boolean, int32, int64, string, uuid
from headrace.tablelayer.model.messages.answers import TableResponse


class RefusedRecord(Struct):
    """`index`: of the record in its batch, -1: the batch as a whole; `dead_letter`: it is in the table's
    dead-letter topic, and the batch went on without it.
    """

    time_ms: int = int64()
    topic: str = string()
    partition: int = int32()
    index: int = int32(default=-1)
    code: str = string()
    reason: str = string()
    dead_letter: bool = boolean()


class RefusedTable(Struct):
    """`count`: refused since the server started; `records`: the last ones, the newest first."""

    table_id: UUID = uuid()
    table: str = string()
    count: int = int64()
    records: list[RefusedRecord] = array(RefusedRecord)


class ListRefusedRequest(ApiMessage, key=10071, kind="request", versions="0", flexible="0+"):
    """Asks a broker for what it has refused: of the table of this topic, or of all (null)."""

    topic: str | None = string(nullable="0+", default=None)


class ListRefusedResponse(TableResponse, key=10071, kind="response", versions="0", flexible="0+"):
    """In order of name; only tables that may be read, since reasons quote values."""

    tables: list[RefusedTable] = array(RefusedTable)
