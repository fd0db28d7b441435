"""R3.5 for a partitioned table as a whole: one decision for the rows of all partitions."""

import uuid
from collections.abc import Callable
from typing import Any
from unittest.mock import patch

import pytest

from headrace.tablelayer.client import Connection, DataError
from headrace.tablelayer.client.write.conform import conform
from headrace.tablelayer.model.batches.batch import ChangeType
from headrace.tablelayer.model.errors import TableError, TableErrorCode
from headrace.tablelayer.server.staged.writing import DecidedBatches

LOG = "(dt STRING, id INT) PARTITIONED BY (dt) WITH ('bucket.num'='2')"
PK = "(dt STRING, id INT, PRIMARY KEY (dt, id) NOT ENFORCED) PARTITIONED BY (dt) WITH ('bucket.num'='2')"
UPSERT, DELETE = int(ChangeType.UPDATE_AFTER), int(ChangeType.DELETE)


def staged(table: Any, batch_id: int, rows: list[tuple[str, int]], change_type: int | None = None) -> Any:
    """One task's run: its receipt."""
    writer = table.staged_writer("w", batch_id, uuid.uuid4().hex)
    given = [{"dt": dt, "id": number} for dt, number in rows]
    conformed = conform(given, table.definition.schema.columns, table="t", fill_missing=True)
    writer.write(conformed, change_type=change_type)
    return writer.finish()


def logged(table: Any) -> list[tuple[str, int]]:
    """Every row of the log, so that one that is written twice shows."""
    with table.scan(start="earliest", until="latest") as scan:
        return sorted((row["dt"], row["id"]) for part in scan for row in part.batch.to_pylist())


def days(*numbers: int, modulus: int = 3) -> list[tuple[str, int]]:
    return [(f"d{number % modulus}", number) for number in numbers]


def test_r3_5_all_partitions_are_written_by_one_decision(make_table: Callable[[str], Any]) -> None:
    table = make_table(LOG)
    first, second = days(*range(20)), days(*range(20, 30), modulus=5)
    receipts = [staged(table, 0, first), staged(table, 0, second)]
    staged(table, 0, days(*range(50)))  # a run that does not count
    assert [each.name for each in table.partitions()] == ["d0", "d1", "d2", "d3", "d4"]
    assert logged(table) == []
    for _ in range(2):
        table.commit_staged("w", 0, receipts)
        assert logged(table) == sorted(first + second)
    # The batch is run again after a restart: other rows, another partition.
    late = staged(table, 0, [("d9", 99)])
    assert late.chunks == {}
    table.commit_staged("w", 0, [late])
    assert logged(table) == sorted(first + second)
    table.commit_staged("w", 1, [staged(table, 1, days(70, 71))])
    assert logged(table) == sorted(first + second + days(70, 71))
    table.abort_staged("w", 2, [staged(table, 2, days(80))])
    assert logged(table) == sorted(first + second + days(70, 71))


def test_r3_5_a_commit_over_partitions_that_is_interrupted_is_completed(
    make_table: Callable[[str], Any],
) -> None:
    write = DecidedBatches._write_chunk
    for fails_at in range(3):  # a chunk for each of three partitions
        table = make_table(LOG)
        rows = days(*range(40))
        receipt = staged(table, 0, rows)
        left = [fails_at]

        async def interrupted(self: Any, *arguments: Any, left: list[int] = left) -> None:
            left[0] -= 1
            if left[0] < 0:
                raise TableError(TableErrorCode.INVALID_ROW, "interrupted here")
            await write(self, *arguments)

        with patch.object(DecidedBatches, "_write_chunk", interrupted), pytest.raises(TableError):
            table.commit_staged("w", 0, [receipt])
        # A later attempt brings other rows; the decided ones are completed.
        table.commit_staged("w", 0, [staged(table, 0, days(77))])
        assert logged(table) == sorted(rows)


def test_r3_5_a_partition_that_goes_before_the_decision_makes_the_batch_run_again(
    make_table: Callable[[str], Any], connection: Connection
) -> None:
    table = make_table(LOG)
    receipt = staged(table, 0, days(0, 1))
    connection.execute(f"ALTER TABLE {table.path} DROP PARTITION (dt = 'd1')")
    with pytest.raises(TableError):
        table.commit_staged("w", 0, [receipt])
    assert logged(table) == []
    table.commit_staged("w", 0, [staged(table, 0, days(0, 1))])
    assert logged(table) == days(0, 1)


def test_r3_5_upserts_and_deletes_of_all_partitions(make_table: Callable[[str], Any]) -> None:
    table = make_table(PK)
    table.commit_staged("w", 0, [staged(table, 0, days(*range(9)), UPSERT)])
    table.commit_staged("w", 1, [staged(table, 1, [*days(0, 1, 2), ("none", 1)], DELETE)])
    assert sorted(row["id"] for row in table.to_arrow().to_pylist()) == list(range(3, 9))
    assert [each.name for each in table.partitions()] == ["d0", "d1", "d2"], "none is made to delete from"
    with pytest.raises(DataError, match="cannot name a partition"):
        staged(table, 2, [("a b", 1)], UPSERT)


def test_r6_10_updates_of_existing_rows_create_no_partition(
    make_table: Callable[[str], Any],
) -> None:
    table = make_table(
        "(dt STRING, id INT, v INT, PRIMARY KEY (dt, id) NOT ENFORCED) PARTITIONED BY (dt) WITH ('bucket.num'='2')"
    )
    table.upsert([{"dt": "d0", "id": 1, "v": 1}])
    rows = [{"dt": "d0", "id": 1, "v": 5}, {"dt": "d0", "id": 2, "v": 5}, {"dt": "none", "id": 1, "v": 5}]
    writer = table.staged_writer("w", 0, uuid.uuid4().hex, only_existing=True)
    writer.write(
        conform(rows, table.definition.schema.columns, table="t", fill_missing=True), change_type=UPSERT
    )
    table.commit_staged("w", 0, [writer.finish()])
    table.partial(rows, ["dt", "id", "v"], only_existing=True)
    assert table.to_arrow().to_pylist() == [{"dt": "d0", "id": 1, "v": 5}]
    assert [each.name for each in table.partitions()] == ["d0"]
