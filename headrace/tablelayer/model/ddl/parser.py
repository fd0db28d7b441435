"""The statements' grammar, read by recursive descent over sqlglot's tokens.

The grammar is our own, because its syntax is Flink's and Fluss's, every error must point at its word, and literals
must stay exact; sqlglot's syntax trees keep neither positions nor types. Queries are passed to sqlglot whole.
"""

from __future__ import annotations

import difflib
from collections.abc import Callable, Iterator, Mapping
from itertools import takewhile

from sqlglot import TokenType

from headrace.tablelayer.model.ddl.alter import AlterReader
from headrace.tablelayer.model.ddl.names import Names
from headrace.tablelayer.model.ddl.query_reader import QueryReader
from headrace.tablelayer.model.ddl.rights import RightsReader
from headrace.tablelayer.model.ddl.rows import RowsReader
from headrace.tablelayer.model.ddl.scripts import ScriptReader
from headrace.tablelayer.model.ddl.statements import (
    AlterDatabase,
    AlterTable,
    CreateCatalog,
    CreateDatabase,
    CreateTable,
    CreateTableAs,
    CreateTableLike,
    CreateView,
    DescribeDatabase,
    DescribeQuery,
    DescribeTable,
    DropDatabase,
    DropTable,
    DropView,
    Explain,
    ShowCatalogs,
    ShowColumns,
    ShowCreateDatabase,
    ShowCreateTable,
    ShowDatabases,
    ShowOptions,
    ShowPartitions,
    ShowTables,
    ShowTopics,
    ShowViews,
    Statement,
    Stream,
    Summarize,
    UseCatalog,
    UseDatabase,
)
from headrace.tablelayer.model.ddl.tokens import TokenStream
from headrace.tablelayer.model.errors import TableError
from headrace.tablelayer.model.options import table_options
from headrace.tablelayer.model.options.option_types import parse_name_list
from headrace.tablelayer.model.schema.schema import Column, Schema
from headrace.tablelayer.model.table.definition import TableDefinition
from headrace.tablelayer.model.table.evolution import Change, ModifyColumn, SetTableComment
from headrace.tablelayer.model.table.path import DEFAULT_DATABASE


def parse(
    sql: str, default_database: str = DEFAULT_DATABASE, views: Mapping[str, str] | None = None
) -> list[Statement]:
    """See `tablelayer.model.ddl.parse`."""
    names = Names(default_database, dict(views or {}))
    found: list[Statement] = []
    for statement, _ in parse_each(sql, names):
        found.append(statement)
        if isinstance(statement, UseDatabase):
            names.database = statement.name
        elif isinstance(statement, CreateView):
            names.views[str(statement.path)] = statement.sql
        elif isinstance(statement, DropView):
            names.views.pop(str(statement.path), None)
        elif isinstance(statement, CreateCatalog):
            names.catalogs[statement.name] = statement.database
        elif isinstance(statement, UseCatalog):
            names.database = statement.database
    return found


def parse_each(sql: str, names: Names) -> Iterator[tuple[Statement, tuple[str, ...]]]:
    """See `tablelayer.model.ddl.parse_each`."""
    yield from Parser(TokenStream(sql), names).statements()


_QUERIES = ("SELECT", "WITH", "FROM", "PIVOT", "UNPIVOT", "VALUES")
_NOT_HERE = {
    "ADD": "Python and Java libraries belong to Spark's session",
    "BEGIN": "there are no transactions; several INSERTs are EXECUTE STATEMENT SET BEGIN ...; ...; END",
    "EXECUTE": "several INSERTs are EXECUTE STATEMENT SET BEGIN ...; ...; END",
    "LOAD": "use COPY t FROM 'file.csv'",
    "QUIT": "leave the prompt with \\q",
    "EXIT": "leave the prompt with \\q",
    "STOP": "end a streaming query with Ctrl-C",
}
_OF_QUERIES = ("DESC", "WITH", "FROM", "VALUES", "PIVOT", "UNPIVOT")
"""First words of queries that an error does not list."""


