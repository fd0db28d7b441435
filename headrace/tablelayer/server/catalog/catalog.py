"""Tables, and the databases that they are in. A table is a topic with a `table.schema`.

A table needs an existing database, also when a Kafka admin client creates it. Tables are read from the broker's topics.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable, Mapping, Sequence
from typing import TYPE_CHECKING, TypeVar
from uuid import UUID

from headrace.broker.metadata.nodes import follow
from headrace.protocol.errors import ErrorCode, KafkaError
from headrace.tablelayer.model.errors import NO_TABLE_WITH_ID, TableError, TableErrorCode
from headrace.tablelayer.model.options.table_options import DEFAULT_BUCKET_COUNT_CONFIG
from headrace.tablelayer.model.table.definition import (
    PARTITION_OF_CONFIG,
    PARTITIONED_BY_CONFIG,
    SCHEMA_CONFIG,
    StoredTable,
)
from headrace.tablelayer.model.table.evolution import Change
from headrace.tablelayer.model.table.partition_keys import values_of
from headrace.tablelayer.model.table.partitions import check_partitioned, spec_texts
from headrace.tablelayer.model.table.path import TablePath
from headrace.tablelayer.model.topic_config import from_topic_config
from headrace.tablelayer.server.catalog.databases import DATABASES, Databases
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


def is_table(config: Mapping[str, str]) -> bool:
    """Return whether a topic is a table, not a partition of one."""
    return SCHEMA_CONFIG in config


def is_partition(config: Mapping[str, str]) -> bool:
    return PARTITION_OF_CONFIG in config


def _has_rows(config: Mapping[str, str]) -> bool:
    return is_table(config) or is_partition(config)


class Catalog:
    def __init__(self) -> None:
        self._altering = asyncio.Lock()
        self._context: BrokerContext | None = None
        self._not_understood: dict[UUID, TopicImage] = {}
        self._definitions: dict[UUID, tuple[TopicImage, TopicImage, StoredTable]] = {}
        self.reader: DefinitionReader
        """Set by `load`."""
        self.databases: Databases
        """Set by `load`."""

    @property
    def max_partitions(self) -> int:
        """Maximum number of partitions of one table."""
        most: int = self.context.config[MAX_PARTITIONS_CONFIG]
        return most

    async def load(self, context: BrokerContext) -> None:
        self._context = context
        self.reader = DefinitionReader(context.threads)
        self.databases = Databases(context, self.tables, self._drop_existing)
        await self.databases.read()

    async def run(self) -> None:
        """Follow other brokers' changes of databases, until cancelled."""
        await follow(self.context.store, DATABASES, self.databases.read)

    async def refreshed(self) -> bool:
        """Read all earlier changes of other brokers. Return False if there are no other brokers."""
        metadata = self.context.metadata
        if metadata.is_alone:
            return False
        await self.databases.read()
        await self.context.following.refreshed()
        return True

    @property
    def context(self) -> BrokerContext:
        if self._context is None:
            raise RuntimeError("the catalog is used before it was loaded")
        return self._context

    def check_room(self, definition: StoredTable) -> None:
        """Raise TableError(TOO_MANY_PARTITIONS) if a table cannot have another partition."""
        count, most = len(self.partition_names(definition.path)), self.max_partitions
        if count >= most:
            raise TableError(
                TableErrorCode.TOO_MANY_PARTITIONS,
                f"table {definition.path} has {count} partitions; the maximum ({MAX_PARTITIONS_CONFIG}) is {most}: "
                "drop some, or raise the broker's configuration",
            )

    # -- tables --------------------------------------------------------------------------------------------

    def tables(self, database: str) -> list[str]:
        """Return the names of a database's tables, in order; an unknown database has none."""
        prefix = f"{database}."
        return [name.removeprefix(prefix) for name in self.table_topics(prefix)]

    def table_topics(self, prefix: str) -> list[str]:
        """Return the topics of tables whose names begin with `prefix`, in order."""
        found = self.context.metadata.topics_beginning_with(prefix)
        return [topic.name for topic in found if is_table(topic.config)]

    def is_table_topic(self, name: str) -> bool:
        topic = self.context.metadata.topic(name)
        return topic is not None and is_table(topic.config)

    def table_of_partition(self, topic: str) -> str | None:
        """Return the topic of the table that a topic is a partition of; None if the topic is not a partition."""
        if topic.count(".") < 2:  # a quick answer for nearly all topics
            return None
        image = self.context.metadata.topic(topic)
        return ".".join(topic.split(".", 2)[:2]) if image is not None and is_partition(image.config) else None

    def all_tables(self, setting: str = SCHEMA_CONFIG) -> list[StoredTable]:
        """Return all tables, or those that set an option, by name. Topics that do not set it cost nothing.

        Left out are partitions, and tables whose definition cannot be read (they are offline).
        """
        found = []
        for topic in self.context.metadata.topics_that_set(setting):
            if is_table(topic.config) and self._not_understood.get(topic.topic_id) is not topic:
                try:
                    found.append(self.definition(topic))
                except Exception as error:  # noqa: BLE001 - one bad table must not affect the others
                    logger.error("table %s is ignored, its definition cannot be read: %s", topic.name, error)
                    self._not_understood[topic.topic_id] = topic
        return found

    def definition(self, topic: TopicImage) -> StoredTable:
        """Return the table or partition that a topic is. Thread-safe.

        Raises TableError(TABLE_NOT_FOUND) for a partition whose table is gone.
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
                else _read(path, topic)
            )
        else:
            assert path.partition is not None
            whole = self.definition(table)
            definition = whole.of_partition(path.partition, topic.topic_id, topic.partition_count)
        self._definitions[topic.topic_id] = (topic, table, definition)
        return definition

    def _table_of(self, topic: TopicImage) -> TopicImage:
        """Return the topic that has the definition: `topic` itself, or its table's topic if it is a partition."""
        if not is_partition(topic.config):
            return topic
        name = ".".join(topic.name.split(".", 2)[:2])
        table = self.context.metadata.topic(name)
        if table is None or str(table.topic_id) != topic.config[PARTITION_OF_CONFIG]:
            raise TableError(
                TableErrorCode.TABLE_NOT_FOUND, f"the table of partition {topic.name}, {name}, was dropped"
            )
        return table

    def bucket_count(self, path: TablePath) -> int:
        """Return the number of buckets of a table or partition; 0 if it does not exist."""
        topic = self.context.metadata.topic(path.topic)
        return 0 if topic is None else topic.partition_count

    def by_path(self, path: TablePath) -> StoredTable:
        """Return a table or partition. Raises TableError: DATABASE_NOT_FOUND, TABLE_NOT_FOUND."""
        topic = self.context.metadata.topic(path.topic)
        if topic is None or not _has_rows(topic.config):
            self.databases.check(path.database)
            what = "is a plain topic, not a table" if topic is not None else "does not exist"
            raise TableError(TableErrorCode.TABLE_NOT_FOUND, f"table {path} {what}")
        return self.definition(topic)

    def by_id(self, table_id: UUID) -> StoredTable:
        """Return a table or partition. Raises TableError(TABLE_NOT_FOUND)."""
        topic = self.context.metadata.topic_by_id(table_id)
        known = self._definitions.get(table_id)
        if known is not None and known[0] is topic and known[1] is topic:
            return known[2]  # a table that has not changed: most requests end here
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
    ) -> TopicImage:
        """Create the table of a definition in JSON; return its topic.

        `check` is called first, once path, buckets and configuration are known. Raises TableError, and what `check`
        raises.
        """
        default = self.context.config[DEFAULT_BUCKET_COUNT_CONFIG]
        path, buckets, config = await self.reader.run(read_definition, text, default)
        check(path, buckets, config)
        self.databases.check(path.database)
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
                    return existing
                raise TableError(TableErrorCode.TABLE_EXISTS, f"table {path} exists already") from None
            if error.code in (ErrorCode.INVALID_CONFIG, ErrorCode.INVALID_PARTITIONS):
                raise TableError(TableErrorCode.INVALID_TABLE, error.message) from None
            raise
        return topic

    async def alter_table(
        self,
        path: TablePath,
        text: str,
        *,
        expected_schema_id: int = -1,
        check: Callable[[Mapping[str, str | None], int], None] = lambda config, added: None,
    ) -> StoredTable:
        """Apply all changes of a list in JSON, or none; return the altered table.

        `check` is called with each set of changed configurations and the number of added buckets. Raises TableError,
        and what `check` raises.

        Concurrent ALTERs run one after the other. If another request changes the topic's configuration meanwhile, the
        metadata rejects the change, because it was not made from the current schema. It is then computed again.
        """
        changes = await self.reader.run(read_changes, text)
        async with self._altering:
            if path.partition is not None:
                raise TableError(
                    TableErrorCode.INVALID_TABLE,
                    f"{path} is a partition: alter table {path.whole}; its partitions follow",
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
        check: Callable[[Mapping[str, str | None], int], None],
    ) -> StoredTable:
        while True:
            before = self.by_path(path)
            if expected_schema_id not in (-1, before.schema.schema_id):
                raise TableError(
                    TableErrorCode.SCHEMA_CHANGED,
                    f"table {path} now has schema {before.schema.schema_id}, not {expected_schema_id}",
                )
            changed, buckets = await self.reader.run(changed_configs, before, changes)
            added = buckets - before.bucket_count
            if not changed and not added:
                return before
            check(changed, added)
            topics = self.context.topics
            try:
                if added:
                    await topics.create_partitions(path.topic, buckets, changes=changed)
                else:
                    await topics.alter_config(path.topic, changed)
            except KafkaError as error:
                if error.code == ErrorCode.UNKNOWN_TOPIC_OR_PARTITION:
                    raise TableError(TableErrorCode.TABLE_NOT_FOUND, f"table {path} does not exist") from None
                refused = ErrorCode.INVALID_CONFIG, ErrorCode.INVALID_REQUEST, ErrorCode.INVALID_PARTITIONS
                if error.code not in refused:
                    raise
                now = self.by_path(path)
                if (now.schema.schema_id, now.bucket_count) != (before.schema.schema_id, before.bucket_count):
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
            self.by_path(path)  # raises the exact error
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

    async def _drop_existing(self, path: TablePath) -> None:
        await self.drop_table(path, ignore_if_not_exists=True)

    # -- partitions ----------------------------------------------------------------------------------------

    def partition_names(self, path: TablePath) -> list[str]:
        """Return the names of a table's partitions, in order."""
        prefix = f"{path.topic}."
        return [
            topic.name.removeprefix(prefix)
            for topic in self.context.metadata.topics_beginning_with(prefix)
            if is_partition(topic.config)
        ]

    def partitions(self, definition: StoredTable) -> list[StoredTable]:
        """Return a table's partitions in order of name. Raises TableError(NOT_PARTITIONED)."""
        check_partitioned(definition)
        found = []
        for name in self.partition_names(definition.path):
            topic = self.context.metadata.topic(definition.path.of_partition(name).topic)
            if topic is not None and topic.config[PARTITION_OF_CONFIG] == str(definition.table_id):
                found.append(self.definition(topic))
        return found

    async def create_partition(
        self, definition: StoredTable, name: str, *, ignore_if_exists: bool
    ) -> StoredTable:
        """Create a partition of a table.

        Raises TableError, and KafkaError(NOT_ENOUGH_REPLICAS) while brokers are missing. That error is retriable: the
        client did not choose the number of replicas, and a writer tries again.
        """
        check_partitioned(definition)
        path = definition.path_of_partition(name)
        for key, value in zip(definition.partition_keys, values_of(name), strict=True):
            canonical = spec_texts(definition, {key: value})[key]
            if canonical != value:
                raise TableError(
                    TableErrorCode.INVALID_PARTITION,
                    f"partition column '{key}': '{value}' must be written '{canonical}'",
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
                        ErrorCode.NOT_ENOUGH_REPLICAS,
                        f"partition {path} cannot be created now: {error.message}",
                    ) from error
                if error.code not in (ErrorCode.TOPIC_ALREADY_EXISTS, ErrorCode.INVALID_CONFIG):
                    raise
                existing = self.context.metadata.topic(path.topic)
                if existing is None:
                    now = self.by_path(definition.path)
                    if now.bucket_count != definition.bucket_count:
                        return await self.create_partition(now, name, ignore_if_exists=ignore_if_exists)
                    raise TableError(TableErrorCode.INVALID_PARTITION, error.message) from None
            else:
                return self.definition(topic)
        if not is_partition(existing.config):
            raise TableError(
                TableErrorCode.PARTITION_EXISTS,
                f"{path} is a plain topic: choose another partition, or delete the topic",
            )
        if not ignore_if_exists:
            raise TableError(TableErrorCode.PARTITION_EXISTS, f"partition {path} exists already")
        return self.definition(existing)

    async def drop_partition(
        self,
        definition: StoredTable,
        name: str,
        *,
        ignore_if_not_exists: bool,
        only_while: Callable[[], bool] | None = None,
    ) -> None:
        """Delete a partition, its rows and its log; for `only_while` see `delete_topic`.

        Raises TableError(PARTITION_NOT_FOUND), KafkaError.
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

    async def follow(self, definition: StoredTable) -> None:
        """Copy the configurations of Kafka's log (retention, ...) to every partition.

        The next check completes it after a crash.
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
        """Delete partitions whose table is gone: it was dropped through Kafka, or dropping stopped in a crash."""
        for topic in self.context.metadata.topics_that_set(PARTITION_OF_CONFIG):
            if self.is_orphan(topic):
                self._definitions.pop(topic.topic_id, None)
                try:
                    await self.context.topics.delete_topic(topic.name)
                except KafkaError as error:
                    if error.code != ErrorCode.UNKNOWN_TOPIC_OR_PARTITION:
                        raise

    def is_orphan(self, topic: TopicImage) -> bool:
        """Return whether a topic is a partition whose table is gone."""
        try:
            self._table_of(topic)
        except TableError:
            return True
        return False


def no_table_with_id(table_id: UUID) -> TableError:
    return TableError(
        TableErrorCode.TABLE_NOT_FOUND,
        f"{NO_TABLE_WITH_ID} {table_id}: it was dropped after it was opened; open it again if it exists",
    )


def _read(path: TablePath, topic: TopicImage) -> StoredTable:
    """Read the stored definition of a table. Raises TableError(INVALID_TABLE) that names the table."""
    try:
        return from_topic_config(path, topic.partition_count, topic.config).with_id(topic.topic_id)
    except TableError as error:
        raise TableError(
            error.code, f"the definition of table {path} cannot be read: {error.message}"
        ) from error
