"""`headrace tables` for administrators, and `headrace doctor`."""

import itertools
import json
import os
import re
import socket
import stat

import pytest

from headrace.tablelayer.cli import doctor
from headrace.tablelayer.cli.doctor import Verdict
from headrace.tablelayer.client import connect
from headrace.tablelayer.client.admin.databases import ServerProcess
from simulator.ports import free_port

_numbers = itertools.count()


@pytest.fixture(scope="module")
def shop(server):
    with connect(server) as connection:
        name = f"admin{next(_numbers)}"
        connection.admin.create_database(name)
        connection.execute(
            f"CREATE TABLE {name}.item (k INT, name STRING, PRIMARY KEY (k) NOT ENFORCED) WITH ('bucket.num' = '2');"
            f"CREATE TABLE {name}.part (a INT, b DATE, v STRING, PRIMARY KEY (a, b) NOT ENFORCED)"
            " WITH ('bucket.key' = 'a');"
            f"CREATE TABLE {name}.daily (day STRING, n INT) PARTITIONED BY (day)"
        )
        connection.table(f"{name}.item").upsert([{"k": k, "name": f"x{k}"} for k in range(20)])
        connection.table(f"{name}.part").upsert(
            [{"a": a, "b": f"2024-09-{b:02}", "v": "v"} for a in (1, 2) for b in (1, 2, 3)]
        )
        connection.table(f"{name}.daily").append([{"day": day, "n": 1} for day in "aab"])
        yield name
        connection.admin.drop_database(name, cascade=True)


@pytest.fixture(autouse=True)
def patience(monkeypatch):
    monkeypatch.setattr(doctor, "_CONNECT_SECONDS", 60.0)
    monkeypatch.setattr(doctor, "_ANSWER_MS", 60_000)


@pytest.fixture
def rows(headrace):
    def run(*words):
        done = headrace(*words, "--output", "json")
        assert done.exit_code == 0, done.output
        return [json.loads(line) for line in done.stdout.splitlines()]

    return run


def test_topics_of_tables_and_their_partitions_are_listed_as_such(rows, headrace, shop):
    topics, kinds = rows("topics", "list", "--internal"), ("topic", "table", "table partition", "internal")
    own = {each["topic"]: each["kind"] for each in topics if each["topic"].startswith(f"{shop}.")}
    table, partition = f"{shop}.daily", f"{shop}.daily.a"
    assert own == {f"{shop}.item": "table", f"{shop}.part": "table", table: "table"} | {
        f"{table}.{each}": "table partition" for each in "ab"
    }
    assert {each["kind"] for each in topics} <= set(kinds)
    described = {each: rows("topics", "describe", each)[0] for each in own}
    assert [described[each]["table"] for each in (table, partition)] == [table, table]
    assert f", a partition of table {table}\n" in headrace("topics", "describe", partition).stdout


def test_partitions_buckets_and_sizes(rows, headrace, shop):
    listed = rows("tables", "partitions", f"{shop}.daily")
    assert [(each["day"], each["topic"], each["buckets"], each["rows"]) for each in listed] == [
        ("a", f"{shop}.daily.a", 1, 2),
        ("b", f"{shop}.daily.b", 1, 1),
    ]
    assert all(each["log_bytes"] > 0 for each in listed)
    refused = headrace("tables", "partitions", f"{shop}.item")
    assert (refused.exit_code, "not partitioned" in refused.stderr) == (1, True)

    buckets = rows("tables", "buckets", f"{shop}.item", "--at", "2000-01-01")
    assert [each["bucket"] for each in buckets] == [0, 1]
    assert sum(each["end_offset"] for each in buckets) == 20
    assert all(
        (each["offset_at_time"], each["first_offset"], each["leader"]) == (0, 0, 0) for each in buckets
    )
    later = rows("tables", "buckets", f"{shop}.item", "--at", "2100-01-01T00:00:00+02:00")
    assert [each["offset_at_time"] for each in later] == [each["end_offset"] for each in later]
    assert {each["topic"] for each in rows("tables", "buckets", f"{shop}.daily")} == {
        f"{shop}.daily.a",
        f"{shop}.daily.b",
    }
    assert "is not a time" in headrace("tables", "buckets", f"{shop}.item", "--at", "yesterday").stderr

    sizes = {each["table"]: each for each in rows("tables", "size")}
    assert sizes[f"{shop}.item"]["rows"] == 20
    assert sizes[f"{shop}.item"]["kind"] == "primary key"
    assert sizes[f"{shop}.item"]["log_bytes"] == sum(each["log_bytes"] for each in buckets)
    assert (sizes[f"{shop}.daily"]["partitions"], sizes[f"{shop}.daily"]["rows"]) == (2, 3)
    assert [each["table"] for each in rows("tables", "size", f"{shop}.part")] == [f"{shop}.part"]


