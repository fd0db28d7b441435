"""The world of the tiering tests with a Paimon lake, read back by Paimon's own reader in the JVM."""

from __future__ import annotations

import itertools
import tempfile
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq

from headrace.tablelayer.lake.paimon import PaimonTable
from headrace.tablelayer.lake.paimon_jvm import Jvm
from headrace.tablelayer.lake.paimon_reader import PaimonReader
from headrace.tablelayer.lake.reader import LakeReader
from headrace.tablelayer.tests.lake.test_tiering import World

_numbers = itertools.count()


class PaimonWorld(World):
    def tierer(self) -> PaimonTable:  # type: ignore[override]
        return PaimonTable(self.root.newSession(), self.table, {"warehouse": self.properties["warehouse"]})

    def reader(self) -> LakeReader:
        return PaimonReader(self.table, self.properties)

    def read_by_another(self) -> list[tuple[Any, ...]]:
        """The lake's current rows as Paimon's own reader gives them."""
        found = rows_by_paimon(self.lake)
        rows = [tuple(each.values()) for each in found.select(self.table.schema.names).to_pylist()]
        return sorted(rows, key=lambda row: tuple((value is not None, value) for value in row))

    def expire_at_once(self) -> None:
        self.set_options({"snapshot.time-retained": "1 ms", "snapshot.num-retained.min": "1"})

    def set_options(self, options: dict[str, str]) -> None:
        jvm = self.lake.jvm
        changes = [jvm.paimon.schema.SchemaChange.setOption(*each) for each in options.items()]
        self.lake._catalog.alterTable(self.lake._identifier, jvm.list_of(changes), False)

    def branches(self) -> set[str]:
        return set(self.lake._load().branchManager().branches())

    def snapshots(self) -> int:
        return int(self.lake._load().snapshotManager().snapshotCount())


def rows_by_paimon(lake: PaimonTable) -> pa.Table:
    """A lake table's current rows, read and merged by Paimon's classes."""
    with tempfile.TemporaryDirectory() as folder:
        table = lake._load()
        file = Path(folder) / "rows.parquet"
        write_snapshot(lake.jvm, table, table.snapshotManager().latestSnapshotId(), file)
        return pq.read_table(file)


def write_snapshot(jvm: Jvm, table: Any, snapshot: int, file: Path) -> None:
    """The rows of a snapshot, merged by Paimon, in one Parquet file that Paimon writes."""
    splits = table.newSnapshotReader().withSnapshot(snapshot).read().splits()
    parquet = jvm.paimon.format.FileFormat.fromIdentifier("parquet", jvm.paimon.options.Options())
    out = jvm.paimon.fs.local.LocalFileIO.create().newOutputStream(jvm.paimon.fs.Path(str(file)), False)
    writer = parquet.createWriterFactory(table.rowType()).create(out, "zstd")
    add = jvm.java.java.lang.invoke.MethodHandles.publicLookup().findVirtual(
        jvm.type_of("format.FormatWriter"),
        "addElement",
        jvm.signature(jvm.java.java.lang.Void.TYPE, jvm.type_of("data.InternalRow")),
    )
    consumer = jvm.consumer(add.bindTo(writer))
    read = table.newRead()
    split_type = jvm.type_of("table.source.Split")
    for split in splits:
        reader = jvm.call_default("table.source.TableRead", "createReader", read, (split_type, split))
        jvm.for_each(reader, consumer)
    writer.close()
    out.close()
