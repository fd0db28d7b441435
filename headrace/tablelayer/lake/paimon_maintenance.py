"""Compaction and expiry of a Paimon table that is tiered into.

Both are Paimon's own, called so that the tiered offsets can still be found. `compact` only prepares: its caller commits
the result as a round with the present offsets. Paimon chooses the files to merge by the table's options
(`num-sorted-run.compaction-trigger`, `compaction.min.file-num`, `target-file-size`); with the changelog producer
`full-compaction` it takes every file of a bucket. Expiry uses `snapshot.num-retained.*` and `snapshot.time-retained`.

`expired_partitions` only finds them: Paimon's own expiry would commit without the tiered offsets, and past a round of
another tiering job.
"""

from __future__ import annotations

import datetime
from collections import defaultdict
from collections.abc import Sequence
from pathlib import Path
from typing import Any
from zoneinfo import ZoneInfo

from headrace.tablelayer.lake.paimon_columns import filled_on_read
from headrace.tablelayer.lake.paimon_jvm import Jvm
from headrace.tablelayer.lake.paimon_read import data_files
from headrace.tablelayer.model.table.definition import TableDefinition
from headrace.tablelayer.model.table.partition_expiry import time_options
from headrace.tablelayer.model.table.partition_keys import values_of
from headrace.tablelayer.model.types.column_types import TypeKind

COMPACT_FILES_PER_BUCKET = 5
"""Number of new files, or sorted runs, in a bucket before Paimon is asked to compact; Paimon's default."""


def has_deletion_vectors(table: Any) -> bool:
    """Return whether other engines see only what compaction has moved out of level 0."""
    return bool(table.coreOptions().deletionVectorsEnabled())


def compact(
    jvm: Jvm, table: Any, definition: TableDefinition, snapshot: int, user: str, scratch: Path
) -> tuple[list[Any], str]:
    """Prepare the compaction that Paimon wants at `snapshot`.

    Return its commit messages (none if there is nothing to do) and a readable summary.
    """
    files = data_files(table, snapshot)
    runs: dict[tuple[str, int], set[object]] = defaultdict(set)
    for file in files:
        runs[file.bucket].add(file.run if definition.is_primary_key_table else file.path)
    partitions = {file.bucket: file.partition for file in files}
    unseen = {file.bucket for file in files if file.run[0] == 0} if has_deletion_vectors(table) else set()
    wanted = [
        (partitions[bucket], bucket[1])
        for bucket, each in sorted(runs.items())
        if len(each) >= COMPACT_FILES_PER_BUCKET or bucket in unseen
    ]
    if not wanted:
        return [], ""
    if filled_on_read(table, definition, (file.schema_id for file in files)):
        return [], "not compacted: older rows have defaults of new columns that Paimon would not keep"
    writing = table.copy(jvm.map_of({"write-only": "false"}))
    if definition.bucket_key:
        messages = _compact_buckets(jvm, writing, wanted, user, scratch)
    else:
        messages = _compact_appended(jvm, writing, user)
    taken = sum(message.compactIncrement().compactBefore().size() for message in messages)
    added = sum(message.compactIncrement().compactAfter().size() for message in messages)
    return (messages, f"compacted {taken} data files into {added}") if taken else ([], "")


def _compact_buckets(
    jvm: Jvm, table: Any, buckets: list[tuple[Any, int]], user: str, scratch: Path
) -> list[Any]:
    """Compact `buckets`, (partition, number) pairs; return the commit messages."""
    full = table.coreOptions().changelogProducer().toString() == "full-compaction"
    writer = table.newWrite(user)
    try:
        writer.withIOManager(jvm.paimon.disk.IOManager.create(str(scratch)))
        for partition, bucket in buckets:
            writer.compact(partition, bucket, full)
        messages = list(writer.prepareCommit(True, 0))
    finally:
        writer.close()
    return [_without_passing_files(jvm, table, message) for message in messages]


