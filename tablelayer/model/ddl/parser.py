"""The statements' grammar, read by recursive descent over sqlglot's tokens.

A grammar of our own because the words are Flink's and Fluss's, every error must point at its word, and literals must
stay exact; sqlglot's syntax trees keep neither the places nor the types. Queries go to sqlglot whole.
"""

from __future__ import annotations

import difflib
from collections.abc import Callable

from sqlglot import TokenType

from tablelayer.model.ddl.alter import AlterReader
from tablelayer.model.ddl.clauses import ClauseReader
from tablelayer.model.ddl.literals import read_literal
from tablelayer.model.ddl.query import Select
from tablelayer.model.ddl.rights import RightsReader
from tablelayer.model.ddl.statements import (
    AlterDatabase,
    AlterTable,
    CreateDatabase,
    CreateTable,
    Delete,
    DescribeDatabase,
    DescribeTable,
    DropDatabase,
    DropTable,
    Insert,
    InsertSelect,
    ShowCreateDatabase,
    ShowCreateTable,
    ShowDatabases,
    ShowOptions,
    ShowPartitions,
    ShowTables,
    Statement,
    Update,
    UseDatabase,
)
from tablelayer.model.ddl.tokens import TokenStream
from tablelayer.model.errors import TableError
from tablelayer.model.options import table_options
from tablelayer.model.options.option_types import parse_name_list
from tablelayer.model.table.definition import DEFAULT_DATABASE, TableDefinition
from tablelayer.model.table.evolution import Change, ModifyColumn, SetTableComment
from tablelayer.model.types.values import Value


def parse(sql: str, default_database: str = DEFAULT_DATABASE) -> list[Statement]:
    """The statements of a text, separated by ``;``.

    Tables named without a database are in ``default_database``, or in the one that a USE before them names. Raises
    DdlError for the first statement that cannot be understood; none of them has been carried out then.
    """
    parser = Parser(TokenStream(sql), default_database)
    return parser.statements()


