"""`headrace doctor`: checks for common mistakes, each with a remedy.

Every check is a function that yields findings and does not raise for the mistakes it checks. It is read-only: no file
is written, no topic created.
"""

from __future__ import annotations

import ctypes
import importlib.metadata
import os
import pwd
import re
import resource
import shutil
import socket
import subprocess
import sys
import time
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass, field
from enum import StrEnum
from pathlib import Path
from typing import TYPE_CHECKING

import typer

from headrace.tablelayer.cli.cluster_state import missing_text
from headrace.tablelayer.cli.errors import explain
from headrace.tablelayer.cli.lake import span_text
from headrace.tablelayer.cli.options import Format
from headrace.tablelayer.cli.output import size_text, write_rows
from headrace.tablelayer.cli.words import counted
from headrace.tablelayer.client.wire.cluster import parse_bootstrap

if TYPE_CHECKING:
    from headrace.tablelayer.client import Connection
    from headrace.tablelayer.client.admin.cluster_state import ClusterDescription
    from headrace.tablelayer.client.admin.databases import ServerProcess

_FILES_WARN, _FILES_FAIL = 65_536, 4_096
FILES_WARN_SHARE = 0.8
"""Share of the limit of open files above which an operator is warned."""
_DISK_WARN_SHARE, _DISK_FAIL_SHARE, _DISK_FAIL_BYTES = 0.1, 0.05, 1 << 30
_JAVA = (17, 21)
_PACKAGES = {"pyarrow": (19,), "duckdb": (1, 2), "rocksdict": (0, 3, 29), "numba": (0, 61), "numpy": (2,)}
_SPARK = (4, 1)
_NAMES_MAX = 5
_LAKE_LATE_MS, _LAKE_LATE_TIMES = 600_000, 10
"""The doctor warns of a lake that is behind by this time, and by this many times its freshness."""
_TIME_ERROR = 5
_CONNECT_SECONDS = 3.0
_ANSWER_MS = 15_000
_EARLIEST_SANE_SECONDS = 1_735_689_600  # 2025: older than this program


@dataclass(slots=True)
class Running:
    """Facts about the examined server: ids of its processes, and its addresses."""

    processes: dict[int, str] = field(default_factory=dict)
    addresses: set[tuple[str, int]] = field(default_factory=set)


class Verdict(StrEnum):
    OK = "ok"
    WARNING = "warning"
    PROBLEM = "problem"


@dataclass(frozen=True, slots=True)
class Finding:
    """One checked property, its state, and the advice if it is not good."""

    check: str
    verdict: Verdict
    what: str
    advice: str = ""


def examine(server: str, data: Path | None, listen: str | None, output: Format) -> int:
    """Run every check that applies and show the findings; return the exit code."""
    machine: list[Callable[[], Iterable[Finding]]] = [versions, java, open_files, clock]
    found = [finding for check in machine for finding in check()]
    running = Running()
    found += served(server, running)
    if data is not None:
        found += data_directory(data, running)
    if listen is not None:
        found += free_address(listen, running)
    if output is Format.TABLE:
        for each in found:
            typer.echo(f"{each.verdict.value:7}  {each.check}: {each.what}")
            if each.advice:
                typer.echo(f"{'':7}  -> {each.advice}")
    else:
        rows = [(each.check, each.verdict.value, each.what, each.advice) for each in found]
        write_rows(("check", "verdict", "what", "what to do"), rows, output)
    problems = sum(each.verdict is Verdict.PROBLEM for each in found)
    warnings = sum(each.verdict is Verdict.WARNING for each in found)
    if output is Format.TABLE:
        typer.echo(f"{counted(problems, 'problem')}, {counted(warnings, 'warning')}")
    return 1 if problems else 0


# -- this machine


