"""`headrace backup` of a server that is written to, and `headrace restore` after a kill: the state at the cut is
back.
"""

from __future__ import annotations

import json
import signal
import threading
import time
from collections.abc import Mapping
from pathlib import Path

from typer.testing import CliRunner, Result

from headrace.broker.objects.files import LocalFiles
from headrace.tablelayer.cli.main import app
from headrace.tablelayer.client import Connection, OutgoingRecord, connect

RECORDS = 20
SETTINGS = ("--set", "log.segment.bytes=20000", "--set", "log.retention.check.interval.ms=100")
Records = dict[tuple[int, int], tuple[bytes | None, bytes | None]]


def run(*words: str, code: int = 0, address: str = "") -> Result:
    done = CliRunner(env={"HEADRACE_SERVER": address or "127.0.0.1:1"}).invoke(app, list(words))
    assert done.exit_code == code, (done.stdout, done.stderr)
    return done


class Writing:
    """Writes twenty records to a topic, then one row into a table, again and again until it is stopped."""

    def __init__(self, connection: Connection) -> None:
        self._connection = connection
        self._stopped = threading.Event()
        self.rounds = 0
        self._thread = threading.Thread(target=self._run, daemon=True)
        self._thread.start()

    def _run(self) -> None:
        fruit = self._connection.table("fruit")
        while not self._stopped.is_set():
            number = self.rounds
            self._connection.kafka.produce(
                "clicks",
                [OutgoingRecord(b"%d " % number + b"x" * 200, key=b"%d" % key) for key in range(RECORDS)],
            )
            fruit.upsert([{"id": number % 50, "name": f"n{number}"}])
            self.rounds += 1

    def wait_for(self, rounds: int) -> None:
        deadline = time.monotonic() + 60
        while self.rounds < rounds:
            assert time.monotonic() < deadline, "nothing is written"
            time.sleep(0.01)

    def stop(self) -> None:
        self._stopped.set()
        self._thread.join(60)


def records_of(connection: Connection, topic: str) -> tuple[Records, Mapping[int, int]]:
    """Key and value by partition and offset, and where the partitions end."""
    ends = connection.kafka.offsets(topic)
    positions: Mapping[int, int] = dict.fromkeys(ends, 0)
    found: Records = {}
    while any(positions[partition] < end for partition, end in ends.items()):
        some, positions = connection.kafka.read(topic, positions)
        found |= {(each.partition, each.offset): (each.key, each.value) for each in some}
    return found, ends


def rows_of(connection: Connection) -> list[tuple[int, str]]:
    rows = connection.table("fruit").to_arrow().to_pylist()
    return sorted((row["id"], row["name"]) for row in rows)


def replayed(records: Records) -> list[tuple[int, str]]:
    state: dict[int, str] = {}
    for _, (_, value) in sorted(records.items(), key=lambda each: each[0][1]):
        assert value is not None
        row = json.loads(value)
        state[row["id"]] = row["name"]
    return sorted(state.items())


def compare(address: str, clicks: Records, fruit: Records) -> int:
    """Compare the data of a restored server with the original's; return the number of its rows."""
    with connect(address) as connection:
        for topic, before in (("clicks", clicks), ("default.fruit", fruit)):
            found, ends = records_of(connection, topic)
            assert all(ends.values()), f"{topic} has nothing"
            assert found == {place: record for place, record in before.items() if place[1] < ends[place[0]]}
            if topic == "clicks":
                count = len(found)
            else:
                upserts = len(found)
                assert rows_of(connection) == replayed(found)
        assert RECORDS * upserts <= count <= RECORDS * (upserts + 1), "the cut is not one instant"
        assert connection.kafka.describe_group("readers").positions == {("clicks", 0): 1}
        connection.kafka.produce("clicks", [OutgoingRecord(b"more")])
        connection.table("fruit").upsert([{"id": 1, "name": "more"}])
        assert (1, "more") in rows_of(connection)
        return upserts


