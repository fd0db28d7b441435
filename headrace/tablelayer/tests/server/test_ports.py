"""The table layer's server uses the system only through ports: time, randomness, threads and files.

RocksDB, which has files and threads of its own, is the exception; so are schema registries, which are asked over HTTP.
"""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

from simulator.port_rules import touched

ROOT = Path(__file__).resolve().parents[2]
ROOMS = [ROOT / "server", ROOT / "model"]
LEFT_OUT = {
    "server/api/process.py": "what the system's process uses, for who looks after it; nothing goes by it",
    "server/kafka_view/schema_registry.py": "a client of other people's servers, by the standard library's HTTP",
}


def sources() -> Iterator[tuple[str, Path]]:
    for room in ROOMS:
        for path in sorted(room.rglob("*.py")):
            yield path.relative_to(ROOT).as_posix(), path


def test_the_server_of_tables_touches_nothing_of_the_system() -> None:
    problems = [
        f"{name}:{each}"
        for name, path in sources()
        if name not in LEFT_OUT
        for each in touched(path.read_text())
    ]
    assert not problems, "\n".join(["these take from the system what a port gives them:", *problems])


def test_exemptions_from_the_table_servers_port_rule_are_needed() -> None:
    assert [name for name in LEFT_OUT if not touched((ROOT / name).read_text())] == []