class Parser(QueryReader):
    """A parser whose methods read the statement in their name and raise DdlError."""

    def __init__(self, stream: TokenStream, names: Names) -> None:
        super().__init__(stream, names)
        rows = RowsReader(self)
        self.beginnings: dict[str, Callable[[], Statement]] = {
            "CREATE": self.create,
            "ALTER": self.alter,
            "COMMENT": self.comment_on,
            "DROP": self.drop,
            "SHOW": self.show,
            "USE": self.use,
            "DESCRIBE": self.describe,
            "DESC": self.describe,
            "INSERT": rows.insert,
            "UPDATE": rows.update,
            "DELETE": rows.delete,
            "TRUNCATE": rows.truncate,
            "COPY": rows.copy,
            "GRANT": lambda: RightsReader(self).grant(),
            "REVOKE": lambda: RightsReader(self).revoke(),
            "SET": lambda: ScriptReader(self).set(),
            "RESET": lambda: ScriptReader(self).reset(),
            **dict.fromkeys(_QUERIES, self.query_or_stream),
            "EXPLAIN": self.explain,
            "SUMMARIZE": self.summarize,
        }

    def statements(self) -> Iterator[tuple[Statement, tuple[str, ...]]]:
        """Yield each statement with the notices about it. A statement is read when it is requested."""
        while True:
            while self.stream.accept_kind(TokenType.SEMICOLON):
                pass
            if self.stream.token is None:
                return
            if ScriptReader(self).begins_set():
                yield from list(self.statement_set())
            else:
                yield self.whole_statement()
                continue
            self.end()

    def statement_set(self) -> Iterator[tuple[Statement, tuple[str, ...]]]:
        """Read the INSERTs up to END; all of them are read before the first one is carried out."""
        while True:
            while self.stream.accept_kind(TokenType.SEMICOLON):
                pass
            if self.stream.accept("END"):
                return
            if not self.stream.at("INSERT"):
                raise self.stream.expected("INSERT or END")
            yield self.whole_statement()

    def whole_statement(self) -> tuple[Statement, tuple[str, ...]]:
        first = self.stream.token
        assert first is not None
        self.notices, self.queries, self.times, self.of_connector = [], [], [], None
        statement = self.statement()
        self.end()
        token = self.stream.token
        end = len(self.stream.sql) if token is None else token.start
        self.stream.check_hints(first.start, end, self.queries)
        return statement, tuple(self.notices)

    def end(self) -> None:
        if self.stream.token is None or self.stream.is_kind(TokenType.SEMICOLON):
            return
        if self.at_emit():
            raise self.stream.error("EMIT CHANGES is for a SELECT of its own", self.stream.token)
        raise self.stream.expected("';' or the end of the statement")

    def query_or_stream(self) -> Statement:
        select = self.query()
        return Stream(select) if self.stream.accept("EMIT", "CHANGES") else select

    def statement(self) -> Statement:
        token = self.stream.token
        if token is not None and token.token_type is TokenType.L_PAREN and self.at_query():
            return self.query_or_stream()
        word = token.text.upper() if token is not None and token.token_type is TokenType.VAR else ""
        read = self.beginnings.get(word)
        if read is None:
            known = ", ".join(name for name in self.beginnings if name not in _OF_QUERIES)
            if word in _NOT_HERE:
                raise self.stream.error(f"{word} is not a statement here: {_NOT_HERE[word]}", token)
            if word in ("MERGE", "ANALYZE", "CALL", "RENAME", "REPLACE"):
                raise self.stream.error(f"{word} is not in this release; the statements are {known}", token)
            near = difflib.get_close_matches(word, self.beginnings, n=1)
            if near:
                raise self.stream.error(f"{word} is not a statement; did you mean {near[0]}?", token)
            raise self.stream.expected(f"a statement (one of {known})")
        return read()

    # Databases

    def create(self) -> Statement:
        self.stream.expect("CREATE")
        if self.a_database():
            if_not_exists = self.stream.accept("IF", "NOT", "EXISTS")
            name, comment = self.database_name(), None
            if self.stream.accept("COMMENT"):
                comment = self.stream.text("a comment in single quotes").text
            properties = self.properties() if self.stream.accept("WITH") else {}
            return CreateDatabase(name, if_not_exists, comment, properties)
        if self.stream.accept("TABLE"):
            return self.create_table()
        if self.stream.accept("TEMPORARY", "TABLE") or self.stream.accept("TEMP", "TABLE"):
            return ScriptReader(self).create_temporary_table()
        if self.stream.accept("CATALOG"):
            return ScriptReader(self).create_catalog()
        if self.stream.accept("USER"):
            return RightsReader(self).create_user()
        or_replace = self.stream.accept("OR", "REPLACE")
        named = ("TEMPORARY", "VIEW"), ("TEMP", "VIEW"), ("VIEW",)
        if not any(self.stream.accept(*words) for words in named):
            self.refuse(
                "TABLE", "TEMPORARY", "EXTERNAL", "FUNCTION", "MATERIALIZED", "INDEX",
                what="CREATE OR REPLACE" if or_replace else "CREATE",
            )  # fmt: skip
            raise self.stream.expected("DATABASE, TABLE, VIEW or USER")
        if_not_exists = self.stream.accept("IF", "NOT", "EXISTS")
        path = self.table_path()
        self.stream.expect("AS")
        select = self.query()
        from headrace.tablelayer.model.ddl.select import with_databases

        return CreateView(path, with_databases(select), or_replace, if_not_exists)

    def a_database(self) -> bool:
        return self.stream.accept("DATABASE") or self.stream.accept("SCHEMA")

    def explain(self) -> Explain:
        self.stream.expect("EXPLAIN")
        runs = self.stream.accept("ANALYZE")
        if not self.at_query():
            raise self.stream.expected("a query")
        return Explain(self.query(), runs)

    def summarize(self) -> Summarize:
        self.stream.expect("SUMMARIZE")
        if self.at_query():
            return Summarize(self.query())
        self.stream.accept("TABLE")
        first = self.stream.token
        self.table_path()
        assert first is not None
        last = self.stream.tokens[self.stream.position - 1]
        return Summarize(self.analyzed(f"SELECT * FROM {self.stream.sql[first.start : last.end + 1]}"))

    def drop(self) -> Statement:
        self.stream.expect("DROP")
        if self.a_database():
            if_exists = self.stream.accept("IF", "EXISTS")
            name = self.database_name()
            cascade = self.stream.accept("CASCADE")
            if not cascade:
                self.stream.accept("RESTRICT")
            return DropDatabase(name, if_exists, cascade)
        if self.stream.accept("TEMPORARY", "TABLE") or self.stream.accept("TEMPORARY", "VIEW"):
            if_exists = self.stream.accept("IF", "EXISTS")
            return DropView(self.table_path(), if_exists)
        if self.stream.accept("TABLE"):
            if_exists = self.stream.accept("IF", "EXISTS")
            return DropTable(self.table_path(), if_exists)
        if self.stream.accept("VIEW"):
            if_exists = self.stream.accept("IF", "EXISTS")
            return DropView(self.table_path(), if_exists)
        if self.stream.accept("USER"):
            return RightsReader(self).drop_user()
        self.refuse("FUNCTION", "CATALOG", "MATERIALIZED", "INDEX", what="DROP")
        raise self.stream.expected("DATABASE, TABLE, VIEW or USER")

    def show(self) -> Statement:
        self.stream.expect("SHOW")
        if self.stream.accept("DATABASES") or self.stream.accept("SCHEMAS"):
            return ShowDatabases(self.like())
        if self.stream.accept("TOPICS"):
            return ShowTopics(self.like())
        if self.stream.accept("VIEWS"):
            return ShowViews(self.like())
        if self.stream.accept("CATALOGS"):
            return ShowCatalogs()
        if self.stream.accept("COLUMNS"):
            if not self.stream.accept("FROM"):
                self.stream.accept("IN")
            return ShowColumns(self.table_path(), self.like())
        if self.stream.accept("TABLES"):
            named = self.stream.accept("IN") or self.stream.accept("FROM")
            database = self.database_name() if named else self.database
            return ShowTables(database, self.like())
        if self.stream.accept("CREATE", "TABLE"):
            return ShowCreateTable(self.table_path())
        if self.stream.accept("CREATE", "DATABASE") or self.stream.accept("CREATE", "SCHEMA"):
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
            "DATABASES, TABLES, COLUMNS, PARTITIONS, OPTIONS, TOPICS, VIEWS, CATALOGS, GRANTS, USERS, CREATE TABLE or"
            " CREATE DATABASE"
        )

    def like(self) -> str | None:
        return self.stream.text("a pattern in single quotes").text if self.stream.accept("LIKE") else None

    def use(self) -> Statement:
        self.stream.expect("USE")
        if self.stream.accept("CATALOG"):
            return ScriptReader(self).use_catalog()
        self.a_database()
        return UseDatabase(self.database_name())

    def describe(self) -> Statement:
        self.stream.position += 1
        if self.a_database():
            return DescribeDatabase(self.database_name())
        if self.at_query():
            return DescribeQuery(self.query())
        self.stream.accept("TABLE")
        rest = self.stream.tokens[self.stream.position :]
        name = list(takewhile(lambda token: token.token_type is not TokenType.SEMICOLON, rest))
        if any("$" in each.text for each in name):  # a view of a table has the columns of its rows
            self.stream.position += len(name)
            text = self.stream.sql[name[0].start : name[-1].end + 1]
            return DescribeQuery(self.analyzed(f"SELECT * FROM {text}"))
        return DescribeTable(self.table_path())

    def alter(self) -> Statement:
        self.stream.expect("ALTER")
        if self.a_database():
            return self.alter_database()
        if self.stream.accept("TABLE"):
            return AlterReader(self).read()
        if self.stream.accept("USER"):
            return RightsReader(self).alter_user()
        self.refuse("VIEW", "FUNCTION", "CATALOG", "MATERIALIZED", what="ALTER")
        raise self.stream.expected("DATABASE, TABLE or USER")

    def alter_database(self) -> AlterDatabase:
        name = self.database_name()
        if self.stream.accept("SET"):
            return AlterDatabase(name, set_properties=self.properties())
        if self.stream.accept("RESET"):
            return AlterDatabase(name, reset_properties=self.property_names())
        raise self.stream.expected("SET or RESET")

    def comment_on(self) -> Statement:
        """Read COMMENT ON DATABASE, TABLE or COLUMN, in the syntax of Spark and PostgreSQL."""
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

    def create_table(self) -> CreateTable | CreateTableAs | CreateTableLike:
        if_not_exists = self.stream.accept("IF", "NOT", "EXISTS")
        name_token = self.stream.token
        path = self.table_path()
        if self.stream.at("LIKE"):
            return ScriptReader(self).like(CreateTableLike(path, path, if_not_exists=if_not_exists))
        schema: Schema | None = None
        columns: tuple[Column, ...] = ()
        primary_key: tuple[str, ...] = ()
        if not self.of_query():
            self.stream.expect_kind(TokenType.L_PAREN, "'(' and the columns, or AS and a query")
            if self.at_primary_key():  # the columns are the query's
                primary_key = tuple(self.primary_key())
            else:
                schema = self.column_list()
                columns, primary_key = tuple(schema.columns), tuple(schema.primary_key)
            self.stream.expect_kind(TokenType.R_PAREN, "',' or ')'")
        names = {column.name for column in columns}
        times = ",".join(self.times)
        comment: str | None = None
        options: dict[str, str] = {}
        partition_keys: tuple[str, ...] = ()
        while True:
            if self.stream.accept("COMMENT"):
                comment = self.stream.text("a comment in single quotes").text
            elif self.stream.accept("WITH"):
                self.connector()
                options = self.options(is_primary_key_table=bool(primary_key))
                bucket_key = options.get(table_options.BUCKET_KEY)
                if bucket_key is not None:
                    self.refuse_nested(columns, parse_name_list(bucket_key), "bucket key")
            elif self.stream.accept("PARTITIONED", "BY"):
                token = self.stream.token
                self.stream.expect_kind(TokenType.L_PAREN, "'(' and the partition columns")
                partition_keys = tuple(self.names())
                for name in partition_keys:
                    if columns and name not in names:
                        raise self.stream.error(f"there is no column '{name}'", token)
                self.refuse_nested(columns, partition_keys, "partition")
            elif self.stream.at("DISTRIBUTED"):
                raise self.stream.error(
                    "use WITH ('bucket.num' = '4', 'bucket.key' = 'column') instead", self.stream.token
                )
            else:
                break
        if self.stream.at("LIKE"):
            given = CreateTableLike(
                path, path, columns, primary_key, options, comment, partition_keys, if_not_exists
            )
            return ScriptReader(self).like(given)
        if self.stream.accept("AS"):
            if not self.at_query():
                raise self.stream.expected("a query")
            return CreateTableAs(
                path, self.query(), columns, primary_key, options, comment, partition_keys, if_not_exists
            )
        if schema is None:
            raise self.stream.expected("AS and a query, which gives the columns")
        if times:
            options[table_options.TableOptions.processing_times.name] = times
        try:
            definition = TableDefinition(
                path, schema, options=options, comment=comment, partition_keys=partition_keys
            )
        except TableError as error:
            raise self.stream.error(error.message, name_token) from error
        return CreateTable(definition, if_not_exists)

    def connector(self) -> None:
        """Raise DdlError for the options of another connector than this one."""
        tokens = self.stream.tokens[self.stream.position :]
        for name, value in zip(tokens, tokens[2:], strict=False):
            if name.token_type is TokenType.R_PAREN:
                return
            if name.token_type is TokenType.STRING and name.text == "connector" and value.text != "fluss":
                raise self.stream.error(
                    "a table here has no connector: write CREATE TEMPORARY TABLE ... WITH"
                    f" ('connector' = '{value.text}') for a name of this session",
                    name,
                )

    def of_query(self) -> bool:
        return any(map(self.stream.at, ("AS", "WITH", "COMMENT", "PARTITIONED")))
