"""Rights on tables by ACL: every table API, and columns that are granted one by one."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any
from uuid import UUID

import pyarrow as pa
import pyarrow.compute as pc
import pytest

from headrace.broker.security.acl.model import PatternType, Permission
from headrace.broker.security.rights import CLUSTER_NAME, Operation, ResourceType
from headrace.broker.tests.security.people import SECURED, allow, client, creation, grant, revoke_all
from headrace.broker.tests.security.test_denied_work import OF_IDS_MAX, OF_NAMES_MAX, StandingClock, calls_of
from headrace.protocol.errors import ErrorCode
from headrace.protocol.schema import ApiMessage
from headrace.tablelayer.model import messages as m
from headrace.tablelayer.model.batches.ipc import encode_ipc
from headrace.tablelayer.model.ddl import CreateTable, parse
from headrace.tablelayer.model.errors import TableErrorCode
from headrace.tablelayer.model.filters.filters import encode_filter
from headrace.tablelayer.model.messages import between
from headrace.tablelayer.tests.server.tables import LAKES, Table, Tables, tables

DENIED = ErrorCode.TOPIC_AUTHORIZATION_FAILED
NOWHERE = UUID(int=99)
TOPIC = ResourceType.TOPIC


@asynccontextmanager
async def secured(data_dir: Path) -> AsyncIterator[Tables]:
    """A secured server whose own connection is the super user's."""
    async with tables(data_dir, {**SECURED, **LAKES}) as made:
        made.broker = client(made.broker, "admin")
        yield made


async def keyed(made: Tables, name: str = "t") -> Table:
    table = await made.create("id BIGINT NOT NULL, a STRING, b STRING, PRIMARY KEY (id)", name=name)
    await table.put(("+", {"id": 1, "a": "x", "b": "secret"}), ("+", {"id": 2, "a": "y", "b": "other"}))
    return table


def as_ann(table: Table, made: Tables) -> Table:
    return Table(client(made.broker, "ann"), table.definition)


def key_batch(table: Table) -> bytes:
    schema = pa.schema([table.definition.schema.columns[0].field()])
    return encode_ipc(pa.RecordBatch.from_pylist([{"id": 1}], schema=schema))


def write(table: Table) -> list[m.WriteBucket]:
    return [m.WriteBucket(bucket=0, batch=table.batch([{"id": 9, "a": "w", "b": "w"}], [2]))]


def lookup(table: Table, table_id: UUID, columns: list[int] | None = None) -> m.LookupRequest:
    keys = [m.LookupBucket(bucket=0, keys=key_batch(table))]
    return m.LookupRequest(table_id=table_id, columns=columns, buckets=keys)


def limit_of(table: Table, *columns: str) -> m.LimitScanRequest:
    ids = [table.definition.schema.column(name).id for name in columns]
    return m.LimitScanRequest(table_id=table.table_id, columns=ids, limit=5, buckets=[0])