def test_a_backup_has_all_records_up_to_its_cut_after_a_kill(serve, tmp_path: Path) -> None:
    target, data = tmp_path / "backups", tmp_path / "data"
    served = serve("--listen", "127.0.0.1:0", "--data", str(data), *SETTINGS)
    with connect(served.address) as connection:
        connection.kafka.create_topic("clicks", partitions=2)
        connection.execute(
            "CREATE TABLE fruit (id INT, name STRING, PRIMARY KEY (id) NOT ENFORCED) WITH ('bucket.num' = '1')"
        )
        connection.kafka.commit_offsets("readers", "clicks", {0: 1})
        writing = Writing(connection)
        writing.wait_for(20)
        first = run("backup", str(target), address=served.address).stdout
        writing.wait_for(writing.rounds + 20)
        second = run("backup", str(target), address=served.address).stdout
        writing.wait_for(writing.rounds + 5)
        writing.stop()
        clicks, _ = records_of(connection, "clicks")
        fruit, _ = records_of(connection, "default.fruit")
    assert not list((data / "backup").iterdir()), "files of the backup are left"
    served.stop(signal.SIGKILL)

    listed = [
        json.loads(line) for line in run("restore", str(target), "--list", "-o", "json").stdout.splitlines()
    ]
    assert [each["backup"] in said for each, said in zip(listed, (first, second), strict=True)] == [
        True,
        True,
    ]
    for name, words in (("old", ("--as-of", listed[0]["time"])), ("new", ())):
        run("restore", str(target), "--data", str(tmp_path / name), *words)
        assert list((tmp_path / name).glob("extensions/tables/*/0/CURRENT")), "the table has no state"
    logs = [
        b"".join(path.read_bytes() for path in sorted((tmp_path / name / "default.fruit-0").glob("*.log")))
        for name in ("old", "new")
    ]
    assert 0 < len(logs[0]) < len(logs[1])
    assert logs[1].startswith(logs[0])
    again = serve("--listen", "127.0.0.1:0", "--data", str(tmp_path / "new"), *SETTINGS)
    assert compare(again.address, clicks, fruit) >= 40
    code, _, err = again.stop()
    assert (code, err) == (0, "")


def test_a_second_backup_writes_only_new_files_and_old_backups_are_removed(serve, tmp_path: Path) -> None:
    target = tmp_path / "backups"
    served = serve("--listen", "127.0.0.1:0", "--data", str(tmp_path / "data"), *SETTINGS)
    files = LocalFiles(target)
    with connect(served.address) as connection:
        connection.kafka.create_topic("clicks", partitions=1)
        for _ in range(20):
            connection.kafka.produce("clicks", [OutgoingRecord(b"x" * 1000) for _ in range(10)])
        run("backup", str(target), address=served.address)
        before = set(files.names("chunks"))
        connection.kafka.produce("clicks", [OutgoingRecord(b"y")])
        run("backup", str(target), address=served.address)
        new = sum(len(files.read(name)) for name in set(files.names("chunks")) - before)
        assert 0 < new < 60_000, "the log was written again"
        said = run("backup", str(target), "--keep", "1", address=served.address).stdout
    assert "2 older backups" in said
    assert len(files.names("backups")) == 1
    words = ("restore", str(target), "--data")
    run(*words, str(tmp_path / "again"))
    for path in (tmp_path / "data" / "clicks-0").glob("*.log"):
        assert (tmp_path / "again" / "clicks-0" / path.name).read_bytes() == path.read_bytes()
    assert "is not empty" in run(*words, str(tmp_path / "data"), code=1).stderr
    assert (
        "there is no earlier one" in run(*words, str(tmp_path / "x"), "--as-of", "2001-01-01", code=1).stderr
    )
    files.put(files.names("chunks")[0], b"damaged")
    assert "differs from what was written" in run(*words, str(tmp_path / "x"), code=1).stderr
    assert not (tmp_path / "x").exists()
    assert not (tmp_path / "x.restoring").exists()


def test_without_a_backup_or_a_place_it_says_so(tmp_path: Path) -> None:
    target = str(tmp_path / "backups")
    assert "there is no backup in" in run("restore", target, "--data", str(tmp_path / "x"), code=1).stderr
    assert "restore to with --data" in run("restore", target, code=1).stderr


def test_a_list_of_backups_needs_a_backup(headrace, tmp_path):
    done = headrace("restore", str(tmp_path / "nosuch"), "--list")
    assert (done.exit_code, done.stdout) == (1, "")
    assert done.stderr == f"there is no backup in {tmp_path / 'nosuch'}\n"
