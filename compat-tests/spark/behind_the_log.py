"""Streams of tiered tables into copies, one after the other: `behind_the_log.py ADDRESS FOLDER TABLE...`.

Each stream reads table TABLE from its beginning, or from its checkpoint, up to the present end, and appends its rows to
`TABLE_copy`. While the file FOLDER/slow exists, one task of each stream leaves FOLDER/mark.TABLE after its first rows
and stands still, and the next stream starts.
"""

from __future__ import annotations

import sys
import time
from collections.abc import Iterator
from contextlib import suppress
from pathlib import Path
from typing import Any

ROWS_OF_BATCH = 200


def standing_still(folder: str, table: str) -> Any:
    """Return a function for `mapInArrow`: the first of its tasks leaves a mark after its first batch, and waits."""

    def run(batches: Iterator[Any]) -> Iterator[Any]:
        for number, batch in enumerate(batches):
            yield batch
            if number == 0 and Path(folder, "slow").exists():
                with suppress(FileExistsError):
                    Path(folder, f"mark.{table}").touch(exist_ok=False)
                    time.sleep(600)

    return run


def main() -> None:
    from headrace.spark import session

    address, folder, *tables = sys.argv[1:]
    spark = session(
        "behind",
        cores=len(tables) + 1,
        memory="768m",
        extra={
            "spark.headrace.bootstrap.servers": address,
            "spark.sql.execution.arrow.maxRecordsPerBatch": str(ROWS_OF_BATCH),
        },
    )
    for table in tables:
        reader = spark.readStream.format("headrace").option("table", f"default.{table}")
        reader = (
            reader.option("mode", "upsert")
            if "keyed" in table
            else reader.option("startingOffsets", "earliest")
        )
        rows = reader.load().select("id", "v", "day")
        rows = rows.mapInArrow(standing_still(folder, table), rows.schema)
        writer = rows.writeStream.format("headrace").option("table", f"default.{table}_copy")
        writer = writer.option("checkpointLocation", f"{folder}/checkpoint-{table}")
        query = writer.trigger(availableNow=True).start()
        while not query.awaitTermination(1) and not Path(folder, f"mark.{table}").exists():
            pass
    for query in spark.streams.active:
        query.awaitTermination()
    spark.stop()


if __name__ == "__main__":
    main()
