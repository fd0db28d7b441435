"""Checks of topic configurations: of tables, partitions of tables, and plain topics.

The broker calls them for every new or altered topic, also from Kafka clients. They return the configuration in normal
form, so that equal tables have equal configurations.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from typing import TYPE_CHECKING

from headrace.protocol.errors import ErrorCode, KafkaError
from headrace.tablelayer.model.errors import TableError, TableErrorCode
from headrace.tablelayer.model.lake.topic_options import PREFIX, TopicOptions
from headrace.tablelayer.model.lake.topics import TopicLake, is_tiered_topic
from headrace.tablelayer.model.options.kafka_formats import AvroSchemaPlace, KafkaValueFormat
from headrace.tablelayer.model.options.table_options import TableOptions, is_table_option
from headrace.tablelayer.model.table.definition import (
    PARTITION_OF_CONFIG,
    PARTITIONED_BY_CONFIG,
    SCHEMA_CONFIG,
    TableDefinition,
)
from headrace.tablelayer.model.table.evolution import check_bucket_count
from headrace.tablelayer.model.table.partition_keys import values_of
from headrace.tablelayer.model.table.partitions import check_partitioned, spec_texts
from headrace.tablelayer.model.table.path import DEFAULT_DATABASE, TablePath
from headrace.tablelayer.server.catalog.catalog import MAX_PARTITIONS_CONFIG, Catalog, is_partition, is_table
from headrace.tablelayer.server.catalog.definition_reading import read_changed, read_new
from headrace.tablelayer.server.kafka_view.schema_registry import REGISTRY_URL, RegistryHosts
from headrace.tablelayer.server.lake_formats import ServerLakes, server_lakes
from headrace.tablelayer.server.lake_options import ALLOWED_CONFIG, check_lake_options

if TYPE_CHECKING:
    from headrace.broker.partitions.topic import TopicImage

PARTITION_PREFIX = re.compile(r"([A-Za-z0-9_-]+\.[A-Za-z0-9_-]+)\..+")
"""A topic with more than one dot in its name; the first group would be its table."""


class TopicChecks:
    """The part of a `broker.replication.topic_policy.TopicPolicy` that checks configurations."""

    def __init__(self, catalog: Catalog) -> None:
        self._catalog = catalog

    async def validate_topic(self, topic: str, partitions: int, config: Mapping[str, str]) -> dict[str, str]:
        """Return the configuration of a new topic in normal form. Raises KafkaError(INVALID_CONFIG)."""
        if PARTITION_OF_CONFIG in config:
            return self._validate_partition(topic, partitions, config)
        if not is_table(config):
            _refuse_table_options(topic, config)
            self._refuse_name_of_partition(topic)
            return self._with_topic_lake(topic, config)
        try:
            path = _table_path(topic)
            _refuse_topic_lake(config)
            _refuse_record_options(config)
            self._catalog.databases.check(path.database)
            normal = await self._catalog.reader.run(read_new, path, partitions, config, self._lakes)
            self._check_registry(normal.definition)
            self._check_precreated(normal.definition)
            check_lake_options(normal, self._catalog.context.config[ALLOWED_CONFIG])
        except TableError as error:
            raise KafkaError(ErrorCode.INVALID_CONFIG, error.message) from None
        return normal

    @property
    def _lakes(self) -> ServerLakes:
        return server_lakes(self._catalog.context.config)

    def _with_topic_lake(
        self, topic: str, config: Mapping[str, str], before: Mapping[str, str] | None = None
    ) -> dict[str, str]:
        """Return a plain topic's configuration with the lake's format recorded; `before`: the one until now.

        Raises KafkaError(INVALID_CONFIG).
        """
        _check_topic_lake(topic, config)
        if not is_tiered_topic(config) or is_tiered_topic(before or {}):
            return dict(config)
        chosen = self._lakes.choose(config, TopicOptions.format.name)
        wrong = self._lakes.topic_complaint(topic, TopicLake.parse(topic, chosen).format)
        if wrong is not None:
            raise KafkaError(ErrorCode.INVALID_CONFIG, wrong)
        return dict(chosen)

    def _check_registry(self, definition: TableDefinition) -> None:
        """Raise TableError if Avro values need a registry that is missing or not allowed."""
        settings = definition.settings
        if settings.kafka_value_format is not KafkaValueFormat.AVRO:
            return
        if settings.avro_registry is not None:
            complaint = RegistryHosts(self._catalog.context.config).complaint(settings.avro_registry)
            if complaint is not None:
                raise TableError(TableErrorCode.INVALID_TABLE, complaint)
            return
        if (
            settings.avro_schema is AvroSchemaPlace.REGISTRY
            and not self._catalog.context.config[REGISTRY_URL]
        ):
            raise TableError(
                TableErrorCode.INVALID_TABLE,
                f"table {definition.path} has Avro values, but no schema registry: set one for the table "
                f"('{TableOptions.avro_registry.name}') or the server ('{REGISTRY_URL}'), or set "
                f"'{TableOptions.avro_schema.name}' = '{AvroSchemaPlace.RECORD}'",
            )

    def _validate_partition(self, topic: str, partitions: int, config: Mapping[str, str]) -> dict[str, str]:
        """Return a new partition's configuration; its table must exist and have the given id. Raises KafkaError."""
        try:
            path = TablePath.parse(topic)
            if path.partition is None:
                raise TableError(TableErrorCode.INVALID_TABLE, f"'{topic}' does not name a partition")
            definition = self._catalog.by_path(path.whole)
            if config[PARTITION_OF_CONFIG] != str(definition.table_id):
                raise TableError(
                    TableErrorCode.TABLE_NOT_FOUND,
                    f"'{PARTITION_OF_CONFIG}' is {config[PARTITION_OF_CONFIG]}, but table {path.whole} has the id "
                    f"{definition.table_id}",
                )
            check_partitioned(definition)
            definition.path_of_partition(path.partition)
            if partitions != definition.bucket_count:
                raise TableError(
                    TableErrorCode.INVALID_TABLE,
                    f"a partition of table {path.whole} has {definition.bucket_count} buckets, not {partitions}",
                )
            for key, value in zip(definition.partition_keys, values_of(path.partition), strict=True):
                spec_texts(definition, {key: value})
            self._catalog.check_room(definition)
        except TableError as error:
            raise KafkaError(ErrorCode.INVALID_CONFIG, error.message) from None
        return definition.to_partition_config()

    def _check_precreated(self, definition: TableDefinition) -> None:
        """Raise TableError if more partitions are to be precreated than a table may have."""
        count, most = definition.settings.auto_partition_precreate or 0, self._catalog.max_partitions
        if count > most:
            raise TableError(
                TableErrorCode.INVALID_TABLE,
                f"option '{TableOptions.auto_partition_precreate.name}' = '{count}': a table may have {most} "
                f"partitions ({MAX_PARTITIONS_CONFIG} of the broker); choose a number up to that",
            )

    def _refuse_name_of_partition(self, topic: str) -> None:
        """Raise KafkaError if a plain topic would have the name of a partition."""
        match = PARTITION_PREFIX.fullmatch(topic)
        if match is None:
            return
        table = self._catalog.context.metadata.topic(match.group(1))
        if table is not None and PARTITIONED_BY_CONFIG in table.config:
            raise KafkaError(
                ErrorCode.INVALID_TOPIC_EXCEPTION,
                f"'{topic}' would be a partition of table {table.name}: add it with ALTER TABLE {table.name} ADD "
                f"PARTITION, or produce to {table.name}",
            )

    async def validate_change(
        self, topic: TopicImage, partitions: int, config: Mapping[str, str]
    ) -> dict[str, str]:
        """Return the new configuration of an existing topic in normal form. Raises KafkaError."""
        if is_partition(topic.config):
            return self._validate_partition_change(topic, partitions, config)
        if not is_table(topic.config):
            if is_table(config) or PARTITION_OF_CONFIG in config:
                raise KafkaError(
                    ErrorCode.INVALID_CONFIG,
                    f"topic {topic.name!r} was created without '{SCHEMA_CONFIG}' and cannot become a table",
                )
            _refuse_table_options(topic.name, config)
            wanted = self._with_topic_lake(topic.name, config, topic.config)
            _check_fixed_in_lake(topic, wanted)
            return wanted
        try:
            check_bucket_count(self._catalog.definition(topic), partitions)
        except TableError as error:
            raise KafkaError(ErrorCode.INVALID_PARTITIONS, error.message) from None
        try:
            _refuse_record_options(config)
            _refuse_topic_lake(config)
            path = TablePath.parse(topic.name)
            normal = await self._catalog.reader.run(
                read_changed, path, partitions, topic.config, config, self._lakes
            )
            self._check_precreated(normal.definition)
        except TableError as error:
            raise KafkaError(ErrorCode.INVALID_CONFIG, error.message) from None
        return normal

    def _validate_partition_change(
        self, topic: TopicImage, partitions: int, config: Mapping[str, str]
    ) -> dict[str, str]:
        if partitions != topic.partition_count:
            raise KafkaError(
                ErrorCode.INVALID_PARTITIONS,
                f"{topic.name} has {topic.partition_count} buckets, which cannot change: "
                "its rows are placed by that number",
            )
        given = sorted(name for name in config if is_table_option(name) and name != PARTITION_OF_CONFIG)
        if given or config.get(PARTITION_OF_CONFIG) != topic.config[PARTITION_OF_CONFIG]:
            raise KafkaError(
                ErrorCode.INVALID_CONFIG,
                f"{topic.name} is a partition: '{given[0] if given else PARTITION_OF_CONFIG}' is set for the table",
            )
        try:
            _refuse_record_options(config)
        except TableError as error:
            raise KafkaError(ErrorCode.INVALID_CONFIG, error.message) from None
        return dict(config)


