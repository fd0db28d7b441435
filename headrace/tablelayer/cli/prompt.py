"""Prompt of `headrace sql`: multi-line statements, a history, colours, tab completion, backslash commands.

A statement ends with a semicolon that is not in a text, a name or a comment. `\\q` and `\\?` work on any line,
regardless of the text before, and so do `exit`, `quit` and `help` on a line of their own, unless a quote is open. Query
results show their first and last rows.
"""

from __future__ import annotations

import os
import re
import sys
from collections.abc import Callable, Iterable
from contextlib import redirect_stdout, suppress
from datetime import datetime
from pathlib import Path
from time import perf_counter
from typing import TYPE_CHECKING, Any, TextIO

import click
import typer
from prompt_toolkit import PromptSession
from prompt_toolkit.completion import Completer, Completion
from prompt_toolkit.history import FileHistory, History, InMemoryHistory
from prompt_toolkit.key_binding import KeyBindings
from prompt_toolkit.lexers import Lexer, PygmentsLexer
from sqlglot import TokenType

from headrace.tablelayer.cli.completion import Names, candidates, files
from headrace.tablelayer.cli.connect import nearest_name
from headrace.tablelayer.cli.describe import describe_definition
from headrace.tablelayer.cli.errors import CommandError, explain
from headrace.tablelayer.cli.interrupting import InterruptedWorkError, interruptible
from headrace.tablelayer.cli.options import Format
from headrace.tablelayer.cli.output import Ends, write_notices
from headrace.tablelayer.cli.progress import showing
from headrace.tablelayer.client import stopping
from headrace.tablelayer.model.ddl.errors import DdlError
from headrace.tablelayer.model.ddl.tokens import TokenStream
from headrace.tablelayer.model.errors import TableError
from headrace.tablelayer.sql.answer import Answer
from headrace.tablelayer.sql.session import Session

if TYPE_CHECKING:
    from prompt_toolkit.document import Document
    from prompt_toolkit.key_binding import KeyPressEvent

    from headrace.tablelayer.client import Connection

HISTORY = Path("~/.cache/headrace/sql_history")
ROWS_SHOWN = 40
_HISTORY_LENGTH = 1_000
_NAMES_A_PASSWORD = re.compile(r"\b(?:PASSWORD|IDENTIFIED)\b", re.IGNORECASE)
_WORD = re.compile(r"[^\s,;()<>=+\-*/']*\Z")
_PATH = re.compile(r"(?:\A|\n)\s*\\[io]\s+(\S*)\Z")
_LEAVING = ("exit", "quit")
_GREETING = "SQL on {server}. End a statement with ; and leave with \\q or Ctrl-D. \\? helps."
_HELP = """\
SHOW DATABASES; USE db; SHOW TABLES; DESCRIBE t; SHOW CREATE TABLE t; SHOW COLUMNS FROM t;
CREATE TABLE t (id BIGINT, name STRING, PRIMARY KEY (id) NOT ENFORCED) WITH ('bucket.num' = '4');
CREATE TABLE t AS SELECT ...;             COPY t FROM 'file.csv';  COPY t TO 'file.parquet';
ALTER TABLE t ADD note STRING DEFAULT '' AFTER id;  RENAME a TO b, MODIFY a BIGINT, DROP a, SET ('option'='value')
INSERT INTO t VALUES (1, 'apple'), (2, 'pear');     INSERT INTO t SELECT ...;
UPDATE t SET price = price * 2 WHERE price < 10;    DELETE FROM t WHERE id > 2;    TRUNCATE t;
SELECT * FROM t WHERE id = 1;             SELECT count(*) FROM t;
SELECT min(id), max(id) FROM t;           SHOW PARTITIONS t;
SELECT * FROM "t$changelog";              any other SELECT is DuckDB's SQL
SELECT value->>'$.user' FROM topic;       EXPLAIN SELECT ...;  SUMMARIZE t;  CREATE VIEW v AS SELECT ...;

\\d        tables; \\d t: the columns of one     \\l        databases
\\x        a line for each column, or rows      \\timing   how long statements take, or not
\\i FILE   run the statements of a file         \\e        edit the last statement in $EDITOR
\\o FILE   write rows to a file; \\o: show them   \\watch N  repeat the last query every N seconds
\\copy t FROM 'file' and \\copy t TO 'file' are COPY
\\?        this                                 \\q        leave
the tab key completes words and names, the arrow keys go through the history"""


def is_complete(text: str) -> bool:
    """Return whether the text is complete: it ends with a semicolon, or has only comments."""
    try:
        tokens = TokenStream(text).tokens
    except DdlError:
        return False  # a quote or comment is open
    return not tokens or tokens[-1].token_type is TokenType.SEMICOLON


