"""Runs of the fuzzer: random requests from a seed, sent one after the other, with checks after each.

A run that finds a fault is made smaller, to one request if one is enough, and prints how to `replay` it.
"""

from __future__ import annotations

import os
import random
import sys
import tempfile
import time
from collections import Counter
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import msgspec

from headrace.protocol.errors import DecodeError, EncodeError
from headrace.protocol.headers import decode_request_header
from headrace.protocol.messages.alter_configs import AlterConfigsRequest
from headrace.protocol.messages.create_partitions import CreatePartitionsRequest
from headrace.protocol.messages.create_topics import CreateTopicsRequest
from headrace.protocol.messages.delete_records import DeleteRecordsRequest
from headrace.protocol.messages.delete_topics import DeleteTopicsRequest
from headrace.protocol.messages.fetch import FetchRequest
from headrace.protocol.messages.incremental_alter_configs import IncrementalAlterConfigsRequest
from headrace.protocol.messages.produce import ProduceRequest
from headrace.protocol.schema import ApiMessage
from headrace.tablelayer.model import messages as m
from headrace.tablelayer.model.table.definition import TableDefinition
from headrace.tablelayer.tests.fuzz.mutations import Chance, damaged_frame, mutated
from headrace.tablelayer.tests.fuzz.oracle import DisagreementError, Oracle
from headrace.tablelayer.tests.fuzz.server import KEPT_BYTES_MAX, UnansweredError, WatchedServer, settled
from headrace.tablelayer.tests.fuzz.world import (
    KAFKA_REQUESTS,
    PARTITION,
    PARTITIONED,
    TABLE_REQUESTS,
    World,
    decoded,
)

REQUESTS = {**TABLE_REQUESTS, **KAFKA_REQUESTS}
BY_KEY = {kind.API_KEY: kind for kind in REQUESTS}
HONEST = 0.12
"""Share of requests that are sent unchanged."""
WRITES = (
    m.AppendRowsRequest, m.PutRowsRequest, m.LookupRequest, m.CommitStagedRequest, m.StageRowsRequest, ProduceRequest,
)  # fmt: skip
CHECK_EVERY = 300
"""Number of requests after which every table is read completely."""

KNOWN_OPEN: dict[str, Callable[[Any, int], bool]] = {}
"""Known open faults, by name: requests that are not sent."""


class Finding(msgspec.Struct):
    complaint: str
    frames: list[bytes]

    @property
    def is_measured(self) -> bool:
        """Return whether the fault is only time or memory: a busy machine adds to these measurements."""
        return self.complaint.startswith(("the event loop worked for", "the process grew by"))


class Report(msgspec.Struct):
    """The results of a run."""

    requests: int = 0
    answered: int = 0
    closed: int = 0
    acknowledged: int = 0
    kinds: Counter[str] = msgspec.field(default_factory=Counter)


def opened(frame: bytes) -> tuple[ApiMessage, int] | None:
    """Return (the request, its version), or None if a server cannot decode it either."""
    try:
        key, version = (
            int.from_bytes(frame[:2], "big", signed=True),
            int.from_bytes(frame[2:4], "big", signed=True),
        )
        kind = BY_KEY[key]
        if not kind.MIN_VERSION <= version <= kind.MAX_VERSION:
            return None
        _, position = decode_request_header(frame, kind.header_version(version))
        return kind.decode(frame, version, None, position, ignore_rest=True), version
    except (DecodeError, KeyError):
        return None


def spoils(world: World, request: ApiMessage, version: int) -> bool:
    """Return whether it would lawfully delete, or change, the purpose of the existing tables."""
    standing = {each.topic for each in world.tables.values()} - {"default.altered"}
    match request:
        case m.DropDatabaseRequest() | m.AlterDatabaseRequest():
            return request.name == "default"
        case m.DropTableRequest() | m.AlterTableRequest():
            return f"{request.database}.{request.table}" in {*standing, "default.altered"} - (
                {"default.altered"} if isinstance(request, m.AlterTableRequest) else set()
            )
        case m.DropPartitionRequest():
            return request.table_id == world.tables[PARTITIONED].table_id and request.name == PARTITION
        case IncrementalAlterConfigsRequest() | AlterConfigsRequest():
            return any(
                each.resource_name in standing or each.resource_type != 2 for each in request.resources
            )
        case CreatePartitionsRequest() | CreateTopicsRequest():
            return any(
                each.name in standing and isinstance(request, CreatePartitionsRequest)
                for each in request.topics
            )
        case DeleteTopicsRequest() | DeleteRecordsRequest():
            return True
    return any(is_open(request, version) for is_open in KNOWN_OPEN.values())