Build = Callable[[Table, UUID], ApiMessage]
BY_ID: dict[str, tuple[Operation, Build]] = {
    "put": (Operation.WRITE, lambda t, i: m.PutRowsRequest(table_id=i, acks=-1, buckets=write(t))),
    "append": (Operation.WRITE, lambda t, i: m.AppendRowsRequest(table_id=i, acks=-1, buckets=write(t))),
    "stage": (Operation.WRITE, lambda t, i: m.StageRowsRequest(table_id=i, writer="w", attempt="a")),
    "commit": (Operation.WRITE, lambda t, i: m.CommitStagedRequest(table_id=i, writer="w", batch_id=1)),
    "abort": (Operation.WRITE, lambda t, i: m.AbortStagedRequest(table_id=i, writer="w", batch_id=1)),
    "lookup": (Operation.READ, lookup),
    "prefix": (Operation.READ, lambda t, i: m.PrefixLookupRequest(table_id=i)),
    "scan_log": (Operation.READ, lambda t, i: m.ScanLogRequest(table_id=i, buckets=[m.ScanLogBucket(bucket=0)])),
    "limit": (Operation.READ, lambda t, i: m.LimitScanRequest(table_id=i, limit=5, buckets=[0])),
    "count": (Operation.READ, lambda t, i: m.CountRowsRequest(table_id=i, buckets=[0])),
    "snapshot": (Operation.READ, lambda t, i: m.ScanSnapshotRequest(table_id=i)),
    "create_partition": (Operation.WRITE, lambda t, i: m.CreatePartitionRequest(table_id=i, name="p")),
    "drop_partition": (Operation.WRITE, lambda t, i: m.DropPartitionRequest(table_id=i, name="p")),
    "list_partitions": (Operation.DESCRIBE, lambda t, i: m.ListPartitionsRequest(table_id=i)),
    "lake_heartbeat": (Operation.ALTER, lambda t, i: m.LakeHeartbeatRequest(table_id=i)),
    "lake_commit": (Operation.ALTER, lambda t, i: m.LakeCommitRequest(table_id=i)),
    "lake_end": (Operation.ALTER, lambda t, i: m.LakeEndRequest(table_id=i)),
    "lake_finish": (Operation.ALTER, lambda t, i: m.LakeFinishRequest(table_id=i)),
    "lake_describe": (Operation.DESCRIBE, lambda t, i: m.DescribeLakeRequest(table_id=i)),
}  # fmt: skip
BY_NAME: dict[str, tuple[Operation, Callable[[str], ApiMessage]]] = {
    "describe": (Operation.DESCRIBE, lambda n: m.DescribeTableRequest(database="default", table=n)),
    "alter": (Operation.ALTER, lambda n: m.AlterTableRequest(database="default", table=n, changes="[]")),
    "drop": (Operation.DELETE, lambda n: m.DropTableRequest(database="default", table=n)),
    "create": (Operation.CREATE, lambda n: m.CreateTableRequest(definition=definition_of(n))),
    "snapshots": (Operation.DESCRIBE, lambda n: m.ListSnapshotsRequest(topic=f"default.{n}")),
    "refused": (Operation.READ, lambda n: m.ListRefusedRequest(topic=f"default.{n}")),
    "lake_begin": (Operation.ALTER, lambda n: m.LakeBeginRequest(worker="w", database="default", table=n)),
}
ON_DATABASE: dict[str, tuple[Operation, Callable[[str], ApiMessage]]] = {
    "create_database": (Operation.CREATE, lambda n: m.CreateDatabaseRequest(name=n)),
    "alter_database": (Operation.ALTER, lambda n: m.AlterDatabaseRequest(name=n, comment="c")),
    "drop_database": (Operation.DELETE, lambda n: m.DropDatabaseRequest(name=n)),
    "describe_database": (Operation.DESCRIBE, lambda n: m.DescribeDatabaseRequest(name=n)),
    "list_tables": (Operation.DESCRIBE, lambda n: m.ListTablesRequest(database=n)),
}


BETWEEN: list[type[ApiMessage]] = [
    between.DescribeEndsRequest,
    between.CountStagedRequest,
    between.ApplyStagedRequest,
    between.DropStagedRequest,
    between.PrepareRowsRequest,
    between.LogRowsRequest,
    between.AwaitRowsRequest,
    between.CopyStoreRequest,
    between.KeepStagedRequest,
    between.HandOverStagedRequest,
    between.KeepDeadLettersRequest,
]


def definition_of(name: str) -> str:
    (statement,) = parse(f"CREATE TABLE {name} (id BIGINT)")
    assert isinstance(statement, CreateTable)
    return statement.definition.to_json()


def told(answer: Any) -> tuple[int, str | None]:
    return answer.error_code, answer.error_message


async def test_every_table_api_is_in_one_of_the_lists(tmp_path: Path) -> None:
    async with secured(tmp_path) as made:
        keyed_table = await keyed(made)
        listed = {build(keyed_table, NOWHERE).API_KEY for _, build in BY_ID.values()}
        listed |= {build("t").API_KEY for _, build in (*BY_NAME.values(), *ON_DATABASE.values())}
        all_keys = {each.key for each in made.broker.broker.dispatcher.declarations if each.key >= 10000}
        others = {
            m.ListDatabasesRequest,
            m.ListLakeRequest,
            m.ListTableLoadsRequest,
            m.GrantColumnsRequest,
            m.RevokeColumnsRequest,
            m.ListColumnGrantsRequest,
            m.DescribeServerRequest,
            m.BeginBackupRequest,
            m.HoldBackupRequest,
            m.CutBackupRequest,
            m.ReadBackupRequest,
            *BETWEEN,
        }
        assert all_keys - listed == {each.API_KEY for each in others}


