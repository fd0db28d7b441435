"""Names of databases and tables, and the path of a table."""

from __future__ import annotations

import re
from dataclasses import dataclass, field

from headrace.tablelayer.model.errors import invalid_table
from headrace.tablelayer.model.table.partition_keys import check_partition_name

DEFAULT_DATABASE = "default"
MAX_NAME_LENGTH = 200  # Fluss's
MAX_TOPIC_LENGTH = 249  # Kafka's limit on topic names
_NAME = re.compile(r"[A-Za-z0-9_-]+")


def check_name(kind: str, name: str) -> None:
    """Raise TableError(INVALID_TABLE) unless `name` may name a database or a table; `kind` is the word in the error."""
    if not _NAME.fullmatch(name) or len(name) > MAX_NAME_LENGTH:
        raise invalid_table(
            f"{kind} name '{name}': use 1 to {MAX_NAME_LENGTH} of the characters A-Z a-z 0-9 _ -"
        )
    if name.startswith("__"):
        raise invalid_table(f"{kind} name '{name}': names that begin with '__' are reserved")


def whole_table(topic: str) -> str:
    """Return the name of the table of a topic, which is that of the table or of one of its partitions."""
    return ".".join(topic.split(".")[:2])


@dataclass(frozen=True, slots=True, order=True)
class TablePath:
    """Database and table name. The table's topic is `database.table`.

    A partition of a table is addressed like a table with the name `table.partition`: its topic is
    `database.table.partition`.
    """

    database: str
    table: str
    topic: str = field(init=False, repr=False, compare=False)
    """Name of the table's topic."""
    partition: str | None = field(init=False, repr=False, compare=False)
    """Name of the partition; None for a table."""

    def __post_init__(self) -> None:
        check_name("database", self.database)
        name, dot, partition = self.table.partition(".")
        check_name("table", name)
        if dot:
            check_partition_name(partition)
        object.__setattr__(self, "topic", f"{self.database}.{self.table}")
        object.__setattr__(self, "partition", partition or None)
        if len(self.topic) > MAX_TOPIC_LENGTH:
            raise invalid_table(
                f"'{self.topic}' is longer than {MAX_TOPIC_LENGTH} characters, a topic's limit"
            )

    def __str__(self) -> str:
        return self.topic

    @property
    def whole(self) -> TablePath:
        """The table of a partition; a table's own path."""
        name, dot, _ = self.table.partition(".")
        return TablePath(self.database, name) if dot else self

    def of_partition(self, name: str) -> TablePath:
        """Return the path of one of this table's partitions. Raises TableError(INVALID_TABLE)."""
        return TablePath(self.database, f"{self.table}.{name}")

    @classmethod
    def parse(cls, text: str, default_database: str = DEFAULT_DATABASE) -> TablePath:
        """Return the path written `db.t`, or `t` in the default database, or `db.t.partition`.

        Raises TableError(INVALID_TABLE).
        """
        database, dot, table = text.partition(".")
        return cls(database, table) if dot else cls(default_database, text)
