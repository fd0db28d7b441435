"""The server's process and its backups, for administrators."""

from __future__ import annotations

from headrace.protocol.schema import ApiMessage, boolean, int32, int64, string
from headrace.tablelayer.model.messages.answers import TableResponse


class DescribeServerRequest(ApiMessage, key=10070, kind="request", versions="0", flexible="0+"):
    """Ask for the figures of the broker that receives the request."""


class DescribeServerResponse(TableResponse, key=10070, kind="response", versions="0", flexible="0+"):
    """`cpu_ms`: user and system time since the process began. `memory_bytes`: its resident memory, -1 if unknown.

    `open_files_max`: the limit of open files, -1 for no limit. `open_files`: their number, -1 if unknown.
    """

    broker_id: int = int32()
    version: str = string()
    process_id: int = int32()
    uptime_ms: int = int64()
    cpu_ms: int = int64()
    memory_bytes: int = int64(default=-1)
    open_files_max: int = int64(default=-1)
    open_files: int = int64(default=-1, ignorable=True, tag=0)


class BeginBackupRequest(ApiMessage, key=10081, kind="request", versions="0", flexible="0+"):
    """Ask for a cut of the broker: its files at one instant, which stay readable until the backup ends."""


class BeginBackupResponse(TableResponse, key=10081, kind="response", versions="0", flexible="0+"):
    """`data_directory`: the broker's, on its machine. `folder`: the folder in it that has the cut."""

    backup_id: str = string()
    data_directory: str = string()
    folder: str = string()


class HoldBackupRequest(ApiMessage, key=10082, kind="request", versions="0", flexible="0+"):
    """Report, at least once a minute, that a backup is still being made, or that it `is_over`."""

    backup_id: str = string()
    is_over: bool = boolean()


class HoldBackupResponse(TableResponse, key=10082, kind="response", versions="0", flexible="0+"):
    """With an error the backup has ended. Files read since the last successful request may not belong to it."""
