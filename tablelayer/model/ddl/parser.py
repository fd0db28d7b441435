"""The statements' grammar, read by recursive descent over sqlglot's tokens.

A grammar of our own because the words are Flink's and Fluss's, every error must point at its word, and
literals must stay exact; sqlglot's syntax trees keep neither the places nor the types. Queries go to
sqlglot whole.
"""

from __future__ import annotations

import difflib
from collections.abc import Callable

from sqlglot import Token, TokenType

from tablelayer.model import options as table_options
from tablelayer.model.aggregates import is_aggregate_option, parse_option
from tablelayer.model.ddl.literals import Value, read_literal
from tablelayer.model.ddl.select import analyze
from tablelayer.model.ddl.statements import (
    CreateDatabase,
    CreateTable,
    Delete,
    DescribeTable,
    DropDatabase,
    DropTable,
    Insert,
    ShowCreateTable,
    ShowDatabases,
    ShowTables,
    Statement,
    Update,
    UseDatabase,
)
from tablelayer.model.ddl.tokens import TokenStream
from tablelayer.model.ddl.type_names import read_type
from tablelayer.model.errors import TableError
from tablelayer.model.schema import Column, Schema, check_column_name
from tablelayer.model.table import DEFAULT_DATABASE, TableDefinition, TablePath, check_name


def parse(sql: str, default_database: str = DEFAULT_DATABASE) -> list[Statement]:
    """The statements of a text, separated by ``;``.

    Tables named without a database are in ``default_database``, or in the one that a USE before them names.
    Raises DdlError for the first statement that cannot be understood; none of them has been carried out
    then.
    """
    parser = _Parser(TokenStream(sql), default_database)
    return parser.statements()


def parse_columns(text: str) -> Schema:
    """The schema of a column list: ``id BIGINT NOT NULL, name STRING, PRIMARY KEY (id) NOT ENFORCED``.

    The parentheses around it may be there or not. Raises DdlError.
    """
    parser = _Parser(TokenStream(text), DEFAULT_DATABASE)
    wrapped = parser.stream.accept_kind(TokenType.L_PAREN)
    schema = parser.column_list()
    if wrapped:
        parser.stream.expect_kind(TokenType.R_PAREN, ")")
    if parser.stream.token is not None:
        raise parser.stream.expected("',' or the end of the column list")
    return schema


