"""Databases and tables. A table is a topic with a `table.schema`; a database is a node in the coordination store.

The database `default` always exists. A table can only be created in a database that exists, whoever creates it
(the table extension or a Kafka admin client); a database is dropped when it is empty, or with all of its tables.
Names of databases are held in memory and changed after the store was; tables are read from the broker's topics.
"""

from __future__ import annotations

import asyncio
import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING
from uuid import UUID

from broker.ports import CreateNode, DeleteNode, NodeExistsError, NoNodeError, SetNode
from protocol.errors import ErrorCode, KafkaError
from tablelayer.model.errors import TableError, TableErrorCode
from tablelayer.model.evolution import Change, changed_topic_config, evolve
from tablelayer.model.options import is_table_option
from tablelayer.model.schema import FIRST_SCHEMA_ID
from tablelayer.model.table import (
    DEFAULT_DATABASE,
    HISTORY_CONFIG,
    SCHEMA_CONFIG,
    TableDefinition,
    TablePath,
    check_name,
)

if TYPE_CHECKING:
    from broker.cluster.partition import TopicImage
    from broker.extension import BrokerContext


DATABASE_BYTES_MAX = 64 << 10
"""Of a database's comment and properties: a node of a coordination store is small."""


def is_table(config: Mapping[str, str]) -> bool:
    return SCHEMA_CONFIG in config


@dataclass(frozen=True, slots=True)
class Database:
    """What is known of a database; `created_at_ms` is -1 for the one that was always there."""

    created_at_ms: int = -1
    comment: str | None = None
    properties: Mapping[str, str] = field(default_factory=dict)

    def to_json(self) -> bytes:
        value = {
            "created_at_ms": self.created_at_ms,
            "comment": self.comment,
            "properties": dict(self.properties),
        }
        return json.dumps(value).encode()

    @classmethod
    def from_json(cls, data: bytes) -> Database:
        value = json.loads(data)
        return cls(value.get("created_at_ms", -1), value.get("comment"), value.get("properties", {}))

    def check(self, name: str) -> None:
        """Raises TableError(INVALID_TABLE)."""
        size = len(self.to_json())
        if size > DATABASE_BYTES_MAX:
            raise TableError(
                TableErrorCode.INVALID_TABLE,
                f"the comment and properties of database '{name}' have {size} bytes; "
                f"{DATABASE_BYTES_MAX} is the most",
            )


