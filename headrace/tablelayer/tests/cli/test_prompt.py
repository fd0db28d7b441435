"""The prompt of `headrace sql`: ends of statements, any input, the history, and the output."""

import itertools
import os
import re
import sys

import pexpect
import pytest
from prompt_toolkit.application import create_app_session
from prompt_toolkit.input import create_pipe_input
from prompt_toolkit.output import DummyOutput

from headrace.tablelayer.cli import prompt as module
from headrace.tablelayer.cli.options import Format
from headrace.tablelayer.cli.prompt import command_of, is_complete, run_prompt
from headrace.tablelayer.cli.shell import show
from headrace.tablelayer.client import connect
from headrace.tablelayer.sql.session import Session
from headrace.tablelayer.tests.cli.conftest import ROOT

_numbers = itertools.count()


@pytest.mark.parametrize(
    ("text", "complete"),
    [
        ("SELECT 1;", True), ("SELECT 1", False), ("SELECT ';", False), ("SELECT ';'", False), ("SELECT ';';", True),
        ("SELECT 1 -- ;", False), ("SELECT 1; -- said", True), ("SELECT 1 /* ; ", False), ("SELECT 1 /* ; */;", True),
        ('SELECT "a;', False), ("SELECT 'it''s;\n more';", True), ("SELECT 'it''s;\n more;", False), ("", True),
        ("-- nothing", True), ("SELECT 1; SELECT", False), ("SELECT 1; SELECT 2;", True), ("SELECT `a;b`;", True),
    ],
)  # fmt: skip
def test_the_end_of_a_statement_is_recognized(text, complete):
    assert is_complete(text) is complete


@pytest.mark.parametrize(
    ("text", "command"),
    [
        ("\\q", "\\q"), ("SELECT 1\n\\q", "\\q"), ("SELECT '\n \\q ", "\\q"), ("exit", "\\q"), ("quit;", "\\q"),
        ("SELECT a\nFROM t\nexit;", "\\q"), ("SELECT 'a\nexit", None), ("/* a\nexit", None), ("exits", None),
        ("help", "\\?"), ("SELECT\n\\d item", "\\d item"), ("SELECT 1", None), ("SELECT exit", None),
    ],
)  # fmt: skip
def test_commands_are_understood_anywhere(text, command):
    assert command_of(text) == command


@pytest.fixture
def shop(server):
    name = f"prompt{next(_numbers)}"
    with connect(server) as connection:
        connection.admin.create_database(name)
        connection.execute(f"CREATE TABLE {name}.item (k INT, name STRING, PRIMARY KEY (k) NOT ENFORCED)")
        connection.table(f"{name}.item").upsert([{"k": k, "name": f"n{k}"} for k in range(100)])
        yield connection, name
        connection.admin.drop_database(name, cascade=True)


@pytest.fixture
def typed(shop, server, capsys, tmp_path, monkeypatch):
    """Return the output for typed lines, as (stdout, stderr)."""
    connection, database = shop
    monkeypatch.setattr(module, "HISTORY", tmp_path / "history")

    def run(*lines, form=Format.TABLE):
        with create_pipe_input() as keys, create_app_session(input=keys, output=DummyOutput()):
            keys.send_text("".join(f"{line}\r" for line in lines) + "\\q\r")
            run_prompt(connection, Session(connection, database), server, form, show)
        return capsys.readouterr()

    return run


def test_statements_go_over_lines_and_mistakes_do_not_end_the_prompt(typed):
    out, err = typed(
        "SELECT k,", "  'a;", "b' AS t", "FROM item", "\\?", "WHERE k = 1;", "SELEC;",
        "SELECT nam FROM item ORDER BY k;",
        "SELECT * FROM itm;", "SHOW TABLES;", "\\wrong", form=Format.CSV,
    )  # fmt: skip
    assert 'k,t\n1,"a;\nb"\n' in out
    assert "did you mean SELECT" in err
    assert "did you mean name?" in err
    assert re.search(r"did you mean prompt\d+\.item", err)
    assert "table\nitem\n" in out
    assert "\\timing" in out, "the help, in the middle of a statement"
    assert "\\wrong is not a command" in err


def test_answers_show_their_first_and_last_rows_with_the_count(typed):
    out, _ = typed("SELECT * FROM item ORDER BY k;", "\\timing", "SELECT k FROM item WHERE k < 3 ORDER BY k;")
    lines = out.splitlines()
    gap = lines.index("… 60 rows …")
    assert [line.split()[0] for line in lines[gap - 20 : gap]] == [str(k) for k in range(20)]
    assert [line.split()[0] for line in lines[gap + 1 : gap + 21]] == [str(k) for k in range(80, 100)]
    assert re.fullmatch(r"100 rows, the first and last 20 of them shown \([0-9.]+ s\)", lines[gap + 21])
    assert out.rstrip().endswith("3 rows")