def _table_path(topic: str) -> TablePath:
    if topic.count(".") != 1:
        raise TableError(
            TableErrorCode.INVALID_TABLE,
            f"a topic with '{SCHEMA_CONFIG}' is a table and is named database.table, for example "
            f"'{DEFAULT_DATABASE}.{topic.replace('.', '_')}'; '{topic}' is not",
        )
    return TablePath.parse(topic)


_RECORD_OPTIONS = {"cleanup.policy": "delete", "compression.type": "producer"}
"""Configurations of Kafka records, which a table's log does not have; each with the value that has no effect."""


def _refuse_record_options(config: Mapping[str, str]) -> None:
    for name, harmless in _RECORD_OPTIONS.items():
        if config.get(name, harmless).strip() != harmless:
            raise TableError(
                TableErrorCode.INVALID_TABLE,
                f"{name}={config[name]} is for plain topics; a table cannot have it. "
                "A table with a primary key keeps the last row of each key by itself",
            )


def _check_topic_lake(topic: str, config: Mapping[str, str]) -> None:
    """Check the `datalake.*` configurations of a plain topic. Raises KafkaError(INVALID_CONFIG)."""
    if any(name.startswith(PREFIX) for name in config):
        try:
            TopicLake.parse(topic, config)
        except TableError as error:
            raise KafkaError(ErrorCode.INVALID_CONFIG, error.message) from None


