"""A user's program under `mypy --strict`: it uses every public method and the types of the results."""

import ast
import inspect
import os
import subprocess
import sys
from pathlib import Path

import pytest

import headrace.tablelayer.client as client
from headrace.tablelayer.client.blocking.databases import Admin
from headrace.tablelayer.client.blocking.kafka import KafkaAdmin
from headrace.tablelayer.client.blocking.table import StagedWriter

ROOT = Path(__file__).resolve().parents[4]
PROGRAM = Path(__file__).with_name("user_program.py")
_INNER = {"adopt", "call"}
"""Methods for the layers above, not for users."""


def names_in(tree):
    return {node.attr for node in ast.walk(tree) if isinstance(node, ast.Attribute)} | {
        node.id for node in ast.walk(tree) if isinstance(node, ast.Name)
    }


def test_the_program_uses_everything_that_is_public():
    tree = ast.parse(PROGRAM.read_text())
    used = names_in(tree)
    assert set(client.__all__) <= used
    in_coroutines = set().union(
        *(names_in(each) for each in ast.walk(tree) if isinstance(each, ast.AsyncFunctionDef))
    )
    for kind in (client.Connection, client.Table, client.Scan, Admin, KafkaAdmin, StagedWriter):
        public = {name for name in vars(kind) if not name.startswith("_")} - _INNER
        assert public <= used, f"{kind.__name__}: {sorted(public - used)}"
    public = {name for name in vars(client.AsyncTable) if not name.startswith("_")} - _INNER
    assert public - {"path", "arrow_schema", "definition"} <= in_coroutines, sorted(public - in_coroutines)


def test_blocking_and_asynchronous_tables_have_the_same_methods():
    own = {name for name in vars(client.AsyncTable) if not name.startswith("_")} - _INNER - {"close"}
    assert own - {name for name in vars(client.Table) if not name.startswith("_")} == set()
    functions = {name for name in own if inspect.isfunction(getattr(client.AsyncTable, name))}
    assert len(functions) > 30
    for name in functions:
        asynchronous, blocking = getattr(client.AsyncTable, name), getattr(client.Table, name)
        taken, given = inspect.signature(asynchronous), inspect.signature(blocking)
        assert taken.parameters == given.parameters, name
        assert "Async" not in str(given.return_annotation), name
        assert blocking.__doc__, name


@pytest.mark.slow
@pytest.mark.timeout(400)
def test_mypy_strict_finds_nothing_in_it_and_finds_a_mistake(tmp_path):
    wrong = tmp_path / "wrong.py"
    wrong.write_text(
        "from headrace.tablelayer.client import connect\n\n"
        "with connect() as connection:\n"
        "    text: str = connection.table('t').count()\n"
        "    connection.table('t').scan(until=1.5)\n"
    )
    config = tmp_path / "mypy.ini"
    config.write_text(
        "[mypy]\nstrict = True\n"
        # No type of the client is one of theirs, and to check them takes more than half of the time.
        "[mypy-cryptography.*,duckdb.*,numba.*,numpy.*,pandas.*,polars.*,pyarrow.*,pyspark.*,sqlglot.*]\n"
        "ignore_missing_imports = True\nfollow_imports = skip\n"
    )
    done = subprocess.run(
        [
            sys.executable, "-m", "mypy", "--config-file", str(config), "--cache-dir", str(tmp_path / "cache"),
            "--follow-imports", "silent", str(PROGRAM), str(wrong),
        ],
        capture_output=True, text=True, cwd=tmp_path, check=False,
        env={**os.environ, "MYPYPATH": str(ROOT), "PYTHONPATH": str(ROOT)},
    )  # fmt: skip
    lines = [line for line in done.stdout.splitlines() if ": error:" in line]
    assert [line.split(":")[1] for line in lines if "wrong.py" in line] == ["4", "5"], (
        done.stdout + done.stderr
    )
    assert [line for line in lines if "wrong.py" not in line] == [], done.stdout