class Catalog:
    def __init__(self) -> None:
        self._altering = asyncio.Lock()
        self._context: BrokerContext | None = None
        self._databases: dict[str, Database] = {DEFAULT_DATABASE: Database()}
        self._definitions: dict[UUID, tuple[TopicImage, TableDefinition]] = {}

    async def load(self, context: BrokerContext) -> None:
        self._context = context
        for name in await context.store.children("/databases"):
            node = await context.store.get(f"/databases/{name}")
            if node is not None:
                self._databases[name] = Database.from_json(node.data)

    @property
    def context(self) -> BrokerContext:
        if self._context is None:
            raise RuntimeError("the catalog is used before it was loaded")
        return self._context

    # -- validation of topics (called by the broker) -------------------------------------------------------

    def validate_topic(self, topic: str, partitions: int, config: Mapping[str, str]) -> dict[str, str]:
        """The configuration of a new topic in its normal form. Raises KafkaError(INVALID_CONFIG)."""
        if not is_table(config):
            _refuse_table_options(topic, config)
            return dict(config)
        try:
            path = _table_path(topic)
            _refuse_record_options(config)
            self._check_database(path.database)
            definition = TableDefinition.from_topic_config(path, None, partitions, config)
            if HISTORY_CONFIG in config or definition.schema.schema_id != FIRST_SCHEMA_ID:
                raise TableError(
                    TableErrorCode.INVALID_TABLE,
                    f"table {path} is new: it has no '{HISTORY_CONFIG}', and its schema has id {FIRST_SCHEMA_ID}",
                )
        except TableError as error:
            raise KafkaError(ErrorCode.INVALID_CONFIG, error.message) from None
        return definition.to_topic_config()

    def validate_change(
        self, topic: TopicImage, partitions: int, config: Mapping[str, str]
    ) -> dict[str, str]:
        """The configuration that an existing topic is to get. Raises KafkaError."""
        if not is_table(topic.config):
            if is_table(config):
                raise KafkaError(
                    ErrorCode.INVALID_CONFIG,
                    f"topic {topic.name!r} was created without '{SCHEMA_CONFIG}' and cannot become a table",
                )
            _refuse_table_options(topic.name, config)
            return dict(config)
        if partitions != topic.partition_count:
            raise KafkaError(
                ErrorCode.INVALID_PARTITIONS,
                f"table {topic.name} has {topic.partition_count} buckets: its rows are placed by that number",
            )
        try:
            _refuse_record_options(config)
            return changed_topic_config(TablePath.parse(topic.name), partitions, topic.config, config)
        except TableError as error:
            raise KafkaError(ErrorCode.INVALID_CONFIG, error.message) from None

    def _check_database(self, name: str) -> None:
        if name not in self._databases:
            raise TableError(
                TableErrorCode.DATABASE_NOT_FOUND,
                f"there is no database '{name}'; create it first: CREATE DATABASE {name}",
            )

    # -- databases -----------------------------------------------------------------------------------------

    def databases(self) -> list[str]:
        return sorted(self._databases)

    def database(self, name: str) -> Database:
        """Raises TableError(DATABASE_NOT_FOUND)."""
        self._check_database(name)
        return self._databases[name]

    async def create_database(
        self,
        name: str,
        *,
        ignore_if_exists: bool,
        comment: str | None = None,
        properties: Mapping[str, str] | None = None,
    ) -> None:
        check_name("database", name)
        exists = name in self._databases
        if not exists:
            created = Database(self.context.clock.time_ms(), comment, dict(properties or {}))
            created.check(name)
            try:
                await self.context.store.transact([CreateNode(f"/databases/{name}", created.to_json())])
            except NodeExistsError:
                exists = True
            self._databases[name] = created
        if exists and not ignore_if_exists:
            raise TableError(TableErrorCode.DATABASE_EXISTS, f"database '{name}' exists already")

    async def alter_database(
        self,
        name: str,
        *,
        comment: str | None,
        set_properties: Mapping[str, str],
        reset_properties: Sequence[str],
    ) -> None:
        """`comment` None: as it is, '' takes it away. Raises TableError."""
        async with self._altering:
            old = self.database(name)
            kept = {key: value for key, value in old.properties.items() if key not in reset_properties}
            new = Database(
                old.created_at_ms,
                old.comment if comment is None else (comment or None),
                {**kept, **set_properties},
            )
            new.check(name)
            path = f"/databases/{name}"
            stored = await self.context.store.get(path)
            data = new.to_json()
            await self.context.store.transact(
                [CreateNode(path, data) if stored is None else SetNode(path, data)]
            )
            self._databases[name] = new

    async def drop_database(self, name: str, *, ignore_if_not_exists: bool, cascade: bool) -> None:
        if name not in self._databases:
            if ignore_if_not_exists:
                return
            raise TableError(TableErrorCode.DATABASE_NOT_FOUND, f"there is no database '{name}'")
        if name == DEFAULT_DATABASE:
            raise TableError(
                TableErrorCode.INVALID_TABLE, f"the database '{DEFAULT_DATABASE}' cannot be dropped"
            )
        tables = self.tables(name)
        if tables and not cascade:
            raise TableError(
                TableErrorCode.DATABASE_NOT_EMPTY,
                f"database '{name}' has {len(tables)} tables ({', '.join(tables[:5])}); drop them first, or CASCADE",
            )
        database = self._databases.pop(name)  # no table can be created in it from here on
        try:
            for table in self.tables(name):
                await self.drop_table(TablePath(name, table), ignore_if_not_exists=True)
            await self.context.store.transact([DeleteNode(f"/databases/{name}")])
        except NoNodeError:
            return
        except BaseException:
            self._databases[name] = database
            raise

    # -- tables --------------------------------------------------------------------------------------------

    def tables(self, database: str) -> list[str]:
        """Names of the tables of a database. Raises TableError(DATABASE_NOT_FOUND)."""
        prefix = f"{database}."
        return [
            topic.name.removeprefix(prefix)
            for topic in self.context.metadata.topics()
            if topic.name.startswith(prefix) and is_table(topic.config)
        ]

    def list_tables(self, database: str) -> list[str]:
        self._check_database(database)
        return self.tables(database)

    def all_tables(self) -> list[TableDefinition]:
        return [self.definition(topic) for topic in self.context.metadata.topics() if is_table(topic.config)]

    def definition(self, topic: TopicImage) -> TableDefinition:
        known = self._definitions.get(topic.topic_id)
        if known is not None and known[0] is topic:
            return known[1]
        definition = TableDefinition.from_topic_config(
            TablePath.parse(topic.name), topic.topic_id, topic.partition_count, topic.config
        )
        self._definitions[topic.topic_id] = (topic, definition)
        return definition

    def by_path(self, path: TablePath) -> TableDefinition:
        """Raises TableError: DATABASE_NOT_FOUND, TABLE_NOT_FOUND."""
        topic = self.context.metadata.topic(path.topic)
        if topic is None or not is_table(topic.config):
            self._check_database(path.database)
            what = "is a plain topic, not a table" if topic is not None else "does not exist"
            raise TableError(TableErrorCode.TABLE_NOT_FOUND, f"table {path} {what}")
        return self.definition(topic)

    def by_id(self, table_id: UUID) -> TableDefinition:
        """Raises TableError(TABLE_NOT_FOUND)."""
        topic = self.context.metadata.topic_by_id(table_id)
        if topic is None or not is_table(topic.config):
            self._definitions.pop(table_id, None)
            raise TableError(
                TableErrorCode.TABLE_NOT_FOUND,
                f"there is no table with id {table_id}; it may have been dropped",
            )
        return self.definition(topic)

    async def create_table(self, definition: TableDefinition, *, ignore_if_exists: bool) -> UUID:
        """Create a table; its id. Raises TableError."""
        path = definition.path
        self._check_database(path.database)
        try:
            topic = await self.context.metadata.create_topic(
                path.topic, definition.bucket_count, definition.to_topic_config()
            )
        except KafkaError as error:
            if error.code == ErrorCode.TOPIC_ALREADY_EXISTS:
                existing = self.context.metadata.topic(path.topic)
                if ignore_if_exists and existing is not None and is_table(existing.config):
                    return existing.topic_id
                raise TableError(TableErrorCode.TABLE_EXISTS, f"table {path} exists already") from None
            if error.code in (ErrorCode.INVALID_CONFIG, ErrorCode.INVALID_PARTITIONS):
                raise TableError(TableErrorCode.INVALID_TABLE, error.message) from None
            raise
        return topic.topic_id

    async def alter_table(
        self, path: TablePath, changes: Sequence[Change], *, expected_schema_id: int = -1
    ) -> TableDefinition:
        """Carry out all changes, or none; the table as it is then. Raises TableError.

        Two ALTERs at once are carried out one after the other. Whoever else changes the topic's configuration
        meanwhile is found out by the metadata, which accepts a change of the schema only if it was made from
        the one that the table has at that moment; then it is worked out again.
        """
        async with self._altering:
            return await self._alter_table(path, changes, expected_schema_id)

    async def _alter_table(
        self, path: TablePath, changes: Sequence[Change], expected_schema_id: int
    ) -> TableDefinition:
        while True:
            before = self.by_path(path)
            if expected_schema_id not in (-1, before.schema.schema_id):
                raise TableError(
                    TableErrorCode.SCHEMA_CHANGED,
                    f"table {path} has schema {before.schema.schema_id} by now, not {expected_schema_id}",
                )
            new = evolve(before, changes).to_topic_config()
            old = before.to_topic_config()
            changed: dict[str, str | None] = {
                name: new.get(name) for name in {*old, *new} if old.get(name) != new.get(name)
            }
            if not changed:
                return before
            try:
                await self.context.metadata.alter_config(path.topic, changed)
            except KafkaError as error:
                if error.code == ErrorCode.UNKNOWN_TOPIC_OR_PARTITION:
                    raise TableError(TableErrorCode.TABLE_NOT_FOUND, f"table {path} does not exist") from None
                if error.code not in (ErrorCode.INVALID_CONFIG, ErrorCode.INVALID_REQUEST):
                    raise
                if self.by_path(path).schema.schema_id != before.schema.schema_id:
                    continue
                raise TableError(TableErrorCode.INVALID_TABLE, error.message) from None
            return self.by_path(path)

    async def drop_table(self, path: TablePath, *, ignore_if_not_exists: bool) -> None:
        """Delete a table, its rows and its log. Raises TableError(TABLE_NOT_FOUND)."""
        topic = self.context.metadata.topic(path.topic)
        if topic is None or not is_table(topic.config):
            if ignore_if_not_exists:
                return
            self.by_path(path)  # says what is wrong
            return
        self._definitions.pop(topic.topic_id, None)
        await self.context.metadata.delete_topic(path.topic)


