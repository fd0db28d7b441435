"""The clauses of statements: names, columns, keys, comments, options, partitions.

Like statements, they are read by recursive descent over sqlglot's tokens (`parser.py`, `alter.py`).
"""

from __future__ import annotations

import re
from collections.abc import Iterable

from sqlglot import Token, TokenType

from headrace.tablelayer.model.ddl.literals import read_literal
from headrace.tablelayer.model.ddl.names import Names
from headrace.tablelayer.model.ddl.statements import TemporaryColumn
from headrace.tablelayer.model.ddl.tokens import TokenStream
from headrace.tablelayer.model.ddl.type_names import read_type_or_longer
from headrace.tablelayer.model.errors import TableError
from headrace.tablelayer.model.options import table_options
from headrace.tablelayer.model.options.option_types import parse_name_list
from headrace.tablelayer.model.schema.aggregates import is_aggregate_option, parse_option
from headrace.tablelayer.model.schema.schema import (
    NO_NESTED_KEY,
    Column,
    Schema,
    check_column_name,
    check_size,
)
from headrace.tablelayer.model.table.path import DEFAULT_DATABASE, TablePath, check_name
from headrace.tablelayer.model.types.column_types import DataType
from headrace.tablelayer.model.types.values import Value, canonical


def parse_columns(text: str) -> Schema:
    """Return the schema of a column list: `id BIGINT NOT NULL, name STRING, PRIMARY KEY (id) NOT ENFORCED`.

    The parentheses around it are optional. Raises DdlError.
    """
    reader = ClauseReader(TokenStream(text), Names(DEFAULT_DATABASE))
    wrapped = reader.stream.accept_kind(TokenType.L_PAREN)
    schema = reader.column_list()
    if wrapped:
        reader.stream.expect_kind(TokenType.R_PAREN, ")")
    if reader.stream.token is not None:
        raise reader.stream.expected("',' or the end of the column list")
    if reader.notices:
        raise reader.stream.error(reader.notices[0], None)
    return schema


_PROCTIME = re.compile(r"PROCTIME\s*\(\s*\)", re.IGNORECASE)


