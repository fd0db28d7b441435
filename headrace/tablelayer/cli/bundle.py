"""`headrace cluster bundle`: the state of a cluster in one archive, for a report about a fault. It has no secrets.

Secret configurations are left out, by the server's word and by their names. Lines of logs lose values behind such
names. Records, keys and rows are not part of it; names of topics, groups, users and hosts are.
"""

from __future__ import annotations

import io
import json
import platform
import re
import sys
import tarfile
import time
import urllib.request
from collections.abc import Callable, Iterator, Sequence
from datetime import UTC, datetime
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path
from typing import TYPE_CHECKING, Any

import msgspec
import typer

from headrace.tablelayer.cli.cluster_state import cluster_object
from headrace.tablelayer.cli.connect import open_connection
from headrace.tablelayer.cli.errors import CommandError, explain
from headrace.tablelayer.cli.words import counted
from headrace.tablelayer.client import ConfigKind, Connection

if TYPE_CHECKING:
    from headrace.tablelayer.client import ConfigListing

LOG_BYTES_MAX = 20 << 20
METRICS_SECONDS = 10
_PACKAGES = ("headrace", "pyarrow", "duckdb", "rocksdict", "numba", "numpy", "pyspark", "kazoo")
_SECRET = re.compile(
    r"password|secret|jaas|token|credential|private|\.key$|access.?key|basic\.auth", re.IGNORECASE
)
_SECRET_IN_TEXT = re.compile(
    r"""((?:password|secret|token|credential|access.?key|basic.auth)[\w.\-]*["']?\s*[=:]\s*)("[^"]*"|'[^']*'|\S+)""",
    re.IGNORECASE,
)
HIDDEN = "(hidden)"


def write_bundle(server: str, to: Path, metrics: Sequence[str], logs: Sequence[Path]) -> None:
    """Write the archive. A part that cannot be read is named in it. Raises CommandError if `to` exists."""
    if to.exists():
        raise CommandError(f"{to} exists already: name another file")
    parts: dict[str, bytes] = {"versions.json": _json(_versions())}
    troubles: list[str] = []

    def take(name: str, read: Callable[[], bytes]) -> None:
        try:
            parts[name] = read()
        except Exception as error:
            sentence = explain(error) if not isinstance(error, OSError) else str(error)
            if sentence is None:
                raise
            troubles.append(f"{name}: {sentence}")

    with open_connection(server) as connection:
        for name, ask in _states(connection):
            take(name, lambda ask=ask: _json(ask()))  # type: ignore[misc]
    for url in metrics:
        take(f"metrics/{_file_name(url)}.txt", lambda url=url: _scraped(url))  # type: ignore[misc]
    for path in logs:
        take(f"logs/{_file_name(str(path))}", lambda path=path: _log(path))  # type: ignore[misc]
    if troubles:
        parts["troubles.txt"] = "".join(f"{line}\n" for line in troubles).encode()
    _write(to, parts)
    typer.echo(f"wrote {to}: {counted(len(parts), 'file')}")
    for line in troubles:
        typer.echo(f"  left out {line}", err=True)


def without_secrets(text: str) -> str:
    """Return a text with the values behind names of secrets hidden."""
    return _SECRET_IN_TEXT.sub(rf"\1{HIDDEN}", text)


def shown_value(listing: ConfigListing) -> str | None:
    """Return the value of a configuration; hidden if it is or may be a secret."""
    if listing.value is not None and (listing.is_sensitive or _SECRET.search(listing.name)):
        return HIDDEN
    return None if listing.value is None else without_secrets(listing.value)


def _states(connection: Connection) -> Iterator[tuple[str, Callable[[], Any]]]:
    """Yield the name of each file with a function that returns its content."""
    kafka = connection.kafka
    yield "cluster.json", lambda: cluster_object(kafka.describe_cluster())
    yield "topics.json", lambda: _topics(connection)
    yield "groups.json", lambda: _groups(connection)
    yield "servers.json", lambda: connection.admin.servers()
    yield "disks.json", lambda: kafka.log_sizes().disks
    yield "moves.json", lambda: kafka.moving_partitions()
    yield (
        "refused.json",
        lambda: [{"table": each.table, "count": each.count} for each in connection.admin.refused(None)],
    )
    for broker in kafka.brokers():
        yield (
            f"configs/broker-{broker}.json",
            lambda broker=broker: _configs(  # type: ignore[misc]
                connection, ConfigKind.BROKER, str(broker)
            ),
        )
    yield "configs/topics.json", lambda: _own_configs(connection)