def versions() -> Iterator[Finding]:
    """Check Python and the packages that matter."""
    python = ".".join(map(str, sys.version_info[:3]))
    yield Finding("python", Verdict.OK, f"{python} at {sys.executable}")
    for name, least in _PACKAGES.items():
        wanted = ".".join(map(str, least))
        try:
            text = importlib.metadata.version(name)
        except importlib.metadata.PackageNotFoundError:
            yield Finding(name, Verdict.PROBLEM, "not installed", f"pip install '{name}>={wanted}'")
            continue
        if numbers(text) < least:
            yield Finding(name, Verdict.PROBLEM, f"{text} is too old", f"pip install -U '{name}>={wanted}'")
        else:
            yield Finding(name, Verdict.OK, text)
    try:
        text = importlib.metadata.version("pyspark")
    except importlib.metadata.PackageNotFoundError:
        yield Finding(
            "pyspark", Verdict.WARNING, "not installed: no lake, no Spark", "pip install 'headrace[spark]'"
        )
        return
    if numbers(text)[:2] != _SPARK:
        yield Finding("pyspark", Verdict.WARNING, f"{text} is not 4.1", "pip install 'headrace[spark]'")
    else:
        yield Finding("pyspark", Verdict.OK, text)


def numbers(version: str) -> tuple[int, ...]:
    """Return the leading numbers of a version."""
    found = re.match(r"\d+(\.\d+)*", version)
    return tuple(map(int, found.group().split("."))) if found else ()


def java() -> Iterator[Finding]:
    """Check for Java 17 or 21, which Spark, and so the lake, needs."""
    home = os.environ.get("JAVA_HOME")
    command = str(Path(home) / "bin" / "java") if home else shutil.which("java")
    advice = "install Java 17 or 21 (only Spark and `headrace tier` need it), or set JAVA_HOME"
    if command is None:
        yield Finding("java", Verdict.WARNING, "not found on the PATH", advice)
        return
    try:
        done = subprocess.run([command, "-version"], capture_output=True, text=True, timeout=20, check=False)
    except (OSError, subprocess.TimeoutExpired) as error:
        yield Finding("java", Verdict.WARNING, f"{command} does not run: {error}", advice)
        return
    found = re.search(r'version "(\d+)', done.stderr + done.stdout)
    if found is None:
        yield Finding("java", Verdict.WARNING, f"{command} does not print its version", advice)
    elif int(found.group(1)) not in _JAVA:
        yield Finding("java", Verdict.WARNING, f"{command} is Java {found.group(1)}", advice)
    else:
        yield Finding("java", Verdict.OK, f"{found.group(1)} at {command}")


def open_files() -> Iterator[Finding]:
    """Check the hard limit of open files: logs and stores keep files open, and the server raises its limit to it."""
    _, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    advice = f"ulimit -Hn {_FILES_WARN}, or LimitNOFILE={_FILES_WARN} for a service"
    if hard == resource.RLIM_INFINITY or hard >= _FILES_WARN:
        text = "no limit" if hard == resource.RLIM_INFINITY else f"{hard} may be open"
        yield Finding("open files", Verdict.OK, text)
    else:
        verdict = Verdict.PROBLEM if hard < _FILES_FAIL else Verdict.WARNING
        yield Finding("open files", verdict, f"only {hard} may be open", advice)


def clock() -> Iterator[Finding]:
    """Check the clock, on which retention and time travel depend."""
    now = time.time()
    if now < _EARLIEST_SANE_SECONDS:
        yield Finding("clock", Verdict.PROBLEM, f"it shows {time.ctime(now)}", "set the clock")
        return
    synchronised = _is_synchronised()
    if synchronised is False:
        advice = "run an NTP client (chrony, systemd-timesyncd): several machines must agree"
        yield Finding("clock", Verdict.WARNING, "the system does not report it as synchronised", advice)
    else:
        yield Finding("clock", Verdict.OK, "synchronised" if synchronised else time.ctime(now))


def _is_synchronised() -> bool | None:
    """Return the kernel's answer; None where it cannot be asked (only Linux can)."""
    try:
        ask = ctypes.CDLL(None, use_errno=True).adjtimex
    except (OSError, AttributeError):
        return None
    state = int(ask(ctypes.create_string_buffer(512)))  # struct timex of zeros: change nothing
    return None if state < 0 else state != _TIME_ERROR


# -- a data directory


