"""A program as users write it: every public method, blocking and asynchronous. `test_typing.py` has mypy look at it."""

from __future__ import annotations

import asyncio
from collections.abc import Mapping

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from headrace.tablelayer.client import (
    AsyncConnection,
    AsyncScan,
    AsyncTable,
    AuthenticationFailed,
    ChangeType,
    ClientConfig,
    ClientError,
    ClientMetrics,
    ConfigKind,
    ConfigListing,
    Connection,
    ConnectionFailed,
    ConnectionLost,
    ConnectionSettings,
    DataError,
    DdlError,
    Extremes,
    KafkaError,
    KafkaRecord,
    LookupResult,
    OutcomeUnknown,
    OutgoingRecord,
    RequestMetrics,
    RequestTimeout,
    Scan,
    ScanBatch,
    SettingsError,
    SqlError,
    SqlResult,
    Table,
    TableDefinition,
    TableError,
    TableErrorCode,
    TablePath,
    TableRef,
    UnsupportedRequest,
    WriteResult,
    connect,
    connect_async,
)

CONFIG = ClientConfig(client_id="shop", acks="all", request_timeout_ms=10_000)


def administer(connection: Connection) -> list[str]:
    admin, kafka = connection.admin, connection.kafka
    users: list[str] = [user.name for user in connection.security.list_users()]
    admin.create_database("shop", if_not_exists=True, comment="the shop", properties={"owner": "sales"})
    admin.alter_database("shop", set_properties={"owner": "all"}, reset_properties=["x"], comment="")
    described: str | None = admin.describe_database("shop").comment
    connection.execute("CREATE TABLE shop.fruit (id INT, name STRING, PRIMARY KEY (id) NOT ENFORCED)")
    definition: TableDefinition = admin.describe_table("shop.fruit")
    admin.create_table(definition, if_not_exists=True)
    admin.alter_table(TablePath("shop", "fruit"), [], expected_schema_id=1)
    exists: bool = admin.table_exists("shop.fruit")
    names = [each.name for each in admin.list_partitions("shop.daily", {"day": "2024-09-19"})]
    admin.add_partition("shop.daily", {"day": "2024-09-19"}, if_not_exists=True)
    admin.drop_partition("shop.daily", {"day": "2024-09-19"}, if_exists=True)
    admin.drop_table("shop.fruit", if_exists=exists)
    admin.drop_database("shop", cascade=True)
    kafka.create_topic("clicks", partitions=2, configs={"retention.ms": "1000"})
    ends: dict[int, int] = kafka.offsets("clicks")
    ends |= {partition: each.end for partition, each in kafka.offset_ranges(["clicks"])["clicks"].items()}
    records, positions = kafka.read("clicks", ends, max_wait_ms=10)
    record: KafkaRecord
    for record in records:
        positions[record.partition] = record.offset + 1
    columns, positions = kafka.read_batches("clicks", positions)
    ends = kafka.delete_records("clicks", {partition: -1 for partition, _ in columns})
    leaders: Mapping[int, int] = kafka.describe_topic("clicks").leaders
    free = [left for left, _ in kafka.log_sizes().disks.values()]
    ports = [port for _, port in kafka.brokers().values()]
    kafka.add_partitions("clicks", 4, validate_only=True)
    written: list[tuple[int, int]] = kafka.produce("clicks", [OutgoingRecord(b"1", key=b"k", partition=0)])
    kafka.alter_configs(ConfigKind.TOPIC, "clicks", {"retention.ms": "1"}, delete=["segment.ms"])
    kind, name = kafka.configured()[0]
    listings: list[ConfigListing] = kafka.configs(kind, name)
    kafka.commit_offsets("readers", "clicks", dict(written))
    kafka.delete_offsets("readers", "clicks", [0])
    kafka.delete_group("readers")
    led = [broker.partitions_led for broker in kafka.describe_cluster().brokers if listings]
    stuck: dict[tuple[str, int], str] = kafka.move_partitions([*kafka.placements(), ("clicks", 0)])
    left = [each.replicas[0] for each in kafka.moving_partitions()]
    reasons_of_leaders = [*stuck.values(), *kafka.elect_preferred_leaders().values()]
    ports += [server.broker_id for server in admin.servers() if led]
    reasons = [each.reason for refused in admin.refused("clicks") for each in refused.records]
    kept: list[int] = [len(bucket.snapshots) for bucket in admin.snapshots("shop.fruit")]
    kept += [load.keys_looked_up for load in admin.table_loads()]
    for quota in kafka.client_quotas():
        kafka.alter_client_quotas(quota.entity, {"request_percentage": 50.0}, remove=list(quota.limits))
    kafka.delete_topic(kafka.list_topics()[0].name)
    states = [kafka.describe_group(listing.group).state for listing in kafka.list_groups()]
    tables = [*admin.list_databases(), *admin.list_tables("shop")]
    return [
        *reasons,
        *names,
        *states,
        *tables,
        *users,
        described or "",
        f"{leaders} {free} {ports} {left} {kept} {reasons_of_leaders}",
    ]