def _topics(connection: Connection) -> list[dict[str, Any]]:
    ranges = connection.kafka.offset_ranges()
    return [
        {
            "topic": each.name,
            "id": str(each.topic_id),
            "is_internal": each.is_internal,
            "partitions": [
                {
                    "partition": number,
                    "leader": part.leader,
                    "replicas": part.replicas,
                    "in_sync": part.in_sync,
                    "offline": part.offline,
                    "offsets": ranges.get(each.name, {}).get(number),
                }
                for number, part in sorted(each.partitions.items())
            ],
        }
        for each in connection.kafka.list_topics()
    ]


def _groups(connection: Connection) -> list[dict[str, Any]]:
    return [
        {
            "group": each.group,
            "state": each.state,
            "assignor": each.assignor,
            "members": len(each.members),
            "positions": [
                {"topic": topic, "partition": partition, "offset": offset}
                for (topic, partition), offset in sorted(each.positions.items())
            ],
        }
        for each in (connection.kafka.describe_group(one.group) for one in connection.kafka.list_groups())
    ]


def _configs(connection: Connection, kind: ConfigKind, name: str) -> dict[str, dict[str, str | None]]:
    return {
        each.name: {"value": shown_value(each), "from": each.source}
        for each in connection.kafka.configs(kind, name)
    }


def _own_configs(connection: Connection) -> dict[str, dict[str, str | None]]:
    """Return the configurations that topics have of their own."""
    return {
        name: {
            each.name: shown_value(each)
            for each in connection.kafka.configs(kind, name)
            if each.source == "topic"
        }
        for kind, name in connection.kafka.configured()
        if kind is ConfigKind.TOPIC
    }


def _versions() -> dict[str, Any]:
    found: dict[str, str | None] = {}
    for name in _PACKAGES:
        try:
            found[name] = version(name)
        except PackageNotFoundError:
            found[name] = None
    return {
        "time": datetime.now(UTC).isoformat(),
        "python": sys.version,
        "system": platform.platform(),
        "packages": found,
    }


def _scraped(url: str) -> bytes:
    if not url.startswith(("http://", "https://")):
        raise CommandError(f"{url!r} is not a URL: write http://HOST:PORT/metrics")
    with urllib.request.urlopen(url, timeout=METRICS_SECONDS) as answer:
        content: bytes = answer.read()
    return content


def _log(path: Path) -> bytes:
    """Return the end of a log file, without secrets."""
    with path.open("rb") as file:
        file.seek(0, io.SEEK_END)
        size = file.tell()
        file.seek(max(0, size - LOG_BYTES_MAX))
        content = file.read()
    return without_secrets(content.decode("utf-8", "replace")).encode()


def _file_name(text: str) -> str:
    return re.sub(r"[^A-Za-z0-9.\-]+", "_", text.partition("://")[2] or text).strip("_")


def _json(value: Any) -> bytes:
    return json.dumps(msgspec.to_builtins(value, str_keys=True), indent=1, ensure_ascii=False).encode()


def _write(to: Path, parts: dict[str, bytes]) -> None:
    folder = re.sub(r"\.(tar\.gz|tgz)$", "", to.name)
    part = to.with_name(f"{to.name}.part")
    try:
        with tarfile.open(part, "w:gz") as archive:
            for name, content in sorted(parts.items()):
                info = tarfile.TarInfo(f"{folder}/{name}")
                info.size, info.mtime, info.mode = len(content), int(time.time()), 0o600
                archive.addfile(info, io.BytesIO(content))
        part.replace(to)
    except OSError as error:
        raise CommandError(f"{to} cannot be written: {error.strerror or error}") from error
    finally:
        part.unlink(missing_ok=True)
