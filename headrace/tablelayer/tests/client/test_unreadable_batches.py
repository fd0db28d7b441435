"""A scan goes on behind a batch that cannot be read."""

import asyncio
import logging

from headrace.broker.log.partition_log import AppendOrigin
from headrace.protocol.records.header import write_crc
from headrace.tablelayer.model.batches.batch import ArrowBatch, stamp_writer


def test_r17_8_a_scan_skips_unreadable_batches_and_reports_them(
    connection, broker_thread, make_table, caplog
):
    table = make_table("(n INT, text STRING) WITH ('bucket.num' = '1')")
    table.append([{"n": 1, "text": "one"}])
    partition = broker_thread._broker.context.replicas.partition(table.definition.path.topic, 0)

    async def smuggle():
        good = bytearray(partition.log.read(0, 1 << 20, up_to=1).region.read())
        for position, values in (
            (len(good) - len(ArrowBatch.parse(good).message) + 8, bytes(32)),
            (68, b"\x40"),
        ):
            bad = bytearray(good)
            bad[position : position + len(values)] = values
            stamp_writer(bad, producer_id=-1, producer_epoch=-1, base_sequence=-1, sequence_count=1)
            write_crc(bad)
            partition.append(bad, AppendOrigin.EXTENSION)

    asyncio.run_coroutine_threadsafe(smuggle(), broker_thread._loop).result(60)
    table.append([{"n": 2, "text": "two"}])
    before = connection.metrics().batches_unreadable
    with caplog.at_level(logging.ERROR, logger="headrace.client"):
        rows = [
            row["n"]
            for part in table.scan(start="earliest", until="latest")
            for row in part.batch.to_pylist()
        ]
    assert rows == [1, 2]
    assert connection.metrics().batches_unreadable == before + 2
    told = [record.getMessage() for record in caplog.records if record.name == "headrace.client"]
    places = [text.partition(" cannot be read")[0].partition("the batch at ")[2] for text in told]
    assert sorted(places) == ["offsets 1 to 1", "offsets 2 to 2"]
