"""A table that no round could bring into the lake is refused, when it is created and when it is altered."""

from __future__ import annotations

from pathlib import Path

import pytest

from headrace.protocol.errors import KafkaError
from headrace.tablelayer.model.table.lake_shape import lake_complaint
from headrace.tablelayer.tests.server.tables import LAKES, Tables, tables

REFUSED = [
    ("iceberg", "t TIME(3)", "'t' is TIME"),
    ("paimon", "t TIME(3)", "'t' is TIME"),
    ("iceberg", "r ROW<l ARRAY<MAP<STRING, TIME(0)>>>", "'r' is ROW"),
    ("iceberg", "r ARRAY<ROW<a INT, A INT>>", "fields 'a' and 'A'"),
    ("paimon", "r MAP<INT, ROW<x ROW<b INT, `B` INT>>>", "fields 'b' and 'B'"),
    ("iceberg", "_file STRING", "'_file' has a name"),
    ("iceberg", "_Pos BIGINT", "'_Pos' has a name"),
    ("iceberg", "_deleted BOOLEAN", "'_deleted' has a name"),
    ("paimon", "rowkind STRING", "'rowkind' has a name"),
    ("paimon", "_KEY_x INT", "'_KEY_x' has a name"),
    ("paimon", "_VALUE_KIND INT", "'_VALUE_KIND' has a name"),
]
TAKEN = [("paimon", "_file STRING"), ("iceberg", "rowkind STRING"), ("paimon", "_deleted BOOLEAN")]


@pytest.mark.parametrize(("lake", "column", "said"), REFUSED)
async def test_columns_that_cannot_be_tiered_are_refused(
    tmp_path: Path, lake: str, column: str, said: str
) -> None:
    enabled = {"table.datalake.enabled": "true", "table.datalake.format": lake}
    async with tables(tmp_path, LAKES) as all_tables:
        with pytest.raises(AssertionError, match=said):
            await all_tables.create(f"id INT, {column}", given=enabled)
        create_topic = all_tables.broker.context.topics.create_topic
        with pytest.raises(KafkaError, match=said):
            await create_topic("default.k", 1, {"table.schema": f"id INT, {column}", **enabled})
        table = await all_tables.create(f"id INT, {column}", name="later", datalake_format=lake)
        with pytest.raises(AssertionError, match=said):
            await table.alter("SET ('table.datalake.enabled' = 'true')")
        with pytest.raises(KafkaError, match=said):
            await all_tables.broker.context.topics.alter_config(
                "default.later", {"table.datalake.enabled": "true"}
            )
        tiered = await all_tables.create("id INT", name="tiered", given=enabled)
        with pytest.raises(AssertionError, match=said):
            await tiered.alter(f"ADD {column}")


@pytest.mark.parametrize(("lake", "column"), TAKEN)
async def test_a_name_that_another_lake_keeps_is_taken(tmp_path: Path, lake: str, column: str) -> None:
    async with tables(tmp_path, LAKES) as all_tables:
        enabled = {"table.datalake.enabled": "true", "table.datalake.format": lake}
        table = await all_tables.create(f"id INT, {column}", given=enabled)
        assert lake_complaint(table.definition) is None


