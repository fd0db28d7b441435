"""A lake as seen from outside, in its folder: the rounds under way, and its contents for foreign readers.

Rounds are found only in metadata files, in short intervals: a test that kills a tierer in the middle of one has
milliseconds.
"""

from __future__ import annotations

import json
import tempfile
from pathlib import Path
from typing import Any, Protocol

import pyarrow.parquet as pq
from pyiceberg.table import StaticTable

DATABASE = "default"
OFFSETS, EPOCH, BRANCH = "headrace.offsets", "headrace.epoch", "hr_"
BEGUN, WRITTEN, COMMITTED = "begun", "written", "committed"
"""Stages of a round: its branch exists; its rows are on it; main has them, and the branch still exists."""

Rounds = dict[tuple[str, int], str]
"""The stage of each round, by table and epoch."""


class LakeFolder(Protocol):
    """The tables of one database in a lake's warehouse."""

    def rounds(self) -> Rounds:
        """Return the rounds whose branch exists now."""

    def read(self, name: str) -> tuple[Any, list[dict[str, Any]]]:
        """Return the offsets up to which main's newest snapshot has the log, and its rows; ({}, []) without a
        snapshot.
        """


class IcebergFolder:
    """A Hadoop catalog's warehouse, read by pyiceberg."""

    def __init__(self, warehouse: Path) -> None:
        self._folder = warehouse / DATABASE
        self._newest: dict[str, int] = {}
        self._seen: dict[str, Rounds] = {}

    def _metadata(self, name: str) -> Path | None:
        """Return the metadata file with the highest number; a killed tierer may not have written the hint."""
        number, folder = self._newest.get(name, 0), self._folder / name / "metadata"
        while (folder / f"v{number + 1}.metadata.json").exists():
            number += 1
        self._newest[name] = number
        return folder / f"v{number}.metadata.json" if number else None

    def rounds(self) -> Rounds:
        found: Rounds = {}
        for folder in self._folder.glob("*"):
            before = self._newest.get(folder.name)
            metadata = self._metadata(folder.name)
            if metadata is not None and before != self._newest[folder.name]:
                self._seen[folder.name] = self._rounds_of(folder.name, json.loads(metadata.read_text()))
            found |= self._seen.get(folder.name, {})
        return found

    def _rounds_of(self, name: str, metadata: dict[str, Any]) -> Rounds:
        epochs = {
            snapshot["snapshot-id"]: snapshot["summary"].get(EPOCH)
            for snapshot in metadata.get("snapshots", [])
        }
        found, main = {}, metadata["refs"].get("main", {}).get("snapshot-id")
        for ref, target in metadata["refs"].items():
            if ref.startswith(BRANCH):
                epoch, head = ref.removeprefix(BRANCH), target["snapshot-id"]
                how_far = COMMITTED if head == main else WRITTEN
                found[name, int(epoch)] = how_far if epochs[head] == epoch else BEGUN
        return found

    def read(self, name: str) -> tuple[Any, list[dict[str, Any]]]:
        metadata = self._metadata(name)
        table = None if metadata is None else StaticTable.from_metadata(str(metadata))
        head = None if table is None else table.current_snapshot()
        if table is None or head is None:
            return {}, []
        assert head.summary is not None
        return json.loads(head.summary[OFFSETS]), table.scan().to_arrow().to_pylist()


class PaimonFolder:
    """A filesystem catalog's warehouse, read by Paimon's own Java library, in the thread that created this."""

    def __init__(self, warehouse: Path) -> None:
        self._warehouse = warehouse
        self._folder = warehouse / f"{DATABASE}.db"
        self._jvm: Any = None
        self._catalog: Any = None

    def rounds(self) -> Rounds:
        found: Rounds = {}
        for branch in self._folder.glob(f"*/branch/branch-{BRANCH}*"):
            name, epoch = branch.parents[1].name, branch.name.rpartition("_")[2]
            newest = _newest_snapshot(branch)
            how_far = BEGUN
            if newest is not None and newest[1].get("properties", {}).get(EPOCH) == epoch:
                main = self._folder / name / "snapshot" / f"snapshot-{newest[0]}"
                how_far = COMMITTED if main.exists() else WRITTEN
            found[name, int(epoch)] = how_far
        return found

    def read(self, name: str) -> tuple[Any, list[dict[str, Any]]]:
        from headrace.tablelayer.tests.lake.paimon_world import write_snapshot

        newest = _newest_snapshot(self._folder / name)
        if newest is None:
            return {}, []
        jvm, catalog = self._opened()
        table = catalog.getTable(jvm.paimon.catalog.Identifier.create(DATABASE, name))
        with tempfile.TemporaryDirectory() as folder:
            file = Path(folder) / "rows.parquet"
            write_snapshot(jvm, table, newest[0], file)
            return json.loads(newest[1]["properties"][OFFSETS]), pq.read_table(file).to_pylist()

    def _opened(self) -> tuple[Any, Any]:
        """Return a JVM with Paimon and the catalog, opened at the first use."""
        if self._catalog is None:
            from headrace.tablelayer.lake.paimon_jvm import Jvm
            from headrace.tablelayer.spark.sessions import session

            self._jvm = Jvm(session("the lake from outside", cores=1))
            paimon = self._jvm.paimon
            given = self._jvm.map_of({"warehouse": str(self._warehouse), "cache-enabled": "false"})
            context = paimon.catalog.CatalogContext.create(paimon.options.Options(given))
            self._catalog = paimon.catalog.CatalogFactory.createCatalog(context)
        return self._jvm, self._catalog


def _newest_snapshot(folder: Path) -> tuple[int, dict[str, Any]] | None:
    """Return the number and the file of the newest snapshot of a Paimon table or branch."""
    names = (path.name.removeprefix("snapshot-") for path in folder.glob("snapshot/snapshot-*"))
    newest = max((int(name) for name in names if name.isdigit()), default=None)
    if newest is None:
        return None
    try:
        return newest, json.loads((folder / "snapshot" / f"snapshot-{newest}").read_text())
    except (FileNotFoundError, json.JSONDecodeError):  # a branch that is being created or removed
        return None