def test_lookups_by_key_and_by_its_beginning(rows, headrace, shop):
    assert rows("tables", "lookup", f"{shop}.item", "3", "5", "-c", "name") == [
        {"name": "x3"},
        {"name": "x5"},
    ]
    some = headrace("tables", "lookup", f"{shop}.item", "3", "99", "-o", "csv")
    assert (some.exit_code, some.stdout, some.stderr) == (0, "k,name\n3,x3\n", "99: no such row\n")
    assert headrace("tables", "lookup", f"{shop}.item", "99").exit_code == 1
    (row,) = rows("tables", "lookup", f"{shop}.part", "a=1,b=2024-09-02")
    assert row == {"a": 1, "b": "2024-09-02", "v": "v"}
    assert len(rows("tables", "lookup", f"{shop}.part", "a=1", "a=2")) == 6
    for key, complaint in (
        ("a=1,v=x", "is not a key"),
        ("b=2024-09-02", "must be written a=...,b=... or a=..."),
        ("a=x,b=2024-09-02", "not a value of column 'a'"),
    ):
        refused = headrace("tables", "lookup", f"{shop}.part", key)
        assert refused.exit_code == 1
        assert complaint in refused.stderr
    assert "no primary key" in headrace("tables", "lookup", f"{shop}.daily.a", "1").stderr


def test_the_doctor_is_content_with_a_server_that_works(rows, headrace, server, tmp_path):
    listen = "127.0.0.1:0"
    found = headrace("doctor", "--data", str(tmp_path / "new"), "--listen", listen, "--output", "json")
    findings = {each["check"]: each for each in map(json.loads, found.stdout.splitlines())}
    for check in (
        "python",
        "pyarrow",
        "server",
        "tables",
        "advertised address",
        "data directory",
        "listen",
        "clock",
    ):
        assert findings[check]["verdict"] in ("ok", "warning"), findings[check]
    problems = [each for each in findings.values() if each["verdict"] == "problem"]
    assert found.exit_code == (1 if problems else 0)
    assert all(each["what_to_do"] for each in findings.values() if each["verdict"] != "ok")
    assert not (tmp_path / "new").exists()


def test_a_table_without_a_lake_is_told_by_the_doctor_and_in_the_log(
    headrace, serve, tmp_path, eventually, monkeypatch
):
    enabled = "'table.datalake.enabled' = 'true'"
    brought = ("--set", "datalake.format=iceberg")  # as if each tierer brought the warehouse
    served = serve("--listen", "127.0.0.1:0", "--data", str(tmp_path / "data"), *brought)
    with connect(served.address) as connection:
        connection.execute(f"CREATE TABLE kept (id INT) WITH ({enabled}); CREATE TABLE other (id INT)")
        done = headrace("doctor", "-s", served.address, "-o", "json")
        findings = [json.loads(line) for line in done.stdout.splitlines()]
        (found,) = [each for each in findings if each["check"] == "lake"]
        assert found["verdict"] == "warning"
        assert found["what"].startswith(
            "default.kept is marked for tiering, but the server has no iceberg lake"
        )
        assert "--set datalake.iceberg.warehouse=" in found["what_to_do"]
        log = tmp_path / "data" / "headrace.log"
        said = "table default.kept has 'table.datalake.enabled' = 'true', but this broker has no lake for it"
        eventually(lambda: said in log.read_text())
    with_lake = f"datalake.iceberg.warehouse={tmp_path / 'lake'}"
    other = serve("--listen", "127.0.0.1:0", "--data", str(tmp_path / "with"), "--set", with_lake)
    with connect(other.address) as connection:
        connection.execute(f"CREATE TABLE kept (id INT) WITH ({enabled})")
        done = headrace("doctor", "-s", other.address, "-o", "json")
        assert not [line for line in done.stdout.splitlines() if json.loads(line)["check"] == "lake"]
        connection.execute("ALTER TABLE kept SET ('table.datalake.freshness' = '1 ms')")
        connection.table("kept").append([{"id": 1}])
        monkeypatch.setattr("headrace.tablelayer.cli.doctor._LAKE_LATE_MS", 0)

        def late() -> list[str]:
            done = headrace("doctor", "-s", other.address, "-o", "json")
            found = [json.loads(line) for line in done.stdout.splitlines()]
            return [each["what"] for each in found if each["check"] == "lake"]

        eventually(lambda: any(each.startswith("the lake of default.kept is ") for each in late()))