class Run:
    """One world from its start to its end."""

    def __init__(self, folder: Path) -> None:
        self.server = WatchedServer(folder)
        self.server.start()
        self.world = World(self.server)
        self.oracle = Oracle(self.world)
        self.report = Report()
        self.frames: list[bytes] = []
        self._journal = (folder.parent / f"{folder.name}.frames").open("wb")

    def make(self) -> None:
        self.world.make()
        self.oracle.check_all()
        self.server.quiet()

    def close(self) -> None:
        self._journal.close()
        self.world.wire.close()
        self.server.stop()

    def restart(self) -> None:
        """Stop cleanly and start again on the same folder."""
        self.world.wire.close()
        self.server.stop()
        self.server.start()

    def draw(self, chance: Chance) -> bytes:
        """The next frame."""
        while True:
            kind = chance.random.choice(KINDS)
            version = chance.random.randint(kind.MIN_VERSION, kind.MAX_VERSION)
            request = REQUESTS[kind](self.world, chance.numpy)
            for name, field in kind.FIELDS.items():
                if version not in field.versions and field.kind not in ("array", "struct"):
                    setattr(request, name, field.default)
            try:
                if chance.random.random() >= HONEST:
                    mutated(self.world, request, version, chance)
                frame = self.world.frame(
                    request, version, chance.random.choice(("fuzz", "fuzz", None, "a\nERROR b"))
                )
            except EncodeError:
                continue
            if chance.random.random() < 0.06:
                frame = damaged_frame(frame, chance)
            found = opened(frame)
            if found is None or not spoils(self.world, *found):
                return frame

    def send(self, frame: bytes) -> str | None:
        """Send a frame and check everything; return the fault, or None."""
        self.frames.append(frame)
        self._journal.write(len(frame).to_bytes(4, "big") + frame)
        self._journal.flush()
        self.server.quiet()
        try:
            self._send(frame)
            return self.server.check()
        except (UnansweredError, DisagreementError) as error:
            return "\n".join(filter(None, (f"{type(error).__name__}: {error}", self.server.check())))

    def _send(self, frame: bytes) -> None:
        found = opened(frame)
        request, version = found or (None, 0)
        acks = -1 if isinstance(request, m.AwaitRowsRequest) else getattr(request, "acks", -1)
        may_wait = (
            max(getattr(request, "max_wait_ms", 0), getattr(request, "timeout_ms", 0)) > 5000
            or (isinstance(request, (m.ScanLogRequest, FetchRequest)) and getattr(request, "max_wait_ms", 0) > 0)
        )  # fmt: skip
        raw = self.world.wire.ask(frame, answered=acks != 0, may_wait=may_wait)
        self.report.requests += 1
        self.report.kinds[type(request).__name__] += 1
        answer = None
        if raw is None:
            self.report.closed += 1
        elif request is not None:
            self.report.answered += 1
            answer = decoded(type(request), raw, version)
            self._remember(request, answer)
        if isinstance(request, WRITES):
            first: dict[tuple[str, int], int] = {}
            for table, bucket, offset in self.oracle.seen(request, answer):
                first[table.name, bucket] = min(offset, first.get((table.name, bucket), offset))
            for (name, bucket), offset in first.items():
                self.oracle.check_tail(self.world.tables[name], bucket, offset)
            self.report.acknowledged = self.oracle.acknowledged

    def _remember(self, request: ApiMessage, answer: Any) -> None:
        if isinstance(request, m.ScanSnapshotRequest) and not answer.error_code:
            self.world.scans = [*self.world.scans[-5:], answer.scan_id]
        if (
            isinstance(request, m.PrepareRowsRequest) and answer.ticket.int
        ):  # others wait for as long as it is held
            self.world.ask(m.LogRowsRequest(ticket=answer.ticket, release=True))
        if isinstance(request, m.LakeBeginRequest) and answer.granted:
            self.world.epochs = [*self.world.epochs[-5:], answer.epoch]
        if isinstance(request, (m.AlterTableRequest, IncrementalAlterConfigsRequest)):
            described = self.world.ask(m.DescribeTableRequest(database="default", table="altered"))
            self.world.tables["altered"].definition = TableDefinition.from_json(described.definition)

    def checked(self) -> str | None:
        """Every table read whole."""
        self.server.quiet()
        try:
            self.oracle.check_all()
        except (UnansweredError, DisagreementError, DecodeError, AssertionError) as error:
            return f"{type(error).__name__}: {error}"
        return self.server.check()


KINDS = [
    *REQUESTS, *[m.AppendRowsRequest, m.PutRowsRequest, ProduceRequest] * 5, *[m.CreateTableRequest] * 3,
    m.ScanLogRequest, m.ScanSnapshotRequest, CreateTopicsRequest,
]  # fmt: skip
"""The kinds to draw from; those with much to change inside come more often."""


