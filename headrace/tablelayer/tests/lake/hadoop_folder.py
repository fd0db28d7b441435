"""An Iceberg table in a folder, written by pyiceberg as a Hadoop catalog would."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from pyiceberg.catalog.noop import NoopCatalog
from pyiceberg.io import load_file_io
from pyiceberg.serializers import ToOutputFile
from pyiceberg.table import CommitTableResponse, Table
from pyiceberg.table.update import update_table_metadata


class HadoopFolder(NoopCatalog):
    """Commits as a Hadoop catalog does: a metadata file with the next number, then the hint."""

    def __init__(self, folder: Path) -> None:
        super().__init__("test")
        self.folder = folder
        self.version = 0

    def write(self, metadata: Any) -> str:
        self.version += 1
        location = f"{self.folder}/metadata/v{self.version}.metadata.json"
        ToOutputFile.table_metadata(metadata, load_file_io({}, location).new_output(location))
        (self.folder / "metadata" / "version-hint.text").write_text(str(self.version))
        return location

    def commit_table(self, table: Table, requirements: Any, updates: Any) -> CommitTableResponse:
        metadata = update_table_metadata(table.metadata, updates)
        return CommitTableResponse(metadata=metadata, metadata_location=self.write(metadata))