def data_directory(path: Path, running: Running | None = None) -> Iterator[Finding]:
    """Check the owner of a data directory, the process that uses it (the examined server may), and free disk space."""
    name = "data directory"
    there = path
    while not there.exists() and there != there.parent:
        there = there.parent
    if not path.exists():
        yield Finding(name, Verdict.OK, f"{path} will be created")
    elif not path.is_dir():
        yield Finding(name, Verdict.PROBLEM, f"{path} is not a directory", "name another with --data")
        return
    owner = there.stat().st_uid
    if owner != os.getuid() and os.getuid() != 0:
        user = _user(owner)
        advice = f"run the server as {user}, or chown -R it to {_user(os.getuid())}"
        yield Finding(name, Verdict.PROBLEM, f"{there} belongs to {user}", advice)
    elif not os.access(there, os.W_OK | os.X_OK):
        yield Finding(name, Verdict.PROBLEM, f"{there} cannot be written", f"chmod u+rwx {there}")
    elif path.exists():
        yield Finding(name, Verdict.OK, f"{path} belongs to {_user(owner)}")
    users = _users_of(path)
    ours = {str(number): server for number, server in (running.processes if running else {}).items()}
    text = f"in use by process {', '.join(users)}"
    if users and ours.keys() >= set(users):
        yield Finding(name, Verdict.OK, f"{text}, the server at {ours[users[0]]}")
    elif users:
        yield Finding(name, Verdict.WARNING, text, "one server at a time: stop that one first")
    disk = shutil.disk_usage(there)
    text = f"{size_text(disk.free)} of {size_text(disk.total)} free"
    verdict = disk_verdict(disk.free, disk.total)
    advice = "make room, or lower log.retention.ms and log.retention.bytes"
    yield Finding("disk", verdict, text, "" if verdict is Verdict.OK else advice)


def _users_of(path: Path) -> list[str]:
    """Return the processes of the brokers that use a data directory, several if it is that of several; their supervisor
    if it has none of them.
    """
    from headrace.broker.cluster.processes import folders_of
    from headrace.broker.configs.config_key import ConfigError
    from headrace.broker.partitions.data_dir import holder
    from headrace.broker.runtime.disk import SystemDisk

    disk = SystemDisk()
    try:
        folders = folders_of(disk, path)
    except ConfigError:  # another version's file, or a damaged one: a start reports it
        folders = []
    found = [holder(disk, each) for each in folders]
    return [each for each in found if each is not None] or [
        each for each in [holder(disk, path)] if each is not None
    ]


def disk_verdict(free_bytes: int, total_bytes: int) -> Verdict:
    """Return the verdict on free space: a gigabyte is too little, and on a small disk a twentieth."""
    if free_bytes < min(_DISK_FAIL_BYTES, total_bytes * _DISK_FAIL_SHARE):
        return Verdict.PROBLEM
    return Verdict.WARNING if free_bytes < total_bytes * _DISK_WARN_SHARE else Verdict.OK


def _user(number: int) -> str:
    try:
        return pwd.getpwuid(number).pw_name
    except KeyError:
        return f"user {number}"


# -- addresses


def free_address(listen: str, running: Running | None = None) -> Iterator[Finding]:
    """Check whether a server can listen there, or the examined server already does."""
    from headrace.broker.configs.config_key import ConfigError
    from headrace.broker.configs.listeners import parse_listener

    try:
        host, port = parse_listener(listen)
    except ConfigError as error:
        yield Finding("listen", Verdict.PROBLEM, str(error))
        return
    if running is not None and port and (host, port) in running.addresses:
        yield Finding("listen", Verdict.OK, f"{listen} is where the running server listens")
        return
    family = socket.AF_INET6 if ":" in host else socket.AF_INET
    with socket.socket(family, socket.SOCK_STREAM) as probe:
        probe.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        try:
            probe.bind((host, port))
            probe.listen(1)
        except OSError as error:
            reason = error.strerror or str(error)
            yield Finding(
                "listen",
                Verdict.PROBLEM,
                f"{listen}: {reason}",
                "choose another port, or stop the process that uses it",
            )
            return
    yield Finding("listen", Verdict.OK, f"{listen} is free")