def _check_fixed_in_lake(topic: TopicImage, config: Mapping[str, str]) -> None:
    """Raise KafkaError if the lake table's place or format would change while the topic is tiered."""
    if not (is_tiered_topic(topic.config) and is_tiered_topic(config)):
        return
    for name in (
        TopicOptions.table.name,
        TopicOptions.value_format.name,
        TopicOptions.primary_key.name,
        TopicOptions.format.name,
    ):
        if config.get(name) != topic.config.get(name):
            raise KafkaError(
                ErrorCode.INVALID_CONFIG,
                f"'{name}' of topic {topic.name!r} is {topic.config.get(name)!r} while it is tiered: set "
                f"'{TopicOptions.enabled.name}' to false first, then choose another lake table or drop this one",
            )


def _refuse_topic_lake(config: Mapping[str, str]) -> None:
    given = sorted(name for name in config if name.startswith(PREFIX))
    if given:
        raise TableError(
            TableErrorCode.INVALID_TABLE,
            f"'{given[0]}' is for plain topics; a table is tiered by '{TableOptions.datalake_enabled.name}' = 'true'",
        )


def _refuse_table_options(topic: str, config: Mapping[str, str]) -> None:
    given = sorted(name for name in config if is_table_option(name))
    if given:
        raise KafkaError(
            ErrorCode.INVALID_CONFIG,
            f"topic {topic!r} has '{given[0]}' but no '{SCHEMA_CONFIG}': only tables have such options",
        )
