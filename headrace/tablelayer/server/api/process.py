"""DescribeServer: the resources that the process uses. BeginBackup, CutBackup, ReadBackup, HoldBackup: its files at one
instant.

These APIs need nothing of the table extension.
"""

from __future__ import annotations

import os
import resource
from functools import cache
from time import monotonic
from typing import TYPE_CHECKING

from headrace.broker.backup.member import Step
from headrace.broker.requests.declaration import ApiDeclaration, RequestContext
from headrace.broker.runtime import open_files
from headrace.broker.security.requirement import whole
from headrace.broker.security.rights import Operation
from headrace.protocol.errors import ErrorCode, KafkaError
from headrace.tablelayer.model import messages as m

if TYPE_CHECKING:
    from headrace.broker.backup.cut import Backups

_PAGE_BYTES = resource.getpagesize()


class ProcessApi:
    def __init__(self) -> None:
        self.broker_id = -1
        self.backups: Backups | None = None
        self._began = monotonic()

    def declarations(self) -> list[ApiDeclaration]:
        return [
            ApiDeclaration(
                m.DescribeServerRequest,
                m.DescribeServerResponse,
                self.describe,
                whole(Operation.DESCRIBE),
            ),
            ApiDeclaration(
                m.BeginBackupRequest, m.BeginBackupResponse, self.begin_backup, whole(Operation.ALTER)
            ),
            ApiDeclaration(
                m.HoldBackupRequest, m.HoldBackupResponse, self.hold_backup, whole(Operation.ALTER)
            ),
            ApiDeclaration(m.CutBackupRequest, m.CutBackupResponse, self.cut_backup, whole(Operation.ALTER)),
            ApiDeclaration(
                m.ReadBackupRequest, m.ReadBackupResponse, self.read_backup, whole(Operation.ALTER)
            ),
        ]

    def describe(self, _: RequestContext, __: m.DescribeServerRequest) -> m.DescribeServerResponse:
        used = resource.getrusage(resource.RUSAGE_SELF)
        soft, _hard = resource.getrlimit(resource.RLIMIT_NOFILE)
        return m.DescribeServerResponse(
            broker_id=self.broker_id,
            version=_version(),
            process_id=os.getpid(),
            uptime_ms=int((monotonic() - self._began) * 1000),
            cpu_ms=int((used.ru_utime + used.ru_stime) * 1000),
            memory_bytes=_memory_bytes(),
            open_files_max=-1 if soft == resource.RLIM_INFINITY else soft,
            open_files=open_files.count(),
        )

    async def begin_backup(self, _: RequestContext, request: m.BeginBackupRequest) -> m.BeginBackupResponse:
        assert self.backups is not None
        try:
            backup = await self.backups.begin(in_steps=request.in_steps)
        except KafkaError as error:
            return m.BeginBackupResponse(error_code=int(error.code), error_message=error.message)
        return m.BeginBackupResponse(
            backup_id=backup.id,
            data_directory=str(self.backups.data_dir),
            folder=str(backup.folder),
            is_member=backup.is_member,
        )

    async def cut_backup(self, _: RequestContext, request: m.CutBackupRequest) -> m.CutBackupResponse:
        assert self.backups is not None
        try:
            try:
                step = Step(request.step)
            except ValueError as error:
                raise KafkaError(ErrorCode.INVALID_REQUEST, str(error)) from None
            await self.backups.step(request.backup_id, step)
        except KafkaError as error:
            return m.CutBackupResponse(error_code=int(error.code), error_message=error.message)
        return m.CutBackupResponse()

    async def read_backup(self, _: RequestContext, request: m.ReadBackupRequest) -> m.ReadBackupResponse:
        assert self.backups is not None
        try:
            found = await self.backups.read(
                request.backup_id, request.place, request.position, request.size_bytes
            )
        except KafkaError as error:
            return m.ReadBackupResponse(error_code=int(error.code), error_message=error.message)
        return m.ReadBackupResponse(written_ms=found.written_ms, end=found.end, data=found.data)

    async def hold_backup(self, _: RequestContext, request: m.HoldBackupRequest) -> m.HoldBackupResponse:
        assert self.backups is not None
        try:
            if request.is_over:
                await self.backups.end(request.backup_id)
            else:
                self.backups.renew(request.backup_id)
        except KafkaError as error:
            return m.HoldBackupResponse(error_code=int(error.code), error_message=error.message)
        return m.HoldBackupResponse()


@cache
def _version() -> str:
    # takes a twentieth of a server's import time
    from importlib.metadata import PackageNotFoundError, version

    try:
        return version("headrace")
    except PackageNotFoundError:  # a source folder, without an installation
        return "unknown"


def _memory_bytes() -> int:
    """Return the resident memory in bytes; -1 where Linux's /proc is missing."""
    try:
        with open("/proc/self/statm", encoding="ascii") as said:
            return int(said.read().split()[1]) * _PAGE_BYTES
    except OSError:
        return -1
