"""Streams and scans that are behind a tiered table's log: the rows that the log has lost come from the lake, once."""

from __future__ import annotations

import json
from datetime import datetime
from typing import Any
from unittest.mock import patch

import pytest

from headrace.protocol.errors import KafkaError
from headrace.tablelayer.client import ClientConfig, Connection, connect
from headrace.tablelayer.lake import missed_rows
from headrace.tablelayer.lake.adapter import LakeError
from headrace.tablelayer.model.errors import TableError
from headrace.tablelayer.spark import partitioned_stream
from headrace.tablelayer.spark.options import ReadOptions
from headrace.tablelayer.spark.partitioned_stream import PartitionedStreamReader
from headrace.tablelayer.spark.stream import stream_reader
from headrace.tablelayer.tests.lake.test_plain_name import CuttingBroker, Query, Row, World, rows_of
from headrace.tablelayer.tests.lake.test_plain_name import address as address
from headrace.tablelayer.tests.lake.test_plain_name import client as client
from headrace.tablelayer.tests.lake.test_plain_name import server as server


def ms_of(time: datetime) -> int:
    return round(time.timestamp() * 1000)


@pytest.mark.parametrize("partitioned", [False, True])
def test_a_stream_that_is_behind_its_log_goes_on_from_the_lake(
    server: CuttingBroker, client: Connection, partitioned: bool
) -> None:
    world = World(server, client, partitioned=partitioned)
    world.append(20)
    query, capped = Query(server, world), Query(server, world, maxOffsetsPerTrigger="3")
    seen = query.batch()
    assert seen == sorted(world.rows)
    some = capped.batch()
    assert len(some) == 3
    for _ in range(2):
        world.append(10)
        world.tier()
    world.expire()
    world.append(7)
    new = query.batch()
    assert sorted(seen + new) == sorted(world.rows)
    assert query.again() == new, "the same, by another process"
    assert query.batch() == []
    while batch := capped.batch():
        assert len(batch) <= 3
        some += batch
    assert sorted(some) == sorted(world.rows), "each row once, although the log has only the last seven"


def test_a_stream_goes_on_in_a_log_that_is_not_cut_as_far_as_it_is_tiered(
    server: CuttingBroker, client: Connection
) -> None:
    world = World(server, client)
    world.append(20)
    query = Query(server, world)
    seen = query.batch()
    world.append(20)
    behind = {bucket: offset + 2 for bucket, offset in world.table.offsets("latest").items()}
    world.append(20)
    world.tier()
    world.expire(behind)
    assert sorted(seen + query.batch()) == sorted(world.rows)


def test_a_stream_reads_remaining_rows_of_an_expired_partition(
    server: CuttingBroker, client: Connection
) -> None:
    world = World(server, client, partitioned=True)
    world.append(30)
    query, dropped = Query(server, world), Query(server, world)
    seen = query.batch()
    dropped.batch()
    world.append(15)
    world.tier()
    newest = sorted(set(world.rows) - set(seen))
    world.expire_partition("b")
    world.tier()  # its offsets are in no later snapshot
    assert query.batch() == newest
    assert query.again() == newest, "the same, by another process"
    assert query.batch() == []
    assert "b" not in query.at["partitions"], "its end was reached"
    world.drop_partition("a")
    assert dropped.batch() == [row for row in newest if row[2] != "a"], "a client dropped it"


@pytest.mark.parametrize("trigger", ["batch", "available_now"])
def test_a_stream_reads_partitions_that_were_made_and_expired_between_its_batches(
    server: CuttingBroker, client: Connection, trigger: str
) -> None:
    world = World(server, client, partitioned=True)
    world.append(30)
    query = Query(server, world)
    seen = query.batch()
    world.write([(100 + at, 1, "d") for at in range(9)])
    world.expire_partition("d")
    world.write([(200 + at, 2, "d") for at in range(5)])  # late rows make it again
    world.tier()
    world.append(4)
    world.expire_partition("d")
    world.write([(300, 3, "d"), (301, 3, "e"), (302, 3, "f")])
    world.expire_partition("e")
    world.tier()
    world.drop_partition("f")
    new = sorted(set(world.rows) - set(seen))
    assert len([row for row in new if row[2] == "d"]) == 15
    assert getattr(query, trigger)() == new
    world.expire_partition("d")  # it was read
    assert query.again() == new, "the same, by another process"
    assert getattr(query, trigger)() == []
    world.tier()
    assert getattr(query, trigger)() == []


