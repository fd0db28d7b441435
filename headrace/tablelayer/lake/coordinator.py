"""Client of the server's tiering coordinator: rounds with an epoch and a lease.

The coordinator grants one round per table at a time, so that tiering jobs do not compete. Exactness does not depend on
it; that comes from the compare-and-set in the lake. Its record of the tiered offsets is a copy, kept so that the log's
retention knows how far it may delete.
"""

from __future__ import annotations

import logging
import os
import re
import threading
from collections.abc import Mapping
from dataclasses import dataclass, field
from types import MappingProxyType
from typing import Any, Protocol
from uuid import UUID

from headrace.tablelayer.model.errors import TableError, TableErrorCode
from headrace.tablelayer.model.lake.offsets import Offsets, in_order
from headrace.tablelayer.model.messages.lake import (
    DescribeLakeRequest,
    DescribeLakeResponse,
    DroppedPartition,
    LakeBeginRequest,
    LakeBeginResponse,
    LakeCommitRequest,
    LakeCommitResponse,
    LakeEndRequest,
    LakeEndResponse,
    LakeFinishRequest,
    LakeFinishResponse,
    LakeHeartbeatRequest,
    LakeHeartbeatResponse,
    LakeOffset,
    ListedLake,
    ListLakeRequest,
    ListLakeResponse,
)
from headrace.tablelayer.model.table.path import TablePath

logger = logging.getLogger("headrace.lake")

TOKEN_VARIABLE = "HEADRACE_TIERING_TOKEN"
_SECRET_NAME = re.compile(r"secret|password|token|credential|key|sas|authorization", re.IGNORECASE)
_SECRET_LENGTH_MIN = 6
"""Minimum length of a secret that is hidden; a shorter one may be part of ordinary words in a message."""


@dataclass(frozen=True, slots=True)
class TieringRound:
    """Grant to tier one table, or the plain topic of that name, until the lease ends; heartbeats renew the lease."""

    path: TablePath | str
    table_id: UUID
    epoch: int
    lease_ms: int


@dataclass(frozen=True, slots=True)
class LakeStatus:
    """State of a table's lake as the coordinator knows it. `snapshot_id` is None before the first commit.

    `properties` are the lake catalog's; a value is None when the server hides it from clients without the tiering
    token. `offsets` are tiered offsets and `ends` log ends, both by place. `behind_ms` is the age of the oldest change
    that is not in the lake (0: all are, -1: unknown). `commits` counts the commits reported since the server started.
    `worker` (None: no worker), `doing`, `changes` and `round_ms` describe the running round. `failures`, `retry_in_ms`
    and `failure` describe the rounds that failed since the last commit. `committed_at_ms` is -1 before the first
    commit. `dropped` are partitions that clients dropped, ids by name; `expired` says that others may be gone, whose
    rows in the lake belong to the table.
    """

    enabled: bool
    format: str
    snapshot_id: int | None
    offsets: Offsets = field(default_factory=dict)
    properties: Mapping[str, str | None] = field(default_factory=dict, repr=False)
    ends: Offsets = field(default_factory=dict)
    freshness_ms: int = 0
    committed_at_ms: int = -1
    worker: str | None = None
    doing: str = ""
    changes: int = 0
    round_ms: int = 0
    failures: int = 0
    retry_in_ms: int = 0
    failure: str = ""
    commits: int = 0
    behind_ms: int = -1
    expired: bool = False
    dropped: Mapping[str, UUID] = field(default_factory=dict)

    @property
    def behind(self) -> int:
        """Number of changes in the log that are not in the lake."""
        return sum(max(0, end - self.offsets.get(place, 0)) for place, end in self.ends.items())


class Coordinator(Protocol):
    """Interface that grants rounds."""

    def begin(self, path: TablePath | str | None, *, force: bool) -> TieringRound | None:
        """Begin a round of this table or plain topic; with None, of the one that needs it most.

        None if no round is to be had now.
        """

    def heartbeat(self, granted: TieringRound, changes: int = 0, doing: str = "") -> bool:
        """Renew the lease and report progress; return whether the round should finish with the data it has.

        Raises TableError(FENCED_TIERING_EPOCH) when another worker holds the round by now.
        """

    def commit(
        self,
        granted: TieringRound,
        snapshot_id: int,
        offsets: Offsets,
        cleared: Mapping[str, UUID] = MappingProxyType({}),
    ) -> None:
        """Report the offsets that the lake has now, and partitions that clients dropped and that have no rows in it.

        Raises TableError(FENCED_TIERING_EPOCH).
        """

    def release(self, granted: TieringRound, failure: str | None = None) -> None:
        """End the round. `failure` is the reason it failed; the table's next round is then delayed.

        Never raises: if the call fails, the lease expires by itself.
        """

    def describe(self, table_id: UUID) -> LakeStatus:
        """Return the state of the table's lake."""