@pytest.mark.parametrize("kind", BETWEEN, ids=lambda kind: kind.__name__)
async def test_inter_broker_requests_need_cluster_action(tmp_path: Path, kind: type[ApiMessage]) -> None:
    async with secured(tmp_path) as made:
        await keyed(made)
        await allow(made.broker, Operation.ALL, TOPIC, "default.t")
        answer = await client(made.broker, "ann").send(kind())
        assert answer.error_code == ErrorCode.CLUSTER_AUTHORIZATION_FAILED


@pytest.mark.parametrize("api", BY_ID)
async def test_by_id_a_table_that_may_not_be_seen_is_not_there(tmp_path: Path, api: str) -> None:
    operation, build = BY_ID[api]
    async with secured(tmp_path) as made:
        table = await keyed(made)
        ann = client(made.broker, "ann")
        code, message = told(await ann.send(build(table, table.table_id)))
        unknown_code, unknown_message = told(await ann.send(build(table, NOWHERE)))
        assert code == unknown_code == TableErrorCode.TABLE_NOT_FOUND
        assert message == unknown_message.replace(str(NOWHERE), str(table.table_id))
        await allow(made.broker, Operation.DESCRIBE, TOPIC, "default.t")
        seen = told(await ann.send(build(table, table.table_id)))[0]
        if operation is Operation.DESCRIBE:
            assert seen != DENIED
            assert seen != TableErrorCode.TABLE_NOT_FOUND
        else:
            assert seen == DENIED
            await allow(made.broker, operation, TOPIC, "default.t")
            assert told(await ann.send(build(table, table.table_id)))[0] not in (
                DENIED,
                TableErrorCode.TABLE_NOT_FOUND,
            )
            await revoke_all(made.broker)
            assert told(await ann.send(build(table, table.table_id)))[0] == TableErrorCode.TABLE_NOT_FOUND
        assert await table.count() in (2, 3)


async def test_a_write_that_counts_existing_rows_needs_the_right_to_read_keys(tmp_path: Path) -> None:
    async with secured(tmp_path) as made:
        table = await keyed(made)
        ann = client(made.broker, "ann")
        await allow(made.broker, Operation.WRITE, TOPIC, "default.t")
        rows = [m.WriteBucket(bucket=0, batch=table.batch([{"id": 9, "a": "w", "b": "w"}], [3]))]
        asked = m.PutRowsRequest(table_id=table.table_id, acks=-1, counted=True, buckets=rows)
        assert (await ann.send(asked)).error_code == DENIED
        assert await table.count() == 2
        await allow(made.broker, Operation.READ, TOPIC, "default.t")
        assert (await ann.send(asked)).buckets[0].logged_count == 1


@pytest.mark.parametrize("api", BY_NAME)
async def test_by_name_the_refusal_is_the_same_whether_the_table_exists(tmp_path: Path, api: str) -> None:
    operation, build = BY_NAME[api]
    async with secured(tmp_path) as made:
        table = await keyed(made)
        ann = client(made.broker, "ann")
        refusal = told(await ann.send(build("t")))
        assert refusal == told(await ann.send(build("missing")))
        assert refusal[0] == DENIED
        for other in {Operation.READ, Operation.ALTER, Operation.DELETE, Operation.CREATE} - {operation}:
            if operation is not Operation.DESCRIBE:
                await allow(made.broker, other, TOPIC, "default.t")
        assert told(await ann.send(build("t")))[0] == DENIED
        assert await table.count() == 2
        await allow(made.broker, operation, TOPIC, "default.t", "default.missing")
        assert told(await ann.send(build("t")))[0] != DENIED
        assert told(await ann.send(build("missing")))[0] != DENIED


async def test_a_denied_table_request_costs_the_same_for_missing_tables(tmp_path: Path) -> None:
    """Counted in calls on the event loop, as `headrace/broker/tests/security/test_denied_work.py` does it."""
    found: list[tuple[str, int, int, int]] = []
    async with tables(tmp_path, SECURED, clock=StandingClock()) as made:
        made.broker = client(made.broker, "admin")
        table = await made.create("id BIGINT NOT NULL, a STRING, b STRING, PRIMARY KEY (id)", buckets=8)
        for number in range(20):
            await made.create("id BIGINT", name=f"t{number}")

        async def compare(api: str, most: int, there: ApiMessage, missing: ApiMessage) -> None:
            # Each has a host of its own: the audit log limits the refusals of one host.
            ann = client(made.broker, "ann", f"10.0.0.{len(found)}")
            found.append((api, *await calls_of(ann, None, there, missing, most), most))

        for api, (_, build) in BY_NAME.items():
            await compare(api, OF_NAMES_MAX, build("t"), build("u"))
        for api, (_, by_id) in BY_ID.items():
            await compare(api, OF_IDS_MAX, by_id(table, table.table_id), by_id(table, NOWHERE))
        for api, (_, build) in ON_DATABASE.items():
            await compare(api, OF_NAMES_MAX, build("default"), build("another"))
    assert not [each for each in found if abs(each[1] - each[2]) > each[3]]


