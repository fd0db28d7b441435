"""The catalog of a table's lake, by the server's `datalake.iceberg.*` and an explicit warehouse."""

from __future__ import annotations

from pathlib import Path

import pytest

from headrace.tablelayer.lake.adapter import LakeError
from headrace.tablelayer.lake.catalogs import lake_catalog
from headrace.tablelayer.lake.coordinator import LakeStatus
from headrace.tablelayer.model.table.path import TablePath

PATH = TablePath("shop", "orders")


def properties(warehouse: str | None = None, **given: str) -> dict[str, str]:
    named = {f"datalake.iceberg.{name.replace('_', '-')}": value for name, value in given.items()}
    return dict(lake_catalog(LakeStatus(True, "iceberg", None, properties=named), warehouse, PATH).properties)


def test_a_hadoop_catalog_needs_a_warehouse_and_makes_it_absolute() -> None:
    assert properties(warehouse="/lake", io_impl="x") == {
        "type": "hadoop",
        "warehouse": "/lake",
        "io-impl": "x",
    }
    assert properties("s3a://b/other")["warehouse"] == "s3a://b/other"
    with pytest.raises(LakeError, match=r"no warehouse is configured for the lake of shop\.orders"):
        properties()


def test_properties_of_other_catalogs_are_passed_unchanged() -> None:
    assert properties(type="rest", uri="http://h:8181") == {"type": "rest", "uri": "http://h:8181"}
    assert properties("prod", type="rest", uri="u")["warehouse"] == "prod"
    assert properties(catalog_impl="org.x.Y") == {"catalog-impl": "org.x.Y"}


def test_a_table_that_is_not_tiered_into_a_lake_is_refused() -> None:
    with pytest.raises(LakeError, match="not tiered"):
        lake_catalog(LakeStatus(False, "", None), None, PATH)
    with pytest.raises(LakeError, match="tiered into iceberg or paimon"):
        lake_catalog(LakeStatus(True, "delta", None), None, PATH)


def test_a_paimon_catalog_is_a_folder_with_its_own_settings() -> None:
    given = {
        "datalake.paimon.warehouse": "wh",
        "datalake.paimon.fs.x": "1",
        "datalake.iceberg.warehouse": "other",
    }
    found = lake_catalog(LakeStatus(True, "paimon", None, properties=given), None, PATH)
    assert found.properties == {"warehouse": str(Path("wh").resolve()), "fs.x": "1"}
    elsewhere = lake_catalog(LakeStatus(True, "paimon", None), "s3://b/x", PATH)
    assert elsewhere.properties == {"warehouse": "s3://b/x"}
    with pytest.raises(LakeError, match=r"--set datalake\.paimon\.warehouse=FOLDER"):
        lake_catalog(LakeStatus(True, "paimon", None), None, PATH)
    given = {"datalake.paimon.metastore": "hive"}
    with pytest.raises(LakeError, match="filesystem catalogs only"):
        lake_catalog(LakeStatus(True, "paimon", None, properties=given), None, PATH)
