"""Databases and tables. A table is a topic with a `table.schema`; a database is a node in the coordination store.

The database `default` always exists. A table can only be created in a database that exists, whoever creates it
(the table extension or a Kafka admin client); a database is dropped when it is empty, or with all of its tables.
Names of databases are held in memory and changed after the store was, to what the store has, one change of a
database at a time; tables are read from the broker's topics.
"""

from __future__ import annotations

import asyncio
import json
import logging
from collections.abc import Callable, Mapping, Sequence
from typing import TYPE_CHECKING, TypeVar
from uuid import UUID
from weakref import WeakValueDictionary

import msgspec

from headrace.broker.metadata.nodes import follow, modify
from headrace.protocol.errors import ErrorCode, KafkaError
from headrace.tablelayer.model.errors import TableError, TableErrorCode
from headrace.tablelayer.model.table.definition import (
    DEFAULT_DATABASE,
    PARTITION_OF_CONFIG,
    PARTITIONED_BY_CONFIG,
    SCHEMA_CONFIG,
    TableDefinition,
    TablePath,
    check_name,
)
from headrace.tablelayer.model.table.evolution import Change
from headrace.tablelayer.model.table.partition_keys import values_of
from headrace.tablelayer.model.table.partitions import check_partitioned, spec_texts
from headrace.tablelayer.model.topic_config import from_topic_config
from headrace.tablelayer.server.catalog.definition_reading import (
    DefinitionReader,
    ReadConfig,
    changed_configs,
    read_changes,
    read_definition,
)

if TYPE_CHECKING:
    from headrace.broker.context import BrokerContext
    from headrace.broker.partitions.topic import TopicImage


logger = logging.getLogger("headrace.tables")

Result = TypeVar("Result")

MAX_PARTITIONS_CONFIG = "max.partition.num"
DATABASES = "/databases"

DATABASE_BYTES_MAX = 64 << 10
"""Of a database's comment and properties: a node of a coordination store is small."""


def is_table(config: Mapping[str, str]) -> bool:
    """Whether a topic is a table: not a partition of one."""
    return SCHEMA_CONFIG in config


def is_partition(config: Mapping[str, str]) -> bool:
    return PARTITION_OF_CONFIG in config


def _has_rows(config: Mapping[str, str]) -> bool:
    return is_table(config) or is_partition(config)


