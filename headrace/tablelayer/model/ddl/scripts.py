"""Statements of Flink's and Fluss's scripts: settings, catalogs, statement sets, temporary tables, LIKE."""

from __future__ import annotations

from typing import TYPE_CHECKING

from msgspec.structs import replace
from sqlglot import TokenType

from headrace.tablelayer.model.ddl.names import HOME
from headrace.tablelayer.model.ddl.statements import (
    LIKE_PARTS,
    CreateCatalog,
    CreateTableLike,
    CreateTemporaryTable,
    ResetSetting,
    SetSetting,
    UseCatalog,
)

if TYPE_CHECKING:
    from headrace.tablelayer.model.ddl.query_reader import QueryReader

_CATALOG_TYPES = ("fluss", "headrace")
_LIKE_MORE = ("WATERMARKS", "DISTRIBUTION")
"""Parts of a table that LIKE can name, and that no table here has."""


class ScriptReader:
    """A reader of such statements, with the tokens and the names of another reader.

    Each method reads the statement or clause in its name and raises DdlError.
    """

    def __init__(self, reader: QueryReader) -> None:
        self.reader = reader
        self.stream = reader.stream

    def set(self) -> SetSetting:
        stream = self.stream
        stream.expect("SET")
        if self.at_end():
            return SetSetting()
        name = stream.text("a setting in single quotes, such as SET 'execution.runtime-mode' = 'batch'")
        stream.expect_kind(TokenType.EQ, "'='")
        return SetSetting(name.text, stream.text("a value in single quotes").text)

    def reset(self) -> ResetSetting:
        self.stream.expect("RESET")
        return ResetSetting(None if self.at_end() else self.stream.text("a setting in single quotes").text)

    def at_end(self) -> bool:
        return self.stream.token is None or self.stream.is_kind(TokenType.SEMICOLON)

    def begins_set(self) -> bool:
        """Skip the beginning of a statement set if it comes next; return whether it does."""
        words = ("EXECUTE", "STATEMENT", "SET", "BEGIN"), ("BEGIN", "STATEMENT", "SET")
        return any(self.stream.accept(*each) for each in words)

    def create_catalog(self) -> CreateCatalog:
        stream = self.stream
        if_not_exists = stream.accept("IF", "NOT", "EXISTS")
        token = stream.name("the name of a catalog")
        options: dict[str, str] = {}
        if stream.accept("WITH"):
            options = self.reader.properties()
        kind = options.pop("type", "fluss")
        if kind not in _CATALOG_TYPES:
            raise stream.error(
                f"a catalog of the type '{kind}' is not in this release: a catalog is this server ('type' = 'fluss');"
                " DuckDB and Spark read others",
                token,
            )
        if token.text == HOME[0] or (self.reader.known.knows(token.text) and not if_not_exists):
            raise stream.error(f"there is a catalog '{token.text}' already", token)
        database = options.pop("default-database", None)
        server = options.pop("bootstrap.servers", None)
        return CreateCatalog(token.text, database, server, if_not_exists, tuple(sorted(options)))

    def use_catalog(self) -> UseCatalog:
        token = self.stream.name("the name of a catalog")
        names = self.reader.known
        if not names.knows(token.text):
            raise self.stream.error(
                f"there is no catalog '{token.text}': say before CREATE CATALOG {token.text} WITH ('type' = 'fluss'),"
                " or leave the statement out",
                token,
            )
        return UseCatalog(token.text, names.database_in(token.text))

    def create_temporary_table(self) -> CreateTemporaryTable:
        stream, reader = self.stream, self.reader
        if_not_exists = stream.accept("IF", "NOT", "EXISTS")
        path = reader.table_path()
        stream.expect_kind(TokenType.L_PAREN, "'(' and the columns")
        reader.of_connector = []
        schema = reader.column_list()
        stream.expect_kind(TokenType.R_PAREN, "',' or ')'")
        if stream.accept("COMMENT"):
            stream.text("a comment in single quotes")
        if not stream.accept("WITH"):
            raise stream.expected("WITH ('connector' = '...')")
        token = stream.token
        options = reader.properties()
        if "connector" not in options:
            raise stream.error("a temporary table has a connector: WITH ('connector' = 'kafka', ...)", token)
        return CreateTemporaryTable(
            path, tuple(reader.of_connector), options, tuple(schema.primary_key), if_not_exists
        )

    def like(self, given: CreateTableLike) -> CreateTableLike:
        """Read LIKE table [(INCLUDING | EXCLUDING | OVERWRITING part ...)]."""
        stream = self.stream
        stream.expect("LIKE")
        source = self.reader.table_path()
        included, overwriting = list(LIKE_PARTS), True
        if stream.accept_kind(TokenType.L_PAREN):
            while not stream.accept_kind(TokenType.R_PAREN):
                verb = next(
                    (each for each in ("INCLUDING", "EXCLUDING", "OVERWRITING") if stream.accept(each)), None
                )
                if verb is None:
                    raise stream.expected("INCLUDING, EXCLUDING, OVERWRITING or ')'")
                token = stream.token
                part = stream.name(f"ALL, {', '.join(LIKE_PARTS)}").text.upper()
                named = LIKE_PARTS if part == "ALL" else (part,)
                if part in _LIKE_MORE:
                    continue
                if not set(named) <= set(LIKE_PARTS):
                    raise stream.error(
                        f"{part} is not a part of a table: ALL, {', '.join(LIKE_PARTS)}", token
                    )
                if verb != "EXCLUDING" and "OPTIONS" in named:
                    overwriting = verb == "OVERWRITING"
                included = [each for each in included if each not in named]
                if verb != "EXCLUDING":
                    included += named
        return replace(given, source=source, included=tuple(included), overwriting=overwriting)
