"""The lake's own options that a client may set for a table (`iceberg.*`, `paimon.*`).

They become properties of the lake table, and decide how it is written. Some name folders or classes to load, which only
the operator may decide. So the allowed options (sizes, compression, retention of snapshots) are listed here; the
operator may allow more (`datalake.table.options.allowed`).
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping

from headrace.broker.configs.config_key import ConfigKey, ConfigType
from headrace.tablelayer.model.errors import TableError, TableErrorCode
from headrace.tablelayer.model.options.lake_options import ICEBERG_PREFIX, PAIMON_PREFIX

ALLOWED_CONFIG = "datalake.table.options.allowed"
_PREFIXES = (ICEBERG_PREFIX, PAIMON_PREFIX)
_VALUE_LENGTH_MAX = 1000

_ALLOWED = (
    # Iceberg, https://iceberg.apache.org/docs/latest/configuration/#table-properties
    "iceberg.comment", "iceberg.commit.manifest.*", "iceberg.commit.manifest-merge.enabled", "iceberg.commit.retry.*",
    "iceberg.commit.status-check.*", "iceberg.format-version", "iceberg.gc.enabled", "iceberg.history.expire.*",
    "iceberg.read.parquet.*", "iceberg.read.split.*", "iceberg.write.avro.*", "iceberg.write.delete.granularity",
    "iceberg.write.delete.target-file-size-bytes", "iceberg.write.metadata.compression-codec",
    "iceberg.write.metadata.delete-after-commit.enabled", "iceberg.write.metadata.metrics.*",
    "iceberg.write.metadata.previous-versions-max", "iceberg.write.orc.*", "iceberg.write.parquet.*",
    "iceberg.write.spark.fanout.enabled", "iceberg.write.summary.partition-limit",
    "iceberg.write.target-file-size-bytes",
    # Paimon, https://paimon.apache.org/docs/master/maintenance/configurations/
    "paimon.changelog-producer", "paimon.changelog-producer.row-deduplicate", "paimon.changelog.num-retained.*",
    "paimon.changelog.time-retained", "paimon.compaction.*", "paimon.deletion-vectors.enabled", "paimon.file-index.*",
    "paimon.file.block-size", "paimon.file.compression*", "paimon.file.format", "paimon.manifest.*",
    "paimon.metadata.stats-dense-store", "paimon.metadata.stats-mode", "paimon.num-levels", "paimon.num-sorted-run.*",
    "paimon.orc.bloom.filter.*", "paimon.parquet.block.size", "paimon.parquet.enable.dictionary",
    "paimon.parquet.page.size", "paimon.partition.expiration-*", "paimon.partition.timestamp-formatter",
    "paimon.partition.timestamp-pattern", "paimon.read.batch-size", "paimon.snapshot.expire.limit",
    "paimon.snapshot.num-retained.*", "paimon.snapshot.time-retained", "paimon.sort-spill-*", "paimon.source.split.*",
    "paimon.spill-compression", "paimon.target-file-size", "paimon.write-buffer-size", "paimon.write-buffer-spillable",
)  # fmt: skip


def _allowed_complaint(names: Iterable[str]) -> str | None:
    for name in names:
        if not name.startswith(_PREFIXES) or name in _PREFIXES:
            return f"{name} is not an option of a lake table: write iceberg.NAME, paimon.NAME, or iceberg.NAMES.*"
    return None


LAKE_OPTION_CONFIG = ConfigKey(
    ALLOWED_CONFIG,
    ConfigType.LIST,
    None,
    "Options of lake tables that clients may set, besides those that are always allowed; for example "
    "iceberg.write.object-storage.enabled, or iceberg.encryption.* for all with that prefix. Clients "
    "that may create tables then decide where files go and which classes the tiering job loads.",
    _allowed_complaint,
)


def check_lake_options(given: Mapping[str, str], more: Iterable[str] | None) -> None:
    """Check the lake options of a new table; they are fixed later. `more` is what the operator allows.

    Raises TableError(INVALID_TABLE) for an option that clients may not set.
    """
    allowed = (*_ALLOWED, *(more or ()))
    for name, value in given.items():
        if not name.startswith(_PREFIXES):
            continue
        if not any(_is_of(name, each) for each in allowed):
            raise TableError(
                TableErrorCode.INVALID_TABLE,
                f"option '{name}' cannot be set by clients of this server, because it is not known "
                f"to be harmless; ask the operator to allow it ('{ALLOWED_CONFIG}')",
            )
        if len(value) > _VALUE_LENGTH_MAX or not value.isprintable():
            raise TableError(
                TableErrorCode.INVALID_TABLE,
                f"option '{name}' has {len(value)} characters; the maximum is {_VALUE_LENGTH_MAX}, without "
                "control characters",
            )


def _is_of(name: str, allowed: str) -> bool:
    return name.startswith(allowed[:-1]) if allowed.endswith("*") else name == allowed
