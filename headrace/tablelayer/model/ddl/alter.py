"""ALTER TABLE, in the syntax of Flink and Fluss (ADD, MODIFY, DROP, RENAME, SET, RESET) and of Spark (ADD COLUMNS,
ALTER COLUMN, SET TBLPROPERTIES).

    ADD [COLUMN] [IF NOT EXISTS] name type [NOT NULL] [DEFAULT value] [COMMENT 'text'] [FIRST | AFTER name | LAST]
    ADD [COLUMNS] (name type ..., ...)
    DROP [COLUMN] [IF EXISTS] name          DROP [COLUMNS] (name, ...)
    RENAME [COLUMN] name TO name
    MODIFY [COLUMN] name [type] [NULL] [DEFAULT value] [COMMENT 'text'] [FIRST | AFTER name | LAST]
    MODIFY (name ..., ...)
    ALTER [COLUMN] name TYPE type | DROP NOT NULL | SET DEFAULT value | DROP DEFAULT | COMMENT 'text'
                        | FIRST | AFTER name
    ADD [IF NOT EXISTS] PARTITION (column = value, ...)        DROP [IF EXISTS] PARTITION (column = value, ...)
    SET [TBLPROPERTIES] ('option' = 'value', ...)       RESET ('option', ...)       UNSET TBLPROPERTIES ('option', ...)

MODIFY keeps the properties that it does not name. The table decides whether a change is possible (`evolution.py`);
each change is kept with the position of its word, so that the error can point there.
"""

from __future__ import annotations

from sqlglot import Token, TokenType

from headrace.tablelayer.model.ddl.clauses import ClauseReader
from headrace.tablelayer.model.ddl.literals import read_literal
from headrace.tablelayer.model.ddl.statements import AddPartition, AlterTable, DropPartition, Notice
from headrace.tablelayer.model.ddl.type_names import read_type
from headrace.tablelayer.model.table.evolution import (
    FIRST,
    AddColumn,
    Change,
    DropColumn,
    ModifyColumn,
    RenameColumn,
    ResetOptions,
    SetOptions,
)
from headrace.tablelayer.model.table.path import TablePath
from headrace.tablelayer.model.types.column_types import DataType
from headrace.tablelayer.model.types.values import plain_text

_VERBS = "ADD, DROP, RENAME, MODIFY, ALTER, SET or RESET"
_CLAUSES = frozenset({"NOT", "NULL", "DEFAULT", "COMMENT", "FIRST", "AFTER", "LAST", "TYPE", "SET", "DROP"})