def served(server: str, running: Running | None = None) -> Iterator[Finding]:
    """Check the server: its tables, its advertised addresses, and its state. Facts about it go into `running`."""
    from headrace.tablelayer.cli.connect import settings_of
    from headrace.tablelayer.client import ClientConfig, connect

    config = ClientConfig(
        client_id="headrace-doctor",
        connect_timeout_ms=int(_CONNECT_SECONDS * 1000),
        request_timeout_ms=_ANSWER_MS,
        delivery_timeout_ms=_ANSWER_MS,
    )
    try:
        connection = connect(settings_of(server), config)
    except Exception as error:
        sentence = explain(error)
        if sentence is None:
            raise
        yield Finding(
            "server", Verdict.PROBLEM, sentence, "headrace serve --data DIR, or name it with --server"
        )
        return
    with connection:
        try:
            yield from _asked(connection, server, Running() if running is None else running)
        except Exception as error:
            sentence = explain(error)
            if sentence is None:
                raise
            yield Finding("server", Verdict.PROBLEM, sentence, "see DIR/headrace.log")


def _asked(connection: Connection, server: str, running: Running) -> Iterator[Finding]:
    from headrace.tablelayer.client import KafkaError, UnsupportedRequest

    addresses = connection.kafka.brokers()
    running.addresses |= set(addresses.values()) | set(parse_bootstrap(connection.bootstrap))
    yield Finding(
        "server", Verdict.OK, f"{server} answers; {counted(len(connection.kafka.list_topics()), 'topic')}"
    )
    try:
        databases = len(connection.admin.list_databases())
        yield Finding("tables", Verdict.OK, counted(databases, "database"))
    except UnsupportedRequest:
        yield Finding(
            "tables", Verdict.WARNING, f"{server} is a Kafka broker without tables", "headrace serve has them"
        )
    yield from cluster_findings(connection.kafka.describe_cluster())
    reached = [advertised(node_id, host, port) for node_id, (host, port) in sorted(addresses.items())]
    yield from reached
    if any(each.verdict is not Verdict.OK for each in reached):
        return  # the next checks ask every broker
    for node_id, (free, total) in sorted(connection.kafka.log_sizes().disks.items()):
        if free >= 0:
            verdict = disk_verdict(free, total)
            text = f"broker {node_id} has {size_text(free)} of {size_text(total)} left"
            advice = "" if verdict is Verdict.OK else "make room, or lower log.retention.ms"
            yield Finding("server's disk", verdict, text, advice)
    try:
        processes = connection.admin.servers()
    except (UnsupportedRequest, KafkaError):  # an older server, or one that answers only administrators
        return
    for each in processes:
        running.processes[each.process_id] = server
        yield from process_findings(each)
    yield from lakes(connection)


def cluster_findings(found: ClusterDescription) -> Iterator[Finding]:
    """Check the brokers and the replicas, as `headrace cluster status` shows them."""
    for broker in found.missing:
        advice = f"start it, or move its replicas away: headrace cluster drain {broker.broker_id}"
        yield Finding("cluster", Verdict.PROBLEM, missing_text(broker), advice)
    if found.controller < 0:
        yield Finding(
            "cluster",
            Verdict.PROBLEM,
            "there is no controller",
            "see the brokers' logs, and whether ZooKeeper answers if the cluster has one",
        )
    for places, what, verdict in (
        (found.offline, "without a leader", Verdict.PROBLEM),
        (found.under_min_isr, "with fewer replicas in sync than min.insync.replicas", Verdict.PROBLEM),
        (found.under_replicated, "with replicas that are not in sync", Verdict.WARNING),
    ):
        if places:
            (topic, partition), count = places[0], counted(len(places), "partition")
            named = f" ({topic}-{partition}{', ...' if len(places) > 1 else ''})"
            yield Finding("cluster", verdict, f"{count} {what}{named}", "headrace cluster status names them")
    if found.is_healthy:
        alive = f"{counted(len(found.brokers), 'broker')} alive, all replicas in sync"
        yield Finding("cluster", Verdict.OK, alive)