@pytest.mark.parametrize("kind", [PatternType.LITERAL, PatternType.PREFIXED])
async def test_the_cost_of_a_listing_does_not_depend_on_hidden_tables(
    tmp_path: Path, kind: PatternType
) -> None:
    """Calls are counted, as above: the time does not reveal how many hidden tables a database has."""
    async with tables(tmp_path, SECURED, clock=StandingClock()) as made:
        made.broker = client(made.broker, "admin")
        for database, hidden in (("few", 0), ("many", 12)):
            await made.broker.send(m.CreateDatabaseRequest(name=database))
            for table in ("t", *(f"s{number}" for number in range(hidden))):
                created = m.CreateTableRequest(definition=definition_of(f"{database}.{table}"))
                assert told(await made.broker.send(created)) == (0, None)
            await grant(made.broker, creation(Operation.DESCRIBE, TOPIC, f"{database}.t", kind=kind))
        ann = client(made.broker, "ann")
        for many, few in (
            [m.ListTablesRequest(database=each) for each in ("many", "few")],
            [m.DescribeDatabaseRequest(name=each) for each in ("many", "few")],
        ):
            of_many, of_few = await calls_of(ann, None, many, few)
            assert abs(of_many - of_few) <= OF_NAMES_MAX, many
        assert (await ann.send(m.ListTablesRequest(database="many"))).tables == ["t"]
        assert (await ann.send(m.ListDatabasesRequest())).databases == ["few", "many"]
        await grant(made.broker, creation(Operation.DESCRIBE, TOPIC, "man", kind=PatternType.PREFIXED))
        assert len((await ann.send(m.ListTablesRequest(database="many"))).tables) == 13
        await allow(made.broker, Operation.DESCRIBE, TOPIC, "*")
        assert (await ann.send(m.ListDatabasesRequest())).databases == ["default", "few", "many"]


@pytest.mark.parametrize("api", ON_DATABASE)
async def test_a_database_is_a_prefix_of_its_name_and_a_dot(tmp_path: Path, api: str) -> None:
    operation, build = ON_DATABASE[api]
    async with secured(tmp_path) as made:
        await made.broker.send(m.CreateDatabaseRequest(name="shop"))
        ann = client(made.broker, "ann")
        refusal = told(await ann.send(build("shop")))
        assert refusal[0] == DENIED
        assert refusal == told(await ann.send(build("nothing")))
        await grant(made.broker, creation(operation, TOPIC, "sho.", kind=PatternType.PREFIXED))
        assert told(await ann.send(build("shop")))[0] == DENIED
        await grant(made.broker, creation(operation, TOPIC, "shop.", kind=PatternType.PREFIXED))
        assert told(await ann.send(build("shop")))[0] != DENIED


async def test_listings_show_only_describable_tables(tmp_path: Path) -> None:
    async with secured(tmp_path) as made:
        await keyed(made, "seen")
        await keyed(made, "hidden")
        await made.broker.send(m.CreateDatabaseRequest(name="shop"))
        ann = client(made.broker, "ann")
        assert (await ann.send(m.ListDatabasesRequest())).databases == []
        await allow(made.broker, Operation.READ, TOPIC, "default.seen")
        assert (await ann.send(m.ListDatabasesRequest())).databases == ["default"]
        assert (await ann.send(m.ListTablesRequest(database="default"))).tables == ["seen"]
        assert (await ann.send(m.DescribeDatabaseRequest(name="default"))).table_count == 1
        assert (await made.broker.send(m.ListTablesRequest(database="default"))).tables == ["hidden", "seen"]
        await allow(made.broker, Operation.CREATE, ResourceType.CLUSTER, CLUSTER_NAME)
        assert told(await ann.send(m.CreateDatabaseRequest(name="new")))[0] == 0