class AlterReader:
    """A reader of one statement after ALTER TABLE."""

    def __init__(self, clauses: ClauseReader) -> None:
        self.clauses = clauses
        self.stream = clauses.stream
        self.changes: list[Change] = []
        self.places: list[tuple[int, int]] = []

    def read(self) -> AlterTable | AddPartition | DropPartition | Notice:
        if_exists = self.stream.accept("IF", "EXISTS")
        path = self.clauses.table_path()
        if self.watermark():
            return Notice(f"table {path} is as before")
        of_partition = self.partition_clause(path)
        if of_partition is not None:
            if if_exists:
                raise self.stream.error(
                    "IF EXISTS belongs before PARTITION: ALTER TABLE t DROP IF EXISTS PARTITION (...)",
                    self.stream.tokens[self.stream.position - 1],
                )
            return of_partition
        while True:
            self.clause()
            if not self.stream.accept_kind(TokenType.COMMA):
                break
        return AlterTable(path, tuple(self.changes), if_exists, self.stream.sql, tuple(self.places))

    def watermark(self) -> bool:
        """Read ADD, MODIFY or DROP WATERMARK if it comes next; return whether it does."""
        stream = self.stream
        if stream.at("DROP", "WATERMARK"):
            stream.expect("DROP", "WATERMARK")
            return True
        for verb in ("ADD", "MODIFY"):
            if stream.at(verb, "WATERMARK", "FOR"):
                stream.expect(verb)
                self.clauses.watermark()
                return True
        return False

    def partition_clause(self, path: TablePath) -> AddPartition | DropPartition | None:
        """Read ADD or DROP PARTITION, which is a statement of its own; return None if something else follows."""
        stream = self.stream
        if stream.at("ADD", "PARTITION") or stream.at("ADD", "IF", "NOT", "EXISTS", "PARTITION"):
            stream.expect("ADD")
            if_not_exists = stream.accept("IF", "NOT", "EXISTS")
            return AddPartition(path, self.clauses.partition_spec(), if_not_exists)
        if stream.at("DROP", "PARTITION") or stream.at("DROP", "IF", "EXISTS", "PARTITION"):
            stream.expect("DROP")
            if_exists = stream.accept("IF", "EXISTS")
            return DropPartition(path, self.clauses.partition_spec(), if_exists)
        return None

    def clause(self) -> None:
        stream = self.stream
        if stream.accept("ADD"):
            if stream.at("PARTITION") or stream.at("IF", "NOT", "EXISTS", "PARTITION"):
                raise stream.error("a partition is added by a statement of its own", stream.token)
            self.each(self.add, "COLUMN", "COLUMNS")
        elif stream.accept("DROP"):
            if stream.at("PARTITION") or stream.at("IF", "EXISTS", "PARTITION"):
                raise stream.error("a partition is dropped by a statement of its own", stream.token)
            if stream.at("PRIMARY", "KEY") or stream.at("CONSTRAINT"):
                raise stream.error("the primary key is fixed: rows are found by it", stream.token)
            self.each(self.drop, "COLUMN", "COLUMNS")
        elif stream.accept("RENAME"):
            if stream.at("TO"):
                reason = "a table keeps its name: its topic, its consumer groups and its lake table are known by it"
                raise stream.error(reason, stream.token)
            stream.accept("COLUMN")
            self.rename()
        elif stream.accept("MODIFY"):
            self.each(self.modify, "COLUMN", "COLUMNS")
        elif stream.accept("ALTER"):
            stream.accept("COLUMN")
            self.modify()
        elif stream.accept("SET"):
            stream.accept("TBLPROPERTIES")
            self.set_options()
        elif stream.accept("RESET") or stream.accept("UNSET", "TBLPROPERTIES"):
            self.reset_options()
        else:
            raise stream.expected(_VERBS)

    def each(self, read: object, *words: str) -> None:
        """Read one item, or several in parentheses, after one of the optional `words`."""
        assert callable(read)
        for word in words:
            if self.stream.at(word) and not self.is_name(word):
                self.stream.accept(word)
                break
        if not self.stream.accept_kind(TokenType.L_PAREN):
            read()
            return
        while True:
            read()
            if not self.stream.accept_kind(TokenType.COMMA):
                self.stream.expect_kind(TokenType.R_PAREN, "',' or ')'")
                return

    def is_name(self, word: str) -> bool:
        """Whether COLUMN is the name of a column: no other name follows it."""
        following = self.stream.position + 1
        if following >= len(self.stream.tokens):
            return True
        token = self.stream.tokens[following]
        return token.token_type not in (TokenType.VAR, TokenType.IDENTIFIER, TokenType.L_PAREN)

    def note(self, change: Change, token: Token) -> None:
        self.changes.append(change)
        self.places.append((token.start, token.end - token.start + 1))

    def place(self) -> str | None:
        if self.stream.accept("FIRST"):
            return FIRST
        if self.stream.accept("AFTER"):
            return self.stream.name("the name of a column").text
        self.stream.accept("LAST")
        return None

    def add(self) -> None:
        if_not_exists = self.stream.accept("IF", "NOT", "EXISTS")
        token = self.stream.token
        if self.clauses.at_primary_key():
            raise self.stream.error("the primary key is fixed: rows are found by it", token)
        column, is_key = self.clauses.column(0)
        assert token is not None
        if is_key:
            raise self.stream.error("the primary key is fixed: rows are found by it", token)
        change = AddColumn(
            column.name,
            column.type,
            column.nullable,
            column.comment,
            column.default,
            self.place(),
            if_not_exists,
        )
        self.note(change, token)

    def drop(self) -> None:
        if_exists = self.stream.accept("IF", "EXISTS")
        token = self.stream.name("the name of a column")
        self.note(DropColumn(token.text, if_exists), token)

    def rename(self) -> None:
        token = self.stream.name("the name of a column")
        self.stream.expect("TO")
        new = self.stream.name("the column's new name")
        self.note(RenameColumn(token.text, self.clauses.column_name(new)), token)

    def modify(self) -> None:
        """Read one column's new type, nullability, default, comment and position, as far as they are given."""
        stream = self.stream
        token = stream.name("the name of a column")
        data_type: DataType | None = None
        nullable: bool | None = None
        comment = default = after = None
        drop_default = False
        begin = stream.position
        if stream.accept("SET", "DATA", "TYPE") or stream.accept("TYPE") or not self.at_clause():
            data_type = read_type(stream)
        while True:
            if stream.accept("NOT", "NULL") or stream.accept("SET", "NOT", "NULL"):
                nullable = False
            elif stream.accept("NULL") or stream.accept("DROP", "NOT", "NULL"):
                nullable = True
            elif stream.accept("COMMENT"):
                comment = stream.text("a comment in single quotes").text
            elif stream.at("DEFAULT") or stream.at("SET", "DEFAULT"):
                stream.accept("SET")
                stream.accept("DEFAULT")
                default = self.clauses.default(data_type) if data_type is not None else self.untyped_default()
                drop_default = default is None
            elif stream.accept("DROP", "DEFAULT"):
                drop_default = True
            elif stream.at("FIRST") or stream.at("AFTER") or stream.at("LAST"):
                last = stream.at("LAST")
                after = self.place()
                if last:
                    raise stream.error(
                        "use AFTER with the name of the last column", stream.tokens[stream.position - 1]
                    )
            else:
                break
        if stream.position == begin:
            raise stream.expected("what is to be modified: a type, NULL, DEFAULT, COMMENT, FIRST or AFTER")
        self.note(ModifyColumn(token.text, data_type, nullable, comment, default, drop_default, after), token)

    def untyped_default(self) -> str | None:
        """Read a literal for a column whose type is not known here, as its text."""
        value = read_literal(self.stream)
        return None if value is None else plain_text(value)

    def at_clause(self) -> bool:
        token = self.stream.token
        return token is None or token.token_type is not TokenType.VAR or token.text.upper() in _CLAUSES

    def set_options(self) -> None:
        stream = self.stream
        stream.expect_kind(TokenType.L_PAREN, "'(' and the options")
        while True:
            token = stream.token
            name, value = self.clauses.option(is_primary_key_table=True)
            assert token is not None
            self.note(SetOptions({name: value}), token)
            if not stream.accept_kind(TokenType.COMMA):
                stream.expect_kind(TokenType.R_PAREN, "',' or ')'")
                return

    def reset_options(self) -> None:
        stream = self.stream
        stream.expect_kind(TokenType.L_PAREN, "'(' and the options' names")
        while True:
            token = stream.text("an option, such as 'table.log.ttl'")
            self.clauses.check_option_name(token)
            self.note(ResetOptions((token.text,)), token)
            if not stream.accept_kind(TokenType.COMMA):
                stream.expect_kind(TokenType.R_PAREN, "',' or ')'")
                return