def write(table: Table) -> int:
    result: WriteResult = table.upsert([{"id": 1, "name": "apple"}], overwrite=False)
    result = table.upsert(pa.table({"id": pa.array([1], pa.int32())}))
    result = table.partial({"id": 1, "name": "fig"}, ["id", "name"])
    result = table.delete([1], overwrite=False)
    result = table.append([{"id": 1}])
    rows = pa.table({"id": pa.array([1], pa.int32())})
    result = table.write_rows(rows, definition=table.definition, change_type=int(ChangeType.INSERT))
    staged = table.staged_writer("query", 1, "attempt")
    staged.write(rows)
    if not staged.decided:
        receipt = staged.finish()
        table.commit_staged("query", 1, [receipt])
        table.abort_staged("query", 1, [receipt])
    staged.close()
    return result.row_count + sum(result.end_offsets.values()) + len(result.partition_end_offsets)


def read(table: Table) -> int:
    found, rows = table.lookup([1, 2, 3], columns=["name"])
    result: LookupResult = table.lookup([{"id": 1}], insert_if_absent=True)
    mask: np.ndarray = result.found
    row = table.lookup_one({"id": 1})
    name = None if row is None else row["name"]
    many: pa.Table = table.prefix_lookup([{"id": 1}])
    owners, _ = table.prefix_lookup_grouped([{"id": 1}])
    sample: pa.Table = table.limit(3, ["id"], "id > 1") if not table.reads_lake() else table.to_arrow()
    count: int = table.count(pc.field("id") > 1)
    extremes: Extremes = table.extremes(["id"], "id > 1")
    low, high = extremes.minimum("id"), extremes.maximum("id")
    whole: pa.Table = table.to_arrow(["id"], "id > 1", as_of=1_700_000_000_000)
    frames = [len(table.to_pandas()), table.to_polars().height]
    between: pa.Table = table.range_scan(1, {"id": 5}, include_upper=True, limit=10)
    arrived: int = sum(part.num_rows for part in table.batches(["id"], "id > 1"))
    print(arrived)
    for piece, offset in table.snapshot(0, ["id"]):
        count += piece.num_rows + offset
    ends: dict[int, int] = table.offsets("latest")
    ends = table.offsets_as_of(1_700_000_000_000)
    scan: Scan
    with table.scan(["id"], start="full", until="latest", filter="id > 1", poll_timeout=1.0) as scan:
        batch: ScanBatch
        for batch in scan:
            count += int((batch.change_types == ChangeType.INSERT).sum()) + batch.row_count
        table.commit("group", scan.positions)
        scan.seek(table.committed("group"))
        scan.close()
    for part in table.partitions():
        count += table.partition(part.name).count()
    by_partition: dict[str, dict[int, int]] = table.partition_offsets("latest")
    with table.only({"day": "2024-09-19"}).scan(start=by_partition) as scan:
        table.commit("group", scan.partition_positions)
    by_partition = table.partition_committed("group")
    by_partition = table.partition_offsets_as_of(1_700_000_000_000)
    table.refresh()
    sizes = [many, sample, whole, between, rows]
    shown = f"{name} {low} {high} {found[0]}"
    count += sum(each.num_rows for each in sizes) + sum(frames)
    return count + len(owners) + len(ends) + len(mask) + len(shown)