async def test_dropping_a_database_with_tables_needs_delete_on_each(tmp_path: Path) -> None:
    async with secured(tmp_path) as made:
        await keyed(made)
        await grant(
            made.broker,
            creation(Operation.DELETE, TOPIC, "default.", kind=PatternType.PREFIXED),
            creation(Operation.DELETE, TOPIC, "default.t", permission=Permission.DENY),
        )
        ann = client(made.broker, "ann")
        assert told(await ann.send(m.DropDatabaseRequest(name="default", cascade=True)))[0] == DENIED
        assert (await made.broker.send(m.ListTablesRequest(database="default"))).tables == ["t"]


async def test_tiering_rounds_are_listed_and_granted_by_right(tmp_path: Path) -> None:
    async with secured(tmp_path) as made:
        for name in ("t", "u"):
            await made.create("id BIGINT, v STRING", name=name, given={"table.datalake.enabled": "true"})
        ann = client(made.broker, "ann")
        assert (await ann.send(m.ListLakeRequest())).entries == []
        assert not (await ann.send(m.LakeBeginRequest(worker="w", force=True))).granted
        await allow(made.broker, Operation.DESCRIBE, TOPIC, "default.t")
        (entry,) = (await ann.send(m.ListLakeRequest())).entries
        assert entry.name == "default.t"
        assert not (await ann.send(m.LakeBeginRequest(worker="w", force=True))).granted
        await allow(made.broker, Operation.ALTER, TOPIC, "default.u")
        begun = await ann.send(m.LakeBeginRequest(worker="w", force=True))
        assert (begun.granted, begun.table) == (True, "u")


async def test_the_lakes_location_needs_read_or_alter_on_the_whole_table(tmp_path: Path) -> None:
    """`$lake` and union reads use this answer: a user with rights to some columns does not get it."""
    place = {"datalake.iceberg.type": "hadoop", "datalake.iceberg.warehouse": "/lake"}
    async with tables(tmp_path, {**SECURED, **place}) as made:
        made.broker = client(made.broker, "admin")
        table = await made.create(
            "id BIGINT NOT NULL, a STRING, PRIMARY KEY (id)", given={"table.datalake.enabled": "true"}
        )
        ann = client(made.broker, "ann")

        async def told_place() -> dict[str, str | None]:
            answer = await ann.send(m.DescribeLakeRequest(table_id=table.table_id))
            assert answer.error_code == 0
            return {each.key: each.value for each in answer.properties}

        await grant_columns(made, "a")
        assert await told_place() == {}
        await allow(made.broker, Operation.WRITE, TOPIC, "default.t")
        assert await told_place() == {}
        for operation in (Operation.READ, Operation.ALTER):
            await allow(made.broker, operation, TOPIC, "default.t")
            assert await told_place() == place
            await revoke_all(made.broker)
            await allow(made.broker, Operation.DESCRIBE, TOPIC, "default.t")
            assert await told_place() == {}


# -- columns -------------------------------------------------------------------------------------------------


async def grant_columns(made: Tables, *columns: str, who: str = "User:ann", table: str = "t") -> None:
    request = m.GrantColumnsRequest(database="default", table=table, principal=who, columns=list(columns))
    assert told(await made.broker.send(request)) == (0, None)
    await allow(made.broker, Operation.DESCRIBE, TOPIC, f"default.{table}")


async def test_columns_that_are_withheld_are_in_no_answer(tmp_path: Path) -> None:
    async with secured(tmp_path) as made:
        table = await keyed(made)
        await grant_columns(made, "id", "a")
        ann = as_ann(table, made)
        assert await ann.lookup({"id": 1}, columns=["id", "a"]) == [{"id": 1, "a": "x"}]
        assert await ann.limit(5, columns=["a"]) == [{"a": "x"}, {"a": "y"}]
        assert await ann.count() == 2
        assert len(await ann.scan(columns=["id", "a"])) == 1
        b, a = (table.definition.schema.column(name).id for name in ("b", "a"))
        by_b = encode_filter(pc.field("b") == "secret", table.definition.schema)
        refused: list[ApiMessage] = [
            lookup(table, table.table_id),
            lookup(table, table.table_id, [b]),
            m.LimitScanRequest(table_id=table.table_id, limit=5, buckets=[0]),
            m.LimitScanRequest(table_id=table.table_id, columns=[a, b], limit=5, buckets=[0]),
            m.LimitScanRequest(table_id=table.table_id, columns=[a], filter=by_b, limit=5, buckets=[0]),
            m.ScanLogRequest(table_id=table.table_id, buckets=[m.ScanLogBucket(bucket=0)]),
            m.ScanLogRequest(table_id=table.table_id, columns=[a], filter=by_b, buckets=[m.ScanLogBucket(bucket=0)]),
            m.CountRowsRequest(table_id=table.table_id, buckets=[0], filter=by_b),
            m.CountRowsRequest(table_id=table.table_id, buckets=[0], extremes=[b]),
            m.ScanSnapshotRequest(table_id=table.table_id),
            m.ScanSnapshotRequest(table_id=table.table_id, columns=[b]),
        ]  # fmt: skip
        for request in refused:
            code, message = told(await ann.broker.send(request))
            assert code == DENIED, request
            assert "columns b of default.t are withheld; id, a may be read" in message