def _table_path(topic: str) -> TablePath:
    if topic.count(".") != 1:
        raise TableError(
            TableErrorCode.INVALID_TABLE,
            f"a topic with '{SCHEMA_CONFIG}' is a table and is named database.table, for example "
            f"'{DEFAULT_DATABASE}.{topic.replace('.', '_')}'; '{topic}' is not",
        )
    return TablePath.parse(topic)


_RECORD_OPTIONS = {"cleanup.policy": "delete", "compression.type": "producer"}
"""Configurations about Kafka records, which a table's log does not hold, and the value that asks for nothing."""


def _refuse_record_options(config: Mapping[str, str]) -> None:
    for name, harmless in _RECORD_OPTIONS.items():
        if config.get(name, harmless).strip() != harmless:
            raise TableError(
                TableErrorCode.INVALID_TABLE,
                f"{name}={config[name]} is about the records of a plain topic; a table cannot have it. "
                "A table with a primary key keeps the last row of each key by itself",
            )


def _refuse_table_options(topic: str, config: Mapping[str, str]) -> None:
    given = sorted(name for name in config if is_table_option(name))
    if given:
        raise KafkaError(
            ErrorCode.INVALID_CONFIG,
            f"topic {topic!r} has '{given[0]}' but no '{SCHEMA_CONFIG}': only tables have such options",
        )
