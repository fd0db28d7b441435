"""The lake's own options that a client may set, through both APIs, and those that the operator can allow."""

from __future__ import annotations

from pathlib import Path

import pytest

from headrace.broker.configs.broker_config import BrokerConfig
from headrace.broker.configs.config_key import ConfigError
from headrace.protocol.errors import KafkaError
from headrace.tablelayer.server.extension import TableExtension
from headrace.tablelayer.tests.server.tables import run, tables

REFUSED = [
    ("iceberg", "iceberg.write.data.path", "s3://elsewhere/"),
    ("iceberg", "iceberg.write.metadata.path", "s3://elsewhere/"),
    ("iceberg", "iceberg.write.folder-storage.path", "/etc"),
    ("iceberg", "iceberg.write.object-storage.path", "/etc"),
    ("iceberg", "iceberg.write.location-provider.impl", "org.example.Evil"),
    ("iceberg", "iceberg.write.parquet.compression-codec", "zstd\n2026-01-01 ERROR forged"),
    ("iceberg", "iceberg.history.expire.max-ref-age-ms", "1" * 1001),
    ("iceberg", "iceberg.encryption.kms-impl", "org.example.Evil"),
    ("paimon", "paimon.commit.callbacks", "org.example.Evil"),
    ("paimon", "paimon.tag.callbacks", "org.example.Evil"),
    ("paimon", "paimon.data-file.external-paths", "s3://elsewhere"),
    ("paimon", "paimon.parquet.crypto.factory.class", "org.example.Evil"),
    ("paimon", "paimon.partition.mark-done-action.http.url", "http://169.254.169.254"),
]
TAKEN = [
    ("iceberg", "iceberg.history.expire.max-snapshot-age-ms", "1000"),
    ("iceberg", "iceberg.write.parquet.compression-codec", "zstd"),
    ("iceberg", "iceberg.write.target-file-size-bytes", "1000000"),
    ("paimon", "paimon.snapshot.time-retained", "1 h"),
    ("paimon", "paimon.num-sorted-run.compaction-trigger", "3"),
    ("paimon", "paimon.file.compression", "zstd"),
]


async def test_lake_options_that_choose_locations_or_classes_are_refused(tmp_path: Path) -> None:
    async with tables(tmp_path) as all_tables:
        lakes = {}
        for lake in ("iceberg", "paimon"):
            lakes[lake] = await all_tables.create("a INT", name=lake, datalake_format=lake)
        for number, (lake, name, value) in enumerate(REFUSED):
            with pytest.raises(AssertionError, match=name.replace(".", r"\.")):
                await all_tables.create("a INT", given={"table.datalake.format": lake, name: value})
            config = {"table.schema": "a INT", "table.datalake.format": lake, name: value}
            with pytest.raises(KafkaError, match=name.replace(".", r"\.")):
                await all_tables.broker.context.topics.create_topic(f"default.r{number}", 1, config)
            with pytest.raises(KafkaError, match=name.replace(".", r"\.")):
                await all_tables.broker.context.topics.alter_config(f"default.{lake}", {name: value})
        for number, (lake, name, value) in enumerate(TAKEN):
            given = {"table.datalake.format": lake, name: value}
            table = await all_tables.create("a INT", name=f"t{number}", given=given)
            assert table.definition.options[name] == value


def test_operators_allow_more_lake_options_and_tables_keep_theirs(tmp_path: Path) -> None:
    allowed = {"datalake.table.options.allowed": "iceberg.write.data.path, paimon.tag.*"}
    given = {"table.datalake.format": "iceberg", "iceberg.write.data.path": "s3://elsewhere/"}

    async def more() -> None:
        async with tables(tmp_path, allowed) as all_tables:
            await all_tables.create("a INT", given=given)
            tags = {"table.datalake.format": "paimon", "paimon.tag.automatic-creation": "watermark"}
            await all_tables.create("a INT", name="p", given=tags)
            with pytest.raises(AssertionError, match="folder-storage"):
                other = {**given, "iceberg.write.folder-storage.path": "x"}
                await all_tables.create("a INT", name="q", given=other)

    async def less() -> None:
        async with tables(tmp_path) as all_tables:
            table = await all_tables.open()
            altered = await table.alter("ADD b INT")
            assert altered.definition.options["iceberg.write.data.path"] == "s3://elsewhere/"

    run(more)
    run(less)
    with pytest.raises(ConfigError, match="is not an option of a lake table"):
        BrokerConfig(
            {"datalake.table.options.allowed": "iceberg.a,write.data.path"}, TableExtension().broker_configs()
        )