def test_a_stream_reads_such_partitions_from_its_first_position_on(
    server: CuttingBroker, client: Connection
) -> None:
    world = World(server, client, partitioned=True)
    query, latest = Query(server, world), Query(server, world, startingOffsets="latest")
    capped = Query(server, world, maxOffsetsPerTrigger="3", where=json.dumps(["=", "day", "d"]))
    world.write([(at, at, "d") for at in range(9)])
    world.expire_partition("d")
    assert latest.batch() == query.batch() == capped.batch() == sorted(world.rows)
    newest = Query(server, world, startingOffsets="latest")
    assert newest.batch() == [], "rows from before it began"
    world.write([(100 + at, at, "e") for at in range(9)])
    world.expire_partition("e")
    world.append(3)
    assert newest.batch() == latest.batch() == [row for row in sorted(world.rows) if row[2] != "d"]
    assert capped.batch() == []


def test_a_stream_does_not_read_a_partition_again_that_a_round_still_has(
    server: CuttingBroker, client: Connection
) -> None:
    world = World(server, client, partitioned=True)
    world.append(30)
    world.tier()
    query = Query(server, world)
    assert query.batch() == sorted(world.rows)
    world.write([(100, 1, "a")])
    report = world.tierer.coordinator.commit

    def report_later(*given: Any) -> None:
        server.expire(world.table.definition, "b")
        assert query.batch() == [(100, 1, "a")]
        report(*given)

    with patch.object(world.tierer.coordinator, "commit", report_later):
        world.tier()
    world.write([(101, 1, "d")])
    world.expire_partition("d")  # so the stream looks into the snapshots
    assert query.batch() == [(101, 1, "d")]


def test_a_partition_that_expires_before_a_planned_batch_has_read_it_ends_the_batch(
    server: CuttingBroker, client: Connection
) -> None:
    world = World(server, client, partitioned=True)
    world.append(30)
    query = Query(server, world)
    parts = query.plan()
    world.expire_partition("b")
    with pytest.raises(
        TableError, match=r"partition b of .* expired or was dropped while it was read: read again"
    ):
        query.rows(parts)
    assert query.batch_of_plan() == sorted(world.rows)


