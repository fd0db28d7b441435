"""Statements that change rows: INSERT, UPDATE, DELETE, TRUNCATE, COPY.

A value is a literal, which stays exact, or an expression in DuckDB's SQL. Conditions are DuckDB's too; for a
condition that only compares columns with literals, the compared values are known.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from sqlglot import Token, TokenType

from headrace.tablelayer.model.ddl.errors import DdlError
from headrace.tablelayer.model.ddl.literals import read_literal
from headrace.tablelayer.model.ddl.statements import (
    CopyFrom,
    CopyTo,
    Default,
    Delete,
    Expression,
    Insert,
    InsertSelect,
    Truncate,
    Update,
)
from headrace.tablelayer.model.types.quoting import quoted
from headrace.tablelayer.model.types.values import Value

if TYPE_CHECKING:
    from headrace.tablelayer.model.ddl.query_reader import QueryReader

_OPENING = (TokenType.L_PAREN, TokenType.L_BRACKET, TokenType.L_BRACE)
_CLOSING = (TokenType.R_PAREN, TokenType.R_BRACKET, TokenType.R_BRACE)
_NESTED = ("ARRAY", "MAP", "ROW")
_TYPED = ("DATE", "TIME", "TIMESTAMP", "TIMESTAMP_LTZ", "X")
COPY_OPTIONS = {
    "format": "csv, json or parquet; by default from the file's name",
    "header": "CSV only: whether the first line has names",
    "delimiter": "CSV only: the separator of values",
    "quote": "CSV only: the quote around texts",
    "escape": "CSV only: the escape before a quote",
    "nullstr": "CSV only: the text of a NULL",
    "compression": "gzip, zstd, ...; by default from the file's name",
}
"""The options in parentheses after COPY's file, with DuckDB's names."""
_SYNONYMS = {"delim": "delimiter", "sep": "delimiter", "null": "nullstr"}


class RowsReader:
    """A reader of statements that change rows, with the tokens, the database and the queries of another reader.

    Each method reads the statement or clause in its name and raises DdlError.
    """

    def __init__(self, reader: QueryReader) -> None:
        self.reader = reader
        self.stream = reader.stream

    def insert(self) -> Insert | InsertSelect:
        stream = self.stream
        stream.expect("INSERT")
        replaced: dict[str, Value] | None = None
        if stream.accept("OVERWRITE"):
            replaced = {}
        else:
            stream.expect("INTO")
        stream.accept("TABLE")
        path = self.reader.table_path()
        if replaced is not None and stream.at("PARTITION"):
            replaced = self.reader.partition_spec()
        columns: tuple[str, ...] | None = None
        if stream.is_kind(TokenType.L_PAREN) and not self.reader.at_query(1):
            stream.position += 1
            columns = tuple(self.reader.names())
        self.reader.refuse("PARTITION", what="INSERT INTO ...")
        if not stream.accept("VALUES"):
            if self.reader.at_query():
                return InsertSelect(path, columns, self.reader.query(), replaced)
            raise stream.expected("VALUES or a query")
        rows: list[tuple[Value | Expression | Default, ...]] = []
        while True:
            token = stream.expect_kind(TokenType.L_PAREN, "'(' and the values of a row")
            row = [self.value()]
            while stream.accept_kind(TokenType.COMMA):
                row.append(self.value())
            stream.expect_kind(TokenType.R_PAREN, "',' or ')'")
            wanted = len(columns) if columns is not None else len(rows[0]) if rows else len(row)
            if len(row) != wanted:
                raise stream.error(f"this row has {len(row)} values, but {wanted} are needed", token)
            rows.append(tuple(row))
            if not stream.accept_kind(TokenType.COMMA):
                return Insert(path, columns, tuple(rows), replaced)

    def update(self) -> Update:
        stream = self.stream
        stream.expect("UPDATE")
        path = self.reader.table_path()
        named = stream.accept("AS")
        alias = stream.name("a name for the table").text if named or not stream.at("SET") else None
        stream.expect("SET")
        assignments: dict[str, Value | Expression | Default] = {}
        while True:
            token = stream.name("the name of a column")
            if token.text in assignments:
                raise stream.error(f"column '{token.text}' is set twice", token)
            stream.expect_kind(TokenType.EQ, "'='")
            assignments[token.text] = self.value("WHERE", "FROM", of_columns=True)
            if not stream.accept_kind(TokenType.COMMA):
                break
        others = self.sources("WHERE") if stream.accept("FROM") else None
        condition, key = self.where()
        plain = others is None and alias is None
        return Update(path, assignments, condition, key if plain else None, alias, others)

    def delete(self) -> Delete:
        stream = self.stream
        stream.expect("DELETE")
        stream.expect("FROM")
        path = self.reader.table_path()
        alias = stream.name("a name for the table").text if stream.accept("AS") or self.at_alias() else None
        others = self.sources("WHERE") if stream.accept("USING") else None
        condition, key = self.where()
        plain = others is None and alias is None
        return Delete(path, condition, key if plain else None, alias, others)

    def at_alias(self) -> bool:
        """Whether a name comes next, and a clause after it: a lone word may be a misspelt clause."""
        stream = self.stream
        start = stream.position
        try:
            stream.name("a name")
            return stream.at("USING") or stream.at("WHERE")
        except DdlError:
            return False
        finally:
            stream.position = start

    def truncate(self) -> Truncate:
        self.stream.expect("TRUNCATE")
        self.stream.accept("TABLE")
        return Truncate(self.reader.table_path())

    def where(self) -> tuple[str | None, dict[str, Value] | None]:
        """Read the condition as text, and the values that it compares columns with if it does nothing else."""
        stream = self.stream
        if stream.token is None or stream.is_kind(TokenType.SEMICOLON):
            return None, None
        stream.expect("WHERE")
        start = stream.position
        if stream.token is None or stream.is_kind(TokenType.SEMICOLON):
            raise stream.expected("a condition")
        key = self.key()
        stream.position = start
        return self.expression(), key

    def key(self) -> dict[str, Value] | None:
        """Read `column = literal AND ...`; None for any other condition."""
        stream = self.stream
        key: dict[str, Value] = {}
        try:
            while True:
                opened = stream.accept_kind(TokenType.L_PAREN)
                token = stream.name("a column")
                stream.expect_kind(TokenType.EQ, "'='")
                value = read_literal(stream)
                if token.text in key or value is None:
                    return None
                key[token.text] = value
                if opened:
                    stream.expect_kind(TokenType.R_PAREN, ")")
                if not stream.accept("AND"):
                    break
        except DdlError:
            return None
        return key if stream.token is None or stream.is_kind(TokenType.SEMICOLON) else None

    def value(self, *ends: str, of_columns: bool = False) -> Value | Expression | Default:
        """Read a literal, DEFAULT, or an expression up to a comma, a closing bracket or one of the words `ends`.

        `of_columns`: an expression may use columns.
        """
        stream = self.stream
        start, first = stream.position, stream.token
        mistake: DdlError | None = None
        if stream.accept("DEFAULT") and self.at_end(*ends):
            return Default()
        stream.position = start
        try:
            literal = read_literal(stream)
            if self.at_end(*ends):
                return literal
        except DdlError as error:
            mistake = error
        wrong_at = stream.position
        if mistake is not None and (first is None or self.means_a_literal(start)):
            raise mistake
        stream.position = start
        text = self.expression(*ends, stops_at_comma=True)
        if not of_columns and not self.reader.computes(text, casts=mistake is None):
            if mistake is None:
                stream.position = wrong_at
                raise stream.expected("',' or ')'")
            raise mistake
        return Expression(text)

    def at_end(self, *ends: str) -> bool:
        stream = self.stream
        kinds = (TokenType.COMMA, TokenType.R_PAREN, TokenType.SEMICOLON)
        return stream.token is None or any(map(stream.is_kind, kinds)) or any(map(stream.at, ends))

    def means_a_literal(self, position: int) -> bool:
        """Whether only a literal can begin here, as in DATE '...' with a text that is not a date."""
        tokens = self.stream.tokens
        word = tokens[position].text.upper() if tokens[position].token_type is TokenType.VAR else ""
        following = tokens[position + 1] if position + 1 < len(tokens) else None
        if following is None:
            return word in _NESTED or word in _TYPED
        if word in _NESTED:
            return following.token_type is not TokenType.L_BRACE  # DuckDB has MAP {...}
        return word in _TYPED and following.token_type is TokenType.STRING

    def expression(self, *ends: str, stops_at_comma: bool = False) -> str:
        """Return the text up to the end of the statement, or up to the closing bracket around it."""
        stream = self.stream
        start, end = self.extent("a value", *ends, stops_at_comma=stops_at_comma)
        self.reader.check_expression(start, end)
        return stream.sql[start:end]

    def sources(self, *ends: str) -> str:
        """Return the text of a FROM clause, up to one of the words `ends` or the end of the statement."""
        start, end = self.extent("a table", *ends)
        self.reader.check_sources(start, end)
        return self.stream.sql[start:end]

    def extent(self, what: str, *ends: str, stops_at_comma: bool = False) -> tuple[int, int]:
        """Skip the text of `expression` or `sources`; return its start and end."""
        stream = self.stream
        first, last, depth = stream.token, None, 0
        while (token := stream.token) is not None and token.token_type is not TokenType.SEMICOLON:
            if depth == 0 and (
                token.token_type in _CLOSING
                or (stops_at_comma and token.token_type is TokenType.COMMA)
                or any(map(stream.at, ends))
            ):
                break
            depth += (token.token_type in _OPENING) - (token.token_type in _CLOSING)
            last = token
            stream.position += 1
        if first is None or last is None:
            raise stream.expected(what)
        return first.start, last.end + 1

    # Files

    def copy(self) -> CopyFrom | CopyTo:
        stream = self.stream
        stream.expect("COPY")
        if stream.is_kind(TokenType.L_PAREN):
            stream.position += 1
            select = self.reader.query(in_brackets=True)
            stream.expect_kind(TokenType.R_PAREN, "')'")
            stream.expect("TO")
            return CopyTo(select, *self.file())
        start = stream.token
        path = self.reader.table_path()
        assert start is not None
        columns: tuple[str, ...] | None = None
        if stream.accept_kind(TokenType.L_PAREN):
            columns = tuple(self.reader.names())
        if stream.accept("FROM"):
            return CopyFrom(path, columns, *self.file())
        stream.expect("TO")
        names = "*" if columns is None else ", ".join(map(quoted, columns))
        select = self.reader.analyzed(f'SELECT {names} FROM "{path.database}"."{path.table}"')
        return CopyTo(select, *self.file())

    def file(self) -> tuple[str, dict[str, Value]]:
        stream = self.stream
        file = stream.text("a file in single quotes").text
        stream.accept("WITH")
        found: dict[str, Value] = {}
        if not stream.accept_kind(TokenType.L_PAREN):
            return file, found
        while True:
            token = stream.name("an option, such as FORMAT csv")
            name = _SYNONYMS.get(token.text.lower(), token.text.lower())
            if name not in COPY_OPTIONS:
                known = ", ".join(each.upper() for each in COPY_OPTIONS)
                raise stream.error(f"COPY has no option {token.text}; its options are {known}", token)
            found[name] = self.option()
            if not stream.accept_kind(TokenType.COMMA):
                stream.expect_kind(TokenType.R_PAREN, "',' or ')'")
                return file, found

    def option(self) -> Value:
        stream = self.stream
        token: Token | None = stream.token
        if stream.is_kind(TokenType.COMMA) or stream.is_kind(TokenType.R_PAREN):
            return True
        if token is not None and token.token_type is TokenType.VAR and not (
            stream.at("TRUE") or stream.at("FALSE")
        ):  # fmt: skip
            stream.position += 1
            return token.text
        return read_literal(stream)