async def test_a_table_of_an_earlier_release_can_be_altered(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    enabled = {"table.datalake.enabled": "true", "table.datalake.format": "iceberg"}
    async with tables(tmp_path, LAKES) as all_tables:
        with monkeypatch.context() as earlier:
            earlier.setattr(
                "headrace.tablelayer.server.catalog.definition_reading.lake_complaint", lambda _: None
            )
            table = await all_tables.create("id INT, t TIME(3)", given=enabled)
        altered = await table.alter("ADD note STRING")
        altered = await altered.alter("SET ('table.datalake.enabled' = 'false')")
        with pytest.raises(AssertionError, match="'t' is TIME"):
            await altered.alter("SET ('table.datalake.enabled' = 'true')")


async def test_a_tiered_table_without_a_lake_is_measured_and_logged_once(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    lake = {
        "datalake.paimon.warehouse": "/lake",
        "datalake.iceberg.table-default.x": "y",
        "datalake.format": "iceberg",
    }
    async with tables(tmp_path, lake) as all_tables:
        subjects = all_tables.extension.lake_subjects
        await all_tables.create("a INT", name="never")
        await all_tables.create("a INT", name="ice", datalake_enabled="true")
        await all_tables.create("a INT", name="pai", datalake_enabled="true", datalake_format="paimon")
        assert [each.name for each in subjects.without_lake()] == ["default.ice"]
        subjects.warn_without_lake()
        subjects.warn_without_lake()
        (said,) = [each.getMessage() for each in caplog.records if "has no lake" in each.getMessage()]
        assert said.startswith("table default.ice has 'table.datalake.enabled' = 'true'")


KEYED = "id BIGINT NOT NULL, line INT NOT NULL, v STRING, PRIMARY KEY (id, line) NOT ENFORCED"


@pytest.mark.parametrize(
    ("config", "given", "said"),
    [
        (
            {},
            {},
            "has no lake: start it with --set datalake.iceberg.warehouse=FOLDER, or with --set datalake.format",
        ),
        (
            {},
            {"table.datalake.format": "paimon"},
            "has no paimon lake: start it with --set datalake.paimon.warehouse=",
        ),
        (
            {"datalake.paimon.warehouse": "/lake"},
            {"table.datalake.format": "iceberg"},
            "has no iceberg lake: choose 'table.datalake.format' = 'paimon'",
        ),
    ],
)
async def test_a_table_without_a_lake_is_refused(
    tmp_path: Path, config: dict[str, str], given: dict[str, str], said: str
) -> None:
    enabled = {"table.datalake.enabled": "true"}
    async with tables(tmp_path, config) as all_tables:
        with pytest.raises(AssertionError, match=said):
            await all_tables.create("id INT", given={**enabled, **given})
        later = await all_tables.create("id INT", name="later", given=given)
        with pytest.raises(AssertionError, match=said):
            await later.alter("SET ('table.datalake.enabled' = 'true')")
        if not config:
            topics = all_tables.broker.context.topics
            with pytest.raises(
                KafkaError, match=r"topic clicks has 'datalake\.enabled' = 'true', but this server has"
            ):
                await topics.create_topic("clicks", 1, {"datalake.enabled": "true"})
            await topics.create_topic("clicks", 1, {})
            with pytest.raises(KafkaError, match="no iceberg lake: start it with"):
                await topics.alter_config("clicks", {"datalake.enabled": "true"})


@pytest.mark.parametrize(
    ("config", "expected"),
    [
        ({"datalake.paimon.warehouse": "/lake"}, "paimon"),
        ({"datalake.iceberg.warehouse": "/lake"}, "iceberg"),
        (LAKES, "iceberg"),
        ({**LAKES, "datalake.format": "paimon"}, "paimon"),
        ({"datalake.format": "paimon"}, "paimon"),
    ],
)
async def test_the_lake_of_the_server_is_recorded_and_can_be_enabled_later(
    tmp_path: Path, config: dict[str, str], expected: str
) -> None:
    async with tables(tmp_path, config) as all_tables:
        later = await all_tables.create(
            "id BIGINT NOT NULL, v STRING, PRIMARY KEY (id) NOT ENFORCED", buckets=4, name="later"
        )
        found = await all_tables.open("later")
        assert found.definition.options["table.datalake.format"] == expected
        altered = await later.alter("SET ('table.datalake.enabled' = 'true')")
        assert altered.definition.settings.datalake_enabled
        topics = all_tables.broker.context.topics
        topic = await topics.create_topic("clicks", 1, {"datalake.enabled": "true"})
        assert topic.config["datalake.format"] == expected
        assert await recorded(all_tables, KEYED) == (expected if expected == "paimon" else None)
        if expected == "iceberg":
            with pytest.raises(
                AssertionError, match=r"or choose Paimon, .* 'table.datalake.format' = 'paimon'"
            ):
                await all_tables.create(KEYED, buckets=4, name="refused", datalake_enabled="true")


async def recorded(all_tables: Tables, columns: str) -> str | None:
    """Create a table with 4 buckets, and return its recorded format."""
    await all_tables.create(columns, buckets=4, name="recorded")
    return (await all_tables.open("recorded")).definition.options.get("table.datalake.format")


async def test_the_lake_can_be_enabled_for_a_table_of_a_server_that_had_none(tmp_path: Path) -> None:
    async with tables(tmp_path) as all_tables:
        for name, key in (("keyed", ("id",)), ("free", ())):
            await all_tables.create("id INT, v STRING", buckets=4, name=name, bucket_key=key)
        assert await recorded(all_tables, KEYED) is None
    async with tables(tmp_path, LAKES) as all_tables:
        free = await (await all_tables.open("free")).alter("SET ('table.datalake.enabled' = 'true')")
        assert free.definition.options["table.datalake.format"] == "iceberg"
        with pytest.raises(AssertionError, match=r"lake's function\. Copy the rows"):
            await (await all_tables.open("keyed")).alter("SET ('table.datalake.enabled' = 'true')")