def what_went_wrong(table: Table) -> str:
    try:
        table.upsert([{"id": "one"}])
    except (DdlError, SqlError) as error:
        return str(error)
    except DataError as error:
        return f"{error.column} of row {error.row}"
    except TableError as error:
        if error.code is TableErrorCode.BUFFER_EXHAUSTED or error.retriable:
            return "again"
    except KafkaError as error:
        return "again" if error.retriable else error.code.name
    except (RequestTimeout, ConnectionLost, OutcomeUnknown) as error:
        return f"nobody knows: {error}"
    except (ConnectionFailed, UnsupportedRequest):
        return "not reached"
    except ClientError as error:
        return str(error.retriable)
    return "nothing"


def blocking(address: str) -> float:
    with connect(address, CONFIG) as connection:
        table: Table = connection.table("shop.fruit")
        other = connection.open_table(table.definition)
        metrics: ClientMetrics = connection.metrics()
        lookups: RequestMetrics = metrics.requests["Lookup"]
        asked: SqlResult = connection.sql("SELECT * FROM shop.fruit WHERE id = ?", [1])
        total: int = len(asked) + len(asked.columns)
        total += connection.sql_many("INSERT INTO shop.fruit (id) VALUES (?)", [[1], [2]])
        ref = TableRef(address, str(other.path))
        with ref.connect() as again:
            again.close()
        return total + lookups.seconds + metrics.rows_written + len(other.arrow_schema)


async def asynchronous(address: str) -> int:
    async with await connect_async(address, CONFIG) as connection:
        admin, kafka = connection.admin, connection.kafka
        await admin.create_database("shop", if_not_exists=True)
        names: list[str] = await admin.list_databases()
        table: AsyncTable = await connection.table("shop.fruit")
        same: AsyncTable = connection.open_table(table.definition)
        result: WriteResult = await table.upsert([{"id": 1, "name": "apple"}])
        await asyncio.gather(table.delete([2]), table.partial({"id": 1}, ["id"]), same.append([{"id": 3}]))
        found, rows = await table.lookup([1], ["name"])
        row = await table.lookup_one(1)
        await table.prefix_lookup([{"id": 1}])
        await table.prefix_lookup_grouped([{"id": 1}])
        count = (
            int(await table.reads_lake())
            + await table.count("id > 1")
            + (await table.extremes(["id"])).row_count
        )
        count += (await table.limit(1)).num_rows + (await table.range_scan(1, 2)).num_rows
        count += (
            (await table.to_arrow()).num_rows
            + len(await table.to_pandas())
            + (await table.to_polars()).height
        )
        async for part in table.batches(["id"]):
            print(part.num_rows)
        async for piece, offset in table.snapshot(0):
            count += piece.num_rows + offset
        scan: AsyncScan
        async with table.scan(until="latest") as scan:
            async for batch in scan:
                count += batch.row_count
            scan.seek(scan.positions)
            await table.commit("group", scan.positions)
        await table.committed("group")
        await table.offsets("earliest", [0])
        for part in await table.partitions():
            await table.partition(part.name)
        await table.only({"day": "x"}).partition_offsets("latest")
        await table.partition_committed("group")
        await table.offsets_as_of(1_700_000_000_000)
        await table.partition_offsets_as_of(1_700_000_000_000)
        staged = table.staged_writer("query", 1, "attempt")
        await staged.write(rows)
        await table.commit_staged("query", 1, [await staged.finish()])
        await table.abort_staged("query", 1, [])
        await table.write_rows(rows, definition=await table.refresh())
        await table.close()
        metrics: ClientMetrics = connection.metrics()
        await kafka.list_topics()
        return result.row_count + len(names) + metrics.retries + int(found[0]) + (0 if row is None else count)


def secured(address: str, password: str) -> str:
    properties = {"security.protocol": "SASL_SSL", "sasl.mechanism": "PLAIN", "sasl.password": password}
    settings = ConnectionSettings.make(address, properties)
    try:
        with connect(settings) as connection:
            return f"{connection.bootstrap} {connection.settings}"
    except (AuthenticationFailed, SettingsError) as error:
        return str(error)


async def make(address: str) -> AsyncConnection:
    connection = await connect_async(address)
    try:
        await connection.admin.list_tables("shop")
    finally:
        await connection.close()
    return connection