class Database(msgspec.Struct, frozen=True):
    """What is known of a database; `created_at_ms` is -1 for the one that was always there."""

    created_at_ms: int = -1
    comment: str | None = None
    properties: Mapping[str, str] = msgspec.field(default_factory=dict)

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
        self._dropping: set[str] = set()
        self._changing: WeakValueDictionary[str, asyncio.Lock] = WeakValueDictionary()
        self._not_understood: dict[UUID, TopicImage] = {}
        self._definitions: dict[UUID, tuple[TopicImage, TopicImage, TableDefinition]] = {}
        self.reader: DefinitionReader
        """There from `load` on."""

    @property
    def max_partitions(self) -> int:
        """Of one table."""
        most: int = self.context.config[MAX_PARTITIONS_CONFIG]
        return most

    async def load(self, context: BrokerContext) -> None:
        self._context = context
        self.reader = DefinitionReader(context.threads)
        await self._read_databases()

    async def run(self) -> None:
        """Follow which databases are made, altered and dropped through other brokers, until cancelled."""
        await follow(self.context.store, DATABASES, self._read_databases)

    async def refreshed(self) -> bool:
        """From here on is known what others have made and dropped before. False: there are no others."""
        metadata = self.context.metadata
        if metadata.is_alone:
            return False
        await self._read_databases()
        await self.context.following.refreshed()
        return True

    async def _read_databases(self) -> None:
        store = self.context.store
        names = await store.children(DATABASES)
        nodes = await store.get_many([f"{DATABASES}/{name}" for name in names])
        found = {
            name: Database.from_json(node.data)
            for name, node in zip(names, nodes, strict=True)
            if node is not None and name not in self._dropping
        }
        self._databases = {DEFAULT_DATABASE: Database(), **found}

    @property
    def context(self) -> BrokerContext:
        if self._context is None:
            raise RuntimeError("the catalog is used before it was loaded")
        return self._context

    def check_room(self, definition: TableDefinition) -> None:
        """Raises TableError(TOO_MANY_PARTITIONS)."""
        count, most = len(self.partition_names(definition.path)), self.max_partitions
        if count >= most:
            raise TableError(
                TableErrorCode.TOO_MANY_PARTITIONS,
                f"table {definition.path} has {count} partitions, and {MAX_PARTITIONS_CONFIG} is {most}: drop some, "
                "or set the broker's configuration higher",
            )

    def check_database(self, name: str) -> None:
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
        self.check_database(name)
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
        async with self._changing_database(name):
            if name not in self._databases:
                created = Database(self.context.clock.time_ms(), comment, dict(properties or {}))
                created.check(name)
                stored = await modify(
                    self.context.store,
                    f"{DATABASES}/{name}",
                    lambda data: data or created.to_json(),
                    root=DATABASES,
                )
                assert stored is not None
                self._databases[name] = Database.from_json(stored)
            elif not ignore_if_exists:
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
        async with self._changing_database(name):
            self.check_database(name)

            def changed(data: bytes | None) -> bytes:
                old = Database() if data is None else Database.from_json(data)
                kept = {key: value for key, value in old.properties.items() if key not in reset_properties}
                new = Database(
                    old.created_at_ms,
                    old.comment if comment is None else (comment or None),
                    {**kept, **set_properties},
                )
                new.check(name)
                return new.to_json()

            stored = await modify(self.context.store, f"{DATABASES}/{name}", changed, root=DATABASES)
            assert stored is not None
            self._databases[name] = Database.from_json(stored)

    async def drop_database(self, name: str, *, ignore_if_not_exists: bool, cascade: bool) -> None:
        async with self._changing_database(name):
            if name not in self._databases:
                if ignore_if_not_exists:
                    return
                raise TableError(TableErrorCode.DATABASE_NOT_FOUND, f"there is no database '{name}'")
            if name == DEFAULT_DATABASE:
                raise TableError(
                    TableErrorCode.INVALID_TABLE, f"the database '{DEFAULT_DATABASE}' cannot be dropped"
                )
            if not cascade:
                self._check_empty(name)
            database = self._databases.pop(name)  # no table can be created in it from here on
            self._dropping.add(name)
            try:
                await self.context.following.settled()  # those that were being created are seen now
                if not cascade:
                    self._check_empty(name)
                for table in self.tables(name):
                    await self.drop_table(TablePath(name, table), ignore_if_not_exists=True)
                await modify(self.context.store, f"{DATABASES}/{name}", lambda _: None, root=DATABASES)
            except BaseException:
                self._databases[name] = database
                raise
            finally:
                self._dropping.discard(name)

    def _check_empty(self, name: str) -> None:
        tables = self.tables(name)
        if tables:
            raise TableError(
                TableErrorCode.DATABASE_NOT_EMPTY,
                f"database '{name}' has {len(tables)} tables ({', '.join(tables[:5])}); drop them first, or CASCADE",
            )

    def _changing_database(self, name: str) -> asyncio.Lock:
        """There as long as somebody holds it or waits for it."""
        return self._changing.setdefault(name, asyncio.Lock())

    # -- tables --------------------------------------------------------------------------------------------

    def tables(self, database: str) -> list[str]:
        """Names of the tables of a database, in their order; none of one that is not there."""
        prefix = f"{database}."
        return [name.removeprefix(prefix) for name in self.table_topics(prefix)]

    def table_topics(self, prefix: str) -> list[str]:
        """The topics of tables whose names begin so, in their order. Others are not looked at."""
        found = self.context.metadata.topics_beginning_with(prefix)
        return [topic.name for topic in found if is_table(topic.config)]

    def is_table_topic(self, name: str) -> bool:
        topic = self.context.metadata.topic(name)
        return topic is not None and is_table(topic.config)

    def table_of_partition(self, topic: str) -> str | None:
        """The topic of the table that a topic is a partition of; None if it is none."""
        if topic.count(".") < 2:  # the quick answer for nearly all
            return None
        image = self.context.metadata.topic(topic)
        return ".".join(topic.split(".", 2)[:2]) if image is not None and is_partition(image.config) else None

    def all_tables(self) -> list[TableDefinition]:
        """Whole tables, not their partitions; without those that cannot be understood, which are offline."""
        found = []
        for topic in self.context.metadata.topics():
            if is_table(topic.config) and self._not_understood.get(topic.topic_id) is not topic:
                try:
                    found.append(self.definition(topic))
                except Exception as error:  # noqa: BLE001 - whatever is wrong with it, the others are served
                    logger.error("table %s is left alone: %s", topic.name, error)
                    self._not_understood[topic.topic_id] = topic
        return found

    def definition(self, topic: TopicImage) -> TableDefinition:
        """The table, or the partition, that a topic is. Raises TableError(TABLE_NOT_FOUND) for a partition whose table
        is gone. May be asked from any thread.
        """
        known = self._definitions.get(topic.topic_id)
        table = self._table_of(topic)
        if known is not None and known[0] is topic and known[1] is table:
            return known[2]
        path = TablePath.parse(topic.name)
        if table is topic:
            definition = (
                topic.config.definition.with_id(topic.topic_id)
                if isinstance(topic.config, ReadConfig)
                else from_topic_config(path, topic.topic_id, topic.partition_count, topic.config)
            )
        else:
            assert path.partition is not None
            whole = self.definition(table)
            definition = whole.of_partition(path.partition, topic.topic_id, topic.partition_count)
        self._definitions[topic.topic_id] = (topic, table, definition)
        return definition

    def _table_of(self, topic: TopicImage) -> TopicImage:
        """The topic that has the definition: the table's, of which `topic` may be a partition."""
        if not is_partition(topic.config):
            return topic
        name = ".".join(topic.name.split(".", 2)[:2])
        table = self.context.metadata.topic(name)
        if table is None or str(table.topic_id) != topic.config[PARTITION_OF_CONFIG]:
            raise TableError(
                TableErrorCode.TABLE_NOT_FOUND, f"table {name}, whose partition {topic.name} was, is gone"
            )
        return table

    def bucket_count(self, path: TablePath) -> int:
        """Buckets of the table itself, without its partitions'; 0 if there is none."""
        topic = self.context.metadata.topic(path.topic)
        return 0 if topic is None else topic.partition_count

    def by_path(self, path: TablePath) -> TableDefinition:
        """Raises TableError: DATABASE_NOT_FOUND, TABLE_NOT_FOUND."""
        topic = self.context.metadata.topic(path.topic)
        if topic is None or not _has_rows(topic.config):
            self.check_database(path.database)
            what = "is a plain topic, not a table" if topic is not None else "does not exist"
            raise TableError(TableErrorCode.TABLE_NOT_FOUND, f"table {path} {what}")
        return self.definition(topic)

    def by_id(self, table_id: UUID) -> TableDefinition:
        """Raises TableError(TABLE_NOT_FOUND)."""
        topic = self.context.metadata.topic_by_id(table_id)
        if topic is None or not _has_rows(topic.config):
            self._definitions.pop(table_id, None)
            raise no_table_with_id(table_id)
        return self.definition(topic)

    async def create_table(
        self,
        text: str,
        *,
        ignore_if_exists: bool,
        check: Callable[[TablePath, int, Mapping[str, str]], None] = lambda path, buckets, config: None,
    ) -> UUID:
        """Create the table of a definition in JSON; its id. `check` is asked once path, buckets and configuration are
        known, before anything else. Raises TableError, and what `check` raises.
        """
        path, buckets, config = await self.reader.run(read_definition, text)
        check(path, buckets, config)
        self.check_database(path.database)
        if path.partition is not None:
            raise TableError(
                TableErrorCode.INVALID_TABLE,
                f"{path} is a partition: add it with ALTER TABLE {path.whole} ADD PARTITION",
            )
        try:
            topic = await self.context.topics.create_topic(path.topic, buckets, config)
        except KafkaError as error:
            if error.code == ErrorCode.TOPIC_ALREADY_EXISTS:
                existing = self.context.metadata.topic(path.topic)
                if existing is not None and not is_table(existing.config):
                    raise TableError(
                        TableErrorCode.TABLE_EXISTS,
                        f"{path} exists already as a plain topic, which a table cannot replace: choose another "
                        "name, or delete the topic",
                    ) from None
                if ignore_if_exists and existing is not None:
                    return existing.topic_id
                raise TableError(TableErrorCode.TABLE_EXISTS, f"table {path} exists already") from None
            if error.code in (ErrorCode.INVALID_CONFIG, ErrorCode.INVALID_PARTITIONS):
                raise TableError(TableErrorCode.INVALID_TABLE, error.message) from None
            raise
        return topic.topic_id

    async def alter_table(
        self,
        path: TablePath,
        text: str,
        *,
        expected_schema_id: int = -1,
        check: Callable[[Mapping[str, str | None]], None] = lambda config: None,
    ) -> TableDefinition:
        """Carry out all changes of a list in JSON, or none; the table as it is then. `check` is asked for each set of
        configurations that would be changed. Raises TableError, and what `check` raises.

        Two ALTERs at once are carried out one after the other. Whoever else changes the topic's configuration
        meanwhile is found out by the metadata, which accepts a change of the schema only if it was made from
        the one that the table has at that moment; then it is worked out again.
        """
        changes = await self.reader.run(read_changes, text)
        async with self._altering:
            if path.partition is not None:
                raise TableError(
                    TableErrorCode.INVALID_TABLE,
                    f"{path} is a partition: alter table {path.whole}, and all of its partitions follow",
                )
            altered = await self._alter_table(path, changes, expected_schema_id, check)
        if altered.is_partitioned:
            await self.follow(altered)
        return altered

    async def _alter_table(
        self,
        path: TablePath,
        changes: Sequence[Change],
        expected_schema_id: int,
        check: Callable[[Mapping[str, str | None]], None],
    ) -> TableDefinition:
        while True:
            before = self.by_path(path)
            if expected_schema_id not in (-1, before.schema.schema_id):
                raise TableError(
                    TableErrorCode.SCHEMA_CHANGED,
                    f"table {path} has schema {before.schema.schema_id} by now, not {expected_schema_id}",
                )
            changed = await self.reader.run(changed_configs, before, changes)
            if not changed:
                return before
            check(changed)
            try:
                await self.context.topics.alter_config(path.topic, changed)
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
        if path.partition is not None:
            raise TableError(
                TableErrorCode.INVALID_TABLE,
                f"{path} is a partition: drop it with ALTER TABLE {path.whole} DROP PARTITION",
            )
        topic = self.context.metadata.topic(path.topic)
        if topic is None or not is_table(topic.config):
            if ignore_if_not_exists:
                return
            self.by_path(path)  # says what is wrong
            return
        self._definitions.pop(topic.topic_id, None)
        try:
            await self.context.topics.delete_topic(path.topic)
        except KafkaError as error:
            if error.code != ErrorCode.UNKNOWN_TOPIC_OR_PARTITION:
                raise
            if not ignore_if_not_exists:
                raise TableError(TableErrorCode.TABLE_NOT_FOUND, f"table {path} does not exist") from None
        if PARTITIONED_BY_CONFIG in topic.config:
            await self.drop_orphans()

    # -- partitions ----------------------------------------------------------------------------------------

    def partition_names(self, path: TablePath) -> list[str]:
        """The names of a table's partitions, in order."""
        prefix = f"{path.topic}."
        return [
            topic.name.removeprefix(prefix)
            for topic in self.context.metadata.topics()
            if topic.name.startswith(prefix) and is_partition(topic.config)
        ]

    def partitions(self, definition: TableDefinition) -> list[TableDefinition]:
        """A table's partitions in order of name. Raises TableError(NOT_PARTITIONED)."""
        check_partitioned(definition)
        found = []
        for name in self.partition_names(definition.path):
            topic = self.context.metadata.topic(definition.path.of_partition(name).topic)
            if topic is not None and topic.config[PARTITION_OF_CONFIG] == str(definition.table_id):
                found.append(self.definition(topic))
        return found

    async def create_partition(
        self, definition: TableDefinition, name: str, *, ignore_if_exists: bool
    ) -> TableDefinition:
        """Create a partition of a table. Raises TableError, and KafkaError(NOT_ENOUGH_REPLICAS) as long as brokers are
        missing: nobody has asked for a number of replicas here, and whoever writes tries again.
        """
        check_partitioned(definition)
        path = definition.of_partition(name, None).path
        for key, value in zip(definition.partition_keys, values_of(name), strict=True):
            canonical = spec_texts(definition, {key: value})[key]
            if canonical != value:
                raise TableError(
                    TableErrorCode.INVALID_PARTITION,
                    f"partition column '{key}': '{value}' is written '{canonical}'",
                )
        existing = self.context.metadata.topic(path.topic)
        if existing is None:
            self.check_room(definition)
            try:
                topic = await self.context.topics.create_topic(
                    path.topic, definition.bucket_count, definition.to_partition_config()
                )
            except KafkaError as error:
                if error.code is ErrorCode.INVALID_REPLICATION_FACTOR:
                    raise KafkaError(
                        ErrorCode.NOT_ENOUGH_REPLICAS, f"partition {path} cannot be made now: {error.message}"
                    ) from error
                if error.code not in (ErrorCode.TOPIC_ALREADY_EXISTS, ErrorCode.INVALID_CONFIG):
                    raise
                existing = self.context.metadata.topic(path.topic)
                if existing is None:
                    self.by_path(definition.path)
                    raise TableError(TableErrorCode.INVALID_PARTITION, error.message) from None
            else:
                return self.definition(topic)
        if not is_partition(existing.config):
            raise TableError(
                TableErrorCode.PARTITION_EXISTS,
                f"topic {path} is a plain topic, so that there can be no partition of this name",
            )
        if not ignore_if_exists:
            raise TableError(TableErrorCode.PARTITION_EXISTS, f"partition {path} exists already")
        return self.definition(existing)

    async def drop_partition(
        self,
        definition: TableDefinition,
        name: str,
        *,
        ignore_if_not_exists: bool,
        only_while: Callable[[], bool] | None = None,
    ) -> None:
        """Delete a partition, its rows and its log; `only_while` as of a topic. Raises TableError(PARTITION_NOT_FOUND),
        KafkaError.
        """
        check_partitioned(definition)
        path = definition.path.of_partition(name)
        topic = self.context.metadata.topic(path.topic)
        if topic is not None and is_partition(topic.config):
            self._definitions.pop(topic.topic_id, None)
            try:
                await self.context.topics.delete_topic(path.topic, only_while)
            except KafkaError as error:
                if error.code != ErrorCode.UNKNOWN_TOPIC_OR_PARTITION:
                    raise
            else:
                return
        if not ignore_if_not_exists:
            raise TableError(TableErrorCode.PARTITION_NOT_FOUND, f"partition {path} does not exist")

    async def follow(self, definition: TableDefinition) -> None:
        """Bring what Kafka's log goes by (retention, ...) to every partition; what a crash leaves out is done at the
        next check.
        """
        wanted = definition.to_partition_config()
        for partition in self.partitions(definition):
            topic = self.context.metadata.topic(partition.path.topic)
            if topic is None or topic.config == wanted:
                continue
            changed: dict[str, str | None] = {
                name: wanted.get(name)
                for name in {*topic.config, *wanted}
                if topic.config.get(name) != wanted.get(name)
            }
            try:
                await self.context.topics.alter_config(partition.path.topic, changed)
            except KafkaError as error:
                if error.code != ErrorCode.UNKNOWN_TOPIC_OR_PARTITION:
                    raise

    async def drop_orphans(self) -> None:
        """Delete partitions whose table is gone: it was dropped through Kafka, or a crash came between."""
        for topic in self.context.metadata.topics():
            if not is_partition(topic.config):
                continue
            try:
                self._table_of(topic)
            except TableError:
                self._definitions.pop(topic.topic_id, None)
                try:
                    await self.context.topics.delete_topic(topic.name)
                except KafkaError as error:
                    if error.code != ErrorCode.UNKNOWN_TOPIC_OR_PARTITION:
                        raise


def no_table_with_id(table_id: UUID) -> TableError:
    return TableError(
        TableErrorCode.TABLE_NOT_FOUND, f"there is no table with id {table_id}; it may have been dropped"
    )
