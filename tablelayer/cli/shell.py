"""`headrace sql`: statements from the command line, a file, a pipe, or a prompt."""

from __future__ import annotations

import sys
from collections.abc import Iterator
from pathlib import Path
from time import perf_counter

import typer

from tablelayer.cli.connect import open_connection
from tablelayer.cli.describe import describe_definition
from tablelayer.cli.errors import CommandError, explain
from tablelayer.cli.options import Format
from tablelayer.cli.output import write_arrow
from tablelayer.cli.sql import Answer, Session

HISTORY = Path("~/.cache/headrace/sql_history")
_HISTORY_LENGTH = 1_000
_GREETING = "SQL on {server}. End a statement with ; and leave with \\q or Ctrl-D. \\? helps."
_HELP = """\
SHOW DATABASES; USE db; SHOW TABLES; DESCRIBE t; SHOW CREATE TABLE t;
CREATE TABLE t (id BIGINT, name STRING, PRIMARY KEY (id) NOT ENFORCED) WITH ('bucket.num' = '4');
ALTER TABLE t ADD note STRING DEFAULT '' AFTER id;  RENAME a TO b, MODIFY a BIGINT, DROP a, SET ('option'='value')
INSERT INTO t VALUES (1, 'apple'), (2, 'pear');
UPDATE t SET name = 'fig' WHERE id = 1;   DELETE FROM t WHERE id = 2;
SELECT * FROM t WHERE id = 1;             SELECT count(*) FROM t;
SELECT * FROM "t$changelog";              any other SELECT is DuckDB's SQL
\\q leaves, \\? shows this"""


def run_sql(server: str, database: str, *, execute: str | None, file: Path | None, output: Format) -> None:
    """Run the statements given, or those of standard input: with a prompt if that is a terminal."""
    with open_connection(server) as connection:
        session = Session(connection, database)
        if execute is not None:
            _run(session, execute, output)
        elif file is not None:
            _run(session, _read(file), output)
        elif not sys.stdin.isatty():
            _run(session, sys.stdin.read(), output)
        else:
            _prompt(session, server, output)


def _read(file: Path) -> str:
    if str(file) == "-":
        return sys.stdin.read()
    try:
        return file.read_text(encoding="utf-8")
    except (OSError, UnicodeDecodeError) as error:
        raise CommandError(f"{file} cannot be read: {error}") from error


def _run(session: Session, sql: str, output: Format, *, timed: bool = False) -> None:
    started = perf_counter()
    for answer in session.run(sql):
        show(answer, output, seconds=perf_counter() - started if timed else None)
        started = perf_counter()


def show(answer: Answer, output: Format, *, seconds: float | None = None) -> None:
    """Write an answer: rows and definitions to standard output; messages too, but not among CSV or JSON
    rows.
    """
    took = "" if seconds is None else f" ({seconds:.3f} s)"
    if answer.rows is not None:
        write_arrow(answer.rows, output)
        if output is Format.TABLE:
            count = answer.rows.num_rows
            typer.echo(f"{count} row{'' if count == 1 else 's'}{took}")
    elif answer.definition is not None:
        describe_definition(answer.definition, output)
    elif answer.text is not None:
        typer.echo(
            answer.text + ("" if answer.is_code else took),
            err=output is not Format.TABLE and not answer.is_code,
        )


def _prompt(session: Session, server: str, output: Format) -> None:
    history = _load_history()
    typer.echo(_GREETING.format(server=server))
    try:
        for sql in _statements(session):
            try:
                _run(session, sql, output, timed=True)
            except Exception as error:
                sentence = explain(error)
                if sentence is None:
                    raise
                typer.echo(sentence, err=True)
    finally:
        _save_history(history)


def _statements(session: Session) -> Iterator[str]:
    """Texts that end with a semicolon, over as many lines as it takes."""
    lines: list[str] = []
    while True:
        try:
            line = input("   ...> " if lines else f"{session.database}> ")
        except EOFError:
            typer.echo("")
            return
        except KeyboardInterrupt:
            typer.echo("")
            lines = []
            continue
        if not lines and line.strip() in ("\\q", "quit", "exit", "quit;", "exit;"):
            return
        if not lines and line.strip() in ("\\?", "\\h", "help", "help;"):
            typer.echo(_HELP)
            continue
        lines.append(line)
        text = "\n".join(lines)
        if text.rstrip().endswith(";"):
            yield text
            lines = []
        elif not text.strip():
            lines = []


def _load_history() -> Path | None:
    try:
        import readline
    except ImportError:
        return None  # Python without readline: a prompt without arrow keys
    path = HISTORY.expanduser()
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        if path.exists():
            readline.read_history_file(path)
    except OSError:
        return None
    return path


def _save_history(path: Path | None) -> None:
    if path is None:
        return
    import readline

    readline.set_history_length(_HISTORY_LENGTH)
    try:
        readline.write_history_file(path)
    except OSError as error:
        typer.echo(f"the history could not be kept in {path}: {error}", err=True)