class _Parser:
    """One pass over one text. Methods read what they are named after and raise DdlError."""

    def __init__(self, stream: TokenStream, database: str) -> None:
        self.stream = stream
        self.database = database
        self.beginnings: dict[str, Callable[[], Statement]] = {
            "CREATE": self.create,
            "DROP": self.drop,
            "SHOW": self.show,
            "USE": self.use,
            "DESCRIBE": self.describe,
            "DESC": self.describe,
            "INSERT": self.insert,
            "UPDATE": self.update,
            "DELETE": self.delete,
            "SELECT": self.select,
            "WITH": self.select,
        }

    def statements(self) -> list[Statement]:
        found: list[Statement] = []
        while True:
            while self.stream.accept_kind(TokenType.SEMICOLON):
                pass
            if self.stream.token is None:
                return found
            statement = self.statement()
            found.append(statement)
            if isinstance(statement, UseDatabase):
                self.database = statement.name
            if self.stream.token is not None and not self.stream.is_kind(TokenType.SEMICOLON):
                raise self.stream.expected("';' or the end of the statement")

    def statement(self) -> Statement:
        token = self.stream.token
        word = token.text.upper() if token is not None and token.token_type is TokenType.VAR else ""
        read = self.beginnings.get(word)
        if read is None:
            known = ", ".join(name for name in self.beginnings if name not in ("DESC", "WITH"))
            if word in ("ALTER", "MERGE", "TRUNCATE", "EXPLAIN", "ANALYZE", "CALL", "RENAME", "REPLACE"):
                raise self.stream.error(f"{word} is not in this release; the statements are {known}", token)
            near = difflib.get_close_matches(word, self.beginnings, n=1)
            if near:
                raise self.stream.error(f"{word} is not a statement; did you mean {near[0]}?", token)
            raise self.stream.expected(f"a statement (one of {known})")
        return read()

    # Databases

    def create(self) -> Statement:
        self.stream.expect("CREATE")
        if self.stream.accept("DATABASE"):
            if_not_exists = self.stream.accept("IF", "NOT", "EXISTS")
            return CreateDatabase(self.database_name(), if_not_exists)
        if self.stream.accept("TABLE"):
            return self.create_table()
        self.refuse(
            "OR",
            "VIEW",
            "TEMPORARY",
            "EXTERNAL",
            "FUNCTION",
            "CATALOG",
            "MATERIALIZED",
            "INDEX",
            "SCHEMA",
            what="CREATE",
        )
        raise self.stream.expected("DATABASE or TABLE")

    def drop(self) -> Statement:
        self.stream.expect("DROP")
        if self.stream.accept("DATABASE"):
            if_exists = self.stream.accept("IF", "EXISTS")
            name = self.database_name()
            cascade = self.stream.accept("CASCADE")
            if not cascade:
                self.stream.accept("RESTRICT")
            return DropDatabase(name, if_exists, cascade)
        if self.stream.accept("TABLE"):
            if_exists = self.stream.accept("IF", "EXISTS")
            return DropTable(self.table_path(), if_exists)
        self.refuse("VIEW", "FUNCTION", "CATALOG", "MATERIALIZED", "INDEX", "SCHEMA", what="DROP")
        raise self.stream.expected("DATABASE or TABLE")

    def show(self) -> Statement:
        self.stream.expect("SHOW")
        if self.stream.accept("DATABASES"):
            return ShowDatabases()
        if self.stream.accept("TABLES"):
            if self.stream.accept("IN") or self.stream.accept("FROM"):
                return ShowTables(self.database_name())
            return ShowTables(self.database)
        if self.stream.accept("CREATE", "TABLE"):
            return ShowCreateTable(self.table_path())
        raise self.stream.expected("DATABASES, TABLES or CREATE TABLE")

    def use(self) -> Statement:
        self.stream.expect("USE")
        self.stream.accept("DATABASE")
        return UseDatabase(self.database_name())

    def describe(self) -> Statement:
        self.stream.position += 1
        self.stream.accept("TABLE")
        return DescribeTable(self.table_path())

    def database_name(self) -> str:
        token = self.stream.name("the name of a database")
        try:
            check_name("database", token.text)
        except TableError as error:
            raise self.stream.error(error.message, token) from error
        return token.text

    def table_path(self) -> TablePath:
        first = self.stream.name("the name of a table")
        database, table = self.database, first.text
        if self.stream.accept_kind(TokenType.DOT):
            second = self.stream.name("the name of a table")
            database, table = first.text, second.text
            if self.stream.is_kind(TokenType.DOT):
                raise self.stream.error("a table is written as table or database.table", self.stream.token)
        try:
            return TablePath(database, table)
        except TableError as error:
            raise self.stream.error(error.message, first) from error

    def refuse(self, *words: str, what: str) -> None:
        """Say of known words that they are not in this release."""
        for word in words:
            if self.stream.at(word):
                raise self.stream.error(f"{what} {word} is not in this release", self.stream.token)

    # Tables

    def create_table(self) -> CreateTable:
        if_not_exists = self.stream.accept("IF", "NOT", "EXISTS")
        name_token = self.stream.token
        path = self.table_path()
        self.refuse("LIKE", "AS", what="CREATE TABLE ...")
        self.stream.expect_kind(TokenType.L_PAREN, "'(' and the columns")
        schema = self.column_list()
        self.stream.expect_kind(TokenType.R_PAREN, "',' or ')'")
        comment: str | None = None
        options: dict[str, str] = {}
        while True:
            if self.stream.accept("COMMENT"):
                comment = self.stream.text("a comment in single quotes").text
            elif self.stream.accept("WITH"):
                options = self.options(is_primary_key_table=bool(schema.primary_key))
            elif self.stream.at("PARTITIONED"):
                raise self.stream.error("partitioned tables are not in this release", self.stream.token)
            elif self.stream.at("DISTRIBUTED"):
                raise self.stream.error(
                    "say WITH ('bucket.num' = '4', 'bucket.key' = 'column') instead", self.stream.token
                )
            else:
                break
        self.refuse("LIKE", "AS", what="CREATE TABLE ...")
        try:
            definition = TableDefinition(path, schema, options=options, comment=comment)
        except TableError as error:
            raise self.stream.error(error.message, name_token) from error
        return CreateTable(definition, if_not_exists)

    def column_list(self) -> Schema:
        first = self.stream.token
        columns: list[Column] = []
        primary_key: list[str] = []
        while True:
            if self.at_primary_key():
                token = self.stream.token
                names = self.primary_key()
                if primary_key:
                    raise self.stream.error("the primary key is given twice", token)
                primary_key = names
            else:
                column, is_key = self.column(len(columns))
                if is_key and primary_key:
                    raise self.stream.error("the primary key is given twice; for several columns write "
                                            "PRIMARY KEY (a, b)", first)  # fmt: skip
                if is_key:
                    primary_key = [column.name]
                if any(column.name == other.name for other in columns):
                    raise self.stream.error(f"column '{column.name}' is given twice", self.previous_name)
                columns.append(column)
            if not self.stream.accept_kind(TokenType.COMMA):
                break
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
        """Names up to and with the closing parenthesis."""
        names: list[str] = []
        while True:
            token = self.stream.name("the name of a column")
            if token.text in names:
                raise self.stream.error(f"column '{token.text}' is given twice", token)
            names.append(token.text)
            if not self.stream.accept_kind(TokenType.COMMA):
                self.stream.expect_kind(TokenType.R_PAREN, "',' or ')'")
                return names

    def column(self, index: int) -> tuple[Column, bool]:
        """A column, and whether it is called the primary key."""
        for words, what in (
            (("WATERMARK", "FOR"), "WATERMARK is not in this release"),
            (("FOREIGN", "KEY"), "foreign keys are not in this release"),
        ):
            if self.stream.at(*words):
                raise self.stream.error(what, self.stream.token)
        token = self.previous_name = self.stream.name("a column or PRIMARY KEY")
        try:
            check_column_name(token.text)
        except TableError as error:
            raise self.stream.error(error.message, token) from error
        if self.stream.at("AS"):
            raise self.stream.error("computed columns are not in this release", self.stream.token)
        data_type = read_type(self.stream)
        nullable, is_key, comment = True, False, None
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
            else:
                break
        for word in ("DEFAULT", "METADATA", "AUTO_INCREMENT", "GENERATED", "UNIQUE", "CHECK", "REFERENCES"):
            if self.stream.at(word):
                raise self.stream.error(f"{word} columns are not in this release", self.stream.token)
        return Column(index, token.text, data_type, nullable, comment), is_key

    def options(self, *, is_primary_key_table: bool) -> dict[str, str]:
        self.stream.expect_kind(TokenType.L_PAREN, "'(' and the options")
        found: dict[str, str] = {}
        while True:
            name = self.stream.text("an option, such as 'bucket.num' = '4'")
            self.stream.expect_kind(TokenType.EQ, "'='")
            value = self.stream.text("the option's value in single quotes")
            if name.text in found:
                raise self.stream.error(f"option '{name.text}' is given twice", name)
            self.check_option(name, value, is_primary_key_table)
            found[name.text] = value.text
            if not self.stream.accept_kind(TokenType.COMMA):
                self.stream.expect_kind(TokenType.R_PAREN, "',' or ')'")
                return found

    def check_option(self, name: Token, value: Token, is_primary_key_table: bool) -> None:
        try:
            if name.text == table_options.BUCKET_COUNT:
                table_options.parse_bucket_count(value.text)
            elif is_aggregate_option(name.text):
                parse_option(name.text, value.text)
            elif table_options.is_table_option(name.text):
                table_options.find(name.text)
        except TableError as error:
            raise self.stream.error(error.message, name) from error
        try:
            if table_options.is_table_option(name.text):
                given = {name.text: value.text}
                table_options.normalize(given, is_primary_key_table=is_primary_key_table)
        except TableError as error:
            raise self.stream.error(error.message, value) from error

    # Rows

    def insert(self) -> Insert:
        self.stream.expect("INSERT")
        self.refuse("OVERWRITE", what="INSERT")
        self.stream.expect("INTO")
        self.stream.accept("TABLE")
        path = self.table_path()
        columns: tuple[str, ...] | None = None
        if self.stream.accept_kind(TokenType.L_PAREN):
            columns = tuple(self.names())
        self.refuse("SELECT", "WITH", "PARTITION", what="INSERT INTO ...")
        self.stream.expect("VALUES")
        rows: list[tuple[Value, ...]] = []
        while True:
            token = self.stream.expect_kind(TokenType.L_PAREN, "'(' and the values of a row")
            row = [read_literal(self.stream)]
            while self.stream.accept_kind(TokenType.COMMA):
                row.append(read_literal(self.stream))
            self.stream.expect_kind(TokenType.R_PAREN, "',' or ')'")
            wanted = len(columns) if columns is not None else len(rows[0]) if rows else len(row)
            if len(row) != wanted:
                raise self.stream.error(f"this row has {len(row)} values, where {wanted} are needed", token)
            rows.append(tuple(row))
            if not self.stream.accept_kind(TokenType.COMMA):
                return Insert(path, columns, tuple(rows))

    def update(self) -> Update:
        self.stream.expect("UPDATE")
        path = self.table_path()
        self.stream.expect("SET")
        assignments: dict[str, Value] = {}
        while True:
            token = self.stream.name("the name of a column")
            if token.text in assignments:
                raise self.stream.error(f"column '{token.text}' is set twice", token)
            self.stream.expect_kind(TokenType.EQ, "'='")
            assignments[token.text] = read_literal(self.stream)
            if not self.stream.accept_kind(TokenType.COMMA):
                break
        return Update(path, assignments, self.key_predicate("UPDATE"))

    def delete(self) -> Delete:
        self.stream.expect("DELETE")
        self.stream.expect("FROM")
        return Delete(self.table_path(), self.key_predicate("DELETE"))

    def key_predicate(self, what: str) -> dict[str, Value]:
        """WHERE column = value AND ...: what a primary key is looked up by."""
        if not self.stream.at("WHERE"):
            raise self.stream.expected(f"WHERE: {what} changes the one row of a primary key")
        self.stream.expect("WHERE")
        key: dict[str, Value] = {}
        while True:
            opened = self.stream.accept_kind(TokenType.L_PAREN)
            token = self.stream.name("a column of the primary key")
            if token.text in key:
                raise self.stream.error(f"column '{token.text}' is compared twice", token)
            if not self.stream.accept_kind(TokenType.EQ):
                raise self.stream.expected(f"'=': {what} finds its row by the primary key")
            key[token.text] = read_literal(self.stream)
            if key[token.text] is None:
                raise self.stream.error("a key column is never NULL", token)
            if opened:
                self.stream.expect_kind(TokenType.R_PAREN, ")")
            if self.stream.at("OR"):
                reason = f"{what} changes one row, found by its primary key; OR is not possible"
                raise self.stream.error(reason, self.stream.token)
            if not self.stream.accept("AND"):
                return key

    def select(self) -> Statement:
        first = self.stream.tokens[self.stream.position]
        last = first
        while self.stream.token is not None and not self.stream.is_kind(TokenType.SEMICOLON):
            last = self.stream.token
            self.stream.position += 1
        return analyze(self.stream.sql, first.start, last.end + 1, self.database)