def test_rows_of_many_batches_are_shown_as_those_of_one():
    import pyarrow as pa

    from headrace.tablelayer.cli.output import Ends

    for count, piece in ((0, 1), (1, 1), (40, 7), (41, 7), (41, 50), (1000, 1), (1000, 33), (1000, 999)):
        ends = Ends(pa.schema([("k", pa.int64())]), 40)
        rows = pa.table({"k": range(count)})
        for batch in rows.to_batches(max_chunksize=piece):
            ends.add(batch)
            assert sum(each.num_rows for each in ends._last) < 20 + piece
        import contextlib
        import io

        with contextlib.redirect_stdout(io.StringIO()) as out:
            ends.write()
        shown = [int(line) for line in out.getvalue().splitlines() if line.strip().isdigit()]
        assert shown == (list(range(count)) if count <= 40 else [*range(20), *range(count - 20, count)])
        assert ends.count == count


def test_backslash_commands(typed):
    out, _ = typed("\\d", "\\d item", "\\l", "\\x", "SELECT * FROM item WHERE k = 1;", "\\x", "\\timing")
    assert "item" in out
    assert "STRING" in out
    assert "default" in out
    assert re.search(r"─ row 1 ─*\nk +1\nname +n1\n", out)
    assert "timing is off" in out


def test_statements_and_rows_come_from_files_and_go_to_files(typed, tmp_path):
    script, rows, copied = tmp_path / "script.sql", tmp_path / "rows.txt", tmp_path / "copied.csv"
    script.write_text("SELECT k FROM item WHERE k = 1;\nSELECT name FROM item WHERE k = 2;")
    out, err = typed(
        f"\\i {script}", f"\\o {rows}", "SELECT name FROM item WHERE k = 3;", "\\o",
        "SELECT name FROM item WHERE k = 4;", f"\\copy item TO '{copied}'", f"\\i {tmp_path}/none", "\\watch x",
        "DELETE FROM item WHERE k > 98;", "\\watch",
    )  # fmt: skip
    assert "n2" in out
    assert "n3" not in out
    assert "n4" in out
    assert rows.read_text().split() == ["name", "────", "n3", "1", "row"]
    assert len(copied.read_text().splitlines()) == 101
    assert f"{tmp_path}/none cannot be read" in err
    assert "\\watch takes seconds from 0.1 on, not x" in err
    assert "the last statement was not a query" in err


def test_explain_analyze_runs_the_query(typed):
    out, _ = typed("EXPLAIN ANALYZE SELECT * FROM item WHERE name <> 'n1';", form=Format.CSV)
    last = out.splitlines()[-1]
    assert re.fullmatch(
        r'in all,[\d.]+ s,99 rows,"99 rows scanned, \d+ requests? of the client\'s loop, [\d,]+ bytes"', last
    )


def test_the_history_keeps_statements_and_no_passwords(typed, tmp_path):
    typed("SELECT 1;", "CREATE USER ann IDENTIFIED BY 'secret of ann';", "SELECT", "2;")
    kept = (tmp_path / "history").read_text()
    assert "SELECT 1;" in kept
    assert "+SELECT\n+2;" in kept
    assert "secret" not in kept
    assert oct((tmp_path / "history").stat().st_mode)[-3:] == "600"


def test_the_prompt_works_in_a_terminal(server, shop, tmp_path):
    _, database = shop
    child = pexpect.spawn(
        sys.executable, ["-m", "headrace.tablelayer.cli.main", "sql", "-s", server, "-d", database],
        cwd=str(ROOT), encoding="utf-8", timeout=60, dimensions=(40, 60),
        env={**os.environ, "HOME": str(tmp_path), "TERM": "xterm", "PROMPT_TOOLKIT_NO_CPR": "1", "COLUMNS": "60",
             "EDITOR": "sed -i 's/k = 8/k = 9/'"},
    )  # fmt: skip
    try:
        child.expect(f"{database}>")
        child.send("SELECT * FROM item WHERE na\t")
        child.expect("me")  # what was missing of the name
        child.send(" = 'n7';\r")
        child.expect(r"7 +n7\s")
        child.expect("1 row")
        child.expect(f"{database}>")
        child.send("SELECT name AS a_rather_long_name_of_a_column_that_is_never_cut, k AS another_long_one\r")
        child.expect(r"\.\.\.>")
        child.send("FROM item WHERE k = 8;\r")
        child.expect("─ row 1 ")
        child.expect("a_rather_long_name_of_a_column_that_is_never_cut  n8")
        child.expect(f"{database}>")
        child.send("\\e\r")  # the editor changes it
        child.expect(r"k \S*=\S* \S*9")  # in colours
        child.send("\r")
        child.expect("never_cut  n9")
        child.expect(f"{database}>")
        child.send("\\watch 0.1\r")
        for _ in range(3):
            child.expect("every 0.1 s")
            child.expect("never_cut  n9")
        child.sendintr()
        child.expect("interrupted")
        child.expect(f"{database}>")
        child.send("SELECT 'open\r\\q\r")
        child.expect(pexpect.EOF)
        child.close()
        assert child.exitstatus == 0
    finally:
        child.close(force=True)
