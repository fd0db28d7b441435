"""Databases and tables. A table is a topic with a `table.schema`; a database is a node in the coordination store.

The database `default` always exists. A table can only be created in a database that exists, whoever creates it
(the table extension or a Kafka admin client); a database is dropped when it is empty, or with all of its tables.
Names of databases are held in memory and changed after the store was; tables are read from the broker's topics.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from typing import TYPE_CHECKING
from uuid import UUID

from broker.ports import CreateNode, DeleteNode, NodeExistsError, NoNodeError
from protocol.errors import ErrorCode, KafkaError
from tablelayer.model.errors import TableError, TableErrorCode
from tablelayer.model.options import is_table_option
from tablelayer.model.table import (
    DEFAULT_DATABASE,
    SCHEMA_CONFIG,
    TableDefinition,
    TablePath,
    changed_topic_config,
    check_name,
)

if TYPE_CHECKING:
    from broker.cluster.partition import TopicImage
    from broker.extension import BrokerContext


def is_table(config: Mapping[str, str]) -> bool:
    return SCHEMA_CONFIG in config


class Catalog:
    def __init__(self) -> None:
        self._context: BrokerContext | None = None
        self._databases: set[str] = {DEFAULT_DATABASE}
        self._definitions: dict[UUID, tuple[TopicImage, TableDefinition]] = {}

    async def load(self, context: BrokerContext) -> None:
        self._context = context
        self._databases.update(await context.store.children("/databases"))

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
            self._check_database(path.database)
            definition = TableDefinition.from_topic_config(path, None, partitions, config)
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

    async def create_database(self, name: str, *, ignore_if_exists: bool) -> None:
        check_name("database", name)
        exists = name in self._databases
        if not exists:
            created = {"created_at_ms": self.context.clock.time_ms()}
            try:
                await self.context.store.transact(
                    [CreateNode(f"/databases/{name}", json.dumps(created).encode())]
                )
            except NodeExistsError:
                exists = True
            self._databases.add(name)
        if exists and not ignore_if_exists:
            raise TableError(TableErrorCode.DATABASE_EXISTS, f"database '{name}' exists already")

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
        self._databases.discard(name)  # no table can be created in it from here on
        try:
            for table in self.tables(name):
                await self.drop_table(TablePath(name, table), ignore_if_not_exists=True)
            await self.context.store.transact([DeleteNode(f"/databases/{name}")])
        except NoNodeError:
            return
        except BaseException:
            self._databases.add(name)
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


def _refuse_table_options(topic: str, config: Mapping[str, str]) -> None:
    given = sorted(name for name in config if is_table_option(name))
    if given:
        raise KafkaError(
            ErrorCode.INVALID_CONFIG,
            f"topic {topic!r} has '{given[0]}' but no '{SCHEMA_CONFIG}': only tables have such options",
        )