async def test_the_kafka_view_needs_rights_on_the_whole_table(tmp_path: Path) -> None:
    async with secured(tmp_path) as made:
        await keyed(made)
        ann = client(made.broker, "ann")
        await grant_columns(made, "id", "a")
        assert (await ann.fetch("default.t")).error_code == DENIED
        assert (await ann.produce("default.t", [b'{"id": 5}'])).error_code == DENIED
        await allow(made.broker, Operation.READ, TOPIC, "default.t")
        assert (await ann.fetch("default.t")).error_code == 0
        assert (await ann.produce("default.t", [b'{"id": 5}'])).error_code == DENIED
        await allow(made.broker, Operation.WRITE, TOPIC, "default.t")
        assert (await ann.produce("default.t", [b'{"id": 5}'])).error_code == 0


async def test_a_key_that_is_withheld_cannot_be_looked_up(tmp_path: Path) -> None:
    async with secured(tmp_path) as made:
        table = await keyed(made)
        await grant_columns(made, "a")
        ann = as_ann(table, made)
        a = table.definition.schema.column("a").id
        assert told(await ann.broker.send(lookup(table, table.table_id, [a])))[0] == DENIED
        assert await ann.limit(5, columns=["a"]) == [{"a": "x"}, {"a": "y"}]


async def test_granted_columns_follow_renames(tmp_path: Path) -> None:
    async with secured(tmp_path) as made:
        table = await keyed(made)
        await grant_columns(made, "id", "b")
        renamed = await table.alter("RENAME COLUMN b TO c")
        assert await as_ann(renamed, made).limit(1, columns=["c"]) == [{"c": "secret"}]
        listed = await made.broker.send(m.ListColumnGrantsRequest())
        assert [(each.table, each.principal, each.columns) for each in listed.grants] == [
            ("t", "User:ann", ["id", "c"])
        ]


async def test_denied_read_on_a_table_denies_its_columns(tmp_path: Path) -> None:
    async with secured(tmp_path) as made:
        table = await keyed(made)
        await grant_columns(made, "id", "a", who="User:*")
        ann = as_ann(table, made)
        assert await ann.limit(1, columns=["a"]) == [{"a": "x"}]
        await grant(
            made.broker,
            creation(
                Operation.READ, TOPIC, "default.", kind=PatternType.PREFIXED, permission=Permission.DENY
            ),
        )
        assert told(await ann.broker.send(limit_of(table, "a")))[0] == DENIED


async def test_grants_of_columns_survive_a_restart_add_up_and_are_taken_back(tmp_path: Path) -> None:
    async with secured(tmp_path) as made:
        await keyed(made)
        await grant_columns(made, "id")
        await grant_columns(made, "a")
    async with secured(tmp_path) as made:
        table = await made.open()
        ann = as_ann(table, made)
        assert await ann.limit(1, columns=["id", "a"]) == [{"id": 1, "a": "x"}]
        take = m.RevokeColumnsRequest(database="default", table="t", principal="User:ann", columns=["a", "b"])
        assert (await made.broker.send(take)).columns == ["a"]
        assert told(await ann.broker.send(limit_of(table, "a")))[0] == DENIED
        rest = m.RevokeColumnsRequest(database="default", table="t", principal="User:ann")
        assert (await made.broker.send(rest)).columns == ["id"]
        assert (await made.broker.send(m.ListColumnGrantsRequest())).grants == []


