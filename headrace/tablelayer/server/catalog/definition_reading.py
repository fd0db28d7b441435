"""Definitions as texts and configurations: their maximum size, and the thread that reads them."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Mapping, Sequence
from concurrent.futures import Executor
from dataclasses import replace
from typing import TYPE_CHECKING, Any, TypeVar

from headrace.broker.configs.topics import TOPIC_CONFIGS
from headrace.tablelayer.model.errors import TableError, TableErrorCode, invalid_table
from headrace.tablelayer.model.options.lake_options import ICEBERG_PREFIX, PAIMON_PREFIX
from headrace.tablelayer.model.options.table_options import (
    SERVER_BUCKET_COUNT,
    TableOptions,
    is_table_option,
    parse,
)
from headrace.tablelayer.model.schema.schema import FIRST_SCHEMA_ID
from headrace.tablelayer.model.table.definition import HISTORY_CONFIG, TableDefinition
from headrace.tablelayer.model.table.evolution import Change, ResetOptions, changes_from_json, evolve
from headrace.tablelayer.model.table.lake_shape import lake_complaint
from headrace.tablelayer.model.table.path import TablePath
from headrace.tablelayer.model.topic_config import changed_table, from_topic_config
from headrace.tablelayer.server.lake_formats import NO_LAKES, ServerLakes

if TYPE_CHECKING:
    from headrace.broker.runtime.ports import Threads

DEFINITION_BYTES_MAX = 1_000_000
"""Maximum size of a table's configuration, with earlier schemas, and of a statement in JSON: the size of a ZooKeeper
node."""

Result = TypeVar("Result")


class DefinitionReader:
    """A thread that reads definitions one by one: the largest take seconds, and must not block other work."""

    def __init__(self, threads: Threads) -> None:
        self._threads = threads
        self._thread: Executor | None = None

    async def run(self, work: Callable[..., Result], *arguments: Any) -> Result:
        if self._thread is None:
            self._thread = self._threads.pool(1, "table-definitions")
        return await asyncio.get_running_loop().run_in_executor(self._thread, work, *arguments)


class ReadConfig(dict[str, str]):
    """A table's configuration in normal form, with its definition, so that it need not be read again."""

    def __init__(self, definition: TableDefinition) -> None:
        super().__init__(definition.to_topic_config())
        _check_config_size(definition.path, self)
        self.definition = definition


def read_definition(text: str, default_bucket_count: int) -> tuple[TablePath, int, dict[str, str]]:
    _check_size("the definition", text)
    definition = TableDefinition.from_json(text)
    if definition.bucket_count == SERVER_BUCKET_COUNT:
        definition = replace(definition, bucket_count=default_bucket_count)
    return definition.path, definition.bucket_count, definition.to_topic_config()


def read_changes(text: str) -> tuple[Change, ...]:
    _check_size("the list of changes", text)
    return changes_from_json(text)


def changed_configs(before: TableDefinition, changes: Sequence[Change]) -> tuple[dict[str, str | None], int]:
    """Return the configurations that change, and the number of buckets. Raises TableError."""
    for change in changes:
        for name in change.names if isinstance(change, ResetOptions) else ():
            known = name in before.options or name in TOPIC_CONFIGS or is_table_option(name)
            if not known and not name.startswith((ICEBERG_PREFIX, PAIMON_PREFIX)):
                raise invalid_table(f"table {before.path} has no option '{name}'")
    after = evolve(before, changes)
    new, old = after.to_topic_config(), before.to_topic_config()
    changed = {name: new.get(name) for name in {*old, *new} if old.get(name) != new.get(name)}
    return changed, after.bucket_count


def read_new(
    path: TablePath, partitions: int, config: Mapping[str, str], lakes: ServerLakes = NO_LAKES
) -> ReadConfig:
    """Read a new table's configuration, and record the server's lake format in it."""
    _check_config_size(path, config)
    definition = _new_definition(path, partitions, config, lakes)
    if HISTORY_CONFIG in config or definition.schema.schema_id != FIRST_SCHEMA_ID:
        raise TableError(
            TableErrorCode.INVALID_TABLE,
            f"table {path} is new: it must have no '{HISTORY_CONFIG}', and schema id {FIRST_SCHEMA_ID}",
        )
    wrong = lake_complaint(definition) or lakes.complaint(definition)
    if wrong is not None:
        raise TableError(TableErrorCode.INVALID_TABLE, wrong)
    return ReadConfig(definition)


def _new_definition(
    path: TablePath, partitions: int, config: Mapping[str, str], lakes: ServerLakes
) -> TableDefinition:
    """Return a new table in the server's lake format, so that the lake may be enabled at any time.

    A table that is not tiered and cannot have its buckets in that format has none.
    """
    with_format = lakes.choose(config)
    if with_format == config or TableOptions.datalake_enabled.name in config:
        return from_topic_config(path, partitions, with_format)
    try:
        return from_topic_config(path, partitions, with_format)
    except TableError:
        return from_topic_config(path, partitions, config)


def read_changed(
    path: TablePath,
    partitions: int,
    old: Mapping[str, str],
    new: Mapping[str, str],
    lakes: ServerLakes = NO_LAKES,
) -> ReadConfig:
    """Read a table's changed configuration; the server's lake format is recorded when the lake is enabled."""
    _check_config_size(path, new)
    if not _is_tiered(new):
        return ReadConfig(changed_table(path, partitions, old, new))
    definition = changed_table(path, partitions, old, lakes.choose(new))
    wrong = None if _is_tiered(old) else lakes.complaint(definition)
    if wrong is not None:
        raise TableError(TableErrorCode.INVALID_TABLE, wrong)
    return ReadConfig(definition)


def _is_tiered(config: Mapping[str, str]) -> bool:
    name = TableOptions.datalake_enabled.name
    return bool(parse(name, config.get(name, "false")))


def _check_size(what: str, text: str) -> None:
    size = len(text.encode(errors="replace"))
    if size > DEFINITION_BYTES_MAX:
        raise TableError(
            TableErrorCode.INVALID_TABLE, f"{what} has {size} bytes; the maximum is {DEFINITION_BYTES_MAX}"
        )


def _check_config_size(path: TablePath, config: Mapping[str, str]) -> None:
    sizes = {name: len(name) + len(text.encode(errors="replace")) for name, text in config.items()}
    size = sum(sizes.values())
    if size > DEFINITION_BYTES_MAX:
        raise TableError(
            TableErrorCode.INVALID_TABLE,
            f"the definition of table {path} has {size} bytes ({sizes.get(HISTORY_CONFIG, 0)} for earlier "
            f"schemas); the maximum is {DEFINITION_BYTES_MAX}",
        )
