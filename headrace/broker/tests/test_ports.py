"""A broker uses the system only through ports: time, randomness, threads, files and sockets.

`LEFT_OUT` lists the exceptions, each with its reason; an entry that is not needed any more fails too.
"""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest

from simulator.port_rules import touched

ROOT = Path(__file__).resolve().parents[2]
ROOMS = [ROOT / "protocol", ROOT / "broker"]

PORTS = {
    "broker/runtime/ports.py": "the system's clock, chance and threads",
    "broker/runtime/disk.py": "the system's disk",
    "broker/net/sockets.py": "the system's sockets",
    "broker/net/poller.py": "which of them are ready",
    "broker/stores/coordinat": "pairs of sockets between processes that one command started",
    "broker/stores/zookeeper": "a client of ZooKeeper, which has sockets and threads of its own",
}
LEFT_OUT = {
    "broker/cluster/kafka_import.py": "a command of its own, which reads another program's files; no broker runs",
    "broker/objects/files.py": "object stores, by pyarrow; what is on a disk goes by the port",
    "broker/configs/broker_config.py": "the file that an operator names, read before there is a broker",
    "broker/security/sasl/jwks.py": "keys that an operator names, read again when they have changed",
    "broker/security/tls/stores.py": "keystores that an operator names",
    "broker/security/tls/kernel.py": "asks what the system offers, for a line of the log",
    "broker/security/tls/listener_tls.py": "keys and certificates that an operator names, given to OpenSSL in a file",
    "broker/runtime/open_files.py": "how many files are open, for metrics alone",
    "broker/runtime/disk_errors.py": "one log of complaints for all of a process; how often it speaks decides nothing",
    "protocol/loading/lazy.py": "reads a stub of our own when its module is imported",
    "protocol/loading/kernel_cache.py": "the cache of compiled kernels; it decides only how fast a start is",
    "broker/metrics/endpoint.py": "an HTTP server beside the broker, which reads and changes nothing",
    "broker/metrics/event_loop.py": "how long turns of the loop take, for metrics alone",
    "broker/metrics/model.py": "rests between two parts of a scrape, which changes nothing",
    "broker/metrics/requests.py": "how long requests take, for metrics alone",
    "broker/runtime/compiler_memory.py": "asks what of this process is in memory, which decides nothing else",
    "broker/runtime/slices.py": "a default for what has no broker; `broker.server` hands its clock in",
}


def sources() -> Iterator[tuple[str, Path]]:
    for room in ROOMS:
        for path in sorted(room.rglob("*.py")):
            name = path.relative_to(ROOT).as_posix()
            if "tests" not in path.parts and not any(name.startswith(port) for port in PORTS):
                yield name, path


def test_nothing_below_the_composition_root_touches_the_system() -> None:
    problems = [
        f"{name}:{each}"
        for name, path in sources()
        if name not in LEFT_OUT
        for each in touched(path.read_text())
    ]
    assert not problems, "\n".join(["these take from the system what a port gives them:", *problems])


def test_exemptions_from_the_port_rule_are_needed() -> None:
    assert [name for name in LEFT_OUT if not touched((ROOT / name).read_text())] == []


@pytest.mark.parametrize(
    "line",
    [
        "import time\ntime.time()",
        "import time as t\nt.monotonic()",
        "from time import sleep",
        "import os\nos.urandom(3)",
        "from random import choice",
        "import threading\nthreading.Thread()",
        "from concurrent.futures import ThreadPoolExecutor",
        "open('x')",
        "path.exists()",
        "import socket\nsocket.gethostname()",
        "import select\nselect.epoll()",
        "path.open('rb')",
        "path.glob('*')",
        "loop.run_in_executor(None, work)",
    ],
)
def test_each_way_around_a_port_is_seen(line: str) -> None:
    assert touched(line)
