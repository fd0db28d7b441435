"""A server on a small disk that fills up: the clients' errors, the log, the end, and the recovery."""

from __future__ import annotations

import os
import subprocess
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from headrace.tablelayer.client import ClientConfig, KafkaError, OutcomeUnknown, connect
from headrace.tablelayer.tests.cli.conftest import Served

TIMEOUT_MS = 8_000
_FREED_BYTES = 215 << 20
"""RocksDB goes on by itself when 16 MiB are free and its memtables, up to two of 16 MiB, can be written."""
pytestmark = pytest.mark.soak


@pytest.fixture
def small(tmp_path: Path) -> Iterator[Path]:
    folder = tmp_path / "small"
    folder.mkdir()
    command = ["mount", "-t", "tmpfs", "-o", "size=250m", "tmpfs", str(folder)]
    if os.geteuid() != 0 or subprocess.run(command, capture_output=True, check=False).returncode:
        pytest.skip("a file system cannot be mounted here")
    yield folder
    subprocess.run(["umount", "-l", str(folder)], check=True)


def test_a_full_disk_is_said_survived_and_left_in_good_order(
    small: Path, eventually: Callable[..., Any]
) -> None:
    filler = small / "filler"
    filler.write_bytes(bytes(_FREED_BYTES))
    served = Served("--listen", "127.0.0.1:0", "--data", str(small / "data"))
    assert served.address, served.stop()[2]
    acknowledged: dict[int, str] = {}
    with connect(served.address, ClientConfig(delivery_timeout_ms=TIMEOUT_MS)) as connection:
        connection.execute("CREATE TABLE f (id INT, v STRING, PRIMARY KEY (id) NOT ENFORCED)")
        table = connection.table("default.f")
        refused = None
        for turn in range(3000):
            rows = [{"id": turn * 100 + n, "v": os.urandom(500).hex()} for n in range(100)]
            began = time.monotonic()
            try:
                table.upsert(rows)
            except (KafkaError, OutcomeUnknown) as error:
                refused = error
                break
            acknowledged |= {row["id"]: row["v"] for row in rows}
        assert refused is not None, "the disk never was full"
        assert "the disk is full" in str(refused)
        assert time.monotonic() - began < 3 * TIMEOUT_MS / 1000
        with pytest.raises((KafkaError, OutcomeUnknown), match="the disk is full"):
            table.upsert([{"id": 1, "v": "x"}])
        assert table.lookup_one(5)["v"] == acknowledged[5]

        filler.unlink()
        written = {"id": -1, "v": "with room"}
        eventually(lambda: _written(table, written), 60)
        assert table.lookup_one(-1) == written
        assert all(table.lookup_one(key)["v"] == acknowledged[key] for key in list(acknowledged)[::997])

        filler.write_bytes(b"")
        with filler.open("wb") as again:
            _fill(again)
        with pytest.raises((KafkaError, OutcomeUnknown), match="the disk is full"):
            for turn in range(3000):
                table.upsert([{"id": -2 - turn, "v": os.urandom(5000).hex()}])
    code, _, err = served.stop()
    assert (code, "Traceback" in err) == (0, False), err
    told = [line for line in err.splitlines() if "the disk is full" in line]
    assert 1 <= len(told) <= 6, err

    filler.unlink()
    served = Served("--listen", "127.0.0.1:0", "--data", str(small / "data"))
    with connect(served.address, ClientConfig(delivery_timeout_ms=TIMEOUT_MS)) as connection:
        table = connection.table("default.f")
        assert table.lookup_one(-1) == written
        assert all(table.lookup_one(key)["v"] == acknowledged[key] for key in list(acknowledged)[::97])
    assert served.stop()[0] == 0


def _written(table: Any, row: dict[str, Any]) -> bool:
    try:
        table.upsert([row])
    except (KafkaError, OutcomeUnknown):
        return False
    return True


def _fill(file: Any) -> None:
    try:
        while True:
            file.write(bytes(64 << 10))
            file.flush()
    except OSError:
        pass