def fuzz(seed: int, seconds: float, folder: Path, requests_max: int = sys.maxsize) -> Report:
    """Run worlds of up to a minute, one after the other. Raise AssertionError with a small finding.

    A measured fault counts only if it comes again.
    """
    report, ends, number = Report(), time.monotonic() + seconds, 0
    kept = settled()
    sys.setswitchinterval(0.0005)  # client and server take turns in one process
    while time.monotonic() < ends and report.requests < requests_max:
        until = min(ends, time.monotonic() + 60.0)
        found = _world(seed + number, until, folder / f"world{number}", report, requests_max)
        if found is not None and not (found.is_measured and replay(found.frames) is None):
            raise AssertionError(_told(found, seed + number))
        number += 1
    grown = settled() - kept
    assert grown < KEPT_BYTES_MAX, f"the process has kept {grown >> 20} MiB after {report.requests} requests"
    return report


def _world(seed: int, ends: float, folder: Path, report: Report, requests_max: int) -> Finding | None:
    chance = Chance(seed)
    run = Run(folder)
    try:
        run.make()
        while time.monotonic() < ends and report.requests + len(run.frames) < requests_max:
            frame = run.draw(chance)
            complaint = run.send(frame)
            if complaint is None and len(run.frames) % CHECK_EVERY == 0:
                complaint = run.checked()
            if complaint is not None:
                return Finding(complaint, run.frames)
        complaint = run.checked()
        if complaint is None:
            run.restart()
            complaint = run.checked()
        if complaint is not None:
            return Finding(complaint, run.frames)
        for name in ("requests", "answered", "closed", "acknowledged"):
            setattr(report, name, getattr(report, name) + getattr(run.report, name))
        report.kinds.update(run.report.kinds)
    finally:
        run.close()
    return None


def replay(frames: bytes | Sequence[bytes], *, restart: bool = False) -> str | None:
    """Send these frames (each without its length) to a new world; return the server's fault, or None."""
    with tempfile.TemporaryDirectory() as folder:
        run = Run(Path(folder) / "world")
        try:
            run.make()
            for frame in [frames] if isinstance(frames, bytes) else frames:
                complaint = run.send(frame)
                if complaint is not None:
                    return complaint
            complaint = run.checked()
            if complaint is None and restart:
                run.restart()
                complaint = run.checked()
            return complaint
        finally:
            run.close()


def journal(path: Path) -> list[bytes]:
    """Return the frames of a world, as kept beside its folder in case the process itself ends."""
    data, frames = path.read_bytes(), []
    while data:
        size = int.from_bytes(data[:4], "big")
        frames.append(data[4 : 4 + size])
        data = data[4 + size :]
    return frames


def smallest(frames: list[bytes], seconds: float = 60.0) -> list[bytes]:
    """Return fewer and shorter frames that still cause a fault of a server."""
    ends = time.monotonic() + seconds
    for count in (1, 2, 5, 20, 100, len(frames)):
        if replay(frames[-count:]) is not None:
            frames = frames[-count:]
            break
    else:
        return frames
    size = len(frames) // 2
    while size and time.monotonic() < ends:
        at = 0
        while at < len(frames) and len(frames) > 1 and time.monotonic() < ends:
            fewer = frames[:at] + frames[at + size :]
            if fewer and replay(fewer) is not None:
                frames = fewer
            else:
                at += size
        size //= 2
    return frames


def _told(found: Finding, seed: int) -> str:
    small = smallest(found.frames)
    folder = Path(tempfile.mkdtemp(prefix="headrace-fuzz-"))
    path = folder / "frames"
    path.write_bytes(b"".join(len(each).to_bytes(4, "big") + each for each in small))
    lines = [found.complaint, f"HEADRACE_FUZZ_SEED={seed}; smallest: {len(small)} requests, in {path}:"]
    for frame in small[-5:]:
        known = opened(frame)
        lines.append(f"  {repr(known[0])[:1500] if known else 'not a request'}")
        lines.append(
            f"  replay(bytes.fromhex({frame.hex()!r}))" if len(frame) < 3000 else f"  {len(frame)} bytes"
        )
    lines.append(f"again: replay(journal(Path({str(path)!r})))")
    return "\n".join(lines)


def seed_and_seconds(seconds: float, seed: int | None = None) -> tuple[int, float]:
    """Return HEADRACE_FUZZ_SEED and HEADRACE_FUZZ_SECONDS. `seed` None: another one each time."""
    usual = random.SystemRandom().getrandbits(32) if seed is None else seed
    seed = int(os.environ.get("HEADRACE_FUZZ_SEED", usual))
    return seed, float(os.environ.get("HEADRACE_FUZZ_SECONDS", seconds))