def _without_passing_files(jvm: Jvm, table: Any, message: Any) -> Any:
    """Return the message without files that were written and removed within it.

    For a bucket of a log table, Paimon may merge some files and then, at `prepareCommit`, merge the result with others.
    It refuses to commit a file that is both added and removed, so a bucket with many files would never be compacted.
    (For PK tables Paimon removes such files from the message itself.)
    """
    increment = message.compactIncrement()
    before, after = list(increment.compactBefore()), list(increment.compactAfter())
    taken = {(file.fileName(), file.level()) for file in before}
    passing = [file for file in after if (file.fileName(), file.level()) in taken]
    if not passing:
        return message
    made = {(file.fileName(), file.level()) for file in passing}
    left = [
        jvm.list_of([file for file in files if (file.fileName(), file.level()) not in made])
        for files in (before, after)
    ]
    place = message.partition(), message.bucket(), message.totalBuckets()
    paths = table.store().pathFactory().createDataFilePathFactory(*place[:2])
    for file in passing:
        table.fileIO().deleteQuietly(paths.toPath(file))
    compacted = jvm.paimon.io.CompactIncrement(*left, increment.changelogFiles())
    return jvm.paimon.table.sink.CommitMessageImpl(*place, message.newFilesIncrement(), compacted)


def _compact_appended(jvm: Jvm, table: Any, user: str) -> list[Any]:
    """Compact a table without buckets: Paimon packs small files, and each pack is a task."""
    tasks = jvm.paimon.append.AppendCompactCoordinator(table, False).run()
    writer = table.store().newWrite(user)
    try:
        return [task.doCompact(table, writer) for task in tasks]
    finally:
        writer.close()


def expire(jvm: Jvm, table: Any) -> str:
    """Expire snapshots that the table's options do not keep, with their files; return a summary."""
    gone = table.newExpireSnapshots().config(table.coreOptions().expireConfig()).expire()
    return f"{gone} old snapshots expired" if gone else ""


def partition_names(partitions: Any, table: Any, definition: TableDefinition) -> list[str]:
    """Return the table's names of Paimon's `partitions`."""
    default, keys = table.coreOptions().partitionDefaultName(), definition.partition_keys
    found = []
    for each in partitions:
        texts = [str(each.spec()[key]) for key in keys]
        if default not in texts:
            kinds = (definition.schema.column(key).type.kind for key in keys)
            found.append(".".join(_text(text, kind) for text, kind in zip(texts, kinds, strict=True)))
    return sorted(found)


def _text(text: str, kind: TypeKind) -> str:
    """Return a value of a partition as the table has it; Paimon may have a date as the number of days since 1970."""
    if kind is TypeKind.DATE and text.lstrip("-").isdigit():
        return str(datetime.date(1970, 1, 1) + datetime.timedelta(int(text)))
    return text


def expired_partitions(
    jvm: Jvm, table: Any, definition: TableDefinition, names: Sequence[str]
) -> tuple[list[str], list[str]]:
    """Return the names that are older than `partition.expiration-time`, and those whose time cannot be read.

    The first ones are in order, and at most `partition.expiration-max-num`. The values are read as Paimon reads them;
    it is now in the zone of the table's calendar, or of this machine.
    """
    from py4j.protocol import Py4JJavaError

    options, zone = table.coreOptions(), definition.settings.auto_partition_zone
    now = datetime.datetime.now(None if zone is None else ZoneInfo(zone)).replace(tzinfo=None)
    oldest = jvm.java.java.time.LocalDateTime.parse(now.isoformat()).minus(options.partitionExpireTime())
    given = time_options(definition)
    times = jvm.paimon.partition.PartitionTimeExtractor(
        given.get("partition.timestamp-pattern"), given.get("partition.timestamp-formatter")
    )
    keys = jvm.list_of(definition.partition_keys)
    expired, unread = [], []
    for name in names:
        try:
            if oldest.isAfter(times.extract(keys, jvm.list_of(values_of(name)))):
                expired.append(name)
        except Py4JJavaError:
            unread.append(name)
    return sorted(expired)[: options.partitionExpireMaxNum()], unread
