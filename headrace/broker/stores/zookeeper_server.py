"""ZooKeeper's own server, from the jars that pyspark contains: for development and tests. It needs only Java."""

from __future__ import annotations

import contextlib
import socket
from importlib.util import find_spec
from pathlib import Path
from typing import Final

JARS: Final = (
    "zookeeper-*",
    "slf4j-api-*",
    "netty-*",
    "metrics-core-*",
    "snappy-java-*",
    "commons-cli-*",
    "commons-io-*",
)


def server_settings(data: Path, host: str, port: int, tick_ms: int) -> str:
    """Return the settings of a single server. A session's timeout is between 2 and 20 ticks."""
    return (
        f"dataDir={data}\nclientPort={port}\nclientPortAddress={host}\ntickTime={tick_ms}\n"
        "admin.enableServer=false\n4lw.commands.whitelist=ruok,srvr\n"
    )


def server_command(settings: Path, *options: str, is_of_ensemble: bool = False) -> list[str]:
    """Return the command that starts the server, with more options of Java. Raises RuntimeError without the jars."""
    java = ["java", "-Xmx128m", "-XX:+UseSerialGC", "-XX:TieredStopAtLevel=1", *options, "-cp", _class_path()]
    main = "quorum.QuorumPeerMain" if is_of_ensemble else "ZooKeeperServerMain"
    return [*java, f"org.apache.zookeeper.server.{main}", str(settings)]


def answers(host: str, port: int) -> bool:
    """Return whether a server answers there. Blocks for a second at most."""
    with contextlib.suppress(OSError), socket.create_connection((host, port), 1) as connection:
        connection.sendall(b"ruok")
        return connection.recv(4) == b"imok"
    return False


def _class_path() -> str:
    found = find_spec("pyspark")
    if found is None or not found.submodule_search_locations:
        raise RuntimeError("ZooKeeper's jars come with pyspark, which is not installed")
    folder = Path(found.submodule_search_locations[0]) / "jars"
    jars = [str(jar) for pattern in JARS for jar in sorted(folder.glob(f"{pattern}.jar"))]
    return ":".join(jars)
