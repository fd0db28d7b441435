"""Tables are altered and written to while the server is killed: nothing acknowledged is lost or changed."""

from __future__ import annotations

import threading

import pytest

from headrace.tablelayer.client import ConnectionFailed, OutcomeUnknown, TableError, connect

KILLS = 2
ROUNDS = 6

pytestmark = pytest.mark.slow


def test_alters_and_writes_of_every_schema_survive_kill_9(own_server, wait_until) -> None:
    with connect(own_server.address) as connection:
        connection.execute(
            "CREATE TABLE t (k BIGINT, v INT, PRIMARY KEY (k) NOT ENFORCED) WITH ('bucket.num' = '2')"
        )
    acknowledged: list[int] = []
    stop = threading.Event()

    def write() -> None:
        """Write with a writer that was opened before every ALTER, through all of them and all kills."""
        with connect(own_server.address) as connection:
            table = connection.table("default.t")
            start = 0
            while not stop.is_set():
                keys = range(start, start + 50)
                table.upsert([{"k": key, "v": key % 1000} for key in keys])
                acknowledged.append(keys.stop)
                start = keys.stop

    def columns() -> list[str]:
        with connect(own_server.address) as connection:
            return connection.admin.describe_table("default.t").schema.names

    writer = threading.Thread(target=write)
    writer.start()
    try:
        for number in range(ROUNDS):
            done = len(acknowledged)
            wait_until(lambda done=done: len(acknowledged) > done + 2, "writes to be acknowledged")
            with connect(own_server.address) as connection:
                connection.execute(f"ALTER TABLE t ADD c{number} INT NOT NULL DEFAULT {number} FIRST")
                connection.table("default.t").upsert([{"k": -1 - number, "v": number, f"c{number}": -5}])
            if number % (ROUNDS // KILLS) == 1:
                # An ALTER that is under way when the server is killed is carried out, or not at all.
                attempt = threading.Thread(target=alter_while_killed, args=(own_server.address,))
                attempt.start()
                own_server.restart()
                attempt.join(60)
                assert set(columns()) - {"k", "v", "x"} == {f"c{n}" for n in range(number + 1)}
        with connect(own_server.address) as connection:
            connection.execute("ALTER TABLE t MODIFY v BIGINT, RENAME v TO value")
        done = len(acknowledged)
        wait_until(lambda: len(acknowledged) > done + 2, "writes under the first schema")
    finally:
        stop.set()
        writer.join(60)
    assert not writer.is_alive()
    own_server.restart()
    total = acknowledged[-1]
    with connect(own_server.address) as connection:
        table = connection.table("default.t")
        rows = {row["k"]: row for row in table.to_arrow().to_pylist()}
        assert sorted(rows) == [*range(-ROUNDS, 0), *range(total)]
        defaults = {f"c{n}": n for n in range(ROUNDS)}
        for key, row in rows.items():
            row.pop("x", None)
            written = {f"c{-1 - key}": -5} if key < 0 else {}
            value = -1 - key if key < 0 else key % 1000
            assert row == {**defaults, **written, "k": key, "value": value}
        replayed = {}
        for part in table.scan(start="earliest", until="latest"):
            replayed.update({row["k"]: row for row in part.batch.to_pylist()})
        assert {key: row["value"] for key, row in replayed.items()} == {
            key: row["value"] for key, row in rows.items()
        }


def alter_while_killed(address: str) -> None:
    try:
        with connect(address) as connection:
            connection.execute("ALTER TABLE t ADD x INT")
    except (ConnectionFailed, OutcomeUnknown, TableError):
        return  # its outcome is unknown, or the first attempt carried it out
