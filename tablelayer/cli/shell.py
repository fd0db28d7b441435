"""`headrace sql`: statements from the command line, a file, a pipe, or a prompt."""

from __future__ import annotations

import re
import sys
from collections.abc import Iterator
from contextlib import contextmanager, redirect_stdout
from pathlib import Path
from time import perf_counter

import typer

from tablelayer.cli.answer import Answer
from tablelayer.cli.completion import Completer, Names
from tablelayer.cli.connect import nearest_name, open_connection
from tablelayer.cli.describe import describe_definition
from tablelayer.cli.errors import CommandError, explain
from tablelayer.cli.options import Format, SqlFormat
from tablelayer.cli.output import write_batches, write_parquet
from tablelayer.cli.progress import reading
from tablelayer.cli.sql import Session
from tablelayer.client import Connection, TableError

_NAMES_A_PASSWORD = re.compile(r"\b(?:PASSWORD|IDENTIFIED)\b", re.IGNORECASE)
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
SELECT min(id), max(id) FROM t;           SHOW PARTITIONS t;
SELECT * FROM "t$changelog";              any other SELECT is DuckDB's SQL
the tab key completes words and names;    \\q leaves, \\? shows this"""


def run_sql(
    server: str,
    database: str,
    *,
    execute: str | None,
    file: Path | None,
    output: SqlFormat,
    to: Path | None = None,
) -> None:
    """Run the statements given, or those of standard input: with a prompt if that is a terminal.

    `to`: a file for the rows. It is written beside its place and moved there at the end, so that it is never half of
    the answer.
    """
    with open_connection(server) as connection:
        session = Session(connection, database)
        if execute is not None:
            text = execute
        elif file is not None:
            text = _read(file)
        elif not sys.stdin.isatty():
            text = _read(Path("-"))
        elif to is not None or output is SqlFormat.PARQUET:
            raise CommandError("give the statements by -e or by -f to write their rows to a file")
        else:
            _prompt(connection, session, server, Format(output.value))
            return
        if output is SqlFormat.PARQUET:
            _write_parquet(connection, session, text, to)
        elif to is None:
            _run(connection, session, text, Format(output.value))
        else:
            with (
                _replacing(to) as path,
                path.open("w", encoding="utf-8") as written,
                redirect_stdout(written),
            ):
                _run(connection, session, text, Format(output.value))


@contextmanager
def _replacing(path: Path) -> Iterator[Path]:
    """Where to write what becomes the file at the end of the block, if that does not fail."""
    part = path.with_name(f"{path.name}.part")
    try:
        try:
            yield part
            part.replace(path)
        except OSError as error:
            raise CommandError(f"{path} cannot be written: {error.strerror or error}") from error
    finally:
        part.unlink(missing_ok=True)


def _write_parquet(connection: Connection, session: Session, sql: str, to: Path | None) -> None:
    """One query's rows; other statements may stand before and after it."""
    if to is None:
        raise CommandError("Parquet goes into a file: add --to FILE")
    count: int | None = None
    with _replacing(to) as path:
        for answer in _answers(connection, session, sql):
            if answer.schema is None:
                continue
            if count is not None:
                raise CommandError("a Parquet file has the rows of one query, and there are two")
            count = write_parquet(answer.schema, answer.batches(), path)
        if count is None:
            raise CommandError("there is no query whose rows could be written")
    typer.echo(f"{count} row{'' if count == 1 else 's'} written to {to}", err=True)


def _answers(connection: Connection, session: Session, sql: str) -> Iterator[Answer]:
    """Of a text's statements; while each is carried out the terminal shows what is read."""
    running = session.run(sql)
    while True:
        with reading(connection):
            answer = next(running, None)
        if answer is None:
            return
        yield answer


def _read(file: Path) -> str:
    try:
        return sys.stdin.read() if str(file) == "-" else file.read_text(encoding="utf-8")
    except UnicodeDecodeError as error:
        where = "standard input" if str(file) == "-" else str(file)
        raise CommandError(f"{where} is not UTF-8: {error}") from error
    except OSError as error:
        raise CommandError(f"{file} cannot be read: {error}") from error


def _run(connection: Connection, session: Session, sql: str, output: Format, *, timed: bool = False) -> None:
    started = perf_counter()
    for answer in _answers(connection, session, sql):
        show(answer, output, started=started if timed else None)
        started = perf_counter()


def show(answer: Answer, output: Format, *, started: float | None = None) -> None:
    """Write an answer: rows, as they come, and definitions to standard output; messages too, but not among CSV or JSON
    rows. `started`: since when its time is to be told."""
    count = None if answer.schema is None else write_batches(answer.schema, answer.batches(), output)
    took = "" if started is None else f" ({perf_counter() - started:.3f} s)"
    if count is not None:
        if output is Format.TABLE:
            typer.echo(f"{count} row{'' if count == 1 else 's'}{took}")
    elif answer.definition is not None:
        describe_definition(answer.definition, output)
    elif answer.text is not None:
        typer.echo(
            answer.text + ("" if answer.is_code else took),
            err=output is not Format.TABLE and not answer.is_code,
        )


def _prompt(connection: Connection, session: Session, server: str, output: Format) -> None:
    history, lines, names = _load_history(), list[str](), Names(connection)
    _bind_tab(Completer(names, lambda: _line_before(lines), lambda: session.database))
    typer.echo(_GREETING.format(server=server))
    try:
        for sql in _statements(session, lines):
            if _NAMES_A_PASSWORD.search(sql):
                _forget_last_lines(sql)
            try:
                _run(connection, session, sql, output, timed=True)
            except Exception as error:
                sentence = explain(error)
                if sentence is None:
                    raise
                if isinstance(error, TableError) and (near := nearest_name(connection, error)) is not None:
                    sentence += f"\ndid you mean {near}?"
                typer.echo(sentence, err=True)
            names.forget()
    finally:
        _save_history(history)


def _line_before(lines: list[str]) -> str:
    import readline

    return "\n".join([*lines, readline.get_line_buffer()[: readline.get_begidx()]])


def _bind_tab(completer: Completer) -> None:
    try:
        import readline
    except ImportError:
        return
    readline.set_completer(completer)
    readline.set_completer_delims(" \t\n,;()=<>+-*/'")
    libedit = "libedit" in (readline.__doc__ or "")
    readline.parse_and_bind("bind ^I rl_complete" if libedit else "tab: complete")


def _statements(session: Session, lines: list[str]) -> Iterator[str]:
    """Texts that end with a semicolon, over as many lines as it takes; `lines` are those of the one being typed."""
    while True:
        try:
            line = input("   ...> " if lines else f"{session.database}> ")
        except EOFError:
            typer.echo("")
            return
        except KeyboardInterrupt:
            typer.echo("")
            lines.clear()
            continue
        if not lines and line.strip() in ("\\q", "quit", "exit", "quit;", "exit;"):
            return
        if not lines and line.strip() in ("\\?", "\\h", "help", "help;"):
            typer.echo(_HELP)
            continue
        lines.append(line)
        text = "\n".join(lines)
        if text.rstrip().endswith(";"):
            lines.clear()
            yield text
        elif not text.strip():
            lines.clear()


def _forget_last_lines(sql: str) -> None:
    """What has a password in it is in no history."""
    try:
        import readline
    except ImportError:
        return
    for line in reversed(sql.splitlines()):
        last = readline.get_current_history_length()
        if line.strip() and last and readline.get_history_item(last) == line:
            readline.remove_history_item(last - 1)


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
