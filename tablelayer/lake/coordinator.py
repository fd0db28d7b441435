"""The server's side of tiering, as the tierer sees it: rounds with an epoch and a lease.

The coordinator hands out one round per table at a time. It spares tierers from working against each other;
it is not what makes a round exact: that is the compare-and-set in the lake. Its record of what is tiered is
a copy, kept so that the log's retention knows how far it may go.
"""

from __future__ import annotations

import threading
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any, Protocol
from uuid import UUID

from tablelayer.model.errors import TableError, TableErrorCode
from tablelayer.model.messages import (
    DescribeLakeRequest,
    DescribeLakeResponse,
    LakeBeginRequest,
    LakeBeginResponse,
    LakeCommitRequest,
    LakeCommitResponse,
    LakeHeartbeatRequest,
    LakeHeartbeatResponse,
    LakeOffset,
)
from tablelayer.model.table import TablePath


@dataclass(frozen=True, slots=True)
class TieringRound:
    """Leave to tier one table until the lease ends; every heartbeat renews it."""

    path: TablePath
    table_id: UUID
    epoch: int
    lease_ms: int


@dataclass(frozen=True, slots=True)
class LakeStatus:
    """What the coordinator knows of a table's lake: `snapshot_id` None before the first commit."""

    enabled: bool
    format: str
    snapshot_id: int | None
    offsets: Mapping[int, int] = field(default_factory=dict)
    properties: Mapping[str, str] = field(default_factory=dict)


class Coordinator(Protocol):
    """Who gives out rounds."""

    def begin(self, path: TablePath | None, *, force: bool) -> TieringRound | None:
        """A round of this table, or of the one that needs it most; None if there is none to be had now."""

    def heartbeat(self, granted: TieringRound) -> None:
        """Renew the lease. Raises TableError(FENCED_TIERING_EPOCH) when the round is somebody else's by
        now.
        """

    def commit(self, granted: TieringRound, snapshot_id: int, offsets: Mapping[int, int]) -> None:
        """Tell what is in the lake already, and end the round. Raises TableError(FENCED_TIERING_EPOCH)."""

    def release(self, granted: TieringRound) -> None:
        """End the round without news. Never raises: at worst the lease runs out by itself."""

    def describe(self, table_id: UUID) -> LakeStatus:
        """What is known of the table's lake."""


class ServerCoordinator:
    """The coordinator inside the server, over the table client."""

    def __init__(self, connection: Any, worker: str) -> None:
        """`worker` names this tierer in the server's messages."""
        self._connection = connection
        self._worker = worker

    def begin(self, path: TablePath | None, *, force: bool) -> TieringRound | None:
        request = LakeBeginRequest(
            worker=self._worker,
            database=None if path is None else path.database,
            table=None if path is None else path.table,
            force=force,
        )
        answer = self._connection.call(request, LakeBeginResponse, doing="begin a tiering round")
        if not answer.granted:
            return None
        path = TablePath(answer.database, answer.table)
        return TieringRound(path, answer.table_id, answer.epoch, answer.lease_ms)

    def heartbeat(self, granted: TieringRound) -> None:
        request = LakeHeartbeatRequest(table_id=granted.table_id, epoch=granted.epoch)
        self._connection.call(request, LakeHeartbeatResponse, doing=f"keep the round of {granted.path}")

    def commit(self, granted: TieringRound, snapshot_id: int, offsets: Mapping[int, int]) -> None:
        request = LakeCommitRequest(
            table_id=granted.table_id,
            epoch=granted.epoch,
            snapshot_id=snapshot_id,
            offsets=[LakeOffset(bucket=bucket, offset=offset) for bucket, offset in sorted(offsets.items())],
        )
        self._connection.call(request, LakeCommitResponse, doing=f"report the round of {granted.path}")

    def release(self, granted: TieringRound) -> None:
        """Reports again what the server knows already, which ends the round and changes nothing else."""
        try:
            known = self.describe(granted.table_id)
            self.commit(granted, -1 if known.snapshot_id is None else known.snapshot_id, known.offsets)
        except Exception:  # noqa: BLE001 - see `Coordinator`
            return

    def describe(self, table_id: UUID) -> LakeStatus:
        answer = self._connection.call(
            DescribeLakeRequest(table_id=table_id), DescribeLakeResponse, doing="describe the lake"
        )
        return LakeStatus(
            enabled=answer.enabled,
            format=answer.format,
            snapshot_id=None if answer.snapshot_id < 0 else answer.snapshot_id,
            offsets={entry.bucket: entry.offset for entry in answer.offsets},
            properties={entry.key: entry.value for entry in answer.properties},
        )


class Heartbeats:
    """Renews a round's lease from a thread, three times per lease, while the context is open.

    `fenced` is set when the coordinator says that the round is not ours any more. An unreachable server is
    no reason to stop: the lake decides at the commit.
    """

    def __init__(self, coordinator: Coordinator, granted: TieringRound) -> None:
        self.fenced = threading.Event()
        self._coordinator = coordinator
        self._round = granted
        self._done = threading.Event()
        self._thread = threading.Thread(target=self._beat, name=f"heartbeats of {granted.path}", daemon=True)

    def __enter__(self) -> Heartbeats:
        self._thread.start()
        return self

    def __exit__(self, *_: object) -> None:
        self._done.set()
        self._thread.join(timeout=5)

    def _beat(self) -> None:
        interval_s = max(self._round.lease_ms / 3000, 0.05)
        while not self._done.wait(interval_s):
            try:
                self._coordinator.heartbeat(self._round)
            except TableError as error:
                if error.code is TableErrorCode.FENCED_TIERING_EPOCH:
                    self.fenced.set()
                    return
            except Exception:  # noqa: BLE001 - see the class
                continue
