"""Data directories of every layout that was released are opened by this version, with all that is in them."""

from __future__ import annotations

import json
import sqlite3
import tarfile
from pathlib import Path

import pytest

from headrace.broker.configs.config_key import ConfigError
from headrace.broker.partitions.data_dir import LAYOUT_VERSION
from headrace.protocol.errors import ErrorCode, KafkaError
from headrace.tablelayer.tests.server.tables import Table, Tables, tables
from simulator.transactional_client import committed_values, position, until

LAYOUTS = Path(__file__).parent / "layouts"
NAMES = [path.name.removesuffix(".tar.xz") for path in sorted(LAYOUTS.glob("*.tar.xz"))]
FOREVER = {
    "log.retention.ms": "-1",
    "offsets.retention.minutes": "2000000000",
    "log.initial.task.delay.ms": "3600000",
}


def unpack(name: str, target: Path) -> None:
    with tarfile.open(LAYOUTS / f"{name}.tar.xz") as archive:
        archive.extractall(target, filter="data")


async def numbers(made: Tables, partition: int) -> list[int]:
    values = await committed_values(made.broker, "plain", partition)
    return [json.loads(value)["n"] for value in values if value is not None]


async def people(table: Table) -> dict[int, str]:
    return {row["id"]: row["name"] for row in await table.state()}


def test_every_layout_has_a_test_directory() -> None:
    assert {int(name.partition("-")[0]) for name in NAMES} == set(range(1, LAYOUT_VERSION + 1))


@pytest.mark.parametrize("name", NAMES)
async def test_a_directory_of_an_earlier_layout_is_read_and_written(tmp_path: Path, name: str) -> None:
    unpack(name, tmp_path)
    expected = {at: f"later {at}" if at < 5 else f"name {at}" for at in range(19)}
    for start in range(2):
        async with tables(tmp_path, FOREVER) as made:
            more = [1000] * start
            assert await numbers(made, 0) == [*range(0, 30, 2), 100, 101, 102, *more]
            assert await numbers(made, 1) == list(range(1, 30, 2))
            await until(
                lambda made=made: position(made.broker, "readers", "plain", 0), lambda found: found == 5
            )
            clicks, keyed = await made.open("clicks"), await made.open("people")
            rows = [{"id": at, "page": f"page {at}"} for at in range(20 + start)]
            found = await clicks.scan()
            schema = clicks.definition.schema.arrow()
            assert [row for each in found for row in each.to_record_batch(schema).to_pylist()] == rows
            assert await people(keyed) == expected
            assert await keyed.lookup({"id": 3}, {"id": 19}) == [{"id": 3, "name": "later 3"}, None]
            assert len(await keyed.changelog()) == 20 + 10 + 1 + 2 * start
            if not start:
                assert (await made.broker.produce("plain", [b'{"n": 1000}'])).error_code == 0
                await clicks.append([{"id": 20, "page": "page 20"}])
                await keyed.put(("+", {"id": 7, "name": "of today"}))
                expected[7] = "of today"
    assert f"version={LAYOUT_VERSION}\n" in (tmp_path / "meta.properties").read_text()


async def test_a_directory_of_a_newer_version_is_refused(tmp_path: Path) -> None:
    unpack(NAMES[-1], tmp_path)
    properties = tmp_path / "meta.properties"
    text = properties.read_text().replace(f"version={LAYOUT_VERSION}", f"version={LAYOUT_VERSION + 1}")
    properties.write_text(text)
    with pytest.raises(
        ConfigError, match=r"was written by a newer version .* upgrade before you start it here"
    ):
        async with tables(tmp_path, FOREVER):
            pass
    assert properties.read_text() == text


def store(data: Path, path: str, node: str) -> None:
    """Set a node of the embedded store for the next start."""
    database = sqlite3.connect(data / "meta.db")
    with database:
        database.execute("INSERT OR IGNORE INTO nodes VALUES ('/broker-configs', '', NULL, 0)")
        database.execute(
            "INSERT OR REPLACE INTO nodes VALUES (?, ?, ?, 9)", (path, path.rpartition("/")[0], node.encode())
        )
    database.close()


def stored(data: Path, path: str) -> str:
    database = sqlite3.connect(data / "meta.db")
    ((found,),) = database.execute("SELECT data FROM nodes WHERE path = ?", (path,))
    database.close()
    return bytes(found).decode()


async def test_a_table_with_an_option_of_a_later_version_waits_for_it(tmp_path: Path) -> None:
    unpack(NAMES[-1], tmp_path)
    path = "/topics/default.people"
    before = stored(tmp_path, path)
    topic = json.loads(before)
    topic["config"]["table.of.tomorrow"] = "1"
    store(tmp_path, path, json.dumps(topic))
    async with tables(tmp_path, FOREVER) as made:
        assert (await made.broker.produce("plain", [b'{"n": 1000}'])).error_code == 0
        clicks = await made.open("clicks")
        assert sum(
            each.to_record_batch(clicks.definition.schema.arrow()).num_rows for each in await clicks.scan()
        )
        refused = await made.broker.produce("default.people", [b'{"id": 1}'])
        assert refused.error_code == ErrorCode.KAFKA_STORAGE_ERROR
        (partition,) = made.broker.context.replicas.partitions("default.people")
        with pytest.raises(KafkaError, match=r"unknown option 'table.of.tomorrow'"):
            _ = partition.log
    store(tmp_path, path, before)
    async with tables(tmp_path, FOREVER) as made:
        assert len(await people(await made.open("people"))) == 19


@pytest.mark.parametrize("config", [{"log.of.tomorrow": "1"}, {"log.cleaner.threads": "5"}])
async def test_a_configuration_of_a_later_version_says_where_it_is_set(
    tmp_path: Path, config: dict[str, str]
) -> None:
    unpack(NAMES[-1], tmp_path)
    store(tmp_path, "/broker-configs/0", json.dumps(config))
    (name,) = config
    with pytest.raises(
        ConfigError, match=rf"(?s){name}.*set while a broker ran.*a newer version has set it, start that"
    ):
        async with tables(tmp_path, FOREVER):
            pass
    store(tmp_path, "/broker-configs/0", "{}")
    async with tables(tmp_path, FOREVER) as made:
        assert len(await people(await made.open("people"))) == 19