class ServerCoordinator:
    """Coordinator inside the server, called through the table client."""

    def __init__(self, connection: Any, worker: str, token: str | None = None) -> None:
        """`worker` names this tiering job in the server's messages.

        `token` is the server's `datalake.tiering.token`; the default is the environment variable
        HEADRACE_TIERING_TOKEN.
        """
        self._connection = connection
        self._worker = worker
        self._secrets: set[str] = set()
        self._token = (os.environ.get(TOKEN_VARIABLE, "").strip() or None) if token is None else token

    def _call(self, request: Any, response: Any, doing: str) -> Any:
        """Call the controller: in a cluster it grants the rounds."""
        return self._connection.call(request, response, doing=doing, to_controller=True)

    def begin(self, path: TablePath | str | None, *, force: bool) -> TieringRound | None:
        request = LakeBeginRequest(worker=self._worker, force=force)
        if isinstance(path, TablePath):
            request.database, request.table = path.database, path.table
        else:
            request.topic = path
        answer = self._call(request, LakeBeginResponse, "begin a tiering round")
        if not answer.granted:
            return None
        name = answer.topic or TablePath(answer.database, answer.table)
        return TieringRound(name, answer.table_id, answer.epoch, answer.lease_ms)

    def heartbeat(self, granted: TieringRound, changes: int = 0, doing: str = "") -> bool:
        request = LakeHeartbeatRequest(
            table_id=granted.table_id, epoch=granted.epoch, changes=changes, doing=doing
        )
        answer = self._call(request, LakeHeartbeatResponse, f"keep the round of {granted.path}")
        return bool(answer.finish)

    def commit(
        self,
        granted: TieringRound,
        snapshot_id: int,
        offsets: Offsets,
        cleared: Mapping[str, UUID] = MappingProxyType({}),
    ) -> None:
        request = LakeCommitRequest(
            table_id=granted.table_id,
            epoch=granted.epoch,
            snapshot_id=snapshot_id,
            offsets=[LakeOffset.of(place, offset) for place, offset in in_order(offsets)],
            cleared=[DroppedPartition(name=name, partition_id=each) for name, each in cleared.items()],
        )
        self._call(request, LakeCommitResponse, f"report the round of {granted.path}")

    def release(self, granted: TieringRound, failure: str | None = None) -> None:
        if failure is not None:
            for secret in self._secrets:
                failure = failure.replace(secret, "[hidden]")
        request = LakeEndRequest(table_id=granted.table_id, epoch=granted.epoch, failure=failure)
        try:
            self._call(request, LakeEndResponse, f"give back the round of {granted.path}")
        except Exception:  # noqa: BLE001 - see `Coordinator`
            return

    def finish(self, table_id: UUID) -> bool:
        """Ask the worker that tiers the table to finish its round; return False if there is no worker."""
        answer = self._call(
            LakeFinishRequest(table_id=table_id), LakeFinishResponse, "finish a tiering round"
        )
        return bool(answer.running)

    def describe(self, table_id: UUID) -> LakeStatus:
        answer = self._call(
            DescribeLakeRequest(table_id=table_id, token=self._token),
            DescribeLakeResponse,
            "describe the lake",
        )
        self._secrets |= {
            each.value
            for each in answer.properties
            if each.value and len(each.value) >= _SECRET_LENGTH_MIN and _SECRET_NAME.search(each.key)
        }
        return LakeStatus(
            enabled=answer.enabled,
            format=answer.format,
            snapshot_id=None if answer.snapshot_id < 0 else answer.snapshot_id,
            offsets={entry.place: entry.offset for entry in answer.offsets},
            properties={entry.key: entry.value for entry in answer.properties},
            ends={entry.place: entry.offset for entry in answer.ends},
            freshness_ms=answer.freshness_ms,
            committed_at_ms=answer.committed_at_ms,
            worker=answer.worker,
            doing=answer.doing,
            changes=answer.changes,
            round_ms=answer.round_ms,
            failures=answer.failures,
            retry_in_ms=answer.retry_in_ms,
            failure=answer.failure,
            commits=answer.commits,
            behind_ms=answer.behind_ms,
            expired=answer.expired,
            dropped={each.name: each.partition_id for each in answer.dropped},
        )


def list_lake(connection: Any) -> list[ListedLake]:
    """Return the lake state of everything that is tiered: tables first, then plain topics."""
    answer = connection.call(
        ListLakeRequest(), ListLakeResponse, doing="list what is tiered", to_controller=True
    )
    return list(answer.entries)


class Heartbeats:
    """Renewal of a round's lease from a thread, three times per lease, while the context is open.

    `fenced` is set when the coordinator says that this worker no longer holds the round. `finish` is set when the round
    should end with the data it has. An unreachable server does not stop the round: the lake decides at the commit.
    `changes` and `doing` are reported to the coordinator; the owner of the round sets them.
    """

    def __init__(self, coordinator: Coordinator, granted: TieringRound) -> None:
        self.fenced = threading.Event()
        self.finish = threading.Event()
        self.changes = 0
        self.doing = ""
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
                if self._coordinator.heartbeat(self._round, self.changes, self.doing):
                    self.finish.set()
            except TableError as error:
                if error.code is TableErrorCode.FENCED_TIERING_EPOCH:
                    self.fenced.set()
                    return
            except Exception as error:  # noqa: BLE001 - see the class
                logger.info("the lease of the round of %s is not renewed: %s", self._round.path, error)