class ClauseReader:
    """A reader that goes over one text once. Each method reads the clause in its name and raises DdlError."""

    def __init__(self, stream: TokenStream, names: Names) -> None:
        self.stream = stream
        self.known = names
        self.notices: list[str] = []
        """Sentences for the user about clauses of the statement that have no effect here."""
        self.of_connector: list[TemporaryColumn] | None = None
        """The columns of the list that is being read, if it is a connector's, which may also compute columns."""
        self.times: list[str] = []
        """The columns of the list that is being read that stand for the time of processing."""
        self.named: dict[str, Token] = {}
        """The names of the last list that was read, with their tokens."""

    @property
    def database(self) -> str:
        return self.known.database

    def partition_spec(self) -> dict[str, Value]:
        """Read PARTITION (column = value, ...)."""
        self.stream.expect("PARTITION")
        self.stream.expect_kind(TokenType.L_PAREN, "'(' and a partition column, such as dt = '2024-09-19'")
        spec: dict[str, Value] = {}
        while True:
            token = self.stream.name("the name of a partition column")
            if token.text in spec:
                raise self.stream.error(f"column '{token.text}' is given twice", token)
            self.stream.expect_kind(TokenType.EQ, "'='")
            spec[token.text] = read_literal(self.stream)
            if not self.stream.accept_kind(TokenType.COMMA):
                self.stream.expect_kind(TokenType.R_PAREN, "',' or ')'")
                return spec

    def new_comment(self) -> str | None:
        self.stream.expect("IS")
        if self.stream.accept("NULL"):
            return None
        return self.stream.text("a comment in single quotes, or NULL").text

    def properties(self) -> dict[str, str]:
        """Read pairs of texts in parentheses, with any names."""
        self.stream.expect_kind(TokenType.L_PAREN, "'(' and pairs such as 'owner' = 'sales'")
        found: dict[str, str] = {}
        while True:
            name = self.stream.text("a name in single quotes")
            self.stream.expect_kind(TokenType.EQ, "'='")
            value = self.stream.text("a value in single quotes")
            if name.text in found:
                raise self.stream.error(f"'{name.text}' is given twice", name)
            found[name.text] = value.text
            if not self.stream.accept_kind(TokenType.COMMA):
                self.stream.expect_kind(TokenType.R_PAREN, "',' or ')'")
                return found

    def property_names(self) -> tuple[str, ...]:
        self.stream.expect_kind(TokenType.L_PAREN, "'(' and names such as 'owner'")
        names: list[str] = []
        while True:
            names.append(self.stream.text("a name in single quotes").text)
            if not self.stream.accept_kind(TokenType.COMMA):
                self.stream.expect_kind(TokenType.R_PAREN, "',' or ')'")
                return tuple(names)

    def database_name(self) -> str:
        first = token = self.stream.name("the name of a database")
        name = token.text
        if self.stream.accept_kind(TokenType.DOT):
            token = self.stream.name("the name of a database")
            name = self.database_of(first, token)
        try:
            check_name("database", name)
        except TableError as error:
            raise self.stream.error(error.message, token) from error
        return name

    def database_of(self, catalog: Token, database: Token) -> str:
        try:
            return self.known.database_of(catalog.text, database.text)
        except ValueError as error:
            raise self.stream.error(str(error), catalog) from None

    def table_path(self) -> TablePath:
        first = self.stream.name("the name of a table")
        database, table = self.database, first.text
        if self.stream.accept_kind(TokenType.DOT):
            second = self.stream.name("the name of a table")
            database, table = first.text, second.text
            if self.stream.accept_kind(TokenType.DOT):
                third = self.stream.name("the name of a table")
                database, table = self.database_of(first, second), third.text
                if self.stream.is_kind(TokenType.DOT):
                    raise self.stream.error(
                        "a table is written as table or database.table", self.stream.token
                    )
        return self.path_of(database, table, first)

    def path_of(self, database: str, table: str, token: Token) -> TablePath:
        try:
            check_name("table", table)
            return TablePath(database, table)
        except TableError as error:
            raise self.stream.error(error.message, token) from error

    def refuse(self, *words: str, what: str) -> None:
        """Raise the error that a known word is not in this release."""
        for word in words:
            if self.stream.at(word):
                raise self.stream.error(f"{what} {word} is not in this release", self.stream.token)

    def column_list(self) -> Schema:
        first = self.stream.token
        columns: list[Column] = []
        names_seen: set[str] = set()
        count = 0
        primary_key: list[str] = []
        key_tokens: dict[str, Token] = {}
        self.times = []
        while True:
            if self.stream.at("WATERMARK", "FOR"):
                self.watermark()
            elif self.at_primary_key():
                token = self.stream.token
                names = self.primary_key()
                if primary_key:
                    raise self.stream.error("the primary key is given twice", token)
                primary_key = names
                key_tokens = self.named
            elif not self.computed():
                column, is_key = self.column(len(columns))
                if self.of_connector is not None:
                    metadata = self.metadata(column.name)
                    self.of_connector.append(TemporaryColumn(column.name, column, metadata=metadata))
                if is_key and primary_key:
                    raise self.stream.error("the primary key is given twice; for several columns write "
                                            "PRIMARY KEY (a, b)", first)  # fmt: skip
                if is_key:
                    primary_key = [column.name]
                    assert self.previous_name is not None
                    key_tokens = {column.name: self.previous_name}
                if column.name in names_seen:
                    raise self.stream.error(f"column '{column.name}' is given twice", self.previous_name)
                names_seen.add(column.name)
                columns.append(column)
                count += 1 + column.type.field_count
                try:
                    check_size(len(columns), count)
                except TableError as error:
                    raise self.stream.error(error.message, self.previous_name) from error
            if not self.stream.accept_kind(TokenType.COMMA):
                break
        if not columns and self.of_connector is None:
            raise self.stream.error("a table has at least one column that is stored", first)
        self.named = key_tokens
        self.refuse_nested(columns, primary_key, "primary key")
        try:
            return Schema.of(columns, primary_key)
        except TableError as error:
            raise self.stream.error(error.message, first) from error

    def at_primary_key(self) -> bool:
        return self.stream.at("PRIMARY", "KEY") or (self.stream.at("CONSTRAINT") and self.constraint_is_key())

    def constraint_is_key(self) -> bool:
        tokens, position = self.stream.tokens, self.stream.position
        words = [token.text.upper() for token in tokens[position + 2 : position + 4]]
        return words == ["PRIMARY", "KEY"]

    def primary_key(self) -> list[str]:
        if self.stream.accept("CONSTRAINT"):
            self.stream.name("the name of the constraint")
        self.stream.expect("PRIMARY", "KEY")
        self.stream.expect_kind(TokenType.L_PAREN, "'(' and the key columns")
        names = self.names()
        self.enforced()
        return names

    def enforced(self) -> None:
        if not self.stream.accept("NOT", "ENFORCED"):
            self.stream.accept("ENFORCED")

    def names(self) -> list[str]:
        """Read names up to and including the closing parenthesis; `named` has their tokens."""
        names: list[str] = []
        self.named = {}
        while True:
            token = self.stream.name("the name of a column")
            if token.text in self.named:
                raise self.stream.error(f"column '{token.text}' is given twice", token)
            names.append(token.text)
            self.named[token.text] = token
            if not self.stream.accept_kind(TokenType.COMMA):
                self.stream.expect_kind(TokenType.R_PAREN, "',' or ')'")
                return names

    def refuse_nested(self, columns: Iterable[Column], names: Iterable[str], what: str) -> None:
        """Raise an error at the name of a nested column that would be part of a key."""
        nested = {column.name: column.type.kind for column in columns if column.type.is_nested}
        for name in names:
            if name in nested:
                reason = f"{what} column '{name}' is of type {nested[name].value}: {NO_NESTED_KEY}"
                raise self.stream.error(reason, self.named.get(name))

    def column(self, index: int) -> tuple[Column, bool]:
        """Read a column, and whether it is declared as the primary key."""
        if self.stream.at("FOREIGN", "KEY"):
            raise self.stream.error("foreign keys are not in this release", self.stream.token)
        token = self.previous_name = self.stream.name("a column or PRIMARY KEY")
        self.column_name(token)
        data_type = self.type()
        nullable, is_key, comment, default = True, False, None, None
        while True:
            if self.stream.accept("NOT", "NULL"):
                nullable = False
            elif self.stream.accept("NULL"):
                nullable = True
            elif self.stream.accept("PRIMARY", "KEY"):
                is_key = True
                self.enforced()
            elif self.stream.accept("COMMENT"):
                comment = self.stream.text("a comment in single quotes").text
            elif self.stream.accept("DEFAULT"):
                default = self.default(data_type)
            else:
                break
        for word in ("METADATA", "AUTO_INCREMENT", "GENERATED", "UNIQUE", "CHECK", "REFERENCES"):
            if self.stream.at(word) and not (word == "METADATA" and self.of_connector is not None):
                raise self.stream.error(f"{word} columns are not in this release", self.stream.token)
        return Column(index, token.text, data_type, nullable, comment, default=default), is_key

    def type(self) -> DataType:
        """Read a type; VARCHAR(n) and VARBINARY(n) lose their length, as Flink does not enforce it either."""
        data_type, lost = read_type_or_longer(self.stream)
        for each in lost:
            self.notice(f"{each} is {each.kind} here: its length is not enforced; CHAR(n) enforces it")
        return data_type

    def notice(self, text: str) -> None:
        if text not in self.notices:
            self.notices.append(text)

    def watermark(self) -> None:
        """Read WATERMARK FOR column AS expression."""
        self.stream.expect("WATERMARK", "FOR")
        self.stream.name("the name of a column")
        self.stream.expect("AS")
        self.value_text()
        self.notice(
            "WATERMARK is not stored: queries here have no watermarks, and a Spark stream sets its own by withWatermark"
        )

    def computed(self) -> bool:
        """Read `name AS expression` if it comes next; return whether it does."""
        stream, start = self.stream, self.stream.position
        token = stream.token
        if token is None or token.token_type not in (TokenType.VAR, TokenType.IDENTIFIER):
            return False
        stream.position += 1
        if not stream.accept("AS"):
            stream.position = start
            return False
        self.column_name(token)
        first = stream.token
        text = self.value_text()
        if stream.accept("COMMENT"):
            stream.text("a comment in single quotes")
        if self.of_connector is not None:
            self.of_connector.append(TemporaryColumn(token.text, expression=text))
        elif _PROCTIME.fullmatch(text) is None:
            raise stream.error(
                "a table does not compute columns; use a view: CREATE VIEW v AS"
                f" SELECT *, {text} AS {token.text} FROM ...",
                first,
            )
        else:
            self.times.append(token.text)
            self.notice(
                f"column '{token.text}' AS PROCTIME() is not stored, and * does not show it: in FOR SYSTEM_TIME AS OF"
                " it stands for the time of the query"
            )
        return True

    def value_text(self) -> str:
        """Return the text of an expression up to a comma, a closing bracket or COMMENT."""
        stream, depth = self.stream, 0
        first = last = stream.token
        while (token := stream.token) is not None and not stream.is_kind(TokenType.SEMICOLON):
            ends = token.token_type in (TokenType.COMMA, TokenType.R_PAREN) or stream.at("COMMENT")
            if depth == 0 and ends:
                break
            depth += (token.token_type is TokenType.L_PAREN) - (token.token_type is TokenType.R_PAREN)
            last = token
            stream.position += 1
        if first is None or last is None or stream.token is first:
            raise stream.expected("an expression")
        return stream.sql[first.start : last.end + 1]

    def metadata(self, name: str) -> str | None:
        """Read METADATA [FROM 'key'] [VIRTUAL] after a column; return the key, None without METADATA."""
        if not self.stream.accept("METADATA"):
            return None
        key = self.stream.text("a key in single quotes").text if self.stream.accept("FROM") else name
        self.stream.accept("VIRTUAL")
        return key

    def column_name(self, token: Token) -> str:
        try:
            check_column_name(token.text)
        except TableError as error:
            raise self.stream.error(error.message, token) from error
        return token.text

    def default(self, data_type: DataType) -> str | None:
        """Read a literal as the canonical text of a value of the type; None for NULL."""
        token = self.stream.token
        value = read_literal(self.stream)
        if value is None:
            return None
        try:
            return canonical(value, data_type)
        except ValueError as error:
            raise self.stream.error(f"invalid default: {error}", token) from None

    def options(self, *, is_primary_key_table: bool) -> dict[str, str]:
        self.stream.expect_kind(TokenType.L_PAREN, "'(' and the options")
        found: dict[str, str] = {}
        while True:
            token = self.stream.token
            name, value = self.option(is_primary_key_table=is_primary_key_table)
            if name in found:
                raise self.stream.error(f"option '{name}' is given twice", token)
            found[name] = value
            if name == table_options.BUCKET_KEY:
                place = self.stream.tokens[self.stream.position - 1]
                self.named = dict.fromkeys(parse_name_list(value), place)
            if not self.stream.accept_kind(TokenType.COMMA):
                self.stream.expect_kind(TokenType.R_PAREN, "',' or ')'")
                return found

    def option(self, *, is_primary_key_table: bool) -> tuple[str, str]:
        """Read one pair and check it."""
        name = self.stream.text("an option, such as 'bucket.num' = '4'")
        self.stream.expect_kind(TokenType.EQ, "'='")
        value = self.stream.text("the option's value in single quotes")
        self.check_option(name, value, is_primary_key_table)
        return name.text, value.text

    def check_option_name(self, name: Token) -> None:
        try:
            if table_options.is_table_option(name.text) and not is_aggregate_option(name.text):
                table_options.find(name.text)
        except TableError as error:
            raise self.stream.error(error.message, name) from error

    def check_option(self, name: Token, value: Token, is_primary_key_table: bool) -> None:
        try:
            if name.text == table_options.BUCKET_COUNT:
                table_options.parse_bucket_count(value.text)
            elif is_aggregate_option(name.text):
                parse_option(name.text, value.text)
        except TableError as error:
            raise self.stream.error(error.message, name) from error
        self.check_option_name(name)
        try:
            if table_options.is_table_option(name.text):
                given = {name.text: value.text}
                table_options.normalize(given, is_primary_key_table=is_primary_key_table)
        except TableError as error:
            raise self.stream.error(error.message, value) from error