async def test_grants_of_columns_are_for_administrators_and_of_columns_that_exist(tmp_path: Path) -> None:
    async with secured(tmp_path) as made:
        await keyed(made)
        ann = client(made.broker, "ann")
        wanted = m.GrantColumnsRequest(database="default", table="t", principal="User:ann", columns=["id"])
        for request in (
            wanted,
            m.RevokeColumnsRequest(database="default", table="t", principal="User:ann"),
            m.ListColumnGrantsRequest(),
            m.DescribeServerRequest(),
            m.BeginBackupRequest(),
            m.HoldBackupRequest(backup_id="1", is_over=True),
            m.CutBackupRequest(backup_id="1", step=0),
            m.ReadBackupRequest(backup_id="1", place="cut.json"),
        ):
            assert told(await ann.send(request))[0] == ErrorCode.CLUSTER_AUTHORIZATION_FAILED
        for principal, columns, expected in (
            ("User:ann", ["nope"], TableErrorCode.INVALID_PROJECTION),
            ("User:ann", [], ErrorCode.INVALID_REQUEST),
            ("ann", ["id"], ErrorCode.INVALID_REQUEST),
        ):
            bad = m.GrantColumnsRequest(database="default", table="t", principal=principal, columns=columns)
            assert told(await made.broker.send(bad))[0] == expected
    async with tables(tmp_path / "open") as made:
        await keyed(made)
        assert told(await made.broker.send(wanted))[0] == ErrorCode.SECURITY_DISABLED


# -- changes of rights after a check -------------------------------------------------------------------------


async def test_a_scan_that_waits_ends_with_the_right_to_read(tmp_path: Path) -> None:
    async with secured(tmp_path) as made:
        table = await keyed(made)
        await allow(made.broker, Operation.READ, TOPIC, "default.t")
        ann = as_ann(table, made)
        end = table.partition.high_watermark
        scan = m.ScanLogRequest(
            table_id=table.table_id,
            buckets=[m.ScanLogBucket(bucket=0, offset=end)],
            max_wait_ms=20_000,
            min_bytes=1,
        )
        waiting = asyncio.ensure_future(ann.broker.send(scan))
        await asyncio.sleep(0.05)
        await revoke_all(made.broker)
        await table.put(("+", {"id": 3, "a": "z", "b": "later"}))
        answer = await waiting
        assert answer.error_code == DENIED
        assert not answer.buckets


async def test_an_open_snapshot_scan_is_its_principals_and_ends_with_the_right(tmp_path: Path) -> None:
    async with secured(tmp_path) as made:
        table = await keyed(made)
        await grant(
            made.broker,
            *(creation(Operation.READ, TOPIC, "default.t", who=f"User:{who}") for who in ("ann", "bob")),
        )
        ann, bob = client(made.broker, "ann"), client(made.broker, "bob")
        begin = m.ScanSnapshotRequest(table_id=table.table_id, max_bytes=1)
        opened = await ann.send(begin)
        assert (opened.error_code, opened.has_more) == (0, True)
        more = m.ScanSnapshotRequest(table_id=table.table_id, max_bytes=1, scan_id=opened.scan_id)
        assert told(await bob.send(more))[0] == TableErrorCode.SCAN_EXPIRED
        await revoke_all(made.broker)
        assert told(await ann.send(more))[0] == TableErrorCode.TABLE_NOT_FOUND


async def test_a_partition_is_judged_as_its_table(tmp_path: Path) -> None:
    async with secured(tmp_path) as made:
        (statement,) = parse("CREATE TABLE p (id BIGINT, day STRING) PARTITIONED BY (day)")
        assert isinstance(statement, CreateTable)
        table = await made.create_as(statement.definition)
        await made.broker.send(m.CreatePartitionRequest(table_id=table.table_id, name="monday"))
        ann = client(made.broker, "ann")
        session, authorizer = ann.peer.session, made.broker.context.authorizer
        assert session is not None

        def may_read(topic: str) -> bool:
            return authorizer.may(session, ann.peer.host, Operation.READ, TOPIC, topic)

        await allow(made.broker, Operation.READ, TOPIC, "default.p.monday")
        assert not may_read("default.p.monday")
        await allow(made.broker, Operation.READ, TOPIC, "default.p")
        assert may_read("default.p.monday")
        assert not may_read("default.p.tuesday")
        assert (await ann.fetch("default.p.monday")).error_code == 0