def test_an_idle_stream_does_not_ask_for_the_lake_in_every_batch(
    server: CuttingBroker, client: Connection, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(partitioned_stream, "_ASKED_EVERY_S", 3600.0)
    world = World(server, client, partitioned=True)
    world.append(30)
    query = Query(server, world)
    query.batch()
    world.write([(100, 1, "d")])
    world.expire_partition("d")
    with patch.object(PartitionedStreamReader, "_ask_lake", side_effect=AssertionError):
        assert query.batch() == query.batch() == []
    world.append(3)
    world.expire_partition("b")
    assert query.batch() == sorted(set(world.rows) - set(sorted(world.rows)[:30])), "other partitions"


def test_a_position_of_an_earlier_release_is_read(server: CuttingBroker, client: Connection) -> None:
    world = World(server, client, partitioned=True)
    world.append(30)
    world.tier()
    query = Query(server, world)
    query.batch()
    for position in (query.last, query.at):
        assert position.pop("lake") == position.pop("began_lake")
    assert query.again() == sorted(world.rows)
    world.append(6)
    assert query.batch() == sorted(world.rows)[-6:]
    world.write([(100, 1, "d")])
    world.expire_partition("d")
    assert query.batch() == [(100, 1, "d")]


_MISSING = "may be missing, because nothing else knows of these partitions"


@pytest.mark.parametrize("passed", [False, True])
@pytest.mark.parametrize("trigger", ["batch", "available_now"])
def test_a_stream_needs_the_history_of_the_lake_only_if_partitions_came_and_went(
    server: CuttingBroker, client: Connection, trigger: str, passed: bool
) -> None:
    world = World(server, client, partitioned=True)
    world.append(30)
    world.write([(90, 1, "known"), (91, 1, "dropped"), (92, 1, "again")])
    world.tier()
    query, easy = Query(server, world), Query(server, world, failOnDataLoss="false")
    seen = query.batch()
    easy.batch()
    world.append(6)
    world.expire_partition("b")
    world.expire_partition("known")
    world.drop_partition("dropped")
    world.expire_partition("again")
    world.write([(92, 2, "again"), (201, 1, "e")])
    if passed:
        world.write([(300, 1, "d")])
        world.expire_partition("d")
    world.append(3)
    world.tier()
    world.expire_snapshots()
    new = sorted(set(world.rows) - set(seen))
    if passed:
        with pytest.raises(TableError, match=_MISSING):
            getattr(query, trigger)()
        new.remove((300, 1, "d"))
        query = easy
    assert getattr(query, trigger)() == new
    world.expire_partition("a")
    world.expire_snapshots()
    assert getattr(query, trigger)() == [], "goes on"
    world.write([(301, 1, "f")])
    world.tier()
    world.drop_partition("f")  # it came and went too, but its rows are not in the table
    world.drop_partition("c")
    world.tier()
    world.expire_snapshots()
    assert getattr(query, trigger)() == [], "no partition has expired"


def test_rows_of_an_earlier_partition_are_not_read_again_without_the_history(
    server: CuttingBroker, client: Connection
) -> None:
    world = World(server, client, partitioned=True)
    world.append(60)
    query = Query(server, world)
    query.batch()
    world.expire_partition("b")
    world.write([(100, 1, "b")])
    assert query.batch() == [(100, 1, "b")]
    world.expire_partition("b")
    world.write([(101, 1, "a")])
    world.tier()
    world.expire_snapshots()
    with pytest.raises(
        TableError, match=r"may have rows of several partitions b in bucket \d, and its history"
    ):
        query.batch()


def test_a_stream_of_some_partitions_needs_the_history_if_any_have_expired(
    server: CuttingBroker, client: Connection
) -> None:
    world = World(server, client, partitioned=True)
    world.append(30)
    world.tier()
    query = Query(server, world, where=json.dumps(["in", "day", ["c", "d"]]))
    query.batch()
    world.write([(100, 1, "c")])
    world.tier()
    world.expire_snapshots()
    assert query.batch() == [(100, 1, "c")]
    world.expire_partition("b")
    world.write([(101, 1, "c"), (102, 1, "d")])
    world.expire_partition("d")
    world.expire_snapshots()
    with pytest.raises(TableError, match=_MISSING):
        query.batch()
    query = Query(server, world, where=json.dumps(["in", "day", ["a", "c"]]))
    query.batch()
    world.write([(103, 1, "d"), (104, 1, "c")])
    world.expire_partition("d")
    world.write([(105, 1, "c")])
    world.tier()
    world.expire_snapshots()
    query.given["where"] = json.dumps(["in", "day", ["c", "d"]])
    with pytest.raises(TableError, match=_MISSING):
        query.available_now()


def test_a_stream_counts_partitions_that_were_never_tiered(server: CuttingBroker, client: Connection) -> None:
    world = World(server, client, partitioned=True)
    world.append(30)
    world.tier()
    client.execute(f"ALTER TABLE {world.name} ADD PARTITION (day = 'empty')")
    query = Query(server, world)
    query.batch()
    server.expire(world.table.definition, "empty")
    world.write([(100, 1, "d")])
    world.expire_partition("d")
    world.append(3)
    world.tier()
    world.expire_snapshots()
    with pytest.raises(TableError, match=_MISSING):
        query.batch()


def test_rounds_of_tiering_alone_make_no_batch(server: CuttingBroker, client: Connection) -> None:
    world = World(server, client, partitioned=True)
    world.append(30)
    world.tier()
    query = Query(server, world)
    query.batch()
    world.append(6)
    query.batch()
    for _ in range(3):
        world.tier()
        assert query.reader.latestOffset() == query.at, "only the snapshot is another one"
    world.expire_snapshots()
    assert query.reader.latestOffset() == query.at
    world.write([(100, 1, "d")])
    world.expire_partition("d")
    assert query.batch() == [(100, 1, "d")], "the history since the stream looked last"
    assert query.again() == [(100, 1, "d")]


@pytest.mark.parametrize("in_lake", [False, True])
def test_a_first_batch_is_repeated_with_the_same_rows(
    server: CuttingBroker, client: Connection, in_lake: bool
) -> None:
    world = World(server, client, partitioned=True)
    world.append(30)
    if in_lake:
        world.expire_partition("c")
        world.append(6)
    query, first = Query(server, world), sorted(world.rows)
    query.plan()
    world.append(9)  # not in the batch
    world.write([(100, 1, "d")])
    world.expire_partition("b")
    world.expire_partition("d")
    world.write([(101, 1, "b")])
    world.append(3)
    world.tier()
    world.expire()
    query.last, query.at = query.at, query.end
    assert query.again() == first, "by another process"
    assert query.batch() == sorted(set(world.rows) - set(first))
    assert query.batch() == []
    query.end["lake"] = 17
    if in_lake:
        with pytest.raises(LakeError, match=r"snapshot 17 of the lake of .* cannot be repeated"):
            query.reader.partitions(query.reader.initialOffset(), query.end | {"began": {}})


def test_a_first_batch_of_a_key_is_not_repeated_without_a_partition_that_expired(
    server: CuttingBroker, client: Connection
) -> None:
    world = World(server, client, partitioned=True, keyed=True)
    world.append(30)
    world.expire_partition("c")
    query = Query(server, world, mode="upsert")
    query.plan()
    world.append(9)
    world.expire_partition("b")
    query.last, query.at = query.at, query.end
    with pytest.raises(TableError, match=r"partition b of .* is gone, and this stream begins with it"):
        query.again()


@pytest.mark.parametrize("trigger", ["batch", "available_now"])
def test_a_stream_reads_remaining_rows_of_a_partition_that_was_made_again(
    server: CuttingBroker, client: Connection, trigger: str
) -> None:
    world = World(server, client, partitioned=True)
    world.append(60)
    query = Query(server, world)
    seen = query.batch()

    def new() -> list[Row]:
        rows = sorted(set(world.rows) - set(seen))
        seen.extend(rows)
        return rows

    world.append(15)
    world.expire_partition("b")
    world.expire_partition("c")
    world.write([(200, 1, "b"), (201, 1, "b")])
    world.tier()  # fewer rows than the earlier partition had: their offsets are not those of the unread rows
    assert getattr(query, trigger)() == new()
    assert query.again() == seen[60:], "the same, by another process"
    assert getattr(query, trigger)() == []
    world.write([(202, 2, "b"), (203, 2, "c")])
    assert getattr(query, trigger)() == new(), "the new partition of an expired one that was read"
    world.append(15)
    world.expire_partition("b")
    world.write([(300 + at, 1, "b") for at in range(60)])
    world.tier()
    unread = new()
    assert len([row for row in unread if row[2] == "b"]) == 65
    assert getattr(query, trigger)() == unread, "the lake has rows of three partitions b at the same offsets"
    assert getattr(query, trigger)() == []


def test_a_stream_that_has_read_all_of_a_partition_goes_on_whatever_follows_it(
    server: CuttingBroker, client: Connection
) -> None:
    world = World(server, client, partitioned=True)
    world.append(60)
    query, late = Query(server, world), []
    assert query.batch() == sorted(world.rows)
    for number, count in enumerate((2, 60, 2)):
        late = [(1000 * (1 + number) + at, 1, "b") for at in range(count)]
        world.expire_partition("b")
        world.write(late)
        world.tier()
        assert query.batch() == late, f"partition {number}"
        assert query.batch() == []
    world.expire_partition("b")
    assert query.batch() == []


def test_a_planned_batch_reads_a_partition_that_is_made_again_before(
    server: CuttingBroker, client: Connection
) -> None:
    world = World(server, client, partitioned=True)
    world.append(30)
    query = Query(server, world)
    seen = query.batch()
    world.append(15)
    query.plan()
    newest = sorted(set(world.rows) - set(seen))
    world.append(6)  # after the batch
    world.expire_partition("b")
    world.write([(200, 1, "b")])
    world.tier()
    query.last, query.at = query.at, query.end
    assert query.again() == newest, "by another process, which repeats the planned batch"
    assert query.batch() == sorted(set(world.rows) - set(seen) - set(newest))


def test_rows_of_a_replaced_partition_are_not_read_from_an_older_snapshot(
    server: CuttingBroker, client: Connection
) -> None:
    world = World(server, client, partitioned=True)
    world.append(30)
    query = Query(server, world)
    seen = query.batch()
    world.append(15)
    world.tier()
    world.drop_partition("b")
    world.write([(200 + at, 1, "b") for at in range(60)])
    world.tier()
    assert query.batch() == sorted(set(world.rows) - set(seen)), "a client dropped the earlier one"


def test_a_repeated_batch_skips_a_partition_that_a_client_replaced_before_all_of_it_was_in_the_lake(
    server: CuttingBroker, client: Connection
) -> None:
    world = World(server, client, partitioned=True)
    world.append(30)
    query = Query(server, world)
    query.batch()
    world.tier()
    world.append(15)
    query.batch()
    world.drop_partition("b")
    world.write([(200, 1, "b")])
    world.tier()
    assert query.again() == [row for row in sorted(world.rows) if 30 <= row[0] < 45]


def test_a_partition_that_was_never_tiered_has_no_rows_in_the_lake(
    server: CuttingBroker, client: Connection
) -> None:
    world = World(server, client, partitioned=True)
    world.append(30)
    world.tier()
    world.drop_partition("b")
    world.write([(100, 1, "b")])
    query = Query(server, world)
    query.plan()
    query.end["partitions"]["b"]["offsets"] = {"0": 0, "1": 0}  # as with maxOffsetsPerTrigger
    query.batch_of_plan()
    world.drop_partition("b")
    world.write([(200 + at, 1, "b") for at in range(10)])
    world.tier()
    assert query.batch() == [(200 + at, 1, "b") for at in range(10)]


def test_a_stream_ends_where_the_history_of_the_lake_does_not_tell_partitions_apart(
    server: CuttingBroker, client: Connection
) -> None:
    world = World(server, client, partitioned=True)
    world.append(30)
    query = Query(server, world)
    query.batch()
    world.append(15)
    world.expire_partition("b")
    world.write([(200 + at, 1, "b") for at in range(60)])
    world.tier()
    with (
        patch.object(missed_rows, "_states_of", return_value=(None, None, False)),
        pytest.raises(TableError, match="has rows of a later partition b at the offsets from"),
    ):
        query.batch()


def test_a_stream_that_is_behind_reads_only_its_columns_and_buckets(
    server: CuttingBroker, client: Connection
) -> None:
    world = World(server, client)
    world.append(20)
    query = Query(server, world, where=json.dumps([">=", "n", 4]))
    query.batch()
    start = world.table.offsets("latest")
    world.append(10)
    world.append(10)
    world.tier()
    with world.table.scan(start=start, until="latest") as scan:
        places = sorted((each.bucket, at, each.timestamp_ms) for each in scan for at in each.offsets.tolist())
    assert len({time_ms for _, _, time_ms in places}) > 1
    world.expire()
    newest = sorted(world.rows)[-20:]
    assert query.batch() == [row for row in newest if row[1] is not None and row[1] >= 4]
    given = {"bootstrap.servers": server.address, "table": world.path, "startingOffsets": json.dumps(start)}
    reader = stream_reader(ReadOptions.parse(given), ["_log_offset", "id", "_bucket", "_commit_timestamp"])
    parts = reader.partitions(reader.initialOffset(), reader.latestOffset())
    found = [
        tuple(row.values()) for each in parts for batch in reader.read(each) for row in batch.to_pylist()
    ]
    assert sorted((bucket, offset, ms_of(time)) for offset, _, bucket, time in found) == places
    assert sorted(each for _, each, _, _ in found) == [row[0] for row in newest]


def test_rows_of_the_lake_have_their_places_in_the_first_batch_of_a_stream_too(
    server: CuttingBroker, client: Connection
) -> None:
    world = World(server, client)
    world.append(10)
    world.append(10)
    with world.table.scan(start="earliest", until="latest") as scan:
        places = sorted((each.bucket, at, each.timestamp_ms) for each in scan for at in each.offsets.tolist())
    world.tier()
    world.expire()
    given = {"bootstrap.servers": server.address, "table": world.path, "where": json.dumps([">=", "id", 0])}
    reader = stream_reader(ReadOptions.parse(given), ["_bucket", "_log_offset", "_commit_timestamp", "n"])
    parts = reader.partitions(reader.initialOffset(), reader.latestOffset())
    found = [row for each in parts for batch in reader.read(each) for row in batch.to_pylist()]
    assert (
        sorted((row["_bucket"], row["_log_offset"], ms_of(row["_commit_timestamp"])) for row in found)
        == places
    )
    assert len({time_ms for _, _, time_ms in places}) > 1


@pytest.mark.parametrize(("keyed", "options"), [(True, {"mode": "upsert"}), (False, {"scan.mode": "log"})])
def test_rows_missing_in_log_and_lake_are_reported(
    server: CuttingBroker, client: Connection, keyed: bool, options: dict[str, str]
) -> None:
    world = World(server, client, keyed=keyed)
    world.append(20)
    query, easy = Query(server, world, **options), Query(server, world, failOnDataLoss="false", **options)
    query.batch(), easy.batch()
    behind = world.table.offsets("latest")
    world.append(10)
    world.tier()
    world.expire()
    world.append(4)
    lost = sum(world.tierer.offsets.values()) - sum(behind.values())
    assert lost == 10
    with pytest.raises(
        TableError, match=rf"{lost} offsets of {world.path} that this stream should read"
    ) as said:
        query.batch()
    assert "failOnDataLoss=false" in said.value.message
    assert ("the present rows" if keyed else "the rows of the log") in said.value.message
    assert easy.batch() == sorted(world.rows)[-4:]


def test_a_scan_that_is_behind_its_log_goes_on_from_the_lake(
    server: CuttingBroker, client: Connection, address: str
) -> None:
    world = World(server, client)
    world.append(20)
    start = world.table.offsets("latest")
    world.append(30)
    world.append(5)
    times: dict[tuple[int, int], int] = {}

    def scanned(connection: Connection = client, **asked: Any) -> list[Row]:
        with connection.table(world.path).scan(start=start, until="latest", **asked) as scan:
            found, at = [], dict(start)
            for piece in scan:
                found += rows_of(piece.batch)
                times.update(
                    dict.fromkeys(((piece.bucket, at) for at in piece.offsets.tolist()), piece.timestamp_ms)
                )
                assert piece.bucket >= 0
                assert (piece.offsets >= at[piece.bucket]).all()
            assert scan.positions == world.table.offsets("latest")
        return sorted(found)

    newest = sorted(world.rows)[-35:]
    assert scanned() == newest
    expected, times = times, {}
    world.tier()
    world.expire()
    assert scanned() == newest
    assert times == expected
    assert len(set(times.values())) > 1
    assert scanned(filter="n >= 4") == [row for row in newest if row[1] is not None and row[1] >= 4]
    of_log = ClientConfig(scan_mode="log")
    lost = r"offsets were deleted before this scan read them\. Continue at \d+"
    with connect(address, of_log) as other, pytest.raises(KafkaError, match=lost):
        scanned(other)


def test_a_scan_goes_on_when_the_log_is_cut_before_it(server: CuttingBroker, client: Connection) -> None:
    """The consumer is slow, and a round and retention pass it."""
    world = World(server, client)
    world.append(20)
    with world.table.scan(start="earliest", poll_timeout=2) as scan:
        found = rows_of(next(scan).batch)
        for _ in range(3):
            world.append(20)
        world.tier()
        world.expire()
        world.append(5)
        found += [row for piece in scan for row in rows_of(piece.batch)]
    assert sorted(found) == sorted(world.rows)
