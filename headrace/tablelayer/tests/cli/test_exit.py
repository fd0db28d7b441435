"""The end of a script that uses the client, and of the command."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[4]
SCRIPT = """
import sys
from headrace.tablelayer.client import connect

connection = connect(sys.argv[1])
unread = connection.sql("SELECT v.x, count(*) AS n FROM (VALUES (1), (2)) v(x) GROUP BY v.x")
if sys.argv[2] == "of DuckDB":
    connection.sql("SELECT nothing FROM (VALUES (1)) v(x)")
raise ValueError("the end")
"""


@pytest.mark.parametrize("error", ["of DuckDB", "of the script"])
def test_a_script_that_ends_by_an_error_shows_the_error_alone(server: str, error: str) -> None:
    """DuckDB's native part prints a line for each of its objects that the end of the process finds."""
    ended = subprocess.run(
        [sys.executable, "-c", SCRIPT, server, error],
        cwd=ROOT,
        capture_output=True,
        text=True,
        timeout=120,
        check=False,
    )
    assert ended.returncode == 1
    assert ended.stderr.startswith("Traceback")
    assert ended.stderr.endswith(
        'Candidate bindings: "x"\n' if error == "of DuckDB" else "ValueError: the end\n"
    )
    assert "nanobind" not in ended.stderr


def test_statements_from_a_pipe_that_end_by_an_error_show_the_error_alone(server: str) -> None:
    statements = (
        "SELECT v.x, count(*) AS n FROM (VALUES (1), (2)) v(x) GROUP BY v.x;"
        "SELECT v.x, CAST(v.y AS INT) AS y FROM (VALUES (1, '1'), (2, 'two')) v(x, y)"
    )
    ended = subprocess.run(
        [sys.executable, "-m", "headrace.tablelayer.cli.main", "sql", "-s", server],
        input=statements,
        cwd=ROOT,
        capture_output=True,
        text=True,
        timeout=120,
        check=False,
    )
    assert ended.returncode == 1
    assert ended.stderr.startswith("Conversion Error: Could not convert string 'two'")
    assert "nanobind" not in ended.stderr
    assert "Traceback" not in ended.stderr
