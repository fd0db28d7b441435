"""Apache Arrow's JDBC driver, as DBeaver and other Java tools use it, against `headrace console --flight-sql`."""

import re
import subprocess
import sys
from datetime import UTC, datetime
from pathlib import Path

import pyarrow as pa
import pytest
from java_tools import OPTIONS

from bench.maven import fetch, java
from headrace.tablelayer.client import connect

HERE = Path(__file__).resolve().parent
ROWS = 200_000
DRIVER = ("org.apache.arrow", "flight-sql-jdbc-driver", "18.3.0")


def driver() -> Path:
    return fetch("flight-sql-jdbc", [DRIVER], f"{DRIVER[1]}-{DRIVER[2]}.jar")


@pytest.fixture
def console(server, tmp_path):
    with connect(server.address) as connection:
        connection.execute(
            "CREATE DATABASE IF NOT EXISTS shop;"
            "CREATE TABLE IF NOT EXISTS shop.fruit (id INT, name STRING NOT NULL, price DECIMAL(8, 2), at TIMESTAMP(3),"
            " tags ARRAY<STRING>, PRIMARY KEY (id) NOT ENFORCED);"
            "CREATE TABLE IF NOT EXISTS shop.pair (a INT, b STRING, n BIGINT, PRIMARY KEY (a, b) NOT ENFORCED);"
            "CREATE TABLE IF NOT EXISTS click (id BIGINT, page STRING)"
        )
        at = datetime(2024, 9, 19, 12, tzinfo=UTC).replace(tzinfo=None)
        rows = [{"id": n, "name": f"f{n}", "price": n, "at": at, "tags": ["x", "y"]} for n in range(9)]
        connection.table("shop.fruit").upsert(rows)
        ids = pa.array(range(ROWS), pa.int64())
        connection.table("default.click").append(pa.table({"id": ids, "page": ids.cast(pa.string())}))
    secret = tmp_path / "who"
    secret.write_text("ann:secret\n")
    words = ["console", "--server", server.address, "--listen", "127.0.0.1:0", "--flight-sql", "127.0.0.1:0"]
    process = subprocess.Popen(
        [sys.executable, "-m", "headrace.tablelayer.cli.main", *words, "--basic-auth-file", str(secret)],
        stdout=subprocess.PIPE,
        text=True,
        cwd=HERE.parents[1],
    )
    assert process.stdout is not None
    said = process.stdout.readline() + process.stdout.readline()
    yield re.search(r"grpc://(\S+)", said).group(1)
    process.terminate()
    assert process.wait(60) == 0
    process.stdout.close()


@pytest.mark.needs.with_args(driver)
@pytest.mark.timeout(300)
def test_a_java_program_asks(console):
    url = f"jdbc:arrow-flight-sql://{console}/?useEncryption=false&user=ann&password=secret"
    command = [
        java(),
        *OPTIONS,
        "-Xmx512M",
        "--add-opens=java.base/java.nio=ALL-UNNAMED",
        "-cp",
        f"{driver()}/*",
    ]
    asked = subprocess.run(
        [*command, str(HERE / "Jdbc.java"), url], capture_output=True, text=True, timeout=240, check=False
    )
    lines = asked.stdout.splitlines()
    assert asked.returncode == 0, asked.stdout + asked.stderr
    assert lines == [
        'Headrace true "',
        "schemas [default, shop]",
        "tables [fruit, pair]",
        "columns [id:4, name:12, price:3, at:93, tags:2003]",
        "key [a:1, b:2]",
        "shape [INTEGER, VARCHAR, DECIMAL, TIMESTAMP, ARRAY]",
        'row 3 f3 3.00 2024-09-19T12:00:00Z ["x","y"]',
        f"streamed {ROWS} {ROWS * (ROWS - 1) // 2}",
        "prepared [f6, f8]",
        "prepared [f8]",
        lines[10],
        lines[11],
        "stranger refused",
    ], asked.stderr
    assert "there is no column 'nam' in shop.fruit; did you mean name" in lines[10]
    assert "one SELECT, EXPLAIN" in lines[11]
