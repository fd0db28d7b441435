"""Ctrl-C during a statement, at the prompt and with -e, on a terminal."""

from __future__ import annotations

import os
import re
import signal
import subprocess
import sys
import threading
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pexpect
import pytest
from typer.testing import Result

from headrace.tablelayer.cli import shell
from headrace.tablelayer.cli.interrupting import InterruptedWorkError
from headrace.tablelayer.client import ClientError, connect
from headrace.tablelayer.client.stopping import Stop, Stopped, running
from headrace.tablelayer.sql import duck
from headrace.tablelayer.sql.session import Session
from headrace.tablelayer.tests.cli.conftest import ROOT

pytestmark = pytest.mark.slow
LONG = "SELECT sum(a.range * b.range % 7) FROM range(100000000) a, range(100000) b"


@pytest.fixture
def spawned(server: str, tmp_path: Path) -> Iterator[Callable[..., Any]]:
    """Return a function that starts `headrace sql` on a terminal."""
    children = []

    def start(*words: str) -> Any:
        child = pexpect.spawn(
            sys.executable, ["-m", "headrace.tablelayer.cli.main", "sql", "-s", server, *words],
            cwd=str(ROOT), encoding="utf-8", timeout=60, dimensions=(40, 100),
            env={**os.environ, "HOME": str(tmp_path), "TERM": "xterm", "PROMPT_TOOLKIT_NO_CPR": "1"},
            preexec_fn=lambda: signal.signal(signal.SIGINT, signal.SIG_DFL),
        )  # fmt: skip
        children.append(child)
        return child

    yield start
    for child in children:
        child.close(force=True)


def test_the_prompt_survives_an_interrupt_and_keeps_typed_text(
    spawned: Callable[..., Any],
) -> None:
    child = spawned()
    child.expect("default>")
    child.send(f"{LONG};\r")
    child.expect(r"0 rows read, 1 s")
    child.send("SELECT typed")
    child.expect(r"0 rows read, 2 s")
    assert "typed" not in child.before, "nothing of it is in the line of the progress"
    child.sendintr()
    child.expect("interrupted")
    child.expect("default>")
    child.send("SELECT 40 + 2;\r")
    child.expect("42")
    child.expect("1 row")
    child.send("\\q\r")
    child.expect(pexpect.EOF)


def test_a_statement_of_the_command_line_ends_with_130(spawned: Callable[..., Any]) -> None:
    child = spawned("-e", LONG)
    child.expect(r"0 rows read, 1 s")
    child.sendintr()
    child.expect("interrupted")
    child.expect(pexpect.EOF)
    child.close()
    assert child.exitstatus == 130


def test_an_interrupted_insert_says_how_many_rows_were_written(
    server: str, spawned: Callable[..., Any]
) -> None:
    with connect(server) as connection:
        connection.execute("CREATE TABLE interrupted (k BIGINT, v BIGINT)")
        child = spawned("-e", "INSERT INTO interrupted SELECT range, range * 2 FROM range(100000000000)")
        child.expect(r"\d+ rows written, ")
        child.sendintr()
        child.expect(r"interrupted\s+(\d+) rows written before the interruption\s")
        said = int(child.match[1])
        child.expect(pexpect.EOF)
        more = re.search(r"some of the next( \d+)? rows may be written, too", child.before)
        child.close()
        assert child.exitstatus == 130
        assert said > 0
        assert said <= connection.table("interrupted").count() <= said + (200_000 if more else 0)


SIGNALLED = """
import asyncio, signal, threading, time
from headrace.tablelayer.cli.interrupting import InterruptedWorkError, interruptible
from headrace.tablelayer.client import stopping
from headrace.tablelayer.client.blocking.waiting import LoopThread

def work():
    time.sleep(0.3)  # until the other thread waits
    signal.pthread_kill(threading.get_ident(), signal.SIGINT)
    stopping.sleep(5)
    print("too late")

async def asked():
    await asyncio.sleep(0.3)
    signal.pthread_kill(threading.get_ident(), signal.SIGINT)
    await asyncio.sleep(5)
    print("too late")

loop = LoopThread()
for wait in (lambda: interruptible(work, lambda: 0), lambda: loop.run(asked())):
    try:
        wait()
    except (InterruptedWorkError, KeyboardInterrupt) as error:
        print(type(error).__name__)
"""


def test_ctrl_c_ends_work_and_calls_even_if_the_system_gives_the_signal_to_another_thread() -> None:
    ended = subprocess.run(
        [sys.executable, "-c", SIGNALLED], capture_output=True, text=True, timeout=60, check=False
    )
    assert (ended.stdout.split(), ended.stderr) == (["InterruptedWorkError", "KeyboardInterrupt"], "")


def test_an_interrupted_command_ends_without_python_s_clean_up() -> None:
    script = "import atexit, sys; from headrace.tablelayer.cli.process import leave; atexit.register(print, 'cleaned');"
    ends = [
        subprocess.run(
            [sys.executable, "-c", f"{script} leave({code})"], capture_output=True, text=True, check=False
        )
        for code in (130, 3)
    ]
    assert [(each.returncode, each.stdout, each.stderr) for each in ends] == [
        (130, "", ""),
        (3, "cleaned\n", ""),
    ]


def test_spilled_files_are_removed_at_an_end_without_clean_up() -> None:
    database = duck.connect()
    ((folder,),) = database.execute("SELECT current_setting('temp_directory')").fetchall()
    database.close()
    Path(folder).mkdir()
    (Path(folder) / "spilled").touch()
    duck.remove_spilled()
    assert not Path(folder).exists()


def test_work_that_goes_on_after_an_interrupt_leaves_no_half_of_a_file(
    headrace: Callable[..., Result], monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    file, part = tmp_path / "rows.csv", tmp_path / "rows.csv.part"

    def interrupted(*_: object) -> None:
        part.write_text("half")
        raise InterruptedWorkError("interrupted", goes_on=False)

    monkeypatch.setattr(shell, "interruptible", interrupted)
    done = headrace("sql", "-e", "SELECT 1 AS a", "-o", "csv", "--to", str(file))
    assert (done.exit_code, done.stderr, list(tmp_path.iterdir())) == (130, "interrupted\n", [])


def test_a_stop_forgets_the_queries_that_have_ended() -> None:
    stop = Stop()
    with running(stop):
        for _ in range(3):
            duck.connect().close()
        database = duck.connect()
    assert list(stop._interrupted) == [database]
    assert not stop._ends
    database.close()


def test_stopped_work_ends_in_a_client_s_call_and_a_table_that_was_begun_is_dropped(server: str) -> None:
    with connect(server) as connection:
        stop = Stop()
        told = list[BaseException]()

        def create() -> None:
            session = Session(connection)
            with running(stop):
                try:
                    session.query("CREATE TABLE half AS SELECT range AS k FROM range(100000000000)")
                except ClientError as error:  # of the client, or of DuckDB
                    told.append(error)

        worker = threading.Thread(target=create)
        worker.start()
        while not connection.admin.table_exists("default.half"):
            worker.join(0.05)
        while worker.is_alive():
            stop.set()
            worker.join(0.05)
        assert not connection.admin.table_exists("default.half")
        with running(stop), pytest.raises(Stopped):
            connection.admin.list_databases()
        assert "default" in connection.admin.list_databases(), "only the stopped work cannot ask"
