"""Writes that take a while, in one application: `cluster_kills.py ADDRESS FOLDER KIND-TARGET...`.

KIND is `batch` (the data source), `insert` or `overwrite` (the catalog), or `stream`; TARGET is `log` or `keyed`. Each
writes the rows of table `rows` into table `KIND_TARGET`. A task leaves the process id of its executor in
FOLDER, and then stands still.
"""

from __future__ import annotations

import os
import sys
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

PAUSE_SECONDS = 4.0
BATCH_ROWS = 500
STATEMENTS = {"insert": "INSERT INTO", "overwrite": "INSERT OVERWRITE"}


def in_two_parts(marks: str, write: str) -> Any:
    """Return a function for `mapInArrow` that waits after its first batch."""

    def run(batches: Iterator[Any]) -> Iterator[Any]:
        from pyspark import TaskContext

        for number, batch in enumerate(batches):
            yield batch
            if number == 0:
                context = TaskContext.get()
                place = f"{write}.{context.partitionId()}.{context.attemptNumber()}"
                Path(marks, place).write_text(executor())
                time.sleep(PAUSE_SECONDS)

    return run


def executor() -> str:
    """Return the process id of the executor: its child is the daemon, and the daemon's child is this worker."""
    return Path(f"/proc/{os.getppid()}/stat").read_text().rpartition(")")[2].split()[1]


def main() -> None:
    from headrace.spark import session

    address, folder, *writes = sys.argv[1:]
    settings = {
        "spark.headrace.bootstrap.servers": address,
        "spark.sql.execution.arrow.maxRecordsPerBatch": str(BATCH_ROWS),
    }
    spark = session("kills", extra=settings)
    for write in writes:
        kind, target = write.split("-")
        table = f"default.{kind}_{target}"
        slow = in_two_parts(folder, write)
        source = (spark.readStream if kind == "stream" else spark.read).format("headrace")
        rows = source.option("table", "default.rows").option("maxRecordsPerPartition", "2000").load()
        rows = rows.mapInArrow(slow, rows.schema)
        if kind == "batch":
            rows.write.format("headrace").option("table", table).mode("append").save()
        elif kind in STATEMENTS:
            rows.createOrReplaceTempView("given")
            spark.sql(f"{STATEMENTS[kind]} headrace.{table} SELECT * FROM given")
        else:
            writer = rows.writeStream.format("headrace").option("table", table)
            writer = writer.option("checkpointLocation", f"{folder}/checkpoint-{write}")
            writer.trigger(availableNow=True).start().awaitTermination()
        print(f"written: {write}", flush=True)
    spark.stop()


if __name__ == "__main__":
    main()