def test_the_doctor_tells_people_a_line_for_each_finding(headrace):
    told = headrace("doctor", "--server", f"127.0.0.1:{free_port()}").stdout
    assert re.search(r"(?m)^ok       numpy: [\d.]+$", told)
    assert re.search(r"(?m)^problem  server: .*\n         -> headrace serve --data DIR", told)


def test_the_doctor_finds_a_wrong_advertised_address_and_a_directory_in_use(headrace, serve, tmp_path):
    with socket.socket() as taken:
        taken.bind(("127.0.0.1", 0))  # the port is bound, but not listening
        port = taken.getsockname()[1]
        words = ("--data", str(tmp_path / "data"), "--set", f"advertised.listeners=127.0.0.1:{port}")
        served = serve("--listen", "127.0.0.1:0", *words)
        listen = served.address
        done = headrace(
            "doctor", "-s", listen, "--data", str(tmp_path / "data"), "--listen", listen, "-o", "json"
        )
    assert done.exit_code == 1
    findings = [json.loads(line) for line in done.stdout.splitlines()]
    (wrong,) = [each for each in findings if each["check"] == "advertised address"]
    assert wrong["verdict"] == "problem"
    assert f"127.0.0.1:{port}, where no server answers" in wrong["what"]
    assert "advertised.listeners" in wrong["what_to_do"]
    assert any(f"in use by process {served.process.pid}" in each["what"] for each in findings)


def test_the_doctor_is_content_with_a_server_that_runs(headrace, serve, tmp_path):
    """Its directory is in use and its port is taken: by itself."""
    data = tmp_path / "data"
    served = serve("--listen", "127.0.0.1:0", "--data", str(data))
    at = served.address
    done = headrace("doctor", "-s", at, "--data", str(data), "--listen", at, "-o", "json")
    findings = {}
    for each in map(json.loads, done.stdout.splitlines()):
        findings.setdefault(each["check"], []).append(each)
    machine = ("java", "pyspark", "open files", "clock", "disk", "server's disk", "server's open files")
    problems = [
        each
        for check, found in findings.items()
        if check not in machine
        for each in found
        if each["verdict"] != "ok"
    ]
    assert not problems
    pid = served.process.pid
    assert f"in use by process {pid}, the server at {at}" in [e["what"] for e in findings["data directory"]]
    assert findings["listen"][0]["what"] == f"{at} is where the running server listens"
    assert "broker 0 is headrace" in findings["server's process"][0]["what"]
    # ... and not with another user's server
    other = serve("--listen", "127.0.0.1:0", "--data", str(tmp_path / "other"))
    words = ("--data", str(tmp_path / "other"), "--listen", other.address)
    done = headrace("doctor", "-s", at, *words, "-o", "json")
    found = [each for each in map(json.loads, done.stdout.splitlines()) if each["verdict"] != "ok"]
    assert {each["check"] for each in found} >= {"data directory", "listen"}
    assert done.exit_code == 1