def command_of(text: str) -> str | None:
    """Return the command in the last line, regardless of the text before it; None if it is not a command."""
    before, _, line = text.rpartition("\n")
    line = line.strip()
    if line.startswith("\\"):
        return line
    word = line.rstrip(";").strip().lower()
    if word not in (*_LEAVING, "help"):
        return None
    try:
        _ = TokenStream(before)
    except DdlError:
        return None
    return "\\q" if word in _LEAVING else "\\?"


class _Completer(Completer):
    def __init__(self, names: Names, database: Callable[[], str]) -> None:
        self._names = names
        self._database = database

    def get_completions(self, document: Document, complete_event: Any) -> Iterable[Completion]:
        before = document.text_before_cursor
        found = _WORD.search(before)
        word = found[0] if found is not None else ""
        cut = before[: len(before) - len(word)]
        path = _PATH.search(before)
        if path is not None:
            for each in files(path[1]):
                yield Completion(each, -len(path[1]))
            return
        for each in candidates(cut, word, self._database(), self._names, document.text_after_cursor):
            yield Completion(each, -len(word))


class _History(FileHistory):
    """History without lines that have a password."""

    def append_string(self, string: str) -> None:
        if not _NAMES_A_PASSWORD.search(string):
            super().append_string(string)


def _history() -> History:
    path = HISTORY.expanduser()
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        path.touch(mode=0o600)
        kept = list(_History(str(path)).load_history_strings())[:_HISTORY_LENGTH]
        if path.stat().st_size > 1 << 20:
            path.write_text("")
            history = _History(str(path))
            for each in reversed(kept):
                history.store_string(each)
        return _History(str(path))
    except (OSError, ValueError):
        return InMemoryHistory()


def _bindings() -> KeyBindings:
    bindings = KeyBindings()

    @bindings.add("enter")
    def _(event: KeyPressEvent) -> None:
        buffer = event.current_buffer
        text = buffer.document.text
        if command_of(text) is not None or is_complete(text):
            buffer.validate_and_handle()
        else:
            buffer.insert_text("\n")

    return bindings


