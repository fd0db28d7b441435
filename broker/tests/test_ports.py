"""Nothing of a broker touches the system by itself: time, chance, threads, files and sockets come in by ports.

What is left out stands in `LEFT_OUT`, each with its reason; an entry that is not needed any more fails too.
"""

from __future__ import annotations

import ast
from collections.abc import Iterator
from pathlib import Path

import pytest

import broker
import protocol

ROOT = Path(broker.__path__[0]).parent
ROOMS = [Path(protocol.__path__[0]), Path(broker.__path__[0])]

PORTS = {
    "broker/ports.py": "the system's clock, chance and threads",
    "broker/log/disk.py": "the system's disk",
    "broker/net": "the system's sockets; the simulator's clients go straight to what answers frames",
    "broker/cluster/stores": "a client of ZooKeeper, which has sockets and threads of its own",
    "broker/testing": "what takes the place of the system, and what looks at it from outside",
}
LEFT_OUT = {
    "broker/cluster/kafka_import.py": "a command of its own, which reads another program's files; no broker runs",
    "broker/config.py": "the file that an operator names, read before there is a broker",
    "broker/security/tls/listener_tls.py": "keys and certificates that an operator names, given to OpenSSL in a file",
    "broker/disk_errors.py": "one log of complaints for all of a process; how often it speaks decides nothing",
    "broker/metrics/endpoint.py": "an HTTP server beside the broker, which reads and changes nothing",
    "broker/metrics/model.py": "rests between two parts of a scrape, which changes nothing",
    "broker/metrics/requests.py": "how long requests take, for metrics alone",
    "broker/slices.py": "a default for what has no broker; `broker.server` hands its clock in",
}
BANNED = {
    "time": {"time", "time_ns", "monotonic", "monotonic_ns", "perf_counter", "perf_counter_ns", "sleep"},
    "random": None,
    "secrets": None,
    "uuid": {"uuid1", "uuid4"},
    "socket": None,
    "shutil": None,
    "tempfile": None,
    "glob": None,
    "mmap": None,
    "fcntl": None,
    "subprocess": None,
    "threading": {"Thread", "Timer", "Event", "Condition", "Semaphore", "Barrier"},  # locks decide nothing
    "concurrent.futures": {"ThreadPoolExecutor", "ProcessPoolExecutor"},
    "asyncio": {"to_thread"},
    "os": {
        "open", "read", "write", "pread", "pwrite", "pwritev", "close", "fsync", "fdatasync", "stat", "scandir",
        "listdir", "mkdir", "makedirs", "remove", "unlink", "rmdir", "rename", "replace", "link", "symlink", "utime",
        "truncate", "ftruncate", "sendfile", "urandom", "walk",
    },
}  # fmt: skip
METHODS = {
    "mkdir", "unlink", "rmdir", "read_bytes", "read_text", "write_bytes", "write_text", "iterdir", "exists", "is_dir",
    "is_file", "rglob", "touch", "hardlink_to", "symlink_to",
}  # fmt: skip
"""Of paths. Ports have some of the same name; what is called on a `…disk` or `…files` is theirs."""


def sources() -> Iterator[tuple[str, Path]]:
    for room in ROOMS:
        for path in sorted(room.rglob("*.py")):
            name = path.relative_to(ROOT).as_posix()
            if "tests" not in path.parts and not any(name.startswith(port) for port in PORTS):
                yield name, path


def touched(source: str) -> list[str]:
    """What a module takes from the system, `line: what`."""
    found, imported = [], {}
    tree = ast.parse(source)
    for node in ast.walk(tree):
        if isinstance(node, ast.Import):
            imported |= {each.asname or each.name: each.name for each in node.names}
        elif isinstance(node, ast.ImportFrom) and node.module in BANNED:
            banned = BANNED[node.module]
            found += [
                f"{node.lineno}: from {node.module} import {each.name}"
                for each in node.names
                if banned is None or each.name in banned
            ]
    for node in ast.walk(tree):
        if isinstance(node, ast.Attribute) and isinstance(node.value, ast.Name):
            module = imported.get(node.value.id)
            if module in BANNED:
                banned = BANNED[module]
                if banned is None or node.attr in banned:
                    found.append(f"{node.lineno}: {module}.{node.attr}")
        if isinstance(node, ast.Call):
            function = node.func
            if isinstance(function, ast.Name) and function.id == "open":
                found.append(f"{node.lineno}: open()")
            if isinstance(function, ast.Attribute) and function.attr in METHODS:
                owner = ast.unparse(function.value)
                if not owner.endswith(("disk", "files")):
                    found.append(f"{node.lineno}: {owner}.{function.attr}()")
            if isinstance(function, ast.Attribute) and function.attr == "run_in_executor":
                first = node.args[0]
                if isinstance(first, ast.Constant) and first.value is None:
                    found.append(f"{node.lineno}: a thread of asyncio's own")
    return found


def test_nothing_below_the_composition_root_touches_the_system() -> None:
    problems = [
        f"{name}:{each}"
        for name, path in sources()
        if name not in LEFT_OUT
        for each in touched(path.read_text())
    ]
    assert not problems, "\n".join(["these take from the system what a port gives them:", *problems])


def test_what_is_left_out_has_to_be() -> None:
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
        "loop.run_in_executor(None, work)",
    ],
)
def test_each_way_around_a_port_is_seen(line: str) -> None:
    assert touched(line)