@pytest.mark.parametrize(
    ("free", "total", "verdict", "text"),
    [
        (450e6, 500e6, Verdict.OK, "450 MB of 500 MB free"),
        (45e6, 500e6, Verdict.WARNING, "45.0 MB of 500 MB free"),
        (20e6, 500e6, Verdict.PROBLEM, "20.0 MB of 500 MB free"),
        (1e9, 1e12, Verdict.PROBLEM, "1.0 GB of 1.0 TB free"),
    ],
)
def test_small_disks_are_judged_by_their_size(monkeypatch, tmp_path, free, total, verdict, text):
    monkeypatch.setattr(
        doctor.shutil, "disk_usage", lambda _: type("Usage", (), {"free": int(free), "total": int(total)})
    )
    (found,) = [each for each in doctor.data_directory(tmp_path) if each.check == "disk"]
    assert (found.verdict, found.what) == (verdict, text)


def test_a_server_of_another_version_or_with_few_files():
    old = ServerProcess(0, "h", 9092, "0.0.1", 7, 60_000, 100, 50_000_000, 1024)
    found = {each.check: each for each in doctor.process_findings(old)}
    assert found["server's process"].verdict is Verdict.WARNING
    assert found["server's open files"].verdict is Verdict.PROBLEM


@pytest.mark.parametrize(("used", "is_warned"), [(79_999, False), (80_001, True), (-1, False)])
def test_a_server_with_few_files_left(used, is_warned):
    process = ServerProcess(0, "h", 9092, "0.0.1", 7, 60_000, 100, 50_000_000, 100_000, used)
    found = [each for each in doctor.process_findings(process) if each.check == "server's open files"]
    assert [each.verdict for each in found] == [Verdict.WARNING] * is_warned
    assert [each.what for each in found] == ["broker 0 has 80001 of 100000 files open"] * is_warned


def test_the_doctor_reports_problems_of_a_machine(monkeypatch, tmp_path):
    def only(findings):
        (found,) = findings
        return found

    monkeypatch.setattr(doctor.resource, "getrlimit", lambda _: (256, 1024))
    assert only(doctor.open_files()).verdict is Verdict.PROBLEM
    monkeypatch.setattr(doctor.time, "time", lambda: 1000.0)
    assert only(doctor.clock()).verdict is Verdict.PROBLEM
    monkeypatch.setattr(doctor.time, "time", lambda: 2e9)
    monkeypatch.setattr(doctor, "_is_synchronised", lambda: False)
    assert only(doctor.clock()).verdict is Verdict.WARNING
    monkeypatch.setenv("JAVA_HOME", str(tmp_path))
    assert "does not run" in only(doctor.java()).what
    java = tmp_path / "bin" / "java"
    java.parent.mkdir()
    for version, verdict in (
        ("1.8.0_292", Verdict.WARNING),
        ("21.0.4", Verdict.OK),
        ("11.0.1", Verdict.WARNING),
    ):
        java.write_text(f"#!/bin/sh\necho 'openjdk version \"{version}\"' >&2\n")
        java.chmod(java.stat().st_mode | stat.S_IXUSR)
        assert only(doctor.java()).verdict is verdict
    monkeypatch.setitem(doctor._PACKAGES, "pyarrow", (999,))
    monkeypatch.setitem(doctor._PACKAGES, "no-such-package", (1,))
    found = {each.check: each for each in doctor.versions()}
    assert found["pyarrow"].verdict is found["no-such-package"].verdict is Verdict.PROBLEM
    file = tmp_path / "file"
    file.write_text("")
    assert only(doctor.data_directory(file)).verdict is Verdict.PROBLEM
    monkeypatch.setattr(doctor.os, "getuid", lambda: os.stat(tmp_path).st_uid + 1)
    assert any(
        "belongs to" in each.what and each.verdict is Verdict.PROBLEM
        for each in doctor.data_directory(tmp_path)
    )
    monkeypatch.setattr(
        doctor.shutil, "disk_usage", lambda _: type("Usage", (), {"free": 10**8, "total": 10**12})
    )
    assert any(
        each.check == "disk" and each.verdict is Verdict.PROBLEM for each in doctor.data_directory(tmp_path)
    )
    assert doctor.advertised(1, "no-such-host.invalid", 9092).verdict is Verdict.PROBLEM
    assert only(doctor.served("127.0.0.1:1")).verdict is Verdict.PROBLEM
    assert only(doctor.served("nonsense:port")).verdict is Verdict.PROBLEM
    assert only(doctor.free_address("nonsense")).verdict is Verdict.PROBLEM