def lakes(connection: Connection) -> Iterator[Finding]:
    """Check that tiered tables have a lake: without one their logs never expire."""
    from headrace.tablelayer.client import KafkaError, UnsupportedRequest
    from headrace.tablelayer.lake.adapter import LakeError
    from headrace.tablelayer.lake.catalogs import lake_catalog
    from headrace.tablelayer.lake.coordinator import ServerCoordinator, list_lake
    from headrace.tablelayer.model.errors import TableError

    coordinator = ServerCoordinator(connection, "headrace-doctor")
    try:
        listed = list_lake(connection)
        never = [each for each in listed if each.committed_at_ms < 0]
        told = {each.format: coordinator.describe(each.table_id) for each in never}
    except (UnsupportedRequest, KafkaError, TableError):  # dropped meanwhile, or not visible to this user
        return
    missing: set[str] = set()
    for lake, status in sorted(told.items()):
        names = sorted(each.name for each in never if each.format == lake)
        if any(
            name.startswith(f"datalake.{lake}.") and value is None
            for name, value in status.properties.items()
        ):
            continue  # a catalog whose credentials are hidden from us
        try:
            lake_catalog(status, None, names[0])
        except LakeError:
            missing.update(names)
            some = ", ".join(names[:_NAMES_MAX]) + (", ..." if len(names) > _NAMES_MAX else "")
            verb, whose = (
                ("are", "their logs never expire") if len(names) > 1 else ("is", "its log never expires")
            )
            yield Finding(
                "lake",
                Verdict.WARNING,
                f"{some} {verb} marked for tiering, but the server has no {lake} lake: {whose}",
                f"serve with --set datalake.{lake}.warehouse=FOLDER and run headrace tier (or headrace tier --warehouse"
                " FOLDER), or set 'table.datalake.enabled' = 'false' (a topic: 'datalake.enabled')",
            )
    for each in listed:
        if each.name not in missing and each.behind_ms > max(
            _LAKE_LATE_MS, _LAKE_LATE_TIMES * each.freshness_ms
        ):
            why = f": {each.failure}" if each.failure else ""
            yield Finding(
                "lake",
                Verdict.WARNING,
                f"the lake of {each.name} is {span_text(each.behind_ms)} behind, and its log is kept for so long{why}",
                "run headrace tier; headrace tables lake shows the last round",
            )


def process_findings(process: ServerProcess) -> Iterator[Finding]:
    """Check a server process: whether it has our version, and its limit of open files."""
    ours = importlib.metadata.version("headrace")
    text = f"broker {process.broker_id} is headrace {process.version}, up {span_text(process.uptime_ms)},"
    text += f" {size_text(process.memory_bytes)} of memory"
    if process.version == ours:
        yield Finding("server's process", Verdict.OK, text)
    else:
        advice = f"this command has version {ours}: use the same version on both sides"
        yield Finding("server's process", Verdict.WARNING, text, advice)
    most = process.open_files_max
    if 0 <= most < _FILES_WARN:
        verdict = Verdict.PROBLEM if most < _FILES_FAIL else Verdict.WARNING
        advice = f"ulimit -Hn {_FILES_WARN} before it is started, or LimitNOFILE={_FILES_WARN} for a service"
        text = f"broker {process.broker_id} may open {most} files only"
        yield Finding("server's open files", verdict, text, advice)
    if 0 <= most * FILES_WARN_SHARE < process.open_files:
        text = f"broker {process.broker_id} has {process.open_files} of {most} files open"
        advice = "raise the limit of open files (ulimit -Hn, or LimitNOFILE for a service) and start it again"
        yield Finding("server's open files", Verdict.WARNING, text, advice)


def advertised(node_id: int, host: str, port: int) -> Finding:
    """Check that clients on this machine reach a broker at its advertised address."""
    advice = "start it with --set advertised.listeners=HOST:PORT, an address that its clients can reach"
    place = f"broker {node_id} tells clients to connect to {host}:{port}"
    try:
        with socket.create_connection((host, port), timeout=_CONNECT_SECONDS):
            return Finding("advertised address", Verdict.OK, place)
    except socket.gaierror:
        return Finding(
            "advertised address", Verdict.PROBLEM, f"{place}, a name that this machine does not know", advice
        )
    except OSError as error:
        reason = error.strerror or "no answer"
        return Finding(
            "advertised address", Verdict.PROBLEM, f"{place}, where no server answers: {reason}", advice
        )
