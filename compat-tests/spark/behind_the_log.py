"""Streams of tiered tables into copies, one after the other: `behind_the_log.py ADDRESS FOLDER TABLE...`.

Each stream reads table TABLE from its beginning, or from its checkpoint, up to the present end, and appends its rows to
`TABLE_copy`. While the file FOLDER/slow.TABLE exists, its tasks stand still after their first rows.
"""

from __future__ import annotations

import sys
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

ROWS_OF_BATCH = 200


def standing_still(folder: str, table: str) -> Any:
    """Return a function for `mapInArrow` that leaves a mark after its first batch, and waits."""

    def run(batches: Iterator[Any]) -> Iterator[Any]:
        for number, batch in enumerate(batches):
            yield batch
            if number == 0 and Path(folder, f"slow.{table}").exists():
                Path(folder, f"mark.{table}").touch()
                time.sleep(600)

    return run


def main() -> None:
    from headrace.spark import session

    address, folder, *tables = sys.argv[1:]
    spark = session(
        "behind",
        cores=2,
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
        writer.trigger(availableNow=True).start().awaitTermination()
        print(f"done: {table}", flush=True)
    spark.stop()


if __name__ == "__main__":
    main()
