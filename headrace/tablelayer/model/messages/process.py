"""The process that answers: for those who look after a server."""

from __future__ import annotations

from headrace.protocol.schema import ApiMessage, boolean, int32, int64, string
from headrace.tablelayer.model.messages.answers import TableResponse


class DescribeServerRequest(ApiMessage, key=10070, kind="request", versions="0", flexible="0+"):
    """Asks for the figures of the broker that it is sent to."""


class DescribeServerResponse(TableResponse, key=10070, kind="response", versions="0", flexible="0+"):
    """`cpu_ms`: user and system time since the process began; `memory_bytes`: of it in memory (-1: not known here);
    `open_files_max`: as many as it may have, -1 for any.
    """

    broker_id: int = int32()
    version: str = string()
    process_id: int = int32()
    uptime_ms: int = int64()
    cpu_ms: int = int64()
    memory_bytes: int = int64(default=-1)
    open_files_max: int = int64(default=-1)


class BeginBackupRequest(ApiMessage, key=10081, kind="request", versions="0", flexible="0+"):
    """Asks for a cut of the broker: what there is at one instant, and stays readable until the backup ends."""


class BeginBackupResponse(TableResponse, key=10081, kind="response", versions="0", flexible="0+"):
    """`data_directory` of the broker, on its machine, and the `folder` in it that has the cut."""

    backup_id: str = string()
    data_directory: str = string()
    folder: str = string()


class HoldBackupRequest(ApiMessage, key=10082, kind="request", versions="0", flexible="0+"):
    """Says that a backup is still being made, at least once a minute, or that it `is_over`."""

    backup_id: str = string()
    is_over: bool = boolean()


class HoldBackupResponse(TableResponse, key=10082, kind="response", versions="0", flexible="0+"):
    """With an error the backup is not under way any more: what was read since it was last held may not belong to it."""
