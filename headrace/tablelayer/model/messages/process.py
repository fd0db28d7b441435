"""The server's process and its backups, for administrators."""

from __future__ import annotations

from headrace.protocol.schema import ApiMessage, binary, boolean, float64, int8, int32, int64, string
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
    """Ask for a cut of the broker: its files at one instant, which stay readable until the backup ends.

    `in_steps`: a member of a cluster only prepares its cut, and the client asks for its steps with `CutBackupRequest`.
    """

    in_steps: bool = boolean(default=False, ignorable=True, tag=0)


class BeginBackupResponse(TableResponse, key=10081, kind="response", versions="0", flexible="0+"):
    """`data_directory`: the broker's, on its machine. `folder`: the folder in it that has the cut. `is_member`: the
    steps of a member have to follow.
    """

    backup_id: str = string()
    data_directory: str = string()
    folder: str = string()
    is_member: bool = boolean(default=False, ignorable=True, tag=0)


class HoldBackupRequest(ApiMessage, key=10082, kind="request", versions="0", flexible="0+"):
    """Report, at least once a minute, that a backup is still being made, or that it `is_over`."""

    backup_id: str = string()
    is_over: bool = boolean()


class HoldBackupResponse(TableResponse, key=10082, kind="response", versions="0", flexible="0+"):
    """With an error the backup has ended. Files read since the last successful request may not belong to it."""


class CutBackupRequest(ApiMessage, key=10083, kind="request", versions="0", flexible="0+"):
    """Ask for one step of a member's part in the cut of a cluster (`headrace.broker.backup.member.Step`)."""

    backup_id: str = string()
    step: int = int8()


class CutBackupResponse(TableResponse, key=10083, kind="response", versions="0", flexible="0+"):
    """With OPERATION_NOT_ATTEMPTED the client has to begin the whole backup again."""


class ReadBackupRequest(ApiMessage, key=10084, kind="request", versions="0", flexible="0+"):
    """Ask for a range of a file of the cut, at most 4 MiB. `place`: relative to the data directory."""

    backup_id: str = string()
    place: str = string()
    position: int = int64()
    size_bytes: int = int32()


class ReadBackupResponse(TableResponse, key=10084, kind="response", versions="0", flexible="0+"):
    """`written_ms`: the file system's time of the file. `end`: the number of bytes that belong to the cut.
    RESOURCE_NOT_FOUND: its topic was deleted.
    """

    written_ms: float = float64()
    end: int = int64()
    data: bytes = binary()