class Parser(ClauseReader):
    """Methods read the statement that they are named after and raise DdlError."""

    def __init__(self, stream: TokenStream, database: str) -> None:
        super().__init__(stream, database)
        self.beginnings: dict[str, Callable[[], Statement]] = {
            "CREATE": self.create,
            "ALTER": self.alter,
            "COMMENT": self.comment_on,
            "DROP": self.drop,
            "SHOW": self.show,
            "USE": self.use,
            "DESCRIBE": self.describe,
            "DESC": self.describe,
            "INSERT": self.insert,
            "UPDATE": self.update,
            "DELETE": self.delete,
            "GRANT": lambda: RightsReader(self).grant(),
            "REVOKE": lambda: RightsReader(self).revoke(),
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
            if word in ("MERGE", "TRUNCATE", "EXPLAIN", "ANALYZE", "CALL", "RENAME", "REPLACE"):
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
            name, comment = self.database_name(), None
            if self.stream.accept("COMMENT"):
                comment = self.stream.text("a comment in single quotes").text
            properties = self.properties() if self.stream.accept("WITH") else {}
            return CreateDatabase(name, if_not_exists, comment, properties)
        if self.stream.accept("TABLE"):
            return self.create_table()
        if self.stream.accept("USER"):
            return RightsReader(self).create_user()
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
        raise self.stream.expected("DATABASE, TABLE or USER")

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
        if self.stream.accept("USER"):
            return RightsReader(self).drop_user()
        self.refuse("VIEW", "FUNCTION", "CATALOG", "MATERIALIZED", "INDEX", "SCHEMA", what="DROP")
        raise self.stream.expected("DATABASE, TABLE or USER")

    def show(self) -> Statement:
        self.stream.expect("SHOW")
        if self.stream.accept("DATABASES"):
            return ShowDatabases(self.like())
        if self.stream.accept("TABLES"):
            named = self.stream.accept("IN") or self.stream.accept("FROM")
            database = self.database_name() if named else self.database
            return ShowTables(database, self.like())
        if self.stream.accept("CREATE", "TABLE"):
            return ShowCreateTable(self.table_path())
        if self.stream.accept("CREATE", "DATABASE"):
            return ShowCreateDatabase(self.database_name())
        if self.stream.accept("OPTIONS"):
            named = self.stream.accept("FROM") or self.stream.accept("IN")
            return ShowOptions(self.table_path() if named else None)
        if self.stream.accept("PARTITIONS"):
            if not self.stream.accept("FROM"):
                self.stream.accept("IN")
            path = self.table_path()
            return ShowPartitions(path, self.partition_spec() if self.stream.at("PARTITION") else {})
        if self.stream.accept("GRANTS"):
            return RightsReader(self).show_grants()
        if self.stream.accept("USERS"):
            return RightsReader(self).show_users()
        raise self.stream.expected(
            "DATABASES, TABLES, PARTITIONS, OPTIONS, GRANTS, USERS, CREATE TABLE or CREATE DATABASE"
        )

    def like(self) -> str | None:
        return self.stream.text("a pattern in single quotes").text if self.stream.accept("LIKE") else None

    def use(self) -> Statement:
        self.stream.expect("USE")
        self.stream.accept("DATABASE")
        return UseDatabase(self.database_name())

    def describe(self) -> Statement:
        self.stream.position += 1
        if self.stream.accept("DATABASE"):
            return DescribeDatabase(self.database_name())
        self.stream.accept("TABLE")
        return DescribeTable(self.table_path())

    def alter(self) -> Statement:
        self.stream.expect("ALTER")
        if self.stream.accept("DATABASE"):
            return self.alter_database()
        if self.stream.accept("TABLE"):
            return AlterReader(self).read()
        if self.stream.accept("USER"):
            return RightsReader(self).alter_user()
        self.refuse("VIEW", "FUNCTION", "CATALOG", "MATERIALIZED", "SCHEMA", what="ALTER")
        raise self.stream.expected("DATABASE, TABLE or USER")

    def alter_database(self) -> AlterDatabase:
        name = self.database_name()
        if self.stream.accept("SET"):
            return AlterDatabase(name, set_properties=self.properties())
        if self.stream.accept("RESET"):
            return AlterDatabase(name, reset_properties=self.property_names())
        raise self.stream.expected("SET or RESET")

    def comment_on(self) -> Statement:
        """COMMENT ON DATABASE, TABLE or COLUMN, in the words of Spark and PostgreSQL."""
        self.stream.expect("COMMENT", "ON")
        if self.stream.accept("DATABASE"):
            name = self.database_name()
            return AlterDatabase(name, comment=self.new_comment() or "")
        if self.stream.accept("TABLE"):
            token = self.stream.token
            path = self.table_path()
            change: Change = SetTableComment(self.new_comment())
        elif self.stream.accept("COLUMN"):
            names = [self.stream.name("a column, as table.column")]
            while self.stream.accept_kind(TokenType.DOT):
                names.append(self.stream.name("the name of a column"))
            token = names[-1]
            if not 2 <= len(names) <= 3:
                raise self.stream.error("a column is written as table.column or database.table.column", token)
            database = names[0].text if len(names) == 3 else self.database
            path = self.path_of(database, names[-2].text, names[0])
            change = ModifyColumn(token.text, comment=self.new_comment() or "")
        else:
            raise self.stream.expected("DATABASE, TABLE or COLUMN")
        assert token is not None
        place = (token.start, token.end - token.start + 1)
        return AlterTable(path, (change,), sql=self.stream.sql, places=(place,))

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
        partition_keys: tuple[str, ...] = ()
        while True:
            if self.stream.accept("COMMENT"):
                comment = self.stream.text("a comment in single quotes").text
            elif self.stream.accept("WITH"):
                options = self.options(is_primary_key_table=bool(schema.primary_key))
                names = options.get(table_options.BUCKET_KEY)
                if names is not None:
                    self.refuse_nested(schema.columns, parse_name_list(names), "bucket key")
            elif self.stream.accept("PARTITIONED", "BY"):
                token = self.stream.token
                self.stream.expect_kind(TokenType.L_PAREN, "'(' and the partition columns")
                partition_keys = tuple(self.names())
                for name in partition_keys:
                    if name not in schema:
                        raise self.stream.error(f"there is no column '{name}'", token)
                self.refuse_nested(schema.columns, partition_keys, "partition")
            elif self.stream.at("DISTRIBUTED"):
                raise self.stream.error(
                    "say WITH ('bucket.num' = '4', 'bucket.key' = 'column') instead", self.stream.token
                )
            else:
                break
        self.refuse("LIKE", "AS", what="CREATE TABLE ...")
        try:
            definition = TableDefinition(
                path, schema, options=options, comment=comment, partition_keys=partition_keys
            )
        except TableError as error:
            raise self.stream.error(error.message, name_token) from error
        return CreateTable(definition, if_not_exists)

    # Rows

    def insert(self) -> Insert | InsertSelect:
        self.stream.expect("INSERT")
        self.refuse("OVERWRITE", what="INSERT")
        self.stream.expect("INTO")
        self.stream.accept("TABLE")
        path = self.table_path()
        columns: tuple[str, ...] | None = None
        if self.stream.accept_kind(TokenType.L_PAREN):
            columns = tuple(self.names())
        self.refuse("PARTITION", what="INSERT INTO ...")
        if self.stream.at("SELECT") or self.stream.at("WITH") or self.stream.at("FROM"):
            return InsertSelect(path, columns, self.select())
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

    def select(self) -> Select:
        first = self.stream.tokens[self.stream.position]
        last = first
        while self.stream.token is not None and not self.stream.is_kind(TokenType.SEMICOLON):
            last = self.stream.token
            self.stream.position += 1
        from tablelayer.model.ddl.select import analyze  # DuckDB's dialect: only a query waits for it

        return analyze(self.stream.sql, first.start, last.end + 1, self.database)