class Prompt:
    """Statements of a user at a terminal, run one after the other."""

    def __init__(
        self, connection: Connection, session: Session, output: Format, show: Callable[..., None]
    ) -> None:
        self._connection = connection
        self._show_whole = show
        self._session = session
        self._output = output
        self._names = Names(connection)
        self._expanded = False
        self._timed = True
        self._last = ""
        """The last statements, for `\\watch` and `\\e`."""
        self._file: Path | None = None
        """The file that rows are written to; None: they are shown."""

    def run(self, server: str) -> None:
        """Run until the user leaves."""
        asking: PromptSession[str] = PromptSession(
            history=_history(),
            completer=_Completer(self._names, lambda: self._session.database),
            complete_while_typing=False,
            lexer=_lexer(),
            enable_open_in_editor=True,
            key_bindings=_bindings(),
            multiline=True,
            prompt_continuation=lambda width, *_: "...> ".rjust(width),
        )
        typer.echo(_GREETING.format(server=server))
        kept = ""
        while True:
            try:
                text = asking.prompt(f"{self._session.database}> ", default=kept)
            except EOFError:
                return
            except KeyboardInterrupt:
                kept = ""
                continue
            kept, command = "", command_of(text)
            if command == "\\q":
                return
            if command == "\\e":
                kept = (click.edit(self._last, extension=".sql") or "").strip()
                continue
            if command is not None:
                kept = "".join(text.rpartition("\n")[:2])
                self._attempt(self._command, command)
            elif text.strip():
                self._last = text
                self._attempt(self._statements, text)
                self._names.forget()

    def _attempt(self, work: Callable[[str], None], text: str) -> None:
        """Run some work; print an expected error, and continue."""
        try:
            interruptible(lambda: work(text), lambda: self._session.written_count)
        except InterruptedWorkError as error:
            _complain(error.told)
        except Exception as error:
            sentence = explain(error)
            if sentence is None:
                raise
            if isinstance(error, TableError) and (near := nearest_name(self._connection, error)) is not None:
                sentence += f"\ndid you mean {near}?"
            _complain(sentence)

    def _statements(self, text: str) -> None:
        running = self._session.run(text)
        while True:
            stopping.check()
            began = perf_counter()
            with showing(self._connection, self._session):
                answer = next(running, None)
                ends = None if answer is None else self._taken(answer)
            if answer is None:
                return
            if answer.row_count is None:
                stopping.check()
            self._show(answer, ends, perf_counter() - began)

    def _taken(self, answer: Answer) -> Ends | None:
        to_table = self._output is Format.TABLE and self._file is None
        if answer.schema is None or answer.is_endless or not to_table:
            return None
        ends = Ends(answer.schema, ROWS_SHOWN)
        for batch in answer.batches():
            ends.add(batch)
        return ends

    def _show(self, answer: Answer, ends: Ends | None, seconds: float) -> None:
        if self._file is not None:
            with self._file.open("a", encoding="utf-8") as file, redirect_stdout(file):
                self._show_whole(answer, self._output)
            return
        took = f" ({seconds:.3f} s)" if self._timed else ""
        if ends is not None:
            write_notices(answer.notices)
            ends.write(expanded=self._expanded)
            left_out = ends.count > ROWS_SHOWN
            shown = f", the first and last {ROWS_SHOWN // 2} of them shown" if left_out else ""
            typer.echo(f"{ends.count:,} row{'' if ends.count == 1 else 's'}{shown}{took}")
            return
        self._show_whole(answer, self._output, took=took)

    def _command(self, text: str) -> None:
        word, _, argument = text.partition(" ")
        name = argument.strip().rstrip(";").strip('"`')
        match word.rstrip(";"):
            case "\\?" | "\\h":
                typer.echo(_HELP)
            case "\\x":
                self._expanded = not self._expanded
                typer.echo("a line for each column" if self._expanded else "rows")
            case "\\timing":
                self._timed = not self._timed
                typer.echo(f"timing is {'on' if self._timed else 'off'}")
            case "\\l":
                self._statements("SHOW DATABASES")
            case "\\d" | "\\dt" if not name:
                self._statements("SHOW TABLES")
            case "\\i" if name:
                self._statements(_text_of(Path(argument.strip()).expanduser()))
            case "\\o":
                self._file = Path(argument.strip()).expanduser() if name else None
                if self._file is not None:
                    self._file.open("w", encoding="utf-8").close()
                typer.echo(
                    f"rows are written to {self._file}" if self._file is not None else "rows are shown"
                )
            case "\\copy" if name:
                self._statements(f"COPY {argument.strip()}")
            case "\\watch":
                self._watch(argument.strip().rstrip(";"))
            case "\\d":
                path = name if "." in name else f"{self._session.database}.{name}"
                describe_definition(self._connection.admin.describe_table(path), self._output)
            case _:
                typer.echo(f"{word} is not a command; \\? lists the commands", err=True)

    def _watch(self, argument: str) -> None:
        try:
            seconds = float(argument or _WATCH_SECONDS)
        except ValueError:
            seconds = 0.0
        if seconds < _WATCH_SECONDS_MIN:
            raise CommandError(f"\\watch takes seconds from {_WATCH_SECONDS_MIN} on, not {argument}")
        if not all(word in _REPEATED for word in _first_words(self._last)):
            raise CommandError("\\watch repeats the last query, and the last statement was not a query")
        while True:
            typer.echo(f"{datetime.now():%H:%M:%S}, every {seconds:g} s; Ctrl-C ends it")
            self._statements(self._last)
            stopping.sleep(seconds)


_WATCH_SECONDS = 2.0
_WATCH_SECONDS_MIN = 0.1
_REPEATED = (
    "SELECT",
    "WITH",
    "FROM",
    "SHOW",
    "DESCRIBE",
    "DESC",
    "EXPLAIN",
    "SUMMARIZE",
    "VALUES",
    "PIVOT",
    "UNPIVOT",
)


def _first_words(text: str) -> list[str]:
    """Return the first word of each statement, in upper case."""
    words, is_first = [], True
    for token in TokenStream(text).tokens:
        if is_first and token.token_type is not TokenType.SEMICOLON:
            words.append(token.text.upper())
        is_first = token.token_type is TokenType.SEMICOLON
    return words or [""]


def _text_of(file: Path) -> str:
    try:
        return file.read_text(encoding="utf-8")
    except (OSError, UnicodeDecodeError) as error:
        raise CommandError(f"{file} cannot be read: {error}") from error


def _complain(sentence: str) -> None:
    typer.secho(sentence, err=True, fg=typer.colors.RED if _has_colours(sys.stderr) else None)


def _has_colours(stream: TextIO) -> bool:
    return stream.isatty() and "NO_COLOR" not in os.environ


def _lexer() -> Lexer | None:
    """Return the lexer that colours statements while they are typed; None without colours."""
    if not _has_colours(sys.stdout):
        return None
    from pygments.lexers.sql import SqlLexer

    return PygmentsLexer(SqlLexer)


def run_prompt(
    connection: Connection, session: Session, server: str, output: Format, show: Callable[..., None]
) -> None:
    """Prompt for statements until the user leaves. `show` writes an answer as it appears outside the prompt."""
    with suppress(EOFError):
        Prompt(connection, session, output, show).run(server)
